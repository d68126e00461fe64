/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaders and ranks are killed at random instants, hundreds of times, and come back. What any of them
 * holds is always a published version, bit for bit; ranks go through the same versions; nobody hangs; and
 * when nobody is killed any more all reach the newest. WEFT_TEST_KILLS and WEFT_TEST_SEED choose another
 * run.
 */
#include "group_stages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

enum { WORLD = 4 };

static group_stage stage;

static uint64_t chosen(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void sleep_below(dice *dice, uint64_t microseconds) {
    const struct timespec pause = {0, (long)dice_below(dice, microseconds) * 1000};
    nanosleep(&pause, NULL);
}

/* A step takes a few milliseconds, and a process some tens until it is whole again. */
static void sleep_random(dice *dice) {
    sleep_below(dice, dice_below(dice, 2) == 0 ? 4000 : 80000);
}

static void test_kills(void **state) {
    (void)state;
    uint64_t kills = chosen("WEFT_TEST_KILLS", 200);
    dice dice = {chosen("WEFT_TEST_SEED", 1)};
    uint64_t until = kills + 2;
    assert_true(until < STAGE_VERSIONS_MAX);
    stage_open(&stage, WORLD, false, dice_next(&dice));
    stage_publish(&stage, 0);
    stage_lead(&stage, until);
    for (unsigned i = 0; i < WORLD; i++) {
        stage_join(&stage, i, until);
    }
    for (uint64_t i = 0; i < kills; i++) {
        stage_publish(&stage, 3000);
        sleep_random(&dice);
        unsigned rank = (unsigned)dice_below(&dice, 2 * WORLD);
        if (rank < WORLD) {
            stage_kill(&stage.members[rank]);
            sleep_below(&dice, 4000);
            stage_join(&stage, rank, until);
        } else {
            stage_kill(&stage.leader);
            sleep_below(&dice, 4000);
            stage_lead(&stage, until);
        }
    }
    size_t between = stage_check_lives(&stage);
    stage_publish(&stage, 3000);
    stage_finish(&stage);
    print_message("%zu versions were committed, %zu of them between %llu kills\n",
                  stage_check_lives(&stage), between, (unsigned long long)kills);
    assert_int_equal(stage.version, until);
    stage_close(&stage);
}

int main(int count, char **arguments) {
    int code;
    if (group_spawned(count, arguments, &code)) {
        return code;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kills)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
