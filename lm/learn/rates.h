/* SPDX-License-Identifier: Apache-2.0
 *
 * rates.h: how sparse a learning rate makes the steps of a policy, and what it costs to send them. Copies
 * of one trainer learn by rewards, each at a rate of its own, and publish every step to a store of their
 * own.
 */
#ifndef WEFT_LM_LEARN_RATES_H
#define WEFT_LM_LEARN_RATES_H

#include "grpo.h"

/* The delays: a receiver that follows every k-th version gets the changes of k steps at once. */
enum { LM_RATES_DELAYS = 6, LM_RATES_DELAY_MAX = 32 };
extern const unsigned lm_rates_delays[LM_RATES_DELAYS]; /* 1, 2, 4, 8, 16, 32 */

typedef struct lm_rates_step {
    double rate;
    uint64_t step; /* from 1 on, those that do not count included */
    bool counted;
    double reward;
    double density; /* share of the BF16 weights that the step changed */
    uint64_t bytes; /* of the version; 0 if it was not published, because the step does not count */
} lm_rates_step;

/* After each step. Return false to stop, which ends the measurement with WEFT_CANCELLED. */
typedef bool (*lm_rates_watcher)(void *opaque, const lm_rates_step *step);

typedef struct lm_rates_options {
    lm_task task;
    lm_grpo_options grpo; /* its rate is replaced */
    uint64_t seed;        /* of prompts and responses */
    uint64_t first;       /* number of the first prompt */
    size_t prompts;
    size_t group;
    /* Steps at the rate before those that count. Adam's moments must be of the gradients of rewards: after
     * a reset, each update is as large as the rate for every weight, and a step many times too dense. Not
     * needed by a trainer that has learned by rewards. */
    uint64_t settle;
    uint64_t steps;           /* that count */
    const char *directory;    /* exists; one store for each rate is made in it, and left there */
    lm_rates_watcher watcher; /* may be NULL */
    void *opaque;
} lm_rates_options;

typedef struct lm_rates_density {
    uint64_t windows; /* of so many steps that lie within those that count; 0: it was not measured */
    double mean;      /* share of the BF16 weights that differ from k steps before */
    double most;
} lm_rates_density;

/* The law: a step changes a BF16 weight with the chance |change of its master| / ULP, at most 1, because
 * masters lie anywhere in the cell that rounds to their weight. Here what was measured and what the law
 * foretells, of weights that have one exponent before the step. */
enum { LM_RATES_EXPONENTS = 256 };

typedef struct lm_rates_law {
    uint64_t weights; /* each counted once for every step that counts */
    uint64_t changes;
    double expected; /* changes by the law: the sum of the chances */
} lm_rates_law;

typedef struct lm_rates_row {
    double rate; /* given */
    lm_rates_density density[LM_RATES_DELAYS];
    lm_rates_law law[LM_RATES_EXPONENTS]; /* by exponent as BF16 stores it, 127 for weights from 1 */
    uint64_t elements;
    uint64_t dense_bytes; /* of the model in BF16 */
    double bytes;         /* of a version: patch, index page and head; mean */
    uint64_t most_bytes;
    double patch_bytes;
    double reward;  /* mean */
    double seconds; /* of a step: rollout, update and publish; mean */
    uint64_t idle;  /* steps in which no group had an advantage, and no weight moved */
} lm_rates_row;

/* Measures each row's rate, from the same state of `source`, which is left alone: masters, moments and the
 * count of steps are copied. Rollouts are by the newest weights. `rows` are undefined on failure. */
WEFT_CHECKED weft_status lm_rates_measure(const lm_trainer *source, const lm_rates_options *options,
                                          lm_rates_row *rows, size_t count);

#endif
