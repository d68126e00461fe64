/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.h: comparing a bucket of two states.
 */
#ifndef WEFT_PATCH_BUCKET_SCAN_H
#define WEFT_PATCH_BUCKET_SCAN_H

#include "bucket.h"

/* Fills coder->changes with what differs between the windows coder->from and coder->to, and with
 * `small` feeds the small encoder on the way. Stops early, with *dense_out set, once more than half of
 * the units differ. */
weft_status weft_scan(weft_bucket_coder *coder, const weft_bucket *bucket, bool small, bool *dense_out);
/* Where coder->changes are known, ascending: feeds the small encoder with them and with coder->from. */
weft_status weft_scan_known(weft_bucket_coder *coder, const weft_bucket *bucket);
#endif
