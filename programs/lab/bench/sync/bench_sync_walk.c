/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_walk.c: a training run of any length. The weights walk to and fro along a short one, so that
 * each version is a step of it, forwards or backwards, and no more than a few steps have to be kept.
 */
#include "bench_sync.h"

int sync_walk_open(sync_bench *bench, uint64_t parameters, sync_walk *walk) {
    const sync_options *options = bench->options;
    weft_trace trace;
    *walk = (sync_walk){0};
    int code = trace_open(bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(bench->command, &walk->model, &trace);
    if (code == EXIT_DONE) {
        code = sync_flips_trace(bench, &walk->model, &trace, walk->flips, SYNC_WALK_STEPS);
    }
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    return code;
}

void sync_walk_close(sync_walk *walk) {
    for (size_t s = 0; s < SYNC_WALK_STEPS; s++) {
        sync_flips_close(&walk->flips[s]);
    }
    bench_model_close(&walk->model);
}

uint64_t sync_walk_step(sync_walk *walk) {
    uint64_t place = walk->steps++ % (2 * (uint64_t)SYNC_WALK_STEPS);
    const sync_flips *flips =
        &walk->flips[place < SYNC_WALK_STEPS ? place : 2 * SYNC_WALK_STEPS - 1 - place];
    sync_flips_apply(flips, walk->model.base);
    return flips->count;
}
