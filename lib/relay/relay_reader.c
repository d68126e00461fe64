/* SPDX-License-Identifier: Apache-2.0
 *
 * relay_reader.c: who reads an object through a relay. A reader finds out what its key is, then joins the
 * flight of the object, or reads the file of one that is here.
 */
#include "../base/sized.h"
#include "relay.h"

#include "../base/context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void weft_reader_fail(weft_relay_reader *reader, const weft_relay_failure *failure) {
    reader->state = READER_FAILED;
    reader->failure = *failure;
}

void weft_reader_suspend(weft_relay_reader *reader, weft_relay_reader **list) {
    reader->suspended = true;
    reader->hooks.suspend(reader->hooks.opaque);
    reader->next = *list;
    *list = reader;
}

static weft_status fail_reader(weft_relay_reader *reader, const weft_relay_failure *failure) {
    return weft_fail(reader->context, failure->status, "%s", failure->text);
}

/* The epoch of a head's key; 0 if it is none. */
static uint64_t epoch_of(const char *key) {
    char again[WEFT_HEAD_KEY];
    uint64_t epoch = strncmp(key, "heads/", 6) == 0 ? strtoull(key + 6, NULL, 10) : 0;
    weft_head_key(epoch, again);
    return strcmp(again, key) == 0 ? epoch : 0;
}

weft_status weft_relay_reader_open(weft_context *context, weft_relay *relay, const char *key,
                                   const weft_relay_hooks *hooks, weft_relay_reader **reader_out) {
    weft_status entered = weft_relay_enter(context, relay);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (!weft_store_key_valid(key)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "this is not the key of an object: %.100s", key);
    }
    weft_relay_reader *reader = weft_allocate_zeroed(context, 1, sizeof *reader);
    if (reader == NULL) {
        return WEFT_NO_MEMORY;
    }
    reader->relay = relay;
    reader->context = context;
    reader->hooks = *hooks;
    reader->object.file = -1;
    reader->epoch = epoch_of(key);
    snprintf(reader->key, sizeof reader->key, "%s", key);
    pthread_mutex_lock(&relay->mutex);
    reader->generation = relay->generation;
    pthread_mutex_unlock(&relay->mutex);
    *reader_out = reader;
    return WEFT_OK;
}

weft_status weft_relay_reader_find(weft_relay_reader *reader, weft_relay_object *object_out) {
    weft_status entered = weft_relay_enter(reader->context, reader->relay);
    if (entered == WEFT_OK) {
        entered = weft_sized_check(reader->context, object_out, "weft_relay_object");
    }
    if (entered != WEFT_OK) {
        return entered;
    }
    pthread_mutex_lock(&reader->relay->mutex);
    reader->suspended = false;
    if (reader->state == READER_LOOKUP) {
        weft_lookup_begin(reader);
        reader->relay->stats.hits += reader->state == READER_FILE;
    }
    bool suspended = reader->suspended;
    pthread_mutex_unlock(&reader->relay->mutex);
    if (suspended) {
        return WEFT_MORE;
    }
    if (reader->state == READER_FAILED) {
        return fail_reader(reader, &reader->failure);
    }
    weft_sized_write(&reader->object, object_out, sizeof reader->object);
    return WEFT_OK;
}

/* ---- waiting ---- */

/* The item may have been forgotten, or have become another, since the reader learned of it. */
static void join_flight(weft_relay_reader *reader) {
    weft_relay *relay = reader->relay;
    weft_relay_item *item = weft_relay_catalog_find(&relay->catalog, reader->key);
    if (item == NULL || strcmp(item->tag, reader->object.tag.text) != 0) {
        weft_reader_fail(reader, &(weft_relay_failure){WEFT_REMOTE_FAILED, "the object is another by now"});
        return;
    }
    int file = weft_flight_open_proven(relay, item);
    if (file >= 0) {
        reader->object.file = file;
        reader->state = READER_FILE;
        relay->stats.hits++;
        return;
    }
    if (file == WEFT_FILE_SHORTAGE) {
        weft_reader_fail(reader, &WEFT_RELAY_SHORTAGE);
        return;
    }
    bool kept = weft_relay_cache_has(&relay->cache, item->node.key);
    relay->stats.joined += item->flight != NULL;
    relay->stats.hits += item->flight == NULL && kept;
    relay->stats.misses += item->flight == NULL && !kept;
    reader->flight = weft_flight_for(relay, item);
    if (reader->flight == NULL) {
        weft_reader_fail(reader,
                         &(weft_relay_failure){WEFT_NO_MEMORY, "there is no memory for a transfer"});
        return;
    }
    reader->flight->readers++;
    reader->state = READER_FLIGHT;
}

static weft_status await_flight(weft_relay_reader *reader, uint64_t offset) {
    weft_flight *flight = reader->flight;
    reader->chunk = offset / flight->chunk_bytes;
    if (flight->ready[reader->chunk]) {
        reader->held = flight->held != NULL ? flight->held[reader->chunk] : NULL;
        return WEFT_OK;
    }
    if (flight->failure.status != WEFT_OK) {
        return fail_reader(reader, &flight->failure);
    }
    if (reader->relay->over) {
        return weft_fail(reader->context, WEFT_CANCELLED, "the relay is ending");
    }
    weft_reader_suspend(reader, &flight->waiting);
    pthread_cond_signal(&reader->relay->work);
    return WEFT_MORE;
}

weft_status weft_relay_reader_await(weft_relay_reader *reader, uint64_t offset) {
    weft_status entered = weft_relay_enter(reader->context, reader->relay);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&reader->relay->mutex);
    if (reader->state == READER_KNOWN) {
        join_flight(reader);
    }
    if (reader->state == READER_FAILED) {
        status = fail_reader(reader, &reader->failure);
    } else if (reader->state == READER_FLIGHT) {
        status = await_flight(reader, offset);
    }
    pthread_mutex_unlock(&reader->relay->mutex);
    return status;
}

/* ---- reading ---- */

static weft_status read_file(weft_relay_reader *reader, int file, uint64_t offset, void *data,
                             size_t capacity, size_t *count_out) {
    ssize_t got = pread(file, data, capacity, (off_t)offset);
    while (got < 0 && errno == EINTR) {
        got = pread(file, data, capacity, (off_t)offset);
    }
    if (got <= 0) {
        return weft_fail_errno(reader->context, got < 0 ? errno : EIO, "cannot read %s from the cache",
                               reader->key);
    }
    *count_out = (size_t)got;
    return WEFT_OK;
}

/* A chunk that is ready stays as it is for as long as somebody reads the flight. */
static weft_status read_flight(weft_relay_reader *reader, uint64_t offset, void *data, size_t capacity,
                               size_t *count_out) {
    const weft_flight *flight = reader->flight;
    uint64_t start = reader->chunk * flight->chunk_bytes;
    uint64_t left = start + flight->chunk_bytes - offset;
    size_t count = capacity < left ? capacity : (size_t)left;
    if (reader->held == NULL) {
        return read_file(reader, flight->file, offset, data, count, count_out);
    }
    memcpy(data, reader->held + (offset - start), count);
    *count_out = count;
    return WEFT_OK;
}

weft_status weft_relay_reader_read(weft_relay_reader *reader, uint64_t offset, void *data, size_t capacity,
                                   size_t *count_out) {
    weft_status entered = weft_relay_enter(reader->context, reader->relay);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (offset >= reader->object.bytes || capacity == 0) {
        return weft_fail(reader->context, WEFT_INVALID_ARGUMENT, "there is nothing to read at %llu",
                         (unsigned long long)offset);
    }
    weft_status status = weft_relay_reader_await(reader, offset);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t left = reader->object.bytes - offset;
    size_t count = capacity < left ? capacity : (size_t)left;
    switch (reader->state) {
    case READER_MEMORY:
        memcpy(data, reader->memory + offset, count);
        *count_out = count;
        return WEFT_OK;
    case READER_FILE:
        return read_file(reader, reader->object.file, offset, data, count, count_out);
    default:
        return read_flight(reader, offset, data, count, count_out);
    }
}

int weft_relay_reader_release_file(weft_relay_reader *reader) {
    int file = reader->object.file;
    reader->object.file = -1;
    return file;
}

void weft_relay_reader_close(weft_relay_reader *reader) {
    if (reader == NULL || !weft_process_is(reader->relay->process)) {
        return;
    }
    if (reader->flight != NULL) {
        pthread_mutex_lock(&reader->relay->mutex);
        weft_flight_leave(reader->relay, reader->flight);
        pthread_mutex_unlock(&reader->relay->mutex);
    }
    if (reader->object.file >= 0) {
        close(reader->object.file);
    }
    weft_release(reader->context, reader->memory);
    weft_release(reader->context, reader);
}
