/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_certificate.c: the certificate of a server and its key: read, tried, and read again when they
 * change.
 *
 * A certificate is renewed every few weeks, and connections go on meanwhile: each handshake asks for the
 * pair of the moment (retrieve). Handshakes may still use the pair before, and what they are given is not
 * theirs, so pairs stay until the end; there is one more for each renewal. GnuTLS passes nothing of ours to
 * that function: the pair of the moment is the process's. A pair that cannot be read or does not fit
 * together, as in the middle of a renewal, changes nothing.
 */
#include "serve.h"

#include "../cli/remote.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PEM_MAX = 1 << 20, CHAIN_MAX = 16 };

typedef struct serve_pair {
    struct serve_pair *before;
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned length;
    gnutls_privkey_t key;
} serve_pair;

static _Atomic(serve_pair *) current;

static int retrieve(gnutls_session_t session, const gnutls_datum_t *authorities, int authority_count,
                    const gnutls_pk_algorithm_t *algorithms, int algorithm_count, gnutls_pcert_st **chain,
                    unsigned *length, gnutls_privkey_t *key) {
    (void)session;
    (void)authorities;
    (void)authority_count;
    (void)algorithms;
    (void)algorithm_count;
    serve_pair *pair = atomic_load(&current);
    *chain = pair->chain;
    *length = pair->length;
    *key = pair->key;
    return 0;
}

gnutls_certificate_retrieve_function2 *const serve_certificate_retrieve = retrieve;

/* ---- reading ---- */

static int read_file(weft_command *command, const char *path, char **text_out) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return command_error(command, EXIT_FAILED, "cannot open %s: %s", path, strerror(errno));
    }
    char *text = malloc(PEM_MAX + 1);
    size_t size = text == NULL ? 0 : fread(text, 1, PEM_MAX + 1, file);
    bool failed = text == NULL || ferror(file) || size > PEM_MAX || memchr(text, 0, size) != NULL;
    fclose(file);
    if (failed) {
        free(text);
        return command_error(command, EXIT_FAILED, "%s cannot be read, or is no PEM file", path);
    }
    text[size] = 0;
    *text_out = text;
    return EXIT_DONE;
}

/* Also learns when it expires. */
static int compare_pair(weft_command *command, serve_certificate *certificate, X509 *given, EVP_PKEY *key) {
    struct tm end = {0};
    if (given == NULL) {
        return command_error(command, EXIT_FAILED, "%s holds no certificate in PEM form",
                             certificate->certificate_path);
    }
    if (key == NULL) {
        return command_error(command, EXIT_FAILED,
                             "%s holds no private key in PEM form, or one with a password",
                             certificate->key_path);
    }
    if (X509_check_private_key(given, key) != 1) {
        return command_error(command, EXIT_FAILED, "the key in %s is not that of the certificate in %s",
                             certificate->key_path, certificate->certificate_path);
    }
    if (ASN1_TIME_to_tm(X509_get0_notAfter(given), &end) == 1) {
        atomic_store(&certificate->not_after, (int64_t)timegm(&end));
    }
    return EXIT_DONE;
}

static int check_texts(weft_command *command, serve_certificate *certificate, const char *chain,
                       const char *key_text) {
    char no_password[] = ""; /* given, so that nobody is asked for one */
    BIO *chain_source = BIO_new_mem_buf(chain, -1);
    BIO *key_source = BIO_new_mem_buf(key_text, -1);
    X509 *first = chain_source == NULL ? NULL : PEM_read_bio_X509(chain_source, NULL, NULL, no_password);
    EVP_PKEY *key =
        key_source == NULL ? NULL : PEM_read_bio_PrivateKey(key_source, NULL, NULL, no_password);
    int code = compare_pair(command, certificate, first, key);
    EVP_PKEY_free(key);
    X509_free(first);
    BIO_free(key_source);
    BIO_free(chain_source);
    ERR_clear_error();
    return code;
}

/* The pair of the moment from now on. */
static int install(weft_command *command, const serve_certificate *certificate, char *chain, char *key) {
    serve_pair *pair = calloc(1, sizeof *pair);
    gnutls_datum_t chain_text = {(unsigned char *)chain, (unsigned)strlen(chain)};
    gnutls_datum_t key_text = {(unsigned char *)key, (unsigned)strlen(key)};
    int result = pair != NULL ? gnutls_privkey_init(&pair->key) : GNUTLS_E_MEMORY_ERROR;
    if (result >= 0) {
        result = gnutls_privkey_import_x509_raw(pair->key, &key_text, GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    if (result >= 0) {
        pair->length = CHAIN_MAX;
        result = gnutls_pcert_list_import_x509_raw(pair->chain, &pair->length, &chain_text,
                                                   GNUTLS_X509_FMT_PEM, 0);
    }
    if (result < 0) {
        if (pair != NULL) {
            gnutls_privkey_deinit(pair->key);
        }
        free(pair);
        return command_error(command, EXIT_FAILED, "%s and %s cannot be used: %s",
                             certificate->certificate_path, certificate->key_path, gnutls_strerror(result));
    }
    pair->before = atomic_load(&current);
    atomic_store(&current, pair);
    return EXIT_DONE;
}

static void look_at(const char *path, struct stat *file) {
    struct stat found;
    if (stat(path, &found) == 0) {
        *file = found;
    }
}

int serve_certificate_read(weft_command *command, serve_certificate *certificate) {
    char *chain = NULL, *key = NULL;
    look_at(certificate->certificate_path, &certificate->certificate_file);
    look_at(certificate->key_path, &certificate->key_file);
    int code = read_file(command, certificate->certificate_path, &chain);
    if (code == EXIT_DONE) {
        code = read_file(command, certificate->key_path, &key);
    }
    if (code == EXIT_DONE) {
        code = check_texts(command, certificate, chain, key);
    }
    if (code == EXIT_DONE) {
        code = install(command, certificate, chain, key);
    }
    if (code == EXIT_DONE) {
        certificate->pending = false;
        remote_warn_readable(command, "private key", certificate->key_path, 007);
        if (atomic_load(&certificate->not_after) < (int64_t)time(NULL)) {
            command_warn(command, "the certificate in %s has expired", certificate->certificate_path);
        }
    }
    if (key != NULL) {
        OPENSSL_cleanse(key, strlen(key));
    }
    free(key);
    free(chain);
    return code;
}

static bool is_other(const char *path, struct stat *seen) {
    struct stat now;
    if (stat(path, &now) != 0) {
        return false;
    }
    bool other = now.st_ino != seen->st_ino || now.st_dev != seen->st_dev || now.st_size != seen->st_size ||
                 now.st_mtim.tv_sec != seen->st_mtim.tv_sec || now.st_mtim.tv_nsec != seen->st_mtim.tv_nsec;
    *seen = now;
    return other;
}

bool serve_certificate_changed(serve_certificate *certificate) {
    if (certificate->certificate_path == NULL) {
        return false;
    }
    bool first = is_other(certificate->certificate_path, &certificate->certificate_file);
    bool second = is_other(certificate->key_path, &certificate->key_file);
    certificate->pending = certificate->pending || first || second;
    return first || second;
}

void serve_certificate_close(void) {
    for (serve_pair *pair = atomic_exchange(&current, NULL), *before; pair != NULL; pair = before) {
        before = pair->before;
        for (unsigned i = 0; i < pair->length; i++) {
            gnutls_pcert_deinit(&pair->chain[i]);
        }
        gnutls_privkey_deinit(pair->key);
        free(pair);
    }
}
