/* SPDX-License-Identifier: Apache-2.0
 *
 * s3.h: the store in a bucket of S3, and what its files share.
 */
#ifndef WEFT_STORE_S3_S3_H
#define WEFT_STORE_S3_S3_H

#include "../http/http_client.h"
#include "s3_credentials.h"
#include "s3_place.h"

#include <stdatomic.h>

/* What is known of the service's conditional puts. */
typedef enum weft_s3_conditions {
    S3_CONDITIONS_UNKNOWN,
    S3_CONDITIONS_NONE,
    S3_CONDITIONS_HEEDED
} weft_s3_conditions;

/* What the service is told when an object is made: how to encrypt and where to keep it. Lines of a header,
 * up to a NULL. */
typedef struct weft_s3_making {
    char encryption[64];
    char key[512];
    char class[96];
    const char *lines[4];
} weft_s3_making;

typedef struct weft_s3_store {
    weft_http_client client;
    weft_s3_credentials credentials;
    weft_s3_place place;
    weft_s3_making making;
    atomic_int conditions;  /* weft_s3_conditions: of puts in one request */
    atomic_int completions; /* weft_s3_conditions: of completing a multipart upload */
    atomic_bool found;      /* the bucket exists, as an answer has shown */
} weft_s3_store;

/* What is opened is closed by the table's `close`. `options` is never NULL. */
extern const weft_store_operations weft_s3_operations;
weft_status weft_s3_open(weft_context *context, const char *url, const weft_store_options *options,
                         void **self_out);

/* Gives an exchange its body. Without TLS its hashes go with it, since nothing else protects it on the way.
 */
weft_status weft_s3_fill(const weft_s3_store *store, weft_context *context, weft_http_exchange *exchange,
                         const void *data, size_t size);
/* Writes `text` so that it can stand in a query. False if there is no room. */
bool weft_s3_encode(const char *text, char *encoded, size_t capacity);

/* As in a dialect. */
bool weft_s3_passing(weft_http_client *client, const weft_http_exchange *exchange);
weft_status weft_s3_fail(weft_context *context, const weft_http_exchange *exchange,
                         const weft_http_settings *settings, unsigned attempts);
/* True if the answer is an error with this code. */
bool weft_s3_says(const weft_http_exchange *exchange, const char *code);

/* A put, in one request or as a multipart upload; see weft_store_put. */
weft_status weft_s3_put(weft_s3_store *store, weft_context *context, const weft_store_put_request *request,
                        weft_store_tag *tag_out);

/* A put in one request, of an object that is all in `data`. */
weft_status weft_s3_put_whole(weft_s3_store *store, weft_context *context,
                              const weft_store_put_request *request, const void *data, size_t size,
                              weft_store_tag *tag_out);
/* Whether the answer says that the condition of a put did not hold. */
bool weft_s3_refuses(const weft_store_put_request *request, const weft_http_exchange *exchange);
/* An object that shows whether the service heeds the conditions of puts. It stays, so that the next store
 * that asks need not make it. */
#define WEFT_S3_PROBE_KEY "weft-conditions"
#define WEFT_S3_PROBE_CONTENT "This object shows whether the store heeds the conditions of puts.\n"
/* Sets `conditions`, if they are unknown. The probe is there afterwards. */
weft_status weft_s3_learn_conditions(weft_s3_store *store, weft_context *context);

#endif
