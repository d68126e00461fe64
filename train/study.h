/* SPDX-License-Identifier: Apache-2.0
 *
 * study.h: several trainers in one process, for questions about the way they agree: how much they send, and
 * what the policy gains. The same gradients, gates, payloads and outer optimizer as in real runs, without
 * stores and workers, whose bits are the same. Or one of them, which meets the others by an exchange, for
 * questions about time; the bits are the same again.
 *
 * Other ways stand beside them, for comparison. Forgetful has no error feedback: what is not sent is
 * forgotten. Rounded sends the difference of the BF16 weights, as the first version of the method did; the
 * rest, often of the other sign, stays in the residual. Nearest sends what PULSELoCo does, rounded to
 * BF16, where PULSELoCo with 8 significant bits cuts. DDP has no rounds: the mean of the ranks' gradients
 * is that of all their batches, so one trainer that learns from them makes its steps, and the policy that
 * samples is never older than a step.
 */
#ifndef WEFT_TRAIN_STUDY_H
#define WEFT_TRAIN_STUDY_H

#include "../lm/learn/grpo.h"
#include "run.h"

typedef enum train_study_way {
    TRAIN_STUDY_PULSELOCO,
    TRAIN_STUDY_DILOCO,
    TRAIN_STUDY_FORGETFUL, /* no error feedback */
    TRAIN_STUDY_ROUNDED,
    TRAIN_STUDY_NEAREST,
    TRAIN_STUDY_DDP,
    TRAIN_STUDY_WAYS,
} train_study_way;

/* "pulseloco", "diloco", "forgetful", "rounded", "nearest", "ddp". */
const char *train_study_name(train_study_way way);
bool train_study_find(const char *name, train_study_way *way_out);

typedef struct train_study_round {
    uint64_t round;
    bool counted;
    double reward;   /* mean of its steps and ranks */
    double fired;    /* share of the weights, mean over ranks */
    double sent;     /* bytes of a rank, mean */
    double changed;  /* share of the BF16 weights that differ from the round before */
    double residual; /* norm, mean over ranks */
    double seconds;  /* from its first step until the next round's can be made */
    double wait;     /* of these, seconds that went into ending a round, its own or the one before */
} train_study_round;

/* After each round. Return false to stop, which ends the study with WEFT_CANCELLED. */
typedef bool (*train_study_watcher)(void *opaque, const train_study_round *round);

/* The name of the run, for who opens an exchange. */
#define TRAIN_STUDY_RUN "study"

typedef struct train_study_options {
    train_study_way way;
    uint32_t trainers;
    uint32_t local_steps; /* of a round; 1 under DDP */
    uint64_t rounds;
    uint64_t settle; /* rounds at the beginning whose bytes do not count: Adam's moments are young */
    double rate;     /* of the outer optimizer */
    double momentum;
    uint32_t significant;
    uint32_t grid;
    bool overlap; /* payloads of a round travel during the steps of the next, which end it: the policy that
                     samples, and what trainers know of each other, are older by a round */
    const weft_loco_exchange *exchange; /* NULL: all trainers are in this process; else it is one of them */
    uint32_t rank;                      /* which */
    lm_task task;
    lm_grpo_options grpo;
    uint64_t seed;
    size_t prompts; /* of a rank's step */
    size_t group;
    size_t evaluation;           /* prompts */
    train_study_watcher watcher; /* may be NULL */
    void *opaque;
} train_study_options;

typedef struct train_study_result {
    uint64_t elements;
    double fired; /* means over the rounds that count */
    double sent;  /* 0: this way has no payload */
    double changed;
    double residual;     /* in the end */
    double first_reward; /* mean of the first quarter of rounds, and of the last */
    double last_reward;
    double before; /* success, on fresh prompts */
    double after;
    double seconds; /* of a step of all ranks here */
    double round;   /* seconds, and of these waited; means over the rounds that count */
    double wait;
    weft_digest digest; /* of the consensus in the end */
} train_study_result;

/* All ranks begin as `source`, which is left alone. */
WEFT_CHECKED weft_status train_study_run(const lm_trainer *source, const train_study_options *options,
                                         train_study_result *result_out);

#endif
