/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_create.c: making new checkpoints, so that nothing half-made ever stands at their path.
 *
 * All bytes that are not weights come from a container, which may come out of a hostile patch: it passes
 * the same checks as a checkpoint on disk before a file is created. Then every file is created under a
 * temporary name in the target's directory (so that renaming stays within one file system), with its
 * disk space reserved (so that a full disk is an error here, and not a SIGBUS when the mapping is filled).
 */
#include "checkpoint.h"

#include "../../base/bytes.h"
#include "../../base/context.h"
#include "index.h"
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- the container ---- */

static weft_status copy_file(weft_checkpoint *checkpoint, size_t file, const weft_container_file *source,
                             const char *where) {
    weft_context *context = checkpoint->context;
    weft_checkpoint_file *entry = &checkpoint->files[file];
    uint64_t limit = weft_context_limits(context)->header_bytes;
    if (source->header_bytes > limit) {
        return weft_fail(
            context, WEFT_LIMIT_EXCEEDED,
            "%s: its header of %zu bytes exceeds the limit of %llu; raise limits.header_bytes to "
            "allow it",
            where, source->header_bytes, (unsigned long long)limit);
    }
    const char *name = checkpoint->sharded ? source->name : "";
    entry->name = weft_copy_text(context, name, strlen(name));
    entry->header = weft_copy_text(context, source->header, source->header_bytes);
    if (entry->name == NULL || entry->header == NULL) {
        return WEFT_NO_MEMORY;
    }
    entry->header_bytes = source->header_bytes;
    return weft_checkpoint_list(checkpoint, file, where, true);
}

static weft_status copy_shards(weft_checkpoint *checkpoint, const weft_container *container,
                               const weft_index *index) {
    weft_context *context = checkpoint->context;
    if (container->file_count != index->file_count) {
        return weft_fail(context, WEFT_MALFORMED, "%s: names %zu files, but the container has %zu",
                         WEFT_INDEX_NAME, index->file_count, container->file_count);
    }
    for (size_t i = 0; i < container->file_count; i++) {
        const char *name = container->files[i].name;
        if (name == NULL || strcmp(name, index->files[i]) != 0) {
            return weft_fail(context, WEFT_MALFORMED,
                             "%s: names %s where the container has \"%.255s\"; files must ascend by name",
                             WEFT_INDEX_NAME, index->files[i], name == NULL ? "" : name);
        }
        weft_status status = copy_file(checkpoint, i, &container->files[i], name);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return weft_index_check(index, WEFT_INDEX_NAME, checkpoint->table, checkpoint->first);
}

static weft_status copy_sharded(weft_checkpoint *checkpoint, const weft_container *container) {
    weft_context *context = checkpoint->context;
    checkpoint->sharded = true;
    checkpoint->index = weft_copy_text(context, container->index, container->index_bytes);
    if (checkpoint->index == NULL) {
        return WEFT_NO_MEMORY;
    }
    checkpoint->index_bytes = container->index_bytes;
    weft_index index;
    weft_status status =
        weft_index_parse(context, WEFT_INDEX_NAME, checkpoint->index, checkpoint->index_bytes, &index);
    if (status != WEFT_OK) {
        return status;
    }
    status = copy_shards(checkpoint, container, &index);
    weft_index_close(&index);
    return status;
}

static weft_status copy_container(weft_checkpoint *checkpoint, const char *path,
                                  const weft_container *container) {
    weft_context *context = checkpoint->context;
    if (container->sharded) {
        if (container->index == NULL ||
            container->index_bytes > weft_context_limits(context)->header_bytes) {
            return weft_fail(context, WEFT_MALFORMED, "%s: the container's index is missing or too long",
                             path);
        }
        return copy_sharded(checkpoint, container);
    }
    const char *name = container->file_count == 1 ? container->files[0].name : NULL;
    if (container->file_count != 1 || (name != NULL && name[0] != '\0')) {
        return weft_fail(context, WEFT_MALFORMED,
                         "%s: a container that is not sharded must have one file, without a name", path);
    }
    return copy_file(checkpoint, 0, &container->files[0], path);
}

/* ---- the place ---- */

typedef enum place_kind { PLACE_FREE, PLACE_FILE, PLACE_DIRECTORY } place_kind;

static weft_status find_kind(weft_context *context, const char *path, place_kind *kind_out) {
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno != ENOENT) {
            return weft_fail_errno(context, errno, "cannot create %s", path);
        }
        *kind_out = PLACE_FREE;
    } else if (S_ISREG(info.st_mode)) {
        *kind_out = PLACE_FILE;
    } else if (S_ISDIR(info.st_mode)) {
        *kind_out = PLACE_DIRECTORY;
    } else {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "cannot create %s: a checkpoint cannot be written to a terminal, device or pipe; name a "
            "file or directory",
            path);
    }
    return WEFT_OK;
}

/* A directory must not end up with two checkpoints: see weft_checkpoint_open. */
static weft_status refuse_neighbour(weft_context *context, const char *directory, const char *name) {
    char *path = weft_path_join(context, directory, name);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    bool there = access(path, F_OK) == 0;
    weft_release(context, path);
    if (there) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "cannot create a checkpoint in %s: it already holds another one, of %s; remove that or "
            "choose another path",
            directory, name);
    }
    return WEFT_OK;
}

static weft_status place_single(weft_checkpoint *checkpoint, const char *path, place_kind kind) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    size_t length = strlen(path);
    if (kind != PLACE_DIRECTORY && (length == 0 || path[length - 1] == '/')) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "cannot create \"%s\": it is not a file name",
                         path);
    }
    if (kind == PLACE_DIRECTORY) {
        weft_status status = refuse_neighbour(context, path, WEFT_INDEX_NAME);
        if (status != WEFT_OK) {
            return status;
        }
        draft->target = weft_path_join(context, path, WEFT_SINGLE_NAME);
    } else {
        draft->target = weft_copy_text(context, path, length);
    }
    if (draft->target == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = find_kind(context, draft->target, &kind);
    if (status != WEFT_OK) {
        return status;
    }
    if (kind == PLACE_DIRECTORY) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "cannot create %s: it is a directory",
                         draft->target);
    }
    draft->directory = weft_path_parent(context, draft->target);
    checkpoint->files[0].target = weft_copy_text(context, draft->target, strlen(draft->target));
    return draft->directory == NULL || checkpoint->files[0].target == NULL ? WEFT_NO_MEMORY : WEFT_OK;
}

/* A directory that exists: its files are replaced one by one. */
static weft_status place_shards(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    bool ours = false;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        ours = ours || strcmp(checkpoint->files[i].name, WEFT_SINGLE_NAME) == 0;
    }
    weft_status status = ours ? WEFT_OK : refuse_neighbour(context, draft->target, WEFT_SINGLE_NAME);
    if (status != WEFT_OK) {
        return status;
    }
    draft->directory = weft_copy_text(context, draft->target, strlen(draft->target));
    draft->index_target = weft_path_join(context, draft->target, WEFT_INDEX_NAME);
    if (draft->directory == NULL || draft->index_target == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        weft_checkpoint_file *file = &checkpoint->files[i];
        file->target = weft_path_join(context, draft->target, file->name);
        if (file->target == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

/* ---- the directory ---- */

/* A directory that does not exist yet: all of it is temporary until it is renamed. */
static weft_status place_directory(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    char *parent = weft_path_parent(context, draft->target);
    if (parent == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_temporary_sweep(parent);
    weft_status status = weft_temporary_create(context, parent, 0, WEFT_TEMPORARY_DIRECTORY,
                                               &draft->directory, &draft->lock);
    weft_release(context, parent);
    draft->fresh = status == WEFT_OK;
    return status;
}

static weft_status place_sharded(weft_checkpoint *checkpoint, const char *path, place_kind kind) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (kind == PLACE_FILE || length == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "cannot create \"%s\": a sharded checkpoint needs a directory", path);
    }
    draft->target = weft_copy_text(context, path, length);
    if (draft->target == NULL) {
        return WEFT_NO_MEMORY;
    }
    return kind == PLACE_DIRECTORY ? place_shards(checkpoint) : place_directory(checkpoint);
}

/* ---- the files ---- */

/* Asked first because a file system may well fill itself up before it says no. */
static weft_status check_space(const weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    struct statvfs info;
    if (statvfs(checkpoint->draft->directory, &info) != 0) {
        return weft_fail_errno(context, errno, "cannot examine %s", checkpoint->draft->directory);
    }
    uint64_t available = 0;
    if (__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, &available)) {
        available = UINT64_MAX;
    }
    uint64_t needed = checkpoint->index_bytes;
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        const weft_checkpoint_file *file = &checkpoint->files[i];
        needed += WEFT_SAFETENSORS_PREFIX + file->header_bytes + file->data_bytes;
    }
    if (needed > available) {
        return weft_fail(
            context, WEFT_NO_SPACE, "cannot create %s: it needs %llu bytes, but only %llu are free there",
            checkpoint->draft->target, (unsigned long long)needed, (unsigned long long)available);
    }
    return WEFT_OK;
}

static weft_status write_fully(weft_context *context, int descriptor, const char *path, const void *data,
                               size_t size, uint64_t offset) {
    const uint8_t *cursor = data;
    while (size > 0) {
        ssize_t put = pwrite(descriptor, cursor, size, (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return weft_fail_errno(context, errno, "cannot write %s", path);
        }
        cursor += put;
        offset += (uint64_t)put;
        size -= (size_t)put;
    }
    return WEFT_OK;
}

static weft_status reserve_space(weft_context *context, int descriptor, const char *path, uint64_t bytes) {
    static const uint8_t zeros[64 * 1024];
    int error;
    do {
        error = posix_fallocate(descriptor, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error != 0 && error != EINVAL && error != EOPNOTSUPP) {
        return weft_fail_errno(context, error, "cannot reserve %llu bytes for %s",
                               (unsigned long long)bytes, path);
    }
    weft_status status = WEFT_OK;
    for (uint64_t offset = 0; error != 0 && offset < bytes && status == WEFT_OK; offset += sizeof(zeros)) {
        uint64_t left = bytes - offset;
        size_t size = left < sizeof(zeros) ? (size_t)left : sizeof(zeros);
        status = write_fully(context, descriptor, path, zeros, size, offset);
    }
    return status;
}

/* A file that replaces another is as readable as that was. */
static weft_status copy_mode(weft_context *context, const char *target, int descriptor, const char *path) {
    struct stat info;
    if (target == NULL || stat(target, &info) != 0) {
        return WEFT_OK;
    }
    if (fchmod(descriptor, info.st_mode & 0777) != 0) {
        return weft_fail_errno(context, errno, "cannot set the mode of %s", path);
    }
    return WEFT_OK;
}

/* In a fresh directory the name is final; elsewhere it is temporary, and `number` helps to find a free
 * one. */
static weft_status create_file(const weft_draft *draft, weft_context *context, const char *name,
                               size_t number, char **path_out, int *descriptor_out) {
    if (!draft->fresh) {
        return weft_temporary_create(context, draft->directory, number, WEFT_TEMPORARY_FILE, path_out,
                                     descriptor_out);
    }
    char *path = weft_path_join(context, draft->directory, name);
    if (path == NULL) {
        return WEFT_NO_MEMORY;
    }
    int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        weft_status status = weft_fail_errno(context, errno, "cannot create %s", path);
        weft_release(context, path);
        return status;
    }
    *path_out = path;
    *descriptor_out = descriptor;
    return WEFT_OK;
}

static weft_status make_file(weft_checkpoint *checkpoint, size_t number) {
    weft_context *context = checkpoint->context;
    weft_checkpoint_file *file = &checkpoint->files[number];
    int descriptor = -1;
    weft_status status =
        create_file(checkpoint->draft, context, file->name, number, &file->path, &descriptor);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t bytes = WEFT_SAFETENSORS_PREFIX + file->header_bytes + file->data_bytes;
    status = reserve_space(context, descriptor, file->path, bytes);
    if (status == WEFT_OK) {
        status = copy_mode(context, file->target, descriptor, file->path);
    }
    uint8_t prefix[WEFT_SAFETENSORS_PREFIX];
    for (unsigned i = 0; i < sizeof(prefix); i++) {
        prefix[i] = (uint8_t)((uint64_t)file->header_bytes >> (8 * i));
    }
    if (status == WEFT_OK) {
        status = write_fully(context, descriptor, file->path, prefix, sizeof(prefix), 0);
    }
    if (status == WEFT_OK) {
        status =
            write_fully(context, descriptor, file->path, file->header, file->header_bytes, sizeof(prefix));
    }
    if (status == WEFT_OK) {
        status = weft_checkpoint_map(checkpoint, number, descriptor, true);
    }
    close(descriptor);
    return status;
}

static weft_status make_files(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    weft_temporary_sweep(draft->directory);
    weft_status status = check_space(checkpoint);
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        status = make_file(checkpoint, i);
    }
    if (status == WEFT_OK && checkpoint->sharded) {
        status = create_file(draft, context, WEFT_INDEX_NAME, checkpoint->file_count, &draft->index_path,
                             &draft->index_lock);
        if (status == WEFT_OK) {
            status = write_fully(context, draft->index_lock, draft->index_path, checkpoint->index,
                                 checkpoint->index_bytes, 0);
        }
        if (status == WEFT_OK) {
            status = copy_mode(context, draft->index_target, draft->index_lock, draft->index_path);
        }
    }
    return status == WEFT_OK ? weft_checkpoint_describe(checkpoint) : status;
}

/* A journal would one day be applied to the new files. */
static weft_status refuse_journals(const weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    weft_status status = weft_journal_refuse(context, draft->target);
    if (status == WEFT_OK) {
        status = weft_journal_refuse(context, draft->directory);
    }
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        if (checkpoint->files[i].target != NULL) {
            status = weft_journal_refuse(context, checkpoint->files[i].target);
        }
    }
    return status;
}

static weft_status make_draft(weft_checkpoint *checkpoint, const char *path,
                              const weft_container *container) {
    weft_context *context = checkpoint->context;
    checkpoint->draft = weft_allocate_zeroed(context, 1, sizeof(*checkpoint->draft));
    if (checkpoint->draft == NULL) {
        return WEFT_NO_MEMORY;
    }
    checkpoint->draft->process = getpid();
    checkpoint->draft->lock = -1;
    checkpoint->draft->index_lock = -1;
    weft_status status = copy_container(checkpoint, path, container);
    place_kind kind = PLACE_FREE;
    if (status == WEFT_OK) {
        status = find_kind(context, path, &kind);
    }
    if (status == WEFT_OK) {
        status = checkpoint->sharded ? place_sharded(checkpoint, path, kind)
                                     : place_single(checkpoint, path, kind);
    }
    if (status == WEFT_OK) {
        status = refuse_journals(checkpoint);
    }
    return status == WEFT_OK ? make_files(checkpoint) : status;
}

weft_status weft_checkpoint_create(weft_context *context, const char *path, const weft_container *container,
                                   weft_checkpoint **checkpoint_out) {
    weft_context_clear(context);
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_allocate(context, container->file_count, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    status = make_draft(checkpoint, path, container);
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return WEFT_OK;
}
