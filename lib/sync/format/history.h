/* SPDX-License-Identifier: Apache-2.0
 *
 * history.h: reading the history of a run, page by page, from the newest back. Every page is checked
 * against the hash in the one after it, and the newest against the head.
 */
#ifndef WEFT_SYNC_FORMAT_HISTORY_H
#define WEFT_SYNC_FORMAT_HISTORY_H

#include "head.h"

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

/* WEFT_MORE: go on with the page before. */
typedef weft_status (*weft_history_visit)(void *opaque, const weft_blob *blob, const weft_page *page);
/* Walks back from a head that has a version. `newest` is the head's page if it was read before, or NULL. */
weft_status weft_history_walk(weft_context *context, weft_store *store, const weft_sync_head *head,
                              const weft_page *newest, weft_history_visit visit, void *opaque);

#endif
