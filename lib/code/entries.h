/* SPDX-License-Identifier: Apache-2.0
 *
 * entries.h: entries, which are weights of which something is said: changes of a patch with their steps, or
 * what has fired of a payload with its values. They are sorted into classes, and then become tokens and
 * plain bits, many at a time.
 *
 * No multiple of a ULP is ever formed of a value. Dividing a float by a power of two leaves its bits alone,
 * so the highest bits of the multiple, which are its token, and the bits below them lie in the float as it
 * is: the exponents of value and weight say which bits. All is done on integers of 32 bits without
 * branches, in a form that compilers turn into vectors; it is compiled once for each processor level.
 */
#ifndef WEFT_CODE_ENTRIES_H
#define WEFT_CODE_ENTRIES_H

#include "bits.h"
#include "tile.h"

/* Where the exponent begins in a BF16 number, and in the high half of an FP32 number. */
enum { WEFT_WORD_SHIFT = 7 };

static inline unsigned weft_word_exponent(uint16_t word) {
    return (word >> WEFT_WORD_SHIFT) & 0xffu;
}

/* Arrays that a kernel fills have WEFT_KERNEL_SLACK entries of room past the last one. */
typedef struct weft_entries {
    size_t count;
    uint32_t *positions;
    uint32_t *values; /* what is said: bits of what is sent, or the code of a step */
    uint16_t *words;  /* the weights, or their high halves: sign, exponent and what fits */
} weft_entries;

/* From these bits of a magnitude on, a value is not finite. */
enum { WEFT_NOT_FINITE = 0x7f800000 };

/* Which bits of an item the gap leaves to the exponent. Steps say all without it, and their gaps may be as
 * long as 32 bits. */
enum weft_item_exponents { WEFT_ITEM_VALUES = 0xff, WEFT_ITEM_STEPS = 0 };

/* An entry in its class: the gap, the exponent of the weight above its 24 bits, and on top the value. */
static inline uint64_t weft_item_pack(uint32_t gap, uint32_t exponent, uint32_t value) {
    return (uint64_t)value << 32 | exponent << 24 | gap;
}

/* How far the classes have come. */
typedef struct weft_sorting {
    unsigned classes;
    const uint8_t *class_of_exponent;
    unsigned shift;     /* of the exponent, as in `classify` */
    uint32_t exponents; /* the bits of exponents that items have: WEFT_ITEM_VALUES or _STEPS */
    uint32_t offsets[WEFT_CLASS_MAX]; /* rank in the tile + offset = gap */
    uint64_t *ends[WEFT_CLASS_MAX];   /* where the next item goes */
} weft_sorting;

typedef struct weft_entry_kernels {
    /* Appends entries of a classified tile, which starts at `linear`, to their classes, packed. */
    void (*sort)(const weft_tile *tile, const weft_entries *entries, uint32_t linear,
                 weft_sorting *sorting);
    /* Sets the tokens of `count` items of steps. */
    void (*tokenise_steps)(const uint64_t *items, size_t count, uint8_t *gap_tokens, uint8_t *step_tokens);
    /* Puts the bits below the highest three of `count` numbers that have these tokens, and that begin at
     * bit `shift` of items. */
    void (*put_rests)(weft_bits_writer *writer, const uint64_t *items, unsigned shift,
                      const uint8_t *tokens, size_t count);
    /* Replaces each of `count` items of values by its plain bits, those of the gap first, with their number
     * in the highest byte, and sets its tokens. `most` is how many bits below the highest three of a value
     * are significant. */
    void (*tokenise_values)(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                            uint8_t *value_tokens);
    /* Sets `words` (classes.h) of `count` units of `width` bytes, 1 or 4. */
    void (*words)(const void *units, size_t count, unsigned width, uint16_t *words);
    /* The way back. Sets `values` to what the codes of block.h say of weights with these high halves. All
     * arrays have WEFT_KERNEL_SLACK entries of room past the last one, of which `codes` has zeros there.
     * Returns the largest magnitude as bits. */
    uint32_t (*values)(const uint64_t *codes, const uint16_t *words, size_t count, float *values);
} weft_entry_kernels;

const weft_entry_kernels *weft_entry_kernels_for(weft_cpu level);

#ifdef WEFT_X86
extern const weft_entry_kernels weft_entry_kernels_avx2;
extern const weft_entry_kernels weft_entry_kernels_avx512;
#endif

#endif
