/* SPDX-License-Identifier: Apache-2.0
 *
 * models.h: random weights, changes to them, and small models of named tensors, all of them the same in
 * every run. Every call ends the test program with a message if the surroundings fail it.
 */
#ifndef WEFT_TESTS_MODELS_H
#define WEFT_TESTS_MODELS_H

#include <weft/patch.h>

/* A source of numbers that depends on its seed only. */
typedef struct dice {
    uint64_t state;
} dice;

uint64_t dice_next(dice *dice);
/* Below `limit`, which is not 0. */
uint64_t dice_below(dice *dice, uint64_t limit);
void dice_fill(dice *dice, void *data, size_t bytes);

/* How weights look. */
typedef enum weights_kind {
    WEIGHTS_RANDOM,     /* any bytes: every exponent, infinities, NaNs */
    WEIGHTS_TRAINED,    /* exponents spread as in a trained model, for two-byte types; else random */
    WEIGHTS_ONE_OCTAVE, /* one exponent, any mantissa */
} weights_kind;

void weights_fill(dice *dice, weights_kind kind, weft_dtype dtype, void *data, size_t units);

/* How weights change. */
typedef enum change_kind {
    CHANGE_ULP,    /* up or down by one */
    CHANGE_MIXED,  /* mostly by one, sometimes far: sign flips, the farthest step, random bytes */
    CHANGE_RANDOM, /* to any other bytes */
} change_kind;

/* Changes each unit with a chance of `per_million` in a million and returns how many it changed. */
size_t weights_change(dice *dice, change_kind kind, unsigned width, void *data, size_t units,
                      unsigned per_million);
/* Changes one unit and leaves the others alone. */
void weights_change_one(dice *dice, change_kind kind, unsigned width, void *data, size_t index);

/* Changes weights of two bytes as training does, by one, the likelier the smaller they are: one in a
 * million of the largest octave of WEIGHTS_TRAINED for each of `per_million`, and twice as many of each
 * below. */
size_t weights_train(dice *dice, weft_dtype dtype, void *data, size_t units, unsigned per_million);

/* Tensors with memory of their own. */
enum { MODEL_TENSORS_MAX = 64 };

typedef struct model {
    weft_context *context;
    weft_table *table;
    weft_view *view; /* set by model_show */
    void *blocks[MODEL_TENSORS_MAX];
    size_t block_count;
} model;

void model_open(model *model, weft_context *context);
void model_close(model *model);
/* Adds a tensor and returns its memory, which holds zeros and ends where its block ends. A dimension of 0
 * ends the shape. */
void *model_add(model *model, const char *name, weft_dtype dtype, uint64_t rows, uint64_t columns);
/* The same for a BF16 tensor that is held as F32 masters. */
float *model_add_masters(model *model, const char *name, uint64_t rows, uint64_t columns);
/* Makes the view; tensors can no longer be added. */
const weft_view *model_show(model *model);

/* A growing block of bytes, as a sink. */
typedef struct bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
} bytes;

weft_sink bytes_sink(bytes *bytes);
void bytes_clear(bytes *bytes);
weft_source bytes_source(const bytes *bytes);

#endif
