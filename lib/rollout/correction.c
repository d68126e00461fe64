/* SPDX-License-Identifier: Apache-2.0
 *
 * correction.c: weights and rejections, sequence by sequence. A kernel goes through the tokens of one and
 * writes what follows from each alone; what follows from all of them together (veto, rules and weights of
 * whole sequences) is decided here, while they are still in the cache. Only normalisation needs a second
 * pass.
 */
#include "correction.h"
#include "../base/sized.h"

#include "../base/context.h"
#include "correction_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct correction_run {
    weft_context *context;
    const weft_correction_batch *batch;
    const float *sampler;
    const float *old;
    const weft_correction_options *options;
    float *weights;
    uint8_t *kept;
    uint8_t *rejected; /* may be NULL */
    correction_function function;
    correction_rules rules;
    /* over the batch */
    weft_correction_diagnostics result;
    double ratio_square;
    double weight;        /* by the level: over tokens or sequences */
    double weight_square; /* over tokens, always */
    double token_weight;
    float least;
    float most;
} correction_run;

/* ---- rules about single tokens ---- */

/* Rounded into the interval, so that a ratio that passes in single precision is within bounds. */
static float lower_bound(double value) {
    float rounded = (float)value;
    return (double)rounded < value ? nextafterf(rounded, INFINITY) : rounded;
}

static float upper_bound(double value) {
    float rounded = value > 0 ? (float)value : INFINITY;
    return value > 0 && (double)rounded > value ? nextafterf(rounded, 0) : rounded;
}

static void add_token_rule(correction_rules *rules, weft_rejection_estimator estimator, double lower,
                           double upper) {
    rules->tokens[rules->count++] =
        (correction_token_rule){estimator, lower_bound(lower), upper_bound(upper)};
}

static void set_weight_rules(correction_rules *rules, const weft_correction_options *options) {
    rules->low = lower_bound(options->lower);
    rules->high = upper_bound(options->upper);
    rules->clamp_low = 0;
    rules->clamp_high = INFINITY;
    if (options->mode == WEFT_WEIGHT_TRUNCATE || options->mode == WEFT_WEIGHT_CLIP) {
        rules->clamp_high = rules->high;
    }
    if (options->mode == WEFT_WEIGHT_CLIP) {
        rules->clamp_low = rules->low;
    }
    if (options->mode == WEFT_WEIGHT_ZERO) {
        rules->window_low = rules->low;
        rules->window_high = rules->high;
    }
    if (options->mode == WEFT_WEIGHT_MASK) {
        add_token_rule(rules, WEFT_ESTIMATOR_K1, options->lower, options->upper);
    }
}

static correction_rules make_rules(const weft_correction_options *options) {
    /* a clamp that makes all weights 1, and no bounds to count by */
    correction_rules rules = {.clamp_low = 1, .clamp_high = 1, .window_high = INFINITY, .high = INFINITY};
    rules.veto = options->veto > 0 ? (float)log(options->veto) : -INFINITY;
    if (options->weigh && options->level == WEFT_LEVEL_TOKEN) {
        set_weight_rules(&rules, options);
    }
    for (size_t i = 0; i < options->rejection_count; i++) {
        const weft_rejection *rejection = &options->rejections[i];
        if (rejection->scope == WEFT_REJECT_TOKEN) {
            add_token_rule(&rules, rejection->estimator, rejection->lower, rejection->upper);
        }
    }
    return rules;
}

/* ---- one sequence ---- */

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double half_square(double value) {
    return 0.5 * value * value;
}

static double curve(double value) {
    return weft_ratio_bounded(value) - 1 - value;
}

/* What a rule about a whole sequence looks at. Both estimators with a maximum grow to both sides of 0, so
 * that it lies at one of the ends. */
static double statistic(const weft_rejection *rejection, const correction_sums *sums) {
    double least = (double)sums->least;
    double most = (double)sums->most;
    bool square = rejection->estimator == WEFT_ESTIMATOR_K2;
    if (rejection->scope == WEFT_REJECT_MAX) {
        return square ? larger(half_square(least), half_square(most)) : larger(curve(least), curve(most));
    }
    double divisor = rejection->scope == WEFT_REJECT_MEAN ? (double)sums->counted : 1;
    if (rejection->estimator == WEFT_ESTIMATOR_K1) {
        return weft_ratio_bounded(sums->log / divisor);
    }
    return (square ? 0.5 * sums->log_square : sums->k3) / divisor;
}

static bool passes(const correction_run *run, const correction_sums *sums) {
    bool passed = true;
    for (size_t i = 0; i < run->options->rejection_count; i++) {
        const weft_rejection *rejection = &run->options->rejections[i];
        if (rejection->scope != WEFT_REJECT_TOKEN) {
            double value = statistic(rejection, sums);
            passed = passed && value <= rejection->upper &&
                     (rejection->estimator != WEFT_ESTIMATOR_K1 || value >= rejection->lower);
        }
    }
    return passed;
}

/* The weight that all tokens of a sequence share; *passed_out becomes false if it rejects them. */
static double shared_weight(correction_run *run, const correction_sums *sums, bool *passed_out) {
    const weft_correction_options *options = run->options;
    double divisor = options->level == WEFT_LEVEL_GEOMETRIC ? (double)sums->counted : 1;
    double ratio = weft_ratio_bounded(sums->log / divisor);
    bool low = ratio < options->lower;
    bool high = options->upper > 0 && ratio > options->upper;
    run->result.low += low;
    run->result.high += high;
    switch (options->mode) {
    case WEFT_WEIGHT_TRUNCATE:
        return high ? options->upper : ratio;
    case WEFT_WEIGHT_CLIP:
        return high ? options->upper : low ? options->lower : ratio;
    case WEFT_WEIGHT_ZERO:
        return low || high ? 0 : ratio;
    case WEFT_WEIGHT_MASK:
        *passed_out = !low && !high;
        return ratio;
    default:
        return ratio;
    }
}

static void share_weight(const correction_run *run, size_t start, size_t count, float weight) {
    for (size_t i = start; i < start + count; i++) {
        run->weights[i] = run->kept[i] != 0 ? weight : 0.0f;
    }
}

static void describe(correction_run *run, const correction_sums *sums) {
    weft_correction_diagnostics *result = &run->result;
    double count = (double)sums->counted;
    result->sequences += 1;
    result->tokens += sums->counted;
    result->below_veto += sums->below_veto;
    result->low += sums->low;
    result->high += sums->high;
    result->ratio_mean += sums->ratio;
    result->kl_k1 -= sums->log;
    result->kl_k3 += sums->k3;
    result->chi2_sequence += weft_ratio_bounded(sums->log) * weft_ratio_bounded(sums->log);
    result->perplexity_sampler += weft_ratio_bounded(-sums->sampler / count);
    result->perplexity_old += weft_ratio_bounded(-(sums->sampler + sums->log) / count);
    result->perplexity_ratio += weft_ratio_bounded(-sums->log / count);
    run->ratio_square += sums->ratio_square;
    run->least = sums->least < run->least ? sums->least : run->least;
    run->most = sums->most > run->most ? sums->most : run->most;
}

/* Adds the weights, which rejection does not change. */
static void add_weights(correction_run *run, const correction_sums *sums, double shared) {
    double count = (double)sums->counted;
    bool tokens = !run->options->weigh || run->options->level == WEFT_LEVEL_TOKEN;
    run->weight += tokens ? sums->weight : shared;
    run->token_weight += tokens ? sums->weight : shared * count;
    run->weight_square += tokens ? sums->weight_square : shared * shared * count;
}

static void judge_sequence(correction_run *run, size_t sequence, const correction_sums *sums) {
    size_t start = run->batch->starts[sequence];
    size_t count = run->batch->starts[sequence + 1] - start;
    bool vetoed = sums->below_veto > 0;
    bool passed = passes(run, sums);
    double shared = 1;
    if (run->options->weigh && run->options->level != WEFT_LEVEL_TOKEN) {
        bool within = true;
        shared = shared_weight(run, sums, &within);
        passed = passed && within;
        share_weight(run, start, count, (float)shared);
    }
    add_weights(run, sums, shared);
    bool rejected = vetoed || !passed || sums->kept == 0;
    if (rejected) {
        memset(run->weights + start, 0, count * sizeof *run->weights);
        memset(run->kept + start, 0, count);
    }
    run->result.vetoed += vetoed;
    run->result.rejected += rejected;
    run->result.masked += sums->counted - (rejected ? 0 : sums->kept);
    if (run->rejected != NULL) {
        run->rejected[sequence] = rejected;
    }
}

static weft_status refuse(const correction_run *run, size_t sequence) {
    size_t start = run->batch->starts[sequence];
    size_t i = start;
    for (; i + 1 < run->batch->starts[sequence + 1]; i++) {
        bool counts = run->batch->mask == NULL || run->batch->mask[i] != 0;
        if (counts && !(fabsf(run->sampler[i]) <= FLT_MAX && run->old[i] <= FLT_MAX)) {
            break;
        }
    }
    return weft_fail(
        run->context, WEFT_INVALID_ARGUMENT,
        "token %zu of sequence %zu has the log-probability %g by the sampler and %g by the old "
        "policy; mask tokens that were not sampled",
        i - start, sequence, (double)run->sampler[i], (double)run->old[i]);
}

static weft_status weigh_sequence(correction_run *run, size_t sequence) {
    size_t start = run->batch->starts[sequence];
    size_t count = run->batch->starts[sequence + 1] - start;
    const uint8_t *mask = run->batch->mask != NULL ? run->batch->mask + start : NULL;
    correction_sums sums;
    run->function(&run->rules, run->sampler + start, run->old + start, mask, count, run->weights + start,
                  run->kept + start, &sums);
    if (sums.bad) {
        return refuse(run, sequence);
    }
    if (sums.counted == 0) {
        if (run->rejected != NULL) {
            run->rejected[sequence] = 0;
        }
        return WEFT_OK;
    }
    describe(run, &sums);
    judge_sequence(run, sequence, &sums);
    return WEFT_OK;
}

/* ---- the batch ---- */

static void normalise(const correction_run *run) {
    bool tokens = run->options->level == WEFT_LEVEL_TOKEN;
    double count = (double)(tokens ? run->result.tokens : run->result.sequences);
    double mean = count > 0 ? run->weight / count : 0;
    if (!run->options->weigh || !run->options->normalise || !(mean > 1e-8)) {
        return;
    }
    float divisor = (float)mean;
    for (size_t i = run->batch->starts[0]; i < run->batch->starts[run->batch->sequences]; i++) {
        run->weights[i] /= divisor;
    }
}

static void finish(correction_run *run) {
    weft_correction_diagnostics *result = &run->result;
    if (result->tokens == 0) {
        return;
    }
    double tokens = (double)result->tokens;
    double sequences = (double)result->sequences;
    double square = run->ratio_square / tokens;
    result->ratio_mean /= tokens;
    result->ratio_min = weft_ratio_bounded((double)run->least);
    result->ratio_max = weft_ratio_bounded((double)run->most);
    result->ratio_deviation = sqrt(larger(square - result->ratio_mean * result->ratio_mean, 0));
    result->weight_mean = run->token_weight / tokens;
    result->effective =
        run->weight_square > 0 ? run->token_weight * run->token_weight / (tokens * run->weight_square) : 0;
    result->kl_k1 /= tokens;
    result->kl_k3 /= tokens;
    result->chi2_token = square - 1;
    result->chi2_sequence = result->chi2_sequence / sequences - 1;
    result->perplexity_sampler /= sequences;
    result->perplexity_old /= sequences;
    result->perplexity_ratio /= sequences;
}

weft_status weft_correction_weigh(weft_context *context, const weft_correction_batch *batch,
                                  const float *sampler, const float *old,
                                  const weft_correction_options *given, float *weights, uint8_t *kept,
                                  uint8_t *rejected, weft_correction_diagnostics *diagnostics_out) {
    weft_context_clear(context);
    weft_correction_options options;
    weft_status status =
        weft_sized_read(context, given, &options, sizeof options, "weft_correction_options");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, diagnostics_out, "weft_correction_diagnostics");
    }
    if (status == WEFT_OK) {
        status = weft_correction_check(context, &options);
    }
    if (status == WEFT_OK) {
        status = weft_correction_batch_check(context, batch);
    }
    if (status != WEFT_OK) {
        return status;
    }
    correction_run run = {
        .context = context,
        .batch = batch,
        .sampler = sampler,
        .old = old,
        .options = &options,
        .weights = weights,
        .kept = kept,
        .rejected = rejected,
        .function = correction_function_for(weft_cpu_level()),
        .rules = make_rules(&options),
        .least = INFINITY,
        .most = -INFINITY,
    };
    for (size_t s = 0; s < batch->sequences && status == WEFT_OK; s++) {
        status = weigh_sequence(&run, s);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (batch->sequences > 0) {
        normalise(&run);
    }
    finish(&run);
    weft_sized_write(&run.result, diagnostics_out, sizeof run.result);
    return WEFT_OK;
}
