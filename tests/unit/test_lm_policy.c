/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_policy.c: the same seed gives the same run; a run that was stopped and resumed continues bit for
 * bit; the loss of a policy step against its definition, and its gradient against finite differences;
 * rollouts and states that do not fit are refused.
 */
#include "../../lib/base/context.h"
#include "../../lm/learn/state.h"
#include "../../lm/model/pass.h"
#include "../support/faults.h"
#include "../support/lessons.h"
#include "../support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Everything that a run leaves behind. */
static void assert_same_state(const lm_trainer *a, const lm_trainer *b) {
    size_t size = a->model->parameters * sizeof(float);
    assert_memory_equal(a->model->masters, b->model->masters, size);
    assert_memory_equal(a->model->values, b->model->values, size);
    assert_memory_equal(a->adam->first, b->adam->first, size);
    assert_memory_equal(a->adam->second, b->adam->second, size);
    assert_int_equal(a->adam->steps, b->adam->steps);
}

static void test_same_seed_same_run(void **state) {
    (void)state;
    lm_grpo_options options = lm_grpo_defaults();
    lm_trainer *trainers[3];
    for (unsigned i = 0; i < 3; i++) {
        trainers[i] = lesson_open(i + 1, &lesson_policy, i < 2 ? 5 : 6);
        lesson_warm_up(trainers[i], &lesson_addition, 2, 12);
        for (uint64_t step = 0; step < 4; step++) {
            lesson_step(trainers[i], &lesson_addition, &options, step);
        }
    }
    assert_same_state(trainers[0], trainers[1]);
    assert_memory_not_equal(trainers[0]->model->masters, trainers[2]->model->masters,
                            trainers[0]->model->parameters * sizeof(float));
    for (unsigned i = 0; i < 3; i++) {
        lesson_close(trainers[i]);
    }
}

/* Any success is enough here: one evaluation of the shorter chain, and then one after a single step. */
static void test_shorter_first(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 9);
    lm_warmup_options options = lm_warmup_defaults();
    lm_warmup_result result;
    options.success = 0;
    options.interval = 3;
    options.evaluation = 8;
    options.shorter = lesson_chain.period - 1;
    assert_int_equal(lm_warmup(trainer, &lesson_chain, &options, &result), WEFT_OK);
    assert_true(result.reached);
    assert_int_equal(result.steps, options.interval + 1);
    options.steps = 2; /* all of them for the shorter chain, which is not what was asked for */
    options.success = 2;
    assert_int_equal(lm_warmup(trainer, &lesson_chain, &options, &result), WEFT_OK);
    assert_true(!result.reached && result.steps == 2);
    options.shorter = lesson_chain.period;
    assert_int_equal(lm_warmup(trainer, &lesson_chain, &options, &result), WEFT_INVALID_ARGUMENT);
    lesson_close(trainer);
}

static void test_resume(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_grpo_options options = lm_grpo_defaults();
    lm_trainer *whole = lesson_open(1, &lesson_policy, 7), *resumed = lesson_open(2, &lesson_policy, 8);
    lm_progress progress = {.step = 3, .prompts = 3 * LESSON_PROMPTS, .task = lesson_addition}, back;
    progress.random = lm_random_open(1, 2);
    lm_random_next(&progress.random);
    lesson_warm_up(whole, &lesson_addition, 2, 10);
    for (uint64_t step = 0; step < 3; step++) {
        lesson_step(whole, &lesson_addition, &options, step);
    }
    const char *path = scratch_path(&scratch, "state.safetensors");
    assert_int_equal(lm_state_write(whole, &progress, path, true), WEFT_OK);
    assert_int_equal(lm_state_read(resumed, path, &back), WEFT_OK);
    assert_same_state(whole, resumed);
    assert_int_equal(back.step, 3);
    assert_int_equal(back.prompts, progress.prompts);
    assert_true(back.random.key == progress.random.key && back.random.count == 1);
    assert_int_equal(back.task.kind, LM_TASK_ADDITION);
    for (uint64_t step = 3; step < 6; step++) {
        lesson_step(whole, &lesson_addition, &options, step);
        lesson_step(resumed, &back.task, &options, step);
    }
    assert_same_state(whole, resumed);
    lesson_close(resumed);
    lesson_close(whole);
    scratch_close(&scratch);
}

static void refuse_state(lm_trainer *trainer, const char *path, weft_status status, const char *text) {
    lm_progress progress;
    float before = trainer->model->masters[3];
    assert_int_equal(lm_state_read(trainer, path, &progress), status);
    assert_true(before == trainer->model->masters[3]);
    if (strstr(weft_context_error(trainer->model->context), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, weft_context_error(trainer->model->context));
    }
}

static void test_bad_states(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_config other = lesson_policy;
    other.layers = 2;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 1), *larger = lesson_open(1, &other, 1);
    lm_progress progress = {.task = lesson_chain};
    assert_int_equal(lm_state_write(trainer, &progress, scratch_path(&scratch, "state"), false), WEFT_OK);
    refuse_state(larger, scratch_path(&scratch, "state"), WEFT_INVALID_ARGUMENT, "another architecture");
    size_t size = 0;
    char *bytes = scratch_read(&scratch, "state", &size);
    bytes[size - 5] ^= 1;
    scratch_write(&scratch, "flipped", bytes, size);
    refuse_state(trainer, scratch_path(&scratch, "flipped"), WEFT_DIGEST_MISMATCH, "damaged");
    scratch_write(&scratch, "short", bytes, size - 100);
    lm_progress none;
    assert_true(lm_state_read(trainer, scratch_path(&scratch, "short"), &none) < 0);
    assert_true(lm_state_read(trainer, scratch_path(&scratch, "absent"), &none) < 0);
    scratch_make_directory(&scratch, "model");
    assert_int_equal(lm_model_write(trainer->model, scratch_path(&scratch, "model"), false), WEFT_OK);
    refuse_state(trainer, scratch_path(&scratch, "model"), WEFT_MALFORMED, "no trainer's state");
    free(bytes);
    lesson_close(larger);
    lesson_close(trainer);
    scratch_close(&scratch);
}

static void test_model_files(void **state) {
    (void)state;
    scratch scratch;
    scratch_open(&scratch);
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 4);
    weft_context *context = trainer->model->context;
    scratch_make_directory(&scratch, "model");
    const char *path = scratch_path(&scratch, "model");
    assert_int_equal(lm_model_write(trainer->model, path, false), WEFT_OK);
    lm_config config;
    lm_model *worker = NULL, *wrong = NULL;
    size_t size = 0;
    char *text = scratch_read(&scratch, "model/config.json", &size);
    assert_int_equal(lm_config_parse(context, text, size, &config), WEFT_OK);
    free(text);
    assert_true(lm_config_equal(&config, &lesson_policy));
    assert_int_equal(lm_model_create(context, &config, LM_WORKER, &worker), WEFT_OK);
    assert_int_equal(lm_model_read(worker, path), WEFT_OK);
    assert_memory_equal(worker->values, trainer->model->values, worker->parameters * sizeof(float));
    config.tied = false;
    assert_int_equal(lm_model_create(context, &config, LM_WORKER, &wrong), WEFT_OK);
    assert_int_equal(lm_model_read(wrong, path), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "another architecture"));
    lm_model_destroy(wrong);
    config = lesson_policy;
    config.feed_forward = 65;
    assert_int_equal(lm_model_create(context, &config, LM_WORKER, &wrong), WEFT_OK);
    assert_int_equal(lm_model_read(wrong, path), WEFT_INVALID_ARGUMENT);
    lm_model_destroy(wrong);
    lm_model_destroy(worker);
    lesson_close(trainer);
    scratch_close(&scratch);
}

/* ---- the policy step ---- */

typedef struct hand {
    size_t starts[3];
    size_t prompts[2];
    lm_token tokens[8];
    float logp[8];
    float rewards[2];
    uint8_t mask[8];
    lm_rollouts rollouts;
} hand;

/* Two sequences of one group, with what the sampler said taken from the policy itself. */
static void deal(hand *hand, lm_trainer *trainer) {
    *hand = (struct hand){.starts = {0, 4, 8},
                          .prompts = {2, 1},
                          .tokens = {1, 2, 3, 4, 5, 6, 7, 8},
                          .rewards = {1, 0},
                          .mask = {1, 1, 1, 1, 1, 1, 1, 1}};
    hand->rollouts = (lm_rollouts){
        .batch = {2, hand->starts, hand->tokens},
        .prompts = hand->prompts,
        .logp = hand->logp,
        .rewards = hand->rewards,
        .mask = hand->mask,
        .group = 2,
    };
    assert_int_equal(lm_score(trainer->pass, &hand->rollouts.batch, 1, hand->logp), WEFT_OK);
}

static void test_step_by_definition(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 9);
    hand hand;
    deal(&hand, trainer);
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result;
    options.adam.rate = 0;
    options.updates = 1;
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result), WEFT_OK);
    assert_true(fabs(result.loss) < 1e-6 && result.ratio == 0 && result.clipped == 0);
    assert_true(result.norm > 0.01 && result.reward == 0.5);
    /* a ratio of 2 for a token of the good sequence, which is then clipped at 1.28 */
    hand.logp[2] -= (float)log(2);
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result), WEFT_OK);
    double advantage = 0.5 / (sqrt(0.5) + 1e-6);
    assert_true(fabs(result.loss + 0.5 * advantage * 0.5 * 0.28) < 1e-5);
    assert_true(fabs(result.clipped - 1.0 / 5) < 1e-9 && fabs(result.ratio - log(2) / 5) < 1e-6);
    hand.mask[2] = 0;
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result), WEFT_OK);
    assert_true(fabs(result.loss) < 1e-6 && result.clipped == 0);
    lesson_close(trainer);
}

/* The gradient of the whole loss, divergence included, against finite differences of the loss. */
static void test_step_gradient(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 9), *other = lesson_open(1, &lesson_policy, 10);
    hand hand;
    deal(&hand, trainer);
    for (size_t i = 0; i < 8; i++) {
        hand.logp[i] = fminf(hand.logp[i] + 0.05f * (float)((int)i % 3 - 1), 0);
    }
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result, above, below;
    options.adam.rate = 0;
    options.updates = 1;
    options.kl = 0.3;
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, other->pass, &result), WEFT_OK);
    assert_true(result.kl > 0);
    size_t count = trainer->model->parameters;
    float *gradient = calloc(count, sizeof *gradient), *masters = calloc(count, sizeof *masters);
    memcpy(gradient, trainer->gradient, count * sizeof *gradient);
    memcpy(masters, trainer->model->masters, count * sizeof *masters);
    /* to both sides along the gradient; what the model moves by is the cast of that, so that is what counts
     */
    double squares = 0, moved = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (double)gradient[i] * gradient[i];
    }
    for (int sign = 1; sign >= -1; sign -= 2) {
        for (size_t i = 0; i < count; i++) {
            trainer->model->masters[i] = masters[i] + (float)(sign * 0.02 / sqrt(squares)) * gradient[i];
        }
        assert_int_equal(lm_model_refresh(trainer->model), WEFT_OK);
        for (size_t i = 0; i < count; i++) {
            moved += sign * (double)gradient[i] * trainer->model->values[i];
        }
        assert_int_equal(
            lm_grpo_step(trainer, &hand.rollouts, &options, other->pass, sign > 0 ? &above : &below),
            WEFT_OK);
    }
    assert_true(fabs((above.loss - below.loss) - moved) < 0.05 * fabs(moved));
    free(masters);
    free(gradient);
    lesson_close(other);
    lesson_close(trainer);
}

static void test_no_advantage_no_step(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 9);
    hand hand;
    deal(&hand, trainer);
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result;
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result), WEFT_OK);
    float before = trainer->model->masters[0];
    hand.rewards[1] = 1;
    assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result), WEFT_OK);
    assert_true(result.skipped == 1 && result.updates == 0 && trainer->model->masters[0] == before);
    lesson_close(trainer);
}

static void test_bad_rollouts(void **state) {
    (void)state;
    lm_trainer *trainer = lesson_open(1, &lesson_policy, 9);
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result;
    hand hand;
    for (int fault = 0; fault < 7; fault++) {
        deal(&hand, trainer);
        options = lm_grpo_defaults();
        switch (fault) {
        case 0:
            hand.rollouts.group = 3;
            break;
        case 1:
            hand.prompts[1] = 5;
            break;
        case 2:
            hand.rewards[0] = NAN;
            break;
        case 3:
            hand.logp[3] = 1;
            break;
        case 4:
            hand.tokens[7] = 99;
            break;
        case 5:
            options.kl = 1;
            break;
        default:
            hand.logp[6] = -INFINITY;
            break;
        }
        assert_int_equal(lm_grpo_step(trainer, &hand.rollouts, &options, NULL, &result),
                         WEFT_INVALID_ARGUMENT);
    }
    lesson_close(trainer);
}

static weft_status whole_life(weft_context *context) {
    lm_trainer *trainer = NULL;
    lm_samples *samples = NULL;
    float rewards[4];
    lm_grpo_result result;
    lm_grpo_options options = lm_grpo_defaults();
    lm_rollout_options rollout = {.seed = 1, .prompts = 2, .group = 2, .temperature = 1};
    weft_status status = lm_trainer_create(context, &lesson_policy, &trainer);
    if (status == WEFT_OK) {
        status = lm_model_initialise(trainer->model, 1);
    }
    if (status == WEFT_OK) {
        status = lm_rollout(trainer->model, &lesson_addition, &rollout, rewards, &samples);
    }
    if (status == WEFT_OK) {
        rewards[0] = 1;
        lm_rollouts rollouts = {.batch = lm_samples_batch(samples),
                                .prompts = samples->prompts,
                                .logp = samples->logp,
                                .rewards = rewards,
                                .group = 2};
        options.kl = 0.1;
        status = lm_grpo_step(trainer, &rollouts, &options, trainer->pass, &result);
    }
    lm_samples_destroy(samples);
    lm_trainer_destroy(trainer);
    return status;
}

static void test_no_memory(void **state) {
    (void)state;
    faults faults = {0};
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        weft_context_options options = {
            .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 1};
        weft_context *context = NULL;
        weft_status status = weft_context_create(&options, &context);
        if (status == WEFT_OK) {
            status = whole_life(context);
        }
        assert_true(faults_fired(&faults) == (status == WEFT_NO_MEMORY));
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_run),
        cmocka_unit_test(test_shorter_first),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_bad_states),
        cmocka_unit_test(test_model_files),
        cmocka_unit_test(test_step_by_definition),
        cmocka_unit_test(test_step_gradient),
        cmocka_unit_test(test_no_advantage_no_step),
        cmocka_unit_test(test_bad_rollouts),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
