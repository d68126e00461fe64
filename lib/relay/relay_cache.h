/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_cache.h: what a relay keeps on disk: whole objects under their keys, as in a directory store, and
 * drafts of objects that are still coming.
 *
 * A file here proves nothing: who uses one checks it first (see relay_flight.c). Nor is a name trusted to
 * be a file of ours: links are not followed, and nothing is written to a file that has other names. What is
 * known here are sizes, and the order of use; the least recently used goes first when there is too much.
 * All calls are made under the relay's lock, except where it says otherwise.
 */
#ifndef WEFT_RELAY_RELAY_CACHE_H
#define WEFT_RELAY_RELAY_CACHE_H

#include "relay_map.h"

#include <limits.h>

typedef struct weft_relay_entry {
    weft_relay_node node;
    uint64_t bytes;
    double age; /* while the directory is read */
    struct weft_relay_entry *older, *newer;
} weft_relay_entry;

typedef struct weft_relay_cache {
    weft_context *context;
    char *root;
    int lock;
    weft_relay_map entries;
    weft_relay_entry *oldest, *newest;
    uint64_t limit;
    uint64_t used; /* bytes of entries and drafts */
    uint64_t evictions;
    uint64_t gone, swept; /* files that were moved away to be removed, and how many of them were */
} weft_relay_cache;

/* Makes and locks the directory, and reads what is there. Drafts of earlier processes are removed. Since
 * files are removed from it, it must be empty or have been a cache before, and lie apart from the directory
 * `store`, if that is not NULL. */
weft_status weft_relay_cache_open(weft_relay_cache *cache, weft_context *context, const char *directory,
                                  const char *store, uint64_t limit);
void weft_relay_cache_close(weft_relay_cache *cache);

/* Where an object lies, or its draft. Without the lock too. */
void weft_relay_cache_path(const weft_relay_cache *cache, const char *key, char path[PATH_MAX]);
void weft_relay_cache_draft(const weft_relay_cache *cache, const char *key, char path[PATH_MAX]);
/* Opens the draft of an object, without the lock: an empty file, or with `*adopted` what lies at the
 * object's place, which is moved. Where that is no file of the cache's own, `*adopted` becomes false. -1
 * with errno if there is no room, no permission or no descriptor; a file that could be the cache's own is
 * back in its place then. */
int weft_relay_cache_open_draft(const weft_relay_cache *cache, const char *key, bool *adopted);
/* Moves a draft to its place. Without the lock. */
weft_status weft_relay_cache_place(const weft_relay_cache *cache, weft_context *context, const char *key);
/* Writes a small file whole, such as a head. Without the lock. */
weft_status weft_relay_cache_write(const weft_relay_cache *cache, weft_context *context, const char *key,
                                   const void *data, size_t size);

/* Reads one. WEFT_NOT_FOUND if it is not there, or too large. Without the lock. */
weft_status weft_relay_cache_read(const weft_relay_cache *cache, weft_context *context, const char *key,
                                  void *data, size_t capacity, size_t *size_out);

bool weft_relay_cache_has(const weft_relay_cache *cache, const char *key);
/* A file lies at the key's place, and has just been used. Without memory for that it is not counted. */
void weft_relay_cache_add(weft_relay_cache *cache, const char *key, uint64_t bytes);
void weft_relay_cache_touch(weft_relay_cache *cache, const char *key);
/* The file is no longer there, or no longer the cache's: the bytes are not counted any more. */
void weft_relay_cache_forget(weft_relay_cache *cache, const char *key);
/* Bytes of a draft. */
void weft_relay_cache_reserve(weft_relay_cache *cache, uint64_t bytes);
void weft_relay_cache_return(weft_relay_cache *cache, uint64_t bytes);
/* Takes away what was used least recently until there is room for so many bytes more, and the files are
 * not too many. False if there is no room. Removing a large file takes time: here and in
 * weft_relay_cache_discard it only loses its name, and goes with the next sweep. */
bool weft_relay_cache_shrink(weft_relay_cache *cache, uint64_t bytes);
/* Takes the draft of an object away. */
void weft_relay_cache_discard(weft_relay_cache *cache, const char *key);
/* Files that wait to be removed: `*first` up to, and without, `*end`. False if there are none. They are the
 * caller's then, who removes them without the lock. */
bool weft_relay_cache_take_gone(weft_relay_cache *cache, uint64_t *first, uint64_t *end);
void weft_relay_cache_sweep(const weft_relay_cache *cache, uint64_t first, uint64_t end);

#endif
