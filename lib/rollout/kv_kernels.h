/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_kernels.h: the inner loops of scores, in one form per instruction set (lib/base/cpu.h). All forms give
 * the same bits: plain IEEE operations in a fixed order, never fused.
 */
#ifndef WEFT_ROLLOUT_KV_KERNELS_H
#define WEFT_ROLLOUT_KV_KERNELS_H

#include "../base/cpu.h"

typedef struct weft_kv_kernels {
    /* output[r * stride + j] = row r times key j, for `count` rows of `head` floats that lie close, and all
     * keys of `panels` panels. */
    void (*products)(const float *rows, size_t count, const float *keys, size_t panels, size_t head,
                     float *output, size_t stride);
    /* row = softmax(row * scale) */
    void (*softmax)(float *row, float scale, size_t count);
    /* x[i] = max(x[i], y[i]) */
    void (*raise)(float *x, const float *y, size_t count);
    /* x[i] += y[i] * scale */
    void (*add)(float *x, const float *y, float scale, size_t count);
    /* 1 + the number of the last entry above `threshold`; 0 if there is none. */
    uint32_t (*last_above)(const float *row, float threshold, size_t count);
    /* Where row[i] is above `threshold`: found[i] = row[i] and names[i] = name. */
    void (*note_above)(const float *row, float threshold, size_t count, uint32_t name, float *found,
                       uint32_t *names);
} weft_kv_kernels;

/* The kernels of a level, which this machine must run. */
const weft_kv_kernels *weft_kv_kernels_at(weft_cpu level);

extern const weft_kv_kernels weft_kv_kernels_portable;
extern const weft_kv_kernels weft_kv_kernels_avx2;
extern const weft_kv_kernels weft_kv_kernels_avx512;

#endif
