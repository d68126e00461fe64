/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of processes commits together or not at all: sharded and whole ranks over many versions; ranks
 * that drift, die or do not come, each at its own moment; leaders that are killed; who may take which
 * place.
 */
#include "group_stages.h"

#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static group_stage stage;

static void sleep_milliseconds(long milliseconds) {
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void await_all(const char *kind, uint64_t version) {
    char text[64];
    snprintf(text, sizeof text, "%s %llu ", kind, (unsigned long long)version);
    for (unsigned i = 0; i < stage.world; i++) {
        stage_await(&stage, i, text);
    }
}

/* Leader and ranks are there, at version 1. */
static void open_group(unsigned world, bool whole, uint64_t until) {
    stage_open(&stage, world, whole, 7 + world);
    stage_publish(&stage, 0);
    stage_lead(&stage, until);
    for (unsigned i = 0; i < world; i++) {
        stage_join(&stage, i, until);
    }
    await_all("F", 1);
}

/* ---- good days ---- */

static void follow_many(unsigned world, bool whole, uint64_t versions) {
    open_group(world, whole, versions);
    while (stage.version < versions) {
        /* one of them changes nearly everything, one nothing at all */
        stage_publish(&stage, stage.version == 20 ? 900000 : 10000);
        await_all("C", stage.version);
    }
    stage_finish(&stage);
    assert_int_equal(stage_check(&stage, true), versions - 1);
    /* one fetch per host; the rest are heads, which are looked at now and then */
    assert_true(stage_fetched(&stage) < stage.uploaded + 4096 * (uint64_t)versions);
    stage_close(&stage);
}

static void test_two_ranks(void **state) {
    (void)state;
    follow_many(2, false, 60);
}

static void test_four_ranks(void **state) {
    (void)state;
    follow_many(4, false, 52);
}

static void test_eight_ranks(void **state) {
    (void)state;
    follow_many(8, false, 52);
}

static void test_whole_replicas(void **state) {
    (void)state;
    follow_many(3, true, 52);
}

static bool maps(pid_t process, const char *name) {
    char path[64];
    char line[1024];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)process);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    bool found = false;
    while (fgets(line, sizeof line, file) != NULL) {
        found = found || strstr(line, name) != NULL;
    }
    fclose(file);
    return found;
}

/* One mirror serves all ranks, and none of them holds it. */
static void test_memory(void **state) {
    (void)state;
    open_group(4, false, 4);
    while (stage.version < 3) {
        stage_publish(&stage, 10000);
        await_all("C", stage.version);
    }
    stage_await(&stage, 4, "L 3 ");
    struct stat mirror;
    assert_int_equal(stat(scratch_path(&stage.scratch, "group/mirror"), &mirror), 0);
    weft_head_info head = {.size = sizeof head};
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    assert_int_equal(weft_head_find(stage.context, stage.store, 1, data, &size, &epoch), WEFT_OK);
    assert_int_equal(weft_head_inspect(stage.context, data, size, NULL, &head), WEFT_OK);
    assert_true((uint64_t)mirror.st_size < head.dense_bytes + 4096);
    /* control, mirror, its watermark, a step */
    assert_true(scratch_count(&stage.scratch, "group") <= 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(maps(stage.members[i], "/group/control"));
        assert_false(maps(stage.members[i], "/group/mirror"));
    }
    stage_publish(&stage, 10000);
    stage_finish(&stage);
    stage_close(&stage);
}

/* Versions come faster than anybody follows. */
static void test_a_flood_of_versions(void **state) {
    (void)state;
    open_group(4, false, 80);
    while (stage.version < 80) {
        stage_publish(&stage, 5000);
    }
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

static void test_late_joiners(void **state) {
    (void)state;
    stage_open(&stage, 4, false, 3);
    stage_publish(&stage, 0);
    stage_lead(&stage, 6);
    stage_join(&stage, 0, 6);
    stage_join(&stage, 3, 6);
    stage_await(&stage, 0, "F 1 ");
    stage_publish(&stage, 10000);
    sleep_milliseconds(200);
    /* the version is offered; those who come meanwhile begin where the others are */
    stage_join(&stage, 1, 6);
    stage_await(&stage, 1, "F 1 ");
    sleep_milliseconds(100);
    stage_join(&stage, 2, 6);
    await_all("C", 2);
    while (stage.version < 6) {
        stage_publish(&stage, 10000);
    }
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

/* ---- bad days of a rank ---- */

static void fail_once(group_fault fault, const char *text, bool others_commit) {
    const unsigned bad = 2;
    stage_open(&stage, 4, false, 11);
    stage_publish(&stage, 0);
    stage_lead(&stage, 5);
    for (unsigned i = 0; i < 4; i++) {
        group_role role = stage_role(&stage, i, 5);
        role.fault = i == bad ? fault : i == 0 ? GROUP_FAULT_SLOW : GROUP_FAULT_NONE;
        role.fault_version = 2;
        stage.members[i] = group_spawn(&role, false);
    }
    await_all("F", 1);
    stage_publish(&stage, 10000);
    await_all("C", 2);
    stage_publish(&stage, 10000);
    if (fault != GROUP_FAULT_DRIFT) {
        assert_int_equal(group_wait(stage.members[bad]), -9);
        stage.members[bad] = 0;
        if (!others_commit) {
            stage_await(&stage, 4, "A version 3 ");
        }
        stage_join(&stage, bad, 5);
    }
    stage_await(&stage, 0, "C 3 ");
    while (stage.version < 5) {
        stage_publish(&stage, 10000);
    }
    stage_finish(&stage);
    stage_check(&stage, false);
    if (text != NULL) {
        /* who had begun was told the same; a rank that comes too late for that is only offered it again */
        assert_true(stage_logged(&stage, 4, text));
        for (unsigned i = 0; i < 4; i++) {
            assert_true(i == bad || stage_logged(&stage, i, text) || !stage_logged(&stage, i, "A version"));
        }
    }
    stage_close(&stage);
}

static void test_a_rank_drifts(void **state) {
    (void)state;
    fail_once(GROUP_FAULT_DRIFT, "rank 2 could not prepare it: ", false);
}

static void test_a_rank_dies_before_it_votes(void **state) {
    (void)state;
    fail_once(GROUP_FAULT_UNVOTED, "rank 2 died before all had voted", false);
}

/* Its vote counts, or it is found dead: either is right, and the ranks agree on it. */
static void test_a_rank_dies_after_its_vote(void **state) {
    (void)state;
    fail_once(GROUP_FAULT_VOTED, NULL, true);
}

static void test_a_rank_dies_while_it_commits(void **state) {
    (void)state;
    fail_once(GROUP_FAULT_COMMITTING, NULL, true);
}

static void test_a_rank_never_votes(void **state) {
    (void)state;
    stage_open(&stage, 2, false, 12);
    stage_publish(&stage, 0);
    stage_lead(&stage, 3);
    for (unsigned i = 0; i < 2; i++) {
        group_role role = stage_role(&stage, i, 3);
        role.seconds = 1;
        role.fault = i == 1 ? GROUP_FAULT_SILENT : GROUP_FAULT_NONE;
        role.fault_version = 1;
        stage.members[i] = group_spawn(&role, false);
    }
    await_all("F", 1);
    stage_publish(&stage, 10000);
    stage_await(&stage, 0, "A version 2 was not committed: rank 1 did not vote in time");
    stage_kill(&stage.members[1]);
    stage_join(&stage, 1, 3);
    stage_await(&stage, 1, "C 2 ");
    stage_publish(&stage, 10000);
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

static void test_a_rank_never_comes(void **state) {
    (void)state;
    stage_open(&stage, 4, false, 13);
    stage_publish(&stage, 0);
    stage_lead(&stage, 2);
    for (unsigned i = 0; i < 3; i++) {
        group_role role = stage_role(&stage, i, 2);
        role.seconds = 1;
        stage.members[i] = group_spawn(&role, false);
    }
    for (unsigned i = 0; i < 3; i++) {
        stage_await(&stage, i, "F 1 ");
    }
    stage_publish(&stage, 10000);
    for (unsigned i = 0; i < 3; i++) {
        stage_await(&stage, i, "A version 2 was not committed: rank 3 did not vote in time");
    }
    stage_join(&stage, 3, 2);
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

/* ---- bad days of a leader ---- */

static void test_leaders_are_killed(void **state) {
    (void)state;
    enum { KILLS = 24 };
    dice dice = {2024};
    stage_open(&stage, 4, false, 14);
    stage_publish(&stage, 0);
    stage_lead(&stage, KILLS * 4);
    for (unsigned i = 0; i < 4; i++) {
        stage_join(&stage, i, KILLS * 4);
    }
    await_all("F", 1);
    while (stage.version < KILLS * 4) {
        stage_publish(&stage, 20000);
        if (stage.version % 4 == 0) {
            sleep_milliseconds((long)dice_below(&dice, 30));
            stage_kill(&stage.leader);
            stage_lead(&stage, KILLS * 4);
        } else {
            sleep_milliseconds((long)dice_below(&dice, 10));
        }
    }
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

/* A mirror that somebody has removed or damaged is fetched again, and the ranks go on where they are. */
static void test_the_mirror_is_lost(void **state) {
    (void)state;
    open_group(2, false, 4);
    stage_publish(&stage, 10000);
    await_all("C", 2);
    stage_await(&stage, 2, "L 2 ");
    stage_kill(&stage.leader);
    assert_int_equal(unlink(scratch_path(&stage.scratch, "group/mirror")), 0);
    stage_lead(&stage, 4);
    while (stage.version < 4) {
        stage_publish(&stage, 10000);
        await_all("C", stage.version);
    }
    stage_finish(&stage);
    stage_check(&stage, true);
    stage_close(&stage);
}

/* ---- places ---- */

static void test_places_are_taken_once(void **state) {
    (void)state;
    open_group(2, false, 2);
    weft_context *context = patches_context(1);
    group_role role = stage_role(&stage, 1, 2);
    weft_group *group;
    weft_member *member;
    const weft_group_options options = {.size = sizeof options, .members = 2};
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &options, &group), WEFT_BUSY);
    assert_non_null(strstr(weft_context_error(context), "another process leads"));
    const weft_member_options short_wait = {.size = sizeof short_wait, .seconds = 1};
    assert_int_equal(weft_member_open(context, role.group, 1, stage.model.view, &short_wait, &member),
                     WEFT_BUSY);
    assert_int_equal(weft_member_open(context, role.group, 2, stage.model.view, &short_wait, &member),
                     WEFT_INVALID_ARGUMENT);
    stage_kill(&stage.leader);
    const weft_group_options more = {.size = sizeof more, .members = 3};
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &more, &group),
                     WEFT_INVALID_ARGUMENT);
    stage_lead(&stage, 2);
    stage_publish(&stage, 10000);
    stage_finish(&stage);
    weft_context_destroy(context);
    stage_close(&stage);
}

static void test_strange_directories(void **state) {
    (void)state;
    stage_open(&stage, 1, false, 5);
    group_role role = stage_role(&stage, 0, 1);
    weft_context *context = patches_context(1);
    weft_group *group;
    weft_member *member;
    const weft_group_options options = {.size = sizeof options, .members = 1};
    const weft_member_options short_wait = {.size = sizeof short_wait, .seconds = 0.05};
    assert_int_equal(weft_member_open(context, role.group, 0, stage.model.view, &short_wait, &member),
                     WEFT_NOT_FOUND);
    /* others may enter */
    assert_int_equal(mkdir(role.group, 0700), 0);
    assert_int_equal(chmod(role.group, 0755), 0);
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &options, &group),
                     WEFT_INVALID_ARGUMENT);
    assert_int_equal(chmod(role.group, 0700), 0);
    /* a control file of something else */
    char garbage[1 << 20];
    memset(garbage, 0x5a, sizeof garbage);
    scratch_write(&stage.scratch, "group/control", garbage, sizeof garbage);
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &options, &group),
                     WEFT_WRONG_VERSION);
    assert_int_equal(weft_member_open(context, role.group, 0, stage.model.view, &short_wait, &member),
                     WEFT_WRONG_VERSION);
    /* one that was never finished */
    scratch_write(&stage.scratch, "group/control", "", 0);
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &options, &group), WEFT_OK);
    /* nothing is published: nobody can begin */
    assert_int_equal(weft_group_run(group, 0.05, NULL), WEFT_MORE);
    assert_int_equal(weft_member_open(context, role.group, 0, stage.model.view, &short_wait, &member),
                     WEFT_NOT_FOUND);
    weft_group_close(group);
    const weft_group_options none = {.size = sizeof none, .members = 0};
    assert_int_equal(weft_group_lead(context, stage.store, role.group, &none, &group),
                     WEFT_INVALID_ARGUMENT);
    weft_context_destroy(context);
    stage_close(&stage);
}

int main(int count, char **arguments) {
    int code;
    if (group_spawned(count, arguments, &code)) {
        return code;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_eight_ranks),
        cmocka_unit_test(test_whole_replicas),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_a_flood_of_versions),
        cmocka_unit_test(test_late_joiners),
        cmocka_unit_test(test_a_rank_drifts),
        cmocka_unit_test(test_a_rank_dies_before_it_votes),
        cmocka_unit_test(test_a_rank_dies_after_its_vote),
        cmocka_unit_test(test_a_rank_dies_while_it_commits),
        cmocka_unit_test(test_a_rank_never_votes),
        cmocka_unit_test(test_a_rank_never_comes),
        cmocka_unit_test(test_leaders_are_killed),
        cmocka_unit_test(test_the_mirror_is_lost),
        cmocka_unit_test(test_places_are_taken_once),
        cmocka_unit_test(test_strange_directories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
