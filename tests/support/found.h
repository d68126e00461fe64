/* SPDX-License-Identifier: Apache-2.0
 *
 * found.h: what has changed between two states, found the slow way, as somebody hands it over who knew it
 * without comparing: lists of units and values, with units among them that have not changed. Every call
 * ends the test program with a message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_FOUND_H
#define WEFT_TESTS_FOUND_H

#include "models.h"

typedef struct found {
    weft_tensor_changes lists[MODEL_TENSORS_MAX];
    size_t count;
} found;

/* Adds the list of one tensor. Each unit that has not changed is among them with a chance of `per_million`
 * in a million. A tensor without any has no list, or an empty one. */
void found_add(found *found, dice *dice, const char *name, unsigned width, const void *old, const void *new,
               size_t units, unsigned per_million);
/* The lists of all tensors of the views, whose memory is plain; FP32 masters of the new state are cast. */
void found_between(found *found, dice *dice, const weft_view *old, const weft_view *new,
                   unsigned per_million);
void found_clear(found *found);

#endif
