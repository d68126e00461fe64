/* SPDX-License-Identifier: Apache-2.0
 *
 * Each operation on the store fails once, or loses its answer, or is the last one that works for a while:
 * of a publish, of opening a publisher, and of pulls into memory and into files. Then soups of random
 * faults on either side. Whatever happens, a replica's bytes are a published version, and the newest one
 * once the faults are gone.
 */
#include "scenes.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { FAR = 400 }; /* more operations than anything here takes */

typedef enum strike_kind { STRIKE_FAIL, STRIKE_LOSE, STRIKE_FROM } strike_kind;

typedef struct strike {
    strike_kind kind;
    weft_status status;
    const char *name;
} strike;

static const strike strikes[] = {
    {STRIKE_FAIL, WEFT_REMOTE_FAILED, "fails"},
    {STRIKE_FAIL, WEFT_NO_SPACE, "finds no space"},
    {STRIKE_FAIL, WEFT_NOT_FOUND, "finds nothing"},
    {STRIKE_LOSE, WEFT_REMOTE_FAILED, "loses its answer"},
    {STRIKE_FROM, WEFT_REMOTE_FAILED, "fails, and so do all later ones"},
};

static void arm(fault_store *faults, const strike *strike, uint64_t n) {
    switch (strike->kind) {
    case STRIKE_FAIL:
        fault_store_fail_at(faults, n, strike->status);
        break;
    case STRIKE_LOSE:
        fault_store_lose_at(faults, n, strike->status);
        break;
    case STRIKE_FROM:
        fault_store_fail_from(faults, n, strike->status);
        break;
    }
}

/* True if the fault struck. There are none from now on. */
static bool disarm(fault_store *faults) {
    bool fired = fault_store_fired(faults);
    fault_store_fail_at(faults, 0, WEFT_REMOTE_FAILED);
    return fired;
}

/* ---- publishing ---- */

/* Whatever the fault did, the publisher is not finished: nobody has taken over. */
static void check_failure(const scene *s, weft_status status, const char *text) {
    if (status == WEFT_CONFLICT || (status < 0 && weft_context_error(s->context)[0] == '\0')) {
        fail_msg("%s: %s: %s", text, weft_status_name(status), weft_context_error(s->context));
    }
}

static void sweep_publish(const weft_publisher_options *options, const strike *strike, bool skip) {
    scene s;
    replica live;
    scene_open(&s, options, 11);
    char mirror[SCENE_PATH_MAX];
    snprintf(mirror, sizeof mirror, "%s/mirror", s.scratch.directory);
    if (options->mirror_path != NULL) {
        s.options.mirror_path = mirror;
    }
    scene_publish(&s, 10000);
    replica_open(&live, &s, NULL, NULL);
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        char text[128];
        snprintf(text, sizeof text, "operation %u of a publish %s", (unsigned)n, strike->name);
        trainer_step(&s.trainer, 10000);
        arm(s.faults, strike, n);
        check_failure(&s, weft_publisher_publish(s.publisher, NULL, NULL), text);
        fired = disarm(s.faults);
        if (weft_subscriber_pull(live.subscriber, 0) != WEFT_OK || !replica_sound(&live)) {
            fail_msg("%s: the replica is nowhere: %s", text, weft_context_error(live.context));
        }
        if (skip) {
            trainer_step(&s.trainer, 10000);
        }
        scene_expect(s.context, weft_publisher_publish(s.publisher, NULL, NULL), WEFT_OK, text);
        replica_catch_up(&live, text);
        scene_newcomer(&s, text);
    }
    assert_false(fired);
    /* an anchor in the background may have met the last fault, whenever its thread came to run: settling
     * tells of it, and the next one is written */
    check_failure(&s, weft_publisher_settle(s.publisher), strike->name);
    scene_publish(&s, 10000);
    scene_expect(s.context, weft_publisher_settle(s.publisher), WEFT_OK, strike->name);
    replica_close(&live);
    scene_close(&s);
}

static void test_each_operation_of_a_publish(void **state) {
    (void)state;
    const weft_publisher_options patches = {
        .size = sizeof patches, .anchor_ratio = -1, .profile = WEFT_PROFILE_SMALL};
    const weft_publisher_options anchors = {.size = sizeof anchors, .anchor_ratio = 0.001};
    const weft_publisher_options background = {
        .size = sizeof background, .anchor_ratio = 0.001, .anchors_in_background = true};
    const weft_publisher_options file = {.size = sizeof file, .anchor_ratio = 0.2, .mirror_path = ""};
    const weft_publisher_options *const all[] = {&patches, &anchors, &background, &file};
    for (size_t i = 0; i < sizeof strikes / sizeof *strikes; i++) {
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            sweep_publish(all[j], &strikes[i], (i + j) % 2 == 0);
        }
    }
}

/* The very first version, and the takeover of a run by another publisher. */
static void sweep_open(const strike *strike, bool file, unsigned versions) {
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        char text[128];
        char mirror[SCENE_PATH_MAX];
        scene s;
        snprintf(text, sizeof text, "after %u versions, operation %u of a takeover %s", versions,
                 (unsigned)n, strike->name);
        scene_open(&s, NULL, 12);
        for (unsigned i = 0; i < versions; i++) {
            scene_publish(&s, 10000);
        }
        if (file) {
            snprintf(mirror, sizeof mirror, "%s/mirror", s.scratch.directory);
            s.options.mirror_path = mirror;
        }
        trainer_step(&s.trainer, 10000);
        arm(s.faults, strike, n);
        weft_status status = scene_publisher(&s);
        if (status == WEFT_OK) {
            status = weft_publisher_publish(s.publisher, NULL, NULL);
        }
        check_failure(&s, status, text);
        fired = disarm(s.faults);
        if (s.publisher == NULL) {
            scene_expect(s.context, scene_publisher(&s), WEFT_OK, text);
        }
        scene_expect(s.context, weft_publisher_publish(s.publisher, NULL, NULL), WEFT_OK, text);
        scene_newcomer(&s, text);
        scene_close(&s);
    }
    assert_false(fired);
}

static void test_each_operation_of_a_takeover(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof strikes / sizeof *strikes; i++) {
        sweep_open(&strikes[i], false, 0);
        sweep_open(&strikes[i], true, 9);
        sweep_open(&strikes[i], false, 3);
    }
}

/* The head was written, its answer was lost, and then the store stayed away: whether the version is out is
 * not known until it comes back. The same for a head that only names a new anchor. */
static void test_heads_whose_fate_is_unknown(void **state) {
    (void)state;
    const double ratios[] = {-1, 0.001};
    for (size_t i = 0; i < 2; i++) {
        for (uint64_t lost = 0; lost < 4; lost++) {
            const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = ratios[i]};
            const fault_rule rules[] = {
                {.kind = FAULT_LOSE, .operations = FAULT_ON_PUT, .pattern = "heads/*", .skip = lost},
                {.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .pattern = "heads/*"},
            };
            scene s;
            replica live;
            scene_open(&s, &options, 13);
            scene_publish(&s, 10000);
            replica_open(&live, &s, NULL, NULL);
            replica_catch_up(&live, "before");
            fault_store_set(s.faults, rules, 2);
            for (unsigned k = 0; k < 4; k++) {
                trainer_step(&s.trainer, 10000);
                check_failure(&s, weft_publisher_publish(s.publisher, NULL, NULL), "unknown fate");
                if (weft_subscriber_pull(live.subscriber, 0) != WEFT_OK || !replica_sound(&live)) {
                    fail_msg("the replica is nowhere: %s", weft_context_error(live.context));
                }
            }
            fault_store_set(s.faults, NULL, 0);
            for (unsigned k = 0; k < 3; k++) {
                scene_publish(&s, 10000);
                replica_catch_up(&live, "after an unknown fate");
                scene_newcomer(&s, "after an unknown fate");
            }
            replica_close(&live);
            scene_close(&s);
        }
    }
}

/* ---- pulling ---- */

typedef enum journey { JOURNEY_ANCHOR, JOURNEY_PATCH, JOURNEY_PATCHES, JOURNEYS } journey;

static const char *const journeys[] = {"an anchor", "a patch", "several patches"};

static void sweep_pull(const strike *strike, bool file, journey journey, bool steps) {
    scene s;
    replica r;
    scene_open(&s, NULL, 14);
    scene_publish(&s, 10000);
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        char text[128];
        char name[32];
        snprintf(text, sizeof text, "operation %u of a pull of %s into %s %s", (unsigned)n,
                 journeys[journey], file ? "a file" : "memory", strike->name);
        snprintf(name, sizeof name, "out-%u", (unsigned)n);
        replica_open(&r, &s, file ? name : NULL, NULL);
        if (journey != JOURNEY_ANCHOR) {
            replica_catch_up(&r, text);
        }
        for (unsigned i = 0; i < (journey == JOURNEY_PATCHES ? 5u : 1u); i++) {
            scene_publish(&s, 1000);
        }
        weft_digest before = {{0}};
        bool there = replica_digest(&r, &before);
        arm(r.faults, strike, n);
        weft_status status =
            steps ? weft_subscriber_prepare(r.subscriber, 0) : weft_subscriber_pull(r.subscriber, 0);
        fired = disarm(r.faults);
        if (status < 0 && weft_context_error(r.context)[0] == '\0') {
            fail_msg("%s: %s without a text", text, weft_status_name(status));
        }
        weft_digest after;
        if (steps && there && (file || journey != JOURNEY_ANCHOR)) {
            assert_true(replica_digest(&r, &after));
            assert_true(weft_digest_equal(&before, &after));
        }
        if (!steps && !replica_sound(&r)) {
            fail_msg("%s: the replica is nowhere", text);
        }
        if (steps && status >= 0 && n % 3 == 0) {
            scene_expect(r.context, weft_subscriber_rollback(r.subscriber), WEFT_OK, text);
        } else if (steps && status >= 0 && n % 3 == 1) {
            scene_expect(r.context, weft_subscriber_commit(r.subscriber), WEFT_OK, text);
            assert_true(replica_sound(&r));
        }
        scene_publish(&s, 1000);
        replica_catch_up(&r, text);
        assert_int_equal(weft_subscriber_verify(r.subscriber), WEFT_OK);
        replica_close(&r);
    }
    assert_false(fired);
    scene_close(&s);
}

static void test_each_operation_of_a_pull(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof strikes / sizeof *strikes; i++) {
        if (strikes[i].status == WEFT_NO_SPACE) {
            continue;
        }
        for (int j = 0; j < JOURNEYS; j++) {
            for (int k = 0; k < 4; k++) {
                sweep_pull(&strikes[i], k % 2 == 1, (journey)j, k / 2 == 1);
            }
        }
    }
}

/* ---- soups ---- */

static bool absurd(weft_status status) {
    return status == WEFT_INVALID_ARGUMENT || status == WEFT_CONFLICT || status == WEFT_NO_MEMORY;
}

/* Statuses that a caller cannot make sense of are failures too. */
static void check_soup(const weft_context *context, weft_status status, uint64_t seed) {
    if (status < 0 && (absurd(status) || weft_context_error(context)[0] == '\0')) {
        fail_msg("seed %u: %s: %s", (unsigned)seed, weft_status_name(status), weft_context_error(context));
    }
}

static void run_reader_soup(uint64_t seed, bool file, unsigned versions) {
    const weft_publisher_options options = {.size = sizeof options,
                                            .anchor_ratio = 0.3,
                                            .profile = seed % 2 ? WEFT_PROFILE_SMALL : WEFT_PROFILE_FAST};
    const fault_rule soup[] = {
        {.kind = FAULT_FAIL, .probability = 0.06},
        {.kind = FAULT_FLIP, .probability = 0.06},
        {.kind = FAULT_SHORT, .probability = 0.05},
        {.kind = FAULT_STALE, .pattern = "heads/*", .probability = 0.1},
        {.kind = FAULT_LATE, .probability = 0.03, .per_key = 2},
        {.kind = FAULT_WRONG, .probability = 0.05},
        {.kind = FAULT_DELAY, .probability = 0.05, .seconds = 0.001},
    };
    scene s;
    replica r;
    scene_open(&s, &options, seed);
    scene_publish(&s, 10000);
    replica_open(&r, &s, file ? "out" : NULL, NULL);
    dice dice = {seed};
    for (unsigned i = 0; i < versions; i++) {
        fault_store_set(r.faults, soup, sizeof soup / sizeof *soup);
        weft_status status = weft_subscriber_pull(r.subscriber, 0);
        check_soup(r.context, status, seed);
        fault_store_set(r.faults, NULL, 0);
        if (!replica_sound(&r)) {
            fail_msg("seed %u: the replica is nowhere after version %u", (unsigned)seed, i);
        }
        for (uint64_t k = dice_below(&dice, 3); k > 0; k--) {
            scene_publish(&s, 5000);
        }
        if (dice_below(&dice, 20) == 0 && file) {
            scene_expect(r.context, replica_reopen(&r, NULL), WEFT_OK, "reopen");
        }
    }
    replica_catch_up(&r, "after the soup");
    replica_close(&r);
    scene_close(&s);
}

static void test_soups_on_the_readers_side(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_reader_soup(seed, seed % 3 == 0, 60 / test_stride());
    }
}

/* A writer that is shown its own older heads after a lost answer may have to take itself for fenced; then
 * it says so, and another one takes over. */
static void run_writer_soup(uint64_t seed, unsigned versions, bool stale) {
    const weft_publisher_options options = {.size = sizeof options,
                                            .anchor_ratio = 0.2,
                                            .anchors_in_background = seed % 2 == 0,
                                            .keep_anchors = 3};
    const fault_rule soup[] = {
        {.kind = FAULT_FAIL, .probability = 0.05},
        {.kind = FAULT_LOSE, .operations = FAULT_ON_PUT, .probability = 0.1},
        {.kind = FAULT_FLIP, .probability = 0.05},
        {.kind = FAULT_SHORT, .probability = 0.05},
        {.kind = FAULT_LATE, .pattern = "pages/*", .probability = 0.1, .per_key = 1},
        {.kind = FAULT_DELAY, .probability = 0.05, .seconds = 0.001},
        {.kind = FAULT_STALE, .pattern = "heads/*", .probability = 0.2},
    };
    size_t rules = sizeof soup / sizeof *soup - (stale ? 0 : 1);
    scene s;
    replica r;
    scene_open(&s, &options, seed);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    dice dice = {seed};
    for (unsigned i = 0; i < versions; i++) {
        trainer_step(&s.trainer, 5000);
        fault_store_set(s.faults, soup, rules);
        weft_status status = WEFT_OK;
        if (s.publisher == NULL || dice_below(&dice, 15) == 0) {
            status = scene_publisher(&s);
        }
        if (status == WEFT_OK) {
            status = weft_publisher_publish(s.publisher, NULL, NULL);
        }
        if (status == WEFT_CONFLICT && stale) {
            weft_publisher_close(s.publisher);
            s.publisher = NULL;
        } else {
            check_soup(s.context, status, seed);
        }
        if (weft_subscriber_pull(r.subscriber, 0) != WEFT_OK || !replica_sound(&r)) {
            fail_msg("seed %u: the replica is nowhere: %s", (unsigned)seed, weft_context_error(r.context));
        }
        if (status == WEFT_OK && !replica_current(&r)) {
            fail_msg("seed %u: a version was published and is not there", (unsigned)seed);
        }
    }
    fault_store_set(s.faults, NULL, 0);
    scene_publish(&s, 5000);
    replica_catch_up(&r, "after the soup");
    scene_newcomer(&s, "after the soup");
    replica_close(&r);
    scene_close(&s);
}

static void test_soups_on_the_writers_side(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run_writer_soup(seed, 60 / test_stride(), seed % 3 == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_operation_of_a_publish),
        cmocka_unit_test(test_each_operation_of_a_takeover),
        cmocka_unit_test(test_heads_whose_fate_is_unknown),
        cmocka_unit_test(test_each_operation_of_a_pull),
        cmocka_unit_test(test_soups_on_the_readers_side),
        cmocka_unit_test(test_soups_on_the_writers_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
