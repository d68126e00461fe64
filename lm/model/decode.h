/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.h: one token each of many sequences through the model, with caches of keys and values
 * (weft/rollout.h). Attention reads the caches as they lie: with nothing evicted it is, bit for bit, that
 * of forward.c. Rows do not influence each other and may be at different positions.
 */
#ifndef WEFT_LM_MODEL_DECODE_H
#define WEFT_LM_MODEL_DECODE_H

#include "model.h"

#include <weft/rollout.h>

/* A token to be read. */
typedef struct lm_decode_row {
    lm_token token;
    uint32_t position;
    weft_kv_cache **caches; /* by layer and key head, of this sequence */
} lm_decode_row;

/* The memory of one thread. */
typedef struct lm_decoder {
    const lm_model *model;
    size_t longest; /* tokens of a cache */
    float *x;
    float *normed;
    float *query;
    float *key;
    float *value;
    float *attended;
    float *scores;
    float *gate;
    float *up;
    float *logits; /* of the next token, by row */
} lm_decoder;

/* For so many rows at once, and caches of at most `longest` tokens. */
WEFT_CHECKED weft_status lm_decoder_open(const lm_model *model, size_t rows, size_t longest,
                                         lm_decoder *decoder);
void lm_decoder_close(lm_decoder *decoder);
/* Reads the tokens, appends them to the caches, and leaves logits. */
WEFT_CHECKED weft_status lm_decode(lm_decoder *decoder, const lm_decode_row *rows, size_t count);

/* The shape of the model's caches, and how many a sequence has. */
weft_kv_shape lm_cache_shape(const lm_config *config);
static inline size_t lm_cache_count(const lm_config *config) {
    return (size_t)config->layers * config->kv_heads;
}

#endif
