/* SPDX-License-Identifier: Apache-2.0
 *
 * learner.h: the role that learns. A step is: collect a batch, learn from it, save the state, publish the
 * policy, write the metrics, clear the batch away.
 *
 * The order is what makes a kill harmless at any instant. Before the state is saved, all slots of the batch
 * are still in the store, and the step is made again from the same bytes. From then on the batch is never
 * looked at again: what is left to do follows from the state alone, and is done when the trainer comes
 * back.
 *
 * Several trainers (team.h) each make steps like these. Only at the end of a round, when they have agreed,
 * is there a policy to publish; the rank that led the round does. Its batches are cleared away then, for
 * until then workers would make them again.
 *
 * Where rounds overlap, the state is saved once a round: when the round before has ended, and before the
 * payload of this one is made. A trainer that comes back makes the same payload from it, and the steps
 * since once more, from the same batches; so these are cleared away a round later, and the policy that is
 * published is a round behind the steps.
 */
#ifndef WEFT_TRAIN_LEARNER_LEARNER_H
#define WEFT_TRAIN_LEARNER_LEARNER_H

#include "metrics.h"
#include "team.h"

#include "../../lm/learn/state.h"

typedef struct train_learner {
    weft_context *context;
    weft_store *store;
    const train_options *options;
    train_run run;
    char *output; /* the directory of this rank */
    int lock;     /* of the output directory; below zero: not held */
    char *state_path;
    char
        *before_path; /* over MPI: the state before the last round, for ranks that did not get to its end */
    char *run_path;
    lm_trainer *trainer;
    train_team team;
    uint64_t saved_rounds; /* that stand in the state */
    train_round round;     /* that ended while the run was found again; included 0: none */
    double looked;         /* when it was last looked what the other ranks do */
    uint64_t refused;      /* trajectories of policies that were not known, before the store was asked */
    bool missing;          /* a policy which another rank should publish is not there */
    double missing_since;
    double turn;   /* seconds that each rank has to publish before the next one does */
    bool yields;   /* another rank was publishing when this one was about to */
    bool stood_in; /* it has published the newest policy for another rank, which seemed gone: */
    uint32_t stood_in_for;
    char first[WEFT_DIGEST_TEXT]; /* digest of the policy that the run began with */
    lm_model *reference;          /* NULL without a divergence from it */
    lm_pass *reference_pass;
    weft_view *view;
    weft_publisher *publisher; /* NULL: another rank publishes */
    train_patience patience;
    train_collector collector;
    train_metrics metrics;
    train_density density;
    uint64_t step;    /* steps that are done */
    uint64_t resumed; /* steps that were done when it came */
    uint64_t published_bytes;
    double success;                  /* of the last evaluation; below zero: none */
    uint64_t counted[TRAIN_REASONS]; /* rejections that stand in metrics already */
    bool mismatched;                 /* samplers are far from the policy, which has been told */
} train_learner;

typedef struct train_result {
    char run[WEFT_RUN_TEXT];
    uint64_t steps;    /* done in all */
    uint64_t resumed;  /* of these before this process */
    uint64_t version;  /* the newest; 0: another rank has published it */
    double reward;     /* mean of the last steps, at most 20; below zero: no step was made */
    double success;    /* of the last evaluation; below zero: none was made */
    uint64_t sent;     /* bytes of versions, by this process */
    uint64_t dense;    /* bytes of the model */
    uint64_t rejected; /* slots, by this process */
    double seconds;
} train_result;

/* Begins a run or goes on with it, until all steps are done. On WEFT_CANCELLED, as on any other failure,
 * the run can be gone on with. */
WEFT_CHECKED weft_status train_learner_run(weft_context *context, weft_store *store,
                                           const train_options *options, train_result *result_out);

/* ---- cache.c: warmed-up policies, kept so that the next run like this starts at once ---- */

/* Initialises and warms up the trainer, or takes that from the cache. Its moments are forgotten. Only a
 * saving of time: a policy that is missing there or damaged is made again. */
WEFT_CHECKED weft_status train_warm_up(lm_trainer *trainer, const train_options *options);

/* ---- between learner.c, learner_start.c and learner_publish.c ---- */

/* A learner that has done nothing yet, and holds nothing. */
void train_learner_open(train_learner *learner, weft_context *context, weft_store *store,
                        const train_options *options);
/* Everything until the first step can be made: the newest version in the store is this state's. */
WEFT_CHECKED weft_status train_learner_start(train_learner *learner);
/* Releases everything, whatever of it is there. */
void train_learner_close(train_learner *learner);
WEFT_CHECKED weft_status train_learner_save(train_learner *learner);
/* Keeps how the run learns from here on. */
WEFT_CHECKED weft_status train_learner_write_learning(train_learner *learner);
/* The same for a run that begins, with the digest of its first policy. */
WEFT_CHECKED weft_status train_learner_begin_learning(train_learner *learner);
/* WEFT_INVALID_ARGUMENT if the run that is gone on with learned otherwise, and no change is asked for. */
WEFT_CHECKED weft_status train_learner_resume_learning(train_learner *learner);
/* Reads the policy that the run began with, if it may not diverge much from it. At the first step it is
 * written; later it must be there. */
WEFT_CHECKED weft_status train_learner_open_reference(train_learner *learner);
/* After a state was loaded, or the rank has caught up, where rounds overlap: a round whose steps are made
 * is begun; the last one, which no steps follow, is ended, and the state saved. */
WEFT_CHECKED weft_status train_learner_take_up(train_learner *learner);
/* The rounds are other ones than the steps say, because the others went on: goes to where steps of this
 * rank are wanted next. Where rounds overlap those are of the round after the open one, to which it gives
 * what it has: so it is in step with the others at once. */
void train_learner_follow_rounds(train_learner *learner);
/* The step of the policy that is published: that of the consensus. */
uint64_t train_learner_policy_step(const train_learner *learner);
/* True if it is this rank's task to publish. */
bool train_learner_leads(const train_learner *learner);
/* The policy is a new one: publishes it, or knows what another rank will publish. Waits out what may pass.
 */
WEFT_CHECKED weft_status train_learner_offer(train_learner *learner, train_published *published);
/* Finds what has been published, does what is left of that to do, and writes a line of metrics that waits
 * for it. */
WEFT_CHECKED weft_status train_learner_find_published(train_learner *learner);
/* An idle function (collect.h), of a learner that is one of several. */
WEFT_CHECKED weft_status train_learner_look(void *learner);
/* The run is over: waits until the last policy is published, whoever does. */
WEFT_CHECKED weft_status train_learner_await_published(train_learner *learner);

#endif
