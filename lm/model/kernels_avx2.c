/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx2.c: the product in tiles of 6 rows by half a panel of two vectors: 12 sums in registers.
 */
#include "elementwise.h"
#include "kernels.h"
#include "strips.h"

#include <immintrin.h>

enum { TILE_ROWS = 6, VECTOR = 8 };

static __m256i first_lanes(size_t count) {
    __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count > VECTOR ? VECTOR : (int)count), lanes);
}

/* Half a panel from `column` on, of which `columns` exist. `rows` is a constant in every call. */
static inline __attribute__((always_inline)) void tile(const lm_product *product, size_t row, size_t column,
                                                       size_t columns, const int rows) {
    __m256 left[TILE_ROWS];
    __m256 right[TILE_ROWS];
    __m256i low = first_lanes(columns);
    __m256i high = first_lanes(columns > VECTOR ? columns - VECTOR : 0);
    float *c = product->c + row * product->c_row + column;
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        left[i] = _mm256_setzero_ps();
        right[i] = _mm256_setzero_ps();
        if (product->accumulate) {
            left[i] = _mm256_maskload_ps(c + (size_t)i * product->c_row, low);
            right[i] = _mm256_maskload_ps(c + (size_t)i * product->c_row + VECTOR, high);
        }
    }
    const float *b = product->b + column / LM_PANEL * product->panel + column % LM_PANEL;
    const float *a = product->a + row * product->a_row;
    size_t a_row = product->a_row;
    size_t a_step = product->a_step;
    for (size_t k = product->depth; k > 0; k--, b += LM_PANEL, a += a_step) {
        __m256 first = _mm256_loadu_ps(b);
        __m256 second = _mm256_loadu_ps(b + VECTOR);
        UNROLL_ALL
        for (int i = 0; i < rows; i++) {
            __m256 factor = _mm256_set1_ps(a[(size_t)i * a_row]);
            left[i] = _mm256_fmadd_ps(factor, first, left[i]);
            right[i] = _mm256_fmadd_ps(factor, second, right[i]);
        }
    }
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        _mm256_maskstore_ps(c + (size_t)i * product->c_row, low, left[i]);
        _mm256_maskstore_ps(c + (size_t)i * product->c_row + VECTOR, high, right[i]);
    }
}

static void panel(const lm_product *product, size_t number) {
    size_t end = (number + 1) * LM_PANEL < product->columns ? (number + 1) * LM_PANEL : product->columns;
    for (size_t column = number * LM_PANEL; column < end; column += LM_LANES) {
        size_t columns = end - column;
        size_t row = 0;
        for (; product->rows - row >= TILE_ROWS; row += TILE_ROWS) {
            tile(product, row, column, columns, TILE_ROWS);
        }
        for (; row < product->rows; row++) {
            tile(product, row, column, columns, 1);
        }
    }
}

const lm_kernels lm_kernels_avx2 = {panel, strips, ELEMENTWISE};
