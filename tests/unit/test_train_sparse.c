/* SPDX-License-Identifier: Apache-2.0
 *
 * test_train_sparse.c: runs whose workers compress their caches: what the description says of it; a batch
 * scored with a whole cache; and batches that a correction rejects.
 */
#include "../../lib/base/context.h"
#include "../../train/learner/collect.h"
#include "../../train/options.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 24 + 6 }; /* of a sequence: the chain, and its prompt */

static train_run sparse_run(weft_kv_policy policy, size_t budget) {
    train_run run = {
        .name = "00112233445566778899aabbccddeeff",
        .config = {16, 32, 1, 2, 2, 48, LENGTH + 2, true, 10000, 1e-5},
        .task = {.kind = LM_TASK_CHAIN, .steps = 25, .period = 2},
        .seed = 7,
        .steps = 10,
        .prompts = 4,
        .group = 4,
        .slots = 1,
        .temperature = 1,
        .trainers = 1,
        .local_steps = 1,
        .outer_rate = 1,
        .kv = {.size = sizeof run.kv},
    };
    weft_kv_defaults(policy, budget, &run.kv);
    return run;
}

static weft_context *open_context(void) {
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    return context;
}

/* ---- the description ---- */

static void test_description(void **state) {
    (void)state;
    weft_context *context = open_context();
    for (int policy = 0; policy < WEFT_KV_POLICIES; policy++) {
        train_run run = sparse_run((weft_kv_policy)policy, 12), back;
        run.kv.lambda = 0.07;
        run.kv.pooled = WEFT_KV_POOL_MEAN;
        run.kv.share = 0.25;
        run.kv.common = policy >= WEFT_KV_H2O ? 0.8 : 0;
        run.kv.keep_prompt = true;
        char *text = NULL;
        assert_int_equal(train_run_format(context, &run, &text), WEFT_OK);
        assert_int_equal(train_run_parse(context, "run", text, strlen(text), &back), WEFT_OK);
        assert_true(train_run_alike(&run, &back));
        assert_int_equal(train_run_compresses(&run), policy != WEFT_KV_NONE);
        assert_memory_equal(&run.kv, &back.kv, sizeof run.kv);
        assert_int_equal(train_slot_rollout(&back, 0, 0).kv->budget, 12);
        back.kv.interval++;
        assert_int_equal(train_run_alike(&run, &back), policy == WEFT_KV_NONE);
        weft_release(context, text);
    }
    weft_context_destroy(context);
}

static void test_hostile_description(void **state) {
    (void)state;
    static const struct {
        const char *name;
        const char *value;
    } changes[] = {
        {"policy", "\"best\""}, {"policy", "4"},        {"budget", "0"},     {"budget", "-1"},
        {"budget", "16777217"}, {"budget", "1e3"},      {"interval", "0"},   {"sinks", "12"},
        {"window", "0"},        {"window", "13"},       {"pooling", "2"},    {"pooled", "\"sum\""},
        {"lambda", "1.5"},      {"similarity", "null"}, {"similarity", "2"}, {"share", "2"},
        {"share", "\"1\""},     {"common", "-1"},       {"common", "null"},  {"keep_prompt", "1"},
    };
    weft_context *context = open_context();
    train_run run = sparse_run(WEFT_KV_RKV, 12), back;
    char *text = NULL;
    assert_int_equal(train_run_format(context, &run, &text), WEFT_OK);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_t *json = json_loads(text, 0, NULL);
        json_object_set_new(json_object_get(json, "kv"), changes[i].name,
                            json_loads(changes[i].value, JSON_DECODE_ANY, NULL));
        char *dumped = json_dumps(json, 0);
        assert_true(train_run_parse(context, "run", dumped, strlen(dumped), &back) < 0);
        assert_true(weft_context_error(context)[0] != 0);
        free(dumped);
        json_decref(json);
    }
    weft_release(context, text);
    weft_context_destroy(context);
}

/* Exactly when a sequence can fill a cache. */
static void test_compresses(void **state) {
    (void)state;
    train_run run = sparse_run(WEFT_KV_RKV, 16);
    size_t length = lm_task_prompt_size(&run.task) + lm_task_response_size(&run.task);
    assert_int_equal(length, LENGTH);
    run.kv.interval = LENGTH - 16;
    assert_false(train_run_compresses(&run));
    run.kv.interval--;
    assert_true(train_run_compresses(&run));
}

/* ---- a batch ---- */

typedef struct lesson {
    train_run run;
    lm_trainer *trainer;
    lm_samples *samples;
    float *rewards;
    train_batch batch; /* over the samples */
} lesson;

static void open_lesson(lesson *l, weft_context *context, const train_run *run) {
    *l = (lesson){.run = *run};
    size_t sequences = train_slot_sequences(run);
    lm_rollout_options work = train_slot_rollout(&l->run, 0, 0);
    assert_int_equal(train_run_check(context, run), WEFT_OK);
    assert_int_equal(lm_trainer_create(context, &run->config, &l->trainer), WEFT_OK);
    assert_int_equal(lm_model_initialise(l->trainer->model, 5), WEFT_OK);
    l->rewards = weft_allocate_array(context, sequences, sizeof *l->rewards);
    assert_non_null(l->rewards);
    assert_int_equal(lm_rollout(l->trainer->model, &run->task, &work, l->rewards, &l->samples), WEFT_OK);
    for (size_t i = 0; i < sequences; i++) {
        l->rewards[i] = (float)(i % 2);
    }
    l->batch = (train_batch){.context = context, .starts = l->samples->starts};
    l->batch.rollouts = (lm_rollouts){
        .batch = lm_samples_batch(l->samples),
        .prompts = l->samples->prompts,
        .logp = l->samples->logp,
        .rewards = l->rewards,
        .group = run->group,
    };
    assert_int_equal(train_batch_score(&l->batch, l->trainer->pass, 1), WEFT_OK);
    assert_ptr_equal(l->batch.rollouts.old, l->batch.old);
}

static void close_lesson(lesson *l, weft_context *context) {
    weft_release(context, l->batch.old);
    weft_release(context, l->rewards);
    lm_samples_destroy(l->samples);
    lm_trainer_destroy(l->trainer);
}

static lm_grpo_result learn(lesson *l, weft_context *context, const char *preset, double veto) {
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result;
    assert_int_equal(weft_correction_preset(context, preset, &options.correction), WEFT_OK);
    options.correction.veto = veto;
    assert_int_equal(lm_grpo_step(l->trainer, &l->batch.rollouts, &options, NULL, &result), WEFT_OK);
    return result;
}

/* With nothing evicted a sampler is its own old policy, whatever the policy is called. */
static void test_nothing_evicted(void **state) {
    (void)state;
    weft_context *context = open_context();
    for (int policy = WEFT_KV_STREAMING; policy < WEFT_KV_POLICIES; policy++) {
        lesson l;
        train_run run = sparse_run((weft_kv_policy)policy, 26);
        assert_false(train_run_compresses(&run));
        open_lesson(&l, context, &run);
        lm_grpo_result result = learn(&l, context, "paper", 1e-4);
        assert_true(fabs(log(result.correction.ratio_min)) < 1e-4);
        assert_true(fabs(log(result.correction.ratio_max)) < 1e-4);
        assert_int_equal(result.correction.rejected, 0);
        assert_int_equal(result.updates, 2);
        assert_int_equal(l.samples->kv.held, l.samples->kv.full);
        close_lesson(&l, context);
    }
    weft_context_destroy(context);
}

static void test_evicted(void **state) {
    (void)state;
    weft_context *context = open_context();
    lesson l;
    train_run run = sparse_run(WEFT_KV_RKV, 8);
    open_lesson(&l, context, &run);
    lm_grpo_result result = learn(&l, context, "tis", 0);
    assert_true(result.correction.ratio_min < 0.999 && result.correction.ratio_max > 1.001);
    assert_true(result.correction.kl_k3 > 0);
    assert_true(l.samples->kv.held < l.samples->kv.full);
    close_lesson(&l, context);
    weft_context_destroy(context);
}

/* Momentum alone would move weights: a batch of which nothing is left must not. */
static void test_all_rejected(void **state) {
    (void)state;
    weft_context *context = open_context();
    lesson l;
    train_run run = sparse_run(WEFT_KV_RKV, 8);
    open_lesson(&l, context, &run);
    assert_int_equal(learn(&l, context, "tis", 0).updates, 2);
    size_t bytes = l.trainer->model->parameters * sizeof *l.trainer->model->live;
    void *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, l.trainer->model->live, bytes);
    lm_grpo_result result = learn(&l, context, "paper", 0.9999);
    assert_int_equal(result.correction.rejected, result.correction.sequences);
    assert_int_equal(result.updates, 0);
    assert_int_equal(result.skipped, 2);
    assert_true(isfinite(result.loss) && isfinite(result.norm));
    assert_memory_equal(before, l.trainer->model->live, bytes);
    free(before);
    close_lesson(&l, context);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_description), cmocka_unit_test(test_hostile_description),
        cmocka_unit_test(test_compresses),  cmocka_unit_test(test_nothing_evicted),
        cmocka_unit_test(test_evicted),     cmocka_unit_test(test_all_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
