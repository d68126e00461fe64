/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions in parts, by real processes that hold rows and columns of a model: what followers get is the
 * whole model, bit for bit, and nobody's death, lateness or mistake publishes anything else or hangs the
 * others.
 */
#include "../../lib/base/context.h"
#include "../../lib/sync/parts/parts_message.h"
#include "../support/described.h"
#include "fault_store.h"
#include "scratch.h"
#include "shards.h"
#include "stride.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct team {
    scratch scratch;
    char url[512];
    unsigned count;
    shard shards[SHARDS_MAX];
    shard_answer answers[SHARDS_MAX];
    weft_context *context;
    weft_store *store;
    shard_model reference;
    model follower_model;
    weft_subscriber *follower;
} team;

static const shard_options ordinary = {.part_seconds = 30, .anchor_ratio = -1};
static const shard_options hasty = {.part_seconds = 5, .anchor_ratio = -1};

static void start(team *t, unsigned index, const shard_options *options) {
    shard_start(&t->shards[index], t->url, index, t->count, options);
}

static void open_follower(team *t) {
    shard_model shape;
    shard_model_open(&shape, t->context);
    model_open(&t->follower_model, t->context);
    for (size_t i = 0; i < weft_view_count(shape.model.view); i++) {
        const weft_tensor *tensor = weft_view_at(shape.model.view, i);
        model_add(&t->follower_model, tensor->name, tensor->dtype, tensor->shape[0],
                  tensor->rank > 1 ? tensor->shape[1] : 0);
    }
    model_show(&t->follower_model);
    shard_model_close(&shape);
    const weft_subscriber_options options = {.size = sizeof options, .empty = true};
    assert_int_equal(
        weft_subscriber_open(t->context, t->store, t->follower_model.view, &options, &t->follower),
        WEFT_OK);
}

static void open_team(team *t, unsigned count, const shard_options *options) {
    const weft_context_options single = {.size = sizeof single, .threads = 1};
    memset(t, 0, sizeof *t);
    scratch_open_volatile(&t->scratch);
    snprintf(t->url, sizeof t->url, "%s", scratch_path(&t->scratch, "store"));
    t->count = count;
    assert_int_equal(weft_context_create(&single, &t->context), WEFT_OK);
    assert_int_equal(weft_store_open(t->context, t->url, NULL, &t->store), WEFT_OK);
    shard_model_open(&t->reference, t->context);
    for (unsigned i = 0; i < count; i++) {
        start(t, i, options);
    }
    open_follower(t);
}

static void close_team(team *t) {
    for (unsigned i = 0; i < t->count; i++) {
        if (t->shards[i].pid != 0) {
            shard_stop(&t->shards[i]);
        }
    }
    weft_subscriber_close(t->follower);
    model_close(&t->follower_model);
    shard_model_close(&t->reference);
    weft_store_close(t->store);
    weft_context_destroy(t->context);
    scratch_close(&t->scratch);
}

static void publish(team *t, uint64_t step) {
    for (unsigned i = 0; i < t->count; i++) {
        shard_publish(&t->shards[i], step, step);
    }
    for (unsigned i = 0; i < t->count; i++) {
        t->answers[i] = shard_wait(&t->shards[i]);
    }
}

/* All have published the same version. */
static uint64_t expect_published(const team *t) {
    for (unsigned i = 0; i < t->count; i++) {
        if (t->answers[i].status != WEFT_OK) {
            fail_msg("part %u: %s", i, t->answers[i].text);
        }
        assert_int_equal(t->answers[i].result.version, t->answers[0].result.version);
        assert_true(weft_digest_equal(&t->answers[i].result.digest, &t->answers[0].result.digest));
    }
    return t->answers[0].result.version;
}

/* On a slow day somebody may be taken for dead; then they try again, as a trainer would. */
static uint64_t publish_surely(team *t, uint64_t step) {
    for (int i = 0; i < 20; i++) {
        publish(t, step);
        bool published = true;
        for (unsigned j = 0; j < t->count; j++) {
            published = published && t->answers[j].status == WEFT_OK;
        }
        if (published) {
            break;
        }
    }
    return expect_published(t);
}

/* A follower gets the weights of a step. */
static void expect_step(team *t, uint64_t step) {
    shard_model_set(&t->reference, step);
    weft_digest digest = worker_digest(t->context, t->reference.model.view);
    weft_status status = weft_subscriber_pull(t->follower, 0);
    if (status != WEFT_OK) {
        fail_msg("%s", weft_context_error(t->context));
    }
    weft_digest got = worker_digest(t->context, t->follower_model.view);
    assert_true(weft_digest_equal(&got, &digest));
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(t->follower, &info);
    assert_true(weft_digest_equal(&info.digest, &digest));
}

/* Whoever starts now gets it too. */
static void expect_newcomer(team *t, uint64_t step) {
    weft_subscriber_close(t->follower);
    model_close(&t->follower_model);
    open_follower(t);
    expect_step(t, step);
}

/* So does who keeps it in a file. */
static void expect_file(team *t, uint64_t step) {
    weft_subscriber *follower;
    shard_model_set(&t->reference, step);
    weft_digest digest = worker_digest(t->context, t->reference.model.view);
    weft_status status = weft_subscriber_open_file(
        t->context, t->store, scratch_path(&t->scratch, "file.safetensors"), NULL, &follower);
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(follower, 0);
    }
    if (status != WEFT_OK) {
        fail_msg("%s", weft_context_error(t->context));
    }
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(follower, &info);
    assert_true(weft_digest_equal(&info.digest, &digest));
    weft_subscriber_close(follower);
}

/* ---- good days ---- */

static void run_versions(unsigned count, const shard_options *options) {
    team t;
    open_team(&t, count, options);
    for (uint64_t step = 1; step <= 6; step++) {
        publish(&t, step);
        assert_int_equal(expect_published(&t), step);
        expect_step(&t, step);
        char text[24];
        snprintf(text, sizeof text, "%llu", (unsigned long long)step);
        assert_string_equal(weft_subscriber_label(t.follower, "step"), text);
    }
    expect_newcomer(&t, 6);
    expect_file(&t, 6);
    close_team(&t);
}

static void test_two(void **state) {
    (void)state;
    run_versions(2, &ordinary);
}

static void test_four(void **state) {
    (void)state;
    const shard_options small = {.part_seconds = 30, .anchor_ratio = -1, .profile = WEFT_PROFILE_SMALL};
    run_versions(4, &small);
}

static void test_eight(void **state) {
    (void)state;
    run_versions(8, &ordinary);
}

/* Nothing but the store keeps the parts together: each publishes as soon as it can, and many a call is
 * replaced by the next turn's before somebody has seen it. No call is lost, and each version is of one
 * step, even if labels do not tell them apart. */
static void run_freely(bool labelled) {
    enum { STEPS = 12 };
    team t;
    open_team(&t, 4, &ordinary);
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (unsigned i = 0; i < t.count; i++) {
            shard_publish(&t.shards[i], step, labelled ? step : 7);
        }
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (unsigned i = 0; i < t.count; i++) {
            t.answers[i] = shard_wait(&t.shards[i]);
        }
        assert_int_equal(expect_published(&t), step);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        shard_model_set(&t.reference, step);
        weft_digest digest = worker_digest(t.context, t.reference.model.view);
        assert_int_equal(weft_subscriber_pull(t.follower, step), WEFT_OK);
        weft_digest got = worker_digest(t.context, t.follower_model.view);
        assert_true(weft_digest_equal(&got, &digest));
    }
    close_team(&t);
}

static void test_free_running(void **state) {
    (void)state;
    run_freely(true);
    run_freely(false);
}

/* All processes end and others take over. */
static void test_resume(void **state) {
    (void)state;
    team t;
    open_team(&t, 4, &ordinary);
    publish(&t, 1);
    publish(&t, 2);
    expect_published(&t);
    for (unsigned i = 0; i < t.count; i++) {
        shard_stop(&t.shards[i]);
    }
    for (unsigned i = t.count; i > 0; i--) {
        start(&t, i - 1, &ordinary);
    }
    publish(&t, 3);
    assert_int_equal(expect_published(&t), 3);
    assert_false(t.answers[0].result.anchored);
    expect_step(&t, 3);
    publish(&t, 4);
    expect_published(&t);
    expect_newcomer(&t, 4);
    close_team(&t);
}

static size_t count_objects(team *t) {
    static const char *const rooms[] = {"patches", "anchors", "chunks", "pieces", "pages"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        char name[32];
        snprintf(name, sizeof name, "store/%s", rooms[i]);
        count += scratch_exists(&t->scratch, name) ? scratch_count(&t->scratch, name) : 0;
    }
    return count;
}

static void test_anchors(void **state) {
    (void)state;
    const shard_options often = {.part_seconds = 30, .anchor_ratio = 0.001};
    team t;
    open_team(&t, 2, &often);
    for (uint64_t step = 1; step <= 4; step++) {
        publish(&t, step);
        expect_published(&t);
        assert_true(step == 1 || t.answers[0].result.anchor_bytes > 0);
        expect_step(&t, step);
    }
    size_t before = count_objects(&t);
    const weft_gc_options now = {.size = sizeof now, .grace_seconds = 0};
    weft_gc_result result = {.size = sizeof result};
    assert_int_equal(weft_gc_run(t.context, t.store, &now, &result), WEFT_OK);
    /* two anchors and the patch between them stay, each a list, two parts, and what stands behind them; and
     * two pages, of which the next record retires one */
    assert_true(result.objects > 8 && count_objects(&t) + result.objects == before);
    assert_int_equal(count_objects(&t), 3 * 4 + 2);
    expect_newcomer(&t, 4);
    publish(&t, 5);
    expect_published(&t);
    expect_newcomer(&t, 5);
    close_team(&t);
}

/* Where a list of pieces lies: of an anchor, or of a patch. */
static char *find_list(team *t, uint64_t version, bool anchor, char name[300], size_t *size_out) {
    DIR *listing = opendir(scratch_path(&t->scratch, "store/pieces"));
    assert_non_null(listing);
    char *found = NULL;
    for (const struct dirent *entry = readdir(listing); entry != NULL && found == NULL;
         entry = readdir(listing)) {
        unsigned long long epoch;
        unsigned long long number;
        if (sscanf(entry->d_name, "%llu-%llu-", &epoch, &number) == 2 && number == version) {
            snprintf(name, 300, "store/pieces/%s", entry->d_name);
            char *text = scratch_read(&t->scratch, name, size_out);
            if ((memmem(text, *size_out, "\"anchors/", 9) != NULL) == anchor) {
                found = text;
            } else {
                free(text);
            }
        }
    }
    closedir(listing);
    return found;
}

/* Writes one list over another that the history retires. */
static void replace_list(team *t, uint64_t version, uint64_t other, bool anchor) {
    char name[300];
    char other_name[300];
    size_t size;
    size_t other_size;
    char *list = find_list(t, version, true, name, &size);
    char *text = find_list(t, other, anchor, other_name, &other_size);
    assert_non_null(list);
    assert_non_null(text);
    scratch_write(&t->scratch, name, text, other_size);
    free(list);
    free(text);
}

/* A list that was retired says, falsely, that its pieces are those of the newest anchor, or of a patch that
 * is needed: they stay, whether or not the store can be listed. */
static void collect_with_false_lists(bool listed) {
    const shard_options often = {.part_seconds = 30, .anchor_ratio = 0.001};
    const fault_rule blind = {.kind = FAULT_FAIL, .operations = FAULT_ON_LIST, .status = WEFT_UNSUPPORTED};
    const weft_gc_options now = {.size = sizeof now, .grace_seconds = 0};
    team t;
    weft_store *store;
    fault_store *faults;
    open_team(&t, 2, &often);
    assert_int_equal(fault_store_create(t.context, t.store, 1, &store, &faults), WEFT_OK);
    for (uint64_t step = 1; step <= 5; step++) {
        publish(&t, step);
        expect_published(&t);
        expect_step(&t, step);
    }
    replace_list(&t, 2, 5, true);
    replace_list(&t, 3, 5, false);
    fault_store_set(faults, &blind, listed ? 0 : 1);
    weft_gc_result result = {.size = sizeof result};
    assert_int_equal(weft_gc_run(t.context, store, &now, &result), WEFT_OK);
    assert_true(result.objects > 0);
    char name[300];
    size_t size;
    assert_null(find_list(&t, 2, true, name, &size));
    expect_newcomer(&t, 5);
    publish(&t, 6);
    expect_published(&t);
    expect_newcomer(&t, 6);
    weft_store_close(store);
    close_team(&t);
}

static void test_false_lists(void **state) {
    (void)state;
    collect_with_false_lists(false);
    collect_with_false_lists(true);
}

/* ---- who dies ---- */

static void expect_failed(const team *t, unsigned index, weft_status status, const char *words) {
    const shard_answer *answer = &t->answers[index];
    if (answer->status != status || strstr(answer->text, words) == NULL) {
        fail_msg("part %u: status %d, not %d, or without '%s': %s", index, answer->status, status, words,
                 answer->text);
    }
}

static void test_member_dies(void **state) {
    (void)state;
    team t;
    open_team(&t, 4, &hasty);
    publish_surely(&t, 1);
    shard_kill(&t.shards[2]);
    for (unsigned i = 0; i < 4; i += i == 1 ? 2 : 1) {
        shard_publish(&t.shards[i], 2, 2);
    }
    for (unsigned i = 0; i < 4; i += i == 1 ? 2 : 1) {
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_REMOTE_FAILED, "did not come within 5 seconds: 2;");
    }
    expect_step(&t, 1);
    start(&t, 2, &hasty);
    publish_surely(&t, 3);
    assert_false(t.answers[0].result.anchored);
    expect_step(&t, 3);
    close_team(&t);
}

/* All parts are put, the head is not. */
static void test_coordinator_dies_before_head(void **state) {
    (void)state;
    team t;
    open_team(&t, 4, &hasty);
    publish_surely(&t, 1);
    publish_surely(&t, 2);
    size_t pages = scratch_count(&t.scratch, "store/pages");
    shard_fault(&t.shards[0], FAULT_PAUSE, FAULT_ON_PUT, "heads/*", 0, 0);
    for (unsigned i = 0; i < 4; i++) {
        shard_publish(&t.shards[i], 3, 3);
    }
    shard_await_death(&t.shards[0]);
    assert_int_equal(scratch_count(&t.scratch, "store/pages"), pages + 1);
    for (unsigned i = 1; i < 4; i++) {
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_REMOTE_FAILED, "part 0 of 4 was not heard of");
    }
    expect_step(&t, 2);
    start(&t, 0, &hasty);
    publish_surely(&t, 4);
    assert_false(t.answers[0].result.anchored);
    expect_step(&t, 4);
    close_team(&t);
}

/* The head is moved, and nobody is told. */
static void test_coordinator_dies_after_head(void **state) {
    (void)state;
    team t;
    open_team(&t, 4, &hasty);
    publish_surely(&t, 1);
    publish_surely(&t, 2);
    shard_fault(&t.shards[0], FAULT_PAUSE, FAULT_ON_PUT, "parts/*/call", 0, 1);
    for (unsigned i = 0; i < 4; i++) {
        shard_publish(&t.shards[i], 3, 3);
    }
    shard_await_death(&t.shards[0]);
    expect_step(&t, 3);
    for (unsigned i = 1; i < 4; i++) {
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_REMOTE_FAILED, "found out by the next publish");
    }
    start(&t, 0, &hasty);
    publish_surely(&t, 4);
    assert_false(t.answers[0].result.anchored);
    expect_step(&t, 4);
    close_team(&t);
}

/* ---- who errs ---- */

static void test_late(void **state) {
    (void)state;
    team t;
    open_team(&t, 2, &hasty);
    publish_surely(&t, 1);
    shard_publish(&t.shards[0], 2, 2);
    t.answers[0] = shard_wait(&t.shards[0]);
    expect_failed(&t, 0, WEFT_REMOTE_FAILED, "did not come within");
    shard_publish(&t.shards[1], 2, 2);
    t.answers[1] = shard_wait(&t.shards[1]);
    expect_failed(&t, 1, WEFT_REMOTE_FAILED, "did not come within");
    publish_surely(&t, 3);
    expect_step(&t, 3);
    shard_publish(&t.shards[1], 4, 4);
    t.answers[1] = shard_wait(&t.shards[1]);
    expect_failed(&t, 1, WEFT_REMOTE_FAILED, "part 0 of 2 was not heard of");
    publish_surely(&t, 5);
    expect_step(&t, 5);
    close_team(&t);
}

/* One has published once more than the others: it is a step behind from then on. */
static void test_other_step(void **state) {
    (void)state;
    team t;
    open_team(&t, 4, &ordinary);
    publish(&t, 1);
    expect_published(&t);
    for (unsigned i = 0; i < 4; i++) {
        shard_publish(&t.shards[i], i == 3 ? 1 : 2, i == 3 ? 1 : 2);
    }
    for (unsigned i = 0; i < 4; i++) {
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_INVALID_ARGUMENT, "part 3 gives other labels");
    }
    expect_step(&t, 1);
    publish(&t, 2);
    assert_int_equal(expect_published(&t), 2);
    expect_step(&t, 2);
    close_team(&t);
}

/* A member goes on while the coordinator does not, and the labels do not tell. */
static void test_one_ahead(void **state) {
    (void)state;
    team t;
    open_team(&t, 2, &hasty);
    publish_surely(&t, 1);
    for (unsigned i = 0; i < 2; i++) {
        shard_publish(&t.shards[i], 2, 7);
    }
    for (unsigned i = 0; i < 2; i++) {
        t.answers[i] = shard_wait(&t.shards[i]);
    }
    expect_published(&t);
    shard_publish(&t.shards[1], 3, 7);
    t.answers[1] = shard_wait(&t.shards[1]);
    expect_failed(&t, 1, WEFT_REMOTE_FAILED, "part 0 of 2 was not heard of");
    shard_publish(&t.shards[1], 4, 7);
    shard_publish(&t.shards[0], 3, 7);
    for (unsigned i = 0; i < 2; i++) {
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_INVALID_ARGUMENT, "part 1 is at publish ");
        expect_failed(&t, i, WEFT_INVALID_ARGUMENT, "a label such as step=N");
    }
    expect_step(&t, 2);
    publish_surely(&t, 5);
    expect_step(&t, 5);
    close_team(&t);
}

static void test_no_label(void **state) {
    (void)state;
    team t;
    open_team(&t, 2, &ordinary);
    publish(&t, 1);
    expect_published(&t);
    for (unsigned i = 0; i < 2; i++) {
        shard_publish(&t.shards[i], 2, 0);
        t.answers[i] = shard_wait(&t.shards[i]);
        expect_failed(&t, i, WEFT_INVALID_ARGUMENT, "needs a label that tells its step, such as step=43");
    }
    publish(&t, 2);
    assert_int_equal(expect_published(&t), 2);
    expect_step(&t, 2);
    close_team(&t);
}

/* What a member says that it failed of is heard, even if that sounds as if it had not answered. */
static void test_member_fails(void **state) {
    (void)state;
    static const weft_status failures[] = {WEFT_NOT_FOUND, WEFT_CHECKSUM_MISMATCH, WEFT_NO_SPACE};
    team t;
    open_team(&t, 2, &ordinary);
    publish(&t, 1);
    expect_published(&t);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        shard_fail_with(&t.shards[1], failures[i], FAULT_ON_PUT, "patches/*");
        publish(&t, 2 + i);
        expect_failed(&t, 0, failures[i], "part 1 failed");
        expect_failed(&t, 1, failures[i], "part 1 failed");
        expect_step(&t, 1 + i);
        publish(&t, 2 + i);
        expect_published(&t);
        expect_step(&t, 2 + i);
    }
    close_team(&t);
}

/* The roll shows up later than the call that names it. */
static void test_late_roll(void **state) {
    (void)state;
    team t;
    open_team(&t, 2, &ordinary);
    shard_fault(&t.shards[1], FAULT_LATE, FAULT_ON_GET, "*roll", 0, 0);
    publish(&t, 1);
    assert_int_equal(expect_published(&t), 1);
    close_team(&t);
}

/* The answer to the call's put is lost: the members have heard it, and are told how it ended. */
static void test_lost_call(void **state) {
    (void)state;
    team t;
    open_team(&t, 2, &ordinary);
    shard_fault(&t.shards[0], FAULT_LOSE, FAULT_ON_PUT, "parts/*/call", 0, 0);
    publish(&t, 1);
    assert_int_equal(t.answers[0].status, WEFT_REMOTE_FAILED);
    /* who has not joined yet may miss a call that failed at once */
    assert_int_equal(t.answers[1].status, WEFT_REMOTE_FAILED);
    publish(&t, 1);
    assert_int_equal(expect_published(&t), 1);
    shard_fault(&t.shards[0], FAULT_LOSE, FAULT_ON_PUT, "parts/*/call", 0, 0);
    publish(&t, 2);
    assert_int_equal(t.answers[1].status, WEFT_REMOTE_FAILED);
    assert_null(strstr(t.answers[1].text, "was not heard of"));
    publish(&t, 2);
    expect_published(&t);
    expect_step(&t, 2);
    /* who came too late has taken its answer with it: the call and the roll are left */
    char room[64];
    snprintf(room, sizeof room, "store/parts/%08llu", (unsigned long long)t.answers[0].result.epoch);
    assert_int_equal(scratch_count(&t.scratch, room), 2);
    close_team(&t);
}

/* Waits until a follower has said that it has this version. */
static void await_report(team *t, uint64_t version) {
    for (int i = 0; i < 12000; i++) {
        weft_fleet fleet = {.size = sizeof fleet};
        assert_int_equal(weft_fleet_read(t->context, t->store, NULL, &fleet), WEFT_OK);
        bool there = fleet.live > 0 && fleet.followers[0]->version == version;
        weft_fleet_close(t->context, &fleet);
        if (there) {
            return;
        }
        usleep(10000);
    }
    fail_msg("no follower reports");
}

/* Publishes until the follower, which has the first of the versions, is too far behind. True if the
 * coordinator then has waited for it, longer than the parts wait for each other, and the parts for the
 * coordinator. */
static bool publish_under_pressure(team *t, uint64_t step) {
    uint64_t version = publish_surely(t, step);
    expect_step(t, step);
    await_report(t, version);
    publish_surely(t, step + 1);
    publish(t, step + 2);
    const weft_publish_result *result = &t->answers[0].result;
    return t->answers[0].status == WEFT_OK && t->answers[1].status == WEFT_OK && result->overtaken &&
           result->waited_seconds >= 2;
}

/* Members that the coordinator makes wait for followers do not take it for dead. Parts that wait so briefly
 * may take each other for dead on a slow day, or not see the follower: then it is tried again. */
static void test_back_pressure(void **state) {
    (void)state;
    const shard_options slow = {
        .part_seconds = 0.5, .anchor_ratio = -1, .max_lag = 1, .max_lag_seconds = 3};
    const shard_options quick = {.part_seconds = 0.5, .anchor_ratio = -1};
    team t;
    open_team(&t, 2, &slow);
    shard_stop(&t.shards[1]);
    start(&t, 1, &quick);
    weft_subscriber_close(t.follower);
    const weft_subscriber_options reports = {
        .size = sizeof reports, .empty = true, .report_seconds = 1, .report_name = "slow"};
    assert_int_equal(weft_subscriber_open(t.context, t.store, t.follower_model.view, &reports, &t.follower),
                     WEFT_OK);
    bool waited = false;
    for (uint64_t i = 0; i < 20 && !waited; i++) {
        waited = publish_under_pressure(&t, 1 + 3 * i);
    }
    assert_true(waited);
    expect_published(&t);
    close_team(&t);
}

/* ---- who cannot sign ---- */

static void make_key(team *t, const char *name, char path[512]) {
    weft_key *key;
    char public_name[64];
    char public_path[512];
    snprintf(public_name, sizeof public_name, "%s.pub", name);
    snprintf(path, 512, "%s", scratch_path(&t->scratch, name));
    snprintf(public_path, sizeof public_path, "%s", scratch_path(&t->scratch, public_name));
    assert_int_equal(weft_key_generate(t->context, &key), WEFT_OK);
    assert_int_equal(weft_key_write(t->context, key, path, public_path), WEFT_OK);
    weft_key_destroy(key);
}

static void restart(team *t, const char *first, const char *second) {
    shard_options options = {.part_seconds = 30, .anchor_ratio = -1, .key = first};
    for (unsigned i = 0; i < t->count; i++) {
        if (t->shards[i].pid != 0) {
            shard_stop(&t->shards[i]);
        }
    }
    start(t, 0, &options);
    options.key = second;
    start(t, 1, &options);
}

/* Somebody who can write to the store, but not sign, takes the place of a part. */
static void test_forger(void **state) {
    (void)state;
    char key[512];
    char other[512];
    team t;
    open_team(&t, 2, &ordinary);
    make_key(&t, "key", key);
    make_key(&t, "other", other);
    restart(&t, key, key);
    publish(&t, 1);
    publish(&t, 2);
    assert_int_equal(expect_published(&t), 2);
    expect_step(&t, 2);
    /* part 0 is refused by a part with another key, and part 1 by a coordinator with another */
    static const char *const forgers[] = {NULL, "other"};
    for (size_t i = 0; i < sizeof forgers / sizeof *forgers; i++) {
        restart(&t, key, forgers[i] != NULL ? other : NULL);
        shard_publish(&t.shards[0], 3, 3);
        shard_publish(&t.shards[1], 3, 3);
        if (forgers[i] == NULL) {
            t.answers[0] = shard_wait(&t.shards[0]);
            expect_failed(&t, 0, WEFT_SIGNATURE_MISMATCH, "is not signed, and this part has a key");
            t.answers[1] = shard_wait(&t.shards[1]);
            expect_failed(&t, 1, WEFT_SIGNATURE_MISMATCH, "give every part of the trainer the same secret");
        } else {
            t.answers[1] = shard_wait(&t.shards[1]);
            expect_failed(&t, 1, WEFT_SIGNATURE_MISMATCH, "not signed by the key that this part has");
            shard_kill(&t.shards[0]);
        }
        expect_step(&t, 2);
    }
    shard_stop(&t.shards[1]);
    const shard_options good = {.part_seconds = 30, .anchor_ratio = -1, .key = key};
    start(&t, 0, &good);
    start(&t, 1, &good);
    publish(&t, 3);
    expect_published(&t);
    expect_step(&t, 3);
    close_team(&t);
}

static weft_status reopen(weft_context *context, const weft_key *key, const char *run, const char *where,
                          const weft_writer *message) {
    const weft_message_seal seal = {key, run, where};
    size_t size;
    return weft_message_open(context, &seal, message->data, message->size, &size);
}

/* A signed message is good where it was put, and nowhere else. */
static void test_moved_message(void **state) {
    (void)state;
    weft_context *context;
    weft_key *key;
    weft_writer message;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &key), WEFT_OK);
    const weft_message_seal seal = {key, "run", "parts/00000001/here"};
    weft_writer_open(&message, context);
    const weft_call call = {.kind = WEFT_CALL_JOIN, .name = "0123456789abcdef", .roll = "0123456789abcdef"};
    weft_call_write(&call, &message);
    assert_int_equal(weft_message_close(context, &seal, &message), WEFT_OK);
    assert_int_equal(reopen(context, key, "run", "parts/00000001/here", &message), WEFT_OK);
    assert_int_equal(reopen(context, NULL, "run", "parts/00000001/here", &message), WEFT_OK);
    assert_int_equal(reopen(context, key, "run", "parts/00000001/there", &message),
                     WEFT_SIGNATURE_MISMATCH);
    assert_int_equal(reopen(context, key, "ran", "parts/00000001/here", &message), WEFT_SIGNATURE_MISMATCH);
    message.data[12] ^= 1;
    assert_int_equal(reopen(context, key, "run", "parts/00000001/here", &message), WEFT_CHECKSUM_MISMATCH);
    weft_writer_close(&message);
    weft_key_destroy(key);
    weft_context_destroy(context);
}

static void test_same_part_twice(void **state) {
    (void)state;
    team t;
    shard other;
    open_team(&t, 2, &ordinary);
    shard_start(&other, t.url, 1, 2, &ordinary);
    shard_publish(&other, 1, 1);
    publish(&t, 1);
    shard_answer second = shard_wait(&other);
    assert_int_equal(t.answers[0].status, WEFT_OK);
    /* one of the two is the part, the other learns that it is not */
    assert_true((t.answers[1].status == WEFT_OK) != (second.status == WEFT_OK));
    const shard_answer *loser = t.answers[1].status == WEFT_OK ? &second : &t.answers[1];
    /* unless it comes after all is over, and hears of nothing that it had a hand in */
    assert_true(loser->status == WEFT_CONFLICT || loser->status == WEFT_REMOTE_FAILED);
    assert_non_null(strstr(loser->text, loser->status == WEFT_CONFLICT ? "part 1 of 2" : "part 0 of 2"));
    expect_step(&t, 1);
    if (second.status == WEFT_OK) {
        shard former = t.shards[1];
        t.shards[1] = other;
        other = former;
    }
    publish_surely(&t, 2);
    expect_step(&t, 2);
    shard_stop(&other);
    close_team(&t);
}

static void test_disagreement(void **state) {
    (void)state;
    const shard_options otherwise = {.part_seconds = 30, .anchor_ratio = -1, .other_cuts = true};
    const shard_options uncut = {.part_seconds = 30, .anchor_ratio = -1, .uncut = true};
    team t;
    open_team(&t, 2, &ordinary);
    shard_stop(&t.shards[1]);
    start(&t, 1, &otherwise);
    publish(&t, 1);
    expect_failed(&t, 0, WEFT_INVALID_ARGUMENT, "cuts it otherwise");
    expect_failed(&t, 1, WEFT_INVALID_ARGUMENT, "cuts it otherwise");
    shard_stop(&t.shards[0]);
    shard_stop(&t.shards[1]);
    start(&t, 0, &uncut);
    start(&t, 1, &uncut);
    publish(&t, 1);
    for (unsigned i = 0; i < 2; i++) {
        expect_failed(&t, i, WEFT_INVALID_ARGUMENT, "tensor layer.0.down; if that is sharded, tell how");
    }
    close_team(&t);
}

/* ---- a store that fails ---- */

/* Each of the operations of one part's publish fails, or works and says that it failed. What the parts say
 * and what the history has agree, and the next publish works. */
static void run_faults(unsigned faulty, bool lose) {
    const shard_options brisk = {.part_seconds = 0.4, .anchor_ratio = -1};
    team t;
    open_team(&t, 2, &brisk);
    uint64_t version = publish_surely(&t, 1);
    uint64_t step = 1;
    for (uint64_t n = 1; n <= 14; n += 3 * test_stride()) {
        shard_fail_at(&t.shards[faulty], lose, n);
        publish(&t, ++step);
        bool published = t.answers[0].status == WEFT_OK || t.answers[1].status == WEFT_OK;
        assert_int_equal(weft_subscriber_pull(t.follower, 0), WEFT_OK);
        uint64_t now = subscriber_info(t.follower).version;
        assert_true(now == version || now == version + 1);
        assert_true(!published || now == version + 1);
        expect_step(&t, now == version ? step - 1 : step);
        version = publish_surely(&t, ++step);
        assert_true(version > now);
        expect_step(&t, step);
    }
    close_team(&t);
}

static void test_faults_of_coordinator(void **state) {
    (void)state;
    run_faults(0, false);
    run_faults(0, true);
}

static void test_faults_of_member(void **state) {
    (void)state;
    run_faults(1, false);
    run_faults(1, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_four),
        cmocka_unit_test(test_eight),
        cmocka_unit_test(test_free_running),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_false_lists),
        cmocka_unit_test(test_member_dies),
        cmocka_unit_test(test_coordinator_dies_before_head),
        cmocka_unit_test(test_coordinator_dies_after_head),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_other_step),
        cmocka_unit_test(test_one_ahead),
        cmocka_unit_test(test_no_label),
        cmocka_unit_test(test_member_fails),
        cmocka_unit_test(test_late_roll),
        cmocka_unit_test(test_lost_call),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_forger),
        cmocka_unit_test(test_moved_message),
        cmocka_unit_test(test_same_part_twice),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_faults_of_coordinator),
        cmocka_unit_test(test_faults_of_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
