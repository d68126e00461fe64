/* SPDX-License-Identifier: Apache-2.0
 *
 * key.h: signing with an Ed25519 key and checking signatures, for heads and for messages. (The keys of
 * objects are plain text: weft_store_key_valid.)
 */
#ifndef WEFT_STORE_KEY_H
#define WEFT_STORE_KEY_H

#include <weft/store.h>

enum { WEFT_SIGNATURE_BYTES = 64 };

weft_status weft_key_sign(weft_context *context, const weft_key *key, const void *data, size_t size,
                          uint8_t signature[WEFT_SIGNATURE_BYTES]);
/* False also if there is no memory. */
bool weft_key_check(const weft_key *key, const void *data, size_t size,
                    const uint8_t signature[WEFT_SIGNATURE_BYTES]);
/* The run that weft_key_bind bound it to; empty: any. */
const char *weft_key_run(const weft_key *key);

#endif
