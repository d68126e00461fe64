/* SPDX-License-Identifier: Apache-2.0
 *
 * directory.c: a store in a directory, on a local or a network file system. An object is the file
 * root/key.
 *
 * A put writes a temporary file in the root (".tmp-…": no key begins with a dot), syncs it, and renames it
 * to its place, so that a reader opens one content or another and never a mixture. The writer holds a lock
 * on its temporary file. One that is not locked is a leftover of a killed process, and the first put of
 * each opened store removes it.
 *
 * A tag is made of inode, size and modification time. Inodes are used again and the kernel's clock ticks
 * slowly, so a put sets the modification time itself, to the nanosecond: no two contents share a tag. The
 * change time is left out, since links and renames move it while the bytes stay.
 *
 * IF_ABSENT is a link(2), which fails if the name is taken. IF_SAME compares and renames under a file lock
 * that all such puts of a root take. Puts without a condition, and removals, do not take it.
 */
#include "directory.h"

#include "../base/context.h"
#include "../base/temporary.h"
#include "table/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".tmp-"
#define LOCK_NAME ".lock"

static const double POLL_SECONDS = 0.02;

enum {
    ROOT_MAX = PATH_MAX - WEFT_STORE_KEY_MAX - 2,
    STALE_ATTEMPTS = 5,     /* to open a file that a network file system lost track of */
    TEMPORARY_ATTEMPTS = 8, /* to make a temporary file that no sweep takes before it is locked */
    COPY_BYTES = 1 << 20,
};

/* Write-back begins whenever so much was written, so that the sync at the end finds little to do. */
static const uint64_t WRITE_BACK_BYTES = (uint64_t)8 << 20;

typedef struct directory_store {
    weft_context *context; /* for memory only */
    char *root;
    bool durable;
    atomic_bool swept;
} directory_store;

/* Key "" is the root itself. */
static void join_path(const directory_store *store, const char *key, char path[PATH_MAX]) {
    if (*key == '\0') {
        snprintf(path, PATH_MAX, "%s", store->root);
    } else {
        snprintf(path, PATH_MAX, "%s/%s", store->root, key);
    }
}

/* ---- reading ---- */

static void make_tag(const struct stat *info, weft_store_tag *tag) {
    memset(tag, 0, sizeof(*tag));
    snprintf(tag->text, sizeof(tag->text), "%llx-%llx-%llx.%lx", (unsigned long long)info->st_ino,
             (unsigned long long)info->st_size, (unsigned long long)info->st_mtim.tv_sec,
             (unsigned long)info->st_mtim.tv_nsec);
}

/* Opens an object. Returns 0 or an errno; ENOENT if what lies there is not a regular file. Descriptors are
 * not kept for later: a network file system shows new content only at an open (close-to-open consistency).
 */
static int open_object(const char *path, int *descriptor_out, struct stat *info) {
    int error = ESTALE;
    for (int attempt = 0; attempt < STALE_ATTEMPTS && error == ESTALE; attempt++) {
        int descriptor = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (descriptor < 0) {
            error = errno == ENOTDIR || errno == ELOOP || errno == ENXIO ? ENOENT : errno;
            continue;
        }
        error = fstat(descriptor, info) != 0 ? errno : S_ISREG(info->st_mode) ? 0 : ENOENT;
        if (error == 0) {
            *descriptor_out = descriptor;
        } else {
            close(descriptor);
        }
    }
    return error;
}

static int stat_object(const char *path, struct stat *info) {
    int descriptor = -1;
    int error = open_object(path, &descriptor, info);
    if (error == 0) {
        close(descriptor);
    }
    return error;
}

static weft_status fail_read(weft_context *context, int error, const char *path) {
    if (error == ENOENT) {
        return weft_fail(context, WEFT_NOT_FOUND, "there is no object at %s", path);
    }
    return weft_fail_errno(context, error, "cannot read %s", path);
}

static int read_range(int descriptor, const weft_store_get_request *request, uint64_t *received_out) {
    uint64_t received = 0;
    while (received < request->length && request->offset <= (uint64_t)INT64_MAX - received) {
        uint64_t left = request->length - received;
        size_t want = left < SSIZE_MAX ? (size_t)left : SSIZE_MAX;
        ssize_t got = pread(descriptor, (uint8_t *)request->buffer + received, want,
                            (off_t)(request->offset + received));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return errno;
        }
        if (got == 0) {
            break;
        }
        received += (uint64_t)got;
    }
    *received_out = received;
    return 0;
}

static int try_get(const char *path, const weft_store_get_request *request, weft_store_get_result *result) {
    int descriptor = -1;
    struct stat info;
    int error = open_object(path, &descriptor, &info);
    if (error != 0) {
        return error;
    }
    memset(result, 0, sizeof(*result));
    result->object_bytes = (uint64_t)info.st_size;
    make_tag(&info, &result->tag);
    result->unchanged = request->unless != NULL &&
                        strncmp(request->unless->text, result->tag.text, sizeof(result->tag.text)) == 0;
    if (!result->unchanged) {
        error = read_range(descriptor, request, &result->received);
    }
    close(descriptor);
    return error;
}

static weft_status directory_get(void *self, weft_context *context, const weft_store_get_request *request,
                                 weft_store_get_result *result_out) {
    char path[PATH_MAX];
    join_path(self, request->key, path);
    weft_store_get_result result = {.size = sizeof result};
    int error = ESTALE;
    for (int attempt = 0; attempt < STALE_ATTEMPTS && error == ESTALE; attempt++) {
        error = try_get(path, request, &result);
    }
    if (error != 0) {
        return fail_read(context, error, path);
    }
    *result_out = result;
    return WEFT_OK;
}

weft_status weft_directory_object(weft_context *context, void *self, const char *key, int *descriptor_out,
                                  uint64_t *size_out, weft_store_tag *tag_out) {
    char path[PATH_MAX];
    join_path(self, key, path);
    struct stat info;
    int error = open_object(path, descriptor_out, &info);
    if (error != 0) {
        return fail_read(context, error, path);
    }
    *size_out = (uint64_t)info.st_size;
    make_tag(&info, tag_out);
    return WEFT_OK;
}

static weft_status stat_key(const directory_store *store, weft_context *context, const char *key,
                            struct stat *info) {
    char path[PATH_MAX];
    join_path(store, key, path);
    int error = stat_object(path, info);
    return error == 0 ? WEFT_OK : fail_read(context, error, path);
}

static weft_status directory_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                                  weft_store_tag *tag_out) {
    struct stat info;
    weft_status status = stat_key(self, context, key, &info);
    if (status == WEFT_OK) {
        *size_out = (uint64_t)info.st_size;
        make_tag(&info, tag_out);
    }
    return status;
}

/* ---- temporaries ---- */

static void sweep_entry(int directory, const char *name) {
    int descriptor = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    struct stat info;
    if (weft_temporary_is_leftover(directory, name, descriptor) && fstat(descriptor, &info) == 0 &&
        S_ISREG(info.st_mode)) {
        (void)unlinkat(directory, name, 0);
    }
    close(descriptor);
}

/* A leftover that stays takes space and does no harm, so failures are ignored. */
static void sweep_once(directory_store *store) {
    if (atomic_exchange(&store->swept, true)) {
        return;
    }
    DIR *directory = opendir(store->root);
    if (directory == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strncmp(entry->d_name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0) {
            sweep_entry(dirfd(directory), entry->d_name);
        }
    }
    closedir(directory);
}

static int create_temporary(const directory_store *store, char path[PATH_MAX]) {
    for (int attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        unsigned long long number = 0;
        if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
            return -1;
        }
        char name[64];
        snprintf(name, sizeof(name), TEMPORARY_PREFIX "%016llx", number);
        join_path(store, name, path);
        int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST) {
            return -1;
        }
        if (descriptor >= 0 && weft_temporary_claim(descriptor)) {
            return descriptor;
        }
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    errno = EEXIST;
    return -1;
}

/* ---- directories ---- */

/* Some file systems cannot sync a directory, and say that the argument is wrong. */
static int sync_directory(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        return errno;
    }
    int error = fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
    close(descriptor);
    return error;
}

/* Cuts the last part of a path off, so that its parent is left. False if it has none. */
static bool cut_parent(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        bool below = strcmp(path, ".") != 0;
        strcpy(path, ".");
        return below;
    }
    if (slash == path) {
        bool below = path[1] != '\0';
        path[1] = '\0';
        return below;
    }
    *slash = '\0';
    return true;
}

static int make_directory(const directory_store *store, const char *path) {
    if (mkdir(path, 0777) != 0) {
        return errno;
    }
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", path);
    return store->durable && cut_parent(parent) ? sync_directory(parent) : 0;
}

/* Makes a directory and those above it, as far as they are missing. `path` is cut at one slash after
 * another from the right until a parent is there, and the slashes are put back on the way down. */
static int make_directories(const directory_store *store, char path[PATH_MAX]) {
    size_t length = strlen(path);
    int error = make_directory(store, path);
    while (error == ENOENT) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            return ENOENT;
        }
        *slash = '\0';
        error = make_directory(store, path);
    }
    while ((error == 0 || error == EEXIST) && strlen(path) < length) {
        path[strlen(path)] = '/';
        error = make_directory(store, path);
    }
    return error == EEXIST ? 0 : error;
}

/* ---- writing ---- */

typedef struct draft {
    const directory_store *store;
    weft_context *context;
    const weft_store_put_request *request;
    char temporary[PATH_MAX];
    char target[PATH_MAX];
    int descriptor;
    uint64_t written;
    uint64_t flushed; /* write-back was begun up to here */
} draft;

static bool is_durable(const draft *draft) {
    return draft->store->durable && !draft->request->volatile_write;
}

static weft_status write_all(draft *draft, const uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t put = pwrite(draft->descriptor, data, size, (off_t)draft->written);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return weft_fail_errno(draft->context, errno, "cannot write a file in %s (for %s)",
                                   draft->store->root, draft->request->key);
        }
        data += put;
        size -= (size_t)put;
        draft->written += (uint64_t)put;
    }
    if (is_durable(draft) && draft->written - draft->flushed >= WRITE_BACK_BYTES) {
        /* Only a beginning: the sync at the end is what counts, and reports errors. */
        (void)sync_file_range(draft->descriptor, (off_t)draft->flushed,
                              (off_t)(draft->written - draft->flushed), SYNC_FILE_RANGE_WRITE);
        draft->flushed = draft->written;
    }
    return WEFT_OK;
}

static weft_status write_feed(draft *draft) {
    uint64_t size = draft->request->feed.size;
    size_t capacity = size < COPY_BYTES ? (size_t)size : COPY_BYTES;
    uint8_t *buffer = weft_allocate(draft->context, capacity);
    if (buffer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    size_t count = 1;
    while (status == WEFT_OK && count > 0) {
        status =
            weft_store_feed_read(draft->context, draft->request, draft->written, buffer, capacity, &count);
        if (status == WEFT_OK) {
            status = write_all(draft, buffer, count);
        }
    }
    weft_release(draft->context, buffer);
    return status;
}

static weft_status fail_conflict(const draft *draft) {
    return weft_fail(draft->context, WEFT_CONFLICT, "%s %s", draft->target,
                     draft->request->condition == WEFT_STORE_IF_ABSENT
                         ? "exists already"
                         : "is no longer the one that was to be replaced");
}

static weft_status fail_place(const draft *draft, int error) {
    return weft_fail_errno(draft->context, error, "cannot put %s in place", draft->target);
}

static weft_status place_always(draft *draft) {
    return rename(draft->temporary, draft->target) == 0 ? WEFT_OK : fail_place(draft, errno);
}

/* Over a network the answer to a link may be lost; the client repeats it, and that fails with EEXIST. The
 * number of links then says that the name is ours. */
static weft_status place_absent(draft *draft) {
    if (link(draft->temporary, draft->target) != 0) {
        int error = errno;
        struct stat info;
        if (fstat(draft->descriptor, &info) != 0 || info.st_nlink != 2) {
            return error == EEXIST ? fail_conflict(draft) : fail_place(draft, error);
        }
    }
    (void)unlink(draft->temporary); /* if it stays, a sweep takes it */
    return WEFT_OK;
}

/* The object still has the tag of the request. */
static weft_status check_same(const draft *draft) {
    struct stat info;
    int error = stat_object(draft->target, &info);
    if (error != 0 && error != ENOENT) {
        return fail_read(draft->context, error, draft->target);
    }
    weft_store_tag tag = {{0}};
    if (error == 0) {
        make_tag(&info, &tag);
    }
    return strcmp(tag.text, draft->request->tag.text) == 0 ? WEFT_OK : fail_conflict(draft);
}

static weft_status place_same(draft *draft) {
    char path[PATH_MAX];
    join_path(draft->store, LOCK_NAME, path);
    int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock < 0) {
        return weft_fail_errno(draft->context, errno, "cannot open the lock %s", path);
    }
    int error = 0;
    while (flock(lock, LOCK_EX) != 0 && error == 0) {
        error = errno == EINTR ? 0 : errno;
    }
    weft_status status =
        error != 0 ? weft_fail_errno(draft->context, error, "cannot lock %s", path) : check_same(draft);
    if (status == WEFT_OK) {
        status = place_always(draft);
    }
    close(lock);
    return status;
}

static weft_status place_draft(draft *draft) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", draft->target);
    cut_parent(parent);
    char made[PATH_MAX];
    snprintf(made, sizeof(made), "%s", parent);
    int error = access(parent, F_OK) == 0 ? 0 : make_directories(draft->store, made);
    if (error != 0) {
        return weft_fail_errno(draft->context, error, "cannot make the directory %s", parent);
    }
    weft_status status = draft->request->condition == WEFT_STORE_ALWAYS      ? place_always(draft)
                         : draft->request->condition == WEFT_STORE_IF_ABSENT ? place_absent(draft)
                                                                             : place_same(draft);
    if (status != WEFT_OK) {
        return status;
    }
    error = is_durable(draft) ? sync_directory(parent) : 0;
    return error == 0 ? WEFT_OK : weft_fail_errno(draft->context, error, "cannot sync %s", parent);
}

/* Opens the temporary file. A condition that does not hold already is refused here, to spare the writing;
 * what counts is the check when the object is put in place. */
static weft_status begin_put(draft *draft, directory_store *store) {
    join_path(store, draft->request->key, draft->target);
    weft_store_condition condition = draft->request->condition;
    struct stat info;
    if (condition == WEFT_STORE_IF_ABSENT && lstat(draft->target, &info) == 0) {
        return fail_conflict(draft);
    }
    weft_status status = condition == WEFT_STORE_IF_SAME ? check_same(draft) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    char root[PATH_MAX];
    join_path(store, "", root);
    int error = access(root, F_OK) == 0 ? 0 : make_directories(store, root);
    if (error != 0) {
        return weft_fail_errno(draft->context, error, "cannot make the store's directory %s", store->root);
    }
    sweep_once(store);
    draft->descriptor = create_temporary(store, draft->temporary);
    if (draft->descriptor < 0) {
        return weft_fail_errno(draft->context, errno, "cannot create a file in %s (for %s)", store->root,
                               draft->request->key);
    }
    return WEFT_OK;
}

static weft_status finish_put(draft *draft, weft_store_tag *tag_out) {
    /* the time makes the tag unique: see the top of this file */
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    if (futimens(draft->descriptor, times) != 0 || (is_durable(draft) && fsync(draft->descriptor) != 0)) {
        return weft_fail_errno(draft->context, errno, "cannot write a file in %s (for %s)",
                               draft->store->root, draft->request->key);
    }
    weft_status status = place_draft(draft);
    struct stat info;
    if (status == WEFT_OK && fstat(draft->descriptor, &info) != 0) {
        status = fail_place(draft, errno);
    }
    if (status == WEFT_OK) {
        make_tag(&info, tag_out);
    }
    return status;
}

static void end_put(draft *draft, weft_status status) {
    if (status != WEFT_OK) {
        (void)unlink(draft->temporary);
    }
    close(draft->descriptor);
}

static weft_status directory_put(void *self, weft_context *context, const weft_store_put_request *request,
                                 weft_store_tag *tag_out) {
    draft draft = {.store = self, .context = context, .request = request};
    weft_status status = begin_put(&draft, self);
    if (status != WEFT_OK) {
        return status;
    }
    status = write_feed(&draft);
    if (status == WEFT_OK) {
        status = finish_put(&draft, tag_out);
    }
    end_put(&draft, status);
    return status;
}

/* ---- puts whose bytes are appended by a server ---- */

struct weft_directory_draft {
    draft draft;
    weft_store_put_request request;
    char key[WEFT_STORE_KEY_MAX + 1];
};

weft_status weft_directory_draft_open(weft_context *context, void *self,
                                      const weft_store_put_request *request,
                                      weft_directory_draft **draft_out) {
    weft_context_clear(context);
    weft_directory_draft *draft = weft_allocate_zeroed(context, 1, sizeof(*draft));
    if (draft == NULL) {
        return WEFT_NO_MEMORY;
    }
    snprintf(draft->key, sizeof(draft->key), "%s", request->key);
    draft->request = *request;
    draft->request.key = draft->key;
    draft->draft.store = self;
    draft->draft.context = context;
    draft->draft.request = &draft->request;
    weft_status status = begin_put(&draft->draft, self);
    if (status != WEFT_OK) {
        weft_release(context, draft);
        return status;
    }
    *draft_out = draft;
    return WEFT_OK;
}

weft_status weft_directory_draft_append(weft_directory_draft *draft, const void *data, size_t size) {
    return write_all(&draft->draft, data, size);
}

weft_status weft_directory_draft_finish(weft_directory_draft *draft, weft_store_tag *tag_out) {
    weft_status status = finish_put(&draft->draft, tag_out);
    end_put(&draft->draft, status);
    weft_release(draft->draft.context, draft);
    return status;
}

void weft_directory_draft_abandon(weft_directory_draft *draft) {
    end_put(&draft->draft, WEFT_CANCELLED);
    weft_release(draft->draft.context, draft);
}

/* ---- removing ---- */

static weft_status directory_remove(void *self, weft_context *context, const char *key) {
    char path[PATH_MAX];
    join_path(self, key, path);
    struct stat info;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return WEFT_OK;
    }
    if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR) {
        return weft_fail_errno(context, errno, "cannot remove %s", path);
    }
    return WEFT_OK;
}

/* ---- ages ---- */

/* The clock of a file server, read from the change time of a new file. */
static struct timespec store_clock(const directory_store *store) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char path[PATH_MAX];
    int descriptor = create_temporary(store, path);
    struct stat info;
    if (descriptor >= 0) {
        if (fstat(descriptor, &info) == 0) {
            now = info.st_ctim;
        }
        (void)unlink(path);
        close(descriptor);
    }
    return now;
}

/* By the change time, which no program can set: it is from the store's own clock, and no earlier than the
 * put.
 */
static double age_at(const struct timespec *now, const struct stat *info) {
    double age = (double)(now->tv_sec - info->st_ctim.tv_sec) +
                 (double)(now->tv_nsec - info->st_ctim.tv_nsec) * 1e-9;
    return age > 0 ? age : 0;
}

static weft_status directory_age(void *self, weft_context *context, const char *key, double *seconds_out) {
    struct stat info;
    weft_status status = stat_key(self, context, key, &info);
    if (status == WEFT_OK) {
        struct timespec now = store_clock(self);
        *seconds_out = age_at(&now, &info);
    }
    return status;
}

/* ---- listing ---- */

typedef struct walk {
    const directory_store *store;
    weft_context *context;
    weft_store_visit visit;
    void *opaque;
    struct timespec now;                         /* the store's clock, read at the first object */
    char key[WEFT_STORE_KEY_MAX + NAME_MAX + 2]; /* where the walk is */
    bool stopped;
} walk;

static weft_status walk_directory(walk *walk);

static weft_status walk_entry(walk *walk, int directory, const char *name) {
    struct stat info;
    if (!weft_store_key_valid(walk->key) || fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return WEFT_OK; /* not ours, or gone meanwhile */
    }
    if (S_ISDIR(info.st_mode)) {
        return walk_directory(walk);
    }
    if (S_ISREG(info.st_mode)) {
        walk->now = walk->now.tv_sec != 0 ? walk->now : store_clock(walk->store);
        double age = age_at(&walk->now, &info);
        walk->stopped = !walk->visit(walk->opaque, walk->key, (uint64_t)info.st_size, age);
    }
    return WEFT_OK;
}

static weft_status walk_directory(walk *walk) {
    char path[PATH_MAX];
    join_path(walk->store, walk->key, path);
    DIR *directory = opendir(path);
    if (directory == NULL && (errno == ENOENT || errno == ENOTDIR)) {
        return WEFT_OK;
    }
    if (directory == NULL) {
        return weft_fail_errno(walk->context, errno, "cannot list %s", path);
    }
    size_t length = strlen(walk->key);
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && !walk->stopped) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (entry == NULL && errno != 0) {
            status = weft_fail_errno(walk->context, errno, "cannot list %s", path);
        }
        if (entry == NULL) {
            break;
        }
        snprintf(walk->key + length, sizeof(walk->key) - length, "%s%s", length > 0 ? "/" : "",
                 entry->d_name);
        status = walk_entry(walk, dirfd(directory), entry->d_name);
    }
    walk->key[length] = '\0';
    closedir(directory);
    return status;
}

static weft_status directory_list(void *self, weft_context *context, const char *prefix,
                                  weft_store_visit visit, void *opaque) {
    walk walk = {.store = self, .context = context, .visit = visit, .opaque = opaque};
    snprintf(walk.key, sizeof(walk.key), "%s", prefix);
    return walk_directory(&walk);
}

/* ---- life ---- */

static void directory_traits(void *self, weft_store_traits *traits) {
    const directory_store *store = self;
    traits->directory = store->root;
    traits->poll_seconds = POLL_SECONDS;
    traits->conditional = true;
}

static void directory_close(void *self) {
    directory_store *store = self;
    weft_context *context = store->context;
    weft_release(context, store->root);
    weft_release(context, store);
}

weft_status weft_directory_open(weft_context *context, const char *root, const weft_store_options *options,
                                void **self_out) {
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/') {
        length--;
    }
    if (length > ROOT_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the path of the store is longer than %d bytes: %.100s…", ROOT_MAX, root);
    }
    struct stat info;
    if (stat(root, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the store %s is not a directory", root);
    }
    directory_store *store = weft_allocate_zeroed(context, 1, sizeof(*store));
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    store->root = weft_copy_text(context, root, length);
    if (store->root == NULL) {
        weft_release(context, store);
        return WEFT_NO_MEMORY;
    }
    store->context = context;
    store->durable = !options->volatile_writes;
    atomic_init(&store->swept, false);
    *self_out = store;
    return WEFT_OK;
}

const weft_store_operations weft_directory_operations = {
    .size = sizeof weft_directory_operations,
    .name = "directory",
    .traits = directory_traits,
    .get = directory_get,
    .put = directory_put,
    .head = directory_head,
    .remove = directory_remove,
    .list = directory_list,
    .age = directory_age,
    .close = directory_close,
};
