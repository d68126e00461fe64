/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies in the store has the right hashes and is wrong all the same: histories that somebody rewrote,
 * patches that do not lead where they say, heads under another's name; and a publisher's own copy that is
 * not what it published. Nobody runs in circles, writes where nothing is, or removes what is needed, and
 * the next honest version heals everybody.
 */
#include "../../lib/base/context.h"
#include "../../lib/sync/format/pack.h"
#include "../support/described.h"
#include "patches.h"
#include "plain.h"
#include "scenes.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};

/* More than anything here may ask of a store in one call: who runs in circles is stopped by an error. */
enum { REQUESTS_MAX = 1000 };

static void expect(const weft_context *context, weft_status status, weft_status expected,
                   const char *words) {
    scene_expect(context, status, expected, words);
    if (strstr(weft_context_error(context), words) == NULL) {
        fail_msg("'%s' is not in: %s", words, weft_context_error(context));
    }
}

/* ---- forging ---- */

enum { HASH_TEXT = 65 };

static void hash_text(const void *data, size_t size, char text[HASH_TEXT]) {
    uint8_t hash[32];
    unsigned length;
    assert_int_equal(EVP_Digest(data, size, hash, &length, EVP_sha256(), NULL), 1);
    for (size_t i = 0; i < sizeof hash; i++) {
        snprintf(text + 2 * i, 3, "%02x", hash[i]);
    }
}

static json_t *read_json(scene *s, const char *key) {
    size_t size;
    char *text = scene_read(s, key, &size);
    json_t *json = plain_json(text, size);
    free(text);
    return json;
}

static void put_head(scene *s, uint64_t epoch, const json_t *head) {
    char key[WEFT_HEAD_KEY];
    char hash[HASH_TEXT];
    char data[WEFT_HEAD_MAX];
    char *json = json_dumps(head, JSON_COMPACT);
    assert_non_null(json);
    hash_text(json, strlen(json), hash);
    int size = snprintf(data, sizeof data, "%s\nsha256 %s\n", json, hash);
    assert_true(size > 0 && size < WEFT_HEAD_MAX);
    free(json);
    weft_head_key(epoch, key);
    scene_write(s, key, data, (size_t)size);
}

/* Puts the page under a name of its own, and has the head name it. */
static void put_page(scene *s, const json_t *page, json_t *head) {
    static const char key[] = "pages/00000001-9999999999-0123456789abcdef";
    char hash[HASH_TEXT];
    char *json = json_dumps(page, JSON_COMPACT);
    assert_non_null(json);
    size_t size = strlen(json);
    json[size] = '\n'; /* in the place of the terminator */
    size++;
    hash_text(json, size, hash);
    scene_write(s, key, json, size);
    free(json);
    json_t *blob = json_pack("{s:s, s:I, s:s}", "key", key, "bytes", (json_int_t)size, "sha256", hash);
    assert_int_equal(json_object_set_new(head, "page", blob), 0);
}

/* The head of epoch 1 and its page, to be changed and put back. */
typedef struct forgery {
    json_t *head;
    json_t *page;
    json_t *records;
    json_t *last; /* of the records */
} forgery;

static void forgery_open(forgery *f, scene *s) {
    f->head = read_json(s, "heads/00000001");
    json_t *blob = json_object_get(f->head, "page");
    f->page = read_json(s, json_string_value(json_object_get(blob, "key")));
    f->records = json_object_get(f->page, "records");
    f->last = json_array_get(f->records, json_array_size(f->records) - 1);
    assert_non_null(f->last);
}

/* What the last record says, the head says too. A reader that has seen the honest head takes the next. */
static void forgery_put(forgery *f, scene *s) {
    json_t *newest = json_copy(f->last);
    json_object_del(newest, "retired");
    json_object_set_new(f->head, "newest", newest);
    json_int_t sequence = json_integer_value(json_object_get(f->head, "sequence"));
    json_object_set_new(f->head, "sequence", json_integer(sequence + 1));
    put_page(s, f->page, f->head);
    put_head(s, 1, f->head);
}

static void forgery_close(forgery *f) {
    json_decref(f->head);
    json_decref(f->page);
}

/* ---- patches that lie ---- */

/* A patch from what the replica holds to what the trainer does, made of a copy with one wrong bit: its
 * digests say what an honest one would, but nobody gets there by it. */
static weft_diff_stats lie(replica *base, const trainer *trainer, bytes *patch) {
    weft_sums *sums = patches_sums(base->context, base->model.view);
    const weft_diff_options options = {.size = sizeof options, .base_sums = sums};
    const weft_sink sink = bytes_sink(patch);
    weft_diff_stats stats = {.size = sizeof stats};
    ((uint8_t *)base->model.blocks[0])[1000] ^= 1;
    scene_expect(base->context,
                 weft_diff(base->context, base->model.view, trainer->model.view, &options, &sink, &stats),
                 WEFT_OK, "make a patch that lies");
    weft_sums_destroy(sums);
    return stats;
}

/* Publishes a version whose patch lies, over the honest one. */
static void publish_lie(scene *s) {
    static const char key[] = "patches/00000001-9999999999-0123456789abcdef";
    char hash[HASH_TEXT];
    char digest[WEFT_DIGEST_TEXT];
    replica base;
    bytes patch = {0};
    replica_open(&base, s, NULL, NULL);
    replica_catch_up(&base, "the base of a lie");
    scene_publish(s, 10000);
    weft_diff_stats stats = lie(&base, &s->trainer, &patch);
    hash_text(patch.data, patch.size, hash);
    scene_write(s, key, patch.data, patch.size);
    weft_digest_format(&stats.result, digest);
    forgery f;
    forgery_open(&f, s);
    json_object_set_new(f.last, "digest", json_string(digest));
    json_t *object = json_pack("{s:s, s:I, s:I, s:[s]}", "key", key, "bytes", (json_int_t)patch.size,
                               "chunk_bytes", (json_int_t)1 << 20, "sha256", hash);
    json_object_set_new(f.last, "patch", object);
    forgery_put(&f, s);
    forgery_close(&f);
    bytes_clear(&patch);
    replica_close(&base);
}

/* Neither an anchor fetched again and again, nor a way: the reader stays at the last version before. */
static void meet_lie(replica *r) {
    fault_store_fail_from(r->faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
    weft_status status = weft_subscriber_pull(r->subscriber, 0);
    expect(r->context, status, WEFT_CHECKSUM_MISMATCH, "no way leads to version 3");
    assert_false(fault_store_fired(r->faults));
    assert_int_equal(subscriber_info(r->subscriber).version, 2);
    assert_true(replica_sound(r));
    fault_store_fail_from(r->faults, 0, WEFT_OK);
}

static void test_a_patch_that_lies(void **state) {
    (void)state;
    for (unsigned file = 0; file < 2; file++) {
        scene s;
        replica live;
        replica fresh;
        scene_open(&s, &plain, 61);
        scene_publish(&s, 10000);
        scene_publish(&s, 10000);
        replica_open(&live, &s, file ? "out" : NULL, NULL);
        replica_catch_up(&live, "before the lie");
        publish_lie(&s);
        meet_lie(&live);
        assert_int_equal(subscriber_info(live.subscriber).anchors, 1);
        meet_lie(&live);
        replica_open(&fresh, &s, NULL, NULL);
        meet_lie(&fresh);
        assert_int_equal(subscriber_info(fresh.subscriber).anchors, 1);
        /* who goes on cannot get there either, and comes whole */
        fault_store_fail_from(s.faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
        assert_int_equal(scene_publisher(&s), WEFT_OK);
        fault_store_fail_from(s.faults, 0, WEFT_OK);
        assert_int_equal(scene_publish(&s, 10000), 4);
        replica_catch_up(&live, "after the lie");
        replica_catch_up(&fresh, "after the lie");
        scene_publish(&s, 10000);
        replica_catch_up(&live, "on");
        scene_newcomer(&s, "on");
        replica_close(&fresh);
        replica_close(&live);
        scene_close(&s);
    }
}

/* With an anchor of a version after the lie there is a way round. */
static void test_an_anchor_after_a_lie(void **state) {
    (void)state;
    scene s;
    replica live;
    scene_open(&s, &plain, 62);
    scene_publish(&s, 10000);
    replica_open(&live, &s, NULL, NULL);
    scene_publish(&s, 10000);
    replica_catch_up(&live, "before the lie");
    publish_lie(&s);
    fault_store_fail_from(s.faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
    scene_expect(s.context, scene_publisher(&s), WEFT_OK, "a publisher after the lie");
    fault_store_fail_from(s.faults, 0, WEFT_OK);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    fault_store_fail_from(live.faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
    replica_catch_up(&live, "round the lie");
    assert_int_equal(subscriber_info(live.subscriber).anchors, 2);
    replica_close(&live);
    scene_close(&s);
}

/* ---- a publisher whose copy has drifted ---- */

/* Finds the one block of memory that has the size of the publisher's copy. */
typedef struct spy {
    size_t wanted;
    _Atomic(uint8_t *) memory;
} spy;

static void *spy_allocate(void *opaque, size_t size) {
    spy *spy = opaque;
    uint8_t *memory = malloc(size);
    uint8_t *none = NULL;
    if (size == spy->wanted) {
        atomic_compare_exchange_strong(&spy->memory, &none, memory);
    }
    return memory;
}

static void *spy_reallocate(void *opaque, void *memory, size_t size) {
    (void)opaque;
    return realloc(memory, size);
}

static void spy_release(void *opaque, void *memory) {
    (void)opaque;
    free(memory);
}

/* As baseline.c lays a mirror out: tensors at multiples of 64 bytes, and 64 for the first. */
static size_t copy_bytes(const weft_view *view) {
    size_t bytes = 64;
    for (size_t i = 0; i < weft_view_count(view); i++) {
        bytes += (size_t)(weft_view_at(view, i)->bytes + 63) / 64 * 64;
    }
    return bytes;
}

static void publish_whole(scene *s, replica *r, weft_context *context, const char *what) {
    weft_publish_result result = {.size = sizeof result};
    trainer_step(&s->trainer, 10000);
    scene_expect(context, weft_publisher_publish(s->publisher, NULL, &result), WEFT_OK, what);
    if (!result.anchored) {
        fail_msg("%s: the version came as a patch from a copy that has drifted", what);
    }
    fault_store_fail_from(r->faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
    replica_catch_up(r, what);
    scene_newcomer(s, what);
}

static void test_a_bit_flips_in_the_publishers_copy(void **state) {
    (void)state;
    scene s;
    replica r;
    weft_context *context;
    scene_open(&s, &plain, 63);
    spy spy = {.wanted = copy_bytes(s.trainer.model.view)};
    const weft_context_options options = {.size = sizeof options,
                                          .threads = 2,
                                          .allocator = {spy_allocate, spy_reallocate, spy_release, &spy}};
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(weft_publisher_open(context, s.faulty, s.trainer.model.view, &s.options, &s.publisher),
                     WEFT_OK);
    uint8_t *copy = atomic_load(&spy.memory);
    assert_non_null(copy);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "before");
    scene_publish(&s, 10000);
    for (size_t i = 1; i < 8; i++) {
        size_t place = spy.wanted / 8 * i;
        copy[place] ^= 1u << i;
        publish_whole(&s, &r, context, "found by the audit");
        scene_publish(&s, 10000);
        replica_catch_up(&r, "a patch again");
        copy[place] ^= 1u << i;
        expect(context, weft_publisher_anchor(s.publisher, NULL), WEFT_DIGEST_MISMATCH, "has drifted");
        publish_whole(&s, &r, context, "found by an anchor");
        scene_publish(&s, 10000);
        replica_catch_up(&r, "a patch once more");
    }
    replica_close(&r);
    weft_publisher_close(s.publisher);
    s.publisher = NULL;
    weft_context_destroy(context);
    scene_close(&s);
}

/* A copy in a file is fetched again, and the next version is a patch as if nothing had happened. */
static void test_a_bit_flips_in_the_publishers_file(void **state) {
    (void)state;
    char path[SCENE_PATH_MAX];
    scene s;
    replica r;
    scene_open(&s, &plain, 77);
    snprintf(path, sizeof path, "%s/mirror.safetensors", s.scratch.directory);
    s.options.mirror_path = path;
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "before");
    for (unsigned i = 0; i < 3; i++) {
        scene_damage(path);
        scene_publish(&s, 10000);
        fault_store_fail_from(r.faults, REQUESTS_MAX, WEFT_REMOTE_FAILED);
        replica_catch_up(&r, "over a damaged mirror");
        scene_newcomer(&s, "over a damaged mirror");
    }
    assert_int_equal(subscriber_info(r.subscriber).anchors, 1);
    replica_close(&r);
    scene_close(&s);
}

/* ---- what cannot be taken back ---- */

/* A worker whose steps come in portions: all but the first are decoded during the commit. */
typedef struct tight {
    weft_context *context;
    weft_store *store;
    fault_store *faults;
    model worker;
    weft_subscriber *subscriber;
} tight;

static void tight_open(tight *t, scene *s) {
    const weft_context_options options = {
        .size = sizeof options,
        .threads = 2,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .stage_bytes = 1}};
    const weft_subscriber_options empty = {.size = sizeof empty, .empty = true};
    assert_int_equal(weft_context_create(&options, &t->context), WEFT_OK);
    assert_int_equal(fault_store_create(t->context, s->place.reading, 1, &t->store, &t->faults), WEFT_OK);
    worker_open(&t->worker, t->context);
    assert_int_equal(weft_subscriber_open(t->context, t->store, t->worker.view, &empty, &t->subscriber),
                     WEFT_OK);
    scene_expect(t->context, weft_subscriber_pull(t->subscriber, 0), WEFT_OK, "the first version");
}

static void tight_close(tight *t) {
    weft_subscriber_close(t->subscriber);
    model_close(&t->worker);
    weft_store_close(t->store);
    weft_context_destroy(t->context);
}

static void tight_advance(tight *t, scene *s) {
    scene_publish(s, 200000);
    scene_expect(t->context, weft_subscriber_pull(t->subscriber, 0), WEFT_OK, "in portions");
    assert_true(worker_equals(&t->worker, &s->trainer));
}

/* The rollback is refused, and the weights stay what they were. */
static void tight_stays(tight *t, uint64_t version) {
    weft_digest before = worker_digest(t->context, t->worker.view);
    scene_expect(t->context, weft_subscriber_rollback(t->subscriber), WEFT_UNSUPPORTED, "rollback");
    weft_digest after = worker_digest(t->context, t->worker.view);
    assert_true(weft_digest_equal(&before, &after));
    assert_int_equal(subscriber_info(t->subscriber).version, version);
    assert_int_equal(weft_subscriber_verify(t->subscriber), WEFT_OK);
}

static const weft_publisher_options buckets = {
    .size = sizeof buckets, .bucket_bytes = 32768, .anchor_ratio = -1};
static const fault_rule unreachable[] = {
    {.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .pattern = "patches/*"},
    {.kind = FAULT_FAIL, .operations = FAULT_ON_GET, .pattern = "anchors/*"},
};

static void test_portions_are_not_taken_back(void **state) {
    (void)state;
    scene s;
    tight t;
    scene_open(&s, &buckets, 64);
    scene_publish(&s, 10000);
    tight_open(&t, &s);
    for (uint64_t version = 2; version < 5; version++) {
        tight_advance(&t, &s);
        tight_stays(&t, version);
    }
    tight_close(&t);
    scene_close(&s);
}

/* A prepare that fails has closed the patch that the commit before was made with. */
static void test_portions_after_a_failed_prepare(void **state) {
    (void)state;
    scene s;
    tight t;
    scene_open(&s, &buckets, 75);
    scene_publish(&s, 10000);
    tight_open(&t, &s);
    tight_advance(&t, &s);
    scene_publish(&s, 200000);
    fault_store_set(t.faults, unreachable, 2);
    assert_int_equal(weft_subscriber_prepare(t.subscriber, 0), WEFT_REMOTE_FAILED);
    tight_stays(&t, 2);
    fault_store_set(t.faults, NULL, 0);
    tight_advance(&t, &s);
    tight_close(&t);
    scene_close(&s);
}

static void test_rollback_after_a_failed_prepare(void **state) {
    (void)state;
    scene s;
    replica r;
    scene_open(&s, &plain, 65);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "before");
    scene_publish(&s, 200000);
    replica_catch_up(&r, "a commit that can be taken back");
    weft_digest before;
    weft_digest after;
    assert_true(replica_digest(&r, &before));
    scene_publish(&s, 200000);
    fault_store_set(r.faults, unreachable, 2);
    assert_int_equal(weft_subscriber_prepare(r.subscriber, 0), WEFT_REMOTE_FAILED);
    expect(r.context, weft_subscriber_rollback(r.subscriber), WEFT_UNSUPPORTED, "nothing to go back to");
    assert_true(replica_digest(&r, &after));
    assert_true(weft_digest_equal(&before, &after));
    assert_int_equal(subscriber_info(r.subscriber).version, 2);
    fault_store_set(r.faults, NULL, 0);
    replica_catch_up(&r, "after the failure");
    replica_close(&r);
    scene_close(&s);
}

/* ---- pages of another range ---- */

static bool count_entry(void *opaque, const weft_log_entry *entry) {
    (void)entry;
    (*(size_t *)opaque)++;
    return true;
}

/* No page that ends at version 66 has so many records: a publisher that took them in would have no room for
 * the next. */
static void test_a_page_of_another_range(void **state) {
    (void)state;
    scene s;
    replica r;
    scene_open(&s, &plain, 66);
    for (unsigned i = 0; i < 64; i++) {
        scene_publish(&s, 1000);
    }
    forgery old;
    forgery_open(&old, &s);
    assert_int_equal(json_array_size(old.records), 64);
    for (unsigned i = 0; i < 2; i++) {
        scene_publish(&s, 1000);
    }
    forgery f;
    forgery_open(&f, &s);
    assert_int_equal(json_array_size(f.records), 2);
    json_array_remove(old.records, 0);
    json_array_remove(old.records, 0);
    json_array_extend(old.records, f.records);
    json_object_set(f.page, "records", old.records);
    forgery_put(&f, &s);
    expect(s.context, scene_publisher(&s), WEFT_MALFORMED, "the range of versions");
    assert_null(s.publisher);
    size_t entries = 0;
    expect(s.outside, weft_log_walk(s.outside, s.store, NULL, count_entry, &entries), WEFT_MALFORMED,
           "the range of versions");
    assert_int_equal(entries, 0);
    replica_open(&r, &s, NULL, NULL);
    expect(r.context, weft_subscriber_pull(r.subscriber, 0), WEFT_MALFORMED, "the range of versions");
    replica_close(&r);
    forgery_close(&f);
    forgery_close(&old);
    scene_close(&s);
}

/* ---- sequences ---- */

static weft_head_info inspect(scene *s) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    weft_head_info info = {.size = sizeof info};
    scene_expect(s->outside, weft_head_find(s->outside, s->store, 1, data, &size, &epoch), WEFT_OK,
                 "find the head");
    scene_expect(s->outside, weft_head_inspect(s->outside, data, size, NULL, &info), WEFT_OK,
                 "inspect the head");
    return info;
}

static void test_an_abandoned_head(void **state) {
    (void)state;
    static const fault_rule refused = {
        .kind = FAULT_FAIL, .operations = FAULT_ON_PUT, .pattern = "heads/*", .limit = 1};
    scene s;
    scene_open(&s, &plain, 67);
    scene_publish(&s, 10000);
    uint64_t sequence = inspect(&s).sequence;
    for (unsigned i = 0; i < 3; i++) {
        fault_store_set(s.faults, &refused, 1);
        trainer_step(&s.trainer, 10000);
        assert_int_equal(weft_publisher_publish(s.publisher, NULL, NULL), WEFT_REMOTE_FAILED);
        /* one number was given to a head that might still have arrived, the next to the one that keeps it
         * out */
        assert_int_equal(inspect(&s).sequence, sequence + 2);
        fault_store_set(s.faults, NULL, 0);
        scene_publish(&s, 10000);
        assert_int_equal(inspect(&s).sequence, sequence + 3);
        sequence += 3;
    }
    scene_newcomer(&s, "after abandoned heads");
    scene_close(&s);
}

/* The head arrives while its writer looks and sees the one before: its fate is left to the next publish. */
static void test_an_abandoned_head_that_lands_late(void **state) {
    (void)state;
    static const fault_rule late[] = {
        {.kind = FAULT_LOSE, .operations = FAULT_ON_PUT, .pattern = "heads/*", .limit = 1},
        {.kind = FAULT_STALE, .operations = FAULT_ON_GET, .pattern = "heads/*", .limit = 1},
    };
    scene s;
    replica live;
    replica file;
    scene_open(&s, &plain, 68);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    replica_open(&live, &s, NULL, NULL);
    replica_open(&file, &s, "out", NULL);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t sequence = inspect(&s).sequence;
        fault_store_set(s.faults, late, 2);
        trainer_step(&s.trainer, 10000);
        assert_true(weft_publisher_publish(s.publisher, NULL, NULL) < 0);
        assert_int_equal(inspect(&s).sequence, sequence + 1);
        replica_catch_up(&live, "the head that was given up");
        fault_store_set(s.faults, NULL, 0);
        scene_publish(&s, 10000);
        assert_true(inspect(&s).sequence > sequence + 1);
        replica_catch_up(&live, "the head after it");
        replica_catch_up(&file, "the head after it");
    }
    scene_newcomer(&s, "after late heads");
    replica_close(&file);
    replica_close(&live);
    scene_close(&s);
}

/* ---- a server that has something under every name ---- */

typedef struct catchall {
    weft_store *inner;
    bool answers;     /* else it is the store within */
    const char *text; /* what lies under every head's key */
    atomic_uint requests;
} catchall;

static bool catches(catchall *c, const char *key, weft_status *status) {
    bool caught = c->answers && strncmp(key, "heads/", 6) == 0;
    if (caught) {
        *status = atomic_fetch_add(&c->requests, 1) < REQUESTS_MAX ? WEFT_OK : WEFT_REMOTE_FAILED;
    }
    return caught;
}

static weft_status catchall_get(void *self, weft_context *context, const weft_store_get_request *request,
                                weft_store_get_result *result) {
    catchall *c = self;
    weft_status status;
    if (!catches(c, request->key, &status)) {
        return weft_store_get(context, c->inner, request, result);
    }
    if (status == WEFT_OK) {
        size_t size = strlen(c->text);
        assert_true(request->offset == 0 && request->length >= size);
        memcpy(request->buffer, c->text, size);
        *result = (weft_store_get_result){
            .size = sizeof(weft_store_get_result), .received = size, .object_bytes = size, .tag = {"same"}};
    }
    return status;
}

static weft_status catchall_put(void *self, weft_context *context, const weft_store_put_request *request,
                                weft_store_tag *tag) {
    return weft_store_put(context, ((catchall *)self)->inner, request, tag);
}

static weft_status catchall_head(void *self, weft_context *context, const char *key, uint64_t *size,
                                 weft_store_tag *tag) {
    catchall *c = self;
    weft_status status;
    if (!catches(c, key, &status)) {
        return weft_store_head(context, c->inner, key, size, tag);
    }
    *size = strlen(c->text);
    *tag = (weft_store_tag){"same"};
    return status;
}

static weft_status catchall_remove(void *self, weft_context *context, const char *key) {
    return weft_store_remove(context, ((catchall *)self)->inner, key);
}

static void catchall_close(void *self) {
    (void)self;
}

static weft_store *catchall_open(catchall *c, weft_context *context) {
    static const weft_store_operations operations = {
        .size = sizeof operations,
        .name = "catchall",
        .get = catchall_get,
        .put = catchall_put,
        .head = catchall_head,
        .remove = catchall_remove,
        .close = catchall_close,
    };
    weft_store *store;
    scene_expect(context, weft_store_create(context, "catchall:", &operations, c, &store), WEFT_OK,
                 "open a store that catches all");
    return store;
}

static void ask_catchall(catchall *c, weft_context *context, weft_subscriber *subscriber) {
    atomic_store(&c->requests, 0);
    scene_expect(context, weft_subscriber_pull(subscriber, 0), WEFT_CHECKSUM_MISMATCH, "pull");
    assert_true(atomic_load(&c->requests) < REQUESTS_MAX);
}

/* `text` NULL: the head of epoch 1, under every name. */
static void run_catchall(const char *text) {
    const weft_subscriber_options empty = {.size = sizeof empty, .empty = true};
    scene s;
    model worker;
    weft_subscriber *subscriber;
    weft_publisher *publisher;
    char head[WEFT_HEAD_MAX + 1];
    size_t size;
    uint64_t epoch;
    scene_open(&s, &plain, 69);
    scene_publish(&s, 10000);
    assert_int_equal(weft_head_find(s.outside, s.store, 1, (uint8_t *)head, &size, &epoch), WEFT_OK);
    head[size] = '\0';
    weft_context *context = patches_context(2);
    catchall c = {.inner = s.store, .text = text != NULL ? text : head};
    weft_store *store = catchall_open(&c, context);
    worker_open(&worker, context);
    assert_int_equal(weft_subscriber_open(context, store, worker.view, &empty, &subscriber), WEFT_OK);
    scene_expect(context, weft_subscriber_pull(subscriber, 0), WEFT_OK, "while it is honest");
    c.answers = true;
    ask_catchall(&c, context, subscriber);
    assert_true(worker_equals(&worker, &s.trainer));
    weft_subscriber_close(subscriber);
    assert_int_equal(weft_subscriber_open(context, store, worker.view, &empty, &subscriber), WEFT_OK);
    ask_catchall(&c, context, subscriber);
    atomic_store(&c.requests, 0);
    scene_expect(context, weft_publisher_open(context, store, worker.view, &plain, &publisher),
                 WEFT_CHECKSUM_MISMATCH, "open a publisher");
    assert_true(atomic_load(&c.requests) < REQUESTS_MAX);
    c.answers = false;
    scene_publish(&s, 10000);
    scene_expect(context, weft_subscriber_pull(subscriber, 0), WEFT_OK, "when it is honest again");
    assert_true(worker_equals(&worker, &s.trainer));
    weft_subscriber_close(subscriber);
    model_close(&worker);
    weft_store_close(store);
    weft_context_destroy(context);
    scene_close(&s);
}

static void test_a_store_that_answers_everything(void **state) {
    (void)state;
    run_catchall("<html>Log in</html>\n");
    run_catchall("");
    run_catchall(NULL);
}

/* ---- heads under another's name ---- */

static void test_a_head_under_the_next_name(void **state) {
    (void)state;
    scene s;
    replica live;
    replica fresh;
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    scene_open(&s, &plain, 70);
    scene_publish(&s, 10000);
    replica_open(&live, &s, "out", NULL);
    replica_catch_up(&live, "before");
    assert_int_equal(weft_head_find(s.outside, s.store, 1, data, &size, &epoch), WEFT_OK);
    scene_write(&s, "heads/00000002", data, size);
    expect(live.context, weft_subscriber_pull(live.subscriber, 0), WEFT_CHECKSUM_MISMATCH,
           "is not that head");
    assert_true(replica_current(&live));
    assert_int_equal(subscriber_info(live.subscriber).epoch, 1);
    replica_open(&fresh, &s, NULL, NULL);
    expect(fresh.context, weft_subscriber_pull(fresh.subscriber, 0), WEFT_CHECKSUM_MISMATCH,
           "is not that head");
    expect(s.context, scene_publisher(&s), WEFT_CHECKSUM_MISMATCH, "is not that head");
    assert_int_equal(scene_count(&s, "heads"), 2);
    scene_remove(&s, "heads/00000002");
    scene_publish(&s, 10000);
    assert_int_equal(inspect(&s).epoch, 2);
    replica_catch_up(&live, "without the copy");
    replica_catch_up(&fresh, "without the copy");
    replica_close(&fresh);
    replica_close(&live);
    scene_close(&s);
}

/* ---- labels ---- */

enum { LABELS = 64 };

static void test_labels_that_nobody_could_read(void **state) {
    (void)state;
    static const char *const twice[] = {"step", "1", "seed", "2", "step", "1", NULL};
    char keys[LABELS + 1][8];
    const char *labels[2 * (LABELS + 1) + 1] = {NULL};
    scene s;
    replica r;
    for (size_t i = 0; i < LABELS + 1; i++) {
        snprintf(keys[i], sizeof keys[i], "k%zu", i);
        labels[2 * i] = keys[i];
        labels[2 * i + 1] = "v";
    }
    scene_open(&s, &plain, 71);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(scene_publisher(&s), WEFT_OK);
        size_t objects = scene_count(&s, "anchors") + scene_count(&s, "patches") + scene_count(&s, "pages");
        expect(s.context, weft_publisher_publish(s.publisher, labels, NULL), WEFT_LIMIT_EXCEEDED,
               "64 labels");
        expect(s.context, weft_publisher_publish(s.publisher, twice, NULL), WEFT_INVALID_ARGUMENT,
               "step is given twice");
        assert_int_equal(scene_count(&s, "anchors") + scene_count(&s, "patches") + scene_count(&s, "pages"),
                         objects);
        assert_int_equal(inspect(&s).version, i);
        scene_publish(&s, 10000);
    }
    labels[2 * LABELS] = NULL;
    trainer_step(&s.trainer, 10000);
    assert_int_equal(weft_publisher_publish(s.publisher, labels, NULL), WEFT_OK);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "with as many labels as there is room for");
    assert_string_equal(weft_subscriber_label(r.subscriber, "k63"), "v");
    replica_close(&r);
    scene_close(&s);
}

/* ---- where a replica is ---- */

typedef struct dates {
    uint64_t of[4];
} dates;

static bool note_date(void *opaque, const weft_log_entry *entry) {
    dates *dates = opaque;
    assert_true(entry->version < 4);
    dates->of[entry->version] = entry->milliseconds;
    return true;
}

static void check_place(const replica *r, const dates *dates, uint64_t version) {
    char step[24];
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(r->subscriber, &info);
    snprintf(step, sizeof step, "%llu", (unsigned long long)version);
    assert_int_equal(info.version, version);
    assert_int_equal(info.milliseconds, dates->of[version]);
    assert_non_null(weft_subscriber_label(r->subscriber, "step"));
    assert_string_equal(weft_subscriber_label(r->subscriber, "step"), step);
}

/* A pull of an older version that the replica has already does not make it the newest one's. */
static void test_a_version_that_is_there_already(void **state) {
    (void)state;
    static const char *const labels[3][3] = {{"step", "1", NULL}, {"step", "2", NULL}, {"step", "3", NULL}};
    for (unsigned file = 0; file < 2; file++) {
        scene s;
        replica r;
        dates dates = {{0}};
        scene_open(&s, &plain, 72);
        assert_int_equal(scene_publisher(&s), WEFT_OK);
        for (unsigned i = 0; i < 3; i++) {
            trainer_step(&s.trainer, 10000);
            assert_int_equal(weft_publisher_publish(s.publisher, labels[i], NULL), WEFT_OK);
            usleep(3000); /* so that no two have the same date */
        }
        assert_int_equal(weft_log_walk(s.outside, s.store, NULL, note_date, &dates), WEFT_OK);
        assert_true(dates.of[2] < dates.of[3]);
        replica_open(&r, &s, file ? "out" : NULL, NULL);
        for (uint64_t version = 2; version < 4; version++) {
            for (unsigned i = 0; i < 2; i++) {
                scene_expect(r.context, weft_subscriber_pull(r.subscriber, version), WEFT_OK, "pull");
                check_place(&r, &dates, version);
            }
            if (file) {
                assert_int_equal(replica_reopen(&r, NULL), WEFT_OK);
                scene_expect(r.context, weft_subscriber_pull(r.subscriber, version), WEFT_OK, "reopened");
                check_place(&r, &dates, version);
            }
        }
        replica_close(&r);
        scene_close(&s);
    }
}

/* ---- retention ---- */

static json_t *patch_key(const json_t *record) {
    return json_object_get(json_object_get(record, "patch"), "key");
}

/* The last record retires `key`, since long ago. */
static void retire(scene *s, const char *key) {
    forgery f;
    forgery_open(&f, s);
    json_object_set_new(f.last, "retired", json_pack("[s]", key));
    json_object_set_new(f.last, "time", json_integer(1));
    forgery_put(&f, s);
    forgery_close(&f);
}

static void test_retired_keys_of_another_kind(void **state) {
    (void)state;
    static const char *const keys[] = {"heads/00000001", "gc/mark", "patches", "other/x", "patchesx/y"};
    const weft_gc_options at_once = {.size = sizeof at_once, .grace_seconds = 0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        scene s;
        scene_open(&s, &plain, 73);
        scene_publish(&s, 10000);
        scene_publish(&s, 10000);
        scene_write(&s, "other/x", "x", 1);
        scene_write(&s, "patchesx/y", "y", 1);
        retire(&s, keys[i]);
        expect(s.outside, weft_gc_run(s.outside, s.store, &at_once, NULL), WEFT_MALFORMED,
               "the key of a retired object");
        assert_int_equal(scene_count(&s, "heads"), 1);
        assert_int_equal(scene_count(&s, "other"), 1);
        assert_int_equal(scene_count(&s, "patchesx"), 1);
        scene_close(&s);
    }
}

/* What a page replaces is retired by whoever goes on from it, and then nobody could read that one's page.
 */
static void test_a_replaced_page_of_another_kind(void **state) {
    (void)state;
    scene s;
    forgery f;
    scene_open(&s, &plain, 76);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    forgery_open(&f, &s);
    json_object_set_new(f.page, "replaces", json_string("heads/00000001"));
    forgery_put(&f, &s);
    forgery_close(&f);
    expect(s.context, scene_publisher(&s), WEFT_MALFORMED, "the key of a replaced page");
    scene_close(&s);
}

static void test_what_is_needed_cannot_be_retired(void **state) {
    (void)state;
    const weft_gc_options at_once = {.size = sizeof at_once, .grace_seconds = 0};
    for (unsigned anchor = 0; anchor < 2; anchor++) {
        scene s;
        forgery f;
        char key[128];
        scene_open(&s, &plain, 74);
        for (unsigned i = 0; i < 4; i++) {
            scene_publish(&s, 10000);
        }
        forgery_open(&f, &s);
        json_t *anchors = json_object_get(f.page, "anchors");
        json_t *object = json_object_get(json_array_get(anchors, 0), "object");
        const json_t *name =
            anchor ? json_object_get(object, "key") : patch_key(json_array_get(f.records, 1));
        snprintf(key, sizeof key, "%s", json_string_value(name));
        forgery_close(&f);
        retire(&s, key);
        scene_expect(s.outside, weft_gc_run(s.outside, s.store, &at_once, NULL), WEFT_OK, "gc");
        assert_int_equal(scene_count(&s, "patches"), 3);
        assert_int_equal(scene_count(&s, "anchors"), 1);
        scene_newcomer(&s, "after the collection");
        scene_close(&s);
    }
}

/* A part that is none of those that there are would wait for the others for ever. */
static void test_parts_that_do_not_exist(void **state) {
    (void)state;
    const weft_publisher_options wrong[] = {
        {.size = sizeof(weft_publisher_options), .part_index = 1},
        {.size = sizeof(weft_publisher_options), .part_index = 1, .part_count = 1},
        {.size = sizeof(weft_publisher_options), .part_index = 2, .part_count = 2}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        scene s;
        scene_open(&s, &wrong[i], 72);
        expect(s.context, scene_publisher(&s), WEFT_INVALID_ARGUMENT, "does not exist");
        assert_int_equal(scene_count(&s, "heads"), 0);
        scene_close(&s);
    }
}

/* ---- packed texts ---- */

static void expect_no_frame(weft_context *context, const uint8_t *frame, size_t size, size_t most) {
    uint8_t *text = NULL;
    size_t length = 0;
    expect(context, weft_unpack(context, "a frame", frame, size, most, &text, &length), WEFT_MALFORMED,
           "cannot be unpacked");
    assert_null(text);
}

/* What is not one frame of today's zstd, of a size that it tells and that is allowed, is not unpacked. */
static void test_frames_that_are_none(void **state) {
    (void)state;
    /* "hello" as zstd 0.7 wrote it, which libraries may still read; as a frame that tells no size; behind a
     * number of another dictionary; and a frame that tells of 2^63 bytes */
    static const uint8_t old[] = {0x27, 0xb5, 0x2f, 0xfd, 0x20, 5,    0x40, 0, 5,
                                  'h',  'e',  'l',  'l',  'o',  0xc0, 0,    0};
    static const uint8_t untold[] = {0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0x29, 0, 0, 'h', 'e', 'l', 'l', 'o'};
    static const uint8_t other[] = {0x28, 0xb5, 0x2f, 0xfd, 0x21, 7,   5,  0x29,
                                    0,    0,    'h',  'e',  'l',  'l', 'o'};
    static const uint8_t huge[] = {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0,   0,   0,   0,   0,  0,
                                   0,    0x80, 0x29, 0,    0,    'h', 'e', 'l', 'l', 'o'};
    static const uint8_t skipped[] = {0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0};
    const char hello[] = "hello hello hello hello";
    weft_context *context = patches_context(1);
    weft_writer writer;
    uint8_t *text;
    size_t length;
    expect_no_frame(context, old, sizeof old, 100);
    expect_no_frame(context, untold, sizeof untold, 100);
    expect_no_frame(context, other, sizeof other, 100);
    expect_no_frame(context, huge, sizeof huge, 100);
    expect_no_frame(context, skipped, sizeof skipped, 100);
    weft_writer_open(&writer, context);
    assert_int_equal(weft_pack(context, hello, sizeof hello, &writer), WEFT_OK);
    assert_int_equal(
        weft_unpack(context, "a frame", writer.data, writer.size, sizeof hello, &text, &length), WEFT_OK);
    assert_int_equal(length, sizeof hello);
    assert_memory_equal(text, hello, length);
    weft_release(context, text);
    expect_no_frame(context, writer.data, writer.size, sizeof hello - 1);
    for (size_t i = 0; i < writer.size; i++) {
        expect_no_frame(context, writer.data, i, 100);
    }
    size_t size = writer.size;
    assert_int_equal(weft_pack(context, hello, sizeof hello, &writer), WEFT_OK);
    expect_no_frame(context, writer.data, size + 1, 100);
    expect_no_frame(context, writer.data, writer.size, 100);
    weft_writer_close(&writer);
    weft_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_patch_that_lies),
        cmocka_unit_test(test_an_anchor_after_a_lie),
        cmocka_unit_test(test_a_bit_flips_in_the_publishers_copy),
        cmocka_unit_test(test_a_bit_flips_in_the_publishers_file),
        cmocka_unit_test(test_portions_are_not_taken_back),
        cmocka_unit_test(test_portions_after_a_failed_prepare),
        cmocka_unit_test(test_rollback_after_a_failed_prepare),
        cmocka_unit_test(test_a_page_of_another_range),
        cmocka_unit_test(test_an_abandoned_head),
        cmocka_unit_test(test_an_abandoned_head_that_lands_late),
        cmocka_unit_test(test_a_store_that_answers_everything),
        cmocka_unit_test(test_a_head_under_the_next_name),
        cmocka_unit_test(test_labels_that_nobody_could_read),
        cmocka_unit_test(test_a_version_that_is_there_already),
        cmocka_unit_test(test_retired_keys_of_another_kind),
        cmocka_unit_test(test_a_replaced_page_of_another_kind),
        cmocka_unit_test(test_what_is_needed_cannot_be_retired),
        cmocka_unit_test(test_parts_that_do_not_exist),
        cmocka_unit_test(test_frames_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
