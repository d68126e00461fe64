/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of threads: leader and ranks in one process, each with a context and a hold on the group of its
 * own, so that ThreadSanitizer sees all of them at once; rollbacks, explicit versions, anchors, labels.
 */
#include "../support/described.h"
#include "group_stages.h"

#include "patches.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static group_stage stage;

typedef struct thread {
    pthread_t handle;
    group_role role;
    bool leads;
    int code;
} thread;

static void *run_thread(void *argument) {
    thread *self = argument;
    self->code = self->leads ? group_lead(&self->role) : group_follow(&self->role);
    return NULL;
}

static void start_thread(thread *self, unsigned place, uint64_t until) {
    self->role = stage_role(&stage, place, until);
    self->leads = place == stage.world;
    assert_int_equal(pthread_create(&self->handle, NULL, run_thread, self), 0);
}

static void test_threads_follow(void **state) {
    (void)state;
    enum { WORLD = 4, UNTIL = 30 };
    thread threads[WORLD + 1];
    stage_open(&stage, WORLD, false, 21);
    stage_publish(&stage, 0);
    for (unsigned i = 0; i <= WORLD; i++) {
        start_thread(&threads[i], i, UNTIL);
    }
    stage_await(&stage, 0, "F 1 ");
    while (stage.version < UNTIL) {
        stage_publish(&stage, 10000);
        if (stage.version % 3 != 0) {
            char text[32];
            snprintf(text, sizeof text, "C %llu ", (unsigned long long)stage.version);
            stage_await(&stage, 1, text);
        }
    }
    for (unsigned i = 0; i <= WORLD; i++) {
        pthread_join(threads[i].handle, NULL);
        assert_int_equal(threads[i].code, 0);
    }
    stage_check(&stage, true);
    stage_close(&stage);
}

/* ---- one rank, step by step ---- */

typedef struct single {
    weft_context *lead_context;
    weft_context *context;
    weft_group *group;
    weft_member *member;
    model model;
    char path[512];
} single;

static void expect(const weft_context *context, weft_status status, weft_status expected) {
    if (status != expected) {
        fail_msg("%s instead of %s: %s", weft_status_name(status), weft_status_name(expected),
                 weft_context_error(context));
    }
}

static void open_single(single *s) {
    dice dice = {1};
    stage_open(&stage, 1, true, 22);
    s->lead_context = patches_context(2);
    s->context = patches_context(2);
    snprintf(s->path, sizeof s->path, "%s", stage_role(&stage, 0, 0).group);
    sharded_open(&s->model, s->context, &dice);
    const weft_group_options options = {.size = sizeof options, .members = 1};
    expect(s->lead_context, weft_group_lead(s->lead_context, stage.store, s->path, &options, &s->group),
           WEFT_OK);
    stage_publish(&stage, 0);
    uint64_t version;
    expect(s->lead_context, weft_group_run(s->group, 100, &version), WEFT_OK);
    assert_int_equal(version, 1);
    const weft_member_options patience = {.size = sizeof patience, .seconds = 5};
    expect(s->context, weft_member_open(s->context, s->path, 0, s->model.view, &patience, &s->member),
           WEFT_OK);
}

static void close_single(single *s) {
    weft_member_close(s->member);
    weft_group_close(s->group);
    model_close(&s->model);
    weft_context_destroy(s->context);
    weft_context_destroy(s->lead_context);
    stage_close(&stage);
}

static bool single_equals(single *s) {
    return sharded_hash(&s->model, 1, 0) == stage.hashes[member_info(s->member).version][0];
}

/* The leader offers the newest version. */
static void offer(single *s) {
    expect(s->lead_context, weft_group_run(s->group, 0.3, NULL), WEFT_MORE);
    assert_int_equal(group_info(s->group).offered, stage.version);
}

static void commit(single *s) {
    uint64_t version;
    expect(s->context, weft_member_commit(s->member), WEFT_OK);
    assert_int_equal(member_info(s->member).version, stage.version);
    assert_true(single_equals(s));
    expect(s->context, weft_member_verify(s->member), WEFT_OK);
    expect(s->lead_context, weft_group_run(s->group, 100, &version), WEFT_OK);
    assert_int_equal(version, stage.version);
}

static void test_steps_one_by_one(void **state) {
    (void)state;
    single s;
    uint64_t version;
    open_single(&s);
    assert_true(single_equals(&s));
    expect(s.context, weft_member_wait(s.member, 0, &version), WEFT_MORE);
    expect(s.context, weft_member_wait(s.member, nan(""), &version), WEFT_MORE);
    expect(s.context, weft_member_prepare(s.member, 0), WEFT_OK);
    expect(s.context, weft_member_commit(s.member), WEFT_OK);
    assert_int_equal(member_info(s.member).committed, 0);
    expect(s.context, weft_member_rollback(s.member), WEFT_UNSUPPORTED);

    stage_publish(&stage, 10000);
    offer(&s);
    expect(s.context, weft_member_wait(s.member, 5, &version), WEFT_OK);
    assert_int_equal(version, 2);
    expect(s.context, weft_member_prepare(s.member, 2), WEFT_OK);
    assert_true(single_equals(&s));
    expect(s.context, weft_member_prepare(s.member, 2), WEFT_INVALID_ARGUMENT);
    /* what one rank takes back nobody commits; it is offered again */
    expect(s.context, weft_member_rollback(s.member), WEFT_OK);
    expect(s.lead_context, weft_group_run(s.group, 0.3, NULL), WEFT_ABORTED);
    assert_non_null(strstr(weft_context_error(s.lead_context), "rank 0 rolled back"));
    offer(&s);
    expect(s.context, weft_member_prepare(s.member, 0), WEFT_OK);
    commit(&s);
    expect(s.context, weft_member_rollback(s.member), WEFT_UNSUPPORTED);
    close_single(&s);
}

/* Nobody has begun with version 2 when version 3 comes: the leader thinks again, and whatever it offers
 * then leads there. */
static void test_a_newer_version_comes(void **state) {
    (void)state;
    single s;
    open_single(&s);
    stage_publish(&stage, 10000);
    offer(&s);
    stage_publish(&stage, 10000);
    while (group_info(s.group).newest < 3) {
        expect(s.lead_context, weft_group_run(s.group, 0.5, NULL), WEFT_MORE);
    }
    while (member_info(s.member).version < 3) {
        expect(s.context, weft_member_prepare(s.member, 0), WEFT_OK);
        expect(s.context, weft_member_commit(s.member), WEFT_OK);
        assert_true(single_equals(&s));
        assert_true(weft_group_run(s.group, 0.2, NULL) >= 0);
    }
    assert_int_equal(group_info(s.group).aborted, 0);
    close_single(&s);
}

/* The same weights under another number need no vote. */
static void test_nothing_changed(void **state) {
    (void)state;
    single s;
    open_single(&s);
    stage_publish(&stage, 0);
    uint64_t version;
    expect(s.lead_context, weft_group_run(s.group, 5, &version), WEFT_OK);
    assert_int_equal(version, 2);
    expect(s.context, weft_member_wait(s.member, 0, &version), WEFT_MORE);
    assert_int_equal(member_info(s.member).version, 2);
    close_single(&s);
}

static bool remove_patch(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)size;
    (void)age_seconds;
    single *s = opaque;
    expect(s->context, weft_store_remove(s->context, stage.store, key), WEFT_OK);
    return true;
}

/* Patches are gone, and the way leads over an anchor: ranks take that as a step like any other. */
static void test_an_anchor_is_a_step(void **state) {
    (void)state;
    single s;
    open_single(&s);
    stage_publish(&stage, 10000);
    uint64_t bytes;
    expect(stage.context, weft_publisher_anchor(stage.publisher, &bytes), WEFT_OK);
    expect(stage.context, weft_store_list(stage.context, stage.store, "patches", remove_patch, &s),
           WEFT_OK);
    expect(s.lead_context, weft_group_run(s.group, 10, NULL), WEFT_MORE);
    assert_int_equal(group_info(s.group).offered, 2);
    expect(s.context, weft_member_prepare(s.member, 2), WEFT_OK);
    commit(&s);
    close_single(&s);
}

/* Somebody writes into the weights: the rank says so, and is filled again. */
static void test_drift_is_refused_and_filled(void **state) {
    (void)state;
    single s;
    open_single(&s);
    memset(s.model.blocks[1], 0x11, 1000);
    stage_publish(&stage, 500000);
    offer(&s);
    expect(s.context, weft_member_prepare(s.member, 0), WEFT_DIGEST_MISMATCH);
    expect(s.lead_context, weft_group_run(s.group, 0.3, NULL), WEFT_ABORTED);
    assert_non_null(strstr(weft_context_error(s.lead_context), "rank 0 could not prepare it"));
    assert_int_equal(member_info(s.member).version, 0);
    expect(s.context, weft_member_wait(s.member, 0, NULL), WEFT_BASE_MISMATCH);
    weft_member_close(s.member);
    s.member = NULL;
    expect(s.context, weft_member_open(s.context, s.path, 0, s.model.view, NULL, &s.member), WEFT_OK);
    assert_true(single_equals(&s));
    offer(&s);
    expect(s.context, weft_member_prepare(s.member, 0), WEFT_OK);
    commit(&s);
    close_single(&s);
}

/* A process that runs wild may write anything into what all share. Whatever stands there, nobody crashes or
 * hangs, and weights are those of a published version. */
static void test_anything_in_shared_memory(void **state) {
    (void)state;
    enum { ROUNDS = 300, HEADER = 24 };
    single s;
    dice dice = {31};
    open_single(&s);
    stage_publish(&stage, 20000);
    offer(&s);
    char path[600];
    snprintf(path, sizeof path, "%s/control", s.path);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    assert_true(file >= 0);
    assert_int_equal(fstat(file, &info), 0);
    for (int i = 0; i < ROUNDS; i++) {
        /* most of what matters stands in the first kilobyte */
        uint64_t limit = dice_below(&dice, 2) == 0 ? 1024 : (uint64_t)info.st_size;
        uint64_t place = (HEADER + dice_below(&dice, limit - HEADER - 8)) & ~(uint64_t)7;
        uint64_t word = dice_next(&dice) >> dice_below(&dice, 64);
        assert_int_equal(pwrite(file, &word, sizeof word, (off_t)place), sizeof word);
        weft_status status = weft_member_prepare(s.member, 0);
        status = status == WEFT_OK ? weft_member_commit(s.member) : status;
        weft_status led = weft_group_run(s.group, 0.01, NULL);
        assert_true(status != WEFT_MORE && led != WEFT_INVALID_ARGUMENT);
        uint64_t hash = sharded_hash(&s.model, 1, 0);
        assert_true(hash == stage.hashes[1][0] || hash == stage.hashes[2][0]);
        if (status != WEFT_OK && i % 10 == 0) {
            weft_member_close(s.member);
            s.member = NULL;
            const weft_member_options options = {.size = sizeof options, .seconds = 0.05};
            while (weft_member_open(s.context, s.path, 0, s.model.view, &options, &s.member) != WEFT_OK) {
                weft_status restored = weft_group_run(s.group, 0.01, NULL);
                assert_true(restored != WEFT_INVALID_ARGUMENT);
                weft_group_close(s.group);
                s.group = NULL;
                const weft_group_options again = {.size = sizeof again, .members = 1};
                assert_int_equal(unlink(path), 0);
                expect(s.lead_context,
                       weft_group_lead(s.lead_context, stage.store, s.path, &again, &s.group), WEFT_OK);
                expect(s.lead_context, weft_group_run(s.group, 100, NULL), WEFT_OK);
                close(file);
                file = open(path, O_RDWR | O_CLOEXEC);
                assert_true(file >= 0);
            }
        }
    }
    close(file);
    close_single(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_follow),
        cmocka_unit_test(test_steps_one_by_one),
        cmocka_unit_test(test_a_newer_version_comes),
        cmocka_unit_test(test_nothing_changed),
        cmocka_unit_test(test_an_anchor_is_a_step),
        cmocka_unit_test(test_drift_is_refused_and_filled),
        cmocka_unit_test(test_anything_in_shared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
