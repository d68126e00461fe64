/* SPDX-License-Identifier: Apache-2.0
 *
 * grpo.c: see grpo.h.
 */
#include "grpo.h"

#include "../lib/base/context.h"
#include "forward.h"

#include <math.h>

typedef struct grpo_run {
    const lm_rollouts *rollouts;
    const lm_grpo_options *options;
    float *advantages;
    float *reference; /* log-probabilities; NULL without a reference */
    float *logp;
    size_t first; /* sequence of the update under way */
    size_t count;
    size_t tokens; /* that were trained, over all updates */
    lm_grpo_result result;
} grpo_run;

lm_grpo_options lm_grpo_defaults(void) {
    lm_grpo_options options = {
        .adam = lm_adam_defaults(),
        .temperature = 1,
        .clip_low = 0.2,
        .clip_high = 0.28,
        .normalise = true,
        .updates = 2,
        .passes = 1,
    };
    options.adam.rate = 1e-4;
    options.adam.warm_up = 0;
    return options;
}

void lm_grpo_advantages(const float *rewards, size_t sequences, size_t group, bool normalise,
                        float *output) {
    for (size_t first = 0; first < sequences; first += group) {
        double sum = 0;
        double squares = 0;
        for (size_t i = first; i < first + group; i++) {
            sum += (double)rewards[i];
        }
        double mean = sum / (double)group;
        for (size_t i = first; i < first + group; i++) {
            squares += ((double)rewards[i] - mean) * ((double)rewards[i] - mean);
        }
        double scale = normalise && group > 1 ? 1 / (sqrt(squares / (double)(group - 1)) + 1e-6) : 1;
        for (size_t i = first; i < first + group; i++) {
            output[i] = (float)(((double)rewards[i] - mean) * scale);
        }
    }
}

/* ---- the loss of one token ---- */

typedef struct token_loss {
    double loss;
    double slope; /* by the log-probability */
    double log_ratio;
    double divergence;
    bool clipped;
} token_loss;

/* Ratios beyond any sense are cut before they overflow. */
static double bounded(double value) {
    const double most = 20;
    return value > most ? most : value < -most ? -most : value;
}

static token_loss lose(const grpo_run *run, double advantage, double logp, size_t token) {
    const lm_grpo_options *options = run->options;
    token_loss result = {.log_ratio = bounded(logp - (double)run->rollouts->logp[token])};
    double ratio = exp(result.log_ratio);
    result.clipped = advantage > 0 ? ratio > 1 + options->clip_high : ratio < 1 - options->clip_low;
    double limit = advantage > 0 ? 1 + options->clip_high : 1 - options->clip_low;
    result.loss = -(result.clipped ? limit : ratio) * advantage;
    result.slope = result.clipped ? 0 : -ratio * advantage;
    if (run->reference != NULL) {
        double distance = bounded((double)run->reference[token] - logp);
        result.divergence = exp(distance) - 1 - distance;
        result.loss += options->kl * result.divergence;
        result.slope += options->kl * (1 - exp(distance));
    }
    return result;
}

static bool counts(const lm_rollouts *rollouts, size_t sequence, size_t token) {
    size_t place = token - rollouts->batch.starts[sequence];
    return place >= rollouts->prompts[sequence] && (rollouts->mask == NULL || rollouts->mask[token] != 0);
}

static size_t trained_tokens(const lm_rollouts *rollouts, size_t sequence) {
    size_t count = 0;
    for (size_t i = rollouts->batch.starts[sequence]; i < rollouts->batch.starts[sequence + 1]; i++) {
        count += counts(rollouts, sequence, i);
    }
    return count;
}

static void policy_slopes(void *opaque, size_t number, size_t length, const float *logp, float *slopes) {
    const grpo_run *run = opaque;
    size_t sequence = run->first + number;
    size_t start = run->rollouts->batch.starts[sequence];
    size_t trained = trained_tokens(run->rollouts, sequence);
    double share = trained > 0 ? 1 / ((double)trained * (double)run->count) : 0;
    for (size_t i = 0; i < length; i++) {
        slopes[i] = 0;
        if (counts(run->rollouts, sequence, start + i)) {
            token_loss token = lose(run, (double)run->advantages[sequence], (double)logp[i], start + i);
            slopes[i] = (float)(token.slope * share);
        }
    }
}

/* ---- one update ---- */

static void count_update(grpo_run *run, double norm) {
    lm_grpo_result *result = &run->result;
    for (size_t s = run->first; s < run->first + run->count; s++) {
        size_t trained = trained_tokens(run->rollouts, s);
        for (size_t i = run->rollouts->batch.starts[s]; i < run->rollouts->batch.starts[s + 1]; i++) {
            if (counts(run->rollouts, s, i)) {
                token_loss token = lose(run, (double)run->advantages[s], (double)run->logp[i], i);
                result->loss += token.loss / ((double)trained * (double)run->count);
                result->clipped += token.clipped;
                result->ratio += fabs(token.log_ratio);
                result->kl += token.divergence;
            }
        }
        run->tokens += trained;
    }
    result->norm += norm;
    result->updates += 1;
}

static bool moves(const grpo_run *run) {
    bool moved = run->reference != NULL;
    for (size_t s = run->first; s < run->first + run->count; s++) {
        moved = moved || run->advantages[s] != 0;
    }
    return moved;
}

static weft_status run_update(grpo_run *run, lm_trainer *trainer) {
    if (!moves(run)) {
        run->result.skipped += 1;
        return WEFT_OK;
    }
    lm_batch batch = {
        .sequences = run->count,
        .starts = run->rollouts->batch.starts + run->first,
        .tokens = run->rollouts->batch.tokens,
    };
    double norm = 0;
    weft_status status = lm_trainer_step(trainer, &batch, run->options->temperature, policy_slopes, run,
                                         &run->options->adam, run->logp, &norm);
    if (status == WEFT_OK) {
        count_update(run, norm);
    }
    return status;
}

static weft_status run_updates(grpo_run *run, lm_trainer *trainer) {
    size_t group = run->rollouts->group;
    size_t groups = run->rollouts->batch.sequences / group;
    size_t updates = run->options->updates < groups ? run->options->updates : groups;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < run->options->passes * updates && status == WEFT_OK; i++) {
        size_t part = i % updates;
        size_t begin = groups * part / updates;
        size_t end = groups * (part + 1) / updates;
        run->first = begin * group;
        run->count = (end - begin) * group;
        status = run_update(run, trainer);
    }
    return status;
}

/* ---- the step ---- */

static weft_status check(const lm_trainer *trainer, const lm_rollouts *rollouts,
                         const lm_grpo_options *options, const lm_pass *reference) {
    weft_context *context = trainer->model->context;
    const lm_batch *batch = &rollouts->batch;
    if (rollouts->group < 1 || batch->sequences < 1 || batch->sequences % rollouts->group != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%zu sequences are not whole groups of %zu",
                         batch->sequences, rollouts->group);
    }
    if (options->updates < 1 || options->passes < 1 || options->passes > 1000 ||
        !(options->clip_low >= 0) || !(options->clip_high >= 0) || !(options->kl >= 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a policy step needs at least one update and one pass, and clips and a divergence "
                         "weight that are not negative");
    }
    if (options->kl > 0 && reference == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a divergence weight of %g needs a reference model", options->kl);
    }
    weft_status status = lm_batch_check(trainer->model, batch);
    for (size_t s = 0; s < batch->sequences && status == WEFT_OK; s++) {
        if (rollouts->prompts[s] < 1 || rollouts->prompts[s] > lm_batch_length(batch, s) ||
            !isfinite(rollouts->rewards[s])) {
            status =
                weft_fail(context, WEFT_INVALID_ARGUMENT,
                          "rollout %zu has a prompt of %zu tokens in %zu, and reward %g", s,
                          rollouts->prompts[s], lm_batch_length(batch, s), (double)rollouts->rewards[s]);
        }
        for (size_t i = batch->starts[s]; i < batch->starts[s + 1] && status == WEFT_OK; i++) {
            if (!(rollouts->logp[i] <= 0.01f) || !isfinite(rollouts->logp[i])) {
                status =
                    weft_fail(context, WEFT_INVALID_ARGUMENT, "rollout %zu has %g for a log-probability", s,
                              (double)rollouts->logp[i]);
            }
        }
    }
    return status;
}

static weft_status score_reference(grpo_run *run, lm_pass *reference, weft_context *context,
                                   size_t tokens) {
    if (reference == NULL || run->options->kl == 0) {
        return WEFT_OK;
    }
    run->reference = weft_allocate_array(context, tokens, sizeof *run->reference);
    if (run->reference == NULL) {
        return WEFT_NO_MEMORY;
    }
    return lm_score(reference, &run->rollouts->batch, run->options->temperature, run->reference);
}

static void finish_result(grpo_run *run) {
    lm_grpo_result *result = &run->result;
    size_t sequences = run->rollouts->batch.sequences;
    for (size_t s = 0; s < sequences; s++) {
        result->reward += (double)run->rollouts->rewards[s] / (double)sequences;
    }
    double tokens = run->tokens > 0 ? (double)run->tokens : 1;
    double updates = result->updates > 0 ? (double)result->updates : 1;
    result->clipped /= tokens;
    result->ratio /= tokens;
    result->kl /= tokens;
    result->loss /= updates;
    result->norm /= updates;
}

weft_status lm_grpo_step(lm_trainer *trainer, const lm_rollouts *rollouts, const lm_grpo_options *options,
                         lm_pass *reference, lm_grpo_result *result_out) {
    weft_context *context = trainer->model->context;
    weft_status status = check(trainer, rollouts, options, reference);
    if (status != WEFT_OK) {
        return status;
    }
    grpo_run run = {.rollouts = rollouts, .options = options};
    size_t tokens = rollouts->batch.starts[rollouts->batch.sequences];
    run.advantages = weft_allocate_array(context, rollouts->batch.sequences, sizeof *run.advantages);
    run.logp = weft_allocate_array(context, tokens, sizeof *run.logp);
    status = run.advantages != NULL && run.logp != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = score_reference(&run, reference, context, tokens);
    }
    if (status == WEFT_OK) {
        lm_grpo_advantages(rollouts->rewards, rollouts->batch.sequences, rollouts->group,
                           options->normalise, run.advantages);
        status = run_updates(&run, trainer);
    }
    weft_release(context, run.reference);
    weft_release(context, run.logp);
    weft_release(context, run.advantages);
    if (status == WEFT_OK) {
        finish_result(&run);
        *result_out = run.result;
    }
    return status;
}
