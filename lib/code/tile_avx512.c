/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_avx512.c: the kernels of tile.h for AVX-512 with VBMI2 and VPOPCNTDQ: 64 weights, or the counts of
 * eight blocks, at once.
 */
#include "tile.h"

#include "lanes.h"

/* The exponents of 64 weights, one byte each, in order. */
static inline __m512i exponents(__m512i low, __m512i high, __m128i shift) {
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    low = _mm512_srl_epi16(_mm512_slli_epi16(low, 1), shift);
    high = _mm512_srl_epi16(_mm512_slli_epi16(high, 1), shift);
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high));
}

/* Lines of what is ahead that are asked for while classes are separated, after one for each block. */
enum { ASKED = WEFT_TILE_AHEAD / 64 - WEFT_TILE_BLOCKS };

/* Asks for line `line` of what is ahead, where there is such. */
static inline void ask(const uintptr_t ahead[2], size_t line) {
    __builtin_prefetch((const void *)(ahead[0] + 64 * line));
    __builtin_prefetch((const void *)(ahead[1] + 64 * line));
}

/* First, for every cut, which weights lie below it; the masks of neighbouring cuts then give the classes.
 * Kept as two loops so that no wide load waits for the narrow stores just before it. */
static inline __attribute__((always_inline)) void below_cuts(const uint8_t *weights, size_t count,
                                                             unsigned shift, const uint8_t *cuts,
                                                             unsigned classes, const uintptr_t ahead[2],
                                                             weft_tile *tile) {
    const __m128i places = _mm_cvtsi32_si128((int)shift + 1);
    __m512i limits[WEFT_CLASS_MAX];
    for (unsigned c = 0; c + 1 < classes; c++) {
        limits[c] = _mm512_set1_epi8((char)cuts[c + 1]);
    }
    size_t b = 0;
    for (; 64 * (b + 1) <= count; b++) {
        ask(ahead, b);
        __m512i e = exponents(_mm512_loadu_si512(weights + 128 * b),
                              _mm512_loadu_si512(weights + 128 * b + 64), places);
        for (unsigned c = 0; c + 1 < classes; c++) {
            tile->masks[c][b] = _mm512_cmplt_epu8_mask(e, limits[c]);
        }
        tile->masks[classes - 1][b] = ~(uint64_t)0;
    }
    if (64 * b < count) {
        uint64_t valid = weft_lanes_left(count - 64 * b);
        __m512i e =
            exponents(_mm512_maskz_loadu_epi16(weft_lanes_low(valid), weights + 128 * b),
                      _mm512_maskz_loadu_epi16(weft_lanes_high(valid), weights + 128 * b + 64), places);
        for (unsigned c = 0; c + 1 < classes; c++) {
            tile->masks[c][b] = _mm512_mask_cmplt_epu8_mask(valid, e, limits[c]);
        }
        tile->masks[classes - 1][b] = valid;
    }
}

/* One loop per number of classes keeps the limits in registers. */
static void below_cuts_any(const uint8_t *weights, size_t count, unsigned shift, const uint8_t *cuts,
                           unsigned classes, const uintptr_t ahead[2], weft_tile *tile) {
    switch (classes) {
    case 5:
        below_cuts(weights, count, shift, cuts, 5, ahead, tile);
        break;
    case 6:
        below_cuts(weights, count, shift, cuts, 6, ahead, tile);
        break;
    case 7:
        below_cuts(weights, count, shift, cuts, 7, ahead, tile);
        break;
    case 8:
        below_cuts(weights, count, shift, cuts, 8, ahead, tile);
        break;
    default:
        below_cuts(weights, count, shift, cuts, classes, ahead, tile);
        break;
    }
}

/* Eight blocks of one class: takes the class below out, and counts members before each block. Returns the
 * members so far in every lane. */
static inline __m128i separate_eight(uint64_t *masks, const uint64_t *below, uint16_t *before,
                                     __m128i members) {
    __m512i own = _mm512_loadu_si512(masks);
    if (below != NULL) {
        own = _mm512_andnot_si512(_mm512_loadu_si512(below), own);
        _mm512_storeu_si512(masks, own);
    }
    __m128i counts = _mm512_cvtepi64_epi16(_mm512_popcnt_epi64(own));
    __m128i sums = _mm_add_epi16(counts, _mm_slli_si128(counts, 2));
    sums = _mm_add_epi16(sums, _mm_slli_si128(sums, 4));
    sums = _mm_add_epi16(sums, _mm_slli_si128(sums, 8));
    sums = _mm_add_epi16(sums, members);
    _mm_storeu_si128((__m128i *)(void *)before, _mm_sub_epi16(sums, counts));
    return _mm_shuffle_epi8(sums, _mm_set1_epi16(0x0f0e));
}

/* Blocks past the last are empty, so that whole groups of eight can be done. */
static void separate_classes(size_t blocks, unsigned classes, const uintptr_t ahead[2], weft_tile *tile) {
    for (unsigned c = classes; c-- > 0;) {
        for (size_t b = blocks; b < WEFT_TILE_BLOCKS; b++) {
            tile->masks[c][b] = 0;
        }
    }
    for (unsigned c = classes; c-- > 0;) {
        __m128i members = _mm_setzero_si128();
        for (size_t i = ASKED * (classes - 1 - c) / classes; i < ASKED * (classes - c) / classes; i++) {
            ask(ahead, WEFT_TILE_BLOCKS + i);
        }
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b += 8) {
            const uint64_t *below = c > 0 ? tile->masks[c - 1] + b : NULL;
            members = separate_eight(tile->masks[c] + b, below, tile->before[c] + b, members);
        }
        tile->counts[c] = (uint32_t)_mm_extract_epi16(members, 0);
    }
}

static void classify_avx512(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                            unsigned classes, weft_tile *tile) {
    /* nothing ahead: what is here already */
    const uintptr_t ahead[2] = {tile->ahead[0] != 0 ? tile->ahead[0] : (uintptr_t)weights,
                                tile->ahead[1] != 0 ? tile->ahead[1] : (uintptr_t)weights};
    below_cuts_any(weights, count, shift, cuts, classes, ahead, tile);
    separate_classes((count + 63) / 64, classes, ahead, tile);
}

/* The block of a rank is the last one that starts at or before it: two compares against all 64 starts,
 * with no branch to mispredict. Blocks past the last member start at the member count and never match. */
static size_t select_avx512(const weft_tile *tile, unsigned class_index, const uint32_t *ranks,
                            size_t count, uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    const uint64_t *masks = tile->masks[class_index];
    uint32_t members = tile->counts[class_index];
    __m512i before_low = _mm512_loadu_si512(before);
    __m512i before_high = _mm512_loadu_si512(before + 32);
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        __m512i wanted = _mm512_set1_epi16((short)rank);
        uint64_t starts = (uint64_t)_mm512_cmple_epu16_mask(before_low, wanted) |
                          (uint64_t)_mm512_cmple_epu16_mask(before_high, wanted) << 32;
        unsigned block = 63u - (unsigned)__builtin_clzll(starts);
        uint64_t bit = _pdep_u64((uint64_t)1 << (rank - before[block]), masks[block]);
        indices[i] = (uint16_t)(64 * block + (unsigned)_tzcnt_u64(bit));
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_avx512 = {
    .classify = classify_avx512,
    .select = select_avx512,
};
