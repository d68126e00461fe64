/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_score.c: scores from the last queries, and from how alike keys are.
 */
#include "../base/context.h"
#include "kv_kernels.h"
#include "kv_policy.h"

#include <math.h>
#include <string.h>

enum { BLOCK_ROWS = 4 }; /* keys that are compared with all others at once */

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

/* ---- redundancy ---- */

static void copy_key(const weft_kv_cache *cache, size_t row, float *key) {
    size_t head = cache->shape.head;
    const float *from = cache->keys + row / WEFT_KV_PANEL * head * WEFT_KV_PANEL + row % WEFT_KV_PANEL;
    for (size_t c = 0; c < head; c++) {
        key[c] = from[c * WEFT_KV_PANEL];
    }
}

/* 1 / |key| of each row; 0 for a key that is zero, which then is like no other. */
static void measure_keys(const weft_kv_cache *cache, float *inverses) {
    size_t head = cache->shape.head;
    for (size_t first = 0; first < cache->rows; first += WEFT_KV_PANEL) {
        float squares[WEFT_KV_PANEL] = {0};
        for (size_t c = 0; c < head; c++) {
            const float *keys = cache->keys + first * head + c * WEFT_KV_PANEL;
            for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
                squares[lane] += keys[lane] * keys[lane];
            }
        }
        for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
            inverses[first + lane] = inverse_root((double)squares[lane]);
        }
    }
}

/* sums[j]: of the cosines of key j with all others, but for those that are left out. */
static void sum_similarities(const weft_kv_cache *cache, const weft_kv_kernels *kernels, float *block,
                             float *products, const float *inverses, float *sums) {
    size_t head = cache->shape.head;
    size_t stride = whole_panels(cache->rows);
    for (size_t first = 0; first < cache->rows; first += BLOCK_ROWS) {
        size_t left = cache->rows - first;
        size_t count = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        for (size_t i = 0; i < count; i++) {
            copy_key(cache, first + i, block + i * head);
            for (size_t c = 0; c < head; c++) {
                block[i * head + c] *= inverses[first + i];
            }
        }
        multiply_keys(cache, kernels, block, count, cache->rows, products, stride);
        for (size_t i = 0; i < count; i++) {
            kernels->add_similar(products + i * stride, inverses, first + i,
                                 (float)cache->options.similarity, cache->rows, sums);
        }
    }
}

weft_status weft_kv_score_redundancy(const weft_kv_cache *cache, size_t candidates, float *scores) {
    const weft_kv_kernels *kernels = weft_kv_kernels_at(weft_cpu_level());
    weft_status status = weft_kv_score_attention(cache, candidates, scores);
    if (status != WEFT_OK) {
        return status;
    }
    size_t stride = whole_panels(cache->rows);
    size_t floats = BLOCK_ROWS * (cache->shape.head + stride) + 2 * stride;
    float *block = weft_allocate_zeroed(cache->context, floats, sizeof *block);
    if (block == NULL) {
        return WEFT_NO_MEMORY;
    }
    float *products = block + BLOCK_ROWS * cache->shape.head;
    float *inverses = products + BLOCK_ROWS * stride;
    float *sums = inverses + stride;
    measure_keys(cache, inverses);
    sum_similarities(cache, kernels, block, products, inverses, sums);
    kernels->softmax(sums, 1.0f / (float)cache->rows, cache->rows);
    float lambda = (float)cache->options.lambda;
    for (size_t i = 0; i < candidates; i++) {
        scores[i] = lambda * scores[i] - (1.0f - lambda) * sums[i];
    }
    weft_release(cache->context, block);
    return WEFT_OK;
}
