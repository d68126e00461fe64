/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c: see decode.h.
 */
#include "decode.h"

#include "../../lib/base/context.h"
#include "pass.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static_assert((int)WEFT_KV_PANEL == (int)LM_STRIP, "products read the caches as they lie");

weft_kv_shape lm_cache_shape(const lm_config *config) {
    return (weft_kv_shape){.head = lm_config_head(config), .group = config->heads / config->kv_heads};
}

/* ---- attention ---- */

/* The query heads that share one key head. */
static void attend_heads(const lm_decoder *decoder, const weft_kv_view *view, const float *query,
                         float *attended) {
    const lm_kernels *kernels = decoder->model->kernels;
    weft_kv_shape shape = lm_cache_shape(&decoder->model->config);
    lm_strip_product product = {
        .rows = shape.group,
        .columns = view->rows,
        .depth = shape.head,
        .a = query,
        .a_row = shape.head,
        .b = view->keys,
        .strip = shape.head * LM_STRIP,
        .step = LM_STRIP,
        .c = decoder->scores,
        .c_row = decoder->longest,
    };
    kernels->strips(&product);
    for (size_t h = 0; h < shape.group; h++) {
        kernels->softmax(decoder->scores + h * decoder->longest, 1.0f / sqrtf((float)shape.head),
                         view->rows);
    }
    product = (lm_strip_product){
        .rows = shape.group,
        .columns = shape.head,
        .depth = view->rows,
        .a = decoder->scores,
        .a_row = decoder->longest,
        .b = view->values,
        .strip = LM_STRIP,
        .step = (shape.head + LM_STRIP - 1) / LM_STRIP * LM_STRIP,
        .c = attended,
        .c_row = shape.head,
    };
    kernels->strips(&product);
}

/* One row, in one layer. */
static weft_status attend_row(const lm_decoder *decoder, const lm_decode_row *row, size_t number,
                              size_t layer) {
    const lm_model *model = decoder->model;
    const lm_config *config = &model->config;
    weft_kv_shape shape = lm_cache_shape(config);
    size_t half = shape.head / 2;
    const float *cosines = model->cosines + row->position * half;
    const float *sines = model->sines + row->position * half;
    float *query = decoder->query + number * config->width;
    weft_status status = WEFT_OK;
    for (size_t h = 0; h < config->heads; h++) {
        model->kernels->rotate(query + h * shape.head, cosines, sines, 1, half);
    }
    for (size_t g = 0; g < config->kv_heads && status == WEFT_OK; g++) {
        weft_kv_cache *cache = row->caches[layer * config->kv_heads + g];
        float *key = decoder->key + number * lm_config_kv(config) + g * shape.head;
        const float *value = decoder->value + number * lm_config_kv(config) + g * shape.head;
        const float *queries = query + g * shape.group * shape.head;
        model->kernels->rotate(key, cosines, sines, 1, half);
        status = weft_kv_cache_append(cache, row->position, key, value);
        if (status == WEFT_OK) {
            weft_kv_view view = weft_kv_cache_view(cache);
            attend_heads(decoder, &view, queries,
                         decoder->attended + number * config->width + g * shape.group * shape.head);
            status = weft_kv_cache_observe(cache, queries, decoder->scores, decoder->longest);
        }
    }
    return status;
}

/* ---- layers ---- */

static void norm_rows(const lm_decoder *decoder, const lm_weight *gain, size_t count) {
    const lm_model *model = decoder->model;
    size_t width = model->config.width;
    for (size_t i = 0; i < count; i++) {
        model->kernels->norm(decoder->x + i * width, model->values + gain->offset,
                             (float)model->config.norm_epsilon, width, decoder->normed + i * width);
    }
}

static void feed_forward(const lm_decoder *decoder, size_t count, size_t layer) {
    const lm_model *model = decoder->model;
    norm_rows(decoder, lm_model_layer(model, layer, LM_POST_NORM), count);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_GATE), count, decoder->normed, decoder->gate,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_UP), count, decoder->normed, decoder->up,
                     false);
    model->kernels->swiglu(decoder->gate, decoder->up, count * model->config.feed_forward, decoder->gate);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_DOWN), count, decoder->gate, decoder->x, true);
}

static weft_status run_layer(const lm_decoder *decoder, const lm_decode_row *rows, size_t count,
                             size_t layer) {
    const lm_model *model = decoder->model;
    weft_status status = WEFT_OK;
    norm_rows(decoder, lm_model_layer(model, layer, LM_INPUT_NORM), count);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_QUERY), count, decoder->normed, decoder->query,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_KEY), count, decoder->normed, decoder->key,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_VALUE), count, decoder->normed, decoder->value,
                     false);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = attend_row(decoder, &rows[i], i, layer);
    }
    if (status == WEFT_OK) {
        lm_apply_forward(model, lm_model_layer(model, layer, LM_ATTENTION_OUT), count, decoder->attended,
                         decoder->x, true);
        feed_forward(decoder, count, layer);
    }
    return status;
}

weft_status lm_decode(lm_decoder *decoder, const lm_decode_row *rows, size_t count) {
    const lm_model *model = decoder->model;
    size_t width = model->config.width;
    const float *embedding = model->values + lm_model_embedding(model)->offset;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count; i++) {
        memcpy(decoder->x + i * width, embedding + rows[i].token * width, width * sizeof *decoder->x);
    }
    for (size_t layer = 0; layer < model->config.layers && status == WEFT_OK; layer++) {
        status = run_layer(decoder, rows, count, layer);
    }
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = weft_kv_caches_choose(rows[i].caches, lm_cache_count(&model->config));
    }
    if (status == WEFT_OK) {
        norm_rows(decoder, lm_model_final_norm(model), count);
        lm_apply_forward(model, lm_model_head(model), count, decoder->normed, decoder->logits, false);
    }
    return status;
}

/* ---- memory ---- */

weft_status lm_decoder_open(const lm_model *model, size_t rows, size_t longest, lm_decoder *decoder) {
    const lm_config *config = &model->config;
    size_t sizes[] = {
        rows * config->width,
        rows * config->width,
        rows * config->width,
        rows * lm_config_kv(config),
        rows * lm_config_kv(config),
        rows * config->width,
        longest * (config->heads / config->kv_heads),
        rows * config->feed_forward,
        rows * config->feed_forward,
        rows * config->vocabulary,
    };
    float **pieces[] = {
        &decoder->x,        &decoder->normed, &decoder->query, &decoder->key, &decoder->value,
        &decoder->attended, &decoder->scores, &decoder->gate,  &decoder->up,  &decoder->logits,
    };
    size_t all = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        all += sizes[i];
    }
    float *memory = weft_allocate_zeroed(model->context, all, sizeof *memory);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *pieces[i] = memory;
        memory += sizes[i];
    }
    decoder->model = model;
    decoder->longest = longest;
    return WEFT_OK;
}

void lm_decoder_close(lm_decoder *decoder) {
    if (decoder->model != NULL) {
        weft_release(decoder->model->context, decoder->x);
    }
}
