/* SPDX-License-Identifier: Apache-2.0
 *
 * history.h: reading the history of a run, page by page, from the newest back. Every page is checked
 * against the hash in the one after it, and the newest against the head.
 */
#ifndef WEFT_SYNC_FORMAT_HISTORY_H
#define WEFT_SYNC_FORMAT_HISTORY_H

#include "head.h"
#include "leap.h"

/* How long an object that a head names may take to become visible. */
#define WEFT_VISIBLE_SECONDS 3.0

/* Reads the page of a blob and checks that it belongs to the run. Waits a little for one that is not there
 * yet. */
weft_status weft_history_page(weft_context *context, weft_store *store, const weft_blob *blob,
                              const char *run, weft_page **page_out);
/* The same of bytes that are at hand, whose run the caller checks. */
weft_status weft_history_parse(weft_context *context, const char *key, const uint8_t *data, size_t size,
                               weft_page **page_out);
void weft_history_release(weft_context *context, weft_page *page);

/* The pages of a head as one: from the newest back to the first full one, a few at most. It is full, and
 * its leaps are those of now. */
weft_status weft_history_front(weft_context *context, weft_store *store, const weft_sync_head *head,
                               weft_page **page_out);

/* Anchors and leaps, as the newest pages tell them. */
typedef struct weft_front {
    bool full; /* that was the last page that is needed */
    weft_anchor anchors[WEFT_ANCHORS_MAX];
    size_t anchor_count;
    weft_leaps leaps;
    weft_leaps made; /* those of records behind the full page, newest first */
} weft_front;

/* Takes in the next page back; one behind the full page changes nothing. */
weft_status weft_front_take(weft_front *front, weft_context *context, const weft_page *page);
void weft_front_close(weft_front *front, weft_context *context);

/* WEFT_MORE: go on with the page before. */
typedef weft_status (*weft_history_visit)(void *opaque, const weft_blob *blob, const weft_page *page);
/* Walks back from a head that has a version. `newest` is the head's page if it was read before, or the
 * front; or NULL. */
weft_status weft_history_walk(weft_context *context, weft_store *store, const weft_sync_head *head,
                              const weft_page *newest, weft_history_visit visit, void *opaque);

#endif
