/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rollout_kv_edges.c: what caches refuse, numbers that are not finite, allocations that fail, and that
 * the kernels of all levels give the same bits.
 */
#include "../../lib/rollout/kv_kernels.h"
#include "faults.h"

#include <weft/rollout.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

/* Numbers that are none must neither crash nor break the bounds. */
static void test_not_finite(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    for (int policy = WEFT_KV_STREAMING; policy <= WEFT_KV_RKV; policy++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults((weft_kv_policy)policy, 20, &options);
        weft_kv_usage usage = {0};
        weft_kv_cache *cache = NULL;
        assert_int_equal(
            weft_kv_cache_create(context, &options, &(weft_kv_shape){4, 1}, 100, &usage, &cache), WEFT_OK);
        for (uint32_t t = 0; t < 100; t++) {
            float odd[] = {NAN, INFINITY, -INFINITY, -0.0f, FLT_MAX, 0, 1e-40f};
            float key[4] = {odd[t % 7], odd[t % 5], odd[t % 3], 1};
            float probabilities[100];
            for (size_t i = 0; i < 100; i++) {
                probabilities[i] = odd[(i + t) % 7];
            }
            assert_int_equal(weft_kv_cache_append(cache, t, key, key), WEFT_OK);
            assert_int_equal(weft_kv_cache_observe(cache, key, probabilities, 100), WEFT_OK);
            weft_kv_view view = weft_kv_cache_view(cache);
            assert_true(view.rows <= 25 && view.positions[view.rows - 1] == t);
            for (size_t i = 1; i < view.rows; i++) {
                assert_true(view.positions[i] > view.positions[i - 1]);
            }
        }
        weft_kv_cache_destroy(cache);
    }
    weft_context_destroy(context);
}

/* ---- levels ---- */

static void test_levels_agree(void **state) {
    (void)state;
    enum { COUNT = 77, ROWS = 7, HEAD = 19, PANELS = 5 };
    const weft_kv_kernels *portable = weft_kv_kernels_at(WEFT_CPU_PORTABLE);
    for (int level = WEFT_CPU_PORTABLE + 1; level <= (int)weft_cpu_best(); level++) {
        const weft_kv_kernels *kernels = weft_kv_kernels_at((weft_cpu)level);
        uint64_t random = 5;
        float rows[ROWS * HEAD], keys[PANELS * HEAD * WEFT_KV_PANEL];
        float a[ROWS * COUNT], b[ROWS * COUNT];
        for (size_t i = 0; i < ROWS * HEAD; i++) {
            rows[i] = noise(&random);
        }
        for (size_t i = 0; i < PANELS * HEAD * WEFT_KV_PANEL; i++) {
            keys[i] = noise(&random);
        }
        for (size_t i = 0; i < ROWS * COUNT; i++) {
            a[i] = b[i] = noise(&random);
        }
        portable->products(rows, ROWS, keys, PANELS, HEAD, a, COUNT);
        kernels->products(rows, ROWS, keys, PANELS, HEAD, b, COUNT);
        assert_memory_equal(a, b, sizeof a);
        portable->raise(a, a + COUNT, COUNT);
        kernels->raise(b, b + COUNT, COUNT);
        portable->softmax(a, 3, COUNT);
        kernels->softmax(b, 3, COUNT);
        portable->add(a + COUNT, a, 0.3f, COUNT);
        kernels->add(b + COUNT, b, 0.3f, COUNT);
        assert_memory_equal(a, b, sizeof a);
        uint32_t some[COUNT] = {0}, others[COUNT] = {0};
        portable->note_above(a + COUNT, 0.1f, COUNT, 7, a, some);
        kernels->note_above(b + COUNT, 0.1f, COUNT, 7, b, others);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(some, others, sizeof some);
        for (size_t count = 0; count <= COUNT; count++) {
            uint32_t last = 0;
            for (uint32_t i = 0; i < (uint32_t)count; i++) {
                last = a[COUNT + i] > 0.8f ? i + 1 : last;
            }
            assert_int_equal(portable->last_above(a + COUNT, 0.8f, count), last);
            assert_int_equal(kernels->last_above(a + COUNT, 0.8f, count), last);
        }
    }
}

/* ---- refusals ---- */

static void assert_refused(weft_context *context, weft_kv_options options, const char *reason) {
    weft_kv_usage usage = {0};
    weft_kv_cache *cache = NULL;
    assert_int_equal(weft_kv_check(context, &options), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), reason));
    assert_int_equal(weft_kv_cache_create(context, &options, &(weft_kv_shape){4, 1}, 100, &usage, &cache),
                     WEFT_INVALID_ARGUMENT);
    assert_null(cache);
}

static void test_options(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    for (int i = 0; i < WEFT_KV_POLICIES; i++) {
        weft_kv_policy policy = (weft_kv_policy)i, parsed = WEFT_KV_NONE;
        assert_true(weft_kv_policy_parse(weft_kv_policy_name(policy), &parsed) && parsed == policy);
        for (size_t budget = 1; budget < 40; budget++) {
            weft_kv_options options = {.size = sizeof options};
            weft_kv_defaults(policy, budget, &options);
            assert_int_equal(weft_kv_check(context, &options), WEFT_OK);
        }
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults(policy, 512, &options);
        assert_int_equal(options.interval, 128);
        weft_kv_defaults(policy, WEFT_KV_TOKENS_MAX, &options);
        assert_int_equal(weft_kv_check(context, &options), WEFT_OK);
    }
    weft_kv_policy other;
    assert_false(weft_kv_policy_parse("lru", &other));
    assert_null(weft_kv_policy_name((weft_kv_policy)5));
    assert_null(weft_kv_policy_name((weft_kv_policy)-1));
    assert_refused(context, (weft_kv_options){.size = sizeof(weft_kv_options), .policy = (weft_kv_policy)5},
                   "no KV policy 5");
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_H2O, 0, &options);
    assert_refused(context, options, "budget of 0");
    weft_kv_defaults(WEFT_KV_H2O, (size_t)-1, &options);
    assert_refused(context, options, "budget of");
    weft_kv_defaults(WEFT_KV_STREAMING, 4, &options);
    options.sinks = 4;
    assert_refused(context, options, "no room for recent tokens");
    weft_kv_defaults(WEFT_KV_SNAPKV, 16, &options);
    options.interval = 0;
    assert_refused(context, options, "interval of 0");
    weft_kv_defaults(WEFT_KV_SNAPKV, 16, &options);
    options.sinks = 9;
    assert_refused(context, options, "9 sinks and a window of 8 tokens do not fit a budget of 16");
    options.sinks = (size_t)-4;
    assert_refused(context, options, "do not fit");
    weft_kv_defaults(WEFT_KV_H2O, 16, &options);
    options.window = 0;
    assert_refused(context, options, "window of 0");
    weft_kv_defaults(WEFT_KV_SNAPKV, 1 << 20, &options);
    options.window = (1 << 16) + 1;
    assert_refused(context, options, "window of 65537");
    weft_kv_defaults(WEFT_KV_SNAPKV, 16, &options);
    options.pooling = 4;
    assert_refused(context, options, "odd number");
    weft_kv_defaults(WEFT_KV_RKV, 16, &options);
    options.lambda = 1.5;
    assert_refused(context, options, "lambda 1.5");
    options.lambda = NAN;
    assert_refused(context, options, "lambda");
    weft_kv_defaults(WEFT_KV_RKV, 16, &options);
    options.similarity = 2;
    assert_refused(context, options, "no cosine");
    weft_context_destroy(context);
}

static void test_order_of_calls(void **state) {
    (void)state;
    weft_context *context = NULL;
    weft_kv_usage usage = {0};
    weft_kv_cache *cache = NULL;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_STREAMING, 8, &options);
    const float key[4] = {0};
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    const weft_kv_shape wrong[] = {{0, 1}, {4, 0}, {1 << 20, 1}, {4, 1 << 20}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(weft_kv_cache_create(context, &options, &wrong[i], 9, &usage, &cache),
                         WEFT_INVALID_ARGUMENT);
    }
    weft_kv_shape shape = {.head = 4, .group = 1};
    assert_int_equal(weft_kv_cache_create(context, &options, &shape, 0, &usage, &cache),
                     WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_kv_cache_create(context, &options, &shape, 2, &usage, &cache), WEFT_OK);
    assert_int_equal(weft_kv_cache_observe(cache, key, key, 4), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_kv_cache_append(cache, 5, key, key), WEFT_OK);
    assert_int_equal(weft_kv_cache_append(cache, 6, key, key), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_kv_cache_observe(cache, key, key, 4), WEFT_OK);
    assert_int_equal(weft_kv_cache_append(cache, 5, key, key), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_kv_cache_append(cache, 6, key, key), WEFT_OK);
    assert_int_equal(weft_kv_cache_observe(cache, key, key, 4), WEFT_OK);
    assert_int_equal(weft_kv_cache_append(cache, 7, key, key), WEFT_LIMIT_EXCEEDED);
    assert_int_equal(weft_kv_cache_view(cache).rows, 2);
    weft_kv_cache_destroy(cache);
    weft_context_destroy(context);
}

/* ---- allocations that fail ---- */

static weft_status feed(weft_context *context, const weft_kv_options *options) {
    weft_kv_usage usage = {0};
    weft_kv_cache *cache = NULL;
    float key[40], probabilities[64] = {0};
    uint64_t random = 4;
    weft_status status =
        weft_kv_cache_create(context, options, &(weft_kv_shape){40, 1}, 100, &usage, &cache);
    for (uint32_t t = 0; t < 100 && status == WEFT_OK; t++) {
        for (size_t c = 0; c < 40; c++) {
            key[c] = noise(&random);
        }
        status = weft_kv_cache_append(cache, t, key, key);
        if (status == WEFT_OK) {
            status = weft_kv_cache_observe(cache, key, probabilities, 64);
        }
    }
    weft_kv_view view = cache != NULL ? weft_kv_cache_view(cache) : (weft_kv_view){0};
    for (size_t i = 0; i < view.rows; i++) {
        assert_true(view.positions[i] < 100 && (i == 0 || view.positions[i] > view.positions[i - 1]));
    }
    if (options->policy != WEFT_KV_NONE && view.rows == options->budget + options->interval) {
        assert_int_equal(weft_kv_cache_append(cache, 100, key, key), WEFT_LIMIT_EXCEEDED);
    }
    weft_kv_cache_destroy(cache);
    assert_int_equal(usage.bytes, 0);
    return status;
}

static void test_no_memory(void **state) {
    (void)state;
    for (int policy = WEFT_KV_NONE; policy <= WEFT_KV_RKV; policy++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults((weft_kv_policy)policy, 30, &options);
        options.interval = 34;
        for (size_t n = 1;; n++) {
            faults faults = {0};
            weft_context_options context_options = {
                .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 1};
            weft_context *context = NULL;
            assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
            size_t blocks = faults_live_blocks(&faults);
            faults_reset(&faults, n);
            weft_status status = feed(context, &options);
            bool fired = faults_fired(&faults);
            assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
            assert_int_equal(faults_live_blocks(&faults), blocks);
            weft_context_destroy(context);
            if (!fired) {
                break;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_options),    cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
