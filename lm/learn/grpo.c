/* SPDX-License-Identifier: Apache-2.0
 *
 * grpo.c: see grpo.h.
 */
#include "grpo.h"

#include "../../lib/base/context.h"
#include "../model/pass.h"

#include <math.h>

typedef struct grpo_run {
    const lm_rollouts *rollouts;
    const lm_grpo_options *options;
    weft_objective_options objective;
    const float *old;
    float *advantages;
    float *reference; /* log-probabilities; NULL without a reference */
    float *logp;
    float *weights;
    uint8_t *kept;    /* of each token: it is trained */
    double *divisors; /* of each sequence's losses, in the update under way */
    size_t first;     /* sequence of the update under way */
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
        .correction = {.size = sizeof options.correction},
    };
    options.adam.rate = 1e-4;
    options.adam.warm_up = 0;
    return options;
}

/* ---- the loss of one token ---- */

static weft_token_loss lose(const grpo_run *run, size_t sequence, float logp, size_t token) {
    const float *reference = run->reference != NULL ? &run->reference[token] : NULL;
    return weft_objective_token(&run->objective, (double)run->advantages[sequence],
                                (double)run->weights[token], (double)run->old[token], (double)logp,
                                reference);
}

static void policy_slopes(void *opaque, size_t number, size_t length, const float *logp, float *slopes) {
    const grpo_run *run = opaque;
    size_t sequence = run->first + number;
    size_t start = run->rollouts->batch.starts[sequence];
    double share = run->divisors[number] > 0 ? 1 / run->divisors[number] : 0;
    for (size_t i = 0; i < length; i++) {
        slopes[i] = 0;
        if (run->kept[start + i] != 0) {
            slopes[i] = (float)(lose(run, sequence, logp[i], start + i).slope * share);
        }
    }
}

/* ---- one update ---- */

static void count_update(grpo_run *run, double norm) {
    lm_grpo_result *result = &run->result;
    for (size_t s = run->first; s < run->first + run->count; s++) {
        for (size_t i = run->rollouts->batch.starts[s]; i < run->rollouts->batch.starts[s + 1]; i++) {
            if (run->kept[i] != 0) {
                weft_token_loss token = lose(run, s, run->logp[i], i);
                result->loss += token.loss / run->divisors[s - run->first];
                result->clipped += token.clipped;
                result->ratio += fabs(token.log_ratio);
                result->kl += token.divergence;
                run->tokens += 1;
            }
        }
    }
    result->norm += norm;
    result->updates += 1;
}

/* Whether some token of the update has a loss that depends on the policy. */
static bool moves(const grpo_run *run) {
    bool moved = false;
    for (size_t s = run->first; s < run->first + run->count; s++) {
        for (size_t i = run->rollouts->batch.starts[s]; i < run->rollouts->batch.starts[s + 1]; i++) {
            bool weighed = run->advantages[s] != 0 && run->weights[i] != 0;
            moved = moved || (run->kept[i] != 0 && (weighed || run->reference != NULL));
        }
    }
    return moved;
}

/* Nothing to learn here; but where the gradient is shared, perhaps elsewhere. */
static weft_status run_empty(grpo_run *run, lm_trainer *trainer) {
    bool stepped = false;
    double norm = 0;
    weft_status status = lm_trainer_follow(trainer, &run->options->adam, &stepped, &norm);
    run->result.updates += stepped;
    run->result.skipped += !stepped;
    run->result.norm += norm;
    return status;
}

static weft_status run_update(grpo_run *run, lm_trainer *trainer) {
    if (!moves(run)) {
        return run_empty(run, trainer);
    }
    lm_batch batch = {
        .sequences = run->count,
        .starts = run->rollouts->batch.starts + run->first,
        .tokens = run->rollouts->batch.tokens,
    };
    double norm = 0;
    weft_correction_batch tokens = {batch.sequences, batch.starts, run->kept};
    weft_context *context = trainer->model->context;
    weft_status status = weft_objective_divisors(context, &tokens, &run->objective, run->divisors);
    if (status == WEFT_OK) {
        status = lm_trainer_step(trainer, &batch, run->options->temperature, policy_slopes, run,
                                 &run->options->adam, run->logp, &norm);
    }
    if (status == WEFT_OK) {
        count_update(run, norm);
    }
    return status;
}

/* ---- the step ---- */

static weft_status check_logp(weft_context *context, size_t sequence, float logp) {
    if (!(logp <= 0.01f) || !isfinite(logp)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "rollout %zu has %g for a log-probability",
                         sequence, (double)logp);
    }
    return WEFT_OK;
}

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
            status = check_logp(context, s, rollouts->logp[i]);
            if (status == WEFT_OK && rollouts->old != NULL) {
                status = check_logp(context, s, rollouts->old[i]);
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

/* Tokens of responses, less what the mask leaves out. */
static void find_trained(const lm_rollouts *rollouts, uint8_t *trained) {
    for (size_t s = 0; s < rollouts->batch.sequences; s++) {
        size_t start = rollouts->batch.starts[s];
        for (size_t i = start; i < rollouts->batch.starts[s + 1]; i++) {
            bool response = i - start >= rollouts->prompts[s];
            trained[i] = response && (rollouts->mask == NULL || rollouts->mask[i] != 0);
        }
    }
}

/* Weights, what is kept, and advantages. */
static weft_status correct(grpo_run *run, weft_context *context, size_t tokens) {
    const lm_rollouts *rollouts = run->rollouts;
    const lm_batch *batch = &rollouts->batch;
    uint8_t *trained = weft_allocate_array(context, tokens, sizeof *trained);
    uint8_t *rejected = weft_allocate_array(context, batch->sequences, sizeof *rejected);
    weft_status status = trained != NULL && rejected != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        find_trained(rollouts, trained);
        weft_correction_batch responses = {batch->sequences, batch->starts, trained};
        run->result.correction.size = sizeof run->result.correction;
        status =
            weft_correction_weigh(context, &responses, rollouts->logp, run->old, &run->options->correction,
                                  run->weights, run->kept, rejected, &run->result.correction);
    }
    if (status == WEFT_OK) {
        bool without = run->options->correction.baseline_excludes_rejected;
        status = weft_correction_advantages(context, rollouts->rewards, without ? rejected : NULL,
                                            batch->sequences, rollouts->group, run->options->normalise,
                                            run->advantages);
    }
    weft_release(context, rejected);
    weft_release(context, trained);
    return status;
}

static weft_status open_run(grpo_run *run, weft_context *context, size_t tokens) {
    size_t sequences = run->rollouts->batch.sequences;
    run->objective = (weft_objective_options){.size = sizeof(weft_objective_options),
                                              .clip_low = run->options->clip_low,
                                              .clip_high = run->options->clip_high,
                                              .kl = run->options->kl};
    run->old = run->rollouts->old != NULL ? run->rollouts->old : run->rollouts->logp;
    run->advantages = weft_allocate_array(context, sequences, sizeof *run->advantages);
    run->divisors = weft_allocate_array(context, sequences, sizeof *run->divisors);
    run->logp = weft_allocate_array(context, tokens, sizeof *run->logp);
    run->weights = weft_allocate_array(context, tokens, sizeof *run->weights);
    run->kept = weft_allocate_array(context, tokens, sizeof *run->kept);
    return run->advantages != NULL && run->divisors != NULL && run->logp != NULL && run->weights != NULL &&
                   run->kept != NULL
               ? WEFT_OK
               : WEFT_NO_MEMORY;
}

static void close_run(grpo_run *run, weft_context *context) {
    weft_release(context, run->reference);
    weft_release(context, run->kept);
    weft_release(context, run->weights);
    weft_release(context, run->logp);
    weft_release(context, run->divisors);
    weft_release(context, run->advantages);
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
    status = open_run(&run, context, tokens);
    if (status == WEFT_OK) {
        status = score_reference(&run, reference, context, tokens);
    }
    if (status == WEFT_OK) {
        status = correct(&run, context, tokens);
    }
    if (status == WEFT_OK) {
        size_t group = run.rollouts->group;
        size_t groups = run.rollouts->batch.sequences / group;
        size_t updates = run.options->updates < groups ? run.options->updates : groups;
        for (size_t i = 0; i < run.options->passes * updates && status == WEFT_OK; i++) {
            size_t part = i % updates;
            size_t begin = groups * part / updates;
            size_t end = groups * (part + 1) / updates;
            run.first = begin * group;
            run.count = (end - begin) * group;
            status = run_update(&run, trainer);
        }
    }
    close_run(&run, context);
    if (status == WEFT_OK) {
        finish_result(&run);
        *result_out = run.result;
    }
    return status;
}
