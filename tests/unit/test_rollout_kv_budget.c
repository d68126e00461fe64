/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rollout_kv_budget.c: budgets that adapt: one that grows with the sequence, prompts that stay, and
 * caches that choose together, whose rows and bytes are never more than those of equal budgets. Under h2o
 * the scores are sums of what the test gives as attention, so it knows what has to be kept.
 */
#include "faults.h"

#include <weft/rollout.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 200, HEAD = 12, CACHES = 3 };

static const weft_kv_shape shape = {.head = HEAD, .group = 1};

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 24);
}

static weft_context *open_context(void) {
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    return context;
}

/* ---- a budget that grows ---- */

static void test_share(void **state) {
    (void)state;
    weft_context *context = open_context();
    for (int policy = WEFT_KV_STREAMING; policy <= WEFT_KV_RKV; policy++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults((weft_kv_policy)policy, 20, &options);
        options.interval = 6;
        options.share = 0.4;
        weft_kv_usage usage = {0};
        weft_kv_cache *cache = NULL;
        uint64_t random = 1;
        assert_int_equal(weft_kv_cache_create(context, &options, &shape, TOKENS, &usage, &cache), WEFT_OK);
        for (uint32_t t = 0; t < TOKENS; t++) {
            float key[HEAD], probabilities[TOKENS];
            for (size_t c = 0; c < HEAD; c++) {
                key[c] = noise(&random) - 0.5f;
            }
            for (size_t i = 0; i < TOKENS; i++) {
                probabilities[i] = noise(&random);
            }
            size_t budget = (size_t)ceil(0.4 * (t + 1));
            budget = budget > 20 ? budget : 20;
            assert_int_equal(weft_kv_cache_append(cache, t, key, key), WEFT_OK);
            size_t before = weft_kv_cache_view(cache).rows;
            assert_true(before <= budget + 6);
            assert_int_equal(weft_kv_cache_observe(cache, key, probabilities, TOKENS), WEFT_OK);
            size_t after = weft_kv_cache_view(cache).rows;
            assert_int_equal(after, before < budget + 6 ? before : budget);
        }
        assert_true(usage.evictions > 10 && weft_kv_cache_view(cache).rows >= 80);
        assert_true(usage.peak_bytes <= weft_kv_bytes(&options, &shape, TOKENS));
        weft_kv_cache_destroy(cache);
    }
    weft_context_destroy(context);
}

static void test_sinks(void **state) {
    (void)state;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_SNAPKV, 32, &options);
    assert_int_equal(weft_kv_sinks(&options, 9), 0);
    options.keep_prompt = true;
    assert_int_equal(weft_kv_sinks(&options, 9), 9);
    assert_int_equal(weft_kv_sinks(&options, 100), 24); /* the window has its place */
    options.sinks = 11;
    assert_int_equal(weft_kv_sinks(&options, 9), 11);
    weft_kv_defaults(WEFT_KV_STREAMING, 16, &options);
    options.keep_prompt = true;
    assert_int_equal(weft_kv_sinks(&options, 100), 15);
    weft_context *context = open_context();
    options.sinks = weft_kv_sinks(&options, 100);
    assert_int_equal(weft_kv_check(context, &options), WEFT_OK);
    weft_context_destroy(context);
}

/* ---- caches that choose together ---- */

/* What a cache must hold: positions, and what each has received. */
typedef struct row {
    uint32_t position;
    float sum;
} row;

typedef struct expected {
    row rows[TOKENS];
    size_t count;
} expected;

/* How much attention head `index` gives to the token at `position`: the first head to a few, the last to
 * all. No two are alike, nor are their sums. */
static float attention(size_t index, uint32_t position, uint64_t *random) {
    bool looked_at = index == CACHES - 1 || position % (11 - 4 * (uint32_t)index) == 0;
    return (looked_at ? 0.1f : 0.001f) * (1 + noise(random));
}

static size_t count_better(const expected *head, size_t sinks, size_t end, float sum) {
    size_t better = 0;
    for (size_t i = sinks; i < end; i++) {
        better += head->rows[i].sum > sum;
    }
    return better;
}

/* Rows of head `index` that are among the best of its own, or among the best of all that are not. */
static size_t share_of(const expected heads[CACHES], size_t index, const weft_kv_options *options,
                       size_t own) {
    size_t sinks = options->sinks, window = options->window;
    size_t wanted = CACHES * (options->budget - sinks - window - own), count = sinks + window;
    for (size_t i = sinks; i < heads[index].count - window; i++) {
        float sum = heads[index].rows[i].sum;
        bool mine = count_better(&heads[index], sinks, heads[index].count - window, sum) < own;
        size_t better = 0;
        for (size_t h = 0; h < CACHES; h++) {
            size_t among = count_better(&heads[h], sinks, heads[h].count - window, sum);
            better += among > own ? among - own : 0;
        }
        count += mine || better < wanted;
    }
    return count;
}

/* The best of a head, as many as it was seen to keep. */
static void keep_best(expected *head, const weft_kv_options *options, size_t size) {
    expected kept = {0};
    size_t end = head->count - options->window;
    for (size_t i = 0; i < head->count; i++) {
        bool always = i < options->sinks || i >= end;
        if (always || count_better(head, options->sinks, end, head->rows[i].sum) <
                          size - options->sinks - options->window) {
            kept.rows[kept.count++] = head->rows[i];
        }
    }
    *head = kept;
}

static void assert_holds(const weft_kv_cache *cache, const expected *head) {
    weft_kv_view view = weft_kv_cache_view(cache);
    assert_int_equal(view.rows, head->count);
    for (size_t i = 0; i < view.rows; i++) {
        assert_int_equal(view.positions[i], head->rows[i].position);
    }
}

static void append_all(weft_kv_cache *caches[CACHES], expected heads[CACHES], uint32_t t,
                       uint64_t *random) {
    for (size_t h = 0; h < CACHES; h++) {
        float key[HEAD] = {1}, probabilities[TOKENS];
        heads[h].rows[heads[h].count++] = (row){.position = t};
        for (size_t i = 0; i < heads[h].count; i++) {
            probabilities[i] = attention(h, heads[h].rows[i].position, random);
            heads[h].rows[i].sum += probabilities[i];
        }
        assert_int_equal(weft_kv_cache_append(caches[h], t, key, key), WEFT_OK);
        assert_int_equal(weft_kv_cache_observe(caches[h], key, probabilities, TOKENS), WEFT_OK);
        assert_int_equal(weft_kv_cache_view(caches[h]).rows, heads[h].count);
    }
}

static size_t all_rows(weft_kv_cache *caches[CACHES]) {
    size_t rows = 0;
    for (size_t h = 0; h < CACHES; h++) {
        rows += weft_kv_cache_view(caches[h]).rows;
    }
    return rows;
}

/* After a choice: each has its best rows, room is filled by whole panels, and how many a head keeps differs
 * from what it won by less than a panel. */
static void check_choice(weft_kv_cache *caches[CACHES], expected heads[CACHES],
                         const weft_kv_options *options) {
    size_t between = options->budget - options->sinks - options->window;
    size_t own = between - (size_t)floor(options->common * (double)between);
    size_t panels = 0, won[CACHES];
    for (size_t h = 0; h < CACHES; h++) {
        won[h] = share_of(heads, h, options, own);
    }
    for (size_t h = 0; h < CACHES; h++) {
        size_t size = weft_kv_cache_view(caches[h]).rows;
        assert_true(size >= options->sinks + options->window + own);
        assert_true(size + WEFT_KV_PANEL > won[h] && size < won[h] + WEFT_KV_PANEL);
        bool whole = (size + options->interval) % WEFT_KV_PANEL == 0;
        assert_true(whole || size == heads[h].count);
        panels += (size + options->interval + WEFT_KV_PANEL - 1) / WEFT_KV_PANEL;
        keep_best(&heads[h], options, size);
        assert_holds(caches[h], &heads[h]);
    }
    assert_int_equal(panels, CACHES * (options->budget + options->interval) / WEFT_KV_PANEL);
}

static void check_together(const weft_kv_options *options) {
    weft_context *context = open_context();
    weft_kv_usage usage = {0};
    weft_kv_cache *caches[CACHES] = {NULL};
    static expected heads[CACHES];
    memset(heads, 0, sizeof heads);
    uint64_t random = 3;
    size_t most = CACHES * (options->budget + options->interval), choices = 0;
    size_t spread = 0, narrow = 0; /* rows of the head that looks at all, and of that which looks at few */
    size_t bytes = CACHES * weft_kv_bytes(options, &shape, TOKENS);
    for (size_t h = 0; h < CACHES; h++) {
        assert_int_equal(weft_kv_cache_create(context, options, &shape, TOKENS, &usage, &caches[h]),
                         WEFT_OK);
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        append_all(caches, heads, t, &random);
        size_t before = all_rows(caches);
        assert_true(before <= most && usage.bytes <= bytes);
        assert_int_equal(weft_kv_caches_choose(caches, CACHES), WEFT_OK);
        if (all_rows(caches) < before) {
            check_choice(caches, heads, options);
            choices++;
            spread += weft_kv_cache_view(caches[CACHES - 1]).rows;
            narrow += weft_kv_cache_view(caches[0]).rows;
        }
    }
    assert_int_equal(choices, (TOKENS - options->budget) / options->interval);
    assert_true(usage.peak_bytes <= bytes);
    assert_true(options->common < 0.8 || spread > narrow + choices); /* less is lost in whole panels */
    for (size_t h = 0; h < CACHES; h++) {
        weft_kv_cache_destroy(caches[h]);
    }
    assert_int_equal(usage.bytes, 0);
    weft_context_destroy(context);
}

static void test_together(void **state) {
    (void)state;
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_H2O, 36, &options);
    options.window = 8;
    options.interval = 4;
    options.common = 0.8;
    check_together(&options);
    options.common = 1;
    options.sinks = 5;
    check_together(&options);
    options.budget = 37; /* rows that do not fill whole panels */
    options.common = 0.5;
    check_together(&options);
}

/* Even what each keeps in any case takes more panels than there are: then all have the same. */
static void test_no_room(void **state) {
    (void)state;
    weft_context *context = open_context();
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_H2O, 8, &options);
    options.window = 7;
    options.interval = 2;
    options.common = 0.5;
    weft_kv_usage usage = {0};
    weft_kv_cache *caches[CACHES] = {NULL};
    static expected heads[CACHES];
    memset(heads, 0, sizeof heads);
    uint64_t random = 4;
    for (size_t h = 0; h < CACHES; h++) {
        assert_int_equal(weft_kv_cache_create(context, &options, &shape, TOKENS, &usage, &caches[h]),
                         WEFT_OK);
    }
    assert_int_equal(weft_kv_caches_choose(caches, 0), WEFT_OK);
    for (uint32_t t = 0; t < 50; t++) {
        append_all(caches, heads, t, &random);
        assert_int_equal(weft_kv_caches_choose(caches, CACHES), WEFT_OK);
        assert_true(usage.bytes <= CACHES * weft_kv_bytes(&options, &shape, TOKENS));
        for (size_t h = 0; h < CACHES; h++) {
            size_t size = weft_kv_cache_view(caches[h]).rows;
            if (size < heads[h].count) {
                assert_int_equal(size, 8);
                keep_best(&heads[h], &options, size);
            }
            assert_holds(caches[h], &heads[h]);
        }
    }
    const float key[HEAD] = {0};
    assert_int_equal(weft_kv_cache_append(caches[1], 50, key, key), WEFT_OK);
    assert_int_equal(weft_kv_caches_choose(caches, CACHES), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "same tokens"));
    for (size_t h = 0; h < CACHES; h++) {
        weft_kv_cache_destroy(caches[h]);
    }
    weft_context_destroy(context);
}

static void test_refusals(void **state) {
    (void)state;
    weft_context *context = open_context();
    const double wrong[] = {-0.1, 1.1, NAN};
    for (size_t i = 0; i < 3; i++) {
        weft_kv_options options = {.size = sizeof options};
        weft_kv_defaults(WEFT_KV_RKV, 32, &options);
        options.share = wrong[i];
        assert_int_equal(weft_kv_check(context, &options), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "share"));
        options.share = 0;
        options.common = wrong[i];
        assert_int_equal(weft_kv_check(context, &options), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "in common"));
    }
    weft_kv_options options = {.size = sizeof options};
    weft_kv_defaults(WEFT_KV_STREAMING, 32, &options);
    options.common = 0.5;
    assert_int_equal(weft_kv_check(context, &options), WEFT_INVALID_ARGUMENT);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),   cmocka_unit_test(test_sinks),    cmocka_unit_test(test_together),
        cmocka_unit_test(test_no_room), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
