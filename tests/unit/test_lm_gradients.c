/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_gradients.c: the fast model against the reference in double precision: log-probabilities, and
 * every kind of weight's gradient against finite differences of the reference, with shared keys and
 * without, tied and untied. Then what must not matter for any bit: threads, and how a batch is cut.
 */
#include "../../lib/base/context.h"
#include "../../lm/model/pass.h"
#include "../../lm/model/random.h"
#include "lm_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const lm_config small = {
    .vocabulary = 11,
    .width = 24,
    .layers = 2,
    .heads = 4,
    .kv_heads = 4,
    .feed_forward = 35,
    .context = 40,
    .tied = true,
    .rope_base = 100,
    .norm_epsilon = 1e-5,
};

enum { SEQUENCES = 5, TOKENS = 1 + 2 + 14 + 40 + 25 };

static const size_t starts[SEQUENCES + 1] = {0, 1, 3, 17, 57, 82};

typedef struct scene {
    weft_context *context;
    lm_model *model;
    lm_pass *pass;
    lm_token tokens[TOKENS];
    lm_batch batch;
    float slopes[TOKENS];
    float *gradient;
    float logp[TOKENS];
} scene;

static void given_slopes(void *opaque, size_t sequence, size_t length, const float *logp, float *slopes) {
    (void)logp;
    const scene *scene = opaque;
    memcpy(slopes, scene->slopes + starts[sequence], length * sizeof *slopes);
}

static void open_scene(scene *scene, const lm_config *config, unsigned threads) {
    *scene = (struct scene){.batch = {.sequences = SEQUENCES, .starts = starts}};
    scene->batch.tokens = scene->tokens;
    weft_context_options options = {.size = sizeof options, .threads = threads};
    assert_int_equal(weft_context_create(&options, &scene->context), WEFT_OK);
    assert_int_equal(lm_model_create(scene->context, config, LM_TRAINER, &scene->model), WEFT_OK);
    assert_int_equal(lm_model_initialise(scene->model, 3), WEFT_OK);
    lm_random random = lm_random_open(4, 0);
    for (size_t i = 0; i < scene->model->weight_count; i++) {
        const lm_weight *weight = &scene->model->weights[i];
        for (size_t j = 0; weight->norm && j < weight->columns; j++) {
            scene->model->masters[weight->offset + j] += 0.2f * lm_random_normal(&random);
        }
    }
    assert_int_equal(lm_model_refresh(scene->model), WEFT_OK);
    for (size_t i = 0; i < TOKENS; i++) {
        scene->tokens[i] = (lm_token)lm_random_below(&random, config->vocabulary);
        scene->slopes[i] = lm_random_normal(&random);
    }
    assert_int_equal(lm_pass_create(scene->model, true, &scene->pass), WEFT_OK);
    scene->gradient = calloc(scene->model->parameters, sizeof *scene->gradient);
}

static void run_gradient(scene *scene) {
    memset(scene->gradient, 0, scene->model->parameters * sizeof *scene->gradient);
    assert_int_equal(
        lm_gradient(scene->pass, &scene->batch, 0.8f, given_slopes, scene, scene->gradient, scene->logp),
        WEFT_OK);
}

static void close_scene(scene *scene) {
    free(scene->gradient);
    lm_pass_destroy(scene->pass);
    lm_model_destroy(scene->model);
    weft_context_destroy(scene->context);
}

static double reference_loss(scene *scene, const double *parameters, double *logp) {
    double loss = 0;
    for (size_t s = 0; s < SEQUENCES; s++) {
        assert_int_equal(lm_reference_score(scene->model, parameters, scene->tokens + starts[s],
                                            lm_batch_length(&scene->batch, s), (double)0.8f,
                                            logp + starts[s]),
                         WEFT_OK);
        for (size_t i = starts[s] + 1; i < starts[s + 1]; i++) {
            loss += (double)scene->slopes[i] * logp[i];
        }
    }
    return loss;
}

static void check_scores(const scene *scene, const double *logp) {
    for (size_t i = 0; i < TOKENS; i++) {
        if (!(fabs(scene->logp[i] - logp[i]) < 2e-5)) {
            fail_msg("log-probability %zu is %.8g and should be %.8g", i, (double)scene->logp[i], logp[i]);
        }
    }
}

/* Some parameters of a weight, chosen at random. */
static void check_weight(scene *scene, const lm_weight *weight, double *parameters) {
    enum { CHOSEN = 12 };
    const double step = 1e-4;
    double logp[TOKENS];
    lm_random random = lm_random_open(5, weight->offset);
    for (size_t n = 0; n < CHOSEN; n++) {
        size_t i = weight->offset + lm_random_below(&random, (uint32_t)(weight->rows * weight->columns));
        double value = parameters[i];
        parameters[i] = value + step;
        double above = reference_loss(scene, parameters, logp);
        parameters[i] = value - step;
        double below = reference_loss(scene, parameters, logp);
        parameters[i] = value;
        double slope = (above - below) / (2 * step);
        if (!(fabs(slope - (double)scene->gradient[i]) < 1e-4 * (1 + fabs(slope)))) {
            fail_msg("gradient %zu of %s is %.8g; finite differences give %.8g", i - weight->offset,
                     weight->name, (double)scene->gradient[i], slope);
        }
    }
}

static void check_config(uint32_t kv_heads, bool tied) {
    lm_config config = small;
    config.kv_heads = kv_heads;
    config.tied = tied;
    scene scene;
    open_scene(&scene, &config, 1);
    run_gradient(&scene);
    double *parameters = calloc(scene.model->parameters, sizeof *parameters);
    double logp[TOKENS];
    for (size_t i = 0; i < scene.model->parameters; i++) {
        parameters[i] = scene.model->values[i];
    }
    reference_loss(&scene, parameters, logp);
    check_scores(&scene, logp);
    for (size_t i = 0; i < scene.model->weight_count; i++) {
        check_weight(&scene, &scene.model->weights[i], parameters);
    }
    free(parameters);
    close_scene(&scene);
}

static void test_tied(void **state) {
    (void)state;
    check_config(4, true);
}

static void test_untied(void **state) {
    (void)state;
    check_config(4, false);
}

static void test_shared_keys(void **state) {
    (void)state;
    check_config(2, true);
    check_config(1, false);
}

/* Scoring alone, in less memory, gives the bits that training gives. */
static void test_scores_agree(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, &small, 2);
    run_gradient(&scene);
    lm_pass *pass = NULL;
    float logp[TOKENS];
    assert_int_equal(lm_pass_create(scene.model, false, &pass), WEFT_OK);
    assert_int_equal(lm_score(pass, &scene.batch, 0.8f, logp), WEFT_OK);
    assert_memory_equal(logp, scene.logp, sizeof logp);
    assert_int_equal(
        lm_gradient(pass, &scene.batch, 0.8f, given_slopes, &scene, scene.gradient, scene.logp),
        WEFT_INVALID_ARGUMENT);
    lm_pass_destroy(pass);
    close_scene(&scene);
}

static void compare_cuts(const lm_config *config, size_t capacity) {
    scene one;
    open_scene(&one, config, 1);
    run_gradient(&one);
    for (unsigned threads = 1; threads <= 3; threads++) {
        scene other;
        open_scene(&other, config, threads);
        other.pass->capacity = capacity > 0 ? capacity : other.pass->capacity;
        run_gradient(&other);
        assert_memory_equal(one.gradient, other.gradient, one.model->parameters * sizeof(float));
        assert_memory_equal(one.logp, other.logp, sizeof one.logp);
        close_scene(&other);
    }
    close_scene(&one);
}

/* Threads, and without a tied embedding chunks of any size: the same bits. */
static void test_cuts_do_not_matter(void **state) {
    (void)state;
    compare_cuts(&small, 0);
    lm_config untied = small;
    untied.tied = false;
    compare_cuts(&untied, 40);
    compare_cuts(&untied, 60);
}

static void test_bad_batches(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, &small, 1);
    float logp[TOKENS];
    size_t empty[] = {0, 2, 2}, backwards[] = {0, 5, 3}, longer[] = {0, 41};
    lm_batch batch = {.sequences = 2, .starts = empty, .tokens = scene.tokens};
    assert_int_equal(lm_score(scene.pass, &batch, 1, logp), WEFT_INVALID_ARGUMENT);
    batch.starts = backwards;
    assert_int_equal(lm_score(scene.pass, &batch, 1, logp), WEFT_INVALID_ARGUMENT);
    batch = (lm_batch){.sequences = 1, .starts = longer, .tokens = scene.tokens};
    assert_int_equal(lm_score(scene.pass, &batch, 1, logp), WEFT_INVALID_ARGUMENT);
    assert_int_equal(lm_score(scene.pass, &scene.batch, 0, logp), WEFT_INVALID_ARGUMENT);
    assert_int_equal(lm_score(scene.pass, &scene.batch, NAN, logp), WEFT_INVALID_ARGUMENT);
    scene.tokens[9] = 11;
    assert_int_equal(lm_score(scene.pass, &scene.batch, 1, logp), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(scene.context), "vocabulary"));
    close_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_untied),
        cmocka_unit_test(test_shared_keys),
        cmocka_unit_test(test_scores_agree),
        cmocka_unit_test(test_cuts_do_not_matter),
        cmocka_unit_test(test_bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
