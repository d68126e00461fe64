/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.h: the gradient of a loss that is a function of tokens' log-probabilities. What the loss is, is
 * the caller's: warmup.c and grpo.c give it as its derivative.
 */
#ifndef WEFT_LM_MODEL_BACKWARD_H
#define WEFT_LM_MODEL_BACKWARD_H

#include "pass.h"

/* Sets slopes[i], the derivative of the loss by the log-probability of token i of the sequence, which has
 * `length` tokens; the first token's has no effect. Called from several threads, each sequence once. */
typedef void (*lm_slope_function)(void *opaque, size_t sequence, size_t length, const float *logp,
                                  float *slopes);

/* Adds the gradient of the loss to `gradient`, laid out like the parameters, which is that of the live BF16
 * weights and moves the masters. The pass must be one for training. `logp` receives the log-probabilities.
 */
WEFT_CHECKED weft_status lm_gradient(lm_pass *pass, const lm_batch *batch, float temperature,
                                     lm_slope_function slope, void *opaque, float *gradient, float *logp);

#endif
