/* SPDX-License-Identifier: Apache-2.0
 *
 * token.h: integers as tokens. A value below 16 is its own token; a larger one is named by its highest
 * three bits, and the bits below them travel as they are. Tokens are what the entropy coder sees: 256
 * of them cover all 64-bit values, with a resolution of four to the octave. Steps become
 * integers first.
 */
#ifndef WEFT_CODE_TOKEN_H
#define WEFT_CODE_TOKEN_H

#include <stdint.h>

/* Written so that it compiles to a select: which case a gap falls into is as good as random. */
static inline unsigned weft_token_of(uint64_t value) {
    unsigned top = 63u - (unsigned)__builtin_clzll(value | 16);
    unsigned large = 16 + (top - 4) * 4 + (unsigned)((value >> (top - 2)) & 3);
    return value < 16 ? (unsigned)value : large;
}

/* How many plain bits follow a token. */
static inline unsigned weft_token_bits(unsigned token) {
    return token < 16 ? 0 : 2 + (token - 16) / 4;
}

/* The smallest value with this token. */
static inline uint64_t weft_token_base(unsigned token) {
    if (token < 16) {
        return token;
    }
    return (uint64_t)(4 + (token - 16) % 4) << weft_token_bits(token);
}

/* Steps are differences modulo 2^width, never zero. Small ones of either sign get small codes:
 * +1 -1 +2 -2 … become 0 1 2 3 …; the most negative step is the largest code. Signs are as good as random,
 * hence no branches. */
static inline uint64_t weft_step_code(uint64_t step, unsigned bits) {
    uint64_t mask = bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
    uint64_t sign = (step >> (bits - 1)) & 1;
    uint64_t magnitude = ((step ^ (0 - sign)) + sign) & mask;
    return 2 * (magnitude - 1) + sign;
}

static inline uint64_t weft_step_of_code(uint64_t code, unsigned bits) {
    uint64_t mask = bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
    uint64_t magnitude = code / 2 + 1;
    uint64_t sign = code & 1;
    return ((magnitude ^ (0 - sign)) + sign) & mask;
}

#endif
