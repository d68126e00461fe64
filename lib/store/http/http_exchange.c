/* SPDX-License-Identifier: Apache-2.0
 *
 * http_exchange.c: from a request to curl's options, and from curl's callbacks to an answer. The callbacks
 * run on the engine's thread.
 */
#include "http_exchange.h"

#include "../../base/clock.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define STRINGIFY(value) #value
#define NUMBER(value) STRINGIFY(value)
#define USER_AGENT                                                                                         \
    "weft/" NUMBER(WEFT_VERSION_MAJOR) "." NUMBER(WEFT_VERSION_MINOR) "." NUMBER(WEFT_VERSION_PATCH)

enum {
    CURL_BUFFER = 512 << 10,
    EXPECT_MILLISECONDS = 200, /* that a server may take to say that it wants a body */
    CERTIFICATE_SECONDS = 60,  /* before the file of trusted certificates is read again */
    ASK_BYTES = 1 << 20,       /* a smaller body is sent sooner than asked for */
};

/* Of an answer that is no object: a page that says what went wrong, of which the beginning is kept. */
static const uint64_t ERROR_BODY_MAX = 256 << 10;

/* Tags of other servers are often made of the second of the change: one that is as young as that does not
 * yet tell two contents apart. */
static const double SETTLED_SECONDS = 2;

/* ---- the answer's header ---- */

/* Digits only, without overflow; what follows them is left to the caller. */
static bool read_number(const char **cursor, const char *end, uint64_t *number_out) {
    const char *start = *cursor;
    uint64_t number = 0;
    while (*cursor < end && **cursor >= '0' && **cursor <= '9') {
        uint64_t digit = (uint64_t)(**cursor - '0');
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, digit, &number)) {
            return false;
        }
        ++*cursor;
    }
    *number_out = number;
    return *cursor > start;
}

static bool skip_byte(const char **cursor, const char *end, char byte) {
    if (*cursor < end && **cursor == byte) {
        ++*cursor;
        return true;
    }
    return false;
}

/* "bytes 5-9/100" */
static void read_range(weft_http_answer *answer, const char *value, const char *end) {
    static const char unit[] = "bytes ";
    uint64_t first = 0;
    uint64_t last = 0;
    uint64_t size = 0;
    if ((size_t)(end - value) < strlen(unit) || strncasecmp(value, unit, strlen(unit)) != 0) {
        return;
    }
    value += strlen(unit);
    if (read_number(&value, end, &first) && skip_byte(&value, end, '-') &&
        read_number(&value, end, &last) && skip_byte(&value, end, '/') && read_number(&value, end, &size) &&
        value == end && first <= last && last < size) {
        answer->has_range = true;
        answer->range_first = first;
        answer->range_last = last;
        answer->range_size = size;
    }
}

bool weft_http_tag_valid(const weft_store_tag *tag) {
    size_t size = strnlen(tag->text, sizeof(tag->text));
    if (size < 3 || size == sizeof(tag->text) || tag->text[0] != '"' || tag->text[size - 1] != '"') {
        return false;
    }
    for (size_t i = 1; i < size - 1; i++) {
        if (tag->text[i] <= 0x20 || tag->text[i] == '"' || tag->text[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

bool weft_http_url_has(CURLU *url, CURLUPart part) {
    char *text = NULL;
    bool there = curl_url_get(url, part, &text, 0) == CURLUE_OK;
    curl_free(text);
    return there;
}

static void read_tag(weft_http_answer *answer, const char *value, const char *end) {
    weft_store_tag tag = {{0}};
    size_t size = (size_t)(end - value);
    memcpy(tag.text, value, size < sizeof(tag.text) ? size : sizeof(tag.text));
    answer->tag = weft_http_tag_valid(&tag) ? tag : (weft_store_tag){{0}};
}

static time_t read_date(const char *value, const char *end) {
    char text[64];
    size_t size = (size_t)(end - value);
    if (size >= sizeof(text)) {
        return -1;
    }
    memcpy(text, value, size);
    text[size] = '\0';
    return curl_getdate(text, NULL);
}

static void read_text(char *text, size_t capacity, const char *value, const char *end) {
    snprintf(text, capacity, "%.*s", (int)(end - value), value);
}

static bool is_named(const char *line, size_t name, const char *wanted) {
    return name == strlen(wanted) && strncasecmp(line, wanted, name) == 0;
}

static void read_field(weft_http_answer *answer, const char *line, size_t name, const char *value,
                       const char *end) {
    const char *cursor = value;
    uint64_t number = 0;
    bool is_number = read_number(&cursor, end, &number) && cursor == end;
    if (is_named(line, name, "content-length")) {
        answer->has_length = answer->has_length || is_number;
        answer->length = is_number ? number : answer->length;
    } else if (is_named(line, name, "content-range")) {
        read_range(answer, value, end);
    } else if (is_named(line, name, "content-encoding")) {
        answer->encoded = !is_named(value, (size_t)(end - value), "identity");
    } else if (is_named(line, name, "etag")) {
        read_tag(answer, value, end);
    } else if (is_named(line, name, "date")) {
        answer->date = read_date(value, end);
    } else if (is_named(line, name, "last-modified")) {
        answer->modified = read_date(value, end);
    } else if (is_named(line, name, "retry-after")) {
        answer->retry_seconds = is_number ? (double)number : answer->retry_seconds;
    } else if (is_named(line, name, "location")) {
        read_text(answer->location, sizeof(answer->location), value, end);
    } else if (is_named(line, name, "x-amz-bucket-region")) {
        read_text(answer->region, sizeof(answer->region), value, end);
    } else if (is_named(line, name, "weft-server")) {
        answer->weft = true;
    }
}

/* A new header: a final answer follows on an interim one. */
static void begin_answer(weft_http_answer *answer) {
    memset(answer, 0, sizeof(*answer));
    answer->date = -1;
    answer->modified = -1;
}

void weft_http_answer_read(weft_http_answer *answer, const char *line, size_t size) {
    const char *end = line + size;
    if (size >= 5 && strncmp(line, "HTTP/", 5) == 0) {
        begin_answer(answer);
        return;
    }
    const char *colon = memchr(line, ':', size);
    if (colon == NULL) {
        return;
    }
    const char *value = colon + 1;
    while (value < end && (*value == ' ' || *value == '\t')) {
        value++;
    }
    while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    read_field(answer, line, (size_t)(colon - line), value, end);
}

/* ---- callbacks ---- */

static size_t receive_header(char *data, size_t size, size_t count, void *opaque) {
    weft_http_exchange *exchange = opaque;
    /* Fields behind a body come too late to say anything about it. */
    if (!exchange->begun) {
        weft_http_answer_read(&exchange->answer, data, size * count);
        curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &exchange->answer.status);
    }
    return size * count;
}

/* The longest that the body may be, as far as that is known. */
static uint64_t most_bytes(const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->status == 206) {
        return answer->range_last - answer->range_first + 1;
    }
    return answer->has_length ? answer->length : UINT64_MAX;
}

static bool range_fits(const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    return exchange->ranged && answer->has_range && answer->range_first == exchange->first &&
           answer->range_last <= exchange->last;
}

/* Copies the part of `data` that is wanted. False to stop the transfer. */
static bool keep_body(weft_http_exchange *exchange, const char *data, size_t size) {
    /* a server that ignores the range sends the object from its beginning */
    uint64_t before = exchange->ranged && exchange->answer.status == 200 ? exchange->first : 0;
    uint64_t skip = exchange->body < before ? before - exchange->body : 0;
    exchange->body += size;
    if (exchange->body > most_bytes(exchange)) {
        exchange->overrun = true;
        return false;
    }
    if (skip >= size) {
        return true;
    }
    uint64_t room = exchange->room - exchange->received;
    uint64_t left = size - skip;
    uint64_t count = left < room ? left : room;
    if (count > 0) {
        memcpy(exchange->buffer + exchange->received, data + skip, (size_t)count);
        exchange->received += count;
    }
    if (count > 0 && exchange->arrived != NULL) {
        pthread_mutex_lock(exchange->mutex);
        exchange->ready = exchange->received;
        pthread_cond_signal(&exchange->changed);
        pthread_mutex_unlock(exchange->mutex);
    }
    exchange->satisfied = left > room;
    return !exchange->satisfied;
}

static size_t receive_body(char *data, size_t size, size_t count, void *opaque) {
    weft_http_exchange *exchange = opaque;
    size_t bytes = size * count;
    long status = exchange->answer.status;
    exchange->begun = true;
    if (exchange->buffer == NULL || (status != 200 && status != 206)) {
        size_t room = sizeof(exchange->remark) - exchange->remark_size;
        size_t kept = bytes < room ? bytes : room;
        memcpy(exchange->remark + exchange->remark_size, data, kept);
        exchange->remark_size += kept;
        exchange->body += bytes;
        return exchange->body <= ERROR_BODY_MAX ? bytes : CURL_WRITEFUNC_ERROR;
    }
    if (status == 206 && !range_fits(exchange)) {
        exchange->misranged = true;
        return CURL_WRITEFUNC_ERROR;
    }
    return !exchange->answer.encoded && keep_body(exchange, data, bytes) ? bytes : CURL_WRITEFUNC_ERROR;
}

static size_t send_body(char *data, size_t size, size_t count, void *opaque) {
    weft_http_exchange *exchange = opaque;
    weft_http_pipe *pipe = &exchange->pipe;
    size_t room = size * count;
    pthread_mutex_lock(exchange->mutex);
    uint64_t there = pipe->filled - pipe->drained;
    pipe->dry = there == 0 && !pipe->ended;
    bool dry = pipe->dry;
    pthread_mutex_unlock(exchange->mutex);
    if (dry) {
        return CURL_READFUNC_PAUSE;
    }
    /* Only this thread drains, and what is there is not written to meanwhile. */
    size_t at = (size_t)(pipe->drained % pipe->capacity);
    size_t bytes = room < there ? room : (size_t)there;
    bytes = bytes < pipe->capacity - at ? bytes : pipe->capacity - at;
    memcpy(data, pipe->ring + at, bytes);
    pthread_mutex_lock(exchange->mutex);
    pipe->drained += bytes;
    pthread_cond_signal(&exchange->changed);
    pthread_mutex_unlock(exchange->mutex);
    return bytes;
}

/* Back to the beginning, as long as it is still in the ring. */
static int rewind_body(void *opaque, curl_off_t offset, int origin) {
    weft_http_exchange *exchange = opaque;
    weft_http_pipe *pipe = &exchange->pipe;
    pthread_mutex_lock(exchange->mutex);
    bool whole = origin == SEEK_SET && offset == 0 && pipe->filled <= pipe->capacity;
    if (whole) {
        pipe->drained = 0;
    }
    pthread_mutex_unlock(exchange->mutex);
    return whole ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

/* ---- the request ---- */

static bool add_header(weft_http_exchange *exchange, const char *line) {
    struct curl_slist *longer =
        line != NULL ? curl_slist_append(exchange->headers, line) : exchange->headers;
    if (line != NULL && longer == NULL) {
        return false;
    }
    exchange->headers = longer;
    return true;
}

static bool has_body(const weft_http_exchange *exchange) {
    return exchange->method == WEFT_HTTP_PUT || exchange->method == WEFT_HTTP_POST;
}

/* A server that refuses a large body does not read it to its end: what is still being sent then resets the
 * connection, and with it the refusal can be lost. */
static bool asks_first(const weft_http_exchange *exchange) {
    return exchange->asks && exchange->put_size > ASK_BYTES;
}

/* S3 wants to be told of the body even if there is none; curl signs these lines with the others. */
static bool add_signed_headers(weft_http_exchange *exchange, const weft_http_signing *signing) {
    static const char nothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    char line[128];
    char md5[64];
    const char *unknown = has_body(exchange) ? "UNSIGNED-PAYLOAD" : nothing;
    snprintf(line, sizeof(line), "x-amz-content-sha256: %s",
             exchange->hash[0] != '\0' ? exchange->hash : unknown);
    snprintf(md5, sizeof(md5), "Content-MD5: %s", exchange->md5);
    return add_header(exchange, line) && add_header(exchange, exchange->md5[0] != '\0' ? md5 : NULL) &&
           add_header(exchange, signing->token);
}

static bool add_lines(weft_http_exchange *exchange) {
    bool added = true;
    for (const char *const *line = exchange->lines; line != NULL && *line != NULL && added; line++) {
        added = add_header(exchange, *line);
    }
    return added;
}

static bool add_headers(weft_http_exchange *exchange, const weft_http_proof *proof) {
    char range[80];
    snprintf(range, sizeof(range), "Range: bytes=%llu-%llu", (unsigned long long)exchange->first,
             (unsigned long long)exchange->last);
    return add_header(exchange, proof->authorization) && add_lines(exchange) &&
           (!proof->is_signed || add_signed_headers(exchange, &proof->signing)) &&
           add_header(exchange, exchange->ranged ? range : NULL) &&
           add_header(exchange, exchange->conditions[0]) && add_header(exchange, exchange->conditions[1]) &&
           /* without this curl waits for servers that do not know it, but it would sign it too */
           add_header(exchange,
                      has_body(exchange) && !proof->is_signed && !asks_first(exchange) ? "Expect:" : NULL);
}

static void set_method(CURL *easy, const weft_http_exchange *exchange) {
    switch (exchange->method) {
    case WEFT_HTTP_GET:
        break;
    case WEFT_HTTP_HEAD:
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
        break;
    case WEFT_HTTP_POST:
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "POST");
        /* fall through */
    case WEFT_HTTP_PUT:
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE,
                         exchange->put_size == UINT64_MAX ? (curl_off_t)-1
                                                          : (curl_off_t)exchange->put_size);
        break;
    case WEFT_HTTP_DELETE:
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    }
}

void weft_http_exchange_fill(weft_http_exchange *exchange, const void *data, size_t size) {
    static uint8_t nothing[1];
    exchange->put_size = size;
    /* Nobody writes to a ring that has ended. */
    exchange->pipe = (weft_http_pipe){
        .ring = size > 0 ? (uint8_t *)data : nothing,
        .capacity = size > 0 ? size : sizeof(nothing),
        .filled = size,
        .ended = true,
    };
}

bool weft_http_exchange_prepare(weft_http_exchange *exchange, const weft_http_settings *settings,
                                const weft_http_proof *proof) {
    begin_answer(&exchange->answer);
    weft_condition_open(&exchange->changed);
    exchange->easy = curl_easy_init();
    if (exchange->easy == NULL || !add_headers(exchange, proof)) {
        return false;
    }
    CURL *easy = exchange->easy;
    set_method(easy, exchange);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)(settings->connect_seconds * 1000));
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)CURL_BUFFER);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)CURL_BUFFER);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, exchange);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, exchange->answer.text);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, receive_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, exchange);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, exchange);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, send_body);
    curl_easy_setopt(easy, CURLOPT_READDATA, exchange);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_body);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, exchange);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, USER_AGENT);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, exchange->headers);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, exchange->fresh ? 1L : 0L);
    if (settings->ca_file != NULL) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, settings->ca_file);
        curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
        /* curl would keep what it has read for a day */
        curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, (long)CERTIFICATE_SECONDS);
    }
    if (settings->direct) {
        curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    }
    exchange->proof = proof->serial;
    if (proof->is_signed) {
        /* user and secret apart, and not in the URL: a user may have a colon in it */
        curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, proof->signing.scheme);
        curl_easy_setopt(easy, CURLOPT_USERNAME, proof->signing.user);
        curl_easy_setopt(easy, CURLOPT_PASSWORD, proof->signing.secret);
        curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MILLISECONDS);
    }
    if (asks_first(exchange)) {
        curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)(settings->stall_seconds * 1000));
    }
    exchange->steady_tags = settings->steady_tags;
    return curl_easy_setopt(easy, CURLOPT_URL, exchange->url) == CURLE_OK;
}

void weft_http_exchange_release(weft_http_exchange *exchange) {
    curl_easy_cleanup(exchange->easy);
    curl_slist_free_all(exchange->headers);
    pthread_cond_destroy(&exchange->changed);
    exchange->easy = NULL;
    exchange->headers = NULL;
}

/* Our own servers give every put a tag of its own. Others' are believed once they are old enough. */
static bool tag_holds(const weft_http_answer *answer) {
    return answer->weft || answer->date < 0 || answer->modified < 0 ||
           difftime(answer->date, answer->modified) >= SETTLED_SECONDS;
}

/* The server has closed it meanwhile, as it may. Each such failure takes one connection out of those that
 * are kept, so that there is an end to them. */
static bool is_stale(const weft_http_exchange *exchange) {
    long connects = 0;
    CURLcode code = exchange->answer.code;
    curl_easy_getinfo(exchange->easy, CURLINFO_NUM_CONNECTS, &connects);
    if (code == CURLE_SEND_FAIL_REWIND) {
        return true; /* curl has tried another connection by itself, but the bytes were gone */
    }
    return connects == 0 && exchange->answer.status == 0 &&
           (code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING);
}

void weft_http_exchange_finish(weft_http_exchange *exchange, CURLcode code) {
    weft_http_answer *answer = &exchange->answer;
    answer->code = code;
    curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &answer->status);
    curl_easy_getinfo(exchange->easy, CURLINFO_SSL_VERIFYRESULT, &answer->certificate);
    curl_easy_getinfo(exchange->easy, CURLINFO_OS_ERRNO, &answer->system_error);
    answer->stale = is_stale(exchange);
    if (!exchange->steady_tags && !tag_holds(answer)) {
        answer->tag.text[0] = '\0';
    }
    /* A range of which no byte came has not been looked at yet. */
    if (exchange->method == WEFT_HTTP_GET && answer->status == 206 && !range_fits(exchange)) {
        exchange->misranged = true;
    }
}
