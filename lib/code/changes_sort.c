/* SPDX-License-Identifier: Apache-2.0
 *
 * changes_sort.c: change lists in order of position, by radix sort.
 */
#include "changes.h"

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
