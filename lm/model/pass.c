/* SPDX-License-Identifier: Apache-2.0
 *
 * pass.c: takes and cuts the memory of a pass, and checks batches.
 */
#include "pass.h"

#include "../../lib/base/context.h"

enum {
    CHUNK_TOKENS = 8192,     /* at most */
    CHUNK_FLOATS = 64 << 20, /* about; a chunk holds at least one sequence */
};

weft_status lm_batch_check(const lm_model *model, const lm_batch *batch) {
    for (size_t s = 0; s < batch->sequences; s++) {
        if (batch->starts[s + 1] <= batch->starts[s] || lm_batch_length(batch, s) > model->config.context) {
            return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                             "sequence %zu of a batch has %lld tokens; the model takes 1 to %u", s,
                             (long long)batch->starts[s + 1] - (long long)batch->starts[s],
                             model->config.context);
        }
        for (size_t i = batch->starts[s]; i < batch->starts[s + 1]; i++) {
            if (batch->tokens[i] >= model->config.vocabulary) {
                return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                                 "sequence %zu of a batch has token %u; the vocabulary ends at %u", s,
                                 (unsigned)batch->tokens[i], model->config.vocabulary - 1);
            }
        }
    }
    return WEFT_OK;
}

size_t lm_batch_take(const lm_batch *batch, size_t first, size_t limit) {
    size_t end = first + 1;
    while (end < batch->sequences && batch->starts[end + 1] - batch->starts[first] <= limit) {
        end++;
    }
    return end - first;
}

/* ---- cutting ----
 *
 * The same walk counts the floats (memory NULL) and hands them out. */

typedef struct cutter {
    float *memory;
    size_t used;
} cutter;

static float *cut(cutter *cutter, size_t count) {
    float *piece = cutter->memory != NULL ? cutter->memory + cutter->used : NULL;
    cutter->used += (count + LM_LANES - 1) / LM_LANES * LM_LANES;
    return piece;
}

static void cut_layer(cutter *cutter, const lm_config *config, size_t tokens, lm_layer_memory *layer) {
    size_t width = tokens * config->width;
    size_t kv = tokens * lm_config_kv(config);
    size_t hidden = tokens * config->feed_forward;
    layer->input = cut(cutter, width);
    layer->input_scale = cut(cutter, tokens);
    layer->normed = cut(cutter, width);
    layer->query = cut(cutter, width);
    layer->key = cut(cutter, kv);
    layer->value = cut(cutter, kv);
    layer->attended = cut(cutter, width);
    layer->middle = cut(cutter, width);
    layer->middle_scale = cut(cutter, tokens);
    layer->middle_normed = cut(cutter, width);
    layer->gate = cut(cutter, hidden);
    layer->up = cut(cutter, hidden);
    layer->activation = cut(cutter, hidden);
}

static void cut_layer_gradients(cutter *cutter, const lm_config *config, size_t tokens,
                                lm_layer_memory *layer) {
    size_t width = tokens * config->width;
    size_t kv = tokens * lm_config_kv(config);
    layer->doutput = cut(cutter, width);
    layer->dmiddle_normed = cut(cutter, width);
    layer->dmiddle = cut(cutter, width);
    layer->dquery = cut(cutter, width);
    layer->dkey = cut(cutter, kv);
    layer->dvalue = cut(cutter, kv);
    layer->dnormed = cut(cutter, width);
}

/* Without training one layer's memory serves all. */
static size_t cut_chunk(lm_pass *pass, float *memory, size_t tokens) {
    const lm_config *config = &pass->model->config;
    cutter cutter = {.memory = memory};
    for (size_t i = 0; i < config->layers; i++) {
        if (i == 0 || pass->training) {
            cut_layer(&cutter, config, tokens, &pass->layers[i]);
        } else {
            pass->layers[i] = pass->layers[0];
        }
        if (pass->training) {
            cut_layer_gradients(&cutter, config, tokens, &pass->layers[i]);
        }
    }
    lm_layer_memory *last = &pass->layers[config->layers];
    last->input = pass->training ? cut(&cutter, tokens * config->width) : pass->layers[0].input;
    pass->final_scale = cut(&cutter, tokens);
    pass->final_normed = cut(&cutter, tokens * config->width);
    pass->logits = cut(&cutter, tokens * config->vocabulary);
    if (pass->training) {
        pass->dfinal_normed = cut(&cutter, tokens * config->width);
        pass->dembedded = cut(&cutter, tokens * config->width);
    }
    return cutter.used;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t cut_scratch(lm_pass *pass, float *memory) {
    const lm_config *config = &pass->model->config;
    size_t longest = config->context;
    size_t rows = larger(LM_SLICE_TOKENS, longest);
    size_t head = lm_config_head(config);
    size_t packed = larger(lm_pack_size(longest, head), lm_pack_size(head, longest));
    cutter cutter = {.memory = memory};
    for (unsigned i = 0; i < pass->workers; i++) {
        lm_scratch *scratch = &pass->scratch[i];
        scratch->scores = cut(&cutter, longest * longest);
        scratch->keys = cut(&cutter, packed);
        scratch->values = cut(&cutter, packed);
        if (pass->training) {
            scratch->dscores = cut(&cutter, longest * longest);
            scratch->others = cut(&cutter, packed);
            scratch->dactivation = cut(&cutter, rows * config->feed_forward);
            scratch->dattended = cut(&cutter, rows * config->width);
            scratch->block =
                cut(&cutter, lm_pack_size(larger(config->width, config->feed_forward), LM_GRADIENT_DEPTH));
        }
    }
    return cutter.used;
}

static weft_status build(lm_pass *pass) {
    weft_context *context = pass->model->context;
    pass->layers = weft_allocate_zeroed(context, pass->model->config.layers + 1u, sizeof *pass->layers);
    pass->scratch = weft_allocate_zeroed(context, pass->workers, sizeof *pass->scratch);
    if (pass->layers == NULL || pass->scratch == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t each = cut_chunk(pass, NULL, LM_LANES) / LM_LANES;
    size_t fits = CHUNK_FLOATS / each;
    size_t capacity = fits < CHUNK_TOKENS ? fits : CHUNK_TOKENS;
    pass->capacity = larger(capacity, pass->model->config.context);
    pass->memory =
        weft_allocate_array(context, cut_chunk(pass, NULL, pass->capacity), sizeof *pass->memory);
    pass->scratch_memory = weft_allocate_array(context, cut_scratch(pass, NULL), sizeof(float));
    if (pass->memory == NULL || pass->scratch_memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    cut_chunk(pass, pass->memory, pass->capacity);
    cut_scratch(pass, pass->scratch_memory);
    return WEFT_OK;
}

weft_status lm_pass_create(lm_model *model, bool training, lm_pass **pass_out) {
    lm_pass *pass = weft_allocate_zeroed(model->context, 1, sizeof *pass);
    if (pass == NULL) {
        return WEFT_NO_MEMORY;
    }
    pass->model = model;
    pass->training = training;
    pass->workers = weft_context_threads(model->context);
    weft_status status = build(pass);
    if (status != WEFT_OK) {
        lm_pass_destroy(pass);
        return status;
    }
    *pass_out = pass;
    return WEFT_OK;
}

void lm_pass_destroy(lm_pass *pass) {
    if (pass == NULL) {
        return;
    }
    weft_context *context = pass->model->context;
    weft_release(context, pass->scratch_memory);
    weft_release(context, pass->memory);
    weft_release(context, pass->scratch);
    weft_release(context, pass->layers);
    weft_release(context, pass);
}
