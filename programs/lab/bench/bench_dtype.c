/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_dtype.c: the types of weights that `weft bench --density` can be of, and how FP32 becomes one.
 */
#include "bench.h"

#include <math.h>
#include <string.h>

/* What is rounded in coarser steps changes less often: as many weights change at a higher rate. */
static const bench_dtype dtypes[] = {
    {"bf16", WEFT_DTYPE_BF16, .rates = 1},
    {"f16", WEFT_DTYPE_F16, 10, -14, 0x7bff, false, 1.0 / 8},
    {"f32", WEFT_DTYPE_F32, .rates = 1},
    {"f8_e4m3", WEFT_DTYPE_F8_E4M3, 3, -6, 0x7e, true, 16},
    {"f8_e5m2", WEFT_DTYPE_F8_E5M2, 2, -14, 0x7b, true, 32},
};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const bench_dtype *bench_dtype_of(weft_dtype dtype) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (dtypes[i].dtype == dtype) {
            return &dtypes[i];
        }
    }
    return NULL;
}

bool bench_dtype_parse(const char *name, weft_dtype *dtype_out) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype_out = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

/* The nearest multiple of the ULP, which the exponent says; numbers follow each other as their bits do, so
 * that a carry into the exponent is right as it is. */
uint32_t bench_dtype_round(const bench_dtype *dtype, float value) {
    const float ones = 0x1p23f; /* from here on floats count by ones */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 31 << (weft_dtype_bits(dtype->dtype) - 1);
    int exponent = (int)(bits >> 23 & 0xff) - 127;
    exponent = exponent < dtype->least ? dtype->least : exponent;
    uint32_t scale_bits = (uint32_t)(127 - exponent + (int)dtype->mantissa) << 23;
    float scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    float multiple = (fabsf(value) * scale + ones) - ones;
    uint32_t number = ((uint32_t)(exponent - dtype->least) << dtype->mantissa) + (uint32_t)multiple;
    return sign | (number < dtype->most ? number : dtype->most);
}

/* Sixteen deviations are as large as the weights of a tensor get. Norms are about 1. */
float bench_dtype_scale(const bench_dtype *dtype, float deviation) {
    if (!dtype->scaled) {
        return 1;
    }
    float largest = deviation > 0 ? 16 * deviation : 2;
    int exponent = (int)(dtype->most >> dtype->mantissa) - 1 + dtype->least;
    return ldexpf(1, exponent) / largest;
}
