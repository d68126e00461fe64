/* SPDX-License-Identifier: Apache-2.0
 *
 * entries_loop.h: the loops of entries.h, compiled into a file for each processor level. A piece of the
 * items at a time is spread over arrays of 32 bits, so that every loop is of one width and has no branches.
 */
#ifndef WEFT_CODE_ENTRIES_LOOP_H
#define WEFT_CODE_ENTRIES_LOOP_H

#include "block.h"
#include "entries.h"

enum { SORT_PIECE = 255, TOKENS_PIECE = 64, VALUES_PIECE = 16 };

/* ---- sorting ---- */

/* At most SORT_PIECE items. How many each class has had so far is kept in a byte each of one register: in
 * memory, most of the time would go by waiting for what the item before has written. */
static inline void sort_some(const weft_tile *tile, const weft_entries *entries, size_t first, size_t end,
                             uint32_t linear, weft_sorting *sorting) {
    weft_sorting state = *sorting;
    uint64_t counts = 0;
    for (size_t i = first; i < end; i++) {
        uint32_t exponent = (entries->words[i] & 0x7fffu) >> state.shift;
        unsigned c = state.class_of_exponent[exponent];
        uint32_t rank = weft_tile_rank_of(tile, c, entries->positions[i] - linear);
        uint32_t gap = rank + state.offsets[c];
        state.offsets[c] = 0 - rank - 1;
        state.ends[c][(counts >> 8 * c) & 0xffu] =
            weft_item_pack(gap, exponent & state.exponents, entries->values[i]);
        counts += (uint64_t)1 << 8 * c;
    }
    memcpy(sorting->offsets, state.offsets, sizeof state.offsets);
    for (unsigned c = 0; c < state.classes; c++) {
        sorting->ends[c] += (counts >> 8 * c) & 0xffu;
    }
}

static void sort_all(const weft_tile *tile, const weft_entries *entries, uint32_t linear,
                     weft_sorting *sorting) {
    for (size_t first = 0; first < entries->count; first += SORT_PIECE) {
        size_t end = entries->count - first < SORT_PIECE ? entries->count : first + SORT_PIECE;
        sort_some(tile, entries, first, end, linear, sorting);
    }
}

/* ---- tokens ---- */

typedef struct token_piece {
    uint32_t tokens[TOKENS_PIECE];
    uint32_t rests[TOKENS_PIECE];
    uint32_t sizes[TOKENS_PIECE];
} token_piece;

static inline uint32_t float_bits(int32_t value) {
    float converted = (float)value;
    uint32_t bits;
    memcpy(&bits, &converted, sizeof bits);
    return bits;
}

/* One of two, by arithmetic: of what looks like a condition, compilers make branches. */
static inline uint32_t choose(bool first, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)first;
    return (a & mask) | (b & ~mask);
}

/* The exponent and the two highest bits of a float are the token. Of a larger number two bits are left out,
 * so that it has a sign to spare, and others such that no rounding reaches the highest bits. */
static inline uint32_t token_of(uint32_t number) {
    uint32_t high = number >> 2;
    uint32_t large = (float_bits((int32_t)(high & ~(high >> 8))) >> 21) - 4 * 125;
    return choose(number < 16, number, large);
}

static inline void tokenise_gaps(const uint32_t *restrict gaps, token_piece *restrict out) {
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        uint32_t gap = gaps[i] & 0xffffffu;
        uint32_t token = token_of(gap);
        uint32_t size = choose(gap < 16, 0, token / 4 - 2);
        out->tokens[i] = token;
        out->sizes[i] = size;
        out->rests[i] = gap & ((1u << size) - 1);
    }
}

static inline int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The multiple's highest bit is worth 2^top. It is none if a bit of the value is worth less than one, or if
 * top is out of bounds; zero, whose top means nothing, is one. */
static inline void tokenise_values(const uint32_t *restrict values, const uint32_t *restrict gaps,
                                   int32_t most, token_piece *restrict out) {
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        uint32_t value = values[i];
        uint32_t magnitude = value & 0x7fffffffu;
        /* a subnormal is made normal */
        bool tiny = magnitude < 0x00800000u;
        uint32_t normal = choose(tiny, float_bits((int32_t)magnitude), magnitude);
        int32_t exponent = (int32_t)((normal >> 23) - choose(tiny, 149, 0));
        int32_t top = exponent - larger((int32_t)(gaps[i] >> 24), 1) + 23;
        uint32_t mantissa = normal & 0x7fffffu;
        uint32_t below_one = (uint32_t)smaller(larger(23 - top, 0), 23);
        bool escapes = (top < 0) | (top >= WEFT_VALUE_BITS) | ((mantissa & ((1u << below_one) - 1)) != 0);
        uint32_t small = (mantissa | 0x800000u) >> below_one;
        uint32_t large = 4 * (uint32_t)top + (mantissa >> 21);
        uint32_t kept = choose(top < 4, 0, (uint32_t)smaller(top - 2, most));
        uint32_t token = choose(top < 4, small, large);
        uint32_t rest = ((mantissa & 0x1fffffu) >> (21 - kept)) << 1 | value >> 31;
        uint32_t present = choose(magnitude == 0, 0, UINT32_MAX);
        out->tokens[i] = choose(escapes, WEFT_VALUE_ESCAPE, token) & present;
        out->rests[i] = choose(escapes, value, rest) & present;
        out->sizes[i] = choose(escapes, 32, kept + 1) & present;
    }
}

/* Items, in two halves. */
static inline void split_items(const uint64_t *restrict items, uint32_t *restrict lows,
                               uint32_t *restrict highs) {
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        lows[i] = (uint32_t)items[i];
        highs[i] = (uint32_t)(items[i] >> 32);
    }
}

static inline void tokenise_piece_of_values(uint64_t *restrict items, unsigned most,
                                            uint8_t *restrict gap_tokens, uint8_t *restrict value_tokens) {
    uint32_t lows[TOKENS_PIECE];
    uint32_t highs[TOKENS_PIECE];
    token_piece gaps, values;
    split_items(items, lows, highs);
    tokenise_gaps(lows, &gaps);
    tokenise_values(highs, lows, (int32_t)most, &values);
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        gap_tokens[i] = (uint8_t)gaps.tokens[i];
        value_tokens[i] = (uint8_t)values.tokens[i];
    }
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        uint64_t rest = gaps.rests[i] | (uint64_t)values.rests[i] << gaps.sizes[i];
        items[i] = rest | (uint64_t)(gaps.sizes[i] + values.sizes[i]) << 56;
    }
}

/* The last piece is made whole in a copy. */
static void tokenise_all_values(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                                uint8_t *value_tokens) {
    size_t i = 0;
    for (; i + TOKENS_PIECE <= count; i += TOKENS_PIECE) {
        tokenise_piece_of_values(items + i, most, gap_tokens + i, value_tokens + i);
    }
    if (i < count) {
        uint64_t last[TOKENS_PIECE] = {0};
        uint8_t tokens[2][TOKENS_PIECE];
        memcpy(last, items + i, (count - i) * sizeof *items);
        tokenise_piece_of_values(last, most, tokens[0], tokens[1]);
        memcpy(items + i, last, (count - i) * sizeof *items);
        memcpy(gap_tokens + i, tokens[0], count - i);
        memcpy(value_tokens + i, tokens[1], count - i);
    }
}

static inline void tokenise_piece_of_steps(const uint64_t *restrict items, uint8_t *restrict gap_tokens,
                                           uint8_t *restrict step_tokens) {
    uint32_t lows[TOKENS_PIECE];
    uint32_t highs[TOKENS_PIECE];
    split_items(items, lows, highs);
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        gap_tokens[i] = (uint8_t)token_of(lows[i]);
    }
    for (size_t i = 0; i < TOKENS_PIECE; i++) {
        step_tokens[i] = (uint8_t)token_of(highs[i]);
    }
}

static void tokenise_all_steps(const uint64_t *items, size_t count, uint8_t *gap_tokens,
                               uint8_t *step_tokens) {
    size_t i = 0;
    for (; i + TOKENS_PIECE <= count; i += TOKENS_PIECE) {
        tokenise_piece_of_steps(items + i, gap_tokens + i, step_tokens + i);
    }
    for (; i < count; i++) {
        gap_tokens[i] = (uint8_t)token_of((uint32_t)items[i]);
        step_tokens[i] = (uint8_t)token_of((uint32_t)(items[i] >> 32));
    }
}

/* ---- rests ---- */

static inline unsigned rest_size(unsigned token) {
    return token < 16 ? 0 : token / 4 - 2;
}

static inline uint64_t rest_of(uint64_t item, unsigned shift, unsigned size) {
    return (item >> shift) & (((uint64_t)1 << size) - 1);
}

/* Four, which go out at once where they fit, which is nearly always: each put waits for the one before. */
static inline void put_four_rests(weft_bits_writer *bits, const uint64_t *items, unsigned shift,
                                  const uint8_t *tokens, const uint8_t *sizes) {
    unsigned first = sizes[tokens[0]], second = sizes[tokens[1]];
    unsigned third = sizes[tokens[2]], fourth = sizes[tokens[3]];
    if (__builtin_expect(first + second + third + fourth > 56, 0)) {
        for (size_t i = 0; i < 4; i++) {
            unsigned size = sizes[tokens[i]];
            weft_bits_put_wide(bits, rest_of(items[i], shift, size), size);
        }
        return;
    }
    uint64_t low = rest_of(items[0], shift, first) | rest_of(items[1], shift, second) << first;
    uint64_t high = rest_of(items[2], shift, third) | rest_of(items[3], shift, fourth) << third;
    weft_bits_put(bits, low | high << (first + second), first + second + third + fourth);
}

/* Small numbers have none, and most steps are small. */
static void put_all_rests(weft_bits_writer *writer, const uint64_t *items, unsigned shift,
                          const uint8_t *tokens, size_t count) {
    uint8_t sizes[256];
    weft_bits_writer bits = *writer;
    for (unsigned t = 0; t < 256; t++) {
        sizes[t] = (uint8_t)rest_size(t);
    }
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, tokens + i, sizeof eight);
        if ((eight & 0xf0f0f0f0f0f0f0f0u) != 0) {
            put_four_rests(&bits, items + i, shift, tokens + i, sizes);
            put_four_rests(&bits, items + i + 4, shift, tokens + i + 4, sizes);
        }
    }
    for (; i < count; i++) {
        unsigned size = sizes[tokens[i]];
        weft_bits_put_wide(&bits, rest_of(items[i], shift, size), size);
    }
    *writer = bits;
}

/* ---- words ---- */

static void words_all(const void *units, size_t count, unsigned width, uint16_t *restrict words) {
    const uint8_t *restrict bytes = units;
    if (width == 1) {
        for (size_t i = 0; i < count; i++) {
            words[i] = (uint16_t)(bytes[i] << 8);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, bytes + 4 * i, sizeof bits);
        words[i] = (uint16_t)(bits >> 16);
    }
}

/* ---- the way back ---- */

/* Exact: a multiple has at most 24 significant bits. It is added to 2^52, where a double counts by ones:
 * not all levels convert integers of 64 bits. */
static inline float multiple_of(uint64_t code, uint16_t word) {
    uint64_t bits = (code & (WEFT_CODE_ESCAPE - 1)) >> 1 | (uint64_t)(1023 + 52) << 52;
    double shifted;
    memcpy(&shifted, &bits, sizeof shifted);
    return (float)((shifted - 0x1p52) * weft_power((int)weft_ulp_exponent(word) - 150));
}

static inline uint32_t value_piece(const uint64_t *restrict codes, const uint16_t *restrict words,
                                   float *restrict values) {
    uint32_t found[VALUES_PIECE];
    uint32_t highest = 0;
    for (size_t i = 0; i < VALUES_PIECE; i++) {
        float magnitude = multiple_of(codes[i], words[i]);
        memcpy(&found[i], &magnitude, sizeof magnitude);
    }
    for (size_t i = 0; i < VALUES_PIECE; i++) {
        uint32_t code = (uint32_t)codes[i];
        found[i] = choose(codes[i] >= WEFT_CODE_ESCAPE, code, found[i] | code << 31);
    }
    for (size_t i = 0; i < VALUES_PIECE; i++) {
        uint32_t magnitude = found[i] & 0x7fffffffu;
        highest = magnitude > highest ? magnitude : highest;
    }
    memcpy(values, found, sizeof found);
    return highest;
}

static uint32_t value_all(const uint64_t *codes, const uint16_t *words, size_t count, float *values) {
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i += VALUES_PIECE) {
        uint32_t largest = value_piece(codes + i, words + i, values + i);
        highest = largest > highest ? largest : highest;
    }
    return highest;
}

#endif
