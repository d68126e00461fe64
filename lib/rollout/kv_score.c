/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_score.c: scores from the last queries, and from how alike keys are.
 */
#include "../base/context.h"
#include "../base/softmax.h"
#include "kv_kernels.h"
#include "kv_policy.h"

#include <math.h>
#include <string.h>

enum { BLOCK_ROWS = 4 }; /* keys that are compared with others at once; a panel has whole blocks */

static size_t whole_panels(size_t rows) {
    return (rows + WEFT_KV_PANEL - 1) / WEFT_KV_PANEL * WEFT_KV_PANEL;
}

/* 1 / sqrt(x), and 0 for what is no positive number. Both operations round to the nearest: the same bits
 * everywhere. */
static float inverse_root(double x) {
    return x > 0 && x < 1e300 ? (float)(1 / sqrt(x)) : 0;
}

/* Products of rows with the first `columns` keys, `stride` floats a row. */
static void multiply_keys(const weft_kv_cache *cache, const weft_kv_kernels *kernels, const float *rows,
                          size_t count, size_t columns, float *output, size_t stride) {
    size_t head = cache->shape.head;
    for (size_t first = 0; first < columns; first += WEFT_KV_PANEL) {
        kernels->products(rows, count, cache->keys + first * head, head, output + first, stride);
    }
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
    size_t group = cache->shape.group;
    size_t stride = whole_panels(candidates);
    float *products =
        weft_allocate_array(cache->context, options->window * group, stride * sizeof *products);
    float *mean = weft_allocate_zeroed(cache->context, candidates, sizeof *mean);
    if (products == NULL || mean == NULL) {
        weft_release(cache->context, mean);
        weft_release(cache->context, products);
        return WEFT_NO_MEMORY;
    }
    multiply_keys(cache, kernels, cache->ring, options->window * group, candidates, products, stride);
    for (size_t query = 0; query < options->window; query++) {
        float *row = products + query * group * stride;
        for (size_t h = 1; h < group; h++) {
            kernels->raise(row, row + h * stride, candidates);
        }
        kernels->softmax(row, inverse_root((double)cache->shape.head), candidates);
        kernels->add(mean, row, 1.0f / (float)options->window, candidates);
    }
    (options->pooled == WEFT_KV_POOL_MAX ? pool_max : pool_mean)(mean, candidates, options->pooling / 2,
                                                                 scores);
    weft_release(cache->context, mean);
    weft_release(cache->context, products);
    return WEFT_OK;
}

/* ---- redundancy ----
 *
 * The sum of a key's cosines with all keys is its product with the sum of all keys, each scaled to length
 * 1: no pairs are needed for it. They are only for the entries that are left out, and there a search from
 * the last key backwards ends with the first that is similar. */

/* What an eviction computes with. */
typedef struct comparison {
    const weft_kv_cache *cache;
    const weft_kv_kernels *kernels;
    size_t stride; /* rows, in whole panels */
    float *units;  /* all keys scaled to length 1, in panels; 0 behind the last */
    float *block;  /* some of them one after another */
    float *lanes;  /* as many as a panel of keys */
    float *sums;   /* of each key: its cosines with those that count */
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

static void sum_cosines(const comparison *work) {
    size_t head = work->cache->shape.head;
    for (size_t first = 0; first < work->stride; first += WEFT_KV_PANEL) {
        scale_keys(work, first);
    }
    for (size_t c = 0; c < head; c++) {
        work->block[c] = weft_row_sum(work->lanes + c * WEFT_KV_PANEL, WEFT_KV_PANEL);
    }
    for (size_t first = 0; first < work->stride; first += WEFT_KV_PANEL) {
        float products[WEFT_KV_PANEL];
        work->kernels->products(work->block, 1, work->units + first * head, head, products, WEFT_KV_PANEL);
        work->kernels->add(work->sums + first, products, 1, WEFT_KV_PANEL);
    }
}

static void copy_unit(const comparison *work, size_t row, float *unit) {
    size_t head = work->cache->shape.head;
    const float *from = work->units + row / WEFT_KV_PANEL * head * WEFT_KV_PANEL + row % WEFT_KV_PANEL;
    for (size_t c = 0; c < head; c++) {
        unit[c] = from[c * WEFT_KV_PANEL];
    }
}

/* Takes out of `sums` what the key `row` gives to the last key of this panel that it is like, or in the
 * first panel to the first key if there is none. False if there is none and panels before are left. */
static bool leave_out(const comparison *work, size_t row, size_t first, float *cosines) {
    size_t left = work->cache->rows - first;
    if (row - first < WEFT_KV_PANEL) {
        cosines[row - first] = -2; /* below every threshold: a key is not compared with itself */
    }
    uint32_t last = work->kernels->last_above(cosines, (float)work->cache->options.similarity,
                                              left < WEFT_KV_PANEL ? left : WEFT_KV_PANEL);
    if (last == 0 && first > 0) {
        return false;
    }
    size_t lane = last > 0 ? last - 1 : 0;
    if (first + lane != row) {
        work->sums[first + lane] -= cosines[lane];
    }
    return true;
}

/* The keys of a block are compared with the others a panel at a time, until each has been served. */
static void search_similar(const comparison *work, size_t start) {
    size_t head = work->cache->shape.head;
    size_t left = work->cache->rows - start;
    size_t count = left < BLOCK_ROWS ? left : BLOCK_ROWS;
    size_t served = 0;
    bool done[BLOCK_ROWS] = {false};
    for (size_t i = 0; i < count; i++) {
        copy_unit(work, start + i, work->block + i * head);
    }
    for (size_t end = work->stride; served < count; end -= WEFT_KV_PANEL) {
        size_t first = end - WEFT_KV_PANEL;
        float cosines[BLOCK_ROWS * WEFT_KV_PANEL];
        work->kernels->products(work->block, count, work->units + first * head, head, cosines,
                                WEFT_KV_PANEL);
        for (size_t i = 0; i < count; i++) {
            if (!done[i] && leave_out(work, start + i, first, cosines + i * WEFT_KV_PANEL)) {
                done[i] = true;
                served++;
            }
        }
    }
}

weft_status weft_kv_score_redundancy(const weft_kv_cache *cache, size_t candidates, float *scores) {
    weft_status status = weft_kv_score_attention(cache, candidates, scores);
    if (status != WEFT_OK) {
        return status;
    }
    size_t head = cache->shape.head, stride = whole_panels(cache->rows);
    size_t floats = (stride + WEFT_KV_PANEL + BLOCK_ROWS) * head + stride;
    float *memory = weft_allocate_zeroed(cache->context, floats, sizeof *memory);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    comparison work = {
        .cache = cache,
        .kernels = weft_kv_kernels_at(weft_cpu_level()),
        .stride = stride,
        .units = memory,
        .lanes = memory + stride * head,
        .block = memory + (stride + WEFT_KV_PANEL) * head,
        .sums = memory + (stride + WEFT_KV_PANEL + BLOCK_ROWS) * head,
    };
    sum_cosines(&work);
    for (size_t start = 0; start < cache->rows; start += BLOCK_ROWS) {
        search_similar(&work, start);
    }
    work.kernels->softmax(work.sums, 1.0f / (float)cache->rows, cache->rows);
    float lambda = (float)cache->options.lambda;
    for (size_t i = 0; i < candidates; i++) {
        scores[i] = lambda * scores[i] - (1.0f - lambda) * work.sums[i];
    }
    weft_release(cache->context, memory);
    return WEFT_OK;
}
