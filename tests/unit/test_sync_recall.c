/* SPDX-License-Identifier: Apache-2.0
 *
 * The profile `smallest`: every version arrives, also where followers were away, restart, roll back or come
 * anew, where publishers fail or take over, and where what is recalled is lost. Nobody who has followed the
 * versions one by one needs an anchor.
 */
#include "../../lib/patch/recall/recall.h"
#include "scenes.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PER_MILLION = 10000 };

/* So that a patch is the way, never a newer anchor. */
static const weft_publisher_options one_anchor = {
    .size = sizeof one_anchor, .profile = WEFT_PROFILE_SMALLEST, .bucket_bytes = 32768, .anchor_ratio = -1};

static void open_scene(scene *scene, const weft_publisher_options *options, uint64_t seed) {
    scene_open(scene, options, seed);
    scene->options.no_leaps = false;
    scene_expect(scene->context, scene_publisher(scene), WEFT_OK, "open");
}

static void publish_until(scene *scene, uint64_t version) {
    while (weft_publisher_version(scene->publisher) < version) {
        scene_publish(scene, PER_MILLION);
        if (weft_publisher_version(scene->publisher) % 32 == 0) {
            scene_expect(scene->context, weft_publisher_settle(scene->publisher), WEFT_OK, "settle");
        }
    }
    scene_expect(scene->context, weft_publisher_settle(scene->publisher), WEFT_OK, "settle");
}

static weft_subscriber_info describe(const replica *replica) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(replica->subscriber, &info);
    return info;
}

/* How many versions the patch of a version recalls, and how many of its buckets do. */
static unsigned look_into(scene *scene, uint64_t version, unsigned *buckets) {
    char key[WEFT_STORE_KEY_MAX + 1];
    size_t size;
    scene_find(scene, "patches", version, key);
    char *data = scene_read(scene, key, &size);
    const weft_source source = {.memory = data, .size = size};
    weft_patch *patch;
    scene_expect(scene->outside, weft_patch_open(scene->outside, &source, &patch), WEFT_OK, "a patch");
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(patch, &info);
    assert_int_equal(info.profile, WEFT_PROFILE_SMALLEST);
    *buckets = 0;
    for (size_t i = 0; i < info.buckets; i++) {
        weft_bucket_info bucket = {.size = sizeof bucket};
        scene_expect(scene->outside, weft_patch_bucket(scene->outside, patch, i, &bucket), WEFT_OK,
                     "bucket");
        *buckets += bucket.coding == WEFT_CODING_SMALLEST;
    }
    weft_patch_close(patch);
    free(data);
    return info.recalls;
}

/* ---- the usual way ---- */

static void test_every_version_arrives(void **state) {
    (void)state;
    scene scene;
    replica live, file;
    unsigned buckets;
    open_scene(&scene, &one_anchor, 3);
    scene_publish(&scene, PER_MILLION);
    replica_open(&live, &scene, NULL, NULL);
    replica_open(&file, &scene, "copy", NULL);
    for (unsigned i = 1; i <= 20; i++) {
        replica_catch_up(&live, "live");
        replica_catch_up(&file, "file");
        assert_int_equal(describe(&live).version, i);
        /* nothing, all, and what is noted of both */
        scene_publish(&scene, i == 7 ? 900000 : i == 12 ? 0 : PER_MILLION);
    }
    assert_int_equal(describe(&live).anchors, 1);
    assert_int_equal(describe(&file).anchors, 1);
    assert_int_equal(describe(&live).healed, 0);
    assert_int_equal(describe(&file).healed, 0);
    assert_int_equal(look_into(&scene, 2, &buckets), 0);
    assert_int_equal(buckets, 0);
    assert_int_equal(look_into(&scene, 3, &buckets), 1);
    assert_true(buckets > 0);
    assert_int_equal(look_into(&scene, 19, &buckets), 8);
    assert_true(buckets > 0);
    scene_newcomer(&scene, "after 20 versions");
    replica_close(&live);
    replica_close(&file);
    scene_close(&scene);
}

/* ---- absences ---- */

static void test_any_absence(void **state) {
    (void)state;
    static const uint64_t parked_at[] = {1, 2, 5, 16, 33, 63, 64, 65, 70, 73};
    enum { PARKED = sizeof parked_at / sizeof *parked_at, LAST = 75 };
    scene scene;
    replica parked[PARKED];
    open_scene(&scene, &one_anchor, 3);
    for (size_t i = 0; i < PARKED; i++) {
        publish_until(&scene, parked_at[i]);
        replica_open(&parked[i], &scene, NULL, NULL);
        replica_catch_up(&parked[i], "parking");
    }
    publish_until(&scene, LAST);
    for (size_t i = 0; i < PARKED; i++) {
        uint64_t anchors = describe(&parked[i]).anchors, patches = describe(&parked[i]).patches;
        replica_catch_up(&parked[i], "coming back");
        assert_int_equal(describe(&parked[i]).anchors, anchors);
        assert_int_equal(describe(&parked[i]).healed, 0);
        assert_true(describe(&parked[i]).patches - patches <= 3 * 6 + LAST - 64);
        replica_close(&parked[i]);
    }
    scene_newcomer(&scene, "after many versions");
    scene_close(&scene);
}

/* ---- restarts and rollbacks ---- */

static void test_a_checkpoint_is_opened_again(void **state) {
    (void)state;
    char beside[SCENE_PATH_MAX + 32];
    scene scene;
    replica file;
    open_scene(&scene, &one_anchor, 4);
    scene_publish(&scene, PER_MILLION);
    replica_open(&file, &scene, "copy", NULL);
    replica_catch_up(&file, "the first");
    for (unsigned i = 0; i < 12; i++) {
        /* up to two versions are missed, and not those of a leap alone */
        publish_until(&scene, weft_publisher_version(scene.publisher) + 1 + i % 3);
        scene_expect(file.context, replica_reopen(&file, NULL), WEFT_OK, "opening again");
        replica_catch_up(&file, "the next");
        assert_int_equal(describe(&file).anchors, 0);
        assert_int_equal(describe(&file).healed, 0);
    }
    /* what is recalled is damaged, or gone: there is another way */
    const char *slash = strrchr(file.path, '/');
    snprintf(beside, sizeof beside, "%.*s/.%s.weft-recall", (int)(slash - file.path), file.path, slash + 1);
    for (unsigned i = 0; i < 2; i++) {
        scene_publish(&scene, PER_MILLION);
        weft_subscriber_close(file.subscriber);
        file.subscriber = NULL;
        if (i == 0) {
            scene_damage(beside);
        } else {
            assert_int_equal(remove(beside), 0);
        }
        scene_expect(file.context, replica_reopen(&file, NULL), WEFT_OK, "opening again");
        replica_catch_up(&file, "without what is recalled");
        assert_int_equal(describe(&file).anchors, 1);
    }
    replica_close(&file);
    scene_close(&scene);
}

static void test_a_step_is_taken_back(void **state) {
    (void)state;
    scene scene;
    replica live;
    open_scene(&scene, &one_anchor, 5);
    scene_publish(&scene, PER_MILLION);
    replica_open(&live, &scene, NULL, NULL);
    for (unsigned i = 0; i < 12; i++) {
        scene_publish(&scene, PER_MILLION);
        scene_expect(live.context, weft_subscriber_prepare(live.subscriber, 0) < 0, false, "prepare");
        if (i % 3 == 0) {
            scene_expect(live.context, weft_subscriber_rollback(live.subscriber), WEFT_OK,
                         "before the commit");
        }
        replica_catch_up(&live, "on");
        if (i % 2 == 0 && i > 0) {
            scene_expect(live.context, weft_subscriber_rollback(live.subscriber), WEFT_OK, "back");
            replica_catch_up(&live, "again");
        }
        assert_true(replica_current(&live));
    }
    assert_int_equal(describe(&live).anchors, 1);
    assert_int_equal(describe(&live).healed, 0);
    replica_close(&live);
    scene_close(&scene);
}

/* ---- publishers ---- */

static void test_another_takes_over(void **state) {
    (void)state;
    scene scene;
    replica live;
    unsigned buckets;
    open_scene(&scene, &one_anchor, 6);
    publish_until(&scene, 6);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "before");
    scene_publish(&scene, PER_MILLION);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "taking over");
    for (unsigned i = 0; i < 4; i++) {
        scene_publish(&scene, PER_MILLION);
        replica_catch_up(&live, "after");
    }
    assert_int_equal(look_into(&scene, 7, &buckets), 5);
    assert_int_equal(look_into(&scene, 9, &buckets), 1);
    /* and one that codes otherwise in between */
    scene.options.profile = WEFT_PROFILE_SMALL;
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "small");
    scene_publish(&scene, PER_MILLION);
    scene.options.profile = WEFT_PROFILE_SMALLEST;
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "smallest");
    for (unsigned i = 0; i < 3; i++) {
        scene_publish(&scene, PER_MILLION);
        replica_catch_up(&live, "at last");
    }
    assert_int_equal(describe(&live).anchors, 1);
    assert_int_equal(describe(&live).healed, 0);
    scene_newcomer(&scene, "after all of them");
    replica_close(&live);
    scene_close(&scene);
}

/* Whatever fails of a publish, what is recalled is that of the versions that there are. */
static void test_a_publish_fails(void **state) {
    (void)state;
    scene scene;
    replica live;
    open_scene(&scene, &one_anchor, 7);
    publish_until(&scene, 3);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "before");
    for (uint64_t n = 1; n <= 6; n++) {
        for (unsigned lost = 0; lost < 2; lost++) {
            trainer_step(&scene.trainer, PER_MILLION);
            if (lost == 0) {
                fault_store_fail_at(scene.faults, n, WEFT_REMOTE_FAILED);
            } else {
                fault_store_lose_at(scene.faults, n, WEFT_REMOTE_FAILED);
            }
            weft_status ignored = weft_publisher_publish(scene.publisher, NULL, NULL);
            (void)ignored;
            fault_store_fail_at(scene.faults, 0, WEFT_OK);
            scene_publish(&scene, PER_MILLION);
            replica_catch_up(&live, "after a failure");
        }
    }
    assert_int_equal(describe(&live).anchors, 1);
    assert_int_equal(describe(&live).healed, 0);
    scene_newcomer(&scene, "after failures");
    replica_close(&live);
    scene_close(&scene);
}

/* Anchors in the background, and a patch that nobody can read. */
static void test_a_patch_is_lost(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options,
                                            .profile = WEFT_PROFILE_SMALLEST,
                                            .bucket_bytes = 32768,
                                            .anchor_ratio = 0.2,
                                            .anchors_in_background = true};
    scene scene;
    replica live;
    char key[WEFT_STORE_KEY_MAX + 1];
    open_scene(&scene, &options, 8);
    publish_until(&scene, 9);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "before");
    for (unsigned i = 0; i < 40; i++) {
        scene_publish(&scene, PER_MILLION);
        if (i % 8 == 4) {
            scene_expect(scene.context, weft_publisher_anchor(scene.publisher, NULL), WEFT_OK, "an anchor");
            scene_publish(&scene, PER_MILLION);
        }
        if (i % 8 == 2) {
            /* only an anchor, or a leap to where nothing is recalled, leads around it */
            scene_find(&scene, "patches", weft_publisher_version(scene.publisher), key);
            scene_spoil(&scene, key);
            scene_expect(scene.context, weft_publisher_anchor(scene.publisher, NULL), WEFT_OK, "an anchor");
        }
        if (i % 3 != 1) {
            replica_catch_up(&live, "around it");
            scene_newcomer(&scene, "at any time");
        }
    }
    replica_close(&live);
    scene_close(&scene);
}

/* ---- what is recalled is of another version ---- */

static void open_mirror(scene *scene, const char *name) {
    scene->options.mirror_path = scratch_path(&scene->scratch, name);
    scene_expect(scene->context, scene_publisher(scene), WEFT_OK, name);
}

/* Changes some weights, or back. */
static void publish_turn(scene *scene, size_t which) {
    enum { APART = 97, UNITS = 96 * 128 };
    uint16_t *units = scene->trainer.model.blocks[0];
    for (size_t i = which; i < UNITS; i += APART) {
        units[i] ^= 1;
    }
    scene_publish(scene, 0);
}

/* A checkpoint is published from again, which is at the state of the newest version: what lies beside it is
 * of an older version of that state, or of another run. */
static void test_a_state_comes_back(void **state) {
    (void)state;
    scene scene;
    replica live;
    open_scene(&scene, &one_anchor, 9);
    open_mirror(&scene, "one");
    scene_publish(&scene, 0);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "before");
    for (unsigned i = 0; i < 6; i++) {
        publish_turn(&scene, i);
        replica_catch_up(&live, "one");
        if (i == 3) {
            open_mirror(&scene, "two");
            publish_turn(&scene, 50);
            replica_catch_up(&live, "two");
            publish_turn(&scene, 50);
            replica_catch_up(&live, "and back");
            open_mirror(&scene, "one");
        }
    }
    assert_int_equal(describe(&live).anchors, 1);
    assert_int_equal(describe(&live).healed, 0);
    scene_newcomer(&scene, "after a state that came back");
    /* the same version of another run has the same state, and another past */
    weft_publisher_close(scene.publisher);
    scene.publisher = NULL;
    replica_close(&live);
    scene_clear(&scene);
    open_mirror(&scene, "three");
    for (unsigned i = 0; i < 8; i++) {
        publish_turn(&scene, 60 + i / 2);
    }
    scene_publish(&scene, 0);
    assert_int_equal(weft_publisher_version(scene.publisher), 9);
    open_mirror(&scene, "one");
    publish_turn(&scene, 8);
    scene_newcomer(&scene, "of another run");
    scene_close(&scene);
}

/* A publisher comes back after another, whose patch recalls nothing, and recalls what was before that. */
static void test_publishers_take_turns(void **state) {
    (void)state;
    scene scene;
    replica live;
    unsigned buckets;
    open_scene(&scene, &one_anchor, 11);
    open_mirror(&scene, "one");
    publish_until(&scene, 1);
    open_mirror(&scene, "one");
    publish_until(&scene, 4);
    open_mirror(&scene, "two");
    scene_publish(&scene, PER_MILLION);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "by a leap");
    open_mirror(&scene, "one");
    scene_publish(&scene, PER_MILLION);
    assert_int_equal(look_into(&scene, 5, &buckets), 0);
    assert_int_equal(look_into(&scene, 6, &buckets), 4);
    replica_catch_up(&live, "one again");
    scene_newcomer(&scene, "after all turns");
    assert_int_equal(describe(&live).healed, 0);
    replica_close(&live);
    scene_close(&scene);
}

/* A version that changes nothing counts as followed, whatever its profile: by who takes its patch, and by
 * who passes it over because the state is there already. */
static void test_nothing_changes(void **state) {
    (void)state;
    scene scene;
    replica live, file;
    unsigned buckets;
    open_scene(&scene, &one_anchor, 13);
    open_mirror(&scene, "mirror");
    publish_until(&scene, 1);
    replica_open(&live, &scene, NULL, NULL);
    replica_open(&file, &scene, "copy", NULL);
    open_mirror(&scene, "mirror");
    for (uint64_t version = 2; version <= 4; version++) {
        publish_until(&scene, version);
        replica_catch_up(&file, "before");
    }
    scene_expect(file.context, replica_reopen(&file, NULL), WEFT_OK, "opening again");
    scene.options.profile = WEFT_PROFILE_SMALL;
    open_mirror(&scene, "mirror");
    scene_publish(&scene, 0);
    replica_catch_up(&file, "over");
    scene_expect(file.context, replica_reopen(&file, NULL), WEFT_OK, "opening again");
    scene.options.profile = WEFT_PROFILE_SMALLEST;
    open_mirror(&scene, "mirror");
    scene_publish(&scene, PER_MILLION);
    assert_int_equal(look_into(&scene, 6, &buckets), 4);
    assert_true(buckets > 0);
    replica_catch_up(&file, "on");
    replica_catch_up(&live, "step by step");
    assert_int_equal(describe(&live).healed, 0);
    assert_int_equal(describe(&file).healed, 0);
    assert_int_equal(describe(&file).anchors, 0);
    replica_close(&live);
    replica_close(&file);
    scene_close(&scene);
}

/* A version with the same state is passed over, and the step before it is taken back. */
static void test_more_than_a_step_is_taken_back(void **state) {
    (void)state;
    scene scene;
    replica live;
    open_scene(&scene, &one_anchor, 12);
    scene_publish(&scene, PER_MILLION);
    replica_open(&live, &scene, NULL, NULL);
    for (unsigned i = 0; i < 4; i++) {
        scene_publish(&scene, PER_MILLION);
        replica_catch_up(&live, "on");
    }
    scene_publish(&scene, 0);
    replica_catch_up(&live, "over");
    assert_int_equal(describe(&live).version, 6);
    scene_expect(live.context, weft_subscriber_rollback(live.subscriber), WEFT_OK, "back");
    assert_int_equal(describe(&live).version, 4);
    replica_catch_up(&live, "again");
    assert_int_equal(describe(&live).healed, 0);
    replica_close(&live);
    scene_close(&scene);
}

/* Who cannot read a patch, though all before it was followed, says so: it does not fetch the same again and
 * again. */
static void test_nobody_can_read_a_patch(void **state) {
    (void)state;
    scene scene;
    replica live;
    weft_recall *recall;
    uint64_t version;
    char *beside;
    open_scene(&scene, &one_anchor, 10);
    open_mirror(&scene, "mirror");
    publish_until(&scene, 1);
    open_mirror(&scene, "mirror");
    publish_until(&scene, 3);
    replica_open(&live, &scene, NULL, NULL);
    replica_catch_up(&live, "before");
    weft_publisher_close(scene.publisher);
    scene.publisher = NULL;
    /* a publisher that recalls one version more than there was */
    weft_digest digest = trainer_digest(&scene.trainer);
    assert_int_equal(weft_recall_path(scene.outside, scene.options.mirror_path, &beside), WEFT_OK);
    assert_int_equal(weft_recall_load(scene.outside, beside, digest.bytes, &recall, &version), WEFT_OK);
    assert_non_null(recall);
    assert_int_equal(version, 3);
    weft_recall_begin(recall);
    weft_recall_commit(recall);
    weft_recall_mark mark = {.version = version};
    memcpy(mark.digest, digest.bytes, sizeof mark.digest);
    weft_recall_save(recall, scene.outside, beside, &mark);
    weft_recall_destroy(recall);
    weft_release(scene.outside, beside);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "with a lie");
    scene_publish(&scene, PER_MILLION);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(weft_subscriber_pull(live.subscriber, 0) < 0);
        assert_true(replica_sound(&live));
        assert_int_equal(describe(&live).anchors, 2);
    }
    scene_expect(scene.context, weft_publisher_anchor(scene.publisher, NULL), WEFT_OK, "an anchor");
    replica_catch_up(&live, "past it");
    publish_until(&scene, 9);
    replica_catch_up(&live, "on");
    replica_close(&live);
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_version_arrives),
        cmocka_unit_test(test_any_absence),
        cmocka_unit_test(test_a_checkpoint_is_opened_again),
        cmocka_unit_test(test_a_step_is_taken_back),
        cmocka_unit_test(test_another_takes_over),
        cmocka_unit_test(test_a_publish_fails),
        cmocka_unit_test(test_a_patch_is_lost),
        cmocka_unit_test(test_a_state_comes_back),
        cmocka_unit_test(test_publishers_take_turns),
        cmocka_unit_test(test_nothing_changes),
        cmocka_unit_test(test_more_than_a_step_is_taken_back),
        cmocka_unit_test(test_nobody_can_read_a_patch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
