/* SPDX-License-Identifier: Apache-2.0
 *
 * survey.c: which of a patch's buckets a view holds, in which order they are staged, and how many fit.
 */
#include "../../base/pool.h"
#include "transaction.h"

static weft_status survey_bucket(void *argument, size_t index, unsigned worker) {
    weft_apply *apply = argument;
    weft_window *window = &apply->coders[worker].from;
    weft_status status = weft_window_set(window, apply->view, apply->map,
                                         &apply->patch->index.entries[index].bucket, WEFT_NEED_NOTHING);
    apply->segments[index] = window->segments.count;
    return status;
}

/* What is new is written whatever was there before: its buckets may go as they come. */
static bool survey_reads_shared(const weft_apply *apply, const bool *shared, const weft_bucket *bucket) {
    for (size_t i = 0; i < bucket->span_count; i++) {
        int64_t tensor = apply->map[bucket->spans[i].tensor];
        bool kept = apply->patch->header.roster.entries[bucket->spans[i].tensor].fate == WEFT_FATE_KEPT;
        if (kept && tensor >= 0 && shared[tensor]) {
            return true;
        }
    }
    return false;
}

static weft_status survey_put_ties_first(weft_apply *apply) {
    size_t count = apply->patch->index.count;
    size_t tensors = weft_view_count(apply->view);
    size_t *order = weft_allocate_array(apply->context, count, sizeof *order);
    bool *shared = weft_allocate_zeroed(apply->context, tensors, sizeof *shared);
    if (order == NULL || shared == NULL) {
        weft_release(apply->context, order);
        weft_release(apply->context, shared);
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < tensors; i++) {
        size_t tie = weft_view_tie(apply->view, i);
        if (tie != WEFT_NO_TIE) {
            shared[i] = true;
            shared[tie] = true;
        }
    }
    size_t used = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            if (survey_reads_shared(apply, shared, &apply->patch->index.entries[i].bucket) == (pass == 0)) {
                order[used++] = i;
            }
        }
        apply->together = pass == 0 ? used : apply->together;
    }
    weft_release(apply->context, shared);
    apply->order = order;
    return WEFT_OK;
}

weft_status weft_apply_survey(weft_apply *apply) {
    if (apply->segments != NULL) {
        return WEFT_OK;
    }
    size_t count = apply->patch->index.count;
    apply->segments = weft_allocate_zeroed(apply->context, count, sizeof *apply->segments);
    if (apply->segments == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_parallel(apply->context, count, survey_bucket, apply);
    if (status == WEFT_OK && weft_view_tied(apply->view)) {
        status = survey_put_ties_first(apply);
    }
    if (status != WEFT_OK) {
        weft_release(apply->context, apply->segments);
        apply->segments = NULL;
    }
    return status;
}

size_t weft_apply_bucket(const weft_apply *apply, size_t place) {
    return apply->order != NULL ? apply->order[place] : place;
}

/* What a bucket takes at its worst, words that it waits for included. */
static uint64_t survey_most_bytes(const weft_apply *apply, const weft_bucket *bucket, size_t segments) {
    uint64_t bytes = weft_changes_bytes(bucket->units, bucket->width) + segments * sizeof(weft_segment);
    if (apply->waiting != NULL || weft_view_converts(apply->view)) {
        bytes += bucket->units * sizeof(uint64_t);
    }
    if (apply->waiting != NULL) {
        bytes += weft_batch_words_most(bucket, segments);
    }
    return bytes;
}

size_t weft_apply_fitting(const weft_apply *apply) {
    uint64_t limit = weft_context_limits(apply->context)->stage_bytes;
    uint64_t used = apply->stats.stage_bytes + apply->waiting_bytes;
    size_t count = 0;
    for (size_t i = apply->next; i < apply->patch->index.count; i++) {
        size_t index = weft_apply_bucket(apply, i);
        const weft_bucket *bucket = &apply->patch->index.entries[index].bucket;
        if (apply->segments[index] > 0) {
            used += survey_most_bytes(apply, bucket, apply->segments[index]);
        }
        if (used > limit) {
            break;
        }
        count++;
    }
    if (apply->next < apply->together) {
        size_t left = apply->together - apply->next;
        size_t least = left < apply->workers ? left : apply->workers;
        return count > least ? count : least;
    }
    bool none = count == 0 && apply->next < apply->patch->index.count;
    return none && apply->staged_count == apply->previous ? 1 : count;
}
