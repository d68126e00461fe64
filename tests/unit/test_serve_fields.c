/* SPDX-License-Identifier: Apache-2.0
 *
 * test_serve_fields.c: the text of requests to `weft serve`: ranges at every edge of an object, entity
 * tags, paths in many disguises, numbers.
 */
#include "../../programs/server/serve_fields.c"

#include <weft/store.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* ---- ranges ---- */

static void check_range(const char *field, uint64_t size, serve_range_kind kind, uint64_t offset,
                        uint64_t length) {
    serve_range range = serve_range_parse(field, size);
    if (range.kind != kind || (kind == RANGE_PART && (range.offset != offset || range.length != length))) {
        fail_msg("'%s' of %llu bytes gave kind %d, %llu+%llu", field, (unsigned long long)size, range.kind,
                 (unsigned long long)range.offset, (unsigned long long)range.length);
    }
}

static void test_ranges_select(void **state) {
    (void)state;
    check_range("bytes=0-0", 10, RANGE_PART, 0, 1);
    check_range("bytes=0-9", 10, RANGE_PART, 0, 10);
    check_range("bytes=0-10", 10, RANGE_PART, 0, 10);
    check_range("bytes=9-", 10, RANGE_PART, 9, 1);
    check_range("bytes=3-5", 10, RANGE_PART, 3, 3);
    check_range("bytes=-1", 10, RANGE_PART, 9, 1);
    check_range("bytes=-10", 10, RANGE_PART, 0, 10);
    check_range("bytes=-11", 10, RANGE_PART, 0, 10);
    check_range("BYTES=1-2", 10, RANGE_PART, 1, 2);
    check_range(" bytes= ,\t1-2 , ,", 10, RANGE_PART, 1, 2);
    check_range("bytes=000000000000000000000000000001-02", 10, RANGE_PART, 1, 2);
    check_range("bytes=5-18446744073709551615", 10, RANGE_PART, 5, 5);
    check_range("bytes=5-99999999999999999999999", 10, RANGE_PART, 5, 5);
    check_range("bytes=-99999999999999999999999", 10, RANGE_PART, 0, 10);
    check_range("bytes=0-18446744073709551615", UINT64_MAX, RANGE_PART, 0, UINT64_MAX);
    check_range("bytes=18446744073709551614-", UINT64_MAX, RANGE_PART, UINT64_MAX - 1, 1);
}

static void test_ranges_beyond_the_end(void **state) {
    (void)state;
    check_range("bytes=10-", 10, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=10-20", 10, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=-0", 10, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=0-", 0, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=0-0", 0, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=-0", 0, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=18446744073709551615-", UINT64_MAX, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=99999999999999999999999-", UINT64_MAX, RANGE_UNSATISFIABLE, 0, 0);
    check_range("bytes=-5", 0, RANGE_WHOLE, 0, 0);
}

static void test_ranges_to_ignore(void **state) {
    static const char *const fields[] = {
        "",           "bytes",         "bytes=",      "bytes=-",    "bytes=,",     "bytes=a-b",
        "bytes=1",    "bytes=5-3",     "bytes=0-1,",  "items=0-1",  "bytes:0-1",   "bytes 0-1",
        "byte=0-1",   "bytes=0-1x",    "bytes=0--1",  "bytes=--1",  "bytes=+0-1",  "bytes=0 -1",
        "bytes=0- 1", "bytes=1-2,4-5", "bytes=0x0-1", "bytes=0-1;", "bytes=0-1 2", "=0-1",
        "bytes==0-1", "bytes=-1,-2",   "0-1",
    };
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i], "bytes=0-1,") != 0) {
            check_range(fields[i], 10, RANGE_WHOLE, 0, 0);
        }
    }
    check_range("bytes=0-1,", 10, RANGE_PART, 0, 2);
    assert_int_equal(serve_range_parse(NULL, 10).kind, RANGE_WHOLE);
}

/* Every range over small objects, against the plainest reading of the rule. */
static void test_ranges_all_small(void **state) {
    (void)state;
    for (uint64_t size = 0; size < 6; size++) {
        for (uint64_t first = 0; first < 8; first++) {
            for (uint64_t last = first; last < 8; last++) {
                char field[32];
                snprintf(field, sizeof field, "bytes=%d-%d", (int)first, (int)last);
                uint64_t end = last < size ? last + 1 : size;
                check_range(field, size, first < size ? RANGE_PART : RANGE_UNSATISFIABLE, first,
                            end - first);
            }
        }
    }
}

/* ---- entity tags ---- */

static void test_tags(void **state) {
    (void)state;
    assert_true(serve_tags_hold("\"a\"", "a", false));
    assert_true(serve_tags_hold("\"b\", \"a\"", "a", false));
    assert_true(serve_tags_hold(",, \"b\",\t\"a\",", "a", false));
    assert_true(serve_tags_hold("*", "a", false));
    assert_true(serve_tags_hold(" * ", "a", false));
    assert_true(serve_tags_hold("W/\"a\"", "a", true));
    assert_true(serve_tags_hold("\"\"", "", false));
    assert_true(serve_tags_hold("\"x,\\\"\"", "x,\\", false));

    assert_false(serve_tags_hold("W/\"a\"", "a", false));
    assert_false(serve_tags_hold("w/\"a\"", "a", true));
    assert_false(serve_tags_hold("\"A\"", "a", false));
    assert_false(serve_tags_hold("\"aa\"", "a", false));
    assert_false(serve_tags_hold("\"a", "a", false));
    assert_false(serve_tags_hold("a", "a", false));
    assert_false(serve_tags_hold("", "a", false));
    assert_false(serve_tags_hold("", "", false));
    assert_false(serve_tags_hold("*, \"a\"", "a", false));
    assert_false(serve_tags_hold("x \"a\"", "a", false));
    assert_false(serve_tags_hold("W/", "a", true));

    assert_true(serve_tags_any("*"));
    assert_false(serve_tags_any("\"*\""));
    assert_false(serve_tags_any("**"));
    assert_false(serve_tags_any(""));
}

/* ---- paths ---- */

static void check_path(const char *path, const char *expected) {
    char key[WEFT_STORE_KEY_MAX + 1];
    bool decoded = serve_path_decode(path, key, sizeof key);
    bool valid = decoded && weft_store_key_valid(key);
    if (expected == NULL && valid) {
        fail_msg("'%s' became the key '%s'", path, key);
    }
    if (expected != NULL && (!valid || strcmp(key, expected) != 0)) {
        fail_msg("'%s' is not '%s'", path, expected);
    }
}

static void test_paths(void **state) {
    (void)state;
    check_path("/a", "a");
    check_path("/heads/00000001", "heads/00000001");
    check_path("/pages/%61%2Db", "pages/a-b");
    check_path("/pages%2Fa", "pages/a");

    static const char *const refused[] = {
        "",
        "a",
        "/",
        "//a",
        "/a/",
        "/a//b",
        "/.",
        "/..",
        "/../a",
        "/a/../b",
        "/a/..",
        "/%2e%2e/a",
        "/a/%2E%2E",
        "/a/.%2e/b",
        "/%2e",
        "/a%00",
        "/a%00.b",
        "/%",
        "/a%2",
        "/a%zz",
        "/a%2g",
        "/a\\b",
        "/a%5cb",
        "/..%2f..%2fetc",
        "/%252e%252e/a",
        "/.tmp-x",
        "/a/.lock",
        "/a b",
        "/a%20b",
        "/a%0d%0ab",
        "/\xc0\xae\xc0\xae/a",
        "/%c0%ae%c0%ae/a",
        "/a%ff",
        "/a:b",
        "/~/../b",
        "http://host/a",
        "*",
        "/a/./b",
        "/%2fa",
        "/a%2f",
        "/a?b",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        check_path(refused[i], NULL);
    }
}

static void test_paths_have_a_longest(void **state) {
    char path[WEFT_STORE_KEY_MAX + 3];
    char key[WEFT_STORE_KEY_MAX + 1];
    (void)state;
    memset(path, 'a', sizeof path);
    path[0] = '/';
    path[WEFT_STORE_KEY_MAX + 1] = 0;
    assert_true(serve_path_decode(path, key, sizeof key));
    assert_int_equal(strlen(key), WEFT_STORE_KEY_MAX);
    path[WEFT_STORE_KEY_MAX + 1] = 'a';
    path[WEFT_STORE_KEY_MAX + 2] = 0;
    assert_false(serve_path_decode(path, key, sizeof key));
}

/* ---- the rest ---- */

static void test_hosts(void **state) {
    (void)state;
    static const char *const names[] = {"one.example", "two"};
    static const char *const good[] = {"127.0.0.1",        "10.1.2.3:80", "[::1]",       "[fe80::1]:1",
                                       "localhost",        "LocalHost:5", "One.Example", "two:1",
                                       "[::ffff:1.2.3.4]", "two:"};
    static const char *const bad[] = {"",        "one",   "one.example.", "two.example", "127.0.0.1.x",
                                      "127.1",   "[::1",  "[::1]x",       "[127.0.0.1]", "::1",
                                      "two:1:2", "two:x", "localhost:-1", "a@two",       "[]",
                                      "[two]",   ":80",   "two two",      "1:2",         "[::1]:x"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(serve_host_known(good[i], names, 2));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(serve_host_known(bad[i], names, 2));
    }
    assert_false(serve_host_known("two", names, 1));
}

static void test_bearer(void **state) {
    size_t length = 0;
    (void)state;
    assert_string_equal(serve_bearer("Bearer abc", &length), "abc");
    assert_int_equal(length, 3);
    assert_non_null(serve_bearer("bEARER   a b \t", &length));
    assert_int_equal(length, 3);
    assert_non_null(serve_bearer("Bearer ", &length));
    assert_int_equal(length, 0);
    assert_null(serve_bearer("Bearer", &length));
    assert_null(serve_bearer("Bearerabc", &length));
    assert_null(serve_bearer("Basic abc", &length));
    assert_null(serve_bearer("", &length));
}

static void test_numbers(void **state) {
    uint64_t value = 7;
    double seconds = 7;
    (void)state;
    assert_true(serve_number("0", &value) && value == 0);
    assert_true(serve_number("9999999999999999999", &value) && value == 9999999999999999999u);
    assert_false(serve_number("18446744073709551616", &value));
    assert_false(serve_number("", &value));
    assert_false(serve_number("-1", &value));
    assert_false(serve_number("1 ", &value));
    assert_false(serve_number("0x1", &value));
    assert_true(serve_seconds("0.25", &seconds) && seconds == 0.25);
    assert_true(serve_seconds("30", &seconds) && seconds == 30);
    assert_false(serve_seconds("", &seconds));
    assert_false(serve_seconds(".5", &seconds));
    assert_false(serve_seconds("1.2.3", &seconds));
    assert_false(serve_seconds("1e9", &seconds));
    assert_false(serve_seconds("nan", &seconds));
    assert_false(serve_seconds("-1", &seconds));
    assert_false(serve_seconds("99999999", &seconds));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_select),
        cmocka_unit_test(test_ranges_beyond_the_end),
        cmocka_unit_test(test_ranges_to_ignore),
        cmocka_unit_test(test_ranges_all_small),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_paths_have_a_longest),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_bearer),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
