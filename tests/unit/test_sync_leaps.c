/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaps: whoever was away for m versions, at any alignment, comes back in O(log m) steps, each of which
 * ends at a published version; around leaps that are damaged or missing; over publishers that come and go;
 * and nothing that is still needed is collected.
 */
#include "../../lib/sync/format/leap.h"

#include "scenes.h"
#include "stride.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PER_MILLION = 10000, LAST = 150 };

/* So that a patch is the way, never a newer anchor. */
static const weft_publisher_options one_anchor = {
    .size = sizeof one_anchor, .profile = WEFT_PROFILE_SMALL, .anchor_ratio = -1};

static void open_scene(scene *scene, const weft_publisher_options *options, uint64_t seed) {
    scene_open(scene, options, seed);
    scene->options.no_leaps = false;
}

static void publish_until(scene *scene, uint64_t version) {
    while (weft_publisher_version(scene->publisher) < version) {
        scene_publish(scene, PER_MILLION);
    }
}

static void settle(scene *scene) {
    scene_expect(scene->context, weft_publisher_settle(scene->publisher), WEFT_OK, "settle");
}

/* The same, with all leaps: a publisher leaves patches out when its thread that sends them has fallen
 * behind by 16 leaps, as it may where others have the processors, so from time to time it is waited for. */
static void publish_leaps_until(scene *scene, uint64_t version) {
    while (weft_publisher_version(scene->publisher) < version) {
        scene_publish(scene, PER_MILLION);
        if (weft_publisher_version(scene->publisher) % 32 == 0) {
            settle(scene);
        }
    }
    settle(scene);
}

/* Step by step to the newest version. Returns the number of steps. */
static unsigned walk(replica *replica) {
    unsigned steps = 0;
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        status = weft_subscriber_prepare(replica->subscriber, 0);
        assert_true(status >= 0);
        scene_expect(replica->context, weft_subscriber_commit(replica->subscriber), WEFT_OK, "commit");
        assert_true(replica_sound(replica));
        steps++;
    }
    assert_true(replica_current(replica));
    return steps;
}

/* At most three leaps of each level up, and three down. */
static unsigned most_steps(uint64_t missed) {
    unsigned steps = 2 * (WEFT_LEAP_WAYS - 1);
    for (unsigned level = 1; weft_leap_length(level) <= missed; level++) {
        steps += 2 * (WEFT_LEAP_WAYS - 1);
    }
    return steps;
}

static const uint64_t parked_at[] = {1, 2, 4, 5, 15, 16, 17, 33, 63, 64, 65, 100, 127, 128, 131, 145, 149};
enum { PARKED = sizeof parked_at / sizeof *parked_at };

static void test_any_absence(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, &one_anchor, 3);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    replica parked[PARKED];
    for (size_t i = 0; i < PARKED; i++) {
        publish_leaps_until(&scene, parked_at[i]);
        replica_open(&parked[i], &scene, NULL, NULL);
        replica_catch_up(&parked[i], "parking");
    }
    publish_leaps_until(&scene, LAST);
    for (size_t i = 0; i < PARKED; i++) {
        weft_subscriber_info before = {.size = sizeof before};
        weft_subscriber_describe(parked[i].subscriber, &before);
        unsigned steps = walk(&parked[i]);
        weft_subscriber_info after = {.size = sizeof after};
        weft_subscriber_describe(parked[i].subscriber, &after);
        uint64_t missed = LAST - parked_at[i];
        assert_int_equal(after.anchors, before.anchors);
        assert_true(steps <= most_steps(missed));
        /* objects: a patch and a node for each step, the nodes that lead there, page and heads */
        assert_true(after.requests - before.requests <= 2 * steps + 2 * most_steps(missed));
        replica_close(&parked[i]);
    }
    scene_newcomer(&scene, "after many versions");
    scene_close(&scene);
}

/* A checkpoint whose follower was not running knows where it is by its watermark. */
static void test_a_file_comes_back(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, &one_anchor, 4);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_leaps_until(&scene, 7);
    replica replica;
    replica_open(&replica, &scene, "copy", NULL);
    replica_catch_up(&replica, "parking");
    publish_leaps_until(&scene, 135);
    scene_expect(replica.context, replica_reopen(&replica, NULL), WEFT_OK, "reopen");
    unsigned steps = walk(&replica);
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(replica.subscriber, &info);
    assert_true(steps <= most_steps(128));
    assert_true(info.requests <= 2 * steps + 2 * most_steps(128));
    replica_close(&replica);
    scene_close(&scene);
}

/* ---- on bad days ---- */

typedef void (*file_function)(const char *path);

static void remove_file(const char *path) {
    assert_int_equal(unlink(path), 0);
}

/* Does something to every object of a room, or of the patches only to those of leaps: such versions have
 * two. */
static void each_file(scene *scene, const char *room, file_function function) {
    char directory[SCENE_PATH_MAX];
    char path[2 * SCENE_PATH_MAX];
    snprintf(directory, sizeof directory, "%s/%s", scratch_path(&scene->scratch, "store"), room);
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
            function(path);
        }
    }
    closedir(listing);
}

typedef struct key_list {
    char keys[512][WEFT_KEY_SIZE];
    size_t count;
} key_list;

static key_list leap_keys;

/* The node says which patch is the leap's. */
static void note_patch(const char *path) {
    FILE *file = fopen(path, "r");
    char text[65536];
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_leap_node node;
    weft_leap_node_open(&node, context);
    assert_int_equal(weft_leap_node_parse(&node, path, text, size), WEFT_OK);
    if (node.patched) {
        memcpy(leap_keys.keys[leap_keys.count++], node.patch.key, WEFT_KEY_SIZE);
    }
    weft_leap_node_close(&node);
    weft_context_destroy(context);
}

static void each_leap_patch(scene *scene, file_function function) {
    leap_keys.count = 0;
    each_file(scene, "leaps", note_patch);
    assert_true(leap_keys.count > 0);
    for (size_t i = 0; i < leap_keys.count; i++) {
        char path[2 * SCENE_PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", scratch_path(&scene->scratch, "store"), leap_keys.keys[i]);
        function(path);
    }
}

/* A replica at version 6, a publisher at version 90, and something wrong in between. */
static void check_trouble(bool nodes, file_function function) {
    scene scene;
    open_scene(&scene, &one_anchor, 5);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_until(&scene, 6);
    replica replica;
    replica_open(&replica, &scene, NULL, NULL);
    replica_catch_up(&replica, "parking");
    publish_until(&scene, 90);
    settle(&scene);
    if (nodes) {
        each_file(&scene, "leaps", function);
    } else {
        each_leap_patch(&scene, function);
    }
    walk(&replica);
    replica_close(&replica);
    scene_close(&scene);
}

static void test_nodes_are_damaged(void **state) {
    (void)state;
    check_trouble(true, scene_damage);
}

static void test_nodes_are_missing(void **state) {
    (void)state;
    check_trouble(true, remove_file);
}

static void test_patches_are_damaged(void **state) {
    (void)state;
    check_trouble(false, scene_damage);
}

static void test_patches_are_missing(void **state) {
    (void)state;
    check_trouble(false, remove_file);
}

/* Random faults on both sides, while leaps are made: what fails is left out, and nothing else. */
static void check_soup(uint64_t seed) {
    const fault_rule rules[] = {
        {.kind = FAULT_FAIL, .probability = 0.05},
        {.kind = FAULT_LOSE, .operations = FAULT_ON_PUT, .probability = 0.05},
        {.kind = FAULT_FLIP, .pattern = "leaps/*", .probability = 0.1},
        {.kind = FAULT_FLIP, .pattern = "patches/*", .probability = 0.05},
        {.kind = FAULT_LATE, .pattern = "leaps/*", .probability = 0.1},
    };
    scene scene;
    replica replica;
    open_scene(&scene, &one_anchor, seed);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    scene_publish(&scene, PER_MILLION);
    replica_open(&replica, &scene, NULL, NULL);
    dice dice = {seed};
    for (unsigned i = 0; i < 60; i++) {
        fault_store_set(scene.faults, rules, 2);
        trainer_step(&scene.trainer, PER_MILLION);
        weft_status ignored = weft_publisher_publish(scene.publisher, NULL, NULL);
        (void)ignored;
        fault_store_set(scene.faults, NULL, 0);
        if (dice_below(&dice, 10) == 0) {
            fault_store_set(replica.faults, rules, sizeof rules / sizeof *rules);
            ignored = weft_subscriber_pull(replica.subscriber, 0);
            fault_store_set(replica.faults, NULL, 0);
            assert_true(replica_sound(&replica));
        }
    }
    scene_publish(&scene, PER_MILLION);
    settle(&scene);
    walk(&replica);
    replica_close(&replica);
    scene_close(&scene);
}

static void test_soups(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed += test_stride()) {
        check_soup(seed);
    }
}

/* ---- publishers that come and go ---- */

static void test_publishers_change(void **state) {
    (void)state;
    scene scene;
    open_scene(&scene, &one_anchor, 6);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_until(&scene, 5);
    replica replica;
    replica_open(&replica, &scene, NULL, NULL);
    replica_catch_up(&replica, "parking");
    for (uint64_t version = 18; version <= 130; version += 14) {
        publish_until(&scene, version);
        scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "take over");
    }
    settle(&scene);
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(replica.subscriber, &before);
    unsigned steps = walk(&replica);
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(replica.subscriber, &after);
    /* blocks in which the publisher changed have no leap of their own */
    assert_true(steps < 70);
    assert_int_equal(after.anchors, before.anchors);
    replica_close(&replica);
    scene_close(&scene);
}

/* A publisher per version, with its copy in a checkpoint: what has changed is kept beside it. */
static void check_processes(void (*between)(scene *scene, uint64_t version), unsigned most) {
    scene scene;
    char mirror[SCENE_PATH_MAX];
    open_scene(&scene, &one_anchor, 9);
    snprintf(mirror, sizeof mirror, "%s", scratch_path(&scene.scratch, "mirror.safetensors"));
    scene.options.mirror_path = mirror;
    replica replica;
    for (uint64_t version = 1; version <= 70; version++) {
        scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
        scene_publish(&scene, PER_MILLION);
        if (version == 3) {
            replica_open(&replica, &scene, NULL, NULL);
            replica_catch_up(&replica, "parking");
        }
        if (between != NULL) {
            between(&scene, version);
        }
    }
    settle(&scene);
    unsigned steps = walk(&replica);
    assert_true(steps <= most);
    replica_close(&replica);
    scene_close(&scene);
}

static void test_a_process_per_version(void **state) {
    (void)state;
    check_processes(NULL, most_steps(67));
}

/* The files are a help: torn, lost or old ones cost leaps and nothing else. */
static void spoil_pasts(scene *scene, uint64_t version) {
    static uint8_t old[1 << 20];
    static size_t old_size;
    const char *path = scratch_path(&scene->scratch, "mirror.safetensors.leap-1");
    FILE *file = fopen(path, "r+");
    if (file != NULL && version == 17) {
        old_size = fread(old, 1, sizeof old, file);
    } else if (file != NULL && version == 18) {
        fwrite(old, 1, old_size, file);
    } else if (file != NULL && version == 25) {
        assert_int_equal(ftruncate(fileno(file), 100), 0);
    } else if (file != NULL && version == 33) {
        assert_int_equal(unlink(path), 0);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void test_pasts_are_spoilt(void **state) {
    (void)state;
    check_processes(spoil_pasts, 40);
}

/* ---- what is no longer needed ---- */

static void test_collected(void **state) {
    (void)state;
    weft_publisher_options options = one_anchor;
    options.keep_anchors = 1;
    scene scene;
    open_scene(&scene, &options, 7);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_leaps_until(&scene, 70);
    size_t nodes = scene_count(&scene, "leaps");
    assert_true(nodes >= 16);
    scene_expect(scene.context, weft_publisher_anchor(scene.publisher, NULL), WEFT_OK, "anchor");
    replica replica;
    replica_open(&replica, &scene, NULL, NULL);
    replica_catch_up(&replica, "parking");
    publish_leaps_until(&scene, 140);
    weft_gc_options gc = {.size = sizeof gc, .grace_seconds = 0};
    weft_gc_result result = {.size = sizeof result};
    scene_expect(scene.outside, weft_gc_run(scene.outside, scene.store, &gc, &result), WEFT_OK, "gc");
    assert_true(result.objects > 70);
    /* one node of level 2 and one of level 3 cover the floor; below it nothing is left */
    assert_true(scene_count(&scene, "leaps") < scene_count(&scene, "patches"));
    unsigned steps = walk(&replica);
    assert_true(steps <= most_steps(70));
    scene_newcomer(&scene, "after gc");
    /* the rest goes with the next floor */
    scene_expect(scene.context, weft_publisher_anchor(scene.publisher, NULL), WEFT_OK, "anchor");
    publish_until(&scene, 141);
    scene_expect(scene.outside, weft_gc_run(scene.outside, scene.store, &gc, &result), WEFT_OK, "gc");
    assert_int_equal(scene_count(&scene, "leaps"), 0);
    assert_int_equal(scene_count(&scene, "patches"), 1);
    replica_close(&replica);
    scene_close(&scene);
}

/* ---- what the first review found ---- */

/* A sender that falls behind: what is finished later than a record has room for waits for the next. */
static void test_many_at_once(void **state) {
    (void)state;
    const fault_rule slow = {.kind = FAULT_DELAY, .pattern = "leaps/*", .limit = 1, .seconds = 3};
    scene scene;
    open_scene(&scene, &one_anchor, 10);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    fault_store_set(scene.faults, &slow, 1);
    publish_until(&scene, 260);
    settle(&scene);
    scene_newcomer(&scene, "with many leaps");
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "take over");
    publish_until(&scene, 262);
    settle(&scene);
    scene_newcomer(&scene, "with the rest");
    scene_close(&scene);
}

/* A replica that is where it is told to go stays there, also at a version that is not the newest. */
static void test_there_already(void **state) {
    (void)state;
    scene scene;
    replica replica;
    open_scene(&scene, &one_anchor, 11);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_until(&scene, 37);
    settle(&scene);
    replica_open(&replica, &scene, "copy", NULL);
    scene_expect(replica.context, weft_subscriber_pull(replica.subscriber, 21), WEFT_OK, "pull");
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(replica.subscriber, &before);
    for (int i = 0; i < 3; i++) {
        scene_expect(replica.context, weft_subscriber_pull(replica.subscriber, 21), WEFT_OK, "again");
    }
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(replica.subscriber, &after);
    assert_int_equal(after.version, 21);
    assert_int_equal(after.anchors, before.anchors);
    assert_int_equal(after.patches, before.patches);
    scene_expect(replica.context, replica_reopen(&replica, NULL), WEFT_OK, "reopen");
    scene_expect(replica.context, weft_subscriber_pull(replica.subscriber, 21), WEFT_OK, "after all");
    weft_subscriber_describe(replica.subscriber, &after);
    assert_int_equal(after.anchors + after.patches, 0);
    replica_close(&replica);
    scene_close(&scene);
}

/* Leaps that nobody goes on with are given up before they become a burden. */
static void test_no_more_leaps(void **state) {
    (void)state;
    scene scene;
    replica replica;
    open_scene(&scene, &one_anchor, 12);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_until(&scene, 20);
    scene.options.no_leaps = true;
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "without leaps");
    publish_until(&scene, 30);
    replica_open(&replica, &scene, NULL, NULL);
    replica_catch_up(&replica, "parking");
    publish_until(&scene, 200);
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(replica.subscriber, &before);
    walk(&replica);
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(replica.subscriber, &after);
    assert_int_equal(after.anchors, before.anchors);
    assert_true(after.requests - before.requests < 170 + 10);
    replica_close(&replica);
    scene_close(&scene);
}

/* ---- memory ---- */

static void test_little_memory(void **state) {
    (void)state;
    weft_publisher_options options = one_anchor;
    options.leap_bytes = 1;
    scene scene;
    open_scene(&scene, &options, 8);
    scene_expect(scene.context, scene_publisher(&scene), WEFT_OK, "open");
    publish_until(&scene, 40);
    settle(&scene);
    assert_int_equal(scene_count(&scene, "leaps"), 0);
    scene_newcomer(&scene, "without leaps");
    scene_close(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_absence),         cmocka_unit_test(test_a_file_comes_back),
        cmocka_unit_test(test_nodes_are_damaged),   cmocka_unit_test(test_nodes_are_missing),
        cmocka_unit_test(test_patches_are_damaged), cmocka_unit_test(test_patches_are_missing),
        cmocka_unit_test(test_publishers_change),   cmocka_unit_test(test_collected),
        cmocka_unit_test(test_little_memory),       cmocka_unit_test(test_soups),
        cmocka_unit_test(test_many_at_once),        cmocka_unit_test(test_there_already),
        cmocka_unit_test(test_no_more_leaps),       cmocka_unit_test(test_a_process_per_version),
        cmocka_unit_test(test_pasts_are_spoilt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
