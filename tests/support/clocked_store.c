/* SPDX-License-Identifier: Apache-2.0
 *
 * clocked_store.c: see clocked_store.h.
 */
#include "clocked_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct put_time {
    char key[WEFT_STORE_KEY_MAX + 1];
    double time;
} put_time;

struct store_clock {
    pthread_mutex_t lock;
    double now;
    put_time *times;
    size_t count;
};

typedef struct clocked_store {
    weft_store *inner;
    store_clock *clock;
} clocked_store;

static void *require(void *memory) {
    if (memory == NULL) {
        fprintf(stderr, "clocked_store: out of memory\n");
        exit(99);
    }
    return memory;
}

/* ---- the clock ---- */

store_clock *store_clock_open(void) {
    store_clock *clock = require(calloc(1, sizeof *clock));
    pthread_mutex_init(&clock->lock, NULL);
    return clock;
}

void store_clock_close(store_clock *clock) {
    pthread_mutex_destroy(&clock->lock);
    free(clock->times);
    free(clock);
}

void store_clock_advance(store_clock *clock, double seconds) {
    pthread_mutex_lock(&clock->lock);
    clock->now += seconds;
    pthread_mutex_unlock(&clock->lock);
}

static put_time *find_time(const store_clock *clock, const char *key) {
    for (size_t i = 0; i < clock->count; i++) {
        if (strcmp(clock->times[i].key, key) == 0) {
            return &clock->times[i];
        }
    }
    return NULL;
}

static void note_put(store_clock *clock, const char *key) {
    pthread_mutex_lock(&clock->lock);
    put_time *found = find_time(clock, key);
    if (found == NULL) {
        clock->times = require(realloc(clock->times, (clock->count + 1) * sizeof *clock->times));
        found = &clock->times[clock->count++];
        snprintf(found->key, sizeof found->key, "%s", key);
    }
    found->time = clock->now;
    pthread_mutex_unlock(&clock->lock);
}

static double age_of(store_clock *clock, const char *key) {
    pthread_mutex_lock(&clock->lock);
    const put_time *found = find_time(clock, key);
    double age = clock->now - (found != NULL ? found->time : 0);
    pthread_mutex_unlock(&clock->lock);
    return age;
}

/* ---- the operations ---- */

static void clocked_traits(void *opaque, weft_store_traits *traits) {
    const clocked_store *self = opaque;
    weft_store_traits_of(self->inner, traits);
}

static weft_status clocked_get(void *opaque, weft_context *context, const weft_store_get_request *request,
                               weft_store_get_result *result_out) {
    const clocked_store *self = opaque;
    weft_store_get_request quiet = *request; /* who is told of bytes is told by the outer store */
    quiet.arrived = NULL;
    return weft_store_get(context, self->inner, &quiet, result_out);
}

static weft_status clocked_put(void *opaque, weft_context *context, const weft_store_put_request *request,
                               weft_store_tag *tag_out) {
    const clocked_store *self = opaque;
    weft_status status = weft_store_put(context, self->inner, request, tag_out);
    if (status == WEFT_OK) {
        note_put(self->clock, request->key);
    }
    return status;
}

static weft_status clocked_head(void *opaque, weft_context *context, const char *key, uint64_t *size_out,
                                weft_store_tag *tag_out) {
    const clocked_store *self = opaque;
    return weft_store_head(context, self->inner, key, size_out, tag_out);
}

static weft_status clocked_remove(void *opaque, weft_context *context, const char *key) {
    const clocked_store *self = opaque;
    return weft_store_remove(context, self->inner, key);
}

typedef struct clocked_visit {
    store_clock *clock;
    weft_store_visit visit;
    void *opaque;
} clocked_visit;

static bool visit_clocked(void *opaque, const char *key, uint64_t size, double age_seconds) {
    const clocked_visit *clocked = opaque;
    (void)age_seconds;
    return clocked->visit(clocked->opaque, key, size, age_of(clocked->clock, key));
}

static weft_status clocked_list(void *opaque, weft_context *context, const char *prefix,
                                weft_store_visit visit, void *visit_opaque) {
    const clocked_store *self = opaque;
    clocked_visit clocked = {self->clock, visit, visit_opaque};
    return weft_store_list(context, self->inner, prefix, visit_clocked, &clocked);
}

static weft_status clocked_age(void *opaque, weft_context *context, const char *key, double *seconds_out) {
    const clocked_store *self = opaque;
    weft_status status = weft_store_head(context, self->inner, key, NULL, NULL);
    if (status == WEFT_OK) {
        *seconds_out = age_of(self->clock, key);
    }
    return status;
}

static void clocked_close(void *opaque) {
    free(opaque);
}

weft_store *clocked_store_open(weft_context *context, weft_store *inner, store_clock *clock) {
    static const weft_store_operations operations = {
        .size = sizeof operations,
        .name = "clocked",
        .traits = clocked_traits,
        .get = clocked_get,
        .put = clocked_put,
        .head = clocked_head,
        .remove = clocked_remove,
        .list = clocked_list,
        .age = clocked_age,
        .close = clocked_close,
    };
    clocked_store *self = require(calloc(1, sizeof *self));
    weft_store *store;
    self->inner = inner;
    self->clock = clock;
    if (weft_store_create(context, weft_store_url(inner), &operations, self, &store) != WEFT_OK) {
        fprintf(stderr, "clocked_store: %s\n", weft_context_error(context));
        exit(99);
    }
    return store;
}
