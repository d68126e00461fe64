/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_learning_slow.c: a tiny policy learns a tiny task: from right answers until it succeeds
 * sometimes, then from rewards alone; and a small one learns to add numbers of several digits.
 */
#include "../../lm/model/presets.h"
#include "../support/lessons.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_learns(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(2, &lesson_policy, 1);
    lm_warmup_result warm = lesson_warm_up(trainer, &lesson_addition, 0.4, 1500);
    assert_true(warm.reached && warm.success >= 0.4 && warm.loss < 1.5);
    lm_grpo_options options = lm_grpo_defaults();
    options.adam.rate = 5e-4;
    lm_adam_reset(trainer->adam);
    lm_rollout_options fresh = {.seed = 99, .prompts = 500, .group = 1, .temperature = 1};
    double before = 0, after = 0;
    assert_int_equal(lm_evaluate(trainer->model, &lesson_addition, &fresh, &before), WEFT_OK);
    for (uint64_t step = 0; step < 400; step++) {
        lesson_step(trainer, &lesson_addition, &options, step);
    }
    assert_int_equal(lm_evaluate(trainer->model, &lesson_addition, &fresh, &after), WEFT_OK);
    print_message("warm-up %llu steps, reward %.3f, after policy steps %.3f\n",
                  (unsigned long long)warm.steps, before, after);
    assert_true(after > before + 0.15);
    lesson_close(trainer);
}

/* Numbers of several digits, whose carries must be learned: right answers alone are enough. Three digits
 * take four times as many steps as two, and come with WEFT_SOAK. */
static void test_learns_addition(void **state) {
    (void)state;
    for (uint32_t digits = 2; digits <= (getenv("WEFT_SOAK") != NULL ? 3u : 2u); digits++) {
        lm_task task = {.kind = LM_TASK_ADDITION, .digits = digits};
        lm_trainer *trainer = lesson_open(2, &lm_presets[0].config, 1);
        lm_warmup_options options = lm_warmup_defaults();
        lm_warmup_result result;
        options.adam.rate = 2e-3;
        options.interval = 30;
        options.success = 0.6;
        assert_int_equal(lm_warmup(trainer, &task, &options, &result), WEFT_OK);
        print_message("%u digits: %llu steps, success %.3f\n", digits, (unsigned long long)result.steps,
                      result.success);
        assert_true(result.reached);
        lesson_close(trainer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_learns_addition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
