/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_neon.c: the kernels of tile.h for ARM. There is no instruction that makes bits of lanes: weights are
 * loaded such that four registers hold every fourth of 64, and what compares make of them is pushed
 * together by shifts.
 */
#include "../tile.h"

#include "../lanes.h"

/* The exponents of 64 weights, of BF16: that of weight 4 i + j is byte i of register j. */
typedef struct exponents {
    uint8x16_t of[4];
} exponents;

static inline exponents load_exponents(const uint8_t *weights) {
    uint16x8x4_t low = vld4q_u16((const uint16_t *)(const void *)weights);
    uint16x8x4_t high = vld4q_u16((const uint16_t *)(const void *)(weights + 64));
    exponents result;
    for (unsigned j = 0; j < 4; j++) {
        result.of[j] = vshrn_high_n_u16(vshrn_n_u16(low.val[j], 7), high.val[j], 7);
    }
    return result;
}

/* Which of the weights have an exponent below the limit. */
static inline uint64_t below(exponents e, uint8x16_t limit) {
    uint8x16_t low = vsriq_n_u8(vcltq_u8(e.of[1], limit), vcltq_u8(e.of[0], limit), 1);
    uint8x16_t high = vsriq_n_u8(vcltq_u8(e.of[3], limit), vcltq_u8(e.of[2], limit), 1);
    uint8x16_t four = vsriq_n_u8(high, low, 2);
    four = vsriq_n_u8(four, four, 4);
    return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(four), 4)), 0);
}

/* First, for every cut, which weights lie below it; the masks of neighbouring cuts then give the classes.
 */
static inline __attribute__((always_inline)) void below_cuts(const uint8_t *weights,
                                                             const uint8x16_t *limits, unsigned classes,
                                                             uint64_t valid, size_t block,
                                                             weft_tile *tile) {
    exponents e = load_exponents(weights);
    uint64_t before = 0;
    for (unsigned c = 0; c + 1 < classes; c++) {
        uint64_t mask = below(e, limits[c]) & valid;
        tile->masks[c][block] = mask & ~before;
        before = mask;
    }
    tile->masks[classes - 1][block] = valid & ~before;
}

/* `classes` is a constant in the calls for most, which keeps the limits in registers. */
static inline __attribute__((always_inline)) void below_cuts_all(const uint8_t *weights, size_t count,
                                                                 unsigned shift, const uint8_t *cuts,
                                                                 unsigned classes, weft_tile *tile) {
    uint8x16_t limits[WEFT_CLASS_MAX];
    for (unsigned c = 0; c + 1 < classes; c++) {
        limits[c] = vdupq_n_u8((uint8_t)(cuts[c + 1] << (shift - 7)));
    }
    size_t b = 0;
    for (; 64 * (b + 1) <= count; b++) {
        below_cuts(weights + 128 * b, limits, classes, ~(uint64_t)0, b, tile);
    }
    if (64 * b < count) {
        uint8_t last[128] = {0};
        memcpy(last, weights + 128 * b, 2 * (count - 64 * b));
        below_cuts(last, limits, classes, weft_lanes_left(count - 64 * b), b, tile);
    }
}

/* Members before each block. Blocks past the last are empty. */
static void count_members(size_t blocks, unsigned classes, weft_tile *tile) {
    for (unsigned c = 0; c < classes; c++) {
        uint64_t *masks = tile->masks[c];
        for (size_t b = blocks; b < WEFT_TILE_BLOCKS; b++) {
            masks[b] = 0;
        }
        uint16x8_t members = vdupq_n_u16(0);
        for (size_t b = 0; b < WEFT_TILE_BLOCKS; b += 8) {
            uint8x16_t counts[4];
            for (unsigned i = 0; i < 4; i++) {
                counts[i] = vcntq_u8(vreinterpretq_u8_u64(vld1q_u64(masks + b + 2 * i)));
            }
            /* of eight blocks, a byte each */
            uint8x16_t all = vpaddq_u8(vpaddq_u8(counts[0], counts[1]), vpaddq_u8(counts[2], counts[3]));
            uint16x8_t own = vpaddlq_u8(all);
            uint16x8_t none = vdupq_n_u16(0);
            uint16x8_t sums = vaddq_u16(own, vextq_u16(none, own, 7));
            sums = vaddq_u16(sums, vextq_u16(none, sums, 6));
            sums = vaddq_u16(vaddq_u16(sums, vextq_u16(none, sums, 4)), members);
            vst1q_u16(tile->before[c] + b, vsubq_u16(sums, own));
            members = vdupq_laneq_u16(sums, 7);
        }
        tile->counts[c] = vgetq_lane_u16(members, 0);
    }
}

static void classify_neon(const void *weights, size_t count, unsigned shift, const uint8_t *cuts,
                          unsigned classes, weft_tile *tile) {
    switch (classes) {
    case 6:
        below_cuts_all(weights, count, shift, cuts, 6, tile);
        break;
    case 7:
        below_cuts_all(weights, count, shift, cuts, 7, tile);
        break;
    case 8:
        below_cuts_all(weights, count, shift, cuts, 8, tile);
        break;
    default:
        below_cuts_all(weights, count, shift, cuts, classes, tile);
        break;
    }
    count_members((count + 63) / 64, classes, tile);
}

/* ---- finding ---- */

static const uint64_t each = 0x0101010101010101u;

/* Of counts of eight bytes, each of that byte and those below it: eight times the number of the first above
 * `rank`. */
static inline unsigned first_above(uint64_t counts, uint32_t rank) {
    uint64_t above = ((counts | 0x80 * each) - (rank + 1) * each) & 0x80 * each;
    return (unsigned)__builtin_ctzll(above) & ~7u;
}

/* The index of the set bit that has `rank` set bits below it: first the byte, then the bit, both by the
 * counts up to each. */
static inline unsigned nth_bit(uint64_t mask, uint32_t rank) {
    uint64_t counts = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(mask))), 0) * each;
    unsigned shift = first_above(counts, rank);
    uint32_t left = rank - (uint32_t)((counts << 8) >> shift & 0xff);
    uint64_t spread = ((mask >> shift & 0xff) * each) & 0x8040201008040201u;
    uint64_t ones = (spread + 0x7f * each) >> 7 & each;
    return shift + first_above(ones * each, left) / 8;
}

/* The block of a rank is the last one that starts at or before it: all 64 starts are compared. Blocks past
 * the last member start at the member count and never match. */
static size_t select_neon(const weft_tile *tile, unsigned class_index, const uint32_t *ranks, size_t count,
                          uint32_t first, uint16_t *indices) {
    const uint16_t *before = tile->before[class_index];
    const uint64_t *masks = tile->masks[class_index];
    uint32_t members = tile->counts[class_index];
    uint16x8_t starts[WEFT_TILE_BLOCKS / 8];
    for (unsigned i = 0; i < WEFT_TILE_BLOCKS / 8; i++) {
        starts[i] = vld1q_u16(before + 8 * i);
    }
    size_t i = 0;
    for (; i < count && ranks[i] - first < members; i++) {
        uint32_t rank = ranks[i] - first;
        uint16x8_t wanted = vdupq_n_u16((uint16_t)rank);
        uint16x8_t started = vdupq_n_u16(0);
        for (unsigned j = 0; j < WEFT_TILE_BLOCKS / 8; j++) {
            started = vsubq_u16(started, vcleq_u16(starts[j], wanted));
        }
        unsigned block = vaddvq_u16(started) - 1u;
        indices[i] = (uint16_t)(64 * block + nth_bit(masks[block], rank - before[block]));
    }
    return i;
}

const weft_tile_kernels weft_tile_kernels_neon = {
    .classify = classify_neon,
    .select = select_neon,
};
