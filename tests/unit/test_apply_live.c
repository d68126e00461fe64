/* SPDX-License-Identifier: Apache-2.0
 *
 * Applying to live memory: nothing moves before the commit, everything moves with it, and a rollback
 * brings back every bit and every sum; wrong and drifted bases; the staging limit; runs; cancelling.
 */
#include "../../lib/patch/format/patch.h"
#include "../support/described.h"
#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL_BUCKET = 32 * 1024 };

static const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};

static void open_mixed(pair *pair, weft_context *context, weft_profile profile, unsigned per_million) {
    pair_open(pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 7 + per_million);
    pair_change(pair, CHANGE_MIXED, per_million, 11 + per_million);
    weft_diff_options options = {.size = sizeof options, .profile = profile, .bucket_bytes = SMALL_BUCKET};
    pair_diff(pair, &options);
}

static weft_apply *start(const pair *pair, weft_sums *sums) {
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(pair->context, pair->patch, pair->live.view, sums, &apply), WEFT_OK);
    return apply;
}

static void expect_digest(const weft_sums *sums, const weft_digest *expected) {
    weft_digest digest = weft_sums_digest(sums);
    assert_true(weft_digest_equal(&digest, expected));
}

/* The sums say what they should, and memory agrees. */
static void expect_state(const pair *pair, weft_sums *sums, bool is_new) {
    assert_true(is_new ? pair_at_new(pair) : pair_at_old(pair));
    expect_digest(sums, is_new ? &pair->stats.result : &pair->stats.base);
    assert_int_equal(weft_sums_audit(pair->context, sums, UINT64_MAX), WEFT_OK);
}

static void expect_error(const weft_context *context, const char *part) {
    if (strstr(weft_context_error(context), part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, weft_context_error(context));
    }
}

/* ---- the way there and back ---- */

static void walk(pair *pair) {
    weft_sums *sums = patches_sums(pair->context, pair->live.view);
    weft_apply *apply = start(pair, sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    expect_state(pair, sums, false);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    expect_state(pair, sums, false);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    expect_state(pair, sums, false);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    expect_state(pair, sums, true);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    expect_state(pair, sums, false);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    expect_state(pair, sums, true);

    weft_apply_stats stats = {.size = sizeof stats};
    weft_apply_describe(apply, &stats);
    assert_int_equal(stats.changed, pair->stats.changed);
    assert_int_equal(stats.buckets, pair->stats.buckets);
    assert_true(stats.bytes_read < pair->stats.patch_bytes);
    assert_true(stats.bytes_read > pair->stats.patch_bytes / 2 || pair->stats.changed < 100);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_reset(pair);
}

static void test_there_and_back(void **state) {
    (void)state;
    const unsigned densities[] = {0, 100, 10000, 500000, 1000000};
    const unsigned threads[] = {1, 4};
    for (size_t t = 0; t < 2; t++) {
        weft_context *context = patches_context(threads[t]);
        for (size_t p = 0; p < 2; p++) {
            for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
                pair pair;
                open_mixed(&pair, context, profiles[p], densities[d]);
                walk(&pair);
                pair_close(&pair);
            }
        }
        weft_context_destroy(context);
    }
}

/* One changed unit in a model, in each tensor in turn. */
static void test_one_change(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        for (size_t i = 0; i < MIXED_SHAPES; i++) {
            pair pair;
            dice dice = {i};
            pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_RANDOM, i);
            size_t units = shape_units(&mixed_shapes[i]);
            weights_change_one(&dice, CHANGE_ULP, weft_dtype_width(mixed_shapes[i].dtype), pair.news[i],
                               units - 1);
            weft_diff_options options = {
                .size = sizeof options, .profile = profiles[p], .bucket_bytes = SMALL_BUCKET};
            pair_diff(&pair, &options);
            assert_int_equal(pair.stats.changed, 1);
            walk(&pair);
            pair_close(&pair);
        }
    }
    weft_context_destroy(context);
}

static void test_run(void **state) {
    (void)state;
    const unsigned densities[] = {0, 10000, 1000000};
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        for (size_t p = 0; p < 2; p++) {
            for (size_t d = 0; d < 3; d++) {
                pair pair;
                open_mixed(&pair, context, profiles[p], densities[d]);
                weft_sums *sums = patches_sums(context, pair.live.view);
                weft_apply *apply = start(&pair, sums);
                assert_int_equal(weft_apply_run(apply), WEFT_OK);
                expect_state(&pair, sums, true);
                weft_apply_stats stats = {.size = sizeof stats};
                weft_apply_describe(apply, &stats);
                assert_int_equal(stats.changed, pair.stats.changed);
                assert_int_equal(stats.buckets, pair.stats.buckets);
                assert_true(stats.bytes_read < pair.stats.patch_bytes);
                assert_true(stats.bytes_read > 0 || pair.stats.changed == 0);
                assert_int_equal(weft_apply_rollback(apply), WEFT_INVALID_ARGUMENT);
                assert_int_equal(weft_apply_run(apply), WEFT_INVALID_ARGUMENT);
                weft_apply_destroy(apply);
                weft_sums_destroy(sums);
                pair_close(&pair);
            }
        }
        weft_context_destroy(context);
    }
}

/* A run on drifted weights fails, leaves the sums alone and says that it cannot be used any more. */
static void test_run_fails(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        open_mixed(&pair, context, profiles[p], 10000);
        weft_sums *sums = patches_sums(context, pair.live.view);
        for (size_t i = 0; i < shape_units(&mixed_shapes[0]); i++) {
            pair.memory[0][2 * i] ^= 1;
        }
        weft_apply *apply = start(&pair, sums);
        assert_int_equal(weft_apply_run(apply), WEFT_DIGEST_MISMATCH);
        expect_digest(sums, &pair.stats.base);
        assert_int_equal(weft_apply_run(apply), WEFT_INVALID_ARGUMENT);
        assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
        assert_int_equal(weft_apply_commit(apply), WEFT_INVALID_ARGUMENT);
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

static void test_phases(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = start(&pair, sums);
    assert_int_equal(weft_apply_commit(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_run(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_apply_run(apply), WEFT_INVALID_ARGUMENT);
    expect_state(&pair, sums, true);
    weft_apply_destroy(apply);
    weft_apply_destroy(NULL);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* The roads part here: a second apply of the same patch, and one from where the first led to. */
static void test_wrong_base(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_SMALL, 10000);
    weft_sums *sums = patches_sums(context, pair.next.view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, pair.patch, pair.next.view, sums, &apply),
                     WEFT_BASE_MISMATCH);
    assert_null(apply);
    expect_error(context, "already at the patch's result");
    weft_sums_destroy(sums);

    pair.memory[3][5] ^= 16;
    sums = patches_sums(context, pair.live.view);
    char here[WEFT_DIGEST_TEXT];
    char wanted[WEFT_DIGEST_TEXT];
    weft_digest digest = weft_sums_digest(sums);
    weft_digest_format(&digest, here);
    weft_digest_format(&pair.stats.base, wanted);
    assert_int_equal(weft_apply_create(context, pair.patch, pair.live.view, sums, &apply),
                     WEFT_BASE_MISMATCH);
    expect_error(context, here);
    expect_error(context, wanted);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* Another set of tensors, another dtype, another shape. */
static void test_other_tensors(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    for (int kind = 0; kind < 3; kind++) {
        model other;
        model_open(&other, context);
        for (size_t i = kind == 0 ? 1 : 0; i < MIXED_SHAPES; i++) {
            tensor_shape s = mixed_shapes[i];
            s.dtype = kind == 1 && i == 0 ? WEFT_DTYPE_F16 : s.dtype;
            s.rows = kind == 2 && i == 0 ? s.rows + 1 : s.rows;
            model_add(&other, s.name, s.dtype, s.rows, s.columns);
        }
        model_show(&other);
        weft_sums *sums = patches_sums(context, other.view);
        weft_apply *apply = NULL;
        assert_int_equal(weft_apply_create(context, pair.patch, other.view, sums, &apply),
                         WEFT_BASE_MISMATCH);
        assert_null(apply);
        expect_error(context, mixed_shapes[0].name);
        weft_sums_destroy(sums);
        model_close(&other);
    }
    pair_close(&pair);
    weft_context_destroy(context);
}

/* A patch that adds a tensor is nothing for live weights. */
static void test_structural_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    model more;
    model_open(&more, context);
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        memcpy(model_add(&more, s->name, s->dtype, s->rows, s->columns), pair.olds[i],
               shape_units(s) * weft_dtype_width(s->dtype));
    }
    model_add(&more, "one.more", WEFT_DTYPE_U8, 3, 0);
    model_show(&more);
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(weft_diff(context, pair.live.view, more.view, NULL, &sink, NULL), WEFT_OK);
    weft_patch *patch = patches_open(context, &file);
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, patch, pair.live.view, sums, &apply), WEFT_UNSUPPORTED);
    expect_error(context, "rebuild");
    weft_sums_destroy(sums);
    weft_patch_close(patch);
    bytes_clear(&file);
    model_close(&more);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- drift ---- */

/* The first changed unit of a tensor at or after `unit`. */
static size_t find_change(const pair *pair, size_t tensor, size_t unit) {
    unsigned width = weft_dtype_width(pair->shapes[tensor].dtype);
    while (memcmp(pair->olds[tensor] + unit * width, pair->news[tensor] + unit * width, width) == 0) {
        unit++;
        assert_true(unit < shape_units(&pair->shapes[tensor]));
    }
    return unit;
}

/* One bit anywhere in a word that the patch touches, after the sums were taken: prepare refuses, and
 * nothing moves. A drifted exponent may also make a `small` bucket undecodable. */
static void try_drift(pair *pair, size_t tensor, size_t byte, unsigned bit) {
    weft_sums *sums = patches_sums(pair->context, pair->live.view);
    uint8_t *place = pair->memory[tensor] + byte;
    *place ^= (uint8_t)(1u << bit);
    weft_apply *apply = start(pair, sums);
    weft_status status = weft_apply_prepare(apply);
    assert_true(status == WEFT_DIGEST_MISMATCH || status == WEFT_MALFORMED);
    assert_true(weft_context_error(pair->context)[0] != '\0');
    expect_digest(sums, &pair->stats.base);
    *place ^= (uint8_t)(1u << bit);
    assert_true(pair_at_old(pair));
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_true(pair_at_old(pair));
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
}

static void test_drift_touched(void **state) {
    (void)state;
    const unsigned densities[] = {10000, 1000000};
    weft_context *context = patches_context(2);
    dice dice = {99};
    for (size_t p = 0; p < 2; p++) {
        for (size_t d = 0; d < 2; d++) {
            pair pair;
            open_mixed(&pair, context, profiles[p], densities[d]);
            for (size_t i = 0; i < 60; i++) {
                size_t tensor = (size_t)dice_below(&dice, 3);
                unsigned width = weft_dtype_width(mixed_shapes[tensor].dtype);
                size_t units = shape_units(&mixed_shapes[tensor]);
                size_t unit = find_change(&pair, tensor, (size_t)dice_below(&dice, units / 2));
                size_t word = unit * width / 16 * 16;
                try_drift(&pair, tensor, word + (size_t)dice_below(&dice, 16),
                          (unsigned)dice_below(&dice, 8));
            }
            pair_close(&pair);
        }
    }
    weft_context_destroy(context);
}

/* Drift that no bucket looks at passes the apply, and the audit finds it: at once if it audits
 * everything, within one round if it goes by pieces. */
static void test_drift_untouched(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        pair_open(&pair, context, mixed_shapes, MIXED_SHAPES, WEIGHTS_TRAINED, 3);
        dice dice = {4};
        weights_change_one(&dice, CHANGE_ULP, 2, pair.news[0], 100);
        weft_diff_options options = {
            .size = sizeof options, .profile = profiles[p], .bucket_bytes = SMALL_BUCKET};
        pair_diff(&pair, &options);
        weft_sums *sums = patches_sums(context, pair.live.view);
        pair.memory[0][2 * 200] ^= 1; /* the lowest bit of a mantissa in the same bucket */
        pair.memory[8][64] ^= 4;      /* a tensor that the patch does not mention */
        weft_apply *apply = start(&pair, sums);
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        expect_digest(sums, &pair.stats.result);
        assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_DIGEST_MISMATCH);
        pair.memory[0][2 * 200] ^= 1;
        assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_DIGEST_MISMATCH);
        expect_error(context, "layer.2.wide");
        size_t found = 0;
        for (size_t i = 0; i < MIXED_SHAPES; i++) {
            found += weft_sums_audit(context, sums, 1) == WEFT_DIGEST_MISMATCH;
        }
        assert_true(found > 0);
        pair.memory[8][64] ^= 4;
        expect_state(&pair, sums, true);
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* ---- the staging limit ---- */

static weft_context *limited_context(unsigned threads, uint64_t stage_bytes) {
    weft_context_options options = {
        .size = sizeof options,
        .threads = threads,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes}};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static void test_several_steps(void **state) {
    (void)state;
    const uint64_t limits[] = {1, 70000, 66000};
    for (size_t l = 0; l < 3; l++) {
        for (size_t p = 0; p < 2; p++) {
            weft_context *context = limited_context(2, limits[l]);
            pair pair;
            open_mixed(&pair, context, profiles[p], l == 1 ? 1000000 : 10000);
            weft_sums *sums = patches_sums(context, pair.live.view);
            weft_apply *apply = start(&pair, sums);
            size_t steps = 0;
            weft_status status;
            do {
                status = weft_apply_prepare(apply);
                assert_true(status == WEFT_OK || status == WEFT_MORE);
                assert_true(apply_stats(apply).stage_bytes <= limits[l] || limits[l] == 1);
                assert_int_equal(weft_apply_commit(apply), WEFT_OK);
                assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
                steps++;
            } while (status == WEFT_MORE);
            assert_true(steps > 3);
            expect_state(&pair, sums, true);
            assert_int_equal(apply_stats(apply).changed, pair.stats.changed);
            weft_apply_destroy(apply);
            weft_sums_destroy(sums);
            pair_close(&pair);
            weft_context_destroy(context);
        }
    }
}

/* The first step can be taken back like any other. */
static void test_first_step_back(void **state) {
    (void)state;
    weft_context *context = limited_context(1, 70000);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = start(&pair, sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_MORE);
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_MORE);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_false(pair_at_old(&pair));
    assert_int_equal(weft_apply_rollback(apply), WEFT_OK);
    expect_state(&pair, sums, false);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* A later step fails: what was committed stays, the sums say so, and a rollback that cannot bring the old
 * state back does not pretend to. Once the cause is gone, prepare goes on where it stopped. */
static void test_later_step_fails(void **state) {
    (void)state;
    weft_context *context = limited_context(2, 70000);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = start(&pair, sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_MORE);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    const weft_bucket_span *last = pair.patch->index.entries[pair.patch->index.count - 1].bucket.spans;
    size_t tensor = 0;
    while (strcmp(mixed_shapes[tensor].name, pair.patch->header.roster.entries[last->tensor].tensor.name)) {
        tensor++;
    }
    size_t unit = find_change(&pair, tensor, (size_t)last->span.start);
    uint8_t *place = pair.memory[tensor] + unit * weft_dtype_width(mixed_shapes[tensor].dtype);
    *place ^= 64;
    weft_status status;
    while ((status = weft_apply_prepare(apply)) == WEFT_MORE) {
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    }
    assert_int_equal(status, WEFT_DIGEST_MISMATCH);
    assert_int_equal(weft_apply_rollback(apply), WEFT_UNSUPPORTED);
    expect_error(context, "stay");
    *place ^= 64;
    assert_int_equal(weft_sums_audit(context, sums, UINT64_MAX), WEFT_OK);
    assert_false(pair_at_old(&pair));
    do {
        status = weft_apply_prepare(apply);
        assert_true(status == WEFT_OK || status == WEFT_MORE);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    } while (status == WEFT_MORE);
    expect_state(&pair, sums, true);
    assert_int_equal(apply_stats(apply).changed, pair.stats.changed);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* ---- what is refused ---- */

static void expect_refused_view(const pair *pair, const weft_table *table, const char *text) {
    weft_context *context = pair->context;
    weft_view *view = NULL;
    assert_int_equal(weft_view_create(context, table, &view), WEFT_OK);
    weft_sums *sums = patches_sums(context, view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, pair->patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
    expect_error(context, text);
    assert_true(pair_at_old(pair));
    assert_int_equal(weft_apply_run(apply), WEFT_INVALID_ARGUMENT);
    expect_error(context, text);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
}

static void test_read_only(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        open_mixed(&pair, context, profiles[p], 10000);
        weft_table *table = NULL;
        assert_int_equal(weft_table_create(context, &table), WEFT_OK);
        for (size_t i = 0; i < weft_table_count(pair.live.table); i++) {
            weft_tensor tensor = *weft_table_at(pair.live.table, i);
            tensor.writable = i != 1;
            assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
        }
        expect_refused_view(&pair, table, mixed_shapes[1].name);
        weft_table_destroy(table);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* F32 masters of a BF16 tensor can be diffed; a patch for the BF16 weights has nothing to say about
 * them. */
static void test_masters_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    const tensor_shape shape = {"weight", WEFT_DTYPE_BF16, 64, 64};
    for (size_t p = 0; p < 2; p++) {
        pair pair;
        pair_open(&pair, context, &shape, 1, WEIGHTS_TRAINED, 5);
        pair_change(&pair, CHANGE_ULP, 20000, 6);
        weft_diff_options options = {.size = sizeof options, .profile = profiles[p]};
        pair_diff(&pair, &options);
        model masters;
        model_open(&masters, context);
        float *memory = model_add_masters(&masters, "weight", 64, 64);
        for (size_t i = 0; i < 64 * 64; i++) {
            uint32_t bits = (uint32_t)pair.olds[0][2 * i] << 16 | (uint32_t)pair.olds[0][2 * i + 1] << 24;
            memcpy(&memory[i], &bits, sizeof bits);
        }
        float *before = malloc(64 * 64 * sizeof *before);
        assert_non_null(before);
        memcpy(before, memory, 64 * 64 * sizeof *before);
        expect_refused_view(&pair, masters.table, "weight");
        assert_memory_equal(before, memory, 64 * 64 * sizeof *before);
        free(before);
        model_close(&masters);
        pair_close(&pair);
    }
    weft_context_destroy(context);
}

/* ---- cancelling, and sources that fail ---- */

static bool refuse(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    return !*(const bool *)opaque;
}

static void test_cancel(void **state) {
    (void)state;
    bool cancel = false;
    weft_context_options options = {
        .size = sizeof options, .threads = 2, .progress = refuse, .progress_opaque = &cancel};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    pair pair;
    /* everything changes, so that every byte is counted and the end, which is always told, is reached */
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 1000000);
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = start(&pair, sums);
    cancel = true;
    assert_int_equal(weft_apply_prepare(apply), WEFT_CANCELLED);
    expect_digest(sums, &pair.stats.base);
    assert_true(pair_at_old(&pair));
    cancel = false;
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    expect_state(&pair, sums, true);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

typedef struct flaky_source {
    const bytes *file;
    _Atomic size_t calls;
    size_t fail_at;
} flaky_source;

static weft_status flaky_read(void *opaque, uint64_t offset, void *data, size_t size) {
    flaky_source *source = opaque;
    if (++source->calls == source->fail_at) {
        return WEFT_IO_FAILED;
    }
    memcpy(data, source->file->data + offset, size);
    return WEFT_OK;
}

/* The patch comes by callback, and each read fails once. */
static void test_failing_source(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_SMALL, 10000);
    size_t failures = 0;
    for (size_t n = 1;; n++) {
        flaky_source flaky = {.file = &pair.file, .fail_at = n};
        weft_source source = {.size = pair.file.size, .read = flaky_read, .opaque = &flaky};
        weft_sums *sums = patches_sums(context, pair.live.view);
        weft_patch *patch = NULL;
        weft_apply *apply = NULL;
        weft_status status = weft_patch_open(context, &source, &patch);
        if (status == WEFT_OK) {
            status = weft_apply_create(context, patch, pair.live.view, sums, &apply);
        }
        if (status == WEFT_OK) {
            status = weft_apply_prepare(apply);
        }
        assert_true(pair_at_old(&pair));
        if (status != WEFT_OK) {
            assert_int_equal(status, WEFT_IO_FAILED);
            failures++;
        } else {
            assert_int_equal(weft_apply_commit(apply), WEFT_OK);
            expect_state(&pair, sums, true);
        }
        weft_apply_destroy(apply);
        weft_patch_close(patch);
        weft_sums_destroy(sums);
        if (status == WEFT_OK) {
            break;
        }
    }
    assert_int_equal(failures, 4 + pair.stats.buckets);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* A patch whose buckets are fine and whose footer promises another state. */
static void test_wrong_promise(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_mixed(&pair, context, WEFT_PROFILE_FAST, 10000);
    pair.patch->footer.result.bytes[3] ^= 1;
    weft_sums *sums = patches_sums(context, pair.live.view);
    weft_apply *apply = start(&pair, sums);
    assert_int_equal(weft_apply_prepare(apply), WEFT_DIGEST_MISMATCH);
    expect_error(context, "promises");
    expect_state(&pair, sums, false);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    pair_close(&pair);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_one_change),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_fails),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_wrong_base),
        cmocka_unit_test(test_other_tensors),
        cmocka_unit_test(test_structural_refused),
        cmocka_unit_test(test_drift_touched),
        cmocka_unit_test(test_drift_untouched),
        cmocka_unit_test(test_several_steps),
        cmocka_unit_test(test_first_step_back),
        cmocka_unit_test(test_later_step_fails),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_masters_refused),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_failing_source),
        cmocka_unit_test(test_wrong_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
