/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: how a roster's tensors are cut into buckets. The plan depends on names, dtypes, shapes and the
 * publisher's cuts only, never on the weights: every patch of a run has the same buckets.
 */
#ifndef WEFT_PATCH_BUCKET_PLAN_H
#define WEFT_PATCH_BUCKET_PLAN_H

#include "spans.h"

typedef struct weft_plan_item {
    weft_bucket bucket;
    bool whole; /* of added or replaced tensors: there is nothing to differ from */
} weft_plan_item;

typedef struct weft_plan {
    weft_context *context;
    weft_plan_item *items;
    size_t count;
    size_t capacity;
} weft_plan;

void weft_plan_open(weft_plan *plan, weft_context *context);
void weft_plan_close(weft_plan *plan);
weft_status weft_plan_build(weft_plan *plan, const weft_roster *roster, uint64_t bucket_bytes,
                            const weft_cut *cuts, size_t cut_count);
/* Its buckets are coded for patches of that format. */
void weft_plan_set_format(weft_plan *plan, unsigned format);
/* Why a tensor cannot be cut so; NULL: it can. */
const char *weft_plan_cut_fault(const weft_context *context, const weft_tensor *tensor,
                                const weft_cut *cut);

#endif
