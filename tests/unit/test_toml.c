/* SPDX-License-Identifier: Apache-2.0
 *
 * test_toml.c: configuration files: what is read, what is refused and in which line.
 */
#include "../../programs/base/toml.c"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

static bool read_text(const char *text, toml_document *document) {
    static char copy[1 << 17];
    size_t size = strlen(text);
    memcpy(copy, text, size);
    return toml_read(copy, size, document);
}

static void what_stands_there_is_read(void **state) {
    (void)state;
    static toml_document document;
    assert_true(
        read_text("# first\r\n top = 1\n[serve] # table\n listen = \"[::1]:0\"#c\n"
                  "host=[ 'a' , \"b\\u00e9\\\"\",# one\n\n 12.5e3\t]\nread-only = true\n\n[follow]\n"
                  "exec = 'a \\ \"b\"'\nlisten = -7",
                  &document));
    static const struct {
        const char *table, *key, *text;
        toml_kind kind;
        unsigned line;
        bool in_array;
    } wanted[] = {
        {"", "top", "1", TOML_NUMBER, 2, false},
        {"serve", "listen", "[::1]:0", TOML_STRING, 4, false},
        {"serve", "host", "a", TOML_STRING, 5, true},
        {"serve", "host", "b\xc3\xa9\"", TOML_STRING, 5, true},
        {"serve", "host", "12.5e3", TOML_NUMBER, 7, true},
        {"serve", "read-only", "true", TOML_BOOLEAN, 8, false},
        {"follow", "exec", "a \\ \"b\"", TOML_STRING, 11, false},
        {"follow", "listen", "-7", TOML_NUMBER, 12, false},
    };
    assert_int_equal(document.count, sizeof wanted / sizeof *wanted);
    for (size_t i = 0; i < document.count; i++) {
        const toml_item *item = &document.items[i];
        assert_string_equal(item->table, wanted[i].table);
        assert_string_equal(item->key, wanted[i].key);
        assert_string_equal(item->text, wanted[i].text);
        assert_int_equal(item->kind, wanted[i].kind);
        assert_int_equal(item->line, wanted[i].line);
        assert_int_equal(item->in_array, wanted[i].in_array);
    }
    assert_true(read_text("", &document) && document.count == 0);
}

static void what_is_wrong_is_told_with_its_line(void **state) {
    (void)state;
    static toml_document document;
    static const struct {
        const char *text;
        unsigned line;
        const char *error;
    } wrong[] = {
        {"a = 1\nb", 2, "NAME = VALUE"},
        {"a.b = 1", 1, "NAME = VALUE"},
        {"\"a\" = 1", 1, "NAME = VALUE"},
        {"a = ", 1, "no value"},
        {"a = x", 1, "quotes"},
        {"a = 01", 1, "quotes"},
        {"a = 1.", 1, "quotes"},
        {"a = 1_000", 1, "quotes"},
        {"a = 2026-01-01", 1, "quotes"},
        {"a = 1 2", 1, "more on this line"},
        {"a = \"\"\"b\"\"\"", 1, "more on this line"},
        {"\na = \"b\n\"", 2, "does not end"},
        {"a = 'b", 1, "does not end"},
        {"a = \"\\q\"", 1, "no such escape"},
        {"a = \"\\", 1, "no such escape"},
        {"a = \"\\u12\"", 1, "4 hexadecimal digits"},
        {"a = \"\\u0000\"", 1, "no character"},
        {"a = \"\\ud800\"", 1, "no character"},
        {"a = \"\\U00110000\"", 1, "no character"},
        {"a = 1\na = 2", 2, "'a' is given twice"},
        {"[t]\na = [1, 2]\na = 2", 3, "'a' is given twice"},
        {"[t]\n[t]", 2, "[t] is there twice"},
        {"[[t]]", 1, "a table is written"},
        {"[t", 1, "a table is written"},
        {"[a.b]", 1, "a table is written"},
        {"a = []", 1, "empty array"},
        {"a = [1,\n[2]]", 2, "no arrays or tables"},
        {"a = [1\n2]", 2, "comma"},
        {"a = [1", 1, "comma"},
        {"a = [,1]", 1, "no value"},
        {"a = {b = 1}", 1, "quotes"},
        {"a = 1\nb = \"\xff\"", 2, "UTF-8"},
        {"b = \"\xc0\xaf\"", 1, "UTF-8"},
        {"b = \"\xed\xa0\x80\"", 1, "UTF-8"},
        {"a = 1\x01", 1, "control character"},
        {"a = 1\r b = 1", 1, "control character"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(read_text(wrong[i].text, &document));
        assert_int_equal(document.line, wrong[i].line);
        assert_non_null(strstr(document.error, wrong[i].error));
    }
}

static void bounds_hold(void **state) {
    (void)state;
    static toml_document document;
    static char text[TOML_BYTES_MAX + 2];
    memset(text, '\n', TOML_BYTES_MAX);
    assert_true(toml_read(text, TOML_BYTES_MAX, &document));
    assert_false(toml_read(text, TOML_BYTES_MAX + 1, &document));
    size_t size = 0;
    for (int i = 0; i <= TOML_ITEMS_MAX; i++) {
        size += (size_t)sprintf(text + size, "k%d = 1\n", i);
    }
    assert_false(toml_read(text, size, &document));
    assert_int_equal(document.line, TOML_ITEMS_MAX + 1);
    size = 0;
    for (int i = 0; i <= TOML_TABLES_MAX; i++) {
        size += (size_t)sprintf(text + size, "[t%d]\n", i);
    }
    assert_false(toml_read(text, size, &document));
    assert_int_equal(document.line, TOML_TABLES_MAX + 1);
    static const char hole[] = "a = 1\0b = 2";
    memcpy(text, hole, sizeof hole);
    assert_false(toml_read(text, sizeof hole - 1, &document));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stands_there_is_read),
        cmocka_unit_test(what_is_wrong_is_told_with_its_line),
        cmocka_unit_test(bounds_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
