/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c: see batch.h.
 */
#include "batch.h"

#include "../../base/status.h"
#include "../../tensor/strides.h"
#include "../../tensor/table.h"

bool weft_window_batched(const weft_window *window) {
    for (size_t i = 0; i < window->segments.count; i++) {
        if (weft_window_in_batch(window, &window->segments.items[i])) {
            return true;
        }
    }
    return false;
}

/* ---- words ---- */

void weft_batch_release_words(weft_context *context, weft_batch_words *words) {
    weft_release(context, words->indices);
    weft_release(context, words->contents);
    weft_release(context, words->counts);
    *words = (weft_batch_words){0};
}

weft_status weft_batch_list_words(const weft_window *window, const weft_changes *changes,
                                  weft_batch_words *words) {
    weft_context *context = window->context;
    *words = (weft_batch_words){
        .indices = weft_allocate_array(context, changes->count, sizeof *words->indices),
        .counts = weft_allocate_zeroed(context, window->run_count, sizeof *words->counts),
    };
    size_t first = 0;
    for (size_t i = 0; words->indices != NULL && words->counts != NULL && i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        size_t end = weft_changes_before(changes, first, run->linear + run->units);
        if (run->memory == NULL) {
            words->counts[i] =
                weft_run_words(window, run, changes, first, end, words->indices + words->count);
            words->count += words->counts[i];
        }
        first = end;
    }
    words->contents = weft_allocate_zeroed(context, words->count, WEFT_WORD);
    uint64_t *fitting = words->indices == NULL
                            ? NULL
                            : weft_reallocate_array(context, words->indices, words->count, sizeof *fitting);
    words->indices = fitting != NULL ? fitting : words->indices;
    if (fitting == NULL || words->counts == NULL || words->contents == NULL) {
        weft_batch_release_words(context, words);
        return WEFT_NO_MEMORY;
    }
    return WEFT_OK;
}

uint64_t weft_batch_words_bytes(const weft_batch_words *words) {
    return words->count * (sizeof *words->indices + WEFT_WORD);
}

uint64_t weft_batch_words_most(const weft_bucket *bucket, size_t segments) {
    uint64_t words = bucket->units * bucket->width / WEFT_WORD + segments;
    return words * (sizeof(uint64_t) + WEFT_WORD);
}

/* ---- targets ---- */

/* True if what is written to the segment is listed. */
static bool is_listed(const weft_window *window, const weft_segment *segment) {
    return weft_window_in_batch(window, segment) || segment->live->converter != NULL;
}

static void list_changed(const weft_window *window, const weft_changes *changes, uint64_t *targets) {
    size_t first = 0;
    for (size_t i = 0; i < window->segments.count && first < changes->count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        size_t end = weft_changes_before(changes, first, segment->linear + segment->units);
        for (size_t c = first; c < end && is_listed(window, segment); c++) {
            targets[c] = weft_segment_live(segment, changes->positions[c] - segment->linear);
        }
        first = end;
    }
}

static void list_all(const weft_window *window, uint64_t *targets) {
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        for (uint64_t unit = 0; unit < segment->units && is_listed(window, segment); unit++) {
            *targets++ = weft_segment_live(segment, unit);
        }
    }
}

weft_status weft_targets_list(const weft_window *window, const weft_changes *changes,
                              uint64_t **targets_out, size_t *count_out) {
    uint64_t units = 0;
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        units += is_listed(window, segment) ? segment->units : 0;
    }
    *targets_out = NULL;
    *count_out = units == 0 ? 0 : changes != NULL ? changes->count : (size_t)units;
    if (*count_out == 0) {
        return WEFT_OK;
    }
    uint64_t *targets = weft_allocate_array(window->context, *count_out, sizeof *targets);
    if (targets == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (changes != NULL) {
        list_changed(window, changes, targets);
    } else {
        list_all(window, targets);
    }
    *targets_out = targets;
    return WEFT_OK;
}

/* Does something with some targets of one segment. */
typedef weft_status (*target_task)(void *argument, const weft_segment *segment, const uint64_t *targets,
                                   size_t count, const void *values);

/* Of a segment that is written as a whole, in stretches that lie end to end along the bucket, since that is
 * how the values do. */
static weft_status walk_segment(const weft_segment *segment, const uint64_t *targets, const uint8_t *values,
                                unsigned width, target_task task, void *argument) {
    weft_status status = WEFT_OK;
    for (uint64_t done = 0; done < segment->units && status == WEFT_OK;) {
        uint64_t some = segment->linear_gap != 0 ? weft_segment_left(segment, done) : segment->units - done;
        status = task(argument, segment, targets + done, (size_t)some,
                      values + weft_segment_linear(segment, done) * width);
        done += some;
    }
    return status;
}

/* Calls the task for all that is listed; not for tensors that are tied to others, which are written as
 * these. */
static weft_status walk_targets(const weft_window *window, const weft_changes *changes,
                                const uint64_t *targets, const uint8_t *values, unsigned width,
                                target_task task, void *argument) {
    weft_status status = WEFT_OK;
    size_t first = 0;
    for (size_t i = 0; i < window->segments.count && status == WEFT_OK; i++) {
        const weft_segment *segment = &window->segments.items[i];
        bool listed = is_listed(window, segment);
        bool wanted = listed && !segment->tied;
        if (changes != NULL) {
            size_t end = weft_changes_before(changes, first, segment->linear + segment->units);
            if (wanted && end > first) {
                status = task(argument, segment, targets + first, end - first, values + first * width);
            }
            first = end;
        } else {
            if (wanted) {
                status = walk_segment(segment, targets + first, values, width, task, argument);
            }
            first += listed ? (size_t)segment->units : 0;
        }
    }
    return status;
}

static weft_status convert_targets(void *argument, const weft_segment *segment, const uint64_t *targets,
                                   size_t count, const void *values) {
    const weft_window *window = argument;
    const weft_tensor *live = segment->live;
    return live->converter == NULL
               ? WEFT_OK
               : weft_answer(window->context,
                             live->converter->commit(live->converter->opaque, live, targets, count, values),
                             "the converter of tensor \"%.*s\"", WEFT_NAME_SHOWN, live->name);
}

weft_status weft_targets_convert(const weft_window *window, const weft_changes *changes,
                                 const uint64_t *targets, const void *values, unsigned width) {
    return walk_targets(window, changes, targets, values, width, convert_targets, (void *)window);
}

/* ---- the calls ---- */

void weft_batch_begin(weft_batch *batch, weft_context *context, const weft_batch_access *access) {
    *batch = (weft_batch){.context = context};
    batch->status = weft_answer(context, access->begin(access->opaque), "the begin function of a batch");
    batch->access = batch->status == WEFT_OK ? access : NULL;
}

void weft_batch_gather(weft_batch *batch, const weft_window *window, const weft_batch_words *words) {
    size_t first = 0;
    for (size_t i = 0; i < window->segments.count && batch->status == WEFT_OK; i++) {
        const weft_tensor *live = window->segments.items[i].live;
        if (words->counts[i] > 0 && live->strides != NULL) {
            weft_tensor_gather(live, words->indices + first, words->counts[i],
                               words->contents + first * WEFT_WORD);
        } else if (words->counts[i] > 0) {
            batch->status = weft_answer(
                batch->context,
                batch->access->gather(batch->access->opaque, live->opaque, words->indices + first,
                                      words->counts[i], words->contents + first * WEFT_WORD),
                "the gather function of a batch, for tensor \"%.*s\",", WEFT_NAME_SHOWN, live->name);
        }
        first += words->counts[i];
    }
}

static weft_status scatter_targets(void *argument, const weft_segment *segment, const uint64_t *targets,
                                   size_t count, const void *values) {
    weft_batch *batch = argument;
    const weft_tensor *live = segment->live;
    return live->access == NULL
               ? WEFT_OK
               : weft_answer(
                     batch->context,
                     batch->access->scatter(batch->access->opaque, live->opaque, targets, count, values),
                     "the scatter function of a batch, for tensor \"%.*s\",", WEFT_NAME_SHOWN, live->name);
}

void weft_batch_scatter(weft_batch *batch, const weft_window *window, const weft_changes *changes,
                        const uint64_t *targets, const void *values, unsigned width) {
    if (batch->status == WEFT_OK) {
        batch->status = walk_targets(window, changes, targets, values, width, scatter_targets, batch);
    }
}

weft_status weft_batch_end(weft_batch *batch) {
    if (batch->access == NULL) {
        return batch->status;
    }
    weft_status ended = weft_status_from(batch->access->end(batch->access->opaque));
    if (batch->status != WEFT_OK) {
        return batch->status; /* the first failure is the one to report */
    }
    return weft_answer(batch->context, ended, "the end function of a batch");
}
