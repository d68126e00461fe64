/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies in the store is damaged, missing, old, forged or from another time: a replica goes round it if
 * there is a way, else says why and stays where it is, and the next version or anchor heals it. Weights
 * that somebody changed under a subscriber are found and replaced.
 */
#include "../support/described.h"
#include "plain.h"
#include "scenes.h"
#include "stride.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const weft_publisher_options plain = {.size = sizeof plain, .anchor_ratio = -1};

static void expect(const replica *r, weft_status status, weft_status expected, const char *words) {
    scene_expect(r->context, status, expected, words);
    if (strstr(weft_context_error(r->context), words) == NULL) {
        fail_msg("'%s' is not in: %s", words, weft_context_error(r->context));
    }
}

/* ---- patches ---- */

/* With an anchor further on there is a way round; without, a new anchor is needed. Both for damage and for
 * loss, in memory and in a file. */
static void run_bad_patch(bool missing, bool file, bool anchored) {
    scene s;
    replica behind;
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_open(&s, &plain, 21);
    scene_publish(&s, 10000);
    replica_open(&behind, &s, file ? "out" : NULL, NULL);
    replica_catch_up(&behind, "before");
    for (unsigned i = 2; i <= 6; i++) {
        scene_publish(&s, 10000);
    }
    if (anchored) {
        assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    }
    scene_publish(&s, 10000);
    scene_find(&s, "patches", 4, key);
    if (missing) {
        scene_remove(&s, key);
    } else {
        scene_spoil(&s, key);
    }
    if (!anchored) {
        weft_status status = weft_subscriber_pull(behind.subscriber, 0);
        expect(&behind, status, WEFT_CHECKSUM_MISMATCH, "no way leads to version 7");
        assert_true(replica_sound(&behind));
        assert_int_equal(subscriber_info(behind.subscriber).version, 3);
        assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    }
    replica_catch_up(&behind, "round a bad patch");
    assert_true(subscriber_info(behind.subscriber).healed > 0);
    assert_int_equal(subscriber_info(behind.subscriber).anchors, 2);
    scene_publish(&s, 10000);
    replica_catch_up(&behind, "after a bad patch");
    scene_newcomer(&s, "after a bad patch");
    replica_close(&behind);
    scene_close(&s);
}

static void test_bad_patches(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        run_bad_patch(false, i % 2 == 1, i / 2 == 1);
    }
    run_bad_patch(true, false, true);
    run_bad_patch(true, true, false);
}

/* ---- anchors ---- */

static void test_a_damaged_anchor(void **state) {
    (void)state;
    scene s;
    replica fresh;
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_open(&s, &plain, 22);
    for (unsigned i = 1; i <= 5; i++) {
        scene_publish(&s, 10000);
    }
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_publish(&s, 10000);
    scene_find(&s, "anchors", 5, key);
    scene_spoil(&s, key);
    /* from the older anchor, by all patches */
    replica_open(&fresh, &s, NULL, NULL);
    replica_catch_up(&fresh, "round a damaged anchor");
    assert_int_equal(subscriber_info(fresh.subscriber).patches, 5);
    replica_close(&fresh);
    scene_find(&s, "anchors", 1, key);
    scene_spoil(&s, key);
    replica_open(&fresh, &s, "out", NULL);
    expect(&fresh, weft_subscriber_pull(fresh.subscriber, 0), WEFT_CHECKSUM_MISMATCH, "is damaged");
    assert_int_equal(subscriber_info(fresh.subscriber).version, 0);
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    replica_catch_up(&fresh, "by a new anchor");
    replica_close(&fresh);
    scene_close(&s);
}

/* Another publisher cannot rebuild what it would have to continue from: its first version is whole. */
static void test_a_publisher_over_ruins(void **state) {
    (void)state;
    static const char *const rooms[] = {"anchors", "patches"};
    for (size_t i = 0; i < 2; i++) {
        scene s;
        replica live;
        char key[WEFT_STORE_KEY_MAX + 1];
        scene_open(&s, &plain, 23);
        scene_publish(&s, 10000);
        scene_publish(&s, 10000);
        replica_open(&live, &s, NULL, NULL);
        replica_catch_up(&live, "before the ruin");
        scene_find(&s, rooms[i], i == 0 ? 1 : 2, key);
        scene_spoil(&s, key);
        assert_int_equal(scene_publisher(&s), WEFT_OK);
        weft_publish_result result = {.size = sizeof result};
        trainer_step(&s.trainer, 10000);
        assert_int_equal(weft_publisher_publish(s.publisher, NULL, &result), WEFT_OK);
        assert_true(result.anchored);
        assert_int_equal(result.version, 3);
        replica_catch_up(&live, "after the ruin");
        scene_newcomer(&s, "after the ruin");
        scene_publish(&s, 10000);
        replica_catch_up(&live, "on from the ruin");
        replica_close(&live);
        scene_close(&s);
    }
}

/* ---- pages ---- */

static void test_a_damaged_page(void **state) {
    (void)state;
    for (unsigned missing = 0; missing < 2; missing++) {
        scene s;
        replica one_behind;
        replica fresh;
        char key[WEFT_STORE_KEY_MAX + 1];
        scene_open(&s, &plain, 24);
        scene_publish(&s, 10000);
        replica_open(&one_behind, &s, NULL, NULL);
        replica_catch_up(&one_behind, "before");
        scene_publish(&s, 10000);
        scene_find(&s, "pages", 2, key);
        if (missing) {
            scene_remove(&s, key);
        } else {
            scene_spoil(&s, key);
        }
        /* one behind needs the head alone */
        replica_catch_up(&one_behind, "without the page");
        replica_open(&fresh, &s, NULL, NULL);
        weft_status status = weft_subscriber_pull(fresh.subscriber, 0);
        expect(&fresh, status, missing ? WEFT_NOT_FOUND : WEFT_CHECKSUM_MISMATCH, "pages/");
        scene_publish(&s, 10000);
        scene_publish(&s, 10000);
        replica_catch_up(&fresh, "by the next page that repeats it");
        replica_close(&fresh);
        replica_close(&one_behind);
        scene_close(&s);
    }
}

/* The page that others link to for ever is bad: what lies behind it is lost, the rest is not. */
static void test_a_damaged_page_of_the_past(void **state) {
    (void)state;
    scene s;
    replica behind;
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_open(&s, &plain, 25);
    scene_publish(&s, 10000);
    replica_open(&behind, &s, NULL, NULL);
    replica_catch_up(&behind, "before");
    for (unsigned i = 2; i <= 20; i++) {
        scene_publish(&s, 10000);
    }
    scene_find(&s, "pages", 8, key);
    scene_spoil(&s, key);
    weft_digest before;
    weft_digest after;
    assert_true(replica_digest(&behind, &before));
    expect(&behind, weft_subscriber_pull(behind.subscriber, 0), WEFT_CHECKSUM_MISMATCH, "pages/");
    assert_true(replica_digest(&behind, &after));
    assert_true(weft_digest_equal(&before, &after));
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_newcomer(&s, "with an anchor before the damage");
    replica_catch_up(&behind, "with an anchor before the damage");
    replica_close(&behind);
    scene_close(&s);
}

/* Who missed two versions needs the page of these, and not the one of the version that it is at. */
static void test_a_damaged_page_behind_few(void **state) {
    (void)state;
    scene s;
    replica behind;
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_open(&s, &plain, 27);
    for (unsigned i = 1; i <= 8; i++) {
        scene_publish(&s, 1000);
    }
    replica_open(&behind, &s, NULL, NULL);
    replica_catch_up(&behind, "before");
    scene_publish(&s, 1000);
    scene_publish(&s, 1000);
    scene_find(&s, "pages", 8, key);
    scene_spoil(&s, key);
    replica_catch_up(&behind, "by the newest page alone");
    replica_close(&behind);
    scene_close(&s);
}

/* A page within the few versions that a replica missed is bad, but one after it names an anchor. */
static void test_a_damaged_page_among_few(void **state) {
    (void)state;
    for (unsigned missing = 0; missing < 2; missing++) {
        scene s;
        replica behind;
        char key[WEFT_STORE_KEY_MAX + 1];
        scene_open(&s, &plain, 28);
        for (unsigned i = 1; i <= 10; i++) {
            scene_publish(&s, 1000);
        }
        replica_open(&behind, &s, NULL, NULL);
        replica_catch_up(&behind, "before");
        for (unsigned i = 11; i <= 14; i++) {
            scene_publish(&s, 1000);
        }
        assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
        scene_find(&s, "pages", 12, key);
        if (missing) {
            scene_remove(&s, key);
        } else {
            scene_spoil(&s, key);
        }
        replica_catch_up(&behind, "from the anchor");
        replica_close(&behind);
        scene_close(&s);
    }
}

/* ---- drift ---- */

static void test_drift(void **state) {
    (void)state;
    const weft_subscriber_options all = {.size = sizeof all, .audit_bytes = UINT64_MAX};
    scene s;
    replica r;
    scene_open(&s, &plain, 26);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, &all);
    replica_catch_up(&r, "before");
    weft_digest first;
    assert_true(replica_digest(&r, &first));
    for (unsigned i = 0; i < 6; i++) {
        ((uint8_t *)r.model.blocks[i % 3])[1000 * i + 5] ^= 1u << i;
        if (i % 2 == 0) {
            expect(&r, weft_subscriber_verify(r.subscriber), WEFT_DIGEST_MISMATCH, "");
        }
        scene_publish(&s, 10000);
        replica_catch_up(&r, "over drift");
        assert_int_equal(weft_subscriber_verify(r.subscriber), WEFT_OK);
    }
    replica_close(&r);
    scene_close(&s);
}

/* A commit of an anchor over weights that were known is taken back too; one over drift is not, because what
 * was there is nothing to go back to. */
static void test_rollback_of_an_anchor(void **state) {
    (void)state;
    scene s;
    replica r;
    char key[WEFT_STORE_KEY_MAX + 1];
    scene_open(&s, &plain, 27);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "before");
    weft_digest first;
    assert_true(replica_digest(&r, &first));
    scene_publish(&s, 10000);
    scene_find(&s, "patches", 2, key);
    assert_int_equal(weft_publisher_anchor(s.publisher, NULL), WEFT_OK);
    scene_spoil(&s, key);
    replica_catch_up(&r, "by an anchor");
    assert_int_equal(subscriber_info(r.subscriber).anchors, 2);
    scene_expect(r.context, weft_subscriber_rollback(r.subscriber), WEFT_OK, "rollback of an anchor");
    weft_digest back;
    assert_true(replica_digest(&r, &back));
    assert_true(weft_digest_equal(&first, &back));
    assert_int_equal(subscriber_info(r.subscriber).version, 1);
    assert_int_equal(weft_subscriber_verify(r.subscriber), WEFT_OK);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "after the rollback");
    assert_int_equal(weft_subscriber_verify(r.subscriber), WEFT_OK);
    replica_close(&r);
    scene_close(&s);
}

/* A file that somebody else changed between two runs is of no version: it is replaced, because the
 * watermark says whose it is. */
static void test_a_file_changed_between_runs(void **state) {
    (void)state;
    scene s;
    replica r;
    scene_open(&s, &plain, 28);
    scene_publish(&s, 10000);
    replica_open(&r, &s, "out", NULL);
    replica_catch_up(&r, "before");
    weft_subscriber_close(r.subscriber);
    r.subscriber = NULL;
    scene_damage(r.path);
    scene_publish(&s, 10000);
    assert_int_equal(replica_reopen(&r, NULL), WEFT_OK);
    replica_catch_up(&r, "over a changed file");
    /* cut off in the middle, it is not even a checkpoint */
    weft_subscriber_close(r.subscriber);
    r.subscriber = NULL;
    assert_int_equal(truncate(r.path, 5000), 0);
    scene_publish(&s, 10000);
    assert_int_equal(replica_reopen(&r, NULL), WEFT_OK);
    replica_catch_up(&r, "over half a file");
    replica_close(&r);
    scene_close(&s);
}

/* ---- heads ---- */

static size_t read_head(scene *s, uint64_t epoch, uint8_t data[WEFT_HEAD_MAX]) {
    char key[WEFT_HEAD_KEY];
    size_t size;
    weft_head_key(epoch, key);
    char *head = scene_read(s, key, &size);
    assert_true(size <= WEFT_HEAD_MAX);
    memcpy(data, head, size);
    free(head);
    return size;
}

static void write_head(scene *s, uint64_t epoch, const void *data, size_t size) {
    char key[WEFT_HEAD_KEY];
    weft_head_key(epoch, key);
    scene_write(s, key, data, size);
}

/* Replaces `from` by `to`, of the same length, in the JSON of a head, with a hash that fits. */
static size_t forge(const uint8_t *head, size_t size, const char *from, const char *to, bool keep_signature,
                    uint8_t out[WEFT_HEAD_MAX]) {
    static const char digits[] = "0123456789abcdef";
    size = plain_head(head, size, out);
    const uint8_t *line = memchr(out, '\n', size);
    assert_non_null(line);
    size_t json = (size_t)(line - out);
    char *place = memmem(out, json, from, strlen(from));
    assert_non_null(place);
    memcpy(place, to, strlen(to));
    uint8_t hash[32];
    unsigned length;
    EVP_Digest(out, json, hash, &length, EVP_sha256(), NULL);
    for (size_t i = 0; i < 32; i++) {
        out[json + 8 + 2 * i] = (uint8_t)digits[hash[i] >> 4];
        out[json + 9 + 2 * i] = (uint8_t)digits[hash[i] & 15];
    }
    return keep_signature ? size : json + 1 + 7 + 64 + 1;
}

/* The store shows an old head again, of this epoch or of one before, signed as it once was. */
static void run_replay(bool file, const weft_key *key) {
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1, .key = key};
    const weft_subscriber_options trusting = {.size = sizeof trusting, .trusted = key};
    uint8_t old[WEFT_HEAD_MAX];
    uint8_t new[WEFT_HEAD_MAX];
    scene s;
    replica r;
    scene_open(&s, &options, 29);
    scene_publish(&s, 10000);
    scene_publish(&s, 10000);
    size_t old_size = read_head(&s, 1, old);
    replica_open(&r, &s, file ? "out" : NULL, &trusting);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "before the replay");
    size_t new_size = read_head(&s, 1, new);
    for (unsigned i = 0; i < 3; i++) {
        write_head(&s, 1, old, old_size);
        scene_expect(r.context, weft_subscriber_pull(r.subscriber, 0), WEFT_OK, "nothing new");
        assert_true(replica_current(&r));
        assert_int_equal(subscriber_info(r.subscriber).version, 3);
        uint64_t version;
        assert_int_equal(weft_subscriber_wait(r.subscriber, 0.05, &version), WEFT_MORE);
    }
    if (file) {
        assert_int_equal(replica_reopen(&r, &trusting), WEFT_OK);
        weft_status status = weft_subscriber_pull(r.subscriber, 0);
        expect(&r, status, WEFT_NOT_FOUND, "older");
        assert_true(replica_current(&r));
    }
    write_head(&s, 1, new, new_size);
    replica_catch_up(&r, "the replay is over");
    scene_publish(&s, 10000);
    replica_catch_up(&r, "on");
    /* another epoch: the head of the one before stays where it is, and may move without anybody caring */
    assert_int_equal(scene_publisher(&s), WEFT_OK);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "in the next epoch");
    write_head(&s, 1, old, old_size);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "whatever the epoch before does");
    if (file) {
        assert_int_equal(replica_reopen(&r, &trusting), WEFT_OK);
        replica_catch_up(&r, "reopened");
    }
    replica_close(&r);
    scene_close(&s);
}

static void test_replayed_heads(void **state) {
    (void)state;
    weft_context *context;
    weft_key *key;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &key), WEFT_OK);
    for (unsigned i = 0; i < 4; i++) {
        run_replay(i % 2 == 1, i / 2 == 1 ? key : NULL);
    }
    weft_key_destroy(key);
    weft_context_destroy(context);
}

/* Nothing that the trusted key has not signed moves anybody. */
static void test_forged_heads(void **state) {
    (void)state;
    weft_context *context;
    weft_key *key;
    weft_key *other;
    uint8_t head[WEFT_HEAD_MAX];
    uint8_t forged[WEFT_HEAD_MAX];
    scene s;
    replica r;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &key), WEFT_OK);
    assert_int_equal(weft_key_generate(context, &other), WEFT_OK);
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = -1, .key = key};
    const weft_subscriber_options trusting = {.size = sizeof trusting, .trusted = key};
    scene_open(&s, &options, 30);
    scene_publish(&s, 10000);
    replica_open(&r, &s, "out", &trusting);
    replica_catch_up(&r, "before");
    size_t size = read_head(&s, 1, head);
    /* version 2 that was never published, badly signed and not signed; a new epoch of a stranger */
    size_t forged_size = forge(head, size, "\"sequence\":2", "\"sequence\":9", true, forged);
    write_head(&s, 1, forged, forged_size);
    expect(&r, weft_subscriber_pull(r.subscriber, 0), WEFT_SIGNATURE_MISMATCH, "not signed by the trusted");
    forged_size = forge(head, size, "\"sequence\":2", "\"sequence\":9", false, forged);
    write_head(&s, 1, forged, forged_size);
    expect(&r, weft_subscriber_pull(r.subscriber, 0), WEFT_SIGNATURE_MISMATCH, "is not signed");
    assert_true(replica_current(&r));
    assert_int_equal(subscriber_info(r.subscriber).sequence, 2);
    write_head(&s, 1, head, size);
    replica_catch_up(&r, "the forgery is gone");
    /* nor does a publisher go on with what another key has signed, unless it is told to */
    s.options.key = other;
    assert_int_equal(scene_publisher(&s), WEFT_SIGNATURE_MISMATCH);
    s.options.adopt = true;
    assert_int_equal(scene_publisher(&s), WEFT_OK);
    weft_digest before;
    assert_true(replica_digest(&r, &before));
    scene_publish(&s, 10000);
    expect(&r, weft_subscriber_pull(r.subscriber, 0), WEFT_SIGNATURE_MISMATCH, "give its public half");
    weft_digest after;
    assert_true(replica_digest(&r, &after));
    assert_true(weft_digest_equal(&before, &after));
    /* a restart does not change its mind */
    assert_int_equal(replica_reopen(&r, &trusting), WEFT_OK);
    assert_int_equal(weft_subscriber_pull(r.subscriber, 0), WEFT_SIGNATURE_MISMATCH);
    s.options.key = key;
    assert_int_equal(scene_publisher(&s), WEFT_OK);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "signed again");
    replica_close(&r);
    scene_close(&s);
    weft_key_destroy(other);
    weft_key_destroy(key);
    weft_context_destroy(context);
}

static void test_a_format_of_the_future(void **state) {
    (void)state;
    uint8_t head[WEFT_HEAD_MAX];
    uint8_t forged[WEFT_HEAD_MAX];
    scene s;
    replica r;
    scene_open(&s, &plain, 31);
    scene_publish(&s, 10000);
    replica_open(&r, &s, NULL, NULL);
    replica_catch_up(&r, "before");
    size_t size = read_head(&s, 1, head);
    write_head(&s, 1, forged, forge(head, size, "\"weft\":2", "\"weft\":3", true, forged));
    expect(&r, weft_subscriber_pull(r.subscriber, 0), WEFT_WRONG_VERSION, "update weft");
    assert_true(replica_current(&r));
    assert_int_equal(scene_publisher(&s), WEFT_WRONG_VERSION);
    write_head(&s, 1, head, size);
    scene_publish(&s, 10000);
    replica_catch_up(&r, "back in the present");
    replica_close(&r);
    scene_close(&s);
}

/* Somebody put another run into the place of this one. */
static void test_another_run(void **state) {
    (void)state;
    for (unsigned epochs = 1; epochs <= 2; epochs++) {
        scene s;
        replica live;
        replica file;
        scene_open(&s, &plain, 32);
        for (unsigned i = 0; i < epochs; i++) {
            assert_int_equal(scene_publisher(&s), WEFT_OK);
            scene_publish(&s, 10000);
        }
        replica_open(&live, &s, NULL, NULL);
        replica_open(&file, &s, "out", NULL);
        replica_catch_up(&live, "the first run");
        replica_catch_up(&file, "the first run");
        weft_digest before;
        weft_digest after;
        assert_true(replica_digest(&file, &before));
        weft_publisher_close(s.publisher);
        s.publisher = NULL;
        scene_clear(&s);
        for (unsigned i = 0; i < 3; i++) {
            scene_publish(&s, 10000);
        }
        /* a head that has vanished may only be hidden; one that is there can be told from ours */
        weft_status status = weft_subscriber_pull(live.subscriber, 0);
        if (epochs == 1) {
            expect(&live, status, WEFT_INVALID_ARGUMENT, "follows run");
        }
        assert_true(replica_digest(&live, &after));
        assert_true(weft_digest_equal(&before, &after));
        assert_int_equal(replica_reopen(&file, NULL), WEFT_OK);
        expect(&file, weft_subscriber_pull(file.subscriber, 0), WEFT_INVALID_ARGUMENT, "remove ");
        assert_true(replica_digest(&file, &after));
        assert_true(weft_digest_equal(&before, &after));
        replica_close(&file);
        replica_close(&live);
        scene_close(&s);
    }
}

/* ---- long absences ---- */

static void test_away_for_five_hundred_versions(void **state) {
    (void)state;
    const weft_publisher_options options = {.size = sizeof options, .anchor_ratio = 1, .keep_anchors = 3};
    scene s;
    replica live;
    replica file;
    scene_open(&s, &options, 33);
    scene_publish(&s, 2000);
    replica_open(&live, &s, NULL, NULL);
    replica_open(&file, &s, "out", NULL);
    replica_catch_up(&live, "before");
    replica_catch_up(&file, "before");
    for (unsigned i = 0; i < 500 / test_stride(); i++) {
        scene_publish(&s, 2000);
    }
    replica_catch_up(&live, "after 500 versions");
    replica_catch_up(&file, "after 500 versions");
    assert_true(subscriber_info(live.subscriber).fetched_bytes < 2000000);
    replica_close(&file);
    replica_close(&live);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_patches),
        cmocka_unit_test(test_a_damaged_anchor),
        cmocka_unit_test(test_a_publisher_over_ruins),
        cmocka_unit_test(test_a_damaged_page),
        cmocka_unit_test(test_a_damaged_page_of_the_past),
        cmocka_unit_test(test_a_damaged_page_behind_few),
        cmocka_unit_test(test_a_damaged_page_among_few),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_rollback_of_an_anchor),
        cmocka_unit_test(test_a_file_changed_between_runs),
        cmocka_unit_test(test_replayed_heads),
        cmocka_unit_test(test_forged_heads),
        cmocka_unit_test(test_a_format_of_the_future),
        cmocka_unit_test(test_another_run),
        cmocka_unit_test(test_away_for_five_hundred_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
