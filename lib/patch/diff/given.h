/* SPDX-License-Identifier: Apache-2.0
 *
 * given.h: a new state that is given as changes to the base. A trainer that knows what has changed need not
 * have it searched for: buckets without changes are not looked at, and of the others only what the coding
 * wants. The frames are those of a comparison, bit for bit.
 */
#ifndef WEFT_PATCH_DIFF_GIVEN_H
#define WEFT_PATCH_DIFF_GIVEN_H

#include "pipeline.h"

typedef struct weft_given {
    weft_context *context;
    const weft_tensor_changes **lists; /* of each tensor of the base's view; NULL: it has not changed */
} weft_given;

/* Checks the changes, which must outlive this. Closing what was never opened does nothing. */
weft_status weft_given_open(weft_given *given, weft_context *context, const weft_view *base,
                            const weft_tensor_changes *changes, size_t count);
void weft_given_close(weft_given *given);

/* The frame from the base to the base with its changes, made with the worker's coder. Where they are many,
 * coder->to stands in dtype on the new state, in the worker's memory. */
weft_status weft_given_encode(const weft_given *given, weft_pipeline_worker *worker,
                              const weft_bucket *bucket, const weft_roster *roster, weft_profile profile,
                              const weft_bucket_side *base, weft_sums *moves, weft_pipeline_frame *frame);
/* The frame back. */
weft_status weft_given_encode_inverse(const weft_given *given, weft_pipeline_worker *worker,
                                      const weft_bucket *bucket, const weft_roster *roster,
                                      weft_profile profile, const weft_bucket_side *base,
                                      weft_pipeline_frame *frame);

#endif
