/* SPDX-License-Identifier: Apache-2.0
 *
 * fired.h: what has fired is sorted into classes, and then becomes tokens and plain bits, many at a time.
 *
 * No multiple of a ULP is ever formed. Dividing a float by a power of two leaves its bits alone, so the
 * highest bits of the multiple, which are its token, and the bits below them lie in the float as it is: the
 * exponents of value and weight say which bits. All is done on integers of 32 bits without branches, in a
 * form that compilers turn into vectors; it is compiled once for each processor level.
 */
#ifndef WEFT_CODE_FIRED_H
#define WEFT_CODE_FIRED_H

#include "tile.h"

/* Where the exponent begins in the high half of a weight, which lies there as a BF16 number does. */
enum { WEFT_WORD_SHIFT = 7 };

static inline unsigned weft_word_exponent(uint16_t word) {
    return (word >> WEFT_WORD_SHIFT) & 0xffu;
}

/* What has fired: arrays with WEFT_KERNEL_SLACK entries of room past the last one. */
typedef struct weft_fired {
    size_t count;
    uint32_t *positions;
    uint32_t *values; /* bits of what is sent */
    uint16_t *words;  /* the high half of the consensus: sign, exponent and seven bits */
} weft_fired;

/* From these bits of a magnitude on, a value is not finite. */
enum { WEFT_NOT_FINITE = 0x7f800000 };

/* Something that has fired: the gap, the exponent of the weight above it, and on top the value. */
static inline uint64_t weft_fired_pack(uint32_t gap, uint32_t exponent, uint32_t value) {
    return (uint64_t)value << 32 | exponent << 24 | gap;
}

/* Where a block is, class by class. */
typedef struct weft_sorting {
    unsigned classes;
    const uint8_t *class_of_exponent;
    uint32_t offsets[WEFT_CLASS_MAX]; /* rank in the tile + offset = gap */
    uint64_t *ends[WEFT_CLASS_MAX];   /* where the next item goes */
} weft_sorting;

typedef struct weft_fired_kernels {
    /* Appends what has fired in a classified tile, which starts at `linear`, to its classes, packed. */
    void (*sort)(const weft_tile *tile, const weft_fired *fired, uint32_t linear, weft_sorting *sorting);
    /* Replaces each of `count` packed items by its plain bits, those of the gap first, with their number in
     * the highest byte, and sets its tokens. `most` is how many bits below the highest three of a value are
     * significant. */
    void (*tokenise)(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                     uint8_t *value_tokens);
} weft_fired_kernels;

const weft_fired_kernels *weft_fired_kernels_for(weft_cpu level);

#ifdef WEFT_X86
extern const weft_fired_kernels weft_fired_kernels_avx2;
extern const weft_fired_kernels weft_fired_kernels_avx512;
#endif

#endif
