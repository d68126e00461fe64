/* SPDX-License-Identifier: Apache-2.0
 *
 * loco.h: what a rank holds.
 *
 * Consensus, residual and momentum are flat: the tensors one after the other, names ascending as bytes. An
 * element is named by its place there, and blocks are cut without regard to tensors. The local weights are
 * the caller's, and lie where the caller has them.
 */
#ifndef WEFT_LOCO_LOCO_H
#define WEFT_LOCO_LOCO_H

#include "payload.h"

typedef struct weft_loco_place {
    char *name;
    float *data;
    uint64_t count;
    uint64_t start; /* of the flat arrays */
} weft_loco_place;

/* A tensor of the place's name and size, over `data`. */
static inline weft_tensor weft_loco_place_tensor(const weft_loco_place *place, float *data) {
    return (weft_tensor){.size = sizeof(weft_tensor),
                         .name = place->name,
                         .dtype = WEFT_DTYPE_F32,
                         .rank = 1,
                         .shape = {place->count},
                         .data = data};
}

/* The last payload of a rank that was included: included.h. */
typedef struct weft_loco_included weft_loco_included;

/* The exchange of a round that was begun: flight.h. */
typedef struct weft_loco_flight weft_loco_flight;

/* What encoding needs beside the state: encode.c. */
typedef struct weft_loco_job weft_loco_job;
void weft_loco_job_destroy(weft_loco_job *job);

struct weft_loco {
    weft_context *context;
    weft_loco_options options;
    char run[WEFT_LOCO_RUN_MAX + 1];
    weft_loco_place *places;
    size_t place_count;
    uint64_t elements;
    size_t blocks;
    void *memory; /* of the arrays */
    float *consensus;
    float *residual;
    float *momentum;   /* NULL: none */
    float *ahead;      /* where the local weights went when the payload was made; NULL: no overlap */
    weft_table *table; /* of the consensus */
    weft_view *view;
    weft_digest digest;
    uint64_t rounds;
    weft_loco_included *included; /* one for each rank */
    weft_writer payload;          /* of the round under way */
    uint64_t fired;
    weft_loco_job *job;       /* NULL before the first round */
    weft_loco_flight *flight; /* NULL: no round was begun */
    bool pending;             /* there is a payload */
    bool broken;              /* a failure has left the state between two rounds */
};

/* A stretch of the flat arrays that lies in one tensor. */
typedef struct weft_loco_stretch {
    const weft_loco_place *place;
    uint64_t start; /* of the flat arrays */
    size_t count;
    float *local;
} weft_loco_stretch;

/* The longest stretch from `start` on that ends at `end` or before and has at most `most` elements. */
weft_loco_stretch weft_loco_stretch_at(const weft_loco *loco, uint64_t start, uint64_t end, size_t most);

static inline uint64_t weft_loco_block_end(const weft_loco *loco, size_t block) {
    uint64_t end = ((uint64_t)block + 1) * WEFT_PAYLOAD_BLOCK;
    return end < loco->elements ? end : loco->elements;
}

/* Refuses a state that a failure has broken. */
weft_status weft_loco_check(const weft_loco *loco);
/* Whether none of the FP32 numbers, which may lie anywhere, is infinite or NaN. */
bool weft_loco_all_finite(const void *values, uint64_t count);
/* The failure of a value that is not finite. */
weft_status weft_loco_not_finite(const weft_loco *loco, uint64_t element, const char *what);
/* Puts what the payload holds back into the residual: the round goes on without it. With `average` it is
 * dropped. */
weft_status weft_loco_return_values(weft_loco *loco);
/* Sums the consensus again, which has moved: nobody is asked whether to go on. */
weft_status weft_loco_move_digest(weft_loco *loco);
/* Sets the local weights of a range to the consensus; and, if a payload is pending and rounds overlap, what
 * was learned since it was made upon that. */
void weft_loco_set_local(const weft_loco *loco, uint64_t start, uint64_t end);

#endif
