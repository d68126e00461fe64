/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_listen.c: what a server needs from outside before it can start: a listening socket, certificates.
 * Each is tried here, so that its failure is told in words and not by libmicrohttpd.
 */
#include "serve.h"

#include "../cli/remote.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the socket ---- */

enum { PORT_TEXT = 8, BACKLOG = 1024 };

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static int fail_listen(weft_command *command, const char *address, int error) {
    if (error == EADDRINUSE) {
        return command_error(
            command, EXIT_FAILED,
            "cannot listen on %s: another process listens there; choose another with --listen", address);
    }
    return command_error(command, EXIT_FAILED, "cannot listen on %s: %s", address, strerror(error));
}

static int open_socket(const struct addrinfo *info, int *socket_out) {
    int descriptor = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        return errno;
    }
    int one = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(descriptor, info->ai_addr, info->ai_addrlen) != 0 || listen(descriptor, BACKLOG) != 0) {
        int error = errno;
        close(descriptor);
        return error;
    }
    *socket_out = descriptor;
    return 0;
}

/* The address as the kernel has it, with the port that it chose. */
static bool describe(serve_listener *listener, bool tls) {
    struct sockaddr_storage storage = {0};
    socklen_t size = sizeof storage;
    struct sockaddr *address = (struct sockaddr *)(void *)&storage;
    char host[SERVE_NAME];
    char port[PORT_TEXT];
    if (getsockname(listener->socket, address, &size) != 0 ||
        getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) !=
            0) {
        return false;
    }
    bool v6 = address->sa_family == AF_INET6;
    snprintf(listener->url, sizeof listener->url, "%s://%s%s%s:%s/", tls ? "https" : "http", v6 ? "[" : "",
             host, v6 ? "]" : "", port);
    listener->loopback = is_loopback(address);
    return true;
}

int serve_listener_open(weft_command *command, const char *address, bool tls, serve_listener *listener) {
    char host[SERVE_NAME];
    char port[PORT_TEXT];
    uint64_t number = SERVE_DEFAULT_PORT;
    if (!text_split_address(address, host, sizeof host, &number)) {
        return command_error(command, EXIT_USAGE,
                             "--listen takes ADDRESS:PORT, such as 127.0.0.1:8477 or [::1]:0, not '%s'",
                             address);
    }
    snprintf(port, sizeof port, "%u", (unsigned)number);
    snprintf(listener->name, sizeof listener->name, "%s", host);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info = NULL;
    int failure = getaddrinfo(host[0] != 0 ? host : NULL, port, &hints, &info);
    if (failure != 0) {
        return command_error(command, EXIT_FAILED, "cannot listen on %s: %s", address,
                             gai_strerror(failure));
    }
    int error = open_socket(info, &listener->socket);
    freeaddrinfo(info);
    if (error != 0) {
        return fail_listen(command, address, error);
    }
    if (!describe(listener, tls)) {
        close(listener->socket);
        return command_error(command, EXIT_FAILED, "cannot tell which address %s became", address);
    }
    return EXIT_DONE;
}

/* ---- certificates ---- */

enum { PEM_MAX = 1 << 20 };

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

static int compare_pair(weft_command *command, const serve_certificate *pair, X509 *certificate,
                        EVP_PKEY *key) {
    if (certificate == NULL) {
        return command_error(command, EXIT_FAILED, "%s holds no certificate in PEM form",
                             pair->certificate_path);
    }
    if (key == NULL) {
        return command_error(command, EXIT_FAILED,
                             "%s holds no private key in PEM form, or one with a password", pair->key_path);
    }
    if (X509_check_private_key(certificate, key) != 1) {
        return command_error(command, EXIT_FAILED, "the key in %s is not that of the certificate in %s",
                             pair->key_path, pair->certificate_path);
    }
    return EXIT_DONE;
}

static int check_pair(weft_command *command, const serve_certificate *pair) {
    char no_password[] = ""; /* given, so that nobody is asked for one */
    BIO *certificate_text = BIO_new_mem_buf(pair->certificate, -1);
    BIO *key_text = BIO_new_mem_buf(pair->key, -1);
    X509 *certificate =
        certificate_text == NULL ? NULL : PEM_read_bio_X509(certificate_text, NULL, NULL, no_password);
    EVP_PKEY *key = key_text == NULL ? NULL : PEM_read_bio_PrivateKey(key_text, NULL, NULL, no_password);
    int code = compare_pair(command, pair, certificate, key);
    EVP_PKEY_free(key);
    X509_free(certificate);
    BIO_free(key_text);
    BIO_free(certificate_text);
    ERR_clear_error();
    return code;
}

int serve_certificate_read(weft_command *command, serve_certificate *pair) {
    int code = read_file(command, pair->certificate_path, &pair->certificate);
    if (code == EXIT_DONE) {
        code = read_file(command, pair->key_path, &pair->key);
    }
    if (code == EXIT_DONE) {
        code = check_pair(command, pair);
    }
    if (code == EXIT_DONE) {
        remote_warn_readable(command, "private key", pair->key_path, 007);
    }
    return code;
}

void serve_certificate_close(serve_certificate *pair) {
    if (pair->key != NULL) {
        OPENSSL_cleanse(pair->key, strlen(pair->key));
    }
    free(pair->key);
    free(pair->certificate);
}
