/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_fail.h: how an S3 service speaks when it refuses, and what that means to the caller.
 */
#ifndef WEFT_STORE_S3_S3_FAIL_H
#define WEFT_STORE_S3_S3_FAIL_H

#include "../http/http_exchange.h"

/* True if the answer says this by its code, whatever its HTTP status. */
bool weft_s3_says(const weft_http_exchange *exchange, const char *code);
/* True if the same may well succeed in a moment. */
bool weft_s3_passing(const weft_http_exchange *exchange);
/* Fails with one line: what was asked, what went wrong, and what to do. */
weft_status weft_s3_fail(weft_context *context, const weft_http_exchange *exchange,
                         const weft_http_settings *settings, unsigned attempts);

#endif
