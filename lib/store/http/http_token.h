/* SPDX-License-Identifier: Apache-2.0
 *
 * http_token.h: a bearer token, given as it is or by the file that holds it, which is read again when it
 * has changed.
 */
#ifndef WEFT_STORE_HTTP_HTTP_TOKEN_H
#define WEFT_STORE_HTTP_HTTP_TOKEN_H

#include "http_exchange.h"

#include <sys/stat.h>

typedef struct weft_http_token {
    weft_context *context; /* for memory only; NULL: not open */
    pthread_mutex_t mutex;
    char *line;       /* of the header */
    char *path;       /* of the file, or NULL */
    struct stat file; /* as it was when it was read */
    double looked;    /* when that was compared, by weft_clock_now */
    uint64_t serial;
} weft_http_token;

/* `token` is zeroed and stays where it is; `identity_out` speaks for it. Either of the options is given. */
weft_status weft_http_token_open(weft_http_token *token, weft_context *context,
                                 const weft_store_options *options, weft_http_identity *identity_out);
void weft_http_token_close(weft_http_token *token);

#endif
