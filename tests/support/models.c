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

/* Where the exponent lies in the two bytes of a weight that are on top, and that of the largest octave. */
typedef struct float_form {
    unsigned shift;
    unsigned top;
} float_form;

static float_form form_of(weft_dtype dtype) {
    switch (dtype) {
    case WEFT_DTYPE_F16:
        return (float_form){10, 14};
    case WEFT_DTYPE_F8_E5M2:
        return (float_form){10, 14};
    case WEFT_DTYPE_F8_E4M3:
        return (float_form){11, 14};
    case WEFT_DTYPE_BF16:
    case WEFT_DTYPE_F32:
        return (float_form){7, 122};
    default:
        return (float_form){0, 0};
    }
}

/* The magnitude halves with each coin that comes up heads, as the tail of a trained layer does. */
static uint16_t trained_weight(dice *dice, float_form form) {
    uint64_t bits = dice_next(dice);
    unsigned octaves = (unsigned)__builtin_ctzll(bits >> 20 | (uint64_t)1 << 12);
    unsigned mantissa = (unsigned)bits & ((1u << form.shift) - 1);
    return (uint16_t)((form.top - octaves) << form.shift | mantissa | (bits >> 12 & 1) << 15);
}

void weights_fill(dice *dice, weights_kind kind, weft_dtype dtype, void *data, size_t units) {
    unsigned width = weft_dtype_width(dtype);
    float_form form = form_of(dtype);
    if (kind == WEIGHTS_RANDOM || form.top == 0) {
        dice_fill(dice, data, units * width);
        return;
    }
    for (size_t i = 0; i < units; i++) {
        uint16_t word = trained_weight(dice, form);
        if (kind == WEIGHTS_ONE_OCTAVE) {
            word = (uint16_t)(0x3c00 | (dice_next(dice) & 0x807f));
        }
        uint32_t weight = width == 1   ? word >> 8
                          : width == 4 ? (uint32_t)word << 16 | (uint32_t)dice_below(dice, 1 << 16)
                                       : word;
        memcpy((uint8_t *)data + width * i, &weight, width);
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
    unsigned top = form_of(dtype).top;
    unsigned shift = form_of(dtype).shift;
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
