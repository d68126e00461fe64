/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c: see index.h. An index is as hostile as a header.
 */
#include "index.h"

#include "../../base/context.h"
#include "../json.h"
#include "../table.h"

#include <stdlib.h>
#include <string.h>

/* Only "metadata", which nobody interprets, may nest at all. */
enum { INDEX_DEPTH = 16, INDEX_CONTAINERS = 4096 };

/* What a file name may take where names are limited to 255 bytes. */
enum { SHARD_NAME_MAX = 255 };

/* ---- parsing ---- */

static bool is_plain_file_name(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);
    size_t suffix_length = sizeof(suffix) - 1;
    if (length <= suffix_length || length > SHARD_NAME_MAX || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)name[i];
        if (byte == '/' || byte < 0x20 || byte == 0x7f) {
            return false;
        }
    }
    return strcmp(name + length - suffix_length, suffix) == 0;
}

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorts the files and keeps each once. */
static void unify_files(weft_index *index) {
    if (index->file_count == 0) {
        return;
    }
    qsort(index->files, index->file_count, sizeof(index->files[0]), compare_texts);
    size_t kept = 1;
    for (size_t i = 1; i < index->file_count; i++) {
        if (strcmp(index->files[i], index->files[kept - 1]) != 0) {
            index->files[kept++] = index->files[i];
        }
    }
    index->file_count = kept;
}

static weft_status parse_weight_map(weft_context *context, const char *where, weft_index *index) {
    index->weight_map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->weight_map)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: has no object \"weight_map\"", where);
    }
    size_t count = json_object_size(index->weight_map);
    uint64_t limit = weft_context_limits(context)->tensors;
    if (count > limit) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "%s: its %zu tensors exceed the limit of %llu; raise limits.tensors to allow it",
                         where, count, (unsigned long long)limit);
    }
    index->files = weft_allocate_array(context, count, sizeof(index->files[0]));
    if (index->files == NULL) {
        return WEFT_NO_MEMORY;
    }
    const char *name;
    json_t *value;
    json_object_foreach(index->weight_map, name, value) {
        if (!json_is_string(value) || !is_plain_file_name(json_string_value(value))) {
            return weft_fail(
                context, WEFT_MALFORMED,
                "%s: the file of tensor \"%.*s\" is not a plain name that ends in .safetensors", where,
                WEFT_NAME_SHOWN, name);
        }
        index->files[index->file_count++] = json_string_value(value);
    }
    unify_files(index);
    return WEFT_OK;
}

weft_status weft_index_parse(weft_context *context, const char *where, const char *json, size_t size,
                             weft_index *index_out) {
    weft_index index = {.context = context};
    weft_status status =
        weft_json_parse(context, where, json, size, INDEX_DEPTH, INDEX_CONTAINERS, &index.root);
    if (status != WEFT_OK) {
        return status;
    }
    status = parse_weight_map(context, where, &index);
    if (status != WEFT_OK) {
        weft_index_close(&index);
        return status;
    }
    *index_out = index;
    return WEFT_OK;
}

void weft_index_close(weft_index *index) {
    weft_release(index->context, index->files);
    json_decref(index->root);
    *index = (weft_index){.context = index->context};
}

/* ---- checking ---- */

weft_status weft_index_check(const weft_index *index, const char *where, const weft_table *table,
                             const size_t *first) {
    for (size_t file = 0; file < index->file_count; file++) {
        for (size_t i = first[file]; i < first[file + 1]; i++) {
            const char *name = weft_table_at(table, i)->name;
            const char *listed = json_string_value(json_object_get(index->weight_map, name));
            if (listed == NULL || strcmp(listed, index->files[file]) != 0) {
                return weft_fail(
                    index->context, WEFT_MALFORMED, "%s: tensor \"%.*s\" is in %s, but the index %s%s",
                    where, WEFT_NAME_SHOWN, name, index->files[file],
                    listed == NULL ? "does not list it" : "says it is in ", listed == NULL ? "" : listed);
            }
        }
    }
    const char *name;
    json_t *value;
    json_object_foreach(index->weight_map, name, value) {
        if (weft_table_find(table, name) < 0) {
            return weft_fail(index->context, WEFT_MALFORMED,
                             "%s: lists tensor \"%.*s\", but %s does not hold it", where, WEFT_NAME_SHOWN,
                             name, json_string_value(value));
        }
    }
    return WEFT_OK;
}

/* ---- making ---- */

static void write_index(weft_writer *writer, const weft_tensor *const *tensors, size_t count,
                        const char *const *files) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += tensors[i]->bytes;
    }
    static const char opening[] = "{\"metadata\":";
    static const char middle[] = ",\"weight_map\":{";
    weft_writer_bytes(writer, opening, sizeof(opening) - 1);
    weft_json_write(writer, json_pack("{s:I}", "total_size", (json_int_t)bytes));
    weft_writer_bytes(writer, middle, sizeof(middle) - 1);
    for (size_t i = 0; i < count && !weft_writer_failed(writer); i++) {
        if (i > 0) {
            weft_writer_u8(writer, ',');
        }
        weft_json_write(writer, json_string(tensors[i]->name));
        weft_writer_u8(writer, ':');
        weft_json_write(writer, json_string(files[i]));
    }
    weft_writer_bytes(writer, "}}\n", 3);
}

weft_status weft_index_build(weft_context *context, const weft_tensor *const *tensors, size_t count,
                             const char *const *files, char **json_out, size_t *size_out) {
    weft_writer writer;
    weft_writer_open(&writer, context);
    write_index(&writer, tensors, count, files);
    if (weft_writer_failed(&writer)) {
        weft_writer_close(&writer);
        return weft_json_no_memory(context, WEFT_INDEX_NAME);
    }
    /* the buffer becomes the caller's */
    *json_out = (char *)writer.data;
    *size_out = writer.size;
    return WEFT_OK;
}
