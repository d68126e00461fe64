/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.h: a model that learns, with all that its steps need; and what a worker does for it: prompts of a
 * task, responses, rewards.
 */
#ifndef WEFT_LM_LEARN_TRAINER_H
#define WEFT_LM_LEARN_TRAINER_H

#include "../model/pass.h"
#include "adam.h"
#include "generate.h"
#include "task.h"

/* What becomes of a trainer's gradient before the optimizer sees it: where several learn together, the mean
 * of theirs. */
typedef weft_status (*lm_reduce_function)(void *opaque);

typedef struct lm_trainer {
    lm_model *model;
    lm_adam *adam;
    lm_pass *pass;
    float *gradient;
    lm_reduce_function reduce; /* NULL: nothing becomes of it */
    void *reduce_opaque;
} lm_trainer;

WEFT_CHECKED weft_status lm_trainer_create(weft_context *context, const lm_config *config,
                                           lm_trainer **trainer_out);
void lm_trainer_destroy(lm_trainer *trainer);
/* One step of the optimizer along the gradient of a loss (pass.h). `logp`, of each token, is that
 * before the step. */
WEFT_CHECKED weft_status lm_trainer_step(lm_trainer *trainer, const lm_batch *batch, float temperature,
                                         lm_slope_function slope, void *opaque,
                                         const lm_adam_options *options, float *logp, double *norm_out);

/* A step with nothing to say: others who share the gradient may have. Without any it is left out. */
WEFT_CHECKED weft_status lm_trainer_follow(lm_trainer *trainer, const lm_adam_options *options,
                                           bool *stepped_out, double *norm_out);

/* ---- rollouts ---- */

typedef struct lm_rollout_options {
    uint64_t seed;             /* of prompts and of responses */
    uint64_t first;            /* number of the first prompt */
    size_t prompts;            /* how many, with consecutive numbers */
    size_t group;              /* responses to each */
    float temperature;         /* 0: the likeliest tokens */
    const weft_kv_options *kv; /* as of lm_sampling */
    size_t kv_bytes;
} lm_rollout_options;

/* Responses of one group lie together. `rewards` receives one for each, prompts * group. A response depends
 * on the weights, the seed, the prompt's number and its place in the group only. */
WEFT_CHECKED weft_status lm_rollout(lm_model *model, const lm_task *task, const lm_rollout_options *options,
                                    float *rewards, lm_samples **samples_out);
/* The share of `prompts` fresh prompts that are answered rightly. */
WEFT_CHECKED weft_status lm_evaluate(lm_model *model, const lm_task *task,
                                     const lm_rollout_options *options, double *success_out);

#endif
