/* SPDX-License-Identifier: Apache-2.0
 *
 * team.h: several trainers that learn one policy: what a rank does about the others.
 *
 * Every rank holds the same policy at the beginning of a round, the consensus, and learns from batches of
 * its own. At the end of the round the ranks agree (lib/loco): over a store, where the others go on without
 * a rank that is gone, or over MPI, where they do not. Under DDP they agree on the gradient of every update
 * instead, and a round is a step.
 *
 * Rounds that overlap are begun when their steps are made, and ended when those of the next are: meanwhile
 * payloads travel, and a rank trains on from where the consensus is likely to be.
 */
#ifndef WEFT_TRAIN_LEARNER_TEAM_H
#define WEFT_TRAIN_LEARNER_TEAM_H

#include "../options.h"

/* What the agreement of a round was like for this rank. Under DDP, of all updates of a step. */
typedef struct train_round {
    uint64_t number;
    uint64_t elements; /* weights */
    uint64_t fired;    /* of them sent */
    uint32_t included; /* ranks that took part */
    uint64_t sent;     /* bytes of payloads; and of snapshots of the consensus */
    uint64_t sent_snapshots;
    uint64_t received;
    uint64_t received_snapshots;
    weft_digest digest; /* of what all ranks have in common after it */
    double residual;    /* norm of what was not sent */
    double gate;        /* seconds: what to send was found and encoded */
    double share;       /* payloads travelled, and ranks waited for each other */
    double aggregate;
} train_round;

typedef struct train_team {
    weft_context *context;
    const train_run *run;
    const train_options *options;
    lm_trainer *trainer;
    train_patience *patience;
    weft_loco *loco; /* NULL: there is one trainer, which agrees with nobody */
    weft_loco_exchange exchange;
    weft_table *extra; /* of the state: what the inner optimizer knows */
    weft_table *table; /* of the consensus */
    lm_model *policy;  /* the consensus, where rounds overlap; NULL: it is what the trainer holds */
    uint32_t leader;   /* of the last round that has ended here */
    train_round round; /* of which some of this is known already */
    double passing;    /* seconds that a rank leaves what is to be done to each whose turn is before */
    weft_loco_store_stats told; /* traffic that stands in rounds already */
} train_team;

/* Joins the others. The consensus is what the trainer holds. A run of one trainer needs no team, and may be
 * asked about all the same. */
WEFT_CHECKED weft_status train_team_open(train_team *team, weft_store *store, const train_run *run,
                                         const train_options *options, lm_trainer *trainer,
                                         train_patience *patience);
void train_team_close(train_team *team);

/* Of the policy that is published: the consensus. */
const weft_table *train_team_table(const train_team *team);
/* The policy that is published, as a model to evaluate. At the end of a round the trainer holds it, too,
 * unless rounds overlap. */
lm_model *train_team_policy(const train_team *team);
/* The rank that publishes: it has led the last round. */
uint32_t train_team_leader(const train_team *team);
/* False over MPI, where a rank that is gone ends the job. */
bool train_team_goes_on(const train_team *team);

/* The state of this rank, at so many steps. */
WEFT_CHECKED weft_status train_team_save(train_team *team, uint64_t step, const char *path);
WEFT_CHECKED weft_status train_team_load(train_team *team, const char *path, uint64_t *step_out);

/* Begins the round that this rank has made the steps of: its payload is on its way when this returns, and
 * its weights are ahead of the consensus. Only where rounds overlap. */
WEFT_CHECKED weft_status train_team_begin(train_team *team);
/* Ends the round: from here on the trainer holds the new consensus, and, if it was begun before, what it
 * has learned since. Waits out what may pass. WEFT_MORE: the others have ended it without this rank, and
 * more rounds, and it holds the consensus where they are now.
 */
WEFT_CHECKED weft_status train_team_agree(train_team *team, train_round *round_out);
/* Whether this rank, which makes the steps of a round, is still wanted in it. WEFT_MORE: the others have
 * ended that round. */
WEFT_CHECKED weft_status train_team_look(train_team *team, uint64_t round);
/* Comes to where the others are. */
WEFT_CHECKED weft_status train_team_catch_up(train_team *team, uint64_t *rounds_out);

/* Over MPI: tells all ranks `size` bytes, and sets `all`, of as many bytes for each rank. */
WEFT_CHECKED weft_status train_team_tell(const train_options *options, weft_context *context,
                                         const void *own, size_t size, void *all);

#endif
