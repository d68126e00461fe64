/* SPDX-License-Identifier: Apache-2.0
 *
 * changes.c: memory of change lists.
 */
#include "changes.h"

#include "../../code/tile.h"

void weft_changes_open(weft_changes *changes, weft_context *context) {
    *changes = (weft_changes){.context = context};
}

void weft_changes_close(weft_changes *changes) {
    weft_release(changes->context, changes->positions);
    weft_release(changes->context, changes->olds);
    weft_release(changes->context, changes->news);
    weft_changes_open(changes, changes->context);
}

static weft_status resize(weft_changes *changes, size_t capacity) {
    size_t entries = capacity + WEFT_KERNEL_SLACK;
    uint32_t *positions =
        weft_reallocate_array(changes->context, changes->positions, entries, sizeof *positions);
    if (positions == NULL) {
        return WEFT_NO_MEMORY;
    }
    changes->positions = positions;
    void *olds = weft_reallocate_array(changes->context, changes->olds, entries, changes->width);
    if (olds == NULL) {
        return WEFT_NO_MEMORY;
    }
    changes->olds = olds;
    void *news = weft_reallocate_array(changes->context, changes->news, entries, changes->width);
    if (news == NULL) {
        return WEFT_NO_MEMORY;
    }
    changes->news = news;
    changes->capacity = capacity;
    return WEFT_OK;
}

weft_status weft_changes_reset(weft_changes *changes, unsigned width, size_t capacity) {
    changes->count = 0;
    if (changes->positions != NULL && changes->width == width && changes->capacity >= capacity) {
        return WEFT_OK;
    }
    changes->width = width;
    changes->capacity = 0;
    return resize(changes, capacity);
}

weft_status weft_changes_grow(weft_changes *changes, size_t more) {
    if (more <= changes->capacity - changes->count) {
        return WEFT_OK;
    }
    return resize(changes, changes->count + more + changes->capacity / 2);
}

uint64_t weft_changes_bytes(uint64_t capacity, unsigned width) {
    return (capacity + WEFT_KERNEL_SLACK) * (sizeof(uint32_t) + 2 * (uint64_t)width);
}
