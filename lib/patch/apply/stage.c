/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.c: one bucket of a patch, decoded and proven against live weights, and kept or written.
 */
#include "transaction.h"

void weft_staged_release(weft_context *context, weft_staged *staged) {
    weft_segments_close(&staged->window.segments);
    weft_release(context, staged->changes.positions);
    weft_release(context, staged->changes.olds);
    weft_release(context, staged->changes.news);
    weft_release(context, staged->dense_olds);
    weft_release(context, staged->dense_news);
    weft_release(context, staged->targets);
    *staged = (weft_staged){0};
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

/* The values that are written, or NULL if there are none to go back to. */
static const void *staged_values(const weft_staged *staged, bool restore) {
    if (staged->dense_news == NULL) {
        return restore ? staged->changes.olds : staged->changes.news;
    }
    return restore ? staged->dense_olds : staged->dense_news;
}

void weft_staged_write_batch(weft_batch *batch, const weft_staged *staged, bool restore) {
    const void *values = staged_values(staged, restore);
    if (staged->used && staged->targets != NULL && values != NULL) {
        weft_batch_scatter(batch, &staged->window, staged->dense_news == NULL ? &staged->changes : NULL,
                           staged->targets, values, staged->width);
    }
}

weft_status weft_staged_convert(const weft_staged *staged, bool restore) {
    const void *values = staged_values(staged, restore);
    if (!staged->used || staged->targets == NULL || values == NULL) {
        return WEFT_OK;
    }
    return weft_targets_convert(&staged->window, staged->dense_news == NULL ? &staged->changes : NULL,
                                staged->targets, values, staged->width);
}

const char *weft_apply_consequence(const weft_apply *apply) {
    if (apply->kind == WEFT_APPLY_REBUILD) {
        return "nothing was written";
    }
    if (apply->phase == WEFT_APPLY_RUN) {
        return "the copy is between two states";
    }
    return apply->settled > 0 ? "what earlier steps committed stays" : "nothing was changed";
}

static const char *stage_tensor_name(const weft_apply *apply, const weft_frame *frame) {
    return apply->patch->header.roster.entries[frame->bucket.spans[0].tensor].tensor.name;
}

static weft_status stage_check_delta(const weft_apply *apply, const weft_frame *frame, size_t place,
                                     weft_sum delta) {
    if (weft_sum_equal(delta, frame->delta)) {
        return WEFT_OK;
    }
    return weft_fail(
        apply->context, WEFT_DIGEST_MISMATCH,
        "bucket %zu, tensor %s: the weights here are not those that the patch was made for, or "
        "the patch is wrong; %s; verify the base and fetch both again",
        weft_apply_bucket(apply, place), stage_tensor_name(apply, frame), weft_apply_consequence(apply));
}

/* True if the tensors of the bucket are not in the base as they are in the result. */
static bool stage_fresh(const weft_apply *apply, const weft_frame *frame) {
    return apply->patch->header.roster.entries[frame->bucket.spans[0].tensor].fate != WEFT_FATE_KEPT;
}

/* Who listens, and a recall, want changes in order. */
static bool stage_heard(const weft_apply *apply) {
    return apply->patch->listener.bucket != NULL || apply->patch->noted;
}

static weft_status stage_sparse(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                                size_t place, weft_staged *staged) {
    weft_sum delta;
    weft_changes_open(&staged->changes, apply->context);
    weft_status status = weft_frame_decode(coder, frame, &staged->changes, apply->moves, &delta);
    if (status == WEFT_OK) {
        status = stage_check_delta(apply, frame, place, delta);
    }
    /* Decoders keep to the order of runs, and within a run to any. Where the runs are live memory, they are
     * the segments that a commit writes to. Where they are copies, segments are other pieces: a commit
     * finds the changes of each only if all are in order. */
    bool sorted = !coder->from.direct || stage_heard(apply);
    return status == WEFT_OK && sorted ? weft_changes_sort(&staged->changes) : status;
}

static weft_status stage_dense(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                               size_t place, weft_staged *staged) {
    weft_context *context = apply->context;
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    weft_status status = WEFT_OK;
    bool fresh = stage_fresh(apply, frame);
    staged->dense_news = weft_allocate(context, bytes);
    bool restorable = !fresh || apply->kind == WEFT_APPLY_REPLACE;
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
        status = weft_frame_decode_dense(coder, frame, staged->dense_olds, staged->dense_news);
    }
    weft_sum delta = {{0, 0}};
    if (status == WEFT_OK) {
        status = weft_window_prove_all(&coder->from, staged->dense_news, frame->bucket.width, fresh,
                                       apply->moves, &delta);
    }
    return status == WEFT_OK ? stage_check_delta(apply, frame, place, delta) : status;
}

/* The patch speaks of BF16 weights; the F32 masters behind them would have to be made up. */
static bool stage_holds_masters(const weft_window *window) {
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_tensor *live = window->segments.items[i].live;
        if (live->storage != live->dtype) {
            return true;
        }
    }
    return false;
}

/* Points the window at the frame's bucket, which a patch must be able to change. */
static weft_status stage_set_window(const weft_apply *apply, weft_window *window, const weft_frame *frame) {
    weft_status status = weft_window_set(window, apply->view, apply->map, &frame->bucket,
                                         weft_frame_by_words(frame) ? WEFT_NEED_WORDS : WEFT_NEED_BYTES);
    if (status != WEFT_OK) {
        return status;
    }
    if (window->holding == WEFT_HELD_PART) {
        return weft_fail(
            apply->context, WEFT_UNSUPPORTED,
            "a bucket of tensor %s reaches beyond what this layout holds; the publisher must cut "
            "the tensor where the layout does (weft diff --cut)",
            stage_tensor_name(apply, frame));
    }
    if (window->holding == WEFT_HELD_ALL && !window->writable) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT, "tensor %s is not writable here",
                         stage_tensor_name(apply, frame));
    }
    if (stage_holds_masters(window)) {
        return weft_fail(apply->context, WEFT_INVALID_ARGUMENT,
                         "tensor %s is held as F32 masters here, which a patch of its %s weights cannot "
                         "change; apply it to a copy in that dtype",
                         stage_tensor_name(apply, frame), weft_dtype_name(frame->bucket.dtype));
    }
    return WEFT_OK;
}

/* The segments are what a commit needs of a window; a list of their own holds no more than these. What is
 * reached in batches, or converted, needs its targets too, which a commit has no memory to list. */
static weft_status stage_keep_segments(weft_apply *apply, const weft_segments *segments,
                                       weft_staged *staged) {
    staged->window.context = apply->context;
    staged->window.view = apply->view;
    staged->window.segments.context = apply->context;
    weft_segment *items = weft_allocate_array(apply->context, segments->count, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(items, segments->items, segments->count * sizeof *items);
    staged->window.segments.items = items;
    staged->window.segments.count = segments->count;
    staged->window.segments.capacity = segments->count;
    return weft_targets_list(&staged->window, staged->dense_news == NULL ? &staged->changes : NULL,
                             &staged->targets, &staged->target_count);
}

static bool stage_in_plain_memory(const weft_window *window) {
    for (size_t i = 0; i < window->run_count; i++) {
        if (window->runs[i].memory == NULL) {
            return false;
        }
    }
    return window->direct;
}

static weft_status stage_tell_listener(const weft_apply *apply, const weft_frame *frame,
                                       const weft_staged *staged) {
    const weft_patch_listener *listener = &apply->patch->listener;
    weft_status status =
        listener->bucket != NULL ? listener->bucket(listener->opaque, frame, &staged->changes) : WEFT_OK;
    return status == WEFT_OK && apply->patch->noted
               ? weft_frame_note(apply->patch->recall, frame, &staged->changes)
               : status;
}

static weft_status stage_frame(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                               size_t place, weft_staged *staged) {
    weft_status status = weft_frame_dense(frame) ? stage_dense(apply, coder, frame, place, staged)
                                                 : stage_sparse(apply, coder, frame, place, staged);
    if (status == WEFT_OK) {
        status = stage_keep_segments(apply, &coder->from.segments, staged);
    }
    return status == WEFT_OK ? stage_tell_listener(apply, frame, staged) : status;
}

/* ---- waiting for words ---- */

/* True if the bucket's words are to be gathered in a batch. */
static bool stage_must_wait(const weft_apply *apply, const weft_window *window, const weft_frame *frame) {
    return apply->waiting != NULL && weft_frame_by_words(frame) && window->direct &&
           weft_window_batched(window);
}

/* The frame lies in a buffer that the next bucket takes over: who listens is given a copy. */
static weft_status stage_keep_frame(weft_apply *apply, weft_frame *frame, weft_waiting *waiting) {
    waiting->frame = *frame;
    waiting->used = true;
    frame->bucket = (weft_bucket){0};
    waiting->frame.data = NULL;
    waiting->frame.payload = NULL;
    if (apply->patch->listener.bucket == NULL) {
        return WEFT_OK;
    }
    uint8_t *copy = weft_allocate(apply->context, frame->size);
    if (copy == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(copy, frame->data, frame->size);
    waiting->frame.data = copy;
    waiting->frame.payload = copy + (frame->payload - frame->data);
    return WEFT_OK;
}

/* Decodes the changes, whose old values are not known yet. The frame's bucket moves. */
static weft_status stage_wait(weft_apply *apply, weft_bucket_coder *coder, weft_frame *frame,
                              weft_staged *staged, weft_waiting *waiting) {
    weft_changes_open(&staged->changes, apply->context);
    weft_status status = weft_frame_decode_steps(coder, frame, &staged->changes);
    if (status == WEFT_OK) {
        status = weft_batch_list_words(&coder->from, &staged->changes, &waiting->words);
    }
    if (status == WEFT_OK) {
        status = stage_keep_segments(apply, &coder->from.segments, staged);
    }
    return status == WEFT_OK ? stage_keep_frame(apply, frame, waiting) : status;
}

void weft_apply_drop_waiting(weft_apply *apply, size_t place) {
    weft_waiting *waiting = &apply->waiting[place];
    weft_batch_release_words(apply->context, &waiting->words);
    weft_release(apply->context, (uint8_t *)(uintptr_t)waiting->frame.data);
    weft_bucket_close(&waiting->frame.bucket, apply->context);
    *waiting = (weft_waiting){0};
}

weft_status weft_apply_prove_waiting(weft_apply *apply, size_t place, unsigned worker) {
    weft_waiting *waiting = &apply->waiting[place];
    if (!waiting->used) {
        return WEFT_OK;
    }
    weft_window *window = &apply->coders[worker].from;
    weft_staged *staged = &apply->staged[place];
    weft_sum delta;
    weft_status status =
        weft_window_set(window, apply->view, apply->map, &waiting->frame.bucket, WEFT_NEED_WORDS);
    if (status == WEFT_OK) {
        status = weft_window_prove_gathered(window, &staged->changes, waiting->words.contents,
                                            waiting->words.counts, apply->moves, &delta);
    }
    if (status == WEFT_OK) {
        status = stage_check_delta(apply, &waiting->frame, place, delta);
    }
    return status == WEFT_OK ? stage_tell_listener(apply, &waiting->frame, staged) : status;
}

/* ---- one bucket ---- */

/* Who listens wants changes, which are not kept where they are written as they are decoded. */
static weft_status stage_through(weft_apply *apply, weft_bucket_coder *coder, const weft_frame *frame,
                                 size_t place, weft_staged *staged) {
    if (!stage_heard(apply) && weft_frame_passes(frame) && stage_in_plain_memory(&coder->from)) {
        weft_sum delta;
        weft_status status =
            weft_frame_decode_through(coder, frame, stage_fresh(apply, frame), apply->moves, &delta);
        return status == WEFT_OK ? stage_check_delta(apply, frame, place, delta) : status;
    }
    weft_status status = stage_frame(apply, coder, frame, place, staged);
    if (status == WEFT_OK) {
        status = weft_staged_write(staged, false);
    }
    const weft_staged counted = {
        .units = staged->units, .changed = staged->changed, .width = staged->width, .used = true};
    weft_staged_release(apply->context, staged);
    *staged = counted;
    return status;
}

weft_status weft_apply_stage(weft_apply *apply, size_t place, unsigned worker, bool through) {
    size_t index = weft_apply_bucket(apply, place);
    if (apply->segments[index] == 0) {
        return WEFT_OK; /* what is not held is not even fetched */
    }
    weft_bucket_coder *coder = &apply->coders[worker];
    coder->recall = apply->patch->recall;
    coder->depth = apply->patch->header.depth;
    weft_frame frame;
    weft_status status =
        weft_patch_frame(apply->context, apply->patch, index, &apply->buffers[worker], &frame);
    if (status != WEFT_OK) {
        return status;
    }
    weft_staged *staged = &apply->staged[place];
    *staged = (weft_staged){
        .units = frame.bucket.units,
        .changed = frame.changed,
        .width = frame.bucket.width,
        .used = true,
    };
    status = stage_set_window(apply, &coder->from, &frame);
    if (status == WEFT_OK && stage_must_wait(apply, &coder->from, &frame)) {
        status = stage_wait(apply, coder, &frame, staged, &apply->waiting[place]);
    } else if (status == WEFT_OK) {
        status = through ? stage_through(apply, coder, &frame, place, staged)
                         : stage_frame(apply, coder, &frame, place, staged);
    }
    if (status == WEFT_OK) {
        status = weft_progress_add(apply->context, staged->units * staged->width);
    }
    weft_bucket_close(&frame.bucket, apply->context);
    return status;
}
