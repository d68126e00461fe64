/* SPDX-License-Identifier: Apache-2.0
 *
 * record.h: the history of a run as it lies in the store. doc/FORMAT.md specifies the JSON.
 *
 *   blob      a small object that is fetched whole: its key, size and SHA-256
 *   object    a large one: its key, size and the SHA-256 of each of its chunks, so that a chunk can be
 *             checked, fetched again or passed on alone; long lists of hashes are a blob of their own.
 *             Or other such objects end to end, which a blob lists: see pieces.h
 *   record    one version: the state's digest, the patch that leads there, labels
 *   leap      a patch over several versions, for those who were away
 *   page      some records, the newest last, and a link to the page before; a full one names all anchors
 *             that are kept, and leaps
 *
 * Everything here came from outside once: parsing checks all of it.
 */
#ifndef WEFT_SYNC_FORMAT_RECORD_H
#define WEFT_SYNC_FORMAT_RECORD_H

#include "../../base/bytes.h"
#include "../../base/hash.h"
#include "../../tensor/json.h"

#include <weft/sync.h>

#include <jansson.h>

enum {
    WEFT_SYNC_FORMAT = 1,
    /* Of heads, pages and nodes of leaps. Those of 1 are read, and written where a run is of that format.
     */
    WEFT_HISTORY_FORMAT = WEFT_FORMAT_NEWEST,
    WEFT_PAGE_MAX = 1 << 20,
    WEFT_CHUNK_BYTES = 1 << 20,
    WEFT_CHUNKS_INLINE = 16,
    WEFT_KEY_SIZE = WEFT_STORE_KEY_MAX + 1,
    /* A page that ends with a version holds as many records as the highest power of two that divides it, at
     * most the short step; at multiples of the long step, that many. So a version costs a page of a few
     * records in the mean, and a walk over the whole history takes few fetches. */
    WEFT_PAGE_SHORT = 8,
    WEFT_PAGE_LONG = 64,
    /* At multiples of this at least, a page is full: it names anchors and leaps. */
    WEFT_PAGE_FULL = 16,
    WEFT_ANCHORS_MAX = 16,
    /* Of all labels of a version together, as they are and as JSON: the head has to hold them. All else
     * takes less than 2200 bytes of it: 16 hashes of a patch, keys, numbers of 19 digits, the signature. */
    WEFT_LABEL_BYTES = 1024,
    WEFT_LABEL_JSON = 1792,
};

typedef struct weft_blob {
    char key[WEFT_KEY_SIZE];
    uint64_t bytes;
    weft_hash hash;
} weft_blob;

typedef struct weft_object {
    char key[WEFT_KEY_SIZE]; /* of an object in pieces: that of their list */
    uint64_t bytes;
    uint64_t chunk_bytes; /* 0 if it is in pieces */
    bool listed;          /* the hashes are in `list`, side by side; else in `chunks` */
    bool pieced;          /* it is other objects end to end, which `list` names */
    weft_hash chunks[WEFT_CHUNKS_INLINE];
    weft_blob list;
} weft_object;

/* Of an object that is not in pieces. */
uint64_t weft_object_chunks(const weft_object *object);

/* What would make no sense to a reader, or NULL. Readers and writers ask the same: what is refused when it
 * is read is never written. */
const char *weft_blob_fault(const weft_blob *blob);
const char *weft_object_fault(const weft_object *object);

/* Owned strings, ended by NULL. */
typedef struct weft_texts {
    char **items;
    size_t count;
} weft_texts;

weft_status weft_texts_add(weft_texts *texts, weft_context *context, const char *text);
void weft_texts_close(weft_texts *texts, weft_context *context);

/* Several versions in one: the patch from the end of version `first` to version `last`. The patch, and the
 * smaller leaps and single patches that lead the same way, stand in a node of their own: see leap.h. */
typedef struct weft_leap {
    uint64_t first;
    uint64_t last;
    weft_digest base;             /* of version `first` */
    weft_digest digest;           /* of version `last` */
    uint64_t bytes;               /* of the patch; 0: none was worth it */
    char key[WEFT_KEY_SIZE];      /* of the patch, or "" */
    char list_key[WEFT_KEY_SIZE]; /* of the hashes of its chunks, or "" */
    weft_blob node;
} weft_leap;

typedef struct weft_leaps {
    weft_leap *items;
    size_t count;
} weft_leaps;

typedef struct weft_record {
    uint64_t version;
    uint64_t epoch;
    uint64_t milliseconds;
    uint64_t floor; /* the oldest version that is still kept */
    weft_digest digest;
    uint64_t changed;
    uint64_t total;
    uint64_t dense_bytes;
    bool patched; /* else an anchor alone leads here */
    weft_digest base;
    weft_object patch;
    uint64_t recalls;   /* how many versions before it the patch looks back at: who has not followed these
                           one by one cannot read it */
    weft_texts labels;  /* key, value, … */
    weft_texts retired; /* keys of objects that nothing needs from this version on */
    weft_leaps leaps;   /* that were made since the record before */
} weft_record;

void weft_record_close(weft_record *record, weft_context *context);
weft_status weft_record_copy(weft_context *context, const weft_record *from, weft_record *to);
const char *weft_record_fault(const weft_record *record);
json_t *weft_record_format(const weft_record *record);
/* `where` begins the text of a failure. */
weft_status weft_record_parse(weft_context *context, const char *where, const json_t *json,
                              weft_record *record);

json_t *weft_records_format(const weft_record *records, size_t count);
/* `count_out` counts those that were parsed, for whoever closes them. */
weft_status weft_records_parse(weft_context *context, const char *where, const json_t *json, size_t least,
                               size_t most, weft_record *records, size_t *count_out);

typedef struct weft_anchor {
    uint64_t version;
    weft_digest digest;
    weft_object object;
} weft_anchor;

/* That of a version, or NULL. */
const weft_anchor *weft_anchor_find(const weft_anchor *anchors, size_t count, uint64_t version);

typedef struct weft_page {
    weft_context *context;
    unsigned format; /* 1: always full, and of other ranges */
    char run[WEFT_RUN_TEXT];
    bool linked; /* there is a page before */
    weft_blob previous;
    char replaces[WEFT_KEY_SIZE]; /* the page that this one replaces for the same version, or "" */
    bool full;                    /* else anchors and leaps are as the page before and the records say */
    size_t anchor_count;
    weft_anchor anchors[WEFT_ANCHORS_MAX]; /* newest first */
    size_t record_count;
    /* versions ascending, without gaps; those of several pages where they are read as one (history.h) */
    weft_record records[WEFT_PAGE_LONG + WEFT_PAGE_FULL];
    weft_leaps leaps; /* the widest ones, each beginning where the one before ends */
} weft_page;

void weft_page_open(weft_page *page, weft_context *context);
void weft_page_close(weft_page *page);
/* How many records the page that ends with a version holds; of format 2, if a page ends before them. */
uint64_t weft_page_span(unsigned format, uint64_t version);
weft_status weft_page_format(const weft_page *page, weft_writer *writer);
/* Puts the page into the store as `key`, and describes it. */
weft_status weft_page_write(const weft_page *page, weft_store *store, const char *key, weft_blob *blob);
/* The page must be open and empty. */
weft_status weft_page_parse(weft_page *page, const char *where, const void *data, size_t size);

/* Parts that heads share. NULL from a formatter means no memory and may be handed on. */
json_t *weft_blob_format(const weft_blob *blob);
weft_status weft_blob_parse(weft_context *context, const char *where, const json_t *json, weft_blob *blob);
json_t *weft_object_format(const weft_object *object);
weft_status weft_object_parse(weft_context *context, const char *where, const json_t *json,
                              weft_object *object);
/* Whoever writes a history must not be able to have anything else removed, such as heads. */
bool weft_key_collectable(const char *key);
/* False unless the member is there and of its kind. */
bool weft_json_count(const json_t *json, const char *name, uint64_t *value_out);
bool weft_json_text(const json_t *json, const char *name, char *text, size_t size);
/* The same for a name made of hexadecimal digits, which goes into other texts as it is. */
bool weft_json_name(const json_t *json, const char *name, char *text, size_t size);
/* A name as in doc/FORMAT.md: hexadecimal digits, one at least. */
bool weft_sync_name_valid(const char *name);
bool weft_json_digest(const json_t *json, const char *name, weft_digest *digest);
bool weft_json_key(const json_t *json, const char *name, char key[WEFT_KEY_SIZE]);
json_t *weft_digest_json(const weft_digest *digest);
json_t *weft_count_json(uint64_t value);
/* Both take what they are given, and give up the whole if a part of it is NULL: half of an object must
 * never be written. */
json_t *weft_json_with(json_t *json, const char *name, json_t *value);
json_t *weft_json_append(json_t *array, json_t *item);
/* Says which part of an object cannot be read. */
weft_status weft_sync_malformed(weft_context *context, const char *where, const char *what);
/* The failure of a writer whose readers would say so. */
weft_status weft_sync_unwritable(weft_context *context, const char *what, const char *fault);
/* Appends one line of JSON, which it takes, unless it is beyond what readers take. */
weft_status weft_sync_write_line(weft_context *context, const char *what, json_t *json,
                                 const weft_json_bounds *bounds, weft_writer *writer);
/* The same, packed. */
weft_status weft_sync_write_packed(weft_context *context, const char *what, json_t *json,
                                   const weft_json_bounds *bounds, weft_writer *writer);
/* Parses the JSON of an object of a store, of this kind. How much of it there may be is the format's:
 * beyond that it is malformed, and not a limit that somebody has set. */
weft_status weft_sync_parse(weft_context *context, const char *where, const char *kind, const void *data,
                            size_t size, unsigned depth, uint64_t containers, json_t **json_out);
/* The same of a text that may be packed. */
weft_status weft_sync_parse_packed(weft_context *context, const char *where, const char *kind,
                                   const void *data, size_t size, const weft_json_bounds *bounds,
                                   json_t **json_out);
/* Refuses objects of another kind, and of formats that are still to come. */
weft_status weft_sync_check_kind(weft_context *context, const char *where, const json_t *json,
                                 const char *kind);

/* A new key in a room of the store ("patches"): epoch, version and a nonce, so that no key is used twice.
 */
weft_status weft_sync_key(weft_context *context, const char *room, uint64_t epoch, uint64_t version,
                          char key[WEFT_KEY_SIZE]);
/* The key of what goes with another object that was given a new key, in a room of its own: the same epoch,
 * version and nonce, so that naming both costs little more than naming one. */
void weft_sync_key_beside(const char *key, const char *room, char beside[WEFT_KEY_SIZE]);

/* Puts what the writer holds, and describes it. */
weft_status weft_blob_put(weft_context *context, weft_store *store, const char *key,
                          const weft_writer *writer, weft_blob *blob);
/* Fetches a blob, and again if it came damaged. The caller releases the data. */
weft_status weft_blob_fetch(weft_context *context, weft_store *store, const weft_blob *blob,
                            uint64_t most_bytes, uint8_t **data_out);

#endif
