/* SPDX-License-Identifier: Apache-2.0
 *
 * backends.h: the kinds of store that weft_store_open chooses from.
 */
#ifndef WEFT_STORE_BACKENDS_H
#define WEFT_STORE_BACKENDS_H

#include <weft/store.h>

/* What each opens is closed by its table's `close`. `options` is never NULL. */
extern const weft_store_operations weft_directory_operations;
weft_status weft_directory_open(weft_context *context, const char *root, const weft_store_options *options,
                                void **self_out);
extern const weft_store_operations weft_http_operations;
weft_status weft_http_open(weft_context *context, const char *url, const weft_store_options *options,
                           void **self_out);
extern const weft_store_operations weft_s3_operations;
weft_status weft_s3_open(weft_context *context, const char *url, const weft_store_options *options,
                         void **self_out);

/* Reads from the feed of a put, which it holds to its promises: `count_out` is zero at the end only, and
 * the end is where the size says. */
weft_status weft_store_feed_read(weft_context *context, const weft_store_put_request *request,
                                 uint64_t offset, void *data, size_t capacity, size_t *count_out);

#endif
