/* SPDX-License-Identifier: Apache-2.0
 *
 * key.h: signing and checking, for head.c.
 */
#ifndef WEFT_SYNC_FORMAT_KEY_H
#define WEFT_SYNC_FORMAT_KEY_H

#include <weft/sync.h>

enum { WEFT_SIGNATURE_BYTES = 64 };

weft_status weft_key_sign(weft_context *context, const weft_key *key, const void *data, size_t size,
                          uint8_t signature[WEFT_SIGNATURE_BYTES]);
bool weft_key_check(const weft_key *key, const void *data, size_t size,
                    const uint8_t signature[WEFT_SIGNATURE_BYTES]);
/* The run that it was bound to; empty: any. */
const char *weft_key_run(const weft_key *key);

#endif
