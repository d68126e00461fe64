/* SPDX-License-Identifier: Apache-2.0
 *
 * A past: after any number of versions, the patch that it gives is, byte for byte, the diff against a copy
 * of the state where it began; and pasts that follow each other can be joined.
 */
#include "../../lib/patch/diff/past.h"

#include "faults.h"
#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024, VERSIONS = 6, HALF = 3 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static weft_diff_options options_of(weft_profile profile) {
    return (weft_diff_options){
        .size = sizeof(weft_diff_options), .profile = profile, .bucket_bytes = SMALL_BUCKET};
}

/* One version on: `next` changes, `live` follows. */
static void go_on(pair *pair, const weft_diff_options *options, unsigned per_million, uint64_t seed,
                  weft_trail **trail) {
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    weft_diff_options following = *options;
    following.trail = trail;
    pair->stats.size = sizeof pair->stats;
    pair_change(pair, CHANGE_MIXED, per_million, seed);
    assert_int_equal(
        weft_diff(pair->context, pair->live.view, pair->next.view, &following, &sink, &pair->stats),
        WEFT_OK);
    bytes_clear(&file);
}

/* `start` holds what `pair` held when the past began. */
static void check_past(const weft_past *past, const pair *pair, const model *start,
                       const weft_diff_options *options) {
    weft_context *context = pair->context;
    bytes direct = {0};
    bytes told = {0};
    weft_sink direct_sink = bytes_sink(&direct);
    weft_sink told_sink = bytes_sink(&told);
    weft_diff_stats expected = {.size = sizeof expected};
    weft_diff_stats stats = {.size = sizeof stats};
    weft_sums *sums = patches_sums(context, pair->live.view);
    assert_int_equal(weft_diff(context, start->view, pair->live.view, options, &direct_sink, &expected),
                     WEFT_OK);
    assert_int_equal(weft_past_diff(context, past, options, sums, &told_sink, &stats), WEFT_OK);
    assert_memory_equal(&stats.base, &expected.base, sizeof stats.base);
    assert_memory_equal(&stats.result, &expected.result, sizeof stats.result);
    assert_int_equal(stats.changed, expected.changed);
    assert_int_equal(stats.patch_bytes, told.size);
    assert_int_equal(told.size, direct.size);
    assert_memory_equal(told.data, direct.data, direct.size);
    weft_sums_destroy(sums);
    bytes_clear(&direct);
    bytes_clear(&told);
}

/* What a past holds survives being written and read; anything less than all of it is refused. */
static void check_bytes(const weft_past *past, const pair *pair, const model *start,
                        const weft_diff_options *options) {
    weft_past *again;
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(weft_past_create(pair->context, pair->live.view, options, &again), WEFT_OK);
    assert_int_equal(weft_past_write(past, &sink), WEFT_OK);
    for (size_t size = 0; size < file.size; size += 1 + file.size / 50) {
        weft_reader cut = weft_reader_over(file.data, size);
        assert_int_equal(weft_past_read(pair->context, again, &cut), WEFT_MALFORMED);
        assert_int_equal(weft_past_bytes(again), 0);
    }
    weft_reader reader = weft_reader_over(file.data, file.size);
    assert_int_equal(weft_past_read(pair->context, again, &reader), WEFT_OK);
    check_past(again, pair, start, options);
    weft_past_destroy(again);
    bytes_clear(&file);
}

/* Few changes; so many that lists become copies on the way; and dense from the first. */
static const unsigned densities[] = {0, 200, 20000, 120000, 900000};

static void check_versions(weft_context *context, weft_profile profile, unsigned per_million,
                           uint64_t seed) {
    const weft_diff_options options = options_of(profile);
    pair pair;
    struct pair start;
    weft_trail *trail = NULL;
    weft_past *past;
    weft_past *late;
    weft_past *joined;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, seed);
    pair_open(&start, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, seed);
    assert_int_equal(weft_past_create(context, pair.live.view, &options, &past), WEFT_OK);
    assert_int_equal(weft_past_create(context, pair.live.view, &options, &late), WEFT_OK);
    assert_int_equal(weft_past_create(context, pair.live.view, &options, &joined), WEFT_OK);
    check_past(past, &pair, &start.live, &options);
    for (unsigned i = 0; i < VERSIONS; i++) {
        go_on(&pair, &options, per_million, seed + i, &trail);
        assert_int_equal(weft_past_add(context, past, trail), WEFT_OK);
        assert_int_equal(weft_past_add(context, i < HALF ? joined : late, trail), WEFT_OK);
        check_past(past, &pair, &start.live, &options);
    }
    assert_int_equal(weft_past_join(context, joined, late), WEFT_OK);
    check_past(joined, &pair, &start.live, &options);
    check_bytes(joined, &pair, &start.live, &options);
    uint64_t copy = weft_table_bytes(pair.live.table);
    assert_true(weft_past_bytes(past) <= copy);
    weft_past_clear(past);
    assert_int_equal(weft_past_bytes(past), 0);
    check_past(past, &pair, &pair.live, &options);
    weft_past_destroy(past);
    weft_past_destroy(late);
    weft_past_destroy(joined);
    weft_trail_destroy(trail);
    pair_close(&start);
    pair_close(&pair);
}

static void test_same_as_a_diff(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
            check_versions(context, profiles[p], densities[d], 11 + d);
        }
    }
    weft_context_destroy(context);
}

/* A diff that leaves the base alone can be told of too. */
static void test_notes(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
        weft_trail *notes = NULL;
        weft_diff_options options = options_of(WEFT_PROFILE_SMALL);
        pair pair;
        weft_past *past;
        bytes file = {0};
        bytes plain = {0};
        weft_sink sink = bytes_sink(&file);
        weft_sink plain_sink = bytes_sink(&plain);
        pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 9 + d);
        pair_change(&pair, CHANGE_MIXED, densities[d], 10 + d);
        assert_int_equal(weft_past_create(context, pair.next.view, &options, &past), WEFT_OK);
        assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &options, &plain_sink, NULL),
                         WEFT_OK);
        options.notes = &notes;
        assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &options, &sink, NULL),
                         WEFT_OK);
        assert_true(pair_at_old(&pair));
        assert_int_equal(file.size, plain.size);
        assert_memory_equal(file.data, plain.data, plain.size);
        assert_int_equal(weft_past_add(context, past, notes), WEFT_OK);
        bytes told = {0};
        weft_sink told_sink = bytes_sink(&told);
        weft_sums *sums = patches_sums(context, pair.next.view);
        weft_diff_stats stats = {.size = sizeof stats};
        assert_int_equal(weft_past_diff(context, past, &options, sums, &told_sink, &stats), WEFT_OK);
        assert_int_equal(told.size, plain.size);
        assert_memory_equal(told.data, plain.data, plain.size);
        weft_sums_destroy(sums);
        weft_past_destroy(past);
        weft_trail_destroy(notes);
        bytes_clear(&file);
        bytes_clear(&plain);
        bytes_clear(&told);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* What changes and changes back is no change. */
static void test_back_again(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    const weft_diff_options options = options_of(WEFT_PROFILE_SMALL);
    pair pair;
    weft_trail *trail = NULL;
    weft_past *past;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    assert_int_equal(weft_past_create(context, pair.live.view, &options, &past), WEFT_OK);
    go_on(&pair, &options, 10000, 6, &trail);
    assert_int_equal(weft_past_add(context, past, trail), WEFT_OK);
    for (size_t i = 0; i < pair.count; i++) {
        size_t bytes = shape_units(&pair.shapes[i]) * weft_dtype_width(pair.shapes[i].dtype);
        memcpy(pair.news[i], pair.olds[i], bytes);
    }
    go_on(&pair, &options, 0, 7, &trail);
    assert_true(pair_at_old(&pair));
    assert_int_equal(weft_past_add(context, past, trail), WEFT_OK);
    check_past(past, &pair, &pair.live, &options);
    weft_past_destroy(past);
    weft_trail_destroy(trail);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* Each allocation of an addition, a join and a reading fails in turn: that is told to the context of the
 * call. The past's own may be in use by another thread, and hears nothing. */
typedef enum past_work { WORK_ADD, WORK_JOIN, WORK_READ, WORK_KINDS } past_work;

typedef struct past_scene {
    pair pair;
    weft_trail *trail;
    weft_past *newer; /* has the trail */
    bytes file;       /* of it */
} past_scene;

static weft_status do_work(const past_scene *scene, past_work work, weft_context *context,
                           weft_past *past) {
    weft_reader reader = weft_reader_over(scene->file.data, scene->file.size);
    return work == WORK_ADD    ? weft_past_add(context, past, scene->trail)
           : work == WORK_JOIN ? weft_past_join(context, past, scene->newer)
                               : weft_past_read(context, past, &reader);
}

static bool fail_work(const past_scene *scene, past_work work, size_t n) {
    faults faults = {0};
    weft_context *own;
    weft_context *callers;
    weft_past *past;
    const weft_diff_options options = options_of(WEFT_PROFILE_SMALL);
    const weft_context_options failing = {
        .size = sizeof failing, .allocator = faults_allocator(&faults), .threads = 3};
    assert_int_equal(weft_context_create(&failing, &own), WEFT_OK);
    assert_int_equal(weft_context_create(&failing, &callers), WEFT_OK);
    assert_int_equal(weft_past_create(own, scene->pair.live.view, &options, &past), WEFT_OK);
    faults_reset(&faults, n);
    weft_status status = do_work(scene, work, callers, past);
    bool fired = faults_fired(&faults);
    assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
    assert_int_equal(weft_context_error(callers)[0] != '\0', status != WEFT_OK);
    assert_string_equal(weft_context_error(own), "");
    weft_past_destroy(past);
    weft_context_destroy(callers);
    weft_context_destroy(own);
    assert_int_equal(faults_live_blocks(&faults), 0);
    return fired;
}

static void test_whose_failure_it_is(void **state) {
    (void)state;
    const weft_diff_options options = options_of(WEFT_PROFILE_SMALL);
    weft_context *context = patches_context(1);
    past_scene scene = {.trail = NULL};
    weft_sink sink = bytes_sink(&scene.file);
    pair_open(&scene.pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    assert_int_equal(weft_past_create(context, scene.pair.live.view, &options, &scene.newer), WEFT_OK);
    go_on(&scene.pair, &options, 200000, 6, &scene.trail);
    assert_int_equal(weft_past_add(context, scene.newer, scene.trail), WEFT_OK);
    assert_int_equal(weft_past_write(scene.newer, &sink), WEFT_OK);
    for (int work = 0; work < WORK_KINDS; work++) {
        for (size_t n = 1; fail_work(&scene, (past_work)work, n); n++) {
        }
    }
    weft_past_destroy(scene.newer);
    weft_trail_destroy(scene.trail);
    bytes_clear(&scene.file);
    pair_close(&scene.pair);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_a_diff),
        cmocka_unit_test(test_back_again),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_whose_failure_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
