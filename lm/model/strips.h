/* SPDX-License-Identifier: Apache-2.0
 *
 * strips.h: the product of a few rows with strips, as caches have them, for both levels of x86. Vectors are
 * as wide as a strip. A sum is one chain of fused operations, each of which waits for the one before, so
 * several strips go side by side: eight for one row, four for two.
 */
#ifndef WEFT_LM_MODEL_STRIPS_H
#define WEFT_LM_MODEL_STRIPS_H

#include "elementwise.h"
#include "kernels.h"

#include <immintrin.h>

enum { STRIP_SUMS = 8 };

/* `rows` and `count` are constants in every call, so that the sums are registers. */
static inline __attribute__((always_inline)) void
strip_tile(const lm_strip_product *product, size_t row, size_t column, const int rows, const int count) {
    __m256 sums[STRIP_SUMS];
    UNROLL_ALL
    for (int i = 0; i < rows * count; i++) {
        sums[i] = _mm256_setzero_ps();
    }
    const float *a = product->a + row * product->a_row;
    const float *b = product->b + column / LM_STRIP * product->strip;
    size_t a_row = product->a_row;
    size_t strip = product->strip;
    for (size_t k = product->depth; k > 0; k--, a++, b += product->step) {
        UNROLL_ALL
        for (int j = 0; j < count; j++) {
            __m256 columns = _mm256_loadu_ps(b + (size_t)j * strip);
            UNROLL_ALL
            for (int i = 0; i < rows; i++) {
                sums[i * count + j] =
                    _mm256_fmadd_ps(_mm256_set1_ps(a[(size_t)i * a_row]), columns, sums[i * count + j]);
            }
        }
    }
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        UNROLL_ALL
        for (int j = 0; j < count; j++) {
            size_t first = column + (size_t)j * LM_STRIP;
            float *c = product->c + (row + (size_t)i) * product->c_row + first;
            if (product->columns - first >= LM_STRIP) {
                _mm256_storeu_ps(c, sums[i * count + j]);
            } else {
                const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                __m256i there =
                    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(product->columns - first)), lanes);
                _mm256_maskstore_ps(c, there, sums[i * count + j]);
            }
        }
    }
}

/* One row from strip `strip` on, `at_once` strips at a time; the first strip that is left. */
static inline __attribute__((always_inline)) size_t row_strips(const lm_strip_product *product, size_t row,
                                                               size_t strip, const int at_once) {
    size_t count = (product->columns + LM_STRIP - 1) / LM_STRIP;
    for (; strip + (size_t)at_once <= count; strip += (size_t)at_once) {
        strip_tile(product, row, strip * LM_STRIP, 1, at_once);
    }
    return strip;
}

static void strips(const lm_strip_product *product) {
    size_t count = (product->columns + LM_STRIP - 1) / LM_STRIP;
    size_t row = 0;
    for (; row + 2 <= product->rows; row += 2) {
        size_t strip = 0;
        for (; strip + 4 <= count; strip += 4) {
            strip_tile(product, row, strip * LM_STRIP, 2, 4);
        }
        for (; strip < count; strip++) {
            strip_tile(product, row, strip * LM_STRIP, 2, 1);
        }
    }
    for (; row < product->rows; row++) {
        size_t strip = row_strips(product, row, 0, 8);
        strip = row_strips(product, row, strip, 4);
        strip = row_strips(product, row, strip, 2);
        (void)row_strips(product, row, strip, 1);
    }
}

#endif
