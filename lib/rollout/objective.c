/* SPDX-License-Identifier: Apache-2.0
 *
 * objective.c: advantages, and the loss of a policy with its slope by each log-probability: all that a
 * framework needs to go on from there by itself.
 */
#include "../base/context.h"
#include "correction.h"

#include <math.h>

/* ---- advantages ---- */

typedef struct group_view {
    const float *rewards;
    const uint8_t *rejected; /* NULL: none */
    size_t count;
} group_view;

static bool survives(const group_view *group, size_t i) {
    return group->rejected == NULL || group->rejected[i] == 0;
}

static void compare_group(const group_view *group, bool normalise, float *advantages) {
    size_t survivors = 0;
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < group->count; i++) {
        survivors += survives(group, i);
        sum += survives(group, i) ? (double)group->rewards[i] : 0;
    }
    double mean = survivors > 0 ? sum / (double)survivors : 0;
    for (size_t i = 0; i < group->count; i++) {
        double distance = survives(group, i) ? (double)group->rewards[i] - mean : 0;
        squares += distance * distance;
    }
    double scale = normalise && survivors > 1 ? 1 / (sqrt(squares / (double)(survivors - 1)) + 1e-6) : 1;
    for (size_t i = 0; i < group->count; i++) {
        advantages[i] = survives(group, i) ? (float)(((double)group->rewards[i] - mean) * scale) : 0;
    }
}

weft_status weft_correction_advantages(weft_context *context, const float *rewards, const uint8_t *rejected,
                                       size_t sequences, size_t group, bool normalise, float *advantages) {
    weft_context_clear(context);
    if (group < 1 || sequences % group != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%zu sequences are not whole groups of %zu",
                         sequences, group);
    }
    for (size_t i = 0; i < sequences; i++) {
        if (!isfinite(rewards[i])) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "sequence %zu has the reward %g", i,
                             (double)rewards[i]);
        }
    }
    for (size_t first = 0; first < sequences; first += group) {
        group_view view = {rewards + first, rejected != NULL ? rejected + first : NULL, group};
        compare_group(&view, normalise, advantages + first);
    }
    return WEFT_OK;
}

/* ---- one token ---- */

weft_objective_options weft_objective_defaults(void) {
    return (weft_objective_options){.clip_low = 0.2, .clip_high = 0.28};
}

/* Minus the clipped surrogate. Where the ratio is bounded, the loss does not move with it. */
static void clip_ratio(const weft_objective_options *options, double advantage, bool bounded,
                       weft_token_loss *token) {
    double ratio = weft_exponential_double(token->log_ratio);
    double limit = advantage > 0 ? 1 + options->clip_high : 1 - options->clip_low;
    token->clipped = advantage > 0 ? ratio > limit : advantage < 0 && ratio < limit;
    if (advantage < 0 && options->clip_dual > 0 && ratio > options->clip_dual) {
        limit = options->clip_dual;
        token->clipped = true;
    }
    token->loss = -(token->clipped ? limit : ratio) * advantage;
    token->slope = token->clipped || bounded ? 0 : -ratio * advantage;
}

/* Adds k3 of the reference, which lies `distance` above the learner. */
static void add_divergence(double kl, double distance, weft_token_loss *token) {
    double within = weft_log_ratio_bounded(distance);
    double ratio = weft_exponential_double(within);
    token->divergence = ratio - 1 - within;
    token->loss += kl * token->divergence;
    token->slope += within != distance ? 0 : kl * (1 - ratio);
}

static inline weft_token_loss token_loss(const weft_objective_options *options, double advantage,
                                         double weight, double old, double learner,
                                         const float *reference) {
    weft_token_loss token = {.log_ratio = weft_log_ratio_bounded(learner - old)};
    if (options->surrogate == WEFT_SURROGATE_CLIP) {
        clip_ratio(options, advantage, token.log_ratio != learner - old, &token);
    } else {
        token.loss = -advantage * learner;
        token.slope = -advantage;
    }
    token.loss *= weight;
    token.slope *= weight;
    if (reference != NULL) {
        add_divergence(options->kl, (double)*reference - learner, &token);
    }
    return token;
}

weft_token_loss weft_objective_token(const weft_objective_options *options, double advantage, double weight,
                                     double old, double learner, const float *reference) {
    return token_loss(options, advantage, weight, old, learner, reference);
}

/* ---- divisors ---- */

static bool counts(const weft_correction_batch *batch, size_t token) {
    return batch->mask == NULL || batch->mask[token] != 0;
}

static size_t counted_tokens(const weft_correction_batch *batch, size_t sequence) {
    size_t count = 0;
    for (size_t i = batch->starts[sequence]; i < batch->starts[sequence + 1]; i++) {
        count += counts(batch, i);
    }
    return count;
}

static weft_status check_objective(weft_context *context, const weft_objective_options *options) {
    if (options->surrogate < WEFT_SURROGATE_CLIP || options->surrogate > WEFT_SURROGATE_REINFORCE ||
        options->aggregation < WEFT_SEQ_MEAN_TOKEN_MEAN ||
        options->aggregation > WEFT_SEQ_MEAN_TOKEN_SUM_NORM) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "there is no surrogate %d with the aggregation %d",
                         (int)options->surrogate, (int)options->aggregation);
    }
    bool dual = options->clip_dual == 0 || options->clip_dual > 1;
    if (!(options->clip_low >= 0) || !(options->clip_high >= 0) || !dual || !(options->kl >= 0)) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "clips and the weight of the divergence cannot be negative, nor a dual clip below 1");
    }
    if (options->aggregation == WEFT_SEQ_MEAN_TOKEN_SUM_NORM && !(options->horizon > 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "sums over tokens cannot be divided by %g",
                         options->horizon);
    }
    return WEFT_OK;
}

static double divisor(const weft_objective_options *options, double mine, double tokens, double sequences) {
    switch (options->aggregation) {
    case WEFT_TOKEN_MEAN:
        return tokens;
    case WEFT_SEQ_MEAN_TOKEN_SUM:
        return sequences;
    case WEFT_SEQ_MEAN_TOKEN_SUM_NORM:
        return options->horizon * sequences;
    default:
        return mine * sequences;
    }
}

weft_status weft_objective_divisors(weft_context *context, const weft_correction_batch *batch,
                                    const weft_objective_options *options, double *divisors) {
    weft_context_clear(context);
    weft_status status = check_objective(context, options);
    if (status == WEFT_OK) {
        status = weft_correction_batch_check(context, batch);
    }
    if (status != WEFT_OK) {
        return status;
    }
    size_t tokens = 0;
    size_t sequences = 0;
    for (size_t s = 0; s < batch->sequences; s++) {
        size_t mine = counted_tokens(batch, s);
        divisors[s] = (double)mine;
        tokens += mine;
        sequences += !options->skip_empty || mine > 0;
    }
    for (size_t s = 0; s < batch->sequences; s++) {
        double mine = divisors[s];
        divisors[s] = mine > 0 ? divisor(options, mine, (double)tokens, (double)sequences) : 0;
    }
    return WEFT_OK;
}

/* ---- the batch ---- */

static weft_status check_token(weft_context *context, const weft_objective_input *input, size_t sequence,
                               size_t token) {
    float weight = input->weights != NULL ? input->weights[token] : 1;
    float reference = input->reference != NULL ? input->reference[token] : 0;
    if (isfinite(input->old[token]) && isfinite(input->learner[token]) && isfinite(reference) &&
        isfinite(weight) && weight >= 0) {
        return WEFT_OK;
    }
    return weft_fail(
        context, WEFT_INVALID_ARGUMENT,
        "token %zu of sequence %zu has log-probabilities %g (old), %g (learner) and %g "
        "(reference) and weight %g; mask tokens that were not sampled, and veto those that the "
        "old policy would never sample",
        token - input->batch->starts[sequence], sequence, (double)input->old[token],
        (double)input->learner[token], (double)reference, (double)weight);
}

/* The loss of a token that counts, before it is divided. */
static double add_token(const weft_objective_input *input, const weft_objective_options *options,
                        double advantage, size_t token, double factor, float *slopes,
                        weft_objective_result *result) {
    double weight = input->weights != NULL ? (double)input->weights[token] : 1;
    weft_token_loss loss =
        token_loss(options, advantage, weight, (double)input->old[token], (double)input->learner[token],
                   input->reference != NULL ? &input->reference[token] : NULL);
    slopes[token] = (float)(loss.slope * factor);
    result->clipped += loss.clipped;
    result->ratio += fabs(loss.log_ratio);
    result->kl += loss.divergence;
    result->tokens += 1;
    result->moves = result->moves || slopes[token] != 0;
    return loss.loss;
}

static weft_status add_sequence(weft_context *context, const weft_objective_input *input,
                                const weft_objective_options *options, size_t sequence, double divisor,
                                float *slopes, weft_objective_result *result) {
    const weft_correction_batch *batch = input->batch;
    const double advantage = (double)input->advantages[sequence];
    const double factor = 1 / divisor; /* not used if no token counts */
    weft_status status = WEFT_OK;
    double loss = 0;
    if (!isfinite(advantage)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "sequence %zu has the advantage %g", sequence,
                         advantage);
    }
    for (size_t i = batch->starts[sequence]; i < batch->starts[sequence + 1] && status == WEFT_OK; i++) {
        slopes[i] = 0;
        if (counts(batch, i)) {
            status = check_token(context, input, sequence, i);
            if (status == WEFT_OK) {
                loss += add_token(input, options, advantage, i, factor, slopes, result);
            }
        }
    }
    if (divisor > 0) {
        result->sequences += 1;
        result->loss += loss / divisor;
    }
    return status;
}

weft_status weft_objective_run(weft_context *context, const weft_objective_input *input,
                               const weft_objective_options *options, float *slopes,
                               weft_objective_result *result_out) {
    weft_context_clear(context);
    const weft_correction_batch *batch = input->batch;
    weft_objective_result result = {0};
    double *divisors = weft_allocate_array(context, batch->sequences, sizeof *divisors);
    if (divisors == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_objective_divisors(context, batch, options, divisors);
    for (size_t s = 0; s < batch->sequences && status == WEFT_OK; s++) {
        status = add_sequence(context, input, options, s, divisors[s], slopes, &result);
    }
    weft_release(context, divisors);
    if (status == WEFT_OK) {
        double tokens = result.tokens > 0 ? (double)result.tokens : 1;
        result.clipped /= tokens;
        result.ratio /= tokens;
        result.kl /= tokens;
        *result_out = result;
    }
    return status;
}
