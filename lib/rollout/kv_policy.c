/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_policy.c: the table of policies, and the choice of the rows with the highest scores.
 */
#include "kv_policy.h"

#include "../base/context.h"

#include <math.h>
#include <string.h>

static weft_status score_sums(const weft_kv_cache *cache, size_t candidates, float *scores) {
    memcpy(scores, cache->sums, candidates * sizeof *scores);
    return WEFT_OK;
}

const weft_kv_rule weft_kv_policies[WEFT_KV_POLICIES] = {
    [WEFT_KV_NONE] = {.name = "none"},
    [WEFT_KV_STREAMING] = {.name = "streaming"},
    [WEFT_KV_H2O] = {.name = "h2o", .sums = true, .score = score_sums},
    [WEFT_KV_SNAPKV] = {.name = "snapkv", .queries = true, .score = weft_kv_score_attention},
    [WEFT_KV_RKV] = {.name = "rkv", .queries = true, .alike = true, .score = weft_kv_score_redundancy},
};

size_t weft_kv_recent(const weft_kv_options *options) {
    return options->policy == WEFT_KV_STREAMING ? 0 : options->window;
}

size_t weft_kv_budget(const weft_kv_options *options, size_t seen) {
    size_t share = (size_t)ceil(options->share * (double)seen);
    return share > options->budget ? share : options->budget;
}

bool weft_kv_together(const weft_kv_options *options) {
    return options->policy != WEFT_KV_NONE && options->common > 0;
}

uint64_t weft_kv_rank(float score, size_t row) {
    score += 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)row);
}

static void swap(uint64_t *a, uint64_t *b) {
    uint64_t other = *a;
    *a = *b;
    *b = other;
}

/* The middle one of first, middle and last, moved to the end. */
static uint64_t pick_pivot(uint64_t *ranks, size_t count) {
    uint64_t *middle = &ranks[count / 2], *last = &ranks[count - 1];
    if (*middle > ranks[0]) {
        swap(middle, &ranks[0]);
    }
    if (*last > ranks[0]) {
        swap(last, &ranks[0]);
    }
    if (*middle > *last) {
        swap(middle, last);
    }
    return *last;
}

uint64_t weft_kv_find_rank(uint64_t *ranks, size_t count, size_t wanted) {
    while (count > 1) {
        uint64_t pivot = pick_pivot(ranks, count);
        size_t higher = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            if (ranks[i] > pivot) {
                swap(&ranks[i], &ranks[higher++]);
            }
        }
        swap(&ranks[higher], &ranks[count - 1]);
        if (wanted == higher + 1) {
            return pivot;
        }
        if (wanted <= higher) {
            count = higher;
        } else {
            ranks += higher + 1;
            count -= higher + 1;
            wanted -= higher + 1;
        }
    }
    return ranks[0];
}

weft_status weft_kv_score(const weft_kv_cache *cache, size_t end, float *scores) {
    return weft_kv_policies[cache->options.policy].score(cache, end, scores);
}

/* Of the rows from `first` to `end` the `wanted` best. */
static weft_status choose_best(const weft_kv_cache *cache, const float *scores, size_t first, size_t end,
                               size_t wanted, uint32_t *kept) {
    uint64_t *ranks = weft_allocate_array(cache->context, end - first, sizeof *ranks);
    if (ranks == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = first; i < end; i++) {
        ranks[i - first] = weft_kv_rank(scores[i], i);
    }
    uint64_t last = weft_kv_find_rank(ranks, end - first, wanted);
    for (size_t i = first; i < end; i++) {
        if (weft_kv_rank(scores[i], i) >= last) {
            *kept++ = (uint32_t)i;
        }
    }
    weft_release(cache->context, ranks);
    return WEFT_OK;
}

weft_status weft_kv_choose(const weft_kv_cache *cache, const float *scores, size_t budget, uint32_t *kept) {
    const weft_kv_options *options = &cache->options;
    bool streaming = options->policy == WEFT_KV_STREAMING;
    size_t recent = streaming ? budget - options->sinks : options->window;
    size_t between = budget - options->sinks - recent;
    for (size_t i = 0; i < options->sinks; i++) {
        kept[i] = (uint32_t)i;
    }
    for (size_t i = 0; i < recent; i++) {
        kept[budget - recent + i] = (uint32_t)(cache->rows - recent + i);
    }
    if (between == 0) {
        return WEFT_OK;
    }
    return choose_best(cache, scores, options->sinks, cache->rows - recent, between, kept + options->sinks);
}
