/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_credentials.h: the credentials of a store, which are renewed before they expire, and once after a
 * service has refused them. Several threads may ask at once.
 */
#ifndef WEFT_STORE_S3_S3_CREDENTIALS_H
#define WEFT_STORE_S3_S3_CREDENTIALS_H

#include "../http/http_exchange.h"
#include "s3_source.h"

typedef struct weft_s3_credentials {
    weft_context *context; /* for memory only; NULL: not open */
    weft_s3_source source;
    weft_http_identity identity;
    char scheme[96]; /* of signatures */

    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    weft_s3_session session;
    char token_line[WEFT_S3_TEXT_MAX + 32];
    uint64_t serial;  /* 0: there is nothing yet */
    double due;       /* when to ask for newer ones, by weft_clock_now */
    double ends;      /* when they expire */
    bool stale;       /* the service has refused them, and nobody has asked for others since */
    uint64_t doubted; /* the serial of those that were refused */
    bool renewing;    /* by one thread */
} weft_s3_credentials;

/* Chooses the source; nobody is asked yet. `credentials` is zeroed and stays where it is. */
weft_status weft_s3_credentials_open(weft_s3_credentials *credentials, weft_context *context,
                                     const weft_s3_files *files, const weft_s3_profile *profile,
                                     const char *region, const char *ca_file);
void weft_s3_credentials_close(weft_s3_credentials *credentials);
/* The service says that those with this serial have expired, or are unknown to it. True if the same request
 * may do with others: newer ones are there, or their source is yet to be asked. */
bool weft_s3_credentials_doubt(weft_s3_credentials *credentials, uint64_t serial);

#endif
