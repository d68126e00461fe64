/* SPDX-License-Identifier: Apache-2.0
 *
 * grpo.h: group-relative policy optimization. A step is a function of the trainer's state and of arrays
 * that may have come from anywhere: it draws no random number and reads no clock.
 *
 *     A_i  = (r_i - mean of the group) / (deviation of the group + 1e-6)
 *     w_t  = exp(logp_t - logp_t of the old policy)
 *     loss = - mean over sequences of the mean over tokens of
 *            xi_t min(w_t A_i, clip(w_t, 1 - clip_low, 1 + clip_high) A_i) - kl * (exp(d_t) - 1 - d_t),
 *     d_t  = logp_t of the reference - logp_t
 *
 * The old policy is that which sampled, unless the sampler's cache was compressed: then xi_t is what the
 * correction makes of old policy and sampler (weft/rollout.h), and else 1.
 */
#ifndef WEFT_LM_LEARN_GRPO_H
#define WEFT_LM_LEARN_GRPO_H

#include "trainer.h"

#include <weft/rollout.h>

typedef struct lm_rollouts {
    lm_batch batch;        /* prompts and responses; groups lie together */
    const size_t *prompts; /* tokens of each that are its prompt and are not trained */
    const float *logp;     /* of each token, by the policy that sampled it */
    const float *old;      /* of each token, by the same weights with a whole cache; NULL: `logp` */
    const float *rewards;  /* of each sequence */
    const uint8_t *mask;   /* of each token: 0 leaves it out; NULL: all of a response count */
    size_t group;
} lm_rollouts;

typedef struct lm_grpo_options {
    lm_adam_options adam;
    float temperature; /* that of sampling */
    double clip_low;
    double clip_high;
    bool normalise;                     /* divide by the deviation of the group */
    double kl;                          /* weight of the divergence from the reference; 0: none */
    size_t updates;                     /* steps of the optimizer, each on its share of the groups */
    size_t passes;                      /* how often all of that is done */
    weft_correction_options correction; /* of `old` against `logp` of the rollouts; all zero: none */
} lm_grpo_options;

typedef struct lm_grpo_result {
    double reward;  /* mean */
    double loss;    /* mean over updates, before each */
    double clipped; /* share of tokens whose ratio was clipped */
    double ratio;   /* mean of |log w| */
    double kl;      /* mean divergence from the reference; 0 without one */
    double norm;    /* mean norm of the gradient, before clipping */
    size_t updates; /* steps that were made */
    size_t skipped; /* steps without any advantage or any token that was kept, which were not */
    weft_correction_diagnostics correction;
} lm_grpo_result;

/* Rate 1e-4 without warm-up, temperature 1, clip 0.2 and 0.28, normalised, no divergence, 2 updates, 1
 * pass. */
lm_grpo_options lm_grpo_defaults(void);
/* `reference` is NULL or a pass over the reference model. An update that nothing would move, for want of
 * an advantage or because all is rejected, is left out: momentum alone would still change the weights.
 * Where the gradient is shared, it is left out if it is for all who share it. */
WEFT_CHECKED weft_status lm_grpo_step(lm_trainer *trainer, const lm_rollouts *rollouts,
                                      const lm_grpo_options *options, lm_pass *reference,
                                      lm_grpo_result *result_out);

#endif
