/* SPDX-License-Identifier: Apache-2.0
 *
 * mirror.h: a publisher's private copy of a model in memory: of all of it, or of the part that it
 * publishes.
 */
#ifndef WEFT_SYNC_MIRROR_H
#define WEFT_SYNC_MIRROR_H

#include "../patch/part.h"

typedef struct weft_mirror {
    weft_context *context;
    weft_table *table;
    weft_view *view;
    uint8_t *memory;
    uint64_t bytes;
    bool mapped; /* fresh pages of the system; else the context's memory */
} weft_mirror;

/* Room for the tensors of `like`, in their dtypes; what it holds is undefined. */
weft_status weft_mirror_open(weft_mirror *mirror, weft_context *context, const weft_view *like);
/* Room for the owned buckets of a plan; it holds zeros. A box that is owned in some of its rows takes the
 * room of all of them. */
weft_status weft_mirror_open_part(weft_mirror *mirror, weft_context *context, const weft_view *like,
                                  const weft_part_plan *plan, const bool *owned);
void weft_mirror_close(weft_mirror *mirror);
/* Copies what a view of the same tensors holds; FP32 masters are cast. Of a mirror of the whole model. */
weft_status weft_mirror_fill(weft_context *context, weft_mirror *mirror, const weft_view *view);
/* Copies a mirror of the same tensors. */
void weft_mirror_copy(weft_mirror *mirror, const weft_mirror *from);

#endif
