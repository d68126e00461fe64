/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sync_fleet.c: followers are seen by what they tell, whatever others write beside it; retention and
 * publishers heed those that are there; and no follower pays for being seen.
 */
#include "../../lib/sync/fleet/fleet.h"
#include "../../lib/sync/format/report.h"
#include "../support/described.h"
#include "scenes.h"
#include "stride.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { ATTEMPTS = 3000 };

static void pause_briefly(void) {
    struct timespec time = {.tv_nsec = 20000000};
    nanosleep(&time, NULL);
}

/* ---- the text ---- */

static weft_follower example(void) {
    weft_follower follower = {
        .name = "worker-7.example_a",
        .run = "0123456789abcdef0123456789abcdef",
        .state = "fetching",
        .version = 41,
        .newest = 44,
        .milliseconds = 1794799232420,
        .published = 1794799231173,
        .phase_seconds = {1.5, 0.25, 0.125, 0.0625, 0.03125},
        .pause_seconds = 0.03125,
        .patches = 40,
        .anchors = 1,
        .healed = 2,
        .fetched_bytes = 123456,
        .requests = 99,
        .error_milliseconds = 1794799230000,
        .error = "the store is not there",
        .interval_seconds = 5,
        .reads = 2,
    };
    memset(follower.digest.bytes, 0xab, sizeof follower.digest.bytes);
    return follower;
}

static void test_round_trip(void **state) {
    (void)state;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_follower follower = example();
    weft_follower again;
    uint8_t data[WEFT_REPORT_MAX];
    size_t size;
    assert_int_equal(weft_report_format(context, &follower, data, &size), WEFT_OK);
    assert_int_equal(weft_report_parse(context, follower.name, data, size, &again), WEFT_OK);
    assert_memory_equal(&follower, &again, sizeof again);
    weft_context_destroy(context);
}

/* The longest that there can be still fits, and what is no text becomes one. */
static void test_any_error_text(void **state) {
    (void)state;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_follower follower = example();
    weft_follower again;
    uint8_t data[WEFT_REPORT_MAX];
    size_t size;
    const char *const pieces[] = {"\"", "\\", "\n", "\x01", "\xff", "\xe2\x80\xa6", "a\xe2\x80\xa6", "<"};
    memset(follower.name, 'n', sizeof follower.name - 1);
    follower.version = follower.newest = follower.milliseconds = follower.published = UINT64_MAX;
    follower.patches = follower.anchors = follower.healed = follower.requests = UINT64_MAX;
    follower.fetched_bytes = follower.error_milliseconds = UINT64_MAX;
    for (size_t i = 0; i <= WEFT_SYNC_COMMIT; i++) {
        follower.phase_seconds[i] = 0.000123456789 * (double)(i + 1);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        follower.error[0] = '\0';
        while (strlen(follower.error) + strlen(pieces[i]) < sizeof follower.error) {
            strcat(follower.error, pieces[i]);
        }
        assert_int_equal(weft_report_format(context, &follower, data, &size), WEFT_OK);
        assert_int_equal(weft_report_parse(context, follower.name, data, size, &again), WEFT_OK);
        assert_true(strlen(again.error) + 4 > strlen(follower.error));
        assert_null(strpbrk(again.error, "\n\x01"));
        assert_int_equal(again.version, INT64_MAX);
    }
    weft_context_destroy(context);
}

static void test_names(void **state) {
    (void)state;
    char longest[WEFT_FOLLOWER_NAME + 1];
    memset(longest, 'a', sizeof longest);
    longest[WEFT_FOLLOWER_NAME] = '\0';
    assert_false(weft_follower_name_valid(longest));
    longest[WEFT_FOLLOWER_NAME - 1] = '\0';
    assert_true(weft_follower_name_valid(longest));
    static const char *const bad[] = {"",    ".",   "..", ".a",  "a/b", "../a",
                                      "a b", "a~b", "ä",  "a\n", "%2e", "a\"b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(weft_follower_name_valid(bad[i]));
    }
    assert_false(weft_follower_name_valid(NULL));
    assert_string_equal(weft_report_name("followers/a.b"), "a.b");
    assert_null(weft_report_name("followers/a/b"));
    assert_null(weft_report_name("followers"));
    assert_null(weft_report_name("followers2/a"));
}

typedef struct edit {
    const char *from, *to;
} edit;

/* The text with one thing changed. */
static size_t make_wrong(const uint8_t *data, size_t size, const edit *edit, char *wrong) {
    char text[WEFT_REPORT_MAX + 1];
    memcpy(text, data, size);
    text[size] = '\0';
    const char *place = strstr(text, edit->from);
    assert_non_null(place);
    return (size_t)sprintf(wrong, "%.*s%s%s", (int)(place - text), text, edit->to,
                           place + strlen(edit->from));
}

static void test_wrong_reports(void **state) {
    (void)state;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    static const edit edits[] = {
        {"{", "["},
        {"\"weft\":1", "\"weft\":2"},
        {"follower\"", "head\""},
        {"worker-7.example_a", "worker-8"},
        {"0123456789abcdef0123456789abcdef", "<script>"},
        {"\"version\":41", "\"version\":-1"},
        {"\"version\":41", "\"version\":1e3"},
        {"\"version\":41", "\"version\":\"41\""},
        {"\"version\":41", "\"version\":41,\"version\":41"},
        {"\"newest\":44,", ""},
        {"abababab", "ABABABAB"},
        {"abab", ""},
        {"fetching", "Fetching"},
        {"fetching", ""},
        {"fetching", "aaaaaaaaaaaaaaaa"},
        {"\"wait\":1.5", "\"wait\":-1.5"},
        {"\"wait\":1.5", "\"wait\":1e10"},
        {"\"wait\":1.5,", ""},
        {"\"phases\":{", "\"phases\":[{"},
        {"\"pause\":0.03125", "\"pause\":null"},
        {"\"error\":{", "\"error\":{\"x\":{\"x\":{}},"},
        {"the store", "\\u0000"},
        {"\"interval\":5.0", "\"interval\":0.5"},
        {"\"interval\":5.0", "\"interval\":1201"},
        {"\"interval\":5.0", "\"interval\":5.0}{"},
    };
    weft_follower follower = example();
    uint8_t data[WEFT_REPORT_MAX];
    char wrong[2 * WEFT_REPORT_MAX];
    size_t size;
    assert_int_equal(weft_report_format(context, &follower, data, &size), WEFT_OK);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        size_t length = make_wrong(data, size, &edits[i], wrong);
        weft_follower again;
        memset(&again, 0x5a, sizeof again);
        weft_follower before = again;
        if (weft_report_parse(context, follower.name, wrong, length, &again) == WEFT_OK) {
            fail_msg("%s for %s was taken", edits[i].to, edits[i].from);
        }
        assert_true(weft_context_error(context)[0] != '\0');
        assert_memory_equal(&again, &before, sizeof again);
    }
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_not_equal(weft_report_parse(context, follower.name, data, cut, &follower), WEFT_OK);
    }
    memset(wrong, ' ', sizeof wrong);
    memcpy(wrong, data, size);
    assert_int_equal(weft_report_parse(context, follower.name, wrong, WEFT_REPORT_MAX, &follower), WEFT_OK);
    assert_int_equal(weft_report_parse(context, follower.name, wrong, WEFT_REPORT_MAX + 1, &follower),
                     WEFT_LIMIT_EXCEEDED);
    weft_context_destroy(context);
}

/* ---- being seen ---- */

static void read_fleet(scene *s, weft_fleet *fleet) {
    scene_expect(s->outside, weft_fleet_read(s->outside, s->store, NULL, fleet), WEFT_OK, "read the fleet");
}

/* Looks until a follower is seen in a state, at a version. */
static void await_follower(scene *s, const char *name, const char *state, uint64_t version,
                           weft_follower *found) {
    for (int i = 0; i < ATTEMPTS; i++) {
        weft_fleet fleet = {.size = sizeof fleet};
        read_fleet(s, &fleet);
        for (size_t k = 0; k < fleet.count; k++) {
            const weft_follower *follower = fleet.followers[k];
            if (strcmp(follower->name, name) == 0 && strcmp(follower->state, state) == 0 &&
                follower->version == version) {
                *found = *follower;
                weft_fleet_close(s->outside, &fleet);
                return;
            }
        }
        weft_fleet_close(s->outside, &fleet);
        pause_briefly();
    }
    fail_msg("%s was never seen %s at version %llu", name, state, (unsigned long long)version);
}

static weft_subscriber_options named(const char *name) {
    return (weft_subscriber_options){
        .size = sizeof(weft_subscriber_options), .report_name = name, .report_seconds = 5};
}

/* Of an empty store nothing is known, and nothing is put into it. */
static void test_seen(void **state) {
    (void)state;
    scene s;
    replica one, two;
    weft_follower found;
    scene_open(&s, NULL, 3);
    weft_subscriber_options first = named("one"), second = named("two");
    replica_open(&one, &s, NULL, &first);
    weft_fleet fleet = {.size = sizeof fleet};
    assert_int_equal(weft_subscriber_wait(one.subscriber, 0.1, NULL), WEFT_MORE);
    assert_int_equal(weft_subscriber_pull(one.subscriber, 0), WEFT_NOT_FOUND);
    assert_int_equal(scene_count(&s, "followers"), 0);
    assert_int_equal(weft_fleet_read(s.outside, s.store, NULL, &fleet), WEFT_NOT_FOUND);

    scene_publish(&s, 10000);
    replica_open(&two, &s, "two", &second);
    replica_catch_up(&one, "one");
    replica_catch_up(&two, "two");
    await_follower(&s, "one", "waiting", 1, &found);
    assert_true(found.live && found.lag == 0 && found.lag_seconds == 0 && found.anchors == 1);
    assert_true(found.error[0] != '\0'); /* there was nothing at first */
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(one.subscriber, &info);
    assert_true(weft_digest_equal(&found.digest, &info.digest));
    assert_int_equal(found.published, info.milliseconds);
    await_follower(&s, "two", "waiting", 1, &found);
    assert_string_equal(found.error, "");

    scene_publish(&s, 10000);
    pause_briefly();
    scene_publish(&s, 10000);
    replica_catch_up(&two, "two, later");
    await_follower(&s, "two", "waiting", 3, &found);
    await_follower(&s, "one", "waiting", 1, &found);
    assert_true(found.live && found.lag == 2 && found.lag_seconds > 0);
    read_fleet(&s, &fleet);
    assert_int_equal(fleet.count, 2);
    assert_int_equal(fleet.live, 2);
    assert_int_equal(fleet.slowest, 1);
    assert_int_equal(fleet.newest, 3);
    assert_string_equal(fleet.followers[0]->name, "one");
    weft_fleet_close(s.outside, &fleet);

    replica_close(&one);
    await_follower(&s, "one", "ended", 1, &found);
    assert_false(found.live);
    read_fleet(&s, &fleet);
    assert_int_equal(fleet.live, 1);
    assert_int_equal(fleet.slowest, 3);
    assert_string_equal(fleet.followers[0]->name, "two");
    weft_fleet_close(s.outside, &fleet);
    replica_close(&two);
    scene_close(&s);
}

/* What fails is told, and what is well again too. */
static void test_failure_is_told(void **state) {
    (void)state;
    scene s;
    replica r;
    weft_follower found;
    scene_open(&s, NULL, 4);
    scene_publish(&s, 10000);
    weft_subscriber_options options = named("r");
    replica_open(&r, &s, NULL, &options);
    replica_catch_up(&r, "first");
    scene_publish(&s, 10000);
    const fault_rule rule = {.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .pattern = "patches/*"};
    fault_store_set(r.faults, &rule, 1);
    assert_int_equal(weft_subscriber_pull(r.subscriber, 0), WEFT_REMOTE_FAILED);
    await_follower(&s, "r", "failed", 1, &found);
    assert_true(found.live && found.error[0] != '\0' && found.error_milliseconds > 0);
    fault_store_set(r.faults, NULL, 0);
    replica_catch_up(&r, "after");
    await_follower(&s, "r", "waiting", 2, &found);
    assert_true(found.error[0] != '\0');
    replica_close(&r);
    scene_close(&s);
}

/* A store that takes no reports is a store like any other. */
static void run_refusal(weft_status status, uint64_t most) {
    scene s;
    replica r;
    scene_open(&s, NULL, 5);
    scene_publish(&s, 10000);
    weft_subscriber_options options = named("r");
    replica_open(&r, &s, NULL, &options);
    const fault_rule rule = {
        .kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "followers/*", .status = status};
    fault_store_set(r.faults, &rule, 1);
    for (int i = 0; i < 5; i++) {
        scene_publish(&s, 10000);
        replica_catch_up(&r, "without reports");
    }
    for (int i = 0; i < ATTEMPTS && fault_store_count(r.faults, FAULT_FAIL) == 0; i++) {
        pause_briefly();
    }
    /* that it ends is of no interest then either */
    weft_subscriber_close(r.subscriber);
    r.subscriber = NULL;
    assert_in_range(fault_store_count(r.faults, FAULT_FAIL), 1, most);
    replica_close(&r);
    assert_int_equal(scene_count(&s, "followers"), 0);
    scene_close(&s);
}

static void test_refusals(void **state) {
    (void)state;
    run_refusal(WEFT_REMOTE_DENIED, 1);
    run_refusal(WEFT_UNSUPPORTED, 1);
    run_refusal(WEFT_REMOTE_FAILED, UINT64_MAX);
    run_refusal(WEFT_IO_FAILED, UINT64_MAX);
}

static void test_bad_name(void **state) {
    (void)state;
    scene s;
    model worker;
    weft_subscriber *subscriber = NULL;
    scene_open(&s, NULL, 6);
    scene_publish(&s, 10000);
    worker_open(&worker, s.outside);
    weft_subscriber_options options = named("../heads/00000001");
    options.empty = true;
    assert_int_equal(weft_subscriber_open(s.outside, s.store, worker.view, &options, &subscriber),
                     WEFT_INVALID_ARGUMENT);
    assert_null(subscriber);
    model_close(&worker);
    scene_close(&s);
}

/* ---- what others write ---- */

static void write_report(scene *s, const weft_follower *follower, const char *name) {
    uint8_t data[WEFT_REPORT_MAX];
    char key[WEFT_KEY_SIZE];
    size_t size;
    scene_expect(s->outside, weft_report_format(s->outside, follower, data, &size), WEFT_OK, "format");
    weft_report_key(name, key);
    scene_write(s, key, data, size);
}

static weft_follower member(scene *s, const char *name, uint64_t version) {
    weft_follower follower = example();
    snprintf(follower.name, sizeof follower.name, "%s", name);
    snprintf(follower.run, sizeof follower.run, "%s", weft_publisher_run(s->publisher));
    follower.version = version;
    return follower;
}

static void test_strangers(void **state) {
    (void)state;
    const size_t many = 5000 / test_stride();
    scene s;
    weft_fleet fleet = {.size = sizeof fleet};
    char junk[5000];
    scene_open(&s, NULL, 7);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    memset(junk, '{', sizeof junk);
    scene_write(&s, "followers/junk", junk, 100);
    scene_write(&s, "followers/huge", junk, sizeof junk);
    scene_write(&s, "followers/empty", junk, 0);
    scene_write(&s, "followers/deep/down", junk, 10);
    weft_follower good = member(&s, "good", 1);
    weft_follower other = example();
    write_report(&s, &good, "good");
    write_report(&s, &good, "borrowed");
    write_report(&s, &other, other.name);
    weft_follower ahead = member(&s, "ahead", 1000000);
    write_report(&s, &ahead, "ahead");
    read_fleet(&s, &fleet);
    assert_int_equal(fleet.count, 2);
    assert_int_equal(fleet.live, 2);
    assert_int_equal(fleet.left_out, 6);
    assert_int_equal(fleet.slowest, 1);
    assert_string_equal(fleet.followers[0]->name, "good");
    assert_int_equal(fleet.followers[0]->lag, 1);
    assert_int_equal(fleet.followers[1]->lag, 0);
    weft_fleet_close(s.outside, &fleet);

    for (size_t i = 0; i < many; i++) {
        char name[32];
        snprintf(name, sizeof name, "many-%zu", i);
        weft_follower one = member(&s, name, 2);
        write_report(&s, &one, name);
    }
    read_fleet(&s, &fleet);
    size_t most = many + 2 < WEFT_FLEET_MAX ? many + 2 : WEFT_FLEET_MAX;
    assert_true(fleet.count <= most && fleet.count + 8 >= most);
    assert_int_equal(fleet.count + fleet.left_out, many + 8);
    weft_fleet_close(s.outside, &fleet);
    scene_expect(s.outside, weft_fleet_sweep(s.outside, s.store), WEFT_OK, "nothing is old");
    assert_int_equal(scene_count(&s, "followers"), many + 8);
    scene_close(&s);
}

/* Who cannot be seen because the store fails is not taken for gone. */
static void test_failing_store(void **state) {
    (void)state;
    scene s;
    weft_fleet fleet = {.size = sizeof fleet};
    scene_open(&s, NULL, 12);
    scene_publish(&s, 10000);
    weft_follower good = member(&s, "good", 1);
    write_report(&s, &good, "good");
    fault_rule rule = {.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .pattern = "followers/*"};
    fault_store_set(s.faults, &rule, 1);
    assert_int_equal(weft_fleet_read(s.context, s.faulty, NULL, &fleet), WEFT_REMOTE_FAILED);
    rule.status = WEFT_NOT_FOUND;
    fault_store_set(s.faults, &rule, 1);
    assert_int_equal(weft_fleet_read(s.context, s.faulty, NULL, &fleet), WEFT_OK);
    assert_int_equal(fleet.count, 0);
    assert_int_equal(fleet.left_out, 1);
    weft_fleet_close(s.context, &fleet);
    fault_store_set(s.faults, NULL, 0);
    scene_close(&s);
}

/* ---- retention ---- */

/* Removes what may go, and gives the number of patches that are left. */
static size_t collect(scene *s, bool keep, weft_gc_result *result) {
    const weft_gc_options options = {.size = sizeof options, .keep_followers = keep};
    scene_expect(s->outside, weft_gc_run(s->outside, s->store, &options, result), WEFT_OK, "gc");
    return scene_count(s, "patches");
}

static void test_gc_heeds_followers(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1, .keep_anchors = 1};
    scene s;
    replica slow;
    weft_follower found;
    weft_gc_result result = {.size = sizeof result};
    scene_open(&s, &plain, 8);
    for (int i = 0; i < 4; i++) {
        scene_publish(&s, 10000);
    }
    weft_subscriber_options options = named("slow");
    replica_open(&slow, &s, NULL, &options);
    replica_catch_up(&slow, "at first");
    await_follower(&s, "slow", "waiting", 4, &found);
    for (int i = 0; i < 6; i++) {
        scene_publish(&s, 10000);
    }
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_publish(&s, 10000);
    /* versions 10 and 11 are kept; the follower at 4 needs the patches of 5 to 10 besides that of 11 */
    assert_int_equal(collect(&s, true, &result), 7);
    assert_int_equal(result.oldest, 10);
    assert_int_equal(result.follower, 4);
    assert_int_equal(collect(&s, true, &result), 7);
    replica_catch_up(&slow, "patch by patch");
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(slow.subscriber, &info);
    assert_int_equal(info.anchors, 1);
    assert_int_equal(info.patches, 3 + 7);
    /* now it needs them no more */
    await_follower(&s, "slow", "waiting", 11, &found);
    assert_int_equal(collect(&s, true, &result), 1);
    assert_int_equal(result.follower, 0);

    for (int i = 0; i < 3; i++) {
        scene_publish(&s, 10000);
    }
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_publish(&s, 10000);
    assert_int_equal(collect(&s, true, &result), 4);
    replica_close(&slow);
    /* who has gone is not waited for, and who does not ask removes all the same */
    await_follower(&s, "slow", "ended", 11, &found);
    assert_int_equal(collect(&s, true, &result), 1);
    scene_newcomer(&s, "at the end");
    scene_close(&s);
}

/* Where followers cannot be seen, nothing is removed on their account. */
static void test_gc_without_listing(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1, .keep_anchors = 1};
    const fault_rule rule = {.kind = FAULT_FAIL, .operations = FAULT_ON_LIST, .status = WEFT_UNSUPPORTED};
    scene s;
    scene_open(&s, &plain, 9);
    for (int i = 0; i < 4; i++) {
        scene_publish(&s, 10000);
    }
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_publish(&s, 10000);
    fault_store_set(s.faults, &rule, 1);
    weft_gc_options options = {.size = sizeof options, .keep_followers = true};
    assert_int_equal(weft_gc_run(s.context, s.faulty, &options, NULL), WEFT_UNSUPPORTED);
    assert_int_equal(scene_count(&s, "patches"), 4);
    options.keep_followers = false;
    assert_int_equal(weft_gc_run(s.context, s.faulty, &options, NULL), WEFT_OK);
    assert_int_equal(scene_count(&s, "patches"), 1);
    fault_store_set(s.faults, NULL, 0);
    scene_close(&s);
}

/* ---- back-pressure ---- */

static weft_publish_result publish(scene *s) {
    weft_publish_result result = {.size = sizeof result};
    trainer_step(&s->trainer, 10000);
    scene_expect(s->context, weft_publisher_publish(s->publisher, NULL, &result), WEFT_OK, "publish");
    return result;
}

static void reopen(scene *s, uint64_t max_lag, double seconds) {
    s->options.max_lag = max_lag;
    s->options.max_lag_seconds = seconds;
    scene_expect(s->context, scene_publisher(s), WEFT_OK, "open a publisher");
}

static void *catch_up_later(void *argument) {
    replica *r = argument;
    pause_briefly();
    scene_expect(r->context, weft_subscriber_pull(r->subscriber, 0), WEFT_OK, "catch up");
    return NULL;
}

static void test_pressure(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    scene s;
    replica slow;
    weft_follower found;
    pthread_t thread;
    scene_open(&s, &plain, 10);
    reopen(&s, 2, 0.05);
    /* nobody there: nobody is waited for */
    assert_false(publish(&s).overtaken);
    weft_subscriber_options options = named("slow");
    replica_open(&slow, &s, NULL, &options);
    replica_catch_up(&slow, "at first");
    await_follower(&s, "slow", "waiting", 1, &found);
    /* versions 2 and 3 are within two of it */
    assert_false(publish(&s).overtaken);
    assert_false(publish(&s).overtaken);
    weft_publish_result result = publish(&s);
    assert_true(result.overtaken && result.waited_seconds >= 0.05);
    assert_int_equal(result.version, 4);

    reopen(&s, 2, 600);
    assert_int_equal(pthread_create(&thread, NULL, catch_up_later, &slow), 0);
    result = publish(&s);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(result.overtaken);
    await_follower(&s, "slow", "waiting", subscriber_info(slow.subscriber).version, &found);
    assert_true(found.version >= 4);

    /* who has failed, holds nothing or belongs to others does not count */
    weft_follower failed = member(&s, "failed", 1), newcomer = member(&s, "newcomer", 0);
    weft_follower other = example();
    snprintf(failed.state, sizeof failed.state, "failed");
    write_report(&s, &failed, "failed");
    write_report(&s, &newcomer, "newcomer");
    write_report(&s, &other, other.name);
    assert_false(publish(&s).overtaken);
    replica_close(&slow);
    scene_close(&s);
}

/* Who is stuck, or a report that somebody made up, is waited for once, and again only when it has moved. */
static void test_pressure_of_the_stuck(void **state) {
    (void)state;
    const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};
    const double patience = 0.3;
    scene s;
    scene_open(&s, &plain, 12);
    reopen(&s, 1, patience);
    for (int i = 0; i < 4; i++) {
        assert_false(publish(&s).overtaken);
    }
    weft_follower stuck = member(&s, "stuck", 1), slow = member(&s, "slow", 1);
    stuck.interval_seconds = slow.interval_seconds = WEFT_REPORT_LONGEST;
    write_report(&s, &stuck, "stuck");
    weft_publish_result result = publish(&s);
    assert_true(result.overtaken && result.waited_seconds >= patience);
    /* now it looks once each time: a second look needs somebody to wait for */
    const fault_rule count_looks = {.kind = FAULT_DELAY, .operations = FAULT_ON_LIST};
    fault_store_set(s.faults, &count_looks, 1);
    uint64_t looks = fault_store_count(s.faults, FAULT_DELAY);
    for (int i = 0; i < 3; i++) {
        result = publish(&s);
        assert_true(result.overtaken);
        assert_int_equal(fault_store_count(s.faults, FAULT_DELAY), ++looks);
    }
    /* another one is waited for, and the first again once it has moved */
    write_report(&s, &slow, "slow");
    assert_true(publish(&s).waited_seconds >= patience);
    stuck.version = 2;
    write_report(&s, &stuck, "stuck");
    assert_true(publish(&s).waited_seconds >= patience);
    slow.version = stuck.version = result.version + 10;
    write_report(&s, &slow, "slow");
    write_report(&s, &stuck, "stuck");
    assert_false(publish(&s).overtaken);
    scene_close(&s);
}

static bool stop_waiting(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)done;
    (void)total;
    atomic_bool *asked = opaque;
    bool waits = strcmp(phase, "wait for followers") == 0;
    if (waits) {
        atomic_store(asked, true);
    }
    return !waits;
}

/* A publisher that waits can be stopped, and one that cannot see followers says so. */
static void test_pressure_ends(void **state) {
    (void)state;
    scene s;
    atomic_bool asked = false;
    weft_context *context;
    weft_publisher *publisher;
    const weft_context_options options = {
        .size = sizeof options, .progress = stop_waiting, .progress_opaque = &asked};
    const weft_publisher_options chosen = {.size = sizeof chosen, .max_lag = 1, .max_lag_seconds = 600};
    const fault_rule rule = {.kind = FAULT_FAIL, .operations = FAULT_ON_LIST, .status = WEFT_UNSUPPORTED};
    scene_open(&s, NULL, 11);
    for (int i = 0; i < 4; i++) {
        scene_publish(&s, 10000);
    }
    weft_follower slow = member(&s, "slow", 1);
    slow.interval_seconds = WEFT_REPORT_LONGEST;
    write_report(&s, &slow, "slow");
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(weft_publisher_open(context, s.faulty, s.trainer.model.view, &chosen, &publisher),
                     WEFT_OK);
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_CANCELLED);
    assert_true(asked);
    fault_store_set(s.faults, &rule, 1);
    assert_int_equal(weft_publisher_publish(publisher, NULL, NULL), WEFT_UNSUPPORTED);
    assert_non_null(strstr(weft_context_error(context), "cannot tell who follows"));
    weft_publisher_close(publisher);
    fault_store_set(s.faults, NULL, 0);
    scene_close(&s);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_error_text),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_wrong_reports),
        cmocka_unit_test(test_seen),
        cmocka_unit_test(test_failure_is_told),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_name),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_failing_store),
        cmocka_unit_test(test_gc_heeds_followers),
        cmocka_unit_test(test_gc_without_listing),
        cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_pressure_of_the_stuck),
        cmocka_unit_test(test_pressure_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
