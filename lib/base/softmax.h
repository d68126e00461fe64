/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.h: the largest, the sum and the softmax of a row of floats, for loops that the compiler turns
 * into vectors. Sums are kept in WEFT_LANES partial sums, which are added up in a fixed order, so that
 * every level gives the same bits.
 */
#ifndef WEFT_BASE_SOFTMAX_H
#define WEFT_BASE_SOFTMAX_H

#include "exponential.h"

#include <stddef.h>

enum { WEFT_LANES = 16 };

static inline float weft_lanes_add(const float lanes[WEFT_LANES]) {
    float sum[WEFT_LANES / 2];
    for (int i = 0; i < WEFT_LANES / 2; i++) {
        sum[i] = lanes[i] + lanes[i + WEFT_LANES / 2];
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* A row has at least one element. */
static inline float weft_row_largest(const float *row, size_t count) {
    float lanes[WEFT_LANES];
    for (size_t j = 0; j < WEFT_LANES; j++) {
        lanes[j] = row[0];
    }
    size_t i = 0;
    for (; i + WEFT_LANES <= count; i += WEFT_LANES) {
        for (size_t j = 0; j < WEFT_LANES; j++) {
            lanes[j] = row[i + j] > lanes[j] ? row[i + j] : lanes[j];
        }
    }
    for (; i < count; i++) {
        lanes[0] = row[i] > lanes[0] ? row[i] : lanes[0];
    }
    float most = lanes[0];
    for (size_t j = 1; j < WEFT_LANES; j++) {
        most = lanes[j] > most ? lanes[j] : most;
    }
    return most;
}

static inline float weft_row_sum(const float *row, size_t count) {
    float lanes[WEFT_LANES] = {0};
    size_t i = 0;
    for (; i + WEFT_LANES <= count; i += WEFT_LANES) {
        for (size_t j = 0; j < WEFT_LANES; j++) {
            lanes[j] += row[i + j];
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        lanes[j] += row[i + j];
    }
    return weft_lanes_add(lanes);
}

/* row = softmax(row * scale) */
static inline void weft_row_softmax(float *row, float scale, size_t count) {
    float most = weft_row_largest(row, count);
    for (size_t i = 0; i < count; i++) {
        row[i] = weft_exponential((row[i] - most) * scale);
    }
    float inverse = 1.0f / weft_row_sum(row, count);
    for (size_t i = 0; i < count; i++) {
        row[i] *= inverse;
    }
}

#endif
