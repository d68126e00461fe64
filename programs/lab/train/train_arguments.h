/* SPDX-License-Identifier: Apache-2.0
 *
 * train_arguments.h: what `weft train` is told: train_arguments.c parses it, verb_train.c acts on it.
 */
#ifndef WEFT_PROGRAMS_LAB_TRAIN_TRAIN_ARGUMENTS_H
#define WEFT_PROGRAMS_LAB_TRAIN_TRAIN_ARGUMENTS_H

#include "../../cli/remote.h"

#include "../../../train/options.h"

typedef enum train_role { ROLE_NONE, ROLE_TRAINER, ROLE_ROLLOUT } train_role;

/* No number of first tokens was given: 0 is one. */
#define SINKS_OF_POLICY UINT64_MAX

/* Sampling with a compressed cache of keys and values, and the correction of what is learned from that. */
typedef struct train_sparse {
    weft_kv_policy policy;
    uint64_t budget;   /* 0: not given */
    uint64_t interval; /* 0: the policy's */
    uint64_t sinks;    /* or SINKS_OF_POLICY */
    uint64_t window;   /* 0: the policy's */
    bool keep_prompt;
    double share;
    double common;
    const char *correction;
    double veto; /* below 0: the preset's */
    bool exclude_rejected;
} train_sparse;

typedef enum train_exchange_kind { TRAIN_OVER_STORE, TRAIN_OVER_MPI } train_exchange_kind;

/* Several trainers. */
typedef struct train_team_options {
    train_options *chosen; /* the trainer's, into which they go */
    uint32_t local_steps;  /* 0: not given */
    train_exchange_kind exchange_kind;
    const char *of_rank;         /* --rank, if it was given */
    const char *of_store;        /* an option that was given, and is for trainers that meet in a store */
    const char *of_outer;        /* … for those with an outer optimizer */
    const char *of_values;       /* … for those that send what a forward pass can see */
    weft_loco_exchange exchange; /* of MPI */
} train_team_options;

typedef struct train_arguments {
    weft_command command;
    weft_remote remote;
    const char *store;
    train_role role;
    train_options chosen;
    train_sparse sparse;
    train_team_options team;
    bool no_cache;
    const char *cache;
    const char *sign_file;
    bool print_lines;
    const char *of_trainer; /* an option that was given and is a trainer's alone */
    const char *of_team;    /* … and is for several */
    const char *of_sparse;  /* … and is for a compressed cache */
    const char *name;
    double max_seconds;
    char title[64];    /* the verb and the rank, for messages */
    uint32_t included; /* trainers in the last round */
} train_arguments;

/* Parses the command line into `arguments`, which has the defaults, and runs. */
int train_arguments_run(train_arguments *arguments, int argc, char **argv, int (*run)(void *input));
/* Makes options of what was told of a compressed cache; an exit code. */
int train_sparse_choose(weft_command *command, const train_sparse *sparse, train_options *chosen);

/* ---- train_team.c: several trainers, and the way into MPI ---- */

/* What follows from what was given; for the end of parsing. */
void train_team_choose(train_team_options *team, struct argp_state *state);

/* Over MPI: joins the trainers that it has started; the rank, their number and the exchange are set. */
WEFT_CHECKED weft_status train_team_join(weft_context *context, train_team_options *team);
/* To be called if the run went well. A rank that fails must not wait for the others: it ends, and MPI ends
 * them. */
void train_team_leave(train_team_options *team);

#endif
