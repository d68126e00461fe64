/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512.c: the kernels for AVX-512 with VBMI2 and VPOPCNTDQ.
 *
 * Changes are rare and irregular, so a branch on "does this block hold one" is mispredicted half of the
 * time. The loops therefore do the same work for every block of 64 weights.
 */
#include "kernels.h"

#include "../../code/lanes.h"

/* Appends first + i for every set bit i of `mask`. */
static inline size_t append_many(uint64_t mask, uint32_t first, uint32_t *positions) {
    const __m512i iota =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43,
                        42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22,
                        21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i packed = _mm512_maskz_compress_epi8(mask, iota);
    __m512i start = _mm512_set1_epi32((int)first);
    __m128i quarters[4] = {
        _mm512_castsi512_si128(packed),
        _mm512_extracti32x4_epi32(packed, 1),
        _mm512_extracti32x4_epi32(packed, 2),
        _mm512_extracti32x4_epi32(packed, 3),
    };
    for (unsigned i = 0; i < 4; i++) {
        _mm512_storeu_si512(positions + 16 * i, _mm512_add_epi32(start, _mm512_cvtepu8_epi32(quarters[i])));
    }
    return (size_t)__builtin_popcountll(mask);
}

/* Most blocks hold none, one or two, and which is as good as random: two are always written, and as many
 * counted as there are. */
static inline size_t append_positions(uint64_t mask, uint32_t first, uint32_t *positions) {
    size_t count = (size_t)__builtin_popcountll(mask);
    if (__builtin_expect(count > 2, 0)) {
        return append_many(mask, first, positions);
    }
    positions[0] = first + (uint32_t)_tzcnt_u64(mask);
    positions[1] = first + (uint32_t)_tzcnt_u64(_blsr_u64(mask));
    return count;
}

static inline uint64_t differ_block(const uint8_t *base, const uint8_t *next) {
    __mmask32 low = _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(base), _mm512_loadu_si512(next));
    __mmask32 high = _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(base + 64), _mm512_loadu_si512(next + 64));
    return _mm512_kunpackd(high, low);
}

static size_t diff_words(const void *base, const void *next, size_t count, uint32_t first,
                         uint32_t *positions) {
    const uint8_t *x = base;
    const uint8_t *y = next;
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        found +=
            append_positions(differ_block(x + 2 * i, y + 2 * i), first + (uint32_t)i, positions + found);
    }
    if (i < count) {
        uint64_t valid = weft_lanes_left(count - i);
        __m512i x0 = _mm512_maskz_loadu_epi16(weft_lanes_low(valid), x + 2 * i);
        __m512i y0 = _mm512_maskz_loadu_epi16(weft_lanes_low(valid), y + 2 * i);
        __m512i x1 = _mm512_maskz_loadu_epi16(weft_lanes_high(valid), x + 2 * i + 64);
        __m512i y1 = _mm512_maskz_loadu_epi16(weft_lanes_high(valid), y + 2 * i + 64);
        uint64_t mask = _mm512_kunpackd(_mm512_cmpneq_epi16_mask(x1, y1), _mm512_cmpneq_epi16_mask(x0, y0));
        found += append_positions(mask, first + (uint32_t)i, positions + found);
    }
    return found;
}

/* Which of 64 bytes' units differ, of those that `bytes` are there of. */
static inline uint64_t differ_units(const uint8_t *base, const uint8_t *next, unsigned width,
                                    uint64_t bytes) {
    __m512i b = _mm512_maskz_loadu_epi8(bytes, base), n = _mm512_maskz_loadu_epi8(bytes, next);
    return width == 1   ? _mm512_cmpneq_epi8_mask(b, n)
           : width == 4 ? _mm512_cmpneq_epi32_mask(b, n)
                        : _mm512_cmpneq_epi64_mask(b, n);
}

/* Units of one, four or eight bytes. */
static inline __attribute__((always_inline)) size_t diff_units(const uint8_t *base, const uint8_t *next,
                                                               size_t count, unsigned width, uint32_t first,
                                                               uint32_t *positions) {
    size_t found = 0;
    for (size_t i = 0; i < count; i += 64) {
        uint64_t mask = 0;
        for (unsigned j = 0; j < width; j++) {
            size_t done = i * width + 64 * j;
            uint64_t bytes = done < count * width ? weft_lanes_left(count * width - done) : 0;
            mask |= differ_units(base + done, next + done, width, bytes) << (64 / width * j);
        }
        found += append_positions(mask, first + (uint32_t)i, positions + found);
    }
    return found;
}

static size_t diff_avx512(const void *base, const void *next, size_t count, unsigned width, uint32_t first,
                          uint32_t *positions) {
    switch (width) {
    case 1:
        return diff_units(base, next, count, 1, first, positions);
    case 2:
        return diff_words(base, next, count, first, positions);
    case 4:
        return diff_units(base, next, count, 4, first, positions);
    default:
        return diff_units(base, next, count, 8, first, positions);
    }
}

static inline __m256i round_sixteen(__m512i bits) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, magnitude), infinity);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_srli_epi32(rounded, 16);
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    return _mm512_cvtepi32_epi16(rounded);
}

static inline __mmask32 differ_masters(__m512i base, __m512i masters0, __m512i masters1) {
    __m512i next =
        _mm512_inserti64x4(_mm512_castsi256_si512(round_sixteen(masters0)), round_sixteen(masters1), 1);
    return _mm512_cmpneq_epi16_mask(base, next);
}

static size_t diff_masters_avx512(const void *base, const void *masters, size_t count, uint32_t first,
                                  uint32_t *positions) {
    const uint8_t *b = base;
    const uint8_t *m = masters;
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        const uint8_t *source = m + 4 * i;
        __mmask32 low = differ_masters(_mm512_loadu_si512(b + 2 * i), _mm512_loadu_si512(source),
                                       _mm512_loadu_si512(source + 64));
        __mmask32 high = differ_masters(_mm512_loadu_si512(b + 2 * i + 64),
                                        _mm512_loadu_si512(source + 128), _mm512_loadu_si512(source + 192));
        found +=
            append_positions((uint64_t)low | (uint64_t)high << 32, first + (uint32_t)i, positions + found);
    }
    for (; i < count; i += 32) {
        uint64_t valid = weft_lanes_left(count - i) & 0xffffffffu;
        __m512i old = _mm512_maskz_loadu_epi16((__mmask32)valid, b + 2 * i);
        __m512i m0 = _mm512_maskz_loadu_epi32((__mmask16)valid, m + 4 * i);
        __m512i m1 = _mm512_maskz_loadu_epi32((__mmask16)(valid >> 16), m + 4 * i + 64);
        found += append_positions(differ_masters(old, m0, m1), first + (uint32_t)i, positions + found);
    }
    return found;
}

static bool decode_fast_avx512(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count) {
    return weft_fast_loop(decoder, positions, steps, count, 2);
}

const weft_patch_kernels weft_patch_kernels_avx512 = {
    .tiles = &weft_tile_kernels_avx512,
    .packed = {&weft_tile_kernels_avx512, &weft_pack_kernels_avx512, &weft_rans_wide_kernels_avx512},
    .diff = diff_avx512,
    .diff_masters = diff_masters_avx512,
    .decode_fast = decode_fast_avx512,
};
