/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.h: comparing a bucket of two states.
 */
#ifndef WEFT_PATCH_BUCKET_SCAN_H
#define WEFT_PATCH_BUCKET_SCAN_H

#include "bucket.h"

/* Looks at units all over the bucket, in both windows: at most `most` of them, or as many as
 * coder->tile_olds and coder->tile_news have room for, where it puts them. Returns how many. */
size_t weft_scan_pick(weft_bucket_coder *coder, const weft_window *from, const weft_window *to,
                      const weft_bucket *bucket, size_t most);
/* A sample that classes can be cut from. */
weft_status weft_scan_sample(weft_bucket_coder *coder, const weft_bucket *bucket,
                             weft_class_sample *sample);
/* Fills coder->changes with what differs between the windows coder->from and coder->to, and with
 * `small` feeds the small encoder on the way. Stops early, with *dense_out set, once more than `most` units
 * differ. */
weft_status weft_scan(weft_bucket_coder *coder, const weft_bucket *bucket, bool small, uint64_t most,
                      bool *dense_out);
/* Where coder->changes are known, ascending: feeds the small encoder with them and with coder->from. */
weft_status weft_scan_known(weft_bucket_coder *coder, const weft_bucket *bucket);
#endif
