/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm.h: the parts of `weft bench --lm`: how fast the small policy of lm/ trains and generates beside
 * this machine's limit, how it learns, how sparse its steps are, what a compressed cache of keys and values
 * gains, and how it learns from what such a cache samples.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_LM_BENCH_LM_H
#define WEFT_PROGRAMS_LAB_BENCH_LM_BENCH_LM_H

#include "../../../cli/command.h"

enum { BENCH_RATES_MAX = 16, BENCH_STALENESS_MAX = 8 };

typedef struct lm_bench_options {
    bool quick; /* the smallest sizes only; of rates, hardly a warm-up */
    uint64_t seed;
    unsigned repeat;
    uint64_t steps;      /* of learning by rewards; 0: 240, and 50 at each of several rates */
    uint64_t parameters; /* of the policy whose rates are measured, about; 0: 2M */
    double rate;         /* of learning; 0: the usual */
    uint64_t staleness;  /* of learning: versions that the sampler is behind */
    double rates[BENCH_RATES_MAX];
    size_t rate_count;
    const char *state;     /* a trainer's state whose rates are measured; NULL: a policy is warmed up */
    const char *save;      /* where the state of that policy is left; NULL: nowhere */
    const char *directory; /* for stores; NULL: TMPDIR or /tmp; with an arm: for warmed-up policies */
    const char *arm;       /* of learning under a compressed cache */
    uint64_t chain;        /* sums of its chains; 0: the usual */
    bool long_chains;      /* the policy of its long chains */
} lm_bench_options;

/* Speeds of training and generation, by size of the model. */
int bench_lm(weft_command *command, const lm_bench_options *options);
/* One run: warm-up on right answers, then by rewards alone. */
int bench_lm_learn(weft_command *command, const lm_bench_options *options);
/* Sparsity and bytes of steps at each of the rates. */
int bench_lm_rates(weft_command *command, const lm_bench_options *options);
/* Rollouts per second under each KV-cache policy, in a fixed memory for keys and values. */
int bench_lm_kv(weft_command *command, const lm_bench_options *options);
/* Learning from what a compressed cache samples: one arm of the study. */
int bench_lm_sparse(weft_command *command, const lm_bench_options *options);

#endif
