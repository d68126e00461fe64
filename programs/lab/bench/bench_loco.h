/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco.h: the parts of `weft bench --loco`: what a round of PULSELoCo costs a rank.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_BENCH_LOCO_H
#define WEFT_PROGRAMS_LAB_BENCH_BENCH_LOCO_H

#include "bench.h"

typedef struct loco_bench_options {
    uint64_t parameters; /* 0: 64 million */
    double learning_rate;
    uint64_t seed;
    unsigned rounds;
} loco_bench_options;

int bench_loco(weft_command *command, const loco_bench_options *options);

/* ---- bench_loco_trace.c: FP32 weights and the steps of a trainer ---- */

typedef struct loco_trace {
    weft_trace shape;
    uint64_t elements;
    weft_loco_tensor *tensors; /* over `weights` */
    float *weights;
    unsigned threads;
} loco_trace;

int loco_trace_open(weft_command *command, loco_trace *trace, const loco_bench_options *options);
void loco_trace_close(loco_trace *trace);
/* Sets the weights to those of the beginning. */
void loco_trace_reset(loco_trace *trace);
/* Eight steps of Adam. */
void loco_trace_train(loco_trace *trace, uint64_t round);

#endif
