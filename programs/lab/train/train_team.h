/* SPDX-License-Identifier: Apache-2.0
 *
 * train_team.h: the options of `weft train` for several trainers, and the way into MPI.
 */
#ifndef WEFT_PROGRAMS_LAB_TRAIN_TRAIN_TEAM_H
#define WEFT_PROGRAMS_LAB_TRAIN_TRAIN_TEAM_H

#include "../../cli/command.h"

#include "../../../train/options.h"

typedef struct train_team_options {
    bool given;            /* one of them was */
    train_options *chosen; /* the trainer's, into which they go */
    uint32_t local_steps;  /* 0: not given */
    bool over_mpi;
    bool rank_given;
    const char *of_store;        /* an option that was given, and is for trainers that meet in a store */
    const char *of_outer;        /* … for those with an outer optimizer */
    const char *of_values;       /* … for those that send what a forward pass can see */
    weft_loco_exchange exchange; /* of MPI */
} train_team_options;

/* To be a child of the verb's, with a train_team_options for its input. */
extern const struct argp train_team_argp;

/* What follows from what was given; for the end of parsing. */
void train_team_choose(train_team_options *team, struct argp_state *state);

/* Over MPI: joins the trainers that it has started; the rank, their number and the exchange are set. */
WEFT_CHECKED weft_status train_team_join(weft_context *context, train_team_options *team);
/* To be called if the run went well. A rank that fails must not wait for the others: it ends, and MPI ends
 * them. */
void train_team_leave(train_team_options *team);

#endif
