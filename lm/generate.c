/* SPDX-License-Identifier: Apache-2.0
 *
 * generate.c: slices of prompts go forward in step, one position at a time, prompt tokens like sampled
 * ones. Keys and values are kept packed, so that attention is the same product as in forward.c; a sequence
 * that has ended leaves the rows, and its cache lies idle.
 */
#include "generate.h"

#include "../lib/base/context.h"
#include "../lib/base/pool.h"
#include "random.h"

#include <math.h>
#include <string.h>

enum { SLICE_SEQUENCES = 48 }; /* four tiles of rows */

/* The memory of one worker. */
typedef struct decoder {
    float *keys; /* by sequence, layer and key head: panels of positions */
    float *values;
    float *x;
    float *normed;
    float *query;
    float *key;
    float *value;
    float *attended;
    float *scores;
    float *gate;
    float *up;
    float *logits;
} decoder;

typedef struct generate_run {
    lm_model *model;
    const lm_batch *prompts;
    const uint64_t *streams;
    lm_sampling sampling;
    size_t slice;    /* sequences of a slice */
    size_t capacity; /* positions of the longest */
    decoder *decoders;
    lm_token *tokens; /* capacity for each sequence */
    float *logp;
    size_t *lengths;
} generate_run;

/* The sequences of a slice that go on. */
typedef struct rows {
    size_t first;                       /* sequence of the slice */
    size_t count;                       /* that go on */
    size_t sequences[SLICE_SEQUENCES];  /* their numbers, ascending */
    lm_random randoms[SLICE_SEQUENCES]; /* by sequence of the slice */
} rows;

/* ---- sizes ---- */

static size_t key_size(const generate_run *run) {
    return lm_pack_size(run->capacity, lm_config_head(&run->model->config));
}

static size_t value_size(const generate_run *run) {
    return lm_pack_size(lm_config_head(&run->model->config), run->capacity);
}

/* The cache of a key head: which of all that a decoder has. */
static size_t cache_number(const generate_run *run, size_t slot, size_t layer, size_t kv_head) {
    const lm_config *config = &run->model->config;
    return (slot * config->layers + layer) * config->kv_heads + kv_head;
}

/* ---- one position ---- */

static void norm_rows(const lm_model *model, const lm_weight *gain, const decoder *decoder, size_t count) {
    size_t width = model->config.width;
    for (size_t i = 0; i < count; i++) {
        model->kernels->norm(decoder->x + i * width, model->values + gain->offset,
                             (float)model->config.norm_epsilon, width, decoder->normed + i * width);
    }
}

static void remember(const generate_run *run, const decoder *decoder, size_t number, size_t position,
                     const float *key, const float *value) {
    size_t head = lm_config_head(&run->model->config);
    float *keys = decoder->keys + number * key_size(run) + position / LM_PANEL * (head * LM_PANEL);
    float *values = decoder->values + number * value_size(run) + position * LM_PANEL;
    for (size_t c = 0; c < head; c++) {
        keys[c * LM_PANEL + position % LM_PANEL] = key[c];
        values[c / LM_PANEL * (run->capacity * LM_PANEL) + c % LM_PANEL] = value[c];
    }
}

/* The heads that share one key head, at one position of one sequence. */
static void attend_heads(const generate_run *run, const decoder *decoder, size_t number, size_t position,
                         const float *query, float *attended) {
    const lm_config *config = &run->model->config;
    const lm_kernels *kernels = run->model->kernels;
    size_t head = lm_config_head(config);
    size_t group = config->heads / config->kv_heads;
    lm_product product = {
        .rows = group,
        .columns = position + 1,
        .depth = head,
        .a = query,
        .a_row = head,
        .a_step = 1,
        .b = decoder->keys + number * key_size(run),
        .panel = head * LM_PANEL,
        .c = decoder->scores,
        .c_row = run->capacity,
    };
    lm_product_run(kernels, &product);
    for (size_t h = 0; h < group; h++) {
        kernels->softmax(decoder->scores + h * run->capacity, 1.0f / sqrtf((float)head), position + 1);
    }
    product = (lm_product){
        .rows = group,
        .columns = head,
        .depth = position + 1,
        .a = decoder->scores,
        .a_row = run->capacity,
        .a_step = 1,
        .b = decoder->values + number * value_size(run),
        .panel = run->capacity * LM_PANEL,
        .c = attended,
        .c_row = head,
    };
    lm_product_run(kernels, &product);
}

static void attend_row(const generate_run *run, const decoder *decoder, size_t slot, size_t row,
                       size_t layer, size_t position) {
    const lm_model *model = run->model;
    const lm_config *config = &model->config;
    size_t head = lm_config_head(config);
    size_t half = head / 2;
    size_t group = config->heads / config->kv_heads;
    float *query = decoder->query + row * config->width;
    for (size_t h = 0; h < config->heads; h++) {
        model->kernels->rotate(query + h * head, model->cosines + position * half,
                               model->sines + position * half, 1, half);
    }
    for (size_t g = 0; g < config->kv_heads; g++) {
        float *key = decoder->key + row * lm_config_kv(config) + g * head;
        const float *value = decoder->value + row * lm_config_kv(config) + g * head;
        model->kernels->rotate(key, model->cosines + position * half, model->sines + position * half, 1,
                               half);
        size_t number = cache_number(run, slot, layer, g);
        remember(run, decoder, number, position, key, value);
        attend_heads(run, decoder, number, position, query + g * group * head,
                     decoder->attended + row * config->width + g * group * head);
    }
}

static void run_layer(const generate_run *run, const decoder *decoder, const rows *rows, size_t layer,
                      size_t position) {
    const lm_model *model = run->model;
    size_t count = rows->count;
    norm_rows(model, lm_model_layer(model, layer, LM_INPUT_NORM), decoder, count);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_QUERY), count, decoder->normed, decoder->query,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_KEY), count, decoder->normed, decoder->key,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_VALUE), count, decoder->normed, decoder->value,
                     false);
    for (size_t i = 0; i < count; i++) {
        attend_row(run, decoder, rows->sequences[i] - rows->first, i, layer, position);
    }
    lm_apply_forward(model, lm_model_layer(model, layer, LM_ATTENTION_OUT), count, decoder->attended,
                     decoder->x, true);
    norm_rows(model, lm_model_layer(model, layer, LM_POST_NORM), decoder, count);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_GATE), count, decoder->normed, decoder->gate,
                     false);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_UP), count, decoder->normed, decoder->up,
                     false);
    model->kernels->swiglu(decoder->gate, decoder->up, count * model->config.feed_forward, decoder->gate);
    lm_apply_forward(model, lm_model_layer(model, layer, LM_DOWN), count, decoder->gate, decoder->x, true);
}

static void run_position(const generate_run *run, const decoder *decoder, const rows *rows,
                         size_t position) {
    const lm_model *model = run->model;
    size_t width = model->config.width;
    const float *embedding = model->values + lm_model_embedding(model)->offset;
    for (size_t i = 0; i < rows->count; i++) {
        lm_token token = run->tokens[rows->sequences[i] * run->capacity + position];
        memcpy(decoder->x + i * width, embedding + token * width, width * sizeof *decoder->x);
    }
    for (size_t layer = 0; layer < model->config.layers; layer++) {
        run_layer(run, decoder, rows, layer, position);
    }
    norm_rows(model, lm_model_final_norm(model), decoder, rows->count);
    lm_apply_forward(model, lm_model_head(model), rows->count, decoder->normed, decoder->logits, false);
}

/* ---- sampling ---- */

static size_t likeliest(const float *logp, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        best = logp[i] > logp[best] ? i : best;
    }
    return best;
}

/* Rounding may leave the sum of all a little below the number that was drawn; then the likeliest is taken.
 */
static size_t draw(const float *logp, size_t count, lm_random *random) {
    double left = lm_random_uniform(random);
    for (size_t i = 0; i < count; i++) {
        left -= exp((double)logp[i]);
        if (left < 0) {
            return i;
        }
    }
    return likeliest(logp, count);
}

/* Appends a token to the sequence of a row. False if the sequence has ended with it. */
static bool extend(const generate_run *run, rows *rows, size_t sequence, size_t position, float *logits) {
    const lm_sampling *sampling = &run->sampling;
    size_t vocabulary = run->model->config.vocabulary;
    float temperature = sampling->temperature > 0 ? sampling->temperature : 1;
    run->model->kernels->log_softmax(logits, 1.0f / temperature, vocabulary);
    size_t token = sampling->temperature > 0
                       ? draw(logits, vocabulary, &rows->randoms[sequence - rows->first])
                       : likeliest(logits, vocabulary);
    run->tokens[sequence * run->capacity + position + 1] = (lm_token)token;
    run->logp[sequence * run->capacity + position + 1] = logits[token];
    run->lengths[sequence] = position + 2;
    return (int32_t)token != sampling->stop &&
           position + 2 < lm_batch_length(run->prompts, sequence) + sampling->limit;
}

static void extend_rows(const generate_run *run, const decoder *decoder, rows *rows, size_t position) {
    size_t kept = 0;
    for (size_t i = 0; i < rows->count; i++) {
        size_t sequence = rows->sequences[i];
        bool prompted = position + 1 < lm_batch_length(run->prompts, sequence);
        if (prompted ||
            extend(run, rows, sequence, position, decoder->logits + i * run->model->config.vocabulary)) {
            rows->sequences[kept++] = sequence;
        }
    }
    rows->count = kept;
}

static weft_status generate_slice(void *argument, size_t index, unsigned worker) {
    const generate_run *run = argument;
    const decoder *decoder = &run->decoders[worker];
    rows rows = {.first = index * run->slice};
    size_t left = run->prompts->sequences - rows.first;
    rows.count = left < run->slice ? left : run->slice;
    for (size_t i = 0; i < rows.count; i++) {
        size_t sequence = rows.first + i;
        size_t length = lm_batch_length(run->prompts, sequence);
        rows.sequences[i] = sequence;
        rows.randoms[i] = lm_random_open(run->sampling.seed, run->streams[sequence]);
        memcpy(run->tokens + sequence * run->capacity,
               run->prompts->tokens + run->prompts->starts[sequence], length * sizeof *run->tokens);
        run->lengths[sequence] = length;
    }
    for (size_t position = 0; rows.count > 0; position++) {
        run_position(run, decoder, &rows, position);
        extend_rows(run, decoder, &rows, position);
    }
    return WEFT_OK;
}

/* ---- memory ---- */

static weft_status open_decoder(generate_run *run, decoder *decoder) {
    const lm_config *config = &run->model->config;
    size_t caches = run->slice * config->layers * config->kv_heads;
    size_t sizes[] = {
        caches * key_size(run),
        caches * value_size(run),
        run->slice * config->width,
        run->slice * config->width,
        run->slice * config->width,
        run->slice * lm_config_kv(config),
        run->slice * lm_config_kv(config),
        run->slice * config->width,
        run->capacity * (config->heads / config->kv_heads),
        run->slice * config->feed_forward,
        run->slice * config->feed_forward,
        run->slice * config->vocabulary,
    };
    float **pieces[] = {
        &decoder->keys,   &decoder->values, &decoder->x,     &decoder->normed,
        &decoder->query,  &decoder->key,    &decoder->value, &decoder->attended,
        &decoder->scores, &decoder->gate,   &decoder->up,    &decoder->logits,
    };
    size_t all = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        all += sizes[i];
    }
    float *memory = weft_allocate_zeroed(run->model->context, all, sizeof *memory);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        *pieces[i] = memory;
        memory += sizes[i];
    }
    return WEFT_OK;
}

static weft_status gather(const generate_run *run, lm_samples *samples) {
    size_t total = 0;
    samples->starts[0] = 0;
    for (size_t s = 0; s < samples->sequences; s++) {
        total += run->lengths[s];
        samples->starts[s + 1] = total;
        samples->prompts[s] = lm_batch_length(run->prompts, s);
    }
    samples->tokens = weft_allocate_array(samples->context, total, sizeof *samples->tokens);
    samples->logp = weft_allocate_array(samples->context, total, sizeof *samples->logp);
    if (samples->tokens == NULL || samples->logp == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t s = 0; s < samples->sequences; s++) {
        size_t from = s * run->capacity;
        memcpy(samples->tokens + samples->starts[s], run->tokens + from,
               run->lengths[s] * sizeof(lm_token));
        memcpy(samples->logp + samples->starts[s], run->logp + from, run->lengths[s] * sizeof(float));
    }
    return WEFT_OK;
}

static weft_status run_slices(generate_run *run) {
    weft_context *context = run->model->context;
    unsigned workers = weft_context_threads(context);
    size_t count = run->prompts->sequences;
    run->decoders = weft_allocate_zeroed(context, workers, sizeof *run->decoders);
    run->tokens = weft_allocate_zeroed(context, count * run->capacity, sizeof *run->tokens);
    run->logp = weft_allocate_zeroed(context, count * run->capacity, sizeof *run->logp);
    run->lengths = weft_allocate_zeroed(context, count, sizeof *run->lengths);
    if (run->decoders == NULL || run->tokens == NULL || run->logp == NULL || run->lengths == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    for (unsigned i = 0; i < workers && status == WEFT_OK; i++) {
        status = open_decoder(run, &run->decoders[i]);
    }
    if (status == WEFT_OK) {
        status = weft_parallel(context, (count + run->slice - 1) / run->slice, generate_slice, run);
    }
    return status;
}

static void release_run(generate_run *run) {
    weft_context *context = run->model->context;
    for (unsigned i = 0; run->decoders != NULL && i < weft_context_threads(context); i++) {
        weft_release(context, run->decoders[i].keys);
    }
    weft_release(context, run->lengths);
    weft_release(context, run->logp);
    weft_release(context, run->tokens);
    weft_release(context, run->decoders);
}

/* ---- entry points ---- */

static weft_status check(const lm_model *model, const lm_batch *prompts, const lm_sampling *sampling) {
    weft_status status = lm_batch_check(model, prompts);
    if (status == WEFT_OK && sampling->temperature != 0) {
        status = lm_check_temperature(model, sampling->temperature);
    }
    for (size_t s = 0; s < prompts->sequences && status == WEFT_OK; s++) {
        if (sampling->limit == 0 || sampling->limit > model->config.context - lm_batch_length(prompts, s)) {
            status = weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                               "a prompt of %zu tokens and a response of up to %zu do not fit a context of "
                               "%u, or the response may have no token",
                               lm_batch_length(prompts, s), sampling->limit, model->config.context);
        }
    }
    return status;
}

static lm_samples *create_samples(weft_context *context, size_t sequences) {
    lm_samples *samples = weft_allocate_zeroed(context, 1, sizeof *samples);
    if (samples == NULL) {
        return NULL;
    }
    samples->context = context;
    samples->sequences = sequences;
    samples->starts = weft_allocate_array(context, sequences + 1, sizeof *samples->starts);
    samples->prompts = weft_allocate_array(context, sequences, sizeof *samples->prompts);
    if (samples->starts == NULL || samples->prompts == NULL) {
        lm_samples_destroy(samples);
        return NULL;
    }
    return samples;
}

weft_status lm_generate(lm_model *model, const lm_batch *prompts, const uint64_t *streams,
                        const lm_sampling *sampling, lm_samples **samples_out) {
    weft_status status = check(model, prompts, sampling);
    if (status != WEFT_OK) {
        return status;
    }
    generate_run run = {.model = model, .prompts = prompts, .streams = streams, .sampling = *sampling};
    size_t share = prompts->sequences / weft_context_threads(model->context) + 1;
    run.slice = share < SLICE_SEQUENCES ? share : SLICE_SEQUENCES;
    for (size_t s = 0; s < prompts->sequences; s++) {
        size_t longest = lm_batch_length(prompts, s) + sampling->limit;
        run.capacity = longest > run.capacity ? longest : run.capacity;
    }
    lm_samples *samples = create_samples(model->context, prompts->sequences);
    status = samples != NULL ? run_slices(&run) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = gather(&run, samples);
    }
    release_run(&run);
    if (status != WEFT_OK) {
        lm_samples_destroy(samples);
        return status;
    }
    *samples_out = samples;
    return WEFT_OK;
}

void lm_samples_destroy(lm_samples *samples) {
    if (samples == NULL) {
        return;
    }
    weft_context *context = samples->context;
    weft_release(context, samples->logp);
    weft_release(context, samples->tokens);
    weft_release(context, samples->prompts);
    weft_release(context, samples->starts);
    weft_release(context, samples);
}

lm_batch lm_samples_batch(const lm_samples *samples) {
    return (lm_batch){
        .sequences = samples->sequences, .starts = samples->starts, .tokens = samples->tokens};
}
