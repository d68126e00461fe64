/* SPDX-License-Identifier: Apache-2.0
 *
 * exponential.h: e^x for loops that the compiler turns into vectors. Plain IEEE operations, never fused
 * (cmake/flags.cmake), so that every level gives the same bits, which the C library's does not promise; e^0
 * is exactly 1.
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

/* In double precision, for x in [-700, 700]; within a unit in the last place. The same way as above. */
static inline double weft_exponential_double(double x) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = x * 1.44269504088896338700 + shift;
    double whole = shifted - shift;
    double rest = (x - whole * 6.93147180369123816490e-01) - whole * 1.90821492927058770002e-10;
    double power = 1.0 / 6227020800;
    power = power * rest + 1.0 / 479001600;
    power = power * rest + 1.0 / 39916800;
    power = power * rest + 1.0 / 3628800;
    power = power * rest + 1.0 / 362880;
    power = power * rest + 1.0 / 40320;
    power = power * rest + 1.0 / 5040;
    power = power * rest + 1.0 / 720;
    power = power * rest + 1.0 / 120;
    power = power * rest + 1.0 / 24;
    power = power * rest + 1.0 / 6;
    power = power * rest + 0.5;
    int64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint64_t scale_bits = ((uint64_t)(bits - 0x4338000000000000) + 1023u) << 52;
    double scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return ((power * rest * rest + rest) + 1.0) * scale;
}

#endif
