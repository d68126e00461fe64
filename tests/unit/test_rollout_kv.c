/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rollout_kv.c: caches under each policy against a reference that keeps every key, value and query
 * ever given, and at each eviction computes scores in double precision from all of them; and that memory
 * stays within its bounds and is given back.
 */
#include "../../lib/base/cpu.h"
#include "faults.h"

#include <weft/rollout.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 260, HEAD_MOST = 48, GROUP_MOST = 3 };

/* ---- the reference ---- */

typedef struct history {
    weft_kv_options options;
    size_t head;
    size_t group;
    size_t kinds; /* of keys; 0: most are unlike all others */
    size_t count; /* tokens so far */
    float keys[TOKENS][HEAD_MOST];
    float values[TOKENS][HEAD_MOST];
    float queries[TOKENS][GROUP_MOST][HEAD_MOST];
    bool held[TOKENS][TOKENS]; /* [t][j]: token j was there for the queries of token t */
    size_t ambiguous;          /* evictions in which two scores were too close to tell apart */
} history;

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

static double product(const float *a, const float *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static void soften(double *row, size_t count) {
    double most = -DBL_MAX, sum = 0;
    for (size_t i = 0; i < count; i++) {
        most = row[i] > most ? row[i] : most;
    }
    for (size_t i = 0; i < count; i++) {
        row[i] = exp(row[i] - most);
        sum += row[i];
    }
    for (size_t i = 0; i < count; i++) {
        row[i] /= sum;
    }
}

/* What head h of token t's queries gives to each token that was there. */
static void attend(const history *history, size_t t, size_t h, double *probabilities) {
    double row[TOKENS];
    size_t there[TOKENS], count = 0;
    for (size_t j = 0; j <= t; j++) {
        if (history->held[t][j]) {
            row[count] = product(history->queries[t][h], history->keys[j], history->head) /
                         sqrt((double)history->head);
            there[count++] = j;
        }
    }
    soften(row, count);
    memset(probabilities, 0, TOKENS * sizeof *probabilities);
    for (size_t i = 0; i < count; i++) {
        probabilities[there[i]] = row[i];
    }
}

/* Attention that each token of the list has received since it came. */
static void reference_sums(const history *history, const size_t *list, size_t count, double *scores) {
    memset(scores, 0, count * sizeof *scores);
    for (size_t t = 0; t < history->count; t++) {
        for (size_t h = 0; h < history->group; h++) {
            double probabilities[TOKENS];
            attend(history, t, h, probabilities);
            for (size_t i = 0; i < count; i++) {
                scores[i] += probabilities[list[i]];
            }
        }
    }
}

/* A cache remembers queries in BF16. */
static const float *remembered(const float *query, size_t head, float *rounded) {
    uint16_t words[HEAD_MOST];
    weft_bf16_from_f32(query, words, head);
    weft_bf16_widen(words, rounded, head);
    return rounded;
}

static void reference_attention(const history *history, const size_t *list, size_t count, double *scores) {
    const weft_kv_options *options = &history->options;
    size_t candidates = count - options->window;
    double mean[TOKENS] = {0}, row[TOKENS];
    for (size_t t = history->count - options->window; t < history->count; t++) {
        for (size_t i = 0; i < candidates; i++) {
            row[i] = -DBL_MAX;
        }
        for (size_t h = 0; h < history->group; h++) {
            float rounded[HEAD_MOST];
            const float *query = remembered(history->queries[t][h], history->head, rounded);
            for (size_t i = 0; i < candidates; i++) {
                double logit =
                    product(query, history->keys[list[i]], history->head) / sqrt((double)history->head);
                row[i] = logit > row[i] ? logit : row[i];
            }
        }
        soften(row, candidates);
        for (size_t i = 0; i < candidates; i++) {
            mean[i] += row[i] / (double)options->window;
        }
    }
    long reach = (long)options->pooling / 2;
    for (long i = 0; i < (long)candidates; i++) {
        double most = 0, sum = 0;
        for (long j = i - reach; j <= i + reach; j++) {
            double one = j >= 0 && j < (long)candidates ? mean[j] : 0;
            most = one > most ? one : most;
            sum += one;
        }
        scores[i] = options->pooled == WEFT_KV_POOL_MAX ? most : sum / (double)options->pooling;
    }
}

static void reference_redundancy(const history *history, const size_t *list, size_t count, double *scores) {
    static double cosines[TOKENS][TOKENS];
    double redundancy[TOKENS] = {0};
    for (size_t i = 0; i < count; i++) {
        size_t last = 0;
        for (size_t j = 0; j < count; j++) {
            const float *a = history->keys[list[i]], *b = history->keys[list[j]];
            cosines[i][j] = i == j ? 0
                                   : product(a, b, history->head) /
                                         sqrt(product(a, a, history->head) * product(b, b, history->head));
            last = i != j && cosines[i][j] > history->options.similarity ? j : last;
        }
        cosines[i][last] = 0;
    }
    for (size_t j = 0; j < count; j++) {
        for (size_t i = 0; i < count; i++) {
            redundancy[j] += cosines[i][j] / (double)count;
        }
    }
    soften(redundancy, count);
    reference_attention(history, list, count, scores);
    double lambda = history->options.lambda;
    for (size_t i = 0; i < count - history->options.window; i++) {
        scores[i] = lambda * scores[i] - (1 - lambda) * redundancy[i];
    }
}

/* The best of the list between sinks and window, by looking for the highest again and again. */
static void reference_best(history *history, const size_t *list, size_t count, bool *keep) {
    const weft_kv_options *options = &history->options;
    double scores[TOKENS], lowest = DBL_MAX;
    if (options->policy == WEFT_KV_H2O) {
        reference_sums(history, list, count, scores);
    } else if (options->policy == WEFT_KV_SNAPKV) {
        reference_attention(history, list, count, scores);
    } else {
        reference_redundancy(history, list, count, scores);
    }
    for (size_t left = options->budget - options->sinks - options->window; left > 0; left--) {
        size_t best = count;
        for (size_t i = options->sinks; i < count - options->window; i++) {
            if (!keep[list[i]] && (best == count || scores[i] > scores[best])) {
                best = i;
            }
        }
        keep[list[best]] = true;
        lowest = scores[best];
    }
    for (size_t i = options->sinks; i < count - options->window; i++) {
        double gap = lowest - scores[i];
        history->ambiguous += !keep[list[i]] && gap != 0 && gap < 1e-6 * fabs(lowest) ? 1 : 0;
    }
}

/* Which tokens are there for the next one, if the last left so many that an eviction is due. */
static void reference_evict(history *history, bool *there) {
    const weft_kv_options *options = &history->options;
    size_t list[TOKENS], count = 0;
    for (size_t j = 0; j < history->count; j++) {
        if (there[j]) {
            list[count++] = j;
        }
    }
    if (options->policy == WEFT_KV_NONE || count < options->budget + options->interval) {
        return;
    }
    memset(there, 0, TOKENS * sizeof *there);
    bool streaming = options->policy == WEFT_KV_STREAMING;
    size_t recent = streaming ? options->budget - options->sinks : options->window;
    for (size_t i = 0; i < count; i++) {
        there[list[i]] = i < options->sinks || i >= count - recent;
    }
    if (!streaming) {
        reference_best(history, list, count, there);
    }
}

/* ---- the cache beside it ---- */

static float key_of(const weft_kv_view *view, size_t head, size_t row, size_t c) {
    return view->keys[(row / WEFT_KV_PANEL * head + c) * WEFT_KV_PANEL + row % WEFT_KV_PANEL];
}

static float value_of(const weft_kv_view *view, size_t head, size_t row, size_t c) {
    size_t width = (head + WEFT_KV_PANEL - 1) / WEFT_KV_PANEL * WEFT_KV_PANEL;
    return view->values[row * width + c];
}

static void assert_holds(const weft_kv_cache *cache, const history *history, const bool *there) {
    weft_kv_view view = weft_kv_cache_view(cache);
    size_t row = 0;
    for (size_t j = 0; j < history->count; j++) {
        if (!there[j]) {
            continue;
        }
        assert_true(row < view.rows);
        assert_int_equal(view.positions[row], 3 * j + 1);
        for (size_t c = 0; c < history->head; c++) {
            assert_true(key_of(&view, history->head, row, c) == history->keys[j][c]);
            assert_true(value_of(&view, history->head, row, c) == history->values[j][c]);
        }
        row++;
    }
    assert_int_equal(row, view.rows);
}

/* Keys drift, and every few tokens one comes nearly again, so that there is redundancy; or there are only
 * some kinds of keys, so that the last one of a kind is often evicted before others. */
static void make_token(history *history, uint64_t *random) {
    size_t t = history->count++;
    for (size_t c = 0; c < history->head; c++) {
        float fresh = noise(random);
        size_t before = history->kinds > 0 ? (t * t + t / 3) % history->kinds : t - 3;
        bool again = history->kinds > 0 ? t >= history->kinds : t % 4 == 3;
        history->keys[t][c] = again ? history->keys[before][c] + 0.3f * fresh : fresh;
        history->values[t][c] = noise(random);
        for (size_t h = 0; h < history->group; h++) {
            history->queries[t][h][c] = 2 * noise(random);
        }
    }
}

static weft_status tell(weft_kv_cache *cache, const history *history, const bool *there) {
    static float probabilities[GROUP_MOST][TOKENS];
    float queries[GROUP_MOST * HEAD_MOST];
    size_t t = history->count - 1;
    for (size_t h = 0; h < history->group; h++) {
        double row[TOKENS];
        size_t count = 0;
        attend(history, t, h, row);
        for (size_t j = 0; j <= t; j++) {
            if (there[j]) {
                probabilities[h][count++] = (float)row[j];
            }
        }
        memcpy(queries + h * history->head, history->queries[t][h], history->head * sizeof(float));
    }
    return weft_kv_cache_observe(cache, queries, probabilities[0], TOKENS);
}

static void compare_kinds(const weft_kv_options *options, size_t head, size_t group, size_t kinds,
                          uint64_t seed) {
    faults faults = {0};
    weft_context_options context_options = {
        .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 1};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
    history *history = calloc(1, sizeof *history);
    *history = (struct history){.options = *options, .head = head, .group = group, .kinds = kinds};
    weft_kv_shape shape = {.head = head, .group = group};
    weft_kv_usage usage = {0};
    weft_kv_cache *cache = NULL;
    size_t blocks = faults_live_blocks(&faults);
    bool there[TOKENS] = {0};
    uint64_t held = 0, most = 0;
    assert_int_equal(weft_kv_cache_create(context, options, &shape, TOKENS, &usage, &cache), WEFT_OK);
    for (size_t t = 0; t < TOKENS; t++) {
        make_token(history, &seed);
        there[t] = true;
        memcpy(history->held[t], there, sizeof there);
        assert_int_equal(
            weft_kv_cache_append(cache, (uint32_t)(3 * t + 1), history->keys[t], history->values[t]),
            WEFT_OK);
        held += weft_kv_cache_view(cache).rows;
        most = weft_kv_cache_view(cache).rows > most ? weft_kv_cache_view(cache).rows : most;
        assert_int_equal(tell(cache, history, there), WEFT_OK);
        reference_evict(history, there);
        assert_holds(cache, history, there);
    }
    assert_int_equal(history->ambiguous, 0);
    assert_int_equal(usage.held, held);
    assert_int_equal(usage.full, TOKENS * (TOKENS + 1) / 2);
    assert_int_equal(usage.full_bytes, TOKENS * 2 * head * sizeof(float));
    assert_true(usage.peak_bytes <= weft_kv_bytes(options, &shape, TOKENS));
    if (options->policy == WEFT_KV_NONE) {
        assert_int_equal(most, TOKENS);
        assert_int_equal(usage.evictions, 0);
    } else {
        assert_int_equal(most, options->budget + options->interval);
        assert_int_equal(usage.evictions, (TOKENS - options->budget) / options->interval);
        assert_true(usage.bytes <= weft_kv_bytes(options, &shape, most));
    }
    weft_kv_cache_destroy(cache);
    assert_int_equal(usage.bytes, 0);
    assert_int_equal(usage.full_bytes, 0);
    assert_int_equal(faults_live_blocks(&faults), blocks);
    free(history);
    weft_context_destroy(context);
}

static void compare(const weft_kv_options *options, size_t head, size_t group, uint64_t seed) {
    compare_kinds(options, head, group, 0, seed);
}

static void test_none(void **state) {
    (void)state;
    compare(&(weft_kv_options){.size = sizeof(weft_kv_options)}, 16, 1, 1);
    compare(&(weft_kv_options){.size = sizeof(weft_kv_options)}, 48, 2, 2);
}

/* Defaults, then small and large values of each option, whole panels and parts of them. */
static void test_policies(void **state) {
    weft_kv_policy policy = *(weft_kv_policy *)*state;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(policy, 64, &options);
    compare(&options, 16, 1, 3);
    compare(&options, 40, 3, 4);
    compare_kinds(&options, 24, 1, 9, 9);
    weft_kv_defaults(policy, 37, &options);
    options.interval = 5;
    options.sinks = 3;
    compare(&options, 33, 2, 11);
    compare_kinds(&options, 20, 2, 5, 10);
    options.interval = 1;
    options.window = policy == WEFT_KV_STREAMING ? 0 : 34;
    compare(&options, 8, 1, 6);
    weft_kv_defaults(policy, 2, &options);
    options.interval = 70;
    options.pooling = 1;
    compare(&options, 6, 2, 7);
    weft_kv_defaults(policy, 96, &options);
    options.interval = 64;
    options.pooling = 5;
    options.pooled = WEFT_KV_POOL_MEAN;
    options.lambda = 0.6;
    options.similarity = 0.2;
    compare(&options, 32, 2, 8);
}

/* Equal scores: queries that are zero see every candidate alike. */
static void test_ties(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_SNAPKV, 10, &options);
    options.window = 3;
    options.interval = 6;
    weft_kv_usage usage = {0};
    weft_kv_cache *cache = NULL;
    const float zeros[4] = {0};
    assert_int_equal(weft_kv_cache_create(context, &options, &(weft_kv_shape){4, 1}, 100, &usage, &cache),
                     WEFT_OK);
    for (uint32_t t = 0; t < 16; t++) {
        const float key[4] = {(float)t, 1, 2, 3};
        assert_int_equal(weft_kv_cache_append(cache, t, key, key), WEFT_OK);
        assert_int_equal(weft_kv_cache_observe(cache, zeros, NULL, 0), WEFT_OK);
    }
    weft_kv_view view = weft_kv_cache_view(cache);
    const uint32_t expected[] = {0, 1, 2, 3, 4, 5, 6, 13, 14, 15};
    assert_int_equal(view.rows, 10);
    assert_memory_equal(view.positions, expected, sizeof expected);
    weft_kv_cache_destroy(cache);
    weft_context_destroy(context);
}

/* What snapkv needs beyond streaming: the last queries, two bytes for each of their numbers. */
static void test_bytes(void **state) {
    (void)state;
    weft_kv_options streaming = {.size = sizeof streaming}, snapkv = {.size = sizeof snapkv};
    weft_kv_shape shape = {.head = 32, .group = 3};
    weft_kv_defaults(WEFT_KV_STREAMING, 40, &streaming);
    weft_kv_defaults(WEFT_KV_SNAPKV, 40, &snapkv);
    assert_int_equal(weft_kv_bytes(&snapkv, &shape, TOKENS) - weft_kv_bytes(&streaming, &shape, TOKENS),
                     snapkv.window * shape.group * shape.head * 2);
}

int main(void) {
    static weft_kv_policy streaming = WEFT_KV_STREAMING, h2o = WEFT_KV_H2O, snapkv = WEFT_KV_SNAPKV,
                          rkv = WEFT_KV_RKV;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),
        {"streaming", test_policies, NULL, NULL, &streaming},
        {"h2o", test_policies, NULL, NULL, &h2o},
        {"snapkv", test_policies, NULL, NULL, &snapkv},
        {"rkv", test_policies, NULL, NULL, &rkv},
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
