/* SPDX-License-Identifier: Apache-2.0
 *
 * relayed.c: a store as its readers see it through a relay that is never behind.
 */
#include "relayed.h"
#include "described.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAUSE_NANOSECONDS = 2000000, PATIENCE_SECONDS = 60 };

typedef struct relayed {
    weft_store *upstream;
    weft_relay *relay;
    weft_store *store; /* of the relay */
} relayed;

/* False if the store has no head. */
static bool find_newest(const relayed *self, weft_context *context, weft_head_info *newest) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;
    return weft_head_find(context, self->upstream, 1, data, &size, &epoch) == WEFT_OK &&
           weft_head_inspect(context, data, size, NULL, newest) == WEFT_OK;
}

/* The relay has a head as new as that one. Of two that are as new, which writers without conditional puts
 * may leave, it keeps the first. The first head of an epoch only claims it: the relay passes that over, and
 * has the version that it repeats. */
static bool relay_has(const relayed *self, weft_context *context, const weft_head_info *there) {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_head_info here = {.size = sizeof here};
    bool claim = there->epoch > 1 && there->sequence == 1;
    return weft_relay_head(context, self->relay, data, &size, &here) == WEFT_OK &&
           (here.epoch > there->epoch || (claim && here.version >= there->version) ||
            (here.epoch == there->epoch && here.sequence >= there->sequence));
}

/* What the store has now is asked for once: it may be a service whose answers take long. */
static void wait_for_head(const relayed *self, const char *key) {
    const struct timespec pause = {0, PAUSE_NANOSECONDS};
    weft_context *context;
    weft_head_info newest = {.size = sizeof newest};
    if (strncmp(key, "heads/", 6) != 0 || weft_context_create(NULL, &context) != WEFT_OK) {
        return;
    }
    time_t end = time(NULL) + PATIENCE_SECONDS;
    bool known = find_newest(self, context, &newest);
    while (known && !relay_has(self, context, &newest) && time(NULL) < end) {
        nanosleep(&pause, NULL);
    }
    weft_context_destroy(context);
}

static weft_status relayed_get(void *opaque, weft_context *context, const weft_store_get_request *request,
                               weft_store_get_result *result) {
    const relayed *self = opaque;
    wait_for_head(self, request->key);
    return weft_store_get(context, self->store, request, result);
}

static weft_status relayed_put(void *opaque, weft_context *context, const weft_store_put_request *request,
                               weft_store_tag *tag) {
    const relayed *self = opaque;
    return weft_store_put(context, self->store, request, tag);
}

static weft_status relayed_head(void *opaque, weft_context *context, const char *key, uint64_t *size,
                                weft_store_tag *tag) {
    const relayed *self = opaque;
    wait_for_head(self, key);
    return weft_store_head(context, self->store, key, size, tag);
}

static weft_status relayed_remove(void *opaque, weft_context *context, const char *key) {
    const relayed *self = opaque;
    return weft_store_remove(context, self->store, key);
}

static void relayed_traits(void *opaque, weft_store_traits *traits) {
    const relayed *self = opaque;
    weft_store_traits_of(self->store, traits);
}

static void relayed_close(void *opaque) {
    relayed *self = opaque;
    weft_store_close(self->store);
    weft_relay_close(self->relay);
    free(self);
}

static weft_status open_relay(relayed *self, weft_context *context, const char *directory) {
    bool remote = store_traits(self->upstream).directory == NULL;
    const weft_relay_options options = {.size = sizeof options, .poll_seconds = remote ? 0.05 : 0.005};
    weft_status status = weft_relay_open(context, self->upstream, directory, &options, &self->relay);
    return status == WEFT_OK ? weft_relay_store(context, self->relay, &self->store) : status;
}

weft_status relayed_open(weft_context *context, weft_store *upstream, const char *directory,
                         weft_store **store_out) {
    static const weft_store_operations operations = {
        .size = sizeof operations,
        .name = "relayed",
        .traits = relayed_traits,
        .get = relayed_get,
        .put = relayed_put,
        .head = relayed_head,
        .remove = relayed_remove,
        .close = relayed_close,
    };
    relayed *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return WEFT_NO_MEMORY;
    }
    self->upstream = upstream;
    weft_status status = open_relay(self, context, directory);
    if (status == WEFT_OK) {
        status = weft_store_create(context, weft_store_url(upstream), &operations, self, store_out);
    }
    if (status != WEFT_OK) {
        relayed_close(self);
    }
    return status;
}
