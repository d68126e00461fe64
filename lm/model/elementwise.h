/* SPDX-License-Identifier: Apache-2.0
 *
 * elementwise.h: the kernels other than the product, as plain loops that the compiler turns into vectors.
 * Each kernels*.c includes it once and so compiles it for its instruction set; ELEMENTWISE lists the
 * functions in the order of lm_kernels. Multiply and add are never fused here (cmake/flags.cmake), and sums
 * are kept in WEFT_LANES partial sums, so that every form gives the same bits.
 */
#ifndef WEFT_LM_MODEL_ELEMENTWISE_H
#define WEFT_LM_MODEL_ELEMENTWISE_H

#include "../../lib/base/softmax.h"
#include "kernels.h"

#include <math.h>

#if defined(__clang__)
#define UNROLL_ALL _Pragma("unroll")
#else
#define UNROLL_ALL _Pragma("GCC unroll 16")
#endif

static float dot(const float *a, const float *b, size_t count) {
    float lanes[WEFT_LANES] = {0};
    size_t i = 0;
    for (; i + WEFT_LANES <= count; i += WEFT_LANES) {
        for (size_t j = 0; j < WEFT_LANES; j++) {
            lanes[j] += a[i + j] * b[i + j];
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        lanes[j] += a[i + j] * b[i + j];
    }
    return weft_lanes_add(lanes);
}

static float norm(const float *x, const float *gain, float epsilon, size_t count, float *output) {
    float scale = 1.0f / sqrtf(dot(x, x, count) / (float)count + epsilon);
    for (size_t i = 0; i < count; i++) {
        output[i] = x[i] * scale * gain[i];
    }
    return scale;
}

static void norm_back(const float *x, const float *gain, float scale, const float *dy, size_t count,
                      float *dx) {
    float lanes[WEFT_LANES] = {0};
    size_t i = 0;
    for (; i + WEFT_LANES <= count; i += WEFT_LANES) {
        for (size_t j = 0; j < WEFT_LANES; j++) {
            lanes[j] += x[i + j] * gain[i + j] * dy[i + j];
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        lanes[j] += x[i + j] * gain[i + j] * dy[i + j];
    }
    float pull = weft_lanes_add(lanes) * scale * scale * scale / (float)count;
    for (i = 0; i < count; i++) {
        dx[i] += gain[i] * dy[i] * scale - x[i] * pull;
    }
}

static void swiglu(const float *gate, const float *up, size_t count, float *output) {
    for (size_t i = 0; i < count; i++) {
        output[i] = gate[i] / (1.0f + weft_exponential(-gate[i])) * up[i];
    }
}

static void swiglu_back(float *gate, float *up, const float *doutput, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float sigmoid = 1.0f / (1.0f + weft_exponential(-gate[i]));
        float silu = gate[i] * sigmoid;
        float dgate = doutput[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
        up[i] = doutput[i] * silu;
        gate[i] = dgate;
    }
}

static void softmax_back(const float *probabilities, float *gradient, float scale, size_t count) {
    float mean = dot(probabilities, gradient, count);
    for (size_t i = 0; i < count; i++) {
        gradient[i] = probabilities[i] * (gradient[i] - mean) * scale;
    }
}

/* The exponentials are summed block by block, since the row must be kept. */
static float sum_of_exponentials(const float *row, float most, size_t count) {
    float lanes[WEFT_LANES] = {0};
    size_t i = 0;
    for (; i + WEFT_LANES <= count; i += WEFT_LANES) {
        for (size_t j = 0; j < WEFT_LANES; j++) {
            lanes[j] += weft_exponential(row[i + j] - most);
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        lanes[j] += weft_exponential(row[i + j] - most);
    }
    return weft_lanes_add(lanes);
}

static void log_softmax(float *row, float scale, size_t count) {
    for (size_t i = 0; i < count; i++) {
        row[i] *= scale;
    }
    float most = weft_row_largest(row, count);
    float shift = most + (float)log((double)sum_of_exponentials(row, most, count));
    for (size_t i = 0; i < count; i++) {
        row[i] -= shift;
    }
}

static void log_softmax_back(float *row, size_t target, float slope, float scale, size_t count) {
    float factor = slope * scale;
    for (size_t i = 0; i < count; i++) {
        row[i] = -factor * weft_exponential(row[i]);
    }
    row[target] += factor;
}

static void rotate(float *x, const float *cosines, const float *sines, float sign, size_t half) {
    for (size_t i = 0; i < half; i++) {
        float low = x[i];
        float high = x[i + half];
        x[i] = low * cosines[i] - high * (sines[i] * sign);
        x[i + half] = high * cosines[i] + low * (sines[i] * sign);
    }
}

static void add(float *x, const float *y, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] += y[i];
    }
}

static void add_product(float *x, const float *a, const float *b, float scale, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] += a[i] * b[i] * scale;
    }
}

static void adam(const lm_adam_step *step, const float *gradient, float *master, float *first,
                 float *second, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float slope = gradient[i] * step->scale;
        float m = step->beta1 * first[i] + (1.0f - step->beta1) * slope;
        float v = step->beta2 * second[i] + (1.0f - step->beta2) * slope * slope;
        first[i] = m;
        second[i] = v;
        float move = m / step->bias1 / (sqrtf(v / step->bias2) + step->epsilon);
        master[i] -= step->decay * master[i] + step->rate * move;
    }
}

#define ELEMENTWISE                                                                                        \
    norm, norm_back, swiglu, swiglu_back, weft_row_softmax, softmax_back, log_softmax, log_softmax_back,   \
        rotate, add, add_product, adam

#endif
