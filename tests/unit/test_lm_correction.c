/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_correction.c: policy steps with a correction. Where sampler and old policy agree, a corrected run
 * is the uncorrected one, bit for bit, with every preset; a batch that is rejected as a whole leaves
 * weights and optimizer alone; the gradient of the corrected loss is that of finite differences.
 */
#include "../../lm/learn/grpo.h"
#include "../../lm/model/pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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
static const char *const presets[] = {"none", "paper", "released", "tis", "mis", "icepop"};

enum { PROMPTS = 8, GROUP = 4, ROLLOUTS = PROMPTS * GROUP, MOST = ROLLOUTS * 16 };

static lm_trainer *open_trainer(uint64_t seed) {
    weft_context *context = NULL;
    lm_trainer *trainer = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(lm_trainer_create(context, &tiny, &trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(trainer->model, seed), WEFT_OK);
    return trainer;
}

static void close_trainer(lm_trainer *trainer) {
    weft_context *context = trainer->model->context;
    lm_trainer_destroy(trainer);
    weft_context_destroy(context);
}

static void assert_same_state(const lm_trainer *a, const lm_trainer *b) {
    size_t size = a->model->parameters * sizeof(float);
    assert_memory_equal(a->model->masters, b->model->masters, size);
    assert_memory_equal(a->adam->first, b->adam->first, size);
    assert_memory_equal(a->adam->second, b->adam->second, size);
    assert_int_equal(a->adam->steps, b->adam->steps);
}

/* Responses of the policy, whose rewards are made to differ, and what the old policy says of them. */
typedef struct scene {
    lm_samples *samples;
    float rewards[ROLLOUTS];
    float old[MOST];
    lm_rollouts rollouts;
} scene;

static void play(scene *scene, lm_trainer *trainer, uint64_t step) {
    lm_rollout_options options = {
        .seed = 3, .first = step * PROMPTS, .prompts = PROMPTS, .group = GROUP, .temperature = 1};
    assert_int_equal(lm_rollout(trainer->model, &addition, &options, scene->rewards, &scene->samples),
                     WEFT_OK);
    for (size_t i = 0; i < ROLLOUTS; i++) {
        scene->rewards[i] += (float)(i * 7 % 5);
    }
    scene->rollouts = (lm_rollouts){
        .batch = lm_samples_batch(scene->samples),
        .prompts = scene->samples->prompts,
        .logp = scene->samples->logp,
        .old = scene->old,
        .rewards = scene->rewards,
        .group = GROUP,
    };
    assert_int_equal(lm_score(trainer->pass, &scene->rollouts.batch, 1, scene->old), WEFT_OK);
}

static void choose(lm_trainer *trainer, const char *preset, lm_grpo_options *options) {
    *options = lm_grpo_defaults();
    options->updates = 2;
    assert_int_equal(weft_correction_preset(trainer->model->context, preset, &options->correction),
                     WEFT_OK);
}

static void test_agreement_changes_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        lm_trainer *plain = open_trainer(5), *corrected = open_trainer(5);
        lm_grpo_options options = lm_grpo_defaults(), corrects;
        choose(corrected, presets[i], &corrects);
        corrects.correction.level = (weft_correction_level)(i % 3);
        corrects.correction.baseline_excludes_rejected = i % 2;
        for (uint64_t step = 0; step < 3; step++) {
            lm_grpo_result result, other;
            scene scene;
            play(&scene, plain, step);
            scene.rollouts.old = NULL;
            assert_int_equal(lm_grpo_step(plain, &scene.rollouts, &options, NULL, &result), WEFT_OK);
            lm_samples_destroy(scene.samples);
            play(&scene, corrected, step);
            assert_int_equal(lm_grpo_step(corrected, &scene.rollouts, &corrects, NULL, &other), WEFT_OK);
            lm_samples_destroy(scene.samples);
            assert_true(result.updates == 2 && result.loss == other.loss && result.norm == other.norm);
            assert_true(other.correction.ratio_mean == 1 && other.correction.rejected == 0);
        }
        assert_same_state(plain, corrected);
        close_trainer(corrected);
        close_trainer(plain);
    }
}

/* With momentum in the optimizer, and with a reference, whose divergence is not of what is rejected. */
static void test_all_rejected(void **state) {
    (void)state;
    lm_trainer *trainer = open_trainer(6), *untouched = open_trainer(6), *reference = open_trainer(7);
    lm_grpo_options options;
    lm_grpo_result result;
    scene scene;
    for (int i = 0; i < 2; i++) {
        lm_trainer *one = i == 0 ? trainer : untouched;
        choose(one, "paper", &options);
        play(&scene, one, 0);
        assert_int_equal(lm_grpo_step(one, &scene.rollouts, &options, NULL, &result), WEFT_OK);
        assert_int_equal(result.updates, 2);
        lm_samples_destroy(scene.samples);
    }
    play(&scene, trainer, 1);
    for (size_t s = 0; s < ROLLOUTS; s++) {
        scene.old[scene.samples->starts[s] + scene.samples->prompts[s]] -= 12;
    }
    options.kl = 0.1;
    assert_int_equal(lm_grpo_step(trainer, &scene.rollouts, &options, reference->pass, &result), WEFT_OK);
    assert_true(result.updates == 0 && result.skipped == 2 && result.loss == 0 && result.norm == 0);
    assert_int_equal(result.correction.rejected, ROLLOUTS);
    assert_same_state(trainer, untouched);
    lm_samples_destroy(scene.samples);
    close_trainer(reference);
    close_trainer(untouched);
    close_trainer(trainer);
}

/* One rejected response: the others' steps do not depend on what it was. */
static void test_rejected_has_no_part(void **state) {
    (void)state;
    lm_trainer *trainers[2] = {open_trainer(8), open_trainer(8)};
    for (size_t i = 0; i < 2; i++) {
        lm_grpo_options options;
        lm_grpo_result result;
        scene scene;
        choose(trainers[i], "paper", &options);
        options.correction.baseline_excludes_rejected = true;
        play(&scene, trainers[i], 0);
        size_t first = scene.samples->starts[3] + scene.samples->prompts[3];
        scene.old[first] -= 12 + (float)i;
        scene.rewards[3] += (float)i;
        assert_int_equal(lm_grpo_step(trainers[i], &scene.rollouts, &options, NULL, &result), WEFT_OK);
        assert_true(result.correction.vetoed == 1 && result.correction.rejected == 1);
        lm_samples_destroy(scene.samples);
    }
    assert_same_state(trainers[0], trainers[1]);
    close_trainer(trainers[1]);
    close_trainer(trainers[0]);
}

/* The loss to both sides along the gradient; what the model moves by is the cast of that. */
static void test_gradient(void **state) {
    (void)state;
    for (size_t p = 1; p < sizeof presets / sizeof presets[0]; p++) {
        lm_trainer *trainer = open_trainer(9), *other = open_trainer(10);
        lm_grpo_options options;
        lm_grpo_result result, sides[2];
        scene scene;
        choose(trainer, presets[p], &options);
        options.adam.rate = 0;
        options.updates = 1;
        options.kl = 0.3;
        play(&scene, trainer, 0);
        for (size_t i = 0; i < scene.samples->starts[ROLLOUTS]; i++) {
            scene.old[i] = fminf(scene.old[i] + 0.05f * (float)((int)i % 3 - 1), 0);
            scene.samples->logp[i] = fminf(scene.old[i] + 0.3f * (float)((int)i % 5 - 2), 0);
        }
        assert_int_equal(lm_grpo_step(trainer, &scene.rollouts, &options, other->pass, &result), WEFT_OK);
        assert_true(result.correction.ratio_deviation > 0.1);
        size_t count = trainer->model->parameters;
        float *gradient = calloc(count, sizeof *gradient), *masters = calloc(count, sizeof *masters);
        memcpy(gradient, trainer->gradient, count * sizeof *gradient);
        memcpy(masters, trainer->model->masters, count * sizeof *masters);
        double squares = 0, moved = 0;
        for (size_t i = 0; i < count; i++) {
            squares += (double)gradient[i] * gradient[i];
        }
        for (int side = 0; side < 2; side++) {
            double sign = side == 0 ? 1 : -1;
            for (size_t i = 0; i < count; i++) {
                trainer->model->masters[i] =
                    masters[i] + (float)(sign * 0.02 / sqrt(squares)) * gradient[i];
            }
            assert_int_equal(lm_model_refresh(trainer->model), WEFT_OK);
            for (size_t i = 0; i < count; i++) {
                moved += sign * (double)gradient[i] * trainer->model->values[i];
            }
            assert_int_equal(lm_grpo_step(trainer, &scene.rollouts, &options, other->pass, &sides[side]),
                             WEFT_OK);
        }
        assert_true(fabs((sides[0].loss - sides[1].loss) - moved) < 0.05 * fabs(moved));
        free(masters);
        free(gradient);
        lm_samples_destroy(scene.samples);
        close_trainer(other);
        close_trainer(trainer);
    }
}

static void test_refused_old_policy(void **state) {
    (void)state;
    lm_trainer *trainer = open_trainer(11);
    lm_grpo_options options;
    lm_grpo_result result;
    scene scene;
    choose(trainer, "tis", &options);
    play(&scene, trainer, 0);
    scene.old[5] = NAN;
    assert_int_equal(lm_grpo_step(trainer, &scene.rollouts, &options, NULL, &result),
                     WEFT_INVALID_ARGUMENT);
    scene.old[5] = -1;
    options.correction.upper = -1;
    assert_int_equal(lm_grpo_step(trainer, &scene.rollouts, &options, NULL, &result),
                     WEFT_INVALID_ARGUMENT);
    lm_samples_destroy(scene.samples);
    close_trainer(trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agreement_changes_nothing), cmocka_unit_test(test_all_rejected),
        cmocka_unit_test(test_rejected_has_no_part),      cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_refused_old_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
