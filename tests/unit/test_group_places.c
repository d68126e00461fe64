/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a group is, on bad days: the version that its ranks are at is gone from the store, a rank was
 * stopped for longer than decisions are remembered, the file system that the group lies in is full. One
 * thread is leader and ranks in turn, so that every step is at its place.
 */
#include "../../lib/sync/group/group_control.h"
#include "../support/described.h"
#include "scenes.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, OFFERS = 70 /* more than are remembered */ };

static const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1, .keep_anchors = 1};
static const weft_group_options world = {.size = sizeof world, .members = WORLD};

/* Seconds for what happens at once, however slow the machine. */
static const double PATIENCE = 60;

/* A rank that holds the whole model. */
typedef struct rank {
    weft_context *context;
    weft_member *member;
    replica weights; /* only its memory is used */
} rank;

typedef struct place {
    scene scene;
    char path[SCENE_PATH_MAX];
    weft_context *context; /* the leader's */
    weft_group *group;
    rank ranks[WORLD];
    bool went_on; /* see let_others_go_on, in whose thread alone it is used */
} place;

static void lead(place *p) {
    scene_expect(p->context, weft_group_lead(p->context, p->scene.store, p->path, &world, &p->group),
                 WEFT_OK, "lead");
}

static void join(place *p, unsigned number) {
    rank *r = &p->ranks[number];
    const weft_member_options options = {.size = sizeof options, .seconds = PATIENCE};
    weft_member_close(r->member);
    r->member = NULL;
    scene_expect(r->context,
                 weft_member_open(r->context, p->path, number, r->weights.model.view, &options, &r->member),
                 WEFT_OK, "join");
}

static void prepare_place(place *p, const char *name, uint64_t seed) {
    memset(p, 0, sizeof *p);
    scene_open(&p->scene, &plain, seed);
    snprintf(p->path, sizeof p->path, "%s/%s", p->scene.scratch.directory, name);
    assert_int_equal(weft_context_create(NULL, &p->context), WEFT_OK);
    scene_publish(&p->scene, 10000);
    for (unsigned i = 0; i < WORLD; i++) {
        replica_open(&p->ranks[i].weights, &p->scene, NULL, NULL);
    }
}

/* With a progress function for the first rank, or NULL. */
static void make_contexts(place *p, weft_progress_function progress) {
    for (unsigned i = 0; i < WORLD; i++) {
        const weft_context_options options = {
            .size = sizeof options, .progress = i == 0 ? progress : NULL, .progress_opaque = p};
        assert_int_equal(weft_context_create(&options, &p->ranks[i].context), WEFT_OK);
    }
}

static void open_place(place *p, uint64_t seed, weft_progress_function progress) {
    prepare_place(p, "group", seed);
    p->went_on = false;
    make_contexts(p, progress);
    uint64_t version;
    lead(p);
    scene_expect(p->context, weft_group_run(p->group, PATIENCE, &version), WEFT_OK, "run");
    for (unsigned i = 0; i < WORLD; i++) {
        join(p, i);
    }
}

static void close_place(place *p) {
    for (unsigned i = 0; i < WORLD; i++) {
        weft_member_close(p->ranks[i].member);
        replica_close(&p->ranks[i].weights);
        weft_context_destroy(p->ranks[i].context);
    }
    weft_group_close(p->group);
    weft_context_destroy(p->context);
    scene_close(&p->scene);
}

static uint64_t version_of(const place *p, unsigned number) {
    return member_info(p->ranks[number].member).version;
}

/* The newest version is offered, and nobody has begun with it. */
static void offer(place *p, uint64_t version) {
    scene_expect(p->context, weft_group_run(p->group, 0.02, NULL), WEFT_MORE, "offer");
    while (group_info(p->group).offered != version) {
        scene_expect(p->context, weft_group_run(p->group, 0.1, NULL), WEFT_MORE, "offer");
    }
}

static void *commit_rank(void *argument) {
    rank *r = argument;
    scene_expect(r->context, weft_member_commit(r->member), WEFT_OK, "commit");
    return NULL;
}

static void prepare(place *p, unsigned number, uint64_t version) {
    rank *r = &p->ranks[number];
    scene_expect(r->context, weft_member_prepare(r->member, version), WEFT_OK, "prepare");
}

/* Both ranks are at the version after this, the leader's mirror not yet. */
static void commit_all(place *p, uint64_t version) {
    pthread_t thread;
    prepare(p, 0, version);
    prepare(p, 1, version);
    assert_int_equal(pthread_create(&thread, NULL, commit_rank, &p->ranks[1]), 0);
    commit_rank(&p->ranks[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (unsigned i = 0; i < WORLD; i++) {
        assert_int_equal(version_of(p, i), version);
        scene_expect(p->ranks[i].context, weft_member_verify(p->ranks[i].member), WEFT_OK, "verify");
    }
}

static void follow(place *p, uint64_t version) {
    uint64_t reached;
    offer(p, version);
    commit_all(p, version);
    scene_expect(p->context, weft_group_run(p->group, PATIENCE, &reached), WEFT_OK, "follow");
    assert_int_equal(reached, version);
}

/* ---- gone from the store ---- */

/* The leader ends when its ranks have committed version 2 and its mirror has not; then versions 3 and 4
 * come, an anchor of version 4, and all before it goes. */
static void lose_version(place *p) {
    const weft_gc_options now = {.size = sizeof now, .grace_seconds = 0};
    scene_publish(&p->scene, 10000);
    offer(p, 2);
    commit_all(p, 2);
    weft_group_close(p->group);
    p->group = NULL;
    scene_publish(&p->scene, 10000);
    scene_publish(&p->scene, 10000);
    scene_expect(p->scene.context, weft_publisher_anchor(p->scene.publisher, NULL), WEFT_OK, "anchor");
    scene_expect(p->scene.outside, weft_gc_run(p->scene.outside, p->scene.store, &now, NULL), WEFT_OK,
                 "gc");
}

/* Ranks may not stay at a version that nobody else can be filled with. */
static void test_version_is_gone(void **state) {
    (void)state;
    place p;
    uint64_t version;
    open_place(&p, 61, NULL);
    lose_version(&p);
    lead(&p);
    scene_expect(p.context, weft_group_run(p.group, PATIENCE, &version), WEFT_OK, "restore");
    assert_int_equal(version, 4);
    /* one rank goes and comes back; the other, which has stayed, is told */
    join(&p, 1);
    assert_int_equal(version_of(&p, 1), 4);
    rank *old = &p.ranks[0];
    scene_expect(old->context, weft_member_wait(old->member, 0, NULL), WEFT_BASE_MISMATCH, "wait");
    assert_non_null(strstr(weft_context_error(old->context), "open it again to fill it"));
    scene_expect(old->context, weft_member_verify(old->member), WEFT_BASE_MISMATCH, "verify");
    join(&p, 0);
    assert_int_equal(version_of(&p, 0), 4);
    scene_publish(&p.scene, 10000);
    follow(&p, 5);
    close_place(&p);
}

/* If the newest cannot be had either, nobody is sent away; and it is not for good. */
static void test_nothing_can_be_had(void **state) {
    (void)state;
    place p;
    char key[WEFT_STORE_KEY_MAX + 1];
    size_t size;
    uint64_t version;
    open_place(&p, 62, NULL);
    lose_version(&p);
    scene_find(&p.scene, "anchors", 4, key);
    char *anchor = scene_read(&p.scene, key, &size);
    scene_remove(&p.scene, key);
    lead(&p);
    for (unsigned i = 0; i < 3; i++) {
        weft_status status = weft_group_run(p.group, PATIENCE, NULL);
        assert_true(weft_status_is_integrity(status) || status == WEFT_NOT_FOUND);
        scene_expect(p.ranks[0].context, weft_member_wait(p.ranks[0].member, 0, NULL), WEFT_MORE, "wait");
    }
    scene_write(&p.scene, key, anchor, size);
    free(anchor);
    scene_expect(p.context, weft_group_run(p.group, PATIENCE, &version), WEFT_OK, "restore");
    assert_int_equal(version, 4);
    scene_expect(p.ranks[0].context, weft_member_wait(p.ranks[0].member, 0, NULL), WEFT_BASE_MISMATCH,
                 "wait");
    close_place(&p);
}

/* ---- stopped for long ---- */

/* Called while rank 0 waits for the vote of rank 1: all that happens before rank 0 goes on. Version 2 is
 * committed; version 3 is offered again and again; and the leader is started again. */
static bool let_others_go_on(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)done;
    (void)total;
    place *p = opaque;
    rank *other = &p->ranks[1];
    uint64_t version;
    if (strcmp(phase, "vote") != 0 || p->went_on) {
        return true;
    }
    p->went_on = true;
    commit_rank(other);
    scene_expect(p->context, weft_group_run(p->group, PATIENCE, &version), WEFT_OK, "run");
    scene_publish(&p->scene, 10000);
    for (unsigned i = 0; i < OFFERS; i++) {
        offer(p, 3);
        prepare(p, 1, 3);
        scene_expect(other->context, weft_member_rollback(other->member), WEFT_OK, "roll back");
        scene_expect(p->context, weft_group_run(p->group, PATIENCE, NULL), WEFT_ABORTED, "run");
    }
    weft_group_close(p->group);
    lead(p);
    scene_expect(p->context, weft_group_run(p->group, 0.02, NULL), WEFT_MORE, "restore");
    return true;
}

static void test_stopped_for_long(void **state) {
    (void)state;
    place p;
    open_place(&p, 63, let_others_go_on);
    scene_publish(&p.scene, 10000);
    offer(&p, 2);
    prepare(&p, 0, 2);
    prepare(&p, 1, 2);
    scene_expect(p.ranks[0].context, weft_member_commit(p.ranks[0].member), WEFT_OK, "commit");
    assert_int_equal(version_of(&p, 0), 2);
    assert_int_equal(version_of(&p, 1), 2);
    follow(&p, 3);
    close_place(&p);
}

/* ---- voted, killed, and back ---- */

/* A process that votes for the step that is offered, and is killed. */
static void vote_and_die(place *p, unsigned number) {
    weft_group_room room;
    weft_context *context = p->ranks[number].context;
    weft_member_close(p->ranks[number].member);
    p->ranks[number].member = NULL;
    scene_expect(context, weft_group_room_join(&room, context, p->path, number, PATIENCE), WEFT_OK,
                 "enter");
    weft_group_stand(&room, number, (weft_standing){WEFT_STANDING_VOTED, weft_group_newest(&room)});
    weft_group_room_close(&room);
}

/* Another rank may have read that vote and be about to decide for the commit, while who comes back is
 * filled with the version before: the step must be over by then. */
static void test_voted_and_back(void **state) {
    (void)state;
    place p;
    open_place(&p, 65, NULL);
    scene_publish(&p.scene, 10000);
    offer(&p, 2);
    vote_and_die(&p, 1);
    join(&p, 1);
    assert_int_equal(version_of(&p, 1), 1);
    scene_expect(p.context, weft_group_run(p.group, 0, NULL), WEFT_ABORTED, "run");
    follow(&p, 2);
    close_place(&p);
}

/* ---- no space ---- */

static void fill_up(const char *path, size_t leave) {
    static const char zeros[4096];
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    setbuf(file, NULL);
    long size = 0;
    while (fwrite(zeros, 1, sizeof zeros, file) == sizeof zeros) {
        size += (long)sizeof zeros;
    }
    assert_int_equal(errno, ENOSPC);
    assert_true(size >= (long)leave);
    assert_int_equal(ftruncate(fileno(file), size - (long)leave), 0);
    fclose(file);
}

static void expect_no_space(const weft_context *context, weft_status status, const char *text) {
    scene_expect(context, status, WEFT_NO_SPACE, text);
    if (strstr(weft_context_error(context), text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, weft_context_error(context));
    }
}

/* First nothing fits, then what the group shares, then the mirror; then there is space for steps, then not,
 * and then again. */
static void run_in_full_place(place *p, const char *filler) {
    uint64_t version;
    fill_up(filler, 8192);
    expect_no_space(p->context, weft_group_lead(p->context, p->scene.store, p->path, &world, &p->group),
                    "choose another place for the group");
    assert_int_equal(unlink(filler), 0);
    fill_up(filler, 160 * 1024);
    lead(p);
    expect_no_space(p->context, weft_group_run(p->group, PATIENCE, &version), "bytes, but only");
    assert_int_equal(unlink(filler), 0);
    scene_expect(p->context, weft_group_run(p->group, PATIENCE, &version), WEFT_OK, "a mirror with space");
    join(p, 0);
    join(p, 1);
    scene_publish(&p->scene, 500000);
    fill_up(filler, 4096);
    expect_no_space(p->context, weft_group_run(p->group, PATIENCE, &version),
                    "choose another place for the group");
    scene_expect(p->ranks[0].context, weft_member_wait(p->ranks[0].member, 0, NULL), WEFT_MORE, "wait");
    assert_int_equal(unlink(filler), 0);
    follow(p, 2);
}

static void test_full_place(void **state) {
    (void)state;
    place p;
    char disk[SCENE_PATH_MAX];
    char filler[SCENE_PATH_MAX + 8];
    prepare_place(&p, "disk/group", 64);
    make_contexts(&p, NULL);
    scratch_make_directory(&p.scene.scratch, "disk");
    snprintf(disk, sizeof disk, "%s", scratch_path(&p.scene.scratch, "disk"));
    snprintf(filler, sizeof filler, "%s/filler", disk);
    bool mounted = mount("none", disk, "tmpfs", 0, "size=16m") == 0;
    if (mounted) {
        run_in_full_place(&p, filler);
        umount2(disk, MNT_DETACH);
    }
    close_place(&p);
    if (!mounted) {
        print_message("full file systems: no tmpfs can be mounted here\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_is_gone),  cmocka_unit_test(test_nothing_can_be_had),
        cmocka_unit_test(test_stopped_for_long), cmocka_unit_test(test_voted_and_back),
        cmocka_unit_test(test_full_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
