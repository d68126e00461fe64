/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h: the loops over weights that decide how fast a patch is made and applied, beside those over the
 * classes of a tile (tile.h), and over numbers that are packed (pack/pack.h).
 *
 * Pointers to weights have no alignment: a
 * safetensors file may put them anywhere.
 */
#ifndef WEFT_PATCH_BUCKET_KERNELS_H
#define WEFT_PATCH_BUCKET_KERNELS_H

#include "../../base/cpu.h"
#include "../../code/pack/packed.h"
#include "../../code/tile.h"
#include "../../tensor/digest.h"
#include "fast_loop.h"

typedef struct weft_patch_kernels {
    const weft_tile_kernels *tiles; /* of the same level */
    weft_packed_kernels packed;     /* the same, among others */
    /* Writes `first` plus the index of every unit that differs, ascending; returns how many. */
    size_t (*diff)(const void *base, const void *next, size_t count, unsigned width, uint32_t first,
                   uint32_t *positions);
    /* The same of two-byte weights, from word `word` of their tensor on, and what the changes do to the
     * digest. NULL: it is best done by `diff` and by weft_digest_kernels.difference. */
    size_t (*diff_proven)(const void *base, const void *next, size_t count, uint32_t first,
                          uint32_t *positions, uint64_t word, weft_sum *moved);
    /* The same of two-byte weights against FP32 masters, cast to BF16 on the way. */
    size_t (*diff_masters)(const void *base, const void *masters, size_t count, uint32_t first,
                           uint32_t *positions);
    /* The loops of fast_loop.h for two-byte steps. */
    void (*encode_fast)(weft_bits_writer *bits, const weft_changes *changes, unsigned k);
    bool (*decode_fast)(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count);
} weft_patch_kernels;

const weft_patch_kernels *weft_patch_kernels_for(weft_cpu level);

extern const weft_patch_kernels weft_patch_kernels_portable;
#ifdef WEFT_X86
extern const weft_patch_kernels weft_patch_kernels_avx2;
extern const weft_patch_kernels weft_patch_kernels_avx512;
#endif
#ifdef WEFT_ARM
extern const weft_patch_kernels weft_patch_kernels_neon;
#endif

#endif
