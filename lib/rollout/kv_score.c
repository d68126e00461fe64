/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_score.c: scores from the last queries, and from how alike keys are.
 */
#include "../base/context.h"
#include "../base/softmax.h"
#include "kv_kernels.h"
#include "kv_policy.h"

#include <math.h>

enum { BLOCK_ROWS = 4 }; /* keys that are compared with others at once */

/* 1 / sqrt(x), and 0 for what is no positive number. Both operations round to the nearest: the same bits
 * everywhere. */
static float inverse_root(double x) {
    return x > 0 && x < 1e300 ? (float)(1 / sqrt(x)) : 0;
}

/* ---- importance ---- */

static void pool_max(const float *input, size_t count, size_t reach, float *output) {
    for (size_t i = 0; i < count; i++) {
        size_t first = i > reach ? i - reach : 0;
        size_t end = i + reach + 1 < count ? i + reach + 1 : count;
        float most = input[first];
        for (size_t j = first + 1; j < end; j++) {
            most = input[j] > most ? input[j] : most;
        }
        output[i] = most;
    }
}

static void pool_mean(const float *input, size_t count, size_t reach, float *output) {
    for (size_t i = 0; i < count; i++) {
        size_t first = i > reach ? i - reach : 0;
        size_t end = i + reach + 1 < count ? i + reach + 1 : count;
        float sum = 0;
        for (size_t j = first; j < end; j++) {
            sum += input[j];
        }
        output[i] = sum / (float)(2 * reach + 1);
    }
}

weft_status weft_kv_score_attention(const weft_kv_cache *cache, size_t candidates, float *scores) {
    const weft_kv_options *options = &cache->options;
    const weft_kv_kernels *kernels = weft_kv_kernels_at(weft_cpu_level());
    size_t group = cache->shape.group, head = cache->shape.head;
    size_t stride = weft_kv_whole_panels(candidates);
    float *queries = weft_allocate_array(cache->context, options->window * group, head * sizeof *queries);
    float *products =
        weft_allocate_array(cache->context, options->window * group, stride * sizeof *products);
    float *mean = weft_allocate_zeroed(cache->context, candidates, sizeof *mean);
    if (queries == NULL || products == NULL || mean == NULL) {
        weft_release(cache->context, mean);
        weft_release(cache->context, products);
        weft_release(cache->context, queries);
        return WEFT_NO_MEMORY;
    }
    weft_bf16_widen(cache->ring, queries, options->window * group * head);
    kernels->products(queries, options->window * group, cache->keys, stride / WEFT_KV_PANEL, head, products,
                      stride);
    for (size_t query = 0; query < options->window; query++) {
        float *row = products + query * group * stride;
        for (size_t h = 1; h < group; h++) {
            kernels->raise(row, row + h * stride, candidates);
        }
        kernels->softmax(row, inverse_root((double)head), candidates);
        kernels->add(mean, row, 1.0f / (float)options->window, candidates);
    }
    (options->pooled == WEFT_KV_POOL_MAX ? pool_max : pool_mean)(mean, candidates, options->pooling / 2,
                                                                 scores);
    weft_release(cache->context, mean);
    weft_release(cache->context, products);
    weft_release(cache->context, queries);
    return WEFT_OK;
}

/* ---- redundancy ----
 *
 * The sum of a key's cosines with all keys is its product with the sum of all keys, each scaled to length
 * 1: no pairs are needed for it. They are only for the entries that are left out. The last key that a key
 * is like is remembered from one choice to the next, so that only keys that came since are compared with
 * all others: interval x rows pairs, and more only where a key has lost the one that it was like. What is
 * found does not depend on what was remembered: a pair has the same cosine, to the last bit, whenever and
 * in whatever order it is computed. */

/* What an eviction computes with. */
typedef struct comparison {
    const weft_kv_cache *cache;
    const weft_kv_kernels *kernels;
    float threshold;
    size_t stride;  /* rows, in whole panels */
    float *units;   /* all keys scaled to length 1, in panels; 0 behind the last */
    float *lanes;   /* a panel of sums of keys */
    float *block;   /* some keys one after another */
    float *cosines; /* of those with all keys, `stride` apart */
    float *sums;    /* of each key: its cosines with those that count */
    float *found;   /* of each key: its cosine with the last that it is like */
    uint32_t *last; /* of each key: the row of that, or WEFT_KV_UNLIKE */
} comparison;

/* 1 / |key| of a panel's keys; 0 for a key that is zero, which then is like no other, and for what is no
 * key. */
static void measure_keys(const weft_kv_cache *cache, size_t first, float *inverses) {
    float squares[WEFT_KV_PANEL] = {0};
    const float *keys = cache->keys + first * cache->shape.head;
    for (size_t c = 0; c < cache->shape.head; c++, keys += WEFT_KV_PANEL) {
        for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
            squares[lane] += keys[lane] * keys[lane];
        }
    }
    for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
        inverses[lane] = first + lane < cache->rows ? inverse_root((double)squares[lane]) : 0;
    }
}

/* Scales the keys of a panel, and says how alike each is to itself: 1 or 0, which does not count. */
static void scale_keys(const comparison *work, size_t first) {
    size_t head = work->cache->shape.head;
    const float *keys = work->cache->keys + first * head;
    float *units = work->units + first * head;
    float inverses[WEFT_KV_PANEL];
    measure_keys(work->cache, first, inverses);
    for (size_t c = 0; c < head * WEFT_KV_PANEL; c += WEFT_KV_PANEL) {
        for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
            units[c + lane] = keys[c + lane] * inverses[lane];
        }
    }
    work->kernels->add(work->lanes, units, 1, head * WEFT_KV_PANEL);
    for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
        work->sums[first + lane] = inverses[lane] > 0 ? -1.0f : 0.0f;
    }
}

/* Products of the first `count` keys of the block with all keys before row `end`. */
static void compare_block(const comparison *work, size_t count, size_t end) {
    work->kernels->products(work->block, count, work->units, weft_kv_whole_panels(end) / WEFT_KV_PANEL,
                            work->cache->shape.head, work->cosines, work->stride);
}

static void sum_cosines(const comparison *work) {
    size_t head = work->cache->shape.head;
    for (size_t first = 0; first < work->stride; first += WEFT_KV_PANEL) {
        scale_keys(work, first);
    }
    for (size_t c = 0; c < head; c++) {
        work->block[c] = weft_row_sum(work->lanes + c * WEFT_KV_PANEL, WEFT_KV_PANEL);
    }
    compare_block(work, 1, work->stride);
    work->kernels->add(work->sums, work->cosines, 1, work->stride);
}

static void copy_unit(const comparison *work, size_t row, float *unit) {
    const float *from = weft_kv_key(work->units, work->cache->shape.head, row);
    for (size_t c = 0; c < work->cache->shape.head; c++) {
        unit[c] = from[c * WEFT_KV_PANEL];
    }
}

/* The last key before `end` that a key is like, whose cosines with them are given. */
static void note_last(const comparison *work, size_t row, const float *cosines, size_t end) {
    uint32_t last = work->kernels->last_above(cosines, work->threshold, end);
    work->last[row] = last > 0 ? last - 1 : WEFT_KV_UNLIKE;
    work->found[row] = last > 0 ? cosines[last - 1] : 0;
}

/* Keys that came since the last choice, compared with all. A later one replaces what was found. */
static void compare_new(const comparison *work) {
    const weft_kv_cache *cache = work->cache;
    size_t old = cache->compared;
    for (size_t start = old; start < cache->rows; start += BLOCK_ROWS) {
        size_t left = cache->rows - start;
        size_t count = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        for (size_t i = 0; i < count; i++) {
            copy_unit(work, start + i, work->block + i * cache->shape.head);
        }
        compare_block(work, count, cache->rows);
        for (size_t i = 0; i < count; i++) {
            float *cosines = work->cosines + i * work->stride;
            cosines[start + i] = -2; /* below every threshold: a key is not compared with itself */
            if (work->last[start + i] == WEFT_KV_UNLIKE) {
                note_last(work, start + i, cosines, old);
            }
            work->kernels->note_above(cosines, work->threshold, cache->rows, (uint32_t)(start + i),
                                      work->found, work->last);
        }
    }
}

/* The first row of those compared before whose position is not below this. */
static size_t find_position(const weft_kv_cache *cache, uint32_t position) {
    size_t first = 0, end = cache->compared;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (cache->positions[middle] < position) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first;
}

static float cosine_of(const comparison *work, size_t a, size_t b) {
    const float *left = weft_kv_key(work->units, work->cache->shape.head, a);
    const float *right = weft_kv_key(work->units, work->cache->shape.head, b);
    float sum = 0;
    for (size_t c = 0; c < work->cache->shape.head * WEFT_KV_PANEL; c += WEFT_KV_PANEL) {
        sum += left[c] * right[c];
    }
    return sum;
}

/* A key that is like none of the new ones: what it was like before, if that is still there, else one before
 * that. */
static void recall(const comparison *work, size_t row) {
    const weft_kv_cache *cache = work->cache;
    uint32_t position = cache->alike[row];
    if (position == WEFT_KV_UNLIKE) {
        return;
    }
    size_t place = find_position(cache, position);
    if (place < cache->compared && cache->positions[place] == position) {
        work->last[row] = (uint32_t)place;
        work->found[row] = cosine_of(work, row, place);
        return;
    }
    copy_unit(work, row, work->block);
    compare_block(work, 1, place);
    if (row < place) {
        work->cosines[row] = -2;
    }
    note_last(work, row, work->cosines, place);
}

/* Takes what each key gives to the last that it is like, or else to the first, out of the sums, and
 * remembers it. */
static void leave_out(const comparison *work) {
    const weft_kv_cache *cache = work->cache;
    copy_unit(work, 0, work->block);
    compare_block(work, 1, cache->rows);
    for (size_t row = 0; row < cache->rows; row++) {
        uint32_t last = work->last[row];
        bool alike = last != WEFT_KV_UNLIKE;
        cache->alike[row] = alike ? cache->positions[last] : WEFT_KV_UNLIKE;
        if (alike || row > 0) {
            work->sums[alike ? last : 0] -= alike ? work->found[row] : work->cosines[row];
        }
    }
}

static void score_redundancy(const comparison *work) {
    const weft_kv_cache *cache = work->cache;
    sum_cosines(work);
    for (size_t row = 0; row < cache->rows; row++) {
        work->last[row] = WEFT_KV_UNLIKE;
    }
    compare_new(work);
    for (size_t row = 0; row < cache->compared; row++) {
        if (work->last[row] == WEFT_KV_UNLIKE) {
            recall(work, row);
        }
    }
    leave_out(work);
    work->kernels->softmax(work->sums, 1.0f / (float)cache->rows, cache->rows);
}

weft_status weft_kv_score_redundancy(const weft_kv_cache *cache, size_t candidates, float *scores) {
    weft_status status = weft_kv_score_attention(cache, candidates, scores);
    if (status != WEFT_OK) {
        return status;
    }
    size_t head = cache->shape.head, stride = weft_kv_whole_panels(cache->rows);
    size_t wide = (stride + WEFT_KV_PANEL + BLOCK_ROWS) * head;
    float *memory = weft_allocate_zeroed(cache->context, wide + (BLOCK_ROWS + 2) * stride, sizeof *memory);
    uint32_t *last = weft_allocate_array(cache->context, stride, sizeof *last);
    if (memory == NULL || last == NULL) {
        weft_release(cache->context, last);
        weft_release(cache->context, memory);
        return WEFT_NO_MEMORY;
    }
    comparison work = {
        .cache = cache,
        .kernels = weft_kv_kernels_at(weft_cpu_level()),
        .threshold = (float)cache->options.similarity,
        .stride = stride,
        .units = memory,
        .lanes = memory + stride * head,
        .block = memory + (stride + WEFT_KV_PANEL) * head,
        .cosines = memory + wide,
        .sums = memory + wide + BLOCK_ROWS * stride,
        .found = memory + wide + (BLOCK_ROWS + 1) * stride,
        .last = last,
    };
    score_redundancy(&work);
    float lambda = (float)cache->options.lambda;
    for (size_t i = 0; i < candidates; i++) {
        scores[i] = lambda * scores[i] - (1.0f - lambda) * work.sums[i];
    }
    weft_release(cache->context, last);
    weft_release(cache->context, memory);
    return WEFT_OK;
}
