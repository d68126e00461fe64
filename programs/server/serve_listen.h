/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_listen.h: a listening socket and a certificate, for a server to start with.
 */
#ifndef WEFT_PROGRAMS_SERVER_SERVE_LISTEN_H
#define WEFT_PROGRAMS_SERVER_SERVE_LISTEN_H

#include "../cli/command.h"

enum { SERVE_DEFAULT_PORT = 8477, SERVE_URL = 300, SERVE_NAME = 256 };

typedef struct serve_listener {
    int socket;
    char url[SERVE_URL];   /* with the port that the kernel chose */
    char name[SERVE_NAME]; /* as it was given, without the port; may be empty */
    bool loopback;
} serve_listener;

int serve_listener_open(weft_command *command, const char *address, bool tls, serve_listener *listener);

/* PEM texts, both NULL before they are read. */
typedef struct serve_certificate {
    const char *certificate_path;
    const char *key_path;
    char *certificate;
    char *key;
} serve_certificate;

/* Reads both and makes sure that they belong together. */
int serve_certificate_read(weft_command *command, serve_certificate *pair);
void serve_certificate_close(serve_certificate *pair);

#endif
