/* SPDX-License-Identifier: Apache-2.0
 *
 * http.h: the store behind an HTTP(S) server.
 */
#ifndef WEFT_STORE_HTTP_HTTP_H
#define WEFT_STORE_HTTP_HTTP_H

#include <weft/store.h>

/* What is opened is closed by the table's `close`. `options` is never NULL. */
extern const weft_store_operations weft_http_operations;
weft_status weft_http_open(weft_context *context, const char *url, const weft_store_options *options,
                           void **self_out);

#endif
