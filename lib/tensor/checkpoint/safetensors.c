/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.c: parsing, checking and making headers. Every header is hostile: it may come from a file
 * found on the net, or out of a patch. What the checks establish, the rest of the library relies on.
 */
#include "safetensors.h"

#include "../../base/bytes.h"
#include "../../base/context.h"
#include "../json.h"
#include "../table.h"

#include <stdlib.h>
#include <string.h>

static const char METADATA_KEY[] = "__metadata__";

/* the header, an entry, its shape: nothing in a header lies deeper */
enum { HEADER_DEPTH = 3 };

weft_status weft_safetensors_length(weft_context *context, const char *where,
                                    const uint8_t prefix[WEFT_SAFETENSORS_PREFIX], uint64_t file_bytes,
                                    size_t *header_bytes_out) {
    weft_reader reader = weft_reader_over(prefix, WEFT_SAFETENSORS_PREFIX);
    uint64_t length = weft_reader_u64(&reader);
    if (file_bytes < WEFT_SAFETENSORS_PREFIX || length > file_bytes - WEFT_SAFETENSORS_PREFIX) {
        return weft_fail(
            context, WEFT_TRUNCATED,
            "%s: claims a header of %llu bytes but has only %llu bytes; it is cut short, or no "
            "safetensors file",
            where, (unsigned long long)length, (unsigned long long)file_bytes);
    }
    uint64_t limit = weft_context_limits(context)->header_bytes;
    if (length > limit) {
        return weft_fail(
            context, WEFT_LIMIT_EXCEEDED,
            "%s: its header of %llu bytes exceeds the limit of %llu; raise limits.header_bytes to "
            "allow it",
            where, (unsigned long long)length, (unsigned long long)limit);
    }
    *header_bytes_out = (size_t)length;
    return WEFT_OK;
}

/* ---- parsing ---- */

static weft_status fail_entry(weft_context *context, weft_status status, const char *where,
                              const char *name, const char *problem) {
    return weft_fail(context, status, "%s: tensor \"%.*s\": %s", where, WEFT_NAME_SHOWN, name, problem);
}

static weft_status check_metadata(weft_context *context, const char *where, json_t *metadata) {
    if (!json_is_object(metadata)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: __metadata__ is not an object", where);
    }
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) {
            return weft_fail(context, WEFT_MALFORMED, "%s: __metadata__ \"%.*s\" is not a text", where,
                             WEFT_NAME_SHOWN, key);
        }
    }
    return WEFT_OK;
}

static bool is_count(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

/* The description that goes into a table. The shape has been checked. */
static weft_tensor describe(const weft_safetensors_entry *entry) {
    weft_tensor tensor = {
        .size = sizeof tensor, .name = entry->name, .dtype = entry->dtype, .storage = entry->dtype};
    tensor.rank = (uint32_t)json_array_size(entry->shape);
    for (uint32_t i = 0; i < tensor.rank; i++) {
        tensor.shape[i] = (uint64_t)json_integer_value(json_array_get(entry->shape, i));
    }
    return tensor;
}

static weft_status parse_dtype(weft_context *context, const char *where, const char *name, json_t *value,
                               weft_dtype *dtype_out) {
    if (!json_is_string(value)) {
        return fail_entry(context, WEFT_MALFORMED, where, name, "its dtype is not a text");
    }
    if (!weft_dtype_parse(json_string_value(value), dtype_out)) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: tensor \"%.*s\": unknown dtype \"%.*s\"", where,
                         WEFT_NAME_SHOWN, name, WEFT_NAME_SHOWN, json_string_value(value));
    }
    return WEFT_OK;
}

static weft_status check_shape(weft_context *context, const char *where, const char *name, json_t *shape) {
    if (!json_is_array(shape)) {
        return fail_entry(context, WEFT_MALFORMED, where, name, "its shape is not an array");
    }
    if (json_array_size(shape) > WEFT_RANK_MAX) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "%s: tensor \"%.*s\" has %zu dimensions; at most %d are supported", where,
                         WEFT_NAME_SHOWN, name, json_array_size(shape), WEFT_RANK_MAX);
    }
    for (size_t i = 0; i < json_array_size(shape); i++) {
        if (!is_count(json_array_get(shape, i))) {
            return fail_entry(context, WEFT_MALFORMED, where, name,
                              "its shape holds something else than whole numbers from 0 on");
        }
    }
    return WEFT_OK;
}

static weft_status parse_offsets(weft_context *context, const char *where, json_t *offsets,
                                 weft_safetensors_entry *entry) {
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !is_count(json_array_get(offsets, 0)) ||
        !is_count(json_array_get(offsets, 1))) {
        return fail_entry(context, WEFT_MALFORMED, where, entry->name,
                          "its data_offsets are not two whole numbers from 0 on");
    }
    entry->begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    entry->end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    if (entry->begin > entry->end) {
        return fail_entry(context, WEFT_MALFORMED, where, entry->name, "its data ends before it begins");
    }
    weft_tensor tensor = describe(entry);
    uint64_t bytes = 0;
    weft_status status = weft_tensor_measure(context, WEFT_MALFORMED, where, &tensor, &bytes);
    if (status != WEFT_OK) {
        return status;
    }
    if (entry->end - entry->begin != bytes) {
        return weft_fail(context, WEFT_MALFORMED,
                         "%s: tensor \"%.*s\": dtype and shape need %llu bytes, its data_offsets give %llu",
                         where, WEFT_NAME_SHOWN, entry->name, (unsigned long long)bytes,
                         (unsigned long long)(entry->end - entry->begin));
    }
    return WEFT_OK;
}

static weft_status parse_entry(weft_context *context, const char *where, const char *name, json_t *value,
                               weft_safetensors_entry *entry) {
    if (strlen(name) > WEFT_NAME_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "%s: tensor \"%.*s...\": its name is longer than %d bytes", where, WEFT_NAME_SHOWN,
                         name, WEFT_NAME_MAX);
    }
    json_t *dtype = json_object_get(value, "dtype");
    json_t *shape = json_object_get(value, "shape");
    json_t *offsets = json_object_get(value, "data_offsets");
    if (json_object_size(value) != 3 || dtype == NULL || shape == NULL || offsets == NULL) {
        return fail_entry(context, WEFT_MALFORMED, where, name,
                          "it is not described by dtype, shape and data_offsets alone");
    }
    entry->name = name;
    entry->shape = shape;
    weft_status status = parse_dtype(context, where, name, dtype, &entry->dtype);
    if (status == WEFT_OK) {
        status = check_shape(context, where, name, shape);
    }
    if (status == WEFT_OK) {
        status = parse_offsets(context, where, offsets, entry);
    }
    return status;
}

static int compare_entries(const void *left, const void *right) {
    const weft_safetensors_entry *a = left;
    const weft_safetensors_entry *b = right;
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    if (a->end != b->end) {
        return a->end < b->end ? -1 : 1;
    }
    return a->appearance < b->appearance ? -1 : 1;
}

/* Puts the entries into the order of the data, where each must begin where the one before ends. */
static weft_status order_entries(weft_context *context, const char *where, weft_safetensors *header) {
    if (header->count > 0) {
        qsort(header->entries, header->count, sizeof(header->entries[0]), compare_entries);
    }
    uint64_t covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        const weft_safetensors_entry *entry = &header->entries[i];
        if (entry->begin != covered) {
            return weft_fail(
                context, WEFT_MALFORMED,
                "%s: tensor \"%.*s\" begins at byte %llu of the data, but the one before it ends at "
                "%llu: %s",
                where, WEFT_NAME_SHOWN, entry->name, (unsigned long long)entry->begin,
                (unsigned long long)covered, entry->begin < covered ? "they overlap" : "a hole");
        }
        covered = entry->end;
    }
    header->data_bytes = covered;
    return WEFT_OK;
}

static weft_status parse_root(weft_context *context, const char *where, weft_safetensors *header) {
    header->entries =
        weft_allocate_array(context, json_object_size(header->root), sizeof(header->entries[0]));
    if (header->entries == NULL) {
        return WEFT_NO_MEMORY;
    }
    const char *name;
    json_t *value;
    json_object_foreach(header->root, name, value) {
        weft_status status;
        if (strcmp(name, METADATA_KEY) == 0) {
            header->metadata = value;
            status = check_metadata(context, where, value);
        } else {
            weft_safetensors_entry *entry = &header->entries[header->count];
            *entry = (weft_safetensors_entry){.appearance = header->count};
            status = parse_entry(context, where, name, value, entry);
            header->count++;
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
    uint64_t limit = weft_context_limits(context)->tensors;
    if (header->count > limit) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "%s: its %zu tensors exceed the limit of %llu; raise limits.tensors to allow it",
                         where, header->count, (unsigned long long)limit);
    }
    return order_entries(context, where, header);
}

weft_status weft_safetensors_parse(weft_context *context, const char *where, const char *json, size_t size,
                                   weft_safetensors *header_out) {
    uint64_t limit = weft_context_limits(context)->tensors;
    /* an object and two arrays for each tensor, the header itself, and the metadata */
    uint64_t containers = limit > UINT64_MAX / 4 ? UINT64_MAX : 3 * limit + 2;
    weft_safetensors header = {.context = context};
    weft_status status =
        weft_json_parse(context, where, json, size, HEADER_DEPTH, containers, &header.root);
    if (status != WEFT_OK) {
        return status;
    }
    status = parse_root(context, where, &header);
    if (status != WEFT_OK) {
        weft_safetensors_close(&header);
        return status;
    }
    *header_out = header;
    return WEFT_OK;
}

void weft_safetensors_close(weft_safetensors *header) {
    weft_release(header->context, header->entries);
    json_decref(header->root);
    *header = (weft_safetensors){.context = header->context};
}

weft_status weft_safetensors_fit(weft_context *context, const char *where, size_t header_bytes,
                                 uint64_t data_bytes, uint64_t file_bytes) {
    uint64_t present = file_bytes - WEFT_SAFETENSORS_PREFIX - header_bytes;
    if (data_bytes > present) {
        return weft_fail(context, WEFT_TRUNCATED,
                         "%s: its tensors take %llu bytes but only %llu are there; it is cut short", where,
                         (unsigned long long)data_bytes, (unsigned long long)present);
    }
    if (data_bytes < present) {
        return weft_fail(context, WEFT_MALFORMED, "%s: %llu bytes behind the last tensor belong to none",
                         where, (unsigned long long)(present - data_bytes));
    }
    return WEFT_OK;
}

weft_status weft_safetensors_list(const weft_safetensors *header, const char *where, bool writable,
                                  weft_table *table) {
    for (size_t i = 0; i < header->count; i++) {
        weft_tensor tensor = describe(&header->entries[i]);
        tensor.writable = writable;
        if (weft_table_find(table, tensor.name) >= 0) {
            return fail_entry(header->context, WEFT_MALFORMED, where, tensor.name,
                              "another file has it too");
        }
        weft_status status = weft_table_add(table, &tensor);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

/* ---- making ---- */

static json_t *make_entry(const weft_tensor *tensor, uint64_t begin) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    /* takes `shape`, and fails if it is NULL */
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", weft_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + tensor->bytes));
}

static weft_status make_metadata(weft_context *context, const char *const *metadata, json_t **object_out) {
    json_t *object = json_object();
    if (object == NULL) {
        return weft_json_no_memory(context, METADATA_KEY);
    }
    for (size_t i = 0; metadata[i] != NULL; i += 2) {
        const char *key = metadata[i];
        const char *value = metadata[i + 1];
        weft_status status = WEFT_OK;
        if (value == NULL || !weft_text_is_utf8(key, strlen(key)) ||
            !weft_text_is_utf8(value, strlen(value))) {
            status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                               "metadata \"%.*s\": keys and values must be UTF-8 and come in pairs",
                               WEFT_NAME_SHOWN, key);
        } else if (json_object_get(object, key) != NULL) {
            status = weft_fail(context, WEFT_INVALID_ARGUMENT, "metadata \"%.*s\" is given twice",
                               WEFT_NAME_SHOWN, key);
        } else if (json_object_set_new(object, key, json_string(value)) != 0) {
            status = weft_json_no_memory(context, METADATA_KEY);
        }
        if (status != WEFT_OK) {
            json_decref(object);
            return status;
        }
    }
    *object_out = object;
    return WEFT_OK;
}

static void write_member(weft_writer *writer, const char *key, json_t *value) {
    if (writer->size > 1) {
        weft_writer_u8(writer, ',');
    }
    weft_json_write(writer, json_string(key));
    weft_writer_u8(writer, ':');
    weft_json_write(writer, value);
}

static weft_status write_header(weft_writer *writer, const weft_tensor *const *tensors, size_t count,
                                const char *const *metadata) {
    weft_context *context = writer->context;
    weft_writer_u8(writer, '{');
    if (metadata != NULL && metadata[0] != NULL) {
        json_t *object = NULL;
        weft_status status = make_metadata(context, metadata, &object);
        if (status != WEFT_OK) {
            return status;
        }
        write_member(writer, METADATA_KEY, object);
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < count && !weft_writer_failed(writer); i++) {
        if (strcmp(tensors[i]->name, METADATA_KEY) == 0) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "a safetensors file cannot hold a tensor named \"%s\"", METADATA_KEY);
        }
        write_member(writer, tensors[i]->name, make_entry(tensors[i], begin));
        begin += tensors[i]->bytes;
    }
    weft_writer_u8(writer, '}');
    while (!weft_writer_failed(writer) && writer->size % 8 != 0) {
        weft_writer_u8(writer, ' ');
    }
    return weft_writer_failed(writer) ? weft_json_no_memory(context, "safetensors header") : WEFT_OK;
}

weft_status weft_safetensors_build(weft_context *context, const weft_tensor *const *tensors, size_t count,
                                   const char *const *metadata, char **json_out, size_t *size_out) {
    weft_writer writer;
    weft_writer_open(&writer, context);
    weft_status status = write_header(&writer, tensors, count, metadata);
    if (status != WEFT_OK) {
        weft_writer_close(&writer);
        return status;
    }
    /* the buffer becomes the caller's */
    *json_out = (char *)writer.data;
    *size_out = writer.size;
    return WEFT_OK;
}
