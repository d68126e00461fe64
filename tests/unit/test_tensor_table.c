/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tensor_table.c: dtypes, and the table of tensors: order, lookup, sizes, ties, what it refuses, a
 * great many tensors, and each allocation failed in turn.
 */
#include "../../lib/tensor/table.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_context *open_context(faults *faults, uint64_t tensors) {
    weft_context_options options = {.size = sizeof options,
                                    .threads = 1,
                                    .limits =
                                        &(weft_limits){.size = sizeof(weft_limits), .tensors = tensors}};
    if (faults != NULL) {
        options.allocator = faults_allocator(faults);
    }
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static weft_table *open_table(weft_context *context) {
    weft_table *table = NULL;
    assert_int_equal(weft_table_create(context, &table), WEFT_OK);
    return table;
}

static weft_tensor vector(const char *name, weft_dtype dtype, uint64_t length) {
    return (weft_tensor){
        .size = sizeof(weft_tensor), .name = name, .dtype = dtype, .rank = 1, .shape = {length}};
}

static void add(weft_table *table, const char *name) {
    weft_tensor tensor = vector(name, WEFT_DTYPE_F32, 2);
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
}

/* ---- dtypes ---- */

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned bits;
        unsigned width;
    } expected[] = {
        {"BOOL", 8, 1},    {"U8", 8, 1},      {"I8", 8, 1},          {"F8_E5M2", 8, 1},
        {"F8_E4M3", 8, 1}, {"F8_E8M0", 8, 1}, {"F8_E5M2FNUZ", 8, 1}, {"F8_E4M3FNUZ", 8, 1},
        {"F4", 4, 1},      {"F6_E2M3", 6, 1}, {"F6_E3M2", 6, 1},     {"U16", 16, 2},
        {"I16", 16, 2},    {"F16", 16, 2},    {"BF16", 16, 2},       {"U32", 32, 4},
        {"I32", 32, 4},    {"F32", 32, 4},    {"U64", 64, 8},        {"I64", 64, 8},
        {"F64", 64, 8},    {"C64", 64, 8},
    };
    size_t count = sizeof expected / sizeof expected[0];
    assert_int_equal(count, WEFT_DTYPE_C64);
    for (size_t i = 0; i < count; i++) {
        weft_dtype dtype = (weft_dtype)(i + 1);
        assert_string_equal(weft_dtype_name(dtype), expected[i].name);
        assert_int_equal(weft_dtype_bits(dtype), expected[i].bits);
        assert_int_equal(weft_dtype_width(dtype), expected[i].width);
        weft_dtype parsed = 0;
        assert_true(weft_dtype_parse(expected[i].name, &parsed));
        assert_int_equal(parsed, dtype);
    }
    static const int wrong[] = {0, 23, 24, 255, -1, 0x7fffffff};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_null(weft_dtype_name((weft_dtype)wrong[i]));
        assert_int_equal(weft_dtype_bits((weft_dtype)wrong[i]), 0);
    }
    weft_dtype parsed = 0;
    assert_false(weft_dtype_parse("bf16", &parsed));
    assert_false(weft_dtype_parse("", &parsed));
    assert_false(weft_dtype_parse("F3", &parsed));
    assert_int_equal(parsed, 0);
}

/* ---- sizes ---- */

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        weft_dtype dtype;
        uint32_t rank;
        uint64_t shape[4];
        weft_status status;
        uint64_t bytes;
        uint64_t units;
    } cases[] = {
        {WEFT_DTYPE_F32, 0, {0}, WEFT_OK, 4, 1}, /* 0-d */
        {WEFT_DTYPE_C64, 0, {0}, WEFT_OK, 8, 1},
        {WEFT_DTYPE_BF16, 2, {3, 5}, WEFT_OK, 30, 15},
        {WEFT_DTYPE_BF16, 3, {3, 0, 5}, WEFT_OK, 0, 0},
        {WEFT_DTYPE_F4, 1, {6}, WEFT_OK, 3, 3},
        {WEFT_DTYPE_F4, 1, {5}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_F4, 0, {0}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_F6_E2M3, 2, {2, 2}, WEFT_OK, 3, 3},
        {WEFT_DTYPE_F6_E3M2, 1, {3}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_F6_E3M2, 2, {3, 0}, WEFT_OK, 0, 0},
        {WEFT_DTYPE_U8, 1, {(uint64_t)1 << 59}, WEFT_OK, (uint64_t)1 << 59, (uint64_t)1 << 59},
        {WEFT_DTYPE_U8, 1, {(uint64_t)1 << 60}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_U8, 1, {UINT64_MAX}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_U8, 2, {(uint64_t)1 << 32, (uint64_t)1 << 32}, WEFT_INVALID_ARGUMENT, 0, 0},
        /* empty, but no product of its dimensions may overflow either, wherever the zero stands */
        {WEFT_DTYPE_U8, 3, {0, (uint64_t)1 << 32, (uint64_t)1 << 32}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_U8, 3, {(uint64_t)1 << 32, (uint64_t)1 << 32, 0}, WEFT_INVALID_ARGUMENT, 0, 0},
        {WEFT_DTYPE_F64, 1, {((uint64_t)1 << 61) + 1}, WEFT_INVALID_ARGUMENT, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_context *context = open_context(NULL, 0);
        weft_table *table = open_table(context);
        weft_tensor tensor = {.size = sizeof tensor,
                              .name = "t",
                              .dtype = cases[i].dtype,
                              .rank = cases[i].rank,
                              .bytes = 12345};
        memcpy(tensor.shape, cases[i].shape, sizeof cases[i].shape);
        assert_int_equal(weft_table_add(table, &tensor), cases[i].status);
        if (cases[i].status == WEFT_OK) {
            const weft_tensor *added = weft_table_at(table, 0);
            assert_true(added->bytes == cases[i].bytes);
            assert_true(weft_tensor_units(added) == cases[i].units);
            assert_int_equal(added->storage, cases[i].dtype);
            assert_true(weft_table_bytes(table) == cases[i].bytes);
        } else {
            assert_int_equal(weft_table_count(table), 0);
            assert_non_null(strstr(weft_context_error(context), "\"t\""));
        }
        weft_table_destroy(table);
        weft_context_destroy(context);
    }
}

static void test_total_must_not_overflow(void **state) {
    (void)state;
    weft_context *context = open_context(NULL, 0);
    weft_table *table = open_table(context);
    char name[8];
    size_t added = 0;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && added < 32) {
        snprintf(name, sizeof name, "t%zu", added);
        weft_tensor tensor = vector(name, WEFT_DTYPE_U8, (uint64_t)1 << 59);
        status = weft_table_add(table, &tensor);
        added += status == WEFT_OK ? 1 : 0;
    }
    assert_int_equal(status, WEFT_INVALID_ARGUMENT);
    assert_int_equal(added, 15);
    assert_int_equal(weft_table_count(table), 15);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

/* ---- order, lookup, ties ---- */

static void test_order_and_ties(void **state) {
    (void)state;
    weft_context *context = open_context(NULL, 0);
    weft_table *table = open_table(context);
    assert_int_equal(weft_table_sorted_count(table), 0);
    assert_int_equal(weft_table_find(table, "a"), -1);
    static const char *const names[] = {"b", "a.10", "\xc3\xa4", "a.2", "B", "a", ""};
    for (size_t i = 0; i < 7; i++) {
        add(table, names[i]);
    }
    assert_int_equal(weft_table_tie(table, "aa", "b"), WEFT_OK);
    assert_int_equal(weft_table_count(table), 8);
    for (size_t i = 0; i < 7; i++) {
        assert_string_equal(weft_table_at(table, i)->name, names[i]);
        assert_ptr_not_equal(weft_table_at(table, i)->name, names[i]);
        assert_int_equal(weft_table_find(table, names[i]), i);
        assert_int_equal(weft_table_at(table, i)->tied_to, -1);
    }
    assert_int_equal(weft_table_find(table, "aa"), 7);
    assert_int_equal(weft_table_at(table, 7)->tied_to, 0);
    assert_int_equal(weft_table_at(table, 7)->bytes, 8);
    assert_null(weft_table_at(table, 8));
    assert_int_equal(weft_table_find(table, "c"), -1);
    assert_int_equal(weft_table_bytes(table), 7 * 8);
    static const size_t sorted[] = {6, 4, 5, 1, 3, 0, 2};
    assert_int_equal(weft_table_sorted_count(table), 7);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(weft_table_sorted(table, i), sorted[i]);
    }
    assert_int_equal(weft_table_tie(table, "x", "aa"), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "tie it to \"b\""));
    assert_int_equal(weft_table_tie(table, "x", "nowhere"), WEFT_NOT_FOUND);
    assert_int_equal(weft_table_tie(table, "a", "b"), WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_table_count(table), 8);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

/* The tree against a plain sort, after every insertion order that is likely to hurt a tree, with ties in
 * between. */
static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void check_many(size_t count, uint64_t (*number)(uint64_t)) {
    weft_context *context = open_context(NULL, 0);
    weft_table *table = open_table(context);
    char **names = calloc(count, sizeof *names);
    assert_non_null(names);
    for (size_t i = 0; i < count; i++) {
        names[i] = malloc(32);
        assert_non_null(names[i]);
        snprintf(names[i], 32, "%012llu", (unsigned long long)number(i));
        add(table, names[i]);
        if (i % 3 == 0) {
            char tie[40];
            snprintf(tie, sizeof tie, "%s.tie", names[i]);
            assert_int_equal(weft_table_tie(table, tie, names[i]), WEFT_OK);
        }
    }
    qsort(names, count, sizeof *names, compare_names);
    assert_int_equal(weft_table_sorted_count(table), count);
    for (size_t i = 0; i < count; i++) {
        size_t index = weft_table_sorted(table, i);
        assert_string_equal(weft_table_at(table, index)->name, names[i]);
        assert_int_equal(weft_table_find(table, names[i]), index);
        free(names[i]);
    }
    free(names);
    weft_table_destroy(table);
    weft_context_destroy(context);
}

static uint64_t ascending(uint64_t i) {
    return i;
}
static uint64_t descending(uint64_t i) {
    return 1000000000 - i;
}
static uint64_t scattered(uint64_t i) {
    return i * 2654435761u % 1000000007u;
}
static uint64_t from_both_ends(uint64_t i) {
    return i % 2 == 0 ? i : 1000000000 - i;
}

static void test_many(void **state) {
    (void)state;
    check_many(20000, ascending);
    check_many(20000, descending);
    check_many(20000, scattered);
    check_many(20000, from_both_ends);
    /* a quadratic table would not come back from this one within the test's time limit */
    check_many(300000, scattered);
}

/* ---- refusals ---- */

static void expect_refused(weft_table *table, weft_context *context, const weft_tensor *tensor,
                           weft_status status, const char *text) {
    size_t count = weft_table_count(table);
    assert_int_equal(weft_table_add(table, tensor), status);
    if (strstr(weft_context_error(context), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_context_error(context), text);
    }
    assert_int_equal(weft_table_count(table), count);
}

static void test_refusals(void **state) {
    (void)state;
    weft_context *context = open_context(NULL, 3);
    weft_table *table = open_table(context);
    add(table, "here");
    weft_tensor tensor = vector("here", WEFT_DTYPE_U8, 1);
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "two tensors named \"here\"");
    tensor.name = NULL;
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "needs a name");
    static const char *const not_utf8[] = {"\xff",
                                           "\xc3",
                                           "\xc0\xaf",
                                           "\xed\xa0\x80",
                                           "\xe0\x80\xaf",
                                           "\xf4\x90\x80\x80",
                                           "\xf0\x80\x80\xaf",
                                           "\xf5\x80\x80\x80",
                                           "\x80",
                                           "a\xe2\x82"};
    for (size_t i = 0; i < sizeof not_utf8 / sizeof not_utf8[0]; i++) {
        tensor.name = not_utf8[i];
        expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "not UTF-8");
    }
    char name[WEFT_NAME_MAX + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    tensor.name = name;
    expect_refused(table, context, &tensor, WEFT_LIMIT_EXCEEDED, "longer than 4096");
    name[WEFT_NAME_MAX] = '\0';
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);

    tensor = vector("t", (weft_dtype)99, 1);
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "99 is no dtype");
    tensor = vector("t", WEFT_DTYPE_BF16, 1);
    tensor.rank = WEFT_RANK_MAX + 1;
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "17 dimensions");
    tensor = vector("t", WEFT_DTYPE_F16, 1);
    tensor.storage = WEFT_DTYPE_F32;
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "F32 for BF16");
    tensor = vector("t", WEFT_DTYPE_BF16, 1);
    tensor.storage = WEFT_DTYPE_F64;
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "F32 for BF16");
    weft_access access = {0};
    tensor.storage = WEFT_DTYPE_F32;
    tensor.access = &access;
    expect_refused(table, context, &tensor, WEFT_INVALID_ARGUMENT, "plain memory");
    tensor.access = NULL;
    assert_int_equal(weft_table_add(table, &tensor), WEFT_OK);
    assert_int_equal(weft_table_at(table, 2)->bytes, 2);

    tensor = vector("one too many", WEFT_DTYPE_U8, 1);
    expect_refused(table, context, &tensor, WEFT_LIMIT_EXCEEDED, "limit of 3 tensors");
    weft_table_destroy(table);
    weft_table_destroy(NULL);
    weft_context_destroy(context);
}

/* ---- memory ---- */

static weft_status build_under_faults(faults *faults) {
    weft_context *context = NULL;
    weft_context_options options = {
        .size = sizeof options, .threads = 1, .allocator = faults_allocator(faults)};
    weft_status status = weft_context_create(&options, &context);
    weft_table *table = NULL;
    if (status == WEFT_OK) {
        status = weft_table_create(context, &table);
    }
    for (unsigned i = 0; i < 40 && status == WEFT_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        weft_tensor tensor = vector(name, WEFT_DTYPE_BF16, i);
        status = weft_table_add(table, &tensor);
        /* what was added before stays as it was */
        assert_int_equal(weft_table_count(table), status == WEFT_OK ? i + 1 : i);
        assert_int_equal(weft_table_find(table, "t0"), i == 0 && status != WEFT_OK ? -1 : 0);
    }
    if (status == WEFT_OK) {
        status = weft_table_tie(table, "tie", "t3");
    }
    weft_table_destroy(table);
    weft_context_destroy(context);
    return status;
}

static void test_every_allocation_failed(void **state) {
    (void)state;
    faults faults = {0};
    for (size_t n = 1;; n++) {
        faults_reset(&faults, n);
        weft_status status = build_under_faults(&faults);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            assert_true(n > 40);
            break;
        }
        assert_int_equal(status, WEFT_NO_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_total_must_not_overflow),
        cmocka_unit_test(test_order_and_ties),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_every_allocation_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
