/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c: several patches as one.
 *
 * Buckets of different patches that cover the same weights are taken together. Where every one of them is
 * coded `fast`, their steps are added, and their deltas too: the digest is a sum, so what two patches do
 * to it in turn is what the merged one does. Anything else needs the base: the bucket's weights are
 * walked through all states, each patch is proven on the way, and first and last state are diffed.
 */
#include "../../base/sized.h"
#include "../../tensor/table.h"
#include "../format/patch.h"
#include "../format/stream.h"
#include "pipeline.h"

#include <stdlib.h>

/* A bucket of one of the patches. */
typedef struct merge_source {
    size_t patch;
    size_t index;
    const weft_bucket *bucket;
} merge_source;

/* The buckets that cover the same weights, one per patch at most, in the patches' order. */
typedef struct merge_group {
    const merge_source *sources;
    size_t count;
} merge_group;

typedef struct merge_state {
    weft_context *context;
    const weft_patch *const *patches;
    size_t patch_count;
    const weft_view *base;
    int64_t *map;
    weft_profile profile;
    merge_source *sources;
    size_t source_count;
    merge_group *groups;
    size_t group_count;
    weft_patch_stream stream;
} merge_state;

/* ---- checking the chain ---- */

static bool merge_same_roster(const weft_roster *a, const weft_roster *b) {
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

static weft_status merge_check_chain(const merge_state *merge) {
    for (size_t i = 0; i < merge->patch_count; i++) {
        const weft_patch *patch = merge->patches[i];
        if (!weft_roster_plain(&patch->header.roster)) {
            return weft_fail(merge->context, WEFT_UNSUPPORTED,
                             "patch %zu adds, removes or replaces tensors and cannot be merged; apply the "
                             "patches in turn and diff the result against the base",
                             i + 1);
        }
        if (i == 0) {
            continue;
        }
        const weft_patch *before = merge->patches[i - 1];
        if (!weft_digest_equal(&before->footer.result, &patch->footer.base)) {
            char made[WEFT_DIGEST_TEXT];
            char need[WEFT_DIGEST_TEXT];
            weft_digest_format(&before->footer.result, made);
            weft_digest_format(&patch->footer.base, need);
            return weft_fail(
                merge->context, WEFT_BASE_MISMATCH,
                "base mismatch: patch %zu makes %s, patch %zu needs %s; give the patches in order", i, made,
                i + 1, need);
        }
        if (!merge_same_roster(&before->header.roster, &patch->header.roster)) {
            return weft_fail(merge->context, WEFT_MALFORMED, "patches %zu and %zu list different tensors",
                             i, i + 1);
        }
    }
    return WEFT_OK;
}

static weft_status merge_check_base(const merge_state *merge) {
    weft_sums *sums;
    weft_status status = weft_sums_compute(merge->context, merge->base, &sums);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_patch_check_base(merge->context, merge->patches[0], sums);
    weft_sums_destroy(sums);
    return status;
}

/* ---- grouping ---- */

static int merge_compare_sources(const void *first, const void *second) {
    const merge_source *a = first;
    const merge_source *b = second;
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

static weft_status merge_collect_sources(merge_state *merge) {
    size_t total = 0;
    for (size_t i = 0; i < merge->patch_count; i++) {
        total += merge->patches[i]->index.count;
    }
    merge->sources = weft_allocate_array(merge->context, total, sizeof *merge->sources);
    merge->groups = weft_allocate_array(merge->context, total, sizeof *merge->groups);
    if (merge->sources == NULL || merge->groups == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < merge->patch_count; i++) {
        const weft_frame_index *index = &merge->patches[i]->index;
        for (size_t j = 0; j < index->count; j++) {
            merge->sources[merge->source_count++] = (merge_source){i, j, &index->entries[j].bucket};
        }
    }
    qsort(merge->sources, merge->source_count, sizeof *merge->sources, merge_compare_sources);
    for (size_t i = 0; i < merge->source_count; i++) {
        const merge_source *source = &merge->sources[i];
        bool continues = i > 0 && weft_bucket_same_spans(merge->sources[i - 1].bucket, source->bucket);
        if (!continues) {
            merge->groups[merge->group_count++] = (merge_group){source, 0};
        }
        merge->groups[merge->group_count - 1].count++;
    }
    return WEFT_OK;
}

/* Groups are disjoint if the patches were cut alike. */
static weft_status merge_check_groups(const merge_state *merge) {
    weft_frame_index index = {.context = merge->context, .count = merge->group_count};
    index.entries = weft_allocate_zeroed(merge->context, merge->group_count, sizeof *index.entries);
    if (index.entries == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < merge->group_count; i++) {
        index.entries[i].bucket = *merge->groups[i].sources[0].bucket;
    }
    weft_status status = weft_frame_index_check(&index, &merge->patches[0]->header.roster);
    weft_release(merge->context, index.entries);
    if (status == WEFT_MALFORMED) {
        return weft_fail(
            merge->context, WEFT_UNSUPPORTED,
            "the patches are cut into different buckets and cannot be merged; apply them in turn "
            "and diff the result against the base");
    }
    return status;
}

/* ---- with the base: walking through the states ---- */

static weft_status merge_walk_sparse(weft_bucket_coder *walker, const weft_frame *frame, uint8_t *state,
                                     weft_sum *delta) {
    weft_status status = weft_frame_decode(walker, frame, &walker->changes, NULL, delta);
    const weft_changes *changes = &walker->changes;
    for (size_t i = 0; status == WEFT_OK && i < changes->count; i++) {
        weft_unit_store(state, changes->positions[i], changes->width,
                        weft_unit_load(changes->news, i, changes->width));
    }
    return status;
}

static weft_status merge_walk_dense(weft_pipeline_worker *worker, const weft_frame *frame, uint8_t *state,
                                    weft_sum *delta) {
    size_t bytes = (size_t)frame->bucket.units * frame->bucket.width;
    uint8_t *next = weft_pipeline_scratch(worker, 1, bytes);
    if (next == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_frame_decode_dense(&worker->walker, frame, state, next);
    if (status == WEFT_OK) {
        status = weft_window_prove_all(&worker->walker.from, next, frame->bucket.width, false, NULL, delta);
    }
    if (status == WEFT_OK) {
        memcpy(state, next, bytes);
    }
    return status;
}

/* Brings the bucket's weights from the state before a patch to the one after it. */
static weft_status merge_walk_frame(const merge_state *merge, weft_pipeline_worker *worker,
                                    const merge_source *source, uint8_t *state) {
    weft_frame frame;
    weft_status status = weft_patch_frame(merge->context, merge->patches[source->patch], source->index,
                                          &worker->fetched, &frame);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sum delta = {{0, 0}};
    status = weft_window_set_memory(&worker->walker.from, &frame.bucket, state);
    if (status == WEFT_OK) {
        status = weft_frame_dense(&frame) ? merge_walk_dense(worker, &frame, state, &delta)
                                          : merge_walk_sparse(&worker->walker, &frame, state, &delta);
    }
    if (status == WEFT_OK && !weft_sum_equal(delta, frame.delta)) {
        status = weft_fail(merge->context, WEFT_DIGEST_MISMATCH,
                           "patch %zu, bucket %zu does not do what it promises; fetch the patch again",
                           source->patch + 1, source->index);
    }
    weft_bucket_close(&frame.bucket, merge->context);
    return status;
}

static weft_status merge_walk_group(const merge_state *merge, weft_pipeline_worker *worker,
                                    const merge_group *group, weft_pipeline_frame *frame) {
    const weft_bucket *bucket = group->sources[0].bucket;
    const weft_roster *roster = &merge->patches[0]->header.roster;
    weft_bucket_coder *coder = &worker->coder;
    weft_status status = weft_window_set(&coder->from, merge->base, merge->map, bucket, WEFT_NEED_BYTES);
    if (status != WEFT_OK) {
        return status;
    }
    if (coder->from.holding != WEFT_HELD_ALL) {
        return weft_fail(merge->context, WEFT_INVALID_ARGUMENT, "the base does not hold all of tensor %s",
                         roster->entries[bucket->spans[0].tensor].tensor.name);
    }
    uint8_t *state = weft_pipeline_scratch(worker, 0, (size_t)bucket->units * bucket->width);
    if (state == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = weft_window_copy(&coder->from, state, bucket->width);
    for (size_t i = 0; i < group->count && status == WEFT_OK; i++) {
        status = merge_walk_frame(merge, worker, &group->sources[i], state);
    }
    if (status == WEFT_OK) {
        status = weft_window_set_memory(&coder->to, bucket, state);
    }
    return status == WEFT_OK ? weft_bucket_encode_windows(coder, bucket, roster, merge->profile, NULL,
                                                          &frame->bytes, &frame->result)
                             : status;
}

/* ---- without the base: adding steps ---- */

/* Adds the steps in `more` to those in `sums`; both are sorted. Steps that cancel disappear. */
static weft_status merge_add_steps(weft_changes *sums, const weft_changes *more, weft_changes *output) {
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

static weft_status merge_add_frame(const merge_state *merge, weft_pipeline_worker *worker,
                                   const merge_source *source, weft_sum *delta) {
    weft_frame frame;
    weft_status status = weft_patch_frame(merge->context, merge->patches[source->patch], source->index,
                                          &worker->fetched, &frame);
    if (status != WEFT_OK) {
        return status;
    }
    if (frame.coding != WEFT_CODING_FAST) {
        status =
            weft_fail(merge->context, WEFT_INVALID_ARGUMENT,
                      "patch %zu is not coded `fast` throughout; merging it needs the base (--base CKPT)",
                      source->patch + 1);
    }
    if (status == WEFT_OK) {
        status = weft_frame_decode_steps(&worker->walker, &frame, &worker->walker.changes);
    }
    if (status == WEFT_OK) {
        status = merge_add_steps(&worker->coder.changes, &worker->walker.changes, &worker->steps);
    }
    if (status == WEFT_OK) {
        weft_changes added = worker->steps;
        worker->steps = worker->coder.changes;
        worker->coder.changes = added;
        weft_sum_add(delta, frame.delta);
    }
    weft_bucket_close(&frame.bucket, merge->context);
    return status;
}

static weft_status merge_add_group(const merge_state *merge, weft_pipeline_worker *worker,
                                   const merge_group *group, weft_pipeline_frame *frame) {
    const weft_bucket *bucket = group->sources[0].bucket;
    weft_sum delta = {{0, 0}};
    weft_status status = weft_changes_reset(&worker->coder.changes, bucket->width, 0);
    for (size_t i = 0; i < group->count && status == WEFT_OK; i++) {
        status = merge_add_frame(merge, worker, &group->sources[i], &delta);
    }
    return status == WEFT_OK
               ? weft_bucket_encode_changes(&worker->coder, bucket, &merge->patches[0]->header.roster,
                                            delta, &frame->bytes, &frame->result)
               : status;
}

/* ---- running ---- */

static const weft_bucket *merge_bucket(const void *opaque, size_t index) {
    const merge_state *merge = opaque;
    return merge->groups[index].sources[0].bucket;
}

static weft_status merge_encode_group(void *opaque, size_t index, weft_pipeline_worker *worker,
                                      weft_pipeline_slot *slot) {
    const merge_state *merge = opaque;
    const merge_group *group = &merge->groups[index];
    return merge->base != NULL ? merge_walk_group(merge, worker, group, &slot->forward)
                               : merge_add_group(merge, worker, group, &slot->forward);
}

static weft_status merge_emit_frame(void *opaque, size_t index, const weft_pipeline_slot *slot) {
    merge_state *merge = opaque;
    const weft_pipeline_frame *frame = &slot->forward;
    return frame->result.present ? weft_stream_frame(&merge->stream, merge_bucket(merge, index),
                                                     &frame->bytes, frame->result.changed)
                                 : WEFT_OK;
}

static weft_status merge_run(merge_state *merge, const weft_sink *sink, const char *const *labels,
                             weft_diff_stats *stats) {
    weft_context *context = merge->context;
    const weft_roster *roster = &merge->patches[0]->header.roster;
    weft_status status = merge_check_chain(merge);
    if (status == WEFT_OK && merge->base != NULL) {
        status = merge_check_base(merge);
    }
    if (status == WEFT_OK && merge->base != NULL) {
        weft_roster here = weft_roster_with(roster, context);
        status = weft_roster_map(&here, merge->base, &merge->map);
    }
    if (status == WEFT_OK) {
        status = merge_collect_sources(merge);
    }
    if (status == WEFT_OK) {
        status = merge_check_groups(merge);
    }
    if (status == WEFT_OK) {
        const weft_container *container = NULL;
        bool same_files = true;
        for (size_t i = 0; i < merge->patch_count; i++) {
            const weft_container *given = weft_patch_container(merge->patches[i]);
            container = given != NULL ? given : container;
            same_files = same_files && merge->patches[i]->header.same_files;
        }
        status = weft_stream_open(&merge->stream, context, sink, 0, merge->profile, 0, roster, same_files,
                                  container, labels);
    }
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {
            .count = merge->group_count,
            .phase = "merge",
            .opaque = merge,
            .bucket = merge_bucket,
            .produce = merge_encode_group,
            .emit = merge_emit_frame,
        };
        status = weft_pipeline_run(context, &pipeline);
    }
    stats->base = merge->patches[0]->footer.base;
    stats->result = merge->patches[merge->patch_count - 1]->footer.result;
    return status == WEFT_OK ? weft_stream_finish(&merge->stream, stats) : status;
}

weft_status weft_merge(weft_context *context, const weft_patch *const *patches, size_t count,
                       const weft_merge_options *options, const weft_sink *sink, weft_diff_stats *stats) {
    weft_context_clear(context);
    if (count == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "no patch to merge");
    }
    weft_merge_options chosen;
    weft_status status = weft_sized_read(context, options, &chosen, sizeof chosen, "weft_merge_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, stats, "weft_diff_stats");
    }
    if (status == WEFT_OK && chosen.profile == WEFT_PROFILE_SMALLEST) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "the profile `smallest` is for publishers; merge to the profile `small`");
    }
    if (status != WEFT_OK) {
        return status;
    }
    merge_state merge = {.context = context, .patches = patches, .patch_count = count};
    merge.base = chosen.base;
    merge.profile = chosen.base == NULL ? WEFT_PROFILE_FAST : chosen.profile;
    weft_diff_stats result = {.size = sizeof result};
    status = merge_run(&merge, sink, chosen.labels, &result);
    if (status == WEFT_OK) {
        weft_sized_write(&result, stats, sizeof result);
    }
    weft_stream_close(&merge.stream);
    weft_release(context, merge.sources);
    weft_release(context, merge.groups);
    weft_release(context, merge.map);
    return status;
}
