/* SPDX-License-Identifier: Apache-2.0
 *
 * patches.c: see patches.h.
 */
#include "patches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tensor_shape mixed_shapes[MIXED_SHAPES] = {
    {"model.embed", WEFT_DTYPE_BF16, 1000, 96},    {"layer.0.up", WEFT_DTYPE_BF16, 96, 160},
    {"layer.0.down", WEFT_DTYPE_BF16, 160, 96},    {"layer.0.norm", WEFT_DTYPE_F32, 96, 0},
    {"layer.1.up", WEFT_DTYPE_F16, 96, 160},       {"layer.1.norm", WEFT_DTYPE_F32, 97, 37},
    {"layer.1.scale", WEFT_DTYPE_F8_E4M3, 77, 99}, {"step", WEFT_DTYPE_I64, 0, 0},
    {"layer.2.wide", WEFT_DTYPE_F64, 33, 77},      {"layer.2.bias", WEFT_DTYPE_BF16, 7, 0},
    {"layer.2.flag", WEFT_DTYPE_BOOL, 1, 0},       {"layer.2.packed", WEFT_DTYPE_F4, 32, 512},
};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "patches: %s failed\n", what);
        exit(99);
    }
}

size_t shape_units(const tensor_shape *shape) {
    uint64_t elements = (shape->rows == 0 ? 1 : shape->rows) * (shape->columns == 0 ? 1 : shape->columns);
    return (size_t)(elements * weft_dtype_bits(shape->dtype) / 8 / weft_dtype_width(shape->dtype));
}

static size_t shape_bytes(const tensor_shape *shape) {
    return shape_units(shape) * weft_dtype_width(shape->dtype);
}

void pair_open(pair *pair, weft_context *context, const tensor_shape *shapes, size_t count,
               weights_kind kind, uint64_t seed) {
    memset(pair, 0, sizeof *pair);
    pair->context = context;
    pair->shapes = shapes;
    pair->count = count;
    dice dice = {seed};
    model_open(&pair->live, context);
    model_open(&pair->next, context);
    for (size_t i = 0; i < count; i++) {
        const tensor_shape *s = &shapes[i];
        pair->memory[i] = model_add(&pair->live, s->name, s->dtype, s->rows, s->columns);
        pair->news[i] = model_add(&pair->next, s->name, s->dtype, s->rows, s->columns);
        weights_fill(&dice, kind, s->dtype, pair->memory[i], shape_units(s));
        pair->olds[i] = malloc(shape_bytes(s) + 1);
        require(pair->olds[i] != NULL, "malloc");
        memcpy(pair->olds[i], pair->memory[i], shape_bytes(s));
        memcpy(pair->news[i], pair->memory[i], shape_bytes(s));
    }
    model_show(&pair->live);
    model_show(&pair->next);
}

void pair_close(pair *pair) {
    weft_patch_close(pair->patch);
    bytes_clear(&pair->file);
    model_close(&pair->live);
    model_close(&pair->next);
    for (size_t i = 0; i < pair->count; i++) {
        free(pair->olds[i]);
    }
}

void pair_change(pair *pair, change_kind kind, unsigned per_million, uint64_t seed) {
    dice dice = {seed};
    for (size_t i = 0; i < pair->count; i++) {
        const tensor_shape *s = &pair->shapes[i];
        weights_change(&dice, kind, weft_dtype_width(s->dtype), pair->news[i], shape_units(s), per_million);
    }
}

void pair_train(pair *pair, unsigned per_million, uint64_t seed) {
    dice dice = {seed};
    for (size_t i = 0; i < pair->count; i++) {
        const tensor_shape *s = &pair->shapes[i];
        unsigned width = weft_dtype_width(s->dtype);
        if (s->dtype == WEFT_DTYPE_BF16 || s->dtype == WEFT_DTYPE_F16) {
            weights_train(&dice, s->dtype, pair->news[i], shape_units(s), per_million);
        } else {
            weights_change(&dice, CHANGE_ULP, width, pair->news[i], shape_units(s), per_million);
        }
    }
}

void pair_diff(pair *pair, const weft_diff_options *options) {
    weft_patch_close(pair->patch);
    pair->patch = NULL;
    pair->stats.size = sizeof pair->stats;
    pair->file.size = 0;
    weft_sink sink = bytes_sink(&pair->file);
    weft_status status =
        weft_diff(pair->context, pair->live.view, pair->next.view, options, &sink, &pair->stats);
    require(status == WEFT_OK, weft_context_error(pair->context));
    pair->patch = patches_open(pair->context, &pair->file);
}

static bool same(const pair *pair, uint8_t *const *expected) {
    for (size_t i = 0; i < pair->count; i++) {
        if (memcmp(pair->memory[i], expected[i], shape_bytes(&pair->shapes[i])) != 0) {
            return false;
        }
    }
    return true;
}

bool pair_at_old(const pair *pair) {
    return same(pair, pair->olds);
}

bool pair_at_new(const pair *pair) {
    return same(pair, pair->news);
}

void pair_reset(pair *pair) {
    for (size_t i = 0; i < pair->count; i++) {
        memcpy(pair->memory[i], pair->olds[i], shape_bytes(&pair->shapes[i]));
    }
}

weft_context *patches_context(unsigned threads) {
    weft_context_options options = {.size = sizeof options, .threads = threads};
    weft_context *context = NULL;
    require(weft_context_create(&options, &context) == WEFT_OK, "weft_context_create");
    return context;
}

weft_patch *patches_open(weft_context *context, const bytes *file) {
    weft_source source = bytes_source(file);
    weft_patch *patch = NULL;
    require(weft_patch_open(context, &source, &patch) == WEFT_OK, weft_context_error(context));
    return patch;
}

weft_sums *patches_sums(weft_context *context, const weft_view *view) {
    weft_sums *sums = NULL;
    require(weft_sums_compute(context, view, &sums) == WEFT_OK, weft_context_error(context));
    return sums;
}
