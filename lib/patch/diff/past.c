/* SPDX-License-Identifier: Apache-2.0
 *
 * past.c: the old values of what has changed, bucket by bucket.
 *
 * A bucket's list is sorted by position, and each position is there once, with the value that it had when
 * the past began: of two lists, the older one wins. When a list would take more memory than the bucket
 * itself, all of the bucket's old values take its place, and later changes need no note any more.
 */
#include "past.h"

#include "../../base/pool.h"
#include "../format/stream.h"
#include "pipeline.h"

typedef struct past_bucket {
    size_t count;
    size_t capacity;
    uint32_t *positions;
    uint8_t *olds;
    uint8_t *all; /* all old values; the list is empty then */
} past_bucket;

struct weft_past {
    weft_context *context; /* whose memory this is; failures are told to the context of the call */
    const weft_view *view;
    weft_roster roster;
    weft_plan plan;
    int64_t *map;
    past_bucket *buckets; /* one for each of the plan */
};

/* ---- life ---- */

weft_status weft_past_create(weft_context *context, const weft_view *view, const weft_diff_options *options,
                             weft_past **past_out) {
    weft_past *past = weft_allocate_zeroed(context, 1, sizeof *past);
    if (past == NULL) {
        return WEFT_NO_MEMORY;
    }
    past->context = context;
    past->view = view;
    weft_roster_open(&past->roster, context);
    weft_plan_open(&past->plan, context);
    weft_status status = weft_roster_build(&past->roster, view, view);
    if (status == WEFT_OK) {
        status = weft_plan_build(&past->plan, &past->roster, options->bucket_bytes, options->cuts,
                                 options->cut_count);
    }
    weft_plan_set_format(&past->plan, options->format);
    if (status == WEFT_OK) {
        status = weft_roster_map(&past->roster, view, &past->map);
    }
    if (status == WEFT_OK) {
        past->buckets = weft_allocate_zeroed(context, past->plan.count, sizeof *past->buckets);
        status = past->buckets != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    if (status != WEFT_OK) {
        weft_past_destroy(past);
        return status;
    }
    *past_out = past;
    return WEFT_OK;
}

static void past_clear_bucket(const weft_past *past, past_bucket *bucket) {
    weft_release(past->context, bucket->positions);
    weft_release(past->context, bucket->olds);
    weft_release(past->context, bucket->all);
    *bucket = (past_bucket){0};
}

void weft_past_clear(weft_past *past) {
    for (size_t i = 0; past->buckets != NULL && i < past->plan.count; i++) {
        past_clear_bucket(past, &past->buckets[i]);
    }
}

void weft_past_destroy(weft_past *past) {
    if (past == NULL) {
        return;
    }
    weft_past_clear(past);
    weft_release(past->context, past->buckets);
    weft_release(past->context, past->map);
    weft_plan_close(&past->plan);
    weft_roster_close(&past->roster);
    weft_release(past->context, past);
}

uint64_t weft_past_bytes(const weft_past *past) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < past->plan.count; i++) {
        const past_bucket *bucket = &past->buckets[i];
        const weft_bucket *plan = &past->plan.items[i].bucket;
        bytes += bucket->capacity * (sizeof *bucket->positions + plan->width);
        bytes += bucket->all != NULL ? plan->units * plan->width : 0;
    }
    return bytes;
}

/* ---- adding ---- */

/* Old values of a later moment: a list, or all. */
typedef struct past_values {
    size_t count;
    const uint32_t *positions;
    const uint8_t *olds;
    const uint8_t *all; /* NULL: the list */
} past_values;

static void past_put_olds(const past_bucket *bucket, unsigned width, uint8_t *values) {
    for (size_t i = 0; i < bucket->count; i++) {
        weft_unit_store(values, bucket->positions[i], width, weft_unit_load(bucket->olds, i, width));
    }
}

static void past_take_all(const weft_past *past, past_bucket *bucket, unsigned width, uint8_t *values) {
    past_put_olds(bucket, width, values);
    past_clear_bucket(past, bucket);
    bucket->all = values;
}

static weft_status past_copy_all(weft_context *context, const weft_past *past, past_bucket *bucket,
                                 const weft_bucket *plan, const uint8_t *later) {
    size_t bytes = (size_t)plan->units * plan->width;
    uint8_t *values = weft_allocate(context, bytes);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(values, later, bytes);
    past_take_all(past, bucket, plan->width, values);
    return WEFT_OK;
}

/* The present with the old values put back. */
static weft_status past_make_all(weft_context *context, const weft_past *past, past_bucket *bucket,
                                 const weft_bucket *plan) {
    uint8_t *values = weft_allocate(context, (size_t)plan->units * plan->width);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_window window;
    weft_window_open(&window, context);
    weft_status status = weft_window_set(&window, past->view, past->map, plan, WEFT_NEED_NOTHING);
    if (status == WEFT_OK) {
        status = weft_window_copy(&window, values, plan->width);
    }
    weft_window_close(&window);
    if (status != WEFT_OK) {
        weft_release(context, values);
        return status;
    }
    past_take_all(past, bucket, plan->width, values);
    return WEFT_OK;
}

static size_t past_merge_lists(const past_bucket *older, const past_values *later, unsigned width,
                               past_bucket *output) {
    size_t i = 0;
    size_t j = 0;
    size_t count = 0;
    while (i < older->count || j < later->count) {
        uint64_t left = i < older->count ? older->positions[i] : UINT64_MAX;
        uint64_t right = j < later->count ? later->positions[j] : UINT64_MAX;
        bool old = left <= right;
        uint64_t value =
            old ? weft_unit_load(older->olds, i, width) : weft_unit_load(later->olds, j, width);
        output->positions[count] = (uint32_t)(old ? left : right);
        weft_unit_store(output->olds, count, width, value);
        count++;
        i += old;
        j += right <= left;
    }
    return count;
}

static weft_status past_add_list(weft_context *context, const weft_past *past, past_bucket *bucket,
                                 const past_values *later, unsigned width) {
    size_t room = bucket->count + later->count;
    past_bucket merged = {.capacity = room};
    merged.positions = weft_allocate_array(context, room, sizeof *merged.positions);
    merged.olds = weft_allocate_array(context, room, width);
    if (merged.positions == NULL || merged.olds == NULL) {
        past_clear_bucket(past, &merged);
        return WEFT_NO_MEMORY;
    }
    merged.count = past_merge_lists(bucket, later, width, &merged);
    past_clear_bucket(past, bucket);
    *bucket = merged;
    return WEFT_OK;
}

static weft_status past_add_later(weft_context *context, const weft_past *past, size_t index,
                                  const past_values *later) {
    past_bucket *bucket = &past->buckets[index];
    const weft_bucket *plan = &past->plan.items[index].bucket;
    if (bucket->all != NULL) {
        return WEFT_OK;
    }
    if (later->all != NULL) {
        return past_copy_all(context, past, bucket, plan, later->all);
    }
    weft_status status =
        later->count > 0 ? past_add_list(context, past, bucket, later, plan->width) : WEFT_OK;
    bool too_many =
        bucket->capacity * (sizeof *bucket->positions + plan->width) > plan->units * plan->width;
    return status == WEFT_OK && too_many ? past_make_all(context, past, bucket, plan) : status;
}

typedef struct past_addition {
    weft_context *context;
    weft_past *past;
    const weft_trail *trail;
    const weft_past *newer;
} past_addition;

static weft_status past_add_bucket(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const past_addition *job = argument;
    const weft_staged *staged = weft_trail_bucket(job->trail, index);
    if (!staged->used) {
        return WEFT_OK;
    }
    const past_values later = {
        .count = staged->dense_olds == NULL ? staged->changes.count : 0,
        .positions = staged->changes.positions,
        .olds = staged->changes.olds,
        .all = staged->dense_olds,
    };
    return past_add_later(job->context, job->past, index, &later);
}

weft_status weft_past_add(weft_context *context, weft_past *past, const weft_trail *trail) {
    if (weft_trail_count(trail) != past->plan.count) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the trail is cut into other buckets");
    }
    past_addition job = {.context = context, .past = past, .trail = trail};
    return weft_parallel(context, past->plan.count, past_add_bucket, &job);
}

static weft_status past_join_bucket(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const past_addition *job = argument;
    const past_bucket *newer = &job->newer->buckets[index];
    const past_values later = {newer->count, newer->positions, newer->olds, newer->all};
    return past_add_later(job->context, job->past, index, &later);
}

weft_status weft_past_join(weft_context *context, weft_past *past, const weft_past *newer) {
    past_addition job = {.context = context, .past = past, .newer = newer};
    return weft_parallel(context, past->plan.count, past_join_bucket, &job);
}

/* ---- to bytes and back ---- */

typedef struct past_bucket_header {
    uint64_t units; /* of the bucket: another plan has others */
    uint64_t count;
    uint64_t all; /* 1: all old values */
} past_bucket_header;

static weft_status past_write_bucket(const past_bucket *bucket, const weft_bucket *plan,
                                     const weft_sink *sink) {
    const past_bucket_header header = {plan->units, bucket->count, bucket->all != NULL};
    weft_status status = sink->write(sink->opaque, &header, sizeof header);
    if (status == WEFT_OK && bucket->count > 0) {
        status = sink->write(sink->opaque, bucket->positions, bucket->count * sizeof *bucket->positions);
    }
    if (status == WEFT_OK && bucket->count > 0) {
        status = sink->write(sink->opaque, bucket->olds, bucket->count * plan->width);
    }
    return status == WEFT_OK && bucket->all != NULL
               ? sink->write(sink->opaque, bucket->all, (size_t)plan->units * plan->width)
               : status;
}

weft_status weft_past_write(const weft_past *past, const weft_sink *sink) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < past->plan.count && status == WEFT_OK; i++) {
        status = past_write_bucket(&past->buckets[i], &past->plan.items[i].bucket, sink);
    }
    return status;
}

static bool past_list_ascends(const uint32_t *positions, size_t count, uint64_t units) {
    for (size_t i = 0; i < count; i++) {
        if (positions[i] >= units || (i > 0 && positions[i] <= positions[i - 1])) {
            return false;
        }
    }
    return true;
}

static weft_status past_read_list(weft_context *context, past_bucket *bucket, const weft_bucket *plan,
                                  size_t count, weft_reader *reader) {
    const uint8_t *positions = weft_reader_bytes(reader, count * sizeof *bucket->positions);
    const uint8_t *olds = weft_reader_bytes(reader, count * plan->width);
    if (positions == NULL || olds == NULL) {
        return WEFT_MALFORMED;
    }
    *bucket = (past_bucket){.capacity = count};
    bucket->positions = weft_allocate_array(context, count, sizeof *bucket->positions);
    bucket->olds = weft_allocate_array(context, count, plan->width);
    if (bucket->positions == NULL || bucket->olds == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(bucket->positions, positions, count * sizeof *bucket->positions);
    memcpy(bucket->olds, olds, count * plan->width);
    bucket->count = count;
    return past_list_ascends(bucket->positions, count, plan->units) ? WEFT_OK : WEFT_MALFORMED;
}

static weft_status past_read_bucket(weft_context *context, weft_past *past, size_t index,
                                    weft_reader *reader) {
    past_bucket *bucket = &past->buckets[index];
    const weft_bucket *plan = &past->plan.items[index].bucket;
    past_bucket_header header;
    const uint8_t *data = weft_reader_bytes(reader, sizeof header);
    if (data == NULL) {
        return WEFT_MALFORMED;
    }
    memcpy(&header, data, sizeof header);
    if (header.units != plan->units || header.count > plan->units ||
        (header.all != 0 && header.count > 0)) {
        return WEFT_MALFORMED;
    }
    if (header.all != 0) {
        const uint8_t *values = weft_reader_bytes(reader, (size_t)plan->units * plan->width);
        return values != NULL ? past_copy_all(context, past, bucket, plan, values) : WEFT_MALFORMED;
    }
    return header.count > 0 ? past_read_list(context, bucket, plan, (size_t)header.count, reader) : WEFT_OK;
}

weft_status weft_past_read(weft_context *context, weft_past *past, weft_reader *reader) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < past->plan.count && status == WEFT_OK; i++) {
        status = past_read_bucket(context, past, i, reader);
    }
    if (status == WEFT_OK && weft_reader_left(reader) > 0) {
        status = WEFT_MALFORMED;
    }
    if (status != WEFT_OK) {
        weft_past_clear(past);
    }
    return status == WEFT_MALFORMED ? weft_fail(context, status, "a past of other buckets") : status;
}

/* ---- the patch ---- */

typedef struct past_diff {
    weft_context *context;
    const weft_past *past;
    weft_profile profile;
    weft_sums *moves;
    weft_patch_stream stream;
} past_diff;

/* The bucket as it was: its present in coder->to, with the old values put back. */
static weft_status past_rebuild_bucket(const past_bucket *bucket, const weft_bucket *plan,
                                       weft_pipeline_worker *worker, const uint8_t **values_out) {
    uint8_t *values = weft_pipeline_scratch(worker, 0, (size_t)plan->units * plan->width);
    weft_status status =
        values != NULL ? weft_window_copy(&worker->coder.to, values, plan->width) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        past_put_olds(bucket, plan->width, values);
        *values_out = values;
    }
    return status;
}

static weft_status past_encode_bucket(void *opaque, size_t index, weft_pipeline_worker *worker,
                                      weft_pipeline_slot *slot) {
    const past_diff *diff = opaque;
    const weft_past *past = diff->past;
    const weft_bucket *plan = &past->plan.items[index].bucket;
    const past_bucket *bucket = &past->buckets[index];
    weft_bucket_coder *coder = &worker->coder;
    if (bucket->count == 0 && bucket->all == NULL) {
        return weft_progress_ask(diff->context);
    }
    const uint8_t *values = bucket->all;
    weft_status status = weft_window_set(&coder->to, past->view, past->map, plan, WEFT_NEED_BYTES);
    if (status == WEFT_OK && values == NULL) {
        status = past_rebuild_bucket(bucket, plan, worker, &values);
    }
    if (status == WEFT_OK) {
        status = weft_window_set_memory(&coder->from, plan, values);
    }
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < coder->from.run_count; i++) {
        weft_run *run = &coder->from.runs[i];
        run->tensor = (size_t)past->map[run->tensor];
    }
    status = weft_bucket_encode_windows(coder, plan, &past->roster, diff->profile, diff->moves,
                                        &slot->forward.bytes, &slot->forward.result);
    return status == WEFT_OK ? weft_progress_ask(diff->context) : status;
}

static weft_status past_emit_frame(void *opaque, size_t index, const weft_pipeline_slot *slot) {
    past_diff *diff = opaque;
    const weft_pipeline_frame *frame = &slot->forward;
    return frame->result.present ? weft_stream_frame(&diff->stream, &diff->past->plan.items[index].bucket,
                                                     &frame->bytes, frame->result.changed)
                                 : WEFT_OK;
}

weft_status weft_past_diff(weft_context *context, const weft_past *past, const weft_diff_options *options,
                           const weft_sums *sums, const weft_sink *sink, weft_diff_stats *stats) {
    past_diff diff = {.context = context, .past = past, .profile = options->profile};
    weft_sums *before = NULL;
    weft_status status = weft_sums_check(context, sums, past->view);
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, past->view, &diff.moves);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, past->view, &before);
    }
    if (status == WEFT_OK) {
        status = weft_stream_open(&diff.stream, context, sink, options->format, options->profile, 0,
                                  &past->roster,
                                  weft_container_same(options->base_container, options->new_container),
                                  options->new_container, options->labels);
    }
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {
            .count = past->plan.count,
            .opaque = &diff,
            .produce = past_encode_bucket,
            .emit = past_emit_frame,
        };
        status = weft_pipeline_run(context, &pipeline);
    }
    if (status == WEFT_OK) {
        /* the changes lead from the past to the present: what they do to the digest, taken back, is the
         * past's */
        weft_sums_merge(before, sums, false);
        weft_sums_merge(before, diff.moves, true);
        *stats = (weft_diff_stats){.size = sizeof(weft_diff_stats),
                                   .base = weft_sums_digest(before),
                                   .result = weft_sums_digest(sums)};
        status = weft_stream_finish(&diff.stream, stats);
    }
    weft_stream_close(&diff.stream);
    weft_sums_destroy(diff.moves);
    weft_sums_destroy(before);
    return status;
}
