/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions that are published as changes: followers hold what they would after whole ones, in any order of
 * the two; the trainer's weights are not read; anchors and leaps come from the publisher's copy; what fails
 * is undone and can be given again; and what has no base is refused. And changes that a follower sees
 * before it commits them.
 */
#include "described.h"
#include "faults.h"
#include "found.h"
#include "patches.h"
#include "scenes.h"
#include "seen.h"
#include "stride.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A follower, whose weights are what was published last: what has changed is found against it. */
typedef struct stage {
    scene scene;
    weft_context *context;
    model model;
    weft_subscriber *subscriber;
    dice dice;
} stage;

static void stage_open(stage *stage, const weft_publisher_options *options, bool leaps) {
    const weft_subscriber_options following = {.size = sizeof following, .empty = true};
    scene_open(&stage->scene, options, 7);
    stage->scene.options.no_leaps = !leaps;
    stage->dice = (dice){3};
    stage->context = patches_context(2);
    worker_open(&stage->model, stage->context);
    scene_expect(stage->scene.context, scene_publisher(&stage->scene), WEFT_OK, "open a publisher");
    scene_expect(stage->context,
                 weft_subscriber_open(stage->context, stage->scene.place.reading, stage->model.view,
                                      &following, &stage->subscriber),
                 WEFT_OK, "open a subscriber");
}

static void stage_close(stage *stage) {
    weft_subscriber_close(stage->subscriber);
    model_close(&stage->model);
    weft_context_destroy(stage->context);
    scene_close(&stage->scene);
}

/* The changes since what the follower holds. */
static weft_status stage_give(stage *stage, unsigned extra, const char *const *labels,
                              weft_publish_result *result) {
    found found = {0};
    found_between(&found, &stage->dice, stage->model.view, stage->scene.trainer.model.view, extra);
    weft_status status =
        weft_publisher_publish_changes(stage->scene.publisher, found.lists, found.count, labels, result);
    found_clear(&found);
    return status;
}

static void stage_pull(stage *stage) {
    scene_expect(stage->context, weft_subscriber_pull(stage->subscriber, 0), WEFT_OK, "pull");
    assert_true(worker_equals(&stage->model, &stage->scene.trainer));
    weft_digest digest = subscriber_info(stage->subscriber).digest;
    weft_digest expected = trainer_digest(&stage->scene.trainer);
    assert_true(weft_digest_equal(&digest, &expected));
}

/* ---- together with whole versions ---- */

static void walk(const weft_publisher_options *options, bool leaps, unsigned versions) {
    const char *const labels[] = {"step", "7", NULL};
    stage stage;
    stage_open(&stage, options, leaps);
    scene_publish(&stage.scene, 5000);
    stage_pull(&stage);
    for (unsigned i = 2; i <= versions; i++) {
        weft_publish_result result = {.size = sizeof result};
        trainer_step(&stage.scene.trainer, i % 7 == 0 ? 900000 : i % 5 == 0 ? 0 : 4000);
        if (i % 3 == 0) {
            scene_expect(stage.scene.context, weft_publisher_publish(stage.scene.publisher, NULL, &result),
                         WEFT_OK, "publish");
        } else {
            scene_expect(stage.scene.context, stage_give(&stage, i * 500, labels, &result), WEFT_OK,
                         "publish changes");
            assert_false(result.anchored);
        }
        assert_int_equal(result.version, i);
        weft_digest expected = trainer_digest(&stage.scene.trainer);
        assert_true(weft_digest_equal(&result.digest, &expected));
        stage_pull(&stage);
        if (i % 3 != 0) {
            assert_string_equal(weft_subscriber_label(stage.subscriber, "step"), "7");
        }
        if (i % 10 == 0) {
            scene_newcomer(&stage.scene, "a newcomer");
        }
    }
    scene_expect(stage.scene.context, weft_publisher_settle(stage.scene.publisher), WEFT_OK, "settle");
    scene_newcomer(&stage.scene, "the last newcomer");
    stage_close(&stage);
}

static void test_both_in_turn(void **state) {
    (void)state;
    const unsigned versions = test_stride() > 1 ? 12 : 25;
    const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};
    for (size_t p = 0; p < 2; p++) {
        const weft_publisher_options plain = {
            .size = sizeof plain, .profile = profiles[p], .bucket_bytes = 32768};
        const weft_publisher_options anchors = {.size = sizeof anchors,
                                                .profile = profiles[p],
                                                .anchor_ratio = 0.05,
                                                .anchors_in_background = p == 0};
        walk(&plain, false, versions);
        walk(&anchors, true, versions);
    }
}

static void test_a_mirror_file(void **state) {
    (void)state;
    scratch scratch;
    scratch_open_volatile(&scratch);
    const weft_publisher_options options = {
        .size = sizeof options, .mirror_path = scratch_path(&scratch, "mirror"), .anchor_ratio = 0.2};
    walk(&options, true, 12);
    scratch_close(&scratch);
}

/* ---- weights that nobody may read ---- */

typedef struct device {
    uint16_t *memory;
    size_t bytes;
    bool locked;
    unsigned reads;
} device;

static weft_status device_read(void *opaque, uint64_t offset, void *output, size_t size) {
    device *device = opaque;
    device->reads++;
    if (device->locked || offset + size > device->bytes) {
        return WEFT_IO_FAILED;
    }
    memcpy(output, (const uint8_t *)device->memory + offset, size);
    return WEFT_OK;
}

static void test_weights_on_a_device(void **state) {
    (void)state;
    enum { UNITS = 50000 };
    const weft_access access = {.read = device_read};
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = 0.01, .bucket_bytes = 32768, .no_leaps = true};
    weft_context *context = patches_context(2);
    scratch scratch;
    scene_place place;
    scratch_open_volatile(&scratch);
    scene_place_open(&place, context, &scratch);
    dice dice = {1};
    uint16_t *news = malloc(UNITS * 2);
    device device = {.memory = malloc(UNITS * 2), .bytes = UNITS * 2};
    assert_true(news != NULL && device.memory != NULL);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, news, UNITS);
    memcpy(device.memory, news, UNITS * 2);
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "w",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 1,
                          .shape = {UNITS},
                          .access = &access,
                          .opaque = &device};
    weft_table *table;
    weft_view *view;
    weft_publisher *publisher;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_publisher_open(context, place.store, view, &options, &publisher), WEFT_OK);
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_OK);
    assert_true(device.reads > 0);
    device.locked = true;
    device.reads = 0;
    unsigned anchors = 0;
    for (unsigned i = 0; i < 8; i++) {
        found found = {0};
        weft_publish_result result = {.size = sizeof result};
        weights_change(&dice, CHANGE_ULP, 2, news, UNITS, 2000);
        found_add(&found, &dice, "w", 2, device.memory, news, UNITS, 1000);
        weft_status status =
            weft_publisher_publish_changes(publisher, found.lists, found.count, NULL, &result);
        assert_string_equal(weft_context_error(context), "");
        assert_int_equal(status, WEFT_OK);
        anchors += result.anchor_bytes > 0;
        memcpy(device.memory, news, UNITS * 2);
        found_clear(&found);
        /* a newcomer begins at an anchor, which was made of the publisher's copy */
        model worker;
        weft_subscriber *subscriber;
        const weft_subscriber_options following = {.size = sizeof following, .empty = true};
        model_open(&worker, context);
        const uint16_t *held = model_add(&worker, "w", WEFT_DTYPE_BF16, UNITS, 0);
        assert_int_equal(
            weft_subscriber_open(context, place.reading, model_show(&worker), &following, &subscriber),
            WEFT_OK);
        assert_int_equal(weft_subscriber_pull(subscriber, 0), WEFT_OK);
        assert_memory_equal(held, news, UNITS * 2);
        weft_subscriber_close(subscriber);
        model_close(&worker);
    }
    assert_true(anchors > 0);
    assert_int_equal(device.reads, 0);
    weft_publisher_close(publisher);
    weft_view_destroy(view);
    weft_table_destroy(table);
    free(device.memory);
    free(news);
    scene_place_close(&place);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- failures ---- */

/* Each operation of the store fails, or its answer is lost; the same changes are given again, with more. */
static void test_failures(void **state) {
    (void)state;
    for (unsigned lose = 0; lose < 2; lose++) {
        stage stage;
        stage_open(&stage, NULL, false);
        scene_publish(&stage.scene, 5000);
        stage_pull(&stage);
        bool fired = true;
        for (uint64_t n = 1; fired; n++) {
            fault_store *faults = stage.scene.faults;
            trainer_step(&stage.scene.trainer, 3000);
            if (lose) {
                fault_store_lose_at(faults, n, WEFT_REMOTE_FAILED);
            } else {
                fault_store_fail_at(faults, n, WEFT_REMOTE_FAILED);
            }
            weft_status status = stage_give(&stage, 100, NULL, NULL);
            fired = fault_store_fired(faults);
            fault_store_fail_at(faults, 0, WEFT_OK);
            if (status != WEFT_OK) {
                trainer_step(&stage.scene.trainer, 3000);
                scene_expect(stage.scene.context, stage_give(&stage, 100, NULL, NULL), WEFT_OK, "again");
            }
            stage_pull(&stage);
        }
        stage_close(&stage);
    }
}

/* Each allocation fails in turn: nothing is published by halves, nothing leaks, and the next try works. */
static void sweep_memory(const char *mirror) {
    faults faults = {0};
    const weft_context_options context_options = {
        .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 2};
    const weft_publisher_options options = {.size = sizeof options,
                                            .anchor_ratio = -1,
                                            .no_leaps = true,
                                            .mirror_path = mirror,
                                            .bucket_bytes = 32768};
    weft_context *context;
    stage stage;
    assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
    stage_open(&stage, &options, false);
    scene *scene = &stage.scene;
    weft_publisher_close(scene->publisher);
    scene_expect(
        context,
        weft_publisher_open(context, scene->store, scene->trainer.model.view, &options, &scene->publisher),
        WEFT_OK, "open");
    scene_expect(context, weft_publisher_publish(scene->publisher, NULL, NULL), WEFT_OK, "publish");
    stage_pull(&stage);
    bool fired = true;
    for (size_t n = 1; fired; n += test_stride()) {
        trainer_step(&scene->trainer, n % 5 == 0 ? 300000 : 3000);
        faults_reset(&faults, n);
        weft_status status = stage_give(&stage, 100, NULL, NULL);
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
        if (status != WEFT_OK) {
            trainer_step(&scene->trainer, 3000);
            scene_expect(context, stage_give(&stage, 100, NULL, NULL), WEFT_OK, "again");
        }
        stage_pull(&stage);
    }
    weft_publisher_close(scene->publisher);
    scene->publisher = NULL;
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
    stage_close(&stage);
}

static void test_no_memory(void **state) {
    (void)state;
    scratch scratch;
    scratch_open_volatile(&scratch);
    sweep_memory(NULL);
    sweep_memory(scratch_path(&scratch, "mirror"));
    scratch_close(&scratch);
}

/* What is wrong with a list is told, and nothing is published. */
static void test_refused_lists(void **state) {
    (void)state;
    stage stage;
    stage_open(&stage, NULL, false);
    scene_publish(&stage.scene, 5000);
    stage_pull(&stage);
    const uint64_t units[] = {5, 5};
    const uint16_t values[] = {1, 2};
    const weft_tensor_changes list = {"embed", units, values, 2};
    scene_expect(stage.scene.context,
                 weft_publisher_publish_changes(stage.scene.publisher, &list, 1, NULL, NULL),
                 WEFT_INVALID_ARGUMENT, "a unit twice");
    assert_non_null(strstr(weft_context_error(stage.scene.context), "embed"));
    assert_int_equal(weft_publisher_version(stage.scene.publisher), 1);
    trainer_step(&stage.scene.trainer, 3000);
    scene_expect(stage.scene.context, stage_give(&stage, 0, NULL, NULL), WEFT_OK, "after that");
    stage_pull(&stage);
    stage_close(&stage);
}

static void test_no_base(void **state) {
    (void)state;
    stage stage;
    stage_open(&stage, NULL, false);
    scene *scene = &stage.scene;
    scene_expect(scene->context, weft_publisher_publish_changes(scene->publisher, NULL, 0, NULL, NULL),
                 WEFT_NOT_FOUND, "before the first version");
    assert_non_null(strstr(weft_context_error(scene->context), "weft_publisher_publish"));
    scene_publish(scene, 5000);
    stage_pull(&stage);
    /* another publisher takes over what is in the store */
    scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "open again");
    trainer_step(&scene->trainer, 3000);
    scene_expect(scene->context, stage_give(&stage, 10, NULL, NULL), WEFT_OK, "after taking over");
    stage_pull(&stage);
    scene->options.whole = true;
    scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "open whole");
    scene_expect(scene->context, weft_publisher_publish_changes(scene->publisher, NULL, 0, NULL, NULL),
                 WEFT_UNSUPPORTED, "whole versions");
    scene->options.whole = false;
    scene->options.part_count = 2;
    scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "open a part");
    scene_expect(scene->context, weft_publisher_publish_changes(scene->publisher, NULL, 0, NULL, NULL),
                 WEFT_UNSUPPORTED, "parts");
    stage_close(&stage);
}

/* The last version has other tensors than what is published now; only a mirror file can hold it. */
static void test_other_tensors(void **state) {
    (void)state;
    scratch scratch;
    scratch_open_volatile(&scratch);
    const weft_publisher_options options = {.size = sizeof options,
                                            .mirror_path = scratch_path(&scratch, "mirror")};
    stage stage;
    stage_open(&stage, &options, false);
    scene *scene = &stage.scene;
    scene_publish(scene, 5000);
    weft_publisher_close(scene->publisher);
    scene->publisher = NULL;
    model other;
    model_open(&other, scene->context);
    model_add(&other, "embed", WEFT_DTYPE_BF16, 10, 10);
    weft_publisher *publisher;
    scene_expect(
        scene->context,
        weft_publisher_open(scene->context, scene->faulty, model_show(&other), &scene->options, &publisher),
        WEFT_OK, "open with other tensors");
    scene_expect(scene->context, weft_publisher_publish_changes(publisher, NULL, 0, NULL, NULL),
                 WEFT_NOT_FOUND, "other tensors");
    assert_non_null(strstr(weft_context_error(scene->context), "other tensors"));
    scene_expect(scene->context, weft_publisher_publish(publisher, NULL, NULL), WEFT_OK, "whole");
    scene_expect(scene->context, weft_publisher_publish_changes(publisher, NULL, 0, NULL, NULL), WEFT_OK,
                 "then changes");
    weft_publisher_close(publisher);
    model_close(&other);
    stage_close(&stage);
    scratch_close(&scratch);
}

/* Names of one memory must be given the same changes. */
static void test_ties(void **state) {
    (void)state;
    enum { UNITS = 3000 };
    const weft_publisher_options options = {.size = sizeof options, .no_leaps = true};
    weft_context *context = patches_context(1);
    scratch scratch;
    scene_place place;
    scratch_open_volatile(&scratch);
    scene_place_open(&place, context, &scratch);
    dice dice = {4};
    uint16_t weights[UNITS];
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, weights, UNITS);
    weft_table *table;
    weft_view *view;
    weft_publisher *publisher;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    for (unsigned i = 0; i < 2; i++) {
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = i == 0 ? "embed" : "head",
                              .dtype = WEFT_DTYPE_BF16,
                              .rank = 1,
                              .shape = {UNITS},
                              .data = weights,
                              .writable = true};
        assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    assert_int_equal(weft_publisher_open(context, place.store, view, &options, &publisher), WEFT_OK);
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_OK);
    const uint64_t unit = 17;
    const uint16_t value = (uint16_t)(weights[17] + 1);
    const weft_tensor_changes lists[] = {{"head", &unit, &value, 1}, {"embed", &unit, &value, 1}};
    assert_int_equal(weft_publisher_publish_changes(publisher, lists, 1, NULL, NULL),
                     WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "embed and head"));
    assert_int_equal(weft_publisher_version(publisher), 1);
    assert_int_equal(weft_publisher_publish_changes(publisher, lists, 2, NULL, NULL), WEFT_OK);
    weft_publish_result result = {.size = sizeof result};
    weights[17] = value;
    assert_int_equal(weft_publisher_publish(publisher, NULL, &result), WEFT_OK);
    assert_int_equal(result.changed, 0);
    weft_publisher_close(publisher);
    weft_view_destroy(view);
    weft_table_destroy(table);
    scene_place_close(&place);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- a copy that has drifted ---- */

/* Knows the largest block of memory, which is the publisher's copy of the model. Threads that upload allocate
 * too. */
typedef struct watcher {
    pthread_mutex_t mutex;
    uint8_t *largest;
    size_t size;
} watcher;

static void *watch_reallocate(void *opaque, void *memory, size_t size) {
    watcher *watcher = opaque;
    uint8_t *block = realloc(memory, size);
    pthread_mutex_lock(&watcher->mutex);
    if (size > watcher->size) {
        watcher->largest = block;
        watcher->size = size;
    }
    pthread_mutex_unlock(&watcher->mutex);
    return block;
}

static void *watch_allocate(void *opaque, size_t size) {
    return watch_reallocate(opaque, NULL, size);
}

static void watch_release(void *opaque, void *memory) {
    (void)opaque;
    free(memory);
}

static void test_a_copy_that_drifted(void **state) {
    (void)state;
    enum { UNITS = 400000 };
    watcher watcher = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    const weft_context_options context_options = {
        .size = sizeof context_options,
        .allocator = {watch_allocate, watch_reallocate, watch_release, &watcher},
        .threads = 1};
    const weft_publisher_options options = {
        .size = sizeof options, .no_leaps = true, .bucket_bytes = 65536};
    weft_context *context;
    assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
    scratch scratch;
    scene_place place;
    scratch_open_volatile(&scratch);
    scene_place_open(&place, context, &scratch);
    dice dice = {8};
    model trainer;
    weft_publisher *publisher;
    model_open(&trainer, context);
    uint16_t *weights = model_add(&trainer, "w", WEFT_DTYPE_BF16, UNITS, 0);
    uint16_t *olds = malloc(UNITS * 2);
    assert_non_null(olds);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, weights, UNITS);
    assert_int_equal(weft_publisher_open(context, place.store, model_show(&trainer), &options, &publisher),
                     WEFT_OK);
    uint8_t *copy = watcher.largest;
    assert_true(watcher.size >= UNITS * 2 && watcher.size < UNITS * 2 + 4096);
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_OK);
    uint8_t sound = copy[UNITS];
    copy[UNITS] ^= 1;
    memcpy(olds, weights, UNITS * 2);
    weights_change(&dice, CHANGE_ULP, 2, weights, UNITS, 100);
    found found = {0};
    weft_publish_result result = {.size = sizeof result};
    found_add(&found, &dice, "w", 2, olds, weights, UNITS, 0);
    assert_int_equal(weft_publisher_publish_changes(publisher, found.lists, found.count, NULL, &result),
                     WEFT_OK);
    assert_false(result.anchored);
    assert_int_equal(copy[UNITS], sound);
    weft_digest expected = worker_digest(context, trainer.view);
    assert_true(weft_digest_equal(&result.digest, &expected));
    found_clear(&found);
    free(olds);
    weft_publisher_close(publisher);
    model_close(&trainer);
    scene_place_close(&place);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- changes that come ---- */

/* One step: what was visited is what the commit did. Returns how much. */
static uint64_t follow_seen(weft_context *context, weft_subscriber *subscriber, const weft_table *table) {
    weft_status status = WEFT_MORE;
    uint64_t changed = 0;
    while (status == WEFT_MORE) {
        seen seen;
        status = weft_subscriber_prepare(subscriber, 0);
        scene_expect(context, status, status >= 0 ? status : WEFT_OK, "prepare");
        seen_open(&seen, table, NULL, NULL);
        seen.most = 300;
        scene_expect(context, weft_subscriber_changes(subscriber, 300, seen_visit, &seen), WEFT_OK,
                     "visit");
        scene_expect(context, weft_subscriber_commit(subscriber), WEFT_OK, "commit");
        assert_true(seen_holds(&seen, NULL, NULL));
        changed += seen.changed;
        seen_close(&seen);
    }
    return changed;
}

static void test_a_follower_sees(void **state) {
    (void)state;
    stage stage;
    stage_open(&stage, NULL, false);
    scene *scene = &stage.scene;
    seen nothing;
    scene_publish(scene, 5000);
    /* memory that held nothing has no changes to be seen */
    seen_open(&nothing, stage.model.table, NULL, NULL);
    scene_expect(stage.context, weft_subscriber_prepare(stage.subscriber, 0), WEFT_OK, "prepare");
    scene_expect(stage.context, weft_subscriber_changes(stage.subscriber, 0, seen_visit, &nothing),
                 WEFT_UNSUPPORTED, "visit what was filled");
    scene_expect(stage.context, weft_subscriber_commit(stage.subscriber), WEFT_OK, "commit");
    stage_pull(&stage);
    for (unsigned i = 0; i < 6; i++) {
        weft_publish_result result = {.size = sizeof result};
        trainer_step(&scene->trainer, i == 3 ? 800000 : 5000);
        scene_expect(scene->context, weft_publisher_publish(scene->publisher, NULL, &result), WEFT_OK,
                     "publish");
        assert_int_equal(follow_seen(stage.context, stage.subscriber, stage.model.table), result.changed);
        assert_true(worker_equals(&stage.model, &scene->trainer));
    }
    /* with nothing to do there is nothing to see */
    scene_expect(stage.context, weft_subscriber_prepare(stage.subscriber, 0), WEFT_OK, "prepare nothing");
    scene_expect(stage.context, weft_subscriber_changes(stage.subscriber, 0, seen_visit, &nothing), WEFT_OK,
                 "visit nothing");
    assert_int_equal(nothing.batches, 0);
    assert_null(nothing.wrong);
    seen_close(&nothing);
    /* weights that are no version are replaced by an anchor: what differs is seen */
    scene_publish(scene, 5000);
    uint16_t *weights = stage.model.blocks[0];
    weights[11] ^= 3;
    scene_expect(stage.context, weft_subscriber_verify(stage.subscriber), WEFT_DIGEST_MISMATCH, "verify");
    assert_true(follow_seen(stage.context, stage.subscriber, stage.model.table) > 0);
    assert_true(worker_equals(&stage.model, &scene->trainer));
    stage_close(&stage);
}

/* Where the changes are not all prepared, or not in memory, none are shown. */
static void test_changes_that_are_not_there(void **state) {
    (void)state;
    const weft_context_options tight = {
        .size = sizeof tight,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = 20000}};
    const weft_publisher_options options = {.size = sizeof options, .bucket_bytes = 32768};
    const weft_subscriber_options following = {.size = sizeof following, .empty = true};
    stage stage;
    stage_open(&stage, &options, false);
    scene *scene = &stage.scene;
    seen seen;
    seen_open(&seen, stage.model.table, NULL, NULL);
    scene_publish(scene, 5000);
    weft_context *context;
    model worker;
    weft_subscriber *live;
    weft_subscriber *file;
    assert_int_equal(weft_context_create(&tight, &context), WEFT_OK);
    worker_open(&worker, context);
    scene_expect(context,
                 weft_subscriber_open(context, scene->place.reading, worker.view, &following, &live),
                 WEFT_OK, "open");
    scene_expect(context, weft_subscriber_pull(live, 0), WEFT_OK, "pull");
    scene_expect(stage.context,
                 weft_subscriber_open_file(stage.context, scene->place.reading,
                                           scratch_path(&scene->scratch, "replica"), NULL, &file),
                 WEFT_OK, "open a file");
    scene_expect(stage.context, weft_subscriber_pull(file, 0), WEFT_OK, "pull a file");
    scene_publish(scene, 90000);
    scene_expect(context, weft_subscriber_prepare(live, 0), WEFT_OK, "prepare");
    scene_expect(context, weft_subscriber_changes(live, 0, seen_visit, &seen), WEFT_UNSUPPORTED,
                 "portions");
    assert_non_null(strstr(weft_context_error(context), "stage_bytes"));
    scene_expect(context, weft_subscriber_commit(live), WEFT_OK, "commit");
    assert_true(worker_equals(&worker, &scene->trainer));
    scene_expect(stage.context, weft_subscriber_prepare(file, 0), WEFT_OK, "prepare a file");
    scene_expect(stage.context, weft_subscriber_changes(file, 0, seen_visit, &seen), WEFT_UNSUPPORTED,
                 "a file");
    scene_expect(stage.context, weft_subscriber_commit(file), WEFT_OK, "commit a file");
    assert_int_equal(seen.batches, 0);
    seen_close(&seen);
    weft_subscriber_close(live);
    weft_subscriber_close(file);
    model_close(&worker);
    weft_context_destroy(context);
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_in_turn),
        cmocka_unit_test(test_a_mirror_file),
        cmocka_unit_test(test_weights_on_a_device),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refused_lists),
        cmocka_unit_test(test_no_base),
        cmocka_unit_test(test_other_tensors),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_a_copy_that_drifted),
        cmocka_unit_test(test_a_follower_sees),
        cmocka_unit_test(test_changes_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
