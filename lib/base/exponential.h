/* SPDX-License-Identifier: Apache-2.0
 *
 * exponential.h: e^x in single precision, for loops that the compiler turns into vectors. Plain IEEE
 * operations, never fused (cmake/flags.cmake), so that every level gives the same bits; e^0 is exactly 1.
 */
#ifndef WEFT_BASE_EXPONENTIAL_H
#define WEFT_BASE_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* e^x = (1 + rest + curve) * scale, where scale is a power of two: 1 for x within ln 2 / 2 of 0, and rest
 * is then x. */
typedef struct weft_exponential_parts {
    float rest;
    float curve;
    float scale;
} weft_exponential_parts;

/* For x in [-87, 87]: 2^n by the exponent's bits times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
static inline weft_exponential_parts weft_exponential_split(float x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = x * 1.44269504f + shift;
    float whole = shifted - shift;
    float rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float power = 1.9875691500e-4f;
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint32_t scale_bits = ((uint32_t)(bits - 0x4b400000) + 127u) << 23;
    weft_exponential_parts result = {.rest = rest, .curve = power * rest * rest};
    memcpy(&result.scale, &scale_bits, sizeof result.scale);
    return result;
}

/* Within 2 units in the last place; x is clamped to [-87, 87]. */
static inline float weft_exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    weft_exponential_parts power = weft_exponential_split(x);
    return ((power.curve + power.rest) + 1.0f) * power.scale;
}

#endif
