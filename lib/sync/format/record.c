/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c: records and pages to JSON and back.
 */
#include "record.h"

#include "../../base/context.h"
#include "../../tensor/json.h"
#include "../../tensor/table.h"
#include "leap.h"
#include "pack.h"

#include <stdio.h>
#include <string.h>

enum {
    JSON_DEPTH = 8,
    JSON_CONTAINERS = 2048,
    TEXTS_MAX = 256,
    DAMAGE_ATTEMPTS = 3,
};

static const weft_json_bounds PAGE_BOUNDS = {WEFT_PAGE_MAX, JSON_DEPTH, JSON_CONTAINERS};
static const uint64_t CHUNK_LEAST = 4096;
static const uint64_t CHUNK_MOST = (uint64_t)64 << 20;
static const uint64_t OBJECT_MOST = (uint64_t)1 << 50;

/* ---- members ---- */

bool weft_json_count(const json_t *json, const char *name, uint64_t *value_out) {
    const json_t *member = json_object_get(json, name);
    if (!json_is_integer(member) || json_integer_value(member) < 0) {
        return false;
    }
    *value_out = (uint64_t)json_integer_value(member);
    return true;
}

bool weft_json_text(const json_t *json, const char *name, char *text, size_t size) {
    const json_t *member = json_object_get(json, name);
    if (!json_is_string(member) || json_string_length(member) >= size) {
        return false;
    }
    memcpy(text, json_string_value(member), json_string_length(member) + 1);
    return true;
}

bool weft_sync_name_valid(const char *name) {
    return name[0] != '\0' && strspn(name, "0123456789abcdef") == strlen(name);
}

bool weft_json_name(const json_t *json, const char *name, char *text, size_t size) {
    return weft_json_text(json, name, text, size) && weft_sync_name_valid(text);
}

static bool parse_hash(const json_t *text, weft_hash *hash) {
    return json_is_string(text) && weft_hex_parse(json_string_value(text), hash->bytes, sizeof hash->bytes);
}

bool weft_json_digest(const json_t *json, const char *name, weft_digest *digest) {
    const json_t *text = json_object_get(json, name);
    return json_is_string(text) &&
           weft_hex_parse(json_string_value(text), digest->bytes, sizeof digest->bytes);
}

bool weft_json_key(const json_t *json, const char *name, char key[WEFT_KEY_SIZE]) {
    return weft_json_text(json, name, key, WEFT_KEY_SIZE) && weft_store_key_valid(key);
}

static json_t *format_hash(const weft_hash *hash) {
    char text[WEFT_HASH_TEXT];
    weft_hex_format(hash->bytes, sizeof hash->bytes, text);
    return json_string(text);
}

json_t *weft_digest_json(const weft_digest *digest) {
    char text[WEFT_DIGEST_TEXT];
    weft_digest_format(digest, text);
    return json_string(text);
}

json_t *weft_count_json(uint64_t value) {
    return json_integer((json_int_t)(value <= INT64_MAX ? value : INT64_MAX));
}

json_t *weft_json_with(json_t *json, const char *name, json_t *value) {
    if (json_object_set_new(json, name, value) != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

json_t *weft_json_append(json_t *array, json_t *item) {
    if (json_array_append_new(array, item) != 0) {
        json_decref(array);
        return NULL;
    }
    return array;
}

weft_status weft_sync_check_kind(weft_context *context, const char *where, const json_t *json,
                                 const char *kind) {
    uint64_t format;
    char text[16];
    if (!weft_json_count(json, "weft", &format) || !weft_json_text(json, "kind", text, sizeof text) ||
        strcmp(text, kind) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "%s: this is not a %s of a weft run", where, kind);
    }
    bool history = strcmp(kind, "head") == 0 || strcmp(kind, "page") == 0 || strcmp(kind, "leap") == 0;
    uint64_t most = history ? WEFT_HISTORY_FORMAT : WEFT_SYNC_FORMAT;
    if (format == 0 || format > most) {
        return weft_fail(
            context, WEFT_WRONG_VERSION,
            "%s: format %llu was written by a later weft; this one reads format %llu: update weft here",
            where, (unsigned long long)format, (unsigned long long)most);
    }
    return WEFT_OK;
}

weft_status weft_sync_parse(weft_context *context, const char *where, const char *kind, const void *data,
                            size_t size, unsigned depth, uint64_t containers, json_t **json_out) {
    json_t *json;
    weft_status status = weft_json_parse(context, where, data, size, depth, containers, &json);
    if (status != WEFT_OK) {
        return status == WEFT_LIMIT_EXCEEDED ? WEFT_MALFORMED : status;
    }
    status = weft_sync_check_kind(context, where, json, kind);
    if (status != WEFT_OK) {
        json_decref(json);
        return status;
    }
    *json_out = json;
    return WEFT_OK;
}

weft_status weft_sync_parse_packed(weft_context *context, const char *where, const char *kind,
                                   const void *data, size_t size, const weft_json_bounds *bounds,
                                   json_t **json_out) {
    if (!weft_pack_begins(data, size)) {
        return weft_sync_parse(context, where, kind, data, size, bounds->depth, bounds->containers,
                               json_out);
    }
    uint8_t *text;
    size_t length;
    weft_status status = weft_unpack(context, where, data, size, bounds->bytes, &text, &length);
    if (status == WEFT_OK) {
        status = weft_sync_parse(context, where, kind, text, length, bounds->depth, bounds->containers,
                                 json_out);
        weft_release(context, text);
    }
    return status;
}

weft_status weft_sync_malformed(weft_context *context, const char *where, const char *what) {
    return weft_fail(context, WEFT_MALFORMED, "%s: %s is missing or makes no sense", where, what);
}

weft_status weft_sync_unwritable(weft_context *context, const char *what, const char *fault) {
    return weft_fail(context, WEFT_INVALID_ARGUMENT,
                     "%s that nobody could read was not written: %s makes no sense", what, fault);
}

weft_status weft_sync_write_line(weft_context *context, const char *what, json_t *json,
                                 const weft_json_bounds *bounds, weft_writer *writer) {
    size_t start = writer->size;
    weft_json_write(writer, json);
    weft_writer_u8(writer, '\n');
    return weft_writer_failed(writer) ? weft_json_no_memory(context, what)
                                      : weft_json_check(context, what, (const char *)writer->data + start,
                                                        writer->size - start, bounds);
}

weft_status weft_sync_write_packed(weft_context *context, const char *what, json_t *json,
                                   const weft_json_bounds *bounds, weft_writer *writer) {
    weft_writer text;
    weft_writer_open(&text, context);
    weft_json_write(&text, json);
    weft_status status = weft_writer_failed(&text)
                             ? weft_json_no_memory(context, what)
                             : weft_json_check(context, what, (const char *)text.data, text.size, bounds);
    if (status == WEFT_OK) {
        status = weft_pack(context, text.data, text.size, writer);
    }
    weft_writer_close(&text);
    return status;
}

/* ---- blobs and objects ---- */

json_t *weft_blob_format(const weft_blob *blob) {
    json_t *json = weft_json_with(json_object(), "key", json_string(blob->key));
    json = weft_json_with(json, "bytes", weft_count_json(blob->bytes));
    return weft_json_with(json, "sha256", format_hash(&blob->hash));
}

const char *weft_blob_fault(const weft_blob *blob) {
    bool good = weft_store_key_valid(blob->key) && blob->bytes > 0 && blob->bytes <= INT64_MAX;
    return good ? NULL : "a link to another object";
}

weft_status weft_blob_parse(weft_context *context, const char *where, const json_t *json, weft_blob *blob) {
    if (!json_is_object(json) || !weft_json_text(json, "key", blob->key, sizeof blob->key) ||
        !weft_json_count(json, "bytes", &blob->bytes) ||
        !parse_hash(json_object_get(json, "sha256"), &blob->hash) || weft_blob_fault(blob) != NULL) {
        return weft_sync_malformed(context, where, "a link to another object");
    }
    return WEFT_OK;
}

uint64_t weft_object_chunks(const weft_object *object) {
    return (object->bytes + object->chunk_bytes - 1) / object->chunk_bytes;
}

const char *weft_object_fault(const weft_object *object) {
    if (object->bytes == 0 || object->bytes > OBJECT_MOST) {
        return "the size of an object";
    }
    if (object->pieced) {
        bool good = weft_blob_fault(&object->list) == NULL && strncmp(object->list.key, "pieces/", 7) == 0;
        return good ? NULL : "the key of a list of pieces";
    }
    if (!weft_store_key_valid(object->key) || object->chunk_bytes < CHUNK_LEAST ||
        object->chunk_bytes > CHUNK_MOST) {
        return "the description of an object";
    }
    uint64_t chunks = weft_object_chunks(object);
    if (!object->listed) {
        return chunks <= WEFT_CHUNKS_INLINE ? NULL : "the list of an object's chunks";
    }
    bool good = weft_blob_fault(&object->list) == NULL && object->list.bytes == chunks * WEFT_HASH_BYTES;
    return good ? NULL : "the size of a list of chunks";
}

json_t *weft_object_format(const weft_object *object) {
    json_t *json = json_object();
    if (object->pieced) {
        json = weft_json_with(json, "bytes", weft_count_json(object->bytes));
        return weft_json_with(json, "pieces", weft_blob_format(&object->list));
    }
    json = weft_json_with(json, "key", json_string(object->key));
    json = weft_json_with(json, "bytes", weft_count_json(object->bytes));
    json = weft_json_with(json, "chunk_bytes", weft_count_json(object->chunk_bytes));
    if (object->listed) {
        return weft_json_with(json, "list", weft_blob_format(&object->list));
    }
    json_t *chunks = json_array();
    for (uint64_t i = 0; i < weft_object_chunks(object); i++) {
        chunks = weft_json_append(chunks, format_hash(&object->chunks[i]));
    }
    return weft_json_with(json, "sha256", chunks);
}

static bool parse_chunks(const json_t *json, weft_object *object) {
    size_t count = json_array_size(json);
    if (!json_is_array(json) || count > WEFT_CHUNKS_INLINE || count != weft_object_chunks(object)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!parse_hash(json_array_get(json, i), &object->chunks[i])) {
            return false;
        }
    }
    return true;
}

static weft_status parse_pieced(weft_context *context, const char *where, const json_t *json,
                                weft_object *object) {
    if (!weft_json_count(json, "bytes", &object->bytes) || json_object_get(json, "key") != NULL) {
        return weft_sync_malformed(context, where, "the description of an object in pieces");
    }
    weft_status status = weft_blob_parse(context, where, json_object_get(json, "pieces"), &object->list);
    if (status == WEFT_OK) {
        object->pieced = true;
        memcpy(object->key, object->list.key, sizeof object->key);
    }
    return status;
}

static weft_status parse_plain(weft_context *context, const char *where, const json_t *json,
                               weft_object *object) {
    if (!json_is_object(json) || !weft_json_text(json, "key", object->key, sizeof object->key) ||
        !weft_json_count(json, "bytes", &object->bytes) ||
        !weft_json_count(json, "chunk_bytes", &object->chunk_bytes) || object->chunk_bytes == 0) {
        return weft_sync_malformed(context, where, "the description of an object");
    }
    const json_t *list = json_object_get(json, "list");
    object->listed = list != NULL;
    if (object->listed) {
        return weft_blob_parse(context, where, list, &object->list);
    }
    return parse_chunks(json_object_get(json, "sha256"), object)
               ? WEFT_OK
               : weft_sync_malformed(context, where, "the list of an object's chunks");
}

weft_status weft_object_parse(weft_context *context, const char *where, const json_t *json,
                              weft_object *object) {
    *object = (weft_object){.bytes = 0};
    weft_status status = json_object_get(json, "pieces") != NULL
                             ? parse_pieced(context, where, json, object)
                             : parse_plain(context, where, json, object);
    const char *fault = status == WEFT_OK ? weft_object_fault(object) : NULL;
    return fault != NULL ? weft_sync_malformed(context, where, fault) : status;
}

/* ---- texts ---- */

weft_status weft_texts_add(weft_texts *texts, weft_context *context, const char *text) {
    char **items = weft_reallocate_array(context, texts->items, texts->count + 2, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    texts->items = items;
    items[texts->count] = weft_copy_text(context, text, strlen(text));
    if (items[texts->count] == NULL) {
        return WEFT_NO_MEMORY;
    }
    items[++texts->count] = NULL;
    return WEFT_OK;
}

void weft_texts_close(weft_texts *texts, weft_context *context) {
    for (size_t i = 0; i < texts->count; i++) {
        weft_release(context, texts->items[i]);
    }
    weft_release(context, texts->items);
    *texts = (weft_texts){0};
}

static weft_status copy_texts(weft_context *context, const weft_texts *from, weft_texts *to) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < from->count && status == WEFT_OK; i++) {
        status = weft_texts_add(to, context, from->items[i]);
    }
    return status;
}

static const char *labels_fault(const weft_texts *labels) {
    bool good = labels->count % 2 == 0 && labels->count <= 2 * TEXTS_MAX;
    for (size_t i = 0; i < labels->count && good; i++) {
        good = weft_text_is_utf8(labels->items[i], strlen(labels->items[i]));
        for (size_t j = 0; j < i && i % 2 == 0 && good; j += 2) {
            good = strcmp(labels->items[i], labels->items[j]) != 0;
        }
    }
    return good ? NULL : "the set of labels";
}

/* Absent is empty. */
static weft_status parse_labels(weft_context *context, const char *where, json_t *json,
                                weft_texts *labels) {
    if (json != NULL && (!json_is_object(json) || json_object_size(json) > TEXTS_MAX)) {
        return weft_sync_malformed(context, where, "the set of labels");
    }
    weft_status status = WEFT_OK;
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value) {
        if (!json_is_string(value)) {
            return weft_sync_malformed(context, where, "a label");
        }
        status = weft_texts_add(labels, context, key);
        if (status == WEFT_OK) {
            status = weft_texts_add(labels, context, json_string_value(value));
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
    return status;
}

bool weft_key_collectable(const char *key) {
    static const char *const rooms[] = {"patches/", "anchors/", "pages/", "chunks/", "pieces/", "leaps/"};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        if (strncmp(key, rooms[i], strlen(rooms[i])) == 0) {
            return weft_store_key_valid(key);
        }
    }
    return false;
}

static weft_status parse_retired(weft_context *context, const char *where, const json_t *json,
                                 weft_texts *retired) {
    if (json != NULL && (!json_is_array(json) || json_array_size(json) > TEXTS_MAX)) {
        return weft_sync_malformed(context, where, "the list of retired objects");
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < json_array_size(json) && status == WEFT_OK; i++) {
        const char *key = json_string_value(json_array_get(json, i));
        status = key != NULL ? weft_texts_add(retired, context, key)
                             : weft_sync_malformed(context, where, "the key of a retired object");
    }
    return status;
}

static const char *retired_fault(const weft_texts *retired) {
    bool good = retired->count <= TEXTS_MAX;
    for (size_t i = 0; i < retired->count && good; i++) {
        good = weft_key_collectable(retired->items[i]);
    }
    return good ? NULL : "the key of a retired object, or how many there are,";
}

/* ---- records ---- */

void weft_record_close(weft_record *record, weft_context *context) {
    weft_texts_close(&record->labels, context);
    weft_texts_close(&record->retired, context);
    weft_leaps_close(&record->leaps, context);
}

weft_status weft_record_copy(weft_context *context, const weft_record *from, weft_record *to) {
    *to = *from;
    to->labels = (weft_texts){0};
    to->retired = (weft_texts){0};
    to->leaps = (weft_leaps){0};
    weft_status status = copy_texts(context, &from->labels, &to->labels);
    if (status == WEFT_OK) {
        status = copy_texts(context, &from->retired, &to->retired);
    }
    if (status == WEFT_OK) {
        status = weft_leaps_copy(&to->leaps, context, &from->leaps);
    }
    if (status != WEFT_OK) {
        weft_record_close(to, context);
    }
    return status;
}

json_t *weft_record_format(const weft_record *record) {
    json_t *json = weft_json_with(json_object(), "version", weft_count_json(record->version));
    json = weft_json_with(json, "epoch", weft_count_json(record->epoch));
    json = weft_json_with(json, "time", weft_count_json(record->milliseconds));
    json = weft_json_with(json, "floor", weft_count_json(record->floor));
    json = weft_json_with(json, "digest", weft_digest_json(&record->digest));
    json = weft_json_with(json, "changed", weft_count_json(record->changed));
    json = weft_json_with(json, "total", weft_count_json(record->total));
    json = weft_json_with(json, "dense_bytes", weft_count_json(record->dense_bytes));
    if (record->patched) {
        json = weft_json_with(json, "base", weft_digest_json(&record->base));
        json = weft_json_with(json, "patch", weft_object_format(&record->patch));
    }
    if (record->recalls > 0) {
        json = weft_json_with(json, "recalls", weft_count_json(record->recalls));
    }
    if (record->labels.count > 0) {
        json_t *labels = json_object();
        for (size_t i = 0; i + 1 < record->labels.count; i += 2) {
            labels =
                weft_json_with(labels, record->labels.items[i], json_string(record->labels.items[i + 1]));
        }
        json = weft_json_with(json, "labels", labels);
    }
    if (record->retired.count > 0) {
        json_t *retired = json_array();
        for (size_t i = 0; i < record->retired.count; i++) {
            retired = weft_json_append(retired, json_string(record->retired.items[i]));
        }
        json = weft_json_with(json, "retired", retired);
    }
    return record->leaps.count > 0 ? weft_json_with(json, "leaps", weft_leaps_format(&record->leaps))
                                   : json;
}

const char *weft_record_fault(const weft_record *record) {
    if (record->version == 0 || record->version > INT64_MAX || record->epoch == 0 ||
        record->epoch > INT64_MAX || record->milliseconds > INT64_MAX || record->floor > record->version ||
        record->recalls >= record->version || (record->recalls > 0 && !record->patched) ||
        record->changed > INT64_MAX || record->total > INT64_MAX || record->dense_bytes > INT64_MAX) {
        return "the record of a version";
    }
    const char *fault = record->patched ? weft_object_fault(&record->patch) : NULL;
    fault = fault != NULL ? fault : labels_fault(&record->labels);
    fault = fault != NULL ? fault : retired_fault(&record->retired);
    return fault != NULL ? fault : weft_leaps_fault(&record->leaps);
}

weft_status weft_record_parse(weft_context *context, const char *where, const json_t *json,
                              weft_record *record) {
    *record = (weft_record){0};
    if (!json_is_object(json) || !weft_json_count(json, "version", &record->version) ||
        !weft_json_count(json, "epoch", &record->epoch) ||
        !weft_json_count(json, "time", &record->milliseconds) ||
        !weft_json_count(json, "floor", &record->floor) ||
        !weft_json_digest(json, "digest", &record->digest) ||
        !weft_json_count(json, "changed", &record->changed) ||
        !weft_json_count(json, "total", &record->total) ||
        !weft_json_count(json, "dense_bytes", &record->dense_bytes)) {
        return weft_sync_malformed(context, where, "the record of a version");
    }
    weft_status status = WEFT_OK;
    const json_t *patch = json_object_get(json, "patch");
    record->patched = patch != NULL;
    if (record->patched) {
        status = weft_json_digest(json, "base", &record->base)
                     ? weft_object_parse(context, where, patch, &record->patch)
                     : weft_sync_malformed(context, where, "the base of a patch");
    }
    if (status == WEFT_OK && json_object_get(json, "recalls") != NULL &&
        !weft_json_count(json, "recalls", &record->recalls)) {
        status = weft_sync_malformed(context, where, "what a patch recalls");
    }
    if (status == WEFT_OK) {
        status = parse_labels(context, where, json_object_get(json, "labels"), &record->labels);
    }
    if (status == WEFT_OK) {
        status = parse_retired(context, where, json_object_get(json, "retired"), &record->retired);
    }
    if (status == WEFT_OK) {
        status = weft_leaps_parse(context, where, json_object_get(json, "leaps"), &record->leaps);
    }
    const char *fault = status == WEFT_OK ? weft_record_fault(record) : NULL;
    if (fault != NULL) {
        status = weft_sync_malformed(context, where, fault);
    }
    if (status != WEFT_OK) {
        weft_record_close(record, context);
    }
    return status;
}

json_t *weft_records_format(const weft_record *records, size_t count) {
    json_t *json = json_array();
    for (size_t i = 0; i < count; i++) {
        json = weft_json_append(json, weft_record_format(&records[i]));
    }
    return json;
}

weft_status weft_records_parse(weft_context *context, const char *where, const json_t *json, size_t least,
                               size_t most, weft_record *records, size_t *count_out) {
    size_t count = json_array_size(json);
    if (!json_is_array(json) || count < least || count > most) {
        return weft_sync_malformed(context, where, "the list of versions");
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = weft_record_parse(context, where, json_array_get(json, i), &records[i]);
        *count_out += status == WEFT_OK;
    }
    return status;
}

/* ---- pages ---- */

const weft_anchor *weft_anchor_find(const weft_anchor *anchors, size_t count, uint64_t version) {
    for (size_t i = 0; i < count; i++) {
        if (anchors[i].version == version) {
            return &anchors[i];
        }
    }
    return NULL;
}

void weft_page_open(weft_page *page, weft_context *context) {
    memset(page, 0, sizeof *page);
    page->context = context;
    page->format = WEFT_HISTORY_FORMAT;
}

void weft_page_close(weft_page *page) {
    for (size_t i = 0; i < page->record_count; i++) {
        weft_record_close(&page->records[i], page->context);
    }
    page->record_count = 0;
    page->anchor_count = 0;
    weft_leaps_close(&page->leaps, page->context);
}

uint64_t weft_page_span(unsigned format, uint64_t version) {
    if (version % WEFT_PAGE_LONG == 0) {
        return WEFT_PAGE_LONG;
    }
    if (format == WEFT_SYNC_FORMAT) {
        return (version - 1) % WEFT_PAGE_SHORT + 1;
    }
    uint64_t power = version & -version;
    return power < WEFT_PAGE_SHORT ? power : WEFT_PAGE_SHORT;
}

/* Each patch must start from the state that the record before it names. */
static bool is_next(const weft_record *before, const weft_record *record) {
    return record->version == before->version + 1 &&
           (!record->patched || weft_digest_equal(&record->base, &before->digest));
}

static const char *anchors_fault(const weft_page *page) {
    for (size_t i = 0; i < page->anchor_count; i++) {
        const weft_anchor *anchor = &page->anchors[i];
        if (anchor->version == 0 || anchor->version > INT64_MAX ||
            (i > 0 && anchor->version >= page->anchors[i - 1].version)) {
            return "an anchor";
        }
        const char *fault = weft_object_fault(&anchor->object);
        if (fault != NULL) {
            return fault;
        }
    }
    return NULL;
}

static const char *records_fault(const weft_page *page) {
    for (size_t i = 0; i < page->record_count; i++) {
        const char *fault = weft_record_fault(&page->records[i]);
        if (fault != NULL) {
            return fault;
        }
        if (i > 0 && !is_next(&page->records[i - 1], &page->records[i])) {
            return "the order of versions";
        }
    }
    uint64_t last = page->record_count > 0 ? page->records[page->record_count - 1].version : 0;
    uint64_t span = weft_page_span(page->format, last);
    /* where a writer goes on from pages of other ranges, there may be none to begin behind */
    bool shorter = page->format > WEFT_SYNC_FORMAT && last % WEFT_PAGE_SHORT != 0;
    bool whole = last > 0 && (page->record_count == span || (shorter && page->record_count < span));
    return whole ? NULL : "the range of versions";
}

static const char *fullness_fault(const weft_page *page) {
    uint64_t last = page->records[page->record_count - 1].version;
    bool due = page->format == WEFT_SYNC_FORMAT || last % WEFT_PAGE_FULL == 0 || !page->linked;
    bool good = page->full || (!due && page->anchor_count == 0 && page->leaps.count == 0);
    return good ? NULL : "the list of anchors";
}

/* What readers would refuse about a page, or NULL. */
static const char *page_fault(const weft_page *page) {
    if (!weft_sync_name_valid(page->run)) {
        return "the name of the run";
    }
    if (page->linked && weft_blob_fault(&page->previous) != NULL) {
        return "the link to the page before";
    }
    if (page->replaces[0] != '\0' &&
        (!weft_store_key_valid(page->replaces) || strncmp(page->replaces, "pages/", 6) != 0)) {
        return "the key of a replaced page";
    }
    const char *fault = anchors_fault(page);
    fault = fault != NULL ? fault : records_fault(page);
    fault = fault != NULL ? fault : fullness_fault(page);
    fault = fault != NULL ? fault : weft_leaps_fault(&page->leaps);
    if (fault == NULL && !weft_leaps_adjoin(&page->leaps, page->records[page->record_count - 1].version)) {
        fault = "the order of leaps";
    }
    return fault;
}

static json_t *format_anchors(const weft_page *page) {
    json_t *anchors = json_array();
    for (size_t i = 0; i < page->anchor_count; i++) {
        const weft_anchor *anchor = &page->anchors[i];
        json_t *item = weft_json_with(json_object(), "version", weft_count_json(anchor->version));
        item = weft_json_with(item, "digest", weft_digest_json(&anchor->digest));
        anchors =
            weft_json_append(anchors, weft_json_with(item, "object", weft_object_format(&anchor->object)));
    }
    return anchors;
}

static json_t *format_page(const weft_page *page) {
    json_t *json = weft_json_with(json_object(), "weft", weft_count_json(page->format));
    json = weft_json_with(json, "kind", json_string("page"));
    json = weft_json_with(json, "run", json_string(page->run));
    if (page->linked) {
        json = weft_json_with(json, "previous", weft_blob_format(&page->previous));
    }
    if (page->replaces[0] != '\0') {
        json = weft_json_with(json, "replaces", json_string(page->replaces));
    }
    if (page->full) {
        json = weft_json_with(json, "anchors", format_anchors(page));
    }
    json = weft_json_with(json, "records", weft_records_format(page->records, page->record_count));
    if (page->leaps.count > 0) {
        json = weft_json_with(json, "leaps", weft_leaps_format(&page->leaps));
    }
    return json;
}

weft_status weft_page_format(const weft_page *page, weft_writer *writer) {
    const char *fault = page_fault(page);
    if (fault != NULL) {
        return weft_sync_unwritable(page->context, "a page", fault);
    }
    return page->format == WEFT_SYNC_FORMAT
               ? weft_sync_write_line(page->context, "a page", format_page(page), &PAGE_BOUNDS, writer)
               : weft_sync_write_packed(page->context, "a page", format_page(page), &PAGE_BOUNDS, writer);
}

weft_status weft_page_write(const weft_page *page, weft_store *store, const char *key, weft_blob *blob) {
    weft_context *context = page->context;
    weft_writer writer;
    weft_writer_open(&writer, context);
    weft_status status = weft_page_format(page, &writer);
    if (status == WEFT_OK) {
        status = weft_blob_put(context, store, key, &writer, blob);
    }
    weft_writer_close(&writer);
    return status;
}

static weft_status parse_anchors(weft_page *page, const char *where, const json_t *json) {
    if (!json_is_array(json) || json_array_size(json) > WEFT_ANCHORS_MAX) {
        return weft_sync_malformed(page->context, where, "the list of anchors");
    }
    for (size_t i = 0; i < json_array_size(json); i++) {
        const json_t *item = json_array_get(json, i);
        weft_anchor *anchor = &page->anchors[i];
        if (!weft_json_count(item, "version", &anchor->version) ||
            !weft_json_digest(item, "digest", &anchor->digest)) {
            return weft_sync_malformed(page->context, where, "an anchor");
        }
        weft_status status =
            weft_object_parse(page->context, where, json_object_get(item, "object"), &anchor->object);
        if (status != WEFT_OK) {
            return status;
        }
        page->anchor_count++;
    }
    return WEFT_OK;
}

static weft_status parse_page(weft_page *page, const char *where, const json_t *json) {
    weft_context *context = page->context;
    uint64_t format = 0;
    weft_status status =
        weft_json_count(json, "weft", &format) && weft_json_text(json, "run", page->run, sizeof page->run)
            ? WEFT_OK
            : weft_sync_malformed(context, where, "the name of the run");
    page->format = (unsigned)format;
    const json_t *previous = json_object_get(json, "previous");
    if (status == WEFT_OK && previous != NULL) {
        page->linked = true;
        status = weft_blob_parse(context, where, previous, &page->previous);
    }
    if (status == WEFT_OK && json_object_get(json, "replaces") != NULL &&
        !weft_json_key(json, "replaces", page->replaces)) {
        status = weft_sync_malformed(context, where, "the key of a replaced page");
    }
    const json_t *anchors = json_object_get(json, "anchors");
    page->full = anchors != NULL;
    if (status == WEFT_OK && page->full) {
        status = parse_anchors(page, where, anchors);
    }
    if (status == WEFT_OK) {
        status = weft_records_parse(context, where, json_object_get(json, "records"), 1, WEFT_PAGE_LONG,
                                    page->records, &page->record_count);
    }
    if (status == WEFT_OK) {
        status = weft_leaps_parse(context, where, json_object_get(json, "leaps"), &page->leaps);
    }
    const char *fault = status == WEFT_OK ? page_fault(page) : NULL;
    return fault != NULL ? weft_sync_malformed(context, where, fault) : status;
}

weft_status weft_page_parse(weft_page *page, const char *where, const void *data, size_t size) {
    json_t *json;
    weft_status status =
        weft_sync_parse_packed(page->context, where, "page", data, size, &PAGE_BOUNDS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    status = parse_page(page, where, json);
    json_decref(json);
    if (status != WEFT_OK) {
        weft_page_close(page);
    }
    return status;
}

weft_status weft_sync_key(weft_context *context, const char *room, uint64_t epoch, uint64_t version,
                          char key[WEFT_KEY_SIZE]) {
    char nonce[17];
    weft_status status = weft_hex_random(context, 8, nonce);
    if (status == WEFT_OK) {
        snprintf(key, WEFT_KEY_SIZE, "%s/%08llu-%010llu-%s", room, (unsigned long long)epoch,
                 (unsigned long long)version, nonce);
    }
    return status;
}

void weft_sync_key_beside(const char *key, const char *room, char beside[WEFT_KEY_SIZE]) {
    const char *name = strrchr(key, '/');
    snprintf(beside, WEFT_KEY_SIZE, "%s%s", room, name != NULL ? name : "/");
}

/* ---- blobs in the store ---- */

weft_status weft_blob_put(weft_context *context, weft_store *store, const char *key,
                          const weft_writer *writer, weft_blob *blob) {
    *blob = (weft_blob){.bytes = writer->size};
    memcpy(blob->key, key, strlen(key) + 1);
    weft_status status = weft_hash_compute(context, writer->data, writer->size, &blob->hash);
    return status == WEFT_OK ? weft_store_put_bytes(context, store, key, writer->data, writer->size,
                                                    WEFT_STORE_ALWAYS, NULL, NULL)
                             : status;
}

static weft_status fetch_once(weft_context *context, weft_store *store, const weft_blob *blob,
                              uint8_t *data) {
    weft_store_get_request request = {
        .size = sizeof request, .key = blob->key, .length = blob->bytes, .buffer = data};
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = weft_store_get(context, store, &request, &result);
    if (status != WEFT_OK) {
        return status;
    }
    weft_hash hash = {{0}};
    if (result.received == blob->bytes) {
        status = weft_hash_compute(context, data, (size_t)blob->bytes, &hash);
    }
    if (status == WEFT_OK && !weft_hash_equal(&hash, &blob->hash)) {
        status =
            weft_fail(context, WEFT_CHECKSUM_MISMATCH,
                      "%s/%s is damaged: it is not what the history names, however often it is fetched",
                      weft_store_url(store), blob->key);
    }
    return status;
}

weft_status weft_blob_fetch(weft_context *context, weft_store *store, const weft_blob *blob,
                            uint64_t most_bytes, uint8_t **data_out) {
    if (blob->bytes > most_bytes) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s/%s has %llu bytes, more than the limit",
                         weft_store_url(store), blob->key, (unsigned long long)blob->bytes);
    }
    uint8_t *data = weft_allocate(context, (size_t)blob->bytes);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_CHECKSUM_MISMATCH;
    for (int i = 0; i < DAMAGE_ATTEMPTS && status == WEFT_CHECKSUM_MISMATCH; i++) {
        status = fetch_once(context, store, blob, data);
    }
    if (status != WEFT_OK) {
        weft_release(context, data);
        return status;
    }
    *data_out = data;
    return WEFT_OK;
}
