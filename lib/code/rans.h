/* SPDX-License-Identifier: Apache-2.0
 *
 * rans.h: the entropy coder of `small` patches and of payloads: range asymmetric numeral systems, static
 * tables.
 *
 * Symbols come in arrays, each array with one table. Four states take turns within an array, so that a
 * processor works on four symbols at once; state i codes the symbols whose index is i modulo 4. All
 * arrays of a bucket share the four states and one stream of 16-bit words.
 *
 * Frequencies sum to 4096. They are not transmitted: a table travels as coarse weights, four to the
 * octave, from which both sides derive the same frequencies. The loss is about a thousandth of a bit
 * per symbol, and a table costs about three bits per token.
 */
#ifndef WEFT_CODE_RANS_H
#define WEFT_CODE_RANS_H

#include "../base/bytes.h"
#include "../base/cpu.h"
#include "bits.h"

enum { WEFT_RANS_BITS = 12, WEFT_RANS_TOTAL = 1 << WEFT_RANS_BITS, WEFT_RANS_TOKENS = 256 };

/* What a table of gaps or steps nearly always looks like: the chance that a gap, or how many ULPs a step is
 * longer than one, is x or more is (a / (a + x))^p, with p = 2^power and a = scale * p. With a high power
 * that is a geometric law; with a low one it has the heavy tail of several such laws mixed. */
typedef struct weft_rans_law {
    unsigned scale; /* four to the octave */
    unsigned shape; /* which power */
    unsigned more;  /* tokens past those that the law gives half a slot or more */
} weft_rans_law;

typedef struct weft_rans_table {
    unsigned tokens; /* tokens at or above this have no weight */
    bool lawful;     /* the law stands for the levels */
    weft_rans_law law;
    uint8_t levels[WEFT_RANS_TOKENS];
    uint16_t frequencies[WEFT_RANS_TOKENS];
    uint16_t starts[WEFT_RANS_TOKENS];
} weft_rans_table;

/* A table that fits the counts, of which at least one is not zero. */
void weft_rans_table_fit(weft_rans_table *table, const uint32_t counts[WEFT_RANS_TOKENS]);
/* The same for what `symbols` has of each; there is at least one. */
void weft_rans_table_fit_symbols(weft_rans_table *table, const uint8_t *symbols, size_t count);
void weft_rans_table_write(const weft_rans_table *table, weft_bits_writer *bits);
/* False if the bits are no table. */
bool weft_rans_table_read(weft_rans_table *table, weft_bits_reader *bits);
/* The most bytes that a written table can take: 9 bits, and 22 for each level that jumps. */
enum { WEFT_RANS_TABLE_MAX = 2 + WEFT_RANS_TOKENS * 22 / 8 };

/* What laws are about. `limit`: tokens that may occur are below, and below WEFT_RANS_LAW_TOKENS. */
typedef struct weft_rans_subject {
    bool steps; /* codes of steps, of either sign alike; else gaps */
    unsigned limit;
} weft_rans_subject;

enum { WEFT_RANS_LAW_TOKENS = 128, WEFT_RANS_LAWS = 512 };

/* What a token costs under each law, and in each number of slots, in 2048ths of a bit. Laws are looked up
 * far more often than there are laws: each is worked out when it is first asked for. */
typedef struct weft_rans_costs {
    uint16_t slots[WEFT_RANS_TOTAL + 1];
    uint8_t tokens[2][WEFT_RANS_LAWS]; /* 0: not yet known */
    uint16_t laws[2][WEFT_RANS_LAWS][WEFT_RANS_LAW_TOKENS];
} weft_rans_costs;

void weft_rans_costs_open(weft_rans_costs *costs);
/* As weft_rans_table_fit_symbols, or by a law, whichever takes fewer bits, its own included. */
void weft_rans_table_fit_either(weft_rans_table *table, weft_rans_costs *costs, weft_rans_subject subject,
                                const uint8_t *symbols, size_t count);
/* A bit that says which, and the table or its law. */
void weft_rans_table_write_either(const weft_rans_table *table, weft_bits_writer *bits);
bool weft_rans_table_read_either(weft_rans_table *table, weft_rans_subject subject, weft_bits_reader *bits);

/* A token as the encoder needs it. A state that is about to take it is at most `limit`, below frequency
 * times 2^20. Divided by the frequency it is therefore the state times `inverse`, 2^44 divided by the
 * frequency and rounded up, shifted by 44: what rounding adds is below 1 / frequency, and the product below
 * 2^64. */
typedef struct weft_rans_token {
    uint64_t inverse;
    uint32_t limit;
    uint16_t start;
    uint16_t complement; /* WEFT_RANS_TOTAL less the frequency */
} weft_rans_token;

enum { WEFT_RANS_INVERSE_BITS = 44, WEFT_RANS_LIMIT_BITS = 32 - WEFT_RANS_BITS };

/* What a coder needs of a table: of every token, and of every slot: token, frequency - 1 above 8 bits, and
 * above 20 the offset in the token. */
void weft_rans_tokens(const weft_rans_table *table, weft_rans_token *tokens);
void weft_rans_slots(const weft_rans_table *table, uint32_t *slots);

/* Codes arrays from the last symbol of the last array to the first of the first, writing backwards. */
typedef struct weft_rans_encoder weft_rans_encoder;

/* Codes `count` symbols, a multiple of four. */
typedef void (*weft_rans_fours)(weft_rans_encoder *encoder, const weft_rans_token *tokens,
                                const uint8_t *symbols, size_t count);

struct weft_rans_encoder {
    uint8_t *end;
    uint8_t *cursor;
    uint32_t states[4];
    weft_rans_fours fours;
};

weft_rans_fours weft_rans_fours_for(weft_cpu level);
#ifdef WEFT_X86
void weft_rans_fours_avx512(weft_rans_encoder *encoder, const weft_rans_token *tokens,
                            const uint8_t *symbols, size_t count);
#endif

/* `room` has at least 2 bytes for every symbol to come and 16 for the states. */
void weft_rans_encoder_open(weft_rans_encoder *encoder, uint8_t *room, size_t size);
void weft_rans_encode(weft_rans_encoder *encoder, const weft_rans_table *table, const uint8_t *symbols,
                      size_t count);
/* Writes the states. The stream is from the returned pointer to the end of the room. */
const uint8_t *weft_rans_encoder_finish(weft_rans_encoder *encoder);

typedef struct weft_rans_decoder {
    const uint8_t *cursor;
    const uint8_t *end;
    uint32_t states[4];
    uint32_t slots[WEFT_RANS_TOTAL]; /* of the table in use */
} weft_rans_decoder;

/* False if the stream is too short to be one. */
bool weft_rans_decoder_open(weft_rans_decoder *decoder, const uint8_t *data, size_t size);
/* False if the stream ends early. */
bool weft_rans_decode(weft_rans_decoder *decoder, const weft_rans_table *table, uint8_t *symbols,
                      size_t count);
/* True if the stream is used up and the states are back where encoding began. */
bool weft_rans_decoder_done(const weft_rans_decoder *decoder);

#endif
