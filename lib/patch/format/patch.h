/* SPDX-License-Identifier: Apache-2.0
 *
 * patch.h: what an opened patch is, for the other files of this room.
 */
#ifndef WEFT_PATCH_FORMAT_PATCH_H
#define WEFT_PATCH_FORMAT_PATCH_H

#include "../bucket/bucket.h"
#include "format.h"

/* Hears of each bucket of a patch that an apply has decoded and proven, from the worker that did it. The
 * changes ascend; they are empty for a dense bucket. A failure ends the apply. */
typedef struct weft_patch_listener {
    weft_status (*bucket)(void *opaque, const weft_frame *frame, const weft_changes *changes);
    void *opaque;
} weft_patch_listener;

struct weft_patch {
    weft_context *context;
    weft_source source;
    weft_header header;
    weft_frame_index index;
    weft_footer footer;
    weft_table *table;
    weft_patch_listener listener; /* set before the first apply, if at all */
    /* The same: what frames of the coding `smallest` are decoded with, and told of every bucket if `noted`.
     */
    weft_recall *recall;
    bool noted;
};

/* The bytes of a frame, checked against the index: in the source's memory, or in `buffer`, which is
 * reused. */
weft_status weft_patch_frame(weft_context *context, const weft_patch *patch, size_t index,
                             weft_writer *buffer, weft_frame *frame);

/* WEFT_BASE_MISMATCH unless the sums are those of the patch's base. */
weft_status weft_patch_check_base(weft_context *context, const weft_patch *patch, const weft_sums *sums);
/* Says which of several patches failed, and `what` has happened to those before it; with one patch the text
 * stays as it is. Returns `status`. */
weft_status weft_patch_blame(weft_context *context, weft_status status, size_t index, size_t count,
                             const char *what);

#endif
