/* SPDX-License-Identifier: Apache-2.0
 *
 * rans.c: tables, encoder and decoder of rans.h. No floating point: the same bytes everywhere.
 */
#include "rans_symbol.h"

#include "token.h"

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
static void share_out(weft_rans_table *table, const uint64_t *weights) {
    uint64_t total = 0;
    for (unsigned t = 0; t < table->tokens; t++) {
        total += weights[t];
    }
    int64_t left = WEFT_RANS_TOTAL;
    for (unsigned t = 0; t < table->tokens; t++) {
        uint64_t share = weights[t] * WEFT_RANS_TOTAL / total;
        if (weights[t] != 0 && share == 0) {
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

static void derive_frequencies(weft_rans_table *table) {
    uint64_t weights[WEFT_RANS_TOKENS];
    for (unsigned t = 0; t < table->tokens; t++) {
        weights[t] = level_weight(table->levels[t]);
    }
    share_out(table, weights);
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

/* Four counters for each, by turns: one that was just written is slow to read. Eight symbols are read at a
 * time. */
static void count_symbols(const uint8_t *symbols, size_t count, uint32_t totals[WEFT_RANS_TOKENS]) {
    uint32_t counts[4][WEFT_RANS_TOKENS] = {{0}};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, symbols + i, sizeof eight);
        for (unsigned j = 0; j < 8; j++) {
            counts[j % 4][(uint8_t)(eight >> (8 * j))]++;
        }
    }
    for (; i < count; i++) {
        counts[0][symbols[i]]++;
    }
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        totals[t] = counts[0][t] + counts[1][t] + counts[2][t] + counts[3][t];
    }
}

void weft_rans_table_fit_symbols(weft_rans_table *table, const uint8_t *symbols, size_t count) {
    uint32_t counts[WEFT_RANS_TOKENS];
    count_symbols(symbols, count, counts);
    weft_rans_table_fit(table, counts);
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

/* ---- laws ---- */

enum {
    SCALE_BITS = 7,
    SHAPE_BITS = 2,
    SCALES = 1 << SCALE_BITS,
    SHAPES = 1 << SHAPE_BITS,
    CHANCE_BITS = 24, /* of a chance; a token has a slot of its own from half a slot on */
    HALF_SLOT = 1 << (CHANCE_BITS - WEFT_RANS_BITS - 1),
    COST_BITS = 11, /* of a bit */
    COST_MOST = WEFT_RANS_BITS << COST_BITS,
};

static const uint8_t powers[SHAPES] = {1, 2, 3, 6};

/* The chance of x or more, in 2^-24. Scales are in 256ths. */
static uint64_t law_chance(const weft_rans_law *law, uint64_t x) {
    unsigned power = powers[law->shape];
    uint64_t a = (uint64_t)(4 + law->scale % 4) << (law->scale / 4 + power);
    uint64_t chance = (a << CHANCE_BITS) / (a + (x << 8));
    for (unsigned i = 0; i < power; i++) {
        chance = (chance * chance) >> CHANCE_BITS;
    }
    return chance;
}

/* The chance of a token at or past this one. The codes of a step and of its opposite are neighbours. */
static uint64_t chance_from(const weft_rans_law *law, bool steps, unsigned token) {
    uint64_t first = weft_token_base(token);
    if (!steps) {
        return law_chance(law, first);
    }
    uint64_t chance = law_chance(law, first / 2);
    return first % 2 == 0 ? chance : (chance + law_chance(law, first / 2 + 1)) / 2;
}

/* Sets what each token of the law weighs, at least 1, and `more` behind them; returns how many tokens have
 * half a slot or are before one that has. */
static unsigned law_weights(const weft_rans_law *law, bool steps, uint64_t weights[WEFT_RANS_LAW_TOKENS]) {
    unsigned tokens = 0;
    uint64_t chance = chance_from(law, steps, 0);
    for (unsigned t = 0; t < WEFT_RANS_LAW_TOKENS && (chance >= HALF_SLOT || t < tokens + law->more); t++) {
        uint64_t next = chance_from(law, steps, t + 1);
        uint64_t weight = chance - next;
        weights[t] = weight > 0 ? weight : 1;
        tokens = weight >= HALF_SLOT ? t + 1 : tokens;
        chance = next;
    }
    return tokens;
}

/* False if the law is of more tokens than there are. */
static bool follow_law(weft_rans_table *table, weft_rans_subject subject, const weft_rans_law *law) {
    uint64_t weights[WEFT_RANS_LAW_TOKENS];
    unsigned tokens = law_weights(law, subject.steps, weights);
    tokens = tokens < subject.limit ? tokens : subject.limit;
    if (law->more > subject.limit - tokens) {
        return false;
    }
    memset(table, 0, sizeof *table);
    table->lawful = true;
    table->law = *law;
    table->tokens = tokens + law->more;
    share_out(table, weights);
    return true;
}

/* A number from 1 on: as many zeros as it has bits below its highest, and all of it, highest bit first. */
static unsigned gamma_bits(unsigned number) {
    return 2 * (31u - (unsigned)__builtin_clz(number)) + 1;
}

static void put_gamma(weft_bits_writer *bits, unsigned number) {
    unsigned below = gamma_bits(number) / 2;
    weft_bits_put(bits, (uint64_t)1 << below, below + 1);
    weft_bits_put(bits, number & ((1u << below) - 1), below);
}

static unsigned get_gamma(weft_bits_reader *bits, unsigned most_bits) {
    unsigned below = 0;
    while (below < most_bits && weft_bits_get(bits, 1) == 0) {
        below++;
    }
    return 1u << below | (unsigned)weft_bits_get(bits, below);
}

void weft_rans_table_write_either(const weft_rans_table *table, weft_bits_writer *bits) {
    weft_bits_put(bits, table->lawful, 1);
    if (!table->lawful) {
        weft_rans_table_write(table, bits);
        return;
    }
    weft_bits_put(bits, table->law.scale, SCALE_BITS);
    weft_bits_put(bits, table->law.shape, SHAPE_BITS);
    put_gamma(bits, table->law.more + 1);
}

bool weft_rans_table_read_either(weft_rans_table *table, weft_rans_subject subject,
                                 weft_bits_reader *bits) {
    if (weft_bits_get(bits, 1) == 0) {
        return weft_rans_table_read(table, bits);
    }
    weft_rans_law law;
    law.scale = (unsigned)weft_bits_get(bits, SCALE_BITS);
    law.shape = (unsigned)weft_bits_get(bits, SHAPE_BITS);
    law.more = get_gamma(bits, 8) - 1;
    return !weft_bits_overrun(bits) && follow_law(table, subject, &law);
}

/* ---- choosing a law ---- */

/* log2 by squaring: a digit of the fraction at a time. */
static uint16_t slot_cost(unsigned slots) {
    unsigned top = 31u - (unsigned)__builtin_clz(slots);
    uint64_t mantissa = (uint64_t)slots << (31 - top);
    unsigned log = top;
    for (unsigned i = 0; i < COST_BITS; i++) {
        mantissa = (mantissa * mantissa) >> 31;
        unsigned digit = (unsigned)(mantissa >> 32);
        mantissa >>= digit;
        log = 2 * log + digit;
    }
    return (uint16_t)(COST_MOST - log);
}

void weft_rans_costs_open(weft_rans_costs *costs) {
    memset(costs->tokens, 0, sizeof costs->tokens);
    for (unsigned slots = 1; slots <= WEFT_RANS_TOTAL; slots++) {
        costs->slots[slots] = slot_cost(slots);
    }
}

/* What `counts`, of which none is at or past `end`, cost under a law, which is thereby complete. */
static uint64_t law_cost(weft_rans_costs *costs, weft_rans_subject subject, weft_rans_law *law,
                         const uint32_t *counts, unsigned end) {
    unsigned number = law->scale * SHAPES + law->shape;
    uint16_t *tokens = costs->laws[subject.steps][number];
    if (costs->tokens[subject.steps][number] == 0) {
        const weft_rans_subject all = {subject.steps, WEFT_RANS_LAW_TOKENS};
        weft_rans_table table;
        law->more = 0;
        follow_law(&table, all, law);
        for (unsigned t = 0; t < WEFT_RANS_LAW_TOKENS; t++) {
            tokens[t] = t < table.tokens ? costs->slots[table.frequencies[t]] : (uint16_t)COST_MOST;
        }
        costs->tokens[subject.steps][number] = (uint8_t)table.tokens;
    }
    unsigned own = costs->tokens[subject.steps][number];
    own = own < subject.limit ? own : subject.limit;
    law->more = end > own ? end - own : 0;
    uint64_t total = (uint64_t)(1 + SCALE_BITS + SHAPE_BITS + gamma_bits(law->more + 1)) << COST_BITS;
    for (unsigned t = 0; t < end; t++) {
        total += (uint64_t)counts[t] * tokens[t];
    }
    return total;
}

/* The scale of a geometric law with the mean of the counts, about. */
static unsigned first_scale(bool steps, const uint32_t *counts, unsigned end) {
    uint64_t sum = 0, total = 0;
    for (unsigned t = 0; t < end; t++) {
        sum += (weft_token_base(t) + weft_token_base(t + 1) - 1) * counts[t];
        total += counts[t];
    }
    uint64_t mean = (sum << (steps ? 6 : 7)) / total;
    unsigned octave = mean < 8 ? 0 : 61u - (unsigned)__builtin_clzll(mean);
    unsigned scale = mean < 4 ? 0 : 4 * octave + (unsigned)((mean >> octave) & 3);
    return scale < SCALES ? scale : SCALES - 1;
}

/* The best law, looked for from the scale of the one before, as long as heavier tails are better. Returns
 * what the counts cost under it. */
static uint64_t choose_law(weft_rans_costs *costs, weft_rans_subject subject, const uint32_t *counts,
                           unsigned end, weft_rans_law *best) {
    weft_rans_law law = {.scale = first_scale(subject.steps, counts, end)};
    uint64_t least = UINT64_MAX;
    for (unsigned shape = SHAPES; shape-- > 0;) {
        law.shape = shape;
        uint64_t cost = law_cost(costs, subject, &law, counts, end);
        weft_rans_law found = law;
        for (int way = -1; way <= 1; way += 2) {
            law = found;
            while ((way < 0 ? law.scale > 0 : law.scale < SCALES - 1)) {
                law.scale += (unsigned)way;
                uint64_t other = law_cost(costs, subject, &law, counts, end);
                if (other >= cost) {
                    break;
                }
                cost = other;
                found = law;
            }
        }
        if (cost >= least) {
            break;
        }
        least = cost;
        *best = found;
        law = found;
    }
    return least;
}

static uint64_t levels_cost(const weft_rans_costs *costs, const weft_rans_table *table,
                            const uint32_t *counts) {
    uint64_t bits = 1 + TOKEN_BITS, total = 0;
    int previous = 0;
    for (unsigned t = 0; t < table->tokens; t++) {
        unsigned code = zigzag(table->levels[t] - previous);
        bits += code <= UNARY_MAX ? code + 1 : UNARY_MAX + 1 + LEVEL_BITS;
        previous = table->levels[t];
        total += counts[t] == 0 ? 0 : (uint64_t)counts[t] * costs->slots[table->frequencies[t]];
    }
    return (bits << COST_BITS) + total;
}

void weft_rans_table_fit_either(weft_rans_table *table, weft_rans_costs *costs, weft_rans_subject subject,
                                const uint8_t *symbols, size_t count) {
    uint32_t counts[WEFT_RANS_TOKENS];
    weft_rans_law law;
    count_symbols(symbols, count, counts);
    weft_rans_table_fit(table, counts);
    if (table->tokens <= subject.limit && table->tokens <= WEFT_RANS_LAW_TOKENS &&
        choose_law(costs, subject, counts, table->tokens, &law) < levels_cost(costs, table, counts)) {
        follow_law(table, subject, &law);
    }
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
    /* the four words that there may be are loaded before it is known how many are taken */
    for (; i + 4 <= count && decoder->end - cursor >= 8; i += 4) {
        uint64_t words;
        unsigned used = 0;
        memcpy(&words, cursor, sizeof words);
        s0 = weft_rans_refill_from(weft_rans_take(slots, s0, symbols + i), words, &used);
        s1 = weft_rans_refill_from(weft_rans_take(slots, s1, symbols + i + 1), words, &used);
        s2 = weft_rans_refill_from(weft_rans_take(slots, s2, symbols + i + 2), words, &used);
        s3 = weft_rans_refill_from(weft_rans_take(slots, s3, symbols + i + 3), words, &used);
        cursor += used / 8;
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
