/* SPDX-License-Identifier: Apache-2.0
 *
 * page.c: see page.h.
 */
#include "page.h"

#include <openssl/evp.h>
#include <stdio.h>

enum { HASH = 32, HASH_TEXT = 45 };

/* Base64 of the SHA-256, as Content-Security-Policy wants it. */
static bool hash_text(const char *data, size_t size, char text[HASH_TEXT]) {
    unsigned char hash[HASH];
    if (EVP_Digest(data, size, hash, NULL, EVP_sha256(), NULL) != 1) {
        return false;
    }
    EVP_EncodeBlock((unsigned char *)text, hash, HASH);
    return true;
}

bool page_policy(const char *script, size_t script_size, const char *style, size_t style_size,
                 const char *more, char policy[PAGE_POLICY]) {
    char script_hash[HASH_TEXT], style_hash[HASH_TEXT];
    if (!hash_text(script, script_size, script_hash) || !hash_text(style, style_size, style_hash)) {
        return false;
    }
    snprintf(policy, PAGE_POLICY,
             "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; img-src data:; base-uri "
             "'none'; form-action 'none'%s",
             script_hash, style_hash, more);
    return true;
}
