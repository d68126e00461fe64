/* SPDX-License-Identifier: Apache-2.0
 *
 * What has fired, sorted and made tokens: every processor level against the definitions, one item at a time
 * and with no thought of speed.
 */
#include "../../lib/code/block.h"
#include "../../lib/loco/gate/gate.h"
#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 21, CLASSES = 5 };

static const uint8_t cuts[CLASSES] = {0, 100, 118, 121, 124};

typedef struct scene {
    uint16_t words[WEFT_TILE];
    weft_gate_room room;
    weft_entries fired;
} scene;

typedef struct sorted {
    uint64_t items[CLASSES][WEFT_TILE];
    size_t counts[CLASSES];
    uint32_t offsets[WEFT_CLASS_MAX];
} sorted;

static unsigned class_of(unsigned exponent) {
    unsigned c = CLASSES - 1;
    while (exponent < cuts[c]) {
        c--;
    }
    return c;
}

/* One weight in `rarity` has fired, of a tile of `count` that starts at `linear`. */
static void fill_scene(scene *s, dice *dice, size_t count, uint32_t linear, uint64_t rarity) {
    s->fired = weft_fired_in(&s->room);
    for (size_t i = 0; i < count; i++) {
        uint16_t exponent =
            (uint16_t)(dice_below(dice, 50) == 0 ? dice_below(dice, 255) : 112 + dice_below(dice, 14));
        s->words[i] = (uint16_t)(exponent << WEFT_WORD_SHIFT | (dice_next(dice) & 0x807f));
        if (dice_below(dice, rarity) == 0) {
            s->room.positions[s->fired.count] = linear + (uint32_t)i;
            s->room.values[s->fired.count] = (uint32_t)dice_next(dice);
            s->room.fired_words[s->fired.count] = s->words[i];
            s->fired.count++;
        }
    }
}

/* Goes through all weights and counts those of each class since the last that has fired. */
static void sort_plainly(const scene *s, size_t count, uint32_t linear, uint32_t gaps[CLASSES],
                         sorted *out) {
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned exponent = weft_word_exponent(s->words[i]);
        unsigned c = class_of(exponent);
        if (next < s->fired.count && s->fired.positions[next] == linear + i) {
            out->items[c][out->counts[c]++] = weft_item_pack(gaps[c], exponent, s->fired.values[next]);
            gaps[c] = 0;
            next++;
        } else {
            gaps[c]++;
        }
    }
}

static void sort_by_kernels(weft_cpu level, const scene *s, size_t count, uint32_t linear, weft_tile *tile,
                            sorted *out) {
    uint8_t class_of_exponent[256];
    weft_sorting sorting = {.classes = CLASSES,
                            .class_of_exponent = class_of_exponent,
                            .shift = WEFT_WORD_SHIFT,
                            .exponents = WEFT_ITEM_VALUES};
    for (unsigned e = 0; e < 256; e++) {
        class_of_exponent[e] = (uint8_t)class_of(e);
    }
    for (unsigned c = 0; c < CLASSES; c++) {
        sorting.offsets[c] = out->offsets[c] + tile->counts[c];
        sorting.ends[c] = out->items[c] + out->counts[c];
    }
    weft_tile_kernels_for(level)->classify(s->words, count, WEFT_WORD_SHIFT, cuts, CLASSES, tile);
    weft_entry_kernels_for(level)->sort(tile, &s->fired, linear, &sorting);
    for (unsigned c = 0; c < CLASSES; c++) {
        out->offsets[c] = sorting.offsets[c];
        out->counts[c] = (size_t)(sorting.ends[c] - out->items[c]);
    }
}

/* Two tiles, one after the other: gaps go on from the first to the second. */
static void test_sort(void **state) {
    (void)state;
    static scene scenes[2];
    static sorted expected, found;
    static weft_tile tile;
    dice dice = {11};
    for (unsigned round = 0; round < 60; round++) {
        size_t counts[2] = {WEFT_TILE / 2, 1 + (size_t)dice_below(&dice, WEFT_TILE / 2)};
        uint32_t linears[2] = {1000, 1000 + WEFT_TILE / 2};
        uint32_t gaps[CLASSES] = {0};
        memset(&expected, 0, sizeof expected);
        for (unsigned i = 0; i < 2; i++) {
            fill_scene(&scenes[i], &dice, counts[i], linears[i], 1 + round % 40);
            sort_plainly(&scenes[i], counts[i], linears[i], gaps, &expected);
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            memset(&found, 0, sizeof found);
            memset(tile.counts, 0, sizeof tile.counts);
            for (unsigned i = 0; i < 2; i++) {
                sort_by_kernels((weft_cpu)level, &scenes[i], counts[i], linears[i], &tile, &found);
            }
            assert_memory_equal(found.counts, expected.counts, sizeof found.counts);
            for (unsigned c = 0; c < CLASSES; c++) {
                assert_memory_equal(found.items[c], expected.items[c],
                                    expected.counts[c] * sizeof *found.items[c]);
            }
        }
    }
}

/* ---- tokens ---- */

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* By the multiple itself, which is formed here. */
static unsigned value_token(uint32_t exponent, uint32_t value, unsigned most, uint64_t *rest_out,
                            unsigned *size_out) {
    double multiple = fabs(ldexp(float_of(value), 150 - (int)(exponent > 0 ? exponent : 1)));
    if (multiple != floor(multiple) || multiple >= ldexp(1, WEFT_VALUE_BITS)) {
        *rest_out = value;
        *size_out = 32;
        return WEFT_VALUE_ESCAPE;
    }
    uint64_t whole = (uint64_t)multiple;
    unsigned token = weft_token_of(whole);
    unsigned bits = weft_token_bits(token);
    unsigned kept = bits < most ? bits : most;
    *rest_out =
        whole == 0 ? 0 : ((whole & (((uint64_t)1 << bits) - 1)) >> (bits - kept)) << 1 | value >> 31;
    *size_out = whole == 0 ? 0 : kept + 1;
    return token;
}

static uint64_t item_plainly(uint64_t item, unsigned most, uint8_t *gap_token, uint8_t *token) {
    uint32_t gap = (uint32_t)item & 0xffffffu;
    *gap_token = (uint8_t)weft_token_of(gap);
    unsigned gap_size = weft_token_bits(*gap_token);
    uint64_t rest;
    unsigned size;
    *token = (uint8_t)value_token((uint32_t)item >> 24, (uint32_t)(item >> 32), most, &rest, &size);
    return (gap & (((uint64_t)1 << gap_size) - 1)) | rest << gap_size | (uint64_t)(gap_size + size) << 56;
}

/* Multiples of all sizes, and values that are none: too fine, too large, subnormal, zero of both signs. */
static uint64_t draw_item(dice *dice) {
    uint32_t exponent = (uint32_t)dice_below(dice, 4) == 0 ? (uint32_t)dice_below(dice, 255)
                                                           : 100 + (uint32_t)dice_below(dice, 27);
    uint32_t gap = (uint32_t)(dice_next(dice) >> (40 + dice_below(dice, 24)));
    uint32_t value = (uint32_t)dice_next(dice);
    if (dice_below(dice, 8) != 0) {
        double multiple = (double)(dice_next(dice) >> (40 + dice_below(dice, 24)));
        float exact = (float)ldexp(multiple, (int)(exponent > 0 ? exponent : 1) - 150);
        memcpy(&value, &exact, sizeof value);
        value |= (uint32_t)dice_below(dice, 2) << 31;
    }
    if ((value & 0x7f800000u) == 0x7f800000u) {
        value &= 0x807fffffu;
    }
    return weft_item_pack(gap, exponent, value);
}

static void test_tokens(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    static uint64_t items[COUNT], expected[COUNT], found[COUNT];
    static uint8_t tokens[2][COUNT], found_tokens[2][COUNT];
    dice dice = {13};
    for (unsigned round = 0; round < 200; round++) {
        size_t count = (size_t)dice_below(&dice, COUNT + 1);
        for (size_t i = 0; i < count; i++) {
            items[i] = draw_item(&dice);
            expected[i] = item_plainly(items[i], MOST, &tokens[0][i], &tokens[1][i]);
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            memcpy(found, items, count * sizeof *items);
            weft_entry_kernels_for((weft_cpu)level)
                ->tokenise_values(found, count, MOST, found_tokens[0], found_tokens[1]);
            assert_memory_equal(found, expected, count * sizeof *found);
            assert_memory_equal(found_tokens[0], tokens[0], count);
            assert_memory_equal(found_tokens[1], tokens[1], count);
        }
    }
}

/* Gaps and codes of all 32 bits, among them those around which the highest bits change. */
static void test_tokens_of_steps(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    static uint64_t items[COUNT];
    static uint8_t tokens[2][COUNT], found[2][COUNT];
    dice dice = {17};
    for (unsigned round = 0; round < 400; round++) {
        size_t count = (size_t)dice_below(&dice, COUNT + 1);
        for (size_t i = 0; i < count; i++) {
            uint32_t numbers[2];
            for (unsigned half = 0; half < 2; half++) {
                uint32_t number = (uint32_t)(dice_next(&dice) >> (32 + dice_below(&dice, 32)));
                uint32_t edge = (4 + (uint32_t)dice_below(&dice, 4)) << dice_below(&dice, 30);
                numbers[half] = dice_below(&dice, 3) != 0 ? number : edge - (uint32_t)dice_below(&dice, 2);
                tokens[half][i] = (uint8_t)weft_token_of(numbers[half]);
            }
            items[i] = weft_item_pack(numbers[0], 0, numbers[1]);
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            weft_entry_kernels_for((weft_cpu)level)->tokenise_steps(items, count, found[0], found[1]);
            assert_memory_equal(found[0], tokens[0], count);
            assert_memory_equal(found[1], tokens[1], count);
        }
    }
}

/* ---- the way back ---- */

/* By the multiple, times the ULP. */
static float value_plainly(uint64_t code, uint16_t word) {
    unsigned exponent = weft_word_exponent(word);
    if (code >= WEFT_CODE_ESCAPE) {
        return float_of((uint32_t)code);
    }
    double multiple = ldexp((double)(code >> 1), (int)(exponent > 0 ? exponent : 1) - 150);
    return (float)((code & 1) != 0 ? -multiple : multiple);
}

/* A multiple of 24 bits below 2^48, of either sign, zero, or a value as it is. */
static uint64_t draw_code(dice *dice) {
    uint64_t kind = dice_below(dice, 8);
    uint64_t multiple = dice_next(dice) >> (40 + dice_below(dice, 24)) << dice_below(dice, 25);
    return kind == 0   ? WEFT_CODE_ESCAPE | (uint32_t)dice_next(dice)
           : kind == 1 ? 0
                       : multiple << 1 | dice_below(dice, 2);
}

static void test_values(void **state) {
    (void)state;
    enum { COUNT = 1000, ROOM = COUNT + WEFT_KERNEL_SLACK };
    static uint64_t codes[ROOM];
    static uint16_t words[ROOM], halves[ROOM];
    static float numbers[COUNT], expected[COUNT], found[ROOM];
    dice dice = {19};
    for (unsigned round = 0; round < 200; round++) {
        size_t count = (size_t)dice_below(&dice, COUNT + 1);
        uint32_t highest = 0;
        memset(codes, 0, sizeof codes);
        memset(words, 0xff, sizeof words);
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)dice_next(&dice);
            numbers[i] = float_of(bits);
            words[i] = (uint16_t)(bits >> 16);
            codes[i] = draw_code(&dice);
            expected[i] = value_plainly(codes[i], words[i]);
            memcpy(&bits, &expected[i], sizeof bits);
            highest = (bits & 0x7fffffffu) > highest ? bits & 0x7fffffffu : highest;
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            const weft_entry_kernels *kernels = weft_entry_kernels_for((weft_cpu)level);
            kernels->words(numbers, count, sizeof *numbers, halves);
            assert_memory_equal(halves, words, count * sizeof *halves);
            kernels->words(numbers, 4 * count < ROOM ? 4 * count : 0, 1, halves);
            for (size_t i = 0; i < (4 * count < ROOM ? 4 * count : 0); i++) {
                assert_int_equal(halves[i], ((const uint8_t *)numbers)[i] << 8);
            }
            assert_int_equal(kernels->values(codes, words, count, found), highest);
            assert_memory_equal(found, expected, count * sizeof *found);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_tokens_of_steps),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
