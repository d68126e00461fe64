/* SPDX-License-Identifier: Apache-2.0
 *
 * gradients.c: the gradients of the weights, from the inputs and the output gradients that a chunk has left
 * in memory. Each task owns some rows of one weight, so that nothing is added from two sides, and adds
 * token after token.
 */
#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"
#include "pass.h"

enum { TASK_ROWS = 96 };

typedef struct task {
    const lm_weight *weight;
    size_t first; /* row of the weight */
    size_t rows;
} task;

typedef struct gradients_run {
    lm_pass *pass;
    const lm_token *tokens; /* of the chunk */
    size_t count;
    task *tasks;
    float *gradient;
} gradients_run;

/* What went into a weight and the gradient of what came out, both one row for each token. */
typedef struct flow {
    const float *input;
    const float *doutput;
    const float *scale; /* of a norm */
} flow;

static flow layer_flow(const lm_layer_memory *layer, lm_part part) {
    switch (part) {
    case LM_INPUT_NORM:
        return (flow){layer->input, layer->dnormed, layer->input_scale};
    case LM_QUERY:
        return (flow){layer->normed, layer->dquery, NULL};
    case LM_KEY:
        return (flow){layer->normed, layer->dkey, NULL};
    case LM_VALUE:
        return (flow){layer->normed, layer->dvalue, NULL};
    case LM_ATTENTION_OUT:
        return (flow){layer->attended, layer->dmiddle, NULL};
    case LM_POST_NORM:
        return (flow){layer->middle, layer->dmiddle_normed, layer->middle_scale};
    case LM_GATE:
        return (flow){layer->middle_normed, layer->gate, NULL};
    case LM_UP:
        return (flow){layer->middle_normed, layer->up, NULL};
    default:
        return (flow){layer->activation, layer->doutput, NULL};
    }
}

static flow find_flow(const lm_pass *pass, const lm_weight *weight) {
    const lm_model *model = pass->model;
    if (weight == lm_model_head(model)) {
        return (flow){pass->final_normed, pass->logits, NULL};
    }
    if (weight == lm_model_final_norm(model)) {
        return (flow){pass->layers[model->config.layers].input, pass->dfinal_normed, pass->final_scale};
    }
    size_t number = (size_t)(weight - model->weights) - 1;
    return layer_flow(&pass->layers[number / LM_PARTS], (lm_part)(number % LM_PARTS));
}

static void matrix_gradient(const gradients_run *run, const task *task, float *block) {
    const lm_weight *weight = task->weight;
    flow flow = find_flow(run->pass, weight);
    for (size_t token = 0; token < run->count; token += LM_GRADIENT_DEPTH) {
        size_t left = run->count - token;
        size_t depth = left < LM_GRADIENT_DEPTH ? left : LM_GRADIENT_DEPTH;
        lm_pack(flow.input + token * weight->columns, weight->columns, 1, weight->columns, depth, block);
        lm_product product = {
            .rows = task->rows,
            .columns = weight->columns,
            .depth = depth,
            .a = flow.doutput + token * weight->rows + task->first,
            .a_row = 1,
            .a_step = weight->rows,
            .b = block,
            .panel = depth * LM_PANEL,
            .c = run->gradient + weight->offset + task->first * weight->columns,
            .c_row = weight->columns,
            .accumulate = true,
        };
        lm_product_run(run->pass->model->kernels, &product);
    }
}

static void norm_gradient(const gradients_run *run, const lm_weight *weight) {
    flow flow = find_flow(run->pass, weight);
    size_t width = weight->columns;
    for (size_t i = 0; i < run->count; i++) {
        run->pass->model->kernels->add_product(run->gradient + weight->offset, flow.doutput + i * width,
                                               flow.input + i * width, flow.scale[i], width);
    }
}

static void embedding_gradient(const gradients_run *run, const task *task) {
    size_t width = task->weight->columns;
    float *gradient = run->gradient + task->weight->offset;
    for (size_t i = 0; i < run->count; i++) {
        size_t token = run->tokens[i];
        if (token >= task->first && token - task->first < task->rows) {
            run->pass->model->kernels->add(gradient + token * width, run->pass->dembedded + i * width,
                                           width);
        }
    }
}

static weft_status run_task(void *argument, size_t index, unsigned worker) {
    const gradients_run *run = argument;
    const lm_model *model = run->pass->model;
    const task *task = &run->tasks[index];
    if (task->weight->norm) {
        norm_gradient(run, task->weight);
    } else if (task->weight->forward != NULL) {
        matrix_gradient(run, task, run->pass->scratch[worker].block);
    }
    if (task->weight == lm_model_embedding(model)) {
        embedding_gradient(run, task);
    }
    return WEFT_OK;
}

static size_t list_tasks(const lm_model *model, task *tasks) {
    size_t count = 0;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        for (size_t row = 0; row < weight->rows; row += TASK_ROWS) {
            size_t left = weight->rows - row;
            if (tasks != NULL) {
                tasks[count] = (task){weight, row, left < TASK_ROWS ? left : TASK_ROWS};
            }
            count++;
        }
    }
    return count;
}

weft_status lm_weight_gradients(lm_pass *pass, const lm_batch *batch, size_t first, size_t sequences,
                                float *gradient) {
    weft_context *context = pass->model->context;
    size_t start = batch->starts[first];
    gradients_run run = {
        .pass = pass,
        .tokens = batch->tokens + start,
        .count = batch->starts[first + sequences] - start,
        .gradient = gradient,
    };
    size_t count = list_tasks(pass->model, NULL);
    run.tasks = weft_allocate_array(context, count, sizeof *run.tasks);
    if (run.tasks == NULL) {
        return WEFT_NO_MEMORY;
    }
    list_tasks(pass->model, run.tasks);
    weft_status status = weft_parallel(context, count, run_task, &run);
    weft_release(context, run.tasks);
    return status;
}
