/* SPDX-License-Identifier: Apache-2.0
 *
 * Whoever else uses a run's store is stopped or killed at each operation there, while others publish, take
 * over and collect: a collector, the parts of a version, a reader, a relay, and the leader of a group. What
 * was published stays, and whoever reads ends at the newest version and never goes back.
 */
#include "../support/described.h"
#include "rivals.h"

#include "patches.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { PATIENCE_SECONDS = 200, ONLY_BEFORE = 1u << PAUSE_BEFORE };

static const double DAY_SECONDS = 86400;
static bool place_is_plain;

/* A run that another has, with versions and anchors behind it. */
static void open_run(rivals *r, pause_case *pause) {
    rivals_open(r, pause, place_is_plain);
    r->others[1].options.anchor_ratio = 1e-9;
    r->others[1].options.keep_anchors = 1;
    scene_expect(r->others[1].context, rival_take(&r->others[1]), WEFT_OK, "begin a run");
    for (unsigned i = 0; i < 3; i++) {
        scene_expect(r->others[1].context, rival_publish(r, &r->others[1]), WEFT_OK, "publish before");
    }
    rivals_follow(r);
}

static void sweep(const char *subject, void (*run)(void *opaque, pause_case *pause), unsigned kinds,
                  size_t most) {
    pause_tally tally = {0};
    const pause_sweep sweep = {
        .subject = subject,
        .run = run,
        .events = rivals_event_names,
        .event_count = RIVALS_SAME,
        .kinds = kinds,
        .most = most,
    };
    pauses_sweep(&sweep, &tally);
    assert_int_equal(pauses_report(&tally), 0);
}

/* ---- a collector ---- */

static void run_collector(void *opaque, pause_case *pause) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = 0};
    rivals r;
    (void)opaque;
    open_run(&r, pause);
    fault_store_set_age(r.subject.faults, DAY_SECONDS);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    /* with another collector beside it, it may miss what that one has removed */
    weft_status ignored = weft_gc_run(r.subject.context, r.subject.store, &options, NULL);
    if (pause_retries(pause)) {
        ignored = weft_gc_run(r.subject.context, r.subject.store, &options, NULL);
    }
    (void)ignored;
    if (pause_end(pause, r.outside)) {
        rivals_check(&r);
    }
    rivals_close(&r);
}

static void test_collector(void **state) {
    (void)state;
    sweep("gc", run_collector, 0, 0);
}

/* ---- a version in parts ---- */

typedef struct part_call {
    rival *part;
    uint64_t step;
    weft_status status;
    weft_publish_result result;
} part_call;

static void *call_part(void *opaque) {
    part_call *call = opaque;
    char step[32];
    const char *labels[] = {"step", step, NULL};
    snprintf(step, sizeof step, "%" PRIu64, call->step);
    call->status = call->part->publisher == NULL ? rival_take(call->part) : WEFT_OK;
    if (call->status == WEFT_OK) {
        call->result.size = sizeof call->result;
        call->status = weft_publisher_publish(call->part->publisher, labels, &call->result);
    }
    return NULL;
}

/* Both publish the same weights as one version. What either of them is told counts. */
static void publish_parts(rivals *r, rival *parts[2], uint64_t step) {
    part_call calls[2];
    pthread_t threads[2];
    rival_step(parts[0]);
    memcpy(parts[1]->model.blocks[0], parts[0]->model.blocks[0], RIVALS_BYTES);
    for (unsigned i = 0; i < 2; i++) {
        calls[i] = (part_call){.part = parts[i], .step = step};
        assert_int_equal(pthread_create(&threads[i], NULL, call_part, &calls[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (calls[i].status == WEFT_OK) {
            rivals_acknowledge(r, parts[i], calls[i].result.version);
        }
    }
}

/* `opaque`: which part is the subject. */
static void run_part(void *opaque, pause_case *pause) {
    const unsigned *index = opaque;
    rivals r;
    rivals_open(&r, pause, place_is_plain);
    rival *parts[2];
    parts[*index] = &r.subject;
    parts[1 - *index] = &r.others[1];
    for (unsigned i = 0; i < 2; i++) {
        parts[i]->options.part_index = i;
        parts[i]->options.part_count = 2;
        /* they wait for whoever was killed, or taken over; that one of them gives up is no failure */
        parts[i]->options.part_seconds = pause_alive(pause) ? 0.2 : 0.05;
    }
    for (uint64_t step = 1; r.count == 0 && step < 100; step++) {
        publish_parts(&r, parts, step);
    }
    rivals_follow(&r);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    publish_parts(&r, parts, 1000);
    if (!pause_alive(pause)) {
        rival_end(&r.subject);
    }
    if (pause_end(pause, r.outside)) {
        /* whoever takes part goes on with the other only */
        rival_end(&r.subject);
        rival_end(&r.others[1]);
        rivals_check(&r);
    }
    rivals_close(&r);
}

static void sweep_part(const char *subject, unsigned index) {
    pause_tally tally = {0};
    const pause_sweep sweep = {
        .subject = subject,
        .run = run_part,
        .opaque = &index,
        .events = rivals_event_names,
        .event_count = RIVALS_TAKE_TWICE,
        .kinds = 1u << PAUSE_BEFORE | 1u << PAUSE_KILLED_LATE,
        .most = 40,
    };
    pauses_sweep(&sweep, &tally);
    assert_int_equal(pauses_report(&tally), 0);
}

static void test_part_that_leads(void **state) {
    (void)state;
    sweep_part("part 0 of 2", 0);
}

static void test_part_that_does_not_lead(void **state) {
    (void)state;
    sweep_part("part 1 of 2", 1);
}

/* ---- whoever reads ---- */

/* A replica that reads from some store. */
typedef struct reader {
    weft_context *context;
    model model;
    weft_subscriber *subscriber;
    uint64_t seen;
} reader;

static void open_reader(reader *reader, weft_store *store) {
    const weft_subscriber_options options = {.size = sizeof options, .empty = true, .poll_seconds = 0.002};
    reader->context = patches_context(1);
    reader->seen = 0;
    rivals_model(&reader->model, reader->context);
    scene_expect(
        reader->context,
        weft_subscriber_open(reader->context, store, reader->model.view, &options, &reader->subscriber),
        WEFT_OK, "open a reader");
}

static void close_reader(reader *reader) {
    weft_subscriber_close(reader->subscriber);
    model_close(&reader->model);
    weft_context_destroy(reader->context);
}

static weft_status pull(rivals *r, reader *reader) {
    weft_status status = weft_subscriber_pull(reader->subscriber, 0);
    uint64_t version = subscriber_info(reader->subscriber).version;
    pause_require(r->pause, version >= reader->seen,
                  "a reader was at version %" PRIu64 " and is at %" PRIu64, reader->seen, version);
    reader->seen = version;
    return status;
}

static void run_reader(void *opaque, pause_case *pause) {
    rivals r;
    reader reader;
    (void)opaque;
    open_run(&r, pause);
    open_reader(&reader, r.subject.store);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    weft_status status = pull(&r, &reader);
    pause_require(pause, status == WEFT_OK, "the reader cannot pull: %s",
                  weft_context_error(reader.context));
    if (pause_end(pause, r.outside)) {
        rivals_check(&r);
        status = pull(&r, &reader);
        pause_require(pause, status == WEFT_OK && rivals_newest(&r, &reader.model),
                      "the reader does not get to the newest version: %s",
                      weft_context_error(reader.context));
    }
    close_reader(&reader);
    rivals_close(&r);
}

static void test_reader(void **state) {
    (void)state;
    sweep("pull", run_reader, ONLY_BEFORE, 0);
}

/* The relay learns of a version when it looks, so whoever reads from it waits. */
static void await_newest(rivals *r, reader *reader) {
    const time_t end = time(NULL) + PATIENCE_SECONDS;
    weft_status status = WEFT_MORE;
    while (time(NULL) < end && (status < 0 || !rivals_newest(r, &reader->model))) {
        uint64_t version;
        status = weft_subscriber_wait(reader->subscriber, 0.01, &version);
        status = status >= 0 ? pull(r, reader) : status;
    }
    pause_require(r->pause, rivals_newest(r, &reader->model),
                  "who reads through the relay does not get to the newest version: %s",
                  weft_context_error(reader->context));
}

static void run_relay(void *opaque, pause_case *pause) {
    const weft_relay_options options = {
        .size = sizeof options, .poll_seconds = 0.002, .cache_bytes = 1 << 20};
    rivals r;
    reader reader;
    weft_relay *relay;
    weft_store *store;
    (void)opaque;
    open_run(&r, pause);
    weft_context *context = patches_context(1);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    scene_expect(
        context,
        weft_relay_open(context, r.subject.store, scratch_path(&r.scratch, "relay"), &options, &relay),
        WEFT_OK, "open a relay");
    scene_expect(context, weft_relay_store(context, relay, &store), WEFT_OK, "open the relay's store");
    open_reader(&reader, store);
    /* the relay looks again and again */
    while (!fault_store_fired(r.subject.faults)) {
        weft_status ignored = pull(&r, &reader);
        (void)ignored;
    }
    if (pause_end(pause, r.outside)) {
        rivals_check(&r);
        await_newest(&r, &reader);
    }
    close_reader(&reader);
    weft_store_close(store);
    weft_relay_close(relay);
    weft_context_destroy(context);
    rivals_close(&r);
}

static void test_relay(void **state) {
    (void)state;
    sweep("relay", run_relay, ONLY_BEFORE, 12);
}

/* No rank is there, and the mirror follows alone. */
static void lead_to(rivals *r, weft_group *group, uint64_t newest) {
    const time_t end = time(NULL) + PATIENCE_SECONDS;
    uint64_t seen = group_info(group).version;
    while (time(NULL) < end && seen < newest) {
        uint64_t version;
        weft_status ignored = weft_group_run(group, 0.01, &version);
        (void)ignored;
        uint64_t now = group_info(group).version;
        pause_require(r->pause, now >= seen, "a group was at version %" PRIu64 " and is at %" PRIu64, seen,
                      now);
        seen = now;
    }
    pause_require(r->pause, seen >= newest, "a group does not get to version %" PRIu64 ": %s", newest,
                  weft_context_error(r->subject.context));
}

static void run_group(void *opaque, pause_case *pause) {
    const weft_subscriber_options follow = {.size = sizeof follow, .poll_seconds = 0.002};
    const weft_group_options options = {.size = sizeof options, .members = 1, .follow = &follow};
    rivals r;
    weft_group *group;
    (void)opaque;
    open_run(&r, pause);
    pause_begin(pause, r.subject.faults, rivals_happen, &r);
    scene_expect(r.subject.context,
                 weft_group_lead(r.subject.context, r.subject.store, scratch_path(&r.scratch, "group"),
                                 &options, &group),
                 WEFT_OK, "lead a group");
    while (!fault_store_fired(r.subject.faults)) {
        uint64_t version;
        weft_status ignored = weft_group_run(group, 0.01, &version);
        (void)ignored;
    }
    if (pause_end(pause, r.outside)) {
        rivals_check(&r);
        const acknowledged *last = &r.ledger[r.count - 1];
        lead_to(&r, group, last->version);
        weft_digest digest = group_info(group).digest;
        pause_require(pause, weft_digest_equal(&digest, &last->digest), "a group holds something else");
    }
    weft_group_close(group);
    rivals_close(&r);
}

static void test_group(void **state) {
    (void)state;
    sweep("leader of a group", run_group, ONLY_BEFORE, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collector),
        cmocka_unit_test(test_part_that_leads),
        cmocka_unit_test(test_part_that_does_not_lead),
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_relay),
        cmocka_unit_test(test_group),
    };
    place_is_plain = rivals_place_is_plain();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
