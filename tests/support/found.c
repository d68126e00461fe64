/* SPDX-License-Identifier: Apache-2.0
 *
 * found.c: change lists by comparing unit by unit.
 */
#include "found.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *require(void *memory) {
    if (memory == NULL) {
        fprintf(stderr, "found: no memory\n");
        exit(99);
    }
    return memory;
}

void found_add(found *found, dice *dice, const char *name, unsigned width, const void *old, const void *new,
               size_t units, unsigned per_million) {
    uint64_t *places = require(malloc((units + 1) * sizeof *places));
    uint8_t *values = require(malloc((units + 1) * width));
    uint64_t count = 0;
    for (size_t i = 0; i < units; i++) {
        const uint8_t *value = (const uint8_t *)new + i *width;
        bool changed = memcmp((const uint8_t *)old + i * width, value, width) != 0;
        if (changed || dice_below(dice, 1000000) < per_million) {
            places[count] = i;
            memcpy(values + count * width, value, width);
            count++;
        }
    }
    /* a list that ends where its memory ends, so that reading on is seen */
    uint64_t *exact_places = require(malloc((size_t)count * sizeof *places + 1));
    uint8_t *exact_values = require(malloc((size_t)count * width + 1));
    memcpy(exact_places, places, (size_t)count * sizeof *places);
    memcpy(exact_values, values, (size_t)count * width);
    free(places);
    free(values);
    if (count == 0 && dice_below(dice, 2) == 0) {
        free(exact_places);
        free(exact_values);
        return;
    }
    found->lists[found->count++] = (weft_tensor_changes){name, exact_places, exact_values, count};
}

void found_between(found *found, dice *dice, const weft_view *old, const weft_view *new,
                   unsigned per_million) {
    for (size_t i = 0; i < weft_view_count(new); i++) {
        const weft_tensor *tensor = weft_view_at(new, i);
        size_t units = (size_t)weft_tensor_units(tensor);
        uint16_t *cast = NULL;
        if (tensor->storage != tensor->dtype) {
            cast = require(malloc(units * sizeof *cast + 1));
            weft_bf16_from_f32(tensor->data, cast, units);
        }
        found_add(found, dice, tensor->name, weft_dtype_width(tensor->dtype), weft_view_at(old, i)->data,
                  cast != NULL ? cast : tensor->data, units, per_million);
        free(cast);
    }
}

void found_clear(found *found) {
    for (size_t i = 0; i < found->count; i++) {
        free((void *)(uintptr_t)found->lists[i].units);
        free((void *)(uintptr_t)found->lists[i].values);
    }
    found->count = 0;
}
