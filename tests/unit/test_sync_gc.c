/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention beside publishers that are stopped. A publisher is stopped before each of its operations in
 * turn, for a day by the store's clock, while somebody collects without any grace; then it goes on, and all
 * that the history names for its kept versions is there. The same with whoever collects: it is stopped
 * before each of its operations, while publishers go on and take over and others collect. And what ages
 * are reckoned by: the store's clock and nothing else.
 */
#include "../../lib/sync/follow/follow.h"
#include "../../lib/sync/format/history.h"
#include "../../lib/sync/format/leap.h"
#include "../../lib/sync/objects/pieces.h"
#include "clocked_store.h"
#include "patches.h"
#include "scenes.h"
#include "stride.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const double DAY = 86400;

typedef struct stage {
    scene scene;
    store_clock *clock;
    weft_store *clocked;
    weft_store *store; /* the publisher's way there */
    fault_store *faults;
    weft_context *collector;
    weft_store *collecting; /* that of who collects */
    fault_store *collecting_faults;
} stage;

static void stage_open(stage *g, const weft_publisher_options *options, uint64_t seed) {
    scene_open(&g->scene, options, seed);
    g->scene.options.no_leaps = options->no_leaps;
    g->clock = store_clock_open();
    g->collector = patches_context(1);
    g->clocked = clocked_store_open(g->collector, g->scene.store, g->clock);
    scene_expect(g->collector, fault_store_create(g->collector, g->clocked, seed, &g->store, &g->faults),
                 WEFT_OK, "the publisher's store");
    scene_expect(g->collector,
                 fault_store_create(g->collector, g->clocked, seed, &g->collecting, &g->collecting_faults),
                 WEFT_OK, "the collector's store");
}

static void stage_close(stage *g) {
    weft_publisher_close(g->scene.publisher);
    g->scene.publisher = NULL;
    weft_store_close(g->store);
    weft_store_close(g->collecting);
    weft_store_close(g->clocked);
    weft_context_destroy(g->collector);
    scene_close(&g->scene);
    store_clock_close(g->clock);
}

/* A new publisher, which takes over from the one before. */
static void stage_publisher(stage *g) {
    scene *s = &g->scene;
    weft_publisher_close(s->publisher);
    s->publisher = NULL;
    scene_expect(
        s->context,
        weft_publisher_open(s->context, g->store, s->trainer.model.view, &s->options, &s->publisher),
        WEFT_OK, "open a publisher");
}

static void publish(stage *g) {
    if (g->scene.publisher == NULL) {
        stage_publisher(g);
    }
    scene_publish(&g->scene, 5000);
}

static void anchor(stage *g) {
    scene_expect(g->scene.context, weft_publisher_anchor(g->scene.publisher, NULL), WEFT_OK, "anchor");
}

static void settle(stage *g) {
    scene_expect(g->scene.context, weft_publisher_settle(g->scene.publisher), WEFT_OK, "settle");
}

static weft_gc_result collect(weft_context *context, weft_store *store, double grace) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = grace};
    weft_gc_result result = {.size = sizeof result};
    scene_expect(context, weft_gc_run(context, store, &options, &result), WEFT_OK, "gc");
    return result;
}

/* A day passes, and somebody collects all that may go. */
static void collect_a_day_later(void *opaque) {
    stage *g = opaque;
    store_clock_advance(g->clock, DAY);
    weft_context *context = patches_context(1);
    collect(context, g->clocked, 0);
    weft_context_destroy(context);
}

/* Whoever is behind the store is stopped before the n-th operation, and goes on after `meanwhile`. */
static void stop_at(fault_store *faults, uint64_t n, fault_meanwhile meanwhile, stage *g) {
    const fault_rule stop = {.kind = FAULT_PAUSE, .meanwhile = meanwhile, .opaque = g};
    fault_store_strike_at(faults, n, &stop, false);
}

static void stop_no_more(fault_store *faults) {
    fault_store_fail_at(faults, 0, WEFT_OK);
}

/* ---- what the history names ---- */

typedef struct naming {
    stage *stage;
    uint64_t floor;
    bool begun;
} naming;

static void expect_there(const stage *g, const char *key) {
    weft_context *context = g->scene.outside;
    if (weft_store_head(context, g->scene.store, key, NULL, NULL) != WEFT_OK) {
        fail_msg("the history names what is gone: %s", weft_context_error(context));
    }
}

static void expect_object(const stage *g, const weft_object *object) {
    weft_context *context = g->scene.outside;
    weft_pieces pieces;
    weft_pieces_open(&pieces, context);
    scene_expect(context, weft_pieces_fetch(&pieces, g->scene.store, object), WEFT_OK, "a list of pieces");
    for (size_t i = 0; i < pieces.count; i++) {
        expect_there(g, pieces.items[i].key);
        if (pieces.items[i].listed) {
            expect_there(g, pieces.items[i].list.key);
        }
    }
    weft_pieces_close(&pieces);
}

static void expect_leap(const stage *g, const weft_leap *leap, uint64_t floor) {
    if (leap->last > floor) {
        expect_there(g, leap->node.key);
    }
    if (leap->first >= floor && leap->key[0] != '\0') {
        expect_there(g, leap->key);
        if (leap->list_key[0] != '\0') {
            expect_there(g, leap->list_key);
        }
    }
}

static weft_status expect_page(void *opaque, const weft_blob *blob, const weft_page *page) {
    naming *n = opaque;
    (void)blob;
    /* of anchors and leaps the newest full page tells; leaps since then are in records */
    for (size_t i = 0; !n->begun && i < page->anchor_count; i++) {
        expect_object(n->stage, &page->anchors[i].object);
    }
    for (size_t i = 0; !n->begun && i < page->leaps.count; i++) {
        expect_leap(n->stage, &page->leaps.items[i], n->floor);
    }
    n->begun = n->begun || page->full;
    for (size_t i = 0; i < page->record_count; i++) {
        const weft_record *record = &page->records[i];
        if (record->patched && record->version > n->floor) {
            expect_object(n->stage, &record->patch);
        }
        for (size_t j = 0; j < record->leaps.count; j++) {
            expect_leap(n->stage, &record->leaps.items[j], n->floor);
        }
    }
    return WEFT_MORE;
}

/* All that the kept versions need is there, and so is the whole history. */
static void check_named(stage *g) {
    weft_context *context = g->scene.outside;
    weft_follow follow;
    scene_expect(context, weft_follow_open(&follow, context, g->scene.store, NULL, NULL, false), WEFT_OK,
                 "follow");
    scene_expect(context, weft_follow_look(&follow), WEFT_OK, "look");
    naming n = {.stage = g, .floor = follow.head.newest.floor};
    scene_expect(context, weft_history_walk(context, g->scene.store, &follow.head, NULL, expect_page, &n),
                 WEFT_OK, "walk the history");
    weft_follow_close(&follow);
}

/* ---- a publisher is stopped ---- */

typedef struct act {
    const char *name;
    weft_publisher_options options;
    void (*prepare)(stage *stage); /* undisturbed */
    void (*run)(stage *stage);
    const char *mirror; /* the publisher's checkpoint; NULL: in memory */
} act;

static void nothing(stage *g) {
    (void)g;
}

/* Before every operation of what is done. */
static void stop_publisher(const act *act, uint64_t seed) {
    stage g;
    weft_publisher_options options = act->options;
    stage_open(&g, &options, seed);
    if (act->mirror != NULL) {
        g.scene.options.mirror_path = scratch_path(&g.scene.scratch, act->mirror);
    }
    for (unsigned i = 0; i < 3; i++) {
        publish(&g);
    }
    bool stopped = true;
    uint64_t n = test_stride_first();
    while (stopped) {
        act->prepare(&g);
        stop_at(g.faults, n, collect_a_day_later, &g);
        act->run(&g);
        stopped = fault_store_fired(g.faults);
        stop_no_more(g.faults);
        settle(&g);
        check_named(&g);
        scene_newcomer(&g.scene, act->name);
        collect_a_day_later(&g);
        check_named(&g);
        n += test_stride();
    }
    print_message("%s: stopped before each of %llu operations\n", act->name, (unsigned long long)n);
    assert_true(n > 3);
    publish(&g);
    scene_newcomer(&g.scene, act->name);
    stage_close(&g);
}

/* So that the next version ends a leap. */
static void come_before_leap(stage *g) {
    do {
        publish(g);
    } while (weft_publisher_version(g->scene.publisher) % WEFT_LEAP_WAYS != WEFT_LEAP_WAYS - 1);
}

static void publish_and_settle(stage *g) {
    publish(g);
    settle(g);
}

/* The background comes and goes as it likes. */
static void publish_some(stage *g) {
    for (unsigned i = 0; i < 3; i++) {
        publish(g);
    }
    settle(g);
}

static void take_over(stage *g) {
    stage_publisher(g);
    publish(g);
    anchor(g);
}

static void test_publisher_stopped(void **state) {
    (void)state;
    static const act acts[] = {
        {"patches",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
         nothing,
         publish,
         NULL},
        {"whole versions",
         {.size = sizeof(weft_publisher_options), .whole = true, .no_leaps = true},
         nothing,
         publish,
         NULL},
        {"anchors",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true},
         publish,
         anchor,
         NULL},
        {"anchors that are due",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = 0.001, .no_leaps = true},
         nothing,
         publish,
         NULL},
        {"anchors in the background",
         {.size = sizeof(weft_publisher_options),
          .anchor_ratio = 0.001,
          .anchors_in_background = true,
          .no_leaps = true},
         nothing,
         publish_some,
         NULL},
        {"leaps",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = -1},
         come_before_leap,
         publish_and_settle,
         NULL},
        {"leaps and anchors in the background",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = 0.02, .anchors_in_background = true},
         nothing,
         publish_some,
         NULL},
        {"a checkpoint",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = 0.02},
         come_before_leap,
         publish_and_settle,
         "mirror"},
        {"takeovers",
         {.size = sizeof(weft_publisher_options), .anchor_ratio = -1, .no_leaps = true},
         nothing,
         take_over,
         NULL},
    };
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        stop_publisher(&acts[i], 90 + i);
    }
}

/* ---- parts ---- */

enum { PARTS = 2 };

/* Both hold all of the model, and share it out. */
typedef struct part {
    weft_context *context;
    weft_store *store;
    fault_store *faults;
    trainer trainer;
    weft_publisher *publisher;
    char label[24];
    weft_status status;
} part;

static void part_open(part *p, stage *g, unsigned index, uint64_t seed) {
    const weft_publisher_options options = {
        .size = sizeof options,
        .anchor_ratio = 0.3,
        .bucket_bytes = 32 << 10,
        .part_index = index,
        .part_count = PARTS,
    };
    p->context = patches_context(1);
    scene_expect(p->context, fault_store_create(p->context, g->clocked, seed, &p->store, &p->faults),
                 WEFT_OK, "a part's store");
    trainer_open(&p->trainer, p->context, seed);
    scene_expect(p->context,
                 weft_publisher_open(p->context, p->store, p->trainer.model.view, &options, &p->publisher),
                 WEFT_OK, "open a part");
}

static void part_close(part *p) {
    weft_publisher_close(p->publisher);
    trainer_close(&p->trainer);
    weft_store_close(p->store);
    weft_context_destroy(p->context);
}

static void *publish_part(void *opaque) {
    part *p = opaque;
    const char *labels[] = {"step", p->label, NULL};
    trainer_step(&p->trainer, 5000);
    p->status = weft_publisher_publish(p->publisher, labels, NULL);
    return NULL;
}

static void publish_parts(part parts[PARTS], uint64_t step) {
    pthread_t threads[PARTS];
    for (unsigned i = 0; i < PARTS; i++) {
        snprintf(parts[i].label, sizeof parts[i].label, "%llu", (unsigned long long)step);
        assert_int_equal(pthread_create(&threads[i], NULL, publish_part, &parts[i]), 0);
    }
    for (unsigned i = 0; i < PARTS; i++) {
        pthread_join(threads[i], NULL);
        scene_expect(parts[i].context, parts[i].status, WEFT_OK, "publish a part");
    }
}

/* How often a part looks for the others is not the same each time: as many stops as there can be. */
static void test_parts_stopped(void **state) {
    (void)state;
    enum { STOPS = 24 };
    const weft_publisher_options none = {.size = sizeof none, .anchor_ratio = -1};
    stage g;
    part parts[PARTS];
    uint64_t step = 1;
    stage_open(&g, &none, 110);
    for (unsigned i = 0; i < PARTS; i++) {
        part_open(&parts[i], &g, i, 111);
    }
    publish_parts(parts, step++);
    for (unsigned i = 0; i < PARTS; i++) {
        for (uint64_t n = test_stride_first(); n <= STOPS; n += test_stride()) {
            stop_at(parts[i].faults, n, collect_a_day_later, &g);
            publish_parts(parts, step++);
            stop_no_more(parts[i].faults);
            check_named(&g);
        }
        collect_a_day_later(&g);
        check_named(&g);
    }
    publish_parts(parts, step);
    replica r;
    replica_open(&r, &g.scene, NULL, NULL);
    scene_expect(r.context, weft_subscriber_pull(r.subscriber, 0), WEFT_OK, "a newcomer");
    assert_true(worker_equals(&r.model, &parts[0].trainer));
    replica_close(&r);
    for (unsigned i = PARTS; i > 0; i--) {
        part_close(&parts[i - 1]);
    }
    stage_close(&g);
}

/* ---- who collects is stopped ---- */

static void go_on_meanwhile(void *opaque) {
    stage *g = opaque;
    publish(g);
    anchor(g);
    publish(g);
    settle(g);
    collect_a_day_later(g);
}

/* Another publisher, which by turns comes no further than its claim. */
static void claim_meanwhile(void *opaque) {
    stage *g = opaque;
    stage_publisher(g);
    if (weft_publisher_epoch(g->scene.publisher) % 2 == 0) {
        go_on_meanwhile(g);
        return;
    }
    collect_a_day_later(g);
}

static void stop_collector(void (*meanwhile)(void *opaque), bool leaps, uint64_t seed) {
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = !leaps};
    stage g;
    stage_open(&g, &options, seed);
    bool stopped = true;
    uint64_t n = test_stride_first();
    while (stopped) {
        publish(&g);
        publish(&g);
        anchor(&g);
        publish(&g);
        publish(&g);
        settle(&g);
        store_clock_advance(g.clock, DAY);
        stop_at(g.collecting_faults, n, meanwhile, &g);
        const weft_gc_options now = {.size = sizeof now, .grace_seconds = 0};
        weft_status status = weft_gc_run(g.collector, g.collecting, &now, NULL);
        /* the page that it was about to read may be replaced and gone */
        scene_expect(g.collector, status == WEFT_NOT_FOUND ? WEFT_OK : status, WEFT_OK, "gc");
        stopped = fault_store_fired(g.collecting_faults);
        stop_no_more(g.collecting_faults);
        check_named(&g);
        publish(&g);
        scene_newcomer(&g.scene, "beside one who collects");
        n += test_stride();
    }
    print_message("stopped before each of %llu operations\n", (unsigned long long)n);
    assert_true(n > 10);
    collect_a_day_later(&g);
    check_named(&g);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    stage_close(&g);
}

static void test_collector_stopped(void **state) {
    (void)state;
    stop_collector(go_on_meanwhile, true, 120);
    stop_collector(claim_meanwhile, false, 121);
}

/* ---- what may still be named ---- */

static void put_stranger(stage *g, const char *key) {
    scene_write(&g->scene, key, "x", 1);
}

static bool is_there(stage *g, const char *key) {
    return weft_store_head(g->scene.outside, g->scene.store, key, NULL, NULL) == WEFT_OK;
}

/* Epoch 2, newest version 23, newest anchor of version 18, and leaps up to version 20. */
static void test_what_may_come(void **state) {
    (void)state;
    static const struct {
        const char *key;
        bool stays;
    } cases[] = {
        {"patches/00000002-0000000024-x", true}, /* the version under way */
        {"pages/00000002-0000000024-x", true},
        {"chunks/00000002-0000000024-x", true},
        {"pieces/00000002-0000000024-x", true},
        {"anchors/00000002-0000000024-x", true},
        {"pages/00000002-0000000023-x", true}, /* the newest once more */
        {"pages/00000002-0000000022-x", false},
        {"patches/00000002-0000000022-x", false}, /* of a publish that failed */
        {"anchors/00000002-0000000019-x", true},  /* made in the background */
        {"pieces/00000002-0000000019-x", true},
        {"chunks/00000002-0000000019-x", true},
        {"anchors/00000002-0000000018-x", false},
        {"pieces/00000002-0000000018-x", false},
        {"chunks/00000002-0000000018-x", false},
        {"patches/00000002-0000000020-x", true}, /* of a wider leap that ends there too */
        {"leaps/00000002-0000000020-x", true},
        {"patches/00000002-0000000019-x", false},
        {"leaps/00000002-0000000016-x", false},
        {"patches/00000002-0000000016-x", false},
        {"chunks/00000002-0000000016-x", false},
        {"patches/00000001-0000000024-x", false}, /* of a writer that is fenced */
        {"pages/00000001-0000000024-x", false},
        {"anchors/00000001-0000000024-x", false},
        {"leaps/00000001-0000000024-x", false},
        {"parts/1/call", false},
        {"patches/00000003-0000000002-x", true}, /* of one that is not known yet */
        {"leaps/00000003-0000000002-x", true},
        {"parts/2/call", true},
        {"parts/3/call", true},
    };
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1};
    stage g;
    stage_open(&g, &options, 130);
    publish(&g);
    stage_publisher(&g);
    while (weft_publisher_version(g.scene.publisher) < 23) {
        publish(&g);
        settle(&g);
        if (weft_publisher_version(g.scene.publisher) == 18) {
            anchor(&g);
        }
    }
    collect_a_day_later(&g);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_stranger(&g, cases[i].key);
    }
    collect_a_day_later(&g);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (is_there(&g, cases[i].key) != cases[i].stays) {
            fail_msg("%s %s", cases[i].key, cases[i].stays ? "is gone" : "stays");
        }
    }
    check_named(&g);
    stage_close(&g);
}

/* What failed publishes have left goes when their version is published and they are old; nothing else does.
 */
static void test_leftovers(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1, .no_leaps = true};
    const fault_rule no_page = {
        .kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "pages/*", .status = WEFT_NO_SPACE};
    stage g;
    stage_open(&g, &options, 132);
    scene *s = &g.scene;
    for (unsigned i = 0; i < 4; i++) {
        publish(&g);
    }
    fault_store_set(g.faults, &no_page, 1);
    for (unsigned i = 0; i < 5; i++) {
        trainer_step(&s->trainer, 5000);
        assert_int_equal(weft_publisher_publish(s->publisher, NULL, NULL), WEFT_NO_SPACE);
    }
    fault_store_set(g.faults, NULL, 0);
    assert_int_equal(scene_count(s, "patches"), 3 + 5);
    collect_a_day_later(&g);
    assert_int_equal(scene_count(s, "patches"), 3 + 5);
    publish(&g);
    collect_a_day_later(&g);
    assert_int_equal(scene_count(s, "patches"), 4 + 5);
    publish(&g);
    collect(g.collector, g.collecting, 3 * DAY);
    assert_int_equal(scene_count(s, "patches"), 5 + 5);
    for (unsigned i = 0; i < 2; i++) {
        collect(g.collector, g.collecting, 0);
        assert_int_equal(scene_count(s, "patches"), 5);
        assert_int_equal(scene_count(s, "anchors"), 1);
    }
    check_named(&g);
    scene_newcomer(s, "after the leftovers");
    stage_close(&g);
}

/* Who has only claimed the run may still find that the writer before it was ahead. */
static void test_nothing_goes_at_a_takeover(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true};
    stage g;
    stage_open(&g, &options, 131);
    publish(&g);
    publish(&g);
    anchor(&g);
    stage_publisher(&g);
    store_clock_advance(g.clock, DAY);
    weft_gc_result result = collect(g.collector, g.collecting, 0);
    assert_true(result.unsettled);
    assert_int_equal(result.objects, 0);
    publish(&g);
    result = collect(g.collector, g.collecting, 0);
    assert_false(result.unsettled);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    stage_close(&g);
}

/* ---- ages ---- */

/* Versions 1 to 4 at 0, 100, 200 and 300 seconds, an anchor of the last that replaces the first, and
 * version 5 at 400. */
static void publish_five(stage *g) {
    for (unsigned i = 0; i < 5; i++) {
        publish(g);
        if (i == 3) {
            anchor(g);
        }
        store_clock_advance(g->clock, i < 4 ? 100 : 0);
    }
}

/* What was replaced goes a thousand seconds after the next version has come, and not before. */
static void run_grace(bool listed) {
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true};
    const fault_rule blind = {.kind = FAULT_FAIL, .operations = FAULT_ON_LIST, .status = WEFT_UNSUPPORTED};
    stage g;
    stage_open(&g, &options, 140);
    fault_store_set(g.collecting_faults, &blind, listed ? 0 : 1);
    publish_five(&g);
    weft_gc_result result = collect(g.collector, g.collecting, 1000);
    assert_int_equal(result.objects, 0);
    assert_true(result.waiting > 0);
    store_clock_advance(g.clock, 999);
    result = collect(g.collector, g.collecting, 1000);
    assert_int_equal(result.objects, 1); /* the page that version 2 replaced */
    assert_int_equal(scene_count(&g.scene, "patches"), 4);
    assert_int_equal(scene_count(&g.scene, "anchors"), 2);
    store_clock_advance(g.clock, 1);
    result = collect(g.collector, g.collecting, 1000);
    assert_int_equal(scene_count(&g.scene, "patches"), 1);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    assert_false(result.ageless);
    /* the newest record replaces the page before by the age of the head */
    assert_int_equal(result.waiting, 0);
    assert_int_equal(scene_count(&g.scene, "pages"), 2);
    anchor(&g);
    store_clock_advance(g.clock, 999);
    collect(g.collector, g.collecting, 1000);
    assert_int_equal(scene_count(&g.scene, "anchors"), 2);
    store_clock_advance(g.clock, 1);
    collect(g.collector, g.collecting, 1000);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    check_named(&g);
    scene_newcomer(&g.scene, "after the grace");
    stage_close(&g);
}

static void test_grace(void **state) {
    (void)state;
    run_grace(true);
    run_grace(false);
}

/* A store that tells no ages keeps what would have to wait, and says so. */
static void test_no_ages(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true};
    const fault_rule ageless = {.kind = FAULT_FAIL, .operations = FAULT_ON_AGE, .status = WEFT_UNSUPPORTED};
    const fault_rule broken = {.kind = FAULT_FAIL, .operations = FAULT_ON_AGE};
    stage g;
    stage_open(&g, &options, 141);
    publish_five(&g);
    store_clock_advance(g.clock, DAY);
    fault_store_set(g.collecting_faults, &broken, 1);
    const weft_gc_options hour = {.size = sizeof hour, .grace_seconds = 3600};
    assert_int_equal(weft_gc_run(g.collector, g.collecting, &hour, NULL), WEFT_REMOTE_FAILED);
    fault_store_set(g.collecting_faults, &ageless, 1);
    weft_gc_result result = collect(g.collector, g.collecting, 3600);
    assert_true(result.ageless);
    assert_int_equal(result.objects, 0);
    assert_true(result.waiting > 0);
    result = collect(g.collector, g.collecting, 0);
    assert_false(result.ageless);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    check_named(&g);
    stage_close(&g);
}

/* Ages are asked for few objects, however long the history is. */
static void test_few_ages(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = 0.3, .no_leaps = true};
    const fault_rule counted = {.kind = FAULT_DELAY, .operations = FAULT_ON_AGE};
    stage g;
    stage_open(&g, &options, 142);
    fault_store_set(g.collecting_faults, &counted, 1);
    for (unsigned i = 0; i < 200; i++) {
        publish(&g);
        store_clock_advance(g.clock, 10);
    }
    weft_gc_result result = collect(g.collector, g.collecting, 500);
    assert_true(result.objects > 50);
    assert_true(result.waiting > 20);
    uint64_t asked = fault_store_count(g.collecting_faults, FAULT_DELAY);
    assert_true(asked > 0 && asked <= 9);
    check_named(&g);
    stage_close(&g);
}

/* A new anchor amends the newest record, after that was gone through. */
static void test_amended_after_the_mark(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true};
    const fault_rule blind = {.kind = FAULT_FAIL, .operations = FAULT_ON_LIST, .status = WEFT_UNSUPPORTED};
    stage g;
    stage_open(&g, &options, 143);
    fault_store_set(g.collecting_faults, &blind, 1);
    publish(&g);
    publish(&g);
    collect(g.collector, g.collecting, 0);
    anchor(&g);
    collect(g.collector, g.collecting, 0);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    check_named(&g);
    stage_close(&g);
}

/* The page of a new anchor is put and its head is not; what that anchor replaces is replaced from the next
 * version on, and not since a time before it. */
static void test_page_that_was_not_named(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1, .no_leaps = true};
    const fault_rule no_head = {
        .kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "heads/*", .status = WEFT_NO_SPACE};
    stage g;
    stage_open(&g, &options, 144);
    publish(&g);
    publish(&g);
    fault_store_set(g.faults, &no_head, 1);
    assert_int_equal(weft_publisher_anchor(g.scene.publisher, NULL), WEFT_NO_SPACE);
    /* version 3 is stopped before its head */
    const fault_rule stop = {
        .kind = FAULT_PAUSE,
        .operations = FAULT_ON_PUT,
        .pattern = "heads/*",
        .meanwhile = collect_a_day_later,
        .opaque = &g,
    };
    fault_store_set(g.faults, &stop, 1);
    publish(&g);
    assert_true(fault_store_count(g.faults, FAULT_PAUSE) > 0);
    fault_store_set(g.faults, NULL, 0);
    collect(g.collector, g.collecting, 3600);
    assert_int_equal(scene_count(&g.scene, "anchors"), 2);
    store_clock_advance(g.clock, 3600);
    collect(g.collector, g.collecting, 3600);
    assert_int_equal(scene_count(&g.scene, "anchors"), 1);
    check_named(&g);
    stage_close(&g);
}

/* ---- meetings of trainers ---- */

typedef struct gone {
    char keys[32][64];
    size_t count;
} gone;

static void note_gone(void *opaque, const char *key, uint64_t bytes) {
    gone *gone = opaque;
    assert_true(gone->count < 32);
    assert_int_equal(bytes, 7);
    snprintf(gone->keys[gone->count++], sizeof gone->keys[0], "%s", key);
}

static void put_meeting(stage *g, const char *run) {
    static const char *const names[] = {"0/0",      "0/1",        "0/closed", "1/0",
                                        "1/closed", "snapshot-1", "snapshot"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "loco/%s/%s", run, names[i]);
        scene_expect(g->collector,
                     weft_store_put_bytes(g->collector, g->clocked, key, "payload", 7, WEFT_STORE_ALWAYS,
                                          NULL, NULL),
                     WEFT_OK, "putting");
    }
}

static weft_gc_result collect_meetings(stage *g, double seconds, bool dry_run, gone *gone) {
    *gone = (struct gone){.count = 0};
    const weft_gc_options options = {.size = sizeof options,
                                     .grace_seconds = -1,
                                     .dry_run = dry_run,
                                     .removed = note_gone,
                                     .opaque = gone,
                                     .meeting_seconds = seconds};
    weft_gc_result result = {.size = sizeof result};
    scene_expect(g->collector, weft_gc_run(g->collector, g->clocked, &options, &result), WEFT_OK,
                 "collecting");
    return result;
}

/* Of a meeting in which nothing was put for long enough all goes, and what closes rounds last; one in which
 * anything was put stays whole, whatever the rest of it is like, also where nobody publishes. */
static void test_meetings(void **state) {
    (void)state;
    stage g;
    gone gone;
    const weft_publisher_options options = {.size = sizeof options};
    stage_open(&g, &options, 1);
    put_meeting(&g, "over");
    put_meeting(&g, "over-not");
    put_meeting(&g, "alive");
    store_clock_advance(g.clock, 7 * DAY);
    assert_int_equal(collect_meetings(&g, 8 * DAY, false, &gone).waiting, 21);
    scene_expect(g.collector,
                 weft_store_put_bytes(g.collector, g.clocked, "loco/alive/2/0", "payload", 7,
                                      WEFT_STORE_ALWAYS, NULL, NULL),
                 WEFT_OK, "putting");
    scene_expect(g.collector,
                 weft_store_put_bytes(g.collector, g.clocked, "loco/over-not/1/1", "payload", 7,
                                      WEFT_STORE_ALWAYS, NULL, NULL),
                 WEFT_OK, "putting");
    weft_gc_result result = collect_meetings(&g, 6 * DAY, true, &gone);
    assert_int_equal(gone.count, 7);
    result = collect_meetings(&g, 6 * DAY, false, &gone);
    assert_int_equal(result.objects, 7);
    assert_int_equal(result.bytes, 49);
    assert_int_equal(result.waiting, 16);
    for (size_t i = 0; i < gone.count; i++) {
        assert_memory_equal(gone.keys[i], "loco/over/", 10);
        assert_int_equal(strstr(gone.keys[i], "closed") != NULL, i >= 5);
    }
    assert_int_equal(collect_meetings(&g, 6 * DAY, false, &gone).objects, 0);
    stage_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_publisher_stopped),
        cmocka_unit_test(test_parts_stopped),
        cmocka_unit_test(test_collector_stopped),
        cmocka_unit_test(test_what_may_come),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_nothing_goes_at_a_takeover),
        cmocka_unit_test(test_grace),
        cmocka_unit_test(test_no_ages),
        cmocka_unit_test(test_few_ages),
        cmocka_unit_test(test_amended_after_the_mark),
        cmocka_unit_test(test_page_that_was_not_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
