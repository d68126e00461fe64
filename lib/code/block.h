/* SPDX-License-Identifier: Apache-2.0
 *
 * block.h: the coding of a block of a payload of PULSELoCo. doc/FORMAT.md specifies the bytes. It stands
 * here and not with payloads, since the loops that make its tokens are compiled with those of patches.
 *
 * Positions are coded as those of the `small` patches are: as gaps in rank within classes of the exponent
 * of the consensus, which all ranks hold. A value is nearly always a multiple of the consensus's own ULP,
 * since both it and the local weight are; the multiple is a small integer, whose highest bits are
 * entropy-coded and whose others travel as they are. A value that is none travels as it is, behind a token
 * of its own.
 */
#ifndef WEFT_CODE_BLOCK_H
#define WEFT_CODE_BLOCK_H

#include "classes_read.h"
#include "classes_write.h"
#include "token.h"

#include <string.h>

enum {
    WEFT_BLOCK_MAX = 1 << 24,                 /* elements: the rest of a gap and of a value fit 56 bits */
    WEFT_REST_MAX = 7,                        /* bytes of both rests */
    WEFT_VALUE_BITS = 48,                     /* multiples are below 2^48 */
    WEFT_VALUE_TOKENS = 16 + 4 * (48 - 4),    /* tokens of multiples */
    WEFT_VALUE_ESCAPE = WEFT_RANS_TOKENS - 1, /* the token of a value that is no multiple */
};

/* A value as it is read: twice the multiple and the sign; or, behind this bit, the value itself. */
#define WEFT_CODE_ESCAPE ((uint64_t)1 << 63)

/* What follows a token of a value: its sign in the lowest bit, and above it so many of the bits below the
 * highest three as are significant. Zero has no sign. */
typedef struct weft_value_rests {
    uint64_t bases[WEFT_RANS_TOKENS]; /* twice the smallest multiple */
    uint8_t sizes[WEFT_RANS_TOKENS];
    uint8_t shifts[WEFT_RANS_TOKENS]; /* bits of the multiple that are zero and do not travel */
} weft_value_rests;

/* How many bits below the highest three are significant. */
static inline unsigned weft_rest_most(uint32_t significant) {
    unsigned bits = significant == 0 ? 24 : significant;
    return bits > 3 ? bits - 3 : 0;
}

/* The ULP of a weight is 2^(exponent - 150), where the exponent of a subnormal counts as 1. */
static inline unsigned weft_ulp_exponent(uint16_t word) {
    unsigned exponent = weft_word_exponent(word);
    return exponent + (exponent == 0);
}

/* 2^power, for powers of doubles that are normal. */
static inline double weft_power(int power) {
    uint64_t bits = (uint64_t)(1023 + power) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- encoding ---- */

typedef struct weft_block_encoder {
    weft_class_encoder coder;
    unsigned most; /* bits below the highest three of a value that are significant */
} weft_block_encoder;

void weft_block_encoder_open(weft_block_encoder *encoder, weft_context *context, uint32_t significant);
void weft_block_encoder_close(weft_block_encoder *encoder);
/* Adds a tile of the gate's results to a sample. */
void weft_block_encoder_sample(const weft_block_encoder *encoder, const uint16_t *words, size_t count,
                               const weft_entries *fired, weft_class_sample *sample);
/* Begins a block of `elements` with classes for the sample. */
void weft_block_encoder_begin(weft_block_encoder *encoder, const weft_class_sample *sample,
                              uint64_t elements);
/* Takes the gate's results for the next tile, which starts at `linear`. */
weft_status weft_block_encoder_tile(weft_block_encoder *encoder, const uint16_t *words, size_t count,
                                    uint32_t linear, const weft_entries *fired);
weft_status weft_block_encoder_finish(weft_block_encoder *encoder, weft_writer *writer);

/* ---- decoding ---- */

/* Values of a block with their positions, tile after tile of WEFT_TILE elements. The arrays have room for
 * WEFT_KERNEL_SLACK entries more. */
typedef struct weft_block_values {
    size_t count;
    uint32_t *positions;
    float *values;
} weft_block_values;

typedef struct weft_block_decoder {
    weft_class_decoder coder; /* its values are codes */
    weft_value_rests rests;
    const weft_tile_kernels *tile_kernels;
    const weft_entry_kernels *entry_kernels;
    uint16_t words[WEFT_TILE];
    /* what a tile has: where, what is said of it, and of which weight */
    uint16_t indices[WEFT_TILE];
    uint64_t codes[WEFT_TILE + WEFT_KERNEL_SLACK];
    uint16_t weights[WEFT_TILE + WEFT_KERNEL_SLACK];
} weft_block_decoder;

void weft_block_decoder_open(weft_block_decoder *decoder, weft_context *context, uint32_t significant);
void weft_block_decoder_close(weft_block_decoder *decoder);
/* Fills `values`, whose arrays have room for `count` and the slack, from a payload that is followed by
 * WEFT_BITS_SLACK readable bytes. */
weft_status weft_block_decode(weft_block_decoder *decoder, const float *consensus, size_t elements,
                              const uint8_t *payload, size_t size, size_t count, weft_block_values *values);

#endif
