/* SPDX-License-Identifier: Apache-2.0
 *
 * s3.h: the store in a bucket of S3, and what its files share.
 */
#ifndef WEFT_STORE_S3_S3_H
#define WEFT_STORE_S3_S3_H

#include "../http/http_client.h"
#include "s3_place.h"

#include <stdatomic.h>

/* What is known of the service's conditional puts. */
typedef enum weft_s3_conditions {
    S3_CONDITIONS_UNKNOWN,
    S3_CONDITIONS_NONE,
    S3_CONDITIONS_HEEDED
} weft_s3_conditions;

typedef struct weft_s3_store {
    weft_http_client client;
    weft_http_signing signing;
    weft_s3_place place;
    atomic_int conditions;  /* of puts of one request */
    atomic_int completions; /* of putting parts together */
    atomic_bool found;      /* the bucket is there */
} weft_s3_store;

/* What is opened is closed by the table's `close`. `options` is never NULL. */
extern const weft_store_operations weft_s3_operations;
weft_status weft_s3_open(weft_context *context, const char *url, const weft_store_options *options,
                         void **self_out);

/* Bytes in memory as the body of an exchange, with their hash where nothing else protects them on the way.
 */
weft_status weft_s3_fill(const weft_s3_store *store, weft_context *context, weft_http_exchange *exchange,
                         const void *data, size_t size);
/* Writes `text` so that it can stand in a query. False if there is no room. */
bool weft_s3_encode(const char *text, char *encoded, size_t capacity);

/* The whole of a put; see weft_store_put. */
weft_status weft_s3_put(weft_s3_store *store, weft_context *context, const weft_store_put_request *request,
                        weft_store_tag *tag_out);

/* Of an object that is all in `data`. */
weft_status weft_s3_put_whole(weft_s3_store *store, weft_context *context,
                              const weft_store_put_request *request, const void *data, size_t size,
                              weft_store_tag *tag_out);
/* Whether the answer says that the condition of a put did not hold. */
bool weft_s3_refuses(const weft_store_put_request *request, const weft_http_exchange *exchange);
/* An object that shows whether the service heeds the conditions of puts. It stays, so that the next one who
 * asks need not write. */
#define WEFT_S3_PROBE_KEY "weft-conditions"
#define WEFT_S3_PROBE_CONTENT "This object shows whether the store heeds the conditions of puts.\n"
/* Learns whether the service heeds the conditions of puts, if nobody knows yet. The object is there then.
 */
weft_status weft_s3_learn_conditions(weft_s3_store *store, weft_context *context);

#endif
