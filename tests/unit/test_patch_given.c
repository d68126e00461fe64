/* SPDX-License-Identifier: Apache-2.0
 *
 * A new state that is given as changes of the base: the patch, its inverse, the sums, the trail and the
 * notes are those of a diff of the two states, bit for bit; what is wrong with a list is told with its
 * tensor and place; and a diff that fails at any allocation leaves the base as it was.
 */
#include "../../lib/patch/diff/trail.h"
#include "faults.h"
#include "found.h"
#include "patches.h"
#include "stride.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024 };

/* Sparse, on both sides of the border to dense coding, and dense. */
static const unsigned densities[] = {0, 5, 1000, 10000, 110000, 140000, 400000, 600000, 1000000};
static const unsigned extras[] = {0, 3000, 300000, 1000000};
static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};
static const char *const labels[] = {"step", "42", "run", "x", NULL};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void same_bytes(const bytes *a, const bytes *b) {
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->data, b->data, a->size);
}

static void same_digest(const weft_digest *a, const weft_digest *b) {
    assert_true(weft_digest_equal(a, b));
}

typedef struct outcome {
    bytes patch;
    bytes inverse;
    weft_diff_stats stats;
    weft_sums *sums;
    weft_trail *notes;
} outcome;

static void outcome_clear(outcome *outcome) {
    bytes_clear(&outcome->patch);
    bytes_clear(&outcome->inverse);
    weft_sums_destroy(outcome->sums);
    weft_trail_destroy(outcome->notes);
    outcome->sums = NULL;
    outcome->notes = NULL;
}

/* Everything that a diff gives, from a whole state or from changes. */
static void diff_all(weft_context *context, const weft_view *base, const weft_view *next,
                     const found *found, weft_diff_options options, outcome *outcome) {
    weft_sink sink = bytes_sink(&outcome->patch);
    weft_sink back = bytes_sink(&outcome->inverse);
    options.inverse = &back;
    options.new_sums_out = &outcome->sums;
    options.notes = &outcome->notes;
    if (next == NULL) {
        options.changes = found->lists;
        options.change_count = found->count;
    }
    outcome->stats.size = sizeof outcome->stats;
    weft_status status = weft_diff(context, base, next, &options, &sink, &outcome->stats);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(status, WEFT_OK);
}

/* What the base held, bucket by bucket. */
static void same_notes(const weft_trail *a, const weft_trail *b) {
    assert_int_equal(weft_trail_count(a), weft_trail_count(b));
    for (size_t i = 0; i < weft_trail_count(a); i++) {
        const weft_staged *first = weft_trail_bucket(a, i);
        const weft_staged *second = weft_trail_bucket(b, i);
        const weft_changes *changes = &first->changes;
        assert_int_equal(first->used, second->used);
        assert_int_equal(first->dense_olds != NULL, second->dense_olds != NULL);
        assert_int_equal(changes->count, second->changes.count);
        if (first->dense_olds != NULL) {
            assert_memory_equal(first->dense_olds, second->dense_olds, first->units * first->width);
        }
        if (changes->count > 0) {
            assert_memory_equal(changes->positions, second->changes.positions, 4 * changes->count);
            assert_memory_equal(changes->olds, second->changes.olds, changes->width * changes->count);
        }
    }
}

static void compare(pair *pair, const found *found, weft_diff_options options) {
    outcome whole = {0};
    outcome given = {0};
    diff_all(pair->context, pair->live.view, pair->next.view, NULL, options, &whole);
    diff_all(pair->context, pair->live.view, NULL, found, options, &given);
    same_notes(given.notes, whole.notes);
    assert_true(pair_at_old(pair));
    same_bytes(&given.patch, &whole.patch);
    same_bytes(&given.inverse, &whole.inverse);
    assert_memory_equal(&given.stats, &whole.stats, sizeof given.stats);
    weft_digest made = weft_sums_digest(given.sums);
    same_digest(&made, &whole.stats.result);
    outcome_clear(&whole);
    outcome_clear(&given);
}

/* The base goes to the new state, and its trail leads back. */
static void follow(pair *pair, const found *found, weft_diff_options options, weft_trail **trail) {
    bytes whole = {0};
    bytes file = {0};
    weft_sink whole_sink = bytes_sink(&whole);
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(
        weft_diff(pair->context, pair->live.view, pair->next.view, &options, &whole_sink, NULL), WEFT_OK);
    options.trail = trail;
    options.changes = found->lists;
    options.change_count = found->count;
    assert_int_equal(weft_diff(pair->context, pair->live.view, NULL, &options, &sink, NULL), WEFT_OK);
    same_bytes(&file, &whole);
    assert_true(pair_at_new(pair));
    assert_int_equal(weft_trail_undo(pair->context, *trail), WEFT_OK);
    assert_true(pair_at_old(pair));
    bytes_clear(&whole);
    bytes_clear(&file);
}

static void test_same_as_whole(void **state) {
    (void)state;
    dice dice = {11};
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        weft_trail *trail = NULL;
        for (size_t d = 0; d < COUNT(densities); d++) {
            for (size_t e = 0; e < COUNT(extras); e++) {
                if (!test_stride_takes()) {
                    continue;
                }
                pair pair;
                found found = {0};
                weights_kind kind = d % 3 == 0 ? WEIGHTS_RANDOM : WEIGHTS_TRAINED;
                pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, kind, 100 * d + e);
                pair_change(&pair, CHANGE_MIXED, densities[d], 7 * d + e);
                found_between(&found, &dice, pair.live.view, pair.next.view, extras[e]);
                for (size_t p = 0; p < COUNT(profiles); p++) {
                    weft_diff_options options = {.size = sizeof options,
                                                 .profile = profiles[p],
                                                 .bucket_bytes = e % 2 == 0 ? SMALL_BUCKET : 0,
                                                 .labels = e % 2 == 0 ? NULL : labels};
                    compare(&pair, &found, options);
                    follow(&pair, &found, options, &trail);
                }
                found_clear(&found);
                pair_close(&pair);
            }
        }
        weft_trail_destroy(trail);
        weft_context_destroy(context);
    }
}

/* Changes that depend on the exponent, so that `small` has several classes, in a bucket that is sampled. */
static void test_classes(void **state) {
    (void)state;
    static const tensor_shape shapes[] = {{"a", WEFT_DTYPE_BF16, 600, 1000}, {"b", WEFT_DTYPE_F16, 99, 90}};
    dice dice = {21};
    weft_context *context = patches_context(2);
    for (unsigned per_million = 30; per_million < 100000; per_million *= 7) {
        pair pair;
        found found = {0};
        weft_trail *trail = NULL;
        const weft_diff_options options = {.size = sizeof options, .profile = WEFT_PROFILE_SMALL};
        pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, per_million);
        pair_train(&pair, per_million, 4);
        found_between(&found, &dice, pair.live.view, pair.next.view, 2000);
        compare(&pair, &found, options);
        follow(&pair, &found, options, &trail);
        weft_trail_destroy(trail);
        found_clear(&found);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* Boxes: the rows of a part lie apart in the tensor, and a list is walked row by row. */
static void test_cuts(void **state) {
    (void)state;
    static const tensor_shape shapes[] = {
        {"a", WEFT_DTYPE_BF16, 96, 512}, {"b", WEFT_DTYPE_F32, 512, 64}, {"c", WEFT_DTYPE_U8, 64, 256}};
    dice dice = {5};
    weft_context *context = patches_context(2);
    for (size_t d = 0; d < COUNT(densities); d++) {
        for (uint32_t dim = 0; dim < 2; dim++) {
            for (uint32_t parts = 1; parts <= 4; parts *= 2) {
                const weft_cut cut = {"*", dim, parts};
                pair pair;
                found found = {0};
                weft_trail *trail = NULL;
                pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, d + parts);
                pair_change(&pair, CHANGE_ULP, densities[d], d);
                found_between(&found, &dice, pair.live.view, pair.next.view, extras[parts % 4]);
                for (size_t p = 0; p < COUNT(profiles); p++) {
                    const weft_diff_options options = {.size = sizeof options,
                                                       .profile = profiles[p],
                                                       .bucket_bytes = SMALL_BUCKET,
                                                       .cuts = &cut,
                                                       .cut_count = 1};
                    compare(&pair, &found, options);
                    follow(&pair, &found, options, &trail);
                }
                weft_trail_destroy(trail);
                found_clear(&found);
                pair_close(&pair);
            }
        }
    }
    weft_context_destroy(context);
}

/* Tensors that share their memory in the base are each changed under their own names. */
static void test_ties(void **state) {
    (void)state;
    enum { UNITS = 40000 };
    weft_context *context = patches_context(2);
    dice dice = {9};
    uint16_t *old = malloc(UNITS * 2);
    uint16_t *new = malloc(UNITS * 2);
    assert_true(old != NULL && new != NULL);
    weights_fill(&dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, old, UNITS);
    memcpy(new, old, UNITS * 2);
    weights_change(&dice, CHANGE_ULP, 2, new, UNITS, 5000);
    weft_table *tables[2];
    weft_view *views[2];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(weft_table_create(context, &tables[i]), WEFT_OK);
        for (size_t j = 0; j < 2; j++) {
            weft_tensor tensor = {.size = sizeof tensor,
                                  .name = j == 0 ? "embed" : "head",
                                  .dtype = WEFT_DTYPE_BF16,
                                  .rank = 1,
                                  .shape = {UNITS},
                                  .data = i == 0 ? old : new};
            assert_int_equal(weft_table_add(tables[i], &tensor), WEFT_OK);
        }
        assert_int_equal(weft_view_create(context, tables[i], &views[i]), WEFT_OK);
    }
    found found = {0};
    found_between(&found, &dice, views[0], views[1], 100);
    outcome whole = {0};
    outcome given = {0};
    diff_all(context, views[0], views[1], NULL, (weft_diff_options){.size = sizeof(weft_diff_options)},
             &whole);
    diff_all(context, views[0], NULL, &found, (weft_diff_options){.size = sizeof(weft_diff_options)},
             &given);
    same_bytes(&given.patch, &whole.patch);
    same_bytes(&given.inverse, &whole.inverse);
    outcome_clear(&whole);
    outcome_clear(&given);
    found_clear(&found);
    for (size_t i = 0; i < 2; i++) {
        weft_view_destroy(views[i]);
        weft_table_destroy(tables[i]);
    }
    free(old);
    free(new);
    weft_context_destroy(context);
}

/* ---- what is refused ---- */

static weft_status try_lists(pair *pair, const weft_view *next, const weft_tensor_changes *lists,
                             size_t count) {
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    const weft_diff_options options = {.size = sizeof options, .changes = lists, .change_count = count};
    weft_status status = weft_diff(pair->context, pair->live.view, next, &options, &sink, NULL);
    bytes_clear(&file);
    return status;
}

static void refuse(pair *pair, weft_tensor_changes list, const char *text, const char *place) {
    assert_int_equal(try_lists(pair, NULL, &list, 1), WEFT_INVALID_ARGUMENT);
    const char *error = weft_context_error(pair->context);
    if (strstr(error, text) == NULL || strstr(error, place) == NULL) {
        fail_msg("'%s' and '%s' are not in: %s", text, place, error);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const tensor_shape shape = {"layer.w", WEFT_DTYPE_BF16, 100, 10};
    static const uint16_t values[4] = {1, 2, 3, 4};
    weft_context *context = patches_context(1);
    pair pair;
    pair_open(&pair, context, &shape, 1, WEIGHTS_TRAINED, 1);
    const uint64_t twice[] = {3, 7, 7, 9};
    const uint64_t back[] = {3, 7, 9, 8};
    const uint64_t beyond[] = {3, 7, 9, 1000};
    const uint64_t far[] = {3, UINT64_MAX, 4, 5};
    const uint64_t last[] = {0, 1, 2, 999};
    refuse(&pair, (weft_tensor_changes){"layer.w", twice, values, 4}, "layer.w", "place 2");
    refuse(&pair, (weft_tensor_changes){"layer.w", back, values, 4}, "layer.w", "place 3");
    refuse(&pair, (weft_tensor_changes){"layer.w", beyond, values, 4}, "unit 1000", "place 3");
    refuse(&pair, (weft_tensor_changes){"layer.w", far, values, 4}, "1000 units", "place 1");
    refuse(&pair, (weft_tensor_changes){"layer.v", last, values, 4}, "layer.v", "does not have");
    refuse(&pair, (weft_tensor_changes){NULL, last, values, 4}, "entry 0", "no tensor");
    refuse(&pair, (weft_tensor_changes){"layer.w", NULL, values, 4}, "layer.w", "NULL");
    refuse(&pair, (weft_tensor_changes){"layer.w", last, NULL, 4}, "layer.w", "NULL");
    const weft_tensor_changes good = {"layer.w", last, values, 4};
    const weft_tensor_changes again[] = {good, good};
    assert_int_equal(try_lists(&pair, NULL, again, 2), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "two entries"));
    assert_int_equal(try_lists(&pair, pair.next.view, &good, 1), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "either whole"));
    assert_int_equal(try_lists(&pair, NULL, &good, 1), WEFT_OK);
    assert_int_equal(try_lists(&pair, NULL, NULL, 0), WEFT_OK);
    assert_true(pair_at_old(&pair));
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- memory ---- */

/* Every allocation fails in turn, with a base that follows and one that has an inverse. */
static void test_no_memory(void **state) {
    (void)state;
    static const tensor_shape shapes[] = {{"b", WEFT_DTYPE_BF16, 300, 100}, {"a", WEFT_DTYPE_F32, 50, 7}};
    dice dice = {3};
    for (unsigned way = 0; way < 4; way++) {
        bool fired = true;
        for (size_t n = 1; fired; n += test_stride()) {
            faults faults = {0};
            const weft_context_options context_options = {
                .size = sizeof context_options, .allocator = faults_allocator(&faults), .threads = 2};
            weft_context *context;
            pair pair;
            found found = {0};
            bytes file = {0};
            weft_sink sink = bytes_sink(&file);
            weft_trail *trail = NULL;
            assert_int_equal(weft_context_create(&context_options, &context), WEFT_OK);
            pair_open(&pair, context, shapes, COUNT(shapes), WEIGHTS_TRAINED, 2);
            pair_change(&pair, CHANGE_ULP, way % 2 == 0 ? 2000 : 300000, 4);
            found_between(&found, &dice, pair.live.view, pair.next.view, 100);
            const weft_diff_options options = {.size = sizeof options,
                                               .profile = profiles[way % 2],
                                               .bucket_bytes = SMALL_BUCKET,
                                               .changes = found.lists,
                                               .change_count = found.count,
                                               .trail = way < 2 ? &trail : NULL,
                                               .inverse = way < 2 ? NULL : &sink};
            faults_reset(&faults, n);
            weft_status status = weft_diff(context, pair.live.view, NULL, &options, &sink, NULL);
            fired = faults_fired(&faults);
            faults_reset(&faults, 0);
            assert_true(status == WEFT_OK || (fired && status == WEFT_NO_MEMORY));
            assert_true(way < 2 && status == WEFT_OK ? pair_at_new(&pair) : pair_at_old(&pair));
            weft_trail_destroy(trail);
            bytes_clear(&file);
            found_clear(&found);
            pair_close(&pair);
            weft_context_destroy(context);
            assert_int_equal(faults_live_blocks(&faults), 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_whole), cmocka_unit_test(test_classes),
        cmocka_unit_test(test_cuts),          cmocka_unit_test(test_ties),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
