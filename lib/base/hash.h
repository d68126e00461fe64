/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.h: SHA-256 by OpenSSL, hexadecimal text, and random names.
 */
#ifndef WEFT_BASE_HASH_H
#define WEFT_BASE_HASH_H

#include <weft/base.h>

enum { WEFT_HASH_BYTES = 32, WEFT_HASH_TEXT = 2 * WEFT_HASH_BYTES + 1 };

typedef struct weft_hash {
    uint8_t bytes[WEFT_HASH_BYTES];
} weft_hash;

weft_status weft_hash_compute(weft_context *context, const void *data, size_t size, weft_hash *hash_out);
bool weft_hash_equal(const weft_hash *a, const weft_hash *b);

/* Lower-case, terminated: `text` takes 2 * size + 1 bytes. */
void weft_hex_format(const uint8_t *bytes, size_t size, char *text);
/* False unless `text` is exactly 2 * size lower-case digits. */
bool weft_hex_parse(const char *text, uint8_t *bytes, size_t size);
/* `size` random bytes as hexadecimal. */
weft_status weft_hex_random(weft_context *context, size_t size, char *text);

#endif
