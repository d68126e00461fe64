/* SPDX-License-Identifier: Apache-2.0
 *
 * apply.c: the transaction that brings live weights from a patch's base to its result.
 *
 *   prepare   fetch, check and decode every bucket, read the old words, prove the bucket's delta, and at
 *             the end prove that old digest and deltas give the promised one. Nothing is written.
 *   commit    scatter. Nothing can be found wrong any more.
 *   rollback  drop what is prepared, or scatter the old values back.
 *
 * Staged changes are bounded by the context's limit. Beyond it, prepare says WEFT_MORE: the caller
 * commits what is staged and goes on; the buckets of a patch are disjoint, so order does not matter.
 */
#include "apply.h"

#include "../../base/pool.h"
#include "../../tensor/table.h"

#include <time.h>

typedef enum apply_phase {
    PHASE_IDLE,
    PHASE_PREPARED,
    PHASE_COMMITTED,
    PHASE_RUN,    /* done in one go, or failed at it; there is nothing to go back to */
    PHASE_BROKEN, /* a callback failed while writing and the old values could not be put back */
} apply_phase;

typedef enum apply_kind {
    APPLY_LIVE,    /* from the patch's base to its result */
    APPLY_REBUILD, /* into a new place, where tensors that the patch brings hold nothing yet */
    APPLY_REPLACE, /* the same over weights that can be gone back to */
} apply_kind;

struct weft_apply {
    weft_context *context;
    const weft_patch *patch;
    const weft_view *view;
    weft_sums *sums;
    weft_sums *moves; /* of everything prepared since the last commit */
    int64_t *map;     /* patch tensor to view tensor */
    apply_kind kind;
    apply_phase phase;
    bool moved;      /* the sums have, by what is staged */
    size_t next;     /* first bucket that is not staged or done */
    size_t previous; /* `next` before the last prepare */
    size_t settled;  /* buckets committed in earlier steps, whose old values are gone */
    weft_staged *staged;
    size_t staged_count;
    size_t *segments; /* of each bucket, 0 if nothing of it is held; NULL until they are counted */
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

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- creating ---- */

static weft_status check_tensor(weft_context *context, const weft_roster_entry *entry,
                                const weft_view *view, int64_t index) {
    if (index < 0) {
        return weft_view_complete(view)
                   ? weft_fail(context, WEFT_BASE_MISMATCH,
                               "base mismatch: the patch changes tensor %s, which is not here",
                               entry->tensor.name)
                   : WEFT_OK;
    }
    const weft_tensor *here = weft_view_at(view, (size_t)index);
    if (!weft_tensor_alike(here, &entry->tensor)) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "base mismatch: tensor %s has another dtype or shape here than in the patch",
                         entry->tensor.name);
    }
    return WEFT_OK;
}

static weft_status check_roster(weft_apply *apply) {
    const weft_roster *roster = &apply->patch->header.roster;
    if (apply->kind == APPLY_LIVE && !weft_roster_plain(roster)) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "the patch adds, removes or replaces tensors and cannot be applied to live weights; "
            "rebuild the checkpoint (weft apply BASE PATCH -o OUT)");
    }
    size_t known = 0;
    for (size_t i = 0; i < roster->count; i++) {
        if (roster->entries[i].fate == WEFT_FATE_REMOVED) {
            continue;
        }
        weft_status status = check_tensor(apply->context, &roster->entries[i], apply->view, apply->map[i]);
        if (status != WEFT_OK) {
            return status;
        }
        known += apply->map[i] >= 0;
    }
    if (known != weft_view_count(apply->view)) {
        return weft_fail(apply->context, WEFT_BASE_MISMATCH,
                         "base mismatch: there are %zu tensors here that the patch does not know",
                         weft_view_count(apply->view) - known);
    }
    return WEFT_OK;
}

static weft_status check_base(weft_apply *apply) {
    if (apply->kind != APPLY_LIVE || !weft_view_complete(apply->view)) {
        return WEFT_OK;
    }
    return weft_patch_check_base(apply->context, apply->patch, apply->sums);
}

static weft_status create(weft_context *context, const weft_patch *patch, const weft_view *view,
                          weft_sums *sums, apply_kind kind, weft_apply **apply_out) {
    weft_context_clear(context);
    weft_apply *apply = weft_allocate_zeroed(context, 1, sizeof *apply);
    if (apply == NULL) {
        return WEFT_NO_MEMORY;
    }
    apply->context = context;
    apply->patch = patch;
    apply->view = view;
    apply->sums = sums;
    apply->kind = kind;
    unsigned threads = weft_context_threads(context);
    weft_roster roster = weft_roster_with(&patch->header.roster, context);
    weft_status status = weft_sums_check(context, sums, view);
    if (status == WEFT_OK) {
        status = weft_roster_map(&roster, view, &apply->map);
    }
    if (status == WEFT_OK) {
        status = check_roster(apply);
    }
    if (status == WEFT_OK) {
        status = check_base(apply);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, view, &apply->moves);
    }
    if (status == WEFT_OK) {
        apply->staged = weft_allocate_zeroed(context, patch->index.count, sizeof *apply->staged);
        apply->coders = weft_allocate_array(context, threads, sizeof *apply->coders);
        apply->buffers = weft_allocate_array(context, threads, sizeof *apply->buffers);
        status = apply->staged == NULL || apply->coders == NULL || apply->buffers == NULL ? WEFT_NO_MEMORY
                                                                                          : WEFT_OK;
    }
    if (status != WEFT_OK) {
        weft_apply_destroy(apply);
        return status;
    }
    for (; apply->workers < threads; apply->workers++) {
        weft_bucket_coder_open(&apply->coders[apply->workers], context);
        weft_writer_open(&apply->buffers[apply->workers], context);
    }
    *apply_out = apply;
    return WEFT_OK;
}

weft_status weft_apply_create(weft_context *context, const weft_patch *patch, const weft_view *view,
                              weft_sums *sums, weft_apply **apply_out) {
    return create(context, patch, view, sums, APPLY_LIVE, apply_out);
}

weft_status weft_apply_create_rebuild(weft_context *context, const weft_patch *patch, const weft_view *view,
                                      weft_sums *sums, weft_apply **apply_out) {
    return create(context, patch, view, sums, APPLY_REBUILD, apply_out);
}

weft_status weft_apply_create_replace(weft_context *context, const weft_patch *patch, const weft_view *view,
                                      weft_sums *sums, weft_apply **apply_out) {
    return create(context, patch, view, sums, APPLY_REPLACE, apply_out);
}

void weft_staged_release(weft_context *context, weft_staged *staged) {
    weft_segments_close(&staged->window.segments);
    weft_release(context, staged->changes.positions);
    weft_release(context, staged->changes.olds);
    weft_release(context, staged->changes.news);
    weft_release(context, staged->dense_olds);
    weft_release(context, staged->dense_news);
    *staged = (weft_staged){0};
}

static void drop_staged(weft_apply *apply) {
    for (size_t i = 0; i < apply->staged_count; i++) {
        if (apply->staged[i].used) {
            weft_staged_release(apply->context, &apply->staged[i]);
        }
    }
    apply->staged_count = 0;
    apply->stats.stage_bytes = 0;
}

void weft_apply_destroy(weft_apply *apply) {
    if (apply == NULL) {
        return;
    }
    drop_staged(apply);
    for (unsigned i = 0; i < apply->workers; i++) {
        weft_bucket_coder_close(&apply->coders[i]);
        weft_writer_close(&apply->buffers[i]);
    }
    weft_context *context = apply->context;
    weft_release(context, apply->staged);
    weft_release(context, apply->segments);
    weft_release(context, apply->order);
    weft_release(context, apply->coders);
    weft_release(context, apply->buffers);
    weft_release(context, apply->map);
    weft_sums_destroy(apply->moves);
    weft_release(context, apply);
}

/* ---- preparing ---- */

/* The bucket that is staged at a place. */
static size_t bucket_at(const weft_apply *apply, size_t place) {
    return apply->order != NULL ? apply->order[place] : place;
}

static const char *tensor_name(const weft_apply *apply, const weft_frame *frame) {
    return apply->patch->header.roster.entries[frame->bucket.spans[0].tensor].tensor.name;
}

/* The end of a message about something that was found wrong. */
static const char *consequence(const weft_apply *apply) {
    if (apply->kind == APPLY_REBUILD) {
        return "nothing was written";
    }
    if (apply->phase == PHASE_RUN) {
        return "the copy is between two states";
    }
    return apply->settled > 0 ? "what earlier steps committed stays" : "nothing was changed";
}

static weft_status check_delta(const weft_apply *apply, const weft_frame *frame, size_t place,
                               weft_sum delta) {
    if (weft_sum_equal(delta, frame->delta)) {
        return WEFT_OK;
    }
    return weft_fail(
        apply->context, WEFT_DIGEST_MISMATCH,
        "bucket %zu, tensor %s: the weights here are not those that the patch was made for, or "
        "the patch is wrong; %s; verify the base and fetch both again",
        bucket_at(apply, place), tensor_name(apply, frame), consequence(apply));
}

static bool ascending(const weft_changes *changes) {
    for (size_t i = 1; i < changes->count; i++) {
        if (changes->positions[i] < changes->positions[i - 1]) {
            return false;
        }
    }
    return true;
}

/* Sorts by the upper half, a digit at a time; digits that all keys share cost one look. */
static void sort_keys(uint64_t *keys, uint64_t *scratch, size_t count) {
    enum { DIGIT = 11, DIGITS = 1 << DIGIT };
    for (unsigned shift = 32; shift < 64; shift += DIGIT) {
        size_t places[DIGITS] = {0};
        for (size_t i = 0; i < count; i++) {
            places[keys[i] >> shift & (DIGITS - 1)]++;
        }
        if (places[keys[0] >> shift & (DIGITS - 1)] == count) {
            continue;
        }
        size_t place = 0;
        for (size_t i = 0; i < DIGITS; i++) {
            size_t next = place + places[i];
            places[i] = place;
            place = next;
        }
        for (size_t i = 0; i < count; i++) {
            scratch[places[keys[i] >> shift & (DIGITS - 1)]++] = keys[i];
        }
        memcpy(keys, scratch, count * sizeof *keys);
    }
}

/* Decoders keep to the order of runs, and within a run to any. Where the runs are live memory, they are
 * the segments that a commit writes to. Where they are copies, segments are other pieces: a commit finds
 * the changes of each only if all are in order. */
static weft_status sort_changes(weft_context *context, weft_changes *changes) {
    if (ascending(changes)) {
        return WEFT_OK;
    }
    unsigned width = changes->width;
    uint64_t *keys = weft_allocate_array(context, changes->count, 2 * sizeof *keys);
    uint8_t *values = weft_allocate_array(context, changes->count, 2 * (size_t)width);
    weft_status status = keys == NULL || values == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        uint8_t *news = values + changes->count * width;
        for (size_t i = 0; i < changes->count; i++) {
            keys[i] = (uint64_t)changes->positions[i] << 32 | i;
        }
        sort_keys(keys, keys + changes->count, changes->count);
        memcpy(values, changes->olds, changes->count * width);
        memcpy(news, changes->news, changes->count * width);
        for (size_t i = 0; i < changes->count; i++) {
            size_t from = (uint32_t)keys[i];
            changes->positions[i] = (uint32_t)(keys[i] >> 32);
            weft_unit_store(changes->olds, i, width, weft_unit_load(values, from, width));
            weft_unit_store(changes->news, i, width, weft_unit_load(news, from, width));
        }
    }
    weft_release(context, keys);
    weft_release(context, values);
    return status;
}

static weft_status stage_sparse(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                                size_t place, weft_staged *staged) {
    weft_sum delta;
    weft_changes_open(&staged->changes, apply->context);
    weft_status status = weft_frame_decode(coder, frame, &staged->changes, apply->moves, &delta);
    if (status == WEFT_OK) {
        status = check_delta(apply, frame, place, delta);
    }
    bool sorted = !coder->from.direct || apply->patch->listener.bucket != NULL;
    return status == WEFT_OK && sorted ? sort_changes(apply->context, &staged->changes) : status;
}

static weft_status stage_dense(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                               size_t place, bool fresh, weft_staged *staged) {
    weft_context *context = apply->context;
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    weft_status status = WEFT_OK;
    staged->dense_news = weft_allocate(context, bytes);
    bool restorable = !fresh || apply->kind == APPLY_REPLACE;
    if (restorable) {
        staged->dense_olds = weft_allocate(context, bytes);
    }
    if (staged->dense_news == NULL || (restorable && staged->dense_olds == NULL)) {
        return WEFT_NO_MEMORY;
    }
    if (restorable) {
        status = weft_window_copy(&coder->from, staged->dense_olds, frame->bucket.width);
    }
    if (status == WEFT_OK) {
        status = weft_frame_decode_dense(context, frame, staged->dense_olds, staged->dense_news);
    }
    weft_sum delta = {{0, 0}};
    if (status == WEFT_OK) {
        status = weft_window_prove_all(&coder->from, staged->dense_news, frame->bucket.width, fresh,
                                       apply->moves, &delta);
    }
    return status == WEFT_OK ? check_delta(apply, frame, place, delta) : status;
}

/* The patch speaks of BF16 weights; the F32 masters behind them would have to be made up. */
static bool holds_masters(const weft_window *window) {
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_tensor *live = window->segments.items[i].live;
        if (live->storage != live->dtype) {
            return true;
        }
    }
    return false;
}

static weft_status check_window(const weft_apply *apply, const weft_window *window,
                                const weft_frame *frame) {
    if (window->holding == WEFT_HELD_PART) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "a bucket of tensor %s reaches beyond what this layout holds; the publisher must cut "
            "the tensor where the layout does (weft diff --cut)",
            tensor_name(apply, frame));
    }
    if (window->holding == WEFT_HELD_ALL && !window->writable) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "tensor %s is not writable here",
                         tensor_name(apply, frame));
    }
    if (holds_masters(window)) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "tensor %s is held as F32 masters here, which a patch of its %s weights cannot "
                         "change; apply it to a copy in that dtype",
                         tensor_name(apply, frame), weft_dtype_name(frame->bucket.dtype));
    }
    return WEFT_OK;
}

static void note_frame(weft_staged *staged, const weft_frame *frame) {
    staged->used = true;
    staged->units = frame->bucket.units;
    staged->changed = frame->changed;
    staged->width = frame->bucket.width;
}

/* The segments are what a commit needs of a window; a list of their own holds no more than these. */
static weft_status keep_segments(weft_apply *apply, const weft_segments *segments, weft_staged *staged) {
    staged->window.context = apply->context;
    staged->window.segments.context = apply->context;
    weft_segment *items = weft_allocate_array(apply->context, segments->count, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(items, segments->items, segments->count * sizeof *items);
    staged->window.segments.items = items;
    staged->window.segments.count = segments->count;
    staged->window.segments.capacity = segments->count;
    return WEFT_OK;
}

static weft_status stage_frame(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                               size_t place) {
    bool fresh = apply->patch->header.roster.entries[frame->bucket.spans[0].tensor].fate != WEFT_FATE_KEPT;
    bool words = frame->coding == WEFT_CODING_FAST;
    weft_status status = weft_window_set(&coder->from, apply->view, apply->map, &frame->bucket,
                                         words ? WEFT_NEED_WORDS : WEFT_NEED_BYTES);
    if (status == WEFT_OK) {
        status = check_window(apply, &coder->from, frame);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_staged *staged = &apply->staged[place];
    note_frame(staged, frame);
    status = weft_frame_dense(frame) ? stage_dense(apply, coder, frame, place, fresh, staged)
                                     : stage_sparse(apply, coder, frame, place, staged);
    if (status == WEFT_OK) {
        status = keep_segments(apply, &coder->from.segments, staged);
    }
    const weft_patch_listener *listener = &apply->patch->listener;
    return status == WEFT_OK && listener->bucket != NULL
               ? listener->bucket(listener->opaque, frame, &staged->changes)
               : status;
}

weft_status weft_staged_write(const weft_staged *staged, bool restore) {
    if (!staged->used) {
        return WEFT_OK;
    }
    if (staged->dense_news == NULL) {
        return weft_window_scatter(&staged->window, &staged->changes, restore);
    }
    const uint8_t *values = restore ? staged->dense_olds : staged->dense_news;
    return values == NULL ? WEFT_OK : weft_window_fill(&staged->window, values, staged->width);
}

typedef weft_status (*frame_handler)(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                                     size_t place);

static weft_status handle_bucket(weft_apply *apply, size_t place, unsigned worker, frame_handler handler) {
    size_t index = bucket_at(apply, place);
    if (apply->segments[index] == 0) {
        return WEFT_OK; /* what is not held is not even fetched */
    }
    weft_frame frame;
    weft_status status =
        weft_patch_frame(apply->context, apply->patch, index, &apply->buffers[worker], &frame);
    if (status != WEFT_OK) {
        return status;
    }
    status = handler(apply, &apply->coders[worker], &frame, place);
    if (status == WEFT_OK) {
        status = weft_progress_add(apply->context, frame.bucket.units * frame.bucket.width);
    }
    weft_bucket_close(&frame.bucket, apply->context);
    return status;
}

static weft_status survey_task(void *argument, size_t index, unsigned worker) {
    weft_apply *apply = argument;
    weft_window *window = &apply->coders[worker].from;
    weft_status status = weft_window_set(window, apply->view, apply->map,
                                         &apply->patch->index.entries[index].bucket, WEFT_NEED_NOTHING);
    apply->segments[index] = window->segments.count;
    return status;
}

/* What is new is written whatever was there before: its buckets may go as they come. */
static bool reads_shared(const weft_apply *apply, const bool *shared, const weft_bucket *bucket) {
    for (size_t i = 0; i < bucket->span_count; i++) {
        int64_t tensor = apply->map[bucket->spans[i].tensor];
        bool kept = apply->patch->header.roster.entries[bucket->spans[i].tensor].fate == WEFT_FATE_KEPT;
        if (kept && tensor >= 0 && shared[tensor]) {
            return true;
        }
    }
    return false;
}

static weft_status put_ties_first(weft_apply *apply) {
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
            if (reads_shared(apply, shared, &apply->patch->index.entries[i].bucket) == (pass == 0)) {
                order[used++] = i;
            }
        }
        apply->together = pass == 0 ? used : apply->together;
    }
    weft_release(apply->context, shared);
    apply->order = order;
    return WEFT_OK;
}

/* Finds out, once, which buckets are held, and in how many segments: a staged bucket keeps these, so that
 * they count against the limit. */
static weft_status survey(weft_apply *apply) {
    if (apply->segments != NULL) {
        return WEFT_OK;
    }
    size_t count = apply->patch->index.count;
    apply->segments = weft_allocate_zeroed(apply->context, count, sizeof *apply->segments);
    if (apply->segments == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_parallel(apply->context, count, survey_task, apply);
    if (status == WEFT_OK && weft_view_tied(apply->view)) {
        status = put_ties_first(apply);
    }
    if (status != WEFT_OK) {
        weft_release(apply->context, apply->segments);
        apply->segments = NULL;
    }
    return status;
}

static weft_status stage_task(void *argument, size_t offset, unsigned worker) {
    weft_apply *apply = argument;
    return handle_bucket(apply, apply->next + offset, worker, stage_frame);
}

/* ---- running through ---- */

static bool plain_memory(const weft_window *window) {
    for (size_t i = 0; i < window->run_count; i++) {
        if (window->runs[i].memory == NULL) {
            return false;
        }
    }
    return window->direct;
}

static weft_status run_frame(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                             size_t place) {
    weft_sum delta;
    weft_status status =
        weft_window_set(&coder->from, apply->view, apply->map, &frame->bucket,
                        frame->coding == WEFT_CODING_FAST ? WEFT_NEED_WORDS : WEFT_NEED_BYTES);
    if (status == WEFT_OK) {
        status = check_window(apply, &coder->from, frame);
    }
    bool heard = apply->patch->listener.bucket != NULL; /* who listens wants changes, which are not kept */
    if (status == WEFT_OK && !heard && !weft_frame_dense(frame) && plain_memory(&coder->from)) {
        status = weft_frame_decode_through(coder, frame, apply->moves, &delta);
        note_frame(&apply->staged[place], frame);
        return status == WEFT_OK ? check_delta(apply, frame, place, delta) : status;
    }
    if (status == WEFT_OK) {
        status = stage_frame(apply, coder, frame, place);
    }
    if (status == WEFT_OK) {
        status = weft_staged_write(&apply->staged[place], false);
    }
    weft_staged_release(apply->context, &apply->staged[place]);
    note_frame(&apply->staged[place], frame);
    return status;
}

static uint64_t staged_bytes(const weft_staged *staged) {
    uint64_t dense = staged->units * staged->width;
    return (staged->dense_news != NULL ? dense : 0) + (staged->dense_olds != NULL ? dense : 0) +
           (staged->changes.positions != NULL ? weft_changes_bytes(staged->changes.capacity, staged->width)
                                              : 0) +
           staged->window.segments.capacity * sizeof(weft_segment);
}

/* How many buckets from `next` on fit, at their worst, into what the limit leaves. At least one if nothing
 * is staged yet; and of those that are staged together at least one for each thread, since what they really
 * take is known only afterwards: no more than these can be held beyond the limit. */
static size_t fitting_buckets(const weft_apply *apply) {
    uint64_t limit = weft_context_limits(apply->context)->stage_bytes;
    uint64_t used = apply->stats.stage_bytes;
    size_t count = 0;
    for (size_t i = apply->next; i < apply->patch->index.count; i++) {
        size_t index = bucket_at(apply, i);
        const weft_bucket *bucket = &apply->patch->index.entries[index].bucket;
        if (apply->segments[index] > 0) {
            used += weft_changes_bytes(bucket->units, bucket->width) +
                    apply->segments[index] * sizeof(weft_segment);
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

static weft_sum total_after(void *opaque, size_t tensor) {
    const weft_apply *apply = opaque;
    weft_sum total = weft_sums_total(apply->sums, tensor);
    weft_sum_add(&total, weft_sums_total(apply->moves, tensor));
    return total;
}

/* Tensors that share their memory were the same, and must become the same. */
static weft_status check_ties(weft_apply *apply) {
    for (size_t i = 0; weft_view_tied(apply->view) && i < weft_view_count(apply->view); i++) {
        size_t tie = weft_view_tie(apply->view, i);
        if (tie != WEFT_NO_TIE && !weft_sum_equal(total_after(apply, i), total_after(apply, tie))) {
            return weft_fail(apply->context, WEFT_UNSUPPORTED,
                             "tensors %s and %s share their memory here, but the patch makes them differ; "
                             "%s; give each memory of its own",
                             weft_view_at(apply->view, tie)->name, weft_view_at(apply->view, i)->name,
                             consequence(apply));
        }
    }
    return WEFT_OK;
}

/* What is staged together may be more than the limit, which nobody could know before. Ties are the same
 * again when all of it is staged. */
static weft_status check_together(weft_apply *apply) {
    uint64_t limit = weft_context_limits(apply->context)->stage_bytes;
    if (apply->stats.stage_bytes <= limit) {
        bool all = apply->next >= apply->together;
        return all && apply->kind == APPLY_LIVE ? check_ties(apply) : WEFT_OK;
    }
    return weft_fail(apply->context, WEFT_LIMIT_EXCEEDED,
                     "changes to tensors that share their memory are staged together and take %llu bytes; "
                     "%s; raise limits.stage_bytes",
                     (unsigned long long)apply->stats.stage_bytes, consequence(apply));
}

static weft_status check_result(weft_apply *apply) {
    weft_status status = check_ties(apply);
    if (status != WEFT_OK || !weft_view_complete(apply->view)) {
        return status;
    }
    weft_digest result = weft_state_digest(apply->view, total_after, apply);
    if (weft_digest_equal(&result, &apply->patch->footer.result)) {
        return WEFT_OK;
    }
    char made[WEFT_DIGEST_TEXT];
    char promised[WEFT_DIGEST_TEXT];
    weft_digest_format(&result, made);
    weft_digest_format(&apply->patch->footer.result, promised);
    return weft_fail(apply->context, WEFT_DIGEST_MISMATCH,
                     "the patch would make %s but promises %s; %s; fetch it again", made, promised,
                     consequence(apply));
}

static void count_staged(weft_apply *apply, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        const weft_staged *staged = &apply->staged[i];
        if (staged->used) {
            apply->stats.stage_bytes += staged_bytes(staged);
            apply->stats.changed += staged->changed;
            apply->stats.buckets++;
            apply->stats.bytes_read += apply->patch->index.entries[bucket_at(apply, i)].length;
        }
    }
}

/* Drops what is staged, and forgets that it was counted. */
static void undo_prepare(weft_apply *apply) {
    drop_staged(apply);
    apply->stats.changed = apply->before.changed;
    apply->stats.buckets = apply->before.buckets;
    apply->stats.bytes_read = apply->before.bytes_read;
    weft_sums_merge(apply->moves, apply->moves, true);
    apply->next = apply->previous;
}

/* Stages the next `count` buckets. */
static weft_status stage_some(weft_apply *apply, size_t count) {
    apply->staged_count = apply->next + count;
    weft_status status = weft_parallel(apply->context, count, stage_task, apply);
    count_staged(apply, apply->next, apply->staged_count);
    apply->next = apply->staged_count;
    return status;
}

/* `more_out`: the limit was reached before the last bucket. */
static weft_status stage_more(weft_apply *apply, bool *more_out) {
    weft_status status = survey(apply);
    apply->previous = apply->next;
    apply->staged_count = apply->next;
    while (status == WEFT_OK && apply->next < apply->patch->index.count) {
        size_t count = fitting_buckets(apply);
        *more_out = count == 0;
        if (*more_out) {
            return WEFT_OK;
        }
        status = stage_some(apply, count);
        if (status == WEFT_OK && apply->previous < apply->together) {
            status = check_together(apply);
        }
    }
    return status == WEFT_OK ? check_result(apply) : status;
}

weft_status weft_apply_prepare(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != PHASE_IDLE && apply->phase != PHASE_COMMITTED) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "prepared changes must be committed or rolled back before preparing again");
    }
    double start = now();
    drop_staged(apply);
    if (apply->phase == PHASE_COMMITTED) {
        weft_sums_merge(apply->moves, apply->moves, true);
        apply->settled = apply->next;
        apply->moved = false;
        apply->phase = PHASE_IDLE;
    }
    apply->before = apply->stats;
    weft_progress_begin(apply->context, "prepare", apply->patch->footer.dense_bytes);
    bool more = false;
    weft_status status = stage_more(apply, &more);
    if (status != WEFT_OK) {
        undo_prepare(apply);
        return status;
    }
    apply->phase = PHASE_PREPARED;
    apply->stats.decode_seconds += now() - start;
    return more ? WEFT_MORE : WEFT_OK;
}

static weft_status run_task(void *argument, size_t offset, unsigned worker) {
    weft_apply *apply = argument;
    return handle_bucket(apply, apply->together + offset, worker, run_frame);
}

/* Buckets of tensors that share their memory cannot be written as they are proven. */
static weft_status run_together(weft_apply *apply) {
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && apply->next < apply->together) {
        size_t count = fitting_buckets(apply);
        size_t left = apply->together - apply->next;
        status = stage_some(apply, count < left ? count : left);
        if (status == WEFT_OK) {
            status = check_together(apply);
        }
    }
    for (size_t i = 0; i < apply->together && status == WEFT_OK; i++) {
        status = weft_staged_write(&apply->staged[i], false);
    }
    return status;
}

weft_status weft_apply_run(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != PHASE_IDLE || apply->next != 0) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "a run starts from a fresh apply");
    }
    double start = now();
    size_t count = apply->patch->index.count;
    weft_progress_begin(apply->context, "apply", apply->patch->footer.dense_bytes);
    apply->phase = PHASE_RUN;
    weft_status status = survey(apply);
    if (status == WEFT_OK && apply->together > 0) {
        status = run_together(apply);
    }
    apply->staged_count = count;
    if (status == WEFT_OK) {
        status = weft_parallel(apply->context, count - apply->together, run_task, apply);
    }
    if (status == WEFT_OK) {
        status = check_result(apply);
    }
    count_staged(apply, apply->next, count);
    drop_staged(apply);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sums_merge(apply->sums, apply->moves, false);
    apply->next = count;
    apply->stats.decode_seconds = now() - start;
    return WEFT_OK;
}

const weft_staged *weft_apply_staged(const weft_apply *apply, size_t *count_out) {
    *count_out = apply->staged_count;
    return apply->staged;
}

void weft_apply_drain(weft_apply *apply) {
    drop_staged(apply);
    apply->phase = PHASE_IDLE;
}

/* ---- committing and rolling back ---- */

typedef struct write_pass {
    weft_apply *apply;
    bool restore;
} write_pass;

static weft_status write_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const write_pass *pass = argument;
    return weft_staged_write(&pass->apply->staged[index], pass->restore);
}

static weft_status write_all(weft_apply *apply, bool restore) {
    write_pass pass = {apply, restore};
    return weft_parallel(apply->context, apply->staged_count, write_task, &pass);
}

weft_status weft_apply_commit(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase != PHASE_PREPARED) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "nothing is prepared that could be committed");
    }
    double start = now();
    weft_status status = write_all(apply, false);
    if (status != WEFT_OK) {
        /* only callbacks can fail; if the old values can be put back, the text of that failure is kept */
        if (write_all(apply, true) == WEFT_OK) {
            apply->phase = PHASE_PREPARED;
            return status;
        }
        apply->phase = PHASE_BROKEN;
        /* these say that nothing was changed, and are not for a scatter function to promise */
        bool promises = status == WEFT_CANCELLED || status == WEFT_ABORTED;
        return weft_fail(
            apply->context, promises ? WEFT_CALLBACK_FAILED : status,
            "a scatter callback failed while committing, and again while the old values were put "
            "back: the weights are between two states; roll back once it works, or load them anew");
    }
    weft_sums_merge(apply->sums, apply->moves, false);
    apply->moved = true;
    apply->phase = PHASE_COMMITTED;
    apply->stats.commit_seconds += now() - start;
    return WEFT_OK;
}

weft_status weft_apply_rollback(weft_apply *apply) {
    weft_status entered = weft_context_enter(apply->context);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (apply->phase == PHASE_RUN) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "a run cannot be rolled back");
    }
    if (apply->phase == PHASE_COMMITTED || apply->phase == PHASE_BROKEN) {
        weft_status status = write_all(apply, true);
        if (status != WEFT_OK) {
            apply->phase = PHASE_BROKEN;
            return status;
        }
        if (apply->moved) {
            weft_sums_merge(apply->sums, apply->moves, true);
            apply->moved = false;
        }
    }
    undo_prepare(apply);
    apply->phase = PHASE_IDLE;
    if (apply->settled > 0) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "the first %zu of %zu buckets were committed in earlier steps and stay, so that the "
            "weights are between two states; prepare and commit the rest, or raise "
            "limits.stage_bytes to make it one step next time",
            apply->settled, apply->patch->index.count);
    }
    return WEFT_OK;
}

weft_apply_stats weft_apply_describe(const weft_apply *apply) {
    return apply->stats;
}
