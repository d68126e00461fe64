/* SPDX-License-Identifier: Apache-2.0
 *
 * changes.h: the absolute changes of one bucket: where, what was there, what will be.
 *
 * Positions count units along the bucket (its spans one after the other). They are distinct and go from
 * run to run of the bucket; where a list says so, they ascend. Values are `width` bytes each. Arrays have
 * WEFT_KERNEL_SLACK entries of room past the capacity.
 */
#ifndef WEFT_PATCH_BUCKET_CHANGES_H
#define WEFT_PATCH_BUCKET_CHANGES_H

#include "../../base/context.h"

#include <string.h>

typedef struct weft_changes {
    weft_context *context;
    unsigned width;
    size_t count;
    size_t capacity;
    uint32_t *positions;
    void *olds;
    void *news;
} weft_changes;

void weft_changes_open(weft_changes *changes, weft_context *context);
void weft_changes_close(weft_changes *changes);
/* Empties the list and makes room for `capacity` changes of `width` bytes. */
weft_status weft_changes_reset(weft_changes *changes, unsigned width, size_t capacity);
/* Makes room for `more` changes beyond `count`. */
weft_status weft_changes_grow(weft_changes *changes, size_t more);
/* Puts the changes in the order of their positions. */
weft_status weft_changes_sort(weft_changes *changes);
/* The first index from `from` on whose position is at or past `limit`. Where positions do not ascend,
 * `limit` is the end of a run. */
size_t weft_changes_before(const weft_changes *changes, size_t from, uint64_t limit);
/* The memory that a list takes that has room for `capacity` changes. */
uint64_t weft_changes_bytes(uint64_t capacity, unsigned width);

/* The unit at `index` of an array of units of `width` bytes. With a constant width these are single
 * instructions, which is why hot loops are inline functions called with literal widths. */
static inline uint64_t weft_unit_load(const void *units, size_t index, unsigned width) {
    const uint8_t *unit = (const uint8_t *)units + index * width;
    uint64_t value = 0;
    switch (width) {
    case 1:
        return *unit;
    case 2:
        memcpy(&value, unit, 2);
        return value;
    case 4:
        memcpy(&value, unit, 4);
        return value;
    default:
        memcpy(&value, unit, 8);
        return value;
    }
}

static inline void weft_unit_store(void *units, size_t index, unsigned width, uint64_t value) {
    uint8_t *unit = (uint8_t *)units + index * width;
    switch (width) {
    case 1:
        *unit = (uint8_t)value;
        break;
    case 2:
        memcpy(unit, &value, 2);
        break;
    case 4:
        memcpy(unit, &value, 4);
        break;
    default:
        memcpy(unit, &value, 8);
        break;
    }
}

#endif
