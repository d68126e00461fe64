/* SPDX-License-Identifier: Apache-2.0
 *
 * Each object of a run is damaged in turn: missing, changed, cut off, empty, or something else in its
 * place. weft_repair_run says so and changes nothing; with `apply` it mends what can be mended. Afterwards
 * log and publish work, and every version that was there before and does not need what was damaged is there
 * again, by its digest.
 */
#include "plain.h"
#include "scenes.h"
#include "stride.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VERSIONS = 19, SECOND_EPOCH = 10, ANCHOR = 12 };

/* ---- all objects of a store, to be put back ---- */

typedef struct object {
    char key[WEFT_STORE_KEY_MAX + 1];
    char *data;
    size_t size;
} object;

typedef struct snapshot {
    object *objects;
    size_t count;
} snapshot;

static bool note_key(void *opaque, const char *key, uint64_t size, double age_seconds) {
    snapshot *all = opaque;
    (void)size;
    (void)age_seconds;
    all->objects = realloc(all->objects, (all->count + 1) * sizeof *all->objects);
    assert_non_null(all->objects);
    snprintf(all->objects[all->count].key, sizeof all->objects->key, "%s", key);
    all->count++;
    return true;
}

static int compare_objects(const void *a, const void *b) {
    return strcmp(((const object *)a)->key, ((const object *)b)->key);
}

static void take_snapshot(scene *s, snapshot *all) {
    *all = (snapshot){0};
    assert_int_equal(weft_store_list(s->outside, s->store, "", note_key, all), WEFT_OK);
    qsort(all->objects, all->count, sizeof *all->objects, compare_objects);
    for (size_t i = 0; i < all->count; i++) {
        all->objects[i].data = scene_read(s, all->objects[i].key, &all->objects[i].size);
    }
}

static void free_snapshot(snapshot *all) {
    for (size_t i = 0; i < all->count; i++) {
        free(all->objects[i].data);
    }
    free(all->objects);
}

static void put_back(scene *s, const snapshot *all) {
    weft_publisher_close(s->publisher);
    s->publisher = NULL;
    scene_clear(s);
    for (size_t i = 0; i < all->count; i++) {
        scene_write(s, all->objects[i].key, all->objects[i].data, all->objects[i].size);
    }
}

static void expect_unchanged(scene *s, const snapshot *before) {
    snapshot now;
    take_snapshot(s, &now);
    assert_int_equal(now.count, before->count);
    for (size_t i = 0; i < now.count; i++) {
        assert_string_equal(now.objects[i].key, before->objects[i].key);
        assert_int_equal(now.objects[i].size, before->objects[i].size);
        assert_memory_equal(now.objects[i].data, before->objects[i].data, now.objects[i].size);
    }
    free_snapshot(&now);
}

/* ---- damage ---- */

typedef enum damage {
    DAMAGE_MISSING,
    DAMAGE_FLIPPED,
    DAMAGE_CUT_OFF,
    DAMAGE_EMPTY,
    DAMAGE_OTHER, /* another object's content */
    DAMAGE_COUNT,
} damage;

static const char *const damage_names[] = {"missing", "flipped", "cut off", "empty", "another's"};

static void spoil(scene *s, const snapshot *all, const char *key, damage how) {
    size_t size;
    char *data = scene_read(s, key, &size);
    switch (how) {
    case DAMAGE_MISSING:
        scene_remove(s, key);
        break;
    case DAMAGE_CUT_OFF:
        scene_write(s, key, data, size / 2);
        break;
    case DAMAGE_EMPTY:
        scene_write(s, key, data, 0);
        break;
    case DAMAGE_OTHER: {
        /* of the same room if there is another one there */
        const object *other = &all->objects[0];
        for (size_t i = 0; i < all->count; i++) {
            if (strncmp(all->objects[i].key, key, 6) == 0 && strcmp(all->objects[i].key, key) != 0) {
                other = &all->objects[i];
            }
        }
        scene_write(s, key, other->data, other->size);
        break;
    }
    default:
        scene_spoil(s, key);
    }
    free(data);
}

/* ---- what a run holds ---- */

typedef struct chronicle {
    weft_digest digests[VERSIONS + 2]; /* by version */
    uint64_t changed[VERSIONS + 2];
    char labels[VERSIONS + 2][16];
    uint64_t count;
    uint64_t lost; /* records that are told as such */
} chronicle;

static bool note_entry(void *opaque, const weft_log_entry *entry) {
    chronicle *told = opaque;
    assert_true(entry->version <= VERSIONS + 1);
    told->digests[entry->version] = entry->digest;
    told->changed[entry->version] = entry->changed;
    const char *label = "";
    for (size_t i = 0; entry->labels[i] != NULL; i += 2) {
        label = strcmp(entry->labels[i], "step") == 0 ? entry->labels[i + 1] : label;
        told->lost += strcmp(entry->labels[i], "lost") == 0;
    }
    snprintf(told->labels[entry->version], sizeof told->labels[0], "%s", label);
    told->count++;
    return true;
}

static chronicle read_chronicle(scene *s, const weft_key *trusted) {
    chronicle told = {.count = 0};
    scene_expect(s->outside, weft_log_walk(s->outside, s->store, trusted, note_entry, &told), WEFT_OK,
                 "log");
    return told;
}

static void publish_labelled(scene *s, unsigned step) {
    char text[16];
    snprintf(text, sizeof text, "%u", step);
    const char *labels[] = {"step", text, NULL};
    if (s->publisher == NULL) {
        scene_expect(s->context, scene_publisher(s), WEFT_OK, "open a publisher");
    }
    trainer_step(&s->trainer, 10000);
    scene_expect(s->context, weft_publisher_publish(s->publisher, labels, NULL), WEFT_OK, "publish");
}

static void build_run(scene *s, const weft_publisher_options *options, bool leaps) {
    scene_open(s, options, 91);
    s->options.no_leaps = !leaps;
    for (unsigned i = 1; i <= VERSIONS; i++) {
        if (i == SECOND_EPOCH) {
            assert_int_equal(scene_publisher(s), WEFT_OK);
        }
        publish_labelled(s, i);
        if (i == ANCHOR) {
            assert_int_equal(weft_publisher_anchor(s->publisher, NULL), WEFT_OK);
        }
    }
    scene_expect(s->context, weft_publisher_settle(s->publisher), WEFT_OK, "settle");
    weft_publisher_close(s->publisher);
    s->publisher = NULL;
}

/* ---- running repair ---- */

typedef struct findings {
    size_t count;
    size_t kinds[WEFT_REPAIR_VERSIONS + 1];
    size_t mendable;
    uint64_t lost_first;
    uint64_t lost_last;
    char key[WEFT_STORE_KEY_MAX + 1]; /* of the first */
    char effect[512];
    char remedy[512];
} findings;

static void note_finding(void *opaque, const weft_repair_finding *finding) {
    findings *all = opaque;
    assert_true(finding->wrong[0] != '\0' && finding->effect[0] != '\0' && finding->remedy[0] != '\0');
    if (all->count++ == 0) {
        snprintf(all->key, sizeof all->key, "%s", finding->key);
        snprintf(all->effect, sizeof all->effect, "%s", finding->effect);
        snprintf(all->remedy, sizeof all->remedy, "%s", finding->remedy);
    }
    all->kinds[finding->kind]++;
    all->mendable += finding->mendable;
    if (finding->first != 0) {
        all->lost_first = finding->first;
        all->lost_last = finding->last;
    }
}

static weft_status run_repair(scene *s, const weft_repair_options *options, findings *all,
                              weft_repair_result *result) {
    weft_repair_options chosen = *options;
    *all = (findings){0};
    *result = (weft_repair_result){.size = sizeof(weft_repair_result)};
    chosen.found = note_finding;
    chosen.opaque = all;
    return weft_repair_run(s->outside, s->store, &chosen, result);
}

static void expect_version(scene *s, const weft_key *trusted, uint64_t version, const weft_digest *digest,
                           bool expected, const char *what) {
    const weft_subscriber_options options = {.size = sizeof options, .trusted = trusted};
    replica fresh;
    weft_digest got;
    replica_open(&fresh, s, NULL, &options);
    weft_status status = weft_subscriber_pull(fresh.subscriber, version);
    bool there = status == WEFT_OK && replica_digest(&fresh, &got) && weft_digest_equal(&got, digest);
    if (there != expected) {
        fail_msg("%s: version %" PRIu64 " %s: %s", what, version, there ? "can be had" : "cannot be had",
                 weft_context_error(fresh.context));
    }
    replica_close(&fresh);
}

/* One object of the run is damaged. `reaches` tells which versions can still be had, by version. */
static void run_case(scene *s, const snapshot *all, const chronicle *before, const char *key, damage how,
                     const bool *reaches, const weft_key *secret, bool adopt) {
    char what[300];
    snprintf(what, sizeof what, "%s %s", key, damage_names[how]);
    const weft_repair_options look = {.size = sizeof look, .trusted = secret, .deep = true};
    const weft_repair_options mend = {
        .size = sizeof mend, .key = secret, .adopt = adopt, .apply = true, .deep = true};
    findings found;
    weft_repair_result result = {.size = sizeof result};
    put_back(s, all);
    spoil(s, all, key, how);
    snapshot damaged;
    take_snapshot(s, &damaged);
    scene_expect(s->outside, run_repair(s, &look, &found, &result), WEFT_OK, what);
    expect_unchanged(s, &damaged);
    free_snapshot(&damaged);
    bool page = strncmp(key, "pages/", 6) == 0;
    bool head = strncmp(key, "heads/", 6) == 0;
    if (found.count == 0) {
        fail_msg("%s: nothing was found", what);
    }
    assert_string_equal(found.key, key);
    assert_int_equal(found.mendable > 0, page || head);
    if (page || head) {
        scene_expect(s->outside, run_repair(s, &mend, &found, &result), WEFT_OK, what);
        if (result.findings != 0 || result.mended != 1) {
            fail_msg("%s: %" PRIu64 " left, %" PRIu64 " mended: %s", what, result.findings, result.mended,
                     found.remedy);
        }
    }
    chronicle after = read_chronicle(s, secret);
    assert_int_equal(after.count, before->count);
    assert_int_equal(after.lost, 0);
    uint64_t count = 0;
    for (uint64_t i = 1; i <= VERSIONS; i++) {
        assert_true(weft_digest_equal(&after.digests[i], &before->digests[i]));
        assert_string_equal(after.labels[i], before->labels[i]);
        assert_int_equal(after.changed[i], before->changed[i]);
        expect_version(s, secret, i, &before->digests[i], reaches == NULL || reaches[i], what);
        count += reaches == NULL || reaches[i];
    }
    assert_int_equal(result.reachable, count);
    /* and on */
    publish_labelled(s, VERSIONS + 1);
    weft_digest newest = trainer_digest(&s->trainer);
    expect_version(s, secret, 0, &newest, true, what);
    after = read_chronicle(s, secret);
    assert_int_equal(after.count, VERSIONS + 1);
}

/* The pages of the history, from the newest back. */
typedef struct chain {
    char keys[8][WEFT_STORE_KEY_MAX + 1];
    size_t count;
} chain;

static bool is_in_chain(const chain *pages, const char *key) {
    for (size_t i = 0; i < pages->count; i++) {
        if (strcmp(pages->keys[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* The key that a member of an object names, if it is there. */
static bool take_key(scene *s, const char *object, const char *member, char key[WEFT_STORE_KEY_MAX + 1]) {
    size_t size;
    char *data = scene_read(s, object, &size);
    json_t *json = plain_json(data, size);
    const char *named = json_string_value(json_object_get(json_object_get(json, member), "key"));
    bool there = named != NULL;
    if (there) {
        snprintf(key, WEFT_STORE_KEY_MAX + 1, "%s", named);
    }
    json_decref(json);
    free(data);
    return there;
}

static chain read_chain(scene *s, uint64_t epoch) {
    chain pages = {.count = 0};
    char head[WEFT_HEAD_KEY];
    char key[WEFT_STORE_KEY_MAX + 1];
    weft_head_key(epoch, head);
    bool more = take_key(s, head, "page", key);
    while (more) {
        assert_true(pages.count < 8);
        char *page = pages.keys[pages.count++];
        memcpy(page, key, sizeof key);
        more = take_key(s, page, "previous", key);
    }
    return pages;
}

/* What was retired a while ago is gone. */
static void remove_retired(scene *s, const chain *pages, snapshot *all) {
    for (size_t i = 0; i < all->count; i++) {
        const char *key = all->objects[i].key;
        if (strncmp(key, "pages/", 6) == 0 && !is_in_chain(pages, key)) {
            scene_remove(s, key);
        }
    }
    free_snapshot(all);
    take_snapshot(s, all);
}

/* Heads and pages, in all ways: nothing is lost. */
static void sweep(const weft_publisher_options *options, bool leaps, bool collected) {
    scene s;
    snapshot all;
    build_run(&s, options, leaps);
    take_snapshot(&s, &all);
    const weft_key *secret = options->key;
    const chronicle before = read_chronicle(&s, secret);
    assert_int_equal(before.count, VERSIONS);
    findings found;
    weft_repair_result result = {.size = sizeof result};
    const weft_repair_options look = {.size = sizeof look, .trusted = secret, .deep = true};
    const chain pages = read_chain(&s, 2);
    assert_int_equal(pages.count, 4);
    if (collected) {
        remove_retired(&s, &pages, &all);
    }
    scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "a sound run");
    assert_int_equal(found.count, 0);
    assert_int_equal(result.version, VERSIONS);
    assert_int_equal(result.epoch, 2);
    assert_int_equal(result.reachable, VERSIONS);
    assert_int_equal(result.oldest, 1);
    for (size_t i = 0; i < all.count; i++) {
        const char *key = all.objects[i].key;
        bool head = strncmp(key, "heads/", 6) == 0;
        bool newest = strcmp(key, pages.keys[0]) == 0;
        /* what is missing is waited for: once for each page is enough */
        int first = collected && !newest ? DAMAGE_FLIPPED : DAMAGE_MISSING;
        for (int how = first; ((head && !collected) || is_in_chain(&pages, key)) && how < DAMAGE_COUNT;
             how++) {
            run_case(&s, &all, &before, key, (damage)how, NULL, secret, secret != NULL);
        }
    }
    free_snapshot(&all);
    scene_close(&s);
}

static void test_heads_and_pages(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    sweep(&plain, false, false);
}

static void test_without_retired_pages(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    sweep(&plain, false, true);
}

static void test_with_leaps(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    sweep(&plain, true, true);
}

/* ---- patches and anchors ---- */

/* There is nothing to be mended: who can go round them does. */
static void test_patches_and_anchors(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    static const struct {
        const char *room;
        uint64_t version;
        uint64_t first; /* of the versions that cannot be had, up to the next anchor */
        uint64_t last;
    } cases[] = {
        {"patches", 5, 5, ANCHOR - 1}, {"patches", ANCHOR, 1, 0}, {"patches", VERSIONS, VERSIONS, VERSIONS},
        {"anchors", 1, 1, ANCHOR - 1}, {"anchors", ANCHOR, 1, 0},
    };
    scene s;
    snapshot all;
    build_run(&s, &plain, false);
    take_snapshot(&s, &all);
    const chronicle before = read_chronicle(&s, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[WEFT_STORE_KEY_MAX + 1];
        bool reaches[VERSIONS + 1];
        put_back(&s, &all);
        scene_find(&s, cases[i].room, cases[i].version, key);
        for (uint64_t version = 0; version <= VERSIONS; version++) {
            reaches[version] = version < cases[i].first || version > cases[i].last;
        }
        run_case(&s, &all, &before, key, DAMAGE_CUT_OFF, reaches, NULL, false);
        run_case(&s, &all, &before, key, DAMAGE_FLIPPED, reaches, NULL, false);
    }
    free_snapshot(&all);
    scene_close(&s);
}

/* ---- more than one ---- */

/* With everything gone that tells of some versions, these are lost, and nothing else is. */
static void test_a_lost_record(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options look = {.size = sizeof look, .deep = true};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    scene s;
    snapshot all;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    char key[WEFT_STORE_KEY_MAX + 1];
    build_run(&s, &plain, false);
    const chronicle before = read_chronicle(&s, NULL);
    const chain pages = read_chain(&s, 2);
    take_snapshot(&s, &all);
    remove_retired(&s, &pages, &all);
    /* one page alone tells of version 18, and its patch */
    scene_find(&s, "patches", VERSIONS - 1, key);
    scene_spoil(&s, pages.keys[1]);
    scene_remove(&s, key);
    scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "look");
    assert_int_equal(found.kinds[WEFT_REPAIR_PAGE], 1);
    assert_int_equal(found.kinds[WEFT_REPAIR_VERSIONS], 1);
    assert_int_equal(found.lost_first, VERSIONS - 1);
    assert_int_equal(found.lost_last, VERSIONS);
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.mended, 1);
    assert_int_equal(result.mendable, 0);
    chronicle after = read_chronicle(&s, NULL);
    assert_int_equal(after.count, VERSIONS);
    assert_int_equal(after.lost, 1);
    for (uint64_t i = 1; i <= VERSIONS; i++) {
        assert_true(weft_digest_equal(&after.digests[i], &before.digests[i]));
        expect_version(&s, NULL, i, &before.digests[i], i < VERSIONS - 1, "after the loss");
    }
    /* the next one comes whole */
    publish_labelled(&s, VERSIONS + 1);
    weft_digest newest = trainer_digest(&s.trainer);
    expect_version(&s, NULL, 0, &newest, true, "after the loss");
    free_snapshot(&all);
    scene_close(&s);
}

/* Nothing is left of the history: the run goes on from its newest version all the same. */
static void test_no_page_at_all(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    for (unsigned keep = 0; keep < 2; keep++) {
        scene s;
        findings found;
        weft_repair_result result = {.size = sizeof result};
        replica behind;
        build_run(&s, &plain, false);
        const chronicle before = read_chronicle(&s, NULL);
        snapshot all;
        take_snapshot(&s, &all);
        replica_open(&behind, &s, "out", NULL);
        scene_expect(behind.context, weft_subscriber_pull(behind.subscriber, VERSIONS - 1), WEFT_OK,
                     "pull");
        for (size_t i = 0; i < all.count; i++) {
            const char *key = all.objects[i].key;
            bool gone = strncmp(key, "pages/", 6) == 0 ||
                        (keep == 0 && strncmp(key, "heads/", 6) != 0 && strstr(key, "0000000019") == NULL);
            if (gone) {
                scene_remove(&s, key);
            }
        }
        assert_int_equal(scene_publisher(&s), WEFT_NOT_FOUND);
        assert_non_null(strstr(weft_context_error(s.context), "weft repair "));
        scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
        assert_int_equal(result.version, VERSIONS);
        chronicle after = read_chronicle(&s, NULL);
        assert_true(weft_digest_equal(&after.digests[VERSIONS], &before.digests[VERSIONS]));
        /* the patches tell of all versions */
        assert_int_equal(result.findings > 0, keep == 0);
        for (uint64_t i = 1; keep == 1 && i <= VERSIONS; i++) {
            assert_true(weft_digest_equal(&after.digests[i], &before.digests[i]));
            expect_version(&s, NULL, i, &before.digests[i], true, "by its patches");
        }
        replica_catch_up(&behind, "one behind");
        publish_labelled(&s, VERSIONS + 1);
        replica_catch_up(&behind, "after the mending");
        scene_newcomer(&s, "after the mending");
        replica_close(&behind);
        free_snapshot(&all);
        scene_close(&s);
    }
}

/* ---- heads ---- */

/* What somebody has put where the next epoch's head would be is no end of the run. */
static void test_a_junk_head_of_the_next_epoch(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options look = {.size = sizeof look, .deep = false};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    scene s;
    replica live;
    replica file;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &plain, false);
    replica_open(&live, &s, NULL, NULL);
    replica_open(&file, &s, "out", NULL);
    replica_catch_up(&live, "before");
    replica_catch_up(&file, "before");
    scene_write(&s, "heads/00000003", "<html>no such page</html>\n", 26);
    assert_int_equal(scene_publisher(&s), WEFT_CHECKSUM_MISMATCH);
    assert_non_null(strstr(weft_context_error(s.context), "weft repair "));
    scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "look");
    assert_int_equal(found.kinds[WEFT_REPAIR_HEAD], 1);
    assert_string_equal(found.key, "heads/00000003");
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.epoch, 4);
    replica_catch_up(&live, "after the mending");
    assert_int_equal(replica_reopen(&file, NULL), WEFT_OK);
    replica_catch_up(&file, "after the mending");
    publish_labelled(&s, VERSIONS + 1);
    replica_catch_up(&live, "on");
    replica_catch_up(&file, "on");
    replica_close(&file);
    replica_close(&live);
    scene_close(&s);
}

/* A follower that has seen more of an epoch than its new head says does not wait for ever. */
static void test_a_lost_newest_head(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    for (unsigned missing = 0; missing < 2; missing++) {
        scene s;
        replica file;
        findings found;
        weft_repair_result result = {.size = sizeof result};
        build_run(&s, &plain, false);
        replica_open(&file, &s, "out", NULL);
        replica_catch_up(&file, "before");
        if (missing) {
            scene_remove(&s, "heads/00000002");
        } else {
            scene_spoil(&s, "heads/00000002");
        }
        scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
        assert_int_equal(result.findings, 0);
        assert_int_equal(result.version, VERSIONS);
        assert_int_equal(replica_reopen(&file, NULL), WEFT_OK);
        replica_catch_up(&file, "after the mending");
        publish_labelled(&s, VERSIONS + 1);
        replica_catch_up(&file, "on");
        replica_close(&file);
        scene_close(&s);
    }
}

/* Repair ends between the head that it has mended and the epoch that was to follow: nothing is left to be
 * found, and a replica that has seen more of the old epoch's heads goes on all the same. */
static void test_half_a_repair(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    const fault_rule dead = {.kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "heads/00000003"};
    scene s;
    replica file;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &plain, false);
    replica_open(&file, &s, "out", NULL);
    replica_catch_up(&file, "before");
    scene_spoil(&s, "heads/00000002");
    fault_store_set(s.faults, &dead, 1);
    assert_int_equal(weft_repair_run(s.outside, s.faulty, &mend, NULL), WEFT_REMOTE_FAILED);
    fault_store_set(s.faults, NULL, 0);
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(replica_reopen(&file, NULL), WEFT_OK);
    replica_catch_up(&file, "after half a repair");
    publish_labelled(&s, VERSIONS + 1);
    replica_catch_up(&file, "on");
    replica_close(&file);
    scene_close(&s);
}

/* After the mending: all versions of the run that build_run makes are there, readers go on, and so does the
 * run. */
static void expect_all(scene *s, replica *file, const chronicle *before, const char *what) {
    const chronicle after = read_chronicle(s, NULL);
    assert_int_equal(after.count, VERSIONS);
    assert_int_equal(after.lost, 0);
    for (uint64_t i = 1; i <= VERSIONS; i++) {
        assert_true(weft_digest_equal(&after.digests[i], &before->digests[i]));
        expect_version(s, NULL, i, &before->digests[i], true, what);
    }
    assert_int_equal(replica_reopen(file, NULL), WEFT_OK);
    replica_catch_up(file, what);
    publish_labelled(s, VERSIONS + 1);
    replica_catch_up(file, what);
}

/* A third writer has begun an epoch and published nothing. Where its head is a claim, what counts is the
 * head before it; and where both are lost, the pages of the epoch before tell. */
static void test_lost_heads_before_a_claim(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    for (unsigned both = 0; both < 2; both++) {
        for (damage how = DAMAGE_MISSING; how <= DAMAGE_FLIPPED; how++) {
            scene s;
            replica file;
            snapshot all;
            findings found;
            weft_repair_result result = {.size = sizeof result};
            build_run(&s, &plain, false);
            const chronicle before = read_chronicle(&s, NULL);
            replica_open(&file, &s, "out", NULL);
            replica_catch_up(&file, "before");
            assert_int_equal(scene_publisher(&s), WEFT_OK);
            weft_publisher_close(s.publisher);
            s.publisher = NULL;
            take_snapshot(&s, &all);
            spoil(&s, &all, "heads/00000002", how);
            if (both) {
                spoil(&s, &all, "heads/00000003", DAMAGE_FLIPPED);
            }
            scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
            assert_int_equal(result.findings, 0);
            assert_int_equal(result.mended, both + 1);
            assert_int_equal(result.version, VERSIONS);
            assert_int_equal(result.epoch, 4);
            expect_all(&s, &file, &before, both ? "both" : "the one that counts");
            free_snapshot(&all);
            replica_close(&file);
            scene_close(&s);
        }
    }
}

/* A page on the way from the newest one to the epoch before is damaged too: that is no reason to go back
 * to before it. */
static void test_a_lost_head_and_a_page(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    scene s;
    replica file;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &plain, false);
    const chronicle before = read_chronicle(&s, NULL);
    const chain pages = read_chain(&s, 2);
    replica_open(&file, &s, "out", NULL);
    replica_catch_up(&file, "before");
    for (size_t i = 1; i < pages.count; i++) {
        scene_spoil(&s, pages.keys[i]);
    }
    scene_spoil(&s, "heads/00000002");
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.version, VERSIONS);
    expect_all(&s, &file, &before, "a head and pages");
    replica_close(&file);
    scene_close(&s);
}

/* A page whose anchor never came is of no version, though nothing else of it is missing. */
static void test_a_page_without_its_anchor(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    const fault_rule broken = {.kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "anchors/*"};
    scene s;
    replica file;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    char key[WEFT_STORE_KEY_MAX + 1];
    build_run(&s, &plain, false);
    const chronicle before = read_chronicle(&s, NULL);
    replica_open(&file, &s, "out", NULL);
    replica_catch_up(&file, "before");
    s.options.whole = true;
    assert_int_equal(scene_publisher(&s), WEFT_OK);
    fault_store_set(s.faults, &broken, 1);
    assert_int_equal(weft_publisher_publish(s.publisher, NULL, NULL), WEFT_REMOTE_FAILED);
    fault_store_set(s.faults, NULL, 0);
    weft_publisher_close(s.publisher);
    s.publisher = NULL;
    s.options.whole = false;
    scene_find(&s, "pages", VERSIONS + 1, key);
    scene_spoil(&s, "heads/00000003");
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.version, VERSIONS);
    expect_all(&s, &file, &before, "as the epoch before ended");
    replica_close(&file);
    scene_close(&s);
}

/* Objects that belong to nothing, whatever their names and contents, are passed over. */
static void test_strays(void **state) {
    (void)state;
    static const char *const keys[] = {
        "heads/99999999",
        "pages/99999999-0000000001-aaaaaaaaaaaaaaaa",
        "pages/-1-5-aaaaaaaaaaaaaaaa",
        "pages/18446744073709551615-18446744073709551615-aaaaaaaaaaaaaaaa",
        "pages/00000001-0000000019-aaaaaaaaaaaaaaaa",
        "leaps/00000001-0000000020-aaaaaaaaaaaaaaaa",
        "pieces/00000001-0000000019-aaaaaaaaaaaaaaaa",
    };
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options look = {.size = sizeof look, .deep = true};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    scene s;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &plain, false);
    const chain pages = read_chain(&s, 2);
    /* more of JSON than the format has room for */
    char wide[10002] = "{\"a\":[";
    for (size_t i = strlen(wide); i + 3 < sizeof wide; i += 3) {
        memcpy(wide + i, "[],", 4);
    }
    memcpy(wide + strlen(wide) - 1, "]}", 3);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        scene_write(&s, keys[i], wide, strlen(wide));
    }
    scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "a sound run");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.epoch, 2);
    scene_spoil(&s, pages.keys[0]);
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(read_chronicle(&s, NULL).count, VERSIONS);
    scene_spoil(&s, "heads/00000002");
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend a head");
    assert_int_equal(result.findings, 0);
    assert_int_equal(read_chronicle(&s, NULL).count, VERSIONS);
    scene_close(&s);
}

static void test_no_run(void **state) {
    (void)state;
    const weft_repair_options look = {.size = sizeof look, .deep = true};
    scene s;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    scene_open(&s, NULL, 3);
    assert_int_equal(run_repair(&s, &look, &found, &result), WEFT_NOT_FOUND);
    /* a head alone, with nothing to say what it was */
    scene_write(&s, "heads/00000001", "x", 1);
    scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "a head of nothing");
    assert_int_equal(found.count, 1);
    assert_int_equal(found.mendable, 0);
    scene_close(&s);
}

/* ---- signed runs ---- */

static void test_signed_runs(void **state) {
    (void)state;
    weft_context *context;
    weft_key *secret;
    weft_key *other;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &secret), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &other), WEFT_OK);
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1, .key = secret};
    const weft_repair_options without = {.size = sizeof without, .apply = true};
    const weft_repair_options with = {.size = sizeof with, .key = secret, .apply = true};
    const weft_repair_options strange = {.size = sizeof strange, .key = other, .apply = true};
    const weft_repair_options adopting = {
        .size = sizeof adopting, .key = secret, .adopt = true, .apply = true};
    scene s;
    snapshot all;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &options, false);
    const chronicle before = read_chronicle(&s, secret);
    chain pages = read_chain(&s, 2);
    take_snapshot(&s, &all);
    /* the very bytes need no signature */
    scene_spoil(&s, pages.keys[0]);
    scene_expect(s.outside, run_repair(&s, &without, &found, &result), WEFT_OK, "exact");
    assert_int_equal(result.mended, 1);
    assert_int_equal(read_chain(&s, 2).count, 4);
    expect_version(&s, secret, 0, &before.digests[VERSIONS], true, "exact");
    /* anything else does, and somebody who vouches for what was found */
    remove_retired(&s, &pages, &all);
    scene_spoil(&s, pages.keys[1]);
    snapshot damaged;
    take_snapshot(&s, &damaged);
    assert_int_equal(run_repair(&s, &without, &found, &result), WEFT_INVALID_ARGUMENT);
    assert_int_equal(run_repair(&s, &strange, &found, &result), WEFT_SIGNATURE_MISMATCH);
    assert_int_equal(run_repair(&s, &with, &found, &result), WEFT_SIGNATURE_MISMATCH);
    expect_unchanged(&s, &damaged);
    scene_expect(s.outside, run_repair(&s, &adopting, &found, &result), WEFT_OK, "adopting");
    assert_int_equal(result.findings, 0);
    expect_version(&s, secret, 0, &before.digests[VERSIONS], true, "adopting");
    publish_labelled(&s, VERSIONS + 1);
    assert_int_equal(read_chronicle(&s, secret).count, VERSIONS + 1);
    /* a junk head of the next epoch: what takes its place was signed before */
    put_back(&s, &all);
    scene_write(&s, "heads/00000003", "x", 1);
    scene_expect(s.outside, run_repair(&s, &with, &found, &result), WEFT_OK, "a signed head");
    assert_int_equal(result.findings, 0);
    expect_version(&s, secret, 0, &before.digests[VERSIONS], true, "a signed head");
    free_snapshot(&damaged);
    free_snapshot(&all);
    scene_close(&s);
    weft_key_destroy(other);
    weft_key_destroy(secret);
    weft_context_destroy(context);
}

/* ---- bad days of repair itself ---- */

/* The way to the store ends at each operation in turn; the next repair finishes what was begun. */
static void sweep_interruptions(scene *s, const snapshot *damaged, const chronicle *before,
                                const char *what) {
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    findings found;
    weft_repair_result result = {.size = sizeof result};
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired; n += test_stride()) {
        put_back(s, damaged);
        fault_store_fail_from(s->faults, n, WEFT_REMOTE_FAILED);
        weft_status status = weft_repair_run(s->outside, s->faulty, &mend, NULL);
        fired = fault_store_fired(s->faults);
        fault_store_fail_from(s->faults, 0, WEFT_OK);
        assert_int_equal(status == WEFT_OK, !fired);
        scene_expect(s->outside, run_repair(s, &mend, &found, &result), WEFT_OK, what);
        assert_int_equal(result.findings, 0);
        assert_int_equal(result.reachable, VERSIONS);
        chronicle after = read_chronicle(s, NULL);
        assert_int_equal(after.count, VERSIONS);
        for (uint64_t i = 1; i <= VERSIONS; i++) {
            assert_true(weft_digest_equal(&after.digests[i], &before->digests[i]));
        }
    }
    publish_labelled(s, VERSIONS + 1);
    scene_newcomer(s, what);
}

static void test_an_interrupted_repair(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    scene s;
    snapshot all;
    snapshot damaged;
    build_run(&s, &plain, false);
    const chronicle before = read_chronicle(&s, NULL);
    const chain pages = read_chain(&s, 2);
    take_snapshot(&s, &all);
    remove_retired(&s, &pages, &all);
    scene_spoil(&s, pages.keys[1]);
    take_snapshot(&s, &damaged);
    sweep_interruptions(&s, &damaged, &before, "a page in the middle");
    free_snapshot(&damaged);
    put_back(&s, &all);
    scene_spoil(&s, "heads/00000002");
    scene_spoil(&s, pages.keys[3]);
    take_snapshot(&s, &damaged);
    sweep_interruptions(&s, &damaged, &before, "the newest head and the oldest page");
    free_snapshot(&damaged);
    free_snapshot(&all);
    scene_close(&s);
}

/* What comes damaged is not damaged where it lies. */
static void test_damage_on_the_way(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    const fault_rule once[] = {
        {.kind = FAULT_FLIP, .operations = FAULT_ON_GET, .pattern = "heads/*", .per_key = 1},
        {.kind = FAULT_FLIP, .operations = FAULT_ON_GET, .pattern = "pages/*", .per_key = 1},
    };
    const fault_rule always = {.kind = FAULT_FLIP, .operations = FAULT_ON_GET, .pattern = "heads/*"};
    scene s;
    snapshot all;
    weft_repair_result result = {.size = sizeof result};
    build_run(&s, &plain, false);
    take_snapshot(&s, &all);
    fault_store_set(s.faults, once, 2);
    scene_expect(s.outside, weft_repair_run(s.outside, s.faulty, &mend, &result), WEFT_OK, "a bad line");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.mended, 0);
    assert_true(fault_store_count(s.faults, FAULT_FLIP) > 2);
    expect_unchanged(&s, &all);
    fault_store_set(s.faults, &always, 1);
    assert_int_equal(weft_repair_run(s.outside, s.faulty, &mend, &result), WEFT_CHECKSUM_MISMATCH);
    assert_non_null(strstr(weft_context_error(s.outside), "otherwise each time"));
    expect_unchanged(&s, &all);
    free_snapshot(&all);
    scene_close(&s);
}

/* Somebody has written where repair still sees what it was about to write over. */
static void test_a_head_that_changes(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    const fault_rule stale = {.kind = FAULT_STALE, .operations = FAULT_ON_GET, .pattern = "heads/00000003"};
    static const char *const contents[] = {"junk", "somebody's"};
    scene s;
    snapshot all;
    build_run(&s, &plain, false);
    for (size_t i = 0; i < 2; i++) {
        scene_expect(s.outside,
                     weft_store_put_bytes(s.outside, s.faulty, "heads/00000003", contents[i],
                                          strlen(contents[i]), WEFT_STORE_ALWAYS, NULL, NULL),
                     WEFT_OK, contents[i]);
    }
    take_snapshot(&s, &all);
    fault_store_set(s.faults, &stale, 1);
    assert_int_equal(weft_repair_run(s.outside, s.faulty, &mend, NULL), WEFT_CONFLICT);
    assert_true(fault_store_count(s.faults, FAULT_STALE) > 0);
    expect_unchanged(&s, &all);
    free_snapshot(&all);
    scene_close(&s);
}

/* ---- what heals by itself ---- */

/* A page before the long one that is under way is needed by no publisher: its first version comes whole, if
 * nothing else leads there. */
static void test_an_old_page_ends_no_run(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = 1e9};
    const weft_repair_options mend = {.size = sizeof mend, .apply = true};
    scene s;
    findings found;
    weft_repair_result result = {.size = sizeof result};
    weft_publish_result published = {.size = sizeof published};
    scene_open(&s, &plain, 92);
    for (unsigned i = 1; i <= 86; i++) {
        scene_publish(&s, 2000);
    }
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_find(&s, "pages", 64, key);
    scene_spoil(&s, key);
    scene_expect(s.context, scene_publisher(&s), WEFT_OK, "over a damaged old page");
    trainer_step(&s.trainer, 2000);
    scene_expect(s.context, weft_publisher_publish(s.publisher, NULL, &published), WEFT_OK, "publish");
    assert_true(published.anchored);
    scene_newcomer(&s, "by the anchor");
    weft_publisher_close(s.publisher);
    s.publisher = NULL;
    scene_expect(s.outside, run_repair(&s, &mend, &found, &result), WEFT_OK, "mend");
    assert_int_equal(result.findings, 0);
    assert_int_equal(result.oldest, 1);
    assert_int_equal(result.reachable, 87);
    scene_publish(&s, 2000);
    scene_newcomer(&s, "on");
    scene_close(&s);
}

/* Repair says of a page that a publisher cannot go on without it if that is so. */
static void test_which_pages_end_a_run(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const weft_repair_options look = {.size = sizeof look};
    scene s;
    snapshot all;
    scene_open(&s, &plain, 93);
    for (unsigned i = 1; i <= 86; i++) {
        scene_publish(&s, 2000);
    }
    weft_publisher_close(s.publisher);
    s.publisher = NULL;
    const chain pages = read_chain(&s, 1);
    assert_int_equal(pages.count, 5);
    take_snapshot(&s, &all);
    for (size_t i = 0; i < pages.count; i++) {
        findings found;
        weft_repair_result result = {.size = sizeof result};
        put_back(&s, &all);
        scene_spoil(&s, pages.keys[i]);
        scene_expect(s.outside, run_repair(&s, &look, &found, &result), WEFT_OK, "look");
        assert_int_equal(found.kinds[WEFT_REPAIR_PAGE], 1);
        bool ends = strstr(found.effect, "a publisher cannot go on") != NULL;
        assert_int_equal(ends, i + 1 < pages.count);
        scene_expect(s.context, scene_publisher(&s), ends ? WEFT_CHECKSUM_MISMATCH : WEFT_OK, "go on");
    }
    free_snapshot(&all);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_and_pages),
        cmocka_unit_test(test_without_retired_pages),
        cmocka_unit_test(test_with_leaps),
        cmocka_unit_test(test_patches_and_anchors),
        cmocka_unit_test(test_a_lost_record),
        cmocka_unit_test(test_no_page_at_all),
        cmocka_unit_test(test_a_junk_head_of_the_next_epoch),
        cmocka_unit_test(test_a_lost_newest_head),
        cmocka_unit_test(test_half_a_repair),
        cmocka_unit_test(test_lost_heads_before_a_claim),
        cmocka_unit_test(test_a_lost_head_and_a_page),
        cmocka_unit_test(test_a_page_without_its_anchor),
        cmocka_unit_test(test_strays),
        cmocka_unit_test(test_no_run),
        cmocka_unit_test(test_signed_runs),
        cmocka_unit_test(test_an_interrupted_repair),
        cmocka_unit_test(test_damage_on_the_way),
        cmocka_unit_test(test_a_head_that_changes),
        cmocka_unit_test(test_an_old_page_ends_no_run),
        cmocka_unit_test(test_which_pages_end_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
