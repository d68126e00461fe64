/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_density.h: what the sweep over densities finds, for the tables and for the picture.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_DENSITY_H
#define WEFT_PROGRAMS_LAB_BENCH_DENSITY_H

#include "bench.h"

enum {
    DENSITY_POINTS = 15, /* of the sweep, */
    DENSITY_EVERY = 3,   /* and of FP32 weights that all change, behind them */
    DENSITY_CODECS = 5,
};

typedef struct density_point {
    double rate;
    uint64_t changed;
    bench_row rows[DENSITY_CODECS]; /* fast, small, and the others */
} density_point;

typedef struct density_results {
    const bench_dtype *dtype;
    uint64_t units;
    size_t count; /* points that there are */
    bench_row copy;
    bench_row anchor;
    density_point points[DENSITY_POINTS + DENSITY_EVERY];
} density_results;

/* The share of weights that changed. */
double density_of(const density_results *results, const density_point *point);
/* GB/s of a row that took so long. */
double density_speed(const bench_row *row, double seconds);
/* Writes the picture: speeds and bytes over the density, all logarithmic. */
int density_plot(weft_command *command, const density_results *results, const char *path);

#endif
