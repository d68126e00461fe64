/* SPDX-License-Identifier: Apache-2.0
 *
 * test_patch_guards.c: callers who mix things up: tensors that cannot be reached, sums of another model,
 * contexts with memory of their own, questions about what is not there.
 */
#include "faults.h"
#include "patches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 40000 };

static const tensor_shape one_shape[] = {{"w", WEFT_DTYPE_BF16, UNITS, 0}};

static void open_pair(pair *pair, weft_context *context, weft_profile profile) {
    pair_open(pair, context, one_shape, 1, WEIGHTS_TRAINED, 1);
    pair_change(pair, CHANGE_ULP, 10000, 2);
    weft_diff_options options = {.size = sizeof options, .profile = profile};
    pair_diff(pair, &options);
}

/* A tensor behind callbacks. */

static weft_status read_bytes(void *opaque, uint64_t offset, void *output, size_t size) {
    memcpy(output, (uint8_t *)opaque + offset, size);
    return WEFT_OK;
}

static weft_status scatter_units(void *opaque, const uint64_t *units, size_t count, const void *values) {
    for (size_t i = 0; i < count; i++) {
        memcpy((uint8_t *)opaque + 2 * units[i], (const uint8_t *)values + 2 * i, 2);
    }
    return WEFT_OK;
}

static weft_view *view_of(weft_context *context, weft_table **table, const weft_access *access,
                          void *memory) {
    weft_tensor tensor = {.size = sizeof tensor,
                          .name = "w",
                          .dtype = WEFT_DTYPE_BF16,
                          .rank = 1,
                          .shape = {UNITS},
                          .access = access,
                          .opaque = memory,
                          .writable = true};
    weft_view *view = NULL;
    assert_int_equal(weft_table_create(context, table), WEFT_OK);
    assert_int_equal(weft_table_add(*table, &tensor), WEFT_OK);
    assert_int_equal(weft_view_create(context, *table, &view), WEFT_OK);
    return view;
}

/* What cannot be gathered is read; what cannot be scattered is refused before anything is committed. */
static void test_missing_callbacks(void **state) {
    (void)state;
    const weft_profile profiles[] = {WEFT_PROFILE_FAST, WEFT_PROFILE_SMALL};
    for (size_t p = 0; p < 2; p++) {
        weft_context *context = patches_context(2);
        pair pair;
        open_pair(&pair, context, profiles[p]);
        weft_access access = {.read = read_bytes};
        weft_table *table = NULL;
        weft_view *view = view_of(context, &table, &access, pair.memory[0]);
        weft_sums *sums = patches_sums(context, view);
        weft_apply *apply = NULL;
        assert_int_equal(weft_apply_create(context, pair.patch, view, sums, &apply), WEFT_OK);
        assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
        assert_true(pair_at_old(&pair));
        access.scatter = scatter_units;
        assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
        assert_int_equal(weft_apply_commit(apply), WEFT_OK);
        assert_true(pair_at_new(&pair));
        weft_apply_destroy(apply);
        weft_sums_destroy(sums);
        weft_view_destroy(view);
        weft_table_destroy(table);
        pair_close(&pair);
        weft_context_destroy(context);
    }
}

/* A description is no tensor to differ from. */
static void test_no_memory_behind(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_FAST);
    weft_table *table = NULL;
    weft_view *view = view_of(context, &table, NULL, NULL);
    weft_sums *sums = patches_sums(context, pair.live.view);
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    assert_int_equal(weft_diff(context, pair.live.view, view, NULL, &sink, NULL), WEFT_INVALID_ARGUMENT);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, pair.patch, view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_INVALID_ARGUMENT);
    weft_apply_destroy(apply);
    weft_sums_destroy(sums);
    weft_view_destroy(view);
    weft_table_destroy(table);
    bytes_clear(&file);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* Sums of other tensors would be read past their end, or promise a base that is none. */
static void test_foreign_sums(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_FAST);
    model other;
    model_open(&other, context);
    model_add(&other, "w", WEFT_DTYPE_BF16, 16, 0);
    weft_sums *sums = patches_sums(context, model_show(&other));
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(context, pair.patch, pair.live.view, sums, &apply),
                     WEFT_INVALID_ARGUMENT);
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    weft_diff_options options = {.size = sizeof options, .base_sums = sums};
    assert_int_equal(weft_diff(context, pair.live.view, pair.next.view, &options, &sink, NULL),
                     WEFT_INVALID_ARGUMENT);
    weft_sums_destroy(sums);
    model_close(&other);
    bytes_clear(&file);
    pair_close(&pair);
    weft_context_destroy(context);
}

/* Each block goes back to the allocator that it came from, whichever context opened the patch, and the
 * failure is told by the context at work. */
static void test_two_contexts(void **state) {
    (void)state;
    weft_context *context = patches_context(2);
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_SMALL);
    faults counted = {0};
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(&counted), .threads = 2};
    weft_context *other = NULL;
    assert_int_equal(weft_context_create(&options, &other), WEFT_OK);
    weft_sums *sums = patches_sums(other, pair.live.view);
    weft_apply *apply = NULL;
    assert_int_equal(weft_apply_create(other, pair.patch, pair.live.view, sums, &apply), WEFT_OK);
    assert_int_equal(weft_apply_prepare(apply), WEFT_OK);
    assert_int_equal(weft_apply_commit(apply), WEFT_OK);
    assert_true(pair_at_new(&pair));
    weft_apply_destroy(apply);
    assert_int_equal(weft_apply_create(other, pair.patch, pair.live.view, sums, &apply),
                     WEFT_BASE_MISMATCH);
    assert_string_not_equal(weft_context_error(other), "");
    assert_string_equal(weft_context_error(context), "");
    pair_reset(&pair);
    bytes file = {0};
    weft_sink sink = bytes_sink(&file);
    const weft_patch *list[] = {pair.patch};
    weft_merge_options merge = {
        .size = sizeof merge, .profile = WEFT_PROFILE_SMALL, .base = pair.live.view};
    assert_int_equal(weft_merge(other, list, 1, &merge, &sink, NULL), WEFT_OK);
    weft_sums_destroy(sums);
    weft_context_destroy(other);
    assert_int_equal(faults_live_blocks(&counted), 0);
    bytes_clear(&file);
    pair_close(&pair);
    weft_context_destroy(context);
}

static void test_no_such_tensor(void **state) {
    (void)state;
    weft_context *context = patches_context(1);
    pair pair;
    open_pair(&pair, context, WEFT_PROFILE_FAST);
    weft_fate fate = WEFT_FATE_REMOVED;
    assert_null(weft_patch_tensor(pair.patch, 1, &fate));
    assert_string_equal(weft_patch_tensor(pair.patch, 0, &fate)->name, "w");
    assert_int_equal(fate, WEFT_FATE_KEPT);
    weft_bucket_info info = {.size = sizeof info};
    assert_int_equal(weft_patch_bucket(context, pair.patch, 1000, &info), WEFT_INVALID_ARGUMENT);
    pair_close(&pair);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_callbacks), cmocka_unit_test(test_no_memory_behind),
        cmocka_unit_test(test_foreign_sums),      cmocka_unit_test(test_two_contexts),
        cmocka_unit_test(test_no_such_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
