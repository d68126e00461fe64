/* SPDX-License-Identifier: Apache-2.0
 *
 * given.c: finding the given changes of a bucket, dropping those that change nothing, and making frames of
 * the rest.
 */
#include "given.h"

/* ---- checking ---- */

static weft_status given_refuse_unit(weft_context *context, const weft_tensor_changes *list,
                                     uint64_t units) {
    uint64_t i = 0;
    while (list->units[i] < units && (i == 0 || list->units[i] > list->units[i - 1])) {
        i++;
    }
    if (list->units[i] >= units) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the changes of tensor %s name unit %llu at place %llu, but it has %llu units",
                         list->tensor, (unsigned long long)list->units[i], (unsigned long long)i,
                         (unsigned long long)units);
    }
    return weft_fail(context, WEFT_INVALID_ARGUMENT,
                     "the changes of tensor %s do not ascend at place %llu: unit %llu follows unit %llu; "
                     "sort them, each unit once",
                     list->tensor, (unsigned long long)i, (unsigned long long)list->units[i],
                     (unsigned long long)list->units[i - 1]);
}

/* One loop without branches over what is nearly always right; who finds something looks again. */
static weft_status given_check_units(weft_context *context, const weft_tensor_changes *list,
                                     uint64_t units) {
    if (list->count == 0) {
        return WEFT_OK;
    }
    if (list->units == NULL || list->values == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%llu changes of tensor %s are announced, but units or values are NULL",
                         (unsigned long long)list->count, list->tensor);
    }
    bool wrong = list->units[list->count - 1] >= units;
    for (uint64_t i = 1; i < list->count; i++) {
        wrong |= list->units[i] <= list->units[i - 1];
    }
    return wrong ? given_refuse_unit(context, list, units) : WEFT_OK;
}

static weft_status given_add_list(weft_given *given, const weft_view *base, const weft_tensor_changes *list,
                                  size_t place) {
    if (list->tensor == NULL) {
        return weft_fail(given->context, WEFT_INVALID_ARGUMENT, "entry %zu of the changes names no tensor",
                         place);
    }
    int64_t tensor = weft_view_find(base, list->tensor);
    if (tensor < 0) {
        return weft_fail(given->context, WEFT_INVALID_ARGUMENT,
                         "there are changes of tensor %s, which the base does not have", list->tensor);
    }
    if (given->lists[tensor] != NULL) {
        return weft_fail(given->context, WEFT_INVALID_ARGUMENT,
                         "there are two entries for the changes of tensor %s; join them", list->tensor);
    }
    given->lists[tensor] = list;
    return given_check_units(given->context, list, weft_tensor_units(weft_view_at(base, (size_t)tensor)));
}

weft_status weft_given_open(weft_given *given, weft_context *context, const weft_view *base,
                            const weft_tensor_changes *changes, size_t count) {
    given->context = context;
    given->lists = weft_allocate_zeroed(context, weft_view_count(base), sizeof *given->lists);
    if (given->lists == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = given_add_list(given, base, &changes[i], i);
    }
    return status;
}

void weft_given_close(weft_given *given) {
    if (given->lists != NULL) {
        weft_release(given->context, given->lists);
        given->lists = NULL;
    }
}

/* ---- the changes of a bucket ---- */

/* The first index from `first` on whose unit is at or past `limit`. It is looked for nearby first: the rows
 * of a box follow each other. */
static uint64_t given_before(const weft_tensor_changes *list, uint64_t first, uint64_t limit) {
    uint64_t low = first;
    uint64_t step = 1;
    while (low + step <= list->count && list->units[low + step - 1] < limit) {
        low += step;
        step *= 2;
    }
    uint64_t high = low + step < list->count ? low + step : list->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (list->units[middle] < limit) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Goes over the changes of a bucket, span by span, row by row. */
typedef struct given_walk {
    const weft_given *given;
    const weft_bucket *bucket;
    const int64_t *tensor_map;
    size_t span;
    uint64_t linear;                 /* where the span begins */
    uint64_t next;                   /* index into the span's list */
    const weft_tensor_changes *list; /* NULL: the span is not begun */
} given_walk;

/* Changes that follow each other in the list, in a row of the bucket. */
typedef struct given_piece {
    const uint64_t *units;
    const uint8_t *values;
    size_t count;
    uint64_t row;      /* the row's first unit */
    uint64_t position; /* of that, along the bucket */
} given_piece;

static bool given_next_in_span(given_walk *walk, const weft_span *span, unsigned width, given_piece *out) {
    const weft_tensor_changes *list = walk->list;
    while (walk->next < list->count) {
        uint64_t first = walk->next;
        uint64_t row = span->count > 1 ? (list->units[first] - span->start) / span->stride : 0;
        uint64_t start = span->start + row * span->stride;
        if (row >= span->count) {
            return false;
        }
        if (list->units[first] < start + span->run) {
            walk->next = given_before(list, first, start + span->run);
            *out = (given_piece){
                .units = list->units + first,
                .values = (const uint8_t *)list->values + first * width,
                .count = (size_t)(walk->next - first),
                .row = start,
                .position = walk->linear + row * span->run,
            };
            return true;
        }
        if (row + 1 == span->count) {
            return false;
        }
        walk->next = given_before(list, first, start + span->stride);
    }
    return false;
}

static bool given_next(given_walk *walk, given_piece *out) {
    const weft_bucket *bucket = walk->bucket;
    for (; walk->span < bucket->span_count; walk->span++) {
        const weft_bucket_span *item = &bucket->spans[walk->span];
        int64_t tensor = walk->tensor_map[item->tensor];
        const weft_tensor_changes *list = tensor < 0 ? NULL : walk->given->lists[tensor];
        if (list != NULL && walk->list == NULL) {
            walk->list = list;
            walk->next = given_before(list, 0, item->span.start);
        }
        if (list != NULL && given_next_in_span(walk, &item->span, bucket->width, out)) {
            return true;
        }
        walk->list = NULL;
        walk->linear += item->span.run * item->span.count;
    }
    return false;
}

/* Positions and new values. */
static weft_status given_list(given_walk walk, weft_changes *changes) {
    weft_status status = weft_changes_reset(changes, walk.bucket->width, 0);
    given_piece piece;
    while (status == WEFT_OK && given_next(&walk, &piece)) {
        status = weft_changes_grow(changes, piece.count);
        if (status != WEFT_OK) {
            return status;
        }
        uint32_t *positions = changes->positions + changes->count;
        for (size_t i = 0; i < piece.count; i++) {
            positions[i] = (uint32_t)(piece.units[i] - piece.row + piece.position);
        }
        memcpy((uint8_t *)changes->news + changes->count * changes->width, piece.values,
               piece.count * changes->width);
        changes->count += piece.count;
    }
    return status;
}

/* All of them into a copy of the bucket. */
static void given_fill(given_walk walk, uint8_t *values) {
    unsigned width = walk.bucket->width;
    given_piece piece;
    while (given_next(&walk, &piece)) {
        for (size_t i = 0; i < piece.count; i++) {
            uint64_t position = piece.units[i] - piece.row + piece.position;
            memcpy(values + position * width, piece.values + i * width, width);
        }
    }
}

/* ---- against the base ---- */

enum { AHEAD = 32 /* changes whose memory is asked for before they are compared */ };

/* The changes from `i` on that lie in a run; those that change something are kept from `kept` on. The run
 * is handed over by value: stores of bytes could be to anything that is pointed to. */
static inline __attribute__((always_inline)) size_t
given_compare_run(weft_run run, weft_changes *changes, size_t i, size_t *kept_inout, unsigned width) {
    uint32_t *positions = changes->positions;
    uint8_t *olds = changes->olds;
    uint8_t *news = changes->news;
    size_t kept = *kept_inout;
    size_t count = changes->count;
    uint64_t end = run.linear + run.units;
    for (; i < count && positions[i] < end; i++) {
        if (i + AHEAD < count && positions[i + AHEAD] < end) {
            uint64_t ahead = weft_run_offset(&run, positions[i + AHEAD] - run.linear);
            __builtin_prefetch(run.memory + ahead * width);
        }
        uint64_t old = weft_unit_load(run.memory, weft_run_offset(&run, positions[i] - run.linear), width);
        uint64_t new = weft_unit_load(news, i, width);
        positions[kept] = positions[i];
        weft_unit_store(olds, kept, width, old);
        weft_unit_store(news, kept, width, new);
        kept += old != new;
    }
    *kept_inout = kept;
    return i;
}

static inline __attribute__((always_inline)) void
given_compare_units(const weft_window *window, weft_changes *changes, unsigned width) {
    size_t kept = 0;
    size_t i = 0;
    for (size_t r = 0; r < window->run_count; r++) {
        i = given_compare_run(window->runs[r], changes, i, &kept, width);
    }
    changes->count = kept;
}

/* Adds the old values and drops what is not changed. */
static void given_compare(const weft_window *window, weft_changes *changes) {
    switch (changes->width) {
    case 1:
        given_compare_units(window, changes, 1);
        break;
    case 2:
        given_compare_units(window, changes, 2);
        break;
    case 4:
        given_compare_units(window, changes, 4);
        break;
    default:
        given_compare_units(window, changes, 8);
        break;
    }
}

/* The new state of the bucket that a window shows the base of, as `output`. */
static weft_status given_show(given_walk walk, weft_pipeline_worker *worker, const weft_window *base,
                              weft_window *output) {
    const weft_bucket *bucket = walk.bucket;
    uint8_t *values = weft_pipeline_scratch(worker, 0, (size_t)bucket->units * bucket->width);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_window_copy(base, values, bucket->width);
    if (status != WEFT_OK) {
        return status;
    }
    given_fill(walk, values);
    return weft_window_set_memory(output, bucket, values);
}

weft_status weft_given_encode(const weft_given *given, weft_pipeline_worker *worker,
                              const weft_bucket *bucket, const weft_roster *roster, weft_profile profile,
                              const weft_bucket_side *base, weft_sums *moves, weft_pipeline_frame *frame) {
    weft_bucket_coder *coder = &worker->coder;
    given_walk walk = {.given = given, .bucket = bucket, .tensor_map = base->tensor_map};
    frame->result = (weft_frame_result){0, false, false};
    weft_status status = given_list(walk, &coder->changes);
    if (status != WEFT_OK || coder->changes.count == 0) {
        return status;
    }
    status = weft_bucket_open_base(coder, bucket, base);
    if (status == WEFT_OK && coder->from.holding != WEFT_HELD_ALL) {
        status = weft_fail(given->context, WEFT_INVALID_ARGUMENT,
                           "a bucket of tensor %s has changes, but the base does not hold all of it",
                           roster->entries[bucket->spans[0].tensor].tensor.name);
    }
    if (status != WEFT_OK) {
        return status;
    }
    given_compare(&coder->from, &coder->changes);
    if (!weft_bucket_many(bucket, profile, coder->changes.count)) {
        return weft_bucket_encode_known(coder, bucket, roster, profile, moves, &frame->bytes,
                                        &frame->result);
    }
    status = given_show(walk, worker, &coder->from, &coder->to);
    return status == WEFT_OK ? weft_bucket_encode_windows(coder, bucket, roster, profile, moves,
                                                          &frame->bytes, &frame->result)
                             : status;
}

weft_status weft_given_encode_inverse(const weft_given *given, weft_pipeline_worker *worker,
                                      const weft_bucket *bucket, const weft_roster *roster,
                                      weft_profile profile, const weft_bucket_side *base,
                                      weft_pipeline_frame *frame) {
    weft_bucket_coder *coder = &worker->coder;
    given_walk walk = {.given = given, .bucket = bucket, .tensor_map = base->tensor_map};
    weft_status status = weft_window_set(&coder->to, base->view, base->tensor_map, bucket, WEFT_NEED_BYTES);
    if (status == WEFT_OK) {
        status = given_show(walk, worker, &coder->to, &coder->from);
    }
    return status == WEFT_OK ? weft_bucket_encode_windows(coder, bucket, roster, profile, NULL,
                                                          &frame->bytes, &frame->result)
                             : status;
}
