/* SPDX-License-Identifier: Apache-2.0
 *
 * grail.c: the COO deltas of grail: one frame of zstd that holds a header of JSON and, of each tensor, row
 * steps, column steps and values. A column is counted anew in each row. Version 3 has steps of 32 bits, 3.1
 * (written 31) the narrowest that fit.
 *
 * A file says neither its version nor its base, and proves nothing: the number that its name ends in
 * counts.
 */
#include "format.h"

#include "../base/bytes.h"
#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/json.h"
#include "../tensor/table.h"

#include <string.h>

enum { DEPTH = 8, VERSION_3 = 3, VERSION_3_1 = 31, WIDTH_BITS = 4 };

/* ---- listing ---- */

/* The last number of a name, or 1. */
static uint64_t number_of(const char *path) {
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    const char *end = name + strlen(name);
    while (end > name && (end[-1] < '0' || end[-1] > '9')) {
        end--;
    }
    const char *start = end;
    uint64_t number = 0;
    while (start > name && start[-1] >= '0' && start[-1] <= '9' && end - start < 18) {
        start--;
    }
    for (const char *c = start; c < end; c++) {
        number = 10 * number + (uint64_t)(*c - '0');
    }
    return number > 0 ? number : 1;
}

static weft_status list_path(weft_foreign *foreign, char *path) {
    uint64_t number = path != NULL ? number_of(path) : 0;
    if (path != NULL && (!weft_path_is_file(path) || weft_foreign_known(foreign, number))) {
        weft_release(foreign->context, path);
        return WEFT_OK;
    }
    return weft_foreign_add(foreign, number, number - 1, false, path);
}

static weft_status list_name(void *opaque, const char *name) {
    weft_foreign *foreign = opaque;
    return list_path(foreign, weft_path_join(foreign->context, foreign->root, name));
}

static weft_status grail_list(weft_foreign *foreign) {
    if (weft_path_is_file(foreign->root)) {
        return list_path(foreign, weft_copy_text(foreign->context, foreign->root, strlen(foreign->root)));
    }
    return weft_directory_names(foreign->context, foreign->root, list_name, foreign);
}

/* A frame of zstd may be anything. */
static bool grail_detect(weft_context *context, const char *path) {
    (void)context;
    (void)path;
    return false;
}

/* ---- reading ---- */

static uint64_t step_at(const uint8_t *data, uint64_t index, unsigned width) {
    uint32_t value = 0;
    memcpy(&value, data + index * width, width);
    return value;
}

/* `data` are the row steps and behind them the column steps; the widths of both are the variant. */
static weft_status decode_coo(const weft_foreign_part *part, const weft_tensor *tensor,
                              weft_base_reader *base, weft_foreign_step *step, weft_change_list *list) {
    (void)base;
    unsigned row_width = part->variant & ((1u << WIDTH_BITS) - 1),
             column_width = part->variant >> WIDTH_BITS;
    uint64_t units = weft_tensor_units(tensor), columns = 1, row = 0, column = 0;
    for (uint32_t i = 1; i < tensor->rank; i++) {
        columns *= tensor->shape[i];
    }
    if (part->count > units || part->value_bytes != part->count * list->width) {
        return weft_fail(step->context, WEFT_MALFORMED,
                         "the delta of tensor \"%.*s\" has more than the tensor has", WEFT_NAME_SHOWN,
                         part->name);
    }
    weft_status status = part->count > 0 ? weft_list_reserve(step, list, part->count) : WEFT_OK;
    if (status != WEFT_OK || part->count == 0) {
        return status;
    }
    const uint8_t *column_steps = part->data + part->count * row_width;
    for (uint64_t i = 0; i < part->count; i++) {
        uint64_t down = step_at(part->data, i, row_width), right = step_at(column_steps, i, column_width);
        row += down;
        column = i == 0 || down != 0 ? right : column + right;
        uint64_t unit = column < columns && row <= units / columns ? row * columns + column : units;
        if (unit >= units || (i > 0 && unit <= list->units[i - 1])) {
            return weft_fail(step->context, WEFT_MALFORMED,
                             "the delta of tensor \"%.*s\" has positions that do not ascend within it",
                             WEFT_NAME_SHOWN, part->name);
        }
        list->units[i] = unit;
    }
    memcpy(list->values, part->values, part->value_bytes);
    list->count = part->count;
    return WEFT_OK;
}

static unsigned width_of(const json_t *entry, const char *key, int64_t version) {
    const char *name = json_string_value(json_object_get(entry, key));
    if (version == VERSION_3 || (name != NULL && strcmp(name, "int32") == 0)) {
        return 4;
    }
    return name == NULL ? 0 : strcmp(name, "uint8") == 0 ? 1 : strcmp(name, "uint16") == 0 ? 2 : 0;
}

/* A range of the data, or NULL. */
static const uint8_t *range_of(const json_t *entry, const char *offset_key, const char *size_key,
                               const uint8_t *data, size_t data_bytes, uint64_t *size_out) {
    uint64_t offset;
    return weft_json_number(json_object_get(entry, offset_key), &offset) &&
                   weft_json_number(json_object_get(entry, size_key), size_out) && offset <= data_bytes &&
                   *size_out <= data_bytes - offset
               ? data + offset
               : NULL;
}

static weft_status add_entry(weft_foreign_plan *plan, const char *path, const json_t *entry,
                             int64_t version, const uint8_t *data, size_t data_bytes) {
    uint64_t count = 0, position_bytes = 0, value_bytes = 0;
    const char *torch = json_string_value(json_object_get(entry, "value_dtype"));
    unsigned row_width = width_of(entry, "row_dtype", version),
             column_width = width_of(entry, "col_dtype", version);
    const uint8_t *positions =
        range_of(entry, "indices_offset", "indices_size", data, data_bytes, &position_bytes);
    const uint8_t *values = range_of(entry, "values_offset", "values_size", data, data_bytes, &value_bytes);
    bool counted = weft_json_number(json_object_get(entry, "num_nonzero"), &count) && count <= data_bytes;
    const weft_foreign_part part = {.name = json_string_value(json_object_get(entry, "name")),
                                    .coding = WEFT_CODED_OWN,
                                    .data = positions,
                                    .size = (size_t)position_bytes,
                                    .values = values,
                                    .value_bytes = (size_t)value_bytes,
                                    .dtype = torch != NULL ? weft_torch_dtype_parse(torch) : NULL,
                                    .shape = json_object_get(entry, "shape"),
                                    .decode = decode_coo,
                                    .variant = row_width | column_width << WIDTH_BITS,
                                    .count = count};
    if (part.name == NULL || positions == NULL || values == NULL || part.dtype == NULL || !counted ||
        !json_is_array(part.shape) || row_width == 0 || column_width == 0 ||
        position_bytes != count * (row_width + column_width)) {
        return weft_fail(plan->context, WEFT_MALFORMED,
                         "%s: tensor %zu of its header is not as it should be", path, plan->part_count);
    }
    return weft_foreign_plan_part(plan, &part);
}

static weft_status add_entries(weft_foreign_plan *plan, const char *path, const uint8_t *memory,
                               size_t size) {
    weft_context *context = plan->context;
    weft_reader reader = weft_reader_over(memory, size);
    uint32_t header_bytes = weft_reader_u32(&reader);
    const uint8_t *header = weft_reader_bytes(&reader, header_bytes);
    if (header == NULL || header_bytes > weft_context_limits(context)->header_bytes) {
        return weft_fail(context, WEFT_TRUNCATED, "%s: its header is cut short, or too large", path);
    }
    uint64_t containers = 2 * weft_context_limits(context)->tensors + 16;
    weft_status status =
        weft_json_parse(context, path, (const char *)header, header_bytes, DEPTH, containers, &plan->json);
    if (status != WEFT_OK) {
        return status;
    }
    int64_t version = json_integer_value(json_object_get(plan->json, "version"));
    const json_t *tensors = json_object_get(plan->json, "tensors");
    if (version != VERSION_3 && version != VERSION_3_1) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s: version %lld of this format is not read", path,
                         (long long)version);
    }
    if (!json_is_array(tensors)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: its header does not list its tensors", path);
    }
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(tensors); i++) {
        status = add_entry(plan, path, json_array_get(tensors, i), version, reader.cursor,
                           weft_reader_left(&reader));
    }
    return status;
}

static weft_status grail_collect(const weft_foreign *foreign, const weft_foreign_version *version,
                                 weft_foreign_plan *plan) {
    (void)foreign;
    uint8_t *frame = NULL, *memory = NULL;
    size_t size = 0;
    weft_status status = weft_foreign_plan_file(plan, version->path, &frame, &size);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_foreign_plan_inflate(plan, version->path, frame, size, &memory, &size);
    weft_release(plan->context, frame);
    status = status == WEFT_OK ? weft_foreign_plan_keep(plan, memory) : status;
    return status == WEFT_OK ? add_entries(plan, version->path, memory, size) : status;
}

const weft_foreign_reader weft_foreign_grail = {
    .format = WEFT_FOREIGN_GRAIL,
    .name = "grail",
    .detect = grail_detect,
    .list = grail_list,
    .collect = grail_collect,
};
