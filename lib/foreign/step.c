/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c: lists of changes that grow, within limits.stage_bytes; and reading the base.
 */
#include "step.h"

#include "../base/context.h"
#include "../tensor/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

weft_status weft_foreign_step_create(weft_context *context, weft_foreign_step **step_out) {
    weft_context_clear(context);
    weft_foreign_step *step = weft_allocate_zeroed(context, 1, sizeof *step);
    if (step == NULL) {
        return WEFT_NO_MEMORY;
    }
    step->context = context;
    *step_out = step;
    return WEFT_OK;
}

static void list_close(weft_context *context, weft_change_list *list) {
    weft_release(context, list->name);
    weft_release(context, list->units);
    weft_release(context, list->values);
}

void weft_foreign_step_destroy(weft_foreign_step *step) {
    if (step == NULL) {
        return;
    }
    for (size_t i = 0; i < step->count; i++) {
        list_close(step->context, &step->lists[i]);
    }
    for (size_t i = 0; i < step->label_count; i++) {
        weft_release(step->context, step->labels[i]);
    }
    weft_release(step->context, step->lists);
    weft_release(step->context, step->changes);
    weft_release(step->context, step);
}

weft_status weft_step_resize(weft_foreign_step *step, size_t count) {
    if (count > step->capacity) {
        size_t capacity = count > 2 * step->capacity ? count : 2 * step->capacity;
        weft_change_list *lists =
            weft_reallocate_array(step->context, step->lists, capacity, sizeof *step->lists);
        if (lists == NULL) {
            return WEFT_NO_MEMORY;
        }
        step->lists = lists;
        step->capacity = capacity;
    }
    if (count > step->count) {
        memset(step->lists + step->count, 0, (count - step->count) * sizeof *step->lists);
    }
    step->count = count;
    return WEFT_OK;
}

weft_status weft_list_reserve(weft_foreign_step *step, weft_change_list *list, uint64_t more) {
    if (more <= list->capacity - list->count) {
        return WEFT_OK;
    }
    /* no more than is asked for at first: of a model of experts most tensors are small */
    uint64_t capacity = 2 * list->capacity > list->count + more ? 2 * list->capacity : list->count + more;
    uint64_t each = sizeof *list->units + list->width;
    uint64_t limit = weft_context_limits(step->context)->stage_bytes;
    uint64_t added = (capacity - list->capacity) * each;
    if (atomic_fetch_add(&step->bytes, added) + added > limit) {
        return weft_fail(step->context, WEFT_LIMIT_EXCEEDED,
                         "the changes of a version take more than %llu bytes of memory, %llu for each; "
                         "raise limits.stage_bytes, or give the new state as a checkpoint",
                         (unsigned long long)limit, (unsigned long long)each);
    }
    uint64_t *units = weft_reallocate_array(step->context, list->units, (size_t)capacity, sizeof *units);
    if (units == NULL) {
        return WEFT_NO_MEMORY;
    }
    list->units = units;
    uint8_t *values = weft_reallocate_array(step->context, list->values, (size_t)capacity, list->width);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    list->values = values;
    list->capacity = capacity;
    return WEFT_OK;
}

void weft_step_empty(weft_foreign_step *step) {
    for (size_t i = 0; i < step->count; i++) {
        step->lists[i].count = 0;
    }
    weft_step_settle(step);
    weft_release(step->context, step->lists);
    weft_release(step->context, step->changes);
    step->lists = NULL;
    step->changes = NULL;
    step->capacity = 0;
    step->bytes = 0;
}

void weft_step_settle(weft_foreign_step *step) {
    size_t kept = 0;
    for (size_t i = 0; i < step->count; i++) {
        if (step->lists[i].count > 0) {
            step->lists[kept++] = step->lists[i];
        } else {
            list_close(step->context, &step->lists[i]);
        }
    }
    step->count = kept;
}

weft_status weft_foreign_step_add(void *opaque, const weft_change_batch *batch) {
    weft_foreign_step *step = opaque;
    weft_change_list *list = step->count > 0 ? &step->lists[step->count - 1] : NULL;
    if (list == NULL || strcmp(list->name, batch->tensor->name) != 0) {
        weft_status status = weft_step_resize(step, step->count + 1);
        if (status != WEFT_OK) {
            return status;
        }
        list = &step->lists[step->count - 1];
        list->width = weft_dtype_width(batch->tensor->dtype);
        list->name = weft_copy_text(step->context, batch->tensor->name, strlen(batch->tensor->name));
        if (list->name == NULL) {
            step->count--;
            return WEFT_NO_MEMORY;
        }
    }
    weft_status status = weft_list_reserve(step, list, batch->count);
    if (status == WEFT_OK) {
        memcpy(list->units + list->count, batch->units, batch->count * sizeof *list->units);
        memcpy(list->values + list->count * list->width, batch->news, batch->count * list->width);
        list->count += batch->count;
    }
    return status;
}

const weft_tensor_changes *weft_foreign_step_changes(const weft_foreign_step *step, size_t *count_out) {
    /* what is shown is no part of what the step says */
    weft_foreign_step *own = (weft_foreign_step *)(uintptr_t)step;
    *count_out = 0;
    weft_tensor_changes *changes =
        weft_reallocate_array(step->context, step->changes, step->count + 1, sizeof *changes);
    if (changes == NULL) {
        return NULL;
    }
    own->changes = changes;
    for (size_t i = 0; i < step->count; i++) {
        const weft_change_list *list = &step->lists[i];
        changes[i] = (weft_tensor_changes){list->name, list->units, list->values, list->count};
    }
    *count_out = step->count;
    return changes;
}

/* ---- lists of one tensor ---- */

/* A change, for sorting. */
typedef struct piece_change {
    uint64_t unit;
    const uint8_t *value;
} piece_change;

static int compare_pieces(const void *a, const void *b) {
    uint64_t left = ((const piece_change *)a)->unit, right = ((const piece_change *)b)->unit;
    return (left > right) - (left < right);
}

/* Joins the lists from `first` up to `end`, all of one tensor, into the first. */
static weft_status join_lists(weft_foreign_step *step, size_t first, size_t end) {
    weft_context *context = step->context;
    weft_change_list *into = &step->lists[first], joined = {.name = into->name, .width = into->width};
    uint64_t count = 0;
    for (size_t i = first; i < end; i++) {
        count += step->lists[i].count;
    }
    piece_change *changes = weft_allocate_array(context, (size_t)count + 1, sizeof *changes);
    weft_status status = changes != NULL ? weft_list_reserve(step, &joined, count + 1) : WEFT_NO_MEMORY;
    for (size_t i = first, place = 0; i < end && status == WEFT_OK; i++) {
        const weft_change_list *list = &step->lists[i];
        for (uint64_t j = 0; j < list->count; j++) {
            changes[place++] = (piece_change){list->units[j], list->values + j * list->width};
        }
    }
    if (status == WEFT_OK) {
        qsort(changes, (size_t)count, sizeof *changes, compare_pieces);
    }
    for (uint64_t i = 0; i < count && status == WEFT_OK; i++) {
        if (i > 0 && changes[i].unit == changes[i - 1].unit) {
            status =
                weft_fail(context, WEFT_MALFORMED, "two parts of a delta change the same unit of \"%.*s\"",
                          WEFT_NAME_SHOWN, into->name);
            break;
        }
        joined.units[i] = changes[i].unit;
        memcpy(joined.values + i * joined.width, changes[i].value, joined.width);
        joined.count++;
    }
    weft_release(context, changes);
    if (status != WEFT_OK) {
        weft_release(context, joined.units);
        weft_release(context, joined.values);
        return status;
    }
    weft_release(context, into->units);
    weft_release(context, into->values);
    *into = joined;
    for (size_t i = first + 1; i < end; i++) {
        step->lists[i].count = 0;
    }
    return WEFT_OK;
}

static int compare_lists(const void *a, const void *b) {
    return strcmp(((const weft_change_list *)a)->name, ((const weft_change_list *)b)->name);
}

weft_status weft_step_join(weft_foreign_step *step) {
    weft_status status = WEFT_OK;
    if (step->count > 0) {
        qsort(step->lists, step->count, sizeof *step->lists, compare_lists);
    }
    for (size_t first = 0, end; first < step->count && status == WEFT_OK; first = end) {
        for (end = first + 1;
             end < step->count && compare_lists(&step->lists[first], &step->lists[end]) == 0;) {
            end++;
        }
        status = end > first + 1 ? join_lists(step, first, end) : WEFT_OK;
    }
    return status;
}

/* ---- labels ---- */

weft_status weft_step_label(weft_foreign_step *step, const char *key, const char *value) {
    if (step->label_count + 2 > 2 * WEFT_STEP_LABELS) {
        return weft_fail(step->context, WEFT_LIMIT_EXCEEDED, "a version has too many labels");
    }
    char *own_key = weft_copy_text(step->context, key, strlen(key));
    char *own_value = own_key != NULL ? weft_copy_text(step->context, value, strlen(value)) : NULL;
    if (own_value == NULL) {
        weft_release(step->context, own_key);
        return WEFT_NO_MEMORY;
    }
    step->labels[step->label_count++] = own_key;
    step->labels[step->label_count++] = own_value;
    return WEFT_OK;
}

weft_status weft_step_label_number(weft_foreign_step *step, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return weft_step_label(step, key, text);
}

const char *const *weft_foreign_step_labels(const weft_foreign_step *step) {
    return (const char *const *)step->labels;
}

/* ---- the base ---- */

void weft_base_reader_open(weft_base_reader *reader, weft_context *context, const weft_view *view) {
    *reader = (weft_base_reader){.context = context, .view = view, .segments = {.context = context}};
}

void weft_base_reader_close(weft_base_reader *reader) {
    if (reader->context != NULL) {
        weft_segments_close(&reader->segments);
        weft_release(reader->context, reader->scratch);
    }
}

static weft_status copy_segments(weft_base_reader *reader, unsigned width, size_t size) {
    if (reader->capacity < size) {
        weft_release(reader->context, reader->scratch);
        reader->scratch = weft_allocate(reader->context, size);
        reader->capacity = reader->scratch != NULL ? size : 0;
        if (reader->scratch == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    for (size_t i = 0; i < reader->segments.count; i++) {
        const weft_segment *segment = &reader->segments.items[i];
        for (uint64_t done = 0; done < segment->units;) {
            uint64_t units = weft_segment_left(segment, done);
            weft_status status =
                weft_segment_read(reader->context, segment, done, units,
                                  reader->scratch + weft_segment_linear(segment, done) * width);
            if (status != WEFT_OK) {
                return status;
            }
            done += units;
        }
    }
    return WEFT_OK;
}

weft_status weft_base_read(weft_base_reader *reader, size_t tensor, uint64_t offset, size_t size,
                           const uint8_t **bytes_out) {
    const weft_tensor *described = weft_view_at(reader->view, tensor);
    unsigned width = weft_dtype_width(described->dtype);
    const weft_span span = {.start = offset / width, .run = size / width, .count = 1};
    weft_holding holding = WEFT_HELD_NONE;
    reader->segments.count = 0;
    weft_status status = weft_view_map(reader->view, tensor, &span, 0, &reader->segments, &holding);
    if (status != WEFT_OK) {
        return status;
    }
    if (holding != WEFT_HELD_ALL) {
        return weft_fail(reader->context, WEFT_INVALID_ARGUMENT,
                         "the base does not hold all of tensor \"%.*s\"", WEFT_NAME_SHOWN, described->name);
    }
    const weft_segment *first = &reader->segments.items[0];
    if (reader->segments.count == 1 && first->row == 0 && first->live->storage == described->dtype) {
        *bytes_out = weft_segment_memory(first);
        if (*bytes_out != NULL) {
            return WEFT_OK;
        }
    }
    status = copy_segments(reader, width, size);
    *bytes_out = reader->scratch;
    return status;
}
