/* SPDX-License-Identifier: Apache-2.0
 *
 * diff.c: from two states to a patch, and on request its inverse, in one pass.
 *
 * Workers encode buckets side by side; finished frames leave in the order of the plan, so that writing
 * (or uploading) overlaps encoding, memory stays bounded by the window of frames under way, and the
 * bytes are the same whatever the threads.
 */
#include "../../base/pool.h"
#include "../bucket/bucket.h"
#include "../format/stream.h"
#include "trail.h"

/* What is done for one bucket. */
typedef enum job_kind {
    JOB_BOTH,    /* kept tensors: a frame each way */
    JOB_FORWARD, /* tensors that only the new state has in this form */
    JOB_INVERSE, /* tensors that only the base has in this form */
} job_kind;

typedef struct diff_job {
    job_kind kind;
    const weft_bucket *bucket;         /* in forward numbering; for JOB_INVERSE in inverse numbering */
    const weft_bucket *inverse_bucket; /* JOB_BOTH: the same bucket in inverse numbering, or NULL */
} diff_job;

/* A frame each way, waiting to be written. */
typedef struct diff_slot {
    weft_writer forward;
    weft_writer inverse;
    weft_frame_result forward_result;
    weft_frame_result inverse_result;
} diff_slot;

/* One direction's tensors and buckets. */
typedef struct direction {
    weft_roster roster;
    weft_plan plan;
    int64_t *from_map;
    int64_t *to_map;
    weft_patch_stream stream;
    bool open;
} direction;

typedef struct diff_state {
    weft_context *context;
    const weft_view *base;
    const weft_view *next;
    weft_diff_options options;
    direction forward;
    direction inverse;
    diff_job *jobs;
    size_t job_count;
    diff_slot *slots;
    size_t window;
    weft_bucket_coder *coders;
    unsigned coder_count;
    const weft_sums *base_sums;
    weft_sums *own_base_sums;
    weft_sums *moves;    /* over the base view */
    weft_sums *new_sums; /* over the next view */
    weft_trail *trail;
    weft_trail *notes;
} diff_state;

/* ---- setting up ---- */

static weft_status open_direction(diff_state *state, direction *d, const weft_view *from,
                                  const weft_view *to) {
    weft_status status = weft_roster_build(&d->roster, from, to);
    if (status == WEFT_OK) {
        status = weft_plan_build(&d->plan, &d->roster, state->options.bucket_bytes, state->options.cuts,
                                 state->options.cut_count);
    }
    if (status == WEFT_OK) {
        status = weft_roster_map(&d->roster, from, &d->from_map);
    }
    if (status == WEFT_OK) {
        status = weft_roster_map(&d->roster, to, &d->to_map);
    }
    return status;
}

static void add_job(diff_state *state, job_kind kind, const weft_bucket *bucket,
                    const weft_bucket *inverse) {
    state->jobs[state->job_count++] = (diff_job){kind, bucket, inverse};
}

/* Both rosters list the same names in the same order, and both plans cut kept tensors alike, so the
 * buckets of kept tensors correspond one to one, in order. What only one side has is put between them as
 * that side's plan has it: each patch has the bytes that it would have if it were made alone. */
static weft_status list_jobs(diff_state *state) {
    const weft_plan *forward = &state->forward.plan;
    const weft_plan *inverse = &state->inverse.plan;
    state->jobs = weft_allocate_array(state->context, forward->count + inverse->count, sizeof *state->jobs);
    if (state->jobs == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t i = 0;
    size_t j = 0;
    while (i < forward->count || j < inverse->count) {
        if (i < forward->count && forward->items[i].whole) {
            add_job(state, JOB_FORWARD, &forward->items[i++].bucket, NULL);
        } else if (j < inverse->count && inverse->items[j].whole) {
            add_job(state, JOB_INVERSE, &inverse->items[j++].bucket, NULL);
        } else {
            const weft_bucket *other = j < inverse->count ? &inverse->items[j++].bucket : NULL;
            add_job(state, JOB_BOTH, &forward->items[i++].bucket, other);
        }
    }
    return WEFT_OK;
}

static weft_status open_workers(diff_state *state) {
    weft_context *context = state->context;
    state->window = weft_parallel_window(context);
    state->slots = weft_allocate_array(context, state->window, sizeof *state->slots);
    state->coders = weft_allocate_array(context, weft_context_threads(context), sizeof *state->coders);
    if (state->slots == NULL || state->coders == NULL) {
        weft_release(context, state->slots);
        state->slots = NULL;
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < state->window; i++) {
        weft_writer_open(&state->slots[i].forward, context);
        weft_writer_open(&state->slots[i].inverse, context);
    }
    state->coder_count = weft_context_threads(context);
    for (unsigned i = 0; i < state->coder_count; i++) {
        weft_bucket_coder_open(&state->coders[i], context);
    }
    return WEFT_OK;
}

static weft_status open_sums(diff_state *state) {
    weft_status status = WEFT_OK;
    state->base_sums = state->options.base_sums;
    if (state->base_sums == NULL) {
        status = weft_sums_compute(state->context, state->base, &state->own_base_sums);
        state->base_sums = state->own_base_sums;
    } else {
        status = weft_sums_check(state->context, state->base_sums, state->base);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(state->context, state->base, &state->moves);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(state->context, state->next, &state->new_sums);
    }
    return status;
}

static weft_status open_trail(diff_state *state) {
    if (state->options.trail == NULL) {
        return WEFT_OK;
    }
    if (state->options.notes != NULL) {
        return weft_fail(
            state->context, WEFT_INVALID_ARGUMENT,
            "a base either follows its diff, with a trail, or is left alone and noted: give one "
            "of trail and notes");
    }
    if (state->options.inverse != NULL || !weft_roster_plain(&state->forward.roster)) {
        return weft_fail(state->context, WEFT_INVALID_ARGUMENT,
                         "a base can follow its diff only between states of the same tensors, and without "
                         "an inverse");
    }
    weft_status status = weft_trail_prepare(state->context, state->job_count, state->options.trail);
    if (status == WEFT_OK) {
        state->trail = *state->options.trail;
        for (unsigned i = 0; i < state->coder_count; i++) {
            state->coders[i].follows = true;
        }
    }
    return status;
}

static weft_status open_notes(diff_state *state) {
    weft_trail **notes = state->options.notes;
    if (notes == NULL) {
        return WEFT_OK;
    }
    if (!weft_roster_plain(&state->forward.roster)) {
        weft_trail_destroy(*notes);
        *notes = NULL;
        return WEFT_OK;
    }
    weft_status status = weft_trail_prepare(state->context, state->job_count, notes);
    state->notes = *notes;
    return status;
}

static weft_status open_streams(diff_state *state, const weft_sink *sink) {
    const weft_diff_options *options = &state->options;
    bool same = weft_container_same(options->base_container, options->new_container);
    weft_status status =
        weft_stream_open(&state->forward.stream, state->context, sink, options->profile,
                         &state->forward.roster, same, options->new_container, options->labels);
    state->forward.open = true;
    if (status == WEFT_OK && options->inverse != NULL) {
        status =
            weft_stream_open(&state->inverse.stream, state->context, options->inverse, options->profile,
                             &state->inverse.roster, same, options->base_container, options->labels);
        state->inverse.open = true;
    }
    return status;
}

/* ---- the pass ---- */

/* What the encoder has written is taken back unless the trail knows it. */
static weft_status follow_bucket(diff_state *state, weft_bucket_coder *coder, size_t index,
                                 const weft_bucket_side *next, const weft_frame_result *result,
                                 weft_status status) {
    if (status == WEFT_OK) {
        status = weft_trail_advance(state->trail, index, coder, state->jobs[index].bucket, next, result);
    }
    if (status != WEFT_OK && result->written) {
        weft_status ignored = weft_window_scatter(&coder->from, &coder->changes, true);
        (void)ignored;
    }
    return status;
}

static weft_status encode_both(diff_state *state, weft_bucket_coder *coder, size_t index, diff_slot *slot) {
    const diff_job *job = &state->jobs[index];
    weft_bucket_side base = {state->base, state->forward.from_map};
    weft_bucket_side next = {state->next, state->forward.to_map};
    weft_status status =
        weft_bucket_encode(coder, job->bucket, &state->forward.roster, state->options.profile, &base, &next,
                           state->moves, &slot->forward, &slot->forward_result);
    if (state->trail != NULL) {
        status = follow_bucket(state, coder, index, &next, &slot->forward_result, status);
    }
    if (status == WEFT_OK && state->notes != NULL) {
        status = weft_trail_note(state->notes, index, coder, job->bucket, &slot->forward_result);
    }
    if (status != WEFT_OK || !state->inverse.open || !slot->forward_result.present) {
        return status;
    }
    weft_bucket_side inverse_from = {state->next, state->inverse.from_map};
    weft_bucket_side inverse_to = {state->base, state->inverse.to_map};
    return weft_bucket_encode(coder, job->inverse_bucket, &state->inverse.roster, state->options.profile,
                              &inverse_from, &inverse_to, NULL, &slot->inverse, &slot->inverse_result);
}

static weft_status encode_task(void *argument, size_t index, unsigned worker) {
    diff_state *state = argument;
    const diff_job *job = &state->jobs[index];
    diff_slot *slot = &state->slots[index % state->window];
    weft_bucket_coder *coder = &state->coders[worker];
    slot->forward.size = 0;
    slot->inverse.size = 0;
    slot->forward_result = (weft_frame_result){0, false, false};
    slot->inverse_result = (weft_frame_result){0, false, false};
    weft_status status = WEFT_OK;
    if (job->kind == JOB_BOTH) {
        status = encode_both(state, coder, index, slot);
    } else if (job->kind == JOB_FORWARD) {
        weft_bucket_side next = {state->next, state->forward.to_map};
        status =
            weft_bucket_encode_whole(coder, job->bucket, &state->forward.roster, state->options.profile,
                                     &next, state->new_sums, &slot->forward, &slot->forward_result);
    } else {
        weft_bucket_side base = {state->base, state->inverse.to_map};
        status =
            weft_bucket_encode_whole(coder, job->bucket, &state->inverse.roster, state->options.profile,
                                     &base, NULL, &slot->inverse, &slot->inverse_result);
    }
    if (status == WEFT_OK) {
        status = weft_progress_add(state->context, job->bucket->units * job->bucket->width);
    }
    return status;
}

static weft_status emit_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    diff_state *state = argument;
    const diff_job *job = &state->jobs[index];
    diff_slot *slot = &state->slots[index % state->window];
    weft_status status = WEFT_OK;
    if (slot->forward_result.present) {
        status = weft_stream_frame(&state->forward.stream, job->bucket, &slot->forward,
                                   slot->forward_result.changed);
    }
    if (status == WEFT_OK && slot->inverse_result.present) {
        const weft_bucket *bucket = job->kind == JOB_INVERSE ? job->bucket : job->inverse_bucket;
        status =
            weft_stream_frame(&state->inverse.stream, bucket, &slot->inverse, slot->inverse_result.changed);
    }
    return status;
}

/* ---- the end ---- */

static weft_status finish_streams(diff_state *state, weft_diff_stats *stats) {
    weft_sums_add_common(state->new_sums, state->base_sums);
    weft_sums_add_common(state->new_sums, state->moves);
    stats->base = weft_sums_digest(state->base_sums);
    stats->result = weft_sums_digest(state->new_sums);
    weft_status status = weft_stream_finish(&state->forward.stream, &stats->base, &stats->result);
    if (status == WEFT_OK && state->inverse.open) {
        status = weft_stream_finish(&state->inverse.stream, &stats->result, &stats->base);
        stats->inverse_bytes = state->inverse.stream.written;
    }
    stats->changed = state->forward.stream.changed;
    stats->patch_bytes = state->forward.stream.written;
    stats->buckets = state->forward.stream.frames;
    weft_roster_measure(&state->forward.roster, &stats->total, &stats->dense_bytes);
    return status;
}

static void close_direction(weft_context *context, direction *d) {
    weft_plan_close(&d->plan);
    weft_roster_close(&d->roster);
    weft_release(context, d->from_map);
    weft_release(context, d->to_map);
    if (d->open) {
        weft_stream_close(&d->stream);
    }
}

static void close_state(diff_state *state) {
    weft_context *context = state->context;
    close_direction(context, &state->forward);
    close_direction(context, &state->inverse);
    weft_release(context, state->jobs);
    for (size_t i = 0; state->slots != NULL && i < state->window; i++) {
        weft_writer_close(&state->slots[i].forward);
        weft_writer_close(&state->slots[i].inverse);
    }
    weft_release(context, state->slots);
    for (unsigned i = 0; i < state->coder_count; i++) {
        weft_bucket_coder_close(&state->coders[i]);
    }
    weft_release(context, state->coders);
    weft_sums_destroy(state->own_base_sums);
    weft_sums_destroy(state->moves);
    weft_sums_destroy(state->new_sums);
}

static weft_status run_diff(diff_state *state, const weft_sink *sink, weft_diff_stats *stats) {
    weft_status status = open_direction(state, &state->forward, state->base, state->next);
    if (status == WEFT_OK && state->options.inverse != NULL) {
        status = open_direction(state, &state->inverse, state->next, state->base);
    }
    if (status == WEFT_OK) {
        status = list_jobs(state);
    }
    if (status == WEFT_OK) {
        status = open_workers(state);
    }
    if (status == WEFT_OK) {
        status = open_sums(state);
    }
    if (status == WEFT_OK) {
        status = open_trail(state);
    }
    if (status == WEFT_OK) {
        status = open_notes(state);
    }
    if (status == WEFT_OK) {
        status = open_streams(state, sink);
    }
    if (status == WEFT_OK) {
        uint64_t work = 0;
        for (size_t i = 0; i < state->job_count; i++) {
            work += state->jobs[i].bucket->units * state->jobs[i].bucket->width;
        }
        weft_progress_begin(state->context, "diff", work);
        status = weft_parallel_ordered(state->context, state->job_count, state->window, encode_task,
                                       emit_task, state);
    }
    if (status == WEFT_OK) {
        status = finish_streams(state, stats);
    }
    return status;
}

weft_status weft_diff(weft_context *context, const weft_view *base, const weft_view *next,
                      const weft_diff_options *options, const weft_sink *sink, weft_diff_stats *stats) {
    weft_context_clear(context);
    diff_state state = {.context = context, .base = base, .next = next};
    if (options != NULL) {
        state.options = *options;
    }
    weft_roster_open(&state.forward.roster, context);
    weft_roster_open(&state.inverse.roster, context);
    weft_plan_open(&state.forward.plan, context);
    weft_plan_open(&state.inverse.plan, context);
    weft_diff_stats result = {0};
    weft_status status = run_diff(&state, sink, &result);
    if (status == WEFT_OK && stats != NULL) {
        *stats = result;
    }
    if (status == WEFT_OK && state.options.new_sums_out != NULL) {
        *state.options.new_sums_out = state.new_sums;
        state.new_sums = NULL;
    }
    /* the base of a diff that failed is put back; its memory is plain, and that cannot fail */
    if (state.trail != NULL && status != WEFT_OK) {
        weft_status ignored = weft_trail_undo(context, state.trail);
        (void)ignored;
    }
    close_state(&state);
    return status;
}
