/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_sizes_slow.c: models of every size that is offered, and of 30 million parameters with embeddings
 * tied and not, learn a batch by heart and generate.
 */
#include "../../lm/model/presets.h"
#include "../support/lessons.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { SEQUENCES = 4, LENGTH = 16, TOKENS = SEQUENCES * LENGTH };

static void alike(void *opaque, size_t sequence, size_t length, const float *logp, float *slopes) {
    (void)opaque;
    (void)sequence;
    (void)logp;
    for (size_t i = 0; i < length; i++) {
        slopes[i] = -1.0f / TOKENS;
    }
}

static double train(lm_trainer *trainer, const lm_batch *batch) {
    float logp[TOKENS];
    double norm = 0, loss = 0;
    lm_adam_options options = lm_adam_defaults();
    options.rate = 1e-3;
    options.warm_up = 0;
    assert_int_equal(lm_trainer_step(trainer, batch, 1, alike, NULL, &options, logp, &norm), WEFT_OK);
    assert_true(isfinite(norm) && norm > 0);
    for (size_t i = 0; i < TOKENS; i++) {
        loss -= (double)logp[i] / TOKENS;
    }
    return loss;
}

static void generate(lm_trainer *trainer) {
    const size_t starts[] = {0, 3, 4};
    const lm_token tokens[] = {1, 2, 3, 4};
    const uint64_t streams[] = {0, 1};
    lm_batch prompts = {.sequences = 2, .starts = starts, .tokens = tokens};
    lm_sampling sampling = {.temperature = 1, .seed = 1, .limit = LENGTH, .stop = -1};
    lm_samples *samples = NULL;
    assert_int_equal(lm_generate(trainer->model, &prompts, streams, &sampling, &samples), WEFT_OK);
    assert_int_equal(samples->starts[2], 4 + 2 * LENGTH);
    lm_samples_destroy(samples);
}

static void check_size(const lm_config *config, size_t least, size_t most) {
    lm_trainer *trainer = lesson_open(2, config, 1);
    size_t starts[SEQUENCES + 1];
    lm_token tokens[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[i] = (lm_token)(i * 7 % 16);
    }
    for (size_t i = 0; i <= SEQUENCES; i++) {
        starts[i] = i * LENGTH;
    }
    lm_batch batch = {.sequences = SEQUENCES, .starts = starts, .tokens = tokens};
    double first = train(trainer, &batch), last = first;
    for (int i = 0; i < 2; i++) {
        last = train(trainer, &batch);
    }
    print_message("%zu parameters: loss %.3f, then %.3f\n", trainer->model->parameters, first, last);
    assert_true(trainer->model->parameters >= least && trainer->model->parameters <= most);
    assert_true(isfinite(last) && last < first - 0.1);
    generate(trainer);
    lesson_close(trainer);
}

static void test_presets(void **state) {
    (void)state;
    static const size_t least[LM_PRESETS] = {100000, 210000, 590000, 2000000, 8000000, 26000000};
    for (size_t i = 0; i < LM_PRESETS; i++) {
        assert_ptr_equal(lm_preset_find(lm_presets[i].name), &lm_presets[i]);
        assert_ptr_equal(lm_preset_of(least[i]), &lm_presets[i]);
        assert_non_null(strstr(LM_PRESET_NAMES, lm_presets[i].name));
        check_size(&lm_presets[i].config, least[i], least[i] * 12 / 10);
    }
    assert_ptr_equal(lm_preset_of(0), &lm_presets[0]);
    assert_ptr_equal(lm_preset_of(UINT64_MAX), &lm_presets[LM_PRESETS - 1]);
    assert_null(lm_preset_find("3M"));
}

static void test_thirty_million(void **state) {
    (void)state;
    lm_config config = {512, 512, 10, 8, 8, 1376, LENGTH + 4, true, 10000, 1e-5};
    check_size(&config, 29000000, 32000000);
    config.kv_heads = 4;
    config.tied = false;
    check_size(&config, 29000000, 32000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_thirty_million),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
