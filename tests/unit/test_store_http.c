/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_http.c: the HTTP store against a server that does what no honest one would. It listens on a
 * real socket, takes one request per connection, answers each as the test has laid down, and keeps what it
 * was asked.
 */
#include "../support/described.h"
#include "faults.h"
#include "models.h"

#include <weft/store.h>

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS_MAX = 12, REQUEST_MAX = 4096, OBJECT = 300000, PIECE_MILLISECONDS = 20 };

/* ---- the server ---- */

typedef struct step {
    const char *head; /* the answer up to its body; NULL: none, the connection is closed */
    const void *body;
    size_t size;    /* of the body that is sent, whatever the head promises */
    unsigned pause; /* milliseconds before the connection is closed, so that what was sent arrives */
    bool reset;     /* closed with a reset */
    bool unread;    /* the request's body is not waited for */
    bool linger;    /* the connection stays open until the client closes it */
    size_t piece;   /* not 0: the body is sent in pieces of so many bytes, PIECE_MILLISECONDS apart */
    unsigned sips;  /* so often a byte of the request's body is taken, as far apart, before the answer */
} step;

typedef struct server {
    int listener;
    pthread_t thread;
    const step *steps;
    size_t step_count;
    pthread_mutex_t mutex;
    size_t served;
    char requests[STEPS_MAX][REQUEST_MAX]; /* headers */
    uint8_t body[OBJECT];                  /* of the last request that had one */
    size_t body_size;
} server;

static server host;
static weft_context *context;
static weft_store *store;
static uint8_t object[OBJECT];
static uint8_t buffer[OBJECT + 100];

static bool send_all(int socket, const void *data, size_t size) {
    const uint8_t *cursor = data;
    while (size > 0) {
        ssize_t sent = send(socket, cursor, size, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        cursor += sent;
        size -= (size_t)sent;
    }
    return true;
}

/* Up to the empty line, byte by byte: what follows is the body. */
static void read_head(int socket, char head[REQUEST_MAX]) {
    size_t length = 0;
    while (length + 1 < REQUEST_MAX && recv(socket, head + length, 1, 0) == 1) {
        head[++length] = '\0';
        if (length >= 4 && strcmp(head + length - 4, "\r\n\r\n") == 0) {
            return;
        }
    }
}

static size_t read_exactly(int socket, uint8_t *data, size_t size) {
    size_t count = 0;
    while (count < size) {
        ssize_t got = recv(socket, data + count, size - count, 0);
        if (got <= 0) {
            break;
        }
        count += (size_t)got;
    }
    return count;
}

static size_t read_chunks(int socket, uint8_t *data, size_t room) {
    size_t count = 0;
    for (;;) {
        char line[32] = "";
        size_t length = 0;
        while (length + 1 < sizeof(line) && recv(socket, line + length, 1, 0) == 1 &&
               line[length] != '\n') {
            length++;
        }
        size_t size = strtoul(line, NULL, 16);
        uint8_t end[2];
        if (size == 0 || size > room - count) {
            return count;
        }
        count += read_exactly(socket, data + count, size);
        read_exactly(socket, end, 2);
    }
}

static void read_request(server *server, int socket, char *head, bool unread) {
    read_head(socket, head);
    const char *length = strstr(head, "Content-Length: ");
    if (unread) {
        return;
    }
    if (length != NULL) {
        size_t size = strtoul(length + strlen("Content-Length: "), NULL, 10);
        server->body_size = read_exactly(socket, server->body, size < OBJECT ? size : OBJECT);
    } else if (strstr(head, "Transfer-Encoding: chunked") != NULL) {
        server->body_size = read_chunks(socket, server->body, OBJECT);
    }
}

static void sleep_milliseconds(unsigned milliseconds) {
    struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void send_pieces(int socket, const step *step) {
    size_t piece = step->piece != 0 ? step->piece : step->size;
    bool open = true;
    for (size_t sent = 0; sent < step->size && open; sent += piece) {
        size_t left = step->size - sent;
        open = send_all(socket, (const uint8_t *)step->body + sent, left < piece ? left : piece);
        sleep_milliseconds(step->piece != 0 ? PIECE_MILLISECONDS : 0);
    }
}

static void sip(int socket, unsigned count) {
    uint8_t byte;
    for (unsigned i = 0; i < count && recv(socket, &byte, 1, 0) == 1; i++) {
        sleep_milliseconds(PIECE_MILLISECONDS);
    }
}

static void serve(server *server, int socket, const step *step, char *head) {
    read_request(server, socket, head, step->unread);
    pthread_mutex_lock(&server->mutex);
    server->served++;
    pthread_mutex_unlock(&server->mutex);
    sip(socket, step->sips);
    if (step->head != NULL) {
        send_all(socket, step->head, strlen(step->head));
        send_all(socket, "\r\n", 2);
        send_pieces(socket, step);
    }
    sleep_milliseconds(step->pause);
    uint8_t rest[64];
    while (step->linger && recv(socket, rest, sizeof(rest), 0) > 0) {
    }
    if (step->reset) {
        struct linger hard = {1, 0};
        setsockopt(socket, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
}

static void *run_server(void *opaque) {
    server *server = opaque;
    for (size_t i = 0; i < server->step_count;) {
        int socket = accept(server->listener, NULL, NULL);
        if (socket < 0) {
            break;
        }
        /* a connection that the client thought better of is none of the steps */
        char first = 0;
        if (recv(socket, &first, 1, MSG_PEEK) == 1) {
            serve(server, socket, &server->steps[i], server->requests[i]);
            i++;
        }
        shutdown(socket, SHUT_WR);
        close(socket);
    }
    return NULL;
}

static size_t served(void) {
    pthread_mutex_lock(&host.mutex);
    size_t count = host.served;
    pthread_mutex_unlock(&host.mutex);
    return count;
}

/* At a port that is ours alone until the socket is closed. */
static unsigned short bind_somewhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    host.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(host.listener >= 0);
    assert_int_equal(bind(host.listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(host.listener, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

/* ---- fixtures ---- */

static int set_up(void **state) {
    (void)state;
    dice dice = {7};
    dice_fill(&dice, object, sizeof(object));
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    return weft_context_create(NULL, &context) == WEFT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    weft_context_destroy(context);
    return 0;
}

static void expect(weft_status got, weft_status wanted, const char *text) {
    if (got != wanted || strstr(weft_context_error(context), text) == NULL) {
        fail_msg("status %d, not %d: \"%s\" should say \"%s\"", got, wanted, weft_context_error(context),
                 text);
    }
}

static void begin(const step *steps, size_t count, const weft_store_options *options) {
    static const weft_store_options quick = {
        .size = sizeof quick, .attempts = 3, .backoff_seconds = 0.01, .stall_seconds = 60};
    char url[64];
    memset(&host, 0, sizeof(host));
    host.steps = steps;
    host.step_count = count;
    host.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/base/", bind_somewhere());
    assert_int_equal(listen(host.listener, 16), 0);
    assert_int_equal(pthread_create(&host.thread, NULL, run_server, &host), 0);
    expect(weft_store_open(context, url, options != NULL ? options : &quick, &store), WEFT_OK, "");
    memset(buffer, 0x5a, sizeof(buffer));
}

/* All steps were used, and nothing else was asked. */
static void end(void) {
    weft_store_close(store);
    shutdown(host.listener, SHUT_RDWR);
    pthread_join(host.thread, NULL);
    close(host.listener);
    assert_int_equal(served(), host.step_count);
}

#define BEGIN(...)                                                                                         \
    static const step steps[] = {__VA_ARGS__};                                                             \
    begin(steps, sizeof(steps) / sizeof(steps[0]), NULL)

static void expect_asked(size_t index, const char *text) {
    if (strstr(host.requests[index], text) == NULL) {
        fail_msg("request %zu should have \"%s\": %s", index, text, host.requests[index]);
    }
}

static void expect_not_asked(size_t index, const char *text) {
    if (strstr(host.requests[index], text) != NULL) {
        fail_msg("request %zu should not have \"%s\": %s", index, text, host.requests[index]);
    }
}

static weft_status get(uint64_t offset, uint64_t length, weft_store_get_result *result) {
    weft_store_get_request request = {
        .size = sizeof request, .key = "key", .offset = offset, .length = length, .buffer = buffer};
    return weft_store_get(context, store, &request, result);
}

static void expect_bytes(const uint8_t *data, size_t size) {
    assert_memory_equal(buffer, data, size);
    for (size_t i = size; i < sizeof(buffer); i++) {
        assert_int_equal(buffer[i], 0x5a);
    }
}

static weft_status put(weft_store_condition condition, const weft_store_tag *tag, weft_store_tag *tag_out) {
    return weft_store_put_bytes(context, store, "key", "content", 7, condition, tag, tag_out);
}

/* ---- gets that break off ---- */

static void test_resume(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 206 Partial\r\nContent-Length: 200000\r\nContent-Range: bytes "
                   "100000-299999/300000\r\n"
                   "ETag: \"v1\"\r\n",
           .body = object + 100000,
           .size = 70000},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 130000\r\nContent-Range: bytes "
                   "170000-299999/300000\r\n"
                   "ETag: \"v1\"\r\n",
           .body = object + 170000,
           .size = 30000,
           .reset = true,
           .pause = 50},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100000\r\nContent-Range: bytes "
                   "200000-299999/300000\r\n"
                   "ETag: \"v1\"\r\n",
           .body = object + 200000,
           .size = 100000});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(100000, 250000, &result), WEFT_OK, "");
    assert_int_equal(result.received, 200000);
    assert_int_equal(result.object_bytes, OBJECT);
    assert_string_equal(result.tag.text, "\"v1\"");
    expect_bytes(object + 100000, 200000);
    expect_asked(0, "GET /base/key HTTP/1.1");
    expect_asked(0, "Range: bytes=100000-349999\r\n");
    expect_not_asked(0, "If-Range");
    expect_asked(1, "Range: bytes=170000-349999\r\n");
    expect_asked(1, "If-Range: \"v1\"\r\n");
    expect_asked(2, "If-Range: \"v1\"\r\n");
    end();
}

static void test_changed_meanwhile(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
                   "ETag: \"v1\"\r\n",
           .body = object,
           .size = 400},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: \"v2\"\r\n",
           .body = object + 5000,
           .size = 1000},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
                   "ETag: \"v2\"\r\n",
           .body = object + 5000,
           .size = 1000});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 1000, &result), WEFT_OK, "");
    assert_int_equal(result.received, 1000);
    assert_string_equal(result.tag.text, "\"v2\"");
    expect_bytes(object + 5000, 1000);
    expect_asked(1, "Range: bytes=400-999\r\n");
    expect_asked(2, "Range: bytes=0-999\r\n");
    expect_not_asked(2, "If-Range");
    end();
}

/* A range of another object must not be joined to what is there. */
static void test_changed_behind_a_range(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
                   "ETag: \"v1\"\r\n",
           .body = object,
           .size = 400},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 600\r\nContent-Range: bytes 400-999/1000\r\n"
                   "ETag: \"v2\"\r\n",
           .body = object + 5400,
           .size = 600},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
                   "ETag: \"v2\"\r\n",
           .body = object + 5000,
           .size = 1000});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 1000, &result), WEFT_OK, "");
    expect_bytes(object + 5000, 1000);
    end();
}

/* Without a tag that proves it the same, what came before is worth nothing. */
static void test_no_resume_without_tag(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n"
                   "ETag: W/\"v1\"\r\n",
           .body = object,
           .size = 400},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n",
           .body = object,
           .size = 1000});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 1000, &result), WEFT_OK, "");
    assert_string_equal(result.tag.text, "");
    expect_bytes(object, 1000);
    expect_asked(1, "Range: bytes=0-999\r\n");
    end();
}

static void test_breaks_off_for_ever(void **state) {
    (void)state;
    BEGIN({.head = NULL},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n",
           .body = object,
           .size = 400},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1000\r\nContent-Range: bytes 0-999/1000\r\n",
           .body = object,
           .size = 999});
    weft_store_get_result result = {.size = sizeof result, .received = 77};
    expect(get(0, 1000, &result), WEFT_REMOTE_FAILED, "(3 attempts)");
    assert_int_equal(result.received, 77);
    end();
}

/* ---- servers without ranges ---- */

static void test_whole_instead_of_range(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nETag: \"v1\"\r\n",
           .body = object,
           .size = OBJECT},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n", .body = object, .size = 1000},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n", .body = object, .size = 1000},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(250000, 1000, &result), WEFT_OK, "");
    assert_int_equal(result.received, 1000);
    assert_int_equal(result.object_bytes, OBJECT);
    expect_bytes(object + 250000, 1000);
    expect(get(990, 1000, &result), WEFT_OK, "");
    assert_int_equal(result.received, 10);
    assert_memory_equal(buffer, object + 990, 10);
    expect(get(5000, 10, &result), WEFT_OK, "");
    assert_int_equal(result.received, 0);
    assert_int_equal(result.object_bytes, 1000);
    expect(get(0, 10, &result), WEFT_OK, "");
    assert_int_equal(result.received, 0);
    assert_int_equal(result.object_bytes, 0);
    end();
}

static void test_unknown_length(void **state) {
    (void)state;
    static const char chunks[] = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    static const char torn[] = "5\r\nhello\r\n6\r\n wo";
    BEGIN({.head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
           .body = torn,
           .size = sizeof(torn) - 1},
          {.head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
           .body = chunks,
           .size = sizeof(chunks) - 1},
          {.head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
           .body = chunks,
           .size = sizeof(chunks) - 1});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 100, &result), WEFT_OK, "");
    assert_int_equal(result.object_bytes, 11);
    expect_bytes((const uint8_t *)"hello world", 11);
    expect(get(0, 5, &result), WEFT_REMOTE_FAILED, "does not say how long");
    end();
}

/* ---- lies ---- */

static void test_wrong_ranges(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes 200-299/1000\r\n",
           .body = object,
           .size = 100},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 300\r\nContent-Range: bytes 100-399/1000\r\n",
           .body = object,
           .size = 300},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\n", .body = object, .size = 100},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes 100-199/*\r\n",
           .body = object,
           .size = 100},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes 100-199/150\r\n",
           .body = object,
           .size = 100},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes "
                   "100-99999999999999999999999/99999999999999999999999999\r\n",
           .body = object,
           .size = 100},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 0\r\nContent-Range: bytes 1-0/0\r\n",
           .body = object,
           .size = 0});
    weft_store_get_result result = {.size = sizeof result};
    for (size_t i = 0; i < 7; i++) {
        expect(get(100, 100, &result), WEFT_REMOTE_FAILED, "another range");
        expect_bytes(object, 0);
    }
    end();
}

static void test_more_than_announced(void **state) {
    (void)state;
    static const char chunks[] = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    static const char head[] =
        "HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-7/1000\r\n";
    BEGIN({.head = head, .body = chunks, .size = sizeof(chunks) - 1},
          {.head = head, .body = chunks, .size = sizeof(chunks) - 1},
          {.head = head, .body = chunks, .size = sizeof(chunks) - 1},
          {.head = head, .body = chunks, .size = sizeof(chunks) - 1},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 8\r\nContent-Range: bytes 0-7/8\r\n",
           .body = object,
           .size = 1000});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "more than it announced (3 attempts)");
    for (size_t i = 8; i < sizeof(buffer); i++) {
        assert_int_equal(buffer[i], 0x5a);
    }
    expect(get(0, 100, &result), WEFT_OK, "");
    assert_int_equal(result.received, 8);
    expect_bytes(object, 8);
    end();
}

static void test_strange_answers(void **state) {
    (void)state;
    BEGIN(
        {.head = "SSH-2.0-OpenSSH_9.2\r\n"},
        {.head =
             "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/x\x1b[2J\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 304 Not Modified\r\n"},
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n",
         .body = object,
         .size = 5},
        {.head = "HTTP/1.1 507 Full\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 418 Teapot\r\nContent-Length: 300000\r\n", .body = object, .size = OBJECT},
        {.head =
             "HTTP/1.1 103 Early\r\nETag: \"early\"\r\n\r\nHTTP/1.1 206 Partial\r\nContent-Length: 5\r\n"
             "Content-Range: bytes 0-4/5\r\n",
         .body = object,
         .size = 5});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "does not speak HTTP");
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "points to http://elsewhere.example/x");
    assert_null(strchr(weft_context_error(context), '\x1b'));
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "answers 304");
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "compresses");
    expect(get(0, 100, &result), WEFT_NO_SPACE, "no space");
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "answers 418");
    expect_bytes(object, 0);
    expect(get(0, 100, &result), WEFT_OK, "");
    assert_string_equal(result.tag.text, "");
    end();
}

static void test_tags(void **state) {
    (void)state;
#define WHOLE "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"
    BEGIN({.head = WHOLE "etag:\t\"v1\"  \r\n"}, {.head = WHOLE "ETag: W/\"v1\"\r\n"},
          {.head = WHOLE "ETag: v1\r\n"}, {.head = WHOLE "ETag: \"a b\"\r\n"},
          {.head = WHOLE "ETag: \"0123456789012345678901234567890123456789012345678901234567890123456789"
                         "0123456789012345678901234567890123456789012345678901234567890123456789\"\r\n"},
          {.head = WHOLE "ETag: \"v1\"\r\nDate: Mon, 16 Nov 2026 00:00:01 GMT\r\n"
                         "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n"},
          {.head = WHOLE "ETag: \"v1\"\r\nDate: Mon, 16 Nov 2026 00:00:02 GMT\r\n"
                         "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n"},
          {.head = WHOLE "ETag: \"v1\"\r\nDate: Mon, 16 Nov 2026 00:00:00 GMT\r\nWeft-Server: 1\r\n"
                         "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n"});
    static const char *const wanted[] = {"\"v1\"", "", "", "", "", "", "\"v1\"", "\"v1\""};
    for (size_t i = 0; i < 8; i++) {
        weft_store_tag tag;
        uint64_t size = 0;
        expect(weft_store_head(context, store, "key", &size, &tag), WEFT_OK, "");
        assert_int_equal(size, 5);
        assert_string_equal(tag.text, wanted[i]);
    }
    assert_true(store_traits(store).conditional);
    end();
}

static void test_unchanged(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n"},
          {.head = "HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n"},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n",
           .body = object,
           .size = 5});
    weft_store_tag tag = {"\"v1\""};
    weft_store_get_request request = {
        .size = sizeof request, .key = "key", .length = 100, .buffer = buffer, .unless = &tag};
    weft_store_get_result result = {.size = sizeof result};
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_true(result.unchanged);
    assert_string_equal(result.tag.text, "\"v1\"");
    expect_asked(0, "If-None-Match: \"v1\"\r\n");
    request.length = 0;
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_true(result.unchanged);
    /* what is no entity tag does not get into a request */
    request.length = 100;
    snprintf(tag.text, sizeof(tag.text), "\"a\"\r\nX-Evil: \"");
    expect(weft_store_get(context, store, &request, &result), WEFT_OK, "");
    assert_false(result.unchanged);
    expect_not_asked(2, "Evil");
    expect_not_asked(2, "If-None-Match");
    end();
}

static void test_head_without_length(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 200 OK\r\n"},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/1234\r\n",
           .body = object,
           .size = 1});
    uint64_t size = 0;
    expect(weft_store_head(context, store, "key", &size, NULL), WEFT_OK, "");
    assert_int_equal(size, 1234);
    expect_asked(0, "HEAD /base/key");
    expect_asked(1, "GET /base/key");
    end();
}

/* ---- attempts ---- */

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_busy_server(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n"},
          {.head = "HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n"},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n",
           .body = object,
           .size = 5},
          {.head = "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n"},
          {.head = "HTTP/1.1 502 Oh\r\nContent-Length: 0\r\n"},
          {.head = "HTTP/1.1 504 Oh\r\nContent-Length: 0\r\n"});
    weft_store_get_result result = {.size = sizeof result};
    double start = seconds_now();
    expect(get(0, 100, &result), WEFT_OK, "");
    assert_true(seconds_now() - start >= 1);
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "the server answers 504 (3 attempts)");
    end();
}

static weft_status read_endlessly(void *opaque, uint64_t offset, void *data, size_t capacity,
                                  size_t *count_out) {
    (void)opaque;
    (void)offset;
    memset(data, 'a', capacity);
    *count_out = capacity;
    return WEFT_OK;
}

static void test_stall(void **state) {
    (void)state;
    static const step steps[] = {
        {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 100\r\nContent-Range: bytes 0-99/100\r\n",
         .body = object,
         .size = 10,
         .linger = true},
    };
    weft_store_options options = {.size = sizeof options, .attempts = 1, .stall_seconds = 3};
    weft_store_get_result result = {.size = sizeof result};
    begin(steps, 1, &options);
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "next to nothing moved for 3 seconds");
    /* connected, but never served */
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "no byte moved for 3 seconds");
    end();
}

/* A byte now and then is no sign of life; one at a time, this answer would take seconds. */
static void test_trickle(void **state) {
    (void)state;
    static const char head[] =
        "HTTP/1.1 206 Partial\r\nContent-Length: 300\r\nContent-Range: bytes 0-299/300\r\n";
    static const step steps[] = {
        {.head = head, .body = object, .size = 300, .piece = 1},
        {.head = NULL, .sips = 300, .unread = true},
    };
    weft_store_options options = {.size = sizeof options, .attempts = 1, .stall_seconds = 3};
    weft_store_get_result result = {.size = sizeof result};
    begin(steps, 2, &options);
    expect(get(0, 300, &result), WEFT_REMOTE_FAILED, "next to nothing moved for 3 seconds");
    /* more than the buffers of both ends hold */
    weft_store_put_request request = {
        .size = sizeof request, .key = "key", .feed = {.size = UINT64_MAX, .read = read_endlessly}};
    expect(weft_store_put(context, store, &request, NULL), WEFT_REMOTE_FAILED,
           "next to nothing moved for 3 seconds");
    end();
}

/* Slower than any link, but steady: it takes longer in all than it may be still. */
static void test_slow_link(void **state) {
    (void)state;
    static const step steps[] = {
        {.head =
             "HTTP/1.1 206 Partial\r\nContent-Length: 200000\r\nContent-Range: bytes 0-199999/200000\r\n",
         .body = object,
         .size = 200000,
         .piece = 1000},
    };
    weft_store_options options = {.size = sizeof options, .attempts = 1, .stall_seconds = 3};
    weft_store_get_result result = {.size = sizeof result};
    begin(steps, 1, &options);
    expect(get(0, 200000, &result), WEFT_OK, "");
    expect_bytes(object, 200000);
    end();
}

static void test_refused(void **state) {
    (void)state;
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", bind_somewhere());
    weft_store_options options = {.size = sizeof options, .attempts = 2, .backoff_seconds = 0.01};
    weft_store_get_result result = {.size = sizeof result};
    expect(weft_store_open(context, url, &options, &store), WEFT_OK, "");
    expect(get(0, 100, &result), WEFT_REMOTE_FAILED, "refused");
    expect(put(WEFT_STORE_ALWAYS, NULL, NULL), WEFT_REMOTE_FAILED, "(2 attempts)");
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_REMOTE_FAILED, "refused");
    expect(weft_store_remove(context, store, "key"), WEFT_REMOTE_FAILED, "refused");
    weft_store_close(store);
    close(host.listener);
}

/* ---- puts ---- */

static void test_put(void **state) {
    (void)state;
    static const step steps[] = {
        {.head = "HTTP/1.1 201 Created\r\nETag: \"v1\"\r\nContent-Length: 0\r\n"},
        {.head = NULL, .reset = true},
        {.head = "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 204 Done\r\n"},
        {.head = "HTTP/1.1 403 No\r\nContent-Length: 0\r\n", .unread = true, .linger = true},
    };
    weft_store_options options = {
        .size = sizeof options, .attempts = 3, .backoff_seconds = 0.01, .token = "right-one"};
    weft_store_tag tag = {""};
    begin(steps, 5, &options);
    expect(put(WEFT_STORE_ALWAYS, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"v1\"");
    expect_asked(0, "PUT /base/key HTTP/1.1");
    expect_asked(0, "Content-Length: 7\r\n");
    expect_asked(0, "Authorization: Bearer right-one\r\n");
    expect_asked(0, "User-Agent: weft/");
    expect_not_asked(0, "Expect");
    assert_memory_equal(host.body, "content", 7);
    expect(put(WEFT_STORE_ALWAYS, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "");
    expect(put(WEFT_STORE_ALWAYS, NULL, &tag), WEFT_REMOTE_DENIED, "--token-file");
    end();
}

/* Takes longer for a byte than a transfer may be still. */
static weft_status read_slowly(void *opaque, uint64_t offset, void *data, size_t capacity,
                               size_t *count_out) {
    (void)opaque;
    (void)capacity;
    sleep_milliseconds(offset == 1 ? 3000 : 0);
    *count_out = offset < 3 ? 1 : 0;
    memset(data, 'a' + (int)offset, *count_out);
    return WEFT_OK;
}

static void test_slow_feed(void **state) {
    (void)state;
    static const step steps[] = {{.head = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n"}};
    weft_store_options options = {.size = sizeof options, .attempts = 1, .stall_seconds = 2};
    weft_store_put_request request = {
        .size = sizeof request, .key = "key", .feed = {.size = UINT64_MAX, .read = read_slowly}};
    begin(steps, 1, &options);
    expect(weft_store_put(context, store, &request, NULL), WEFT_OK, "");
    assert_int_equal(host.body_size, 3);
    assert_memory_equal(host.body, "abc", 3);
    expect_asked(0, "Transfer-Encoding: chunked\r\n");
    end();
}

#define WEFT_SERVER "Weft-Server: 1\r\nContent-Length: 0\r\n"

static void test_condition_needs_our_server(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\nContent-Length: 0\r\n"});
    weft_store_tag tag = {"\"v1\""};
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "weft serve");
    expect_asked(0, "HEAD /base/key");
    expect(put(WEFT_STORE_IF_SAME, &tag, NULL), WEFT_UNSUPPORTED, "weft serve");
    assert_false(store_traits(store).conditional);
    end();
}

/* Between two puts the server was replaced, or somebody put a proxy before it. */
static void test_server_changes(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER}, {.head = "HTTP/1.1 413 No\r\nContent-Length: 0\r\n"},
          {.head = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n"});
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_LIMIT_EXCEEDED, "larger than the server takes");
    assert_true(store_traits(store).conditional);
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "no longer");
    assert_false(store_traits(store).conditional);
    end();
}

static void test_conditions(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 201 Created\r\nETag: \"v1\"\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER}, {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER});
    weft_store_tag tag = {""};
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_OK, "");
    assert_true(store_traits(store).conditional);
    expect_asked(1, "If-None-Match: *\r\n");
    expect(put(WEFT_STORE_IF_SAME, &tag, NULL), WEFT_CONFLICT, "in between");
    expect_asked(2, "If-Match: \"v1\"\r\n");
    /* a tag of some other store */
    snprintf(tag.text, sizeof(tag.text), "1-2-3");
    expect(put(WEFT_STORE_IF_SAME, &tag, NULL), WEFT_INVALID_ARGUMENT, "tag");
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_CONFLICT, "in between");
    end();
}

/* A server of ours refuses a large body without reading it, and what was sent of it then takes the refusal
 * away: it is asked first. What is sent while it is made, without a condition, is not worth the wait. */
static void test_large_puts_ask(void **state) {
    (void)state;
    enum { LARGE = 24 << 20 };
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER, .unread = true, .reset = true, .pause = 300},
          {.head = "HTTP/1.1 413 No\r\n" WEFT_SERVER, .unread = true, .reset = true, .pause = 300},
          {.head = "HTTP/1.1 201 Created\r\n" WEFT_SERVER});
    uint8_t *data = calloc(1, LARGE);
    assert_non_null(data);
    expect(weft_store_put_bytes(context, store, "key", data, LARGE, WEFT_STORE_IF_ABSENT, NULL, NULL),
           WEFT_CONFLICT, "in between");
    expect_asked(1, "Expect: 100-continue\r\n");
    expect(weft_store_put_bytes(context, store, "key", data, LARGE, WEFT_STORE_ALWAYS, NULL, NULL),
           WEFT_LIMIT_EXCEEDED, "larger than the server takes");
    free(data);
    weft_store_put_request request = {
        .size = sizeof request, .key = "key", .feed = {.size = UINT64_MAX, .read = read_slowly}};
    expect(weft_store_put(context, store, &request, NULL), WEFT_OK, "");
    expect_not_asked(3, "Expect");
    end();
}

/* The first attempt was carried out, but its answer got lost. */
static void test_lost_answer(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER}, {.head = NULL},
          {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER},
          {.head =
               "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\nContent-Range: bytes 0-6/7\r\nETag: \"v1\"\r\n"
               "Weft-Server: 1\r\n",
           .body = "content",
           .size = 7});
    weft_store_tag tag = {""};
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"v1\"");
    expect_asked(3, "GET /base/key");
    end();
}

static void test_lost_answer_of_the_last_attempt(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER}, {.head = NULL}, {.head = NULL},
          {.head = "HTTP/1.1 504 Oh\r\nContent-Length: 0\r\n"},
          {.head =
               "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\nContent-Range: bytes 0-6/7\r\nETag: \"v1\"\r\n"
               "Weft-Server: 1\r\n",
           .body = "content",
           .size = 7});
    weft_store_tag tag = {""};
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"v1\"");
    end();
}

/* Somebody else was quicker, with other bytes, more or fewer. */
static void test_lost_answer_and_a_conflict(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 404 No\r\n" WEFT_SERVER}, {.head = NULL},
          {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\nContent-Range: bytes "
                   "0-6/7\r\nWeft-Server: 1\r\n",
           .body = "contend",
           .size = 7},
          {.head = NULL}, {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 6\r\nContent-Range: bytes "
                   "0-5/6\r\nWeft-Server: 1\r\n",
           .body = "conten",
           .size = 6},
          {.head = NULL}, {.head = "HTTP/1.1 412 No\r\n" WEFT_SERVER},
          {.head = "HTTP/1.1 206 Partial\r\nContent-Length: 8\r\nContent-Range: bytes "
                   "0-7/8\r\nWeft-Server: 1\r\n",
           .body = "contents",
           .size = 8});
    weft_store_tag tag = {"untouched"};
    for (size_t i = 0; i < 3; i++) {
        expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_CONFLICT, "in between");
        assert_string_equal(tag.text, "untouched");
    }
    end();
}

/* ---- watch ---- */

static void test_watch(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 204 Nothing\r\nWeft-Server: 1\r\n"},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nWeft-Server: 1\r\n",
           .body = "head",
           .size = 4,
           .pause = 100},
          {.head = "HTTP/1.1 200 OK\r\nContent-Length: 200\r\nWeft-Server: 1\r\n",
           .body = object,
           .size = 200},
          {.head = "HTTP/1.1 401 No\r\nContent-Length: 0\r\nWeft-Server: 1\r\n"});
    size_t received = 77;
    expect(weft_store_watch(context, store, 41, 2.5, buffer, 100, &received), WEFT_MORE, "");
    assert_int_equal(received, 77);
    expect_asked(0, "GET /base/v1/watch?after=41&seconds=2.500 HTTP/1.1");
    expect(weft_store_watch(context, store, 41, 2.5, buffer, 100, &received), WEFT_OK, "");
    assert_int_equal(received, 4);
    expect_bytes((const uint8_t *)"head", 4);
    expect(weft_store_watch(context, store, 41, 0, buffer, 100, &received), WEFT_LIMIT_EXCEEDED, "longer");
    for (size_t i = 100; i < sizeof(buffer); i++) {
        assert_int_equal(buffer[i], 0x5a);
    }
    expect(weft_store_watch(context, store, 41, 0, buffer, 100, &received), WEFT_REMOTE_DENIED, "token");
    end();
}

static void test_watch_needs_our_server(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", .body = "page", .size = 4});
    size_t received = 0;
    expect(weft_store_watch(context, store, 0, 1, buffer, 100, &received), WEFT_UNSUPPORTED, "poll");
    expect(weft_store_watch(context, store, 0, 1, buffer, 100, &received), WEFT_UNSUPPORTED, "poll");
    end();
}

/* ---- life ---- */

static void *get_for_ever(void *opaque) {
    weft_context *own = NULL;
    uint8_t byte = 0;
    weft_store_get_request request = {.size = sizeof request, .key = "key", .length = 1, .buffer = &byte};
    weft_store_get_result result = {.size = sizeof result};
    if (weft_context_create(NULL, &own) == WEFT_OK) {
        *(weft_status *)opaque = weft_store_get(own, store, &request, &result);
        weft_context_destroy(own);
    }
    return NULL;
}

static void test_close_ends_what_waits(void **state) {
    (void)state;
    static const step steps[] = {{.head = NULL, .linger = true}};
    weft_store_options options = {.size = sizeof options, .stall_seconds = 600};
    weft_status statuses[2] = {WEFT_OK, WEFT_OK};
    pthread_t threads[2];
    begin(steps, 1, &options);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, get_for_ever, &statuses[i]), 0);
    }
    while (served() == 0) {
        sleep_milliseconds(5);
    }
    /* the other has connected too, and stands before a server that takes nobody else */
    struct pollfd waiting = {.fd = host.listener, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, 60000), 1);
    end();
    for (size_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(statuses[i], WEFT_CANCELLED);
    }
}

static bool say_no(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)opaque;
    (void)phase;
    (void)done;
    (void)total;
    return false;
}

/* While a server is silent, and while a busy one is given time. */
static void test_cancel(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 503 Busy\r\nRetry-After: 25\r\nContent-Length: 0\r\n"},
          {.head = NULL, .linger = true});
    weft_context_options options = {.size = sizeof options, .progress = say_no};
    weft_context *own = NULL;
    weft_store_get_request request = {
        .size = sizeof request, .key = "key", .length = 100, .buffer = buffer};
    weft_store_get_result result = {.size = sizeof result};
    assert_int_equal(weft_context_create(&options, &own), WEFT_OK);
    double start = seconds_now();
    assert_int_equal(weft_store_get(own, store, &request, &result), WEFT_CANCELLED);
    assert_non_null(strstr(weft_context_error(own), "cancelled"));
    assert_int_equal(weft_store_get(own, store, &request, &result), WEFT_CANCELLED);
    assert_true(seconds_now() - start < 20);
    weft_context_destroy(own);
    end();
}

static void test_urls(void **state) {
    (void)state;
    static const struct {
        const char *url, *text;
    } wrong[] = {
        {"", "empty"},
        {"ftp://host/x", "understands a path, file://, http://, https:// and s3://"},
        {"http://", "not one"},
        {"http://user:secret@host/x", "user or password"},
        {"https://user@host/x", "user or password"},
        {"http://host/x?y=z", "without \"?\""},
        {"http://host/x#y", "without \"?\""},
        {"http://host:99999/", "not one"},
        {"http://ho st/", "not one"},
        {"file://host/x", "names a host"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        weft_store *none = NULL;
        expect(weft_store_open(context, wrong[i].url, NULL, &none), WEFT_INVALID_ARGUMENT, wrong[i].text);
        assert_null(none);
        assert_null(strstr(weft_context_error(context), "secret"));
    }
    char long_url[8192] = "http://host/";
    memset(long_url + 12, 'x', sizeof(long_url) - 13);
    weft_store *none = NULL;
    expect(weft_store_open(context, long_url, NULL, &none), WEFT_INVALID_ARGUMENT, "longer than");
    weft_store_options injecting = {.size = sizeof injecting, .token = "a\r\nX-Evil: b"};
    expect(weft_store_open(context, "http://host/", &injecting, &none), WEFT_INVALID_ARGUMENT, "token");
    weft_store_options blank = {.size = sizeof blank, .token = ""};
    expect(weft_store_open(context, "http://host/", &blank, &none), WEFT_INVALID_ARGUMENT, "token");
    weft_store_options missing = {.size = sizeof missing, .ca_file = "/nonexistent/ca.pem"};
    expect(weft_store_open(context, "https://host/", &missing, &none), WEFT_IO_FAILED,
           "/nonexistent/ca.pem");
    weft_store *opened = NULL;
    expect(weft_store_open(context, "HTTP://host/x", NULL, &opened), WEFT_OK, "");
    assert_string_equal(weft_store_url(opened), "HTTP://host/x");
    assert_false(store_traits(opened).conditional);
    weft_store_close(opened);
}

static void test_no_memory(void **state) {
    (void)state;
    BEGIN({.head = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n"});
    char url[64];
    snprintf(url, sizeof(url), "%s", weft_store_url(store));
    for (size_t n = 1;; n++) {
        faults faults = {0};
        weft_context_options with = {.size = sizeof with, .allocator = faults_allocator(&faults)};
        weft_store_options options = {.size = sizeof options, .token = "token", .ca_file = "/dev/null"};
        weft_context *failing = NULL;
        weft_store *opened = NULL;
        faults_reset(&faults, n + 1);
        assert_int_equal(weft_context_create(&with, &failing), WEFT_OK);
        weft_status status = weft_store_open(failing, url, &options, &opened);
        if (status == WEFT_OK) {
            status =
                weft_store_put_bytes(failing, opened, "key", "content", 7, WEFT_STORE_ALWAYS, NULL, NULL);
        } else {
            assert_null(opened);
        }
        weft_store_close(opened);
        weft_context_destroy(failing);
        assert_int_equal(faults_live_blocks(&faults), 0);
        if (!faults_fired(&faults)) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_NO_MEMORY);
    }
    end();
}

/* ---- list ---- */

typedef struct seen {
    char keys[4][WEFT_STORE_KEY_MAX + 1];
    uint64_t sizes[4];
    double ages[4];
    size_t count;
    size_t most;
} seen;

static bool see(void *opaque, const char *key, uint64_t size, double age_seconds) {
    seen *list = opaque;
    snprintf(list->keys[list->count], sizeof(list->keys[0]), "%s", key);
    list->sizes[list->count] = size;
    list->ages[list->count++] = age_seconds;
    return list->count < list->most;
}

static void test_list(void **state) {
    (void)state;
    static const char lines[] = "{\"key\":\"followers/a\",\"size\":700,\"age\":1.5}\n"
                                "{\"key\":\"followers/b.c\",\"age\":2,\"more\":1}\n"
                                "{\"age\":-1,\"size\":-3,\"key\":\"followers/d\"}\n";
    static const step steps[] = {
        {.head = "HTTP/1.1 200 OK\r\nWeft-Server: 1\r\nContent-Length: 125\r\n",
         .body = lines,
         .size = sizeof(lines) - 1},
        {.head = "HTTP/1.1 200 OK\r\nWeft-Server: 1\r\nContent-Length: 125\r\n",
         .body = lines,
         .size = sizeof(lines) - 1},
        {.head = "HTTP/1.1 200 OK\r\nWeft-Server: 1\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 404 Not Found\r\nWeft-Server: 1\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 401 Unauthorized\r\nWeft-Server: 1\r\nContent-Length: 0\r\n"},
    };
    assert_int_equal(sizeof(lines) - 1, 125);
    begin(steps, sizeof(steps) / sizeof(steps[0]), NULL);
    seen list = {.most = 4};
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_OK, "");
    expect_asked(0, "GET /base/v1/list?prefix=followers HTTP/1.1");
    assert_int_equal(list.count, 3);
    assert_string_equal(list.keys[1], "followers/b.c");
    assert_int_equal(list.sizes[0], 700);
    assert_true(list.ages[0] == 1.5 && list.ages[1] == 2 && list.ages[2] == 0);
    assert_int_equal(list.sizes[2], 0);
    list = (seen){.most = 1};
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_OK, "");
    assert_int_equal(list.count, 1);
    list = (seen){.most = 1};
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_OK, "");
    assert_int_equal(list.count, 0);
    expect(weft_store_list(context, store, "pages", see, &list), WEFT_UNSUPPORTED, "no such listing");
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_REMOTE_DENIED, "token");
    end();
}

/* By the server's own dates, and one second less, for these are whole ones. */
static void test_age(void **state) {
    (void)state;
    static const step steps[] = {
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nDate: Mon, 16 Nov 2026 01:00:10 GMT\r\n"
                 "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n"},
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nDate: Mon, 16 Nov 2026 00:00:00 GMT\r\n"
                 "Last-Modified: Mon, 16 Nov 2026 01:00:00 GMT\r\n"},
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nDate: Mon, 16 Nov 2026 00:00:00 GMT\r\n"},
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"
                 "Last-Modified: Mon, 16 Nov 2026 01:00:00 GMT\r\n"},
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nDate: today\r\n"
                 "Last-Modified: Mon, 16 Nov 2026 01:00:00 GMT\r\n"},
        {.head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"},
        {.head = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n"},
    };
    double age = -1;
    begin(steps, sizeof(steps) / sizeof(steps[0]), NULL);
    expect(weft_store_age(context, store, "key", &age), WEFT_OK, "");
    expect_asked(0, "HEAD /base/key");
    assert_true(age == 3609);
    expect(weft_store_age(context, store, "key", &age), WEFT_OK, "");
    assert_true(age == 0);
    expect(weft_store_age(context, store, "key", &age), WEFT_UNSUPPORTED, "no Last-Modified");
    expect(weft_store_age(context, store, "key", &age), WEFT_UNSUPPORTED, "no Date");
    expect(weft_store_age(context, store, "key", &age), WEFT_UNSUPPORTED, "no Date");
    expect(weft_store_age(context, store, "key", &age), WEFT_NOT_FOUND, "");
    expect(weft_store_age(context, store, "key", &age), WEFT_REMOTE_DENIED, "token");
    assert_true(age == 0);
    end();
}

static void test_list_needs_our_server(void **state) {
    (void)state;
    static const step steps[] = {
        {.head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", .body = "<ul>", .size = 4}};
    begin(steps, 1, NULL);
    seen list = {.most = 4};
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_UNSUPPORTED, "no such listing");
    /* known by now, and not asked again */
    expect(weft_store_list(context, store, "followers", see, &list), WEFT_UNSUPPORTED, "no such listing");
    assert_int_equal(list.count, 0);
    end();
}

static void test_list_of_lies(void **state) {
    (void)state;
    static const char *const lies[] = {
        "{\"key\":\"followers/a\"}",
        "{\"key\":\"followers/../a\"}\n",
        "{\"key\":\"heads/1\"}\n",
        "{\"key\":\"followers2/a\"}\n",
        "{\"key\":\"followers\"}\n",
        "{\"key\":7}\n",
        "{}\n",
        "\n",
        "nonsense\n",
        "{\"key\":\"followers/a\",\"x\":{}}\n",
        "{\"key\":\"followers/a\"}}\n",
        "[1]\n",
    };
    enum { LIES = sizeof(lies) / sizeof(lies[0]) };
    char heads[LIES][100];
    step steps[LIES];
    for (size_t i = 0; i < LIES; i++) {
        snprintf(heads[i], sizeof(heads[i]), "HTTP/1.1 200 OK\r\nWeft-Server: 1\r\nContent-Length: %zu\r\n",
                 strlen(lies[i]));
        steps[i] = (step){.head = heads[i], .body = lies[i], .size = strlen(lies[i])};
    }
    begin(steps, LIES, NULL);
    for (size_t i = 0; i < LIES; i++) {
        seen list = {.most = 4};
        expect(weft_store_list(context, store, "followers", see, &list), WEFT_MALFORMED, "");
        assert_int_equal(list.count, 0);
    }
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_changed_meanwhile),
        cmocka_unit_test(test_changed_behind_a_range),
        cmocka_unit_test(test_no_resume_without_tag),
        cmocka_unit_test(test_breaks_off_for_ever),
        cmocka_unit_test(test_whole_instead_of_range),
        cmocka_unit_test(test_unknown_length),
        cmocka_unit_test(test_wrong_ranges),
        cmocka_unit_test(test_more_than_announced),
        cmocka_unit_test(test_strange_answers),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_head_without_length),
        cmocka_unit_test(test_busy_server),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_trickle),
        cmocka_unit_test(test_slow_link),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_slow_feed),
        cmocka_unit_test(test_condition_needs_our_server),
        cmocka_unit_test(test_server_changes),
        cmocka_unit_test(test_conditions),
        cmocka_unit_test(test_large_puts_ask),
        cmocka_unit_test(test_lost_answer),
        cmocka_unit_test(test_lost_answer_of_the_last_attempt),
        cmocka_unit_test(test_lost_answer_and_a_conflict),
        cmocka_unit_test(test_watch),
        cmocka_unit_test(test_watch_needs_our_server),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_needs_our_server),
        cmocka_unit_test(test_list_of_lies),
        cmocka_unit_test(test_close_ends_what_waits),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
