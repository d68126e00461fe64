/* SPDX-License-Identifier: Apache-2.0
 *
 * step_loop.h: the loops of step.h, compiled into a file for each processor level.
 */
#ifndef WEFT_LOCO_STEP_LOOP_H
#define WEFT_LOCO_STEP_LOOP_H

#include "step.h"

#include <string.h>

enum { STEP_PIECE = 64 };

static inline uint32_t step_magnitude(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

static inline uint32_t step_with_momentum(const weft_step *step, size_t count, const float *restrict sums,
                                          float *restrict consensus, float *restrict momentum) {
    const float included = step->included, rate = step->rate, mu = step->mu;
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++) {
        float gradient = sums[i] / included;
        float moved = mu * momentum[i] + gradient;
        float direction = gradient + mu * moved;
        float next = consensus[i] - rate * direction;
        uint32_t magnitude = step_magnitude(next);
        momentum[i] = moved;
        consensus[i] = next;
        highest = magnitude > highest ? magnitude : highest;
    }
    return highest;
}

static inline uint32_t step_without(const weft_step *step, size_t count, const float *restrict sums,
                                    float *restrict consensus) {
    const float included = step->included, rate = step->rate;
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++) {
        float next = consensus[i] - rate * (sums[i] / included);
        uint32_t magnitude = step_magnitude(next);
        consensus[i] = next;
        highest = magnitude > highest ? magnitude : highest;
    }
    return highest;
}

static inline uint32_t step_some(const weft_step *step, size_t count, const float *sums, float *consensus,
                                 float *momentum) {
    return momentum != NULL ? step_with_momentum(step, count, sums, consensus, momentum)
                            : step_without(step, count, sums, consensus);
}

static inline float *step_at(float *momentum, size_t i) {
    return momentum == NULL ? NULL : momentum + i;
}

/* Asks for what comes two kilobytes after weight `i`. The addresses need not be anybody's. */
static inline void step_fetch(const float *consensus, const float *momentum, size_t i) {
    enum { AHEAD = 2048 };
    for (unsigned j = 0; j < STEP_PIECE * sizeof(float); j += 64) {
        __builtin_prefetch((const void *)((uintptr_t)consensus + i * sizeof(float) + AHEAD + j), 1);
        __builtin_prefetch((const void *)((uintptr_t)momentum + i * sizeof(float) + AHEAD + j), 1);
    }
}

static inline uint32_t step_all(const weft_step *step, size_t count, const float *sums, float *consensus,
                                float *momentum) {
    uint32_t highest = 0;
    size_t i = 0;
    for (; i + STEP_PIECE <= count; i += STEP_PIECE) {
        step_fetch(consensus, momentum, i);
        uint32_t largest = step_some(step, STEP_PIECE, sums + i, consensus + i, step_at(momentum, i));
        highest = largest > highest ? largest : highest;
    }
    uint32_t largest = step_some(step, count - i, sums + i, consensus + i, step_at(momentum, i));
    return largest > highest ? largest : highest;
}

#endif
