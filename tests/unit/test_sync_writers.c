/* SPDX-License-Identifier: Apache-2.0
 *
 * Several publishers at one run: by turns, at the same instant, and one that wakes up after another has
 * gone on; where puts can be conditional and where they cannot. Readers are always at a version of whoever
 * was there last, and never between. Then what retention leaves: everything that kept versions need.
 */
#include "patches.h"
#include "scenes.h"
#include "stride.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- a store without conditional puts ---- */

static weft_status plain_get(void *self, weft_context *context, const weft_store_get_request *request,
                             weft_store_get_result *result) {
    return weft_store_get(context, self, request, result);
}

static weft_status plain_put(void *self, weft_context *context, const weft_store_put_request *request,
                             weft_store_tag *tag) {
    return request->condition == WEFT_STORE_ALWAYS ? weft_store_put(context, self, request, tag)
                                                   : WEFT_UNSUPPORTED;
}

static weft_status plain_head(void *self, weft_context *context, const char *key, uint64_t *size,
                              weft_store_tag *tag) {
    return weft_store_head(context, self, key, size, tag);
}

static weft_status plain_remove(void *self, weft_context *context, const char *key) {
    return weft_store_remove(context, self, key);
}

static void plain_close(void *self) {
    (void)self;
}

static weft_store *plain_store(weft_context *context, weft_store *inner) {
    static const weft_store_operations operations = {
        .size = sizeof operations,
        .name = "plain",
        .get = plain_get,
        .put = plain_put,
        .head = plain_head,
        .remove = plain_remove,
        .close = plain_close,
    };
    weft_store *store;
    scene_expect(context, weft_store_create(context, "plain:", &operations, inner, &store), WEFT_OK,
                 "open a plain store");
    return store;
}

/* ---- publishers ---- */

typedef struct writer {
    weft_context *context;
    weft_store *store; /* NULL: the scene's */
    trainer trainer;
    weft_publisher *publisher;
    weft_status status;
    uint64_t version;
} writer;

static void writer_open(writer *w, scene *s, uint64_t seed, bool conditional) {
    *w = (writer){.context = patches_context(1)};
    w->store = conditional ? NULL : plain_store(w->context, s->store);
    trainer_open(&w->trainer, w->context, seed);
}

static void writer_close(writer *w) {
    weft_publisher_close(w->publisher);
    trainer_close(&w->trainer);
    weft_store_close(w->store);
    weft_context_destroy(w->context);
}

static weft_status writer_take(writer *w, scene *s) {
    weft_publisher_close(w->publisher);
    w->publisher = NULL;
    return weft_publisher_open(w->context, w->store != NULL ? w->store : s->store, w->trainer.model.view,
                               NULL, &w->publisher);
}

static weft_status writer_publish(writer *w) {
    weft_publish_result result = {.size = sizeof result};
    trainer_step(&w->trainer, 10000);
    weft_status status = weft_publisher_publish(w->publisher, NULL, &result);
    w->version = status == WEFT_OK ? result.version : w->version;
    return status;
}

static void check_worker(replica *r, const writer *w, const char *what) {
    scene_expect(r->context, weft_subscriber_pull(r->subscriber, 0), WEFT_OK, what);
    if (!worker_equals(&r->model, &w->trainer)) {
        fail_msg("%s: the worker does not hold what was published last", what);
    }
}

/* ---- overtaken while it opens ---- */

static weft_status collect_at_once(scene *s) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = 0};
    return weft_gc_run(s->outside, s->store, &options, NULL);
}

typedef struct overtaking {
    scene *scene;
    writer other;
} overtaking;

static void overtake(void *opaque) {
    overtaking *o = opaque;
    assert_int_equal(writer_take(&o->other, o->scene), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(writer_publish(&o->other), WEFT_OK);
    }
    assert_int_equal(collect_at_once(o->scene), WEFT_OK);
}

/* The pages that it was about to read are gone: it says what has happened, and not that the store is
 * damaged. */
static void test_overtaken_while_opening(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NULL, 47);
    overtaking o = {.scene = &s};
    writer_open(&o.other, &s, 48, true);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    const fault_rule stop = {.kind = FAULT_PAUSE,
                             .operations = FAULT_ON_GET,
                             .pattern = "pages/*",
                             .limit = 1,
                             .meanwhile = overtake,
                             .opaque = &o};
    fault_store_set(s.faults, &stop, 1);
    assert_int_equal(scene_publisher(&s), WEFT_CONFLICT);
    assert_non_null(strstr(weft_context_error(s.context), "has taken over"));
    fault_store_set(s.faults, NULL, 0);
    scene_expect(s.context, scene_publisher(&s), WEFT_OK, "the next one");
    writer_close(&o.other);
    scene_close(&s);
}

/* ---- by turns ---- */

static void run_turns(bool conditional) {
    scene s;
    replica r;
    writer writers[2];
    scene_open(&s, NULL, 41);
    writer_open(&writers[0], &s, 42, conditional);
    writer_open(&writers[1], &s, 43, conditional);
    replica_open(&r, &s, NULL, NULL);
    for (unsigned i = 0; i < 12; i++) {
        writer *now = &writers[i % 2];
        writer *before = &writers[1 - i % 2];
        scene_expect(now->context, writer_take(now, &s), WEFT_OK, "take over");
        for (unsigned k = 0; k < 1 + i % 3; k++) {
            scene_expect(now->context, writer_publish(now), WEFT_OK, "publish");
            check_worker(&r, now, "by turns");
            /* the zombie wakes up */
            if (before->publisher != NULL) {
                scene_expect(before->context, writer_publish(before), WEFT_CONFLICT, "a zombie");
                scene_expect(before->context, writer_publish(before), WEFT_CONFLICT, "a zombie again");
                check_worker(&r, now, "after a zombie");
            }
        }
    }
    replica_close(&r);
    writer_close(&writers[1]);
    writer_close(&writers[0]);
    scene_close(&s);
}

static void test_publishers_by_turns(void **state) {
    (void)state;
    run_turns(true);
    run_turns(false);
}

/* ---- at the same instant ---- */

typedef struct racer {
    writer *writer;
    scene *scene;
    pthread_barrier_t *start;
} racer;

static void *race(void *argument) {
    racer *racer = argument;
    writer *w = racer->writer;
    pthread_barrier_wait(racer->start);
    w->status = writer_take(w, racer->scene);
    for (unsigned i = 0; i < 2 && w->status == WEFT_OK; i++) {
        w->status = writer_publish(w);
    }
    return NULL;
}

/* Who wrote the newest head: of two that were not fenced, the one of the later epoch. Without conditional
 * puts both may have begun the same, and then it is the one that was not overwritten. */
static writer *find_winner(replica *r, writer writers[2], bool conditional) {
    bool both = writers[0].status == WEFT_OK && writers[1].status == WEFT_OK;
    if (!both) {
        return writers[1].status == WEFT_OK ? &writers[1] : &writers[0];
    }
    uint64_t first = weft_publisher_epoch(writers[0].publisher);
    uint64_t second = weft_publisher_epoch(writers[1].publisher);
    if (first != second) {
        return first > second ? &writers[0] : &writers[1];
    }
    assert_false(conditional);
    scene_expect(r->context, weft_subscriber_pull(r->subscriber, 0), WEFT_OK, "after a tie");
    return worker_equals(&r->model, &writers[0].trainer) ? &writers[0] : &writers[1];
}

/* One of them can go on for sure, and the other cannot. */
static void go_on_after_race(replica *r, writer writers[2], bool conditional) {
    writer *winner = find_winner(r, writers, conditional);
    writer *loser = winner == &writers[0] ? &writers[1] : &writers[0];
    check_worker(r, winner, "after a race");
    scene_expect(winner->context, writer_publish(winner), WEFT_OK, "the winner goes on");
    check_worker(r, winner, "the winner goes on");
    if (loser->status == WEFT_OK) {
        scene_expect(loser->context, writer_publish(loser), WEFT_CONFLICT, "the loser ends");
        check_worker(r, winner, "the loser ends");
    }
}

static void run_races(bool conditional, unsigned rounds) {
    scene s;
    replica r;
    writer writers[2];
    racer racers[2];
    pthread_barrier_t start;
    scene_open(&s, NULL, 44);
    pthread_barrier_init(&start, NULL, 2);
    for (unsigned i = 0; i < 2; i++) {
        writer_open(&writers[i], &s, 45 + i, conditional);
        racers[i] = (racer){&writers[i], &s, &start};
    }
    replica_open(&r, &s, NULL, NULL);
    unsigned fenced = 0;
    for (unsigned round = 0; round < rounds; round++) {
        pthread_t threads[2];
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
        }
        for (unsigned i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        for (unsigned i = 0; i < 2; i++) {
            if (writers[i].status != WEFT_OK && writers[i].status != WEFT_CONFLICT) {
                fail_msg("%s", weft_context_error(writers[i].context));
            }
            fenced += writers[i].status == WEFT_CONFLICT;
        }
        bool neither = writers[0].status != WEFT_OK && writers[1].status != WEFT_OK;
        if (!neither) {
            go_on_after_race(&r, writers, conditional);
        } else {
            scene_expect(r.context, weft_subscriber_pull(r.subscriber, 0), WEFT_OK, "nobody has won");
            assert_true(replica_sound(&r));
        }
    }
    print_message("%s: %u of %u fenced\n", conditional ? "conditional" : "plain", fenced, 2 * rounds);
    replica_close(&r);
    for (unsigned i = 0; i < 2; i++) {
        writer_close(&writers[i]);
    }
    pthread_barrier_destroy(&start);
    scene_close(&s);
}

static void test_races_for_a_run(void **state) {
    (void)state;
    run_races(true, 60 / test_stride());
    run_races(false, 60 / test_stride());
}

/* ---- retention ---- */

typedef struct kept_versions {
    weft_digest digests[512];
    bool kept[512];
    uint64_t newest;
} kept_versions;

static bool note_version(void *opaque, const weft_log_entry *entry) {
    kept_versions *versions = opaque;
    versions->digests[entry->version] = entry->digest;
    versions->kept[entry->version] = entry->kept;
    versions->newest = entry->version > versions->newest ? entry->version : versions->newest;
    return true;
}

/* Every version that is kept can be pulled by a newcomer. */
static void check_kept(scene *s, uint64_t oldest) {
    static kept_versions versions;
    memset(&versions, 0, sizeof versions);
    scene_expect(s->outside, weft_log_walk(s->outside, s->store, NULL, note_version, &versions), WEFT_OK,
                 "walk the log");
    for (uint64_t v = 1; v <= versions.newest; v++) {
        assert_int_equal(versions.kept[v], v >= oldest);
        if (!versions.kept[v]) {
            continue;
        }
        replica fresh;
        weft_digest digest;
        replica_open(&fresh, s, NULL, NULL);
        scene_expect(fresh.context, weft_subscriber_pull(fresh.subscriber, v), WEFT_OK, "a kept version");
        assert_true(replica_digest(&fresh, &digest));
        assert_true(weft_digest_equal(&digest, &versions.digests[v]));
        replica_close(&fresh);
    }
}

static uint64_t collect(scene *s, double grace, weft_gc_result *result) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = grace};
    scene_expect(s->outside, weft_gc_run(s->outside, s->store, &options, result), WEFT_OK, "gc");
    return result->oldest;
}

static void test_retention(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = 0.3, .keep_anchors = 2};
    enum { FOLLOWERS = 5 };
    scene s;
    replica followers[FOLLOWERS];
    weft_gc_result result = {.size = sizeof result};
    scene_open(&s, &options, 46);
    scene_publish(&s, 5000);
    for (unsigned i = 0; i < FOLLOWERS; i++) {
        replica_open(&followers[i], &s, i == 0 ? "out" : NULL, NULL);
        replica_catch_up(&followers[i], "at the start");
    }
    for (unsigned v = 2; v <= 150; v++) {
        scene_publish(&s, 5000);
        if (v % 10 == 0) {
            assert_true(collect(&s, 3600, &result) >= 1);
            assert_int_equal(result.objects, 0);
            collect(&s, 0, &result);
        }
        if (v == 70 || v == 150) {
            check_kept(&s, result.oldest);
        }
        /* each at its own pace, the last one hardly ever */
        for (unsigned i = 0; i < FOLLOWERS; i++) {
            if (v % (3 + 13 * i) == 0) {
                replica_catch_up(&followers[i], "beside gc");
            }
        }
    }
    assert_true(result.oldest > 1);
    assert_true(scene_count(&s, "anchors") <= 3);
    assert_true(scene_count(&s, "patches") < 120);
    for (unsigned i = 0; i < FOLLOWERS; i++) {
        replica_catch_up(&followers[i], "in the end");
        replica_close(&followers[i]);
    }
    scene_newcomer(&s, "in the end");
    scene_close(&s);
}

/* What it was about to fetch is removed between the look and the fetch. */
static void test_objects_collected_on_the_way(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1, .keep_anchors = 1};
    scene s;
    replica waiting;
    replica halfway;
    weft_gc_result result = {.size = sizeof result};
    scene_open(&s, &options, 47);
    scene_publish(&s, 5000);
    replica_open(&waiting, &s, NULL, NULL);
    replica_open(&halfway, &s, NULL, NULL);
    replica_catch_up(&waiting, "before");
    replica_catch_up(&halfway, "before");
    for (unsigned i = 0; i < 4; i++) {
        scene_publish(&s, 5000);
    }
    uint64_t version;
    assert_int_equal(weft_subscriber_wait(waiting.subscriber, 1, &version), WEFT_OK);
    assert_int_equal(weft_subscriber_prepare(halfway.subscriber, 0), WEFT_MORE);
    assert_int_equal(weft_subscriber_commit(halfway.subscriber), WEFT_OK);
    for (unsigned i = 0; i < 4; i++) {
        scene_publish(&s, 5000);
    }
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_publish(&s, 5000);
    collect(&s, 0, &result);
    assert_true(result.objects > 0);
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        status = weft_subscriber_prepare(halfway.subscriber, 0);
        if (status >= 0) {
            assert_int_equal(weft_subscriber_commit(halfway.subscriber), WEFT_OK);
            assert_true(replica_sound(&halfway));
        }
    }
    scene_expect(halfway.context, status, WEFT_OK, "halfway");
    replica_catch_up(&halfway, "halfway");
    replica_catch_up(&waiting, "after a wait");
    replica_close(&halfway);
    replica_close(&waiting);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overtaken_while_opening),
        cmocka_unit_test(test_publishers_by_turns),
        cmocka_unit_test(test_races_for_a_run),
        cmocka_unit_test(test_retention),
        cmocka_unit_test(test_objects_collected_on_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
