/* SPDX-License-Identifier: Apache-2.0
 *
 * Merging: the merged patch does what the patches do in turn, with and without the base; what cannot be
 * merged is refused.
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

enum { SMALL_BUCKET = 32 * 1024, STATES_MAX = 14 };

/* Versions of a model, one behind the other, and the patches between neighbours. */
typedef struct chain {
    weft_context *context;
    size_t count; /* of versions */
    model versions[STATES_MAX];
    uint8_t *memory[STATES_MAX][MIXED_SHAPES];
    bytes files[STATES_MAX];
    weft_patch *patches[STATES_MAX]; /* patches[i] leads from version i to i + 1 */
} chain;

static size_t tensor_bytes(size_t tensor) {
    return shape_units(&mixed_shapes[tensor]) * weft_dtype_width(mixed_shapes[tensor].dtype);
}

static void add_version(chain *chain) {
    size_t version = chain->count++;
    model_open(&chain->versions[version], chain->context);
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        chain->memory[version][i] =
            model_add(&chain->versions[version], s->name, s->dtype, s->rows, s->columns);
        if (version > 0) {
            memcpy(chain->memory[version][i], chain->memory[version - 1][i], tensor_bytes(i));
        }
    }
    model_show(&chain->versions[version]);
}

static void chain_open(chain *chain, weft_context *context, uint64_t seed) {
    memset(chain, 0, sizeof *chain);
    chain->context = context;
    add_version(chain);
    dice dice = {seed};
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        weights_fill(&dice, WEIGHTS_TRAINED, mixed_shapes[i].dtype, chain->memory[0][i],
                     shape_units(&mixed_shapes[i]));
    }
}

static void diff(chain *chain, size_t from, size_t to, const weft_diff_options *options, bytes *file) {
    weft_sink sink = bytes_sink(file);
    assert_int_equal(weft_diff(chain->context, chain->versions[from].view, chain->versions[to].view,
                               options, &sink, NULL),
                     WEFT_OK);
}

/* The next version differs in so many units, and the patch to it is made as `options` say. */
static void chain_step(chain *chain, change_kind kind, unsigned per_million,
                       const weft_diff_options *options) {
    size_t version = chain->count;
    dice dice = {version * 1000 + per_million};
    add_version(chain);
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        weights_change(&dice, kind, weft_dtype_width(s->dtype), chain->memory[version][i], shape_units(s),
                       per_million);
    }
    diff(chain, version - 1, version, options, &chain->files[version - 1]);
    chain->patches[version - 1] = patches_open(chain->context, &chain->files[version - 1]);
}

static void chain_close(chain *chain) {
    for (size_t i = 0; i < chain->count; i++) {
        weft_patch_close(chain->patches[i]);
        bytes_clear(&chain->files[i]);
        model_close(&chain->versions[i]);
    }
}

static weft_status merge(chain *chain, size_t first, size_t count, const weft_merge_options *options,
                         bytes *file, weft_diff_stats *stats) {
    file->size = 0;
    weft_sink sink = bytes_sink(file);
    return weft_merge(chain->context, (const weft_patch *const *)chain->patches + first, count, options,
                      &sink, stats);
}

/* Applies the patch to version `from` and expects version `to`. */
static void expect_leads(chain *chain, const weft_patch *patch, size_t from, size_t to) {
    model copy;
    model_open(&copy, chain->context);
    uint8_t *memory[MIXED_SHAPES];
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        memory[i] = model_add(&copy, s->name, s->dtype, s->rows, s->columns);
        memcpy(memory[i], chain->memory[from][i], tensor_bytes(i));
    }
    model_show(&copy);
    weft_sums *sums = patches_sums(chain->context, copy.view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(chain->context, patch, copy.view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        assert_memory_equal(memory[i], chain->memory[to][i], tensor_bytes(i));
    }
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    model_close(&copy);
}

/* The merged patch leads where the others lead in turn. Made with the base, it is as large as the direct
 * one: the same differences in the same buckets, in another order. */
static void expect_merges(chain *chain, size_t first, size_t count, weft_profile profile, bool with_base,
                          bool same_size) {
    weft_merge_options options = {
        .size = sizeof options, .profile = profile, .base = with_base ? chain->versions[first].view : NULL};
    bytes file = {0};
    weft_diff_stats stats = {.size = sizeof stats};
    weft_status status = merge(chain, first, count, &options, &file, &stats);
    assert_string_equal(weft_context_error(chain->context), "");
    assert_int_equal(status, WEFT_OK);
    assert_int_equal(stats.patch_bytes, file.size);
    weft_patch *merged = patches_open(chain->context, &file);
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(merged, &info);
    assert_int_equal(info.changed, stats.changed);
    assert_int_equal(info.buckets, stats.buckets);
    assert_int_equal(info.total, stats.total);
    expect_leads(chain, merged, first, first + count);
    weft_patch_close(merged);

    if (same_size) {
        bytes direct = {0};
        weft_diff_options made = {.size = sizeof made, .profile = profile, .bucket_bytes = SMALL_BUCKET};
        diff(chain, first, first + count, &made, &direct);
        assert_int_equal(file.size, direct.size);
        weft_patch *straight = patches_open(chain->context, &direct);
        assert_int_equal(patch_info(straight).changed, info.changed);
        assert_int_equal(patch_info(straight).buckets, info.buckets);
        weft_patch_close(straight);
        bytes_clear(&direct);
    }
    bytes_clear(&file);
}

static const weft_diff_options fast = {
    .size = sizeof fast, .profile = WEFT_PROFILE_FAST, .bucket_bytes = SMALL_BUCKET};
static const weft_diff_options small = {
    .size = sizeof small, .profile = WEFT_PROFILE_SMALL, .bucket_bytes = SMALL_BUCKET};

/* ---- what merges ---- */

static void test_fast_without_base(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        chain chain;
        chain_open(&chain, context, 1);
        for (size_t i = 0; i < 4; i++) {
            chain_step(&chain, CHANGE_MIXED, 3000, &fast);
        }
        expect_merges(&chain, 0, 4, WEFT_PROFILE_FAST, false, false);
        expect_merges(&chain, 1, 2, WEFT_PROFILE_FAST, false, false);
        expect_merges(&chain, 2, 1, WEFT_PROFILE_FAST, false, false);
        chain_close(&chain);
        weft_context_destroy(context);
    }
}

static void test_with_base(void **state) {
    (void)state;
    const unsigned densities[] = {200, 10000, 1000000};
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        weft_context *context = patches_context(threads);
        for (size_t d = 0; d < 3; d++) {
            chain chain;
            chain_open(&chain, context, 2);
            chain_step(&chain, CHANGE_MIXED, densities[d], &small);
            chain_step(&chain, CHANGE_ULP, densities[d], &small);
            chain_step(&chain, CHANGE_RANDOM, densities[d], &small);
            expect_merges(&chain, 0, 3, WEFT_PROFILE_SMALL, true, true);
            expect_merges(&chain, 0, 3, WEFT_PROFILE_FAST, true, true);
            expect_merges(&chain, 1, 2, WEFT_PROFILE_SMALL, true, true);
            chain_close(&chain);
        }
        weft_context_destroy(context);
    }
}

/* fast, small and dense in one chain. */
static void test_mixed(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    chain chain;
    chain_open(&chain, context, 3);
    chain_step(&chain, CHANGE_MIXED, 10000, &fast);
    chain_step(&chain, CHANGE_MIXED, 10000, &small);
    chain_step(&chain, CHANGE_RANDOM, 900000, &fast);
    chain_step(&chain, CHANGE_ULP, 100, &small);
    chain_step(&chain, CHANGE_ULP, 10000, &fast);
    expect_merges(&chain, 0, 5, WEFT_PROFILE_SMALL, true, true);
    expect_merges(&chain, 0, 5, WEFT_PROFILE_FAST, true, true);
    expect_merges(&chain, 0, 2, WEFT_PROFILE_FAST, true, true);
    chain_close(&chain);
    weft_context_destroy(context);
}

static void test_many(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    chain chain;
    chain_open(&chain, context, 4);
    for (size_t i = 0; i < STATES_MAX - 1; i++) {
        chain_step(&chain, CHANGE_ULP, 2000, i % 2 == 0 ? &fast : &small);
    }
    expect_merges(&chain, 0, STATES_MAX - 1, WEFT_PROFILE_SMALL, true, true);
    chain_close(&chain);

    chain_open(&chain, context, 5);
    for (size_t i = 0; i < STATES_MAX - 1; i++) {
        chain_step(&chain, CHANGE_MIXED, i == 5 ? 0 : 1000, &fast);
    }
    expect_merges(&chain, 0, STATES_MAX - 1, WEFT_PROFILE_FAST, false, false);
    chain_close(&chain);
    weft_context_destroy(context);
}

/* There and back again: nothing is left, and an empty patch is what says so. */
static void test_cancelling(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (int with_base = 0; with_base < 2; with_base++) {
        chain chain;
        chain_open(&chain, context, 6);
        chain_step(&chain, CHANGE_MIXED, 10000, &fast);
        add_version(&chain);
        for (size_t i = 0; i < MIXED_SHAPES; i++) {
            memcpy(chain.memory[2][i], chain.memory[0][i], tensor_bytes(i));
        }
        chain.memory[2][0][0] ^= 1; /* except for one unit */
        diff(&chain, 1, 2, &fast, &chain.files[1]);
        chain.patches[1] = patches_open(context, &chain.files[1]);
        expect_merges(&chain, 0, 2, WEFT_PROFILE_FAST, with_base != 0, true);
        bytes file = {0};
        weft_diff_stats stats = {.size = sizeof stats};
        assert_int_equal(merge(&chain, 0, 2, NULL, &file, &stats), WEFT_OK);
        assert_int_equal(stats.changed, 1);
        assert_int_equal(stats.buckets, 1);
        bytes_clear(&file);
        chain_close(&chain);
    }
    weft_context_destroy(context);
}

static void test_labels(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    chain chain;
    chain_open(&chain, context, 7);
    chain_step(&chain, CHANGE_ULP, 1000, &fast);
    chain_step(&chain, CHANGE_ULP, 1000, &fast);
    const char *const labels[] = {"step", "2", NULL};
    weft_merge_options options = {.size = sizeof options, .labels = labels};
    bytes file = {0};
    assert_int_equal(merge(&chain, 0, 2, &options, &file, NULL), WEFT_OK);
    weft_patch *merged = patches_open(context, &file);
    assert_string_equal(weft_patch_label(merged, "step"), "2");
    assert_null(weft_patch_label(merged, "pets"));
    weft_patch_close(merged);
    bytes_clear(&file);
    chain_close(&chain);
    weft_context_destroy(context);
}

/* Cut alike for ranks, the merged patch is cut alike too. */
static void test_cuts(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    const weft_cut cuts[] = {{"layer.*.up", 1, 2}, {"model.embed", 0, 4}};
    weft_diff_options options = {.size = sizeof options,
                                 .profile = WEFT_PROFILE_SMALL,
                                 .bucket_bytes = SMALL_BUCKET,
                                 .cuts = cuts,
                                 .cut_count = 2};
    chain chain;
    chain_open(&chain, context, 8);
    chain_step(&chain, CHANGE_MIXED, 10000, &options);
    chain_step(&chain, CHANGE_MIXED, 10000, &options);
    weft_merge_options merging = {
        .size = sizeof merging, .profile = WEFT_PROFILE_SMALL, .base = chain.versions[0].view};
    bytes merged = {0};
    bytes direct = {0};
    assert_int_equal(merge(&chain, 0, 2, &merging, &merged, NULL), WEFT_OK);
    diff(&chain, 0, 2, &options, &direct);
    weft_patch *patch = patches_open(context, &merged);
    expect_leads(&chain, patch, 0, 2);
    assert_int_equal(merged.size, direct.size);
    weft_patch_close(patch);
    bytes_clear(&merged);
    bytes_clear(&direct);
    chain_close(&chain);
    weft_context_destroy(context);
}

/* ---- what does not ---- */

static void expect_refused(chain *chain, const weft_patch *const *patches, size_t count,
                           const weft_merge_options *options, weft_status expected, const char *text) {
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(weft_merge(chain->context, patches, count, options, &sink, NULL), expected);
    if (strstr(weft_context_error(chain->context), text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, weft_context_error(chain->context));
    }
    bytes_clear(&file);
}

static void test_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    chain chain;
    chain_open(&chain, context, 9);
    chain_step(&chain, CHANGE_MIXED, 10000, &small);
    chain_step(&chain, CHANGE_MIXED, 10000, &small);
    weft_merge_options based = {.size = sizeof based, .base = chain.versions[0].view};
    weft_merge_options wrong = {.size = sizeof wrong, .base = chain.versions[1].view};
    const weft_patch *ordered[] = {chain.patches[0], chain.patches[1]};
    const weft_patch *reversed[] = {chain.patches[1], chain.patches[0]};
    const weft_patch *twice[] = {chain.patches[0], chain.patches[0]};
    expect_refused(&chain, ordered, 0, &based, WEFT_INVALID_ARGUMENT, "no patch");
    expect_refused(&chain, reversed, 2, &based, WEFT_BASE_MISMATCH, "in order");
    expect_refused(&chain, twice, 2, &based, WEFT_BASE_MISMATCH, "in order");
    expect_refused(&chain, ordered, 2, &wrong, WEFT_BASE_MISMATCH, "base");
    expect_refused(&chain, ordered, 2, NULL, WEFT_INVALID_ARGUMENT, "--base");
    chain_close(&chain);
    weft_context_destroy(context);
}

static void test_other_cuts_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    const weft_cut rows = {"model.embed", 0, 4};
    const weft_cut columns = {"model.embed", 1, 4};
    weft_diff_options options[] = {fast, fast, fast, fast};
    options[1].cuts = &rows;
    options[1].cut_count = 1;
    options[2].cuts = &columns;
    options[2].cut_count = 1;
    options[3].bucket_bytes = 64 * 1024;
    for (size_t a = 0; a < 4; a++) {
        for (size_t b = 0; b < 4; b++) {
            chain chain;
            chain_open(&chain, context, 10);
            chain_step(&chain, CHANGE_ULP, 10000, &options[a]);
            chain_step(&chain, CHANGE_ULP, 10000, &options[b]);
            const weft_patch *const patches[] = {chain.patches[0], chain.patches[1]};
            weft_merge_options based = {.size = sizeof based, .base = chain.versions[0].view};
            if (a != b) {
                expect_refused(&chain, patches, 2, NULL, WEFT_UNSUPPORTED, "different buckets");
                expect_refused(&chain, patches, 2, &based, WEFT_UNSUPPORTED, "different buckets");
            }
            chain_close(&chain);
        }
    }
    weft_context_destroy(context);
}

static void test_structural_refused(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    chain chain;
    chain_open(&chain, context, 11);
    chain_step(&chain, CHANGE_ULP, 10000, &fast);
    model more;
    model_open(&more, context);
    for (size_t i = 0; i < MIXED_SHAPES; i++) {
        const tensor_shape *s = &mixed_shapes[i];
        memcpy(model_add(&more, s->name, s->dtype, s->rows, s->columns), chain.memory[1][i],
               tensor_bytes(i));
    }
    model_add(&more, "one.more", WEFT_DTYPE_BF16, 3, 0);
    model_show(&more);
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(weft_diff(context, chain.versions[1].view, more.view, &fast, &sink, NULL), WEFT_OK);
    weft_patch *grown = patches_open(context, &file);
    const weft_patch *const patches[] = {chain.patches[0], grown};
    expect_refused(&chain, patches, 2, NULL, WEFT_UNSUPPORTED, "adds, removes or replaces");
    weft_patch_close(grown);
    bytes_clear(&file);
    model_close(&more);
    chain_close(&chain);
    weft_context_destroy(context);
}

/* A bucket that was damaged is found on the way. */
static void test_damaged(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    for (int with_base = 0; with_base < 2; with_base++) {
        chain chain;
        chain_open(&chain, context, 12);
        chain_step(&chain, CHANGE_ULP, 10000, &fast);
        chain_step(&chain, CHANGE_ULP, 10000, &fast);
        chain.files[1].data[chain.files[1].size / 2] ^= 4;
        weft_merge_options based = {.size = sizeof based, .base = chain.versions[0].view};
        bytes file = {0};
        assert_int_equal(merge(&chain, 0, 2, with_base ? &based : NULL, &file, NULL),
                         WEFT_CHECKSUM_MISMATCH);
        bytes_clear(&file);
        chain_close(&chain);
    }
    weft_context_destroy(context);
}

static weft_status full_sink(void *opaque, const void *data, size_t size) {
    (void)data;
    size_t *left = opaque;
    if (size > *left) {
        return WEFT_NO_SPACE;
    }
    *left -= size;
    return WEFT_OK;
}

static void test_full_sink(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    chain chain;
    chain_open(&chain, context, 13);
    chain_step(&chain, CHANGE_ULP, 10000, &fast);
    chain_step(&chain, CHANGE_ULP, 10000, &fast);
    bytes file = {0};
    assert_int_equal(merge(&chain, 0, 2, NULL, &file, NULL), WEFT_OK);
    for (size_t room = 0; room < file.size; room += 97) {
        size_t left = room;
        weft_sink sink = {full_sink, &left};
        assert_int_equal(
            weft_merge(context, (const weft_patch *const *)chain.patches, 2, NULL, &sink, NULL),
            WEFT_NO_SPACE);
    }
    bytes_clear(&file);
    chain_close(&chain);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_without_base),
        cmocka_unit_test(test_with_base),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_cuts_refused),
        cmocka_unit_test(test_structural_refused),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_full_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
