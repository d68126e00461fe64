/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch.h: an object of the store as the source of a patch, read while it is still coming.
 *
 * Chunks are fetched by a few threads, checked against their SHA-256, and fetched again if they came
 * damaged. A reader waits for the chunks that it needs, and these go before all others. Memory is bounded:
 * of a large object, chunks that were read through are dropped.
 */
#ifndef WEFT_SYNC_OBJECTS_FETCH_H
#define WEFT_SYNC_OBJECTS_FETCH_H

#include "../format/record.h"

typedef struct weft_fetch weft_fetch;

/* Reads the lists of pieces and of chunks that are objects of their own. `ahead`: everything is wanted, so
 * begin; else only what is read is fetched. The object is copied. */
weft_status weft_fetch_open(weft_context *context, weft_store *store, const weft_object *object,
                            uint64_t hold_bytes, bool ahead, weft_fetch **fetch_out);
/* Ends the threads; what is on the way is given up. */
void weft_fetch_close(weft_fetch *fetch);
weft_source weft_fetch_source(weft_fetch *fetch);

typedef struct weft_fetch_stats {
    uint64_t bytes;   /* fetched, again included */
    uint64_t damaged; /* chunks that came wrong */
    double last;      /* when the last chunk came, in seconds of the monotonic clock */
} weft_fetch_stats;

weft_fetch_stats weft_fetch_describe(weft_fetch *fetch);
/* Why a read failed, in full: a patch only knows that its source did. Returns `status`, or the fetch's own
 * if `status` came of it. */
weft_status weft_fetch_explain(weft_context *context, weft_fetch *fetch, weft_status status);

#endif
