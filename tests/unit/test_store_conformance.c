/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_conformance.c: what every store promises, whatever is behind it. Runs on a scratch directory,
 * or on the store that the environment names: WEFT_STORE_URL, WEFT_STORE_TOKEN, WEFT_STORE_CA_FILE.
 * WEFT_STORE_CONDITIONAL=0 or 1 says what the store must turn out to be; unset, either will do.
 * WEFT_STORE_GAPS=1 is for a service such as Swift, where a get that meets a put may find nothing. Keys
 * carry a random part, so that a server may be used again.
 */
#include "../support/described.h"
#include "models.h"
#include "scratch.h"
#include "stride.h"

#include <weft/store.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <cmocka.h>

enum { LARGE = 20 << 20, THREADS = 8 };

static scratch place;
static weft_context *context;
static weft_store *store;
static char run[32];

/* ---- fixtures ---- */

static weft_store *open_store(weft_context *with) {
    const char *url = getenv("WEFT_STORE_URL");
    weft_store_options options = {
        .size = sizeof options,
        .token = getenv("WEFT_STORE_TOKEN"),
        .ca_file = getenv("WEFT_STORE_CA_FILE"),
        .volatile_writes = true,
    };
    weft_store *opened = NULL;
    if (weft_store_open(with, url != NULL ? url : scratch_path(&place, "store"), &options, &opened) !=
        WEFT_OK) {
        fail_msg("%s", weft_context_error(with));
    }
    return opened;
}

static int set_up(void **state) {
    (void)state;
    uint64_t number = 0;
    scratch_open(&place);
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number) ||
        weft_context_create(NULL, &context) != WEFT_OK) {
        return -1;
    }
    snprintf(run, sizeof(run), "run-%016llx", (unsigned long long)number);
    store = open_store(context);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    weft_store_close(store);
    weft_context_destroy(context);
    scratch_close(&place);
    return 0;
}

/* Valid for the next seven calls. */
static const char *key_of(const char *name) {
    static _Thread_local char keys[8][WEFT_STORE_KEY_MAX];
    static _Thread_local unsigned next;
    char *key = keys[next++ % 8];
    snprintf(key, sizeof(keys[0]), "%s/%s", run, name);
    return key;
}

static void expect(weft_status got, weft_status wanted, const char *text) {
    if (got != wanted || strstr(weft_context_error(context), text) == NULL) {
        fail_msg("status %d, not %d: \"%s\" should say \"%s\"", got, wanted, weft_context_error(context),
                 text);
    }
}

static void put(const char *key, const void *data, size_t size) {
    expect(weft_store_put_bytes(context, store, key, data, size, WEFT_STORE_ALWAYS, NULL, NULL), WEFT_OK,
           "");
}

static weft_store_get_result get(const char *key, uint64_t offset, void *buffer, uint64_t length) {
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .offset = offset, .length = length, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    memset((char *)&result + sizeof result.size, 0xa5, sizeof result - sizeof result.size);
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    return result;
}

static void expect_content(const char *key, const void *data, size_t size) {
    uint8_t *buffer = malloc(size + 1);
    assert_non_null(buffer);
    weft_store_get_result result = get(key, 0, buffer, size + 1);
    assert_int_equal(result.received, size);
    assert_int_equal(result.object_bytes, size);
    assert_false(result.unchanged);
    assert_memory_equal(buffer, data, size);
    free(buffer);
}

static void expect_absent(const char *key) {
    uint8_t byte = 0;
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = 1, .buffer = &byte};
    weft_store_get_result result = {.size = sizeof result, .received = 77};
    uint64_t size = 77;
    weft_store_tag tag = {"untouched"};
    expect(weft_store_get(context, store, &request, &result), WEFT_NOT_FOUND, "");
    expect(weft_store_head(context, store, key, &size, &tag), WEFT_NOT_FOUND, "");
    assert_int_equal(result.received, 77);
    assert_int_equal(size, 77);
    assert_string_equal(tag.text, "untouched");
}

static uint8_t *random_bytes(size_t size, uint64_t seed) {
    dice dice = {seed};
    uint8_t *data = malloc(size + 1);
    assert_non_null(data);
    dice_fill(&dice, data, size);
    return data;
}

/* ---- one after the other ---- */

static void test_put_get_head_remove(void **state) {
    (void)state;
    const char *key = key_of("a/b.c_d~e-f/G9");
    expect_absent(key);
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    put(key, "first", 5);
    expect_content(key, "first", 5);
    uint64_t size = 0;
    weft_store_tag tag;
    expect(weft_store_head(context, store, key, &size, &tag), WEFT_OK, "");
    assert_int_equal(size, 5);
    assert_string_equal(get(key, 0, NULL, 0).tag.text, tag.text);
    put(key, "another", 7);
    expect_content(key, "another", 7);
    expect(weft_store_head(context, store, key, NULL, NULL), WEFT_OK, "");
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    expect_absent(key);
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    put(key, "again", 5);
    expect_content(key, "again", 5);
}

static void test_empty(void **state) {
    (void)state;
    const char *key = key_of("empty");
    uint64_t size = 77;
    put(key, NULL, 0);
    expect_content(key, "", 0);
    expect(weft_store_head(context, store, key, &size, NULL), WEFT_OK, "");
    assert_int_equal(size, 0);
    uint8_t byte = 0;
    assert_int_equal(get(key, 5, &byte, 1).received, 0);
}

static void test_ranges(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    uint8_t *data = random_bytes(SIZE, 1);
    uint8_t *buffer = malloc(SIZE + 10);
    assert_non_null(buffer);
    const char *key = key_of("ranges");
    put(key, data, SIZE);
    static const struct {
        uint64_t offset, length, received;
    } cases[] = {
        {0, SIZE, SIZE},
        {0, 1, 1},
        {0, 5000, 5000},
        {5000, 5000, 5000},
        {SIZE - 1, 1, 1},
        {SIZE - 10, 20, 10},
        {0, SIZE + 10, SIZE},
        {SIZE, 10, 0},
        {SIZE + 1000, 10, 0},
        {(uint64_t)1 << 62, 10, 0},
        {UINT64_MAX, 10, 0},
        {UINT64_MAX - 5, 5, 0},
        {0, 0, 0},
        {500, 0, 0},
        {SIZE - 1, SIZE, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(buffer, 0x5a, SIZE + 10);
        weft_store_get_result result = get(key, cases[i].offset, buffer, cases[i].length);
        assert_int_equal(result.received, cases[i].received);
        assert_int_equal(result.object_bytes, SIZE);
        if (result.received > 0) {
            assert_memory_equal(buffer, data + cases[i].offset, result.received);
        }
        for (size_t j = result.received; j < SIZE + 10; j++) {
            assert_int_equal(buffer[j], 0x5a);
        }
    }
    free(buffer);
    free(data);
}

/* Gives its bytes in pieces of odd sizes, and fails at `fail_at`. */
typedef struct pieces {
    const uint8_t *data;
    size_t size;
    size_t fail_at;
    size_t largest;
    atomic_uint begun;
} pieces;

static weft_status read_pieces(void *opaque, uint64_t offset, void *data, size_t capacity,
                               size_t *count_out) {
    pieces *self = opaque;
    if (offset == 0) {
        atomic_fetch_add(&self->begun, 1);
    }
    if (offset >= self->fail_at) {
        return WEFT_CANCELLED;
    }
    size_t end = self->size < self->fail_at ? self->size : self->fail_at;
    size_t count = end - (size_t)offset;
    count = count < self->largest ? count : self->largest;
    count = count < capacity ? count : capacity;
    if (count > 0) {
        memcpy(data, self->data + offset, count);
    }
    *count_out = count;
    return WEFT_OK;
}

static weft_status put_pieces(const char *key, pieces *pieces, uint64_t size) {
    weft_store_put_request request = {
        .size = sizeof request,
        .key = key,
        .feed = {.size = size, .read = read_pieces, .opaque = pieces},
    };
    return weft_store_put(context, store, &request, NULL);
}

static void test_feeds(void **state) {
    (void)state;
    enum { SIZE = 3 << 20 };
    uint8_t *data = random_bytes(SIZE, 2);
    const char *key = key_of("feed");
    pieces slow = {.data = data, .size = SIZE, .fail_at = SIZE_MAX, .largest = 77777};
    expect(put_pieces(key, &slow, UINT64_MAX), WEFT_OK, "");
    expect_content(key, data, SIZE);
    pieces brief = {.data = data, .size = 0, .fail_at = SIZE_MAX, .largest = 10};
    expect(put_pieces(key, &brief, UINT64_MAX), WEFT_OK, "");
    expect_content(key, data, 0);
    slow.largest = SIZE_MAX;
    expect(put_pieces(key, &slow, SIZE), WEFT_OK, "");
    expect_content(key, data, SIZE);
    slow.largest = 1000;
    expect(put_pieces(key, &slow, 54321), WEFT_OK, "");
    expect_content(key, data, 54321);
    free(data);
}

static void test_feed_fails(void **state) {
    (void)state;
    enum { SIZE = 3 << 20 };
    uint8_t *data = random_bytes(SIZE, 3);
    const char *key = key_of("broken");
    static const size_t ends[] = {0, 1, 100000, SIZE - 1, SIZE};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        pieces broken = {.data = data, .size = SIZE + 1, .fail_at = ends[i], .largest = 50000};
        expect(put_pieces(key, &broken, UINT64_MAX), WEFT_CANCELLED, "");
        expect(put_pieces(key, &broken, SIZE + 1), WEFT_CANCELLED, "");
        expect_absent(key);
    }
    pieces early = {.data = data, .size = 1000, .fail_at = SIZE_MAX, .largest = 300};
    expect(put_pieces(key, &early, 1001), WEFT_INVALID_ARGUMENT, "ended at 1000");
    expect_absent(key);
    put(key, "kept", 4);
    pieces broken = {.data = data, .size = SIZE, .fail_at = SIZE - 1, .largest = 50000};
    expect(put_pieces(key, &broken, SIZE), WEFT_CANCELLED, "");
    expect_content(key, "kept", 4);
    free(data);
}

static void test_large(void **state) {
    (void)state;
    uint8_t *data = random_bytes(LARGE, 4);
    const char *key = key_of("large");
    put(key, data, LARGE);
    expect_content(key, data, LARGE);
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    free(data);
}

static void test_keys(void **state) {
    (void)state;
    char longest[WEFT_STORE_KEY_MAX + 2];
    memset(longest, 'k', sizeof(longest));
    longest[WEFT_STORE_KEY_MAX] = '\0';
    assert_true(weft_store_key_valid(longest));
    longest[WEFT_STORE_KEY_MAX] = 'k';
    longest[WEFT_STORE_KEY_MAX + 1] = '\0';
    static const char *const valid[] = {"a", "a/b", "A-Z_~.x", "a..b", "0/1/2", "~", "-"};
    for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++) {
        assert_true(weft_store_key_valid(valid[i]));
    }
    const char *const wrong[] = {"",    "/",    "/a",  "a/",     "a//b", ".",    "..", "a/../b",
                                 ".a",  "a/.b", "a b", "a%2fb",  "a?b",  "a#b",  "ä",  "a\nb",
                                 "a:b", "a\\b", "a&b", "../etc", "a=b",  longest};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint8_t byte = 0;
        weft_store_get_request request = {
            .size = sizeof request, .key = wrong[i], .length = 1, .buffer = &byte};
        weft_store_get_result result = {.size = sizeof result};
        assert_false(weft_store_key_valid(wrong[i]));
        expect(weft_store_get(context, store, &request, &result), WEFT_INVALID_ARGUMENT, "not a key");
        expect(weft_store_put_bytes(context, store, wrong[i], "x", 1, WEFT_STORE_ALWAYS, NULL, NULL),
               WEFT_INVALID_ARGUMENT, "not a key");
        expect(weft_store_head(context, store, wrong[i], NULL, NULL), WEFT_INVALID_ARGUMENT, "not a key");
        expect(weft_store_remove(context, store, wrong[i]), WEFT_INVALID_ARGUMENT, "not a key");
    }
    assert_false(weft_store_key_valid(NULL));
}

/* The tags of some servers are good only after a while. */
static weft_store_tag wait_for_tag(const char *key) {
    weft_store_tag tag = {""};
    for (int wait = 0; wait < 50 && tag.text[0] == '\0'; wait++) {
        struct timespec pause = {0, wait > 0 ? 100000000 : 0};
        nanosleep(&pause, NULL);
        tag = get(key, 0, NULL, 0).tag;
    }
    return tag;
}

static void test_unless(void **state) {
    (void)state;
    const char *key = key_of("unless");
    char buffer[16];
    put(key, "one", 3);
    weft_store_tag tag = wait_for_tag(key);
    assert_true(tag.text[0] != '\0');
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .length = sizeof(buffer), .buffer = buffer, .unless = &tag};
    weft_store_get_result result = {.size = sizeof result};
    memset(buffer, 'x', sizeof(buffer));
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_true(result.unchanged);
    assert_int_equal(result.received, 0);
    assert_string_equal(result.tag.text, tag.text);
    assert_int_equal(buffer[0], 'x');
    put(key, "other", 5);
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_false(result.unchanged);
    assert_int_equal(result.received, 5);
    assert_memory_equal(buffer, "other", 5);
    assert_string_not_equal(result.tag.text, tag.text);
    weft_store_tag none = {""};
    request.unless = &none;
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_int_equal(result.received, 5);
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    request.unless = &tag;
    expect(weft_store_get(context, store, &request, &result), WEFT_NOT_FOUND, "");
}

/* ---- conditions ---- */

/* True if the store has conditional puts. If it has not, they are refused and put nothing. */
static bool check_conditional(void) {
    const char *wanted = getenv("WEFT_STORE_CONDITIONAL");
    const char *key = key_of("conditional");
    weft_store_tag tag = {"1-2-3"};
    weft_status status =
        weft_store_put_bytes(context, store, key, "x", 1, WEFT_STORE_IF_ABSENT, NULL, NULL);
    if (wanted != NULL) {
        expect(status, atoi(wanted) ? WEFT_OK : WEFT_UNSUPPORTED, "");
    }
    assert_int_equal(store_traits(store).conditional, status == WEFT_OK);
    if (status == WEFT_OK) {
        expect(weft_store_remove(context, store, key), WEFT_OK, "");
        return true;
    }
    expect(status, WEFT_UNSUPPORTED, "");
    expect_absent(key);
    expect(weft_store_put_bytes(context, store, key, "x", 1, WEFT_STORE_IF_SAME, &tag, NULL),
           WEFT_UNSUPPORTED, "");
    expect_absent(key);
    print_message("conditional puts are refused, as they should be here\n");
    return false;
}

static void test_conditional(void **state) {
    (void)state;
    if (!check_conditional()) {
        return;
    }
    const char *key = key_of("head/1");
    weft_store_tag tags[3];
    memset(tags, 0, sizeof(tags));
    weft_store_tag untouched = {"untouched"};
    expect(weft_store_put_bytes(context, store, key, "one", 3, WEFT_STORE_IF_ABSENT, NULL, &tags[0]),
           WEFT_OK, "");
    assert_string_equal(get(key, 0, NULL, 0).tag.text, tags[0].text);
    expect(weft_store_put_bytes(context, store, key, "two", 3, WEFT_STORE_IF_ABSENT, NULL, &untouched),
           WEFT_CONFLICT, "");
    assert_string_equal(untouched.text, "untouched");
    expect_content(key, "one", 3);
    expect(weft_store_put_bytes(context, store, key, "two", 3, WEFT_STORE_IF_SAME, &tags[0], &tags[1]),
           WEFT_OK, "");
    assert_string_equal(get(key, 0, NULL, 0).tag.text, tags[1].text);
    assert_string_not_equal(tags[0].text, tags[1].text);
    expect(weft_store_put_bytes(context, store, key, "six", 3, WEFT_STORE_IF_SAME, &tags[0], &tags[2]),
           WEFT_CONFLICT, "");
    expect_content(key, "two", 3);
    expect(weft_store_put_bytes(context, store, key, "one", 3, WEFT_STORE_IF_SAME, &tags[1], &tags[2]),
           WEFT_OK, "");
    expect(weft_store_remove(context, store, key), WEFT_OK, "");
    expect(weft_store_put_bytes(context, store, key, "six", 3, WEFT_STORE_IF_SAME, &tags[2], NULL),
           WEFT_CONFLICT, "");
    expect_absent(key);
    expect(weft_store_put_bytes(context, store, key, "six", 3, WEFT_STORE_IF_SAME, NULL, NULL),
           WEFT_INVALID_ARGUMENT, "no tag");
    expect(weft_store_put_bytes(context, store, key, "x", 1, (weft_store_condition)9, NULL, NULL),
           WEFT_INVALID_ARGUMENT, "condition");
}

/* A large object may go up in many requests, and is put on condition all the same, where the store can. */
static void test_conditional_large(void **state) {
    (void)state;
    const char *key = key_of("large-once");
    uint8_t *data = random_bytes(LARGE, 5);
    weft_status status =
        weft_store_put_bytes(context, store, key, data, LARGE, WEFT_STORE_IF_ABSENT, NULL, NULL);
    if (status == WEFT_UNSUPPORTED) {
        expect_absent(key);
        free(data);
        return;
    }
    expect(status, WEFT_OK, "");
    data[LARGE / 2] ^= 1;
    expect(weft_store_put_bytes(context, store, key, data, LARGE, WEFT_STORE_IF_ABSENT, NULL, NULL),
           WEFT_CONFLICT, "");
    data[LARGE / 2] ^= 1;
    expect_content(key, data, LARGE);
    free(data);
}

/* ---- at once ---- */

typedef struct worker {
    unsigned number;
    pthread_t thread;
    char failure[512]; /* cmocka's assertions work in the first thread only */
    unsigned won;
} worker;

static void run_workers(void *(*function)(void *), worker workers[THREADS]) {
    memset(workers, 0, sizeof(worker) * THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].number = i;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, function, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        if (workers[i].failure[0] != '\0') {
            fail_msg("worker %u: %s", i, workers[i].failure);
        }
    }
}

static bool note(worker *worker, weft_context *own, weft_status status, const char *what) {
    if (status != WEFT_OK && worker->failure[0] == '\0') {
        snprintf(worker->failure, sizeof(worker->failure), "%s: status %d: %.400s", what, status,
                 weft_context_error(own));
    }
    return status == WEFT_OK;
}

static void put_and_get(worker *worker, weft_context *own, unsigned round) {
    size_t size = 1000 + worker->number * 37 + round * 8191;
    dice dice = {worker->number * 1000 + round};
    uint8_t *data = malloc(2 * size);
    char name[64];
    snprintf(name, sizeof(name), "many/%u-%u", worker->number, round);
    const char *key = key_of(name);
    dice_fill(&dice, data, size);
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .length = size, .buffer = data + size};
    weft_store_get_result result = {.size = sizeof result};
    if (note(worker, own, weft_store_put_bytes(own, store, key, data, size, WEFT_STORE_ALWAYS, NULL, NULL),
             "put") &&
        note(worker, own, weft_store_get(own, store, &request, &result), "get") &&
        (result.received != size || memcmp(data, data + size, size) != 0)) {
        snprintf(worker->failure, sizeof(worker->failure), "%s came back as something else", name);
    }
    free(data);
}

static void *work_many(void *opaque) {
    worker *worker = opaque;
    weft_context *own = NULL;
    if (weft_context_create(NULL, &own) == WEFT_OK) {
        for (unsigned round = 0; round < 1 + 24 / test_stride() && worker->failure[0] == '\0'; round++) {
            put_and_get(worker, own, round);
        }
        weft_context_destroy(own);
    }
    return NULL;
}

static void test_many(void **state) {
    (void)state;
    worker workers[THREADS];
    run_workers(work_many, workers);
}

/* Version n of the contended object: its size follows from its byte. */
static size_t contended_size(unsigned version) {
    return 40000 + (version % 200) * 991;
}

static void read_contended(worker *worker, weft_context *own, uint8_t *buffer, size_t capacity) {
    weft_store_get_request request = {
        .size = sizeof request, .key = key_of("contended"), .length = capacity, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(own, store, &request, &result);
    if ((status == WEFT_NOT_FOUND && getenv("WEFT_STORE_GAPS") != NULL) ||
        !note(worker, own, status, "get")) {
        return;
    }
    bool whole = result.received == contended_size(buffer[0]) && result.object_bytes == result.received;
    for (size_t i = 0; whole && i < result.received; i++) {
        whole = buffer[i] == buffer[0];
    }
    if (!whole) {
        snprintf(worker->failure, sizeof(worker->failure), "a mixture of two puts was read");
    }
}

static void write_contended(worker *worker, weft_context *own, uint8_t *buffer, unsigned version) {
    memset(buffer, (int)(version % 200), contended_size(version));
    note(worker, own,
         weft_store_put_bytes(own, store, key_of("contended"), buffer, contended_size(version),
                              WEFT_STORE_ALWAYS, NULL, NULL),
         "put");
}

static void *work_contended(void *opaque) {
    worker *worker = opaque;
    weft_context *own = NULL;
    size_t capacity = contended_size(199) + 1;
    uint8_t *buffer = malloc(capacity);
    if (buffer != NULL && weft_context_create(NULL, &own) == WEFT_OK) {
        for (unsigned round = 0; round < 1 + 59 / test_stride() && worker->failure[0] == '\0'; round++) {
            if (worker->number < 2) {
                write_contended(worker, own, buffer, round * 2 + worker->number);
            } else {
                read_contended(worker, own, buffer, capacity);
            }
        }
        weft_context_destroy(own);
    }
    free(buffer);
    return NULL;
}

static void test_overwrite_is_atomic(void **state) {
    (void)state;
    worker workers[THREADS];
    uint8_t *first = calloc(1, contended_size(0));
    assert_non_null(first);
    put(key_of("contended"), first, contended_size(0));
    free(first);
    run_workers(work_contended, workers);
}

/* Each adds one to a number in the store, a hundred times in all: none may be lost. */
static void *work_counter(void *opaque) {
    worker *worker = opaque;
    const char *key = key_of("counter");
    weft_context *own = NULL;
    if (weft_context_create(NULL, &own) != WEFT_OK) {
        return NULL;
    }
    while (worker->failure[0] == '\0') {
        uint32_t value = 0;
        weft_store_get_request request = {
            .size = sizeof request, .key = key, .length = sizeof(value), .buffer = &value};
        weft_store_get_result result = {.size = sizeof result};
        if (!note(worker, own, weft_store_get(own, store, &request, &result), "get") || value >= 100) {
            break;
        }
        value++;
        weft_status status = weft_store_put_bytes(own, store, key, &value, sizeof(value),
                                                  WEFT_STORE_IF_SAME, &result.tag, NULL);
        worker->won += status == WEFT_OK;
        if (status != WEFT_CONFLICT) {
            note(worker, own, status, "conditional put");
        }
    }
    weft_context_destroy(own);
    return NULL;
}

static void *work_create(void *opaque) {
    worker *worker = opaque;
    weft_context *own = NULL;
    if (weft_context_create(NULL, &own) != WEFT_OK) {
        return NULL;
    }
    for (unsigned round = 0; round < 20; round++) {
        char name[32];
        snprintf(name, sizeof(name), "created/%u", round);
        weft_status status = weft_store_put_bytes(own, store, key_of(name), &worker->number,
                                                  sizeof(worker->number), WEFT_STORE_IF_ABSENT, NULL, NULL);
        worker->won += status == WEFT_OK;
        if (status != WEFT_CONFLICT) {
            note(worker, own, status, "put if absent");
        }
    }
    weft_context_destroy(own);
    return NULL;
}

static unsigned sum_won(const worker workers[THREADS]) {
    unsigned sum = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        sum += workers[i].won;
    }
    return sum;
}

static void test_conditions_compete(void **state) {
    (void)state;
    if (!check_conditional()) {
        return;
    }
    worker workers[THREADS];
    uint32_t zero = 0;
    put(key_of("counter"), &zero, sizeof(zero));
    run_workers(work_counter, workers);
    assert_int_equal(sum_won(workers), 100);
    run_workers(work_create, workers);
    assert_int_equal(sum_won(workers), 20);
}

/* ---- listing ---- */

typedef struct listing {
    char keys[16][WEFT_STORE_KEY_MAX + 1];
    uint64_t sizes[16];
    size_t count;
    size_t stop_at;
} listing;

static bool visit(void *opaque, const char *key, uint64_t size, double age_seconds) {
    listing *listing = opaque;
    assert_true(age_seconds >= 0 && age_seconds < 3600);
    assert_true(listing->count < 16);
    snprintf(listing->keys[listing->count], sizeof(listing->keys[0]), "%s", key);
    listing->sizes[listing->count++] = size;
    return listing->count != listing->stop_at;
}

static bool listed(const listing *listing, const char *key, uint64_t size) {
    for (size_t i = 0; i < listing->count; i++) {
        if (strcmp(listing->keys[i], key) == 0) {
            return listing->sizes[i] == size;
        }
    }
    return false;
}

static void test_list(void **state) {
    (void)state;
    listing all = {0};
    put(key_of("list/a"), "1", 1);
    put(key_of("list/b/c"), "22", 2);
    put(key_of("list/b/d/e"), "333", 3);
    put(key_of("listing"), "4444", 4);
    weft_status status = weft_store_list(context, store, key_of("list"), visit, &all);
    if (status == WEFT_UNSUPPORTED) {
        print_message("this store has no listing\n");
        return;
    }
    expect(status, WEFT_OK, "");
    assert_int_equal(all.count, 3);
    assert_true(listed(&all, key_of("list/a"), 1));
    assert_true(listed(&all, key_of("list/b/c"), 2));
    assert_true(listed(&all, key_of("list/b/d/e"), 3));
    listing none = {0};
    expect(weft_store_list(context, store, key_of("list/z"), visit, &none), WEFT_OK, "");
    assert_int_equal(none.count, 0);
    listing some = {.stop_at = 2};
    expect(weft_store_list(context, store, key_of("list"), visit, &some), WEFT_OK, "");
    assert_int_equal(some.count, 2);
    expect(weft_store_list(context, store, "a/", visit, &some), WEFT_INVALID_ARGUMENT, "prefix");
}

/* By whatever clock the store has: what has been there for three seconds may be called up to two younger.
 */
static void test_age(void **state) {
    (void)state;
    double age = -1;
    put(key_of("age"), "1", 1);
    weft_status status = weft_store_age(context, store, key_of("age"), &age);
    if (status == WEFT_UNSUPPORTED) {
        print_message("this store tells no ages\n");
        return;
    }
    expect(status, WEFT_OK, "");
    assert_true(age >= 0 && age < 3600);
    const struct timespec moment = {.tv_sec = 3};
    nanosleep(&moment, NULL);
    expect(weft_store_age(context, store, key_of("age"), &age), WEFT_OK, "");
    assert_true(age >= 1 && age < 3600);
    expect(weft_store_age(context, store, key_of("no-age"), &age), WEFT_NOT_FOUND, "");
    expect(weft_store_age(context, store, ".age", &age), WEFT_INVALID_ARGUMENT, "not a key");
}

/* A second store on the same place sees what the first one put. */
static void test_another_store(void **state) {
    (void)state;
    weft_store *second = open_store(context);
    const char *key = key_of("shared");
    char buffer[8];
    weft_store_get_request request = {
        .size = sizeof request, .key = key, .length = sizeof(buffer), .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    put(key, "mine", 4);
    expect(weft_store_get(context, second, &request, &result), WEFT_OK, "");
    assert_int_equal(result.received, 4);
    expect(weft_store_put_bytes(context, second, key, "yours", 5, WEFT_STORE_ALWAYS, NULL, NULL), WEFT_OK,
           "");
    expect_content(key, "yours", 5);
    weft_store_close(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get_head_remove),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_feeds),
        cmocka_unit_test(test_feed_fails),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_unless),
        cmocka_unit_test(test_conditional),
        cmocka_unit_test(test_conditional_large),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_overwrite_is_atomic),
        cmocka_unit_test(test_conditions_compete),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_another_store),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
