/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_safetensors.c: bytes as a whole safetensors file, and the same bytes as an index. What is accepted
 * must hold what the rest of the library relies on, and must survive being written and read again.
 */
#include "../../lib/base/context.h"
#include "../../lib/tensor/checkpoint/index.h"
#include "../../lib/tensor/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char WHERE[] = "input";

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

/* One behind the other, within the file, each as large as dtype and shape say. */
static void check_entries(const weft_safetensors *header, const weft_table *table, uint64_t data_bytes) {
    require(weft_table_count(table) == header->count);
    require(weft_table_sorted_count(table) == header->count);
    require(weft_table_bytes(table) == data_bytes);
    uint64_t covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        const weft_tensor *tensor = weft_table_at(table, i);
        require(header->entries[i].begin == covered);
        require(header->entries[i].end - header->entries[i].begin == tensor->bytes);
        require(strlen(tensor->name) <= WEFT_NAME_MAX && tensor->rank <= WEFT_RANK_MAX);
        require(weft_tensor_units(tensor) * weft_dtype_width(tensor->dtype) == tensor->bytes);
        covered += tensor->bytes;
    }
    require(covered == data_bytes);
}

/* The same table comes out of the header that we make of it. */
static void check_rebuilt(weft_context *context, const weft_table *table, uint64_t data_bytes) {
    size_t count = weft_table_count(table);
    const weft_tensor **tensors = calloc(count + 1, sizeof *tensors);
    require(tensors != NULL);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = weft_table_at(table, i);
    }
    char *json = NULL;
    size_t size = 0;
    require(weft_safetensors_build(context, tensors, count, NULL, &json, &size) == WEFT_OK);
    weft_safetensors again;
    require(weft_safetensors_parse(context, WHERE, json, size, &again) == WEFT_OK);
    require(again.count == count && again.data_bytes == data_bytes);
    for (size_t i = 0; i < count; i++) {
        require(strcmp(again.entries[i].name, tensors[i]->name) == 0);
        require(again.entries[i].dtype == tensors[i]->dtype);
    }
    weft_safetensors_close(&again);
    weft_release(context, json);
    free(tensors);
}

static void try_file(weft_context *context, const uint8_t *data, size_t size) {
    size_t header_bytes = 0;
    if (size < WEFT_SAFETENSORS_PREFIX ||
        weft_safetensors_length(context, WHERE, data, size, &header_bytes) != WEFT_OK) {
        return;
    }
    require(header_bytes <= size - WEFT_SAFETENSORS_PREFIX);
    const char *json = (const char *)data + WEFT_SAFETENSORS_PREFIX;
    weft_safetensors header;
    if (weft_safetensors_parse(context, WHERE, json, header_bytes, &header) != WEFT_OK) {
        require(weft_context_error(context)[0] != '\0');
        return;
    }
    weft_table *table = NULL;
    require(weft_table_create(context, &table) == WEFT_OK);
    if (weft_safetensors_fit(context, WHERE, header_bytes, header.data_bytes, size) == WEFT_OK) {
        require(weft_safetensors_list(&header, WHERE, true, table) == WEFT_OK);
        check_entries(&header, table, header.data_bytes);
        check_rebuilt(context, table, header.data_bytes);
    }
    weft_table_destroy(table);
    weft_safetensors_close(&header);
}

static void try_index(weft_context *context, const uint8_t *data, size_t size) {
    weft_index index;
    if (weft_index_parse(context, WHERE, (const char *)data, size, &index) != WEFT_OK) {
        return;
    }
    for (size_t i = 0; i < index.file_count; i++) {
        require(strchr(index.files[i], '/') == NULL && index.files[i][0] != '.');
        require(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
    }
    weft_index_close(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context_options options = {
        .size = sizeof options,
        .threads = 1,
        .limits = &(weft_limits){.size = sizeof(weft_limits), .header_bytes = 64 * 1024, .tensors = 64}};
    weft_context *context = NULL;
    require(weft_context_create(&options, &context) == WEFT_OK);
    try_file(context, data, size);
    try_index(context, data, size);
    weft_context_destroy(context);
    return 0;
}
