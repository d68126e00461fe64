/* SPDX-License-Identifier: Apache-2.0
 *
 * checksum.c: XXH3 by xxhash, Adler-32 by zlib, SHA-256 by OpenSSL, and BLAKE3 where its library was found.
 */
#include "checksum.h"

#include "../base/context.h"
#include "../base/hash.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>
#ifdef WEFT_BLAKE3
#include <blake3.h>
#endif

struct weft_checksum {
    weft_context *context;
    weft_foreign_checksum kind;
    uLong adler;
    XXH3_state_t *xxh3;
    EVP_MD_CTX *sha256;
#ifdef WEFT_BLAKE3
    blake3_hasher blake3;
#endif
};

static const char *const names[] = {
    [WEFT_FOREIGN_XXH3_128] = "xxh3-128",
    [WEFT_FOREIGN_ADLER32] = "adler32",
    [WEFT_FOREIGN_BLAKE3] = "blake3",
    [WEFT_FOREIGN_SHA256] = "sha256",
};

const char *weft_checksum_name(weft_foreign_checksum kind) {
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : NULL;
}

bool weft_checksum_parse(const char *name, weft_foreign_checksum *kind_out) {
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind_out = (weft_foreign_checksum)i;
            return true;
        }
    }
    return false;
}

weft_status weft_checksum_open(weft_context *context, weft_foreign_checksum kind,
                               weft_checksum **checksum_out) {
    if (weft_checksum_name(kind) == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "there is no checksum number %d", (int)kind);
    }
#ifndef WEFT_BLAKE3
    if (kind == WEFT_FOREIGN_BLAKE3) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "this library was built without BLAKE3; build it where libblake3 is installed, or "
                         "let the trainer write xxh3-128");
    }
#endif
    weft_checksum *checksum = weft_allocate_zeroed(context, 1, sizeof *checksum);
    if (checksum == NULL) {
        return WEFT_NO_MEMORY;
    }
    checksum->context = context;
    checksum->kind = kind;
    bool failed = false;
    if (kind == WEFT_FOREIGN_XXH3_128) {
        checksum->xxh3 = XXH3_createState();
        failed = checksum->xxh3 == NULL;
    } else if (kind == WEFT_FOREIGN_SHA256) {
        checksum->sha256 = EVP_MD_CTX_new();
        failed = checksum->sha256 == NULL;
    }
    if (failed) {
        weft_checksum_close(checksum);
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for a checksum");
    }
    *checksum_out = checksum;
    return WEFT_OK;
}

void weft_checksum_close(weft_checksum *checksum) {
    if (checksum == NULL) {
        return;
    }
    (void)XXH3_freeState(checksum->xxh3);
    EVP_MD_CTX_free(checksum->sha256);
    weft_release(checksum->context, checksum);
}

static weft_status refuse(const weft_checksum *checksum) {
    return weft_fail(checksum->context, WEFT_NO_MEMORY, "computing %s failed", names[checksum->kind]);
}

weft_status weft_checksum_begin(weft_checksum *checksum) {
    bool failed = false;
    switch (checksum->kind) {
    case WEFT_FOREIGN_XXH3_128:
        failed = XXH3_128bits_reset(checksum->xxh3) != XXH_OK;
        break;
    case WEFT_FOREIGN_ADLER32:
        checksum->adler = 1;
        break;
    case WEFT_FOREIGN_SHA256:
        failed = EVP_DigestInit_ex(checksum->sha256, EVP_sha256(), NULL) != 1;
        break;
    case WEFT_FOREIGN_BLAKE3:
#ifdef WEFT_BLAKE3
        blake3_hasher_init(&checksum->blake3);
#endif
        break;
    }
    return failed ? refuse(checksum) : WEFT_OK;
}

weft_status weft_checksum_add(weft_checksum *checksum, const void *data, size_t size) {
    bool failed = false;
    switch (checksum->kind) {
    case WEFT_FOREIGN_XXH3_128:
        failed = XXH3_128bits_update(checksum->xxh3, data, size) != XXH_OK;
        break;
    case WEFT_FOREIGN_ADLER32:
        checksum->adler = adler32_z(checksum->adler, data, size);
        break;
    case WEFT_FOREIGN_SHA256:
        failed = EVP_DigestUpdate(checksum->sha256, data, size) != 1;
        break;
    case WEFT_FOREIGN_BLAKE3:
#ifdef WEFT_BLAKE3
        blake3_hasher_update(&checksum->blake3, data, size);
#endif
        break;
    }
    return failed ? refuse(checksum) : WEFT_OK;
}

weft_status weft_checksum_end(weft_checksum *checksum, weft_spelling spelling,
                              char text[WEFT_CHECKSUM_TEXT]) {
    uint8_t bytes[32] = {0};
    unsigned size = sizeof bytes;
    switch (checksum->kind) {
    case WEFT_FOREIGN_XXH3_128: {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(checksum->xxh3));
        size = sizeof canonical.digest;
        memcpy(bytes, canonical.digest, size);
        break;
    }
    case WEFT_FOREIGN_ADLER32:
        snprintf(text, WEFT_CHECKSUM_TEXT, spelling == WEFT_SPELT_DECIMAL ? "%lu" : "%08lx",
                 (unsigned long)checksum->adler);
        return WEFT_OK;
    case WEFT_FOREIGN_SHA256:
        if (EVP_DigestFinal_ex(checksum->sha256, bytes, &size) != 1) {
            return refuse(checksum);
        }
        break;
    case WEFT_FOREIGN_BLAKE3:
#ifdef WEFT_BLAKE3
        blake3_hasher_finalize(&checksum->blake3, bytes, sizeof bytes);
#endif
        break;
    }
    weft_hex_format(bytes, size, text);
    return WEFT_OK;
}
