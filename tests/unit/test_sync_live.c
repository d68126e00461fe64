/* SPDX-License-Identifier: Apache-2.0
 *
 * From live weights to live weights through a store: every version arrives bit for bit; newcomers, long
 * absences, rollbacks, layouts; a publisher that stops and another that takes over; anchors.
 */
#include "../support/described.h"
#include "patches.h"
#include "scenes.h"
#include "stride.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(const weft_context *context, weft_status status, weft_status expected) {
    if (status != expected) {
        fail_msg("%s instead of %s: %s", weft_status_name(status), weft_status_name(expected),
                 weft_context_error(context));
    }
}

static void open_scene(scene *s, const weft_publisher_options *options) {
    scene_open(s, options, 5);
    expect(s->context, scene_publisher(s), WEFT_OK);
}

typedef struct worker {
    weft_context *context;
    model model;
    weft_subscriber *subscriber;
} worker;

static void open_worker(scene *s, worker *w) {
    const weft_subscriber_options options = {.size = sizeof options, .empty = true};
    w->context = patches_context(2);
    worker_open(&w->model, w->context);
    expect(w->context,
           weft_subscriber_open(w->context, s->place.reading, w->model.view, &options, &w->subscriber),
           WEFT_OK);
}

static void close_worker(worker *w) {
    weft_subscriber_close(w->subscriber);
    model_close(&w->model);
    weft_context_destroy(w->context);
}

static void pull(worker *w) {
    expect(w->context, weft_subscriber_pull(w->subscriber, 0), WEFT_OK);
}

/* ---- the usual way ---- */

static void test_every_version_arrives(void **state) {
    (void)state;
    const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};
    for (size_t p = 0; p < 2; p++) {
        const weft_publisher_options options = {
            .size = sizeof options, .profile = profiles[p], .bucket_bytes = 32768};
        scene s;
        worker w;
        open_scene(&s, &options);
        open_worker(&s, &w);
        uint64_t version = 0;
        expect(w.context, weft_subscriber_wait(w.subscriber, 0, &version), WEFT_MORE);
        expect(w.context, weft_subscriber_wait(w.subscriber, nan(""), &version), WEFT_MORE);
        for (unsigned i = 1; i <= 12; i++) {
            assert_int_equal(scene_publish(&s, i == 6 ? 900000 : 10000), i);
            /* without time it looks all the same, before and after it has found out how the store waits */
            expect(w.context, weft_subscriber_wait(w.subscriber, i == 4 ? 5 : 0, &version), WEFT_OK);
            assert_int_equal(version, i);
            pull(&w);
            assert_true(worker_equals(&w.model, &s.trainer));
            expect(w.context, weft_subscriber_verify(w.subscriber), WEFT_OK);
            expect(w.context, weft_subscriber_wait(w.subscriber, 0, &version), WEFT_MORE);
        }
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(w.subscriber, &info);
        assert_int_equal(info.version, 12);
        assert_int_equal(info.anchors, 1);
        assert_int_equal(info.patches, 11);
        assert_int_equal(info.healed, 0);
        close_worker(&w);
        scene_close(&s);
    }
}

/* What a wait that found nothing had seen is no answer to what is the newest later on. */
static void test_a_vain_wait_is_forgotten(void **state) {
    (void)state;
    scene s;
    worker w;
    uint64_t version = 0;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    for (unsigned i = 1; i <= 3; i++) {
        scene_publish(&s, 10000);
        pull(&w);
        assert_int_equal(subscriber_info(w.subscriber).version, i);
        assert_true(worker_equals(&w.model, &s.trainer));
        expect(w.context, weft_subscriber_wait(w.subscriber, i == 2 ? 0.05 : 0, &version), WEFT_MORE);
    }
    close_worker(&w);
    scene_close(&s);
}

static void test_nothing_changed_is_a_version_too(void **state) {
    (void)state;
    scene s;
    worker w;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    const char *labels[] = {"step", "1", NULL};
    scene_publish(&s, 10000);
    expect(s.context, weft_publisher_publish(s.publisher, labels, NULL), WEFT_OK);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    assert_int_equal(subscriber_info(w.subscriber).version, 2);
    assert_string_equal(weft_subscriber_label(w.subscriber, "step"), "1");
    close_worker(&w);
    scene_close(&s);
}

/* Long enough that pages of both lengths end, or, where each version takes long, those of one; and with
 * several anchors. */
static void test_newcomers_and_absences(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = 0.5, .anchors_in_background = true};
    const unsigned versions = test_stride() >= 20 ? 10 : test_stride() > 1 ? 66 : 150;
    scene s;
    worker slow;
    open_scene(&s, &options);
    scene_publish(&s, 5000);
    open_worker(&s, &slow);
    pull(&slow);
    for (unsigned i = 2; i <= versions; i++) {
        scene_publish(&s, 5000);
        if (i == 8 || i == 64 || i == 65 || i == 100 || i == 128 || i == versions) {
            worker fresh;
            open_worker(&s, &fresh);
            pull(&fresh);
            assert_true(worker_equals(&fresh.model, &s.trainer));
            assert_int_equal(subscriber_info(fresh.subscriber).version, i);
            close_worker(&fresh);
        }
    }
    pull(&slow);
    assert_true(worker_equals(&slow.model, &s.trainer));
    expect(s.context, weft_publisher_settle(s.publisher), WEFT_OK);
    close_worker(&slow);
    scene_close(&s);
}

static void test_an_older_version(void **state) {
    (void)state;
    scene s;
    worker w;
    open_scene(&s, NULL);
    weft_digest digests[21];
    for (unsigned i = 1; i <= 20; i++) {
        scene_publish(&s, 10000);
        digests[i] = trainer_digest(&s.trainer);
    }
    open_worker(&s, &w);
    const unsigned order[] = {20, 7, 13, 1, 20};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        expect(w.context, weft_subscriber_pull(w.subscriber, order[i]), WEFT_OK);
        weft_digest digest = worker_digest(w.context, w.model.view);
        assert_true(weft_digest_equal(&digest, &digests[order[i]]));
        assert_int_equal(subscriber_info(w.subscriber).version, order[i]);
    }
    expect(w.context, weft_subscriber_pull(w.subscriber, 21), WEFT_NOT_FOUND);
    close_worker(&w);
    scene_close(&s);
}

static void test_rollback(void **state) {
    (void)state;
    scene s;
    worker w;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    scene_publish(&s, 10000);
    pull(&w);
    weft_digest first = worker_digest(w.context, w.model.view);
    scene_publish(&s, 10000);
    expect(w.context, weft_subscriber_prepare(w.subscriber, 0), WEFT_OK);
    weft_digest still = worker_digest(w.context, w.model.view);
    assert_true(weft_digest_equal(&still, &first));
    expect(w.context, weft_subscriber_rollback(w.subscriber), WEFT_OK);
    assert_int_equal(subscriber_info(w.subscriber).version, 1);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    expect(w.context, weft_subscriber_rollback(w.subscriber), WEFT_OK);
    still = worker_digest(w.context, w.model.view);
    assert_true(weft_digest_equal(&still, &first));
    assert_int_equal(subscriber_info(w.subscriber).version, 1);
    expect(w.context, weft_subscriber_rollback(w.subscriber), WEFT_UNSUPPORTED);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    close_worker(&w);
    scene_close(&s);
}

/* ---- layouts ---- */

enum { RANK_ROWS = 48, COLUMNS = 128 };

/* A tensor-parallel rank: half of the rows of one tensor, and two others fused. */
static weft_layout *make_layout(weft_context *context, unsigned rank) {
    weft_layout *layout;
    const weft_slice half = {"embed", 0, (uint64_t)rank * RANK_ROWS, RANK_ROWS};
    const weft_slice norm = {.tensor = "norm", .dim = -1};
    expect(context, weft_layout_create(context, &layout), WEFT_OK);
    expect(context, weft_layout_concat(layout, "embed.local", 0, &half, 1), WEFT_OK);
    expect(context, weft_layout_concat(layout, "norm.local", 0, &norm, 1), WEFT_OK);
    expect(context, weft_layout_ignore(layout, "layer.*"), WEFT_OK);
    return layout;
}

static void test_a_rank_holds_its_part(void **state) {
    (void)state;
    const weft_cut cuts[] = {{"embed", 0, 2}, {"norm", 0, 1}};
    const weft_publisher_options options = {.size = sizeof options,
                                            .profile = WEFT_PROFILE_SMALL,
                                            .cuts = cuts,
                                            .cut_count = 2,
                                            .bucket_bytes = 32768};
    scene s;
    open_scene(&s, &options);
    scene_publish(&s, 10000);
    weft_context *context = patches_context(2);
    for (unsigned rank = 0; rank < 2; rank++) {
        model local;
        model_open(&local, context);
        uint8_t *rows = model_add(&local, "embed.local", WEFT_DTYPE_BF16, RANK_ROWS, COLUMNS);
        uint16_t *norm = model_add(&local, "norm.local", WEFT_DTYPE_BF16, 40, 64);
        weft_layout *layout = make_layout(context, rank);
        weft_subscriber *subscriber;
        expect(
            context,
            weft_subscriber_open_layout(context, s.place.reading, local.table, layout, NULL, &subscriber),
            WEFT_OK);
        for (unsigned i = 0; i < 6; i++) {
            expect(context, weft_subscriber_pull(subscriber, 0), WEFT_OK);
            size_t bytes = (size_t)RANK_ROWS * COLUMNS * 2;
            assert_memory_equal(rows, (uint8_t *)s.trainer.model.blocks[0] + rank * bytes, bytes);
            uint16_t cast[40 * 64];
            weft_bf16_from_f32(s.trainer.model.blocks[3], cast, 40 * 64);
            assert_memory_equal(norm, cast, sizeof cast);
            scene_publish(&s, i == 2 ? 800000 : 10000);
        }
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(subscriber, &info);
        assert_int_equal(info.anchors, 1);
        weft_subscriber_close(subscriber);
        weft_layout_destroy(layout);
        model_close(&local);
    }
    weft_context_destroy(context);
    scene_close(&s);
}

/* ---- drift ---- */

static void test_drift_is_found_and_healed(void **state) {
    (void)state;
    scene s;
    worker w;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    scene_publish(&s, 10000);
    pull(&w);
    ((uint8_t *)w.model.blocks[1])[12345] ^= 4;
    expect(w.context, weft_subscriber_verify(w.subscriber), WEFT_DIGEST_MISMATCH);
    scene_publish(&s, 10000);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    ((uint8_t *)w.model.blocks[0])[77] ^= 1;
    scene_publish(&s, 10000);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    assert_true(subscriber_info(w.subscriber).healed > 0);
    assert_int_equal(subscriber_info(w.subscriber).anchors, 3);
    /* an anchor can be rolled back too */
    expect(w.context, weft_subscriber_verify(w.subscriber), WEFT_OK);
    close_worker(&w);
    scene_close(&s);
}

/* ---- publishers ---- */

/* Across the end of a long page, or, where each version takes long, of short ones. */
static void test_a_publisher_resumes_from_the_store(void **state) {
    (void)state;
    const unsigned versions = test_stride() >= 20 ? 22 : 70;
    scene s;
    worker w;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    for (unsigned i = 1; i <= versions; i++) {
        assert_int_equal(scene_publish(&s, 10000), i);
        if (i % 7 == 0 || i == 64 || i == 65) {
            expect(s.context, scene_publisher(&s), WEFT_OK);
        }
        pull(&w);
        assert_true(worker_equals(&w.model, &s.trainer));
    }
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(w.subscriber, &info);
    assert_int_equal(info.anchors, 1);
    assert_int_equal(info.patches, versions - 1);
    worker fresh;
    open_worker(&s, &fresh);
    pull(&fresh);
    assert_true(worker_equals(&fresh.model, &s.trainer));
    close_worker(&fresh);
    close_worker(&w);
    scene_close(&s);
}

static void test_a_second_publisher_fences_the_first(void **state) {
    (void)state;
    scene s;
    worker w;
    open_scene(&s, NULL);
    open_worker(&s, &w);
    scene_publish(&s, 10000);
    pull(&w);
    trainer other;
    weft_context *context = patches_context(1);
    weft_publisher *second;
    trainer_open(&other, context, 6);
    expect(context, weft_publisher_open(context, s.store, other.model.view, NULL, &second), WEFT_OK);
    assert_int_equal(weft_publisher_epoch(second), 2);
    expect(s.context, weft_publisher_publish(s.publisher, NULL, NULL), WEFT_CONFLICT);
    expect(context, weft_publisher_publish(second, NULL, NULL), WEFT_OK);
    expect(s.context, weft_publisher_publish(s.publisher, NULL, NULL), WEFT_CONFLICT);
    pull(&w);
    assert_true(worker_equals(&w.model, &other));
    assert_int_equal(subscriber_info(w.subscriber).version, 2);
    weft_publisher_close(second);
    trainer_close(&other);
    weft_context_destroy(context);
    close_worker(&w);
    scene_close(&s);
}

static void test_anchors_follow_cost(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = 0.25};
    const unsigned versions = test_stride() >= 20 ? 20 : 60;
    scene s;
    open_scene(&s, &options);
    unsigned anchors = 0;
    for (unsigned i = 0; i < versions; i++) {
        weft_publish_result result = {.size = sizeof result};
        trainer_step(&s.trainer, 20000);
        expect(s.context, weft_publisher_publish(s.publisher, NULL, &result), WEFT_OK);
        anchors += result.anchor_bytes > 0;
    }
    assert_true(anchors >= versions / 20 && anchors <= versions / 3);
    uint64_t bytes = 0;
    expect(s.context, weft_publisher_anchor(s.publisher, &bytes), WEFT_OK);
    assert_true(bytes > 0);
    worker w;
    open_worker(&s, &w);
    pull(&w);
    assert_true(worker_equals(&w.model, &s.trainer));
    assert_int_equal(subscriber_info(w.subscriber).patches, 0);
    close_worker(&w);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_version_arrives),
        cmocka_unit_test(test_a_vain_wait_is_forgotten),
        cmocka_unit_test(test_nothing_changed_is_a_version_too),
        cmocka_unit_test(test_newcomers_and_absences),
        cmocka_unit_test(test_an_older_version),
        cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_a_rank_holds_its_part),
        cmocka_unit_test(test_drift_is_found_and_healed),
        cmocka_unit_test(test_a_publisher_resumes_from_the_store),
        cmocka_unit_test(test_a_second_publisher_fences_the_first),
        cmocka_unit_test(test_anchors_follow_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
