/* SPDX-License-Identifier: Apache-2.0
 *
 * changes.c: change lists: their memory and their order.
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

/* ---- in order of position, by radix sort ---- */

static bool changes_ascend(const weft_changes *changes) {
    for (size_t i = 1; i < changes->count; i++) {
        if (changes->positions[i] < changes->positions[i - 1]) {
            return false;
        }
    }
    return true;
}

/* Sorts by the upper half, a digit at a time; digits that all keys share cost one look. */
static void changes_sort_keys(uint64_t *keys, uint64_t *scratch, size_t count) {
    enum { DIGIT = 11, DIGITS = 1 << DIGIT };
    for (unsigned shift = 32; shift < 64; shift += DIGIT) {
        size_t places[DIGITS] = {0};
        for (size_t i = 0; i < count; i++) {
            places[keys[i] >> shift & (DIGITS - 1)]++;
        }
        if (places[keys[0] >> shift & (DIGITS - 1)] == count) {
            continue;
        }
        size_t place = 0;
        for (size_t i = 0; i < DIGITS; i++) {
            size_t next = place + places[i];
            places[i] = place;
            place = next;
        }
        for (size_t i = 0; i < count; i++) {
            scratch[places[keys[i] >> shift & (DIGITS - 1)]++] = keys[i];
        }
        memcpy(keys, scratch, count * sizeof *keys);
    }
}

weft_status weft_changes_sort(weft_changes *changes) {
    weft_context *context = changes->context;
    if (changes_ascend(changes)) {
        return WEFT_OK;
    }
    unsigned width = changes->width;
    uint64_t *keys = weft_allocate_array(context, changes->count, 2 * sizeof *keys);
    uint8_t *values = weft_allocate_array(context, changes->count, 2 * (size_t)width);
    weft_status status = keys == NULL || values == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        uint8_t *news = values + changes->count * width;
        for (size_t i = 0; i < changes->count; i++) {
            keys[i] = (uint64_t)changes->positions[i] << 32 | i;
        }
        changes_sort_keys(keys, keys + changes->count, changes->count);
        memcpy(values, changes->olds, changes->count * width);
        memcpy(news, changes->news, changes->count * width);
        for (size_t i = 0; i < changes->count; i++) {
            size_t from = (uint32_t)keys[i];
            changes->positions[i] = (uint32_t)(keys[i] >> 32);
            weft_unit_store(changes->olds, i, width, weft_unit_load(values, from, width));
            weft_unit_store(changes->news, i, width, weft_unit_load(news, from, width));
        }
    }
    weft_release(context, keys);
    weft_release(context, values);
    return status;
}

size_t weft_changes_before(const weft_changes *changes, size_t from, uint64_t limit) {
    size_t low = from;
    size_t high = changes->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (changes->positions[middle] < limit) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
