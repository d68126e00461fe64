/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_sized.c: programs that were built against an older or a newer header.
 *
 * The structures here are those of the library, cut short or with something behind them: what a program
 * passes that knows fewer or more members than this library.
 */
#include "../support/scratch.h"

#include <weft/weft.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_context *context;

static int open_context(void **state) {
    (void)state;
    return weft_context_create(NULL, &context) == WEFT_OK ? 0 : -1;
}

static int close_context(void **state) {
    (void)state;
    weft_context_destroy(context);
    return 0;
}

static void version_is_the_headers(void **state) {
    (void)state;
    unsigned version = WEFT_VERSION_MAJOR * 1000000 + WEFT_VERSION_MINOR * 1000 + WEFT_VERSION_PATCH;
    assert_int_equal(weft_version(), version);
}

/* Tomorrow's options: two members that this library does not know. */
typedef struct newer_options {
    weft_context_options known;
    uint64_t first;
    uint64_t second;
} newer_options;

static void newer_programs_run_unless_they_ask_for_more(void **state) {
    (void)state;
    newer_options options = {.known = {.size = sizeof options, .threads = 3}};
    weft_context *made = NULL;
    assert_int_equal(weft_context_create(&options.known, &made), WEFT_OK);
    assert_int_equal(weft_context_threads(made), 3);
    weft_context_destroy(made);
    options.second = 1;
    made = NULL;
    assert_int_equal(weft_context_create(&options.known, &made), WEFT_UNSUPPORTED);
    assert_null(made);
}

static void what_a_newer_program_sets_is_named(void **state) {
    (void)state;
    struct {
        weft_store_options known;
        uint64_t more;
    } options = {.known = {.size = sizeof options}, .more = 7};
    weft_store *store = NULL;
    assert_int_equal(weft_store_open(context, "/tmp", &options.known, &store), WEFT_UNSUPPORTED);
    assert_non_null(strstr(weft_context_error(context), "weft_store_options sets an option at byte"));
    options.more = 0;
    assert_int_equal(weft_store_open(context, "/tmp", &options.known, &store), WEFT_OK);
    weft_store_close(store);
}

static void older_programs_get_defaults(void **state) {
    (void)state;
    weft_context_options options = {.size = offsetof(weft_context_options, threads), .threads = 77};
    weft_context *made = NULL;
    assert_int_equal(weft_context_create(&options, &made), WEFT_OK);
    assert_int_not_equal(weft_context_threads(made), 77);
    weft_context_destroy(made);
}

static void a_size_that_was_never_set_is_refused(void **state) {
    (void)state;
    const size_t wrong[] = {0, 1, sizeof(size_t), (size_t)1 << 40, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_store_options options = {.size = wrong[i]};
        weft_store *store = NULL;
        assert_int_equal(weft_store_open(context, "/tmp", &options, &store), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), ".size = sizeof name"));
        assert_null(store);
        weft_context_options made = {.size = wrong[i]};
        weft_context *other = NULL;
        assert_int_equal(weft_context_create(&made, &other), WEFT_INVALID_ARGUMENT);
        assert_null(other);
    }
}

static void nothing_is_done_for_a_result_without_size(void **state) {
    (void)state;
    scratch place;
    scratch_open(&place);
    weft_store *store;
    char byte;
    assert_int_equal(weft_store_open(context, scratch_path(&place, "store"), NULL, &store), WEFT_OK);
    assert_int_equal(weft_store_put_bytes(context, store, "key", "x", 1, WEFT_STORE_ALWAYS, NULL, NULL),
                     WEFT_OK);
    weft_store_get_request request = {.size = sizeof request, .key = "key", .length = 1, .buffer = &byte};
    weft_store_get_result result = {0};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_INVALID_ARGUMENT);
    assert_non_null(strstr(weft_context_error(context), "weft_store_get_result"));
    weft_store_traits traits;
    memset(&traits, 0xa5, sizeof traits);
    traits.size = 0;
    weft_store_traits before = traits;
    weft_store_traits_of(store, &traits);
    assert_memory_equal(&traits, &before, sizeof traits);
    weft_store_close(store);
    scratch_close(&place);
}

/* An older program has no room for what came later: the library must not write there. */
static void results_end_where_the_program_says(void **state) {
    (void)state;
    scratch place;
    scratch_open(&place);
    weft_store *store;
    assert_int_equal(weft_store_open(context, scratch_path(&place, "store"), NULL, &store), WEFT_OK);
    for (size_t size = sizeof(size_t) + 1; size <= sizeof(weft_store_traits); size++) {
        unsigned char bytes[sizeof(weft_store_traits) + 8];
        memset(bytes, 0xa5, sizeof bytes);
        memcpy(bytes, &size, sizeof size);
        weft_store_traits_of(store, (weft_store_traits *)(void *)bytes);
        size_t kept;
        memcpy(&kept, bytes, sizeof kept);
        assert_int_equal(kept, size);
        for (size_t i = size; i < sizeof bytes; i++) {
            assert_int_equal(bytes[i], 0xa5);
        }
    }
    weft_store_close(store);
    scratch_close(&place);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_is_the_headers),
        cmocka_unit_test(newer_programs_run_unless_they_ask_for_more),
        cmocka_unit_test(what_a_newer_program_sets_is_named),
        cmocka_unit_test(older_programs_get_defaults),
        cmocka_unit_test(a_size_that_was_never_set_is_refused),
        cmocka_unit_test(nothing_is_done_for_a_result_without_size),
        cmocka_unit_test(results_end_where_the_program_says),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
