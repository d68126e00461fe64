/* SPDX-License-Identifier: Apache-2.0
 *
 * apply.h: prepared changes, for the files of this room that put them elsewhere than into live memory.
 */
#ifndef WEFT_PATCH_APPLY_H
#define WEFT_PATCH_APPLY_H

#include "patch.h"

/* One bucket, decoded and proven. Sparse: `changes`. Dense: all old and all new values. */
typedef struct weft_staged {
    weft_window window; /* only its segments */
    weft_changes changes;
    uint8_t *dense_olds; /* NULL for tensors that were not there before */
    uint8_t *dense_news; /* NULL if sparse */
    uint64_t units;
    uint64_t changed;
    unsigned width;
    bool used;
} weft_staged;

/* Like weft_apply_create, for a view that has the shape of the result: tensors that the patch adds or
 * replaces are there, to be filled, and `sums` are zero for them. The caller has proven the base. */
weft_status weft_apply_create_rebuild(weft_context *context, const weft_patch *patch, const weft_view *view,
                                      weft_sums *sums, weft_apply **apply_out);

const weft_staged *weft_apply_staged(const weft_apply *apply, size_t *count_out);
/* Forgets staged changes that went elsewhere, so that more can be prepared; the sums still move with
 * the final commit. */
void weft_apply_drain(weft_apply *apply);

#endif
