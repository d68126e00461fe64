/* SPDX-License-Identifier: Apache-2.0
 *
 * lm_reference.c: see lm_reference.h.
 */
#include "lm_reference.h"

#include "../../lib/base/context.h"

#include <math.h>
#include <string.h>

void lm_reference_linear(const double *input, const double *matrix, size_t rows, size_t inner,
                         size_t columns, double *output) {
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            double sum = 0;
            for (size_t k = 0; k < inner; k++) {
                sum += input[i * inner + k] * matrix[j * inner + k];
            }
            output[i * columns + j] = sum;
        }
    }
}

void lm_reference_norm(const double *x, const double *gain, double epsilon, size_t count, double *output) {
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        squares += x[i] * x[i];
    }
    double scale = 1 / sqrt(squares / (double)count + epsilon);
    for (size_t i = 0; i < count; i++) {
        output[i] = x[i] * scale * gain[i];
    }
}

void lm_reference_log_softmax(double *row, double scale, size_t count) {
    double most = row[0];
    for (size_t i = 1; i < count; i++) {
        most = row[i] > most ? row[i] : most;
    }
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += exp((row[i] - most) * scale);
    }
    for (size_t i = 0; i < count; i++) {
        row[i] = (row[i] - most) * scale - log(sum);
    }
}

void lm_reference_softmax(double *row, double scale, size_t count) {
    lm_reference_log_softmax(row, scale, count);
    for (size_t i = 0; i < count; i++) {
        row[i] = exp(row[i]);
    }
}

void lm_reference_swiglu(const double *gate, const double *up, size_t count, double *output) {
    for (size_t i = 0; i < count; i++) {
        output[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    }
}

void lm_reference_rotate(double *x, size_t position, double base, size_t head) {
    size_t half = head / 2;
    for (size_t i = 0; i < half; i++) {
        double angle = (double)position * pow(base, -(double)i / (double)half);
        double low = x[i];
        double high = x[i + half];
        x[i] = low * cos(angle) - high * sin(angle);
        x[i + half] = high * cos(angle) + low * sin(angle);
    }
}

/* ---- the model ---- */

typedef struct reference {
    const lm_model *model;
    const double *parameters;
    size_t length;
    double *x; /* length rows of width */
    double *normed;
    double *query;
    double *key;
    double *value;
    double *attended;
    double *branch; /* what is added to x */
    double *gate;   /* length rows of feed_forward */
    double *up;
    double *logits; /* also the scores of one query */
} reference;

static const double *weight_values(const reference *r, const lm_weight *weight) {
    return r->parameters + weight->offset;
}

static void norm_all(const reference *r, const lm_weight *gain) {
    size_t width = r->model->config.width;
    for (size_t i = 0; i < r->length; i++) {
        lm_reference_norm(r->x + i * width, weight_values(r, gain), r->model->config.norm_epsilon, width,
                          r->normed + i * width);
    }
}

static void apply(const reference *r, const lm_weight *weight, const double *input, double *output) {
    lm_reference_linear(input, weight_values(r, weight), r->length, weight->columns, weight->rows, output);
}

static void add_branch(const reference *r) {
    for (size_t i = 0; i < r->length * r->model->config.width; i++) {
        r->x[i] += r->branch[i];
    }
}

static void rotate_all(const reference *r, double *rows, size_t heads) {
    size_t head = lm_config_head(&r->model->config);
    for (size_t i = 0; i < r->length * heads; i++) {
        lm_reference_rotate(rows + i * head, i / heads, r->model->config.rope_base, head);
    }
}

static void attend_one(const reference *r, size_t position, size_t h) {
    const lm_config *config = &r->model->config;
    size_t head = lm_config_head(config);
    size_t kv = lm_config_kv(config);
    size_t shared = h / (config->heads / config->kv_heads) * head;
    const double *query = r->query + position * config->width + h * head;
    double *output = r->attended + position * config->width + h * head;
    double *scores = r->logits;
    memset(output, 0, head * sizeof *output);
    for (size_t j = 0; j <= position; j++) {
        lm_reference_linear(query, r->key + j * kv + shared, 1, head, 1, &scores[j]);
    }
    lm_reference_softmax(scores, 1 / sqrt((double)head), position + 1);
    for (size_t j = 0; j <= position; j++) {
        for (size_t c = 0; c < head; c++) {
            output[c] += scores[j] * r->value[j * kv + shared + c];
        }
    }
}

static void run_layer(const reference *r, size_t layer) {
    const lm_model *model = r->model;
    norm_all(r, lm_model_layer(model, layer, LM_INPUT_NORM));
    apply(r, lm_model_layer(model, layer, LM_QUERY), r->normed, r->query);
    apply(r, lm_model_layer(model, layer, LM_KEY), r->normed, r->key);
    apply(r, lm_model_layer(model, layer, LM_VALUE), r->normed, r->value);
    rotate_all(r, r->query, model->config.heads);
    rotate_all(r, r->key, model->config.kv_heads);
    for (size_t i = 0; i < r->length; i++) {
        for (size_t h = 0; h < model->config.heads; h++) {
            attend_one(r, i, h);
        }
    }
    apply(r, lm_model_layer(model, layer, LM_ATTENTION_OUT), r->attended, r->branch);
    add_branch(r);
    norm_all(r, lm_model_layer(model, layer, LM_POST_NORM));
    apply(r, lm_model_layer(model, layer, LM_GATE), r->normed, r->gate);
    apply(r, lm_model_layer(model, layer, LM_UP), r->normed, r->up);
    lm_reference_swiglu(r->gate, r->up, r->length * model->config.feed_forward, r->gate);
    apply(r, lm_model_layer(model, layer, LM_DOWN), r->gate, r->branch);
    add_branch(r);
}

static void score(const reference *r, const lm_token *tokens, double temperature, double *logp) {
    const lm_model *model = r->model;
    size_t width = model->config.width;
    size_t vocabulary = model->config.vocabulary;
    const double *embedding = weight_values(r, lm_model_embedding(model));
    for (size_t i = 0; i < r->length; i++) {
        memcpy(r->x + i * width, embedding + tokens[i] * width, width * sizeof *r->x);
    }
    for (size_t layer = 0; layer < model->config.layers; layer++) {
        run_layer(r, layer);
    }
    norm_all(r, lm_model_final_norm(model));
    logp[0] = 0;
    for (size_t i = 0; i + 1 < r->length; i++) {
        lm_reference_linear(r->normed + i * width, weight_values(r, lm_model_head(model)), 1, width,
                            vocabulary, r->logits);
        lm_reference_log_softmax(r->logits, 1 / temperature, vocabulary);
        logp[i + 1] = r->logits[tokens[i + 1]];
    }
}

weft_status lm_reference_score(const lm_model *model, const double *parameters, const lm_token *tokens,
                               size_t length, double temperature, double *logp) {
    const lm_config *config = &model->config;
    size_t rows = length * config->width;
    size_t hidden = length * config->feed_forward;
    size_t last = config->vocabulary > length ? config->vocabulary : length;
    double *memory = weft_allocate_array(model->context, 7 * rows + 2 * hidden + last, sizeof *memory);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    reference r = {
        .model = model,
        .parameters = parameters,
        .length = length,
        .x = memory,
        .normed = memory + rows,
        .query = memory + 2 * rows,
        .key = memory + 3 * rows,
        .value = memory + 4 * rows,
        .attended = memory + 5 * rows,
        .branch = memory + 6 * rows,
        .gate = memory + 7 * rows,
        .up = memory + 7 * rows + hidden,
        .logits = memory + 7 * rows + 2 * hidden,
    };
    score(&r, tokens, temperature, logp);
    weft_release(model->context, memory);
    return WEFT_OK;
}
