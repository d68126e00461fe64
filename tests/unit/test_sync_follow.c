/* SPDX-License-Identifier: Apache-2.0
 *
 * How a follower waits on a store that cannot wait, for a while: it asks again later, and not at every
 * look. How often it looks, and that most looks are one request. That it notices when its run is gone.
 */
#include "../../lib/base/clock.h"
#include "../../lib/sync/follow/follow.h"
#include "scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A store before which something stands that does not know of waiting. */
typedef struct shaded {
    weft_store *inner;
    bool shade;
    unsigned watches;
    unsigned gets;
} shaded;

static weft_status shaded_get(void *opaque, weft_context *context, const weft_store_get_request *request,
                              weft_store_get_result *result) {
    shaded *self = opaque;
    self->gets++;
    return weft_store_get(context, self->inner, request, result);
}

static weft_status shaded_watch(void *opaque, weft_context *context, uint64_t after, double seconds,
                                void *buffer, size_t capacity, size_t *received_out) {
    shaded *self = opaque;
    weft_store_get_request request = {
        .size = sizeof request, .key = "heads/00000001", .length = capacity, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    (void)after;
    (void)seconds;
    self->watches++;
    if (self->shade) {
        return WEFT_UNSUPPORTED;
    }
    weft_status status = weft_store_get(context, self->inner, &request, &result);
    *received_out = status == WEFT_OK ? (size_t)result.received : 0;
    return status;
}

static weft_status shaded_put(void *opaque, weft_context *context, const weft_store_put_request *request,
                              weft_store_tag *tag) {
    const shaded *self = opaque;
    return weft_store_put(context, self->inner, request, tag);
}

static weft_status shaded_head(void *opaque, weft_context *context, const char *key, uint64_t *size,
                               weft_store_tag *tag) {
    const shaded *self = opaque;
    return weft_store_head(context, self->inner, key, size, tag);
}

static weft_status shaded_remove(void *opaque, weft_context *context, const char *key) {
    const shaded *self = opaque;
    return weft_store_remove(context, self->inner, key);
}

static void shaded_close(void *opaque) {
    (void)opaque;
}

static const weft_store_operations operations = {
    .size = sizeof operations,
    .name = "shaded",
    .get = shaded_get,
    .put = shaded_put,
    .head = shaded_head,
    .remove = shaded_remove,
    .watch = shaded_watch,
    .close = shaded_close,
};

static void test_asks_again_later(void **state) {
    (void)state;
    scene scene;
    weft_store *store;
    weft_follow follow;
    scene_open(&scene, NULL, 1);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening the publisher");
    (void)scene_publish(&scene, 20000);
    shaded shaded = {.inner = scene.store, .shade = true};
    scene_expect(scene.outside, weft_store_create(scene.outside, "shaded", &operations, &shaded, &store),
                 WEFT_OK, "making a store");
    scene_expect(scene.outside, weft_follow_open(&follow, scene.outside, store, NULL, NULL, false), WEFT_OK,
                 "opening a follow");
    scene_expect(scene.outside, weft_follow_look(&follow), WEFT_OK, "looking");
    uint64_t version = scene_publish(&scene, 20000);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(weft_follow_watch(&follow, version - 1, 1), WEFT_UNSUPPORTED);
    }
    assert_int_equal(shaded.watches, 1);
    /* the time is over, and it is still so; then it is no longer */
    follow.watch_again = 0;
    assert_int_equal(weft_follow_watch(&follow, version - 1, 1), WEFT_UNSUPPORTED);
    assert_int_equal(weft_follow_watch(&follow, version - 1, 1), WEFT_UNSUPPORTED);
    assert_int_equal(shaded.watches, 2);
    shaded.shade = false;
    follow.watch_again = 0;
    scene_expect(scene.outside, weft_follow_watch(&follow, version - 1, 1), WEFT_OK, "watching");
    assert_int_equal(follow.head.newest.version, version);
    version = scene_publish(&scene, 20000);
    scene_expect(scene.outside, weft_follow_watch(&follow, version - 1, 1), WEFT_OK, "watching at once");
    assert_int_equal(follow.head.newest.version, version);
    assert_int_equal(shaded.watches, 4);
    weft_follow_close(&follow);
    weft_store_close(store);
    scene_close(&scene);
}

/* A publisher per version: from the second on, the next version is looked for in the next epoch. One that
 * stays is found when all is due to be looked at, and from then on at once. */
static void check_hops(scene *scene, weft_follow *follow) {
    for (unsigned i = 0; i < 4; i++) {
        scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "taking over");
        uint64_t version = scene_publish(scene, 20000);
        follow->searched = i > 0 ? weft_clock_now() + 1e6 : 0;
        scene_expect(scene->outside, weft_follow_glance(follow, 10), WEFT_OK,
                     "a version of the next epoch");
        assert_int_equal(follow->head.newest.version, version);
        follow->searched = weft_clock_now() + 1e6;
        assert_int_equal(weft_follow_glance(follow, 10), WEFT_MORE);
    }
    for (unsigned i = 0; i < 3; i++) {
        uint64_t version = scene_publish(scene, 20000);
        follow->searched = i > 0 ? weft_clock_now() + 1e6 : 0;
        scene_expect(scene->outside, weft_follow_glance(follow, 10), WEFT_OK,
                     "a version of the same epoch");
        assert_int_equal(follow->head.newest.version, version);
    }
}

/* One request for a look that finds nothing, and for one that finds the next version. A takeover is found
 * by what it leaves in the old epoch, and where puts have no conditions when later epochs are due. */
static void check_glances(bool plain) {
    scene scene;
    weft_store *store;
    weft_follow follow;
    scene_open(&scene, NULL, plain ? 3 : 4);
    fault_store_set_plain(scene.faults, plain);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening the publisher");
    (void)scene_publish(&scene, 20000);
    shaded shaded = {.inner = scene.store, .shade = true};
    scene_expect(scene.outside, weft_store_create(scene.outside, "shaded", &operations, &shaded, &store),
                 WEFT_OK, "making a store");
    scene_expect(scene.outside, weft_follow_open(&follow, scene.outside, store, NULL, NULL, false), WEFT_OK,
                 "opening a follow");
    scene_expect(scene.outside, weft_follow_look(&follow), WEFT_OK, "looking");
    follow.searched = weft_clock_now() + 1e6; /* later epochs are not due */
    shaded.gets = 0;
    for (unsigned i = 1; i <= 20; i++) {
        assert_int_equal(weft_follow_glance(&follow, 10), WEFT_MORE);
        assert_int_equal(shaded.gets, i);
    }
    uint64_t version = scene_publish(&scene, 20000);
    scene_expect(scene.outside, weft_follow_glance(&follow, 10), WEFT_OK, "the next version");
    assert_int_equal(shaded.gets, 21);
    assert_int_equal(follow.head.newest.version, version);
    assert_true(follow.interval > 0);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "taking over");
    version = scene_publish(&scene, 20000);
    weft_status status = weft_follow_glance(&follow, 10);
    if (plain && status == WEFT_MORE) {
        follow.searched = 0;
        status = weft_follow_glance(&follow, 10);
    }
    scene_expect(scene.outside, status, WEFT_OK, "a version of a later epoch");
    assert_int_equal(follow.head.newest.version, version);
    if (plain) {
        check_hops(&scene, &follow);
    }
    weft_follow_close(&follow);
    weft_store_close(store);
    scene_close(&scene);
}

static void test_glances(void **state) {
    (void)state;
    check_glances(false);
    check_glances(true);
}

/* Within a tenth of the time that versions take, and at most so often. */
static void test_pauses(void **state) {
    (void)state;
    weft_follow follow = {.news = weft_clock_now()};
    assert_true(weft_follow_pause(&follow, 0.5, 10) == 0.5);
    follow.interval = 60;
    assert_true(weft_follow_pause(&follow, 0.5, 10) <= 6);
    assert_true(weft_follow_pause(&follow, 0.5, 10) > 5);
    follow.news -= 3600;
    assert_true(weft_follow_pause(&follow, 0.5, 10) == 10);
    follow.interval = 0;
    assert_true(weft_follow_pause(&follow, 0.5, 10) == 10);
}

/* Who claims and dies, again and again, before there is a version, where puts have no conditions: nobody
 * who waits is left behind. */
static void test_many_claims(void **state) {
    (void)state;
    scene scene;
    weft_follow follow;
    scene_open(&scene, NULL, 2);
    fault_store_set_plain(scene.faults, true);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening the first publisher");
    scene_expect(scene.outside, weft_follow_open(&follow, scene.outside, scene.store, NULL, NULL, false),
                 WEFT_OK, "opening a follow");
    scene_expect(scene.outside, weft_follow_look(&follow), WEFT_OK, "looking");
    for (int i = 0; i < 70; i++) {
        scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "opening another");
    }
    uint64_t version = scene_publish(&scene, 20000);
    scene_expect(scene.outside, weft_follow_look(&follow), WEFT_OK, "looking again");
    assert_int_equal(follow.head.newest.version, version);
    weft_follow_close(&follow);
    scene_close(&scene);
}

/* A run that is begun anew in its place counts epochs from 1 again. Who has seen a later one is told, and does
 * not wait for ever; while there is nothing, it waits. */
static void test_begun_anew(void **state) {
    (void)state;
    scene first, second;
    weft_store *store;
    weft_follow follow;
    scene_open(&first, NULL, 5);
    scene_open(&second, NULL, 6);
    for (int i = 0; i < 2; i++) {
        scene_expect(first.context, scene_publisher(&first), WEFT_OK, "opening a publisher");
        (void)scene_publish(&first, 20000);
    }
    shaded shaded = {.inner = first.store, .shade = true};
    scene_expect(first.outside, weft_store_create(first.outside, "shaded", &operations, &shaded, &store),
                 WEFT_OK, "making a store");
    scene_expect(first.outside, weft_follow_open(&follow, first.outside, store, NULL, NULL, false), WEFT_OK,
                 "opening a follow");
    scene_expect(first.outside, weft_follow_look(&follow), WEFT_OK, "looking");
    assert_int_equal(follow.mark.epoch, 2);
    shaded.inner = second.store;
    assert_int_equal(weft_follow_look(&follow), WEFT_MORE);
    scene_expect(second.context, scene_publisher(&second), WEFT_OK, "beginning anew");
    (void)scene_publish(&second, 20000);
    assert_int_equal(weft_follow_look(&follow), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(first.outside), "but this replica follows run"));
    weft_follow_close(&follow);
    weft_store_close(store);
    scene_close(&second);
    scene_close(&first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asks_again_later),
        cmocka_unit_test(test_glances),
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_many_claims),
        cmocka_unit_test(test_begun_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
