/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lm_generate.c: generation step by step against the pass over whole sequences, bit for bit; that
 * neither threads nor company change a response; that samples follow the distribution; and the tasks.
 */
#include "../../lm/learn/generate.h"
#include "../../lm/learn/task.h"
#include "../../lm/model/pass.h"
#include "../../lm/model/random.h"

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
    .context = 80,
    .rope_base = 1000,
    .norm_epsilon = 1e-5,
};

enum { PROMPTS = 70, PROMPT_TOKENS = PROMPTS * 5 };

typedef struct scene {
    weft_context *context;
    lm_model *model;
    size_t starts[PROMPTS + 1];
    lm_token tokens[PROMPT_TOKENS];
    uint64_t streams[PROMPTS];
    lm_batch prompts;
} scene;

/* Prompts of one to five tokens. */
static void open_scene(scene *scene, unsigned threads) {
    *scene = (struct scene){0};
    weft_context_options options = {.size = sizeof options, .threads = threads};
    assert_int_equal(weft_context_create(&options, &scene->context), WEFT_OK);
    assert_int_equal(lm_model_create(scene->context, &small, LM_TRAINER, &scene->model), WEFT_OK);
    assert_int_equal(lm_model_initialise(scene->model, 3), WEFT_OK);
    lm_random random = lm_random_open(1, 1);
    for (size_t i = 0; i < PROMPTS; i++) {
        scene->starts[i + 1] = scene->starts[i] + 1 + lm_random_below(&random, 5);
        scene->streams[i] = i;
    }
    for (size_t i = 0; i < PROMPT_TOKENS; i++) {
        scene->tokens[i] = (lm_token)lm_random_below(&random, 16);
    }
    scene->prompts = (lm_batch){PROMPTS, scene->starts, scene->tokens};
}

static void close_scene(scene *scene) {
    lm_model_destroy(scene->model);
    weft_context_destroy(scene->context);
}

static lm_samples *generate(scene *scene, const lm_batch *prompts, const uint64_t *streams,
                            float temperature) {
    lm_sampling sampling = {.temperature = temperature, .seed = 9, .limit = 45, .stop = 13};
    lm_samples *samples = NULL;
    assert_int_equal(lm_generate(scene->model, prompts, streams, &sampling, &samples), WEFT_OK);
    return samples;
}

/* The log-probabilities of sampled tokens are those of the whole sequence, to the last bit. */
static void test_agrees_with_forward(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, 2);
    lm_samples *samples = generate(&scene, &scene.prompts, scene.streams, 0.9f);
    lm_batch batch = lm_samples_batch(samples);
    size_t total = samples->starts[PROMPTS];
    float *logp = calloc(total, sizeof *logp);
    lm_pass *pass = NULL;
    assert_int_equal(lm_pass_create(scene.model, false, &pass), WEFT_OK);
    assert_int_equal(lm_score(pass, &batch, 0.9f, logp), WEFT_OK);
    size_t stopped = 0;
    for (size_t s = 0; s < PROMPTS; s++) {
        size_t start = samples->starts[s], end = samples->starts[s + 1];
        assert_memory_equal(samples->tokens + start, scene.tokens + scene.starts[s],
                            samples->prompts[s] * sizeof(lm_token));
        for (size_t i = start; i < end; i++) {
            if (i < start + samples->prompts[s]) {
                assert_true(samples->logp[i] == 0);
            } else {
                assert_true(samples->logp[i] < 0 && samples->logp[i] == logp[i]);
                assert_true(i + 1 == end || samples->tokens[i] != 13);
            }
        }
        stopped += samples->tokens[end - 1] == 13;
        assert_true(samples->tokens[end - 1] == 13 || end - start == samples->prompts[s] + 45);
    }
    assert_true(stopped > PROMPTS / 2);
    free(logp);
    lm_pass_destroy(pass);
    lm_samples_destroy(samples);
    close_scene(&scene);
}

static void assert_same(const lm_samples *all, size_t first, const lm_samples *part) {
    for (size_t s = 0; s < part->sequences; s++) {
        size_t from = all->starts[first + s], length = all->starts[first + s + 1] - from;
        assert_int_equal(length, part->starts[s + 1] - part->starts[s]);
        assert_memory_equal(all->tokens + from, part->tokens + part->starts[s], length * sizeof(lm_token));
        assert_memory_equal(all->logp + from, part->logp + part->starts[s], length * sizeof(float));
    }
}

static void test_company_does_not_matter(void **state) {
    (void)state;
    scene scene, other;
    open_scene(&scene, 1);
    open_scene(&other, 3);
    lm_samples *all = generate(&scene, &scene.prompts, scene.streams, 1);
    lm_samples *again = generate(&other, &other.prompts, other.streams, 1);
    assert_same(all, 0, again);
    for (size_t first = 0; first < PROMPTS; first += 23) {
        lm_batch part = {first + 5 < PROMPTS ? 5 : 1, scene.starts + first, scene.tokens};
        lm_samples *few = generate(&scene, &part, scene.streams + first, 1);
        assert_same(all, first, few);
        lm_samples_destroy(few);
    }
    lm_samples_destroy(again);
    lm_samples_destroy(all);
    close_scene(&other);
    close_scene(&scene);
}

/* Frequencies of the first sampled token against its probabilities: chi-square with 15 degrees of freedom
 * is above 50 once in 85,000 times, and the seed is fixed. */
static void test_distribution(void **state) {
    (void)state;
    enum { DRAWS = 4000 };
    scene scene;
    open_scene(&scene, 2);
    static size_t starts[DRAWS + 1];
    static lm_token tokens[DRAWS];
    static uint64_t streams[DRAWS];
    double counts[16] = {0}, probabilities[16] = {0}, chi = 0;
    for (size_t i = 0; i < DRAWS; i++) {
        starts[i + 1] = i + 1;
        tokens[i] = 10;
        streams[i] = i;
    }
    lm_sampling sampling = {.temperature = 0.7f, .seed = 2, .limit = 1, .stop = -1};
    lm_batch batch = {DRAWS, starts, tokens};
    lm_samples *samples = NULL;
    assert_int_equal(lm_generate(scene.model, &batch, streams, &sampling, &samples), WEFT_OK);
    for (size_t i = 0; i < DRAWS; i++) {
        lm_token token = samples->tokens[2 * i + 1];
        counts[token] += 1;
        probabilities[token] = exp((double)samples->logp[2 * i + 1]);
    }
    for (size_t i = 0; i < 16; i++) {
        double expected = DRAWS * probabilities[i];
        assert_true(expected > 0);
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    assert_true(chi < 50);
    lm_samples_destroy(samples);
    close_scene(&scene);
}

static void test_greedy_and_refusals(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, 1);
    for (size_t i = 0; i < PROMPTS; i++) {
        scene.streams[i] = i % 2;
    }
    lm_samples *first = generate(&scene, &scene.prompts, scene.streams, 0);
    lm_samples *second = generate(&scene, &scene.prompts, scene.streams + 1, 0);
    assert_same(first, 0, second);
    lm_samples_destroy(second);
    lm_samples_destroy(first);
    lm_sampling sampling = {.temperature = 1, .limit = 80, .stop = -1};
    lm_samples *none = NULL;
    assert_int_equal(lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &none),
                     WEFT_INVALID_ARGUMENT);
    sampling.limit = 0;
    assert_int_equal(lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &none),
                     WEFT_INVALID_ARGUMENT);
    sampling = (lm_sampling){.temperature = -1, .limit = 3, .stop = -1};
    assert_int_equal(lm_generate(scene.model, &scene.prompts, scene.streams, &sampling, &none),
                     WEFT_INVALID_ARGUMENT);
    assert_null(none);
    close_scene(&scene);
}

/* ---- tasks ---- */

static void test_chain(void **state) {
    (void)state;
    const lm_task task = {.kind = LM_TASK_CHAIN, .steps = 4, .period = 3};
    const lm_token prompt[] = {LM_TOKEN_BEGIN, 7, 5, 9, 1, LM_TOKEN_EQUALS};
    const lm_token right[] = {2, 1, 2, 7};
    lm_token answer[LM_TASK_SIZE_MAX], wrong[] = {2, 1, 2, 8}, lucky[] = {0, 0, 0, 7};
    assert_int_equal(lm_task_answer(&task, prompt, 6, answer), 4);
    assert_memory_equal(answer, right, sizeof right);
    assert_true(lm_task_reward(&task, prompt, 6, right, 4) == 1);
    assert_true(lm_task_reward(&task, prompt, 6, lucky, 4) == 1);
    assert_true(lm_task_reward(&task, prompt, 6, wrong, 4) == 0);
    assert_true(lm_task_reward(&task, prompt, 6, right, 3) == 0);
    assert_true(lm_task_reward(&task, prompt, 5, right, 4) == 0);
}

static void test_addition(void **state) {
    (void)state;
    const lm_task task = {.kind = LM_TASK_ADDITION, .digits = 2};
    const lm_token prompt[] = {LM_TOKEN_BEGIN, 9, 5, LM_TOKEN_PLUS, 0, 7, LM_TOKEN_EQUALS};
    const lm_token right[] = {2, 0, 1, LM_TOKEN_END}, zeros[] = {0, LM_TOKEN_END};
    const lm_token nothing[] = {LM_TOKEN_BEGIN, 0, 0, LM_TOKEN_PLUS, 0, 0, LM_TOKEN_EQUALS};
    lm_token answer[LM_TASK_SIZE_MAX];
    assert_int_equal(lm_task_answer(&task, prompt, 7, answer), 4);
    assert_memory_equal(answer, right, sizeof right);
    assert_int_equal(lm_task_answer(&task, nothing, 7, answer), 2);
    assert_memory_equal(answer, zeros, sizeof zeros);
    assert_true(lm_task_reward(&task, prompt, 7, right, 4) == 1);
    assert_true(lm_task_reward(&task, prompt, 7, right, 3) == 0);
    const lm_token forged[] = {LM_TOKEN_BEGIN, 9, 5, LM_TOKEN_PLUS, 900, 7, LM_TOKEN_EQUALS};
    assert_int_equal(lm_task_answer(&task, forged, 7, answer), 0);
    assert_true(lm_task_reward(&task, forged, 7, right, 4) == 0);
}

static void test_prompts(void **state) {
    (void)state;
    const lm_task tasks[] = {{.kind = LM_TASK_CHAIN, .steps = 32, .period = 6},
                             {.kind = LM_TASK_ADDITION, .digits = 3}};
    for (size_t t = 0; t < 2; t++) {
        lm_token first[LM_TASK_SIZE_MAX], second[LM_TASK_SIZE_MAX], answer[LM_TASK_SIZE_MAX];
        size_t size = lm_task_prompt_size(&tasks[t]);
        for (uint64_t number = 0; number < 100; number++) {
            lm_task_prompt(&tasks[t], 5, number, first);
            lm_task_prompt(&tasks[t], 5, number, second);
            assert_memory_equal(first, second, size * sizeof *first);
            size_t count = lm_task_answer(&tasks[t], first, size, answer);
            assert_true(count > 0 && count <= lm_task_response_size(&tasks[t]));
            assert_true(lm_task_reward(&tasks[t], first, size, answer, count) == 1);
            lm_task_prompt(&tasks[t], 6, number, second);
            assert_memory_not_equal(first, second, size * sizeof *first);
        }
    }
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    const lm_task bad[] = {{.kind = LM_TASK_CHAIN, .steps = 36, .period = 6},
                           {.kind = LM_TASK_CHAIN, .steps = 5},
                           {.kind = LM_TASK_ADDITION},
                           {.kind = LM_TASK_ADDITION, .digits = 5000},
                           {.kind = (lm_task_kind)7, .digits = 3}};
    for (size_t t = 0; t < sizeof bad / sizeof bad[0]; t++) {
        assert_int_equal(lm_task_check(context, &bad[t]), WEFT_INVALID_ARGUMENT);
    }
    weft_context_destroy(context);
}

static bool refuse(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    return !*(bool *)opaque;
}

/* Who is told to stop does so in the middle of a response, and of a score. */
static void test_cancelled(void **state) {
    (void)state;
    scene scene;
    lm_model *model = NULL;
    lm_pass *pass = NULL;
    lm_samples *samples = NULL;
    weft_context *context = NULL;
    bool stopped = true;
    float logp[PROMPT_TOKENS];
    open_scene(&scene, 1);
    const weft_context_options options = {
        .size = sizeof options, .threads = 2, .progress = refuse, .progress_opaque = &stopped};
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(lm_model_create(context, &small, LM_WORKER, &model), WEFT_OK);
    assert_int_equal(lm_model_copy(model, scene.model), WEFT_OK);
    assert_int_equal(lm_pass_create(model, false, &pass), WEFT_OK);
    const lm_sampling sampling = {.seed = 1, .temperature = 1, .limit = 70};
    assert_int_equal(lm_generate(model, &scene.prompts, scene.streams, &sampling, &samples),
                     WEFT_CANCELLED);
    assert_null(samples);
    assert_int_equal(lm_score(pass, &scene.prompts, 1, logp), WEFT_CANCELLED);
    stopped = false;
    assert_int_equal(lm_generate(model, &scene.prompts, scene.streams, &sampling, &samples), WEFT_OK);
    lm_samples_destroy(samples);
    lm_pass_destroy(pass);
    lm_model_destroy(model);
    weft_context_destroy(context);
    close_scene(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_forward),
        cmocka_unit_test(test_company_does_not_matter),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_greedy_and_refusals),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_addition),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
