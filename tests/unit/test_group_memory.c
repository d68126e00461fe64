/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations of a group's leader, or of its rank, fail once each: nothing leaks, nobody hangs, what the
 * rank says it holds it holds, and both go on.
 */
#include "../support/described.h"
#include "faults.h"
#include "scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 200 };

static const weft_group_options one = {.size = sizeof one, .members = 1};
static const weft_member_options hasty = {.size = sizeof hasty, .seconds = 0.02};

typedef struct life {
    scene *scene;
    char path[SCENE_PATH_MAX];
    weft_context *lead_context;
    weft_context *context; /* the rank's */
    weft_group *group;
    weft_member *member;
    model model;
    size_t n;
} life;

static weft_context *new_context(faults *faults) {
    weft_context_options options = {.size = sizeof options, .threads = 2};
    if (faults != NULL) {
        options.allocator = faults_allocator(faults);
    }
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* Besides success, WEFT_MORE and no memory, one failure may come: what the other's lack of memory does. */
static weft_status expect(const life *l, const weft_context *context, weft_status status,
                          weft_status other) {
    if (status != WEFT_OK && status != WEFT_MORE && status != WEFT_NO_MEMORY && status != other) {
        fail_msg("allocation %zu: %s: %s", l->n, weft_status_name(status), weft_context_error(context));
    }
    return status;
}

static void lead(life *l) {
    if (l->group == NULL) {
        expect(l, l->lead_context,
               weft_group_lead(l->lead_context, l->scene->store, l->path, &one, &l->group), WEFT_OK);
    }
    if (l->group != NULL) {
        expect(l, l->lead_context, weft_group_run(l->group, 0.005, NULL), WEFT_ABORTED);
    }
}

static void join(life *l) {
    if (l->member == NULL) {
        expect(l, l->context, weft_member_open(l->context, l->path, 0, l->model.view, &hasty, &l->member),
               WEFT_NOT_FOUND);
    }
}

/* Weights that are at no version any more are filled again. */
static void follow(life *l) {
    if (expect(l, l->context, weft_member_prepare(l->member, 0), WEFT_BASE_MISMATCH) ==
        WEFT_BASE_MISMATCH) {
        weft_member_close(l->member);
        l->member = NULL;
        return;
    }
    expect(l, l->context, weft_member_commit(l->member), WEFT_ABORTED);
}

static void reach(life *l, uint64_t version) {
    int rounds = 0;
    while (l->member == NULL || member_info(l->member).version != version) {
        assert_true(rounds++ < ROUNDS);
        lead(l);
        join(l);
        if (l->member != NULL) {
            follow(l);
        }
    }
    assert_true(worker_equals(&l->model, &l->scene->trainer));
}

/* A group is led and joined, and takes a step. True if the allocation was reached. */
static bool live_without(bool leader, size_t n) {
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1};
    faults faults = {0};
    scene s;
    life l = {.scene = &s, .n = n};
    scene_open(&s, &options, 53);
    snprintf(l.path, sizeof l.path, "%s/group", s.scratch.directory);
    l.lead_context = new_context(leader ? &faults : NULL);
    l.context = new_context(leader ? NULL : &faults);
    worker_open(&l.model, s.outside);
    uint64_t version = scene_publish(&s, 10000);
    faults_reset(&faults, n);
    reach(&l, version);
    reach(&l, scene_publish(&s, 10000));
    bool fired = faults_fired(&faults);
    faults_reset(&faults, 0);
    reach(&l, scene_publish(&s, 10000));
    weft_member_close(l.member);
    weft_group_close(l.group);
    model_close(&l.model);
    weft_context_destroy(l.context);
    weft_context_destroy(l.lead_context);
    scene_close(&s);
    if (faults_live_blocks(&faults) != 0) {
        fail_msg("allocation %zu: %zu blocks are left", n, faults_live_blocks(&faults));
    }
    return fired;
}

static void sweep(bool leader, size_t stride) {
    size_t n = 1;
    while (live_without(leader, n)) {
        n += stride;
    }
    print_message("%zu allocations\n", n);
    assert_true(n > 1);
}

static void test_leader_without_memory(void **state) {
    (void)state;
    sweep(true, 7);
}

static void test_rank_without_memory(void **state) {
    (void)state;
    sweep(false, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leader_without_memory),
        cmocka_unit_test(test_rank_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
