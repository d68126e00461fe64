/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm.h: the parts of `weft bench --lm`: how fast the small policy of lm/ trains and generates beside
 * this machine's limit, and how it learns.
 */
#ifndef WEFT_PROGRAMS_BENCH_LM_H
#define WEFT_PROGRAMS_BENCH_LM_H

#include "command.h"

typedef struct lm_bench_options {
    bool quick; /* the smallest sizes only */
    uint64_t seed;
    unsigned repeat;
    uint64_t steps; /* of learning by rewards; 0: 200 */
} lm_bench_options;

/* Speeds of training and generation, by size of the model. */
int bench_lm(weft_command *command, const lm_bench_options *options);
/* One run: warm-up on right answers, then by rewards alone. */
int bench_lm_learn(weft_command *command, const lm_bench_options *options);

#endif
