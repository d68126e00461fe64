/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_symbol.h: one symbol, in and out of a state: what the coders with four states and with many share.
 */
#ifndef WEFT_CODE_RANS_SYMBOL_H
#define WEFT_CODE_RANS_SYMBOL_H

#include "rans.h"

enum { WEFT_RANS_LOWER = 1 << 16 /* states live in [this, 2^32) and move 16 bits at a time */ };

/* Codes one symbol and moves the cursor down by a word if the state is full, by arithmetic: whether it is
 * is as good as random. The word below the cursor may be written either way. The new state is quotient *
 * WEFT_RANS_TOTAL + remainder + start, and the remainder is the state less quotient * frequency.
 */
static inline uint32_t weft_rans_put(uint32_t state, const weft_rans_token *token, uint8_t **cursor) {
    uint16_t word = (uint16_t)state;
    uint64_t full = ((uint64_t)token->limit - state) >> 63;
    memcpy(*cursor - 2, &word, 2);
    *cursor -= 2 * full;
    state >>= 16 * full;
    uint32_t quotient = (uint32_t)((state * token->inverse) >> WEFT_RANS_INVERSE_BITS);
    return state + token->start + quotient * token->complement;
}

/* One symbol without the refill. */
static inline uint32_t weft_rans_take(const uint32_t *slots, uint32_t state, uint8_t *symbol) {
    uint32_t slot = slots[state & (WEFT_RANS_TOTAL - 1)];
    *symbol = (uint8_t)slot;
    return (((slot >> 8) & (WEFT_RANS_TOTAL - 1)) + 1) * (state >> WEFT_RANS_BITS) + (slot >> 20);
}

/* Takes a word if the state ran low, by arithmetic: whether it does is as good as random, and of what looks
 * like a condition, compilers make branches. */
static inline uint32_t weft_rans_refill(uint32_t state, const uint8_t **cursor) {
    uint16_t word;
    memcpy(&word, *cursor, 2);
    uint64_t low = ((uint64_t)state - WEFT_RANS_LOWER) >> 63;
    *cursor += 2 * low;
    return (uint32_t)((uint64_t)state << (16 * low) | (word & (0 - low)));
}

/* The same from words that are loaded, of which `used` bits are taken. */
static inline uint32_t weft_rans_refill_from(uint32_t state, uint64_t words, unsigned *used) {
    uint32_t low = state < WEFT_RANS_LOWER;
    uint32_t word = (uint32_t)(words >> *used) & (0xffffu & (0u - low));
    *used += 16 * low;
    return state << 16 * low | word;
}

#endif
