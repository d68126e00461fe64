/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx2.c: the kernels for AVX2 with BMI2.
 *
 * AVX2 has no compress, so positions are taken from the bit mask one by one; the first four of a block
 * are written without asking how many there are, or whether there is one, which spares most of the
 * mispredicted branches.
 */
#include "kernels.h"

#include "../../code/lanes.h"
#include "../../tensor/digest_mix_avx2.h"

static inline size_t append_positions(uint64_t mask, uint32_t first, uint32_t *positions) {
    size_t count = (size_t)__builtin_popcountll(mask);
    for (unsigned i = 0; i < 4; i++) {
        positions[i] = first + (uint32_t)_tzcnt_u64(mask);
        mask = _blsr_u64(mask);
    }
    for (size_t i = 4; i < count; i++) {
        positions[i] = first + (uint32_t)_tzcnt_u64(mask);
        mask = _blsr_u64(mask);
    }
    return count;
}

static inline uint32_t equal_thirtytwo(const uint8_t *base, const uint8_t *next) {
    return weft_lanes_mask(_mm256_cmpeq_epi16(weft_lanes_load(base), weft_lanes_load(next)),
                           _mm256_cmpeq_epi16(weft_lanes_load(base + 32), weft_lanes_load(next + 32)));
}

/* Which of 32 bytes' units are the same. */
static inline uint32_t equal_units(const uint8_t *base, const uint8_t *next, unsigned width) {
    __m256i b = weft_lanes_load(base), n = weft_lanes_load(next);
    if (width == 1) {
        return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, n));
    }
    return width == 4 ? (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(b, n)))
                      : (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(b, n)));
}

/* Which of 64 units. */
static inline __attribute__((always_inline)) uint64_t equal_block(const uint8_t *base, const uint8_t *next,
                                                                  unsigned width) {
    if (width == 2) {
        return (uint64_t)equal_thirtytwo(base, next) | (uint64_t)equal_thirtytwo(base + 64, next + 64)
                                                           << 32;
    }
    uint64_t equal = 0;
    for (unsigned i = 0; i < 2 * width; i++) {
        equal |= (uint64_t)equal_units(base + 32 * i, next + 32 * i, width) << (32 / width * i);
    }
    return equal;
}

static inline __attribute__((always_inline)) size_t diff_units(const uint8_t *base, const uint8_t *next,
                                                               size_t count, unsigned width, uint32_t first,
                                                               uint32_t *positions) {
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        if (width == 2) {
            weft_lanes_ask(base + 2 * i);
            weft_lanes_ask(next + 2 * i);
        }
        uint64_t equal = equal_block(base + width * i, next + width * i, width);
        found += append_positions(~equal, first + (uint32_t)i, positions + found);
    }
    return found + weft_patch_kernels_portable.diff(base + width * i, next + width * i, count - i, width,
                                                    first + (uint32_t)i, positions + found);
}

static size_t diff_avx2(const void *base, const void *next, size_t count, unsigned width, uint32_t first,
                        uint32_t *positions) {
    switch (width) {
    case 1:
        return diff_units(base, next, count, 1, first, positions);
    case 2:
        return diff_units(base, next, count, 2, first, positions);
    case 4:
        return diff_units(base, next, count, 4, first, positions);
    default:
        return diff_units(base, next, count, 8, first, positions);
    }
}

/* The words of a group of blocks that differ are mixed right after it, a pair of words for each bit. */
enum { GROUP = 16, PAIR = 2 * WEFT_WORD, PAIRS = 64 * sizeof(uint16_t) / PAIR };

/* Which pairs of words of a block have a weight that differs. */
static inline uint64_t pairs_of(uint64_t differing) {
    const uint64_t lowest = 0x0001000100010001u;
    differing |= differing >> 8;
    differing |= differing >> 4;
    differing |= differing >> 2;
    differing |= differing >> 1;
    return _pext_u64(differing, lowest);
}

static size_t diff_proven_avx2(const void *base, const void *next, size_t count, uint32_t first,
                               uint32_t *positions, uint64_t word, weft_sum *moved) {
    const uint8_t *x = base, *y = next;
    const weft_mix_keys_narrow keys = weft_mix_load_keys_narrow();
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    size_t found = 0, i = 0;
    for (; i + 64 * GROUP <= count; i += 64 * GROUP) {
        uint64_t pairs = 0;
        for (unsigned b = 0; b < GROUP; b++) {
            size_t at = i + 64 * b;
            weft_lanes_ask(x + 2 * at);
            weft_lanes_ask(y + 2 * at);
            uint64_t differing = ~equal_block(x + 2 * at, y + 2 * at, 2);
            pairs |= pairs_of(differing) << PAIRS * b;
            found += append_positions(differing, first + (uint32_t)at, positions + found);
        }
        for (; pairs != 0; pairs = _blsr_u64(pairs)) {
            size_t offset = 2 * i + PAIR * (size_t)_tzcnt_u64(pairs);
            weft_mix_move_pair(x + offset, y + offset, word + offset / WEFT_WORD, keys, sums);
        }
    }
    *moved = weft_mix_finish_narrow(sums);
    weft_sum_add(moved, weft_digest_kernels_avx2.difference(x + 2 * i, y + 2 * i, 2 * (count - i),
                                                            word + 2 * i / WEFT_WORD));
    return found + diff_units(x + 2 * i, y + 2 * i, count - i, 2, first + (uint32_t)i, positions + found);
}

static inline __m256i round_eight(const uint8_t *masters) {
    __m256i bits = weft_lanes_load(masters);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    rounded = _mm256_srli_epi32(rounded, 16);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

static inline __m256i equal_masters(const uint8_t *base, const uint8_t *masters) {
    __m256i next = _mm256_packus_epi32(round_eight(masters), round_eight(masters + 32));
    next = _mm256_permute4x64_epi64(next, 0xd8);
    return _mm256_cmpeq_epi16(weft_lanes_load(base), next);
}

static size_t diff_masters_avx2(const void *base, const void *masters, size_t count, uint32_t first,
                                uint32_t *positions) {
    const uint8_t *b = base;
    const uint8_t *m = masters;
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        uint32_t low = weft_lanes_mask(equal_masters(b + 2 * i, m + 4 * i),
                                       equal_masters(b + 2 * i + 32, m + 4 * i + 64));
        uint32_t high = weft_lanes_mask(equal_masters(b + 2 * i + 64, m + 4 * i + 128),
                                        equal_masters(b + 2 * i + 96, m + 4 * i + 192));
        uint64_t equal = (uint64_t)low | (uint64_t)high << 32;
        if (~equal != 0) {
            found += append_positions(~equal, first + (uint32_t)i, positions + found);
        }
    }
    return found + weft_patch_kernels_portable.diff_masters(b + 2 * i, m + 4 * i, count - i,
                                                            first + (uint32_t)i, positions + found);
}

static void encode_fast_avx2(weft_bits_writer *bits, const weft_changes *changes, unsigned k) {
    weft_fast_put_loop(bits, changes, 0, changes->count, k, 2);
}

static bool decode_fast_avx2(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count) {
    return weft_fast_loop(decoder, positions, steps, count, 2);
}

const weft_patch_kernels weft_patch_kernels_avx2 = {
    .tiles = &weft_tile_kernels_avx2,
    .packed = {&weft_tile_kernels_avx2, &weft_pack_kernels_avx2, &weft_rans_wide_kernels_avx2,
               &weft_rice_kernels_avx2},
    .diff = diff_avx2,
    .diff_proven = diff_proven_avx2,
    .diff_masters = diff_masters_avx2,
    .encode_fast = encode_fast_avx2,
    .decode_fast = decode_fast_avx2,
};
