/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.h: which instruction set to use, decided once per process.
 *
 * avx512 means F, BW, DQ, VL, IFMA, VBMI, VBMI2, GFNI, VPOPCNTDQ, VAES and BMI2; avx2 means AVX2, AES and
 * BMI2; neon is that of every 64-bit ARM with AES, which is optional there. Each kernel exists in a
 * portable form, which is the reference that the others are tested against.
 */
#ifndef WEFT_BASE_CPU_H
#define WEFT_BASE_CPU_H

#include <weft/base.h>

#include <string.h>

/* The levels of an architecture ascend. Those of another have the same numbers: no machine has both. */
typedef enum weft_cpu {
    WEFT_CPU_PORTABLE = 0,
    WEFT_CPU_AVX2 = 1,
    WEFT_CPU_AVX512 = 2,
    WEFT_CPU_NEON = 1,
} weft_cpu;

/* The level in use: the best that this machine runs, or what WEFT_CPU names if it runs that. */
weft_cpu weft_cpu_level(void);
/* The best that this machine runs. Tests go through all levels up to it. */
weft_cpu weft_cpu_best(void);

/* Asks for the line of memory at an address, which need not be anybody's. It comes into the second-level
 * cache: the first is too small for what is worked on and what comes next, and only some requests of its
 * own can be under way at once; with more, the work waits for them. */
static inline void weft_cpu_fetch(uintptr_t address) {
    enum { READ = 0, SECOND_LEVEL = 2 };
    __builtin_prefetch((const void *)address, READ, SECOND_LEVEL);
}

/* PyTorch's cast of one value, NaNs included; the reference for the vector forms. */
static inline uint16_t weft_bf16_round(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fc0;
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* weft_bf16_from_f32 at a given level. */
void weft_bf16_cast(weft_cpu level, const float *input, uint16_t *output, size_t count);

/* The FP32 values of BF16 ones, which are exact. */
static inline void weft_bf16_widen(const uint16_t *input, float *output, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)input[i] << 16;
        memcpy(&output[i], &bits, sizeof bits);
    }
}

#endif
