/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c: the choice of kernels, packing, and the portable form of the product.
 */
#include "kernels.h"
#include "elementwise.h"

#include <string.h>

enum { TILE_ROWS = 4 };

static void tile(const lm_product *product, size_t row, size_t rows, size_t number, size_t columns) {
    float sums[TILE_ROWS][LM_PANEL] = {{0}};
    float *c = product->c + row * product->c_row + number * LM_PANEL;
    for (size_t i = 0; product->accumulate && i < rows; i++) {
        memcpy(sums[i], c + i * product->c_row, columns * sizeof *c);
    }
    const float *b = product->b + number * product->panel;
    for (size_t k = 0; k < product->depth; k++, b += LM_PANEL) {
        const float *a = product->a + row * product->a_row + k * product->a_step;
        for (size_t i = 0; i < rows; i++) {
            float factor = a[i * product->a_row];
            for (size_t j = 0; j < LM_PANEL; j++) {
                sums[i][j] += factor * b[j];
            }
        }
    }
    for (size_t i = 0; i < rows; i++) {
        memcpy(c + i * product->c_row, sums[i], columns * sizeof *c);
    }
}

static void panel(const lm_product *product, size_t number) {
    size_t left = product->columns - number * LM_PANEL;
    size_t columns = left < LM_PANEL ? left : LM_PANEL;
    for (size_t row = 0; row < product->rows; row += TILE_ROWS) {
        size_t rows = product->rows - row;
        tile(product, row, rows < TILE_ROWS ? rows : TILE_ROWS, number, columns);
    }
}

static void strips(const lm_strip_product *product) {
    for (size_t i = 0; i < product->rows; i++) {
        const float *a = product->a + i * product->a_row;
        for (size_t column = 0; column < product->columns; column += LM_STRIP) {
            size_t left = product->columns - column;
            const float *b = product->b + column / LM_STRIP * product->strip;
            float sums[LM_STRIP] = {0};
            for (size_t k = 0; k < product->depth; k++, b += product->step) {
                for (size_t j = 0; j < LM_STRIP; j++) {
                    sums[j] += a[k] * b[j];
                }
            }
            memcpy(product->c + i * product->c_row + column, sums,
                   (left < LM_STRIP ? left : LM_STRIP) * sizeof *sums);
        }
    }
}

const lm_kernels lm_kernels_portable = {panel, strips, ELEMENTWISE};

const lm_kernels *lm_kernels_at(weft_cpu level) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        return &lm_kernels_avx512;
    case WEFT_CPU_AVX2:
        return &lm_kernels_avx2;
#endif
    default:
        return &lm_kernels_portable;
    }
}

void lm_product_run(const lm_kernels *kernels, const lm_product *product) {
    for (size_t number = 0; number * LM_PANEL < product->columns; number++) {
        kernels->panel(product, number);
    }
}

size_t lm_pack_size(size_t columns, size_t depth) {
    return (columns + LM_PANEL - 1) / LM_PANEL * LM_PANEL * depth;
}

void lm_pack(const float *b, size_t row, size_t step, size_t columns, size_t depth, float *packed) {
    for (size_t first = 0; first < columns; first += LM_PANEL) {
        size_t width = columns - first < LM_PANEL ? columns - first : LM_PANEL;
        for (size_t k = 0; k < depth; k++, packed += LM_PANEL) {
            const float *from = b + k * row + first * step;
            if (step == 1 && width == LM_PANEL) {
                memcpy(packed, from, LM_PANEL * sizeof *packed);
                continue;
            }
            for (size_t j = 0; j < LM_PANEL; j++) {
                packed[j] = j < width ? from[j * step] : 0;
            }
        }
    }
}
