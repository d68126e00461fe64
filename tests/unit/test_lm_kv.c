/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_kv.c: generation under KV-cache policies: the same bits as without one where nothing is evicted;
 * against a reference in double precision where it is; the same responses whatever the company, the threads
 * and the limit of memory; and allocations that fail.
 */
#include "../../lm/learn/generate.h"
#include "../../lm/model/pass.h"
#include "../../lm/model/random.h"
#include "faults.h"
#include "lm_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const lm_config small = {
    .vocabulary = 16,
    .width = 48,
    .layers = 2,
    .heads = 4,
    .kv_heads = 2,
    .feed_forward = 40,
    .context = 128,
    .rope_base = 1000,
    .norm_epsilon = 1e-5,
};

enum { PROMPTS = 24, LIMIT = 110, STOP = 13, HEAD = 12 };

typedef struct scene {
    weft_context *context;
    lm_model *model;
    size_t starts[PROMPTS + 1];
    lm_token tokens[PROMPTS * 8];
    uint64_t streams[PROMPTS];
    lm_batch prompts;
} scene;

/* Prompts of one to eight tokens. */
static void open_scene(scene *scene, unsigned threads, const weft_allocator *allocator) {
    *scene = (struct scene){0};
    weft_context_options options = {.size = sizeof options, .threads = threads};
    if (allocator != NULL) {
        options.allocator = *allocator;
    }
    assert_int_equal(weft_context_create(&options, &scene->context), WEFT_OK);
    assert_int_equal(lm_model_create(scene->context, &small, LM_TRAINER, &scene->model), WEFT_OK);
    assert_int_equal(lm_model_initialise(scene->model, 5), WEFT_OK);
    lm_random random = lm_random_open(2, 1);
    for (size_t i = 0; i < PROMPTS; i++) {
        scene->starts[i + 1] = scene->starts[i] + 1 + i % 8;
        scene->streams[i] = i;
    }
    for (size_t i = 0; i < sizeof scene->tokens / sizeof scene->tokens[0]; i++) {
        scene->tokens[i] = (lm_token)lm_random_below(&random, 16);
    }
    scene->prompts = (lm_batch){PROMPTS, scene->starts, scene->tokens};
}

static void close_scene(scene *scene) {
    lm_model_destroy(scene->model);
    weft_context_destroy(scene->context);
}

static lm_samples *generate(scene *scene, const weft_kv_options *kv, size_t kv_bytes) {
    lm_sampling sampling = {
        .temperature = 1.5f, .seed = 4, .limit = LIMIT, .stop = STOP, .kv = kv, .kv_bytes = kv_bytes};
    lm_samples *samples = NULL;
    assert_int_equal(lm_generate(scene->model, &scene->prompts, scene->streams, &sampling, &samples),
                     WEFT_OK);
    return samples;
}

static void assert_same(const lm_samples *a, const lm_samples *b) {
    size_t total = a->starts[PROMPTS];
    assert_memory_equal(a->starts, b->starts, sizeof(size_t) * (PROMPTS + 1));
    assert_memory_equal(a->tokens, b->tokens, total * sizeof *a->tokens);
    assert_memory_equal(a->logp, b->logp, total * sizeof *a->logp);
}

/* ---- nothing evicted ---- */

static void test_nothing_evicted(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, 2, NULL);
    lm_samples *dense = generate(&scene, NULL, 0);
    lm_batch batch = lm_samples_batch(dense);
    float *logp = calloc(dense->starts[PROMPTS], sizeof *logp);
    lm_pass *pass = NULL;
    assert_int_equal(lm_pass_create(scene.model, false, &pass), WEFT_OK);
    assert_int_equal(lm_score(pass, &batch, 1.5f, logp), WEFT_OK);
    for (int policy = WEFT_KV_NONE; policy < WEFT_KV_POLICIES; policy++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults((weft_kv_policy)policy, LIMIT + 8, &options);
        lm_samples *samples = generate(&scene, &options, 0);
        assert_same(dense, samples);
        assert_int_equal(samples->kv.evictions, 0);
        assert_int_equal(samples->kv.held, samples->kv.full);
        assert_int_equal(samples->kv.bytes, 0);
        for (size_t s = 0; s < PROMPTS; s++) {
            for (size_t i = samples->starts[s] + samples->prompts[s]; i < samples->starts[s + 1]; i++) {
                assert_true(samples->logp[i] - logp[i] == 0);
            }
        }
        lm_samples_destroy(samples);
    }
    free(logp);
    lm_pass_destroy(pass);
    lm_samples_destroy(dense);
    close_scene(&scene);
}

/* ---- against a reference ----
 *
 * Under streaming it is known which tokens each position sees, in all layers and heads alike: so the whole
 * sequence can be scored with a mask. */

typedef struct masked {
    const lm_model *model;
    const double *parameters;
    const lm_token *tokens;
    size_t length;
    bool (*sees)[128]; /* [t][j] */
} masked;

static void fill_mask(const weft_kv_options *options, size_t length, bool (*sees)[128]) {
    bool held[128] = {0};
    size_t count = 0;
    for (size_t t = 0; t < length; t++) {
        held[t] = true;
        memcpy(sees[t], held, sizeof held);
        if (++count < options->budget + options->interval) {
            continue;
        }
        for (size_t j = 0; j <= t; j++) {
            held[j] = j < options->sinks || j + options->budget - options->sinks > t;
        }
        count = options->budget;
    }
}

static const double *weight(const masked *masked, size_t layer, lm_part part) {
    return masked->parameters + lm_model_layer(masked->model, layer, part)->offset;
}

static void masked_attention(const masked *masked, double (*query)[48], double (*key)[24],
                             double (*value)[24], double (*output)[48]) {
    for (size_t t = 0; t < masked->length; t++) {
        for (size_t h = 0; h < 4; h++) {
            double row[128];
            size_t there[128], count = 0;
            for (size_t j = 0; j <= t; j++) {
                if (!masked->sees[t][j]) {
                    continue;
                }
                row[count] = 0;
                for (size_t c = 0; c < HEAD; c++) {
                    row[count] += query[t][h * HEAD + c] * key[j][h / 2 * HEAD + c];
                }
                there[count++] = j;
            }
            lm_reference_softmax(row, 1 / sqrt(HEAD), count);
            for (size_t c = 0; c < HEAD; c++) {
                output[t][h * HEAD + c] = 0;
                for (size_t i = 0; i < count; i++) {
                    output[t][h * HEAD + c] += row[i] * value[there[i]][h / 2 * HEAD + c];
                }
            }
        }
    }
}

static void masked_layer(const masked *masked, size_t layer, double (*x)[48]) {
    static double normed[128][48], query[128][48], key[128][24], value[128][24], attended[128][48];
    double added[48], gate[40], up[40];
    size_t length = masked->length;
    for (size_t t = 0; t < length; t++) {
        lm_reference_norm(x[t], weight(masked, layer, LM_INPUT_NORM), 1e-5, 48, normed[t]);
        lm_reference_linear(normed[t], weight(masked, layer, LM_QUERY), 1, 48, 48, query[t]);
        lm_reference_linear(normed[t], weight(masked, layer, LM_KEY), 1, 48, 24, key[t]);
        lm_reference_linear(normed[t], weight(masked, layer, LM_VALUE), 1, 48, 24, value[t]);
        for (size_t h = 0; h < 4; h++) {
            lm_reference_rotate(query[t] + h * HEAD, t, 1000, HEAD);
        }
        for (size_t g = 0; g < 2; g++) {
            lm_reference_rotate(key[t] + g * HEAD, t, 1000, HEAD);
        }
    }
    masked_attention(masked, query, key, value, attended);
    for (size_t t = 0; t < length; t++) {
        lm_reference_linear(attended[t], weight(masked, layer, LM_ATTENTION_OUT), 1, 48, 48, added);
        for (size_t c = 0; c < 48; c++) {
            x[t][c] += added[c];
        }
        lm_reference_norm(x[t], weight(masked, layer, LM_POST_NORM), 1e-5, 48, normed[t]);
        lm_reference_linear(normed[t], weight(masked, layer, LM_GATE), 1, 48, 40, gate);
        lm_reference_linear(normed[t], weight(masked, layer, LM_UP), 1, 48, 40, up);
        lm_reference_swiglu(gate, up, 40, gate);
        lm_reference_linear(gate, weight(masked, layer, LM_DOWN), 1, 40, 48, added);
        for (size_t c = 0; c < 48; c++) {
            x[t][c] += added[c];
        }
    }
}

static void masked_score(const masked *masked, double temperature, double *logp) {
    static double x[128][48];
    const double *embedding = masked->parameters + lm_model_embedding(masked->model)->offset;
    for (size_t t = 0; t < masked->length; t++) {
        memcpy(x[t], embedding + masked->tokens[t] * 48u, sizeof x[t]);
    }
    for (size_t layer = 0; layer < small.layers; layer++) {
        masked_layer(masked, layer, x);
    }
    for (size_t t = 0; t + 1 < masked->length; t++) {
        double normed[48], logits[16];
        lm_reference_norm(x[t], masked->parameters + lm_model_final_norm(masked->model)->offset, 1e-5, 48,
                          normed);
        lm_reference_linear(normed, masked->parameters + lm_model_head(masked->model)->offset, 1, 48, 16,
                            logits);
        lm_reference_log_softmax(logits, 1 / temperature, 16);
        logp[t + 1] = logits[masked->tokens[t + 1]];
    }
}

static void test_reference(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, 2, NULL);
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_STREAMING, 20, &options);
    lm_samples *samples = generate(&scene, &options, 0);
    double *parameters = calloc(scene.model->parameters, sizeof *parameters);
    for (size_t i = 0; i < scene.model->parameters; i++) {
        parameters[i] = (double)scene.model->values[i];
    }
    static bool sees[128][128];
    fill_mask(&options, 128, sees);
    uint64_t held = 0, full = 0;
    for (size_t s = 0; s < PROMPTS; s++) {
        size_t start = samples->starts[s];
        masked masked = {scene.model, parameters, samples->tokens + start, samples->starts[s + 1] - start,
                         sees};
        double logp[128];
        masked_score(&masked, 1.5, logp);
        for (size_t t = samples->prompts[s]; t < masked.length; t++) {
            assert_true(fabs(logp[t] - (double)samples->logp[start + t]) < 1e-4);
        }
        for (size_t t = 0; t + 1 < masked.length; t++) {
            for (size_t j = 0; j <= t; j++) {
                held += sees[t][j];
            }
            full += t + 1;
        }
    }
    assert_true(samples->kv.evictions > 0);
    assert_int_equal(samples->kv.held, held * small.layers * small.kv_heads);
    assert_int_equal(samples->kv.full, full * small.layers * small.kv_heads);
    free(parameters);
    lm_samples_destroy(samples);
    close_scene(&scene);
}

/* ---- company and memory ---- */

static void check_company(scene *one, scene *three, const lm_samples *dense,
                          const weft_kv_options *options) {
    size_t each = lm_sampling_bytes(&small, options, LIMIT + 8);
    lm_samples *all = generate(one, options, 0);
    lm_samples *threads = generate(three, options, 0);
    lm_samples *few = generate(three, options, 5 * each + 1);
    lm_samples *single = generate(three, options, each);
    assert_same(all, threads);
    assert_same(all, few);
    assert_same(all, single);
    assert_true(few->kv.peak_bytes <= 5 * each && single->kv.peak_bytes <= each);
    assert_int_equal(few->kv.held, all->kv.held);
    assert_int_equal(few->kv.bytes, 0);
    if (options->policy != WEFT_KV_NONE) {
        assert_true(all->kv.held < all->kv.full);
        assert_true(all->kv.peak_bytes <= PROMPTS * each);
        assert_true(each < lm_sampling_bytes(&small, NULL, LIMIT + 8));
        assert_true(all->starts[PROMPTS] != dense->starts[PROMPTS] ||
                    memcmp(all->logp, dense->logp, all->starts[PROMPTS] * sizeof(float)) != 0);
    }
    lm_samples_destroy(single);
    lm_samples_destroy(few);
    lm_samples_destroy(threads);
    lm_samples_destroy(all);
}

static void test_company_and_memory(void **state) {
    (void)state;
    scene one, three;
    open_scene(&one, 1, NULL);
    open_scene(&three, 3, NULL);
    lm_samples *dense = generate(&one, NULL, 0);
    for (int policy = WEFT_KV_NONE; policy < WEFT_KV_POLICIES; policy++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults((weft_kv_policy)policy, 16, &options);
        check_company(&one, &three, dense, &options);
        options.keep_prompt = true;
        options.share = 0.3;
        check_company(&one, &three, dense, &options);
        options.common = policy >= WEFT_KV_H2O ? 0.8 : 0;
        check_company(&one, &three, dense, &options);
    }
    lm_samples_destroy(dense);
    close_scene(&three);
    close_scene(&one);
}

static void test_refusals(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, 1, NULL);
    lm_samples *samples = NULL;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_RKV, 16, &options);
    lm_sampling sampling = {.temperature = 1, .limit = LIMIT, .stop = -1, .kv = &options};
    sampling.kv_bytes = lm_sampling_bytes(&small, &options, LIMIT + 8) - 1;
    assert_int_equal(lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &samples),
                     WEFT_LIMIT_EXCEEDED);
    assert_non_null(strstr(weft_context_error(scene.context), "smaller KV budget"));
    options.window = 17;
    assert_int_equal(lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &samples),
                     WEFT_INVALID_ARGUMENT);
    assert_null(samples);
    close_scene(&scene);
}

/* ---- allocations that fail ---- */

static void test_no_memory(void **state) {
    faults faults = {0};
    weft_allocator allocator = faults_allocator(&faults);
    scene scene;
    open_scene(&scene, 1, &allocator);
    scene.prompts.sequences = 2;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_RKV, 4, &options);
    options.common = *(const double *)*state;
    lm_sampling sampling = {.temperature = 1, .limit = 12, .stop = -1, .kv = &options};
    size_t blocks = faults_live_blocks(&faults);
    for (size_t n = 1;; n++) {
        lm_samples *samples = NULL;
        faults_reset(&faults, n);
        weft_status status = lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &samples);
        bool fired = faults_fired(&faults);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
        lm_samples_destroy(samples);
        assert_int_equal(faults_live_blocks(&faults), blocks);
        if (!fired) {
            break;
        }
    }
    faults_reset(&faults, 0);
    close_scene(&scene);
}

int main(void) {
    static double alone = 0, together = 0.8;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_evicted),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_company_and_memory),
        cmocka_unit_test(test_refusals),
        {"no_memory", test_no_memory, NULL, NULL, &alone},
        {"no_memory_together", test_no_memory, NULL, NULL, &together},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
