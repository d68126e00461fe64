/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.h: numbers of which nearly all are wanted: the steps, or the values, of all weights of a dense
 * bucket.
 *
 * A number is cut in two. Its lowest bits are as good as random and travel as they are, in planes. What is
 * above them becomes a code of 1, 2, 4 or 8 bits, and as many codes as fit make a byte, which is a symbol
 * for the entropy coder: one symbol stands for up to eight numbers. The largest code says that the upper
 * part is beyond the codes, and stands elsewhere as a token (token.h): an escape. The form says where the
 * cut is and how wide a code is; both sides know it before they begin.
 *
 * Steps are folded first, so that small ones of either sign are small numbers; values are rotated, so that
 * sign and mantissa are their lowest bits and the exponent is above them.
 *
 * Kernels work on groups of 64 numbers. Pointers to weights have no alignment.
 */
#ifndef WEFT_CODE_PACK_H
#define WEFT_CODE_PACK_H

#include "../../base/cpu.h"
#include "../tile.h"

#include <stdbool.h>

enum {
    WEFT_PACK_GROUP = 64,
    WEFT_PACK_SAMPLE = 16384, /* numbers that a form is fitted to, at most */
};

typedef struct weft_pack_form {
    unsigned low;     /* lowest bits, which travel in planes; below the bits of a number */
    unsigned code;    /* bits of a code: 1, 2, 4 or 8 */
    uint64_t first;   /* the upper part whose code is 0 */
    uint64_t varying; /* those of the lowest bits that are not the same in all numbers: they have planes */
    uint64_t fixed;   /* what the others are */
} weft_pack_form;

/* The code of what is elsewhere. */
static inline uint64_t weft_pack_escape(const weft_pack_form *form) {
    return ((uint64_t)1 << form->code) - 1;
}

/* The bits that upper parts of numbers of `bits` bits have. */
static inline uint64_t weft_pack_upper(const weft_pack_form *form, unsigned bits) {
    return ~(uint64_t)0 >> (64 - bits + form->low);
}

/* How many bytes symbols and planes of `count` numbers take. */
static inline size_t weft_pack_symbols(const weft_pack_form *form, size_t count) {
    return count / 8 * form->code + (count % 8 * form->code + 7) / 8;
}

static inline size_t weft_pack_planes(const weft_pack_form *form, size_t count) {
    size_t whole = count / WEFT_PACK_GROUP * (WEFT_PACK_GROUP / 8);
    return (size_t)__builtin_popcountll(form->varying) * (whole + (count % WEFT_PACK_GROUP + 7) / 8);
}

typedef struct weft_pack_kernels {
    /* Folds the steps from `old` to `new`; returns how many units differ. */
    size_t (*fold_steps)(const void *old, const void *new, size_t count, unsigned width, void *numbers);
    /* Sets `new`, which may be `numbers`. */
    void (*unfold_steps)(const void *numbers, const void *old, size_t count, unsigned width, void *new);
    void (*fold_values)(const void *new, size_t count, unsigned width, void *numbers);
    void (*unfold_values)(const void *numbers, size_t count, unsigned width, void *new);
    /* The bits that are not the same in all numbers. */
    uint64_t (*varying)(const void *numbers, size_t count, unsigned width);
    /* Whole groups become symbols and planes; a bit of `escapes` is set for each number that has one. */
    void (*split)(const weft_pack_form *form, unsigned width, const void *numbers, size_t groups,
                  uint8_t *symbols, uint8_t *planes, uint64_t *escapes);
    /* And back. The upper parts of numbers that have an escape are left to the caller. */
    void (*join)(const weft_pack_form *form, unsigned width, const uint8_t *symbols, const uint8_t *planes,
                 size_t groups, void *numbers, uint64_t *escapes);
    /* Appends the numbers of a tile, of 1, 2 or 4 bytes, to those of their classes, whose ends move on.
     * WEFT_KERNEL_SLACK numbers behind an end may be written. */
    void (*sort)(const weft_tile *tile, unsigned classes, unsigned width, const void *numbers,
                 uint8_t **ends);
    /* And back; as many numbers behind a class may be read. */
    void (*merge)(const weft_tile *tile, unsigned classes, unsigned width, const uint8_t **nexts,
                  void *numbers);
} weft_pack_kernels;

const weft_pack_kernels *weft_pack_kernels_for(weft_cpu level);

extern const weft_pack_kernels weft_pack_kernels_portable;
#ifdef WEFT_X86
extern const weft_pack_kernels weft_pack_kernels_avx2;
extern const weft_pack_kernels weft_pack_kernels_avx512;
#endif
#ifdef WEFT_ARM
extern const weft_pack_kernels weft_pack_kernels_neon;
#endif

/* Any number of numbers: the last group may be short. `escapes` has a word for each group. Nothing is
 * written beyond what weft_pack_symbols and weft_pack_planes say, and nothing is read there. */
void weft_pack_split(const weft_pack_kernels *kernels, const weft_pack_form *form, unsigned width,
                     const void *numbers, size_t count, uint8_t *symbols, uint8_t *planes,
                     uint64_t *escapes);
void weft_pack_join(const weft_pack_kernels *kernels, const weft_pack_form *form, unsigned width,
                    const uint8_t *symbols, const uint8_t *planes, size_t count, void *numbers,
                    uint64_t *escapes);

/* What a form is to be like. */
typedef struct weft_pack_wish {
    unsigned bits; /* of a number */
    bool values;   /* the cut is at `low`, and codes begin at any upper part; otherwise at 0 */
    unsigned low;
    unsigned price; /* of a symbol, beyond its own bits, in bits * 2^16: what its time is worth */
} weft_pack_wish;

/* The form that a sample of `count` numbers, at most WEFT_PACK_SAMPLE, costs least in; `varying` and
 * `fixed` are left open. Returns the cost, in bits * 2^16. */
uint64_t weft_pack_form_fit(weft_pack_form *form, const uint64_t *sample, size_t count,
                            const weft_pack_wish *wish);

#endif
