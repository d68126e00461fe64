/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c: the kernels in plain C, which the vector forms are tested against, and the choice.
 */
#include "kernels.h"

#include "../../code/lanes.h"

static inline __attribute__((always_inline)) size_t diff_units(const uint8_t *base, const uint8_t *next,
                                                               size_t count, unsigned width, uint32_t first,
                                                               uint32_t *positions) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t old = 0, new = 0;
        memcpy(&old, base + i * width, width);
        memcpy(&new, next + i * width, width);
        positions[found] = first + (uint32_t)i;
        found += old != new;
    }
    return found;
}

static size_t diff_portable(const void *base, const void *next, size_t count, unsigned width,
                            uint32_t first, uint32_t *positions) {
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

static size_t diff_masters_portable(const void *base, const void *masters, size_t count, uint32_t first,
                                    uint32_t *positions) {
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, (const uint8_t *)masters + 4 * i, sizeof bits);
        positions[found] = first + (uint32_t)i;
        found += weft_weight_at(base, i) != weft_bf16_round(bits);
    }
    return found;
}

static void encode_fast_portable(weft_bits_writer *bits, const weft_changes *changes, unsigned k) {
    weft_fast_put_loop(bits, changes, 0, changes->count, k, 2);
}

static bool decode_fast_portable(weft_fast_decoder *decoder, uint32_t *positions, void *steps,
                                 size_t count) {
    return weft_fast_loop(decoder, positions, steps, count, 2);
}

const weft_patch_kernels weft_patch_kernels_portable = {
    .tiles = &weft_tile_kernels_portable,
    .packed = {&weft_tile_kernels_portable, &weft_pack_kernels_portable, &weft_rans_wide_kernels_portable,
               &weft_rice_kernels_portable},
    .diff = diff_portable,
    .diff_masters = diff_masters_portable,
    .encode_fast = encode_fast_portable,
    .decode_fast = decode_fast_portable,
};

const weft_patch_kernels *weft_patch_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_patch_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_patch_kernels_avx2;
    }
#endif
#ifdef WEFT_ARM
    if (level == WEFT_CPU_NEON) {
        return &weft_patch_kernels_neon;
    }
#endif
    (void)level;
    return &weft_patch_kernels_portable;
}
