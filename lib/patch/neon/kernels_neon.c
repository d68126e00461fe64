/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_neon.c: the kernels of the patch for ARM, 64 units at a time.
 */
#include "../bucket/kernels.h"

#include "../../base/neon/bf16_lanes.h"
#include "../../code/lanes.h"

/* Most blocks hold none, one or two, and which is as good as random: two are always written, and as many
 * counted as there are. Without a bit, the place is that of the last unit. */
static inline size_t append_positions(uint64_t mask, uint32_t first, uint32_t *positions) {
    size_t count = (size_t)__builtin_popcountll(mask);
    for (size_t i = 0; i < 2 || __builtin_expect(i < count, 0); i++) {
        positions[i] = first + (uint32_t)__builtin_ctzll(mask | (uint64_t)1 << 63);
        mask &= mask - 1;
    }
    return count;
}

/* All ones for each of sixteen units that are the same. */
static inline __attribute__((always_inline)) uint8x16_t equal_sixteen(const uint8_t *base,
                                                                      const uint8_t *next, unsigned width) {
    if (width == 1) {
        return vceqq_u8(vld1q_u8(base), vld1q_u8(next));
    }
    if (width == 2) {
        uint16x8_t equal[2];
        for (unsigned i = 0; i < 2; i++) {
            equal[i] = vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(base + 16 * i)),
                                 vreinterpretq_u16_u8(vld1q_u8(next + 16 * i)));
        }
        return weft_lanes_narrow(equal[0], equal[1]);
    }
    uint16x8_t equal[2];
    for (unsigned i = 0; i < 2; i++) {
        uint32x4_t four[2];
        for (unsigned j = 0; j < 2; j++) {
            const uint8_t *b = base + width * (8 * i + 4 * j), *n = next + width * (8 * i + 4 * j);
            if (width == 4) {
                four[j] = vceqq_u32(vreinterpretq_u32_u8(vld1q_u8(b)), vreinterpretq_u32_u8(vld1q_u8(n)));
            } else {
                uint64x2_t low =
                    vceqq_u64(vreinterpretq_u64_u8(vld1q_u8(b)), vreinterpretq_u64_u8(vld1q_u8(n)));
                uint64x2_t high = vceqq_u64(vreinterpretq_u64_u8(vld1q_u8(b + 16)),
                                            vreinterpretq_u64_u8(vld1q_u8(n + 16)));
                four[j] = vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
            }
        }
        equal[i] = vuzp1q_u16(vreinterpretq_u16_u32(four[0]), vreinterpretq_u16_u32(four[1]));
    }
    return weft_lanes_narrow(equal[0], equal[1]);
}

static inline __attribute__((always_inline)) uint64_t equal_block(const uint8_t *base, const uint8_t *next,
                                                                  unsigned width) {
    uint8x16_t equal[4];
    for (unsigned i = 0; i < 4; i++) {
        equal[i] = equal_sixteen(base + 16 * width * i, next + 16 * width * i, width);
    }
    return weft_lanes_bits(equal[0], equal[1], equal[2], equal[3]);
}

static inline __attribute__((always_inline)) size_t diff_units(const uint8_t *base, const uint8_t *next,
                                                               size_t count, unsigned width, uint32_t first,
                                                               uint32_t *positions) {
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        uint64_t equal = equal_block(base + width * i, next + width * i, width);
        if (~equal != 0) {
            found += append_positions(~equal, first + (uint32_t)i, positions + found);
        }
    }
    return found + weft_patch_kernels_portable.diff(base + width * i, next + width * i, count - i, width,
                                                    first + (uint32_t)i, positions + found);
}

static size_t diff_neon(const void *base, const void *next, size_t count, unsigned width, uint32_t first,
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

static inline uint16x8_t equal_masters(const uint8_t *base, const uint8_t *masters) {
    uint16x8_t next = weft_bf16_lanes(vreinterpretq_u32_u8(vld1q_u8(masters)),
                                      vreinterpretq_u32_u8(vld1q_u8(masters + 16)));
    return vceqq_u16(vreinterpretq_u16_u8(vld1q_u8(base)), next);
}

static size_t diff_masters_neon(const void *base, const void *masters, size_t count, uint32_t first,
                                uint32_t *positions) {
    const uint8_t *b = base;
    const uint8_t *m = masters;
    size_t found = 0;
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        uint8x16_t equal[4];
        for (unsigned j = 0; j < 4; j++) {
            equal[j] = weft_lanes_narrow(equal_masters(b + 2 * i + 32 * j, m + 4 * i + 64 * j),
                                         equal_masters(b + 2 * i + 32 * j + 16, m + 4 * i + 64 * j + 32));
        }
        uint64_t differ = ~weft_lanes_bits(equal[0], equal[1], equal[2], equal[3]);
        if (differ != 0) {
            found += append_positions(differ, first + (uint32_t)i, positions + found);
        }
    }
    return found + weft_patch_kernels_portable.diff_masters(b + 2 * i, m + 4 * i, count - i,
                                                            first + (uint32_t)i, positions + found);
}

static void encode_fast_neon(weft_bits_writer *bits, const weft_changes *changes, unsigned k) {
    weft_fast_put_loop(bits, changes, 0, changes->count, k, 2);
}

static bool decode_fast_neon(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count) {
    return weft_fast_loop(decoder, positions, steps, count, 2);
}

const weft_patch_kernels weft_patch_kernels_neon = {
    .tiles = &weft_tile_kernels_neon,
    .packed = {&weft_tile_kernels_neon, &weft_pack_kernels_neon, &weft_rans_wide_kernels_neon,
               &weft_rice_kernels_portable},
    .diff = diff_neon,
    .diff_masters = diff_masters_neon,
    .encode_fast = encode_fast_neon,
    .decode_fast = decode_fast_neon,
};
