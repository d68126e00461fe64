/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_avx2.c: the kernels of tile.h for AVX2 with BMI2, whose PDEP finds the bit of a rank.
 */
#include "tile.h"

#include "lanes.h"

static void below_cuts(const uint8_t *weights, unsigned shift, const uint8_t *cuts, unsigned classes,
                       uint64_t valid, size_t block, weft_tile *tile) {
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    __m256i w[4];
    for (unsigned j = 0; j < 4; j++) {
        w[j] = _mm256_and_si256(weft_lanes_load(weights + 32 * j), magnitude);
    }
    for (unsigned c = 0; c + 1 < classes; c++) {
        __m256i limit = _mm256_set1_epi16((short)(cuts[c + 1] << shift));
        uint32_t low = weft_lanes_mask(_mm256_cmpgt_epi16(limit, w[0]), _mm256_cmpgt_epi16(limit, w[1]));
        uint32_t high = weft_lanes_mask(_mm256_cmpgt_epi16(limit, w[2]), _mm256_cmpgt_epi16(limit, w[3]));
        tile->masks[c][block] = ((uint64_t)low | (uint64_t)high << 32) & valid;
    }
    tile->masks[classes - 1][block] = valid;
}

static void separate_classes(size_t blocks, unsigned classes, weft_tile *tile) {
    for (unsigned c = classes - 1; c > 0; c--) {
        for (size_t b = 0; b < blocks; b++) {
            tile->masks[c][b] &= ~tile->masks[c - 1][b];
        }
    }
    for (unsigned c = 0; c < classes; c++) {
        uint32_t members = 0;
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
            tile->before[c][b] = (uint16_t)members;
            if (b >= blocks) {
                tile->masks[c][b] = 0;
            }
            members += (uint32_t)__builtin_popcountll(tile->masks[c][b]);
        }
        tile->counts[c] = members;
    }
}

static void classify_avx2(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                          unsigned classes, weft_tile *tile) {
    const uint8_t *w = weights;
    size_t whole = count / 64;
    for (size_t b = 0; b < whole; b++) {
        below_cuts(w + 128 * b, shift, cuts, classes, ~(uint64_t)0, b, tile);
    }
    size_t left = count - 64 * whole;
    if (left > 0) {
        uint8_t last[128] = {0};
        memcpy(last, w + 128 * whole, 2 * left);
        below_cuts(last, shift, cuts, classes, weft_lanes_left(left), whole, tile);
    }
    separate_classes((count + 63) / 64, classes, tile);
}

static size_t select_avx2(const weft_tile *tile, unsigned class_index, const uint32_t *ranks, size_t count,
                          uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    uint32_t members = tile->counts[class_index];
    unsigned block = 0;
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        while (block + 1 < WEFT_TILE_BLOCKS && before[block + 1] <= rank) {
            block++;
        }
        uint64_t bit = _pdep_u64((uint64_t)1 << (rank - before[block]), tile->masks[class_index][block]);
        indices[i] = (uint16_t)(64 * block + (unsigned)_tzcnt_u64(bit));
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_avx2 = {
    .classify = classify_avx2,
    .select = select_avx2,
};
