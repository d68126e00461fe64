/* SPDX-License-Identifier: Apache-2.0
 *
 * seen.c: prepared changes, as they are visited.
 */
#include "seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const void *seen_bytes(const weft_tensor *tensor,
                              const void *(*read)(void *opaque, const weft_tensor *tensor), void *opaque) {
    return read != NULL ? read(opaque, tensor) : tensor->data;
}

void seen_open(seen *seen, const weft_table *table,
               const void *(*read)(void *opaque, const weft_tensor *tensor), void *opaque) {
    *seen = (struct seen){.table = table};
    for (size_t i = 0; i < weft_table_count(table); i++) {
        const weft_tensor *tensor = weft_table_at(table, i);
        size_t bytes = (size_t)tensor->bytes;
        seen->olds[i] = malloc(bytes + 1);
        seen->news[i] = malloc(bytes + 1);
        if (i == SEEN_MAX || seen->olds[i] == NULL || seen->news[i] == NULL) {
            fprintf(stderr, "seen: no room\n");
            exit(99);
        }
        if (bytes > 0) {
            memcpy(seen->olds[i], seen_bytes(tensor, read, opaque), bytes);
            memcpy(seen->news[i], seen->olds[i], bytes);
        }
    }
}

void seen_close(seen *seen) {
    for (size_t i = 0; i < weft_table_count(seen->table); i++) {
        free(seen->olds[i]);
        free(seen->news[i]);
    }
}

static const char *seen_fault(const seen *seen, const weft_change_batch *batch) {
    if (batch->count == 0 || (seen->most != 0 && batch->count > seen->most)) {
        return "a batch is empty or too large";
    }
    if (batch->index >= weft_table_count(seen->table)) {
        return "a tensor is not in the table";
    }
    const weft_tensor *tensor = weft_table_at(seen->table, batch->index);
    if (strcmp(tensor->name, batch->tensor->name) != 0 || tensor->dtype != batch->tensor->dtype ||
        tensor->bytes != batch->tensor->bytes || tensor->data != batch->tensor->data) {
        return "a tensor is another than that of the table";
    }
    if (seen->any && batch->index < seen->tensor) {
        return "tensors do not come in their order";
    }
    unsigned width = weft_dtype_width(tensor->dtype);
    for (size_t i = 0; i < batch->count; i++) {
        bool first = i == 0 && !(seen->any && batch->index == seen->tensor);
        uint64_t before = i > 0 ? batch->units[i - 1] : seen->unit;
        if (batch->units[i] >= weft_tensor_units(tensor) || (!first && batch->units[i] <= before)) {
            return "units do not ascend";
        }
        const uint8_t *old = (const uint8_t *)batch->olds + i * width;
        if (memcmp(seen->olds[batch->index] + batch->units[i] * width, old, width) != 0) {
            return "an old value is not what the tensor holds";
        }
        if (memcmp(old, (const uint8_t *)batch->news + i * width, width) == 0) {
            return "a change changes nothing";
        }
    }
    return NULL;
}

weft_status seen_visit(void *opaque, const weft_change_batch *batch) {
    seen *seen = opaque;
    const char *fault = seen_fault(seen, batch);
    if (fault != NULL) {
        seen->wrong = seen->wrong != NULL ? seen->wrong : fault;
        return WEFT_OK;
    }
    unsigned width = weft_dtype_width(batch->tensor->dtype);
    for (size_t i = 0; i < batch->count; i++) {
        memcpy(seen->news[batch->index] + batch->units[i] * width, (const uint8_t *)batch->news + i * width,
               width);
    }
    seen->tensor = batch->index;
    seen->unit = batch->units[batch->count - 1];
    seen->any = true;
    seen->changed += batch->count;
    seen->batches++;
    return WEFT_OK;
}

bool seen_holds(const seen *seen, const void *(*read)(void *opaque, const weft_tensor *tensor),
                void *opaque) {
    if (seen->wrong != NULL) {
        fprintf(stderr, "seen: %s\n", seen->wrong);
        return false;
    }
    for (size_t i = 0; i < weft_table_count(seen->table); i++) {
        const weft_tensor *tensor = weft_table_at(seen->table, i);
        if (tensor->bytes > 0 && tensor->tied_to < 0 &&
            memcmp(seen_bytes(tensor, read, opaque), seen->news[i], (size_t)tensor->bytes) != 0) {
            fprintf(stderr, "seen: tensor %s is not what the changes said\n", tensor->name);
            return false;
        }
    }
    return true;
}
