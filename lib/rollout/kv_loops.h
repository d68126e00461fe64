/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_loops.h: the kernels as plain loops that the compiler turns into vectors. Each kv_kernels*.c includes
 * it once and so compiles it for its instruction set.
 */
#ifndef WEFT_ROLLOUT_KV_LOOPS_H
#define WEFT_ROLLOUT_KV_LOOPS_H

#include "../base/softmax.h"
#include "kv_kernels.h"

#include <weft/rollout.h>

enum { TILE_ROWS = 4 };

static inline __attribute__((always_inline)) void tile(const float *rows, const float *panel, size_t head,
                                                       float *output, size_t stride, const size_t count) {
    float sums[TILE_ROWS][WEFT_KV_PANEL] = {{0}};
    for (size_t c = 0; c < head; c++, panel += WEFT_KV_PANEL) {
        for (size_t r = 0; r < count; r++) {
            float factor = rows[r * head + c];
            for (size_t lane = 0; lane < WEFT_KV_PANEL; lane++) {
                sums[r][lane] += factor * panel[lane];
            }
        }
    }
    for (size_t r = 0; r < count; r++) {
        memcpy(output + r * stride, sums[r], sizeof sums[r]);
    }
}

static void products(const float *rows, size_t count, const float *panel, size_t head, float *output,
                     size_t stride) {
    size_t r = 0;
    for (; r + TILE_ROWS <= count; r += TILE_ROWS) {
        tile(rows + r * head, panel, head, output + r * stride, stride, TILE_ROWS);
    }
    for (; r < count; r++) {
        tile(rows + r * head, panel, head, output + r * stride, stride, 1);
    }
}

static void raise_row(float *x, const float *y, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] = y[i] > x[i] ? y[i] : x[i];
    }
}

static void add(float *x, const float *y, float scale, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] += y[i] * scale;
    }
}

static uint32_t last_above(const float *row, float threshold, size_t count) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        last = row[i] > threshold ? i + 1 : last;
    }
    return last;
}

#define KV_LOOPS products, weft_row_softmax, raise_row, add, last_above

#endif
