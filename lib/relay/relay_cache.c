/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_cache.c: sizes and order of use of the files in a relay's directory, and their eviction
 * (weft_relay_cache_shrink). The catalog, in memory, evicts its own entries (relay_catalog.c).
 *
 * Nothing is synced: after a power cut files may be anything, and they are not believed anyway.
 */
#include "relay_cache.h"

#include "../base/context.h"
#include "../store/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DRAFTS ".drafts"
#define LOCK ".relay-lock"

/* Files: a cache of tiny ones would need more memory to know them than disk to hold them. */
enum { ROOT_MAX = PATH_MAX - WEFT_KEY_SIZE - 80, ENTRIES_MOST = 1 << 17 };

/* ---- paths ---- */

void weft_relay_cache_path(const weft_relay_cache *cache, const char *key, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s", cache->root, key);
}

/* Slashes become a character that no key has, so that all drafts lie in one directory. */
void weft_relay_cache_draft(const weft_relay_cache *cache, const char *key, char path[PATH_MAX]) {
    int length = snprintf(path, PATH_MAX, "%s/" DRAFTS "/", cache->root);
    snprintf(path + length, (size_t)(PATH_MAX - length), "%s", key);
    for (char *c = path + length; *c != '\0'; c++) {
        *c = *c == '/' ? '@' : *c;
    }
}

/* Makes the directory that a path lies in, if it is missing. */
static int make_parent(const char *path) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    int error = ENOENT;
    for (char *slash = strchr(parent + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        error = mkdir(parent, 0777) == 0 || errno == EEXIST ? 0 : errno;
        *slash = '/';
    }
    return error;
}

/* Makes the directory if there is none, and removes one that is in the way, if it is empty. */
static int rename_into(const char *from, const char *to) {
    if (rename(from, to) == 0) {
        return 0;
    }
    int error = errno;
    if (error == ENOENT) {
        error = make_parent(to);
    } else if (error == EISDIR) {
        error = rmdir(to) == 0 ? 0 : errno;
    }
    return error != 0 || rename(from, to) == 0 ? error : errno;
}

static bool is_own_file(int file) {
    struct stat info;
    return fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1;
}

/* What lies there is no file of the cache's own, and never was one; other errors say nothing of that. */
static bool is_foreign(int error) {
    return error == ELOOP || error == EISDIR || error == ENXIO || error == EACCES || error == EPERM;
}

/* The file at the object's place, moved to be its draft. -1: there is none of the cache's own; -2: there
 * may be, and it is back in its place. */
static int adopt_draft(const char *path, const char *draft) {
    if (rename(path, draft) != 0) {
        return -1;
    }
    int file = open(draft, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int error = errno;
    if (file < 0 && !is_foreign(error)) {
        (void)rename(draft, path);
        errno = error;
        return -2;
    }
    if (file >= 0 && !is_own_file(file)) {
        close(file);
        file = -1;
    }
    return file;
}

static int create_draft(const char *draft) {
    (void)remove(draft);
    return open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

int weft_relay_cache_open_draft(const weft_relay_cache *cache, const char *key, bool *adopted) {
    char draft[PATH_MAX];
    char path[PATH_MAX];
    weft_relay_cache_draft(cache, key, draft);
    weft_relay_cache_path(cache, key, path);
    int file = *adopted ? adopt_draft(path, draft) : -1;
    if (file == -2) {
        return -1;
    }
    *adopted = file >= 0;
    return file >= 0 ? file : create_draft(draft);
}

weft_status weft_relay_cache_place(const weft_relay_cache *cache, weft_context *context, const char *key) {
    char draft[PATH_MAX];
    char path[PATH_MAX];
    weft_relay_cache_draft(cache, key, draft);
    weft_relay_cache_path(cache, key, path);
    int error = rename_into(draft, path);
    return error == 0 ? WEFT_OK : weft_fail_errno(context, error, "cannot put %s in place", path);
}

static int write_file(const char *path, const void *data, size_t size) {
    int file = create_draft(path);
    if (file < 0) {
        return errno;
    }
    ssize_t written = write(file, data, size);
    int error = written == (ssize_t)size ? 0 : written < 0 ? errno : ENOSPC;
    close(file);
    return error;
}

weft_status weft_relay_cache_write(const weft_relay_cache *cache, weft_context *context, const char *key,
                                   const void *data, size_t size) {
    char draft[PATH_MAX];
    weft_relay_cache_draft(cache, key, draft);
    int error = write_file(draft, data, size);
    if (error != 0) {
        (void)unlink(draft);
        return weft_fail_errno(context, error, "cannot write %s", draft);
    }
    return weft_relay_cache_place(cache, context, key);
}

weft_status weft_relay_cache_read(const weft_relay_cache *cache, weft_context *context, const char *key,
                                  void *data, size_t capacity, size_t *size_out) {
    char path[PATH_MAX];
    struct stat info;
    weft_relay_cache_path(cache, key, path);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t size = -1;
    if (file >= 0 && fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
        (uint64_t)info.st_size <= capacity) {
        size = read(file, data, capacity);
    }
    if (file >= 0) {
        close(file);
    }
    if (size < 0) {
        return weft_fail(context, WEFT_NOT_FOUND, "there is no %s that could be read", path);
    }
    *size_out = (size_t)size;
    return WEFT_OK;
}

/* ---- the order of use ---- */

static void link_newest(weft_relay_cache *cache, weft_relay_entry *entry) {
    entry->newer = NULL;
    entry->older = cache->newest;
    if (cache->newest != NULL) {
        cache->newest->newer = entry;
    } else {
        cache->oldest = entry;
    }
    cache->newest = entry;
}

static void unlink_entry(weft_relay_cache *cache, weft_relay_entry *entry) {
    if (entry->older != NULL) {
        entry->older->newer = entry->newer;
    } else {
        cache->oldest = entry->newer;
    }
    if (entry->newer != NULL) {
        entry->newer->older = entry->older;
    } else {
        cache->newest = entry->older;
    }
}

static weft_relay_entry *find_entry(const weft_relay_cache *cache, const char *key) {
    return (weft_relay_entry *)weft_relay_map_find(&cache->entries, key);
}

bool weft_relay_cache_has(const weft_relay_cache *cache, const char *key) {
    return find_entry(cache, key) != NULL;
}

static weft_relay_entry *add_entry(weft_relay_cache *cache, const char *key, uint64_t bytes) {
    weft_relay_entry *entry = weft_allocate_zeroed(cache->context, 1, sizeof *entry);
    if (entry != NULL) {
        snprintf(entry->node.key, sizeof entry->node.key, "%s", key);
        entry->bytes = bytes;
        cache->used += bytes;
        weft_relay_map_add(&cache->entries, &entry->node);
    }
    return entry;
}

void weft_relay_cache_add(weft_relay_cache *cache, const char *key, uint64_t bytes) {
    weft_relay_cache_forget(cache, key);
    weft_relay_entry *entry = add_entry(cache, key, bytes);
    if (entry != NULL) {
        link_newest(cache, entry);
    }
}

void weft_relay_cache_touch(weft_relay_cache *cache, const char *key) {
    weft_relay_entry *entry = find_entry(cache, key);
    if (entry != NULL && entry != cache->newest) {
        unlink_entry(cache, entry);
        link_newest(cache, entry);
    }
}

void weft_relay_cache_forget(weft_relay_cache *cache, const char *key) {
    weft_relay_entry *entry = find_entry(cache, key);
    if (entry != NULL) {
        unlink_entry(cache, entry);
        weft_relay_map_remove(&cache->entries, &entry->node);
        cache->used -= entry->bytes;
        weft_release(cache->context, entry);
    }
}

void weft_relay_cache_reserve(weft_relay_cache *cache, uint64_t bytes) {
    cache->used += bytes;
}

void weft_relay_cache_return(weft_relay_cache *cache, uint64_t bytes) {
    cache->used -= bytes;
}

/* Unlike the names of drafts, these have no '@'. */
static void gone_path(const weft_relay_cache *cache, uint64_t number, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/" DRAFTS "/gone-%llu", cache->root, (unsigned long long)number);
}

static void take_away(weft_relay_cache *cache, const char *path) {
    char gone[PATH_MAX];
    gone_path(cache, cache->gone, gone);
    if (rename(path, gone) == 0) {
        cache->gone++;
    }
}

void weft_relay_cache_discard(weft_relay_cache *cache, const char *key) {
    char path[PATH_MAX];
    weft_relay_cache_draft(cache, key, path);
    take_away(cache, path);
}

bool weft_relay_cache_take_gone(weft_relay_cache *cache, uint64_t *first, uint64_t *end) {
    *first = cache->swept;
    *end = cache->gone;
    cache->swept = cache->gone;
    return *first < *end;
}

void weft_relay_cache_sweep(const weft_relay_cache *cache, uint64_t first, uint64_t end) {
    for (; first < end; first++) {
        char path[PATH_MAX];
        gone_path(cache, first, path);
        (void)remove(path);
    }
}

/* Who is being sent a file keeps it open, and does not notice that its name is gone. */
bool weft_relay_cache_shrink(weft_relay_cache *cache, uint64_t bytes) {
    while (cache->oldest != NULL &&
           (cache->used + bytes > cache->limit || cache->entries.count > ENTRIES_MOST)) {
        char path[PATH_MAX];
        weft_relay_cache_path(cache, cache->oldest->node.key, path);
        take_away(cache, path);
        weft_relay_cache_forget(cache, cache->oldest->node.key);
        cache->evictions++;
    }
    return cache->used + bytes <= cache->limit;
}

/* ---- what is there ---- */

typedef struct scan {
    weft_relay_cache *cache;
    weft_status status;
} scan;

static bool scan_object(void *opaque, const char *key, uint64_t size, double age) {
    scan *scan = opaque;
    /* others, heads and reports of followers, are small, and not the cache's to remove */
    if (!weft_key_collectable(key)) {
        return true;
    }
    weft_relay_entry *entry = add_entry(scan->cache, key, size);
    if (entry == NULL) {
        scan->status = WEFT_NO_MEMORY;
        return false;
    }
    entry->age = age;
    link_newest(scan->cache, entry);
    return true;
}

static int compare_ages(const void *a, const void *b) {
    double left = (*(weft_relay_entry *const *)a)->age;
    double right = (*(weft_relay_entry *const *)b)->age;
    return (left < right) - (left > right);
}

/* The oldest files count as the least recently used. */
static weft_status sort_entries(weft_relay_cache *cache) {
    size_t count = cache->entries.count;
    weft_relay_entry **all = weft_allocate_array(cache->context, count, sizeof(weft_relay_entry *));
    if (all == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t i = 0;
    for (weft_relay_entry *entry = cache->oldest; entry != NULL; entry = entry->newer) {
        all[i++] = entry;
    }
    qsort(all, count, sizeof(weft_relay_entry *), compare_ages);
    cache->oldest = NULL;
    cache->newest = NULL;
    for (i = 0; i < count; i++) {
        link_newest(cache, all[i]);
    }
    weft_release(cache->context, all);
    return WEFT_OK;
}

static void remove_drafts(const weft_relay_cache *cache) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" DRAFTS, cache->root);
    DIR *directory = opendir(path);
    for (struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        if (entry->d_name[0] != '.' && unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
            (void)unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

/* ---- life ---- */

static bool is_expected(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "lost+found") == 0;
}

/* Files are removed from a cache: a directory that is something else to somebody must not become one. */
static weft_status check_directory(const weft_relay_cache *cache, const char *lock) {
    struct stat info;
    if (lstat(lock, &info) == 0) {
        return WEFT_OK;
    }
    DIR *directory = opendir(cache->root);
    if (directory == NULL) {
        return weft_fail_errno(cache->context, errno, "cannot read the cache's directory %s", cache->root);
    }
    const struct dirent *entry = readdir(directory);
    while (entry != NULL && is_expected(entry->d_name)) {
        entry = readdir(directory);
    }
    bool empty = entry == NULL;
    closedir(directory);
    return empty ? WEFT_OK
                 : weft_fail(cache->context, WEFT_INVALID_ARGUMENT,
                             "%s is not empty, and was never a relay's cache, which removes files; choose "
                             "an empty directory, or one that was a cache before",
                             cache->root);
}

static weft_status take_lock(weft_relay_cache *cache, const char *path) {
    cache->lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (cache->lock < 0) {
        return weft_fail_errno(cache->context, errno, "cannot open %s", path);
    }
    if (flock(cache->lock, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK
                   ? weft_fail(cache->context, WEFT_BUSY,
                               "another relay uses %s; give each a directory of its own", cache->root)
                   : weft_fail_errno(cache->context, errno, "cannot lock %s", path);
    }
    return WEFT_OK;
}

/* True if `path`, which exists, is that directory, or lies in it. */
static bool lies_in(const char *path, const struct stat *directory) {
    char place[PATH_MAX];
    struct stat info;
    bool found = false;
    if (realpath(path, place) == NULL) {
        return false;
    }
    for (char *slash = place + strlen(place); slash != NULL && !found; slash = strrchr(place, '/')) {
        *slash = '\0';
        found = stat(*place != '\0' ? place : "/", &info) == 0 && info.st_dev == directory->st_dev &&
                info.st_ino == directory->st_ino;
    }
    return found;
}

static weft_status check_apart(const weft_relay_cache *cache, const char *store) {
    struct stat own;
    struct stat other;
    if (store == NULL || stat(cache->root, &own) != 0 || stat(store, &other) != 0 ||
        (!lies_in(cache->root, &other) && !lies_in(store, &own))) {
        return WEFT_OK;
    }
    return weft_fail(cache->context, WEFT_INVALID_ARGUMENT,
                     "the cache %s and the store %s are one directory, or one lies in the other; choose a "
                     "cache apart from the store",
                     cache->root, store);
}

/* The lock is the first file that is made, since it tells a cache from other directories. */
static weft_status lock_directory(weft_relay_cache *cache, const char *store) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" LOCK, cache->root);
    int error = make_parent(path);
    if (error != 0) {
        return weft_fail_errno(cache->context, error, "cannot make the cache's directory %s", cache->root);
    }
    weft_status status = check_apart(cache, store);
    if (status == WEFT_OK) {
        status = check_directory(cache, path);
    }
    if (status == WEFT_OK) {
        status = take_lock(cache, path);
    }
    snprintf(path, sizeof path, "%s/" DRAFTS "/x", cache->root);
    error = status == WEFT_OK ? make_parent(path) : 0;
    return error == 0
               ? status
               : weft_fail_errno(cache->context, error, "cannot make a directory in %s", cache->root);
}

static void sweep_all(weft_relay_cache *cache) {
    uint64_t first;
    uint64_t end;
    if (weft_relay_cache_take_gone(cache, &first, &end)) {
        weft_relay_cache_sweep(cache, first, end);
    }
}

static weft_status open_cache(weft_relay_cache *cache, const char *store) {
    weft_status status = lock_directory(cache, store);
    if (status == WEFT_OK) {
        status = weft_relay_map_open(&cache->entries, cache->context);
    }
    if (status != WEFT_OK) {
        return status;
    }
    remove_drafts(cache);
    weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    scan scan = {.cache = cache};
    void *directory;
    status = weft_directory_open(cache->context, cache->root, &options, &directory);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_directory_operations.list(directory, cache->context, "", scan_object, &scan);
    weft_directory_operations.close(directory);
    status = status == WEFT_OK ? scan.status : status;
    if (status == WEFT_OK) {
        status = sort_entries(cache);
    }
    if (status == WEFT_OK) {
        (void)weft_relay_cache_shrink(cache, 0);
        sweep_all(cache);
        cache->evictions = 0;
    }
    return status;
}

weft_status weft_relay_cache_open(weft_relay_cache *cache, weft_context *context, const char *directory,
                                  const char *store, uint64_t limit) {
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length > ROOT_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the cache's directory has a path of 1 to %d bytes", ROOT_MAX);
    }
    *cache = (weft_relay_cache){.context = context, .lock = -1, .limit = limit};
    cache->root = weft_copy_text(context, directory, length);
    if (cache->root == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = open_cache(cache, store);
    if (status != WEFT_OK) {
        weft_relay_cache_close(cache);
    }
    return status;
}

static bool release_entry(void *opaque, weft_relay_node *node) {
    weft_release(opaque, node);
    return true;
}

void weft_relay_cache_close(weft_relay_cache *cache) {
    sweep_all(cache);
    if (cache->entries.slots != NULL) {
        weft_relay_map_filter(&cache->entries, release_entry, cache->context);
        weft_relay_map_close(&cache->entries);
    }
    if (cache->lock >= 0) {
        close(cache->lock);
    }
    weft_release(cache->context, cache->root);
    *cache = (weft_relay_cache){.context = cache->context, .lock = -1};
}
