/* SPDX-License-Identifier: Apache-2.0
 *
 * generate.h: continues prompts, many at once, with a cache of keys and values.
 *
 * Each sequence draws from a stream of its own, and no row of a product depends on the others: a response
 * is the same whatever it is generated together with and by however many threads, and its log-probabilities
 * are, bit for bit, those that lm_score gives, as long as nothing was evicted from its caches.
 */
#ifndef WEFT_LM_LEARN_GENERATE_H
#define WEFT_LM_LEARN_GENERATE_H

#include "../model/pass.h"

#include <weft/rollout.h>

typedef struct lm_sampling {
    float temperature; /* 0: always the likeliest token, scored at temperature 1 */
    uint64_t seed;
    size_t limit;              /* tokens of a response, at most */
    int32_t stop;              /* the token that ends a response, which has it as its last; -1: none */
    const weft_kv_options *kv; /* how caches are compressed; NULL: not at all */
    size_t kv_bytes;           /* that caches may take together; sequences wait for room. 0: any */
} lm_sampling;

/* Sequences that were generated, prompts included. */
typedef struct lm_samples {
    weft_context *context;
    size_t sequences;
    size_t *starts;  /* sequences + 1 */
    size_t *prompts; /* tokens of each that are its prompt */
    lm_token *tokens;
    float *logp; /* of each token at the sampling temperature, as it was sampled; 0 in prompts */
    weft_kv_usage kv;
} lm_samples;

/* Bytes that the caches of one sequence of so many tokens take at most; `kv` may be NULL. */
size_t lm_sampling_bytes(const lm_config *config, const weft_kv_options *kv, size_t tokens);

/* `streams` numbers the random stream of each prompt; equal prompts with different numbers give different
 * responses. A prompt and `limit` together may be as long as the context. */
WEFT_CHECKED weft_status lm_generate(lm_model *model, const lm_batch *prompts, const uint64_t *streams,
                                     const lm_sampling *sampling, lm_samples **samples_out);
void lm_samples_destroy(lm_samples *samples);
lm_batch lm_samples_batch(const lm_samples *samples);

#endif
