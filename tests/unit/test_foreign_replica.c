/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in memory that follow a foreign place: a step is prepared, dropped, committed and taken back, in
 * one portion or several; and every allocation may fail, without a leak, and with the weights at one
 * version or the other.
 */
#include "faults.h"
#include "found.h"
#include "patches.h"
#include "scratch.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/foreign.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const tensor_shape shapes[] = {{"b", WEFT_DTYPE_BF16, 300, 100}, {"a", WEFT_DTYPE_F32, 50, 7}};

/* A place with version 1 of `pair`, which is at version 0. */
typedef struct scene {
    scratch scratch;
    pair pair;
    char place[600];
} scene;

static void scene_open(scene *scene, weft_context *context) {
    dice dice = {3};
    found found = {0};
    weft_foreign_written written = {.size = sizeof written};
    const weft_foreign_write_options options = {.size = sizeof options, .version = 1};
    scratch_open_volatile(&scene->scratch);
    snprintf(scene->place, sizeof scene->place, "slime:%s/slime", scene->scratch.directory);
    pair_open(&scene->pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 2);
    pair_change(&scene->pair, CHANGE_ULP, 200000, 4);
    found_between(&found, &dice, scene->pair.live.view, scene->pair.next.view, 100);
    assert_int_equal(weft_foreign_write(context, scene->place, &options, scene->pair.live.view, found.lists,
                                        found.count, &written),
                     WEFT_OK);
    found_clear(&found);
}

static void scene_close(scene *scene) {
    pair_close(&scene->pair);
    scratch_close(&scene->scratch);
}

static weft_status count_changes(void *opaque, const weft_change_batch *batch) {
    *(uint64_t *)opaque += batch->count;
    return WEFT_OK;
}

static weft_foreign_replica_info describe(const weft_foreign_replica *replica) {
    weft_foreign_replica_info info = {.size = sizeof info};
    weft_foreign_replica_describe(replica, &info);
    return info;
}

static void test_steps(void **state) {
    (void)state;
    /* half of the changes fit */
    static const uint64_t limits[] = {0, 100 * 1024};
    for (size_t i = 0; i < COUNT(limits); i++) {
        const weft_limits narrow = {.size = sizeof narrow, .stage_bytes = limits[i]};
        const weft_context_options options = {.size = sizeof options, .threads = 2, .limits = &narrow};
        weft_context *context = NULL;
        scene scene;
        weft_foreign *foreign = NULL;
        weft_foreign_replica *replica = NULL;
        uint64_t version = 0, changed = 0;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        scene_open(&scene, context);
        assert_int_equal(weft_foreign_open(context, scene.place, NULL, &foreign), WEFT_OK);
        assert_int_equal(
            weft_foreign_replica_open_view(context, foreign, scene.pair.live.view, NULL, &replica),
            WEFT_OK);
        assert_null(weft_foreign_replica_labels(replica, false)[0]);
        assert_int_equal(weft_foreign_replica_wait(replica, 0, &version), WEFT_OK);
        assert_int_equal(version, 1);
        assert_int_equal(weft_foreign_replica_commit(replica), WEFT_OK); /* of nothing */
        assert_int_equal(weft_foreign_replica_rollback(replica), WEFT_UNSUPPORTED);
        assert_int_equal(weft_foreign_replica_prepare(replica, 2), WEFT_MORE); /* it does not lead there, */
        assert_int_equal(weft_foreign_replica_prepare(replica, 0), WEFT_OK);   /* but here */
        assert_int_equal(describe(replica).prepared, 1);
        assert_string_equal(weft_foreign_replica_labels(replica, true)[1], "slime");
        assert_true(pair_at_old(&scene.pair));
        assert_int_equal(weft_foreign_replica_rollback(replica), WEFT_OK);
        assert_int_equal(describe(replica).prepared, 0);
        assert_int_equal(weft_foreign_replica_prepare(replica, 1), WEFT_OK);
        weft_status seen = weft_foreign_replica_changes(replica, 7, count_changes, &changed);
        assert_int_equal(weft_foreign_replica_commit(replica), WEFT_OK);
        assert_true(pair_at_new(&scene.pair));
        assert_int_equal(describe(replica).version, 1);
        assert_true(seen == WEFT_UNSUPPORTED || changed == describe(replica).changed);
        assert_int_equal(seen == WEFT_UNSUPPORTED, limits[i] != 0);
        assert_int_equal(weft_foreign_replica_verify(replica), WEFT_OK);
        assert_int_equal(weft_foreign_replica_prepare(replica, 2), WEFT_NOT_FOUND);
        assert_int_equal(weft_foreign_replica_wait(replica, 0, NULL), WEFT_MORE);
        assert_int_equal(weft_foreign_replica_step(replica), WEFT_MORE);
        weft_foreign_replica_close(replica);
        weft_foreign_close(foreign);
        scene_close(&scene);
        weft_context_destroy(context);
    }
}

/* Prepares, commits, takes it back, and commits again. */
static weft_status follow(weft_context *context, scene *scene) {
    weft_foreign *foreign = NULL;
    weft_foreign_replica *replica = NULL;
    weft_status status = weft_foreign_open(context, scene->place, NULL, &foreign);
    status = status == WEFT_OK
                 ? weft_foreign_replica_open_view(context, foreign, scene->pair.live.view, NULL, &replica)
                 : status;
    status = status == WEFT_OK ? weft_foreign_replica_step(replica) : status;
    status = status == WEFT_OK ? weft_foreign_replica_rollback(replica) : status;
    assert_true(status != WEFT_OK || pair_at_old(&scene->pair));
    status = status == WEFT_OK ? weft_foreign_replica_step(replica) : status;
    assert_true(status == WEFT_OK ? pair_at_new(&scene->pair)
                                  : pair_at_old(&scene->pair) || pair_at_new(&scene->pair));
    weft_foreign_replica_close(replica);
    weft_foreign_close(foreign);
    return status;
}

static void test_no_memory(void **state) {
    (void)state;
    bool fired = true;
    for (size_t n = test_stride_first(); fired; n += test_stride()) {
        faults faults = {0};
        const weft_context_options options = {
            .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 2};
        weft_context *context;
        scene scene;
        assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
        scene_open(&scene, context);
        faults_reset(&faults, n);
        weft_status status = follow(context, &scene);
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
        scene_close(&scene);
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
