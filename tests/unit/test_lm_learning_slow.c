/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_learning_slow.c: a tiny policy learns a tiny task: from right answers until it succeeds
 * sometimes, then from rewards alone.
 */
#include "../../lm/grpo.h"
#include "../../lm/warmup.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const lm_config tiny = {
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

static const lm_task addition = {.kind = LM_TASK_ADDITION, .digits = 1};

enum { PROMPTS = 16, GROUP = 4, ROLLOUTS = PROMPTS * GROUP };

static lm_trainer *open_trainer(unsigned threads, const lm_config *config, uint64_t seed) {
    weft_context_options options = {.threads = threads};
    weft_context *context = NULL;
    lm_trainer *trainer = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(lm_trainer_create(context, config, &trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(trainer->model, seed), WEFT_OK);
    return trainer;
}

static void close_trainer(lm_trainer *trainer) {
    weft_context *context = trainer->model->context;
    lm_trainer_destroy(trainer);
    weft_context_destroy(context);
}

/* Rolls out and learns from it. */
static double policy_step(lm_trainer *trainer, const lm_task *task, const lm_grpo_options *options,
                          uint64_t step) {
    float rewards[ROLLOUTS];
    lm_samples *samples = NULL;
    lm_grpo_result result;
    lm_rollout_options rollout = {
        .seed = 11, .first = step * PROMPTS, .prompts = PROMPTS, .group = GROUP, .temperature = 1};
    assert_int_equal(lm_rollout(trainer->model, task, &rollout, rewards, &samples), WEFT_OK);
    lm_rollouts rollouts = {
        .batch = lm_samples_batch(samples),
        .prompts = samples->prompts,
        .logp = samples->logp,
        .rewards = rewards,
        .group = GROUP,
    };
    assert_int_equal(lm_grpo_step(trainer, &rollouts, options, NULL, &result), WEFT_OK);
    lm_samples_destroy(samples);
    return result.reward;
}

static lm_warmup_result warm_up(lm_trainer *trainer, const lm_task *task, double success, uint64_t steps) {
    lm_warmup_options options = lm_warmup_defaults();
    lm_warmup_result result = {0};
    options.adam.rate = 4e-3;
    options.batch = 64;
    options.success = success;
    options.steps = steps;
    assert_int_equal(lm_warmup(trainer, task, &options, &result), WEFT_OK);
    return result;
}

static void test_learns(void **state) {
    (void)state;
    lm_trainer *trainer = open_trainer(2, &tiny, 1);
    lm_warmup_result warm = warm_up(trainer, &addition, 0.4, 1500);
    assert_true(warm.reached && warm.success >= 0.4 && warm.loss < 1.5);
    lm_grpo_options options = lm_grpo_defaults();
    options.adam.rate = 5e-4;
    lm_adam_reset(trainer->adam);
    lm_rollout_options fresh = {.seed = 99, .prompts = 500, .group = 1, .temperature = 1};
    double before = 0, after = 0;
    assert_int_equal(lm_evaluate(trainer->model, &addition, &fresh, &before), WEFT_OK);
    for (uint64_t step = 0; step < 400; step++) {
        policy_step(trainer, &addition, &options, step);
    }
    assert_int_equal(lm_evaluate(trainer->model, &addition, &fresh, &after), WEFT_OK);
    print_message("warm-up %llu steps, reward %.3f, after policy steps %.3f\n",
                  (unsigned long long)warm.steps, before, after);
    assert_true(after > before + 0.15);
    close_trainer(trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
