/* SPDX-License-Identifier: Apache-2.0
 *
 * density.c: see density.h.
 */
#include "density.h"

#include "../../lib/base/context.h"

#include <string.h>

const unsigned train_spans[TRAIN_SPANS] = {1, 8, TRAIN_SPAN_MAX};

weft_status train_density_open(train_density *density, const lm_model *model, uint64_t bytes) {
    uint64_t version = model->parameters * sizeof(uint16_t);
    uint64_t fits = bytes / version;
    *density = (train_density){.model = model, .capacity = 1};
    for (size_t i = 0; i < TRAIN_SPANS; i++) {
        if (train_spans[i] <= fits) {
            density->capacity = train_spans[i];
        }
    }
    density->words = weft_allocate_array(model->context, density->capacity, version);
    density->tensors = weft_allocate_zeroed(model->context, model->weight_count, sizeof *density->tensors);
    return density->words != NULL && density->tensors != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

void train_density_close(train_density *density) {
    if (density->model != NULL) {
        weft_release(density->model->context, density->tensors);
        weft_release(density->model->context, density->words);
    }
    *density = (train_density){.model = NULL};
}

static size_t count_different(const uint16_t *a, const uint16_t *b, size_t count) {
    size_t different = 0;
    for (size_t i = 0; i < count; i++) {
        different += a[i] != b[i];
    }
    return different;
}

static uint16_t *version_at(const train_density *density, uint64_t number) {
    return density->words + number % density->capacity * density->model->parameters;
}

static size_t count_tensors(train_density *density, const uint16_t *before) {
    const lm_model *model = density->model;
    size_t changed = 0;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        density->tensors[i] = count_different(before + weight->offset, model->live + weight->offset,
                                              weight->rows * weight->columns);
        changed += density->tensors[i];
    }
    return changed;
}

train_densities train_densities_unknown(void) {
    train_densities result = {.tensors = NULL};
    for (size_t i = 0; i < TRAIN_SPANS; i++) {
        result.share[i] = -1;
    }
    return result;
}

train_densities train_density_note(train_density *density) {
    const lm_model *model = density->model;
    train_densities result = {.tensors = density->tensors};
    for (size_t i = 0; i < TRAIN_SPANS; i++) {
        uint64_t span = train_spans[i];
        bool known = span <= density->capacity && span <= density->count;
        result.share[i] = -1;
        if (known) {
            const uint16_t *before = version_at(density, density->count - span);
            size_t changed = span == 1 ? count_tensors(density, before)
                                       : count_different(before, model->live, model->parameters);
            result.changed = span == 1 ? changed : result.changed;
            result.share[i] = (double)changed / (double)model->parameters;
        }
    }
    memcpy(version_at(density, density->count), model->live, model->parameters * sizeof *model->live);
    density->count++;
    return result;
}
