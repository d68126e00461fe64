/* SPDX-License-Identifier: Apache-2.0
 *
 * test_train_study.c: rounds of several trainers against rounds that are computed here, weight by weight,
 * in the order in which weft/loco.h has them: one trainer whose gate is open makes DiLoCo's bits, several
 * with the gate and error feedback those of PULSELoCo.
 */
#include "../../lib/base/context.h"
#include "../../train/study.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 3 };

static const lm_config config = {16, 32, 1, 2, 2, 48, 32, true, 10000, 1e-5};

static train_study_options usual(train_study_way way, uint32_t trainers) {
    train_study_options options = {
        .way = way,
        .trainers = trainers,
        .local_steps = 2,
        .rounds = 3,
        .rate = 0.7,
        .momentum = 0.9,
        .task = {.kind = LM_TASK_CHAIN, .steps = 5, .period = 2},
        .grpo = lm_grpo_defaults(),
        .seed = 3,
        .prompts = 8,
        .group = 4,
        .evaluation = 8,
    };
    options.grpo.adam.rate = 1e-4;
    return options;
}

static lm_trainer *make_trainer(weft_context *context) {
    lm_trainer *trainer = NULL;
    assert_int_equal(lm_trainer_create(context, &config, &trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(trainer->model, 5), WEFT_OK);
    return trainer;
}

static uint16_t round_to_bf16(float value) {
    uint16_t word;
    weft_bf16_from_f32(&value, &word, 1);
    return word;
}

/* What a rank has to say about its weights, added to `sum`. */
static void gate(const float *consensus, const float *local, float *residual, float *sum, size_t count,
                 bool open) {
    for (size_t i = 0; i < count; i++) {
        volatile float moved = consensus[i] - local[i];
        volatile float whole = residual[i] + moved;
        volatile float after = consensus[i] - whole;
        bool fires = open || round_to_bf16(consensus[i]) != round_to_bf16(after);
        residual[i] = fires ? 0 : whole;
        sum[i] += fires ? whole : 0;
    }
}

static void move(float *consensus, float *momentum, const float *sum, size_t count, uint32_t ranks) {
    for (size_t i = 0; i < count; i++) {
        volatile float mean = sum[i] / (float)ranks;
        volatile float kept = 0.9f * momentum[i];
        volatile float all = kept + mean;
        volatile float ahead = 0.9f * all;
        volatile float step = mean + ahead;
        volatile float scaled = 0.7f * step;
        momentum[i] = all;
        consensus[i] = consensus[i] - scaled;
    }
}

static void local_step(lm_trainer *trainer, lm_model *sampler, const train_study_options *options,
                       uint64_t batch) {
    float rewards[64];
    lm_samples *samples = NULL;
    lm_grpo_result learned;
    const lm_rollout_options rollout = {.seed = options->seed,
                                        .first = batch * options->prompts,
                                        .prompts = options->prompts,
                                        .group = options->group,
                                        .temperature = 1};
    assert_int_equal(lm_rollout(sampler, &options->task, &rollout, rewards, &samples), WEFT_OK);
    const lm_rollouts rollouts = {.batch = lm_samples_batch(samples),
                                  .prompts = samples->prompts,
                                  .logp = samples->logp,
                                  .rewards = rewards,
                                  .group = options->group};
    assert_int_equal(lm_grpo_step(trainer, &rollouts, &options->grpo, NULL, &learned), WEFT_OK);
    lm_samples_destroy(samples);
}

/* The digest that a rank would give these weights. */
static weft_digest digest_of(weft_context *context, lm_trainer *trainer, uint32_t ranks) {
    weft_loco_tensor tensors[64];
    const lm_model *model = trainer->model;
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    weft_loco *loco = NULL;
    assert_true(model->weight_count <= 64);
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        tensors[i] = (weft_loco_tensor){weight->name, model->masters + weight->offset,
                                        weight->rows * weight->columns};
    }
    options.ranks = ranks;
    assert_int_equal(weft_loco_create(context, &options, tensors, model->weight_count, &loco), WEFT_OK);
    weft_digest digest = weft_loco_digest(loco);
    weft_loco_destroy(loco);
    return digest;
}

/* A rank goes to where the consensus would be if all had learned what it has; `ahead` keeps that. */
static void go_ahead(lm_trainer *trainer, const float *consensus, const float *momentum, float *ahead) {
    size_t count = lm_config_parameters(&config);
    float *masters = trainer->model->masters;
    float *learned = calloc(count, sizeof(float)), *moved = calloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++) {
        volatile float own = consensus[i] - masters[i];
        learned[i] = own;
    }
    memcpy(ahead, consensus, count * sizeof(float));
    memcpy(moved, momentum, count * sizeof(float));
    move(ahead, moved, learned, count, 1);
    memcpy(masters, ahead, count * sizeof(float));
    assert_int_equal(lm_model_refresh(trainer->model), WEFT_OK);
    free(learned);
    free(moved);
}

/* The consensus moves; and each rank, which was at `ahead` when it had said its part, is then ahead of it
 * by what it has learned since. */
static void end_round(lm_trainer *const *ranks, const train_study_options *options, float *consensus,
                      float *momentum, const float *sum, const float *ahead) {
    size_t count = lm_config_parameters(&config);
    move(consensus, momentum, sum, count, options->trainers);
    for (uint32_t r = 0; r < options->trainers; r++) {
        float *masters = ranks[r]->model->masters;
        for (size_t i = 0; i < count; i++) {
            volatile float moved = masters[i] - ahead[r * count + i];
            masters[i] = consensus[i] + moved;
        }
        assert_int_equal(lm_model_refresh(ranks[r]->model), WEFT_OK);
    }
}

/* The consensus in the end, by computing every rank's rounds here. */
static weft_digest expect(weft_context *context, const train_study_options *options, bool open) {
    lm_trainer *ranks[MOST] = {NULL};
    lm_trainer *agreed = make_trainer(context);
    lm_model *sampler = NULL;
    size_t count = lm_config_parameters(&config);
    float *consensus = calloc(count, sizeof(float)), *momentum = calloc(count, sizeof(float));
    float *residual = calloc(MOST * count, sizeof(float)), *sum = calloc(count, sizeof(float));
    float *ahead = calloc(MOST * count, sizeof(float));
    assert_int_equal(lm_model_create(context, &config, LM_WORKER, &sampler), WEFT_OK);
    for (uint32_t r = 0; r < options->trainers; r++) {
        ranks[r] = make_trainer(context);
    }
    memcpy(consensus, ranks[0]->model->masters, count * sizeof(float));
    for (uint64_t round = 0; round < options->rounds; round++) {
        memcpy(agreed->model->masters, consensus, count * sizeof(float));
        assert_int_equal(lm_model_refresh(agreed->model), WEFT_OK);
        assert_int_equal(lm_model_copy(sampler, agreed->model), WEFT_OK);
        for (uint32_t r = 0; r < options->trainers; r++) {
            for (uint64_t i = 0; i < options->local_steps; i++) {
                uint64_t step = round * options->local_steps + i;
                local_step(ranks[r], sampler, options, step * options->trainers + r);
            }
        }
        if (options->overlap && round > 0) {
            end_round(ranks, options, consensus, momentum, sum, ahead);
        }
        memset(sum, 0, count * sizeof(float));
        for (uint32_t r = 0; r < options->trainers; r++) {
            gate(consensus, ranks[r]->model->masters, residual + r * count, sum, count, open);
            go_ahead(ranks[r], consensus, momentum, ahead + r * count);
        }
        if (!options->overlap || round + 1 == options->rounds) {
            end_round(ranks, options, consensus, momentum, sum, ahead);
        }
    }
    weft_digest digest = digest_of(context, ranks[0], options->trainers);
    for (uint32_t r = 0; r < options->trainers; r++) {
        lm_trainer_destroy(ranks[r]);
    }
    lm_trainer_destroy(agreed);
    lm_model_destroy(sampler);
    free(ahead);
    free(consensus);
    free(momentum);
    free(residual);
    free(sum);
    return digest;
}

static train_study_result study(weft_context *context, const train_study_options *options) {
    lm_trainer *source = make_trainer(context);
    train_study_result result;
    assert_int_equal(train_study_run(source, options, &result), WEFT_OK);
    lm_trainer_destroy(source);
    return result;
}

static void check_options(const train_study_options *options, bool open) {
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    train_study_result result = study(context, options);
    weft_digest expected = expect(context, options, open);
    assert_true(weft_digest_equal(&result.digest, &expected));
    assert_true(result.sent > 0 && result.fired > 0);
    assert_true(open ? result.fired == 1 && result.residual == 0 : result.fired < 1 && result.residual > 0);
    weft_context_destroy(context);
}

static void check_way(train_study_way way, uint32_t trainers, bool open) {
    const train_study_options options = usual(way, trainers);
    check_options(&options, open);
}

static void test_open_alone(void **state) {
    (void)state;
    check_way(TRAIN_STUDY_DILOCO, 1, true);
}

static void test_open_three(void **state) {
    (void)state;
    check_way(TRAIN_STUDY_DILOCO, 3, true);
}

static void test_gate(void **state) {
    (void)state;
    check_way(TRAIN_STUDY_PULSELOCO, 1, false);
    check_way(TRAIN_STUDY_PULSELOCO, 3, false);
}

/* Payloads travel during the next round's steps. */
static void test_overlap(void **state) {
    (void)state;
    train_study_options options = usual(TRAIN_STUDY_DILOCO, 3);
    options.overlap = true;
    check_options(&options, true);
    options.way = TRAIN_STUDY_PULSELOCO;
    check_options(&options, false);
    weft_context *context = NULL;
    train_study_result result;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    lm_trainer *source = make_trainer(context);
    options.way = TRAIN_STUDY_ROUNDED;
    assert_int_equal(train_study_run(source, &options, &result), WEFT_INVALID_ARGUMENT);
    lm_trainer_destroy(source);
    weft_context_destroy(context);
}

/* The ways that are only compared with: other courses, and what each is known for. */
static void test_others(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    train_study_options options = usual(TRAIN_STUDY_FORGETFUL, 2);
    train_study_result result = study(context, &options);
    assert_true(result.residual == 0 && result.fired > 0 && result.fired < 1 && result.sent == 0);
    options.way = TRAIN_STUDY_ROUNDED;
    result = study(context, &options);
    assert_true(result.residual > 0 && result.fired > 0);
    double rounded = result.residual;
    options.way = TRAIN_STUDY_NEAREST;
    result = study(context, &options);
    assert_true(result.residual > 0 && result.residual < rounded && result.fired > 0);
    options.rounds = 0;
    lm_trainer *source = make_trainer(context);
    assert_int_equal(train_study_run(source, &options, &result), WEFT_INVALID_ARGUMENT);
    lm_trainer_destroy(source);
    train_study_way way;
    assert_true(train_study_find("rounded", &way) && way == TRAIN_STUDY_ROUNDED);
    assert_false(train_study_find("alone", &way));
    assert_string_equal(train_study_name(TRAIN_STUDY_DILOCO), "diloco");
    weft_context_destroy(context);
}

/* The mean share of the BF16 weights that a step changes, by making the steps here: each on the batches of
 * all ranks, sampled by the policy of the step before. */
static double expect_changed(weft_context *context, const train_study_options *options) {
    lm_trainer *trainer = make_trainer(context);
    lm_model *sampler = NULL;
    train_study_options joined = *options;
    double changed = 0;
    joined.prompts *= options->trainers;
    assert_int_equal(lm_model_create(context, &config, LM_WORKER, &sampler), WEFT_OK);
    for (uint64_t step = 0; step < options->rounds; step++) {
        assert_int_equal(lm_model_copy(sampler, trainer->model), WEFT_OK);
        local_step(trainer, sampler, &joined, step);
        size_t count = 0;
        for (size_t i = 0; i < trainer->model->parameters; i++) {
            count += trainer->model->live[i] != sampler->live[i];
        }
        changed += (double)count / (double)trainer->model->parameters / (double)options->rounds;
    }
    lm_model_destroy(sampler);
    lm_trainer_destroy(trainer);
    return changed;
}

static void test_ddp(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    train_study_options options = usual(TRAIN_STUDY_DDP, 2);
    lm_trainer *source = make_trainer(context);
    train_study_result result;
    assert_int_equal(train_study_run(source, &options, &result), WEFT_INVALID_ARGUMENT);
    lm_trainer_destroy(source);
    options.local_steps = 1;
    result = study(context, &options);
    double changed = expect_changed(context, &options);
    assert_true(changed > 0 && result.changed > changed - 1e-12 && result.changed < changed + 1e-12);
    assert_true(result.fired == 1 && result.residual == 0 && result.sent == 0);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_alone), cmocka_unit_test(test_open_three), cmocka_unit_test(test_gate),
        cmocka_unit_test(test_overlap),    cmocka_unit_test(test_others),     cmocka_unit_test(test_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
