/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: sequences through the layers.
 */
#include "pass.h"

#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"

#include <math.h>
#include <string.h>

void lm_apply(const lm_model *model, const float *panels, size_t rows, size_t columns, size_t depth,
              const float *input, float *output, bool accumulate) {
    lm_product product = {
        .rows = rows,
        .columns = columns,
        .depth = depth,
        .a = input,
        .a_row = depth,
        .a_step = 1,
        .b = panels,
        .panel = depth * LM_PANEL,
        .c = output,
        .c_row = columns,
        .accumulate = accumulate,
    };
    lm_product_run(model->kernels, &product);
}

void lm_apply_forward(const lm_model *model, const lm_weight *weight, size_t rows, const float *input,
                      float *output, bool accumulate) {
    lm_apply(model, weight->forward, rows, weight->rows, weight->columns, input, output, accumulate);
}

static void norm_rows(const lm_model *model, const lm_weight *gain, size_t rows, const float *input,
                      float *scale, float *output) {
    size_t width = model->config.width;
    for (size_t i = 0; i < rows; i++) {
        scale[i] = model->kernels->norm(input + i * width, model->values + gain->offset,
                                        (float)model->config.norm_epsilon, width, output + i * width);
    }
}

static void embed(const lm_pass *pass, const lm_slice *slice) {
    size_t width = pass->model->config.width;
    size_t row = lm_slice_row(slice);
    const lm_token *tokens = slice->batch->tokens + slice->origin + row;
    const float *embedding = pass->model->values + lm_model_embedding(pass->model)->offset;
    float *x = pass->layers[0].input + row * width;
    for (size_t i = 0; i < lm_slice_rows(slice); i++) {
        memcpy(x + i * width, embedding + tokens[i] * width, width * sizeof *x);
    }
}

void lm_rotate_rows(const lm_model *model, float *rows, size_t heads, size_t length, float direction) {
    size_t head = lm_config_head(&model->config);
    for (size_t i = 0; i < length; i++) {
        for (size_t h = 0; h < heads; h++) {
            model->kernels->rotate(rows + (i * heads + h) * head, model->cosines + i * (head / 2),
                                   model->sines + i * (head / 2), direction, head / 2);
        }
    }
}

void lm_attention_probabilities(const lm_pass *pass, const float *query, size_t length,
                                lm_scratch *scratch) {
    const lm_config *config = &pass->model->config;
    const lm_kernels *kernels = pass->model->kernels;
    size_t head = lm_config_head(config);
    float scale = 1.0f / sqrtf((float)head);
    for (size_t first = 0; first < length; first += LM_ATTENTION_ROWS) {
        size_t end = first + LM_ATTENTION_ROWS < length ? first + LM_ATTENTION_ROWS : length;
        float *scores = scratch->scores + first * length;
        lm_product product = {
            .rows = end - first,
            .columns = end,
            .depth = head,
            .a = query + first * config->width,
            .a_row = config->width,
            .a_step = 1,
            .b = scratch->keys,
            .panel = head * LM_PANEL,
            .c = scores,
            .c_row = length,
        };
        lm_product_run(kernels, &product);
        for (size_t i = first; i < end; i++, scores += length) {
            kernels->softmax(scores, scale, i + 1);
            memset(scores + i + 1, 0, (end - i - 1) * sizeof *scores);
        }
    }
}

static void weigh_values(const lm_pass *pass, size_t length, const lm_scratch *scratch, float *attended) {
    const lm_config *config = &pass->model->config;
    for (size_t first = 0; first < length; first += LM_ATTENTION_ROWS) {
        size_t end = first + LM_ATTENTION_ROWS < length ? first + LM_ATTENTION_ROWS : length;
        lm_product product = {
            .rows = end - first,
            .columns = lm_config_head(config),
            .depth = end,
            .a = scratch->scores + first * length,
            .a_row = length,
            .a_step = 1,
            .b = scratch->values,
            .panel = length * LM_PANEL,
            .c = attended + first * config->width,
            .c_row = config->width,
        };
        lm_product_run(pass->model->kernels, &product);
    }
}

static void attend(const lm_pass *pass, const lm_layer_memory *layer, size_t row, size_t length,
                   lm_scratch *scratch) {
    const lm_config *config = &pass->model->config;
    size_t head = lm_config_head(config);
    size_t kv = lm_config_kv(config);
    size_t group = config->heads / config->kv_heads;
    for (size_t g = 0; g < config->kv_heads; g++) {
        lm_pack(layer->key + row * kv + g * head, 1, kv, length, head, scratch->keys);
        lm_pack(layer->value + row * kv + g * head, kv, 1, head, length, scratch->values);
        for (size_t h = g * group; h < (g + 1) * group; h++) {
            lm_attention_probabilities(pass, layer->query + row * config->width + h * head, length,
                                       scratch);
            weigh_values(pass, length, scratch, layer->attended + row * config->width + h * head);
        }
    }
}

static void attention_half(const lm_pass *pass, size_t number, const lm_slice *slice) {
    const lm_model *model = pass->model;
    const lm_layer_memory *layer = &pass->layers[number];
    size_t width = model->config.width;
    size_t kv = lm_config_kv(&model->config);
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    norm_rows(model, lm_model_layer(model, number, LM_INPUT_NORM), rows, layer->input + row * width,
              layer->input_scale + row, layer->normed + row * width);
    const float *normed = layer->normed + row * width;
    lm_apply_forward(model, lm_model_layer(model, number, LM_QUERY), rows, normed,
                     layer->query + row * width, false);
    lm_apply_forward(model, lm_model_layer(model, number, LM_KEY), rows, normed, layer->key + row * kv,
                     false);
    lm_apply_forward(model, lm_model_layer(model, number, LM_VALUE), rows, normed, layer->value + row * kv,
                     false);
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        size_t start = slice->batch->starts[s] - slice->origin;
        size_t length = lm_batch_length(slice->batch, s);
        lm_rotate_rows(model, layer->query + start * width, model->config.heads, length, 1);
        lm_rotate_rows(model, layer->key + start * kv, model->config.kv_heads, length, 1);
        attend(pass, layer, start, length, &pass->scratch[slice->worker]);
    }
    memcpy(layer->middle + row * width, layer->input + row * width, rows * width * sizeof(float));
    lm_apply_forward(model, lm_model_layer(model, number, LM_ATTENTION_OUT), rows,
                     layer->attended + row * width, layer->middle + row * width, true);
}

static void feed_forward_half(const lm_pass *pass, size_t number, const lm_slice *slice) {
    const lm_model *model = pass->model;
    const lm_layer_memory *layer = &pass->layers[number];
    size_t width = model->config.width;
    size_t hidden = model->config.feed_forward;
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    norm_rows(model, lm_model_layer(model, number, LM_POST_NORM), rows, layer->middle + row * width,
              layer->middle_scale + row, layer->middle_normed + row * width);
    const float *normed = layer->middle_normed + row * width;
    lm_apply_forward(model, lm_model_layer(model, number, LM_GATE), rows, normed,
                     layer->gate + row * hidden, false);
    lm_apply_forward(model, lm_model_layer(model, number, LM_UP), rows, normed, layer->up + row * hidden,
                     false);
    model->kernels->swiglu(layer->gate + row * hidden, layer->up + row * hidden, rows * hidden,
                           layer->activation + row * hidden);
    float *output = pass->layers[number + 1].input + row * width;
    memcpy(output, layer->middle + row * width, rows * width * sizeof(float));
    lm_apply_forward(model, lm_model_layer(model, number, LM_DOWN), rows, layer->activation + row * hidden,
                     output, true);
}

static void score_rows(const lm_pass *pass, const lm_slice *slice) {
    const lm_model *model = pass->model;
    size_t width = model->config.width;
    size_t vocabulary = model->config.vocabulary;
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    norm_rows(model, lm_model_final_norm(model), rows,
              pass->layers[model->config.layers].input + row * width, pass->final_scale + row,
              pass->final_normed + row * width);
    lm_apply_forward(model, lm_model_head(model), rows, pass->final_normed + row * width,
                     pass->logits + row * vocabulary, false);
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        float *logits = pass->logits + (slice->batch->starts[s] - slice->origin) * vocabulary;
        for (size_t i = 0; i + 1 < lm_batch_length(slice->batch, s); i++, logits += vocabulary) {
            model->kernels->log_softmax(logits, 1.0f / slice->temperature, vocabulary);
        }
    }
}

void lm_forward_slice(lm_pass *pass, const lm_slice *slice) {
    embed(pass, slice);
    for (size_t number = 0; number < pass->model->config.layers; number++) {
        attention_half(pass, number, slice);
        feed_forward_half(pass, number, slice);
    }
    score_rows(pass, slice);
}
