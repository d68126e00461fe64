/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512.c: the product in tiles of 12 rows by one panel of two vectors: 24 sums in registers, so
 * that each vector of B that is loaded serves 12 multiplications and each broadcast of A two.
 */
#include "elementwise.h"
#include "kernels.h"
#include "strips.h"

#include <immintrin.h>

enum { TILE_ROWS = 12 };

/* `rows` is a constant in every call, so that the sums are registers. */
static inline __attribute__((always_inline)) void tile(const lm_product *product, size_t row, size_t number,
                                                       __mmask16 low, __mmask16 high, const int rows) {
    __m512 left[TILE_ROWS];
    __m512 right[TILE_ROWS];
    float *c = product->c + row * product->c_row + number * LM_PANEL;
    __mmask16 load_low = product->accumulate ? low : 0;
    __mmask16 load_high = product->accumulate ? high : 0;
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        left[i] = _mm512_maskz_loadu_ps(load_low, c + (size_t)i * product->c_row);
        right[i] = _mm512_maskz_loadu_ps(load_high, c + (size_t)i * product->c_row + LM_LANES);
    }
    const float *b = product->b + number * product->panel;
    const float *a = product->a + row * product->a_row;
    size_t a_row = product->a_row;
    size_t a_step = product->a_step;
    for (size_t k = product->depth; k > 0; k--, b += LM_PANEL, a += a_step) {
        __m512 first = _mm512_loadu_ps(b);
        __m512 second = _mm512_loadu_ps(b + LM_LANES);
        UNROLL_ALL
        for (int i = 0; i < rows; i++) {
            __m512 factor = _mm512_set1_ps(a[(size_t)i * a_row]);
            left[i] = _mm512_fmadd_ps(factor, first, left[i]);
            right[i] = _mm512_fmadd_ps(factor, second, right[i]);
        }
    }
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        _mm512_mask_storeu_ps(c + (size_t)i * product->c_row, low, left[i]);
        _mm512_mask_storeu_ps(c + (size_t)i * product->c_row + LM_LANES, high, right[i]);
    }
}

static __mmask16 first_lanes(size_t count) {
    return (__mmask16)(count >= LM_LANES ? 0xffffu : (1u << count) - 1u);
}

static void last_rows(const lm_product *product, size_t row, size_t number, __mmask16 low, __mmask16 high) {
    for (; product->rows - row >= 4; row += 4) {
        tile(product, row, number, low, high, 4);
    }
    for (; row < product->rows; row++) {
        tile(product, row, number, low, high, 1);
    }
}

static void panel(const lm_product *product, size_t number) {
    size_t columns = product->columns - number * LM_PANEL;
    __mmask16 low = first_lanes(columns);
    __mmask16 high = columns > LM_LANES ? first_lanes(columns - LM_LANES) : 0;
    size_t row = 0;
    for (; product->rows - row >= TILE_ROWS; row += TILE_ROWS) {
        tile(product, row, number, low, high, TILE_ROWS);
    }
    last_rows(product, row, number, low, high);
}

const lm_kernels lm_kernels_avx512 = {panel, strips, ELEMENTWISE};
