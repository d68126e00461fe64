/* SPDX-License-Identifier: Apache-2.0
 *
 * pass.h: the memory of a pass over sequences, and the pieces of which forward.c and backward.c make it.
 *
 * A batch goes through in chunks of whole sequences, as many as the memory holds, and a chunk in slices of
 * a few sequences, which threads take one by one through all layers and back. Then the gradients of the
 * weights are computed, one block of rows of one matrix at a time, over all tokens of the chunk in order.
 * By what kernels.h promises neither slices nor threads have an influence on any bit. Chunks have one only
 * on a tied embedding, where two sums meet; their size depends on the config alone.
 */
#ifndef WEFT_LM_MODEL_PASS_H
#define WEFT_LM_MODEL_PASS_H

#include "model.h"

/* Sequences one behind another: sequence s is tokens[starts[s]] to tokens[starts[s + 1]], without the end.
 */
typedef struct lm_batch {
    size_t sequences;
    const size_t *starts; /* sequences + 1, ascending; a part of a batch keeps its numbers */
    const lm_token *tokens;
} lm_batch;

/* Empty or too long sequences and tokens outside of the vocabulary are refused. */
WEFT_CHECKED weft_status lm_batch_check(const lm_model *model, const lm_batch *batch);

/* What is kept of a layer, a row for each token of the chunk. */
typedef struct lm_layer_memory {
    float *input; /* the residual stream that comes in */
    float *input_scale;
    float *normed;
    float *query; /* rotated */
    float *key;   /* rotated */
    float *value;
    float *attended;
    float *middle; /* the residual stream after attention */
    float *middle_scale;
    float *middle_normed;
    float *gate; /* later its gradient; so is up */
    float *up;
    float *activation;
    /* gradients; not in a pass that only scores */
    float *doutput;
    float *dmiddle_normed;
    float *dmiddle;
    float *dquery;
    float *dkey;
    float *dvalue;
    float *dnormed;
} lm_layer_memory;

/* Scratch of one worker. */
typedef struct lm_scratch {
    float *scores;
    float *dscores;
    float *keys; /* packed, of one head */
    float *values;
    float *others;
    float *dactivation;
    float *dattended;
    float *block; /* packed inputs of a weight's gradient */
} lm_scratch;

typedef struct lm_pass {
    lm_model *model;
    bool training;
    size_t capacity; /* tokens of a chunk */
    unsigned workers;
    lm_layer_memory *layers; /* one more than the model has: its input is what comes out of the last */
    float *final_scale;
    float *final_normed;
    float *dfinal_normed;
    float *dembedded;
    float *logits; /* later log-probabilities, later their gradient */
    lm_scratch *scratch;
    float *memory;
    float *scratch_memory;
} lm_pass;

/* A pass that only scores takes much less memory. */
WEFT_CHECKED weft_status lm_pass_create(lm_model *model, bool training, lm_pass **pass_out);
void lm_pass_destroy(lm_pass *pass);

/* The number of sequences from `first` on that make the next chunk, at most `limit` tokens (but at least
 * one sequence). */
size_t lm_batch_take(const lm_batch *batch, size_t first, size_t limit);

/* Sequences of a chunk; rows of the memory begin with the chunk's first token. */
typedef struct lm_slice {
    const lm_batch *batch;
    size_t origin; /* the chunk's first token in the batch */
    size_t first;  /* sequence */
    size_t sequences;
    float temperature;
    unsigned worker;
} lm_slice;

enum {
    LM_SLICE_TOKENS = 192,
    LM_ATTENTION_ROWS = 12,  /* queries that are computed together */
    LM_GRADIENT_DEPTH = 256, /* tokens that are packed at a time for a weight's gradient */
};

static inline size_t lm_slice_row(const lm_slice *slice) {
    return slice->batch->starts[slice->first] - slice->origin;
}
static inline size_t lm_slice_rows(const lm_slice *slice) {
    return slice->batch->starts[slice->first + slice->sequences] - slice->batch->starts[slice->first];
}
static inline size_t lm_batch_length(const lm_batch *batch, size_t sequence) {
    return batch->starts[sequence + 1] - batch->starts[sequence];
}

/* Runs the slice through the model and leaves log-probabilities in the rows of pass->logits that have a
 * next token. */
void lm_forward_slice(lm_pass *pass, const lm_slice *slice);
/* The attention probabilities of one head of one sequence, into scratch->scores with `length` floats per
 * row; scratch->keys holds the head's packed keys. Each tile of rows is zero up to its last column. */
void lm_attention_probabilities(const lm_pass *pass, const float *query, size_t length,
                                lm_scratch *scratch);
/* Adds the gradients of all weights over the chunk's tokens. */
weft_status lm_weight_gradients(lm_pass *pass, const lm_batch *batch, size_t first, size_t sequences,
                                float *gradient);

WEFT_CHECKED weft_status lm_check_temperature(const lm_model *model, float temperature);

/* C (+)= A W for `rows` rows that lie close; W is packed, `depth` rows of `columns`. */
void lm_apply(const lm_model *model, const float *panels, size_t rows, size_t columns, size_t depth,
              const float *input, float *output, bool accumulate);
/* The same with the transpose of a weight, as layers use it. */
void lm_apply_forward(const lm_model *model, const lm_weight *weight, size_t rows, const float *input,
                      float *output, bool accumulate);
/* Rotates the heads of each row by its position in its sequence; `direction` is 1, or -1 for the way back.
 */
void lm_rotate_rows(const lm_model *model, float *rows, size_t heads, size_t length, float direction);

/* ---- what the model makes of sequences that are given ---- */

/* logp[i] becomes the log-probability of token i of the batch, given those before it in its sequence, at
 * the given temperature; 0 for the first of a sequence. The same bits as generation gave. */
WEFT_CHECKED weft_status lm_score(lm_pass *pass, const lm_batch *batch, float temperature, float *logp);

/* ---- the gradient of a loss that is a function of tokens' log-probabilities ---- */

/* What the loss is, is the caller's: warmup.c and grpo.c give it as its derivative. Sets slopes[i], the
 * derivative of the loss by the log-probability of token i of the sequence, which has `length` tokens; the
 * first token's has no effect. Called from several threads, each sequence once. */
typedef void (*lm_slope_function)(void *opaque, size_t sequence, size_t length, const float *logp,
                                  float *slopes);

/* Adds the gradient of the loss to `gradient`, laid out like the parameters, which is that of the live BF16
 * weights and moves the masters. The pass must be one for training. `logp` receives the log-probabilities.
 */
WEFT_CHECKED weft_status lm_gradient(lm_pass *pass, const lm_batch *batch, float temperature,
                                     lm_slope_function slope, void *opaque, float *gradient, float *logp);

#endif
