/* SPDX-License-Identifier: Apache-2.0
 *
 * trail.c: a base that follows its diff, and can go back.
 */
#include "trail.h"

#include "../../base/pool.h"

struct weft_trail {
    weft_context *context;
    weft_staged *buckets;
    size_t count;
};

/* Lists of changes and of segments are kept: their memory costs more to take anew than to fill. */
static void trail_empty(weft_trail *trail) {
    for (size_t i = 0; i < trail->count; i++) {
        weft_staged *kept = &trail->buckets[i];
        weft_changes changes = kept->changes;
        weft_segments segments = kept->window.segments;
        kept->changes = (weft_changes){0};
        kept->window.segments = (weft_segments){0};
        weft_staged_release(trail->context, kept);
        changes.count = 0;
        segments.count = 0;
        kept->changes = changes;
        kept->window.segments = segments;
    }
}

weft_status weft_trail_prepare(weft_context *context, size_t count, weft_trail **trail) {
    if (*trail != NULL && (*trail)->count == count) {
        trail_empty(*trail);
        return WEFT_OK;
    }
    weft_trail_destroy(*trail);
    *trail = NULL;
    weft_trail *made = weft_allocate_zeroed(context, 1, sizeof *made);
    weft_staged *buckets = weft_allocate_zeroed(context, count, sizeof *buckets);
    if (made == NULL || buckets == NULL) {
        weft_release(context, made);
        weft_release(context, buckets);
        return WEFT_NO_MEMORY;
    }
    *made = (weft_trail){context, buckets, count};
    *trail = made;
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

/* The coder's list becomes the trail's, and the trail's old one the coder's: nothing is copied. */
static void trail_keep_changes(weft_bucket_coder *coder, weft_staged *kept) {
    weft_changes changes = kept->changes;
    kept->changes = coder->changes;
    coder->changes = changes;
    coder->changes.context = coder->context;
    coder->changes.count = 0;
}

/* The same of the list that says where the changes are. */
static void trail_keep_segments(weft_bucket_coder *coder, weft_staged *kept) {
    weft_segments segments = kept->window.segments;
    kept->window.segments = coder->from.segments;
    coder->from.segments = segments;
    coder->from.segments.context = coder->context;
    coder->from.segments.count = 0;
}

static weft_status trail_advance_dense(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       const weft_bucket_side *to, weft_staged *kept) {
    size_t bytes = (size_t)bucket->units * bucket->width;
    kept->dense_olds = weft_allocate(coder->context, bytes);
    kept->dense_news = weft_allocate(coder->context, bytes);
    if (kept->dense_olds == NULL || kept->dense_news == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_window_copy(&coder->from, kept->dense_olds, bucket->width);
    if (status == WEFT_OK && to != NULL) {
        status = weft_window_set(&coder->to, to->view, to->tensor_map, bucket, WEFT_NEED_BYTES);
    }
    if (status == WEFT_OK) {
        status = weft_window_copy(&coder->to, kept->dense_news, bucket->width);
    }
    return status == WEFT_OK ? weft_window_fill(&coder->from, kept->dense_news, bucket->width) : status;
}

weft_status weft_trail_advance(weft_trail *trail, size_t index, weft_bucket_coder *coder,
                               const weft_bucket *bucket, const weft_bucket_side *to,
                               const weft_frame_result *result, weft_status encoded) {
    weft_status status = encoded;
    if (status == WEFT_OK && !result->present) {
        return WEFT_OK;
    }
    weft_staged *kept = &trail->buckets[index];
    if (status == WEFT_OK) {
        status = weft_bucket_list(coder, bucket, result);
    }
    bool sparse = coder->changes.count == result->changed;
    if (status == WEFT_OK && !sparse) {
        status = trail_advance_dense(coder, bucket, to, kept);
    } else if (status == WEFT_OK && !result->written) {
        status = weft_window_scatter(&coder->from, &coder->changes, false);
    }
    if (status != WEFT_OK) {
        if (result->written) {
            weft_status ignored = weft_window_scatter(&coder->from, &coder->changes, true);
            (void)ignored;
        }
        return status;
    }
    if (sparse) {
        trail_keep_changes(coder, kept);
    }
    kept->used = true;
    kept->width = bucket->width;
    kept->units = bucket->units;
    kept->window.context = trail->context;
    trail_keep_segments(coder, kept);
    return WEFT_OK;
}

weft_status weft_trail_note(weft_trail *trail, size_t index, weft_bucket_coder *coder,
                            const weft_bucket *bucket, const weft_frame_result *result) {
    if (!result->present) {
        return WEFT_OK;
    }
    weft_staged *kept = &trail->buckets[index];
    kept->used = true;
    kept->width = bucket->width;
    kept->units = bucket->units;
    weft_status status = weft_bucket_list(coder, bucket, result);
    if (status != WEFT_OK) {
        return status;
    }
    if (coder->changes.count == result->changed) {
        trail_keep_changes(coder, kept);
        return WEFT_OK;
    }
    kept->dense_olds = weft_allocate(coder->context, (size_t)bucket->units * bucket->width);
    return kept->dense_olds != NULL ? weft_window_copy(&coder->from, kept->dense_olds, bucket->width)
                                    : WEFT_NO_MEMORY;
}

const weft_staged *weft_trail_bucket(const weft_trail *trail, size_t index) {
    return &trail->buckets[index];
}

size_t weft_trail_count(const weft_trail *trail) {
    return trail->count;
}

static weft_status trail_undo_bucket(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const weft_trail *trail = argument;
    return weft_staged_write(&trail->buckets[index], true);
}

weft_status weft_trail_undo(weft_context *context, const weft_trail *trail) {
    return weft_parallel(context, trail->count, trail_undo_bucket, (void *)trail);
}
