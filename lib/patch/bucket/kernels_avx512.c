/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512.c: the kernels for AVX-512 with VBMI2 and VPOPCNTDQ.
 *
 * Changes are rare and irregular, so a branch on "does this block hold one" is mispredicted half of the
 * time. The loops therefore do the same work for every block of 64 weights.
 */
#include "kernels.h"

#include "../../code/lanes.h"
#include "../../tensor/digest_mix_avx512.h"

enum { FAST_BESIDE = 28 /* bits of a change of the fast coding, so that two go out at once */ };

/* Appends first + i for every set bit i of `mask`. Where they are is as good as random, and so is how many,
 * up to a few: sixteen are always written, and as many counted as there are. */
static inline size_t append_positions(uint64_t mask, uint32_t first, uint32_t *positions) {
    const __m512i iota =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43,
                        42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22,
                        21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i packed = _mm512_maskz_compress_epi8(mask, iota);
    __m512i start = _mm512_set1_epi32((int)first);
    size_t count = (size_t)__builtin_popcountll(mask);
    __m512i few = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(packed));
    _mm512_storeu_si512(positions, _mm512_add_epi32(start, few));
    if (__builtin_expect(count > 16, 0)) {
        __m128i quarters[3] = {
            _mm512_extracti32x4_epi32(packed, 1),
            _mm512_extracti32x4_epi32(packed, 2),
            _mm512_extracti32x4_epi32(packed, 3),
        };
        for (unsigned i = 0; i < 3; i++) {
            __m512i more = _mm512_cvtepu8_epi32(quarters[i]);
            _mm512_storeu_si512(positions + 16 * (i + 1), _mm512_add_epi32(start, more));
        }
    }
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
        weft_lanes_ask(x + 2 * i);
        weft_lanes_ask(y + 2 * i);
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

/* The words of a group of blocks that differ are mixed right after it, while memory further on is under
 * way. */
enum { GROUP = 8 };

static size_t diff_proven_avx512(const void *base, const void *next, size_t count, uint32_t first,
                                 uint32_t *positions, uint64_t word, weft_sum *moved) {
    const uint8_t *x = base;
    const uint8_t *y = next;
    const weft_mix_keys_wide keys = weft_mix_load_keys();
    __m512i sums[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                       _mm512_setzero_si512()};
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 * GROUP <= count; i += 64 * GROUP) {
        uint32_t differing = 0; /* registers of 32 weights */
        for (size_t b = 0; b < GROUP; b++) {
            size_t at = i + 64 * b;
            weft_lanes_ask(x + 2 * at);
            weft_lanes_ask(y + 2 * at);
            uint64_t mask = differ_block(x + 2 * at, y + 2 * at);
            differing |= (uint32_t)((uint32_t)mask != 0) << 2 * b | (uint32_t)(mask >> 32 != 0)
                                                                        << (2 * b + 1);
            found += append_positions(mask, first + (uint32_t)at, positions + found);
        }
        for (; differing != 0; differing = _blsr_u32(differing)) {
            size_t offset = 2 * i + WEFT_MIX_VECTOR * (size_t)_tzcnt_u32(differing);
            __m512i here = weft_mix_positions(word + offset / WEFT_WORD);
            sums[0] = _mm512_add_epi64(sums[0], weft_mix_wide(_mm512_loadu_si512(y + offset), here, keys));
            sums[1] = _mm512_sub_epi64(sums[1], weft_mix_wide(_mm512_loadu_si512(x + offset), here, keys));
        }
    }
    *moved = weft_mix_finish(sums);
    weft_sum_add(moved, weft_digest_kernels_avx512.difference(x + 2 * i, y + 2 * i, 2 * (count - i),
                                                              word + 2 * i / WEFT_WORD));
    return found + diff_words(x + 2 * i, y + 2 * i, count - i, first + (uint32_t)i, positions + found);
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

/* Eight changes in lanes of 64 bits: the bits that they become, and how many. False if one is so long that
 * it does not fit beside another. */
static inline bool code_eight(const weft_changes *changes, size_t first, unsigned k, __m512i *codes,
                              __m512i *sizes) {
    const __m512i one = _mm512_set1_epi64(1);
    const uint32_t *positions = changes->positions + first;
    __m256i gaps = _mm256_sub_epi32(_mm256_loadu_si256((const void *)positions),
                                    _mm256_loadu_si256((const void *)(positions - 1)));
    __m512i gap = _mm512_sub_epi64(_mm512_cvtepu32_epi64(gaps), one);
    __m128i steps = _mm_sub_epi16(_mm_loadu_si128((const void *)((const uint16_t *)changes->news + first)),
                                  _mm_loadu_si128((const void *)((const uint16_t *)changes->olds + first)));
    __m512i sign = _mm512_cvtepu16_epi64(_mm_srli_epi16(steps, 15));
    /* as a float, whose exponent is the length */
    __m256i magnitudes = _mm256_cvtepu16_epi32(_mm_abs_epi16(steps));
    __m256i exponents = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(magnitudes)), 23);
    __m512i length = _mm512_cvtepu32_epi64(_mm256_sub_epi32(exponents, _mm256_set1_epi32(127)));
    __m512i magnitude = _mm512_cvtepu32_epi64(magnitudes);
    __m512i quotient = _mm512_srl_epi64(gap, _mm_cvtsi32_si128((int)k));
    __m512i head_size = _mm512_add_epi64(quotient, _mm512_set1_epi64(1 + (int64_t)k));
    __m512i tail_size = _mm512_add_epi64(_mm512_slli_epi64(length, 1), _mm512_set1_epi64(2));
    *sizes = _mm512_add_epi64(head_size, tail_size);
    __mmask8 escapes = _mm512_cmpge_epu64_mask(quotient, _mm512_set1_epi64(WEFT_FAST_ESCAPE));
    if ((escapes | _mm512_cmpgt_epu64_mask(*sizes, _mm512_set1_epi64(FAST_BESIDE))) != 0) {
        return false;
    }
    __m512i low = _mm512_and_si512(gap, _mm512_set1_epi64((int64_t)weft_low_bits(k)));
    __m512i head = _mm512_or_si512(_mm512_sub_epi64(_mm512_sllv_epi64(one, quotient), one),
                                   _mm512_sllv_epi64(_mm512_slli_epi64(low, 1), quotient));
    __m512i top = _mm512_sllv_epi64(one, length);
    __m512i tail =
        _mm512_or_si512(_mm512_sllv_epi64(_mm512_slli_epi64(_mm512_xor_si512(magnitude, top), 1), length),
                        _mm512_sub_epi64(top, one));
    tail = _mm512_or_si512(tail, _mm512_sllv_epi64(sign, _mm512_sub_epi64(tail_size, one)));
    *codes = _mm512_or_si512(head, _mm512_sllv_epi64(tail, head_size));
    return true;
}

/* Two at a time go out, since each put waits for the one before. A step of the most negative value has a
 * magnitude of 2^15, which is what its absolute value looks like. */
static void encode_fast_avx512(weft_bits_writer *writer, const weft_changes *changes, unsigned k) {
    weft_bits_writer bits = *writer;
    size_t i = changes->count < 1 ? 0 : 1; /* the first has none before it */
    weft_fast_put_loop(&bits, changes, 0, i, k, 2);
    for (; i + 8 <= changes->count; i += 8) {
        __m512i codes, sizes;
        if (__builtin_expect(!code_eight(changes, i, k, &codes, &sizes), 0)) {
            weft_fast_put_loop(&bits, changes, i, i + 8, k, 2);
            continue;
        }
        uint64_t pairs[8], pair_sizes[8];
        __m512i second = _mm512_sllv_epi64(_mm512_shuffle_epi32(codes, _MM_PERM_BADC), sizes);
        _mm512_storeu_si512(pairs, _mm512_or_si512(codes, second));
        _mm512_storeu_si512(pair_sizes,
                            _mm512_add_epi64(sizes, _mm512_shuffle_epi32(sizes, _MM_PERM_BADC)));
        for (unsigned j = 0; j < 8; j += 2) {
            weft_bits_put(&bits, pairs[j], (unsigned)pair_sizes[j]);
        }
    }
    weft_fast_put_loop(&bits, changes, i, changes->count, k, 2);
    *writer = bits;
}

static bool decode_fast_avx512(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count) {
    return weft_fast_loop(decoder, positions, steps, count, 2);
}

const weft_patch_kernels weft_patch_kernels_avx512 = {
    .tiles = &weft_tile_kernels_avx512,
    .packed = {&weft_tile_kernels_avx512, &weft_pack_kernels_avx512, &weft_rans_wide_kernels_avx512,
               &weft_rice_kernels_avx512},
    .diff = diff_avx512,
    .diff_proven = diff_proven_avx512,
    .diff_masters = diff_masters_avx512,
    .encode_fast = encode_fast_avx512,
    .decode_fast = decode_fast_avx512,
};
