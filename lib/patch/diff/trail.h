/* SPDX-License-Identifier: Apache-2.0
 *
 * trail.h: a base that follows its diff. A publisher keeps a copy of what it published last; to bring it
 * forward afterwards would mean to visit every change again, in cold memory.
 */
#ifndef WEFT_PATCH_DIFF_TRAIL_H
#define WEFT_PATCH_DIFF_TRAIL_H

#include "../apply/apply.h"
#include "../bucket/bucket.h"

/* Makes an empty trail for `count` buckets, or empties the one that is there: its memory is used again. */
weft_status weft_trail_prepare(weft_context *context, size_t count, weft_trail **trail);
/* Right after a bucket was encoded by a coder that follows, with `encoded`: keeps what its window
 * coder->from held, and brings it to what coder->to holds where the encoder did not; without `to`,
 * coder->to stands in dtype already, if there is more than the changes. If encoding failed, or this does,
 * the window is as it was: what the encoder has written is taken back unless the trail knows it. Workers
 * may do so for different buckets at once. */
weft_status weft_trail_advance(weft_trail *trail, size_t index, weft_bucket_coder *coder,
                               const weft_bucket *bucket, const weft_bucket_side *to,
                               const weft_frame_result *result, weft_status encoded);
/* The same for a coder that does not follow: what coder->from holds is kept, and stays. */
weft_status weft_trail_note(weft_trail *trail, size_t index, weft_bucket_coder *coder,
                            const weft_bucket *bucket, const weft_frame_result *result);
/* What the bucket held before; not used if nothing changed there. */
const weft_staged *weft_trail_bucket(const weft_trail *trail, size_t index);
size_t weft_trail_count(const weft_trail *trail);

#endif
