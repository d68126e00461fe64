/* SPDX-License-Identifier: Apache-2.0
 *
 * collect.h: the trainer's side of slots: waits until all of a batch are there, checks each as it comes,
 * and puts them together in their order, whoever made them and whenever they came.
 *
 * What does not pass is counted by its reason, told of, and removed, so that a worker makes the slot again.
 */
#ifndef WEFT_TRAIN_LEARNER_COLLECT_H
#define WEFT_TRAIN_LEARNER_COLLECT_H

#include "../../lm/learn/grpo.h"
#include "../patience.h"
#include "../trajectory.h"

/* A policy that was published, or will be by another rank. */
typedef struct train_policy {
    uint64_t step;
    uint64_t version; /* 0: not known to this rank */
    weft_digest digest;
} train_policy;

/* A look at other things while slots are missing. WEFT_MORE: they are not wanted any more. */
typedef weft_status (*train_idle_function)(void *opaque);

typedef struct train_collector {
    weft_context *context;
    weft_store *store;
    const train_run *run;
    lm_pass *pass; /* over the newest policy: scores trajectories that claim to be its own */
    train_patience *patience;
    const train_watch *watch;
    uint32_t first;           /* slot of this rank's */
    train_idle_function idle; /* NULL: there is nothing to look at */
    void *opaque;
    train_policy policies[TRAIN_STALENESS_MAX + 1]; /* newest first */
    size_t policy_count;
    uint8_t *buffer;                  /* takes the largest object */
    float *scores;                    /* of a slot's tokens */
    uint64_t rejected[TRAIN_REASONS]; /* since the open */
    double looked;                    /* at the description of the run */
} train_collector;

/* What a worker has done for a batch. */
typedef struct train_share {
    char name[WEFT_FOLLOWER_NAME];
    uint64_t version; /* the newest that it used */
    size_t sequences;
    train_effort effort;
} train_share;

typedef struct train_batch {
    weft_context *context;
    lm_rollouts rollouts; /* over the arrays below */
    size_t *starts;
    size_t *prompts;
    lm_token *tokens;
    float *logp;
    float *old; /* NULL: nobody has asked for it */
    float *rewards;
    train_caches caches;
    double staleness; /* mean, in steps */
    uint64_t stalest;
    train_share *shares; /* one for each worker */
    size_t share_count;
} train_batch;

WEFT_CHECKED weft_status train_collector_open(train_collector *collector, weft_context *context,
                                              weft_store *store, const train_run *run, lm_pass *pass,
                                              train_patience *patience);
void train_collector_close(train_collector *collector);
/* A policy is published, as a version: from now on it may be used. That of the same step is replaced. */
void train_collector_note(train_collector *collector, const train_policy *policy);

/* Waits for all slots of this rank in a batch. The newest policy must be that of the batch's round, or,
 * where rounds overlap, of the one before. WEFT_MORE: the idle function says that they are not wanted any
 * more. */
WEFT_CHECKED weft_status train_collect(train_collector *collector, uint64_t batch, train_batch *batch_out);
void train_batch_close(train_batch *batch);
/* Scores the batch as the policy of the pass does with a whole cache: that is then the old policy of the
 * rollouts, and their log-probabilities are the sampler's. */
WEFT_CHECKED weft_status train_batch_score(train_batch *batch, lm_pass *pass, float temperature);
/* WEFT_CONFLICT if another trainer has begun a run in the store: what lies there is that one's. */
WEFT_CHECKED weft_status train_collector_check_run(train_collector *collector);
/* Removes the slots of a batch, which is done. A store that refuses is left in peace. */
void train_collector_clear(train_collector *collector, uint64_t batch);

/* Checks an object that lies at a slot: all that train_trajectory_parse does, and that it is of that slot,
 * of a policy that was published and may still be used, and scored as that policy does where it is the
 * newest and still what this rank computes with, at the first step of a round that does not overlap, and
 * the run does not compress caches. */
WEFT_CHECKED weft_status train_collector_check(train_collector *collector, uint64_t batch, uint32_t slot,
                                               const void *data, size_t size,
                                               train_trajectory *trajectory_out, train_reason *reason_out);

#endif
