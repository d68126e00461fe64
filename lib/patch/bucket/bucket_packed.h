/* SPDX-License-Identifier: Apache-2.0
 *
 * bucket_packed.h: the packed codings between the weights of a bucket and its payload.
 */
#ifndef WEFT_PATCH_BUCKET_BUCKET_PACKED_H
#define WEFT_PATCH_BUCKET_BUCKET_PACKED_H

#include "bucket.h"

/* True if a bucket that is dense is packed: one of floats that is not tiny. */
bool weft_bucket_packs(const weft_bucket *bucket);
/* Codes what leads from the window coder->from to coder->to into coder->payload, which is empty, and proves
 * it. If fewer than `least` units differ, all is left as it was, and the payload empty. */
weft_status weft_bucket_pack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile,
                             uint64_t least, weft_sums *moves, weft_coding *coding, uint64_t *changed,
                             weft_sum *delta);
/* The same for all that coder->to has, where nothing was before. */
weft_status weft_bucket_pack_whole(weft_bucket_coder *coder, const weft_bucket *bucket,
                                   weft_profile profile, weft_sums *sums, weft_sum *delta);
/* All new units of the bucket, from the old ones, which values do not need. */
weft_status weft_bucket_unpack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                               const uint8_t *payload, size_t size, const void *base, void *output);
/* The same into the window coder->from, which is plain memory that may be written, proven on the way.
 * `fresh` means that nothing was there before. */
weft_status weft_bucket_unpack_through(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       weft_coding coding, const uint8_t *payload, size_t size, bool fresh,
                                       weft_sums *moves, weft_sum *delta_out);

/* The same as a list of changes, which has as many as the frame says unless that lies. */
weft_status weft_bucket_unpack_changes(weft_bucket_coder *coder, const weft_frame *frame,
                                       weft_changes *changes, weft_sums *moves, weft_sum *delta_out);

#endif
