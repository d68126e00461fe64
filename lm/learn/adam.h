/* SPDX-License-Identifier: Apache-2.0
 *
 * adam.h: AdamW on a trainer's masters, with FP32 moments, clipping by the global norm and a linear warm-up
 * of the rate. Norms are not decayed.
 */
#ifndef WEFT_LM_LEARN_ADAM_H
#define WEFT_LM_LEARN_ADAM_H

#include "../model/model.h"

typedef struct lm_adam_options {
    double rate;
    double beta1;
    double beta2;
    double epsilon;
    double decay;
    double clip;      /* largest norm of the gradient; 0: not clipped */
    uint64_t warm_up; /* steps until the full rate */
} lm_adam_options;

/* Rate 1e-6, betas 0.9 and 0.999, epsilon 1e-8, no decay, clip 1, warm-up 20. */
lm_adam_options lm_adam_defaults(void);
WEFT_CHECKED weft_status lm_adam_check(weft_context *context, const lm_adam_options *options);

typedef struct lm_adam {
    lm_model *model;
    float *first;
    float *second;
    uint64_t steps; /* done */
} lm_adam;

WEFT_CHECKED weft_status lm_adam_create(lm_model *model, lm_adam **adam_out);
void lm_adam_destroy(lm_adam *adam);
/* Forgets the moments, as for a new phase of training. */
void lm_adam_reset(lm_adam *adam);

/* One step along `gradient`, laid out like the masters, and a refresh of the model. The norm is that before
 * clipping. A gradient that is not finite is refused and nothing is changed. The same bits for any number
 * of threads. */
WEFT_CHECKED weft_status lm_adam_run(lm_adam *adam, const lm_adam_options *options, const float *gradient,
                                     double *norm_out);

#endif
