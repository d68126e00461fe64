/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_policy.h: the inside of a cache, and the table of policies that choose what it keeps.
 */
#ifndef WEFT_ROLLOUT_KV_POLICY_H
#define WEFT_ROLLOUT_KV_POLICY_H

#include <weft/rollout.h>

struct weft_kv_cache {
    weft_context *context;
    weft_kv_options options;
    weft_kv_shape shape;
    weft_kv_usage *usage;
    size_t tokens; /* that will come, at most */
    size_t most;   /* rows that there will be, at most */
    size_t rows;
    size_t capacity;
    size_t seen;   /* tokens that were appended */
    size_t chosen; /* how many of these when rows were last evicted */
    bool told;     /* what the queries of the last token saw */
    uint32_t *positions;
    float *keys;
    float *values;
    float *sums;    /* of each row: attention received; NULL unless the policy wants it */
    uint16_t *ring; /* the queries of token t at t % window in BF16, group heads each; NULL unless wanted */
    /* Of each row that was compared with all others at the last choice: the position of the last key that
     * it is like, WEFT_KV_UNLIKE if there was none; NULL unless wanted. */
    uint32_t *alike;
    size_t compared; /* rows of which `alike` knows */
};

static const uint32_t WEFT_KV_UNLIKE = UINT32_MAX;

typedef struct weft_kv_rule {
    const char *name;
    bool sums;
    bool queries;
    bool alike;
    /* Scores of the first `candidates` rows; NULL: only sinks and recent tokens are kept. */
    weft_status (*score)(const weft_kv_cache *cache, size_t candidates, float *scores);
} weft_kv_rule;

extern const weft_kv_rule weft_kv_policies[WEFT_KV_POLICIES];

static inline size_t weft_kv_whole_panels(size_t count) {
    return (count + WEFT_KV_PANEL - 1) / WEFT_KV_PANEL * WEFT_KV_PANEL;
}

/* The first element of a row of keys; elements are WEFT_KV_PANEL floats apart. */
static inline float *weft_kv_key(float *keys, size_t head, size_t row) {
    return keys + row / WEFT_KV_PANEL * head * WEFT_KV_PANEL + row % WEFT_KV_PANEL;
}

/* Last tokens that stay whatever their score. */
size_t weft_kv_recent(const weft_kv_options *options);
/* Rows that a choice leaves after so many tokens. */
size_t weft_kv_budget(const weft_kv_options *options, size_t seen);
/* Caches do not choose by themselves, but in weft_kv_caches_choose. */
bool weft_kv_together(const weft_kv_options *options);

/* A number that is larger for a higher score, and of equal scores for the lower row. No two are equal, so
 * what is chosen does not depend on how it is searched. */
uint64_t weft_kv_rank(float score, size_t row);
/* The `wanted`-th highest, from 1. The ranks change places. */
uint64_t weft_kv_find_rank(uint64_t *ranks, size_t count, size_t wanted);

/* Scores of the rows before `end`. */
weft_status weft_kv_score(const weft_kv_cache *cache, size_t end, float *scores);
/* The rows to keep, ascending: `budget` of them. `scores` may be NULL if only sinks and recent rows stay.
 */
weft_status weft_kv_choose(const weft_kv_cache *cache, const float *scores, size_t budget, uint32_t *kept);
/* Keeps the best `budget` rows, sinks and recent ones among them, and gives memory back. */
weft_status weft_kv_keep_best(weft_kv_cache *cache, const float *scores, size_t budget);

weft_status weft_kv_score_attention(const weft_kv_cache *cache, size_t candidates, float *scores);
weft_status weft_kv_score_redundancy(const weft_kv_cache *cache, size_t candidates, float *scores);

#endif
