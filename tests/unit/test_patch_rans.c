/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies under the codings: bits, tokens, tables of frequencies and the entropy coder. Round trips, and
 * streams that are cut or damaged, from heap blocks that end where the contract says that reading ends.
 */
#include "../../lib/code/rans.h"
#include "../../lib/code/token.h"
#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A copy of `size` bytes in a block of its own, with `slack` bytes of noise behind them. */
static uint8_t *copy_exact(const uint8_t *data, size_t size, size_t slack) {
    uint8_t *copy = malloc(size + slack > 0 ? size + slack : 1);
    assert_non_null(copy);
    memset(copy, 0xff, size + slack);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

/* ---- bits ---- */

static uint64_t low_bits(uint64_t value, unsigned count) {
    return count == 64 ? value : value & (((uint64_t)1 << count) - 1);
}

static void test_bits(void **state) {
    (void)state;
    enum { FIELDS = 3000 };
    static uint64_t values[FIELDS];
    static unsigned counts[FIELDS];
    dice dice = {1};
    for (unsigned round = 0; round < 50; round++) {
        uint8_t *room = malloc(FIELDS * 8 + 8);
        assert_non_null(room);
        memset(room, 0xee, FIELDS * 8 + 8);
        weft_bits_writer writer = {room, 0, 0};
        uint64_t total = 0;
        for (size_t i = 0; i < FIELDS; i++) {
            counts[i] = (unsigned)dice_below(&dice, round == 0 ? 65 : 1 + round % 64);
            values[i] = low_bits(dice_next(&dice), counts[i]);
            total += counts[i];
            if (counts[i] <= 56 && i % 2 == 0) {
                weft_bits_put(&writer, values[i], counts[i]);
            } else {
                weft_bits_put_wide(&writer, values[i], counts[i]);
            }
        }
        size_t size = (size_t)(weft_bits_finish(&writer) - room);
        assert_int_equal(size, (total + 7) / 8);
        uint8_t *exact = copy_exact(room, size, WEFT_BITS_SLACK);
        weft_bits_reader reader = weft_bits_over(exact, size);
        for (size_t i = 0; i < FIELDS; i++) {
            assert_true(weft_bits_get(&reader, counts[i]) == values[i]);
        }
        assert_false(weft_bits_overrun(&reader));
        assert_true(reader.size - reader.position < 8);
        assert_int_equal(weft_bits_get(&reader, 8), 0);
        assert_true(weft_bits_overrun(&reader));
        assert_int_equal(weft_bits_get(&reader, 0), 0);
        assert_true(weft_bits_overrun(&reader));
        free(exact);
        free(room);
    }
}

/* The first bit of a stream is the lowest of its first byte. */
static void test_bit_order(void **state) {
    (void)state;
    uint8_t room[16] = {0};
    weft_bits_writer writer = {room, 0, 0};
    weft_bits_put(&writer, 1, 1);
    weft_bits_put(&writer, 2, 3);
    weft_bits_put(&writer, 0xabc, 12);
    weft_bits_put(&writer, 1, 2);
    assert_ptr_equal(weft_bits_finish(&writer), room + 3);
    assert_int_equal(room[0], 0xc5);
    assert_int_equal(room[1], 0xab);
    assert_int_equal(room[2], 0x01);
}

/* ---- tokens ---- */

static void expect_token(uint64_t value) {
    unsigned token = weft_token_of(value);
    assert_true(token < WEFT_RANS_TOKENS);
    uint64_t base = weft_token_base(token);
    unsigned bits = weft_token_bits(token);
    assert_true(base <= value);
    assert_true(bits == 0 ? value == base : (value - base) >> bits == 0);
}

static void test_tokens(void **state) {
    (void)state;
    for (uint64_t value = 0; value < 200000; value++) {
        expect_token(value);
        assert_true(weft_token_of(value) <= weft_token_of(value + 1));
    }
    for (unsigned shift = 0; shift < 64; shift++) {
        expect_token((uint64_t)1 << shift);
        expect_token(((uint64_t)1 << shift) - 1);
        expect_token(UINT64_MAX >> shift);
    }
    dice dice = {2};
    for (unsigned i = 0; i < 100000; i++) {
        expect_token(dice_next(&dice) >> dice_below(&dice, 64));
    }
    assert_int_equal(weft_token_of(UINT64_MAX), 255);
    /* the ranges of the tokens follow each other without holes */
    for (unsigned token = 0; token < 255; token++) {
        uint64_t width = (uint64_t)1 << weft_token_bits(token);
        assert_true(weft_token_base(token) + width == weft_token_base(token + 1));
        assert_int_equal(weft_token_of(weft_token_base(token)), token);
        assert_int_equal(weft_token_of(weft_token_base(token) + width - 1), token);
    }
}

static void expect_step(uint64_t step, unsigned bits) {
    uint64_t code = weft_step_code(step, bits);
    assert_true(code <= low_bits(UINT64_MAX, bits));
    assert_true(weft_step_of_code(code, bits) == step);
}

static void test_steps(void **state) {
    (void)state;
    for (uint64_t step = 1; step < 65536; step++) {
        if (step < 256) {
            expect_step(step, 8);
        }
        expect_step(step, 16);
        expect_step(step, 32);
        expect_step(low_bits(0 - step, 32), 32);
        expect_step(step, 64);
        expect_step(0 - step, 64);
    }
    dice dice = {3};
    for (unsigned i = 0; i < 100000; i++) {
        uint64_t step = dice_next(&dice);
        expect_step(step | 1, 64);
        expect_step(low_bits(step, 32) | 1, 32);
    }
    const unsigned widths[] = {8, 16, 32, 64};
    for (unsigned w = 0; w < 4; w++) {
        unsigned bits = widths[w];
        uint64_t top = (uint64_t)1 << (bits - 1);
        assert_true(weft_step_code(1, bits) == 0);
        assert_true(weft_step_code(low_bits(UINT64_MAX, bits), bits) == 1);
        assert_true(weft_step_code(2, bits) == 2);
        assert_true(weft_step_code(top, bits) == low_bits(UINT64_MAX, bits));
        expect_step(top, bits);
        expect_step(top - 1, bits);
        expect_step(top + 1, bits);
    }
}

/* ---- tables ---- */

static void expect_sound(const weft_rans_table *table) {
    unsigned sum = 0;
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        assert_int_equal(table->starts[t], sum);
        assert_true((table->levels[t] != 0) == (table->frequencies[t] != 0));
        assert_true(t < table->tokens || table->frequencies[t] == 0);
        sum += table->frequencies[t];
    }
    assert_int_equal(sum, WEFT_RANS_TOTAL);
}

static void expect_same_table(const weft_rans_table *a, const weft_rans_table *b) {
    assert_int_equal(a->tokens, b->tokens);
    assert_memory_equal(a->levels, b->levels, sizeof a->levels);
    assert_memory_equal(a->frequencies, b->frequencies, sizeof a->frequencies);
    assert_memory_equal(a->starts, b->starts, sizeof a->starts);
}

/* Fits a table, writes it and reads it back; returns its size. */
static size_t expect_table(const uint32_t counts[WEFT_RANS_TOKENS], weft_rans_table *table) {
    weft_rans_table_fit(table, counts);
    expect_sound(table);
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        assert_true((counts[t] > 0) == (table->frequencies[t] > 0));
    }
    uint8_t room[2048];
    weft_bits_writer writer = {room, 0, 0};
    weft_rans_table_write(table, &writer);
    size_t size = (size_t)(weft_bits_finish(&writer) - room);
    assert_true(size <= WEFT_RANS_TABLE_MAX);
    uint8_t *exact = copy_exact(room, size, WEFT_BITS_SLACK);
    weft_bits_reader reader = weft_bits_over(exact, size);
    weft_rans_table again;
    assert_true(weft_rans_table_read(&again, &reader));
    assert_false(weft_bits_overrun(&reader));
    assert_true(reader.size - reader.position < 8);
    expect_same_table(table, &again);
    free(exact);
    return size;
}

/* How the counts of a table are drawn. */
static uint32_t draw_count(dice *dice, unsigned shape, unsigned token) {
    switch (shape) {
    case 0: /* even */
        return 1000;
    case 1: /* falling quickly: one token has nearly everything */
        return token < 30 ? (uint32_t)1 << (30 - token) : 1;
    case 2: /* sparse */
        return dice_below(dice, 10) == 0 ? 1 + (uint32_t)dice_below(dice, 1000) : 0;
    case 3: /* every other, far apart */
        return token % 2 == 1 ? 1000 : 0;
    case 4: /* alternating high and low */
        return token % 2 == 1 ? 1000000 : 1;
    default: /* any */
        return (uint32_t)(dice_next(dice) >> (32 + dice_below(dice, 32)));
    }
}

static void test_tables(void **state) {
    (void)state;
    dice dice = {4};
    for (unsigned round = 0; round < 3000; round++) {
        uint32_t counts[WEFT_RANS_TOKENS] = {0};
        unsigned tokens = 1 + (unsigned)dice_below(&dice, WEFT_RANS_TOKENS);
        for (unsigned t = 0; t < tokens; t++) {
            counts[t] = draw_count(&dice, round % 6, t);
        }
        counts[dice_below(&dice, tokens)]++;
        weft_rans_table table;
        expect_table(counts, &table);
    }
}

/* The costliest tables: each level far from the one before. */
static void test_largest_tables(void **state) {
    (void)state;
    dice dice = {5};
    size_t largest = 0;
    for (unsigned shape = 3; shape <= 4; shape++) {
        uint32_t counts[WEFT_RANS_TOKENS];
        for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
            counts[t] = draw_count(&dice, shape, t);
        }
        weft_rans_table table;
        size_t size = expect_table(counts, &table);
        largest = size > largest ? size : largest;
    }
    /* a byte for the number of tokens, and 22 bits for each of 256 */
    assert_true(largest >= 600);
}

static void test_single_token_tables(void **state) {
    (void)state;
    for (unsigned token = 0; token < WEFT_RANS_TOKENS; token++) {
        uint32_t counts[WEFT_RANS_TOKENS] = {0};
        counts[token] = 1 + token * 1000;
        weft_rans_table table;
        expect_table(counts, &table);
        assert_int_equal(table.frequencies[token], WEFT_RANS_TOTAL);
    }
}

/* Any bits are a sound table or none, and reading stays inside. */
static void test_hostile_tables(void **state) {
    (void)state;
    dice dice = {6};
    unsigned accepted = 0;
    for (unsigned round = 0; round < 20000; round++) {
        size_t size = (size_t)dice_below(&dice, 200);
        uint8_t *data = malloc(size + WEFT_BITS_SLACK);
        assert_non_null(data);
        dice_fill(&dice, data, size + WEFT_BITS_SLACK);
        /* mostly zeros, mostly ones, or any bits */
        for (size_t i = 0; i < size; i++) {
            uint8_t noise = (uint8_t)(dice_next(&dice) & dice_next(&dice) & dice_next(&dice));
            data[i] = round % 3 == 0 ? data[i] : round % 3 == 1 ? noise : (uint8_t)~noise;
        }
        if (size > 0 && round % 4 != 0) {
            data[0] = (uint8_t)dice_below(&dice, 40);
        }
        weft_bits_reader reader = weft_bits_over(data, size);
        weft_rans_table table;
        if (weft_rans_table_read(&table, &reader)) {
            assert_false(weft_bits_overrun(&reader));
            expect_sound(&table);
            accepted++;
        }
        free(data);
    }
    assert_true(accepted > 100);
}

/* ---- laws ---- */

/* As expect_sound, of a table that follows a law: all of its tokens can occur. */
static void expect_lawful(const weft_rans_table *table, weft_rans_subject subject) {
    unsigned sum = 0;
    assert_true(table->lawful && table->tokens <= subject.limit);
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        assert_int_equal(table->starts[t], sum);
        assert_true((t < table->tokens) == (table->frequencies[t] != 0));
        sum += table->frequencies[t];
    }
    assert_int_equal(sum, WEFT_RANS_TOTAL);
}

/* Writes a law and reads it back. False if it is refused. */
static bool law_again(weft_rans_law law, weft_rans_subject subject, weft_rans_table *again) {
    uint8_t room[32];
    weft_bits_writer writer = {room, 0, 0};
    const weft_rans_table table = {.lawful = true, .law = law};
    weft_rans_table_write_either(&table, &writer);
    size_t size = (size_t)(weft_bits_finish(&writer) - room);
    uint8_t *exact = copy_exact(room, size, WEFT_BITS_SLACK);
    weft_bits_reader reader = weft_bits_over(exact, 1);
    assert_false(weft_rans_table_read_either(again, subject, &reader));
    reader = weft_bits_over(exact, size);
    bool good = weft_rans_table_read_either(again, subject, &reader);
    if (good) {
        assert_true(reader.size - reader.position < 8);
        assert_memory_equal(&again->law, &law, sizeof law);
        expect_lawful(again, subject);
    }
    free(exact);
    return good;
}

/* Every law there is: with no token more, with as many as there may be, and with one too many. */
static void test_every_law(void **state) {
    (void)state;
    const weft_rans_subject subjects[] = {{false, 128}, {false, 96}, {true, 128}, {true, 64}};
    for (unsigned i = 0; i < 4 * WEFT_RANS_LAWS; i++) {
        weft_rans_law law = {.scale = i / 16, .shape = i / 4 % 4};
        weft_rans_table table;
        assert_true(law_again(law, subjects[i % 4], &table));
        law.more = subjects[i % 4].limit - table.tokens;
        assert_true(law_again(law, subjects[i % 4], &table));
        assert_int_equal(table.tokens, subjects[i % 4].limit);
        law.more++;
        assert_false(law_again(law, subjects[i % 4], &table));
    }
}

/* Steps of either sign cost the same: no direction is better than the other. */
static void test_laws_of_steps_are_even(void **state) {
    (void)state;
    dice dice = {14};
    weft_rans_costs *costs = malloc(sizeof *costs);
    uint8_t symbols[4000];
    assert_non_null(costs);
    weft_rans_costs_open(costs);
    for (size_t i = 0; i < sizeof symbols; i++) {
        unsigned length = 0;
        while (dice_below(&dice, 4) == 0 && length < 7) {
            length++;
        }
        symbols[i] = (uint8_t)(2 * length + dice_below(&dice, 2));
    }
    weft_rans_table table;
    weft_rans_table_fit_either(&table, costs, (weft_rans_subject){true, 64}, symbols, sizeof symbols);
    expect_lawful(&table, (weft_rans_subject){true, 64});
    for (unsigned t = 2; t + 1 < table.tokens && t < 16; t += 2) {
        assert_in_range(table.frequencies[t] + 1, table.frequencies[t + 1], table.frequencies[t + 1] + 2);
    }
    free(costs);
}

/* The bits that symbols and their table take. */
static double cost_of(const weft_rans_table *table, const uint8_t *symbols, size_t count) {
    uint8_t room[2048];
    weft_bits_writer writer = {room, 0, 0};
    weft_rans_table_write_either(table, &writer);
    double bits = 8.0 * (double)(writer.cursor - room) + writer.count;
    for (size_t i = 0; i < count; i++) {
        assert_true(table->frequencies[symbols[i]] > 0);
        bits += 12 - log2(table->frequencies[symbols[i]]);
    }
    return bits;
}

/* Gaps of a geometric law, from one in two to one in a million, few and many: a law is chosen, it takes
 * less than levels do, and little more than the entropy. Symbols without any law get levels, and none is
 * ever dearer for the choice than by its bit. */
static void test_either(void **state) {
    (void)state;
    enum { MOST = 20000 };
    dice dice = {15};
    weft_rans_costs *costs = malloc(sizeof *costs);
    uint8_t *symbols = malloc(MOST);
    assert_true(costs != NULL && symbols != NULL);
    weft_rans_costs_open(costs);
    const weft_rans_subject gaps = {false, 128};
    for (unsigned octave = 1; octave <= 20; octave++) {
        for (size_t count = 20; count <= MOST; count *= 10) {
            double mean = (double)((uint64_t)1 << octave), entropy = 0;
            for (size_t i = 0; i < count; i++) {
                double chance = (1 + (double)dice_below(&dice, 1u << 30)) / ((1u << 30) + 1.0);
                symbols[i] = (uint8_t)weft_token_of((uint64_t)(log(chance) / log(1 - 1 / mean)));
                uint64_t first = weft_token_base(symbols[i]), next = weft_token_base(symbols[i] + 1u);
                entropy -= log2(pow(1 - 1 / mean, (double)first) - pow(1 - 1 / mean, (double)next));
            }
            weft_rans_table either, levels;
            weft_rans_table_fit_either(&either, costs, gaps, symbols, count);
            weft_rans_table_fit_symbols(&levels, symbols, count);
            double bits = cost_of(&either, symbols, count);
            assert_true(either.lawful);
            assert_true(bits < cost_of(&levels, symbols, count));
            assert_true(bits < entropy + 16 + 0.03 * (double)count);
        }
    }
    for (unsigned round = 0; round < 2000; round++) {
        size_t count = 1 + (size_t)dice_below(&dice, 3000);
        unsigned tokens = 1 + (unsigned)dice_below(&dice, WEFT_RANS_TOKENS);
        for (size_t i = 0; i < count; i++) {
            symbols[i] = (uint8_t)(dice_below(&dice, tokens) | (round % 2 == 1 ? 1 : 0));
        }
        const weft_rans_subject subject = {round % 4 < 2, round % 8 < 4 ? 128 : 64};
        weft_rans_table either, levels;
        weft_rans_table_fit_either(&either, costs, subject, symbols, count);
        weft_rans_table_fit_symbols(&levels, symbols, count);
        assert_true(cost_of(&either, symbols, count) <
                    cost_of(&levels, symbols, count) + 0.01 * (double)count + 1);
    }
    free(symbols);
    free(costs);
}

/* ---- the coder ---- */

enum { ARRAYS_MAX = 9 };

/* Several arrays that share a stream, as in a bucket. */
typedef struct arrays {
    size_t count;
    size_t sizes[ARRAYS_MAX];
    uint8_t *symbols[ARRAYS_MAX];
    weft_rans_table tables[ARRAYS_MAX];
} arrays;

static void draw_array(dice *dice, arrays *arrays, size_t index, size_t size) {
    uint32_t counts[WEFT_RANS_TOKENS] = {0};
    uint8_t *symbols = malloc(size > 0 ? size : 1);
    assert_non_null(symbols);
    unsigned kind = (unsigned)dice_below(dice, 4);
    uint8_t only = (uint8_t)dice_next(dice);
    for (size_t i = 0; i < size; i++) {
        uint64_t bits = dice_next(dice);
        symbols[i] = kind == 0   ? only
                     : kind == 1 ? (uint8_t)bits
                     : kind == 2 ? (uint8_t)__builtin_ctzll(bits | (uint64_t)1 << 62)
                                 : (uint8_t)(bits % 100 == 0 ? bits >> 32 : 7);
        counts[symbols[i]]++;
    }
    if (size == 0) {
        counts[only] = 1;
    }
    arrays->sizes[index] = size;
    arrays->symbols[index] = symbols;
    weft_rans_table_fit(&arrays->tables[index], counts);
}

static void close_arrays(arrays *arrays) {
    for (size_t i = 0; i < arrays->count; i++) {
        free(arrays->symbols[i]);
    }
}

/* Encodes into a block of exactly the size that the contract asks for. */
static uint8_t *encode_with(const arrays *arrays, weft_rans_fours fours, size_t *size_out) {
    size_t total = 0;
    for (size_t i = 0; i < arrays->count; i++) {
        total += arrays->sizes[i];
    }
    size_t room_size = 2 * total + 16;
    uint8_t *room = malloc(room_size);
    assert_non_null(room);
    weft_rans_encoder encoder;
    weft_rans_encoder_open(&encoder, room, room_size);
    encoder.fours = fours;
    for (size_t i = arrays->count; i-- > 0;) {
        weft_rans_encode(&encoder, &arrays->tables[i], arrays->symbols[i], arrays->sizes[i]);
    }
    const uint8_t *start = weft_rans_encoder_finish(&encoder);
    assert_true(start >= room);
    *size_out = (size_t)(room + room_size - start);
    uint8_t *stream = copy_exact(start, *size_out, 0);
    free(room);
    return stream;
}

/* Every processor level writes the same bytes. */
static uint8_t *encode_arrays(const arrays *arrays, size_t *size_out) {
    uint8_t *stream = encode_with(arrays, weft_rans_fours_for(WEFT_CPU_PORTABLE), size_out);
    for (int level = WEFT_CPU_PORTABLE + 1; level <= (int)weft_cpu_best(); level++) {
        size_t size;
        uint8_t *again = encode_with(arrays, weft_rans_fours_for((weft_cpu)level), &size);
        assert_int_equal(size, *size_out);
        assert_memory_equal(again, stream, size);
        free(again);
    }
    return stream;
}

/* True if every array came out, whatever is in it. */
static bool decode_arrays(const arrays *arrays, const uint8_t *stream, size_t size, bool *equal_out) {
    weft_rans_decoder *decoder = malloc(sizeof *decoder);
    assert_non_null(decoder);
    bool good = weft_rans_decoder_open(decoder, stream, size);
    *equal_out = true;
    for (size_t i = 0; i < arrays->count && good; i++) {
        uint8_t *symbols = malloc(arrays->sizes[i] > 0 ? arrays->sizes[i] : 1);
        assert_non_null(symbols);
        good = weft_rans_decode(decoder, &arrays->tables[i], symbols, arrays->sizes[i]);
        if (good && memcmp(symbols, arrays->symbols[i], arrays->sizes[i]) != 0) {
            *equal_out = false;
        }
        free(symbols);
    }
    good = good && weft_rans_decoder_done(decoder);
    free(decoder);
    return good;
}

static void test_round_trips(void **state) {
    (void)state;
    dice dice = {7};
    for (unsigned round = 0; round < 600; round++) {
        static arrays arrays;
        arrays.count = 1 + (size_t)dice_below(&dice, ARRAYS_MAX);
        for (size_t i = 0; i < arrays.count; i++) {
            size_t size = round < 100 ? (size_t)dice_below(&dice, 9)
                                      : (size_t)dice_below(&dice, (uint64_t)1 << (1 + round % 13));
            draw_array(&dice, &arrays, i, size);
        }
        size_t size;
        uint8_t *stream = encode_arrays(&arrays, &size);
        bool equal;
        assert_true(decode_arrays(&arrays, stream, size, &equal));
        assert_true(equal);
        free(stream);
        close_arrays(&arrays);
    }
}

/* Every number of symbols up to 40, with a table of one token and with a full one. */
static void test_short_arrays(void **state) {
    (void)state;
    for (size_t size = 0; size <= 40; size++) {
        for (unsigned spread = 1; spread <= 256; spread += 255) {
            static arrays arrays;
            uint32_t counts[WEFT_RANS_TOKENS] = {0};
            for (unsigned t = 0; t < spread; t++) {
                counts[t] = 1 + t;
            }
            arrays.count = 1;
            arrays.sizes[0] = size;
            arrays.symbols[0] = malloc(size > 0 ? size : 1);
            assert_non_null(arrays.symbols[0]);
            for (size_t i = 0; i < size; i++) {
                arrays.symbols[0][i] = (uint8_t)(i * 37 % spread);
            }
            weft_rans_table_fit(&arrays.tables[0], counts);
            size_t stream_size;
            uint8_t *stream = encode_arrays(&arrays, &stream_size);
            if (spread == 1) {
                assert_int_equal(stream_size, 16);
            }
            bool equal;
            assert_true(decode_arrays(&arrays, stream, stream_size, &equal));
            assert_true(equal);
            free(stream);
            close_arrays(&arrays);
        }
    }
}

/* What the coder takes is close to the entropy: 4 tokens of equal chance cost two bits each. */
static void test_cost(void **state) {
    (void)state;
    enum { SIZE = 40000 };
    static arrays arrays;
    uint32_t counts[WEFT_RANS_TOKENS] = {1, 1, 1, 1};
    dice dice = {8};
    arrays.count = 1;
    arrays.sizes[0] = SIZE;
    arrays.symbols[0] = malloc(SIZE);
    assert_non_null(arrays.symbols[0]);
    for (size_t i = 0; i < SIZE; i++) {
        arrays.symbols[0][i] = (uint8_t)dice_below(&dice, 4);
    }
    weft_rans_table_fit(&arrays.tables[0], counts);
    size_t size;
    free(encode_arrays(&arrays, &size));
    assert_in_range(size, SIZE / 4, SIZE / 4 + 16);
    close_arrays(&arrays);
}

/* A stream with its end cut off never decodes, nor does one with bytes left over. */
static void test_wrong_lengths(void **state) {
    (void)state;
    dice dice = {9};
    for (unsigned round = 0; round < 60; round++) {
        static arrays arrays;
        arrays.count = 1 + (size_t)dice_below(&dice, 3);
        for (size_t i = 0; i < arrays.count; i++) {
            draw_array(&dice, &arrays, i, (size_t)dice_below(&dice, 120));
        }
        size_t size;
        uint8_t *stream = encode_arrays(&arrays, &size);
        for (size_t length = 0; length < size; length++) {
            uint8_t *cut = copy_exact(stream, length, 0);
            bool equal;
            assert_false(decode_arrays(&arrays, cut, length, &equal));
            free(cut);
        }
        uint8_t *longer = copy_exact(stream, size, 2);
        bool equal;
        assert_false(decode_arrays(&arrays, longer, size + 2, &equal));
        free(longer);
        free(stream);
        close_arrays(&arrays);
    }
}

/* A damaged stream decodes to something or not at all; it is never taken for the true symbols. */
static void test_damaged_streams(void **state) {
    (void)state;
    dice dice = {10};
    unsigned refused = 0;
    for (unsigned round = 0; round < 4000; round++) {
        static arrays arrays;
        arrays.count = 1 + (size_t)dice_below(&dice, 3);
        for (size_t i = 0; i < arrays.count; i++) {
            draw_array(&dice, &arrays, i, (size_t)dice_below(&dice, 200));
        }
        size_t size;
        uint8_t *stream = encode_arrays(&arrays, &size);
        if (round % 2 == 0) {
            stream[dice_below(&dice, size)] ^= (uint8_t)(1 + dice_below(&dice, 255));
        } else {
            dice_fill(&dice, stream, size);
        }
        bool equal;
        bool good = decode_arrays(&arrays, stream, size, &equal);
        assert_false(good && equal);
        refused += !good;
        free(stream);
        close_arrays(&arrays);
    }
    assert_true(refused > 3900);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bit_order),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_largest_tables),
        cmocka_unit_test(test_single_token_tables),
        cmocka_unit_test(test_hostile_tables),
        cmocka_unit_test(test_every_law),
        cmocka_unit_test(test_laws_of_steps_are_even),
        cmocka_unit_test(test_either),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_short_arrays),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_wrong_lengths),
        cmocka_unit_test(test_damaged_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
