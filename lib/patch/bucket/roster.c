/* SPDX-License-Identifier: Apache-2.0
 *
 * roster.c: building, writing and reading the list of a patch's tensors.
 */
#include "roster.h"

#include "../../tensor/table.h"

#include <string.h>

void weft_roster_open(weft_roster *roster, weft_context *context) {
    *roster = (weft_roster){.context = context};
}

void weft_roster_close(weft_roster *roster) {
    for (size_t i = 0; i < roster->count; i++) {
        weft_release(roster->context, (char *)(uintptr_t)roster->entries[i].tensor.name);
    }
    weft_release(roster->context, roster->entries);
    weft_roster_open(roster, roster->context);
}

static weft_status add_entry(weft_roster *roster, const weft_tensor *tensor, const char *name,
                             size_t length, weft_fate fate) {
    if (roster->count == roster->capacity) {
        size_t capacity = 2 * roster->capacity + 64;
        weft_roster_entry *entries =
            weft_reallocate_array(roster->context, roster->entries, capacity, sizeof *entries);
        if (entries == NULL) {
            return WEFT_NO_MEMORY;
        }
        roster->entries = entries;
        roster->capacity = capacity;
    }
    char *copy = weft_copy_text(roster->context, name, length);
    if (copy == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_roster_entry *entry = &roster->entries[roster->count++];
    entry->fate = fate;
    entry->tensor = (weft_tensor){
        .size = sizeof(weft_tensor),
        .name = copy,
        .dtype = tensor->dtype,
        .storage = tensor->dtype,
        .rank = tensor->rank,
        .bytes = tensor->bytes,
        .tied_to = -1,
    };
    memcpy(entry->tensor.shape, tensor->shape, sizeof tensor->shape);
    return WEFT_OK;
}

weft_status weft_roster_build(weft_roster *roster, const weft_view *base, const weft_view *next) {
    size_t i = 0;
    size_t j = 0;
    while (i < weft_view_count(base) || j < weft_view_count(next)) {
        const weft_tensor *before = i < weft_view_count(base) ? weft_view_at(base, i) : NULL;
        const weft_tensor *after = j < weft_view_count(next) ? weft_view_at(next, j) : NULL;
        int order = before == NULL ? 1 : after == NULL ? -1 : strcmp(before->name, after->name);
        weft_fate fate = order < 0                          ? WEFT_FATE_REMOVED
                         : order > 0                        ? WEFT_FATE_ADDED
                         : weft_tensor_alike(before, after) ? WEFT_FATE_KEPT
                                                            : WEFT_FATE_REPLACED;
        const weft_tensor *tensor = order < 0 ? before : after;
        weft_status status = add_entry(roster, tensor, tensor->name, strlen(tensor->name), fate);
        if (status != WEFT_OK) {
            return status;
        }
        i += order <= 0;
        j += order >= 0;
    }
    return WEFT_OK;
}

void weft_roster_write(const weft_roster *roster, weft_writer *writer) {
    weft_writer_varint(writer, roster->count);
    for (size_t i = 0; i < roster->count; i++) {
        const weft_roster_entry *entry = &roster->entries[i];
        size_t length = strlen(entry->tensor.name);
        weft_writer_varint(writer, length);
        weft_writer_bytes(writer, entry->tensor.name, length);
        weft_writer_u8(writer, (uint8_t)entry->fate);
        weft_writer_u8(writer, (uint8_t)entry->tensor.dtype);
        weft_writer_u8(writer, (uint8_t)entry->tensor.rank);
        for (uint32_t d = 0; d < entry->tensor.rank; d++) {
            weft_writer_varint(writer, entry->tensor.shape[d]);
        }
    }
}

static weft_status read_entry(weft_roster *roster, weft_reader *reader) {
    weft_context *context = roster->context;
    uint64_t length = weft_reader_varint(reader);
    if (weft_reader_failed(reader) || length > WEFT_NAME_MAX) {
        return weft_fail(context, WEFT_MALFORMED, "the patch's header ends inside of a tensor's name");
    }
    const char *name = (const char *)weft_reader_bytes(reader, (size_t)length);
    uint8_t fate = weft_reader_u8(reader);
    weft_tensor tensor = {
        .size = sizeof tensor, .dtype = (weft_dtype)weft_reader_u8(reader), .rank = weft_reader_u8(reader)};
    if (weft_reader_failed(reader) || memchr(name, 0, (size_t)length) != NULL ||
        !weft_text_is_utf8(name, (size_t)length) || fate > WEFT_FATE_REPLACED ||
        weft_dtype_name(tensor.dtype) == NULL || tensor.rank > WEFT_RANK_MAX) {
        return weft_fail(context, WEFT_MALFORMED,
                         "the patch's header describes tensor %zu in a way that "
                         "no writer does",
                         roster->count);
    }
    for (uint32_t d = 0; d < tensor.rank; d++) {
        tensor.shape[d] = weft_reader_varint(reader);
    }
    if (weft_reader_failed(reader)) {
        return weft_fail(context, WEFT_MALFORMED, "the patch's header ends inside of a tensor's shape");
    }
    char *text = weft_copy_text(context, name, (size_t)length);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    tensor.name = text;
    weft_status status =
        weft_tensor_measure(context, WEFT_MALFORMED, "the patch's header", &tensor, &tensor.bytes);
    weft_release(context, text);
    if (status != WEFT_OK) {
        return status;
    }
    status = add_entry(roster, &tensor, name, (size_t)length, (weft_fate)fate);
    if (status != WEFT_OK) {
        return status;
    }
    size_t n = roster->count;
    if (n > 1 && strcmp(roster->entries[n - 2].tensor.name, roster->entries[n - 1].tensor.name) >= 0) {
        return weft_fail(context, WEFT_MALFORMED, "the patch's header names tensor %s out of order",
                         roster->entries[n - 1].tensor.name);
    }
    return WEFT_OK;
}

weft_status weft_roster_read(weft_roster *roster, weft_reader *reader) {
    uint64_t count = weft_reader_varint(reader);
    if (weft_reader_failed(reader)) {
        return weft_fail(roster->context, WEFT_MALFORMED, "the patch's header does not count its tensors");
    }
    if (count > weft_context_limits(roster->context)->tensors) {
        return weft_fail(roster->context, WEFT_LIMIT_EXCEEDED,
                         "the patch lists more tensors than the limit");
    }
    for (uint64_t i = 0; i < count; i++) {
        weft_status status = read_entry(roster, reader);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_roster weft_roster_with(const weft_roster *roster, weft_context *context) {
    weft_roster here = *roster;
    here.context = context;
    return here;
}

bool weft_roster_plain(const weft_roster *roster) {
    for (size_t i = 0; i < roster->count; i++) {
        if (roster->entries[i].fate != WEFT_FATE_KEPT) {
            return false;
        }
    }
    return true;
}

weft_status weft_roster_map(const weft_roster *roster, const weft_view *view, int64_t **map_out) {
    int64_t *map = weft_allocate_array(roster->context, roster->count, sizeof *map);
    if (map == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < roster->count; i++) {
        map[i] = weft_view_find(view, roster->entries[i].tensor.name);
    }
    *map_out = map;
    return WEFT_OK;
}
