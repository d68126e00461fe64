/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate: every processor level against the portable form, the portable form against its definition, and
 * nothing lost: what is sent and what is kept add up to the value, bit for bit.
 */
#include "../../lib/loco/gate/gate.h"
#include "loco_ranks.h"
#include "models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <weft/loco.h>

#include <cmocka.h>

enum { COUNT = WEFT_TILE, ROOM = COUNT + WEFT_KERNEL_SLACK };

typedef struct gate_case {
    float consensus[COUNT];
    float local[COUNT];
    float residual[COUNT];
} gate_case;

typedef struct gate_result {
    float kept[COUNT];
    uint16_t words[COUNT];
    uint32_t positions[ROOM];
    uint32_t values[ROOM];
    uint16_t fired_words[ROOM];
    size_t count;
    uint32_t highest;
} gate_result;

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Weights of all exponents that keep clear of infinity, moved a little, by nothing, or far. */
static void fill_case(gate_case *c, dice *dice) {
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)dice_next(dice);
        uint32_t near = 110 + (uint32_t)dice_below(dice, 16);
        uint32_t exponent = dice_below(dice, 8) == 0 ? bits >> 24 & 0x7f : near;
        c->consensus[i] = float_of((bits & 0x807fffff) | exponent << 23);
        uint64_t kind = dice_below(dice, 8);
        c->local[i] = c->consensus[i];
        if (kind == 0) {
            c->local[i] = -c->consensus[i];
        } else if (kind < 6) {
            c->local[i] =
                float_of(bits_of(c->consensus[i]) + (uint32_t)dice_below(dice, 1u << 17) - (1u << 16));
        }
        c->residual[i] = dice_below(dice, 3) == 0 ? 0 : (c->local[i] - c->consensus[i]) * 0.3f;
    }
}

static void run_gate(weft_gate gate, const gate_case *c, size_t start, size_t count, uint32_t mask,
                     bool open, uint32_t grid, gate_result *result) {
    memset(result, 0xee, sizeof *result);
    weft_entries fired = {0, result->positions, result->values, result->fired_words};
    weft_gate_input input = {
        .consensus = c->consensus + start,
        .local = c->local + start,
        .residual = c->residual + start,
        .kept = result->kept,
        .count = count,
        .first = 1000,
        .mask = mask,
        .open = open,
        .grid = grid,
    };
    result->highest = gate(&input, &fired, result->words);
    result->count = fired.count;
}

static void assert_same(const gate_result *a, const gate_result *b, size_t count) {
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->highest, b->highest);
    assert_memory_equal(a->kept, b->kept, count * sizeof *a->kept);
    assert_memory_equal(a->words, b->words, count * sizeof *a->words);
    assert_memory_equal(a->positions, b->positions, a->count * sizeof *a->positions);
    assert_memory_equal(a->values, b->values, a->count * sizeof *a->values);
    assert_memory_equal(a->fired_words, b->fired_words, a->count * sizeof *a->fired_words);
}

static void test_levels(void **state) {
    (void)state;
    static gate_case c;
    static gate_result expected, found;
    dice dice = {3};
    for (unsigned round = 0; round < 200; round++) {
        fill_case(&c, &dice);
        size_t start = dice_below(&dice, 16);
        size_t count = round < 80 ? round : dice_below(&dice, COUNT - start + 1);
        uint32_t significant = round % 3 == 0 ? 0 : 2 + (uint32_t)dice_below(&dice, 22);
        bool open = round % 5 == 4;
        uint32_t grid = open || round % 2 == 0 ? 0 : 1 + (uint32_t)dice_below(&dice, 8);
        run_gate(weft_gate_portable, &c, start, count, weft_gate_mask(significant), open, grid, &expected);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            run_gate(weft_gate_for((weft_cpu)level), &c, start, count, weft_gate_mask(significant), open,
                     grid, &found);
            assert_same(&expected, &found, count);
        }
    }
}

static void test_definition(void **state) {
    (void)state;
    static gate_case c;
    static gate_result result;
    dice dice = {5};
    for (unsigned round = 0; round < 60; round++) {
        uint32_t significant = round % 2 == 0 ? 0 : 8;
        fill_case(&c, &dice);
        run_gate(weft_gate_for(weft_cpu_best()), &c, 0, COUNT, weft_gate_mask(significant), false, 0,
                 &result);
        size_t next = 0;
        for (size_t i = 0; i < COUNT; i++) {
            float s = c.residual[i] + (c.consensus[i] - c.local[i]);
            float moved = c.consensus[i] - s;
            uint16_t before, after;
            weft_bf16_from_f32(&c.consensus[i], &before, 1);
            weft_bf16_from_f32(&moved, &after, 1);
            float sent = 0;
            if (before != after) {
                assert_true(next < result.count);
                assert_int_equal(result.positions[next], 1000 + i);
                sent = float_of(result.values[next++]);
                assert_true(fabsf(sent) <= fabsf(s));
                assert_true(significant != 0 || bits_of(sent) == bits_of(s));
                assert_true(significant == 0 || (bits_of(sent) & 0xffff) == 0);
            }
            assert_true((double)sent + (double)result.kept[i] == (double)s);
            assert_true(sent + result.kept[i] == s);
        }
        assert_int_equal(next, result.count);
    }
}

static void test_grid(void **state) {
    (void)state;
    static gate_case c;
    static gate_result result;
    dice dice = {9};
    for (unsigned round = 0; round < 80; round++) {
        uint32_t grid = 1 + round % 8;
        uint32_t significant = round % 3 == 0 ? 0 : 3;
        fill_case(&c, &dice);
        run_gate(weft_gate_for(weft_cpu_best()), &c, 0, COUNT, weft_gate_mask(significant), false, grid,
                 &result);
        size_t next = 0;
        for (size_t i = 0; i < COUNT; i++) {
            float s = c.residual[i] + (c.consensus[i] - c.local[i]);
            float whole = (float)loco_on_grid((double)s, c.consensus[i], grid);
            float sent = 0;
            if (whole != 0) {
                assert_true(next < result.count);
                assert_int_equal(result.positions[next], 1000 + i);
                sent = float_of(result.values[next++]);
                assert_int_equal(bits_of(sent), bits_of(whole) & weft_gate_mask(significant));
            }
            assert_true((double)sent + (double)result.kept[i] == (double)s);
        }
        assert_int_equal(next, result.count);
    }
}

/* What is not finite is seen at every level, wherever it stands. */
static void test_not_finite(void **state) {
    (void)state;
    static gate_case c;
    static gate_result result;
    dice dice = {7};
    const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (unsigned round = 0; round < 64; round++) {
        fill_case(&c, &dice);
        size_t count = 1 + dice_below(&dice, 70);
        size_t at = dice_below(&dice, count);
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            run_gate(weft_gate_for((weft_cpu)level), &c, 0, count, UINT32_MAX, false, 0, &result);
            assert_true(result.highest < WEFT_NOT_FINITE);
            float kept = c.local[at];
            c.local[at] = bad[round % 4];
            c.consensus[at] = round % 4 == 3 ? -3e38f : c.consensus[at];
            run_gate(weft_gate_for((weft_cpu)level), &c, 0, count, UINT32_MAX, false, 0, &result);
            assert_true(result.highest >= WEFT_NOT_FINITE);
            c.local[at] = kept;
            c.consensus[at] = round % 4 == 3 ? kept : c.consensus[at];
        }
    }
}

/* The gate over whole buffers, several tiles long. */
static void test_buffers(void **state) {
    (void)state;
    enum { ELEMENTS = 3 * COUNT + 77 };
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    static float consensus[ELEMENTS], local[ELEMENTS], residual[ELEMENTS];
    uint32_t *positions = malloc(ELEMENTS * sizeof *positions);
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(positions);
    assert_non_null(values);
    dice dice = {9};
    for (size_t i = 0; i < ELEMENTS; i++) {
        consensus[i] = 0.01f + (float)dice_below(&dice, 1000) * 1e-5f;
        local[i] = consensus[i] + (float)dice_below(&dice, 100) * 1e-6f;
    }
    uint64_t fired = 0;
    assert_int_equal(
        weft_loco_gate(context, consensus, local, residual, ELEMENTS, 0, false, positions, values, &fired),
        WEFT_OK);
    assert_true(fired > ELEMENTS / 10 && fired < ELEMENTS);
    size_t next = 0;
    for (size_t i = 0; i < ELEMENTS; i++) {
        bool fires = next < fired && positions[next] == i;
        float sent = fires ? values[next++] : 0;
        assert_true(sent + residual[i] == consensus[i] - local[i]);
        assert_true(!fires || residual[i] == 0);
    }
    assert_int_equal(next, fired);
    assert_int_equal(
        weft_loco_gate(context, consensus, local, residual, ELEMENTS, 0, true, positions, values, &fired),
        WEFT_OK);
    assert_int_equal(fired, ELEMENTS);
    local[COUNT + 3] = NAN;
    assert_int_equal(
        weft_loco_gate(context, consensus, local, residual, ELEMENTS, 0, false, positions, values, &fired),
        WEFT_INVALID_ARGUMENT);
    assert_int_equal(
        weft_loco_gate(context, consensus, local, residual, ELEMENTS, 24, false, positions, values, &fired),
        WEFT_INVALID_ARGUMENT);
    free(positions);
    free(values);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),     cmocka_unit_test(test_definition), cmocka_unit_test(test_grid),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
