/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_catalog.h: which objects a relay knows of, and what their bytes must be.
 *
 * It is fed from heads, and from objects that were verified and tell of others: a page of its records and
 * of the page before, the node of a leap of its parts, a list of hashes of the object that it belongs to.
 * What a kind of object tells is one
 * function, a weft_relay_teach; who adds a kind writes one and hands it over where the blob is named.
 *
 * The relay's lock guards it: calls are made under it, and teachers, which parse first, take it themselves.
 */
#ifndef WEFT_RELAY_RELAY_CATALOG_H
#define WEFT_RELAY_RELAY_CATALOG_H

#include "relay_map.h"

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

typedef struct weft_relay_catalog weft_relay_catalog;
typedef struct weft_relay_item weft_relay_item;
typedef struct weft_flight weft_flight;

/* Takes what the bytes of an item, whose hash is right, say of other objects. Called without the lock. */
typedef weft_status (*weft_relay_teach)(weft_relay_catalog *catalog, weft_context *context,
                                        weft_relay_item *item, const uint8_t *data, size_t size);

/* What a file was when it was verified. Whoever writes to it, cuts it or replaces it changes one of these,
 * the change time whether they want or not: only a write within the same tick of the file system's clock as
 * the relay's own, and one whose times were put back while the relay was giving the file its name, are not
 * seen. Followers check what they get. */
typedef struct weft_relay_print {
    dev_t device;
    ino_t inode;
    uint64_t bytes;
    struct timespec modified, changed;
} weft_relay_print;

struct weft_relay_item {
    weft_relay_node node;
    uint64_t bytes;
    uint64_t chunk_bytes;
    size_t count;              /* of chunks; 0: it could not be entered, and is not known */
    weft_hash *hashes;         /* of the chunks; NULL: in `list`, which was not read yet */
    char list[WEFT_KEY_SIZE];  /* the object that holds them, or "" */
    char owner[WEFT_KEY_SIZE]; /* of a list: the object whose hashes it holds; else "" */
    char tag[2 * WEFT_HASH_BYTES + 1];
    weft_relay_teach teach; /* or NULL */
    bool taught;            /* when the catalog had forgotten things so often: */
    uint64_t prunes;
    bool hopeless;       /* verified, and makes no sense all the same */
    uint64_t first;      /* of a page that has taught: its first version, */
    uint64_t last;       /* its last one, */
    weft_blob *previous; /* and the page before it, or NULL */
    bool proven;         /* the file in the cache was verified, and was then what `print` says */
    weft_relay_print print;
    weft_flight *flight;            /* or NULL */
    weft_relay_item *older, *newer; /* in the order of use */
};

struct weft_relay_catalog {
    weft_context *context;
    pthread_mutex_t *mutex;
    weft_relay_map items;
    weft_relay_item *oldest, *newest;
    uint64_t prunes; /* how often it had to forget */
    char run[WEFT_RUN_TEXT];
};

weft_status weft_relay_catalog_open(weft_relay_catalog *catalog, weft_context *context,
                                    pthread_mutex_t *mutex);
void weft_relay_catalog_close(weft_relay_catalog *catalog);

/* NULL if it is not known. It counts as used. */
weft_relay_item *weft_relay_catalog_find(weft_relay_catalog *catalog, const char *key);
/* An object has told of others, and none of them was forgotten since. */
bool weft_relay_catalog_taught(const weft_relay_catalog *catalog, const weft_relay_item *item);
/* These make an object known, and return it; NULL if there is no memory for it, or it is beyond all
 * limits. */
weft_relay_item *weft_relay_catalog_blob(weft_relay_catalog *catalog, const weft_blob *blob,
                                         weft_relay_teach teach);
/* Of an object in pieces, their list, which makes them known when it comes. */
weft_relay_item *weft_relay_catalog_object(weft_relay_catalog *catalog, const weft_object *object);
/* The patch of a version, NULL if it has none. */
weft_relay_item *weft_relay_catalog_record(weft_relay_catalog *catalog, const weft_record *record);
/* A page of the history. */
weft_relay_item *weft_relay_catalog_page(weft_relay_catalog *catalog, const weft_blob *blob);
/* Forgets what was used least recently, if there is too much: it can be learned again. What is under way
 * stays, and objects whose files were verified go last. */
void weft_relay_catalog_prune(weft_relay_catalog *catalog);

#endif
