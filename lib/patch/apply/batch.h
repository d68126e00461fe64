/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: a window's share of memory that is reached in batches (weft_batch_access): which words a proof
 * wants of it, and which units a commit writes there; and what converters (weft_converter) are told.
 *
 * What is handed to such a batch must stay where it is until the batch ends. So the indices of all buckets
 * are made beforehand, by as many threads as there are; the calls themselves are the caller's thread's
 * alone.
 */
#ifndef WEFT_PATCH_APPLY_BATCH_H
#define WEFT_PATCH_APPLY_BATCH_H

#include "../bucket/window.h"

/* True if a segment of the window is reached in batches. */
bool weft_window_batched(const weft_window *window);

/* The touched words of a bucket, run by run. */
typedef struct weft_batch_words {
    uint64_t *indices; /* of live tensors */
    uint8_t *contents; /* as gathered; behind a tensor's end, zero */
    size_t *counts;    /* of each run of the window */
    size_t count;
} weft_batch_words;

/* Lists the words that changes touch in the runs of a direct window without memory, and makes room for
 * them. */
weft_status weft_batch_list_words(const weft_window *window, const weft_changes *changes,
                                  weft_batch_words *words);
void weft_batch_release_words(weft_context *context, weft_batch_words *words);
/* The memory that the words take, and at most take in a bucket that falls into `segments`. */
uint64_t weft_batch_words_bytes(const weft_batch_words *words);
uint64_t weft_batch_words_most(const weft_bucket *bucket, size_t segments);

/* The units of live tensors that changes, or without them all units of the window, are written to; in that
 * order, in memory that is the caller's. Nothing, and NULL, if no segment is reached in batches or has a
 * converter. */
weft_status weft_targets_list(const weft_window *window, const weft_changes *changes,
                              uint64_t **targets_out, size_t *count_out);
/* Hands values, of changes or of all units, to the converters of the tensors that they were written to. */
weft_status weft_targets_convert(const weft_window *window, const weft_changes *changes,
                                 const uint64_t *targets, const void *values, unsigned width);

/* A batch under way. After a failure, nothing is asked for any more. */
typedef struct weft_batch {
    weft_context *context;
    const weft_batch_access *access;
    weft_status status;
} weft_batch;

void weft_batch_begin(weft_batch *batch, weft_context *context, const weft_batch_access *access);
/* Asks for the words of a window, which has its segments only. */
void weft_batch_gather(weft_batch *batch, const weft_window *window, const weft_batch_words *words);
/* Writes values, of changes or of all units, to the targets that were listed for them. */
void weft_batch_scatter(weft_batch *batch, const weft_window *window, const weft_changes *changes,
                        const uint64_t *targets, const void *values, unsigned width);
/* What became of it. */
weft_status weft_batch_end(weft_batch *batch);

#endif
