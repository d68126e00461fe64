/* SPDX-License-Identifier: Apache-2.0
 *
 * rans.c: tables, encoder and decoder of rans.h. No floating point: the same bytes everywhere.
 */
#include "rans_symbol.h"

enum { LEVEL_MAX = 64 };

/* Level 0 is absent; levels 1, 2, 3, … weigh 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, … */
static uint64_t level_weight(unsigned level) {
    return level == 0 ? 0 : (uint64_t)(4 + (level - 1) % 4) << ((level - 1) / 4);
}

/* The level whose weight is nearest to `weight`, which is at most 2^15. */
static unsigned nearest_level(uint64_t weight) {
    uint64_t at_least = weight > 4 ? weight : 4;
    unsigned octave = 61u - (unsigned)__builtin_clzll(at_least);
    unsigned level = 1 + 4 * octave + (unsigned)((at_least >> octave) & 3);
    return level + (2 * weight >= level_weight(level) + level_weight(level + 1));
}

/* Shares 4096 out by weight, at least one to each token present; what rounding leaves over or takes too
 * much goes to or comes from the largest, the first of equals. Afterwards all fit: the largest of at
 * most 256 tokens always has room to give. */
static void derive_frequencies(weft_rans_table *table) {
    uint64_t total = 0;
    for (unsigned t = 0; t < table->tokens; t++) {
        total += level_weight(table->levels[t]);
    }
    int64_t left = WEFT_RANS_TOTAL;
    for (unsigned t = 0; t < table->tokens; t++) {
        uint64_t share = level_weight(table->levels[t]) * WEFT_RANS_TOTAL / total;
        if (table->levels[t] != 0 && share == 0) {
            share = 1;
        }
        table->frequencies[t] = (uint16_t)share;
        left -= (int64_t)share;
    }
    while (left != 0) {
        unsigned largest = 0;
        for (unsigned t = 1; t < table->tokens; t++) {
            if (table->frequencies[t] > table->frequencies[largest]) {
                largest = t;
            }
        }
        int64_t room = left > 0 ? left : -(int64_t)(table->frequencies[largest] / 2);
        int64_t move = left > room ? left : room;
        table->frequencies[largest] = (uint16_t)(table->frequencies[largest] + move);
        left -= move;
    }
    uint16_t start = 0;
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        if (t >= table->tokens) {
            table->frequencies[t] = 0;
        }
        table->starts[t] = start;
        start = (uint16_t)(start + table->frequencies[t]);
    }
}

void weft_rans_table_fit(weft_rans_table *table, const uint32_t counts[WEFT_RANS_TOKENS]) {
    uint64_t total = 0;
    memset(table, 0, sizeof *table);
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        total += counts[t];
        if (counts[t] > 0) {
            table->tokens = t + 1;
        }
    }
    for (unsigned t = 0; t < table->tokens; t++) {
        if (counts[t] > 0) {
            table->levels[t] = (uint8_t)nearest_level(((uint64_t)counts[t] << 15) / total);
        }
    }
    derive_frequencies(table);
}

/* Four counters for each, by turns: one that was just written is slow to read. */
void weft_rans_table_fit_symbols(weft_rans_table *table, const uint8_t *symbols, size_t count) {
    uint32_t counts[4][WEFT_RANS_TOKENS] = {{0}};
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        counts[0][symbols[i]]++;
        counts[1][symbols[i + 1]]++;
        counts[2][symbols[i + 2]]++;
        counts[3][symbols[i + 3]]++;
    }
    for (; i < count; i++) {
        counts[0][symbols[i]]++;
    }
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        counts[0][t] += counts[1][t] + counts[2][t] + counts[3][t];
    }
    weft_rans_table_fit(table, counts[0]);
}

/* A level travels as its difference from the one before: in unary up to 14, so that equal and
 * neighbouring levels are short; 15 ones announce the level itself in seven bits. */
enum { UNARY_MAX = 14, LEVEL_BITS = 7, TOKEN_BITS = 8 };

static unsigned zigzag(int value) {
    return value < 0 ? (unsigned)(-2 * value - 1) : (unsigned)(2 * value);
}

void weft_rans_table_write(const weft_rans_table *table, weft_bits_writer *bits) {
    weft_bits_put(bits, table->tokens - 1, TOKEN_BITS);
    int previous = 0;
    for (unsigned t = 0; t < table->tokens; t++) {
        int level = table->levels[t];
        unsigned code = zigzag(level - previous);
        if (code <= UNARY_MAX) {
            weft_bits_put(bits, ((uint64_t)1 << code) - 1, code + 1);
        } else {
            weft_bits_put(bits, ((uint64_t)1 << (UNARY_MAX + 1)) - 1, UNARY_MAX + 1);
            weft_bits_put(bits, (uint64_t)level, LEVEL_BITS);
        }
        previous = level;
    }
}

static bool read_level(weft_bits_reader *bits, int previous, uint8_t *level_out) {
    unsigned code = 0;
    while (code <= UNARY_MAX && weft_bits_get(bits, 1) != 0) {
        code++;
    }
    int level = code > UNARY_MAX ? (int)weft_bits_get(bits, LEVEL_BITS)
                : code & 1       ? previous - (int)(code + 1) / 2
                                 : previous + (int)code / 2;
    if (weft_bits_overrun(bits) || level < 0 || level > LEVEL_MAX) {
        return false;
    }
    *level_out = (uint8_t)level;
    return true;
}

bool weft_rans_table_read(weft_rans_table *table, weft_bits_reader *bits) {
    memset(table, 0, sizeof *table);
    table->tokens = (unsigned)weft_bits_get(bits, TOKEN_BITS) + 1;
    uint8_t level = 0;
    for (unsigned t = 0; t < table->tokens; t++) {
        if (!read_level(bits, level, &level)) {
            return false;
        }
        table->levels[t] = level;
    }
    if (level == 0) {
        return false;
    }
    derive_frequencies(table);
    return true;
}

void weft_rans_encoder_open(weft_rans_encoder *encoder, uint8_t *room, size_t size) {
    encoder->end = room + size;
    encoder->cursor = encoder->end;
    for (unsigned i = 0; i < 4; i++) {
        encoder->states[i] = WEFT_RANS_LOWER;
    }
    encoder->fours = weft_rans_fours_for(weft_cpu_level());
}

void weft_rans_tokens(const weft_rans_table *table, weft_rans_token *tokens) {
    for (unsigned t = 0; t < table->tokens; t++) {
        uint32_t frequency = table->frequencies[t];
        if (frequency > 0) {
            tokens[t].inverse = (((uint64_t)1 << WEFT_RANS_INVERSE_BITS) + frequency - 1) / frequency;
            tokens[t].limit = (uint32_t)(((uint64_t)frequency << WEFT_RANS_LIMIT_BITS) - 1);
            tokens[t].start = table->starts[t];
            tokens[t].complement = (uint16_t)(WEFT_RANS_TOTAL - frequency);
        }
    }
}

static void encode_fours(weft_rans_encoder *encoder, const weft_rans_token *tokens, const uint8_t *symbols,
                         size_t count) {
    uint8_t *cursor = encoder->cursor;
    uint32_t *states = encoder->states;
    uint32_t s0 = states[0], s1 = states[1], s2 = states[2], s3 = states[3];
    for (size_t i = count; i > 0; i -= 4) {
        s3 = weft_rans_put(s3, &tokens[symbols[i - 1]], &cursor);
        s2 = weft_rans_put(s2, &tokens[symbols[i - 2]], &cursor);
        s1 = weft_rans_put(s1, &tokens[symbols[i - 3]], &cursor);
        s0 = weft_rans_put(s0, &tokens[symbols[i - 4]], &cursor);
    }
    states[0] = s0;
    states[1] = s1;
    states[2] = s2;
    states[3] = s3;
    encoder->cursor = cursor;
}

weft_rans_fours weft_rans_fours_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return weft_rans_fours_avx512;
    }
#endif
    (void)level;
    return encode_fours;
}

void weft_rans_encode(weft_rans_encoder *encoder, const weft_rans_table *table, const uint8_t *symbols,
                      size_t count) {
    weft_rans_token tokens[WEFT_RANS_TOKENS];
    uint32_t *states = encoder->states;
    size_t i = count;
    weft_rans_tokens(table, tokens);
    for (; i % 4 != 0; i--) {
        states[(i - 1) % 4] = weft_rans_put(states[(i - 1) % 4], &tokens[symbols[i - 1]], &encoder->cursor);
    }
    encoder->fours(encoder, tokens, symbols, i);
}

const uint8_t *weft_rans_encoder_finish(weft_rans_encoder *encoder) {
    for (unsigned i = 4; i-- > 0;) {
        encoder->cursor -= 4;
        memcpy(encoder->cursor, &encoder->states[i], 4);
    }
    return encoder->cursor;
}

bool weft_rans_decoder_open(weft_rans_decoder *decoder, const uint8_t *data, size_t size) {
    if (size < sizeof decoder->states) {
        return false;
    }
    memcpy(decoder->states, data, sizeof decoder->states);
    decoder->cursor = data + sizeof decoder->states;
    decoder->end = data + size;
    for (unsigned i = 0; i < 4; i++) {
        if (decoder->states[i] < WEFT_RANS_LOWER) {
            return false;
        }
    }
    return true;
}

void weft_rans_slots(const weft_rans_table *table, uint32_t *all) {
    for (unsigned t = 0; t < table->tokens; t++) {
        uint32_t frequency = table->frequencies[t];
        uint32_t *slots = all + table->starts[t];
        for (uint32_t i = 0; i < frequency; i++) {
            slots[i] = t | (frequency - 1) << 8 | i << 20;
        }
    }
}

bool weft_rans_decode(weft_rans_decoder *decoder, const weft_rans_table *table, uint8_t *symbols,
                      size_t count) {
    weft_rans_slots(table, decoder->slots);
    const uint32_t *slots = decoder->slots;
    const uint8_t *cursor = decoder->cursor;
    uint32_t s0 = decoder->states[0], s1 = decoder->states[1];
    uint32_t s2 = decoder->states[2], s3 = decoder->states[3];
    size_t i = 0;
    for (; i + 4 <= count && decoder->end - cursor >= 8; i += 4) {
        s0 = weft_rans_refill(weft_rans_take(slots, s0, symbols + i), &cursor);
        s1 = weft_rans_refill(weft_rans_take(slots, s1, symbols + i + 1), &cursor);
        s2 = weft_rans_refill(weft_rans_take(slots, s2, symbols + i + 2), &cursor);
        s3 = weft_rans_refill(weft_rans_take(slots, s3, symbols + i + 3), &cursor);
    }
    uint32_t states[4] = {s0, s1, s2, s3};
    for (; i < count; i++) {
        uint32_t state = weft_rans_take(slots, states[i & 3], symbols + i);
        if (state < WEFT_RANS_LOWER) {
            if (decoder->end - cursor < 2) {
                return false;
            }
            state = weft_rans_refill(state, &cursor);
        }
        states[i & 3] = state;
    }
    decoder->cursor = cursor;
    memcpy(decoder->states, states, sizeof states);
    return true;
}

bool weft_rans_decoder_done(const weft_rans_decoder *decoder) {
    bool at_start = true;
    for (unsigned i = 0; i < 4; i++) {
        at_start = at_start && decoder->states[i] == WEFT_RANS_LOWER;
    }
    return at_start && decoder->cursor == decoder->end;
}
