/* SPDX-License-Identifier: Apache-2.0
 *
 * adam.c: see adam.h. The masters are cut into blocks of a fixed size; their squares are summed block by
 * block in double precision, and the blocks' sums in order.
 */
#include "adam.h"

#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1 << 15 };

lm_adam_options lm_adam_defaults(void) {
    return (lm_adam_options){
        .rate = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .clip = 1, .warm_up = 20};
}

static bool in_unit(double value) {
    return value >= 0 && value < 1;
}

weft_status lm_adam_check(weft_context *context, const lm_adam_options *options) {
    if (!(options->rate >= 0 && options->rate <= 1) || !in_unit(options->beta1) ||
        !in_unit(options->beta2) || !(options->epsilon > 0) || !in_unit(options->decay) ||
        !(options->clip >= 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "AdamW cannot use rate %g, betas %g and %g, epsilon %g, decay %g, clip %g",
                         options->rate, options->beta1, options->beta2, options->epsilon, options->decay,
                         options->clip);
    }
    return WEFT_OK;
}

weft_status lm_adam_create(lm_model *model, lm_adam **adam_out) {
    weft_context *context = model->context;
    if (model->masters == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "a worker's model has no masters to optimize");
    }
    lm_adam *adam = weft_allocate_zeroed(context, 1, sizeof *adam);
    if (adam == NULL) {
        return WEFT_NO_MEMORY;
    }
    adam->model = model;
    adam->first = weft_allocate_zeroed(context, model->parameters, sizeof *adam->first);
    adam->second = weft_allocate_zeroed(context, model->parameters, sizeof *adam->second);
    if (adam->first == NULL || adam->second == NULL) {
        lm_adam_destroy(adam);
        return WEFT_NO_MEMORY;
    }
    *adam_out = adam;
    return WEFT_OK;
}

void lm_adam_destroy(lm_adam *adam) {
    if (adam == NULL) {
        return;
    }
    weft_context *context = adam->model->context;
    weft_release(context, adam->second);
    weft_release(context, adam->first);
    weft_release(context, adam);
}

void lm_adam_reset(lm_adam *adam) {
    memset(adam->first, 0, adam->model->parameters * sizeof *adam->first);
    memset(adam->second, 0, adam->model->parameters * sizeof *adam->second);
    adam->steps = 0;
}

typedef struct adam_run {
    lm_adam *adam;
    const float *gradient;
    lm_adam_step step;
    double decay;
    double *squares; /* by block */
} adam_run;

static size_t block_count(size_t parameters) {
    return (parameters + BLOCK - 1) / BLOCK;
}

static weft_status sum_block(void *argument, size_t index, unsigned worker) {
    (void)worker;
    adam_run *run = argument;
    size_t end = (index + 1) * BLOCK;
    size_t all = run->adam->model->parameters;
    double squares = 0;
    for (size_t i = index * BLOCK; i < end && i < all; i++) {
        squares += (double)run->gradient[i] * run->gradient[i];
    }
    run->squares[index] = squares;
    return WEFT_OK;
}

static weft_status step_weight(void *argument, size_t index, unsigned worker) {
    (void)worker;
    adam_run *run = argument;
    lm_model *model = run->adam->model;
    const lm_weight *weight = &model->weights[index];
    lm_adam_step step = run->step;
    step.decay = weight->norm ? 0 : (float)run->decay;
    model->kernels->adam(&step, run->gradient + weight->offset, model->masters + weight->offset,
                         run->adam->first + weight->offset, run->adam->second + weight->offset,
                         weight->rows * weight->columns);
    return WEFT_OK;
}

static weft_status gradient_norm(adam_run *run, double *norm_out) {
    lm_model *model = run->adam->model;
    size_t blocks = block_count(model->parameters);
    run->squares = weft_allocate_array(model->context, blocks, sizeof *run->squares);
    if (run->squares == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_parallel(model->context, blocks, sum_block, run);
    double squares = 0;
    for (size_t i = 0; i < blocks && status == WEFT_OK; i++) {
        squares += run->squares[i];
    }
    weft_release(model->context, run->squares);
    if (status == WEFT_OK && !isfinite(squares)) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "the gradient is not finite; lower the learning rate");
    }
    *norm_out = sqrt(squares);
    return status;
}

weft_status lm_adam_run(lm_adam *adam, const lm_adam_options *options, const float *gradient,
                        double *norm_out) {
    lm_model *model = adam->model;
    weft_status status = lm_adam_check(model->context, options);
    adam_run run = {.adam = adam, .gradient = gradient};
    double norm = 0;
    if (status == WEFT_OK) {
        status = gradient_norm(&run, &norm);
    }
    if (status != WEFT_OK) {
        return status;
    }
    double steps = (double)run.adam->steps + 1;
    double warm = options->warm_up > 0 ? steps / (double)options->warm_up : 1;
    double rate = options->rate * (warm < 1 ? warm : 1);
    bool clipped = options->clip > 0 && norm > options->clip;
    run.decay = options->decay * rate;
    run.step = (lm_adam_step){
        .rate = (float)rate,
        .beta1 = (float)options->beta1,
        .beta2 = (float)options->beta2,
        .bias1 = (float)(1 - pow(options->beta1, steps)),
        .bias2 = (float)(1 - pow(options->beta2, steps)),
        .epsilon = (float)options->epsilon,
        .scale = clipped ? (float)(options->clip / norm) : 1.0f,
    };
    status = weft_parallel(model->context, model->weight_count, step_weight, &run);
    if (status == WEFT_OK) {
        adam->steps += 1;
        status = lm_model_refresh(model);
    }
    if (status == WEFT_OK && norm_out != NULL) {
        *norm_out = norm;
    }
    return status;
}
