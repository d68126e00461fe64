/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_access.c: a line for every request that has ended, in the combined format of web servers or as
 * JSON.
 *
 * Lines are gathered in memory and written by a thread, so that no request waits for a disk or for who
 * reads a pipe; where that is too slow, lines are left out and counted. Nothing of a line can be another's:
 * bytes that are not plain are escaped. A line has no token and no query, where people put secrets by
 * mistake.
 */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, AGENT_BYTES = 200, ADDRESS_TEXT = 64, DATE_TEXT = 40 };

/* ---- a line ---- */

/* Plain bytes as they are, others as \xHH: in JSON, where that is no escape, with a second backslash. */
static void escape(const char *text, size_t most, bool json, char *out, size_t capacity) {
    size_t used = 0;
    for (size_t i = 0; text[i] != '\0' && i < most && used + 6 < capacity; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool plain = byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
        int written = plain ? snprintf(out + used, capacity - used, "%c", byte)
                            : snprintf(out + used, capacity - used, json ? "\\\\x%02x" : "\\x%02x", byte);
        used += (size_t)written;
    }
    out[used] = '\0';
}

static void format_address(const serve_request *request, char address[ADDRESS_TEXT]) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    socklen_t size = info == NULL                              ? 0
                     : info->client_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                               : sizeof(struct sockaddr_in6);
    if (size == 0 ||
        getnameinfo(info->client_addr, size, address, ADDRESS_TEXT, NULL, 0, NI_NUMERICHOST) != 0) {
        snprintf(address, ADDRESS_TEXT, "-");
    }
}

static int format_combined(const serve_request *request, bool whole, double seconds,
                           char line[LINE_BYTES]) {
    char address[ADDRESS_TEXT], date[DATE_TEXT], target[4 * SERVE_TARGET + 1], agent[4 * AGENT_BYTES + 1];
    char method[4 * SERVE_WORD + 1], version[4 * SERVE_WORD + 1];
    const char *said = serve_field(request, "User-Agent");
    time_t now = time(NULL);
    struct tm parts;
    format_address(request, address);
    strftime(date, sizeof date, "%d/%b/%Y:%H:%M:%S +0000", gmtime_r(&now, &parts));
    escape(request->target, SERVE_TARGET, false, target, sizeof target);
    escape(request->word, SERVE_WORD, false, method, sizeof method);
    escape(request->version, SERVE_WORD, false, version, sizeof version);
    escape(said != NULL ? said : "-", AGENT_BYTES, false, agent, sizeof agent);
    unsigned code = request->code != 0 ? request->code : 499;
    return snprintf(line, LINE_BYTES, "%s - - [%s] \"%s %s %s\" %u %" PRIu64 " \"-\" \"%s\" %.6f %s\n",
                    address, date, method, target, version, code, whole ? request->body : 0, agent, seconds,
                    request->server->name != NULL ? request->server->name : "-");
}

static int format_json(const serve_request *request, bool whole, double seconds, char line[LINE_BYTES]) {
    char address[ADDRESS_TEXT], date[DATE_TEXT], target[5 * SERVE_TARGET + 1], agent[5 * AGENT_BYTES + 1];
    char method[5 * SERVE_WORD + 1], code[16], run[WEFT_FOLLOWER_NAME + 2];
    const char *said = serve_field(request, "User-Agent");
    const char *name = request->server->name;
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    format_address(request, address);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &parts));
    escape(request->target, SERVE_TARGET, true, target, sizeof target);
    escape(request->word, SERVE_WORD, true, method, sizeof method);
    escape(said != NULL ? said : "", AGENT_BYTES, true, agent, sizeof agent);
    snprintf(code, sizeof code, request->code != 0 ? "%u" : "null", request->code);
    snprintf(run, sizeof run, name != NULL ? "\"%s\"" : "null", name);
    return snprintf(
        line, LINE_BYTES,
        "{\"time\":\"%s.%03dZ\",\"address\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%s,"
        "\"bytes\":%" PRIu64 ",\"received\":%" PRIu64 ",\"seconds\":%.6f,\"whole\":%s,"
        "\"run\":%s,\"agent\":\"%s\"}\n",
        date, (int)(now.tv_nsec / 1000000), address, method, target, code, whole ? request->body : 0,
        request->received, seconds, whole ? "true" : "false", run, agent);
}

void serve_access_note(serve_access *access, const serve_request *request, bool whole) {
    if (access->path == NULL) {
        return;
    }
    char line[LINE_BYTES];
    double seconds = clock_seconds() - request->started;
    int length = access->json ? format_json(request, whole, seconds, line)
                              : format_combined(request, whole, seconds, line);
    pthread_mutex_lock(&access->mutex);
    if (length > 0 && length < LINE_BYTES && access->used + (size_t)length <= ACCESS_BYTES) {
        memcpy(access->lines + access->used, line, (size_t)length);
        access->used += (size_t)length;
        pthread_cond_signal(&access->wake);
    } else {
        access->lost++;
    }
    pthread_mutex_unlock(&access->mutex);
}

/* ---- the file ---- */

static int open_file(const serve_access *access) {
    return strcmp(access->path, "-") == 0
               ? dup(STDOUT_FILENO)
               : open(access->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

static bool write_all(int descriptor, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(descriptor, data, size);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        data += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* Says so once, until lines can be written again. */
static void note_outcome(serve_access *access, bool written, uint64_t lost) {
    if ((!written || lost > 0) && !access->complained) {
        serve_report(access->server, "the access log %s: %s", access->path,
                     written ? "is too slow, and some lines were left out" : strerror(errno));
    }
    access->complained = !written || lost > 0;
}

static void *write_lines(void *opaque) {
    serve_access *access = opaque;
    pthread_mutex_lock(&access->mutex);
    while (access->used > 0 || !access->closing) {
        if (access->used == 0) {
            pthread_cond_wait(&access->wake, &access->mutex);
            continue;
        }
        char *full = access->lines;
        size_t size = access->used;
        uint64_t lost = access->lost;
        access->lines = access->spare;
        access->spare = full;
        access->used = 0;
        access->lost = 0;
        pthread_mutex_unlock(&access->mutex);
        if (atomic_exchange(&access->again, false)) {
            int fresh = open_file(access);
            if (fresh >= 0) {
                close(access->descriptor);
                access->descriptor = fresh;
            } else {
                serve_report(access->server, "the access log %s cannot be opened again: %s", access->path,
                             strerror(errno));
            }
        }
        note_outcome(access, write_all(access->descriptor, full, size), lost);
        pthread_mutex_lock(&access->mutex);
    }
    pthread_mutex_unlock(&access->mutex);
    return NULL;
}

void serve_access_reopen(serve_access *access) {
    atomic_store(&access->again, true);
}

/* ---- life ---- */

static void release(serve_access *access) {
    close(access->descriptor);
    free(access->lines);
    free(access->spare);
    pthread_cond_destroy(&access->wake);
    pthread_mutex_destroy(&access->mutex);
}

int serve_access_open(weft_command *command, serve_access *access, serve_server *server) {
    if (access->path == NULL) {
        return EXIT_DONE;
    }
    access->server = server;
    access->descriptor = open_file(access);
    if (access->descriptor < 0) {
        return command_error(command, EXIT_FAILED, "cannot open the access log %s: %s", access->path,
                             strerror(errno));
    }
    access->lines = malloc(ACCESS_BYTES);
    access->spare = malloc(ACCESS_BYTES);
    pthread_mutex_init(&access->mutex, NULL);
    pthread_cond_init(&access->wake, NULL);
    if (access->lines == NULL || access->spare == NULL ||
        pthread_create(&access->thread, NULL, write_lines, access) != 0) {
        release(access);
        return command_error(command, EXIT_FAILED, "cannot start the thread of the access log");
    }
    return EXIT_DONE;
}

void serve_access_close(serve_access *access) {
    if (access->path == NULL) {
        return;
    }
    pthread_mutex_lock(&access->mutex);
    access->closing = true;
    pthread_cond_signal(&access->wake);
    pthread_mutex_unlock(&access->mutex);
    pthread_join(access->thread, NULL);
    release(access);
}
