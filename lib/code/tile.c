/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.c: the kernels of tile.h in plain C, which the vector forms are tested against, and the choice.
 */
#include "tile.h"

#include "lanes.h"

static void classify_portable(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                              unsigned classes, weft_tile *tile) {
    uint8_t class_of[256];
    unsigned c = 0;
    for (unsigned exponent = 0; exponent < 256; exponent++) {
        while (c + 1 < classes && exponent >= cuts[c + 1]) {
            c++;
        }
        class_of[exponent] = (uint8_t)c;
    }
    memset(tile, 0, sizeof *tile);
    for (size_t i = 0; i < count; i++) {
        unsigned exponent = (unsigned)(weft_weight_at(weights, i) & 0x7fff) >> shift;
        tile->masks[class_of[exponent]][i / 64] |= (uint64_t)1 << (i % 64);
    }
    for (c = 0; c < classes; c++) {
        uint32_t members = 0;
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            tile->before[c][b] = (uint16_t)members;
            members += (uint32_t)__builtin_popcountll(tile->masks[c][b]);
        }
        tile->counts[c] = members;
    }
}

/* The index of the set bit that has `rank` set bits below it. */
static unsigned nth_bit(uint64_t mask, uint32_t rank) {
    while (rank-- > 0) {
        mask &= mask - 1;
    }
    return (unsigned)__builtin_ctzll(mask);
}

static size_t select_portable(const weft_tile *tile, unsigned class_index, const uint32_t *ranks,
                              size_t count, uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    uint32_t members = tile->counts[class_index];
    unsigned block = 0;
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        while (block + 1 < WEFT_TILE_BLOCKS && before[block + 1] <= rank) {
            block++;
        }
        unsigned bit = nth_bit(tile->masks[class_index][block], rank - before[block]);
        indices[i] = (uint16_t)(64 * block + bit);
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_portable = {
    .classify = classify_portable,
    .select = select_portable,
};

void weft_tile_leave_out(weft_tile *tile, unsigned classes, const uint16_t *indices, size_t count) {
    uint16_t left[WEFT_CLASS_MAX][WEFT_TILE_BLOCKS] = {{0}};
    for (size_t i = 0; i < count; i++) {
        unsigned block = indices[i] / 64, c = 0;
        uint64_t bit = (uint64_t)1 << (indices[i] % 64);
        while (c + 1 < classes && (tile->masks[c][block] & bit) == 0) {
            c++;
        }
        tile->masks[c][block] &= ~bit;
        left[c][block]++;
    }
    for (unsigned c = 0; c < classes; c++) {
        uint16_t gone = 0;
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            tile->before[c][b] = (uint16_t)(tile->before[c][b] - gone);
            gone = (uint16_t)(gone + left[c][b]);
        }
        tile->counts[c] -= gone;
    }
}

const weft_tile_kernels *weft_tile_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_tile_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_tile_kernels_avx2;
    }
#endif
#ifdef WEFT_ARM
    if (level == WEFT_CPU_NEON) {
        return &weft_tile_kernels_neon;
    }
#endif
    (void)level;
    return &weft_tile_kernels_portable;
}
