/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c: gradients back through the layers, slice by slice; and whole batches there, or there and
 * back.
 */
#include "pass.h"

#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"

#include <math.h>
#include <string.h>

static void apply_backward(const lm_model *model, const lm_weight *weight, size_t rows,
                           const float *doutput, float *dinput, bool accumulate) {
    lm_apply(model, weight->backward, rows, weight->columns, weight->rows, doutput, dinput, accumulate);
}

static void norm_rows_back(const lm_model *model, const lm_weight *gain, size_t rows, const float *input,
                           const float *scale, const float *doutput, float *dinput) {
    size_t width = model->config.width;
    for (size_t i = 0; i < rows; i++) {
        model->kernels->norm_back(input + i * width, model->values + gain->offset, scale[i],
                                  doutput + i * width, width, dinput + i * width);
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
    apply_backward(model, lm_model_layer(model, number, LM_DOWN), rows, doutput, dactivation, false);
    model->kernels->swiglu_back(gate, up, dactivation, rows * hidden);
    apply_backward(model, lm_model_layer(model, number, LM_GATE), rows, gate, dnormed, false);
    apply_backward(model, lm_model_layer(model, number, LM_UP), rows, up, dnormed, true);
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
    apply_backward(model, lm_model_layer(model, number, LM_ATTENTION_OUT), rows, dmiddle,
                   scratch->dattended, false);
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        size_t start = slice->batch->starts[s] - slice->origin;
        size_t length = lm_batch_length(slice->batch, s);
        attend_back(pass, layer, start, length, scratch->dattended + (start - row) * width, scratch);
        lm_rotate_rows(model, layer->dquery + start * width, model->config.heads, length, -1);
        lm_rotate_rows(model, layer->dkey + start * kv, model->config.kv_heads, length, -1);
    }
    apply_backward(model, lm_model_layer(model, number, LM_QUERY), rows, layer->dquery + row * width,
                   dnormed, false);
    apply_backward(model, lm_model_layer(model, number, LM_KEY), rows, layer->dkey + row * kv, dnormed,
                   true);
    apply_backward(model, lm_model_layer(model, number, LM_VALUE), rows, layer->dvalue + row * kv, dnormed,
                   true);
    memcpy(dinput, dmiddle, rows * width * sizeof *dinput);
    norm_rows_back(model, lm_model_layer(model, number, LM_INPUT_NORM), rows, layer->input + row * width,
                   layer->input_scale + row, dnormed, dinput);
}

/* Rows of pass->logits hold the gradient of the logits. */
static void backward_slice(lm_pass *pass, const lm_slice *slice) {
    const lm_model *model = pass->model;
    size_t width = model->config.width;
    size_t layers = model->config.layers;
    size_t row = lm_slice_row(slice);
    size_t rows = lm_slice_rows(slice);
    float *doutput = pass->layers[layers - 1].doutput + row * width;
    apply_backward(model, lm_model_head(model), rows, pass->logits + row * model->config.vocabulary,
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

typedef struct batch_run {
    lm_pass *pass;
    lm_slice chunk; /* all sequences of the chunk */
    size_t *slices; /* the first sequence of each, and the end */
    float *logp;
    lm_slope_function slope; /* NULL: it only scores */
    void *opaque;
    float *slopes; /* by token of the batch */
} batch_run;

/* The log-probability of each token of the slice, at its place in the batch. */
static void slice_scores(const lm_pass *pass, const lm_slice *slice, float *logp) {
    size_t vocabulary = pass->model->config.vocabulary;
    const lm_batch *batch = slice->batch;
    for (size_t s = slice->first; s < slice->first + slice->sequences; s++) {
        size_t start = batch->starts[s];
        logp[start] = 0;
        for (size_t i = start; i + 1 < batch->starts[s + 1]; i++) {
            logp[i + 1] = pass->logits[(i - slice->origin) * vocabulary + batch->tokens[i + 1]];
        }
    }
}

/* From log-probabilities to the gradient of the logits. A sequence's last row predicts nothing. */
static void loss_back(const batch_run *run, const lm_slice *slice) {
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

static weft_status run_slice(void *argument, size_t index, unsigned worker) {
    batch_run *run = argument;
    lm_slice slice = run->chunk;
    slice.first = run->slices[index];
    slice.sequences = run->slices[index + 1] - slice.first;
    slice.worker = worker;
    lm_forward_slice(run->pass, &slice);
    slice_scores(run->pass, &slice, run->logp);
    if (run->slope != NULL) {
        loss_back(run, &slice);
        backward_slice(run->pass, &slice);
    }
    return WEFT_OK;
}

/* The first sequence of each slice, and the end; returns their number, at most that of the sequences. */
static size_t cut_slices(const lm_batch *batch, size_t first, size_t sequences, size_t *slices) {
    size_t count = 0;
    size_t end = first + sequences;
    while (first < end) {
        slices[count++] = first;
        size_t taken = lm_batch_take(batch, first, LM_SLICE_TOKENS);
        first = first + taken < end ? first + taken : end;
    }
    slices[count] = end;
    return count;
}

weft_status lm_check_temperature(const lm_model *model, float temperature) {
    if (!(temperature >= 0.01f && temperature <= 100)) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "a temperature of %g cannot be used; choose one from 0.01 to 100",
                         (double)temperature);
    }
    return WEFT_OK;
}

/* `gradient` is NULL if nothing is learned. */
static weft_status run_chunks(batch_run *run, const lm_batch *batch, float temperature, float *gradient) {
    lm_pass *pass = run->pass;
    weft_status status = WEFT_OK;
    for (size_t first = 0, taken; first < batch->sequences && status == WEFT_OK; first += taken) {
        taken = lm_batch_take(batch, first, pass->capacity);
        run->chunk = (lm_slice){.batch = batch, .origin = batch->starts[first], .temperature = temperature};
        size_t count = cut_slices(batch, first, taken, run->slices);
        status = weft_progress_ask(pass->model->context);
        if (status == WEFT_OK) {
            status = weft_parallel(pass->model->context, count, run_slice, run);
        }
        if (status == WEFT_OK && gradient != NULL) {
            status = lm_weight_gradients(pass, batch, first, taken, gradient);
        }
    }
    return status;
}

static weft_status run_batch(batch_run *run, const lm_batch *batch, float temperature, float *gradient) {
    const lm_model *model = run->pass->model;
    weft_context *context = model->context;
    weft_status status = lm_check_temperature(model, temperature);
    if (status == WEFT_OK) {
        status = lm_batch_check(model, batch);
    }
    if (status != WEFT_OK) {
        return status;
    }
    run->slices = weft_allocate_array(context, batch->sequences + 1, sizeof *run->slices);
    if (run->slope != NULL) {
        run->slopes = weft_allocate_array(context, batch->starts[batch->sequences], sizeof *run->slopes);
    }
    status = WEFT_NO_MEMORY;
    if (run->slices != NULL && (run->slope == NULL || run->slopes != NULL)) {
        status = run_chunks(run, batch, temperature, gradient);
    }
    weft_release(context, run->slopes);
    weft_release(context, run->slices);
    return status;
}

weft_status lm_score(lm_pass *pass, const lm_batch *batch, float temperature, float *logp) {
    batch_run run = {.pass = pass, .logp = logp};
    return run_batch(&run, batch, temperature, NULL);
}

weft_status lm_gradient(lm_pass *pass, const lm_batch *batch, float temperature, lm_slope_function slope,
                        void *opaque, float *gradient, float *logp) {
    batch_run run = {.pass = pass, .logp = logp, .slope = slope, .opaque = opaque};
    if (!pass->training) {
        return weft_fail(pass->model->context, WEFT_INVALID_ARGUMENT,
                         "a pass that only scores cannot make gradients");
    }
    return run_batch(&run, batch, temperature, gradient);
}
