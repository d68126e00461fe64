/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h: what a trainer is told, and what it does if it is not: the one home of the defaults.
 */
#ifndef WEFT_TRAIN_OPTIONS_H
#define WEFT_TRAIN_OPTIONS_H

#include "../lm/learn/grpo.h"
#include "../lm/learn/warmup.h"
#include "patience.h"
#include "run.h"

typedef struct train_options {
    train_run run;                /* without its name */
    lm_grpo_options grpo;         /* the temperature is the run's */
    lm_warmup_options warmup;     /* to a success of 0: none; the seed is the run's */
    const char *cache;            /* a directory for warmed-up policies; NULL: they are not kept */
    uint64_t evaluation_interval; /* steps between evaluations on fresh prompts; 0: only the last */
    size_t evaluation_prompts;
    const char *output;  /* a directory for state, metrics and the model */
    bool fresh;          /* begin anew, whatever is there */
    bool change;         /* a run that is gone on with may learn otherwise from here on */
    bool durable;        /* the state outlasts a power cut */
    const weft_key *key; /* signs versions and what trainers agree on; NULL: they are not signed */
    uint32_t rank;       /* of this trainer */
    bool join;           /* rank 0 may go on with a run of the store whose state is not in `output` */
    /* Over MPI; NULL: trainers meet in the store. The caller closes it. */
    const weft_loco_exchange *exchange;
    double deadline;        /* seconds that the end of a round is waited for who is late, over a store */
    double patience;        /* seconds without anything new until it gives up */
    uint64_t density_bytes; /* memory for counting densities over several steps */
    const train_watch *watch;
} train_options;

/* A model of 0.1 million parameters that learns chained sums in about two minutes. */
train_options train_options_defaults(void);
/* WEFT_INVALID_ARGUMENT if there can be no such run. */
WEFT_CHECKED weft_status train_options_check(weft_context *context, const train_options *options);

#endif
