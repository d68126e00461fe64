/* SPDX-License-Identifier: Apache-2.0
 *
 * runs.h: a trainer and workers for tests of synchronisation, small enough for hundreds of versions.
 */
#ifndef WEFT_TESTS_RUNS_H
#define WEFT_TESTS_RUNS_H

#include "models.h"

#include <weft/sync.h>

/* Live weights that change step by step. The last tensor is held as FP32 masters by a trainer, and in BF16
 * by everybody else. */
typedef struct trainer {
    weft_context *context;
    model model;
    dice dice;
} trainer;

void trainer_open(trainer *trainer, weft_context *context, uint64_t seed);
void trainer_close(trainer *trainer);
/* Changes about `per_million` weights in a million. */
void trainer_step(trainer *trainer, unsigned per_million);
weft_digest trainer_digest(const trainer *trainer);

/* Weights of the same model, which hold nothing yet. */
void worker_open(model *worker, weft_context *context);
/* True if the worker holds what the trainer does, cast to BF16 where that is a master. */
bool worker_equals(const model *worker, const trainer *trainer);
weft_digest worker_digest(weft_context *context, const weft_view *view);

#endif
