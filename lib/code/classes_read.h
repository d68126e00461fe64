/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_read.h: reading what is coded by classes of the exponent: the changes of a `small` bucket, and
 * the values of a block of PULSELoCo, which differ in what stands at a position, and in whether its plain
 * bits follow those of its own gap or of all gaps of the class.
 *
 * The front says where the classes are cut and how many entries each has; then come plain bits, which begin
 * with two tables for each class that has entries, of gaps and of what stands there; then the stream of
 * tokens. Gaps become ranks within the class. Where a rank lies is known when the weights, which both sides
 * hold, are classified, tile by tile. The bytes are hostile: nothing is believed that was not bounded.
 */
#ifndef WEFT_CODE_CLASSES_READ_H
#define WEFT_CODE_CLASSES_READ_H

#include "../base/bytes.h"
#include "../base/context.h"
#include "classes.h"
#include "rans.h"

/* What the front says, and what is behind it. */
typedef struct weft_class_header {
    unsigned classes;
    bool laws;      /* tables may follow laws, which only steps do */
    unsigned shift; /* of the exponent */
    uint8_t cuts[WEFT_CLASS_MAX];
    uint32_t counts[WEFT_CLASS_MAX]; /* entries */
    weft_bits_reader bits;
    const uint8_t *stream;
    size_t stream_size;
} weft_class_header;

/* False if `payload` does not begin with a valid front of `count` entries. */
bool weft_class_header_read(weft_class_header *header, const uint8_t *payload, size_t size,
                            weft_exponent exponent, size_t count);

/* Memory that is kept from payload to payload. */
typedef struct weft_class_decoder {
    weft_context *context;
    size_t capacity;
    uint8_t *tokens;                  /* of the gaps of a class, then of its values */
    uint32_t *ranks;                  /* of all entries, class after class */
    uint64_t *values;                 /* the same, as their reader wants them */
    uint32_t bases[WEFT_RANS_TOKENS]; /* per token, for the hot loops: the smallest number that has it, */
    uint8_t sizes[WEFT_RANS_TOKENS];  /* and how many plain bits follow */
    weft_tile tile;
    uint16_t indices[WEFT_TILE];
} weft_class_decoder;

void weft_class_decoder_open(weft_class_decoder *decoder, weft_context *context);
void weft_class_decoder_close(weft_class_decoder *decoder);
weft_status weft_class_decoder_reserve(weft_class_decoder *decoder, size_t count);

/* Which tokens tables may have: those below. */
typedef struct weft_token_limits {
    unsigned gaps;
    unsigned values;
    bool escape; /* values have the last token too */
} weft_token_limits;

/* The tokens of a payload. */
typedef struct weft_class_tokens {
    const weft_class_header *header;
    weft_rans_table gaps[WEFT_CLASS_MAX];
    weft_rans_table values[WEFT_CLASS_MAX];
    weft_rans_decoder rans;
} weft_class_tokens;

/* Reads the tables of all classes that have entries. False if one is none or has a token that it may not
 * have, or if there is no stream. */
bool weft_class_tokens_open(weft_class_tokens *tokens, weft_class_header *header, weft_token_limits limits);
/* Reads the tokens of class `c`, of its gaps and then of its values; class after class. False if the stream
 * ends. */
bool weft_class_tokens_next(weft_class_tokens *tokens, unsigned c, uint8_t *output);
/* True if bits and stream are used up. */
bool weft_class_tokens_done(const weft_class_tokens *tokens);

/* How far each class has come. */
typedef struct weft_class_cursors {
    size_t next[WEFT_CLASS_MAX]; /* entry; the entries of a class are together, and up to: */
    size_t end[WEFT_CLASS_MAX];
    uint32_t members[WEFT_CLASS_MAX]; /* weights */
} weft_class_cursors;

void weft_class_cursors_open(weft_class_cursors *cursors, const weft_class_header *header);
/* False if entries are left: there are no such weights. */
bool weft_class_cursors_done(const weft_class_cursors *cursors, const weft_class_header *header);

/* Finds where the next entries of class `c` lie in the decoder's tile, which is classified, and goes past
 * them. Ranks past the tile wait for the next one; a rank before it cannot be, since ranks ascend and
 * every tile takes all of its own. Returns how many it found. */
static inline size_t weft_class_cursors_take(weft_class_cursors *cursors, const weft_tile_kernels *kernels,
                                             weft_class_decoder *decoder, unsigned c) {
    size_t next = cursors->next[c];
    size_t found = kernels->select(&decoder->tile, c, decoder->ranks + next, cursors->end[c] - next,
                                   cursors->members[c], decoder->indices);
    cursors->next[c] += found;
    cursors->members[c] += decoder->tile.counts[c];
    return found;
}

#endif
