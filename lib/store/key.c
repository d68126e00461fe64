/* SPDX-License-Identifier: Apache-2.0
 *
 * key.c: Ed25519 keys, kept in the PEM files that every OpenSSL can read and make.
 */
#include "key.h"

#include "../base/context.h"
#include "../base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct weft_key {
    weft_context *context;
    EVP_PKEY *pair;
    bool secret;
    uint8_t public_half[32];
    char run[WEFT_RUN_TEXT];
};

/* Takes over `pair`. */
static weft_status create_key(weft_context *context, EVP_PKEY *pair, bool secret, weft_key **key_out) {
    weft_key *key = weft_allocate_zeroed(context, 1, sizeof *key);
    if (key == NULL) {
        EVP_PKEY_free(pair);
        return WEFT_NO_MEMORY;
    }
    key->context = context;
    key->pair = pair;
    key->secret = secret;
    size_t length = sizeof key->public_half;
    if (EVP_PKEY_get_raw_public_key(pair, key->public_half, &length) != 1) {
        weft_key_destroy(key);
        return weft_fail(context, WEFT_NO_MEMORY, "OpenSSL could not handle a key");
    }
    *key_out = key;
    return WEFT_OK;
}

weft_status weft_key_generate(weft_context *context, weft_key **key_out) {
    weft_context_clear(context);
    EVP_PKEY *pair = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    if (pair == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "OpenSSL could not make an Ed25519 key");
    }
    return create_key(context, pair, true, key_out);
}

weft_status weft_key_read(weft_context *context, const char *path, weft_key **key_out) {
    weft_context_clear(context);
    char no_password[] = ""; /* given, so that nobody is asked for one */
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        int error = errno;
        return error == ENOENT
                   ? weft_fail(context, WEFT_NOT_FOUND, "%s: no such key; weft keygen makes one", path)
                   : weft_fail_errno(context, error, "%s: cannot open", path);
    }
    bool secret = true;
    EVP_PKEY *pair = PEM_read_PrivateKey(file, NULL, NULL, no_password);
    if (pair == NULL) {
        rewind(file);
        secret = false;
        pair = PEM_read_PUBKEY(file, NULL, NULL, no_password);
    }
    fclose(file);
    if (pair == NULL || EVP_PKEY_get_base_id(pair) != EVP_PKEY_ED25519) {
        EVP_PKEY_free(pair);
        return weft_fail(context, WEFT_MALFORMED,
                         "%s is not an Ed25519 key in a PEM file without a password; weft keygen makes one",
                         path);
    }
    return create_key(context, pair, secret, key_out);
}

static weft_status create_key_file(weft_context *context, const char *path, mode_t mode, FILE **file_out) {
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (file == NULL) {
        int error = errno;
        if (descriptor >= 0) {
            close(descriptor);
        }
        return error == EEXIST ? weft_fail(context, WEFT_INVALID_ARGUMENT,
                                           "%s exists; a key is never overwritten", path)
                               : weft_fail_errno(context, error, "%s: cannot create", path);
    }
    *file_out = file;
    return WEFT_OK;
}

static weft_status write_half(weft_context *context, const weft_key *key, const char *path, bool secret) {
    FILE *file = NULL;
    weft_status status = create_key_file(context, path, secret ? 0600 : 0644, &file);
    if (status != WEFT_OK) {
        return status;
    }
    int written = secret ? PEM_write_PrivateKey(file, key->pair, NULL, NULL, 0, NULL, NULL)
                         : PEM_write_PUBKEY(file, key->pair);
    bool failed = written != 1 || fflush(file) != 0 || fsync(fileno(file)) != 0;
    int error = errno;
    fclose(file);
    if (failed) {
        unlink(path);
        return weft_fail_errno(context, error, "writing %s failed", path);
    }
    return WEFT_OK;
}

weft_status weft_key_write(weft_context *context, const weft_key *key, const char *secret_path,
                           const char *public_path) {
    weft_context_clear(context);
    if (!key->secret) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "this key has no secret half to write");
    }
    weft_status status = write_half(context, key, secret_path, true);
    if (status != WEFT_OK) {
        return status;
    }
    status = write_half(context, key, public_path, false);
    if (status != WEFT_OK) {
        unlink(secret_path);
    }
    return status;
}

weft_status weft_key_bind(weft_context *context, weft_key *key, const char *run) {
    weft_context_clear(context);
    size_t length = strlen(run);
    if (length == 0 || length >= WEFT_RUN_TEXT || strspn(run, "0123456789abcdef") != length) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "'%.40s' is not the name of a run, which is hexadecimal; weft publish "
                         "--json tells it",
                         run);
    }
    snprintf(key->run, sizeof key->run, "%s", run);
    return WEFT_OK;
}

const char *weft_key_run(const weft_key *key) {
    return key->run;
}

void weft_key_destroy(weft_key *key) {
    if (key != NULL) {
        EVP_PKEY_free(key->pair);
        weft_release(key->context, key);
    }
}

bool weft_key_secret(const weft_key *key) {
    return key->secret;
}

void weft_key_format(const weft_key *key, char text[WEFT_KEY_TEXT]) {
    weft_hex_format(key->public_half, sizeof key->public_half, text);
}

weft_status weft_key_sign(weft_context *context, const weft_key *key, const void *data, size_t size,
                          uint8_t signature[WEFT_SIGNATURE_BYTES]) {
    if (!key->secret) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the key is a public one, which cannot sign; give the secret file of weft keygen");
    }
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    size_t length = WEFT_SIGNATURE_BYTES;
    bool done = digest != NULL && EVP_DigestSignInit(digest, NULL, NULL, NULL, key->pair) == 1 &&
                EVP_DigestSign(digest, signature, &length, data, size) == 1;
    EVP_MD_CTX_free(digest);
    return done ? WEFT_OK : weft_fail(context, WEFT_NO_MEMORY, "OpenSSL could not sign");
}

bool weft_key_check(const weft_key *key, const void *data, size_t size,
                    const uint8_t signature[WEFT_SIGNATURE_BYTES]) {
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    bool good = digest != NULL && EVP_DigestVerifyInit(digest, NULL, NULL, NULL, key->pair) == 1 &&
                EVP_DigestVerify(digest, signature, WEFT_SIGNATURE_BYTES, data, size) == 1;
    EVP_MD_CTX_free(digest);
    return good;
}
