/* SPDX-License-Identifier: Apache-2.0
 *
 * Prepared changes are visited before a commit: all of them, tensor by tensor in the order of the table, in
 * batches of any size, sparse and dense, step by step where the staging limit asks for it; functions that
 * fail, return anything at all or come back to the apply; and every allocation that may fail.
 */
#include "faults.h"
#include "patches.h"
#include "seen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024 };

static const unsigned densities[] = {0, 5, 1000, 30000, 150000, 700000, 1000000};
static const size_t batches[] = {0, 1, 7, 4096, SIZE_MAX};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void open_apply(pair *pair, weft_sums **sums, weft_apply **apply) {
    *sums = patches_sums(pair->context, pair->live.view);
    assert_int_equal(weft_apply_create(pair->context, pair->patch, pair->live.view, *sums, apply), WEFT_OK);
}

static void test_all_of_them(void **state) {
    (void)state;
    weft_context *context = patches_context(3);
    for (size_t d = 0; d < COUNT(densities); d++) {
        for (unsigned p = 0; p < 2; p++) {
            pair pair;
            weft_sums *sums;
            weft_apply *apply;
            pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, d);
            pair_change(&pair, CHANGE_MIXED, densities[d], 3 * d);
            /* what `small` codes in several classes is not staged in order */
            pair_train(&pair, 300, d);
            const weft_diff_options options = {.size = sizeof options,
                                               .profile = p == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL,
                                               .bucket_bytes = d % 2 == 0 ? SMALL_BUCKET : 0};
            pair_diff(&pair, &options);
            open_apply(&pair, &sums, &apply);
            assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
            for (size_t b = 0; b < COUNT(batches); b++) {
                seen seen;
                seen_open(&seen, pair.live.table, NULL, NULL);
                seen.most = batches[b] == 0 ? 65536 : batches[b];
                assert_int_equal(weft_apply_changes(apply, batches[b], seen_visit, &seen), WEFT_OK);
                assert_int_equal(seen.changed, pair.stats.changed);
                assert_true(pair_at_old(&pair));
                if (b + 1 == COUNT(batches)) {
                    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
                    assert_true(pair_at_new(&pair));
                    assert_true(seen_holds(&seen, NULL, NULL));
                }
                assert_null(seen.wrong);
                seen_close(&seen);
            }
            /* sorted lists lead back as well */
            assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
            assert_true(pair_at_old(&pair));
            weft_apply_destroy(apply);
            weft_sums_destroy(sums);
            pair_close(&pair);
        }
    }
    weft_context_destroy(context);
}

/* Each step shows what it commits. */
static void test_steps(void **state) {
    (void)state;
    const weft_context_options options = {
        .size = sizeof options,
        .threads = 2,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = 60 * 1024}};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    pair pair;
    weft_sums *sums;
    weft_apply *apply;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_ULP, 60000, 6);
    pair_diff(&pair, &(weft_diff_options){.size = sizeof(weft_diff_options), .bucket_bytes = SMALL_BUCKET});
    open_apply(&pair, &sums, &apply);
    uint64_t changed = 0;
    unsigned steps = 0;
    weft_status status = WEFT_MORE;
    while (status == WEFT_MORE) {
        seen seen;
        status = weft_apply_prepare(apply);
        assert_true(status >= 0);
        seen_open(&seen, pair.live.table, NULL, NULL);
        assert_int_equal(weft_apply_changes(apply, 1000, seen_visit, &seen), WEFT_OK);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        assert_true(seen_holds(&seen, NULL, NULL));
        changed += seen.changed;
        steps++;
        seen_close(&seen);
    }
    assert_true(steps > 2);
    assert_int_equal(changed, pair.stats.changed);
    assert_true(pair_at_new(&pair));
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- functions ---- */

typedef struct stranger {
    weft_apply *apply;
    weft_context *context;
    weft_status answer; /* of the visit numbered `at`, from 1 */
    unsigned at;
    unsigned visits;
    weft_status met[4]; /* what its own calls returned */
} stranger;

static weft_status visit_strangely(void *opaque, const weft_change_batch *batch) {
    (void)batch;
    stranger *self = opaque;
    if (++self->visits != self->at) {
        return WEFT_OK;
    }
    self->met[0] = weft_apply_commit(self->apply);
    self->met[1] = weft_apply_rollback(self->apply);
    self->met[2] = weft_apply_prepare(self->apply);
    self->met[3] = weft_apply_changes(self->apply, 0, visit_strangely, opaque);
    return self->answer;
}

static void test_strangers(void **state) {
    (void)state;
    static const struct {
        weft_status answer;
        weft_status expected;
    } cases[] = {{WEFT_OK, WEFT_OK},
                 {WEFT_MORE, WEFT_CALLBACK_FAILED},
                 {(weft_status)700, WEFT_CALLBACK_FAILED},
                 {(weft_status)-7, WEFT_CALLBACK_FAILED},
                 {WEFT_CANCELLED, WEFT_CANCELLED},
                 {WEFT_IO_FAILED, WEFT_IO_FAILED},
                 {WEFT_NO_MEMORY, WEFT_NO_MEMORY}};
    weft_context *context = patches_context(2);
    pair pair;
    weft_sums *sums;
    weft_apply *apply;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_ULP, 10000, 6);
    pair_diff(&pair, &(weft_diff_options){.size = sizeof(weft_diff_options),
                                          .profile = WEFT_PROFILE_SMALL,
                                          .bucket_bytes = SMALL_BUCKET});
    open_apply(&pair, &sums, &apply);
    stranger early = {.apply = apply, .context = context};
    assert_int_equal(weft_apply_changes(apply, 0, visit_strangely, &early), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (unsigned at = 1; at <= 3; at++) {
            stranger stranger = {.apply = apply, .context = context, .answer = cases[i].answer, .at = at};
            weft_status status = weft_apply_changes(apply, 50, visit_strangely, &stranger);
            assert_int_equal(status, cases[i].expected);
            for (size_t j = 0; j < COUNT(stranger.met); j++) {
                assert_int_equal(stranger.met[j], WEFT_BUSY);
            }
            assert_true(status == WEFT_OK ? stranger.visits > 3 : stranger.visits == at);
            bool told = strstr(weft_context_error(context), "the function that visits changes") != NULL;
            assert_int_equal(told, status != WEFT_OK);
            assert_true(pair_at_old(&pair));
        }
    }
    /* what is prepared stays prepared */
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(pair_at_new(&pair));
    assert_int_equal(weft_apply_changes(apply, 0, visit_strangely, &early), WEFT_INVALID_ARGUMENT);
    assert_int_equal(early.visits, 0);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- memory ---- */

static void test_no_memory(void **state) {
    (void)state;
    faults faults = {0};
    const weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&faults), .threads = 2};
    weft_context *context;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    pair pair;
    weft_sums *sums;
    weft_apply *apply;
    pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 5);
    pair_change(&pair, CHANGE_ULP, 10000, 6);
    pair_diff(&pair, &(weft_diff_options){.size = sizeof(weft_diff_options),
                                          .profile = WEFT_PROFILE_SMALL,
                                          .bucket_bytes = SMALL_BUCKET});
    open_apply(&pair, &sums, &apply);
    size_t failures = 0;
    bool fired = true;
    for (size_t n = 1; fired; n++) {
        seen seen;
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        seen_open(&seen, pair.live.table, NULL, NULL);
        size_t before = faults_live_blocks(&faults);
        faults_reset(&faults, n);
        weft_status status = weft_apply_changes(apply, 0, seen_visit, &seen);
        fired = faults_fired(&faults);
        faults_reset(&faults, 0);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
        assert_int_equal(faults_live_blocks(&faults), before);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        assert_true(pair_at_new(&pair));
        assert_true(fired || seen_holds(&seen, NULL, NULL));
        assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
        assert_true(pair_at_old(&pair));
        failures += fired;
        seen_close(&seen);
    }
    assert_true(failures >= 4);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_of_them),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
