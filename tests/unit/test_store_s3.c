/* SPDX-License-Identifier: Apache-2.0
 *
 * test_store_s3.c: the S3 store against a service that says what Swift, which the tests of the command use,
 * never says: conditions that hold and fail, errors behind a 200, lost answers, buckets elsewhere. It
 * listens on a real socket, takes one request per connection, and answers by rules: requests of one upload
 * may come in any order.
 */
#include "../../lib/store/s3/s3_answer.h"
#include "../../lib/store/s3/s3_place.h"
#include "../support/described.h"
#include "faults.h"
#include "models.h"

#include <weft/store.h>

#include <arpa/inet.h>
#include <limits.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { RULES_MAX = 24, REQUEST_MAX = 8192, PART = 8 << 20, OBJECT = 2 * PART + 1000, COMPARED = 256 << 10 };

#define XML "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\n"
#define ERROR_BODY(code)                                                                                   \
    "<?xml version=\"1.0\"?>\n<Error><Code>" code "</Code><Message>So.</Message></Error>"
#define CREATED                                                                                            \
    XML, "<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>b"      \
         "</Bucket><UploadId>up/load+1</UploadId></InitiateMultipartUploadResult>"
#define COMPLETED                                                                                          \
    XML, "<?xml version=\"1.0\"?>\n<CompleteMultipartUploadResult><ETag>&quot;whole-3&quot;</ETag>"        \
         "</CompleteMultipartUploadResult>"
#define TAG_1 "0123456789abcdef0123456789abcdef"
#define TAG_2 "fedcba9876543210fedcba9876543210"
#define TAG_3 "00112233445566778899aabbccddeeff"
#define STORED(tag) "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"" tag "\"\r\nConnection: close\r\n", ""

#define KEY "/bucket/pre/key"
#define UPLOAD "uploadId=up%2Fload%2B1 "
#define CREATE "POST " KEY "?uploads= "
#define PART_1 "PUT " KEY "?partNumber=1&" UPLOAD
#define PART_2 "PUT " KEY "?partNumber=2&" UPLOAD
#define PART_3 "PUT " KEY "?partNumber=3&" UPLOAD
#define COMPLETE "POST " KEY "?" UPLOAD
#define ABORT "DELETE " KEY "?" UPLOAD
#define ABORTED "HTTP/1.1 204 No Content\r\nConnection: close\r\n", ""
#define PROBE "PUT /bucket/pre/weft-conditions "
#define REFUSED                                                                                            \
    "HTTP/1.1 412 Precondition Failed\r\nConnection: close\r\n", ERROR_BODY("PreconditionFailed")
#define ALL_PARTS                                                                                          \
    {.request = PART_1, STORED(TAG_1)}, {.request = PART_2, STORED(TAG_2)}, {                              \
        .request = PART_3, STORED(TAG_3)                                                                   \
    }

/* ---- the service ---- */

/* Answers one request whose first line begins so. `head` NULL: the connection is closed without an answer.
 */
typedef struct rule {
    const char *request;
    const char *head;
    const char *body;
    const char *wants; /* that the request's header holds, or NULL */
    bool silent;       /* nothing is said until the client goes away */
} rule;

static struct {
    int listener;
    pthread_t thread;
    const rule *rules;
    size_t rule_count;
    bool used[RULES_MAX];
    char requests[RULES_MAX][REQUEST_MAX]; /* headers, by rule */
    char stray[REQUEST_MAX];               /* the first that no rule was for */
    uint8_t body[PART + 1];                /* of the last request that had one */
    size_t body_size;
    uint8_t *object; /* of parts */
    atomic_bool silent;
} host;

static weft_context *context;
static weft_store *store;
static uint8_t *object;

static void send_text(int socket, const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t sent = send(socket, text, left, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        text += sent;
        left -= (size_t)sent;
    }
}

static void read_head(int socket, char head[REQUEST_MAX]) {
    size_t length = 0;
    head[0] = '\0';
    while (length + 1 < REQUEST_MAX && recv(socket, head + length, 1, 0) == 1) {
        head[++length] = '\0';
        if (length >= 4 && strcmp(head + length - 4, "\r\n\r\n") == 0) {
            return;
        }
    }
}

static void read_body(int socket, const char *head) {
    const char *length = strstr(head, "Content-Length: ");
    size_t size = length != NULL ? strtoul(length + strlen("Content-Length: "), NULL, 10) : 0;
    size = size < PART ? size : PART;
    if (strstr(head, "Expect: 100-continue") != NULL) {
        send_text(socket, "HTTP/1.1 100 Continue\r\n\r\n");
    }
    host.body_size = 0;
    while (host.body_size < size) {
        ssize_t got = recv(socket, host.body + host.body_size, size - host.body_size, 0);
        if (got <= 0) {
            break;
        }
        host.body_size += (size_t)got;
    }
    host.body[host.body_size] = '\0';
    const char *number = strstr(head, "?partNumber=");
    size_t part = number != NULL ? strtoul(number + strlen("?partNumber="), NULL, 10) : 0;
    if (part >= 1 && part <= 3 && (part - 1) * (size_t)PART + host.body_size <= OBJECT) {
        memcpy(host.object + (part - 1) * (size_t)PART, host.body, host.body_size);
    }
}

static void answer(int socket) {
    char head[REQUEST_MAX];
    read_head(socket, head);
    read_body(socket, head);
    size_t i = 0;
    while (i < host.rule_count &&
           (host.used[i] || strncmp(head, host.rules[i].request, strlen(host.rules[i].request)) != 0)) {
        i++;
    }
    if (i == host.rule_count) {
        if (host.stray[0] == '\0') {
            memcpy(host.stray, head, sizeof(head));
        }
        send_text(socket, "HTTP/1.1 418 Not expected\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    }
    host.used[i] = true;
    memcpy(host.requests[i], head, sizeof(head));
    host.silent = host.rules[i].silent;
    while (host.rules[i].silent && recv(socket, head, sizeof(head), 0) > 0) {
    }
    if (host.rules[i].head != NULL) {
        send_text(socket, host.rules[i].head);
        send_text(socket, "\r\n");
        send_text(socket, host.rules[i].body);
    }
}

static void *run_host(void *opaque) {
    (void)opaque;
    for (int socket = accept(host.listener, NULL, NULL); socket >= 0;
         socket = accept(host.listener, NULL, NULL)) {
        char first = 0;
        if (recv(socket, &first, 1, MSG_PEEK) == 1) {
            answer(socket);
        }
        shutdown(socket, SHUT_WR);
        close(socket);
    }
    return NULL;
}

/* ---- fixtures ---- */

static int set_up(void **state) {
    (void)state;
    dice dice = {11};
    object = malloc(OBJECT);
    host.object = malloc(OBJECT);
    if (object == NULL || host.object == NULL) {
        return -1;
    }
    dice_fill(&dice, object, OBJECT);
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    unsetenv("AWS_ENDPOINT_URL_S3");
    unsetenv("AWS_CA_BUNDLE");
    unsetenv("WEFT_S3_ADDRESSING");
    setenv("AWS_ACCESS_KEY_ID", "the:user", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "the-secret", 1);
    setenv("AWS_SESSION_TOKEN", "the-token", 1);
    setenv("AWS_REGION", "eu-north-7", 1);
    return weft_context_create(NULL, &context) == WEFT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    weft_context_destroy(context);
    free(object);
    free(host.object);
    return 0;
}

static void expect(weft_status got, weft_status wanted, const char *text) {
    if (got != wanted || strstr(weft_context_error(context), text) == NULL) {
        fail_msg("status %d, not %d: \"%s\" should say \"%s\"%s%s", got, wanted,
                 weft_context_error(context), text, host.stray[0] != '\0' ? "; stray: " : "", host.stray);
    }
}

static void begin(const rule *rules, size_t count) {
    static const weft_store_options quick = {
        .size = sizeof quick, .attempts = 3, .backoff_seconds = 0.01, .stall_seconds = 60};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    char endpoint[64];
    host.rules = rules;
    host.rule_count = count;
    memset(host.used, 0, sizeof(host.used));
    host.silent = false;
    memset(host.stray, 0, sizeof(host.stray));
    host.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(host.listener >= 0);
    assert_int_equal(bind(host.listener, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(host.listener, 16), 0);
    assert_int_equal(getsockname(host.listener, (struct sockaddr *)&address, &length), 0);
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", ntohs(address.sin_port));
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    assert_int_equal(pthread_create(&host.thread, NULL, run_host, NULL), 0);
    expect(weft_store_open(context, "s3://bucket/pre/", &quick, &store), WEFT_OK, "");
}

/* All rules were used but those of the set, whose use is a matter of time, and nothing else was asked. */
static void end_despite(unsigned unsure) {
    weft_store_close(store);
    shutdown(host.listener, SHUT_RDWR);
    pthread_join(host.thread, NULL);
    close(host.listener);
    assert_string_equal(host.stray, "");
    for (size_t i = 0; i < host.rule_count; i++) {
        if (!host.used[i] && (unsure >> i & 1) == 0) {
            fail_msg("nobody asked \"%s\" (%zu)", host.rules[i].request, i);
        }
        if (host.used[i] && host.rules[i].wants != NULL &&
            strstr(host.requests[i], host.rules[i].wants) == NULL) {
            fail_msg("request %zu should have \"%s\": %s", i, host.rules[i].wants, host.requests[i]);
        }
    }
}

static void end(void) {
    end_despite(0);
}

#define BEGIN(...)                                                                                         \
    static const rule rules[] = {__VA_ARGS__};                                                             \
    begin(rules, sizeof(rules) / sizeof(rules[0]))

static weft_status put(weft_store_condition condition, const weft_store_tag *tag, weft_store_tag *tag_out) {
    return weft_store_put_bytes(context, store, "key", "content", 7, condition, tag, tag_out);
}

static weft_status put_large(weft_store_tag *tag_out) {
    return weft_store_put_bytes(context, store, "key", object, OBJECT, WEFT_STORE_ALWAYS, NULL, tag_out);
}

static weft_status get(weft_store_get_result *result) {
    static char buffer[64];
    weft_store_get_request request = {
        .size = sizeof request, .key = "key", .length = sizeof(buffer), .buffer = buffer};
    return weft_store_get(context, store, &request, result);
}

/* ---- requests ---- */

static void test_signed(void **state) {
    (void)state;
    static const char whole[] =
        "HTTP/1.1 206 Partial\r\nContent-Length: 7\r\nContent-Range: bytes 0-6/7\r\nETag: \"t\"\r\n"
        "Date: Mon, 16 Nov 2026 01:00:00 GMT\r\nLast-Modified: Mon, 16 Nov 2026 01:00:00 GMT\r\n"
        "Connection: close\r\n";
    BEGIN({.request = "GET " KEY " ",
           whole,
           "content",
           "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"},
          {.request = "GET " KEY " ",
           whole,
           "content",
           "Authorization: AWS4-HMAC-SHA256 Credential=the:user/20"},
          {.request = "GET " KEY " ", whole, "content", "/eu-north-7/s3/aws4_request, SignedHeaders="},
          {.request = "GET " KEY " ", whole, "content", "x-amz-security-token: the-token\r\n"},
          {.request = "GET " KEY " ", whole, "content", ";x-amz-security-token"},
          /* the hashes of what is sent unencrypted */
          {.request = "PUT " KEY " ",
           STORED(TAG_1),
           "x-amz-content-sha256: ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73\r\n"},
          {.request = "PUT " KEY " ", STORED(TAG_1), "Content-MD5: mgNkuembtIDdJeHwKEyFVQ==\r\n"});
    weft_store_get_result result = {.size = sizeof result};
    for (int i = 0; i < 5; i++) {
        expect(get(&result), WEFT_OK, "");
        /* young, and good all the same */
        assert_string_equal(result.tag.text, "\"t\"");
    }
    weft_store_tag tag;
    for (int i = 0; i < 2; i++) {
        expect(put(WEFT_STORE_ALWAYS, NULL, &tag), WEFT_OK, "");
        assert_string_equal(tag.text, "\"" TAG_1 "\"");
    }
    for (size_t i = 0; i < host.rule_count; i++) {
        assert_null(strstr(host.requests[i], "the-secret"));
    }
    end();
}

/* ---- conditions ---- */

static void test_conditions_heeded(void **state) {
    (void)state;
    BEGIN({.request = PROBE, STORED(TAG_1), "If-None-Match: *\r\n"},
          {.request = PROBE, REFUSED, "If-None-Match: *\r\n"},
          {.request = PROBE, REFUSED, "If-Match: \"weft\"\r\n"},
          {.request = "PUT " KEY, REFUSED, "If-None-Match: *\r\n"},
          {.request = "PUT " KEY, STORED(TAG_2), "If-None-Match: *\r\n"},
          {.request = "PUT " KEY, STORED(TAG_3), "If-Match: \"" TAG_2 "\"\r\n"},
          {.request = "PUT " KEY, REFUSED, "If-Match: \"" TAG_2 "\"\r\n"},
          {.request = "PUT " KEY,
           "HTTP/1.1 404 Not Found\r\nConnection: close\r\n",
           ERROR_BODY("NoSuchKey")});
    weft_store_tag tag = {"untouched"};
    assert_false(store_traits(store).conditional);
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_CONFLICT, "somebody else");
    assert_string_equal(tag.text, "untouched");
    assert_true(store_traits(store).conditional);
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"" TAG_2 "\"");
    weft_store_tag old = tag;
    expect(put(WEFT_STORE_IF_SAME, &old, &tag), WEFT_OK, "");
    expect(put(WEFT_STORE_IF_SAME, &old, &tag), WEFT_CONFLICT, "");
    expect(put(WEFT_STORE_IF_SAME, &tag, NULL), WEFT_CONFLICT, "");
    weft_store_tag foreign = {"1-2-3"};
    expect(put(WEFT_STORE_IF_SAME, &foreign, NULL), WEFT_INVALID_ARGUMENT, "not one of this store");
    end();
}

#define PROBE_IN_PARTS                                                                                     \
    {.request = PROBE, REFUSED}, {.request = PROBE, REFUSED},                                              \
        {.request = "POST /bucket/pre/weft-conditions?uploads= ", CREATED}, {                              \
        .request = "PUT /bucket/pre/weft-conditions?partNumber=1&" UPLOAD, STORED(TAG_1)                   \
    }
#define COMPLETE_PROBE "POST /bucket/pre/weft-conditions?" UPLOAD
#define ABORT_PROBE "DELETE /bucket/pre/weft-conditions?" UPLOAD

static weft_status put_large_once(void) {
    return weft_store_put_bytes(context, store, "key", object, OBJECT, WEFT_STORE_IF_ABSENT, NULL, NULL);
}

/* What is put in parts is put on condition when they are put together. */
static void test_conditions_of_parts_heeded(void **state) {
    (void)state;
    BEGIN(PROBE_IN_PARTS, {.request = COMPLETE_PROBE, REFUSED, "If-None-Match: *\r\n"},
          {.request = ABORT_PROBE, ABORTED}, {.request = CREATE, CREATED}, ALL_PARTS,
          {.request = COMPLETE, REFUSED, "If-None-Match: *\r\n"}, {.request = ABORT, ABORTED},
          {.request = CREATE, CREATED}, ALL_PARTS,
          {.request = COMPLETE, COMPLETED, "If-None-Match: *\r\n"});
    expect(put_large_once(), WEFT_CONFLICT, "somebody else");
    expect(put_large_once(), WEFT_OK, "");
    end();
}

static void test_conditions_of_parts_ignored(void **state) {
    (void)state;
    BEGIN(PROBE_IN_PARTS, {.request = COMPLETE_PROBE, COMPLETED});
    expect(put_large_once(), WEFT_UNSUPPORTED, "more than 8388608 bytes");
    expect(put_large_once(), WEFT_UNSUPPORTED, "more than 8388608 bytes");
    end();
}

/* A service that takes everything would overwrite what must not be. */
static void test_conditions_ignored(void **state) {
    (void)state;
    BEGIN({.request = PROBE, STORED(TAG_1)}, {.request = PROBE, STORED(TAG_1)});
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "does not put objects on condition");
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "");
    assert_false(store_traits(store).conditional);
    end();
}

static void test_conditions_half_ignored(void **state) {
    (void)state;
    BEGIN({.request = PROBE, REFUSED}, {.request = PROBE, STORED(TAG_1), "If-Match"});
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "");
    assert_false(store_traits(store).conditional);
    end();
}

static void test_conditions_refused(void **state) {
    (void)state;
    BEGIN({.request = PROBE,
           "HTTP/1.1 501 Not Implemented\r\nConnection: close\r\n",
           ERROR_BODY("NotImplemented")});
    weft_store_tag tag = {"\"t\""};
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_UNSUPPORTED, "");
    expect(put(WEFT_STORE_IF_SAME, &tag, NULL), WEFT_UNSUPPORTED, "");
    end();
}

/* Two at once: the service asks to try again. A lost answer: the object is compared. */
static void test_conditions_compete(void **state) {
    (void)state;
    BEGIN({.request = PROBE, REFUSED}, {.request = PROBE, REFUSED},
          {.request = "PUT " KEY,
           "HTTP/1.1 409 Conflict\r\nConnection: close\r\n",
           ERROR_BODY("ConditionalRequestConflict")},
          {.request = "PUT " KEY, STORED(TAG_1)}, {.request = "PUT " KEY, NULL},
          {.request = "PUT " KEY, REFUSED},
          {.request = "GET " KEY, XML "Content-Length: 7\r\nETag: \"mine\"\r\n", "content"},
          {.request = "PUT " KEY, NULL}, {.request = "PUT " KEY, REFUSED},
          {.request = "GET " KEY, XML "Content-Length: 7\r\nETag: \"other\"\r\n", "another"});
    weft_store_tag tag;
    expect(put(WEFT_STORE_IF_ABSENT, NULL, NULL), WEFT_OK, "");
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"mine\"");
    expect(put(WEFT_STORE_IF_ABSENT, NULL, &tag), WEFT_CONFLICT, "");
    end();
}

/* ---- uploads ---- */

static void test_upload(void **state) {
    (void)state;
    BEGIN({.request = CREATE, CREATED}, ALL_PARTS, {.request = COMPLETE, COMPLETED});
    weft_store_tag tag;
    expect(put_large(&tag), WEFT_OK, "");
    assert_string_equal(tag.text, "\"whole-3\"");
    assert_memory_equal(host.object, object, OBJECT);
    const char list[] = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                        "<Part><PartNumber>1</PartNumber><ETag>\"" TAG_1 "\"</ETag></Part>"
                        "<Part><PartNumber>2</PartNumber><ETag>\"" TAG_2 "\"</ETag></Part>"
                        "<Part><PartNumber>3</PartNumber><ETag>\"" TAG_3 "\"</ETag></Part>"
                        "</CompleteMultipartUpload>";
    assert_string_equal((char *)host.body, list);
    end();
}

static void test_upload_retries(void **state) {
    (void)state;
    BEGIN({.request = CREATE, "HTTP/1.1 503 Slow Down\r\nConnection: close\r\n", ERROR_BODY("SlowDown")},
          {.request = CREATE, CREATED}, {.request = PART_1, STORED(TAG_1)},
          {.request = PART_2, "HTTP/1.1 503 Slow Down\r\nConnection: close\r\n", ERROR_BODY("SlowDown")},
          {.request = PART_2, NULL}, {.request = PART_2, STORED(TAG_2)},
          {.request = PART_3,
           "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n",
           ERROR_BODY("RequestTimeout")},
          {.request = PART_3, STORED(TAG_3)},
          /* 200, and yet not done */
          {.request = COMPLETE, XML, "  \n<?xml version=\"1.0\"?>\n" ERROR_BODY("InternalError")},
          {.request = COMPLETE, XML, ERROR_BODY("InternalError")}, {.request = COMPLETE, COMPLETED});
    expect(put_large(NULL), WEFT_OK, "");
    assert_memory_equal(host.object, object, OBJECT);
    end();
}

static void test_upload_error_behind_200(void **state) {
    (void)state;
    BEGIN({.request = CREATE, CREATED}, ALL_PARTS, {.request = COMPLETE, XML, ERROR_BODY("InvalidPart")},
          {.request = "HEAD " KEY, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ""},
          {.request = ABORT, ABORTED});
    expect(put_large(NULL), WEFT_REMOTE_FAILED, "answers 200 InvalidPart: So.");
    end();
}

static void test_upload_refused(void **state) {
    (void)state;
    BEGIN(
        {.request = CREATE, CREATED}, {.request = PART_1, STORED(TAG_1)},
        {.request = PART_2, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n", ERROR_BODY("AccessDenied")},
        {.request = PART_3, STORED(TAG_3)}, {.request = ABORT, ABORTED});
    expect(put_large(NULL), WEFT_REMOTE_DENIED, "s3:PutObject");
    end_despite(1u << 3);
}

static void test_upload_without_tags(void **state) {
    (void)state;
    BEGIN({.request = CREATE, CREATED},
          {.request = PART_1, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n", ""},
          {.request = PART_2, STORED(TAG_2)}, {.request = PART_3, STORED(TAG_3)},
          {.request = ABORT, ABORTED});
    expect(put_large(NULL), WEFT_REMOTE_FAILED, "no tag that can be used");
    end_despite(1u << 2 | 1u << 3);
}

static void composite_tag(char text[64]) {
    uint8_t bytes[48];
    uint8_t digest[EVP_MAX_MD_SIZE];
    const char *tags[] = {TAG_1, TAG_2, TAG_3};
    for (size_t i = 0; i < sizeof(bytes); i++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(tags[i / 16] + 2 * (i % 16), "%2x", &byte), 1);
        bytes[i] = (uint8_t)byte;
    }
    assert_int_equal(EVP_Digest(bytes, sizeof(bytes), digest, NULL, EVP_md5(), NULL), 1);
    text[0] = '"';
    for (size_t i = 0; i < 16; i++) {
        snprintf(text + 1 + 2 * i, 4, "%02x", digest[i]);
    }
    strcat(text, "-3\"");
}

#define LOST                                                                                               \
    { .request = COMPLETE }
#define NO_UPLOAD                                                                                          \
    { .request = COMPLETE, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ERROR_BODY("NoSuchUpload") }

/* The upload was put together, but nobody heard of it. */
static void test_upload_answer_lost(void **state) {
    (void)state;
    static char there[256];
    char tag[64];
    composite_tag(tag);
    snprintf(there, sizeof(there),
             "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: %s\r\nConnection: close\r\n", OBJECT, tag);
    static rule rules[] = {
        {.request = CREATE, CREATED}, ALL_PARTS, LOST, NO_UPLOAD, {.request = "HEAD " KEY, there, ""}};
    begin(rules, sizeof(rules) / sizeof(rules[0]));
    weft_store_tag got;
    expect(put_large(&got), WEFT_OK, "");
    assert_string_equal(got.text, tag);
    end();
}

/* Something else is there, so it was not. */
static void test_upload_gone(void **state) {
    (void)state;
    BEGIN(
        {.request = CREATE, CREATED}, ALL_PARTS, LOST, NO_UPLOAD,
        {.request = "HEAD " KEY,
         "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x-3\"\r\nConnection: close\r\n",
         ""},
        {.request = ABORT, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ERROR_BODY("NoSuchUpload")});
    expect(put_large(NULL), WEFT_REMOTE_FAILED, "NoSuchUpload");
    end();
}

/* A tag that tells nothing: the bytes decide. */
static void test_upload_compared(void **state) {
    (void)state;
    static char there[256];
    static char other[256];
    snprintf(there, sizeof(there),
             "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: \"x\"\r\nConnection: close\r\n", OBJECT);
    snprintf(other, sizeof(other),
             "HTTP/1.1 206 Partial\r\nContent-Length: %d\r\nContent-Range: bytes 0-%d/%d\r\nETag: \"x\"\r\n"
             "Connection: close\r\n",
             COMPARED, COMPARED - 1, OBJECT);
    static char content[COMPARED + 1];
    memset(content, 'o', COMPARED);
    static rule rules[] = {{.request = CREATE, CREATED},
                           ALL_PARTS,
                           LOST,
                           NO_UPLOAD,
                           {.request = "HEAD " KEY, there, ""},
                           {.request = "GET " KEY, other, content},
                           {.request = ABORT, ABORTED}};
    begin(rules, sizeof(rules) / sizeof(rules[0]));
    expect(put_large(NULL), WEFT_REMOTE_FAILED, "NoSuchUpload");
    end();
}

/* Fails behind its first part. */
static weft_status read_failing(void *opaque, uint64_t offset, void *data, size_t capacity,
                                size_t *count_out) {
    uint64_t limit = *(const uint64_t *)opaque;
    if (offset >= limit) {
        return WEFT_CANCELLED;
    }
    *count_out = limit - offset < capacity ? (size_t)(limit - offset) : capacity;
    memcpy(data, object + offset, *count_out);
    return WEFT_OK;
}

static void test_upload_feed_fails(void **state) {
    (void)state;
    BEGIN({.request = CREATE, CREATED}, {.request = PART_1, STORED(TAG_1)},
          {.request = PART_2, STORED(TAG_2)}, {.request = ABORT, ABORTED});
    uint64_t limit = 2 * PART;
    weft_store_put_request request = {.size = sizeof request,
                                      .key = "key",
                                      .feed = {.size = UINT64_MAX, .read = read_failing, .opaque = &limit}};
    assert_int_equal(weft_store_put(context, store, &request, NULL), WEFT_CANCELLED);
    end_despite(1u << 1 | 1u << 2);
}

static bool go_on_unless_silent(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)opaque;
    (void)phase;
    (void)done;
    (void)total;
    return !host.silent;
}

/* Who cancels does not wait for the service, which is told all the same. */
static void test_upload_cancelled(void **state) {
    (void)state;
    BEGIN({.request = CREATE, CREATED}, {.request = PART_1, .silent = true},
          {.request = PART_2, STORED(TAG_2)}, {.request = PART_3, STORED(TAG_3)},
          {.request = ABORT, ABORTED});
    weft_context_options options = {.size = sizeof options, .progress = go_on_unless_silent};
    weft_context *own = NULL;
    assert_int_equal(weft_context_create(&options, &own), WEFT_OK);
    assert_int_equal(weft_store_put_bytes(own, store, "key", object, OBJECT, WEFT_STORE_ALWAYS, NULL, NULL),
                     WEFT_CANCELLED);
    assert_non_null(strstr(weft_context_error(own), "cancelled"));
    weft_context_destroy(own);
    end_despite(1u << 2 | 1u << 3);
}

/* ---- what people read ---- */

static void test_texts(void **state) {
    (void)state;
    static const struct {
        const char *head, *body;
        weft_status status;
        const char *text;
    } cases[] = {
        {"HTTP/1.1 404 Not Found\r\n", ERROR_BODY("NoSuchKey"), WEFT_NOT_FOUND, "no such object"},
        {"HTTP/1.1 404 Not Found\r\n", ERROR_BODY("NoSuchBucket"), WEFT_INVALID_ARGUMENT,
         "no such bucket; create it"},
        {"HTTP/1.1 403 Forbidden\r\n", ERROR_BODY("AccessDenied"), WEFT_REMOTE_DENIED, "s3:ListBucket"},
        {"HTTP/1.1 403 Forbidden\r\n", ERROR_BODY("SignatureDoesNotMatch"), WEFT_REMOTE_DENIED,
         "AWS_SECRET_ACCESS_KEY"},
        {"HTTP/1.1 403 Forbidden\r\n", ERROR_BODY("InvalidAccessKeyId"), WEFT_REMOTE_DENIED,
         "check AWS_ACCESS_KEY_ID"},
        {"HTTP/1.1 400 Bad Request\r\n", ERROR_BODY("ExpiredToken"), WEFT_REMOTE_DENIED,
         "AWS_SESSION_TOKEN"},
        {"HTTP/1.1 403 Forbidden\r\n", ERROR_BODY("RequestTimeTooSkewed"), WEFT_REMOTE_DENIED, "clock"},
        {"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-south-2\r\n", ERROR_BODY("PermanentRedirect"),
         WEFT_INVALID_ARGUMENT, "set AWS_REGION=eu-south-2"},
        {"HTTP/1.1 307 Moved\r\nLocation: https://b.s3.eu-south-2.amazonaws.com/\r\n", "",
         WEFT_INVALID_ARGUMENT, "points to https://b.s3.eu-south-2.amazonaws.com/"},
        {"HTTP/1.1 400 Bad Request\r\n",
         "<Error><Code>AuthorizationHeaderMalformed</Code><Region>sa-east-1</Region></Error>",
         WEFT_INVALID_ARGUMENT, "set AWS_REGION=sa-east-1"},
        {"HTTP/1.1 400 Bad Request\r\n",
         "<Error><Code>Strange</Code><Message>a &lt;thing&gt;\x1b[31m</Message></Error>",
         WEFT_REMOTE_FAILED, "400 Strange: a <thing> [31m"},
        {"HTTP/1.1 404 Not Found\r\n", "<html>nginx</html>", WEFT_NOT_FOUND, "no such object"},
        {"HTTP/1.1 418 Teapot\r\n", "<html>", WEFT_REMOTE_FAILED, "not as S3 does"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char head[256];
        snprintf(head, sizeof(head), "%sConnection: close\r\n", cases[i].head);
        rule rules[] = {{.request = "GET " KEY " ", head, cases[i].body, NULL}};
        weft_store_get_result result = {.size = sizeof result};
        begin(rules, 1);
        expect(get(&result), cases[i].status, cases[i].text);
        end();
    }
}

/* HEAD has no body: GET tells what is wrong. That nothing is there is asked about once. */
static void test_head_asks_why(void **state) {
    (void)state;
    BEGIN({.request = "HEAD " KEY " ", "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n", ""},
          {.request = "GET " KEY " ",
           "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n",
           ERROR_BODY("ExpiredToken")},
          {.request = "HEAD " KEY " ", "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ""},
          {.request = "GET " KEY " ",
           "HTTP/1.1 404 Not Found\r\nConnection: close\r\n",
           ERROR_BODY("NoSuchBucket")},
          {.request = "HEAD " KEY " ", "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ""},
          {.request = "GET " KEY " ",
           "HTTP/1.1 404 Not Found\r\nConnection: close\r\n",
           ERROR_BODY("NoSuchKey")},
          {.request = "HEAD " KEY " ", "HTTP/1.1 404 Not Found\r\nConnection: close\r\n", ""});
    expect(weft_store_head(context, store, "key", NULL, NULL), WEFT_REMOTE_DENIED, "AWS_SESSION_TOKEN");
    expect(weft_store_head(context, store, "key", NULL, NULL), WEFT_INVALID_ARGUMENT, "no such bucket");
    expect(weft_store_head(context, store, "key", NULL, NULL), WEFT_NOT_FOUND, "");
    expect(weft_store_head(context, store, "key", NULL, NULL), WEFT_NOT_FOUND, "");
    end();
}

static void test_busy(void **state) {
    (void)state;
    BEGIN({.request = "GET " KEY " ",
           "HTTP/1.1 503 Slow Down\r\nConnection: close\r\n",
           ERROR_BODY("SlowDown")},
          {.request = "GET " KEY " ",
           "HTTP/1.1 500 Oops\r\nConnection: close\r\n",
           ERROR_BODY("InternalError")},
          {.request = "GET " KEY " ",
           "HTTP/1.1 503 Slow Down\r\nConnection: close\r\n",
           ERROR_BODY("SlowDown")});
    weft_store_get_result result = {.size = sizeof result};
    expect(get(&result), WEFT_REMOTE_FAILED, "fewer requests; try again later (SlowDown) (3 attempts)");
    end();
}

/* What was damaged on the way is sent again. */
static void test_damaged_on_the_way(void **state) {
    (void)state;
    BEGIN({.request = "PUT " KEY " ",
           "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n",
           ERROR_BODY("BadDigest")},
          {.request = "PUT " KEY " ",
           "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n",
           ERROR_BODY("XAmzContentSHA256Mismatch")},
          {.request = "PUT " KEY " ", STORED(TAG_1)});
    expect(put(WEFT_STORE_ALWAYS, NULL, NULL), WEFT_OK, "");
    end();
}

/* ---- listing ---- */

static bool collect(void *opaque, const char *key, uint64_t size, double age_seconds) {
    char *text = opaque;
    size_t length = strlen(text);
    snprintf(text + length, 512 - length, "%s %llu %.0f\n", key, (unsigned long long)size, age_seconds);
    return strstr(key, "last") == NULL;
}

#define OBJECT_OF(key, date)                                                                               \
    "<Contents><Key>" key "</Key><LastModified>" date "</LastModified><Size>3</Size></Contents>"
#define DATED XML "Date: Mon, 16 Nov 2026 01:00:00 GMT\r\n"

static void test_list(void **state) {
    (void)state;
    BEGIN(
        {.request = "GET /bucket/?list-type=2&max-keys=1000&prefix=pre%2Fpages%2F ",
         DATED,
         "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a+b/c=="
         "</NextContinuationToken>" OBJECT_OF("pre/pages/1", "2026-11-16T00:59:50.000Z")
             OBJECT_OF("pre/pages/a&amp;b", "2026-11-16T00:59:50.000Z") OBJECT_OF(
                 "pre/pages/2", "2026-11-16T01:00:05Z") OBJECT_OF("elsewhere/3", "2026-11-16T00:59:50.000Z")
                 OBJECT_OF("pre/pages/3", "yesterday") "</ListBucketResult>"},
        {.request =
             "GET "
             "/bucket/?continuation-token=a%2Bb%2Fc%3D%3D&list-type=2&max-keys=1000&prefix=pre%2Fpages%2F ",
         DATED,
         "<ListBucketResult><IsTruncated>false</IsTruncated>" OBJECT_OF(
             "pre/pages/deep/4", "2026-11-15T01:00:00.000Z") "</ListBucketResult>"},
        {.request = "GET /bucket/?list-type=2&max-keys=1000&prefix=pre%2F ",
         DATED,
         "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x"
         "</NextContinuationToken>" OBJECT_OF("pre/last", "2026-11-16T01:00:00.000Z")
             OBJECT_OF("pre/more", "2026-11-16T01:00:00.000Z") "</ListBucketResult>"});
    char text[512] = "";
    expect(weft_store_list(context, store, "pages", collect, text), WEFT_OK, "");
    assert_string_equal(text, "pages/1 3 10\npages/2 3 0\npages/deep/4 3 86400\n");
    text[0] = '\0';
    expect(weft_store_list(context, store, "", collect, text), WEFT_OK, "");
    assert_string_equal(text, "last 3 0\n");
    end();
}

static void test_list_wrong(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",
        "<html></html>",
        "<ListBucketResult>",
        "not XML",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<!DOCTYPE x><ListBucketResult></ListBucketResult>",
        "<ListBucketResult></ListBucketResult><ListBucketResult></ListBucketResult>",
        "<ListBucketResult><Contents></ListBucketResult></Contents>",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const rule list = {.request = "GET /bucket/?", DATED, wrong[i], NULL};
        const rule rules[] = {list, list, list};
        char text[512] = "";
        begin(rules, 3);
        expect(weft_store_list(context, store, "pages", collect, text), WEFT_REMOTE_FAILED,
               "not a list of objects");
        end();
    }
    BEGIN({.request = "GET /bucket/?list",
           DATED,
           "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x"
           "</NextContinuationToken></ListBucketResult>"},
          {.request = "GET /bucket/?cont",
           DATED,
           "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x"
           "</NextContinuationToken></ListBucketResult>"});
    char text[512] = "";
    expect(weft_store_list(context, store, "pages", collect, text), WEFT_REMOTE_FAILED, "in circles");
    end();
}

static void test_list_round_and_round(void **state) {
    (void)state;
    static const char *const round[] = {"x", "y", "z"};
    enum { PARTS = 6 };
    char bodies[PARTS][200];
    rule rules[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        snprintf(bodies[i], sizeof(bodies[i]),
                 "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s"
                 "</NextContinuationToken></ListBucketResult>",
                 round[i % 3]);
        rules[i] = (rule){.request = "GET /bucket/?", DATED, bodies[i], NULL};
    }
    char text[512] = "";
    /* after parts 1 and 2 and 4 "", x and z were remembered, and after part 6 there is z again */
    begin(rules, PARTS);
    expect(weft_store_list(context, store, "pages", collect, text), WEFT_REMOTE_FAILED, "in circles");
    end();
}

/* Of a list that was cut short nothing is told, and the next attempt tells each object once. */
static void test_list_cut_short(void **state) {
    (void)state;
    BEGIN({.request = "GET /bucket/?list",
           DATED,
           "<ListBucketResult>" OBJECT_OF("pre/pages/1", "2026-11-16T00:59:50.000Z") "<Conte"},
          {.request = "GET /bucket/?list",
           DATED,
           "<ListBucketResult><IsTruncated>false</IsTruncated>" OBJECT_OF(
               "pre/pages/1", "2026-11-16T00:59:50.000Z") "</ListBucketResult>"});
    char text[512] = "";
    expect(weft_store_list(context, store, "pages", collect, text), WEFT_OK, "");
    assert_string_equal(text, "pages/1 3 10\n");
    end();
}

/* ---- places ---- */

static void test_places(void **state) {
    (void)state;
    static const struct {
        const char *url, *endpoint, *region, *addressing, *root, *prefix;
    } cases[] = {
        {"s3://bucket", NULL, NULL, NULL, "https://bucket.s3.us-east-1.amazonaws.com", ""},
        {"s3://bucket/a/b/", NULL, "eu-west-1", NULL, "https://bucket.s3.eu-west-1.amazonaws.com", "a/b"},
        {"S3://bucket//", NULL, "", "", "https://bucket.s3.us-east-1.amazonaws.com", ""},
        {"s3://bucket/x", NULL, "cn-north-1", NULL, "https://bucket.s3.cn-north-1.amazonaws.com.cn", "x"},
        {"s3://my.bucket/x", NULL, NULL, NULL, "https://s3.us-east-1.amazonaws.com/my.bucket", "x"},
        {"s3://My_bucket", NULL, NULL, NULL, "https://s3.us-east-1.amazonaws.com/My_bucket", ""},
        {"s3://bucket", NULL, NULL, "path", "https://s3.us-east-1.amazonaws.com/bucket", ""},
        {"s3://bucket", "http://127.0.0.1:9000/", NULL, NULL, "http://127.0.0.1:9000/bucket", ""},
        {"s3://bucket", "http://[::1]:9000", NULL, NULL, "http://[::1]:9000/bucket", ""},
        {"s3://bucket", "https://host/s3/", NULL, NULL, "https://host/s3/bucket", ""},
        {"s3://bucket/p", "https://host:8443/s3", "auto", "virtual", "https://bucket.host:8443/s3", "p"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_s3_environment environment = {cases[i].endpoint, cases[i].region, cases[i].addressing};
        weft_s3_place place;
        expect(weft_s3_place_find(context, cases[i].url, &environment, &place), WEFT_OK, "");
        assert_string_equal(place.root, cases[i].root);
        assert_string_equal(place.prefix, cases[i].prefix);
        assert_int_equal(place.encrypted, strncmp(place.root, "https", 5) == 0);
    }
}

static void test_wrong_places(void **state) {
    (void)state;
    char endless[700] = "http://host/";
    memset(endless + 12, 'x', sizeof(endless) - 13);
    char far[300] = "s3://bucket/";
    memset(far + 12, 'x', sizeof(far) - 13);
    const struct {
        const char *url, *endpoint, *region, *addressing, *text;
    } cases[] = {
        {"s3://", NULL, NULL, NULL, "names no bucket"},
        {"s3:///x", NULL, NULL, NULL, "names no bucket"},
        {"s3://../x", NULL, NULL, NULL, "names no bucket"},
        {"s3://key:secret@bucket/x", NULL, NULL, NULL, "names no bucket"},
        {"s3://bucket?secret", NULL, NULL, NULL, "names no bucket"},
        {"s3://bucket/a=b", NULL, NULL, NULL, "prefix"},
        {"s3://bucket/a//b", NULL, NULL, NULL, "prefix"},
        {"s3://bucket/../b", NULL, NULL, NULL, "prefix"},
        {"s3://bucket/a b", NULL, NULL, NULL, "prefix"},
        {far, NULL, NULL, NULL, "prefix"},
        {"s3://bucket", "ftp://host", NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", "http://user:secret@host", NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", "http://host/?x=secret", NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", "http://host/a%20b", NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", "nonsense://", NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", endless, NULL, NULL, "AWS_ENDPOINT_URL"},
        {"s3://bucket", NULL, "us:east", NULL, "AWS_REGION"},
        {"s3://bucket", NULL, "us-east-1\r\nX: y", NULL, "AWS_REGION"},
        {"s3://bucket", NULL, endless + 12, NULL, "AWS_REGION"},
        {"s3://bucket", NULL, NULL, "host", "neither"},
        {"s3://bucket", "http://127.0.0.1", NULL, "virtual", "cannot be part of the host"},
        {"s3://bucket", "http://[::1]", NULL, "virtual", "cannot be part of the host"},
        {"s3://my.bucket", "http://host", NULL, "virtual", "cannot be part of the host"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        weft_s3_environment environment = {cases[i].endpoint, cases[i].region, cases[i].addressing};
        weft_s3_place place;
        expect(weft_s3_place_find(context, cases[i].url, &environment, &place), WEFT_INVALID_ARGUMENT,
               cases[i].text);
        assert_null(strstr(weft_context_error(context), "secret"));
    }
}

static void test_credentials(void **state) {
    (void)state;
    weft_store *none = NULL;
    setenv("AWS_SECRET_ACCESS_KEY", "", 1);
    expect(weft_store_open(context, "s3://bucket", NULL, &none), WEFT_INVALID_ARGUMENT,
           "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SECRET_ACCESS_KEY", "the-secret", 1);
    setenv("AWS_SESSION_TOKEN", "a\r\nX-Evil: b", 1);
    expect(weft_store_open(context, "s3://bucket", NULL, &none), WEFT_INVALID_ARGUMENT, "line ends");
    setenv("AWS_SESSION_TOKEN", "the-token", 1);
    setenv("AWS_CA_BUNDLE", "/nonexistent/ca.pem", 1);
    expect(weft_store_open(context, "s3://bucket", NULL, &none), WEFT_IO_FAILED, "/nonexistent/ca.pem");
    unsetenv("AWS_CA_BUNDLE");
    assert_null(none);
}

/* ---- memory ---- */

static weft_status open_and_put(weft_context *failing) {
    weft_store_options options = {.size = sizeof options, .attempts = 1, .backoff_seconds = 0.01};
    weft_store *opened = NULL;
    weft_status status = weft_store_open(failing, "s3://bucket/pre", &options, &opened);
    if (status == WEFT_OK) {
        status =
            weft_store_put_bytes(failing, opened, "key", object, PART + 1, WEFT_STORE_ALWAYS, NULL, NULL);
        weft_store_close(opened);
    }
    return status;
}

static void test_no_memory(void **state) {
    (void)state;
    size_t n = 1;
    for (bool fired = true; fired; n++) {
        static const rule rules[] = {{.request = CREATE, CREATED},
                                     {.request = PART_1, STORED(TAG_1)},
                                     {.request = PART_2, STORED(TAG_2)},
                                     {.request = COMPLETE, COMPLETED},
                                     {.request = ABORT, ABORTED}};
        faults faults = {0};
        weft_context_options with = {.size = sizeof with, .allocator = faults_allocator(&faults)};
        weft_context *failing = NULL;
        begin(rules, sizeof(rules) / sizeof(rules[0]));
        faults_reset(&faults, n + 1);
        assert_int_equal(weft_context_create(&with, &failing), WEFT_OK);
        weft_status status = open_and_put(failing);
        fired = faults_fired(&faults);
        assert_int_equal(status, fired ? WEFT_NO_MEMORY : WEFT_OK);
        weft_context_destroy(failing);
        assert_int_equal(faults_live_blocks(&faults), 0);
        end_despite(UINT_MAX);
    }
    assert_true(n > 8);
}

/* ---- answers ---- */

static void test_answers(void **state) {
    (void)state;
    static const char *const sound[] = {
        "<Error><Code>C</Code></Error>",
        "\xef\xbb\xbf<?xml version='1.0'?>\n<!-- c --><Error x=\"a>b\" y='\"'><Code >C</Code ></Error>\n",
        "<s3:Error><s3:Code>&#67;</s3:Code></s3:Error>",
        "<Error><Empty/><Code>&#x43;</Code><Deep><Code>D</Code></Deep></Error>",
        "<Error><Code>C</Code><Message>cut o",
    };
    static const char *const unsound[] = {
        "",
        "<Error>C</Error>",
        "<Other><Code>C</Code></Other>",
        "<Error><Code>C C</Code></Error>",
        "<Error><Code>C",
        "<Error><Code>&bad;</Code></Error>",
        "<Error><Code>&#0;</Code></Error>",
        "<Error><Code>&#xD800;</Code></Error>",
        "<Error><Code>&#99999999999;</Code></Error>",
        "<Error><![CDATA[x]]><Code>C</Code></Error>",
        "<a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a>",
    };
    weft_s3_error error;
    for (size_t i = 0; i < sizeof(sound) / sizeof(sound[0]); i++) {
        assert_true(weft_s3_error_read(sound[i], strlen(sound[i]), &error));
        assert_string_equal(error.code, "C");
    }
    for (size_t i = 0; i < sizeof(unsound) / sizeof(unsound[0]); i++) {
        assert_false(weft_s3_error_read(unsound[i], strlen(unsound[i]), &error));
    }
    static const char nul[] = "<Error><Code>\0</Code></Error>";
    assert_false(weft_s3_error_read(nul, sizeof(nul) - 1, &error));
    char id[WEFT_S3_UPLOAD_MAX];
    static const char cut[] =
        "<InitiateMultipartUploadResult><UploadId>abc</UploadId></InitiateMultipartUploadResul";
    assert_false(weft_s3_upload_read(cut, strlen(cut), id));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signed),
        cmocka_unit_test(test_conditions_heeded),
        cmocka_unit_test(test_conditions_of_parts_heeded),
        cmocka_unit_test(test_conditions_of_parts_ignored),
        cmocka_unit_test(test_conditions_ignored),
        cmocka_unit_test(test_conditions_half_ignored),
        cmocka_unit_test(test_conditions_refused),
        cmocka_unit_test(test_conditions_compete),
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_upload_retries),
        cmocka_unit_test(test_upload_error_behind_200),
        cmocka_unit_test(test_upload_refused),
        cmocka_unit_test(test_upload_without_tags),
        cmocka_unit_test(test_upload_answer_lost),
        cmocka_unit_test(test_upload_gone),
        cmocka_unit_test(test_upload_compared),
        cmocka_unit_test(test_upload_feed_fails),
        cmocka_unit_test(test_upload_cancelled),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_head_asks_why),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_damaged_on_the_way),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_list_wrong),
        cmocka_unit_test(test_list_round_and_round),
        cmocka_unit_test(test_list_cut_short),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_wrong_places),
        cmocka_unit_test(test_credentials),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
