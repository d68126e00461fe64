/* SPDX-License-Identifier: Apache-2.0
 *
 * transaction.h: what a transaction is inside, for the files that it is made of: survey.c knows which
 * buckets are held and how many fit, stage.c what is done with one of them, visit.c shows what is staged,
 * apply.c is the transaction.
 */
#ifndef WEFT_PATCH_APPLY_TRANSACTION_H
#define WEFT_PATCH_APPLY_TRANSACTION_H

#include "apply.h"

typedef enum weft_apply_phase {
    WEFT_APPLY_IDLE,
    WEFT_APPLY_PREPARED,
    WEFT_APPLY_COMMITTED,
    WEFT_APPLY_RUN,    /* done in one go, or failed at it; there is nothing to go back to */
    WEFT_APPLY_BROKEN, /* a callback failed while writing and the old values could not be put back */
} weft_apply_phase;

/* A bucket whose changes are decoded, and which waits for words that are gathered in a batch with those of
 * others before it can be proven. */
typedef struct weft_waiting {
    weft_frame frame; /* its data is a copy, or NULL if nobody listens */
    weft_batch_words words;
    bool used;
} weft_waiting;

struct weft_apply {
    weft_context *context;
    const weft_patch *patch;
    const weft_view *view;
    weft_sums *sums;
    weft_sums *moves; /* of everything prepared since the last commit */
    int64_t *map;     /* patch tensor to view tensor */
    weft_apply_kind kind;
    weft_apply_phase phase;
    bool moved;      /* the sums have, by what is staged */
    size_t next;     /* first bucket that is not staged or done */
    size_t previous; /* `next` before the last prepare */
    size_t settled;  /* buckets committed in earlier steps, whose old values are gone */
    weft_staged *staged;
    size_t staged_count;
    weft_waiting *waiting; /* by place, like `staged`; NULL if the view is not reached in batches */
    size_t waiting_from;   /* the first place that may wait; behind the last staged one if none does */
    size_t waiting_count;
    uint64_t waiting_bytes; /* of the words that they wait for */
    size_t *segments;       /* of each bucket, 0 if nothing of it is held; NULL until they are counted */
    /* Buckets in the order in which they are staged, NULL for that of the patch. Where tensors share
     * memory, their buckets come first, together: all are proven before any of them is written. */
    size_t *order;
    size_t together;
    weft_bucket_coder *coders;
    weft_writer *buffers;
    unsigned workers;
    weft_apply_stats stats;
    weft_apply_stats before; /* the last prepare */
};

/* Finds out, once, which buckets are held, and in how many segments: a staged bucket keeps these, so that
 * they count against the limit. */
weft_status weft_apply_survey(weft_apply *apply);
/* The bucket that is staged at a place. */
size_t weft_apply_bucket(const weft_apply *apply, size_t place);
/* How many buckets from `next` on fit, at their worst, into what the limit leaves. At least one if nothing
 * is staged yet; and of those that are staged together at least one for each thread, since what they really
 * take is known only afterwards: no more than these can be held beyond the limit. */
size_t weft_apply_fitting(const weft_apply *apply);

/* Fetches, decodes and proves the bucket at a place, if anything of it is held, and keeps it staged; or,
 * `through`, writes it, and keeps only what is counted. */
weft_status weft_apply_stage(weft_apply *apply, size_t place, unsigned worker, bool through);
/* Proves a bucket that waited, once its words are there. */
weft_status weft_apply_prove_waiting(weft_apply *apply, size_t place, unsigned worker);
void weft_apply_drop_waiting(weft_apply *apply, size_t place);
/* The end of a message about something that was found wrong. */
const char *weft_apply_consequence(const weft_apply *apply);

#endif
