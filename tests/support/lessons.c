/* SPDX-License-Identifier: Apache-2.0
 *
 * lessons.c: see lessons.h.
 */
#include "lessons.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

const lm_config lesson_policy = {
    .vocabulary = 16,
    .width = 32,
    .layers = 1,
    .heads = 2,
    .kv_heads = 1,
    .feed_forward = 64,
    .context = 16,
    .tied = true,
    .rope_base = 100,
    .norm_epsilon = 1e-5,
};

const lm_task lesson_addition = {.kind = LM_TASK_ADDITION, .digits = 1};
const lm_task lesson_chain = {.kind = LM_TASK_CHAIN, .steps = 3, .period = 2};

lm_trainer *lesson_open(unsigned threads, const lm_config *config, uint64_t seed) {
    weft_context_options options = {.size = sizeof options, .threads = threads};
    weft_context *context = NULL;
    lm_trainer *trainer = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(lm_trainer_create(context, config, &trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(trainer->model, seed), WEFT_OK);
    return trainer;
}

void lesson_close(lm_trainer *trainer) {
    weft_context *context = trainer->model->context;
    lm_trainer_destroy(trainer);
    weft_context_destroy(context);
}

double lesson_step(lm_trainer *trainer, const lm_task *task, const lm_grpo_options *options,
                   uint64_t step) {
    float rewards[LESSON_PROMPTS * LESSON_GROUP];
    lm_samples *samples = NULL;
    lm_grpo_result result;
    lm_rollout_options rollout = {
        .seed = 11,
        .first = step * LESSON_PROMPTS,
        .prompts = LESSON_PROMPTS,
        .group = LESSON_GROUP,
        .temperature = 1,
    };
    assert_int_equal(lm_rollout(trainer->model, task, &rollout, rewards, &samples), WEFT_OK);
    lm_rollouts rollouts = {
        .batch = lm_samples_batch(samples),
        .prompts = samples->prompts,
        .logp = samples->logp,
        .rewards = rewards,
        .group = LESSON_GROUP,
    };
    assert_int_equal(lm_grpo_step(trainer, &rollouts, options, NULL, &result), WEFT_OK);
    lm_samples_destroy(samples);
    return result.reward;
}

lm_warmup_result lesson_warm_up(lm_trainer *trainer, const lm_task *task, double success, uint64_t steps) {
    lm_warmup_options options = lm_warmup_defaults();
    lm_warmup_result result = {0};
    options.adam.rate = 4e-3;
    options.batch = 64;
    options.success = success;
    options.steps = steps;
    assert_int_equal(lm_warmup(trainer, task, &options, &result), WEFT_OK);
    return result;
}
