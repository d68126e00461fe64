/* SPDX-License-Identifier: Apache-2.0
 *
 * rice.h: the steps of all units of a bucket where time counts for more than bytes: Rice's code, laid out
 * for vectors. doc/FORMAT.md, section 10, has the bytes.
 *
 * A step is folded (pack.h). Its lowest bits travel as they are. What is above them is counted down: the
 * first rung has a bit for every number that is not zero; those go on, less one, to the next rung, and what
 * is left after the last rung travels whole. A rung is a comparison and a compression of registers, and
 * fewer numbers climb each one, so that a block costs little more than reading it. Where few numbers leave
 * the ground, the bytes of the first rung are mostly zero, and are thinned out by a rung of their own.
 */
#ifndef WEFT_CODE_PACK_RICE_H
#define WEFT_CODE_PACK_RICE_H

#include "../../base/bytes.h"
#include "../../base/context.h"
#include "pack.h"

enum {
    WEFT_RICE_BLOCK = 4096, /* numbers that are coded together */
    WEFT_RICE_RUNGS = 16,   /* at most */
    WEFT_RICE_NUMBER = 8,   /* bytes of a number at most */
    WEFT_RICE_SLACK = 64,   /* bytes that a kernel may read or write past the end of its arrays */
    WEFT_RICE_FRONT = 3,    /* bytes in front of the first block */
    WEFT_RICE_GROUP = 64,   /* a block is filled up to a multiple of this */
};

typedef struct weft_rice_form {
    unsigned low;   /* lowest bits; below the bits of a number */
    unsigned rungs; /* at most WEFT_RICE_RUNGS */
    bool thin;      /* the first rung is thinned out */
} weft_rice_form;

/* Counts of whole groups where a kernel cuts or mends, any where it climbs or descends. */
typedef struct weft_rice_kernels {
    /* Takes the lowest bits off the numbers: bytes of `count` numbers first, then bits. */
    void (*cut)(void *numbers, size_t count, unsigned width, unsigned low, uint8_t *planes);
    /* And puts them back. */
    void (*mend)(void *numbers, size_t count, unsigned width, unsigned low, const uint8_t *planes);
    /* One rung up: a bit for each number that is not zero; those, less one, to `rest`, which may be where
     * the numbers are. Returns how many. */
    size_t (*climb)(const void *numbers, size_t count, unsigned width, uint8_t *bits, void *rest);
    /* One rung down. */
    void (*descend)(const uint8_t *bits, size_t count, unsigned width, const void *rest, void *numbers);
    /* Bits that are set in `bytes` bytes. */
    size_t (*ones)(const uint8_t *bits, size_t bytes);
} weft_rice_kernels;

const weft_rice_kernels *weft_rice_kernels_for(weft_cpu level);

extern const weft_rice_kernels weft_rice_kernels_portable;
#ifdef WEFT_X86
extern const weft_rice_kernels weft_rice_kernels_avx2;
extern const weft_rice_kernels weft_rice_kernels_avx512;
#endif

/* The form that a sample of `count` numbers of `width` bytes costs least in, at most WEFT_PACK_SAMPLE, in
 * runs of units that lie side by side. Returns the cost in bits * 2^16. No floating point. */
uint64_t weft_rice_form_fit(weft_rice_form *form, const uint64_t *sample, size_t count, unsigned width);

typedef struct weft_rice_encoder {
    const weft_pack_kernels *packs;
    const weft_rice_kernels *rice;
    weft_rice_form form;
    unsigned width;
    size_t waiting; /* numbers, fewer than a block */
    size_t changed; /* units whose step is not zero, so far */
    uint8_t numbers[2 * WEFT_RICE_BLOCK * WEFT_RICE_NUMBER + WEFT_RICE_SLACK];
} weft_rice_encoder;

/* Begins the payload of a bucket at the end of `writer`. */
void weft_rice_encoder_begin(weft_rice_encoder *encoder, const weft_pack_kernels *packs,
                             const weft_rice_kernels *rice, weft_rice_form form, unsigned width,
                             weft_writer *writer);
/* Takes the next units, at most WEFT_RICE_BLOCK. */
weft_status weft_rice_encoder_tile(weft_rice_encoder *encoder, const void *old, const void *new,
                                   size_t units, weft_writer *writer);
weft_status weft_rice_encoder_end(weft_rice_encoder *encoder, weft_writer *writer);

typedef struct weft_rice_decoder {
    weft_context *context;
    const weft_pack_kernels *packs;
    const weft_rice_kernels *rice;
    weft_rice_form form;
    unsigned width;
    const uint8_t *cursor;
    const uint8_t *end;
    size_t units;                                        /* that are not decoded */
    size_t first;                                        /* of the numbers that are not taken, */
    size_t ready;                                        /* and how many these are */
    uint8_t bits[WEFT_RICE_BLOCK / 8 + WEFT_RICE_SLACK]; /* of a first rung that is thinned out */
    uint8_t rooms[2][WEFT_RICE_BLOCK * WEFT_RICE_NUMBER + WEFT_RICE_SLACK];
} weft_rice_decoder;

/* `payload` is followed by WEFT_BITS_SLACK readable bytes. */
weft_status weft_rice_decoder_begin(weft_rice_decoder *decoder, weft_context *context,
                                    const weft_pack_kernels *packs, const weft_rice_kernels *rice,
                                    unsigned width, const uint8_t *payload, size_t size, size_t units);
/* The next units from the old ones, which may be where the new ones go. The payload ends with the units of
 * its bucket. */
weft_status weft_rice_decoder_next(weft_rice_decoder *decoder, const void *old, size_t units, void *new);

#endif
