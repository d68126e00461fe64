/* SPDX-License-Identifier: Apache-2.0
 *
 * apply.h: prepared changes, for the files of this room that put them elsewhere than into live memory.
 */
#ifndef WEFT_PATCH_APPLY_APPLY_H
#define WEFT_PATCH_APPLY_APPLY_H

#include "../format/patch.h"
#include "batch.h"

/* One bucket, decoded and proven. Sparse: `changes`. Dense: all old and all new values. */
typedef struct weft_staged {
    weft_window window; /* only its view and segments */
    weft_changes changes;
    uint8_t *dense_olds; /* NULL for tensors that were not there before */
    uint8_t *dense_news; /* NULL if sparse */
    uint64_t *targets;   /* of what is reached in batches or converted; NULL if nothing is */
    size_t target_count;
    uint64_t units;
    uint64_t changed;
    unsigned width;
    bool used;
} weft_staged;

/* The last two are for a view that has the shape of the result: tensors that the patch adds or replaces are
 * there, to be filled, and the sums are zero for them. The caller has proven the base. */
typedef enum weft_apply_kind {
    WEFT_APPLY_LIVE,    /* from the patch's base to its result */
    WEFT_APPLY_REBUILD, /* into a new place, where tensors that the patch brings hold nothing yet */
    WEFT_APPLY_REPLACE, /* the same over weights in use, of another state, which can be rolled back to */
} weft_apply_kind;

/* weft_apply_create is that of WEFT_APPLY_LIVE. */
weft_status weft_apply_create_as(weft_context *context, weft_apply_kind kind, const weft_patch *patch,
                                 const weft_view *view, weft_sums *sums, weft_apply **apply_out);

/* weft_apply_rebuild up to the point where the result is proven and lacks only its name: finish the
 * checkpoint, or close it to drop it. Without a base, the patches start from nothing. */
weft_status weft_apply_rebuild_draft(weft_context *context, const weft_checkpoint *base,
                                     const weft_patch *const *patches, size_t count,
                                     const char *output_path, weft_checkpoint **draft_out);

/* What a bucket's changes do to live memory, and what undoes them. */
weft_status weft_staged_write(const weft_staged *staged, bool restore);
/* The same where memory is reached in batches, which the former leaves out. */
void weft_staged_write_batch(weft_batch *batch, const weft_staged *staged, bool restore);
/* Tells converters of it, once all of it is written. */
weft_status weft_staged_convert(const weft_staged *staged, bool restore);
void weft_staged_release(weft_context *context, weft_staged *staged);

const weft_staged *weft_apply_staged(const weft_apply *apply, size_t *count_out);
/* Forgets staged changes that went elsewhere, so that more can be prepared; the sums still move with
 * the final commit. */
void weft_apply_drain(weft_apply *apply);

#endif
