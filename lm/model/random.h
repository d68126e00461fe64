/* SPDX-License-Identifier: Apache-2.0
 *
 * random.h: random numbers by counting. A stream is a key; its n-th number is a hash of key and n. So a
 * stream is saved by two integers, and what one sequence draws never depends on what others drew.
 */
#ifndef WEFT_LM_MODEL_RANDOM_H
#define WEFT_LM_MODEL_RANDOM_H

#include <stdint.h>

typedef struct lm_random {
    uint64_t key;
    uint64_t count; /* numbers drawn so far */
} lm_random;

/* The stream of a seed; `stream` tells apart what uses the same seed. */
lm_random lm_random_open(uint64_t seed, uint64_t stream);
uint64_t lm_random_next(lm_random *random);
/* In [0, 1), 24 bits. */
float lm_random_uniform(lm_random *random);
/* Below `bound`, which is small; the bias is under bound / 2^32. */
uint32_t lm_random_below(lm_random *random, uint32_t bound);
/* Normal with mean 0 and variance 1. */
float lm_random_normal(lm_random *random);

#endif
