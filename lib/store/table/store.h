/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: what store.c offers to the backends (directory, http/, s3/), beside the public calls.
 */
#ifndef WEFT_STORE_TABLE_STORE_H
#define WEFT_STORE_TABLE_STORE_H

#include <weft/store.h>

/* The store has threads or connections, which are this process's: a child that fork makes is refused. */
void weft_store_bind(weft_store *store);

/* Reads from the feed of a put, which it holds to its promises: `count_out` is zero at the end only, and
 * the end is where the size says. */
weft_status weft_store_feed_read(weft_context *context, const weft_store_put_request *request,
                                 uint64_t offset, void *data, size_t capacity, size_t *count_out);

#endif
