/* SPDX-License-Identifier: Apache-2.0
 *
 * train_arguments.h: what `weft train` is told: train_arguments.c parses it, verb_train.c acts on it.
 */
#ifndef WEFT_PROGRAMS_LAB_TRAIN_TRAIN_ARGUMENTS_H
#define WEFT_PROGRAMS_LAB_TRAIN_TRAIN_ARGUMENTS_H

#include "../../cli/remote.h"

#include "train_sparse.h"
#include "train_team.h"

#include "../../../train/options.h"

typedef enum train_role { ROLE_NONE, ROLE_TRAINER, ROLE_ROLLOUT } train_role;

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
    bool of_trainer; /* an option was given that is a trainer's alone */
    const char *name;
    double max_seconds;
    char title[64];    /* the verb and the rank, for messages */
    uint32_t included; /* trainers in the last round */
} train_arguments;

/* The whole of the verb's argp. */
extern const struct argp train_argp;

#endif
