/* SPDX-License-Identifier: Apache-2.0
 *
 * Each allocation of opening a publisher, publishing, opening a subscriber and pulling fails once: nothing
 * leaks, nothing is published by halves, what a replica holds is a published version, and the next try
 * works.
 */
#include "../support/described.h"
#include "faults.h"
#include "scenes.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static weft_context *failing_context(faults *faults) {
    const weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(faults), .threads = 2};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static void no_leak(const faults *faults, size_t n) {
    if (faults_live_blocks(faults) != 0) {
        fail_msg("allocation %zu: %zu blocks are left", n, faults_live_blocks(faults));
    }
}

static void no_memory(const weft_context *context, weft_status status, size_t n) {
    if (status != WEFT_OK && status != WEFT_NO_MEMORY) {
        fail_msg("allocation %zu: %s: %s", n, weft_status_name(status), weft_context_error(context));
    }
}

/* ---- publishing ---- */

/* Opens a publisher over what is there, and publishes twice: a failure of either leaves a run that a second
 * try, with the same publisher if there is one, goes on with. True if there was a failure. */
static bool publish_without(const weft_publisher_options *options, bool file, size_t n) {
    const char *const labels[] = {"step", "1", "note", "some words", NULL};
    faults faults = {0};
    scene s;
    char mirror[SCENE_PATH_MAX];
    scene_open(&s, options, 51);
    scene_publish(&s, 10000);
    snprintf(mirror, sizeof mirror, "%s/mirror", s.scratch.directory);
    s.options.mirror_path = file ? mirror : NULL;
    weft_context *context = failing_context(&faults);
    weft_publisher *publisher = NULL;
    faults_reset(&faults, n);
    weft_status status =
        weft_publisher_open(context, s.store, s.trainer.model.view, &s.options, &publisher);
    no_memory(context, status, n);
    for (unsigned i = 0; i < 2 && status == WEFT_OK; i++) {
        trainer_step(&s.trainer, 10000);
        status = weft_publisher_publish(publisher, labels, NULL);
        no_memory(context, status, n);
    }
    bool fired = faults_fired(&faults);
    faults_reset(&faults, 0);
    if (publisher == NULL) {
        status = weft_publisher_open(context, s.store, s.trainer.model.view, &s.options, &publisher);
        scene_expect(context, status, WEFT_OK, "open again");
    }
    trainer_step(&s.trainer, 10000);
    scene_expect(context, weft_publisher_publish(publisher, labels, NULL), WEFT_OK, "publish again");
    weft_publisher_close(publisher);
    scene_newcomer(&s, "after no memory");
    weft_context_destroy(context);
    no_leak(&faults, n);
    scene_close(&s);
    return fired;
}

static void sweep_publisher(const weft_publisher_options *options, bool file, size_t first, size_t stride) {
    size_t n = first;
    while (publish_without(options, file, n)) {
        n += stride * test_stride();
    }
    print_message("%zu allocations\n", n);
}

static void test_publishing_without_memory(void **state) {
    (void)state;
    const weft_publisher_options patches = {.size = sizeof patches, .anchor_ratio = -1};
    const weft_publisher_options anchors = {.size = sizeof anchors, .anchor_ratio = 0.01};
    sweep_publisher(&patches, false, 1, 2);
    sweep_publisher(&patches, true, 2, 3);
    sweep_publisher(&anchors, false, 1, 3);
}

/* ---- following ---- */

static void sweep_subscriber(bool file, size_t first, size_t stride) {
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1};
    const weft_subscriber_options empty = {.size = sizeof empty, .empty = true};
    faults faults = {0};
    scene s;
    model memory;
    char path[SCENE_PATH_MAX];
    scene_open(&s, &options, 52);
    for (unsigned i = 0; i < 3; i++) {
        scene_publish(&s, 10000);
    }
    worker_open(&memory, s.outside);
    bool fired = true;
    for (size_t n = first; fired; n += stride * test_stride()) {
        weft_context *context = failing_context(&faults);
        weft_subscriber *subscriber = NULL;
        snprintf(path, sizeof path, "%s/out-%zu", s.scratch.directory, n);
        faults_reset(&faults, n);
        weft_status status = file
                                 ? weft_subscriber_open_file(context, s.store, path, NULL, &subscriber)
                                 : weft_subscriber_open(context, s.store, memory.view, &empty, &subscriber);
        no_memory(context, status, n);
        if (status == WEFT_OK) {
            no_memory(context, weft_subscriber_pull(subscriber, 2), n);
            no_memory(context, weft_subscriber_pull(subscriber, 0), n);
        }
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        if (subscriber != NULL) {
            scene_expect(context, weft_subscriber_pull(subscriber, 0), WEFT_OK, "pull again");
            scene_expect(context, weft_subscriber_verify(subscriber), WEFT_OK, "verify");
            weft_digest digest = subscriber_info(subscriber).digest;
            weft_digest wanted = trainer_digest(&s.trainer);
            assert_true(weft_digest_equal(&digest, &wanted));
            assert_true(file || worker_equals(&memory, &s.trainer));
            weft_subscriber_close(subscriber);
        }
        weft_context_destroy(context);
        no_leak(&faults, n);
    }
    model_close(&memory);
    scene_close(&s);
}

static void test_following_without_memory(void **state) {
    (void)state;
    sweep_subscriber(false, 1, 2);
    sweep_subscriber(true, 1, 3);
}

/* ---- collecting ---- */

static void test_collecting_without_memory(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = 0.05};
    const weft_gc_options grace = {.size = sizeof grace, .grace_seconds = 0};
    faults faults = {0};
    scene s;
    scene_open(&s, &options, 53);
    for (unsigned i = 0; i < 30; i++) {
        scene_publish(&s, 10000);
    }
    bool fired = true;
    for (size_t n = 1; fired; n += 5 * test_stride()) {
        weft_context *context = failing_context(&faults);
        faults_reset(&faults, n);
        no_memory(context, weft_gc_run(context, s.store, &grace, NULL), n);
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        weft_context_destroy(context);
        no_leak(&faults, n);
    }
    scene_newcomer(&s, "after collecting without memory");
    scene_publish(&s, 10000);
    scene_newcomer(&s, "and on");
    scene_close(&s);
}

/* ---- being seen ---- */

/* Whatever the thread that reports has no memory for is not told, and that is all. */
static void test_reporting_without_memory(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1};
    const weft_subscriber_options seen = {
        .size = sizeof seen, .empty = true, .report_name = "seen", .report_seconds = 1};
    faults faults = {0};
    scene s;
    model memory;
    weft_fleet fleet = {.size = sizeof fleet};
    scene_open(&s, &options, 54);
    scene_publish(&s, 10000);
    worker_open(&memory, s.outside);
    bool fired = true;
    for (size_t n = 1; fired; n += 3 * test_stride()) {
        weft_context *context = failing_context(&faults);
        weft_subscriber *subscriber = NULL;
        faults_reset(&faults, n);
        weft_status status = weft_subscriber_open(context, s.store, memory.view, &seen, &subscriber);
        no_memory(context, status, n);
        if (status == WEFT_OK) {
            no_memory(context, weft_subscriber_pull(subscriber, 0), n);
        }
        weft_subscriber_close(subscriber);
        status = weft_fleet_read(context, s.store, NULL, &fleet);
        no_memory(context, status, n);
        if (status == WEFT_OK) {
            weft_fleet_close(context, &fleet);
        }
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        weft_context_destroy(context);
        no_leak(&faults, n);
    }
    scene_expect(s.outside, weft_fleet_read(s.outside, s.store, NULL, &fleet), WEFT_OK, "read the fleet");
    assert_int_equal(fleet.count, 1);
    weft_fleet_close(s.outside, &fleet);
    model_close(&memory);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publishing_without_memory),
        cmocka_unit_test(test_following_without_memory),
        cmocka_unit_test(test_collecting_without_memory),
        cmocka_unit_test(test_reporting_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
