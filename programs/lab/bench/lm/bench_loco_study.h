/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco_study.h: `weft bench --loco --study WAY`: several trainers of a small policy in one process:
 * what they send in a round, and what they gain, by the way in which they agree.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_LM_BENCH_LOCO_STUDY_H
#define WEFT_PROGRAMS_LAB_BENCH_LM_BENCH_LOCO_STUDY_H

#include "../../../cli/command.h"

#include "../../../../train/study.h"

typedef struct loco_study_options {
    bool given;
    const char *only_with_study; /* an option that was given and means nothing without; NULL: none */
    train_study_way way;
    uint32_t trainers;
    uint32_t local_steps;
    uint32_t significant;
    /* what `weft bench` has options for already */
    const char *state; /* of a trainer that is warmed up */
    double rate;       /* of the trainers; 0: the usual */
    uint64_t steps;    /* 0: the usual */
    uint64_t seed;
} loco_study_options;

/* Its options; the input is the struct above. */
extern const struct argp bench_loco_study_argp;
int bench_loco_study(weft_command *command, const loco_study_options *options);

#endif
