/* SPDX-License-Identifier: Apache-2.0
 *
 * The store that goes wrong (tests/support/fault_store.h) over a directory: without rules it is the
 * directory, and each fault does what it says and is counted. Tests of synchronisation rest on that.
 */
#include "../support/described.h"
#include "fault_store.h"
#include "scratch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { SIZE = 1000 };

static scratch place;
static weft_context *context;
static weft_store *inner;
static weft_store *store;
static fault_store *faults;

/* ---- fixtures ---- */

static int set_up(void **state) {
    (void)state;
    scratch_open(&place);
    weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_store_open(context, scratch_path(&place, "store"), &options, &inner), WEFT_OK);
    assert_int_equal(fault_store_create(context, inner, 1, &store, &faults), WEFT_OK);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    weft_store_close(store);
    weft_store_close(inner);
    weft_context_destroy(context);
    scratch_close(&place);
    return 0;
}

static void set_rule(fault_rule rule) {
    fault_store_set(faults, &rule, 1);
}

static weft_status put(weft_store *to, const char *key, const void *data, size_t size) {
    return weft_store_put_bytes(context, to, key, data, size, WEFT_STORE_ALWAYS, NULL, NULL);
}

static weft_status put_text(const char *key, const char *text) {
    return put(store, key, text, strlen(text));
}

static weft_status get(weft_store *from, const char *key, void *buffer, size_t size,
                       weft_store_get_result *result) {
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = size, .buffer = buffer};
    return weft_store_get(context, from, &request, result);
}

static void assert_text(weft_store *from, const char *key, const char *text) {
    char buffer[100];
    weft_store_get_result result = {.size = sizeof result};
    assert_int_equal(get(from, key, buffer, sizeof buffer, &result), WEFT_OK);
    assert_int_equal(result.received, strlen(text));
    assert_int_equal(result.object_bytes, strlen(text));
    assert_memory_equal(buffer, text, strlen(text));
}

static weft_status ask(const char *key) {
    char buffer[100];
    weft_store_get_result result = {.size = sizeof result};
    return get(store, key, buffer, sizeof buffer, &result);
}

static void assert_count(fault_kind kind, uint64_t count) {
    assert_int_equal(fault_store_count(faults, kind), count);
}

static uint8_t *pattern(void) {
    static uint8_t bytes[SIZE];
    for (size_t i = 0; i < SIZE; i++) {
        bytes[i] = (uint8_t)(i * 7);
    }
    return bytes;
}

static bool count_visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)size;
    (void)age_seconds;
    ++*(size_t *)opaque;
    return true;
}

/* ---- no faults ---- */

static void test_without_rules(void **state) {
    (void)state;
    assert_string_equal(weft_store_url(store), weft_store_url(inner));
    assert_int_equal(store_traits(store).conditional, store_traits(inner).conditional);
    weft_store_tag tag, other;
    uint64_t size;
    assert_int_equal(ask("a/b"), WEFT_NOT_FOUND);
    assert_int_equal(put_text("a/b", "hello"), WEFT_OK);
    assert_text(inner, "a/b", "hello");
    assert_text(store, "a/b", "hello");
    assert_int_equal(weft_store_head(context, store, "a/b", &size, &tag), WEFT_OK);
    assert_int_equal(weft_store_head(context, inner, "a/b", NULL, &other), WEFT_OK);
    assert_int_equal(size, 5);
    assert_string_equal(tag.text, other.text);
    weft_store_get_result result = {.size = sizeof result};
    char buffer[8];
    weft_store_get_request request = {
        .size = sizeof request, .key = "a/b", .length = 8, .buffer = buffer, .unless = &tag};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_OK);
    assert_true(result.unchanged);
    assert_int_equal(weft_store_put_bytes(context, store, "a/b", "", 0, WEFT_STORE_IF_ABSENT, NULL, NULL),
                     WEFT_CONFLICT);
    size_t count = 0;
    assert_int_equal(weft_store_list(context, store, "a", count_visit, &count), WEFT_OK);
    assert_int_equal(count, 1);
    assert_int_equal(weft_store_remove(context, store, "a/b"), WEFT_OK);
    assert_int_equal(weft_store_head(context, inner, "a/b", NULL, NULL), WEFT_NOT_FOUND);
    for (fault_kind kind = 0; kind < FAULT_KINDS; kind++) {
        assert_count(kind, 0);
    }
    assert_int_equal(fault_store_calls(faults), 8);
}

/* ---- kinds ---- */

static void test_fail_and_lose(void **state) {
    (void)state;
    set_rule((fault_rule){.kind = FAULT_FAIL, .status = WEFT_NO_SPACE});
    assert_int_equal(put_text("a", "first"), WEFT_NO_SPACE);
    assert_true(strlen(weft_context_error(context)) > 0);
    assert_int_equal(weft_store_head(context, inner, "a", NULL, NULL), WEFT_NOT_FOUND);
    assert_int_equal(ask("a"), WEFT_NO_SPACE);
    set_rule((fault_rule){.kind = FAULT_LOSE, .operations = FAULT_ON_PUT | FAULT_ON_REMOVE});
    assert_int_equal(put_text("a", "second"), WEFT_REMOTE_FAILED);
    assert_text(store, "a", "second");
    assert_int_equal(weft_store_put_bytes(context, store, "a", "", 0, WEFT_STORE_IF_ABSENT, NULL, NULL),
                     WEFT_CONFLICT);
    assert_count(FAULT_LOSE, 1);
    assert_int_equal(weft_store_remove(context, store, "a"), WEFT_REMOTE_FAILED);
    assert_int_equal(ask("a"), WEFT_NOT_FOUND);
    assert_count(FAULT_LOSE, 2);
    set_rule((fault_rule){.kind = FAULT_FAIL, .operations = FAULT_ON_REMOVE | FAULT_ON_LIST});
    assert_int_equal(put_text("a", "third"), WEFT_OK);
    assert_int_equal(weft_store_remove(context, store, "a"), WEFT_REMOTE_FAILED);
    assert_text(store, "a", "third");
    size_t count = 0;
    assert_int_equal(weft_store_list(context, store, "", count_visit, &count), WEFT_REMOTE_FAILED);
    assert_int_equal(count, 0);
    assert_count(FAULT_FAIL, 4);
}

static void test_late(void **state) {
    (void)state;
    assert_int_equal(put_text("a", "text"), WEFT_OK);
    assert_int_equal(put_text("b", "text"), WEFT_OK);
    set_rule((fault_rule){.kind = FAULT_LATE, .per_key = 2});
    assert_int_equal(ask("a"), WEFT_NOT_FOUND);
    assert_int_equal(ask("b"), WEFT_NOT_FOUND);
    assert_int_equal(weft_store_head(context, store, "a", NULL, NULL), WEFT_NOT_FOUND);
    assert_int_equal(ask("a"), WEFT_OK);
    assert_int_equal(ask("b"), WEFT_NOT_FOUND);
    assert_int_equal(ask("b"), WEFT_OK);
    assert_count(FAULT_LATE, 4);
}

static void test_stale(void **state) {
    (void)state;
    set_rule((fault_rule){.kind = FAULT_STALE});
    weft_store_tag first, second, tag;
    uint64_t size;
    assert_int_equal(weft_store_put_bytes(context, store, "a", "one", 3, WEFT_STORE_ALWAYS, NULL, &first),
                     WEFT_OK);
    assert_text(store, "a", "one");
    assert_count(FAULT_STALE, 0);
    assert_int_equal(
        weft_store_put_bytes(context, store, "a", "other", 5, WEFT_STORE_ALWAYS, NULL, &second), WEFT_OK);
    assert_text(store, "a", "one");
    assert_text(inner, "a", "other");
    char buffer[8];
    weft_store_get_request request = {
        .size = sizeof request, .key = "a", .offset = 1, .length = 8, .buffer = buffer, .unless = &second};
    weft_store_get_result result = {.size = sizeof result};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_OK);
    assert_false(result.unchanged);
    assert_int_equal(result.received, 2);
    assert_memory_equal(buffer, "ne", 2);
    assert_string_equal(result.tag.text, first.text);
    request.unless = &first;
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_OK);
    assert_true(result.unchanged);
    assert_int_equal(weft_store_head(context, store, "a", &size, &tag), WEFT_OK);
    assert_int_equal(size, 3);
    assert_string_equal(tag.text, first.text);
    assert_count(FAULT_STALE, 4);
    /* what others put is seen too, when it is read */
    assert_int_equal(put(inner, "a", "third", 5), WEFT_OK);
    assert_text(store, "a", "other");
    assert_int_equal(ask("b"), WEFT_NOT_FOUND);
    assert_count(FAULT_STALE, 5);
}

static void test_wrong(void **state) {
    (void)state;
    set_rule((fault_rule){.kind = FAULT_WRONG, .pattern = "a"});
    assert_int_equal(put_text("a", "right"), WEFT_OK);
    assert_text(store, "a", "right");
    assert_count(FAULT_WRONG, 0);
    assert_int_equal(put_text("b", "wrong"), WEFT_OK);
    assert_text(store, "a", "wrong");
    assert_text(store, "b", "wrong");
    assert_int_equal(put(inner, "c", "elsewhere", 9), WEFT_OK);
    set_rule((fault_rule){.kind = FAULT_WRONG, .other = "c"});
    assert_text(store, "a", "elsewhere");
    assert_count(FAULT_WRONG, 2);
}

static void test_flip(void **state) {
    (void)state;
    uint8_t buffer[SIZE];
    weft_store_get_result result = {.size = sizeof result};
    assert_int_equal(put(store, "a", pattern(), SIZE), WEFT_OK);
    assert_int_equal(put(store, "empty", "", 0), WEFT_OK);
    set_rule((fault_rule){.kind = FAULT_FLIP});
    assert_int_equal(get(store, "a", buffer, SIZE, &result), WEFT_OK);
    assert_int_equal(result.received, SIZE);
    int bits = 0;
    for (size_t i = 0; i < SIZE; i++) {
        bits += __builtin_popcount(buffer[i] ^ pattern()[i]);
    }
    assert_int_equal(bits, 1);
    assert_text(store, "empty", "");
    assert_count(FAULT_FLIP, 1);
}

static void test_short(void **state) {
    (void)state;
    uint8_t buffer[SIZE];
    weft_store_get_result result = {.size = sizeof result};
    assert_int_equal(put(store, "a", pattern(), SIZE), WEFT_OK);
    set_rule((fault_rule){.kind = FAULT_SHORT});
    weft_store_get_request request = {
        .size = sizeof request, .key = "a", .offset = 100, .length = 500, .buffer = buffer};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_OK);
    assert_in_range(result.received, 0, 499);
    assert_int_equal(result.object_bytes, 100 + result.received);
    assert_memory_equal(buffer, pattern() + 100, result.received);
    assert_count(FAULT_SHORT, 1);
}

static void test_delay(void **state) {
    (void)state;
    struct timespec begin, end;
    set_rule((fault_rule){.kind = FAULT_DELAY, .seconds = 0.25, .limit = 1});
    clock_gettime(CLOCK_MONOTONIC, &begin);
    assert_int_equal(put_text("a", "text"), WEFT_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_true(seconds >= 0.25);
    assert_count(FAULT_DELAY, 1);
}

/* ---- rules ---- */

static void test_rules_choose(void **state) {
    (void)state;
    const fault_rule rules[] = {
        {.kind = FAULT_FAIL, .pattern = "heads/*", .skip = 1, .limit = 2, .status = WEFT_BUSY},
        {.kind = FAULT_FAIL, .operations = FAULT_ON_HEAD, .status = WEFT_IO_FAILED},
    };
    fault_store_set(faults, rules, 2);
    assert_int_equal(put_text("pages/1", "text"), WEFT_OK);
    assert_int_equal(put_text("heads/1", "text"), WEFT_OK);
    assert_int_equal(ask("heads/1"), WEFT_BUSY);
    assert_int_equal(ask("heads/1"), WEFT_BUSY);
    assert_int_equal(ask("heads/1"), WEFT_OK);
    assert_int_equal(weft_store_head(context, store, "heads/1", NULL, NULL), WEFT_IO_FAILED);
    fault_store_set(faults, NULL, 0);
    assert_int_equal(weft_store_head(context, store, "heads/1", NULL, NULL), WEFT_OK);
    assert_count(FAULT_FAIL, 3);
}

/* Which of 64 gets fail, as bits. */
static uint64_t series(uint64_t seed) {
    weft_store *chancy;
    fault_store *control;
    assert_int_equal(fault_store_create(context, inner, seed, &chancy, &control), WEFT_OK);
    fault_store_set(control, &(fault_rule){.kind = FAULT_FAIL, .probability = 0.5}, 1);
    uint64_t bits = 0;
    for (int i = 0; i < 64; i++) {
        weft_store_get_result result = {.size = sizeof result};
        char buffer[8];
        bits = bits << 1 | (get(chancy, "a", buffer, sizeof buffer, &result) != WEFT_OK);
    }
    assert_int_equal(fault_store_count(control, FAULT_FAIL), __builtin_popcountll(bits));
    weft_store_close(chancy);
    return bits;
}

static void test_the_same_seed_throws_the_same(void **state) {
    (void)state;
    assert_int_equal(put_text("a", "text"), WEFT_OK);
    uint64_t bits = series(5);
    assert_true(bits != 0 && bits != UINT64_MAX);
    assert_true(series(5) == bits);
    assert_true(series(6) != bits);
}

/* ---- numbers ---- */

/* Three operations; the status of the first that fails. */
static weft_status three_operations(void) {
    weft_status status = put_text("a", "text");
    if (status == WEFT_OK) {
        status = ask("a");
    }
    return status == WEFT_OK ? weft_store_remove(context, store, "a") : status;
}

static void test_each_operation_fails_in_turn(void **state) {
    (void)state;
    uint64_t n = 1;
    for (;; n++) {
        fault_store_fail_at(faults, n, WEFT_REMOTE_FAILED);
        weft_status status = three_operations();
        if (!fault_store_fired(faults)) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_REMOTE_FAILED);
        assert_int_equal(fault_store_calls(faults), n);
    }
    assert_int_equal(n, 4);
    assert_count(FAULT_FAIL, 3);

    fault_store_lose_at(faults, 3, WEFT_IO_FAILED);
    assert_int_equal(three_operations(), WEFT_IO_FAILED);
    assert_int_equal(weft_store_head(context, inner, "a", NULL, NULL), WEFT_NOT_FOUND);
    assert_count(FAULT_LOSE, 1);
    assert_int_equal(three_operations(), WEFT_OK);

    fault_store_fail_from(faults, 2, WEFT_IO_FAILED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(put_text("a", "text"), i == 0 ? WEFT_OK : WEFT_IO_FAILED);
    }
    fault_store_fail_at(faults, 0, WEFT_OK);
    assert_int_equal(three_operations(), WEFT_OK);
    assert_false(fault_store_fired(faults));
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 200, LIMIT = 50 };

static void *work(void *opaque) {
    size_t *failures = opaque;
    weft_context *own;
    if (weft_context_create(NULL, &own) != WEFT_OK) {
        return NULL;
    }
    for (int i = 0; i < ROUNDS; i++) {
        char buffer[100];
        weft_store_get_request request = {
            .size = sizeof request, .key = "a", .length = sizeof buffer, .buffer = buffer};
        weft_store_get_result result = {.size = sizeof result};
        *failures += weft_store_get(own, store, &request, &result) != WEFT_OK;
        if (weft_store_put_bytes(own, store, "b", buffer, (size_t)i % 10, WEFT_STORE_ALWAYS, NULL, NULL) !=
            WEFT_OK) {
            *failures += 1000000;
        }
    }
    weft_context_destroy(own);
    return NULL;
}

static void test_threads_share_limits(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    size_t failures[THREADS] = {0}, sum = 0;
    assert_int_equal(put_text("a", "text"), WEFT_OK);
    set_rule(
        (fault_rule){.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .probability = 0.5, .limit = LIMIT});
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, &failures[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += failures[i];
    }
    assert_int_equal(sum, LIMIT);
    assert_count(FAULT_FAIL, LIMIT);
}

/* ---- pauses ---- */

/* What another writes, and whether it was there in time. */
static void write_other(void *opaque) {
    const char *text = opaque;
    assert_int_equal(put(inner, "heads/1", text, strlen(text)), WEFT_OK);
}

static void test_pauses(void **state) {
    (void)state;
    char text[] = "theirs";
    const fault_rule before = {.kind = FAULT_PAUSE, .meanwhile = write_other, .opaque = text};
    const fault_rule after = {.kind = FAULT_PAUSE_AFTER, .meanwhile = write_other, .opaque = text};
    fault_store_strike_at(faults, 2, &before, false);
    assert_int_equal(put_text("a", "text"), WEFT_OK);
    assert_string_equal(fault_store_reached(faults), "");
    assert_int_equal(put_text("heads/1", "ours"), WEFT_OK);
    assert_string_equal(fault_store_reached(faults), "putting heads/1");
    assert_text(inner, "heads/1", "ours");
    fault_store_strike_at(faults, 1, &after, false);
    assert_int_equal(put_text("heads/1", "ours again"), WEFT_OK);
    assert_text(inner, "heads/1", "theirs");
    assert_count(FAULT_PAUSE, 1);
    assert_count(FAULT_PAUSE_AFTER, 1);
}

static void test_requests_on_their_way(void **state) {
    (void)state;
    const fault_rule held = {.kind = FAULT_HOLD};
    weft_store_tag tag;
    assert_int_equal(
        weft_store_put_bytes(context, store, "heads/1", "one", 3, WEFT_STORE_ALWAYS, NULL, &tag), WEFT_OK);
    fault_store_strike_at(faults, 1, &held, false);
    assert_int_equal(
        weft_store_put_bytes(context, store, "heads/1", "two", 3, WEFT_STORE_IF_SAME, &tag, NULL),
        WEFT_REMOTE_FAILED);
    assert_text(store, "heads/1", "one");
    assert_int_equal(fault_store_release(faults, context), 1);
    assert_text(store, "heads/1", "two");
    /* its condition is the one that it was sent with */
    fault_store_strike_at(faults, 1, &held, false);
    assert_int_equal(
        weft_store_put_bytes(context, store, "heads/2", "three", 5, WEFT_STORE_IF_ABSENT, NULL, NULL),
        WEFT_REMOTE_FAILED);
    assert_int_equal(put_text("heads/2", "first"), WEFT_OK);
    assert_int_equal(fault_store_release(faults, context), 1);
    assert_text(store, "heads/2", "first");
    /* a get is not held, and who is dead sends nothing more */
    fault_store_strike_at(faults, 1, &held, false);
    assert_text(store, "heads/2", "first");
    fault_store_strike_at(faults, 1, &held, true);
    assert_int_equal(weft_store_remove(context, store, "heads/2"), WEFT_REMOTE_FAILED);
    assert_int_equal(weft_store_remove(context, store, "heads/1"), WEFT_REMOTE_FAILED);
    assert_int_equal(fault_store_release(faults, context), 1);
    assert_int_equal(fault_store_release(faults, context), 0);
    assert_text(inner, "heads/1", "two");
    assert_int_equal(weft_store_head(context, inner, "heads/2", NULL, NULL), WEFT_NOT_FOUND);
    assert_count(FAULT_HOLD, 3);
}

static bool note_age(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)size;
    *(double *)opaque = age_seconds;
    return true;
}

static void test_plain_and_old(void **state) {
    (void)state;
    const fault_rule held = {.kind = FAULT_HOLD};
    double age = 0;
    assert_true(store_traits(store).conditional);
    fault_store_set_plain(faults, true);
    assert_false(store_traits(store).conditional);
    assert_int_equal(
        weft_store_put_bytes(context, store, "heads/1", "one", 3, WEFT_STORE_IF_ABSENT, NULL, NULL),
        WEFT_UNSUPPORTED);
    assert_int_equal(put_text("heads/1", "one"), WEFT_OK);
    assert_int_equal(put_text("heads/1", "two"), WEFT_OK);
    assert_int_equal(fault_store_overlaps(faults), 0);
    /* somebody else's is overwritten, unless it was seen */
    assert_int_equal(put(inner, "heads/1", "other", 5), WEFT_OK);
    assert_int_equal(put_text("heads/1", "three"), WEFT_OK);
    assert_int_equal(fault_store_overlaps(faults), 1);
    assert_int_equal(put(inner, "heads/1", "other", 5), WEFT_OK);
    assert_text(store, "heads/1", "other");
    assert_int_equal(put_text("heads/1", "four"), WEFT_OK);
    assert_int_equal(fault_store_overlaps(faults), 1);
    /* one's own is, by one that was given up */
    fault_store_strike_at(faults, 1, &held, false);
    assert_int_equal(put_text("heads/1", "five"), WEFT_REMOTE_FAILED);
    assert_int_equal(put_text("heads/1", "six"), WEFT_OK);
    assert_int_equal(fault_store_release(faults, context), 1);
    assert_int_equal(fault_store_overlaps(faults), 2);
    fault_store_set_age(faults, 86400);
    assert_int_equal(weft_store_list(context, store, "heads", note_age, &age), WEFT_OK);
    assert_true(age >= 86400);
}

#define STORE_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(test_without_rules),
        STORE_TEST(test_fail_and_lose),
        STORE_TEST(test_late),
        STORE_TEST(test_stale),
        STORE_TEST(test_wrong),
        STORE_TEST(test_flip),
        STORE_TEST(test_short),
        STORE_TEST(test_delay),
        STORE_TEST(test_rules_choose),
        STORE_TEST(test_the_same_seed_throws_the_same),
        STORE_TEST(test_each_operation_fails_in_turn),
        STORE_TEST(test_threads_share_limits),
        STORE_TEST(test_pauses),
        STORE_TEST(test_requests_on_their_way),
        STORE_TEST(test_plain_and_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
