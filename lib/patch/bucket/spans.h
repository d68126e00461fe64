/* SPDX-License-Identifier: Apache-2.0
 *
 * spans.h: what a bucket covers. doc/FORMAT.md specifies the bytes.
 */
#ifndef WEFT_PATCH_BUCKET_SPANS_H
#define WEFT_PATCH_BUCKET_SPANS_H

#include "roster.h"
#include "window.h"

void weft_bucket_close(weft_bucket *bucket, weft_context *context);
/* The most units that a bucket may have: positions are 32 bits wide. */
uint64_t weft_bucket_unit_limit(const weft_context *context, unsigned width);
/* Adds a span and its units; the first span decides width and dtype. */
weft_status weft_bucket_add(weft_bucket *bucket, weft_context *context, size_t tensor,
                            const weft_tensor *description, const weft_span *span);
void weft_bucket_write_spans(const weft_bucket *bucket, const weft_roster *roster, weft_writer *writer);
/* Checks everything that a single bucket can be checked for: spans lie inside of tensors that exist in
 * the result, share one dtype, start and end on words, and stay within the limit. */
weft_status weft_bucket_read_spans(weft_bucket *bucket, const weft_roster *roster, weft_reader *reader);
bool weft_bucket_same_spans(const weft_bucket *a, const weft_bucket *b);

#endif
