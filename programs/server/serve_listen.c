/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_listen.c: listening sockets. They are opened here, so that a failure is told in words and not by
 * libmicrohttpd.
 */
#include "serve.h"

#include "../cli/remote.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
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
