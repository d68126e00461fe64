/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_avx2.c: the kernels of tile.h for AVX2 with BMI2, whose PDEP finds the bit of a rank.
 */
#include "tile.h"

#include "lanes.h"

/* The exponents of 32 weights, one byte each, in order. The highest bit is the other way round, since only
 * signed bytes can be compared. */
static inline __m256i exponents(const uint8_t *weights, __m128i shift) {
    __m256i low = _mm256_srl_epi16(_mm256_slli_epi16(weft_lanes_load(weights), 1), shift);
    __m256i high = _mm256_srl_epi16(_mm256_slli_epi16(weft_lanes_load(weights + 32), 1), shift);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
    return _mm256_xor_si256(packed, _mm256_set1_epi8((char)0x80));
}

static inline void below_cuts(const uint8_t *weights, __m128i shift, const __m256i *limits,
                              unsigned classes, uint64_t valid, size_t block, weft_tile *tile) {
    __m256i low = exponents(weights, shift);
    __m256i high = exponents(weights + 64, shift);
    for (unsigned c = 0; c + 1 < classes; c++) {
        uint32_t below = (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(limits[c], low));
        uint32_t above = (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(limits[c], high));
        tile->masks[c][block] = ((uint64_t)below | (uint64_t)above << 32) & valid;
    }
    tile->masks[classes - 1][block] = valid;
}

/* Blocks past the last are empty. */
static void separate_classes(size_t blocks, unsigned classes, weft_tile *tile) {
    for (unsigned c = classes; c-- > 0;) {
        uint64_t *masks = tile->masks[c];
        uint16_t *before = tile->before[c];
        uint32_t members = 0;
        for (size_t b = blocks; b < WEFT_TILE_BLOCKS; b++) {
            masks[b] = 0;
        }
        for (size_t b = 0; c > 0 && b < blocks; b++) {
            masks[b] &= ~tile->masks[c - 1][b];
        }
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            before[b] = (uint16_t)members;
            members += (uint32_t)__builtin_popcountll(masks[b]);
        }
        tile->counts[c] = members;
    }
}

/* Asks for line `line` of what is ahead, where there is such. */
static inline void ask(const uintptr_t ahead[2], size_t line) {
    weft_cpu_fetch(ahead[0] + 64 * line);
    weft_cpu_fetch(ahead[1] + 64 * line);
}

static void classify_avx2(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                          unsigned classes, weft_tile *tile) {
    const uint8_t *w = weights;
    const __m128i places = _mm_cvtsi32_si128((int)shift + 1);
    /* nothing ahead: what is here already */
    const uintptr_t ahead[2] = {tile->ahead[0] != 0 ? tile->ahead[0] : (uintptr_t)weights,
                                tile->ahead[1] != 0 ? tile->ahead[1] : (uintptr_t)weights};
    __m256i limits[WEFT_CLASS_MAX];
    for (unsigned c = 0; c + 1 < classes; c++) {
        limits[c] = _mm256_set1_epi8((char)(cuts[c + 1] ^ 0x80));
    }
    size_t whole = count / 64;
    for (size_t b = 0; b < whole; b++) {
        for (size_t line = 3 * b / 2; line < 3 * (b + 1) / 2; line++) {
            ask(ahead, line);
        }
        below_cuts(w + 128 * b, places, limits, classes, ~(uint64_t)0, b, tile);
    }
    size_t left = count - 64 * whole;
    if (left > 0) {
        uint8_t last[128] = {0};
        memcpy(last, w + 128 * whole, 2 * left);
        below_cuts(last, places, limits, classes, weft_lanes_left(left), whole, tile);
    }
    separate_classes((count + 63) / 64, classes, tile);
}

/* How many of 32 starts are above `rank`. */
static inline unsigned starts_above(__m256i low, __m256i high, __m256i rank) {
    __m256i above = _mm256_packs_epi16(_mm256_cmpgt_epi16(low, rank), _mm256_cmpgt_epi16(high, rank));
    return (unsigned)__builtin_popcount((unsigned)_mm256_movemask_epi8(above));
}

/* The block of a rank is the last one that starts at or before it: compares against all 64 starts, with no
 * branch to mispredict. Starts ascend, so that it is enough to count. */
static size_t select_avx2(const weft_tile *tile, unsigned class_index, const uint32_t *ranks, size_t count,
                          uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    const uint64_t *masks = tile->masks[class_index];
    uint32_t members = tile->counts[class_index];
    __m256i starts[4];
    for (unsigned i = 0; i < 4; i++) {
        starts[i] = weft_lanes_load((const uint8_t *)(before + 16 * i));
    }
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        __m256i wanted = _mm256_set1_epi16((short)rank);
        unsigned block = WEFT_TILE_BLOCKS - 1 - starts_above(starts[0], starts[1], wanted) -
                         starts_above(starts[2], starts[3], wanted);
        uint64_t bit = _pdep_u64((uint64_t)1 << (rank - before[block]), masks[block]);
        indices[i] = (uint16_t)(64 * block + (unsigned)_tzcnt_u64(bit));
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_avx2 = {
    .classify = classify_avx2,
    .select = select_avx2,
};
