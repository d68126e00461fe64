/* SPDX-License-Identifier: Apache-2.0
 *
 * warmup.h: supervised training on right answers until the policy, sampling, succeeds often enough for
 * rewards to teach it the rest.
 */
#ifndef WEFT_LM_LEARN_WARMUP_H
#define WEFT_LM_LEARN_WARMUP_H

#include "trainer.h"

/* After an evaluation. Return false to stop, which ends the warm-up with WEFT_CANCELLED. */
typedef bool (*lm_warmup_watcher)(void *opaque, uint64_t step, double loss, double success);

typedef struct lm_warmup_options {
    lm_adam_options adam;
    uint64_t seed;
    size_t batch;              /* examples of a step */
    uint64_t steps;            /* at most */
    double success;            /* to be reached */
    uint64_t interval;         /* steps between evaluations; learning is abrupt, so often */
    uint32_t shorter;          /* sums of chains that are learned before, to the same success, so that the
                                  rest is so quick that each step is evaluated; 0: none */
    size_t evaluation;         /* prompts of an evaluation */
    lm_warmup_watcher watcher; /* may be NULL */
    void *opaque;
} lm_warmup_options;

typedef struct lm_warmup_result {
    uint64_t steps;
    double loss;    /* of the last step, per token of an answer */
    double success; /* of the last evaluation */
    bool reached;
} lm_warmup_result;

/* Rate 1e-3, batch 128, success 0.55, at most 3000 steps, evaluated every 5 on 256 prompts. */
lm_warmup_options lm_warmup_defaults(void);
/* Continues from the trainer's state. That the success was not reached is no failure: see the result. */
WEFT_CHECKED weft_status lm_warmup(lm_trainer *trainer, const lm_task *task,
                                   const lm_warmup_options *options, lm_warmup_result *result_out);

#endif
