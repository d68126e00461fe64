/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sync_cuts.c: cuts that a follower announces are read as they were written, and nothing else is.
 */
#include "../../lib/sync/format/cuts.h"
#include "../../lib/sync/format/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static weft_context *open_context(void) {
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    return context;
}

static void test_round_trip(void **state) {
    (void)state;
    weft_context *context = open_context();
    const weft_cut cuts[] = {
        {"model.layers.*.self_attn.q_proj.weight", 0, 3}, {"a:1:b", 15, 1024}, {"*", 1, 1}};
    char text[WEFT_FOLLOWER_CUTS];
    assert_int_equal(weft_cuts_format(context, cuts, 3, text), WEFT_OK);
    assert_string_equal(text, "model.layers.*.self_attn.q_proj.weight:0:3 a:1:b:15:1024 *:1:1");
    weft_announced_cut found[WEFT_ANNOUNCED_CUTS];
    size_t count;
    assert_true(weft_cuts_parse(text, found, &count));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(found[i].pattern, cuts[i].pattern);
        assert_int_equal(found[i].dim, cuts[i].dim);
        assert_int_equal(found[i].parts, cuts[i].parts);
    }
    assert_int_equal(weft_cuts_format(context, NULL, 0, text), WEFT_OK);
    assert_true(weft_cuts_parse(text, found, &count));
    assert_int_equal(count, 0);
    weft_context_destroy(context);
}

static void test_wrong_texts(void **state) {
    (void)state;
    const char *const wrong[] = {" ",       "a",       "a:1",       "a:1:",    ":1:2",
                                 "a::2",    "a:0:0",   "a:0:1025",  "a:16:2",  "a:01:2",
                                 "a:0:02",  "a:-1:2",  "a:0:2 ",    " a:0:2",  "a:0:2  b",
                                 "a:0:2 b", "a:0:2x",  "a:0:99999", "a\n:0:2", "a\t:0:2",
                                 "a:0:2\n", "a:0x1:2", "a:+0:2",    "a:0: 2",  "*****:0:2"};
    weft_announced_cut found[WEFT_ANNOUNCED_CUTS];
    size_t count;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(weft_cuts_parse(wrong[i], found, &count));
    }
    char many[8 * (WEFT_ANNOUNCED_CUTS + 1)] = "a:0:2";
    for (size_t i = 1; i < WEFT_ANNOUNCED_CUTS; i++) {
        strcat(many, " a:0:2");
    }
    assert_true(weft_cuts_parse(many, found, &count));
    assert_int_equal(count, WEFT_ANNOUNCED_CUTS);
    strcat(many, " a:0:2");
    assert_false(weft_cuts_parse(many, found, &count));
}

static void test_what_cannot_be_announced(void **state) {
    (void)state;
    weft_context *context = open_context();
    char text[WEFT_FOLLOWER_CUTS];
    char longest[WEFT_ANNOUNCED_PATTERN + 1] = {0};
    memset(longest, 'a', WEFT_ANNOUNCED_PATTERN);
    const weft_cut wrong[] = {{"", 0, 2},   {"a b", 0, 2},  {longest, 0, 2}, {"*****", 0, 2},
                              {"a", 16, 2}, {"a", 0, 1025}, {"a", 0, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(weft_cuts_format(context, &wrong[i], 1, text), WEFT_INVALID_ARGUMENT);
    }
    longest[WEFT_ANNOUNCED_PATTERN - 1] = '\0';
    weft_cut many[10];
    for (size_t i = 0; i < 10; i++) {
        many[i] = (weft_cut){longest, 0, 2};
    }
    assert_int_equal(weft_cuts_format(context, many, 7, text), WEFT_OK);
    assert_int_equal(weft_cuts_format(context, many, 10, text), WEFT_LIMIT_EXCEEDED);
    weft_context_destroy(context);
}

/* The longest cuts leave no room for the longest error; they come first. A text that is no cuts is none. */
static void test_in_a_report(void **state) {
    (void)state;
    weft_context *context = open_context();
    weft_follower follower = {.name = "a", .run = "ab", .state = "failed", .interval_seconds = 5};
    weft_follower again;
    memset(follower.error, '"', sizeof follower.error - 1);
    memset(follower.cuts, 'a', sizeof follower.cuts - 1);
    for (size_t i = 0; i + 121 < sizeof follower.cuts; i += 121) {
        memcpy(follower.cuts + i + 116, ":0:2 ", 5);
    }
    follower.cuts[121 * 8 - 1] = '\0';
    uint8_t data[WEFT_REPORT_MAX];
    size_t size;
    assert_int_equal(weft_report_format(context, &follower, data, &size), WEFT_OK);
    assert_int_equal(weft_report_parse(context, "a", data, size, &again), WEFT_OK);
    assert_string_equal(again.cuts, follower.cuts);
    snprintf(follower.cuts, sizeof follower.cuts, "no cuts");
    assert_int_equal(weft_report_format(context, &follower, data, &size), WEFT_OK);
    assert_int_equal(weft_report_parse(context, "a", data, size, &again), WEFT_OK);
    assert_string_equal(again.cuts, "");
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_wrong_texts),
        cmocka_unit_test(test_what_cannot_be_announced),
        cmocka_unit_test(test_in_a_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
