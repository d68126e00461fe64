/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_correction.h: `weft bench --correction`.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_BENCH_CORRECTION_H
#define WEFT_PROGRAMS_LAB_BENCH_BENCH_CORRECTION_H

#include "../../cli/command.h"

typedef struct correction_bench_options {
    bool quick; /* 1M tokens and not 10M */
    uint64_t seed;
    unsigned repeat;
} correction_bench_options;

/* Each preset, a level of sequences and the objective, on one thread, beside memcpy of the same arrays. */
int bench_correction(weft_command *command, const correction_bench_options *options);

#endif
