/* SPDX-License-Identifier: Apache-2.0
 *
 * hash.c: the hash that names and protects objects.
 */
#include "hash.h"

#include "context.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>

weft_status weft_hash_compute(weft_context *context, const void *data, size_t size, weft_hash *hash_out) {
    unsigned length = 0;
    if (EVP_Digest(data, size, hash_out->bytes, &length, EVP_sha256(), NULL) != 1 ||
        length != WEFT_HASH_BYTES) {
        return weft_fail(context, WEFT_NO_MEMORY, "OpenSSL could not compute a SHA-256");
    }
    return WEFT_OK;
}

bool weft_hash_equal(const weft_hash *a, const weft_hash *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void weft_hex_format(const uint8_t *bytes, size_t size, char *text) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * size] = '\0';
}

static int digit_value(char digit) {
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

bool weft_hex_parse(const char *text, uint8_t *bytes, size_t size) {
    if (strlen(text) != 2 * size) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        int high = digit_value(text[2 * i]);
        int low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

weft_status weft_hex_random(weft_context *context, size_t size, char *text) {
    uint8_t bytes[32];
    if (size > sizeof bytes || RAND_bytes(bytes, (int)size) != 1) {
        return weft_fail(context, WEFT_IO_FAILED, "the system gave no random bytes");
    }
    weft_hex_format(bytes, size, text);
    return WEFT_OK;
}
