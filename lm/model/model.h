/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h: the parameters of a model and what is computed with them.
 *
 * A trainer's model has FP32 masters; a worker's has none. In both the live weights are BF16 words, and all
 * computing uses those words, widened to FP32. lm_model_refresh carries the way from left to right:
 *
 *     masters --cast--> live BF16 words --widen--> values --pack--> panels for the products
 *
 * The table shows the masters (a trainer's: stored as F32, published as BF16) or the live words (a
 * worker's: writable, what a subscriber commits into). Either way what weft sends is exactly what is
 * computed with.
 */
#ifndef WEFT_LM_MODEL_MODEL_H
#define WEFT_LM_MODEL_MODEL_H

#include "config.h"
#include "kernels.h"

#include <weft/tensor.h>

/* The weights of a layer, in the order in which they lie. */
typedef enum lm_part {
    LM_INPUT_NORM,
    LM_QUERY,
    LM_KEY,
    LM_VALUE,
    LM_ATTENTION_OUT,
    LM_POST_NORM,
    LM_GATE,
    LM_UP,
    LM_DOWN,
    LM_PARTS,
} lm_part;

enum { LM_NAME_MAX = 64 };

typedef struct lm_weight {
    char name[LM_NAME_MAX]; /* as in a Hugging Face Llama checkpoint */
    size_t rows;            /* outputs; 1 for the gain of a norm */
    size_t columns;         /* inputs */
    size_t offset;          /* of its first parameter among all */
    bool norm;              /* a vector: no product, no weight decay */
    const float *forward;   /* packed for x W^T; NULL if there is no product with it */
    const float *backward;  /* packed for dy W */
} lm_weight;

typedef enum lm_role {
    LM_TRAINER, /* with masters */
    LM_WORKER,  /* without */
} lm_role;

typedef struct lm_model {
    weft_context *context;
    lm_config config;
    const lm_kernels *kernels;
    size_t parameters;
    size_t weight_count;
    lm_weight *weights;
    float *masters; /* NULL in a worker */
    uint16_t *live;
    float *values;
    float *packed;
    float *cosines; /* context rows of head / 2 */
    float *sines;
    weft_table *table;
} lm_model;

/* All parameters are zero until they are initialised, loaded or filled by a subscriber. */
WEFT_CHECKED weft_status lm_model_create(weft_context *context, const lm_config *config, lm_role role,
                                         lm_model **model_out);
void lm_model_destroy(lm_model *model);

/* A trainer's masters from a seed: norms 1, matrices normal with deviation 1 / sqrt(inputs), those that end
 * in the residual stream smaller by sqrt(2 layers). Refreshes. */
WEFT_CHECKED weft_status lm_model_initialise(lm_model *model, uint64_t seed);
/* To be called after the masters (trainer) or the live words (worker) have changed. */
WEFT_CHECKED weft_status lm_model_refresh(lm_model *model);
/* What to publish from, or to commit into. */
const weft_table *lm_model_table(const lm_model *model);

/* A copy for reference or evaluation, as a worker: the live words of `source`. Same config. */
WEFT_CHECKED weft_status lm_model_copy(lm_model *model, const lm_model *source);

const lm_weight *lm_model_layer(const lm_model *model, size_t layer, lm_part part);
const lm_weight *lm_model_embedding(const lm_model *model);
const lm_weight *lm_model_final_norm(const lm_model *model);
/* The output matrix: of its own, or the embedding. */
const lm_weight *lm_model_head(const lm_model *model);

#endif
