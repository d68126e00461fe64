/* SPDX-License-Identifier: Apache-2.0
 *
 * values.h: the values of payloads, block by block, ready to be added.
 *
 * All blocks of all payloads are decoded before anything changes. What was decoded is kept, if the limit of
 * staged changes has room for all of it; else it is thrown away and decoded again when it is needed, which
 * cannot fail then, except for want of memory.
 */
#ifndef WEFT_LOCO_VALUES_H
#define WEFT_LOCO_VALUES_H

#include "../code/block.h"
#include "loco.h"

typedef struct weft_loco_values {
    const weft_loco *loco;
    size_t count;                 /* of payloads */
    weft_payload *payloads;       /* of ranks that are included, in their order */
    weft_block_values *kept;      /* of payload p and block b at p * blocks + b; NULL: not kept */
    void *memory;                 /* of what is kept */
    weft_block_decoder *decoders; /* one for each worker */
    weft_block_values *scratch;   /* one for each worker: what is not kept */
    unsigned workers;
} weft_loco_values;

/* Opens, checks and decodes payloads, one for each rank; those without data are passed over. */
weft_status weft_loco_values_open(const weft_loco *loco, const weft_loco_payload *payloads, size_t count,
                                  weft_loco_values *values_out);
void weft_loco_values_close(weft_loco_values *values);
/* Adds the values of a block of payload `payload` to `sums`, which has the block's elements. */
weft_status weft_loco_values_add(weft_loco_values *values, size_t payload, size_t block, unsigned worker,
                                 float *sums);
/* The same for one tile of the block, of `count` elements from `first` on: tile after tile, with a cursor
 * that begins as 0. Only of values that lie ready, as weft_loco_values_ready says. */
void weft_loco_values_add_tile(const weft_loco_values *values, size_t payload, size_t block, size_t first,
                               size_t count, size_t *cursor, float *sums);

static inline bool weft_loco_values_ready(const weft_loco_values *values) {
    return values->loco->options.raw || values->kept != NULL;
}

#endif
