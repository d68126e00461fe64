/* SPDX-License-Identifier: Apache-2.0
 *
 * runs.c: a trainer and workers for tests of synchronisation.
 */
#include "runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, COLUMNS = 128, PLAIN = 3, MASTERS = 40 * 64 };

static const char *const names[PLAIN] = {"embed", "layer.0.mlp", "layer.1.mlp"};
static const weft_dtype dtypes[PLAIN] = {WEFT_DTYPE_BF16, WEFT_DTYPE_BF16, WEFT_DTYPE_F32};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "runs: %s\n", what);
        abort();
    }
}

void trainer_open(trainer *trainer, weft_context *context, uint64_t seed) {
    trainer->context = context;
    trainer->dice = (dice){seed};
    model_open(&trainer->model, context);
    for (size_t i = 0; i < PLAIN; i++) {
        void *data = model_add(&trainer->model, names[i], dtypes[i], ROWS, COLUMNS);
        weights_fill(&trainer->dice, WEIGHTS_TRAINED, dtypes[i], data, (size_t)ROWS * COLUMNS);
    }
    float *masters = model_add_masters(&trainer->model, "norm", 40, 64);
    for (size_t i = 0; i < MASTERS; i++) {
        masters[i] = (float)(dice_below(&trainer->dice, 2000) + 1) / 1000.0f - 1.0f;
    }
    model_show(&trainer->model);
}

void trainer_close(trainer *trainer) {
    model_close(&trainer->model);
}

void trainer_step(trainer *trainer, unsigned per_million) {
    for (size_t i = 0; i < PLAIN; i++) {
        weights_change(&trainer->dice, CHANGE_MIXED, weft_dtype_width(dtypes[i]), trainer->model.blocks[i],
                       (size_t)ROWS * COLUMNS, per_million);
    }
    float *masters = trainer->model.blocks[PLAIN];
    for (size_t i = 0; i < MASTERS; i++) {
        /* most of these steps are too small to be seen in BF16 */
        masters[i] += ((float)dice_below(&trainer->dice, 2001) - 1000.0f) * 1e-8f * (float)per_million;
    }
}

weft_digest worker_digest(weft_context *context, const weft_view *view) {
    weft_sums *sums;
    require(weft_sums_compute(context, view, &sums) == WEFT_OK, "no sums");
    weft_digest digest = weft_sums_digest(sums);
    weft_sums_destroy(sums);
    return digest;
}

weft_digest trainer_digest(const trainer *trainer) {
    return worker_digest(trainer->context, trainer->model.view);
}

void worker_open(model *worker, weft_context *context) {
    dice dice = {99};
    model_open(worker, context);
    for (size_t i = 0; i < PLAIN; i++) {
        void *data = model_add(worker, names[i], dtypes[i], ROWS, COLUMNS);
        dice_fill(&dice, data, (size_t)ROWS * COLUMNS * weft_dtype_width(dtypes[i]));
    }
    dice_fill(&dice, model_add(worker, "norm", WEFT_DTYPE_BF16, 40, 64), MASTERS * 2);
    model_show(worker);
}

bool worker_equals(const model *worker, const trainer *trainer) {
    for (size_t i = 0; i < PLAIN; i++) {
        size_t bytes = (size_t)ROWS * COLUMNS * weft_dtype_width(dtypes[i]);
        if (memcmp(worker->blocks[i], trainer->model.blocks[i], bytes) != 0) {
            return false;
        }
    }
    uint16_t cast[MASTERS];
    weft_bf16_from_f32(trainer->model.blocks[PLAIN], cast, MASTERS);
    return memcmp(cast, worker->blocks[PLAIN], sizeof cast) == 0;
}
