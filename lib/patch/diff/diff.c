/* SPDX-License-Identifier: Apache-2.0
 *
 * diff.c: from two states to a patch, and on request its inverse, in one pass. The new state may be given
 * as changes to the base (given.h): then `next` is the base's view, which has the same tensors.
 */
#include "diff.h"
#include "../../base/sized.h"
#include "../format/stream.h"
#include "given.h"
#include "trail.h"

/* What is done for one bucket. */
typedef enum diff_kind {
    DIFF_BOTH,    /* kept tensors: a frame each way */
    DIFF_FORWARD, /* tensors that only the new state has in this form */
    DIFF_INVERSE, /* tensors that only the base has in this form */
} diff_kind;

typedef struct diff_job {
    diff_kind kind;
    const weft_bucket *bucket;         /* in forward numbering; for DIFF_INVERSE in inverse numbering */
    const weft_bucket *inverse_bucket; /* DIFF_BOTH: the same bucket in inverse numbering, or NULL */
} diff_job;

/* One direction's tensors and buckets. */
typedef struct diff_direction {
    weft_roster roster;
    weft_plan plan;
    int64_t *from_map;
    int64_t *to_map;
    weft_patch_stream stream;
} diff_direction;

typedef struct diff_state {
    weft_context *context;
    const weft_view *base;
    const weft_view *next;
    bool changes_given;
    weft_given given;
    weft_diff_options options;
    diff_direction forward;
    diff_direction inverse;
    diff_job *jobs;
    size_t job_count;
    const weft_sums *base_sums;
    weft_sums *own_base_sums;
    weft_sums *moves;    /* over the base view */
    weft_sums *new_sums; /* over the next view */
    weft_trail *trail;
    weft_trail *notes;
    weft_recall *recall;
    unsigned depth;
} diff_state;

/* ---- setting up ---- */

static weft_status diff_open_direction(const diff_state *state, diff_direction *d, const weft_view *from,
                                       const weft_view *to) {
    weft_roster_open(&d->roster, state->context);
    weft_plan_open(&d->plan, state->context);
    weft_status status = weft_roster_build(&d->roster, from, to);
    if (status == WEFT_OK) {
        status = weft_plan_build(&d->plan, &d->roster, state->options.bucket_bytes, state->options.cuts,
                                 state->options.cut_count);
    }
    weft_plan_set_format(&d->plan, state->options.format);
    if (status == WEFT_OK) {
        status = weft_roster_map(&d->roster, from, &d->from_map);
    }
    return status == WEFT_OK ? weft_roster_map(&d->roster, to, &d->to_map) : status;
}

static void diff_close_direction(weft_context *context, diff_direction *d) {
    weft_plan_close(&d->plan);
    weft_roster_close(&d->roster);
    weft_release(context, d->from_map);
    weft_release(context, d->to_map);
    weft_stream_close(&d->stream);
}

/* Both rosters list the same names in the same order, and both plans cut kept tensors alike, so the
 * buckets of kept tensors correspond one to one, in order. What only one side has is put between them as
 * that side's plan has it: each patch has the bytes that it would have if it were made alone. */
static weft_status diff_list_jobs(diff_state *state) {
    const weft_plan *forward = &state->forward.plan;
    const weft_plan *inverse = &state->inverse.plan;
    state->jobs = weft_allocate_array(state->context, forward->count + inverse->count, sizeof *state->jobs);
    if (state->jobs == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t i = 0;
    size_t j = 0;
    while (i < forward->count || j < inverse->count) {
        diff_job *job = &state->jobs[state->job_count++];
        if (i < forward->count && forward->items[i].whole) {
            *job = (diff_job){DIFF_FORWARD, &forward->items[i++].bucket, NULL};
        } else if (j < inverse->count && inverse->items[j].whole) {
            *job = (diff_job){DIFF_INVERSE, &inverse->items[j++].bucket, NULL};
        } else {
            const weft_bucket *other = j < inverse->count ? &inverse->items[j++].bucket : NULL;
            *job = (diff_job){DIFF_BOTH, &forward->items[i++].bucket, other};
        }
    }
    return WEFT_OK;
}

static weft_status diff_open_sums(diff_state *state) {
    weft_context *context = state->context;
    weft_status status;
    state->base_sums = state->options.base_sums;
    if (state->base_sums == NULL) {
        status = weft_sums_compute(context, state->base, &state->own_base_sums);
        state->base_sums = state->own_base_sums;
    } else {
        status = weft_sums_check(context, state->base_sums, state->base);
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, state->base, &state->moves);
    }
    return status == WEFT_OK ? weft_sums_zero(context, state->next, &state->new_sums) : status;
}

static weft_status diff_open_trails(diff_state *state) {
    weft_context *context = state->context;
    weft_trail **trail = state->options.trail;
    weft_trail **notes = state->options.notes;
    bool plain = weft_roster_plain(&state->forward.roster);
    weft_status status = WEFT_OK;
    if (trail != NULL && notes != NULL) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "a base either follows its diff, with a trail, or is left alone and noted: give one "
            "of trail and notes");
    }
    if (trail != NULL && (state->options.inverse != NULL || !plain)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a base can follow its diff only between states of the same tensors, and without "
                         "an inverse");
    }
    if (trail != NULL) {
        status = weft_trail_prepare(context, state->job_count, trail);
        state->trail = *trail;
    } else if (notes != NULL && plain) {
        status = weft_trail_prepare(context, state->job_count, notes);
        state->notes = *notes;
    } else if (notes != NULL) {
        weft_trail_destroy(*notes);
        *notes = NULL;
    }
    return status;
}

/* ---- the pass ---- */

static const weft_bucket *diff_bucket(const void *opaque, size_t index) {
    const diff_state *state = opaque;
    return state->jobs[index].bucket;
}

static weft_status diff_encode_both(diff_state *state, weft_pipeline_worker *worker, size_t index,
                                    weft_pipeline_slot *slot) {
    const diff_job *job = &state->jobs[index];
    weft_bucket_coder *coder = &worker->coder;
    weft_profile profile = state->options.profile;
    const weft_roster *roster = &state->forward.roster;
    weft_frame_result *result = &slot->forward.result;
    bool given = state->changes_given;
    coder->recall = state->recall;
    coder->depth = state->depth;
    weft_bucket_side base = {state->base, state->forward.from_map};
    weft_bucket_side next = {state->next, state->forward.to_map};
    weft_status status = given ? weft_given_encode(&state->given, worker, job->bucket, roster, profile,
                                                   &base, state->moves, &slot->forward)
                               : weft_bucket_encode(coder, job->bucket, roster, profile, &base, &next,
                                                    state->moves, &slot->forward.bytes, result);
    if (status == WEFT_OK) {
        status = weft_bucket_note(coder, job->bucket, roster, result);
    }
    if (state->trail != NULL) {
        status = weft_trail_advance(state->trail, index, coder, job->bucket, given ? NULL : &next, result,
                                    status);
    }
    if (status == WEFT_OK && state->notes != NULL) {
        status = weft_trail_note(state->notes, index, coder, job->bucket, result);
    }
    if (status != WEFT_OK || state->options.inverse == NULL || !result->present) {
        return status;
    }
    weft_bucket_side inverse_from = {state->next, state->inverse.from_map};
    weft_bucket_side inverse_to = {state->base, state->inverse.to_map};
    if (given) {
        return weft_given_encode_inverse(&state->given, worker, job->inverse_bucket, &state->inverse.roster,
                                         profile, &inverse_to, &slot->inverse);
    }
    return weft_bucket_encode(coder, job->inverse_bucket, &state->inverse.roster, profile, &inverse_from,
                              &inverse_to, NULL, &slot->inverse.bytes, &slot->inverse.result);
}

static weft_status diff_encode_bucket(void *opaque, size_t index, weft_pipeline_worker *worker,
                                      weft_pipeline_slot *slot) {
    diff_state *state = opaque;
    const diff_job *job = &state->jobs[index];
    weft_bucket_coder *coder = &worker->coder;
    if (job->kind == DIFF_BOTH) {
        return diff_encode_both(state, worker, index, slot);
    }
    if (job->kind == DIFF_FORWARD) {
        weft_bucket_side next = {state->next, state->forward.to_map};
        weft_frame_result *result = &slot->forward.result;
        coder->recall = state->recall;
        weft_status status =
            weft_bucket_encode_whole(coder, job->bucket, &state->forward.roster, state->options.profile,
                                     &next, state->new_sums, &slot->forward.bytes, result);
        /* such a bucket may have been there before, and a reader of this frame forgets what it knew of it */
        return status == WEFT_OK ? weft_bucket_note(coder, job->bucket, &state->forward.roster, result)
                                 : status;
    }
    weft_bucket_side base = {state->base, state->inverse.to_map};
    return weft_bucket_encode_whole(coder, job->bucket, &state->inverse.roster, state->options.profile,
                                    &base, NULL, &slot->inverse.bytes, &slot->inverse.result);
}

static weft_status diff_emit_frames(void *opaque, size_t index, const weft_pipeline_slot *slot) {
    diff_state *state = opaque;
    const diff_job *job = &state->jobs[index];
    weft_status status = WEFT_OK;
    if (slot->forward.result.present) {
        status = weft_stream_frame(&state->forward.stream, job->bucket, &slot->forward.bytes,
                                   slot->forward.result.changed);
    }
    if (status == WEFT_OK && slot->inverse.result.present) {
        const weft_bucket *bucket = job->kind == DIFF_INVERSE ? job->bucket : job->inverse_bucket;
        status = weft_stream_frame(&state->inverse.stream, bucket, &slot->inverse.bytes,
                                   slot->inverse.result.changed);
    }
    return status;
}

static weft_status diff_run(diff_state *state, const weft_sink *sink, weft_diff_stats *stats) {
    weft_context *context = state->context;
    const weft_diff_options *options = &state->options;
    bool both = options->inverse != NULL;
    bool same_files = weft_container_same(options->base_container, options->new_container);
    weft_status status = WEFT_OK;
    if (state->changes_given) {
        status =
            weft_given_open(&state->given, context, state->base, options->changes, options->change_count);
    } else if (options->changes != NULL || options->change_count > 0) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "a diff takes the new state either whole, as a view, or as changes of the base; "
                           "give NULL for one of them");
    }
    if (status == WEFT_OK) {
        status = diff_open_direction(state, &state->forward, state->base, state->next);
    }
    if (status == WEFT_OK && both) {
        status = diff_open_direction(state, &state->inverse, state->next, state->base);
    }
    if (status == WEFT_OK) {
        status = diff_list_jobs(state);
    }
    if (status == WEFT_OK) {
        status = diff_open_sums(state);
    }
    if (status == WEFT_OK) {
        status = diff_open_trails(state);
    }
    if (status == WEFT_OK) {
        status = weft_stream_open(&state->forward.stream, context, sink, options->format, options->profile,
                                  state->depth, &state->forward.roster, same_files, options->new_container,
                                  options->labels);
    }
    if (status == WEFT_OK && both) {
        status = weft_stream_open(&state->inverse.stream, context, options->inverse, options->format,
                                  options->profile, 0, &state->inverse.roster, same_files,
                                  options->base_container, options->labels);
    }
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {
            .count = state->job_count,
            .phase = "diff",
            .follows = state->trail != NULL,
            .opaque = state,
            .bucket = diff_bucket,
            .produce = diff_encode_bucket,
            .emit = diff_emit_frames,
        };
        status = weft_pipeline_run(context, &pipeline);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_sums_add_common(state->new_sums, state->base_sums);
    weft_sums_add_common(state->new_sums, state->moves);
    stats->base = weft_sums_digest(state->base_sums);
    stats->result = weft_sums_digest(state->new_sums);
    status = weft_stream_finish(&state->forward.stream, stats);
    if (status == WEFT_OK && both) {
        weft_diff_stats back = {.size = sizeof back, .base = stats->result, .result = stats->base};
        status = weft_stream_finish(&state->inverse.stream, &back);
        stats->inverse_bytes = back.patch_bytes;
    }
    return status;
}

weft_status weft_diff(weft_context *context, const weft_view *base, const weft_view *next,
                      const weft_diff_options *options, const weft_sink *sink, weft_diff_stats *stats) {
    return weft_diff_recalling(context, base, next, options, NULL, 0, sink, stats);
}

weft_status weft_diff_recalling(weft_context *context, const weft_view *base, const weft_view *next,
                                const weft_diff_options *options, weft_recall *recall, unsigned depth,
                                const weft_sink *sink, weft_diff_stats *stats) {
    weft_context_clear(context);
    diff_state state = {
        .context = context,
        .base = base,
        .next = next != NULL ? next : base,
        .changes_given = next == NULL,
        .recall = recall,
        .depth = depth,
    };
    weft_diff_stats result = {.size = sizeof result};
    weft_status status =
        weft_sized_read(context, options, &state.options, sizeof state.options, "weft_diff_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, stats, "weft_diff_stats");
    }
    if (status == WEFT_OK && state.options.profile == WEFT_PROFILE_SMALLEST && recall == NULL) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "the profile `smallest` is for publishers, which know the versions before; a "
                           "patch that stands alone is smallest in the profile `small`");
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = diff_run(&state, sink, &result);
    if (status == WEFT_OK) {
        weft_sized_write(&result, stats, sizeof result);
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
    diff_close_direction(context, &state.forward);
    diff_close_direction(context, &state.inverse);
    weft_given_close(&state.given);
    weft_release(context, state.jobs);
    weft_sums_destroy(state.own_base_sums);
    weft_sums_destroy(state.moves);
    weft_sums_destroy(state.new_sums);
    return status;
}
