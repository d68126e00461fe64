/* SPDX-License-Identifier: Apache-2.0
 *
 * Strangers' callbacks: stores of the caller's own, and feeds of puts. Each operation of a publish, a
 * takeover, a pull, a walk and a collection returns a number that is none of ours, before or after it has
 * taken effect; feeds fail, end early and give too much; stores tell of bytes that cannot be. Nothing that
 * is called then says that all is well, or more; and what replicas hold is a published version.
 */
#include "../support/described.h"
#include "scenes.h"
#include "strangers.h"
#include "stride.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FAR = 400 }; /* more operations than anything here takes */

/* The numbers that are none of ours; test_sync_faults has the others. */
enum { FOREIGN = 3 };
static const int foreign[FOREIGN] = {-7, WEFT_MORE, 700};

/* Of fault_store, a store over a table from outside. */
static void arm(fault_store *faults, bool lose, uint64_t n, int number) {
    if (lose) {
        fault_store_lose_at(faults, n, (weft_status)number);
    } else {
        fault_store_fail_at(faults, n, (weft_status)number);
    }
}

static bool disarm(fault_store *faults) {
    bool fired = fault_store_fired(faults);
    fault_store_fail_at(faults, 0, WEFT_REMOTE_FAILED);
    return fired;
}

/* WEFT_OK, or a failure that has a name and a text. */
static void check_status(const weft_context *context, weft_status status, const char *what, uint64_t n,
                         int number) {
    bool known =
        status == WEFT_OK || (status < 0 && strcmp(weft_status_name(status), "unknown status") != 0 &&
                              weft_context_error(context)[0] != '\0');
    if (!known) {
        fail_msg("%s, where operation %u returns %d, says %d: %s", what, (unsigned)n, number, (int)status,
                 weft_context_error(context));
    }
}

/* ---- publishing and pulling ---- */

static void sweep_publish(const weft_publisher_options *options, bool lose, int number) {
    scene s;
    replica live;
    scene_open(&s, options, 11);
    scene_publish(&s, 10000);
    replica_open(&live, &s, NULL, NULL);
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        trainer_step(&s.trainer, 10000);
        arm(s.faults, lose, n, number);
        check_status(s.context, weft_publisher_publish(s.publisher, NULL, NULL), "a publish", n, number);
        fired = disarm(s.faults);
        if (weft_subscriber_pull(live.subscriber, 0) != WEFT_OK || !replica_sound(&live)) {
            fail_msg("operation %u of a publish returns %d, and the replica is nowhere: %s", (unsigned)n,
                     number, weft_context_error(live.context));
        }
        scene_expect(s.context, weft_publisher_publish(s.publisher, NULL, NULL), WEFT_OK, "the next");
        replica_catch_up(&live, "after a number");
    }
    assert_false(fired);
    replica_close(&live);
    scene_close(&s);
}

static void test_publish(void **state) {
    (void)state;
    const weft_publisher_options patches = {.size = sizeof patches, .anchor_ratio = -1};
    const weft_publisher_options anchors = {
        .size = sizeof anchors, .anchor_ratio = 0.001, .profile = WEFT_PROFILE_SMALL};
    for (size_t i = 0; i < FOREIGN; i++) {
        sweep_publish(&patches, i % 2 == 0, foreign[i]);
        sweep_publish(&anchors, i % 2 != 0, foreign[i]);
    }
}

static void sweep_takeover(bool lose, int number) {
    scene s;
    scene_open(&s, NULL, 12);
    scene_publish(&s, 10000);
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        arm(s.faults, lose, n, number);
        check_status(s.context, scene_publisher(&s), "a takeover", n, number);
        fired = disarm(s.faults);
        if (s.publisher == NULL) {
            scene_expect(s.context, scene_publisher(&s), WEFT_OK, "the next");
        }
        scene_publish(&s, 10000);
        scene_newcomer(&s, "after a number");
    }
    assert_false(fired);
    scene_close(&s);
}

static void test_takeover(void **state) {
    (void)state;
    for (size_t i = 0; i < FOREIGN; i++) {
        sweep_takeover(i % 2 != 0, foreign[i]);
    }
}

static void sweep_pull(const char *name, bool lose, int number) {
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1};
    scene s;
    replica here;
    scene_open(&s, &options, 13);
    scene_publish(&s, 10000);
    replica_open(&here, &s, name, NULL);
    replica_catch_up(&here, "at first");
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        scene_publish(&s, 10000);
        scene_publish(&s, 10000);
        arm(here.faults, lose, n, number);
        check_status(here.context, weft_subscriber_pull(here.subscriber, 0), "a pull", n, number);
        fired = disarm(here.faults);
        if (!replica_sound(&here)) {
            fail_msg("operation %u of a pull returns %d, and the replica is nowhere", (unsigned)n, number);
        }
        replica_catch_up(&here, "after a number");
    }
    assert_false(fired);
    replica_close(&here);
    scene_close(&s);
}

static void test_pull(void **state) {
    (void)state;
    for (size_t i = 0; i < FOREIGN; i++) {
        sweep_pull(i % 2 == 0 ? NULL : "replica", i % 2 != 0, foreign[i]);
        sweep_pull(i % 2 != 0 ? NULL : "replica", false, foreign[i]);
    }
}

/* ---- live memory behind functions ---- */

enum { TENSORS = 4 };

typedef struct far_worker {
    weft_context *context;
    model model;
    weft_table *table;
    weft_view *view;
    far_tensor far[TENSORS];
    stranger stranger;
    weft_subscriber *subscriber;
} far_worker;

static void far_worker_open(far_worker *worker, scene *s, uint64_t stage_bytes) {
    const weft_context_options options = {
        .size = sizeof options,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = stage_bytes}};
    const weft_subscriber_options following = {.size = sizeof following, .empty = true};
    memset(worker, 0, sizeof *worker);
    assert_int_equal(weft_context_create(&options, &worker->context), WEFT_OK);
    worker_open(&worker->model, worker->context);
    assert_int_equal(weft_table_create(worker->context, &worker->table), WEFT_OK);
    assert_int_equal(weft_table_count(worker->model.table), TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
        weft_tensor tensor = *weft_table_at(worker->model.table, i);
        far_tensor_take(&worker->far[i], &tensor, &worker->stranger);
        assert_int_equal(weft_table_add(worker->table, &tensor), WEFT_OK);
    }
    assert_int_equal(weft_view_create(worker->context, worker->table, &worker->view), WEFT_OK);
    assert_int_equal(
        weft_subscriber_open(worker->context, s->store, worker->view, &following, &worker->subscriber),
        WEFT_OK);
}

static void far_worker_close(far_worker *worker) {
    weft_subscriber_close(worker->subscriber);
    weft_view_destroy(worker->view);
    weft_table_destroy(worker->table);
    model_close(&worker->model);
    weft_context_destroy(worker->context);
}

/* A pull whose n-th call of a function of the weights' fails. True if there was one. The replica is at a
 * published version, or says that it is at none, and the next pull reaches the newest. */
static bool fail_pull(far_worker *worker, scene *s, int number, size_t n) {
    stranger_reset(&worker->stranger, n, number);
    weft_status status = weft_subscriber_pull(worker->subscriber, 0);
    bool fired = stranger_fired(&worker->stranger);
    stranger_reset(&worker->stranger, 0, WEFT_OK);
    assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
    weft_digest digest = worker_digest(s->outside, worker->model.view);
    assert_true(subscriber_info(worker->subscriber).version == 0 || scene_published(s, &digest));
    scene_expect(worker->context, weft_subscriber_pull(worker->subscriber, 0), WEFT_OK, "the next pull");
    assert_true(worker_equals(&worker->model, &s->trainer));
    return fired;
}

static void test_live_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        const weft_publisher_options options = {.size = sizeof options,
                                                .anchor_ratio = -1,
                                                .bucket_bytes = 32 * 1024,
                                                .profile =
                                                    i % 2 == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL};
        scene s;
        far_worker worker;
        bool fired = true;
        scene_open(&s, &options, 15);
        scene_publish(&s, 10000);
        /* from nothing, which the first failure leaves; then from version to version, in portions too */
        far_worker_open(&worker, &s, i % 2 == 0 ? 0 : 40000);
        for (size_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
            fired = fail_pull(&worker, &s, stranger_numbers[i], n);
            scene_publish(&s, 10000);
        }
        assert_false(fired);
        far_worker_close(&worker);
        scene_close(&s);
    }
}

static bool see(void *opaque, const weft_log_entry *entry) {
    (void)entry;
    ++*(size_t *)opaque;
    return true;
}

/* What looks at a run and tidies it up. */
static void sweep_rest(scene *s, int number) {
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = 0};
    bool fired = true;
    for (uint64_t n = test_stride_first(); fired && n < FAR; n += test_stride()) {
        size_t seen = 0;
        weft_gc_result result = {.size = sizeof result};
        weft_head_info info = {.size = sizeof info};
        uint8_t data[WEFT_HEAD_MAX];
        size_t size;
        uint64_t epoch;
        arm(s->faults, false, n, number);
        check_status(s->context, weft_log_walk(s->context, s->faulty, NULL, see, &seen), "a log", n,
                     number);
        fired = disarm(s->faults);
        arm(s->faults, false, n, number);
        check_status(s->context, weft_gc_run(s->context, s->faulty, &options, &result), "a gc", n, number);
        fired = disarm(s->faults) || fired;
        arm(s->faults, false, n, number);
        weft_status status = weft_head_find(s->context, s->faulty, 0, data, &size, &epoch);
        check_status(s->context, status, "a search", n, number);
        if (status == WEFT_OK) {
            assert_int_equal(weft_head_inspect(s->context, data, size, NULL, &info), WEFT_OK);
        }
        fired = disarm(s->faults) || fired;
    }
    assert_false(fired);
    scene_newcomer(s, "after a number");
}

static void test_the_rest(void **state) {
    (void)state;
    const weft_publisher_options options = {
        .size = sizeof options, .anchor_ratio = 0.01, .keep_anchors = 1};
    scene s;
    scene_open(&s, &options, 14);
    for (unsigned i = 0; i < 4; i++) {
        scene_publish(&s, 20000);
    }
    for (size_t i = 0; i < FOREIGN; i++) {
        sweep_rest(&s, foreign[i]);
    }
    scene_close(&s);
}

/* ---- feeds ---- */

typedef struct feed {
    uint8_t data[5000];
    size_t size; /* that it has */
    size_t step; /* at most so many at a time */
    bool excess; /* says that it gave more than there was room for */
    stranger stranger;
} feed;

static weft_status read_feed(void *opaque, uint64_t offset, void *data, size_t capacity,
                             size_t *count_out) {
    feed *feed = opaque;
    if (stranger_fails(&feed->stranger)) {
        *count_out = capacity;
        return (weft_status)feed->stranger.number;
    }
    size_t left = offset < feed->size ? feed->size - (size_t)offset : 0;
    size_t count = left < capacity ? left : capacity;
    count = count < feed->step ? count : feed->step;
    memcpy(data, feed->data + offset, count);
    *count_out = feed->excess ? capacity + 1 : count;
    return WEFT_OK;
}

/* A store of the caller's that believes all that it is told: it keeps one object, in memory. */
typedef struct naive {
    uint8_t data[8192];
    size_t size;
    bool there;
} naive;

static weft_status naive_put(void *self, weft_context *context, const weft_store_put_request *request,
                             weft_store_tag *tag_out) {
    naive *naive = self;
    uint8_t data[sizeof naive->data];
    size_t size = 0;
    size_t count = 1;
    (void)context;
    while (count > 0 && size + 512 <= sizeof data) {
        weft_status status = request->feed.read(request->feed.opaque, size, data + size, 512, &count);
        if (status < 0) {
            return status;
        }
        assert_int_equal(status, WEFT_OK); /* no table ever sees another number */
        assert_true(count <= 512);
        size += count;
    }
    memcpy(naive->data, data, size);
    naive->size = size;
    naive->there = true;
    *tag_out = (weft_store_tag){"\"1\""};
    return WEFT_OK;
}

static weft_status naive_get(void *self, weft_context *context, const weft_store_get_request *request,
                             weft_store_get_result *result_out) {
    (void)self;
    (void)context;
    (void)request;
    (void)result_out;
    return WEFT_NOT_FOUND;
}

static weft_status naive_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                              weft_store_tag *tag_out) {
    (void)context;
    (void)key;
    (void)tag_out;
    *size_out = ((naive *)self)->size;
    return ((naive *)self)->there ? WEFT_OK : WEFT_NOT_FOUND;
}

static weft_status naive_remove(void *self, weft_context *context, const char *key) {
    (void)context;
    (void)key;
    ((naive *)self)->there = false;
    return WEFT_OK;
}

static void naive_close(void *self) {
    (void)self;
}

static const weft_store_operations naive_operations = {
    .size = sizeof naive_operations,
    .name = "naive",
    .get = naive_get,
    .put = naive_put,
    .head = naive_head,
    .remove = naive_remove,
    .close = naive_close,
};

static weft_status put_feed(weft_context *context, weft_store *store, feed *feed, uint64_t size) {
    const weft_store_put_request request = {
        .size = sizeof request, .key = "object", .feed = {.size = size, .read = read_feed, .opaque = feed}};
    return weft_store_put(context, store, &request, NULL);
}

static void check_absent(weft_context *context, weft_store *store) {
    uint64_t size;
    weft_store_tag tag;
    assert_int_equal(weft_store_head(context, store, "object", &size, &tag), WEFT_NOT_FOUND);
}

static void sweep_feed(weft_context *context, weft_store *store, bool naive) {
    feed *feed = calloc(1, sizeof *feed);
    assert_non_null(feed);
    for (int known = 0; known < 2; known++) {
        feed->size = sizeof feed->data;
        feed->step = 700;
        feed->excess = false;
        uint64_t size = known ? feed->size : UINT64_MAX;
        for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
            int number = stranger_numbers[i];
            bool fired = true;
            for (size_t n = 1; fired; n++) {
                stranger_reset(&feed->stranger, n, number);
                weft_status status = put_feed(context, store, feed, size);
                fired = stranger_fired(&feed->stranger);
                assert_int_equal(status, fired ? stranger_meaning(number) : WEFT_OK);
                if (fired) {
                    assert_true(weft_context_error(context)[0] != '\0');
                    check_absent(context, store);
                }
                assert_int_equal(weft_store_remove(context, store, "object"), WEFT_OK);
            }
        }
        stranger_reset(&feed->stranger, 0, WEFT_OK);
        feed->excess = true;
        assert_int_equal(put_feed(context, store, feed, size), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "where there was room for"));
        check_absent(context, store);
        /* the end comes early; that a store has not been told of cannot be known */
        feed->excess = false;
        feed->size = 2000;
        weft_status status = put_feed(context, store, feed, size);
        assert_int_equal(status, !known ? WEFT_OK : naive ? WEFT_CALLBACK_FAILED : WEFT_INVALID_ARGUMENT);
        assert_int_equal(weft_store_remove(context, store, "object"), WEFT_OK);
    }
    free(feed);
}

static void test_feeds(void **state) {
    (void)state;
    weft_context *context;
    weft_store *store;
    scratch scratch;
    naive naive = {.there = false};
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    scratch_open_volatile(&scratch);
    assert_int_equal(weft_store_open(context, scratch_path(&scratch, "store"), NULL, &store), WEFT_OK);
    sweep_feed(context, store, false);
    weft_store_close(store);
    assert_int_equal(weft_store_create(context, "naive://", &naive_operations, &naive, &store), WEFT_OK);
    sweep_feed(context, store, true);
    weft_store_close(store);
    scratch_close(&scratch);
    weft_context_destroy(context);
}

/* ---- tables that lie ---- */

/* What each operation says. */
typedef struct liar {
    weft_status answer;
    uint64_t received;
    bool endless_tag;
    bool unchanged;
    const char *listed; /* shown whatever was asked for; NULL: nothing is */
    double age;
} liar;

static void lie_tag(const liar *liar, weft_store_tag *tag) {
    memset(tag->text, liar->endless_tag ? 'x' : 0, sizeof tag->text);
}

static weft_status lie_get(void *self, weft_context *context, const weft_store_get_request *request,
                           weft_store_get_result *result_out) {
    const liar *liar = self;
    (void)context;
    (void)request;
    result_out->received = liar->received;
    result_out->unchanged = liar->unchanged;
    lie_tag(liar, &result_out->tag);
    return liar->answer;
}

static weft_status lie_put(void *self, weft_context *context, const weft_store_put_request *request,
                           weft_store_tag *tag_out) {
    (void)context;
    (void)request;
    lie_tag(self, tag_out);
    return ((const liar *)self)->answer;
}

static weft_status lie_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                            weft_store_tag *tag_out) {
    (void)context;
    (void)key;
    *size_out = 7;
    lie_tag(self, tag_out);
    return ((const liar *)self)->answer;
}

static weft_status lie_remove(void *self, weft_context *context, const char *key) {
    (void)context;
    (void)key;
    return ((const liar *)self)->answer;
}

static weft_status lie_watch(void *self, weft_context *context, uint64_t after, double seconds,
                             void *buffer, size_t capacity, size_t *received_out) {
    (void)context;
    (void)after;
    (void)seconds;
    (void)buffer;
    (void)capacity;
    *received_out = (size_t)((const liar *)self)->received;
    return ((const liar *)self)->answer;
}

static weft_status lie_list(void *self, weft_context *context, const char *prefix, weft_store_visit visit,
                            void *opaque) {
    const liar *liar = self;
    (void)context;
    (void)prefix;
    if (liar->listed != NULL) {
        visit(opaque, liar->listed, 1, liar->age);
        visit(opaque, liar->listed, 1, liar->age); /* although it was told to stop */
    }
    return liar->answer;
}

static weft_status lie_age(void *self, weft_context *context, const char *key, double *seconds_out) {
    (void)context;
    (void)key;
    *seconds_out = -1;
    return ((const liar *)self)->answer;
}

static const weft_store_operations liar_operations = {
    .size = sizeof liar_operations,
    .name = "liar",
    .get = lie_get,
    .put = lie_put,
    .head = lie_head,
    .remove = lie_remove,
    .watch = lie_watch,
    .list = lie_list,
    .age = lie_age,
    .close = naive_close,
};

static bool visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)size;
    (void)age_seconds;
    if (opaque != NULL) {
        *(size_t *)opaque += 1;
    }
    return true;
}

/* What is listed may be removed: nobody is shown what was not asked for. */
static void expect_listing(weft_context *context, weft_store *store, liar *liar, const char *listed,
                           double age, weft_status expected) {
    size_t visited = 0;
    *liar = (struct liar){.answer = WEFT_OK, .listed = listed, .age = age};
    assert_int_equal(weft_store_list(context, store, "patches", visit, &visited), expected);
    assert_int_equal(visited, expected == WEFT_OK ? 2 : 0);
}

static void test_tables(void **state) {
    (void)state;
    weft_context *context;
    weft_store *store;
    liar liar = {.answer = WEFT_OK};
    uint8_t buffer[16];
    uint64_t size = 99;
    size_t received = 99;
    double age = 99;
    weft_store_tag tag;
    weft_store_get_result result = {.size = sizeof result, .object_bytes = 99};
    const weft_store_get_request request = {
        .size = sizeof request, .key = "object", .length = sizeof buffer, .buffer = buffer};
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_store_create(context, "liar://", &liar_operations, &liar, &store), WEFT_OK);
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits); /* of a table that does not tell */
    assert_true(traits.directory == NULL && traits.poll_seconds == 0.5 && !traits.paid &&
                !traits.conditional);
    for (size_t i = 0; i < STRANGER_NUMBERS; i++) {
        int number = stranger_numbers[i];
        weft_status meaning = stranger_meaning(number);
        liar.answer = (weft_status)number;
        assert_int_equal(weft_store_get(context, store, &request, &result), meaning);
        assert_non_null(strstr(weft_context_error(context), "object"));
        assert_int_equal(
            weft_store_put_bytes(context, store, "object", "x", 1, WEFT_STORE_ALWAYS, NULL, NULL), meaning);
        assert_int_equal(weft_store_head(context, store, "object", &size, &tag), meaning);
        assert_int_equal(weft_store_remove(context, store, "object"), meaning);
        assert_int_equal(weft_store_list(context, store, "", visit, NULL), meaning);
        assert_non_null(strstr(weft_context_error(context), "liar"));
        assert_int_equal(weft_store_age(context, store, "object", &age), meaning);
        /* here a number of ours is positive, and means something */
        assert_int_equal(weft_store_watch(context, store, 1, 0, buffer, sizeof buffer, &received),
                         number == WEFT_MORE ? WEFT_MORE : meaning);
    }
    assert_int_equal(size, 99);
    assert_int_equal(received, 99);
    assert_int_equal(result.object_bytes, 99);
    liar = (struct liar){.answer = WEFT_OK};
    assert_int_equal(weft_store_age(context, store, "object", &age), WEFT_CALLBACK_FAILED);
    assert_true(age == 99);
    liar = (struct liar){.answer = WEFT_OK, .received = sizeof buffer + 1};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_CALLBACK_FAILED);
    assert_int_equal(weft_store_watch(context, store, 1, 0, buffer, sizeof buffer, &received),
                     WEFT_CALLBACK_FAILED);
    liar = (struct liar){.answer = WEFT_OK, .unchanged = true};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_CALLBACK_FAILED);
    liar = (struct liar){.answer = WEFT_OK, .endless_tag = true};
    assert_int_equal(weft_store_get(context, store, &request, &result), WEFT_CALLBACK_FAILED);
    assert_int_equal(weft_store_head(context, store, "object", &size, &tag), WEFT_CALLBACK_FAILED);
    assert_int_equal(weft_store_put_bytes(context, store, "object", "", 0, WEFT_STORE_ALWAYS, NULL, &tag),
                     WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "patches/1-1-a", 7, WEFT_OK);
    expect_listing(context, store, &liar, "patches/1-1-a", -1, WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "patches/1-1-a", nan(""), WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "heads/1", 7, WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "patches", 7, WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "patches2/1-1-a", 7, WEFT_CALLBACK_FAILED);
    expect_listing(context, store, &liar, "patches/../heads/1", 7, WEFT_CALLBACK_FAILED);
    /* says that it is there, and has read none of it */
    liar = (struct liar){.answer = WEFT_OK};
    assert_int_equal(weft_store_put_bytes(context, store, "object", "x", 1, WEFT_STORE_ALWAYS, NULL, &tag),
                     WEFT_CALLBACK_FAILED);
    assert_int_equal(result.object_bytes, 99);
    weft_store_close(store);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish),     cmocka_unit_test(test_takeover), cmocka_unit_test(test_pull),
        cmocka_unit_test(test_live_memory), cmocka_unit_test(test_the_rest), cmocka_unit_test(test_feeds),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
