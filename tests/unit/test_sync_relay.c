/* SPDX-License-Identifier: Apache-2.0
 *
 * A relay over a store that fails, lies and comes late, and over memory that runs out. Whoever reads
 * through it gets what was published, or is told that it cannot be had; and when the faults are over, the
 * newest.
 */
#include "faults.h"
#include "scenes.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A scene, a relay of its store behind faults, and the relay as a store. */
typedef struct stage {
    scene scene;
    weft_context *context;
    weft_store *upstream;
    fault_store *faults;
    weft_relay *relay;
    weft_store *store;
    char cache[SCENE_PATH_MAX];
} stage;

static void open_relay(stage *stage) {
    weft_relay_options options = {.size = sizeof options, .poll_seconds = 0.002, .cache_bytes = 1 << 20};
    scene_expect(stage->context,
                 weft_relay_open(stage->context, stage->upstream, stage->cache, &options, &stage->relay),
                 WEFT_OK, "opening the relay");
    scene_expect(stage->context, weft_relay_store(stage->context, stage->relay, &stage->store), WEFT_OK,
                 "opening the relay's store");
}

static void close_relay(stage *stage) {
    weft_store_close(stage->store);
    weft_relay_close(stage->relay);
}

static void open_stage(stage *stage, uint64_t seed) {
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    scene_open(&stage->scene, NULL, seed);
    scene_expect(stage->scene.context, scene_publisher(&stage->scene), WEFT_OK, "opening the publisher");
    (void)scene_publish(&stage->scene, 20000);
    assert_int_equal(weft_context_create(&options, &stage->context), WEFT_OK);
    assert_int_equal(fault_store_create(stage->context, stage->scene.place.reading, seed, &stage->upstream,
                                        &stage->faults),
                     WEFT_OK);
    snprintf(stage->cache, sizeof stage->cache, "%s", scratch_path(&stage->scene.scratch, "relay"));
    open_relay(stage);
}

static void close_stage(stage *stage) {
    close_relay(stage);
    weft_store_close(stage->upstream);
    weft_context_destroy(stage->context);
    scene_close(&stage->scene);
}

enum { PATIENCE_SECONDS = 200 };

/* A worker in live memory that follows through the relay. */
typedef struct follower {
    weft_context *context;
    model model;
    weft_subscriber *subscriber;
} follower;

static void open_follower(follower *follower, stage *stage) {
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    const weft_subscriber_options following = {
        .size = sizeof following, .empty = true, .poll_seconds = 0.002};
    assert_int_equal(weft_context_create(&options, &follower->context), WEFT_OK);
    worker_open(&follower->model, follower->context);
    scene_expect(follower->context,
                 weft_subscriber_open(follower->context, stage->store, follower->model.view, &following,
                                      &follower->subscriber),
                 WEFT_OK, "opening a subscriber");
}

/* Until the relay has a head. Opening it waits for one only so long. */
static void await_head(stage *stage) {
    const struct timespec moment = {.tv_nsec = 10000000};
    const time_t end = time(NULL) + PATIENCE_SECONDS;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info info = {.size = sizeof info};
    while (weft_relay_head(stage->context, stage->relay, data, &size, &info) != WEFT_OK) {
        assert_true(time(NULL) < end);
        nanosleep(&moment, NULL);
    }
}

static void close_follower(follower *follower) {
    weft_subscriber_close(follower->subscriber);
    model_close(&follower->model);
    weft_context_destroy(follower->context);
}

/* Until it is what the trainer holds; the relay learns of a version a moment later. How much later is up to
 * a machine that may be busy with others, whose disk makes a relay wait for as long as it likes: only what
 * never comes is an error. */
static void catch_up(follower *follower, stage *stage, const char *what) {
    const struct timespec moment = {.tv_nsec = 10000000};
    const time_t end = time(NULL) + PATIENCE_SECONDS;
    weft_status status = WEFT_MORE;
    while (time(NULL) < end &&
           (status != WEFT_OK || !worker_equals(&follower->model, &stage->scene.trainer))) {
        uint64_t version;
        weft_status waited = weft_subscriber_wait(follower->subscriber, 0.01, &version);
        status = waited >= 0 ? weft_subscriber_pull(follower->subscriber, 0) : waited;
        if (status < 0) {
            nanosleep(&moment, NULL);
        }
    }
    if (!worker_equals(&follower->model, &stage->scene.trainer)) {
        weft_relay_stats stats = {.size = sizeof stats};
        weft_relay_describe(stage->relay, &stats);
        fail_msg("%s: the follower did not catch up: %s; the relay has %s, %.1f s ago, %llu refused, %s",
                 what, weft_context_error(follower->context), stats.reached ? "looked" : "failed",
                 stats.head_seconds, (unsigned long long)stats.refused_heads, stats.error);
    }
}

static void test_faults_upstream(void **state) {
    (void)state;
    static const fault_rule rules[] = {
        {.kind = FAULT_FLIP, .probability = 0.4, .pattern = "p*"},
        {.kind = FAULT_SHORT, .probability = 0.4},
        {.kind = FAULT_WRONG, .probability = 0.4},
        {.kind = FAULT_STALE, .probability = 0.5},
        {.kind = FAULT_LATE, .probability = 0.3},
        {.kind = FAULT_FAIL, .probability = 0.4},
        {.kind = FAULT_DELAY, .probability = 0.4, .seconds = 0.005},
        {.kind = FAULT_FLIP, .probability = 0.5, .pattern = "heads/*"},
    };
    uint64_t struck = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        stage stage;
        follower follower;
        open_stage(&stage, 100 + i);
        open_follower(&follower, &stage);
        catch_up(&follower, &stage, "before the faults");
        fault_store_set(stage.faults, &rules[i], 1);
        for (int version = 0; version < 6; version++) {
            (void)scene_publish(&stage.scene, 20000);
            for (int pull = 0; pull < 4; pull++) {
                weft_status ignored = weft_subscriber_pull(follower.subscriber, 0);
                (void)ignored;
                weft_digest digest = worker_digest(follower.context, follower.model.view);
                assert_true(scene_published(&stage.scene, &digest));
            }
        }
        fault_store_set(stage.faults, NULL, 0);
        catch_up(&follower, &stage, "after the faults");
        struck += fault_store_count(stage.faults, rules[i].kind);
        close_follower(&follower);
        close_stage(&stage);
    }
    /* how often depends on how often the relay looked */
    assert_true(struck > 0);
}

/* Each operation of the upstream fails in turn, while a newcomer pulls through a relay that has nothing. */
static void test_each_operation_fails(void **state) {
    (void)state;
    stage stage;
    open_stage(&stage, 7);
    (void)scene_publish(&stage.scene, 20000);
    (void)scene_publish(&stage.scene, 20000);
    bool fired = true;
    for (uint64_t n = 1; fired && n < 40; n++) {
        follower follower;
        char name[32];
        close_relay(&stage);
        snprintf(name, sizeof name, "relay-%llu", (unsigned long long)n);
        snprintf(stage.cache, sizeof stage.cache, "%s", scratch_path(&stage.scene.scratch, name));
        fault_store_fail_at(stage.faults, n, n % 2 != 0 ? WEFT_REMOTE_FAILED : WEFT_NOT_FOUND);
        open_relay(&stage);
        open_follower(&follower, &stage);
        catch_up(&follower, &stage, "with one fault");
        fired = fault_store_fired(stage.faults);
        close_follower(&follower);
    }
    close_stage(&stage);
}

/* A look finds the newest head, and then cannot ask whether there is a later epoch: what it has found is
 * passed on all the same. */
static void test_next_epoch_cannot_be_asked_for(void **state) {
    (void)state;
    static const fault_rule rule = {.kind = FAULT_FAIL, .pattern = "heads/*2"};
    stage stage;
    follower follower;
    open_stage(&stage, 17);
    open_follower(&follower, &stage);
    catch_up(&follower, &stage, "before the faults");
    fault_store_set(stage.faults, &rule, 1);
    for (int version = 0; version < 3; version++) {
        (void)scene_publish(&stage.scene, 20000);
        catch_up(&follower, &stage, "without the next epoch");
    }
    assert_true(fault_store_count(stage.faults, FAULT_FAIL) > 0);
    close_follower(&follower);
    close_stage(&stage);
}

/* ---- many at once ---- */

enum { READERS = 24, ROUNDS = 6 };

typedef struct crowd {
    stage *stage;
    char key[WEFT_STORE_KEY_MAX + 1];
    const char *content;
    size_t size;
    atomic_uint wrong;
} crowd;

static void *read_all(void *argument) {
    crowd *crowd = argument;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    weft_context *context;
    weft_store_get_result result = {.size = sizeof result};
    char *buffer = malloc(crowd->size + 1);
    bool right = weft_context_create(&options, &context) == WEFT_OK;
    weft_store_get_request request = {
        .size = sizeof request, .key = crowd->key, .length = crowd->size + 1, .buffer = buffer};
    for (int i = 0; i < ROUNDS && right; i++) {
        right = weft_store_get(context, crowd->stage->store, &request, &result) == WEFT_OK &&
                result.received == crowd->size && memcmp(buffer, crowd->content, crowd->size) == 0;
    }
    atomic_fetch_add(&crowd->wrong, !right);
    weft_context_destroy(context);
    free(buffer);
    return NULL;
}

static void test_one_fetch_for_all(void **state) {
    (void)state;
    stage stage;
    pthread_t threads[READERS];
    open_stage(&stage, 11);
    await_head(&stage);
    crowd crowd = {.stage = &stage};
    scene_find(&stage.scene, "anchors", 1, crowd.key);
    char *content = scene_read(&stage.scene, crowd.key, &crowd.size);
    crowd.content = content;
    static const fault_rule slow = {.kind = FAULT_DELAY, .seconds = 0.2, .pattern = "anchors/*"};
    fault_store_set(stage.faults, &slow, 1);
    for (size_t i = 0; i < READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &crowd), 0);
    }
    for (size_t i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(crowd.wrong, 0);
    assert_int_equal(fault_store_count(stage.faults, FAULT_DELAY), 1);
    weft_relay_stats stats = {.size = sizeof stats};
    weft_relay_describe(stage.relay, &stats);
    assert_int_equal(stats.damaged, 0);
    assert_true(stats.joined + stats.hits >= READERS * ROUNDS - 1);
    free(content);
    close_stage(&stage);
}

/* ---- memory ---- */

/* What the relay serves is whole, or it says why not; and nothing leaks. */
static void use_relay(stage *stage, weft_context *context, const char *cache, const char *key,
                      const char *content, size_t size) {
    weft_relay_options options = {.size = sizeof options, .poll_seconds = 0.002};
    weft_relay *relay;
    weft_store *store;
    if (weft_relay_open(context, stage->upstream, cache, &options, &relay) != WEFT_OK) {
        return;
    }
    if (weft_relay_store(context, relay, &store) == WEFT_OK) {
        char *buffer = malloc(size);
        weft_store_get_request request = {
            .size = sizeof request, .key = key, .length = size, .buffer = buffer};
        weft_store_get_result result = {.size = sizeof result};
        if (weft_store_get(context, store, &request, &result) == WEFT_OK) {
            assert_int_equal(result.received, size);
            assert_memory_equal(buffer, content, size);
        }
        free(buffer);
        weft_store_close(store);
    }
    weft_relay_close(relay);
}

static void test_memory_runs_out(void **state) {
    (void)state;
    stage stage;
    char key[WEFT_STORE_KEY_MAX + 1];
    size_t size;
    open_stage(&stage, 13);
    (void)scene_publish(&stage.scene, 20000);
    scene_find(&stage.scene, "anchors", 1, key);
    char *content = scene_read(&stage.scene, key, &size);
    faults memory = {0};
    const weft_context_options options = {
        .size = sizeof options, .threads = 1, .allocator = faults_allocator(&memory)};
    bool fired = true;
    for (size_t n = 1; fired && n < 400; n++) {
        weft_context *context;
        faults_reset(&memory, n);
        if (weft_context_create(&options, &context) == WEFT_OK) {
            use_relay(&stage, context, scratch_path(&stage.scene.scratch, n % 2 != 0 ? "cold" : "warm"),
                      key, content, size);
            weft_context_destroy(context);
        }
        fired = faults_fired(&memory);
        assert_int_equal(faults_live_blocks(&memory), 0);
    }
    free(content);
    close_stage(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_upstream),
        cmocka_unit_test(test_each_operation_fails),
        cmocka_unit_test(test_next_epoch_cannot_be_asked_for),
        cmocka_unit_test(test_one_fetch_for_all),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
