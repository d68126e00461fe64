/* SPDX-License-Identifier: Apache-2.0
 *
 * density.h: how many of the BF16 weights a step changes, and how many differ from those of 8 and of 32
 * steps before: counted exactly, by keeping the live words of the last versions.
 */
#ifndef WEFT_TRAIN_LEARNER_DENSITY_H
#define WEFT_TRAIN_LEARNER_DENSITY_H

#include "../../lm/model/model.h"

enum { TRAIN_SPANS = 3, TRAIN_SPAN_MAX = 32 };
/* 1, 8, 32 versions. */
extern const unsigned train_spans[TRAIN_SPANS];

typedef struct train_density {
    const lm_model *model;
    uint16_t *words; /* `capacity` versions */
    size_t capacity;
    uint64_t count;  /* versions noted so far */
    size_t *tensors; /* changed elements of each tensor by the last step */
} train_density;

typedef struct train_densities {
    double share[TRAIN_SPANS]; /* below zero: so old a version is not known */
    size_t changed;            /* elements, by the last step */
    const size_t *tensors;     /* of each weight of the model, by the last step; NULL: not known */
} train_densities;

/* Takes at most `bytes`; spans for which that is too little are not counted. */
WEFT_CHECKED weft_status train_density_open(train_density *density, const lm_model *model, uint64_t bytes);
void train_density_close(train_density *density);
/* Of a step that makes no version. */
train_densities train_densities_unknown(void);
/* The model's live words are a new version's. The first one is compared with nothing. */
train_densities train_density_note(train_density *density);

#endif
