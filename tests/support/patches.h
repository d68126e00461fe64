/* SPDX-License-Identifier: Apache-2.0
 *
 * patches.h: a model in two states and the patch between them. Every call ends the test program with a
 * message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_PATCHES_H
#define WEFT_TESTS_PATCHES_H

#include "models.h"

typedef struct tensor_shape {
    const char *name;
    weft_dtype dtype;
    uint64_t rows, columns; /* as for model_add */
} tensor_shape;

/* Tensors of every width, larger than a bucket and smaller than a word, in an order that is not that of
 * their names. */
extern const tensor_shape mixed_shapes[];
enum { MIXED_SHAPES = 12 };

size_t shape_units(const tensor_shape *shape);

/* `live` is the model that patches are applied to; what it held at first stays in `olds`. */
typedef struct pair {
    weft_context *context;
    const tensor_shape *shapes;
    size_t count;
    model live;
    model next;
    uint8_t *memory[MODEL_TENSORS_MAX]; /* of `live` */
    uint8_t *news[MODEL_TENSORS_MAX];   /* of `next` */
    uint8_t *olds[MODEL_TENSORS_MAX];
    bytes file;
    weft_patch *patch;
    weft_diff_stats stats;
} pair;

/* Both states alike, filled as `kind` says. */
void pair_open(pair *pair, weft_context *context, const tensor_shape *shapes, size_t count,
               weights_kind kind, uint64_t seed);
void pair_close(pair *pair);
/* Changes `next` in every tensor. */
void pair_change(pair *pair, change_kind kind, unsigned per_million, uint64_t seed);
/* The same as weights_train does it, where the weights have two bytes. */
void pair_train(pair *pair, unsigned per_million, uint64_t seed);
/* Makes the patch from `live` to `next`, and opens it; closes the one before. */
void pair_diff(pair *pair, const weft_diff_options *options);
/* True if `live` holds what it held at first, or what `next` holds. */
bool pair_at_old(const pair *pair);
bool pair_at_new(const pair *pair);
/* Puts the first state back. */
void pair_reset(pair *pair);

weft_context *patches_context(unsigned threads);
weft_patch *patches_open(weft_context *context, const bytes *file);
weft_sums *patches_sums(weft_context *context, const weft_view *view);

#endif
