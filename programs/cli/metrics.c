/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.c: see metrics.h. libmicrohttpd answers with the last text from a thread of its own; what is
 * measured is touched by the thread that measures alone.
 */
#include "metrics.h"

#include <errno.h>
#ifdef WEFT_SERVER
#include <microhttpd.h>
#endif
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void metrics_print(FILE *out, const char *name, const char *type, const char *help, double value) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

double metrics_wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the address ---- */

#ifdef WEFT_SERVER
enum { CONNECTIONS = 32, IDLE_SECONDS = 10, HOST_MAX = 256, PORT_TEXT = 8, NO_PORT = 65536 };

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned code, const char *text,
                               size_t size) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer(void *opaque, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data, size_t *data_size,
                              void **state) {
    static const char absent[] = "there is only /metrics here\n", refused[] = "GET it\n";
    weft_metrics *metrics = opaque;
    (void)version;
    (void)data;
    (void)state;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        *data_size = 0;
        return respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, refused, sizeof refused - 1);
    }
    if (strcmp(url, "/metrics") != 0) {
        return respond(connection, MHD_HTTP_NOT_FOUND, absent, sizeof absent - 1);
    }
    pthread_mutex_lock(&metrics->mutex);
    enum MHD_Result result =
        respond(connection, MHD_HTTP_OK, metrics->text != NULL ? metrics->text : "", metrics->size);
    pthread_mutex_unlock(&metrics->mutex);
    return result;
}

static void keep_silent(void *opaque, const char *format, va_list arguments) {
    (void)opaque;
    (void)format;
    (void)arguments;
}

static int start_daemon(weft_metrics *metrics) {
    weft_command *command = metrics->command;
    char host[HOST_MAX];
    char port[PORT_TEXT];
    uint64_t number = NO_PORT;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info = NULL;
    if (!text_split_address(metrics->address, host, sizeof host, &number) || number == NO_PORT) {
        return command_error(command, EXIT_USAGE,
                             "--metrics takes ADDRESS:PORT, such as 127.0.0.1:9477 or [::1]:9477, not '%s'",
                             metrics->address);
    }
    snprintf(port, sizeof port, "%u", (unsigned)number);
    int failure = getaddrinfo(host[0] != 0 ? host : NULL, port, &hints, &info);
    if (failure != 0) {
        return command_error(command, EXIT_FAILED, "cannot show metrics at %s: %s", metrics->address,
                             gai_strerror(failure));
    }
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG |
                     (info->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    errno = 0;
    metrics->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, answer, metrics, MHD_OPTION_EXTERNAL_LOGGER, keep_silent, NULL,
        MHD_OPTION_SOCK_ADDR, info->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    int error = errno;
    freeaddrinfo(info);
    if (metrics->daemon == NULL) {
        return command_error(command, EXIT_FAILED, "cannot show metrics at %s: %s", metrics->address,
                             error != 0 ? strerror(error) : "the server does not start");
    }
    const union MHD_DaemonInfo *bound = MHD_get_daemon_info(metrics->daemon, MHD_DAEMON_INFO_BIND_PORT);
    command_note(command, "metrics are at http://%.*s:%u/metrics",
                 (int)(strrchr(metrics->address, ':') - metrics->address), metrics->address,
                 bound != NULL ? bound->port : 0u);
    return EXIT_DONE;
}

static void stop_daemon(weft_metrics *metrics) {
    if (metrics->daemon != NULL) {
        MHD_stop_daemon(metrics->daemon);
    }
}
#else
static int start_daemon(weft_metrics *metrics) {
    return command_error(
        metrics->command, EXIT_USAGE,
        "--metrics needs a server, which this weft was built without; use --metrics-file, or install "
        "libmicrohttpd and build again");
}

static void stop_daemon(weft_metrics *metrics) {
    (void)metrics;
}
#endif

/* ---- the file ---- */

/* Whoever reads it finds it whole: it takes the place of the last one. */
static void write_file(weft_metrics *metrics) {
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", metrics->file);
    FILE *file = (size_t)length < sizeof temporary ? fopen(temporary, "we") : NULL;
    bool failed = file == NULL || fwrite(metrics->text, 1, metrics->size, file) != metrics->size;
    failed |= file != NULL && fclose(file) != 0;
    failed = failed || rename(temporary, metrics->file) != 0;
    if (failed && !metrics->complained) {
        command_error(metrics->command, EXIT_FAILED, "cannot write the metrics into %s: %s", metrics->file,
                      strerror(errno));
    }
    metrics->complained = failed;
}

/* ---- all of it ---- */

int metrics_open(weft_metrics *metrics, weft_command *command) {
    metrics->command = command;
    pthread_mutex_init(&metrics->mutex, NULL);
    return metrics->address != NULL ? start_daemon(metrics) : EXIT_DONE;
}

void metrics_close(weft_metrics *metrics) {
    stop_daemon(metrics);
    free(metrics->text);
    pthread_mutex_destroy(&metrics->mutex);
}

FILE *metrics_begin(weft_metrics *metrics) {
    if (metrics->address == NULL && metrics->file == NULL) {
        return NULL;
    }
    metrics->draft = open_memstream(&metrics->draft_text, &metrics->draft_size);
    if (metrics->draft != NULL) {
        fprintf(metrics->draft,
                "# HELP weft_build_info The version of weft.\n# TYPE weft_build_info gauge\n"
                "weft_build_info{version=\"%d.%d.%d\"} 1\n",
                WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH);
    }
    return metrics->draft;
}

void metrics_end(weft_metrics *metrics) {
    bool failed = fclose(metrics->draft) != 0;
    metrics->draft = NULL;
    if (failed) {
        free(metrics->draft_text);
        return;
    }
    pthread_mutex_lock(&metrics->mutex);
    char *before = metrics->text;
    metrics->text = metrics->draft_text;
    metrics->size = metrics->draft_size;
    pthread_mutex_unlock(&metrics->mutex);
    free(before);
    if (metrics->file != NULL) {
        write_file(metrics);
    }
}
