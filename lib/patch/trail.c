/* SPDX-License-Identifier: Apache-2.0
 *
 * trail.c: a base that follows its diff, and can go back.
 */
#include "trail.h"

#include "../base/pool.h"
#include "apply.h"

struct weft_trail {
    weft_context *context;
    weft_staged *buckets;
    size_t count;
};

weft_status weft_trail_create(weft_context *context, size_t count, weft_trail **trail_out) {
    weft_trail *trail = weft_allocate_zeroed(context, 1, sizeof *trail);
    weft_staged *buckets = weft_allocate_zeroed(context, count, sizeof *buckets);
    if (trail == NULL || buckets == NULL) {
        weft_release(context, trail);
        weft_release(context, buckets);
        return WEFT_NO_MEMORY;
    }
    *trail = (weft_trail){context, buckets, count};
    *trail_out = trail;
    return WEFT_OK;
}

void weft_trail_destroy(weft_trail *trail) {
    if (trail == NULL) {
        return;
    }
    for (size_t i = 0; i < trail->count; i++) {
        weft_staged_release(trail->context, &trail->buckets[i]);
    }
    weft_release(trail->context, trail->buckets);
    weft_release(trail->context, trail);
}

static weft_status advance_sparse(const weft_window *window, const weft_changes *changes,
                                  weft_staged *kept) {
    size_t count = changes->count;
    kept->changes.width = changes->width;
    kept->changes.positions = weft_allocate_array(window->context, count, sizeof *changes->positions);
    kept->changes.olds = weft_allocate_array(window->context, count, changes->width);
    if (kept->changes.positions == NULL || kept->changes.olds == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(kept->changes.positions, changes->positions, count * sizeof *changes->positions);
    memcpy(kept->changes.olds, changes->olds, count * changes->width);
    weft_status status = weft_window_scatter(window, changes, false);
    kept->changes.count = count;
    return status;
}

static weft_status advance_dense(weft_bucket_coder *coder, const weft_bucket *bucket,
                                 const weft_bucket_side *to, weft_staged *kept) {
    size_t bytes = (size_t)bucket->units * bucket->width;
    kept->dense_olds = weft_allocate(coder->context, bytes);
    kept->dense_news = weft_allocate(coder->context, bytes);
    if (kept->dense_olds == NULL || kept->dense_news == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_window_copy(&coder->from, kept->dense_olds, bucket->width);
    if (status == WEFT_OK) {
        status = weft_window_set(&coder->to, to->view, to->tensor_map, bucket, WEFT_NEED_BYTES);
    }
    if (status == WEFT_OK) {
        status = weft_window_copy(&coder->to, kept->dense_news, bucket->width);
    }
    return status == WEFT_OK ? weft_window_fill(&coder->from, kept->dense_news, bucket->width) : status;
}

/* A bucket is marked as used once it may have been written to. */
weft_status weft_trail_advance(weft_trail *trail, size_t index, weft_bucket_coder *coder,
                               const weft_bucket *bucket, const weft_bucket_side *to,
                               const weft_frame_result *result) {
    if (!result->present) {
        return WEFT_OK;
    }
    if (!coder->from.writable || !coder->from.direct) {
        return weft_fail(coder->context, WEFT_INVALID_ARGUMENT,
                         "a base that is to follow its diff must be plain memory that can be written");
    }
    weft_staged *kept = &trail->buckets[index];
    kept->width = bucket->width;
    kept->units = bucket->units;
    kept->window.context = trail->context;
    bool listed = coder->changes.count == result->changed;
    weft_status status = listed ? advance_sparse(&coder->from, &coder->changes, kept)
                                : advance_dense(coder, bucket, to, kept);
    kept->window.segments = coder->from.segments;
    coder->from.segments = (weft_segments){.context = coder->context};
    kept->used = status == WEFT_OK;
    return status;
}

static weft_status undo_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const weft_trail *trail = argument;
    return weft_staged_write(&trail->buckets[index], true);
}

weft_status weft_trail_undo(weft_context *context, const weft_trail *trail) {
    return weft_parallel(context, trail->count, undo_task, (void *)trail);
}
