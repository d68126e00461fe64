/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c: opening checkpoints.
 *
 * Files are mapped shared, so that tensors are plain memory and in-place changes reach the file. Headers
 * are read into memory of their own before they are believed. A file that someone truncates while it is
 * mapped kills its reader with SIGBUS: that is the price of mapping, and why all our own writers replace
 * files by renaming and never by truncating.
 */
#include "checkpoint.h"

#include "../../base/context.h"
#include "../table.h"
#include "index.h"
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- paths and journals ---- */

char *weft_path_join(weft_context *context, const char *directory, const char *name) {
    size_t length = strlen(directory);
    return weft_join_texts(context, directory, length > 0 && directory[length - 1] == '/' ? "" : "/", name);
}

char *weft_path_parent(weft_context *context, const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return weft_copy_text(context, ".", 1);
    }
    return weft_copy_text(context, path, slash == path ? 1 : (size_t)(slash - path));
}

weft_status weft_journal_path(weft_context *context, const char *path, char **journal_out) {
    char *real = weft_allocate(context, PATH_MAX);
    if (real == NULL) {
        return WEFT_NO_MEMORY;
    }
    /* a path that does not exist yet stands for itself */
    const char *base = realpath(path, real) != NULL ? real : path;
    struct stat info;
    bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    char *journal = weft_join_texts(context, base, directory ? "/" : "", ".weft-journal");
    weft_release(context, real);
    if (journal == NULL) {
        return WEFT_NO_MEMORY;
    }
    *journal_out = journal;
    return WEFT_OK;
}

weft_status weft_journal_refuse(weft_context *context, const char *path) {
    char *journal = NULL;
    weft_status status = weft_journal_path(context, path, &journal);
    if (status != WEFT_OK) {
        return status;
    }
    struct stat info;
    if (lstat(journal, &info) == 0) {
        status = weft_fail(
            context, WEFT_BUSY,
            "%s: an in-place apply is under way or was interrupted (its journal is %s); run `weft "
            "apply --in-place %s --recover`, or call weft_apply_recover, to finish it",
            path, journal, path);
    } else if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG) {
        status = weft_fail_errno(context, errno, "cannot look for the journal %s", journal);
    }
    weft_release(context, journal);
    return status;
}

/* A file may be part of a directory that was opened as a whole, and the other way round. It is the
 * directory where the file really lies that counts, not that of a link to it. */
static weft_status refuse_parent_journal(weft_context *context, const char *path) {
    char real[PATH_MAX];
    struct stat info;
    if (stat(path, &info) != 0 || S_ISDIR(info.st_mode) || realpath(path, real) == NULL) {
        return WEFT_OK;
    }
    char *parent = weft_path_parent(context, real);
    if (parent == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_journal_refuse(context, parent);
    weft_release(context, parent);
    return status;
}

static weft_status refuse_file_journals(const weft_checkpoint *checkpoint) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        status = weft_journal_refuse(checkpoint->context, checkpoint->files[i].path);
    }
    return status;
}

/* ---- building blocks, shared with checkpoint_create.c ---- */

weft_status weft_checkpoint_allocate(weft_context *context, size_t file_count,
                                     weft_checkpoint **checkpoint_out) {
    weft_checkpoint *checkpoint = weft_allocate_zeroed(context, 1, sizeof(*checkpoint));
    if (checkpoint == NULL) {
        return WEFT_NO_MEMORY;
    }
    checkpoint->context = context;
    checkpoint->files = weft_allocate_zeroed(context, file_count, sizeof(checkpoint->files[0]));
    checkpoint->first = weft_allocate_zeroed(context, file_count + 1, sizeof(checkpoint->first[0]));
    if (checkpoint->files == NULL || checkpoint->first == NULL ||
        weft_table_create(context, &checkpoint->table) != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return WEFT_NO_MEMORY;
    }
    checkpoint->file_count = file_count;
    for (size_t i = 0; i < file_count; i++) {
        checkpoint->files[i].descriptor = -1;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}

weft_status weft_checkpoint_list(weft_checkpoint *checkpoint, size_t file, const char *where,
                                 bool writable) {
    weft_checkpoint_file *entry = &checkpoint->files[file];
    weft_safetensors header;
    weft_status status =
        weft_safetensors_parse(checkpoint->context, where, entry->header, entry->header_bytes, &header);
    if (status != WEFT_OK) {
        return status;
    }
    entry->data_bytes = header.data_bytes;
    entry->metadata = json_incref(header.metadata);
    status = weft_safetensors_list(&header, where, writable, checkpoint->table);
    checkpoint->first[file + 1] = weft_table_count(checkpoint->table);
    weft_safetensors_close(&header);
    return status;
}

weft_status weft_checkpoint_map(weft_checkpoint *checkpoint, size_t file, int descriptor, bool writable) {
    weft_checkpoint_file *entry = &checkpoint->files[file];
    uint64_t before = WEFT_SAFETENSORS_PREFIX + entry->header_bytes;
    uint64_t bytes = before + entry->data_bytes;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mapping = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0);
    if (mapping == MAP_FAILED) {
        return weft_fail_errno(checkpoint->context, errno, "cannot map %s", entry->path);
    }
    /* Readers go through weights from front to back; what writers touch is scattered. Only advice: a
     * failure changes nothing. */
    if (!writable) {
        (void)madvise(mapping, bytes, MADV_SEQUENTIAL);
    }
    entry->mapping = mapping;
    entry->mapping_bytes = bytes;
    size_t first = checkpoint->first[file];
    weft_table_bind(checkpoint->table, first, checkpoint->first[file + 1] - first, entry->mapping + before);
    return WEFT_OK;
}

weft_status weft_checkpoint_describe(weft_checkpoint *checkpoint) {
    weft_container_file *files =
        weft_allocate_array(checkpoint->context, checkpoint->file_count, sizeof(*files));
    if (files == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const weft_checkpoint_file *file = &checkpoint->files[i];
        files[i] = (weft_container_file){file->name, file->header, file->header_bytes};
    }
    checkpoint->container = (weft_container){
        .sharded = checkpoint->sharded,
        .file_count = checkpoint->file_count,
        .files = files,
        .index = checkpoint->index,
        .index_bytes = checkpoint->index_bytes,
    };
    return WEFT_OK;
}

/* ---- reading files ---- */

static weft_status read_fully(weft_context *context, int descriptor, const char *path, uint64_t offset,
                              void *output, size_t size) {
    uint8_t *cursor = output;
    while (size > 0) {
        ssize_t got = pread(descriptor, cursor, size, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return weft_fail_errno(context, errno, "cannot read %s", path);
        }
        if (got == 0) {
            return weft_fail(context, WEFT_TRUNCATED, "%s: became shorter while it was read", path);
        }
        cursor += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return WEFT_OK;
}

/* Without blocking, because the name may turn out to be that of a pipe. */
static weft_status open_regular(weft_context *context, const char *path, weft_open_mode mode,
                                int *descriptor_out, uint64_t *bytes_out) {
    int access = mode == WEFT_OPEN_WRITE ? O_RDWR : O_RDONLY;
    int descriptor = open(path, access | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        return weft_fail_errno(context, errno, "cannot open %s%s", path,
                               mode == WEFT_OPEN_WRITE ? " for writing" : "");
    }
    struct stat info;
    weft_status status = WEFT_OK;
    if (fstat(descriptor, &info) != 0) {
        status = weft_fail_errno(context, errno, "cannot examine %s", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "%s is not a regular file", path);
    }
    if (status != WEFT_OK) {
        close(descriptor);
        return status;
    }
    *descriptor_out = descriptor;
    *bytes_out = (uint64_t)info.st_size;
    return WEFT_OK;
}

static weft_status read_header(weft_checkpoint *checkpoint, size_t file, int descriptor,
                               uint64_t file_bytes, bool writable) {
    weft_context *context = checkpoint->context;
    weft_checkpoint_file *entry = &checkpoint->files[file];
    if (file_bytes < WEFT_SAFETENSORS_PREFIX) {
        return weft_fail(context, WEFT_TRUNCATED, "%s: has %llu bytes, too few for a safetensors file",
                         entry->path, (unsigned long long)file_bytes);
    }
    uint8_t prefix[WEFT_SAFETENSORS_PREFIX];
    weft_status status = read_fully(context, descriptor, entry->path, 0, prefix, sizeof(prefix));
    if (status == WEFT_OK) {
        status = weft_safetensors_length(context, entry->path, prefix, file_bytes, &entry->header_bytes);
    }
    if (status != WEFT_OK) {
        return status;
    }
    entry->header = weft_allocate(context, entry->header_bytes);
    if (entry->header == NULL) {
        return WEFT_NO_MEMORY;
    }
    status =
        read_fully(context, descriptor, entry->path, sizeof(prefix), entry->header, entry->header_bytes);
    if (status == WEFT_OK) {
        status = weft_checkpoint_list(checkpoint, file, entry->path, writable);
    }
    if (status == WEFT_OK) {
        status =
            weft_safetensors_fit(context, entry->path, entry->header_bytes, entry->data_bytes, file_bytes);
    }
    return status;
}

static weft_status load_file(weft_checkpoint *checkpoint, size_t file, weft_open_mode mode) {
    weft_checkpoint_file *entry = &checkpoint->files[file];
    bool writable = mode == WEFT_OPEN_WRITE;
    int descriptor = -1;
    uint64_t bytes = 0;
    weft_status status = open_regular(checkpoint->context, entry->path, mode, &descriptor, &bytes);
    if (status != WEFT_OK) {
        return status;
    }
    status = read_header(checkpoint, file, descriptor, bytes, writable);
    if (status == WEFT_OK) {
        status = weft_checkpoint_map(checkpoint, file, descriptor, writable);
    }
    if (status == WEFT_OK && writable) {
        entry->descriptor = descriptor;
    } else {
        close(descriptor);
    }
    return status;
}

/* The index, in memory. */
static weft_status read_index(weft_context *context, const char *path, char **text_out, size_t *size_out) {
    int descriptor = -1;
    uint64_t bytes = 0;
    weft_status status = open_regular(context, path, WEFT_OPEN_READ, &descriptor, &bytes);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t limit = weft_context_limits(context)->header_bytes;
    char *text = NULL;
    if (bytes > limit) {
        status =
            weft_fail(context, WEFT_LIMIT_EXCEEDED,
                      "%s: its %llu bytes exceed the limit of %llu; raise limits.header_bytes to allow it",
                      path, (unsigned long long)bytes, (unsigned long long)limit);
    } else {
        text = weft_allocate(context, bytes);
        status = text == NULL ? WEFT_NO_MEMORY : read_fully(context, descriptor, path, 0, text, bytes);
    }
    close(descriptor);
    if (status != WEFT_OK) {
        weft_release(context, text);
        return status;
    }
    *text_out = text;
    *size_out = bytes;
    return WEFT_OK;
}

/* ---- opening ---- */

static weft_status set_file(weft_checkpoint *checkpoint, size_t file, const char *name, char *path) {
    weft_checkpoint_file *entry = &checkpoint->files[file];
    entry->path = path;
    entry->name = weft_copy_text(checkpoint->context, name, strlen(name));
    return entry->path == NULL || entry->name == NULL ? WEFT_NO_MEMORY : WEFT_OK;
}

/* `path` becomes the checkpoint's. */
static weft_status open_single(weft_context *context, char *path, weft_open_mode mode,
                               weft_checkpoint **checkpoint_out) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_allocate(context, 1, &checkpoint);
    if (status != WEFT_OK) {
        weft_release(context, path);
        return status;
    }
    status = set_file(checkpoint, 0, "", path);
    if (status == WEFT_OK) {
        status = load_file(checkpoint, 0, mode);
    }
    if (status == WEFT_OK) {
        status = weft_checkpoint_describe(checkpoint);
    }
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}

/* A model.safetensors that the index does not name would make it a matter of taste which of the two
 * checkpoints the directory holds. */
static weft_status refuse_second_checkpoint(weft_context *context, const char *directory,
                                            const weft_index *index) {
    for (size_t i = 0; i < index->file_count; i++) {
        if (strcmp(index->files[i], WEFT_SINGLE_NAME) == 0) {
            return WEFT_OK;
        }
    }
    char *path = weft_path_join(context, directory, WEFT_SINGLE_NAME);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    bool both = access(path, F_OK) == 0;
    weft_release(context, path);
    if (both) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%s holds two checkpoints, %s and the one of %s; remove one, or name the file",
                         directory, WEFT_SINGLE_NAME, WEFT_INDEX_NAME);
    }
    return WEFT_OK;
}

static weft_status load_shards(weft_checkpoint *checkpoint, const char *directory, const weft_index *index,
                               weft_open_mode mode) {
    for (size_t i = 0; i < index->file_count; i++) {
        char *path = weft_path_join(checkpoint->context, directory, index->files[i]);
        weft_status status = set_file(checkpoint, i, index->files[i], path);
        if (status == WEFT_OK) {
            status = load_file(checkpoint, i, mode);
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
    weft_status status = weft_index_check(index, directory, checkpoint->table, checkpoint->first);
    if (status == WEFT_OK) {
        status = refuse_second_checkpoint(checkpoint->context, directory, index);
    }
    return status == WEFT_OK ? weft_checkpoint_describe(checkpoint) : status;
}

/* `text` becomes the checkpoint's. */
static weft_status open_sharded(weft_context *context, const char *directory, char *text, size_t size,
                                const weft_index *index, weft_open_mode mode,
                                weft_checkpoint **checkpoint_out) {
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_allocate(context, index->file_count, &checkpoint);
    if (status != WEFT_OK) {
        weft_release(context, text);
        return status;
    }
    checkpoint->sharded = true;
    checkpoint->index = text;
    checkpoint->index_bytes = size;
    status = load_shards(checkpoint, directory, index, mode);
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}

static weft_status open_index(weft_context *context, const char *directory, const char *index_path,
                              weft_open_mode mode, weft_checkpoint **checkpoint_out) {
    char *text = NULL;
    size_t size = 0;
    weft_status status = read_index(context, index_path, &text, &size);
    if (status != WEFT_OK) {
        return status;
    }
    weft_index index;
    status = weft_index_parse(context, index_path, text, size, &index);
    if (status != WEFT_OK) {
        weft_release(context, text);
        return status;
    }
    status = open_sharded(context, directory, text, size, &index, mode, checkpoint_out);
    weft_index_close(&index);
    return status;
}

static weft_status open_directory(weft_context *context, const char *directory, weft_open_mode mode,
                                  weft_checkpoint **checkpoint_out) {
    char *index_path = weft_path_join(context, directory, WEFT_INDEX_NAME);
    if (index_path == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (access(index_path, F_OK) == 0) {
        weft_status status = open_index(context, directory, index_path, mode, checkpoint_out);
        weft_release(context, index_path);
        return status;
    }
    weft_release(context, index_path);
    char *path = weft_path_join(context, directory, WEFT_SINGLE_NAME);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (access(path, F_OK) != 0) {
        weft_release(context, path);
        return weft_fail(context, WEFT_NOT_FOUND, "%s holds neither %s nor %s", directory, WEFT_SINGLE_NAME,
                         WEFT_INDEX_NAME);
    }
    return open_single(context, path, mode, checkpoint_out);
}

weft_status weft_checkpoint_open_unchecked(weft_context *context, const char *path, weft_open_mode mode,
                                           weft_checkpoint **checkpoint_out) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return weft_fail_errno(context, errno, "cannot open %s", path);
    }
    if (S_ISDIR(info.st_mode)) {
        return open_directory(context, path, mode, checkpoint_out);
    }
    char *copy = weft_copy_text(context, path, strlen(path));
    return copy == NULL ? WEFT_NO_MEMORY : open_single(context, copy, mode, checkpoint_out);
}

weft_status weft_checkpoint_open(weft_context *context, const char *path, weft_open_mode mode,
                                 weft_checkpoint **checkpoint_out) {
    weft_context_clear(context);
    weft_status status = weft_journal_refuse(context, path);
    if (status == WEFT_OK) {
        status = refuse_parent_journal(context, path);
    }
    weft_checkpoint *checkpoint = NULL;
    if (status == WEFT_OK) {
        status = weft_checkpoint_open_unchecked(context, path, mode, &checkpoint);
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = refuse_file_journals(checkpoint);
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}

/* ---- using and closing ---- */

const weft_table *weft_checkpoint_table(const weft_checkpoint *checkpoint) {
    return checkpoint->table;
}

const weft_container *weft_checkpoint_container(const weft_checkpoint *checkpoint) {
    return &checkpoint->container;
}

const char *weft_checkpoint_metadata(const weft_checkpoint *checkpoint, const char *key) {
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const char *value = json_string_value(json_object_get(checkpoint->files[i].metadata, key));
        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}

weft_status weft_checkpoint_flush(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_context_clear(context);
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const weft_checkpoint_file *file = &checkpoint->files[i];
        if (file->descriptor >= 0 &&
            (msync(file->mapping, file->mapping_bytes, MS_SYNC) != 0 || fsync(file->descriptor) != 0)) {
            return weft_fail_errno(context, errno, "cannot sync %s", file->path);
        }
    }
    return WEFT_OK;
}

static void close_file(weft_context *context, weft_checkpoint_file *file) {
    if (file->mapping != NULL) {
        munmap(file->mapping, file->mapping_bytes);
    }
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    json_decref(file->metadata);
    weft_release(context, file->name);
    weft_release(context, file->path);
    weft_release(context, file->target);
    weft_release(context, file->header);
}

void weft_checkpoint_close(weft_checkpoint *checkpoint) {
    if (checkpoint == NULL) {
        return;
    }
    weft_context *context = checkpoint->context;
    if (checkpoint->draft != NULL) {
        weft_draft_abandon(checkpoint);
    }
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        close_file(context, &checkpoint->files[i]);
    }
    weft_table_destroy(checkpoint->table);
    weft_release(context, checkpoint->files);
    weft_release(context, checkpoint->first);
    weft_release(context, checkpoint->index);
    weft_release(context, (weft_container_file *)(uintptr_t)checkpoint->container.files);
    weft_release(context, checkpoint);
}
