/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_model.c: configs from outside, the parameters and their table, and the optimizer.
 */
#include "../../lib/base/context.h"
#include "../../lm/learn/adam.h"
#include "../support/faults.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const lm_config tiny = {
    .vocabulary = 10,
    .width = 8,
    .layers = 2,
    .heads = 2,
    .kv_heads = 1,
    .feed_forward = 12,
    .context = 16,
    .rope_base = 10000,
    .norm_epsilon = 1e-5,
};

static weft_context *open_context(unsigned threads) {
    weft_context_options options = {.size = sizeof options, .threads = threads};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static void refuse(weft_context *context, const lm_config *config, const char *text) {
    lm_model *model = NULL;
    assert_int_equal(lm_model_create(context, config, LM_WORKER, &model), WEFT_INVALID_ARGUMENT);
    assert_null(model);
    if (strstr(weft_context_error(context), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, weft_context_error(context));
    }
}

static void test_impossible_configs(void **state) {
    (void)state;
    weft_context *context = open_context(1);
    lm_config config = tiny;
    config.vocabulary = 1;
    refuse(context, &config, "vocab_size");
    config = tiny;
    config.layers = 0;
    refuse(context, &config, "num_hidden_layers");
    config = tiny;
    config.heads = 0;
    refuse(context, &config, "num_attention_heads");
    config = tiny;
    config.heads = 3;
    refuse(context, &config, "share of the width");
    config = tiny;
    config.heads = 8;
    refuse(context, &config, "share of the width");
    config = tiny;
    config.kv_heads = 4;
    refuse(context, &config, "divisor");
    config = tiny;
    config.context = UINT32_MAX;
    refuse(context, &config, "max_position_embeddings");
    config = tiny;
    config.rope_base = NAN;
    refuse(context, &config, "rope_theta");
    config = tiny;
    config.width = LM_WIDTH_MAX;
    config.feed_forward = LM_FEED_FORWARD_MAX;
    config.layers = LM_LAYERS_MAX;
    refuse(context, &config, "too large");
    weft_context_destroy(context);
}

static void test_config_text(void **state) {
    (void)state;
    weft_context *context = open_context(1);
    char *text = NULL;
    lm_config back;
    assert_int_equal(lm_config_format(context, &tiny, &text), WEFT_OK);
    assert_non_null(strstr(text, "\"model_type\": \"llama\""));
    assert_int_equal(lm_config_parse(context, text, strlen(text), &back), WEFT_OK);
    assert_true(lm_config_equal(&tiny, &back));
    static const char *const bad[] = {
        "", "[]", "{}", "{\"vocab_size\": \"ten\"}", "{\"vocab_size\": 99999999999999}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(lm_config_parse(context, bad[i], strlen(bad[i]), &back), WEFT_MALFORMED);
    }
    char *heads = strstr(text, "\"num_attention_heads\": 2");
    assert_non_null(heads);
    heads[strlen("\"num_attention_heads\": ")] = '3';
    assert_int_equal(lm_config_parse(context, text, strlen(text), &back), WEFT_INVALID_ARGUMENT);
    weft_release(context, text);
    weft_context_destroy(context);
}

static void test_parameters(void **state) {
    (void)state;
    weft_context *context = open_context(2);
    for (int tied = 0; tied <= 1; tied++) {
        lm_config config = tiny;
        config.tied = tied;
        lm_model *trainer = NULL, *worker = NULL;
        assert_int_equal(lm_model_create(context, &config, LM_TRAINER, &trainer), WEFT_OK);
        assert_int_equal(lm_model_create(context, &config, LM_WORKER, &worker), WEFT_OK);
        assert_int_equal(lm_model_initialise(trainer, 1), WEFT_OK);
        assert_int_equal(lm_model_initialise(worker, 1), WEFT_INVALID_ARGUMENT);
        assert_int_equal(lm_model_copy(worker, trainer), WEFT_OK);
        assert_memory_equal(worker->values, trainer->values, trainer->parameters * sizeof(float));
        assert_int_equal(trainer->parameters, lm_config_parameters(&config));
        const weft_table *table = lm_model_table(trainer);
        assert_int_equal(weft_table_bytes(table), 2 * trainer->parameters);
        assert_true((weft_table_find(table, "lm_head.weight") < 0) == (tied == 1));
        int64_t found = weft_table_find(table, "model.layers.1.mlp.down_proj.weight");
        assert_true(found >= 0);
        const weft_tensor *tensor = weft_table_at(table, (size_t)found);
        assert_int_equal(tensor->shape[0], 8);
        assert_int_equal(tensor->shape[1], 12);
        assert_int_equal(tensor->storage, WEFT_DTYPE_F32);
        assert_int_equal(tensor->dtype, WEFT_DTYPE_BF16);
        lm_model_destroy(worker);
        lm_model_destroy(trainer);
    }
    weft_context_destroy(context);
}

/* What weft would send of the masters is what the model computes with. */
static void test_live_words_are_the_cast(void **state) {
    (void)state;
    weft_context *context = open_context(1);
    lm_model *trainer = NULL, *worker = NULL;
    assert_int_equal(lm_model_create(context, &tiny, LM_TRAINER, &trainer), WEFT_OK);
    assert_int_equal(lm_model_create(context, &tiny, LM_WORKER, &worker), WEFT_OK);
    assert_int_equal(lm_model_initialise(trainer, 7), WEFT_OK);
    assert_int_equal(lm_model_copy(worker, trainer), WEFT_OK);
    weft_view *views[2] = {NULL, NULL};
    weft_sums *sums[2] = {NULL, NULL};
    lm_model *models[2] = {trainer, worker};
    weft_digest digests[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_view_create(context, lm_model_table(models[i]), &views[i]), WEFT_OK);
        assert_int_equal(weft_sums_compute(context, views[i], &sums[i]), WEFT_OK);
        digests[i] = weft_sums_digest(sums[i]);
        weft_sums_destroy(sums[i]);
        weft_view_destroy(views[i]);
    }
    assert_true(weft_digest_equal(&digests[0], &digests[1]));
    lm_model_destroy(worker);
    lm_model_destroy(trainer);
    weft_context_destroy(context);
}

static void run_adam(unsigned threads, float *masters_out) {
    weft_context *context = open_context(threads);
    lm_model *model = NULL;
    lm_adam *adam = NULL;
    lm_config config = tiny;
    config.vocabulary = 9000;
    assert_int_equal(lm_model_create(context, &config, LM_TRAINER, &model), WEFT_OK);
    assert_int_equal(lm_model_initialise(model, 2), WEFT_OK);
    assert_int_equal(lm_adam_create(model, &adam), WEFT_OK);
    float *gradient = calloc(model->parameters, sizeof *gradient);
    for (size_t i = 0; i < model->parameters; i++) {
        gradient[i] = (float)((double)(i * 2654435761u % 1000) / 1000 - 0.5);
    }
    lm_adam_options options = lm_adam_defaults();
    options.rate = 1e-2;
    options.decay = 0.1;
    double norm = 0;
    for (int step = 0; step < 3; step++) {
        assert_int_equal(lm_adam_run(adam, &options, gradient, &norm), WEFT_OK);
    }
    assert_true(norm > 10);
    memcpy(masters_out, model->masters, 4096 * sizeof *masters_out);
    gradient[5] = INFINITY;
    float before = model->masters[4];
    assert_int_equal(lm_adam_run(adam, &options, gradient, &norm), WEFT_INVALID_ARGUMENT);
    assert_true(before == model->masters[4]);
    options.beta1 = 1;
    gradient[5] = 0;
    assert_int_equal(lm_adam_run(adam, &options, gradient, &norm), WEFT_INVALID_ARGUMENT);
    free(gradient);
    lm_adam_destroy(adam);
    lm_model_destroy(model);
    weft_context_destroy(context);
}

static void test_adam_and_threads(void **state) {
    (void)state;
    static float one[4096], three[4096];
    run_adam(1, one);
    run_adam(3, three);
    assert_memory_equal(one, three, sizeof one);
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
        lm_model *model = NULL;
        lm_adam *adam = NULL;
        if (status == WEFT_OK) {
            status = lm_model_create(context, &tiny, LM_TRAINER, &model);
        }
        if (status == WEFT_OK) {
            status = lm_adam_create(model, &adam);
        }
        assert_true(faults_fired(&faults) == (status == WEFT_NO_MEMORY));
        lm_adam_destroy(adam);
        lm_model_destroy(model);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_impossible_configs), cmocka_unit_test(test_config_text),
        cmocka_unit_test(test_parameters),         cmocka_unit_test(test_live_words_are_the_cast),
        cmocka_unit_test(test_adam_and_threads),   cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
