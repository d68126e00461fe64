/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.c: putting, getting, signing and checking messages in a store.
 */
#include "rendezvous.h"

#include "../base/bytes.h"
#include "../base/context.h"

#include <string.h>

/* A first get asks for so much; most messages are smaller. */
enum { FIRST_BYTES = 64 << 10 };

/* ---- putting and getting ---- */

static uint64_t message_bytes(const weft_message *message) {
    return message->size + (message->signature != NULL ? WEFT_SIGNATURE_BYTES : 0);
}

/* The feed of a put: the data, then the signature. */
static weft_status read_message(void *opaque, uint64_t offset, void *data, size_t capacity,
                                size_t *count_out) {
    const weft_message *message = opaque;
    bool behind = offset >= message->size;
    size_t left = (size_t)((behind ? message_bytes(message) : message->size) - offset);
    *count_out = left < capacity ? left : capacity;
    if (*count_out > 0) {
        memcpy(data,
               behind ? message->signature + (offset - message->size)
                      : (const uint8_t *)message->data + offset,
               *count_out);
    }
    return WEFT_OK;
}

weft_status weft_message_put(weft_context *context, weft_store *store, const weft_message *message) {
    uint64_t size = message_bytes(message);
    weft_store_put_request request = {
        .size = sizeof request,
        .key = message->key,
        .feed = {.size = size, .read = read_message, .opaque = (void *)(uintptr_t)message},
        .condition = message->condition,
        .tag = message->tag,
        .volatile_write = message->volatile_write,
    };
    weft_store_tag there = {.text = ""};
    weft_status status = weft_store_put(context, store, &request, NULL);
    if (status != WEFT_UNSUPPORTED || !message->alone) {
        return status;
    }
    status = weft_store_head(context, store, message->key, &size, &there);
    if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
        return status;
    }
    bool holds = message->condition == WEFT_STORE_IF_ABSENT
                     ? status == WEFT_NOT_FOUND
                     : status == WEFT_OK && strcmp(there.text, message->tag.text) == 0;
    if (!holds) {
        return WEFT_CONFLICT;
    }
    request.condition = WEFT_STORE_ALWAYS;
    return weft_store_put(context, store, &request, NULL);
}

static weft_status get_up_to(weft_context *context, weft_store *store, const char *key, uint64_t room,
                             weft_received *received, uint64_t *size_out) {
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = room};
    weft_store_get_result result = {.size = sizeof result};
    received->data = weft_allocate(received->memory, (size_t)room);
    if (received->data == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for %llu bytes of %s",
                         (unsigned long long)room, key);
    }
    request.buffer = received->data;
    weft_status status = weft_store_get(context, store, &request, &result);
    if (status != WEFT_OK) {
        weft_received_close(received);
        return status;
    }
    received->size = (size_t)result.received;
    received->tag = result.tag;
    *size_out = result.object_bytes;
    return WEFT_OK;
}

weft_status weft_message_get(weft_context *context, weft_store *store, const char *key, uint64_t most,
                             weft_context *memory, weft_received *received_out) {
    weft_received received = {.memory = memory};
    uint64_t size = 0;
    weft_status status =
        get_up_to(context, store, key, most < FIRST_BYTES ? most : FIRST_BYTES, &received, &size);
    if (status == WEFT_OK && size > received.size && size <= most) {
        weft_received_close(&received);
        status = get_up_to(context, store, key, size, &received, &size);
    }
    if (status == WEFT_OK && size > most) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s/%s has %llu bytes, too many",
                           weft_store_url(store), key, (unsigned long long)size);
    } else if (status == WEFT_OK && size != received.size) {
        status = weft_fail(context, WEFT_CHECKSUM_MISMATCH, "%s/%s changed while it was read",
                           weft_store_url(store), key);
    }
    if (status != WEFT_OK) {
        weft_received_close(&received);
        return status;
    }
    *received_out = received;
    return WEFT_OK;
}

void weft_received_close(weft_received *received) {
    weft_release(received->memory, received->data);
    received->data = NULL;
}

/* ---- signing ---- */

static weft_status write_signed_text(const weft_message_seal *seal, const char *who, const void *data,
                                     size_t size, weft_writer *text) {
    const char *const lines[] = {"weft ", who, "\n", seal->run, "\n", seal->where, "\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        weft_writer_bytes(text, lines[i], strlen(lines[i]));
    }
    weft_writer_bytes(text, data, size);
    return weft_writer_failed(text) ? WEFT_NO_MEMORY : WEFT_OK;
}

weft_status weft_message_sign(weft_context *context, const weft_message_seal *seal, const char *who,
                              const void *data, size_t size, uint8_t signature[WEFT_SIGNATURE_BYTES]) {
    weft_writer text;
    weft_writer_open(&text, context);
    weft_status status = write_signed_text(seal, who, data, size, &text);
    if (status == WEFT_OK) {
        status = weft_key_sign(context, seal->key, text.data, text.size, signature);
    }
    weft_writer_close(&text);
    return status;
}

weft_status weft_message_check(weft_context *context, const weft_message_seal *seal, const char *who,
                               const void *data, size_t size, const uint8_t *signature) {
    weft_writer text;
    weft_writer_open(&text, context);
    weft_status status = write_signed_text(seal, who, data, size, &text);
    bool good = status == WEFT_OK && signature != NULL &&
                weft_key_check(seal->key, text.data, text.size, signature);
    weft_writer_close(&text);
    if (status != WEFT_OK || good) {
        return status;
    }
    return weft_fail(
        context, WEFT_SIGNATURE_MISMATCH,
        "%s is not signed%s this %s has%s; give every %s of the trainer the same secret key, and "
        "see who else can write to the store",
        seal->where, signature == NULL ? ", and" : " by the key that", who,
        signature == NULL ? " a key" : "", who);
}
