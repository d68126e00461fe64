/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_avx2.h: two-byte numbers, their bytes and planes of their bits, for AVX2: 64 numbers are four
 * registers, and a byte of each of them two.
 */
#ifndef WEFT_CODE_PACK_LANES_AVX2_H
#define WEFT_CODE_PACK_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES_REGISTER = 32 };

static inline __m256i load_lanes(const void *memory, unsigned index) {
    return _mm256_loadu_si256((const __m256i *)memory + index);
}

static inline void store_lanes(void *memory, unsigned index, __m256i lanes) {
    _mm256_storeu_si256((__m256i *)memory + index, lanes);
}

/* 32 numbers that fit into a byte. */
static inline __m256i pack_bytes(__m256i low, __m256i high) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
}

/* And back: the 16 of register `index`. */
static inline __m256i widen_bytes(const __m256i bytes[2], unsigned index) {
    __m256i half = bytes[index / 2];
    return _mm256_cvtepu8_epi16(index % 2 == 0 ? _mm256_castsi256_si128(half)
                                               : _mm256_extracti128_si256(half, 1));
}

/* The lower and the upper bytes of 64 numbers. */
static inline void split_bytes(const __m256i numbers[4], __m256i lower[2], __m256i upper[2]) {
    const __m256i mask = _mm256_set1_epi16(0xff);
    for (unsigned i = 0; i < 2; i++) {
        lower[i] =
            pack_bytes(_mm256_and_si256(numbers[2 * i], mask), _mm256_and_si256(numbers[2 * i + 1], mask));
        upper[i] =
            pack_bytes(_mm256_srli_epi16(numbers[2 * i], 8), _mm256_srli_epi16(numbers[2 * i + 1], 8));
    }
}

static inline uint64_t join_masks(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

/* A bit, 0 to 7, of each of 64 bytes. */
static inline uint64_t plane_of(const __m256i bytes[2], unsigned bit) {
    __m128i by = _mm_cvtsi32_si128((int)(7 - bit));
    return join_masks(_mm256_sll_epi16(bytes[0], by), _mm256_sll_epi16(bytes[1], by));
}

/* Bytes of all ones where a bit is set. */
static inline __m256i spread_bits(uint32_t bits) {
    const __m256i places =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i each = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), places);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, each), each);
}

/* Sets a bit, 0 to 7, of those of 64 bytes that a plane says. */
static inline void add_plane(__m256i bytes[2], const uint8_t *plane, unsigned bit) {
    const __m256i value = _mm256_set1_epi8((char)(1 << bit));
    for (unsigned i = 0; i < 2; i++) {
        uint32_t bits;
        memcpy(&bits, plane + 4 * i, sizeof bits);
        bytes[i] = _mm256_or_si256(bytes[i], _mm256_and_si256(spread_bits(bits), value));
    }
}

#endif
