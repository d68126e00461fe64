/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c: the public calls of every store. Each checks its request, calls the backend by its table of
 * operations, and checks what came back. Backends see only valid keys, and conditions that make sense.
 */
#include "store.h"

#include "../../base/context.h"
#include "../../base/sized.h"
#include "../../base/status.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const double POLL_SECONDS = 0.5;

struct weft_store {
    weft_context *context; /* for the store's own memory only: errors go to the context of each call */
    weft_store_operations operations;
    void *self;
    char *url;
    pid_t process; /* that opened it, if it has threads or connections; 0: it has none */
    _Atomic uint64_t requests;
    _Atomic uint64_t sent;
    _Atomic uint64_t received;
};

/* ---- keys ---- */

static bool is_key_byte(char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
           byte == '.' || byte == '_' || byte == '~' || byte == '-';
}

bool weft_store_key_valid(const char *key) {
    if (key == NULL || strnlen(key, WEFT_STORE_KEY_MAX + 1) > WEFT_STORE_KEY_MAX) {
        return false;
    }
    bool begins = true; /* a part begins at this byte */
    for (const char *byte = key; *byte != '\0'; byte++) {
        if (*byte == '/' ? begins : !is_key_byte(*byte) || (begins && *byte == '.')) {
            return false;
        }
        begins = *byte == '/';
    }
    return !begins;
}

static weft_status check_key(weft_context *context, const char *key) {
    if (!weft_store_key_valid(key)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "\"%s\" is not a key: at most %d of A-Z a-z 0-9 . _ ~ - in parts divided by "
                         "single slashes, none of which begins with a dot",
                         key != NULL ? key : "(null)", WEFT_STORE_KEY_MAX);
    }
    return WEFT_OK;
}

/* ---- life ---- */

weft_status weft_store_create(weft_context *context, const char *url, const weft_store_operations *given,
                              void *self, weft_store **store_out) {
    weft_context_clear(context);
    weft_store_operations operations;
    weft_status status =
        weft_sized_read(context, given, &operations, sizeof operations, "weft_store_operations");
    if (status != WEFT_OK) {
        return status;
    }
    if (url == NULL || operations.get == NULL || operations.put == NULL || operations.head == NULL ||
        operations.remove == NULL || operations.close == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a store needs a URL, and get, put, head, remove and close");
    }
    weft_store *store = weft_allocate_zeroed(context, 1, sizeof(*store));
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    store->url = weft_copy_text(context, url, strlen(url));
    if (store->url == NULL) {
        weft_release(context, store);
        return WEFT_NO_MEMORY;
    }
    store->context = context;
    store->operations = operations;
    store->self = self;
    *store_out = store;
    return WEFT_OK;
}

void weft_store_bind(weft_store *store) {
    store->process = getpid();
}

/* In a forked child the connections are the parent's, and closing them would end them for it. */
void weft_store_close(weft_store *store) {
    if (store == NULL || (store->process != 0 && !weft_process_is(store->process))) {
        return;
    }
    store->operations.close(store->self);
    weft_release(store->context, store->url);
    weft_release(store->context, store);
}

const char *weft_store_url(const weft_store *store) {
    return store->url;
}

void weft_store_traits_of(const weft_store *store, weft_store_traits *traits_out) {
    weft_store_traits traits = {.size = sizeof traits, .poll_seconds = POLL_SECONDS};
    if (store->operations.traits != NULL) {
        store->operations.traits(store->self, &traits);
    }
    traits.poll_seconds = traits.poll_seconds > 0 ? traits.poll_seconds : POLL_SECONDS;
    weft_sized_write(&traits, traits_out, sizeof traits);
}

void weft_store_traffic_of(const weft_store *store, weft_store_traffic *traffic_out) {
    const weft_store_traffic traffic = {sizeof traffic, store->requests, store->sent, store->received};
    weft_sized_write(&traffic, traffic_out, sizeof traffic);
}

/* ---- operations ----
 *
 * A backend may be the caller's: what it returns and what it fills in is looked at before it is believed.
 */

static bool is_terminated(const weft_store_tag *tag) {
    return memchr(tag->text, '\0', sizeof tag->text) != NULL;
}

static weft_status refuse_result(weft_context *context, const weft_store *store, const char *operation,
                                 const char *key) {
    return weft_fail(
        context, WEFT_CALLBACK_FAILED,
        "the %s function of the store at %s said that all is well with %s and gave what cannot "
        "be: more bytes than there was room for, a tag without an end, or an age below zero",
        operation, store->url, key);
}

static weft_status check_get(weft_context *context, const weft_store *store,
                             const weft_store_get_request *request, const weft_store_get_result *result) {
    bool sound = result->received <= request->length && is_terminated(&result->tag) &&
                 (!result->unchanged || (request->unless != NULL && result->received == 0));
    return sound ? WEFT_OK : refuse_result(context, store, "get", request->key);
}

static weft_status check_process(weft_context *context, const weft_store *store) {
    weft_context_clear(context);
    return store->process == 0 ? WEFT_OK : weft_process_check(context, store->process, "this store");
}

static weft_status check_call(weft_context *context, const weft_store *store, const char *key) {
    weft_status status = check_process(context, store);
    return status == WEFT_OK ? check_key(context, key) : status;
}

weft_status weft_store_get(weft_context *context, weft_store *store, const weft_store_get_request *given,
                           weft_store_get_result *result_out) {
    weft_store_get_request request;
    weft_status status =
        weft_sized_read(context, given, &request, sizeof request, "weft_store_get_request");
    if (status == WEFT_OK) {
        status = weft_sized_check(context, result_out, "weft_store_get_result");
    }
    if (status == WEFT_OK) {
        status = check_call(context, store, request.key);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (request.buffer == NULL && request.length > 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the get of %s has no buffer", request.key);
    }
    atomic_fetch_add(&store->requests, 1);
    weft_store_get_result result = {.size = sizeof result};
    status = weft_answer_told(context, store->operations.get(store->self, context, &request, &result),
                              "the get of %s from %s", request.key, store->url);
    if (status == WEFT_OK) {
        status = check_get(context, store, &request, &result);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_sized_write(&result, result_out, sizeof result);
    atomic_fetch_add(&store->received, result.received);
    if (request.arrived != NULL) {
        request.arrived(request.opaque, result.received);
    }
    return WEFT_OK;
}

static weft_status check_put(weft_context *context, const weft_store_put_request *request) {
    weft_status status = check_key(context, request->key);
    if (status != WEFT_OK) {
        return status;
    }
    if (request->feed.read == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the put of %s has no bytes to read",
                         request->key);
    }
    if (request->condition != WEFT_STORE_ALWAYS && request->condition != WEFT_STORE_IF_ABSENT &&
        request->condition != WEFT_STORE_IF_SAME) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the put of %s has the unknown condition %d",
                         request->key, (int)request->condition);
    }
    if (request->condition == WEFT_STORE_IF_SAME &&
        (request->tag.text[0] == '\0' || !is_terminated(&request->tag))) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the put of %s is to replace one content only, but has no tag of it",
                         request->key);
    }
    return WEFT_OK;
}

/* Stands between a backend and the feed of a put. It records how long the object turned out to be, and what
 * was wrong with the feed; the error text is made afterwards (explain_put), since a backend may read in a
 * thread of its own. */
typedef struct counted_feed {
    const weft_store_feed *feed;
    uint64_t end;
    weft_status answer; /* of the last call */
    size_t count;       /* that it claimed to have read, if more than `capacity`; else 0 */
    size_t capacity;
} counted_feed;

static weft_status read_counted(void *opaque, uint64_t offset, void *data, size_t capacity,
                                size_t *count_out) {
    counted_feed *counted = opaque;
    size_t count = 0;
    counted->answer = counted->feed->read(counted->feed->opaque, offset, data, capacity, &count);
    counted->count = counted->answer == WEFT_OK && count > capacity ? count : 0;
    counted->capacity = capacity;
    if (counted->answer != WEFT_OK || counted->count > 0) {
        return counted->count > 0 ? WEFT_INVALID_ARGUMENT : weft_status_from(counted->answer);
    }
    if (offset + count > counted->end) {
        counted->end = offset + count;
    }
    *count_out = count;
    return WEFT_OK;
}

/* The status of a put, from the backend's and the feed's. */
static weft_status explain_put(weft_context *context, const weft_store *store, const char *key,
                               const counted_feed *counted, weft_status answer) {
    if (counted->count > 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the feed of %s gave %zu bytes where there was room for %zu", key, counted->count,
                         counted->capacity);
    }
    /* a foreign number of the feed is named here; after a status of ours the backend has said why */
    if (weft_status_from(counted->answer) != counted->answer || answer == WEFT_OK) {
        return weft_answer(context, counted->answer, "the feed of %s", key);
    }
    return weft_answer_told(context, answer, "the put of %s to %s", key, store->url);
}

weft_status weft_store_put(weft_context *context, weft_store *store, const weft_store_put_request *given,
                           weft_store_tag *tag_out) {
    weft_store_put_request request;
    weft_status status =
        weft_sized_read(context, given, &request, sizeof request, "weft_store_put_request");
    if (status == WEFT_OK) {
        status = check_process(context, store);
    }
    if (status == WEFT_OK) {
        status = check_put(context, &request);
    }
    if (status != WEFT_OK) {
        return status;
    }
    counted_feed counted = {.feed = &request.feed, .answer = WEFT_OK};
    weft_store_put_request passed = request;
    passed.feed = (weft_store_feed){request.feed.size, read_counted, &counted};
    weft_store_tag tag = {""};
    atomic_fetch_add(&store->requests, 1);
    status = store->operations.put(store->self, context, &passed, &tag);
    status = explain_put(context, store, request.key, &counted, status);
    if (status == WEFT_OK && !is_terminated(&tag)) {
        status = refuse_result(context, store, "put", request.key);
    }
    if (status == WEFT_OK && request.feed.size != UINT64_MAX && counted.end < request.feed.size) {
        status =
            weft_fail(context, WEFT_CALLBACK_FAILED,
                      "the put of %s to %s ended with %llu of %llu bytes: the feed gave no more, or the "
                      "store did not ask for them",
                      request.key, store->url, (unsigned long long)counted.end,
                      (unsigned long long)request.feed.size);
    }
    if (status == WEFT_OK) {
        atomic_fetch_add(&store->sent, counted.end);
    }
    if (status == WEFT_OK && tag_out != NULL) {
        *tag_out = tag;
    }
    return status;
}

weft_status weft_store_feed_read(weft_context *context, const weft_store_put_request *request,
                                 uint64_t offset, void *data, size_t capacity, size_t *count_out) {
    const weft_store_feed *feed = &request->feed;
    uint64_t left = feed->size - offset;
    size_t want = left < capacity ? (size_t)left : capacity;
    size_t count = 0;
    if (want > 0) {
        weft_status status = feed->read(feed->opaque, offset, data, want, &count);
        if (status != WEFT_OK) {
            return status;
        }
        if (count == 0 && feed->size != UINT64_MAX) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "the bytes for %s ended at %llu, although %llu were promised", request->key,
                             (unsigned long long)offset, (unsigned long long)feed->size);
        }
    }
    *count_out = count;
    return WEFT_OK;
}

typedef struct memory_feed {
    const uint8_t *data;
    size_t size;
} memory_feed;

static weft_status read_memory(void *opaque, uint64_t offset, void *data, size_t capacity,
                               size_t *count_out) {
    const memory_feed *feed = opaque;
    size_t left = offset < feed->size ? feed->size - (size_t)offset : 0;
    size_t count = left < capacity ? left : capacity;
    if (count > 0) {
        memcpy(data, feed->data + offset, count);
    }
    *count_out = count;
    return WEFT_OK;
}

weft_status weft_store_put_bytes(weft_context *context, weft_store *store, const char *key,
                                 const void *data, size_t size, weft_store_condition condition,
                                 const weft_store_tag *tag, weft_store_tag *tag_out) {
    memory_feed feed = {data, size};
    weft_store_put_request request = {
        .size = sizeof request,
        .key = key,
        .feed = {.size = size, .read = read_memory, .opaque = &feed},
        .condition = condition,
    };
    if (tag != NULL) {
        request.tag = *tag;
    }
    return weft_store_put(context, store, &request, tag_out);
}

weft_status weft_store_head(weft_context *context, weft_store *store, const char *key, uint64_t *size_out,
                            weft_store_tag *tag_out) {
    weft_status status = check_call(context, store, key);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t size = 0;
    weft_store_tag tag = {""};
    atomic_fetch_add(&store->requests, 1);
    status = weft_answer_told(context, store->operations.head(store->self, context, key, &size, &tag),
                              "the look at %s of %s", key, store->url);
    if (status == WEFT_OK && !is_terminated(&tag)) {
        status = refuse_result(context, store, "head", key);
    }
    if (status == WEFT_OK && size_out != NULL) {
        *size_out = size;
    }
    if (status == WEFT_OK && tag_out != NULL) {
        *tag_out = tag;
    }
    return status;
}

weft_status weft_store_remove(weft_context *context, weft_store *store, const char *key) {
    weft_status status = check_call(context, store, key);
    if (status != WEFT_OK) {
        return status;
    }
    atomic_fetch_add(&store->requests, 1);
    return weft_answer_told(context, store->operations.remove(store->self, context, key),
                            "the removal of %s from %s", key, store->url);
}

weft_status weft_store_watch(weft_context *context, weft_store *store, uint64_t after, double seconds,
                             void *buffer, size_t capacity, size_t *received_out) {
    weft_status status = check_process(context, store);
    if (status != WEFT_OK) {
        return status;
    }
    if (store->operations.watch == NULL) {
        return weft_fail(context, WEFT_UNSUPPORTED, "the store at %s cannot wait for a version; poll it",
                         store->url);
    }
    atomic_fetch_add(&store->requests, 1);
    size_t received = 0;
    status = store->operations.watch(store->self, context, after, seconds > 0 ? seconds : 0, buffer,
                                     capacity, &received);
    if (status == WEFT_MORE) {
        return WEFT_MORE; /* here it has a meaning: nothing came */
    }
    status = weft_answer_told(context, status, "the watch of %s", store->url);
    if (status == WEFT_OK && received > capacity) {
        status = refuse_result(context, store, "watch", "a head");
    }
    if (status == WEFT_OK) {
        atomic_fetch_add(&store->received, received);
        *received_out = received;
    }
    return status;
}

/* Stands between a backend and who asked for a listing: what is visited may be removed, and so nobody is
 * shown an object that was not asked for. */
typedef struct checked_visit {
    const char *prefix;
    weft_store_visit visit;
    void *opaque;
    bool wrong; /* the listing held what cannot be in it */
} checked_visit;

static bool visit_checked(void *opaque, const char *key, uint64_t size, double age_seconds) {
    checked_visit *checked = opaque;
    size_t length = strlen(checked->prefix);
    bool sound = weft_store_key_valid(key) && strncmp(key, checked->prefix, length) == 0 &&
                 (length == 0 || key[length] == '/') && age_seconds >= 0;
    checked->wrong = checked->wrong || !sound;
    return !checked->wrong && checked->visit(checked->opaque, key, size, age_seconds);
}

weft_status weft_store_list(weft_context *context, weft_store *store, const char *prefix,
                            weft_store_visit visit, void *opaque) {
    weft_status status = check_process(context, store);
    if (status != WEFT_OK) {
        return status;
    }
    if (prefix == NULL || (*prefix != '\0' && !weft_store_key_valid(prefix))) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "\"%s\" is not a prefix of keys",
                         prefix != NULL ? prefix : "(null)");
    }
    if (store->operations.list == NULL) {
        return weft_fail(context, WEFT_UNSUPPORTED, "the store at %s cannot be listed", store->url);
    }
    checked_visit checked = {.prefix = prefix, .visit = visit, .opaque = opaque};
    status = weft_answer_told(context,
                              store->operations.list(store->self, context, prefix, visit_checked, &checked),
                              "the listing of \"%s\" in %s", prefix, store->url);
    if (checked.wrong) {
        return weft_fail(context, WEFT_CALLBACK_FAILED,
                         "the list function of the store at %s shows what is not under \"%s\", is no key, "
                         "or has an age below zero",
                         store->url, prefix);
    }
    return status;
}

weft_status weft_store_age(weft_context *context, weft_store *store, const char *key, double *seconds_out) {
    weft_status status = check_call(context, store, key);
    if (status != WEFT_OK) {
        return status;
    }
    if (store->operations.age == NULL) {
        return weft_fail(context, WEFT_UNSUPPORTED, "the store at %s does not tell how old an object is",
                         store->url);
    }
    double seconds = 0;
    atomic_fetch_add(&store->requests, 1);
    status = weft_answer_told(context, store->operations.age(store->self, context, key, &seconds),
                              "the age of %s in %s", key, store->url);
    if (status == WEFT_OK && !(seconds >= 0)) {
        status = refuse_result(context, store, "age", key);
    }
    if (status == WEFT_OK) {
        *seconds_out = seconds;
    }
    return status;
}
