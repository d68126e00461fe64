/* SPDX-License-Identifier: Apache-2.0
 *
 * http_fail.h: what an exchange that did not succeed means to the caller.
 */
#ifndef WEFT_STORE_HTTP_HTTP_FAIL_H
#define WEFT_STORE_HTTP_HTTP_FAIL_H

#include "http_exchange.h"

/* True if the same may well succeed in a moment. */
bool weft_http_passing(const weft_http_exchange *exchange);
/* True if the request cannot have reached the server, or was turned away before it was looked at. */
bool weft_http_unheard(const weft_http_exchange *exchange);
/* Fails with one line: what was asked, what went wrong, and what to do. */
weft_status weft_http_fail(weft_context *context, const weft_http_exchange *exchange,
                           const weft_http_settings *settings, unsigned attempts);
const char *weft_http_method_name(weft_http_method method);

#endif
