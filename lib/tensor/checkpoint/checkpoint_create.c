/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_create.c: making new checkpoints, so that nothing half-made ever stands at their path.
 *
 * All bytes that are not weights come from a container, which may come out of a hostile patch: it passes
 * the same checks as a checkpoint on disk before a file is created. Then every file is created under a
 * temporary name in the target's directory (so that renaming stays within one file system), with its
 * disk space reserved (so that a full disk is an error here, and not a SIGBUS when the mapping is filled).
 *
 * Three ways to the target:
 *  - a single file: renamed over the target, atomically;
 *  - a sharded checkpoint whose directory does not exist: made in a temporary directory, which is then
 *    renamed, atomically;
 *  - a sharded checkpoint into a directory that exists, and may hold other files than ours: this takes
 *    several renames. The old index is set aside first and the new one placed last, so that who goes by
 *    the index sees the old checkpoint, none, or the new one, and never a mixture. If a rename fails, the
 *    old files are put back. After a kill between the renames the directory has no index, and the old
 *    files are still there under names of the form .weft-*.old. Old shards that the new index does not
 *    name stay: they may be somebody's.
 *
 * What a killed process left under a temporary name is as large as a model, and is cleared away by the
 * next one that comes by. Whoever is at work holds a lock on what it makes: what can be locked is nobody's.
 */
#include "checkpoint.h"

#include "../../base/bytes.h"
#include "../../base/context.h"
#include "index.h"
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TEMPORARY_NAME = 64, TEMPORARY_ATTEMPTS = 10000 };

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

static weft_status look_at(weft_context *context, const char *path, place_kind *kind_out) {
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
    weft_status status = look_at(context, draft->target, &kind);
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

static bool names_file(const weft_checkpoint *checkpoint, const char *name) {
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        if (strcmp(checkpoint->files[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* A directory that exists: its files are replaced one by one. */
static weft_status place_shards(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    weft_status status = WEFT_OK;
    if (!names_file(checkpoint, WEFT_SINGLE_NAME)) {
        status = refuse_neighbour(context, draft->target, WEFT_SINGLE_NAME);
    }
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

/* ---- temporary names ---- */

/* What becomes of a temporary name after a kill. */
typedef enum temporary_kind {
    TEMPORARY_FILE,      /* ".tmp": swept */
    TEMPORARY_DIRECTORY, /* the same */
    TEMPORARY_ASIDE,     /* ".old": the user's own file, which is never swept */
} temporary_kind;

static char *temporary_path(weft_context *context, const char *directory, size_t number,
                            temporary_kind kind) {
    char name[TEMPORARY_NAME];
    snprintf(name, sizeof(name), ".weft-%ld-%zu.%s", (long)getpid(), number,
             kind == TEMPORARY_ASIDE ? "old" : "tmp");
    return weft_path_join(context, directory, name);
}

/* A descriptor of something that did not exist before, or -1 and errno. */
static int create_exclusively(const char *path, temporary_kind kind) {
    if (kind != TEMPORARY_DIRECTORY) {
        return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return mkdir(path, 0777) == 0 ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

/* False if a sweep was quicker and took the name for a leftover. Where there are no locks there are no
 * sweeps either. The lock lasts as long as the descriptor or a mapping made from it. */
static bool claim_temporary(int descriptor) {
    struct stat info;
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        return errno != EWOULDBLOCK;
    }
    return fstat(descriptor, &info) != 0 || info.st_nlink > 0;
}

/* Creates a file or directory under a name that nobody has. Exclusive creation settles all races, so the
 * names need not be secret. */
static weft_status create_temporary(weft_context *context, const char *directory, size_t number,
                                    temporary_kind kind, char **path_out, int *descriptor_out) {
    for (size_t attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        char *path = temporary_path(context, directory, number + attempt, kind);
        if (path == NULL) {
            return WEFT_NO_MEMORY;
        }
        int made = create_exclusively(path, kind);
        int error = made >= 0 ? EEXIST : errno;
        if (made >= 0 && (kind == TEMPORARY_ASIDE || claim_temporary(made))) {
            *path_out = path;
            *descriptor_out = made;
            return WEFT_OK;
        }
        if (made >= 0) {
            close(made);
        }
        weft_release(context, path);
        if (error != EEXIST) {
            return weft_fail_errno(context, error, "cannot create a file in %s", directory);
        }
    }
    return weft_fail(context, WEFT_IO_FAILED,
                     "cannot create a file in %s: too many leftovers named .weft-*.tmp; remove them",
                     directory);
}

/* ".weft-<digits>-<digits>.tmp" */
static bool is_temporary_name(const char *name) {
    static const char prefix[] = ".weft-";
    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0) {
        return false;
    }
    const char *cursor = name + sizeof(prefix) - 1;
    size_t process = strspn(cursor, "0123456789");
    if (process == 0 || cursor[process] != '-') {
        return false;
    }
    cursor += process + 1;
    size_t number = strspn(cursor, "0123456789");
    return number > 0 && strcmp(cursor + number, ".tmp") == 0;
}

/* The files of a directory that never got its name; it has no directories in it. */
static void sweep_files(int descriptor) {
    int copy = dup(descriptor);
    DIR *directory = copy < 0 ? NULL : fdopendir(copy);
    if (directory == NULL) {
        if (copy >= 0) {
            close(copy);
        }
        return;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(descriptor, entry->d_name, 0);
        }
    }
    closedir(directory);
}

static void sweep_entry(int directory, const char *name) {
    struct stat info;
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) {
        return;
    }
    bool is_directory = S_ISDIR(info.st_mode);
    int flags = is_directory ? O_RDONLY | O_DIRECTORY : O_RDWR;
    int descriptor = openat(directory, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    /* Who made it may have finished, renamed it and let go of the lock since it was opened: what we hold is
     * then somebody's checkpoint. Under the lock a name that still leads here can no longer change. */
    struct stat held;
    struct stat named;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &held) == 0 &&
        fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_dev == named.st_dev &&
        held.st_ino == named.st_ino) {
        if (is_directory) {
            sweep_files(descriptor);
        }
        (void)unlinkat(directory, name, is_directory ? AT_REMOVEDIR : 0);
    }
    close(descriptor);
}

void weft_temporary_sweep(const char *path) {
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (is_temporary_name(entry->d_name)) {
            sweep_entry(dirfd(directory), entry->d_name);
        }
    }
    closedir(directory);
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
    weft_status status =
        create_temporary(context, parent, 0, TEMPORARY_DIRECTORY, &draft->directory, &draft->lock);
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

static weft_status write_zeros(weft_context *context, int descriptor, const char *path, uint64_t bytes) {
    static const uint8_t zeros[64 * 1024];
    for (uint64_t offset = 0; offset < bytes; offset += sizeof(zeros)) {
        uint64_t left = bytes - offset;
        size_t size = left < sizeof(zeros) ? (size_t)left : sizeof(zeros);
        weft_status status = write_fully(context, descriptor, path, zeros, size, offset);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status reserve_space(weft_context *context, int descriptor, const char *path, uint64_t bytes) {
    int error;
    do {
        error = posix_fallocate(descriptor, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error == EINVAL || error == EOPNOTSUPP) {
        return write_zeros(context, descriptor, path, bytes);
    }
    if (error != 0) {
        return weft_fail_errno(context, error, "cannot reserve %llu bytes for %s",
                               (unsigned long long)bytes, path);
    }
    return WEFT_OK;
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
        return create_temporary(context, draft->directory, number, TEMPORARY_FILE, path_out,
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

static weft_status write_header(weft_context *context, const weft_checkpoint_file *file, int descriptor) {
    uint8_t prefix[WEFT_SAFETENSORS_PREFIX];
    for (unsigned i = 0; i < sizeof(prefix); i++) {
        prefix[i] = (uint8_t)((uint64_t)file->header_bytes >> (8 * i));
    }
    weft_status status = write_fully(context, descriptor, file->path, prefix, sizeof(prefix), 0);
    if (status == WEFT_OK) {
        status =
            write_fully(context, descriptor, file->path, file->header, file->header_bytes, sizeof(prefix));
    }
    return status;
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
    if (status == WEFT_OK) {
        status = write_header(context, file, descriptor);
    }
    if (status == WEFT_OK) {
        status = weft_checkpoint_map(checkpoint, number, descriptor, true);
    }
    close(descriptor);
    return status;
}

static weft_status make_index(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    weft_status status = create_file(draft, context, WEFT_INDEX_NAME, checkpoint->file_count,
                                     &draft->index_path, &draft->index_lock);
    if (status != WEFT_OK) {
        return status;
    }
    status = write_fully(context, draft->index_lock, draft->index_path, checkpoint->index,
                         checkpoint->index_bytes, 0);
    return status == WEFT_OK ? copy_mode(context, draft->index_target, draft->index_lock, draft->index_path)
                             : status;
}

static weft_status make_files(weft_checkpoint *checkpoint) {
    weft_temporary_sweep(checkpoint->draft->directory);
    weft_status status = check_space(checkpoint);
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        status = make_file(checkpoint, i);
    }
    if (status == WEFT_OK && checkpoint->sharded) {
        status = make_index(checkpoint);
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
        status = look_at(context, path, &kind);
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

/* ---- finishing ---- */

static weft_status sync_path(weft_context *context, const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    int error = descriptor < 0 || fsync(descriptor) != 0 ? errno : 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return error == 0 ? WEFT_OK : weft_fail_errno(context, error, "cannot sync %s", path);
}

/* Everything that renaming will make visible. Syncing a file also writes what was changed through its
 * mapping. */
static weft_status sync_files(const weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < checkpoint->file_count && status == WEFT_OK; i++) {
        status = sync_path(context, checkpoint->files[i].path);
    }
    if (status == WEFT_OK && draft->index_path != NULL) {
        status = sync_path(context, draft->index_path);
    }
    if (status == WEFT_OK && draft->fresh) {
        status = sync_path(context, draft->directory);
    }
    return status;
}

/* The directory whose entries renaming changes. */
static char *target_directory(const weft_checkpoint *checkpoint) {
    const weft_draft *draft = checkpoint->draft;
    return draft->fresh ? weft_path_parent(checkpoint->context, draft->target)
                        : weft_copy_text(checkpoint->context, draft->directory, strlen(draft->directory));
}

/* One file of a directory that is being replaced. */
typedef struct replacement {
    const char *path;
    const char *target;
    char *aside;   /* a temporary name of ours, or NULL if there is nothing to set aside */
    bool moved;    /* the old file stands at `aside` */
    bool replaced; /* the new file stands at `target` */
} replacement;

static weft_status set_aside(weft_context *context, const char *directory, size_t number,
                             replacement *item) {
    struct stat info;
    if (lstat(item->target, &info) != 0) {
        return errno == ENOENT ? WEFT_OK
                               : weft_fail_errno(context, errno, "cannot replace %s", item->target);
    }
    int descriptor = -1;
    weft_status status =
        create_temporary(context, directory, number, TEMPORARY_ASIDE, &item->aside, &descriptor);
    if (status != WEFT_OK) {
        return status;
    }
    close(descriptor);
    if (rename(item->target, item->aside) != 0) {
        return weft_fail_errno(context, errno, "cannot replace %s", item->target);
    }
    item->moved = true;
    return WEFT_OK;
}

static weft_status put_in_place(weft_context *context, replacement *item) {
    if (rename(item->path, item->target) != 0) {
        return weft_fail_errno(context, errno, "cannot move the new file to %s", item->target);
    }
    item->replaced = true;
    return WEFT_OK;
}

/* The failure has been recorded; if this fails too, the old file stays at its temporary name. */
static void undo_replacement(const replacement *item) {
    if (item->replaced) {
        (void)rename(item->target, item->path);
    }
    if (item->moved) {
        (void)rename(item->aside, item->target);
    } else if (item->aside != NULL) {
        (void)unlink(item->aside);
    }
}

/* The last item is the index: set aside first, placed last. */
static weft_status replace_items(weft_context *context, const char *directory, replacement *items,
                                 size_t count) {
    weft_status status = set_aside(context, directory, count, &items[count - 1]);
    for (size_t i = 0; i < count - 1 && status == WEFT_OK; i++) {
        status = set_aside(context, directory, count + 1 + i, &items[i]);
        if (status == WEFT_OK) {
            status = put_in_place(context, &items[i]);
        }
    }
    return status == WEFT_OK ? put_in_place(context, &items[count - 1]) : status;
}

static weft_status replace_shards(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    const weft_draft *draft = checkpoint->draft;
    size_t count = checkpoint->file_count + 1;
    replacement *items = weft_allocate_zeroed(context, count, sizeof(*items));
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count - 1; i++) {
        items[i].path = checkpoint->files[i].path;
        items[i].target = checkpoint->files[i].target;
    }
    items[count - 1].path = draft->index_path;
    items[count - 1].target = draft->index_target;
    weft_status status = replace_items(context, draft->directory, items, count);
    for (size_t i = 0; i < count; i++) {
        if (status != WEFT_OK) {
            undo_replacement(&items[i]);
        } else if (items[i].moved) {
            (void)unlink(items[i].aside);
        }
        weft_release(context, items[i].aside);
    }
    weft_release(context, items);
    return status;
}

static weft_status publish(weft_checkpoint *checkpoint) {
    const weft_draft *draft = checkpoint->draft;
    if (checkpoint->sharded && !draft->fresh) {
        return replace_shards(checkpoint);
    }
    const char *path = draft->fresh ? draft->directory : checkpoint->files[0].path;
    if (rename(path, draft->target) != 0) {
        return weft_fail_errno(checkpoint->context, errno, "cannot move the new checkpoint to %s",
                               draft->target);
    }
    return WEFT_OK;
}

/* All memory is taken before anything is renamed. If the last sync fails, the new checkpoint stands at its
 * path, but a power cut could still undo that. */
static weft_status publish_durably(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    char *directory = target_directory(checkpoint);
    if (directory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = sync_files(checkpoint);
    if (status == WEFT_OK) {
        status = publish(checkpoint);
    }
    if (status == WEFT_OK) {
        checkpoint->draft->finished = true;
        status = sync_path(context, directory);
    }
    weft_release(context, directory);
    return status;
}

weft_status weft_checkpoint_finish(weft_checkpoint *checkpoint, bool durable) {
    weft_context *context = checkpoint->context;
    weft_context_clear(context);
    weft_status status;
    if (checkpoint->draft == NULL) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "only a checkpoint from weft_checkpoint_create can be finished");
    } else {
        status = weft_process_check(context, checkpoint->draft->process, "this checkpoint");
    }
    if (status == WEFT_OK && durable) {
        status = publish_durably(checkpoint);
    } else if (status == WEFT_OK) {
        status = publish(checkpoint);
        checkpoint->draft->finished = status == WEFT_OK;
    }
    weft_checkpoint_close(checkpoint);
    return status;
}

void weft_draft_abandon(weft_checkpoint *checkpoint) {
    weft_context *context = checkpoint->context;
    weft_draft *draft = checkpoint->draft;
    if (!draft->finished && weft_process_is(draft->process)) {
        for (size_t i = 0; i < checkpoint->file_count; i++) {
            if (checkpoint->files[i].path != NULL) {
                (void)unlink(checkpoint->files[i].path);
            }
        }
        if (draft->index_path != NULL) {
            (void)unlink(draft->index_path);
        }
        if (draft->fresh) {
            (void)rmdir(draft->directory);
        }
    }
    if (draft->lock >= 0) {
        close(draft->lock);
    }
    if (draft->index_lock >= 0) {
        close(draft->index_lock);
    }
    weft_release(context, draft->directory);
    weft_release(context, draft->target);
    weft_release(context, draft->index_path);
    weft_release(context, draft->index_target);
    weft_release(context, draft);
    checkpoint->draft = NULL;
}
