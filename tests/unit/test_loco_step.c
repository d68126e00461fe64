/* SPDX-License-Identifier: Apache-2.0
 *
 * The step of the outer optimizer: every processor level against its definition, one operation at a time;
 * and the copy, which must write what it is told to and nothing beside it.
 */
#include "../../lib/loco/step/step.h"
#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 700 };

typedef struct arrays {
    float consensus[COUNT];
    float momentum[COUNT];
} arrays;

static float draw(dice *dice, float scale) {
    return scale * ((float)(dice_next(dice) >> 40) * 0x1p-24f - 0.5f);
}

/* Volatile numbers are neither kept wider nor fused. */
static float step_plainly(const weft_step *step, float sum, float consensus, float *momentum) {
    volatile float gradient = sum / step->included;
    volatile float direction = gradient;
    if (momentum != NULL) {
        volatile float carried = step->mu * *momentum;
        volatile float moved = carried + gradient;
        volatile float ahead = step->mu * moved;
        *momentum = moved;
        direction = gradient + ahead;
    }
    volatile float way = step->rate * direction;
    return consensus - way;
}

static void test_levels(void **state) {
    (void)state;
    static arrays given, expected, found;
    static float sums[COUNT];
    dice dice = {23};
    for (unsigned round = 0; round < 200; round++) {
        size_t count = round < 80 ? round : (size_t)dice_below(&dice, COUNT + 1);
        bool momentum = round % 3 != 0;
        const weft_step step = {(float)(1 + round % 7), 0.7f, 0.9f};
        uint32_t highest = 0;
        for (size_t i = 0; i < COUNT; i++) {
            sums[i] = dice_below(&dice, 3) == 0 ? draw(&dice, 1e-4f) : 0;
            given.consensus[i] = draw(&dice, dice_below(&dice, 50) == 0 ? 0x1p-130f : 0.1f);
            given.momentum[i] = draw(&dice, 1e-5f);
        }
        expected = given;
        for (size_t i = 0; i < count; i++) {
            float next =
                step_plainly(&step, sums[i], given.consensus[i], momentum ? &expected.momentum[i] : NULL);
            uint32_t bits;
            memcpy(&bits, &next, sizeof bits);
            highest = (bits & 0x7fffffffu) > highest ? bits & 0x7fffffffu : highest;
            expected.consensus[i] = next;
        }
        for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
            found = given;
            assert_int_equal(weft_step_kernel_for((weft_cpu)level)(&step, count, sums, found.consensus,
                                                                   momentum ? found.momentum : NULL),
                             highest);
            assert_memory_equal(&found, &expected, sizeof found);
        }
    }
}

static void test_not_finite(void **state) {
    (void)state;
    const weft_step step = {1, 1, 0.9f};
    for (int level = WEFT_CPU_PORTABLE; level <= (int)weft_cpu_best(); level++) {
        for (size_t i = 0; i < 130; i++) {
            float sums[130] = {0}, consensus[130] = {0};
            sums[i] = 3e38f;
            consensus[i] = -3e38f;
            assert_int_equal(weft_step_kernel_for((weft_cpu)level)(&step, 130, sums, consensus, NULL),
                             0x7f800000);
        }
    }
}

static void test_copy(void **state) {
    (void)state;
    enum { ROOM = 200 };
    float from[ROOM], to[ROOM], expected[ROOM];
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (float)i + 1;
    }
    for (size_t start = 0; start < 20; start++) {
        for (size_t count = 0; start + count <= ROOM; count++) {
            memset(to, 0, sizeof to);
            memset(expected, 0, sizeof expected);
            memcpy(expected + start, from + 3, (count < ROOM - 3 ? count : ROOM - 3) * sizeof *from);
            weft_step_copy(to + start, from + 3, count < ROOM - 3 ? count : ROOM - 3);
            assert_memory_equal(to, expected, sizeof to);
        }
    }
}

/* A weight that has not moved has the consensus's bits, and every other the sum's. */
static void test_carry(void **state) {
    (void)state;
    const float consensus[] = {1, -0.0f, 0.0f, -0.0f, 0.1f, 3e-45f};
    const float start[] = {2, 5, 5, 5, 0.3f, 1};
    const float local[] = {2.5f, 5, 5, 6, 0.30000001f, 1};
    const float expected[] = {1.5f, -0.0f, 0.0f, 1, 0.1f + (0.30000001f - 0.3f), 3e-45f};
    float found[6];
    memcpy(found, local, sizeof found);
    weft_step_carry(found, consensus, start, 6);
    assert_memory_equal(found, expected, sizeof found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_carry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
