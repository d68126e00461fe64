/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_bf16.c: the cast from FP32 to BF16. The reference is checked against the definition of
 * rounding to nearest even in exact arithmetic; every vector form is checked against the reference, on
 * all 2^32 inputs where that is quick, and at all lengths and alignments.
 */
#include "../../lib/base/cpu.h"
#include "stride.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static uint16_t cast_one(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    uint16_t result;
    weft_bf16_cast(WEFT_CPU_PORTABLE, &value, &result, 1);
    return result;
}

static void test_known_values(void **state) {
    (void)state;
    static const struct {
        uint32_t input;
        uint16_t output;
    } known[] = {
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, /* zeros keep their sign */
        {0x3f800000, 0x3f80}, {0xbf800000, 0xbf80}, /* one */
        {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, /* ties go to even */
        {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, /* beside a tie */
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, /* subnormals */
        {0x00008001, 0x0001}, {0x00018000, 0x0002}, {0x007fffff, 0x0080}, {0x80400000, 0x8040},
        {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, /* the largest numbers round to infinity */
        {0x7f7f7fff, 0x7f7f}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, /* infinities stay */
        {0x7f800001, 0x7fc0}, {0xff800001, 0x7fc0},                       /* every NaN is the one NaN */
        {0x7fc00000, 0x7fc0}, {0xffc00000, 0x7fc0}, {0x7fffffff, 0x7fc0}, {0xffffffff, 0x7fc0},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(cast_one(known[i].input), known[i].output);
        assert_int_equal(weft_bf16_round(known[i].input), known[i].output);
    }
}

/* The value of a BF16 pattern, with "infinity" standing where the next number would be. */
static double widened(uint32_t magnitude) {
    if (magnitude == 0x7f80) {
        return ldexp(1.0, 128);
    }
    uint32_t bits = magnitude << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Between the two neighbours of each input, the nearer one is chosen, and of two equally near ones the
 * even one. Doubles hold all of this exactly. */
static void test_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t upper = 0; upper < 0x7f80; upper++) {
        for (uint32_t lower = 0; lower < 0x10000; lower += (lower < 0x7ff0 || lower > 0x8010) ? 0xff : 1) {
            uint32_t bits = upper << 16 | lower;
            float input;
            memcpy(&input, &bits, sizeof input);
            double down = (double)input - widened(upper);
            double up = widened(upper + 1) - (double)input;
            bool go_up = up < down || (up == down && (upper & 1) != 0);
            uint32_t expected = go_up ? upper + 1 : upper;
            if (weft_bf16_round(bits) != expected ||
                weft_bf16_round(bits | 0x80000000u) != (expected | 0x8000)) {
                fail_msg("wrong for %08x", bits);
            }
        }
    }
}

enum { BLOCK = 1 << 16 };

typedef struct block {
    uint32_t input[BLOCK];
    uint16_t expected[BLOCK];
    uint16_t output[BLOCK];
} block;

/* All 2^16 values that share the upper half, so that 2^16 blocks are everything. */
static void check_block(uint32_t upper, block *b) {
    for (uint32_t lower = 0; lower < BLOCK; lower++) {
        b->input[lower] = upper << 16 | lower;
        b->expected[lower] = weft_bf16_round(upper << 16 | lower);
    }
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        memset(b->output, 0x5a, sizeof b->output);
        weft_bf16_cast((weft_cpu)level, (const float *)(const void *)b->input, b->output, BLOCK);
        if (memcmp(b->output, b->expected, sizeof b->output) != 0) {
            fail_msg("level %d differs from the reference for inputs %04x....", level, upper);
        }
    }
}

/* Sanitized builds, and those that are to do sweeps in part (stride.h), take every 509th block, and those
 * at the edges of the first and last exponents. */
static bool skip_block(uint32_t upper) {
    uint32_t exponent = upper >> 7 & 0xff;
    uint32_t mantissa = upper & 0x7f;
    bool edge = (exponent <= 1 || exponent >= 0xfe) && (mantissa <= 1 || mantissa == 0x7f);
    return (SANITIZED || test_stride() > 1) && !edge && upper % 509 != 0;
}

static void test_all_inputs(void **state) {
    (void)state;
    block *b = malloc(sizeof *b);
    assert_non_null(b);
    for (uint32_t upper = 0; upper < 0x10000; upper++) {
        if (!skip_block(upper)) {
            check_block(upper, b);
        }
    }
    free(b);
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

enum { LONGEST = 200, GUARD = 40 };

/* The input ends where its block ends; around the output nothing may change. */
static void check_length(weft_cpu level, size_t count, size_t offset) {
    float *input = malloc((count > 0 ? count : 1) * sizeof *input);
    assert_non_null(input);
    uint16_t output[GUARD + LONGEST + GUARD];
    uint16_t expected[GUARD + LONGEST + GUARD];
    memset(output, 0xee, sizeof output);
    memset(expected, 0xee, sizeof expected);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = random_bits();
        memcpy(&input[i], &bits, sizeof bits);
        expected[offset + i] = weft_bf16_round(bits);
    }
    weft_bf16_cast(level, input, output + offset, count);
    assert_memory_equal(output, expected, sizeof output);
    free(input);
}

static void test_all_lengths(void **state) {
    (void)state;
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (size_t count = 0; count <= LONGEST; count++) {
            for (size_t offset = 0; offset < GUARD; offset += 3) {
                check_length((weft_cpu)level, count, offset);
            }
        }
    }
}

static void test_public_entry(void **state) {
    (void)state;
    const float input[3] = {1.0f, -0.0f, 3.14159274f};
    uint16_t output[3];
    weft_bf16_from_f32(input, output, 3);
    assert_int_equal(output[0], 0x3f80);
    assert_int_equal(output[1], 0x8000);
    assert_int_equal(output[2], 0x4049);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values), cmocka_unit_test(test_rounds_to_nearest_even),
        cmocka_unit_test(test_all_inputs),   cmocka_unit_test(test_all_lengths),
        cmocka_unit_test(test_public_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
