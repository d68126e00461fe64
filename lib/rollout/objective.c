/* SPDX-License-Identifier: Apache-2.0
 *
 * objective.c: advantages, and the loss of a policy with its slope by each log-probability: all that a
 * framework needs to go on from there by itself. The kernels (objective_kernels.h) go through the tokens.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "objective_kernels.h"

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

void weft_objective_defaults(weft_objective_options *options_out) {
    const weft_objective_options defaults = {.size = sizeof defaults, .clip_low = 0.2, .clip_high = 0.28};
    weft_sized_write(&defaults, options_out, sizeof defaults);
}

weft_token_loss weft_objective_token(const weft_objective_options *given, double advantage, double weight,
                                     double old, double learner, const float *reference) {
    weft_objective_options options;
    weft_status ignored = weft_sized_read(NULL, given, &options, sizeof options, "weft_objective_options");
    (void)ignored; /* nothing is checked here: options that cannot be read are as good as none */
    const objective_rules rules = objective_rules_of(&options, advantage, 1);
    return objective_token(&rules, weight, old, learner, reference);
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
    if (!(options->clip_low >= 0) || !(options->clip_high >= 0) || !dual || !(options->kl >= 0) ||
        !(options->sequence_delta >= 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "clips, the weight of the divergence and what far sequences are beyond cannot be "
                         "negative, nor a dual clip below 1");
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
                                    const weft_objective_options *given, double *divisors) {
    weft_context_clear(context);
    weft_objective_options options;
    weft_status status =
        weft_sized_read(context, given, &options, sizeof options, "weft_objective_options");
    if (status == WEFT_OK) {
        status = check_objective(context, &options);
    }
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
        sequences += !options.skip_empty || mine > 0;
    }
    for (size_t s = 0; s < batch->sequences; s++) {
        double mine = divisors[s];
        divisors[s] = mine > 0 ? divisor(&options, mine, (double)tokens, (double)sequences) : 0;
    }
    return WEFT_OK;
}

/* ---- the batch ---- */

typedef struct objective_run {
    weft_context *context;
    const weft_objective_input *input;
    const weft_objective_options *options;
    objective_function function;
    float *slopes;
    weft_objective_result result;
} objective_run;

static bool is_fine(const weft_objective_input *input, size_t token) {
    float weight = input->weights != NULL ? input->weights[token] : 1;
    return isfinite(input->old[token]) && isfinite(input->learner[token]) &&
           (input->reference == NULL || isfinite(input->reference[token])) && isfinite(weight) &&
           weight >= 0;
}

/* Names the first token of a sequence that the kernel has refused. */
static weft_status refuse(const objective_run *run, size_t sequence) {
    const weft_objective_input *input = run->input;
    size_t start = input->batch->starts[sequence];
    size_t token = start;
    while (token + 1 < input->batch->starts[sequence + 1] &&
           (!counts(input->batch, token) || is_fine(input, token))) {
        token++;
    }
    return weft_fail(
        run->context, WEFT_INVALID_ARGUMENT,
        "token %zu of sequence %zu has log-probabilities %g (old), %g (learner) and %g "
        "(reference) and weight %g; mask tokens that were not sampled, and veto those that the "
        "old policy would never sample",
        token - start, sequence, (double)input->old[token], (double)input->learner[token],
        input->reference != NULL ? (double)input->reference[token] : 0,
        input->weights != NULL ? (double)input->weights[token] : 1);
}

/* The mean of log old / learner over what counts is above `sequence_delta`. */
static bool is_far(const objective_run *run, size_t sequence) {
    const weft_correction_batch *batch = run->input->batch;
    double sum = 0;
    size_t count = 0;
    for (size_t i = batch->starts[sequence]; i < batch->starts[sequence + 1]; i++) {
        if (counts(batch, i)) {
            sum += (double)run->input->old[i] - (double)run->input->learner[i];
            count++;
        }
    }
    return count > 0 && sum > run->options->sequence_delta * (double)count;
}

static weft_status add_sequence(objective_run *run, size_t sequence, double divisor) {
    const weft_objective_input *input = run->input;
    size_t start = input->batch->starts[sequence];
    size_t count = input->batch->starts[sequence + 1] - start;
    double advantage = (double)input->advantages[sequence];
    if (!isfinite(advantage)) {
        return weft_fail(run->context, WEFT_INVALID_ARGUMENT, "sequence %zu has the advantage %g", sequence,
                         advantage);
    }
    if (advantage < 0 && run->options->sequence_delta > 0 && is_far(run, sequence)) {
        advantage = 0;
        run->result.far += 1;
    }
    const objective_rules rules =
        objective_rules_of(run->options, advantage, divisor > 0 ? 1 / divisor : 0);
    const objective_tokens tokens = {
        .old = input->old + start,
        .learner = input->learner + start,
        .reference = input->reference != NULL ? input->reference + start : NULL,
        .weights = input->weights != NULL ? input->weights + start : NULL,
        .mask = input->batch->mask != NULL ? input->batch->mask + start : NULL,
    };
    objective_sums sums;
    run->function(&rules, &tokens, count, run->slopes + start, &sums);
    if (sums.bad) {
        return refuse(run, sequence);
    }
    run->result.loss += sums.loss * rules.factor;
    run->result.tokens += sums.counted;
    run->result.sequences += sums.counted > 0;
    run->result.clipped += (double)sums.clipped;
    run->result.ratio += sums.ratio;
    run->result.kl += sums.divergence;
    run->result.moves = run->result.moves || sums.moves;
    return WEFT_OK;
}

weft_status weft_objective_run(weft_context *context, const weft_objective_input *input,
                               const weft_objective_options *given, float *slopes,
                               weft_objective_result *result_out) {
    weft_context_clear(context);
    const weft_correction_batch *batch = input->batch;
    weft_objective_options options;
    weft_status status =
        weft_sized_read(context, given, &options, sizeof options, "weft_objective_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, result_out, "weft_objective_result");
    }
    if (status != WEFT_OK) {
        return status;
    }
    objective_run run = {.context = context,
                         .input = input,
                         .options = &options,
                         .function = objective_function_for(weft_cpu_level()),
                         .slopes = slopes};
    double *divisors = weft_allocate_array(context, batch->sequences, sizeof *divisors);
    if (divisors == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = weft_objective_divisors(context, batch, &options, divisors);
    for (size_t s = 0; s < batch->sequences && status == WEFT_OK; s++) {
        status = add_sequence(&run, s, divisors[s]);
    }
    weft_release(context, divisors);
    if (status == WEFT_OK) {
        double tokens = run.result.tokens > 0 ? (double)run.result.tokens : 1;
        run.result.clipped /= tokens;
        run.result.ratio /= tokens;
        run.result.kl /= tokens;
        weft_sized_write(&run.result, result_out, sizeof run.result);
    }
    return status;
}
