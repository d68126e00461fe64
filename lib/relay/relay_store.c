/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_store.c: a relay as a store, for who reads from it in the same process and can wait. Nothing can be
 * put into it.
 */
#include "relay.h"

#include "../base/context.h"

#include <string.h>

typedef struct relay_store {
    weft_context *context;
    weft_relay *relay;
} relay_store;

/* Who waits for a reader. */
typedef struct waiter {
    pthread_mutex_t mutex;
    pthread_cond_t resumed;
    bool suspended;
} waiter;

static void suspend(void *opaque) {
    waiter *waiter = opaque;
    pthread_mutex_lock(&waiter->mutex);
    waiter->suspended = true;
    pthread_mutex_unlock(&waiter->mutex);
}

static void resume(void *opaque) {
    waiter *waiter = opaque;
    pthread_mutex_lock(&waiter->mutex);
    waiter->suspended = false;
    pthread_cond_signal(&waiter->resumed);
    pthread_mutex_unlock(&waiter->mutex);
}

static void wait_until_resumed(waiter *waiter) {
    pthread_mutex_lock(&waiter->mutex);
    while (waiter->suspended) {
        pthread_cond_wait(&waiter->resumed, &waiter->mutex);
    }
    pthread_mutex_unlock(&waiter->mutex);
}

static weft_status read_part(waiter *waiter, weft_relay_reader *reader, uint64_t offset, uint8_t *data,
                             size_t capacity, size_t *count) {
    weft_status status = weft_relay_reader_read(reader, offset, data, capacity, count);
    while (status == WEFT_MORE) {
        wait_until_resumed(waiter);
        status = weft_relay_reader_read(reader, offset, data, capacity, count);
    }
    return status;
}

static weft_status read_object(waiter *waiter, weft_relay_reader *reader,
                               const weft_store_get_request *request, weft_store_get_result *result) {
    weft_relay_object object = {.size = sizeof object};
    weft_status status = weft_relay_reader_find(reader, &object);
    while (status == WEFT_MORE) {
        wait_until_resumed(waiter);
        status = weft_relay_reader_find(reader, &object);
    }
    if (status != WEFT_OK) {
        return status;
    }
    *result = (weft_store_get_result){
        .size = sizeof(weft_store_get_result), .object_bytes = object.bytes, .tag = object.tag};
    result->unchanged = request->unless != NULL && strcmp(request->unless->text, object.tag.text) == 0;
    uint64_t left = object.bytes > request->offset ? object.bytes - request->offset : 0;
    uint64_t wanted = result->unchanged ? 0 : left < request->length ? left : request->length;
    while (result->received < wanted && status == WEFT_OK) {
        size_t count = 0;
        status = read_part(waiter, reader, request->offset + result->received,
                           (uint8_t *)request->buffer + result->received,
                           (size_t)(wanted - result->received), &count);
        result->received += count;
    }
    return status;
}

static weft_status relay_get(void *self, weft_context *context, const weft_store_get_request *request,
                             weft_store_get_result *result_out) {
    const relay_store *store = self;
    waiter waiter = {.mutex = PTHREAD_MUTEX_INITIALIZER, .resumed = PTHREAD_COND_INITIALIZER};
    weft_relay_hooks hooks = {.suspend = suspend, .resume = resume, .opaque = &waiter};
    weft_relay_reader *reader;
    weft_status status = weft_relay_reader_open(context, store->relay, request->key, &hooks, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    weft_store_get_result result = {.size = sizeof result};
    status = read_object(&waiter, reader, request, &result);
    weft_relay_reader_close(reader);
    pthread_cond_destroy(&waiter.resumed);
    pthread_mutex_destroy(&waiter.mutex);
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}

static weft_status relay_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                              weft_store_tag *tag_out) {
    weft_store_get_request request = {.size = sizeof request, .key = key};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = relay_get(self, context, &request, &result);
    if (status == WEFT_OK) {
        *size_out = result.object_bytes;
        *tag_out = result.tag;
    }
    return status;
}

static weft_status relay_put(void *self, weft_context *context, const weft_store_put_request *request,
                             weft_store_tag *tag_out) {
    (void)self;
    (void)tag_out;
    return weft_fail(context, WEFT_UNSUPPORTED, "a relay takes no objects: put %s where it comes from",
                     request->key);
}

static weft_status relay_remove(void *self, weft_context *context, const char *key) {
    (void)self;
    return weft_fail(context, WEFT_UNSUPPORTED, "a relay removes no objects: remove %s where it comes from",
                     key);
}

static void relay_traits(void *self, weft_store_traits *traits) {
    const relay_store *store = self;
    weft_store_traits_of(store->relay->upstream, traits);
    traits->conditional = false;
}

static void relay_close(void *self) {
    relay_store *store = self;
    weft_release(store->context, store);
}

static const weft_store_operations operations = {
    .size = sizeof operations,
    .name = "relay",
    .traits = relay_traits,
    .get = relay_get,
    .put = relay_put,
    .head = relay_head,
    .remove = relay_remove,
    .close = relay_close,
};

weft_status weft_relay_store(weft_context *context, weft_relay *relay, weft_store **store_out) {
    weft_context_clear(context);
    relay_store *store = weft_allocate_zeroed(context, 1, sizeof *store);
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    store->context = context;
    store->relay = relay;
    weft_status status =
        weft_store_create(context, weft_store_url(relay->upstream), &operations, store, store_out);
    if (status != WEFT_OK) {
        weft_release(context, store);
    }
    return status;
}
