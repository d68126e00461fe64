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

enum { TILE_ROWS = 4, TILE_PANELS = 2 };

/* A row of a panel. What the processor has no vectors for, the compiler makes of smaller ones; each lane is
 * computed alike. Keys lie at any address. */
typedef float kv_lanes __attribute__((vector_size(WEFT_KV_PANEL * sizeof(float))));
typedef kv_lanes kv_lanes_anywhere __attribute__((aligned(sizeof(float)), may_alias));

/* `count` and `panels` are constants in every call, so that the sums are registers. */
static inline __attribute__((always_inline)) void tile(const float *rows, const float *keys, size_t head,
                                                       float *output, size_t stride, const size_t count,
                                                       const size_t panels) {
    kv_lanes sums[TILE_ROWS * TILE_PANELS] = {{0}};
    for (size_t c = 0; c < head; c++, keys += WEFT_KV_PANEL) {
        for (size_t p = 0; p < panels; p++) {
            kv_lanes lanes = *(const kv_lanes_anywhere *)(keys + p * head * WEFT_KV_PANEL);
            for (size_t r = 0; r < count; r++) {
                sums[r * panels + p] += rows[r * head + c] * lanes;
            }
        }
    }
    for (size_t r = 0; r < count; r++) {
        for (size_t p = 0; p < panels; p++) {
            *(kv_lanes_anywhere *)(output + r * stride + p * WEFT_KV_PANEL) = sums[r * panels + p];
        }
    }
}

static inline __attribute__((always_inline)) void tiles(const float *rows, const float *keys, size_t panels,
                                                        size_t head, float *output, size_t stride,
                                                        const size_t count) {
    size_t p = 0;
    for (; p + TILE_PANELS <= panels; p += TILE_PANELS) {
        tile(rows, keys + p * head * WEFT_KV_PANEL, head, output + p * WEFT_KV_PANEL, stride, count,
             TILE_PANELS);
    }
    if (p < panels) {
        tile(rows, keys + p * head * WEFT_KV_PANEL, head, output + p * WEFT_KV_PANEL, stride, count, 1);
    }
}

static void products(const float *rows, size_t count, const float *keys, size_t panels, size_t head,
                     float *output, size_t stride) {
    size_t r = 0;
    for (; r + TILE_ROWS <= count; r += TILE_ROWS) {
        tiles(rows + r * head, keys, panels, head, output + r * stride, stride, TILE_ROWS);
    }
    for (; r < count; r++) {
        tiles(rows + r * head, keys, panels, head, output + r * stride, stride, 1);
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

static void note_above(const float *row, float threshold, size_t count, uint32_t name, float *found,
                       uint32_t *names) {
    for (size_t i = 0; i < count; i++) {
        bool above = row[i] > threshold;
        found[i] = above ? row[i] : found[i];
        names[i] = above ? name : names[i];
    }
}

#define KV_LOOPS products, weft_row_softmax, raise_row, add, last_above, note_above

#endif
