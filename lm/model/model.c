/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c: lays out, initialises, casts and packs the parameters.
 */
#include "model.h"

#include "../../lib/base/context.h"
#include "../../lib/base/cpu.h"
#include "../../lib/base/pool.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the list of weights ---- */

typedef struct part_kind {
    const char *name;
    bool norm;
} part_kind;

static const part_kind part_kinds[LM_PARTS] = {
    [LM_INPUT_NORM] = {"input_layernorm", true},
    [LM_QUERY] = {"self_attn.q_proj", false},
    [LM_KEY] = {"self_attn.k_proj", false},
    [LM_VALUE] = {"self_attn.v_proj", false},
    [LM_ATTENTION_OUT] = {"self_attn.o_proj", false},
    [LM_POST_NORM] = {"post_attention_layernorm", true},
    [LM_GATE] = {"mlp.gate_proj", false},
    [LM_UP] = {"mlp.up_proj", false},
    [LM_DOWN] = {"mlp.down_proj", false},
};

static size_t part_rows(const lm_config *config, lm_part part) {
    switch (part) {
    case LM_INPUT_NORM:
    case LM_POST_NORM:
        return 1;
    case LM_KEY:
    case LM_VALUE:
        return lm_config_kv(config);
    case LM_GATE:
    case LM_UP:
        return config->feed_forward;
    default:
        return config->width;
    }
}

static lm_weight *append(lm_model *model, size_t rows, size_t columns, bool norm) {
    lm_weight *weight = &model->weights[model->weight_count++];
    *weight = (lm_weight){.rows = rows, .columns = columns, .offset = model->parameters, .norm = norm};
    model->parameters += rows * columns;
    return weight;
}

static void list_weights(lm_model *model) {
    const lm_config *config = &model->config;
    lm_weight *weight = append(model, config->vocabulary, config->width, false);
    snprintf(weight->name, sizeof weight->name, "model.embed_tokens.weight");
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        for (int part = 0; part < LM_PARTS; part++) {
            size_t inputs = part == LM_DOWN ? config->feed_forward : config->width;
            weight = append(model, part_rows(config, (lm_part)part), inputs, part_kinds[part].norm);
            snprintf(weight->name, sizeof weight->name, "model.layers.%u.%s.weight", layer,
                     part_kinds[part].name);
        }
    }
    weight = append(model, 1, config->width, true);
    snprintf(weight->name, sizeof weight->name, "model.norm.weight");
    if (!config->tied) {
        weight = append(model, config->vocabulary, config->width, false);
        snprintf(weight->name, sizeof weight->name, "lm_head.weight");
    }
}

const lm_weight *lm_model_embedding(const lm_model *model) {
    return &model->weights[0];
}

const lm_weight *lm_model_layer(const lm_model *model, size_t layer, lm_part part) {
    return &model->weights[1 + layer * LM_PARTS + (size_t)part];
}

const lm_weight *lm_model_final_norm(const lm_model *model) {
    return &model->weights[1 + model->config.layers * (size_t)LM_PARTS];
}

const lm_weight *lm_model_head(const lm_model *model) {
    return model->config.tied ? lm_model_embedding(model) : &model->weights[model->weight_count - 1];
}

static bool has_product(const lm_model *model, const lm_weight *weight) {
    return !weight->norm && (weight != lm_model_embedding(model) || model->config.tied);
}

/* ---- memory ---- */

static weft_status allocate_packed(lm_model *model) {
    size_t size = 0;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        if (has_product(model, weight)) {
            size +=
                lm_pack_size(weight->rows, weight->columns) + lm_pack_size(weight->columns, weight->rows);
        }
    }
    model->packed = weft_allocate_array(model->context, size, sizeof *model->packed);
    if (model->packed == NULL) {
        return WEFT_NO_MEMORY;
    }
    float *next = model->packed;
    for (size_t i = 0; i < model->weight_count; i++) {
        lm_weight *weight = &model->weights[i];
        if (has_product(model, weight)) {
            weight->forward = next;
            next += lm_pack_size(weight->rows, weight->columns);
            weight->backward = next;
            next += lm_pack_size(weight->columns, weight->rows);
        }
    }
    return WEFT_OK;
}

static weft_status allocate_rotations(lm_model *model) {
    size_t half = lm_config_head(&model->config) / 2;
    model->cosines = weft_allocate_array(model->context, model->config.context * half, sizeof(float));
    model->sines = weft_allocate_array(model->context, model->config.context * half, sizeof(float));
    if (model->cosines == NULL || model->sines == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t position = 0; position < model->config.context; position++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)position * pow(model->config.rope_base, -(double)i / (double)half);
            model->cosines[position * half + i] = (float)cos(angle);
            model->sines[position * half + i] = (float)sin(angle);
        }
    }
    return WEFT_OK;
}

static weft_status allocate_parameters(lm_model *model, lm_role role) {
    weft_context *context = model->context;
    if (role == LM_TRAINER) {
        model->masters = weft_allocate_zeroed(context, model->parameters, sizeof *model->masters);
    }
    model->live = weft_allocate_zeroed(context, model->parameters, sizeof *model->live);
    model->values = weft_allocate_zeroed(context, model->parameters, sizeof *model->values);
    if ((role == LM_TRAINER && model->masters == NULL) || model->live == NULL || model->values == NULL) {
        return WEFT_NO_MEMORY;
    }
    return WEFT_OK;
}

static weft_status fill_table(lm_model *model) {
    weft_status status = weft_table_create(model->context, &model->table);
    for (size_t i = 0; i < model->weight_count && status == WEFT_OK; i++) {
        const lm_weight *weight = &model->weights[i];
        weft_tensor tensor = {
            .size = sizeof tensor,
            .name = weight->name,
            .dtype = WEFT_DTYPE_BF16,
            .storage = model->masters != NULL ? WEFT_DTYPE_F32 : WEFT_DTYPE_BF16,
            .rank = weight->norm ? 1 : 2,
            .shape = {weight->norm ? weight->columns : weight->rows, weight->columns},
            .writable = model->masters == NULL,
        };
        tensor.data = model->masters != NULL ? (void *)(model->masters + weight->offset)
                                             : (void *)(model->live + weight->offset);
        status = weft_table_add(model->table, &tensor);
    }
    return status;
}

static weft_status build(lm_model *model, lm_role role) {
    size_t most = 3 + model->config.layers * (size_t)LM_PARTS;
    model->weights = weft_allocate_array(model->context, most, sizeof *model->weights);
    if (model->weights == NULL) {
        return WEFT_NO_MEMORY;
    }
    list_weights(model);
    weft_status status = allocate_parameters(model, role);
    if (status == WEFT_OK) {
        status = allocate_packed(model);
    }
    if (status == WEFT_OK) {
        status = allocate_rotations(model);
    }
    if (status == WEFT_OK) {
        status = fill_table(model);
    }
    if (status == WEFT_OK) {
        status = lm_model_refresh(model);
    }
    return status;
}

weft_status lm_model_create(weft_context *context, const lm_config *config, lm_role role,
                            lm_model **model_out) {
    weft_status status = lm_config_check(context, config);
    if (status != WEFT_OK) {
        return status;
    }
    lm_model *model = weft_allocate_zeroed(context, 1, sizeof *model);
    if (model == NULL) {
        return WEFT_NO_MEMORY;
    }
    model->context = context;
    model->config = *config;
    model->kernels = lm_kernels_at(weft_cpu_level());
    status = build(model, role);
    if (status != WEFT_OK) {
        lm_model_destroy(model);
        return status;
    }
    *model_out = model;
    return WEFT_OK;
}

void lm_model_destroy(lm_model *model) {
    if (model == NULL) {
        return;
    }
    weft_context *context = model->context;
    weft_table_destroy(model->table);
    weft_release(context, model->sines);
    weft_release(context, model->cosines);
    weft_release(context, model->packed);
    weft_release(context, model->values);
    weft_release(context, model->live);
    weft_release(context, model->masters);
    weft_release(context, model->weights);
    weft_release(context, model);
}

const weft_table *lm_model_table(const lm_model *model) {
    return model->table;
}

/* ---- from parameters to panels ---- */

static weft_status refresh_weight(void *argument, size_t index, unsigned worker) {
    (void)worker;
    lm_model *model = argument;
    const lm_weight *weight = &model->weights[index];
    size_t count = weight->rows * weight->columns;
    float *values = model->values + weight->offset;
    if (model->masters != NULL) {
        weft_bf16_from_f32(model->masters + weight->offset, model->live + weight->offset, count);
    }
    weft_bf16_widen(model->live + weight->offset, values, count);
    if (weight->forward != NULL) {
        lm_pack(values, 1, weight->columns, weight->rows, weight->columns,
                model->packed + (weight->forward - model->packed));
        lm_pack(values, weight->columns, 1, weight->columns, weight->rows,
                model->packed + (weight->backward - model->packed));
    }
    return WEFT_OK;
}

weft_status lm_model_refresh(lm_model *model) {
    return weft_parallel(model->context, model->weight_count, refresh_weight, model);
}

static float deviation(const lm_model *model, const lm_weight *weight, size_t index) {
    float inverse = 1.0f / sqrtf((float)weight->columns);
    bool inside = index > 0 && index <= model->config.layers * (size_t)LM_PARTS;
    size_t part = (index - 1) % LM_PARTS;
    if (inside && (part == LM_ATTENTION_OUT || part == LM_DOWN)) {
        return inverse / sqrtf(2.0f * (float)model->config.layers);
    }
    return inverse;
}

weft_status lm_model_initialise(lm_model *model, uint64_t seed) {
    if (model->masters == NULL) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "a worker's model has no masters to initialise; only a trainer's has");
    }
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        lm_random random = lm_random_open(seed, i);
        float scale = deviation(model, weight, i);
        float *master = model->masters + weight->offset;
        for (size_t j = 0; j < weight->rows * weight->columns; j++) {
            master[j] = weight->norm ? 1.0f : scale * lm_random_normal(&random);
        }
    }
    return lm_model_refresh(model);
}

weft_status lm_model_copy(lm_model *model, const lm_model *source) {
    if (model->masters != NULL || !lm_config_equal(&model->config, &source->config)) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "a model is copied into a worker's model of the same config only");
    }
    memcpy(model->live, source->live, model->parameters * sizeof *model->live);
    return lm_model_refresh(model);
}
