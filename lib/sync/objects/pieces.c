/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.c: lists of pieces to JSON and back, and to the store and back.
 */
#include "pieces.h"

#include "../../base/context.h"
#include "../../store/rendezvous.h"
#include "../../tensor/json.h"

#include <string.h>

enum { JSON_DEPTH = 5, JSON_CONTAINERS = 2 * WEFT_PIECES_MAX + 2 };

void weft_pieces_open(weft_pieces *pieces, weft_context *context) {
    *pieces = (weft_pieces){.context = context};
}

void weft_pieces_close(weft_pieces *pieces) {
    weft_release(pieces->context, pieces->items);
    weft_pieces_open(pieces, pieces->context);
}

static uint64_t total_bytes(const weft_pieces *pieces) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        bytes += pieces->items[i].bytes;
    }
    return bytes;
}

weft_status weft_pieces_add(weft_pieces *pieces, const weft_object *piece) {
    weft_object *items =
        weft_reallocate_array(pieces->context, pieces->items, pieces->count + 1, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    pieces->items = items;
    items[pieces->count++] = *piece;
    return WEFT_OK;
}

/* ---- JSON ---- */

static bool piece_valid(const weft_object *piece) {
    return weft_object_fault(piece) == NULL && !piece->pieced && weft_key_collectable(piece->key) &&
           (!piece->listed || weft_key_collectable(piece->list.key));
}

/* What readers would refuse about a list, or NULL. */
static const char *pieces_fault(const weft_pieces *pieces) {
    if (pieces->count == 0 || pieces->count > WEFT_PIECES_MAX) {
        return "how many there are";
    }
    for (size_t i = 0; i < pieces->count; i++) {
        if (!piece_valid(&pieces->items[i])) {
            return "one of them";
        }
    }
    return NULL;
}

weft_status weft_pieces_format(const weft_pieces *pieces, weft_writer *writer) {
    static const weft_json_bounds bounds = {WEFT_PIECES_BYTES, JSON_DEPTH, JSON_CONTAINERS};
    const char *fault = pieces_fault(pieces);
    if (fault != NULL) {
        return weft_sync_unwritable(pieces->context, "a list of pieces", fault);
    }
    json_t *items = json_array();
    for (size_t i = 0; i < pieces->count; i++) {
        items = weft_json_append(items, weft_object_format(&pieces->items[i]));
    }
    json_t *json = weft_json_with(json_object(), "weft", weft_count_json(WEFT_SYNC_FORMAT));
    json = weft_json_with(json, "kind", json_string("pieces"));
    json = weft_json_with(json, "pieces", items);
    return weft_sync_write_line(pieces->context, "a list of pieces", json, &bounds, writer);
}

static weft_status parse_items(weft_pieces *pieces, const char *where, const json_t *items) {
    weft_context *context = pieces->context;
    size_t count = json_array_size(items);
    if (count == 0 || count > WEFT_PIECES_MAX) {
        return weft_fail(context, WEFT_MALFORMED, "%s: a list of %zu pieces makes no sense", where, count);
    }
    pieces->items = weft_allocate_array(context, count, sizeof *pieces->items);
    if (pieces->items == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        weft_object *item = &pieces->items[i];
        weft_status status = weft_object_parse(context, where, json_array_get(items, i), item);
        if (status == WEFT_OK && !piece_valid(item)) {
            status = weft_fail(context, WEFT_MALFORMED, "%s: %s cannot be a piece", where, item->key);
        }
        if (status != WEFT_OK) {
            return status;
        }
        pieces->count++;
    }
    return WEFT_OK;
}

weft_status weft_pieces_parse(weft_pieces *pieces, const char *where, const void *data, size_t size) {
    json_t *json;
    weft_status status =
        weft_sync_parse(pieces->context, where, "pieces", data, size, JSON_DEPTH, JSON_CONTAINERS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    status = parse_items(pieces, where, json_object_get(json, "pieces"));
    json_decref(json);
    if (status != WEFT_OK) {
        weft_pieces_close(pieces);
    }
    return status;
}

/* ---- the store ---- */

weft_status weft_pieces_send(const weft_pieces *pieces, weft_store *store, const char *key,
                             weft_parcel *parcel, weft_object *object_out) {
    weft_object object = {.bytes = total_bytes(pieces), .pieced = true};
    weft_writer writer;
    weft_writer_open(&writer, pieces->context);
    weft_status status = weft_pieces_format(pieces, &writer);
    if (status == WEFT_OK) {
        status = weft_hash_compute(pieces->context, writer.data, writer.size, &object.list.hash);
    }
    if (status == WEFT_OK) {
        status = weft_parcel_send(pieces->context, store, key, writer.data, writer.size, parcel);
    }
    if (status == WEFT_OK) {
        object.list.bytes = writer.size;
        memcpy(object.key, key, strlen(key) + 1);
        memcpy(object.list.key, key, strlen(key) + 1);
        *object_out = object;
    }
    weft_writer_close(&writer);
    return status;
}

weft_status weft_pieces_fetch(weft_pieces *pieces, weft_store *store, const weft_object *object) {
    if (!object->pieced) {
        return weft_pieces_add(pieces, object);
    }
    uint8_t *data;
    weft_status status = weft_blob_fetch(pieces->context, store, &object->list, WEFT_PIECES_BYTES, &data);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_pieces_parse(pieces, object->key, data, (size_t)object->list.bytes);
    weft_release(pieces->context, data);
    if (status == WEFT_OK && total_bytes(pieces) != object->bytes) {
        weft_pieces_close(pieces);
        status = weft_fail(pieces->context, WEFT_MALFORMED,
                           "%s/%s: the pieces are not as long as the object that they are said to be",
                           weft_store_url(store), object->key);
    }
    return status;
}

weft_status weft_pieces_look(weft_pieces *pieces, weft_store *store, const char *key) {
    weft_received received;
    weft_status status =
        weft_message_get(pieces->context, store, key, WEFT_PIECES_BYTES, pieces->context, &received);
    if (status == WEFT_LIMIT_EXCEEDED) {
        return WEFT_MALFORMED;
    }
    if (status == WEFT_OK) {
        status = weft_pieces_parse(pieces, key, received.data, received.size);
        weft_received_close(&received);
    }
    return status;
}
