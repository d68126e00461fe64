/* SPDX-License-Identifier: Apache-2.0
 *
 * patch.h: what an opened patch is, for the other files of this room.
 */
#ifndef WEFT_PATCH_PATCH_H
#define WEFT_PATCH_PATCH_H

#include "bucket.h"
#include "format.h"

struct weft_patch {
    weft_context *context;
    weft_source source;
    weft_header header;
    weft_frame_index index;
    weft_footer footer;
    weft_table *table;
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
