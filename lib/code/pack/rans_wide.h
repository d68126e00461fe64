/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_wide.h: the entropy coder of rans.h with 32 states instead of four, for packed buckets, which have a
 * symbol for every few weights: a register of vectors holds many states, and a processor without them is
 * never short of work. Tables are the same, and so is what happens to a state.
 */
#ifndef WEFT_CODE_RANS_WIDE_H
#define WEFT_CODE_RANS_WIDE_H

#include "../rans.h"

enum {
    WEFT_RANS_WIDE = 32,
    WEFT_RANS_WIDE_BYTES = 4 * WEFT_RANS_WIDE, /* of the states, in front of a stream */
};

typedef struct weft_rans_wide_encoder {
    uint8_t *end;
    uint8_t *cursor;
    uint32_t states[WEFT_RANS_WIDE];
} weft_rans_wide_encoder;

typedef struct weft_rans_wide_decoder {
    const uint8_t *cursor;
    const uint8_t *end;
    uint32_t states[WEFT_RANS_WIDE];
    uint32_t slots[WEFT_RANS_TOTAL];
} weft_rans_wide_decoder;

/* Whole blocks of WEFT_RANS_WIDE symbols. */
typedef struct weft_rans_wide_kernels {
    void (*encode)(weft_rans_wide_encoder *encoder, const weft_rans_token *tokens, const uint8_t *symbols,
                   size_t blocks);
    /* Stops early where fewer than 2 * WEFT_RANS_WIDE bytes are left. Returns how many blocks it has done.
     */
    size_t (*decode)(weft_rans_wide_decoder *decoder, uint8_t *symbols, size_t blocks);
} weft_rans_wide_kernels;

const weft_rans_wide_kernels *weft_rans_wide_kernels_for(weft_cpu level);

extern const weft_rans_wide_kernels weft_rans_wide_kernels_portable;
#ifdef WEFT_X86
extern const weft_rans_wide_kernels weft_rans_wide_kernels_avx2;
extern const weft_rans_wide_kernels weft_rans_wide_kernels_avx512;
#endif
#ifdef WEFT_ARM
extern const weft_rans_wide_kernels weft_rans_wide_kernels_neon;
#endif

/* The portable encoder, for levels that have no better one. */
void weft_rans_wide_encode_blocks(weft_rans_wide_encoder *encoder, const weft_rans_token *tokens,
                                  const uint8_t *symbols, size_t blocks);

/* `room` has at least 2 bytes for every symbol to come and WEFT_RANS_WIDE_BYTES. */
void weft_rans_wide_encoder_open(weft_rans_wide_encoder *encoder, uint8_t *room, size_t size);
void weft_rans_wide_encode(weft_rans_wide_encoder *encoder, const weft_rans_wide_kernels *kernels,
                           const weft_rans_table *table, const uint8_t *symbols, size_t count);
/* Writes the states. The stream is from the returned pointer to the end of the room. */
const uint8_t *weft_rans_wide_encoder_finish(weft_rans_wide_encoder *encoder);

/* False if the stream is too short to be one. */
bool weft_rans_wide_decoder_open(weft_rans_wide_decoder *decoder, const uint8_t *data, size_t size);
/* False if the stream ends early. */
bool weft_rans_wide_decode(weft_rans_wide_decoder *decoder, const weft_rans_wide_kernels *kernels,
                           const weft_rans_table *table, uint8_t *symbols, size_t count);
/* True if the stream is used up and the states are back where encoding began. */
bool weft_rans_wide_decoder_done(const weft_rans_wide_decoder *decoder);

#endif
