/* SPDX-License-Identifier: Apache-2.0
 *
 * warmup.c: see warmup.h. Examples and evaluations have prompts of their own, by other seeds.
 */
#include "warmup.h"

#include "../../lib/base/context.h"

#include <string.h>

typedef struct example_batch {
    size_t *starts;
    lm_token *tokens;
    float *logp;
    size_t prompt;  /* tokens of each prompt */
    size_t answers; /* tokens of all answers */
} example_batch;

lm_warmup_options lm_warmup_defaults(void) {
    lm_warmup_options options = {
        .adam = lm_adam_defaults(),
        .seed = 1,
        .batch = 128,
        .steps = 3000,
        .success = 0.55,
        .interval = 5,
        .evaluation = 256,
    };
    options.adam.rate = 1e-3;
    options.adam.beta2 = 0.99;
    return options;
}

static weft_status open_examples(weft_context *context, const lm_task *task, size_t count,
                                 example_batch *examples) {
    size_t most = lm_task_prompt_size(task) + lm_task_response_size(task);
    examples->prompt = lm_task_prompt_size(task);
    examples->starts = weft_allocate_array(context, count + 1, sizeof *examples->starts);
    examples->tokens = weft_allocate_array(context, count * most, sizeof *examples->tokens);
    examples->logp = weft_allocate_array(context, count * most, sizeof *examples->logp);
    if (examples->starts == NULL || examples->tokens == NULL || examples->logp == NULL) {
        return WEFT_NO_MEMORY;
    }
    return WEFT_OK;
}

static void close_examples(weft_context *context, example_batch *examples) {
    weft_release(context, examples->logp);
    weft_release(context, examples->tokens);
    weft_release(context, examples->starts);
}

static void make_examples(const lm_task *task, uint64_t seed, uint64_t first, size_t count,
                          example_batch *examples) {
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        lm_token *tokens = examples->tokens + end;
        examples->starts[i] = end;
        lm_task_prompt(task, seed, first + i, tokens);
        end += examples->prompt + lm_task_answer(task, tokens, examples->prompt, tokens + examples->prompt);
    }
    examples->starts[count] = end;
    examples->answers = end - count * examples->prompt;
}

/* The loss is the mean of -logp over all tokens of answers. */
static void answer_slopes(void *opaque, size_t sequence, size_t length, const float *logp, float *slopes) {
    (void)sequence;
    (void)logp;
    const example_batch *examples = opaque;
    float share = -1.0f / (float)examples->answers;
    for (size_t i = 0; i < length; i++) {
        slopes[i] = i < examples->prompt ? 0 : share;
    }
}

static double answer_loss(const example_batch *examples, size_t count) {
    double sum = 0;
    for (size_t s = 0; s < count; s++) {
        for (size_t i = examples->starts[s] + examples->prompt; i < examples->starts[s + 1]; i++) {
            sum -= (double)examples->logp[i];
        }
    }
    return sum / (double)examples->answers;
}

static weft_status run_step(lm_trainer *trainer, const lm_task *task, const lm_warmup_options *options,
                            example_batch *examples, lm_warmup_result *result) {
    make_examples(task, options->seed, result->steps * options->batch, options->batch, examples);
    lm_batch batch = {.sequences = options->batch, .starts = examples->starts, .tokens = examples->tokens};
    weft_status status =
        lm_trainer_step(trainer, &batch, 1, answer_slopes, examples, &options->adam, examples->logp, NULL);
    if (status == WEFT_OK) {
        result->steps += 1;
        result->loss = answer_loss(examples, options->batch);
    }
    return status;
}

static weft_status evaluate(lm_trainer *trainer, const lm_task *task, const lm_warmup_options *options,
                            lm_warmup_result *result) {
    lm_rollout_options rollout = {
        .seed = options->seed + UINT64_C(0x5eed000000000000),
        .first = result->steps * options->evaluation,
        .prompts = options->evaluation,
        .group = 1,
        .temperature = 1,
    };
    weft_status status = lm_evaluate(trainer->model, task, &rollout, &result->success);
    if (status == WEFT_OK) {
        result->reached = result->success >= options->success;
        if (options->watcher != NULL &&
            !options->watcher(options->opaque, result->steps, result->loss, result->success)) {
            status = weft_fail(trainer->model->context, WEFT_CANCELLED, "the warm-up was stopped");
        }
    }
    return status;
}

static weft_status check(weft_context *context, const lm_warmup_options *options) {
    enum { BATCH_MAX = 1 << 16 };
    if (options->batch < 1 || options->batch > BATCH_MAX || options->interval < 1 ||
        options->evaluation < 1) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a warm-up needs a batch of 1 to %d, and an interval and prompts for evaluation",
                         BATCH_MAX);
    }
    return WEFT_OK;
}

/* Until the success is reached, or there were as many steps as there may be. */
static weft_status learn(lm_trainer *trainer, const lm_task *task, const lm_warmup_options *options,
                         uint64_t interval, lm_warmup_result *result) {
    weft_context *context = trainer->model->context;
    example_batch examples = {0};
    weft_status status = lm_task_check(context, task);
    if (status == WEFT_OK) {
        status = open_examples(context, task, options->batch, &examples);
    }
    result->reached = false;
    while (status == WEFT_OK && result->steps < options->steps && !result->reached) {
        status = run_step(trainer, task, options, &examples, result);
        if (status == WEFT_OK && (result->steps % interval == 0 || result->steps == options->steps)) {
            status = evaluate(trainer, task, options, result);
        }
    }
    close_examples(context, &examples);
    return status;
}

weft_status lm_warmup(lm_trainer *trainer, const lm_task *task, const lm_warmup_options *options,
                      lm_warmup_result *result_out) {
    lm_task shorter = *task;
    lm_warmup_result result = {0};
    weft_status status = check(trainer->model->context, options);
    if (status == WEFT_OK && options->shorter > 0) {
        shorter.steps = options->shorter;
        status = learn(trainer, &shorter, options, options->interval, &result);
    }
    if (status == WEFT_OK) {
        status = learn(trainer, task, options, options->shorter > 0 ? 1 : options->interval, &result);
    }
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}
