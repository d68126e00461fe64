/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.h: buckets become frames, which leave in order.
 *
 * Workers make the frames of different buckets side by side; finished frames leave in the order of the
 * buckets, so that writing (or uploading) overlaps encoding, memory stays bounded by the window of frames
 * under way, and the bytes are the same whatever the threads.
 */
#ifndef WEFT_PATCH_DIFF_PIPELINE_H
#define WEFT_PATCH_DIFF_PIPELINE_H

#include "../bucket/bucket.h"

/* A frame that waits to be written. */
typedef struct weft_pipeline_frame {
    weft_writer bytes;
    weft_frame_result result;
} weft_pipeline_frame;

/* What is made of one bucket; empty, and not present, when `produce` begins. */
typedef struct weft_pipeline_slot {
    weft_pipeline_frame forward;
    weft_pipeline_frame inverse; /* of who makes both ways in one pass */
} weft_pipeline_slot;

enum { WEFT_PIPELINE_SCRATCH = 2 };

/* What a worker keeps from bucket to bucket. Buffers take memory when they are used. */
typedef struct weft_pipeline_worker {
    weft_bucket_coder coder;  /* of the frames that are made */
    weft_bucket_coder walker; /* of the frames that these are made of, where patches are merged */
    weft_writer fetched;      /* the bytes of such a frame */
    weft_changes steps;       /* room for a list beside those of the two coders */
    struct {
        uint8_t *memory;
        size_t capacity;
    } scratch[WEFT_PIPELINE_SCRATCH];
} weft_pipeline_worker;

/* At least so many bytes, whose content is not kept; or NULL, and the context knows why. */
uint8_t *weft_pipeline_scratch(weft_pipeline_worker *worker, size_t which, size_t bytes);

/* One pass over `count` buckets. */
typedef struct weft_pipeline {
    size_t count;
    const char *phase; /* of the progress, in bytes of weights; NULL: none is told */
    bool follows;      /* see weft_bucket_coder */
    void *opaque;
    const weft_bucket *(*bucket)(const void *opaque, size_t index);
    /* On any worker, for several buckets at once. */
    weft_status (*produce)(void *opaque, size_t index, weft_pipeline_worker *worker,
                           weft_pipeline_slot *slot);
    /* Strictly in ascending order, and never two at a time. NULL: nothing leaves, and there are no slots.
     */
    weft_status (*emit)(void *opaque, size_t index, const weft_pipeline_slot *slot);
} weft_pipeline;

weft_status weft_pipeline_run(weft_context *context, const weft_pipeline *pipeline);

#endif
