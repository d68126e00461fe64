/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h: what the kernels over two-byte weights have in common, here and in the rooms above: how a weight
 * is read at any address, and how the lanes of registers become bits. Each part is there for the files that
 * are compiled for its instructions.
 */
#ifndef WEFT_CODE_LANES_H
#define WEFT_CODE_LANES_H

#include "../base/cpu.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t weft_weight_at(const void *weights, size_t index) {
    uint16_t value;
    memcpy(&value, (const uint8_t *)weights + 2 * index, sizeof value);
    return value;
}

/* How far ahead of a comparison memory is asked for. The processor's own fetching stops at the end of a
 * page, and does not go on while changes are worked on. */
enum { WEFT_LANES_AHEAD = 4096 };

/* Asks for as many bytes as a block of 64 weights has, so far ahead of it. */
static inline void weft_lanes_ask(const uint8_t *block) {
    weft_cpu_fetch((uintptr_t)block + WEFT_LANES_AHEAD);
    weft_cpu_fetch((uintptr_t)block + WEFT_LANES_AHEAD + 64);
}

/* One bit for each of the weights that are left, of a block of 64. */
static inline uint64_t weft_lanes_left(size_t left) {
    return left >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << left) - 1;
}

#ifdef __AVX2__
#include <immintrin.h>

static inline __m256i weft_lanes_load(const uint8_t *memory) {
    return _mm256_loadu_si256((const __m256i *)(const void *)memory);
}

/* One bit per 16-bit lane of two registers whose lanes are all ones or all zeros. */
static inline uint32_t weft_lanes_mask(__m256i low, __m256i high) {
    __m256i packed = _mm256_packs_epi16(low, high);
    packed = _mm256_permute4x64_epi64(packed, 0xd8);
    return (uint32_t)_mm256_movemask_epi8(packed);
}
#endif

#ifdef WEFT_ARM
#include <arm_neon.h>

/* One bit per byte of four registers whose bytes are all ones or all zeros. */
static inline uint64_t weft_lanes_bits(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    uint8x16_t low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
    uint8x16_t high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
    low = vpaddq_u8(low, high);
    low = vpaddq_u8(low, low);
    return vgetq_lane_u64(vreinterpretq_u64_u8(low), 0);
}

/* The low bytes of the lanes of two registers. */
static inline uint8x16_t weft_lanes_narrow(uint16x8_t low, uint16x8_t high) {
    return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

#endif

#ifdef __AVX512BW__
/* The two halves of a block of 64, as masks of registers. */
static inline __mmask32 weft_lanes_low(uint64_t mask) {
    return (__mmask32)mask;
}

static inline __mmask32 weft_lanes_high(uint64_t mask) {
    return (__mmask32)(mask >> 32);
}
#endif

#endif
