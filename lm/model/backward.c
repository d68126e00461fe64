/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c: gradients back through the layers, slice by slice.
 */
#include "backward.h"

#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"

#include <math.h>
#include <string.h>

void lm_apply_backward(const lm_model *model, const lm_weight *weight, size_t rows, const float *doutput,
                       float *dinput, bool accumulate) {
    lm_product product = {
        .rows = rows,
        .columns = weight->columns,
        .depth = weight->rows,
        .a = doutput,
        .a_row = weight->rows,
        .a_step = 1,
        .b = weight->backward,
        .panel = weight->rows * LM_PANEL,
        .c = dinput,
        .c_row = weight->columns,
        .accumulate = accumulate,
    };
    lm_product_run(model->kernels, &product);
}

static void norm_rows_back(const lm_model *model, const lm_weight *gain, size_t rows, const float *input,
                           const float *scale, const float *doutput, float *dinput) {
    size_t width = model->config.width;
    for (size_t i = 0; i < rows; i++) {
        model->kernels->norm_back(input + i * width, model->values + gain->offset, scale[i],
                                  doutput + i * width, width, dinput + i * width);
    }
}

static void rotate_rows_back(const lm_model *model, float *rows, size_t heads, size_t length) {
    size_t head = lm_config_head(&model->config);
    for (size_t i = 0; i < length; i++) {
        for (size_t h = 0; h < heads; h++) {
            model->kernels->rotate(rows + (i * heads + h) * head, model->cosines + i * (head / 2),
                                   model->sines + i * (head / 2), -1, head / 2);
        }
    }
}

/* ---- attention, one head of one sequence ---- */

typedef struct head_back {
    const lm_pass *pass;
    const lm_layer_memory *layer;
    lm_scratch *scratch;
    size_t length;
    size_t query; /* offset of the head in query, attended and their gradients */
    size_t key;   /* ... in key, value and their gradients */
    const float *dattended;
    bool first; /* of the heads that share this key and value */
} head_back;

/* dscores from the gradient of what the head gave out; needs the packed values of the head. */
static void scores_back(const head_back *back) {
    const lm_config *config = &back->pass->model->config;
    const lm_kernels *kernels = back->pass->model->kernels;
    size_t head = lm_config_head(config);
    size_t length = back->length;
    float scale = 1.0f / sqrtf((float)head);
    for (size_t first = 0; first < length; first += LM_ATTENTION_ROWS) {
        size_t end = first + LM_ATTENTION_ROWS < length ? first + LM_ATTENTION_ROWS : length;
        float *dscores = back->scratch->dscores + first * length;
        lm_product product = {
            .rows = end - first,
            .columns = end,
            .depth = head,
            .a = back->dattended + first * config->width,
            .a_row = config->width,
            .a_step = 1,
            .b = back->scratch->values,
            .panel = head * LM_PANEL,
            .c = dscores,
            .c_row = length,
        };
        lm_product_run(kernels, &product);
        for (size_t i = first; i < end; i++, dscores += length) {
            kernels->softmax_back(back->scratch->scores + i * length, dscores, scale, i + 1);
            memset(dscores + i + 1, 0, (end - i - 1) * sizeof *dscores);
        }
    }
}

static void query_back(const head_back *back) {
    const lm_config *config = &back->pass->model->config;
    size_t length = back->length;
    size_t kv = lm_config_kv(config);
    size_t head = lm_config_head(config);
    lm_pack(back->layer->key + back->key, kv, 1, head, length, back->scratch->others);
    for (size_t first = 0; first < length; first += LM_ATTENTION_ROWS) {
        size_t end = first + LM_ATTENTION_ROWS < length ? first + LM_ATTENTION_ROWS : length;
        lm_product product = {
            .rows = end - first,
            .columns = head,
            .depth = end,
            .a = back->scratch->dscores + first * length,
            .a_row = length,
            .a_step = 1,
            .b = back->scratch->others,
            .panel = length * LM_PANEL,
            .c = back->layer->dquery + back->query + first * config->width,
            .c_row = config->width,
        };
        lm_product_run(back->pass->model->kernels, &product);
    }
}

/* output[j] (+)= sum over i of weights[i][j] * rows[i]: the gradient of keys from dscores and queries, and
 * of values from probabilities and dattended. Queries before a tile's first key do not see it. */
static void transposed_back(const head_back *back, const float *weights, const float *rows, float *output) {
    const lm_config *config = &back->pass->model->config;
    size_t length = back->length;
    size_t head = lm_config_head(config);
    lm_pack(rows, config->width, 1, head, length, back->scratch->others);
    for (size_t first = 0; first < length; first += LM_ATTENTION_ROWS) {
        size_t end = first + LM_ATTENTION_ROWS < length ? first + LM_ATTENTION_ROWS : length;
        lm_product product = {
            .rows = end - first,
            .columns = head,
            .depth = length - first,
            .a = weights + first * length + first,
            .a_row = 1,
            .a_step = length,
            .b = back->scratch->others + first * LM_PANEL,
            .panel = length * LM_PANEL,
            .c = output + first * lm_config_kv(config),
            .c_row = lm_config_kv(config),
            .accumulate = !back->first,
        };
        lm_product_run(back->pass->model->kernels, &product);
    }
}

static void head_backward(const head_back *back) {
    const lm_layer_memory *layer = back->layer;
    lm_attention_probabilities(back->pass, layer->query + back->query, back->length, back->scratch);
    scores_back(back);
    query_back(back);
    transposed_back(back, back->scratch->dscores, layer->query + back->query, layer->dkey + back->key);
    transposed_back(back, back->scratch->scores, back->dattended, layer->dvalue + back->key);
}

static void attend_back(const lm_pass *pass, const lm_layer_memory *layer, size_t row, size_t length,
                        const float *dattended, lm_scratch *scratch) {
    const lm_config *config = &pass->model->config;
    size_t head = lm_config_head(config);
    size_t kv = lm_config_kv(config);
    size_t group = config->heads / config->kv_heads;
    head_back back = {.pass = pass, .layer = layer, .scratch = scratch, .length = length};
    for (size_t g = 0; g < config->kv_heads; g++) {
        back.key = row * kv + g * head;
        lm_pack(layer->key + back.key, 1, kv, length, head, scratch->keys);
        lm_pack(layer->value + back.key, 1, kv, length, head, scratch->values);
        for (size_t h = g * group; h < (g + 1) * group; h++) {
            back.query = row * config->width + h * head;
            back.dattended = dattended + h * head;
            back.first = h == g * group;
            head_backward(&back);
        }
    }
}

/* ---- a layer ---- */

static void feed_forward_back(lm_pass *pass, size_t number, const lm_slice *slice) {
    const lm_model *model = pass->model;
    const lm_layer_memory *layer = &pass->layers[number];
    size_t width = model->config.width;
    size_t hidden = model->config.feed_forward;
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    float *dactivation = pass->scratch[slice->worker].dactivation;
    float *gate = layer->gate + row * hidden;
    float *up = layer->up + row * hidden;
    float *dnormed = layer->dmiddle_normed + row * width;
    float *dmiddle = layer->dmiddle + row * width;
    const float *doutput = layer->doutput + row * width;
    lm_apply_backward(model, lm_model_layer(model, number, LM_DOWN), rows, doutput, dactivation, false);
    model->kernels->swiglu_back(gate, up, dactivation, rows * hidden);
    lm_apply_backward(model, lm_model_layer(model, number, LM_GATE), rows, gate, dnormed, false);
    lm_apply_backward(model, lm_model_layer(model, number, LM_UP), rows, up, dnormed, true);
    memcpy(dmiddle, doutput, rows * width * sizeof *dmiddle);
    norm_rows_back(model, lm_model_layer(model, number, LM_POST_NORM), rows, layer->middle + row * width,
                   layer->middle_scale + row, dnormed, dmiddle);
}

static void attention_back(lm_pass *pass, size_t number, const lm_slice *slice, float *dinput) {
    const lm_model *model = pass->model;
    const lm_layer_memory *layer = &pass->layers[number];
    size_t width = model->config.width;
    size_t kv = lm_config_kv(&model->config);
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    lm_scratch *scratch = &pass->scratch[slice->worker];
    const float *dmiddle = layer->dmiddle + row * width;
    float *dnormed = layer->dnormed + row * width;
    lm_apply_backward(model, lm_model_layer(model, number, LM_ATTENTION_OUT), rows, dmiddle,
                      scratch->dattended, false);
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        size_t start = slice->batch->starts[s] - slice->origin;
        size_t length = lm_batch_length(slice->batch, s);
        attend_back(pass, layer, start, length, scratch->dattended + (start - row) * width, scratch);
        rotate_rows_back(model, layer->dquery + start * width, model->config.heads, length);
        rotate_rows_back(model, layer->dkey + start * kv, model->config.kv_heads, length);
    }
    lm_apply_backward(model, lm_model_layer(model, number, LM_QUERY), rows, layer->dquery + row * width,
                      dnormed, false);
    lm_apply_backward(model, lm_model_layer(model, number, LM_KEY), rows, layer->dkey + row * kv, dnormed,
                      true);
    lm_apply_backward(model, lm_model_layer(model, number, LM_VALUE), rows, layer->dvalue + row * kv,
                      dnormed, true);
    memcpy(dinput, dmiddle, rows * width * sizeof *dinput);
    norm_rows_back(model, lm_model_layer(model, number, LM_INPUT_NORM), rows, layer->input + row * width,
                   layer->input_scale + row, dnormed, dinput);
}

void lm_backward_slice(lm_pass *pass, const lm_slice *slice) {
    const lm_model *model = pass->model;
    size_t width = model->config.width;
    size_t layers = model->config.layers;
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    float *doutput = pass->layers[layers - 1].doutput + row * width;
    lm_apply_backward(model, lm_model_head(model), rows, pass->logits + row * model->config.vocabulary,
                      pass->dfinal_normed + row * width, false);
    memset(doutput, 0, rows * width * sizeof *doutput);
    norm_rows_back(model, lm_model_final_norm(model), rows, pass->layers[layers].input + row * width,
                   pass->final_scale + row, pass->dfinal_normed + row * width, doutput);
    for (size_t number = layers; number-- > 0;) {
        float *dinput = number > 0 ? pass->layers[number - 1].doutput : pass->dembedded;
        feed_forward_back(pass, number, slice);
        attention_back(pass, number, slice, dinput + row * width);
    }
}

/* ---- a batch ---- */

typedef struct gradient_run {
    lm_pass *pass;
    lm_slice chunk;
    size_t *slices;
    lm_slope_function slope;
    void *opaque;
    float *logp;
    float *slopes; /* by token of the batch */
} gradient_run;

/* From log-probabilities to the gradient of the logits. A sequence's last row predicts nothing. */
static void loss_back(const gradient_run *run, const lm_slice *slice) {
    const lm_model *model = run->pass->model;
    const lm_batch *batch = slice->batch;
    size_t vocabulary = model->config.vocabulary;
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        size_t start = batch->starts[s];
        size_t last = batch->starts[s + 1] - 1;
        run->slope(run->opaque, s, last + 1 - start, run->logp + start, run->slopes + start);
        float *row = run->pass->logits + (start - slice->origin) * vocabulary;
        for (size_t i = start; i < last; i++, row += vocabulary) {
            model->kernels->log_softmax_back(row, batch->tokens[i + 1], run->slopes[i + 1],
                                             1.0f / slice->temperature, vocabulary);
        }
        memset(row, 0, vocabulary * sizeof *row);
    }
}

static weft_status gradient_slice(void *argument, size_t index, unsigned worker) {
    gradient_run *run = argument;
    lm_slice slice = run->chunk;
    slice.first = run->slices[index];
    slice.sequences = run->slices[index + 1] - slice.first;
    slice.worker = worker;
    lm_forward_slice(run->pass, &slice);
    lm_slice_scores(run->pass, &slice, run->logp);
    loss_back(run, &slice);
    lm_backward_slice(run->pass, &slice);
    return WEFT_OK;
}

static weft_status run_chunks(gradient_run *run, const lm_batch *batch, float temperature,
                              float *gradient) {
    lm_pass *pass = run->pass;
    weft_status status = WEFT_OK;
    for (size_t first = 0, taken; first < batch->sequences && status == WEFT_OK; first += taken) {
        taken = lm_batch_take(batch, first, pass->capacity);
        run->chunk = (lm_slice){.batch = batch, .origin = batch->starts[first], .temperature = temperature};
        size_t count = lm_cut_slices(batch, first, taken, run->slices);
        status = weft_progress_ask(pass->model->context);
        if (status == WEFT_OK) {
            status = weft_parallel(pass->model->context, count, gradient_slice, run);
        }
        if (status == WEFT_OK) {
            status = lm_weight_gradients(pass, batch, first, taken, gradient);
        }
    }
    return status;
}

weft_status lm_gradient(lm_pass *pass, const lm_batch *batch, float temperature, lm_slope_function slope,
                        void *opaque, float *gradient, float *logp) {
    weft_context *context = pass->model->context;
    weft_status status = lm_check_temperature(pass->model, temperature);
    if (status == WEFT_OK) {
        status = lm_batch_check(pass->model, batch);
    }
    if (status == WEFT_OK && !pass->training) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "a pass that only scores cannot make gradients");
    }
    if (status != WEFT_OK) {
        return status;
    }
    gradient_run run = {.pass = pass, .slope = slope, .opaque = opaque, .logp = logp};
    run.slices = weft_allocate_array(context, batch->sequences + 1, sizeof *run.slices);
    run.slopes = weft_allocate_array(context, batch->starts[batch->sequences], sizeof *run.slopes);
    status = WEFT_NO_MEMORY;
    if (run.slices != NULL && run.slopes != NULL) {
        status = run_chunks(&run, batch, temperature, gradient);
    }
    weft_release(context, run.slopes);
    weft_release(context, run.slices);
    return status;
}
