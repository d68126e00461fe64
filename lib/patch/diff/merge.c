/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c: several patches as one.
 *
 * Buckets of different patches that cover the same weights are taken together. Where every one of them is
 * coded `fast`, their steps are added, and their deltas too: the digest is a sum, so what two patches do
 * to it in turn is what the merged one does. Anything else needs the base: the bucket's weights are
 * walked through all states, each patch is proven on the way, and first and last state are diffed.
 */
#include "../../base/pool.h"
#include "../../tensor/table.h"
#include "../format/patch.h"
#include "../format/stream.h"

#include <stdlib.h>

/* A bucket of one of the patches. */
typedef struct source_bucket {
    size_t patch;
    size_t index;
    const weft_bucket *bucket;
} source_bucket;

/* The buckets that cover the same weights, one per patch at most, in the patches' order. */
typedef struct bucket_group {
    const source_bucket *sources;
    size_t count;
} bucket_group;

typedef struct merge_worker {
    weft_bucket_coder walker; /* decodes each patch on the state before it */
    weft_bucket_coder writer; /* encodes the result */
    weft_writer buffer;
    uint8_t *state;
    uint8_t *next;
    size_t capacity;
    weft_changes sums; /* steps added up so far */
} merge_worker;

typedef struct merge_slot {
    weft_writer frame;
    weft_frame_result result;
} merge_slot;

typedef struct merge_state {
    weft_context *context;
    const weft_patch *const *patches;
    size_t patch_count;
    const weft_view *base;
    int64_t *map;
    weft_profile profile;
    source_bucket *sources;
    size_t source_count;
    bucket_group *groups;
    size_t group_count;
    merge_worker *workers;
    unsigned worker_count;
    merge_slot *slots;
    size_t window;
    weft_patch_stream stream;
    bool stream_open;
} merge_state;

/* ---- checking the chain ---- */

static bool same_roster(const weft_roster *a, const weft_roster *b) {
    if (a->count != b->count) {
        return false;
    }
    for (size_t i = 0; i < a->count; i++) {
        const weft_tensor *x = &a->entries[i].tensor;
        const weft_tensor *y = &b->entries[i].tensor;
        if (strcmp(x->name, y->name) != 0 || !weft_tensor_alike(x, y)) {
            return false;
        }
    }
    return true;
}

static weft_status check_chain(const merge_state *state) {
    for (size_t i = 0; i < state->patch_count; i++) {
        const weft_patch *patch = state->patches[i];
        if (!weft_roster_plain(&patch->header.roster)) {
            return weft_fail(state->context, WEFT_UNSUPPORTED,
                             "patch %zu adds, removes or replaces tensors and cannot be merged; apply the "
                             "patches in turn and diff the result against the base",
                             i + 1);
        }
        if (i == 0) {
            continue;
        }
        const weft_patch *before = state->patches[i - 1];
        if (!weft_digest_equal(&before->footer.result, &patch->footer.base)) {
            char made[WEFT_DIGEST_TEXT];
            char need[WEFT_DIGEST_TEXT];
            weft_digest_format(&before->footer.result, made);
            weft_digest_format(&patch->footer.base, need);
            return weft_fail(
                state->context, WEFT_BASE_MISMATCH,
                "base mismatch: patch %zu makes %s, patch %zu needs %s; give the patches in order", i, made,
                i + 1, need);
        }
        if (!same_roster(&before->header.roster, &patch->header.roster)) {
            return weft_fail(state->context, WEFT_MALFORMED, "patches %zu and %zu list different tensors",
                             i, i + 1);
        }
    }
    return WEFT_OK;
}

static weft_status check_base(const merge_state *state) {
    weft_sums *sums;
    weft_status status = weft_sums_compute(state->context, state->base, &sums);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_patch_check_base(state->context, state->patches[0], sums);
    weft_sums_destroy(sums);
    return status;
}

/* ---- grouping ---- */

static int compare_sources(const void *first, const void *second) {
    const source_bucket *a = first;
    const source_bucket *b = second;
    size_t spans =
        a->bucket->span_count < b->bucket->span_count ? a->bucket->span_count : b->bucket->span_count;
    for (size_t i = 0; i < spans; i++) {
        const weft_bucket_span *x = &a->bucket->spans[i];
        const weft_bucket_span *y = &b->bucket->spans[i];
        const uint64_t left[] = {x->tensor, x->span.start, x->span.run, x->span.stride, x->span.count};
        const uint64_t right[] = {y->tensor, y->span.start, y->span.run, y->span.stride, y->span.count};
        for (size_t j = 0; j < 5; j++) {
            if (left[j] != right[j]) {
                return left[j] < right[j] ? -1 : 1;
            }
        }
    }
    if (a->bucket->span_count != b->bucket->span_count) {
        return a->bucket->span_count < b->bucket->span_count ? -1 : 1;
    }
    return a->patch < b->patch ? -1 : a->patch > b->patch;
}

static weft_status collect_sources(merge_state *state) {
    size_t total = 0;
    for (size_t i = 0; i < state->patch_count; i++) {
        total += state->patches[i]->index.count;
    }
    state->sources = weft_allocate_array(state->context, total, sizeof *state->sources);
    state->groups = weft_allocate_array(state->context, total, sizeof *state->groups);
    if (state->sources == NULL || state->groups == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < state->patch_count; i++) {
        const weft_frame_index *index = &state->patches[i]->index;
        for (size_t j = 0; j < index->count; j++) {
            state->sources[state->source_count++] = (source_bucket){i, j, &index->entries[j].bucket};
        }
    }
    qsort(state->sources, state->source_count, sizeof *state->sources, compare_sources);
    for (size_t i = 0; i < state->source_count; i++) {
        const source_bucket *source = &state->sources[i];
        bool continues = i > 0 && weft_bucket_same_spans(state->sources[i - 1].bucket, source->bucket);
        if (!continues) {
            state->groups[state->group_count++] = (bucket_group){source, 0};
        }
        state->groups[state->group_count - 1].count++;
    }
    return WEFT_OK;
}

/* Groups are disjoint if the patches were cut alike. */
static weft_status check_groups(const merge_state *state) {
    weft_frame_index index = {.context = state->context, .count = state->group_count};
    index.entries = weft_allocate_zeroed(state->context, state->group_count, sizeof *index.entries);
    if (index.entries == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < state->group_count; i++) {
        index.entries[i].bucket = *state->groups[i].sources[0].bucket;
    }
    weft_status status = weft_frame_index_check(&index, &state->patches[0]->header.roster);
    weft_release(state->context, index.entries);
    if (status == WEFT_MALFORMED) {
        return weft_fail(
            state->context, WEFT_UNSUPPORTED,
            "the patches are cut into different buckets and cannot be merged; apply them in turn "
            "and diff the result against the base");
    }
    return status;
}

/* ---- with the base: walking through the states ---- */

static weft_status reserve_state(merge_state *state, merge_worker *worker, size_t bytes) {
    if (worker->capacity >= bytes) {
        return WEFT_OK;
    }
    weft_release(state->context, worker->state);
    weft_release(state->context, worker->next);
    worker->capacity = 0;
    worker->state = weft_allocate(state->context, bytes);
    worker->next = weft_allocate(state->context, bytes);
    if (worker->state == NULL || worker->next == NULL) {
        return WEFT_NO_MEMORY;
    }
    worker->capacity = bytes;
    return WEFT_OK;
}

static weft_status walk_sparse(merge_worker *worker, const weft_frame *frame, weft_sum *delta) {
    weft_bucket_coder *walker = &worker->walker;
    weft_status status = weft_frame_decode(walker, frame, &walker->changes, NULL, delta);
    const weft_changes *changes = &walker->changes;
    for (size_t i = 0; status == WEFT_OK && i < changes->count; i++) {
        weft_unit_store(worker->state, changes->positions[i], changes->width,
                        weft_unit_load(changes->news, i, changes->width));
    }
    return status;
}

static weft_status walk_dense(merge_state *state, merge_worker *worker, const weft_frame *frame,
                              weft_sum *delta) {
    weft_status status = weft_frame_decode_dense(state->context, frame, worker->state, worker->next);
    if (status == WEFT_OK) {
        status = weft_window_prove_all(&worker->walker.from, worker->next, frame->bucket.width, false, NULL,
                                       delta);
    }
    if (status == WEFT_OK) {
        memcpy(worker->state, worker->next, (size_t)frame->bucket.units * frame->bucket.width);
    }
    return status;
}

static weft_status walk_frame(merge_state *state, merge_worker *worker, const source_bucket *source) {
    weft_frame frame;
    weft_status status = weft_patch_frame(state->context, state->patches[source->patch], source->index,
                                          &worker->buffer, &frame);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sum delta = {{0, 0}};
    status = weft_window_set_memory(&worker->walker.from, &frame.bucket, worker->state);
    if (status == WEFT_OK) {
        status = weft_frame_dense(&frame) ? walk_dense(state, worker, &frame, &delta)
                                          : walk_sparse(worker, &frame, &delta);
    }
    if (status == WEFT_OK && !weft_sum_equal(delta, frame.delta)) {
        status = weft_fail(state->context, WEFT_DIGEST_MISMATCH,
                           "patch %zu, bucket %zu does not do what it promises; fetch the patch again",
                           source->patch + 1, source->index);
    }
    weft_bucket_close(&frame.bucket, state->context);
    return status;
}

static weft_status merge_walking(merge_state *state, merge_worker *worker, const bucket_group *group,
                                 merge_slot *slot) {
    const weft_bucket *bucket = group->sources[0].bucket;
    const weft_roster *roster = &state->patches[0]->header.roster;
    weft_bucket_coder *writer = &worker->writer;
    weft_status status = weft_window_set(&writer->from, state->base, state->map, bucket, WEFT_NEED_BYTES);
    if (status == WEFT_OK && writer->from.holding != WEFT_HELD_ALL) {
        status = weft_fail(state->context, WEFT_INVALID_ARGUMENT, "the base does not hold all of tensor %s",
                           roster->entries[bucket->spans[0].tensor].tensor.name);
    }
    if (status == WEFT_OK) {
        status = reserve_state(state, worker, (size_t)bucket->units * bucket->width);
    }
    if (status == WEFT_OK) {
        status = weft_window_copy(&writer->from, worker->state, bucket->width);
    }
    for (size_t i = 0; i < group->count && status == WEFT_OK; i++) {
        status = walk_frame(state, worker, &group->sources[i]);
    }
    if (status == WEFT_OK) {
        status = weft_window_set_memory(&writer->to, bucket, worker->state);
    }
    if (status != WEFT_OK) {
        return status;
    }
    return weft_bucket_encode_windows(writer, bucket, roster, state->profile, NULL, &slot->frame,
                                      &slot->result);
}

/* ---- without the base: adding steps ---- */

/* Adds the steps in `more` to those in `sums`; both are sorted. Steps that cancel disappear. */
static weft_status add_steps(weft_changes *sums, const weft_changes *more, weft_changes *output) {
    unsigned width = more->width;
    weft_status status = weft_changes_reset(output, width, sums->count + more->count);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    size_t i = 0;
    size_t j = 0;
    while (i < sums->count || j < more->count) {
        uint64_t left = i < sums->count ? sums->positions[i] : UINT64_MAX;
        uint64_t right = j < more->count ? more->positions[j] : UINT64_MAX;
        uint64_t step = 0;
        step += left <= right ? weft_unit_load(sums->news, i, width) : 0;
        step += right <= left ? weft_unit_load(more->news, j, width) : 0;
        i += left <= right;
        j += right <= left;
        if ((step & mask) != 0) {
            output->positions[output->count] = (uint32_t)(left < right ? left : right);
            weft_unit_store(output->olds, output->count, width, 0);
            weft_unit_store(output->news, output->count, width, step);
            output->count++;
        }
    }
    return WEFT_OK;
}

static weft_status add_frame(merge_state *state, merge_worker *worker, const source_bucket *source,
                             weft_sum *delta) {
    weft_frame frame;
    weft_status status = weft_patch_frame(state->context, state->patches[source->patch], source->index,
                                          &worker->buffer, &frame);
    if (status != WEFT_OK) {
        return status;
    }
    if (frame.coding != WEFT_CODING_FAST) {
        status =
            weft_fail(state->context, WEFT_INVALID_ARGUMENT,
                      "patch %zu is not coded `fast` throughout; merging it needs the base (--base CKPT)",
                      source->patch + 1);
    }
    if (status == WEFT_OK) {
        status = weft_frame_decode_steps(&worker->walker, &frame, &worker->walker.changes);
    }
    if (status == WEFT_OK) {
        status = add_steps(&worker->sums, &worker->walker.changes, &worker->writer.changes);
    }
    if (status == WEFT_OK) {
        weft_changes added = worker->writer.changes;
        worker->writer.changes = worker->sums;
        worker->sums = added;
        weft_sum_add(delta, frame.delta);
    }
    weft_bucket_close(&frame.bucket, state->context);
    return status;
}

static weft_status merge_adding(merge_state *state, merge_worker *worker, const bucket_group *group,
                                merge_slot *slot) {
    const weft_bucket *bucket = group->sources[0].bucket;
    weft_sum delta = {{0, 0}};
    weft_status status = weft_changes_reset(&worker->sums, bucket->width, 0);
    for (size_t i = 0; i < group->count && status == WEFT_OK; i++) {
        status = add_frame(state, worker, &group->sources[i], &delta);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_changes result = worker->sums;
    worker->sums = worker->writer.changes;
    worker->writer.changes = result;
    return weft_bucket_encode_changes(&worker->writer, bucket, &state->patches[0]->header.roster, delta,
                                      &slot->frame, &slot->result);
}

/* ---- running ---- */

static weft_status merge_task(void *argument, size_t index, unsigned worker) {
    merge_state *state = argument;
    const bucket_group *group = &state->groups[index];
    merge_slot *slot = &state->slots[index % state->window];
    slot->frame.size = 0;
    slot->result = (weft_frame_result){0, false, false};
    weft_status status = state->base != NULL ? merge_walking(state, &state->workers[worker], group, slot)
                                             : merge_adding(state, &state->workers[worker], group, slot);
    if (status == WEFT_OK) {
        const weft_bucket *bucket = group->sources[0].bucket;
        status = weft_progress_add(state->context, bucket->units * bucket->width);
    }
    return status;
}

static weft_status emit_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    merge_state *state = argument;
    const merge_slot *slot = &state->slots[index % state->window];
    if (!slot->result.present) {
        return WEFT_OK;
    }
    return weft_stream_frame(&state->stream, state->groups[index].sources[0].bucket, &slot->frame,
                             slot->result.changed);
}

static weft_status open_workers(merge_state *state) {
    weft_context *context = state->context;
    unsigned threads = weft_context_threads(context);
    state->window = weft_parallel_window(context);
    state->slots = weft_allocate_zeroed(context, state->window, sizeof *state->slots);
    state->workers = weft_allocate_zeroed(context, threads, sizeof *state->workers);
    if (state->slots == NULL || state->workers == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < state->window; i++) {
        weft_writer_open(&state->slots[i].frame, context);
    }
    for (; state->worker_count < threads; state->worker_count++) {
        merge_worker *worker = &state->workers[state->worker_count];
        weft_bucket_coder_open(&worker->walker, context);
        weft_bucket_coder_open(&worker->writer, context);
        weft_writer_open(&worker->buffer, context);
        weft_changes_open(&worker->sums, context);
    }
    return WEFT_OK;
}

static void close_state(merge_state *state) {
    weft_context *context = state->context;
    for (unsigned i = 0; i < state->worker_count; i++) {
        merge_worker *worker = &state->workers[i];
        weft_bucket_coder_close(&worker->walker);
        weft_bucket_coder_close(&worker->writer);
        weft_writer_close(&worker->buffer);
        weft_changes_close(&worker->sums);
        weft_release(context, worker->state);
        weft_release(context, worker->next);
    }
    for (size_t i = 0; state->worker_count > 0 && i < state->window; i++) {
        weft_writer_close(&state->slots[i].frame);
    }
    weft_release(context, state->workers);
    weft_release(context, state->slots);
    weft_release(context, state->sources);
    weft_release(context, state->groups);
    weft_release(context, state->map);
    if (state->stream_open) {
        weft_stream_close(&state->stream);
    }
}

static weft_status open_stream(merge_state *state, const weft_sink *sink, const char *const *labels) {
    const weft_container *container = NULL;
    bool same = true;
    for (size_t i = 0; i < state->patch_count; i++) {
        const weft_container *given = weft_patch_container(state->patches[i]);
        container = given != NULL ? given : container;
        same = same && state->patches[i]->header.same_files;
    }
    state->stream_open = true;
    return weft_stream_open(&state->stream, state->context, sink, state->profile,
                            &state->patches[0]->header.roster, same, container, labels);
}

static weft_status finish_stream(merge_state *state, weft_diff_stats *stats) {
    stats->base = state->patches[0]->footer.base;
    stats->result = state->patches[state->patch_count - 1]->footer.result;
    weft_status status = weft_stream_finish(&state->stream, &stats->base, &stats->result);
    stats->changed = state->stream.changed;
    stats->patch_bytes = state->stream.written;
    stats->buckets = state->stream.frames;
    weft_roster_measure(&state->patches[0]->header.roster, &stats->total, &stats->dense_bytes);
    return status;
}

static weft_status run_merge(merge_state *state, const weft_sink *sink, const char *const *labels,
                             weft_diff_stats *stats) {
    weft_status status = check_chain(state);
    if (status == WEFT_OK && state->base != NULL) {
        status = check_base(state);
    }
    if (status == WEFT_OK && state->base != NULL) {
        weft_roster roster = weft_roster_with(&state->patches[0]->header.roster, state->context);
        status = weft_roster_map(&roster, state->base, &state->map);
    }
    if (status == WEFT_OK) {
        status = collect_sources(state);
    }
    if (status == WEFT_OK) {
        status = check_groups(state);
    }
    if (status == WEFT_OK) {
        status = open_workers(state);
    }
    if (status == WEFT_OK) {
        status = open_stream(state, sink, labels);
    }
    if (status == WEFT_OK) {
        weft_progress_begin(state->context, "merge", state->patches[0]->footer.dense_bytes);
        status = weft_parallel_ordered(state->context, state->group_count, state->window, merge_task,
                                       emit_task, state);
    }
    return status == WEFT_OK ? finish_stream(state, stats) : status;
}

weft_status weft_merge(weft_context *context, const weft_patch *const *patches, size_t count,
                       const weft_merge_options *options, const weft_sink *sink, weft_diff_stats *stats) {
    weft_context_clear(context);
    if (count == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "no patch to merge");
    }
    weft_merge_options chosen = options != NULL ? *options : (weft_merge_options){0};
    merge_state state = {.context = context, .patches = patches, .patch_count = count};
    state.base = chosen.base;
    state.profile = chosen.base == NULL ? WEFT_PROFILE_FAST : chosen.profile;
    weft_diff_stats result = {0};
    weft_status status = run_merge(&state, sink, chosen.labels, &result);
    close_state(&state);
    if (status == WEFT_OK && stats != NULL) {
        *stats = result;
    }
    return status;
}
