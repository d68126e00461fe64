/* SPDX-License-Identifier: Apache-2.0
 *
 * A base that follows its diff: it ends at the new state, its trail leads back, the patch is the same as
 * without, and a diff that fails, at any allocation or write, leaves the base as it was.
 */
#include "faults.h"
#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024 };

/* Sparse, around the border to dense coding, and dense. */
static const unsigned densities[] = {0, 3, 10000, 300000, 1000000};
static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static weft_status follow(pair *pair, weft_profile profile, const weft_sink *sink, weft_trail **trail) {
    const weft_diff_options options = {
        .size = sizeof options, .profile = profile, .bucket_bytes = SMALL_BUCKET, .trail = trail};
    pair->stats.size = sizeof pair->stats;
    return weft_diff(pair->context, pair->live.view, pair->next.view, &options, sink, &pair->stats);
}

static void test_there_and_back(void **state) {
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        weft_trail *trail = NULL;
        weft_context *context = patches_context(2);
        for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
            pair pair;
            bytes file = {0};
            weft_sink sink = bytes_sink(&file);
            pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 3 + d);
            pair_change(&pair, CHANGE_MIXED, densities[d], 17 + d);
            const weft_diff_options options = {
                .size = sizeof options, .profile = profiles[p], .bucket_bytes = SMALL_BUCKET};
            pair_diff(&pair, &options);
            assert_int_equal(follow(&pair, profiles[p], &sink, &trail), WEFT_OK);
            assert_true(pair_at_new(&pair));
            assert_int_equal(file.size, pair.file.size);
            assert_memory_equal(file.data, pair.file.data, file.size);
            assert_int_equal(weft_trail_undo(context, trail), WEFT_OK);
            assert_true(pair_at_old(&pair));
            bytes_clear(&file);
            pair_close(&pair);
        }
        weft_trail_destroy(trail);
        weft_context_destroy(context);
    }
}

typedef struct brittle_sink {
    size_t left;
} brittle_sink;

static weft_status write_brittle(void *opaque, const void *data, size_t size) {
    (void)data;
    brittle_sink *brittle = opaque;
    if (size > brittle->left) {
        return WEFT_NO_SPACE;
    }
    brittle->left -= size;
    return WEFT_OK;
}

static void test_a_sink_that_fails(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    weft_trail *trail = NULL;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_MIXED, 20000, 6);
    pair_diff(&pair, NULL);
    for (size_t room = 0; room < pair.file.size; room += 1 + pair.file.size / 40) {
        brittle_sink brittle = {room};
        weft_sink sink = {write_brittle, &brittle};
        assert_int_equal(follow(&pair, WEFT_PROFILE_SMALL, &sink, &trail), WEFT_NO_SPACE);
        assert_true(pair_at_old(&pair));
    }
    weft_trail_destroy(trail);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_what_cannot_follow(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    bytes file = {0};
    bytes inverse = {0};
    weft_sink sink = bytes_sink(&file);
    weft_sink back = bytes_sink(&inverse);
    weft_trail *trail = NULL;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_ULP, 20000, 6);
    const weft_diff_options both = {.size = sizeof both, .inverse = &back, .trail = &trail};
    assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &both, &sink, NULL),
                     WEFT_INVALID_ARGUMENT);
    assert_true(pair_at_old(&pair));
    assert_null(trail);
    /* a base that has gone on cannot be noted as it was */
    weft_trail *notes = NULL;
    const weft_diff_options noted = {.size = sizeof noted, .trail = &trail, .notes = &notes};
    assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &noted, &sink, NULL),
                     WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "notes"));
    assert_true(pair_at_old(&pair));
    assert_null(trail);
    assert_null(notes);
    bytes_clear(&file);
    bytes_clear(&inverse);
    pair_close(&pair);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_a_sink_that_fails),
        cmocka_unit_test(test_what_cannot_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
