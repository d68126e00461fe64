/* SPDX-License-Identifier: Apache-2.0
 *
 * models.c: see models.h.
 */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "models: %s failed\n", what);
        exit(99);
    }
}

/* splitmix64 */
uint64_t dice_next(dice *dice) {
    uint64_t x = dice->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t dice_below(dice *dice, uint64_t limit) {
    return dice_next(dice) % limit;
}

void dice_fill(dice *dice, void *data, size_t bytes) {
    uint8_t *output = data;
    while (bytes > 0) {
        uint64_t value = dice_next(dice);
        size_t part = bytes < sizeof value ? bytes : sizeof value;
        memcpy(output, &value, part);
        output += part;
        bytes -= part;
    }
}

enum { TOP_F16 = 14, TOP_BF16 = 122 /* exponents of the largest octave */ };

/* The magnitude halves with each coin that comes up heads, as the tail of a trained layer does. */
static uint16_t trained_weight(dice *dice, weft_dtype dtype) {
    uint64_t bits = dice_next(dice);
    unsigned octaves = (unsigned)__builtin_ctzll(bits >> 20 | (uint64_t)1 << 12);
    unsigned top = dtype == WEFT_DTYPE_F16 ? TOP_F16 : TOP_BF16;
    unsigned shift = dtype == WEFT_DTYPE_F16 ? 10 : 7;
    unsigned mantissa = (unsigned)bits & ((1u << shift) - 1);
    return (uint16_t)((top - octaves) << shift | mantissa | (bits >> 12 & 1) << 15);
}

void weights_fill(dice *dice, weights_kind kind, weft_dtype dtype, void *data, size_t units) {
    bool exponent = dtype == WEFT_DTYPE_BF16 || dtype == WEFT_DTYPE_F16;
    if (kind == WEIGHTS_RANDOM || !exponent) {
        dice_fill(dice, data, units * weft_dtype_width(dtype));
        return;
    }
    for (size_t i = 0; i < units; i++) {
        uint16_t weight = trained_weight(dice, dtype);
        if (kind == WEIGHTS_ONE_OCTAVE) {
            weight = (uint16_t)(0x3c00 | (dice_next(dice) & 0x807f));
        }
        memcpy((uint8_t *)data + 2 * i, &weight, sizeof weight);
    }
}

static uint64_t random_step(dice *dice, change_kind kind, unsigned width) {
    uint64_t top = (uint64_t)1 << (8 * width - 1);
    uint64_t far = dice_next(dice);
    if (kind == CHANGE_MIXED && far % 10 == 0) {
        const uint64_t steps[] = {top, top - 1, top + 1, 2, 0 - (uint64_t)2, 300, 15, 17, 0 - (uint64_t)16};
        return steps[far / 10 % 9];
    }
    if (kind == CHANGE_RANDOM || (kind == CHANGE_MIXED && far % 10 == 1)) {
        return dice_next(dice);
    }
    return far / 10 % 2 == 0 ? 1 : 0 - (uint64_t)1;
}

void weights_change_one(dice *dice, change_kind kind, unsigned width, void *data, size_t index) {
    uint8_t *place = (uint8_t *)data + index * width;
    uint64_t value = 0;
    memcpy(&value, place, width);
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint64_t step;
    do {
        step = random_step(dice, kind, width) & mask;
    } while (step == 0);
    value += step;
    memcpy(place, &value, width);
}

size_t weights_change(dice *dice, change_kind kind, unsigned width, void *data, size_t units,
                      unsigned per_million) {
    size_t changed = 0;
    for (size_t i = 0; i < units; i++) {
        if (dice_below(dice, 1000000) < per_million) {
            weights_change_one(dice, kind, width, data, i);
            changed++;
        }
    }
    return changed;
}

size_t weights_train(dice *dice, weft_dtype dtype, void *data, size_t units, unsigned per_million) {
    unsigned top = dtype == WEFT_DTYPE_F16 ? TOP_F16 : TOP_BF16;
    unsigned shift = dtype == WEFT_DTYPE_F16 ? 10 : 7;
    size_t changed = 0;
    for (size_t i = 0; i < units; i++) {
        uint16_t weight;
        memcpy(&weight, (uint8_t *)data + 2 * i, sizeof weight);
        unsigned exponent = (weight & 0x7fffu) >> shift;
        unsigned octaves = exponent < top ? top - exponent : 0;
        if (dice_below(dice, 1000000) < (uint64_t)per_million << (octaves < 20 ? octaves : 20)) {
            weights_change_one(dice, CHANGE_ULP, 2, data, i);
            changed++;
        }
    }
    return changed;
}

void model_open(model *model, weft_context *context) {
    memset(model, 0, sizeof *model);
    model->context = context;
    require(weft_table_create(context, &model->table) == WEFT_OK, "weft_table_create");
}

void model_close(model *model) {
    weft_view_destroy(model->view);
    weft_table_destroy(model->table);
    for (size_t i = 0; i < model->block_count; i++) {
        free(model->blocks[i]);
    }
}

static void *add_block(model *model, size_t bytes) {
    require(model->block_count < MODEL_TENSORS_MAX, "room for another tensor");
    void *block = calloc(bytes > 0 ? bytes : 1, 1);
    require(block != NULL, "calloc");
    model->blocks[model->block_count++] = block;
    return block;
}

static void *add_tensor(model *model, weft_tensor *tensor, uint64_t rows, uint64_t columns) {
    tensor->rank = rows == 0 ? 0 : columns == 0 ? 1 : 2;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns;
    uint64_t elements = (rows == 0 ? 1 : rows) * (columns == 0 ? 1 : columns);
    weft_dtype held = tensor->storage != 0 ? tensor->storage : tensor->dtype;
    tensor->data = add_block(model, (size_t)(elements * weft_dtype_bits(held) / 8));
    tensor->writable = true;
    require(weft_table_add(model->table, tensor) == WEFT_OK, "weft_table_add");
    return tensor->data;
}

void *model_add(model *model, const char *name, weft_dtype dtype, uint64_t rows, uint64_t columns) {
    weft_tensor tensor = {.size = sizeof tensor, .name = name, .dtype = dtype};
    return add_tensor(model, &tensor, rows, columns);
}

float *model_add_masters(model *model, const char *name, uint64_t rows, uint64_t columns) {
    weft_tensor tensor = {
        .size = sizeof tensor, .name = name, .dtype = WEFT_DTYPE_BF16, .storage = WEFT_DTYPE_F32};
    return add_tensor(model, &tensor, rows, columns);
}

const weft_view *model_show(model *model) {
    require(weft_view_create(model->context, model->table, &model->view) == WEFT_OK, "weft_view_create");
    return model->view;
}

static weft_status append(void *opaque, const void *data, size_t size) {
    bytes *bytes = opaque;
    if (size > bytes->capacity - bytes->size) {
        bytes->capacity = 2 * bytes->capacity + size;
        bytes->data = realloc(bytes->data, bytes->capacity);
        require(bytes->data != NULL, "realloc");
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    return WEFT_OK;
}

weft_sink bytes_sink(bytes *bytes) {
    return (weft_sink){append, bytes};
}

void bytes_clear(bytes *bytes) {
    free(bytes->data);
    memset(bytes, 0, sizeof *bytes);
}

weft_source bytes_source(const bytes *bytes) {
    return (weft_source){.memory = bytes->data, .size = bytes->size};
}
