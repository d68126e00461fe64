/* SPDX-License-Identifier: Apache-2.0
 *
 * http.c: a store behind an HTTP(S) server. An object is what GET gives for base/key; PUT and DELETE change
 * it. Any server that knows these will do, such as nginx with its WebDAV module.
 *
 * Conditional puts and waiting for versions need a server of ours, since others ignore a condition that
 * they do not know and would overwrite what they should not. Ours says who it is in every answer
 * ("Weft-Server"), and what was last seen is remembered.
 *
 * An operation is one exchange, or several: what fails in passing is tried again after a pause that
 * doubles. A get goes on from the bytes that it has, if the server's tag proves that the object is still
 * the same. A conditional put whose answer was lost may have been carried out: when the next attempt meets
 * a conflict, or there is none, the object is compared with the bytes that were to be put.
 */
#include "backends.h"

#include "../base/context.h"
#include "http_engine.h"
#include "http_fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    BASE_MAX = WEFT_HTTP_URL_MAX - WEFT_STORE_KEY_MAX - 64,
    TRANSFERS_MAX = 1024,
    COMPARE_BYTES = 256 << 10,
    /* An attempt that brought so much was not in vain, and the next one is a first one again. */
    PROGRESS_BYTES = 64 << 10,
};

static const double LONGEST_PAUSE = 30;
static const double SLICE_SECONDS = 0.1;

/* Servers count offsets in signed numbers. */
static const uint64_t LAST_OFFSET = (uint64_t)INT64_MAX - 1;

typedef enum server_kind { SERVER_UNKNOWN, SERVER_PLAIN, SERVER_WEFT } server_kind;

typedef struct http_store {
    weft_context *context; /* for memory only */
    char *base;            /* without a slash at its end */
    weft_http_settings settings;
    unsigned attempts;
    double backoff_seconds;
    weft_http_engine *engine;
    atomic_int kind;
} http_store;

/* One operation, with all its attempts. */
typedef struct effort {
    http_store *store;
    weft_context *context;
    const char *key;
    unsigned failures;     /* in a row, without progress */
    unsigned attempts;     /* in all */
    weft_status cancelled; /* by the caller, between two attempts; else WEFT_OK */
} effort;

/* ---- attempts ---- */

static void begin_exchange(const effort *effort, weft_http_exchange *exchange, weft_http_method method) {
    memset(exchange, 0, sizeof(*exchange));
    exchange->method = method;
    snprintf(exchange->url, sizeof(exchange->url), "%s/%s", effort->store->base, effort->key);
}

/* A refusal or failure may come from a proxy on the way: it does not unmake what the server was seen to be.
 */
static void note_kind(http_store *store, const weft_http_answer *answer) {
    bool success = answer->status >= 200 && answer->status < 300;
    bool refusal = answer->status >= 300 && answer->status < 500;
    if (answer->weft) {
        atomic_store(&store->kind, SERVER_WEFT);
    } else if (success || (refusal && atomic_load(&store->kind) == SERVER_UNKNOWN)) {
        atomic_store(&store->kind, SERVER_PLAIN);
    }
}

static weft_status run_exchange(effort *effort, weft_http_exchange *exchange,
                                const weft_store_put_request *request) {
    effort->attempts++;
    weft_status status = weft_http_engine_run(effort->store->engine, effort->context, exchange, request);
    note_kind(effort->store, &exchange->answer);
    return status;
}

static weft_status fail_exchange(const effort *effort, const weft_http_exchange *exchange) {
    if (effort->cancelled != WEFT_OK) {
        return effort->cancelled;
    }
    return weft_http_fail(effort->context, exchange, &effort->store->settings, effort->attempts);
}

/* Between a half and a whole: many clients of a server that failed must not come back at once. */
static double jitter(void) {
    uint32_t number = 0;
    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != (ssize_t)sizeof(number)) {
        return 1;
    }
    return 0.5 + (double)number / UINT32_MAX / 2;
}

static double pause_seconds(const effort *effort, const weft_http_exchange *exchange) {
    double seconds = effort->store->backoff_seconds;
    for (unsigned i = 1; i < effort->failures && seconds < LONGEST_PAUSE; i++) {
        seconds *= 2;
    }
    seconds *= jitter();
    if (exchange->answer.retry_seconds > seconds) {
        seconds = exchange->answer.retry_seconds;
    }
    return seconds < LONGEST_PAUSE ? seconds : LONGEST_PAUSE;
}

/* In slices, between which the caller may cancel. False if it did, or if the store is closed. */
static bool sleep_in_slices(effort *effort, double seconds) {
    bool awake = true;
    while (seconds > 0 && awake && effort->cancelled == WEFT_OK) {
        double slice = seconds < SLICE_SECONDS ? seconds : SLICE_SECONDS;
        awake = weft_http_engine_sleep(effort->store->engine, slice);
        effort->cancelled = weft_progress_ask(effort->context);
        seconds -= slice;
    }
    return awake && effort->cancelled == WEFT_OK;
}

/* Waits until the next attempt is due. False if there is none. */
static bool wait_for_attempt(effort *effort, const weft_http_exchange *exchange) {
    if (exchange->answer.stale) {
        effort->attempts--;
        return weft_http_engine_sleep(effort->store->engine, 0);
    }
    effort->failures++;
    return effort->failures < effort->store->attempts &&
           sleep_in_slices(effort, pause_seconds(effort, exchange));
}

/* ---- tags ---- */

/* A tag from elsewhere, such as a directory, must not become a line of a request. */
static bool is_entity_tag(const weft_store_tag *tag) {
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

typedef struct header_line {
    char text[WEFT_STORE_TAG_MAX + 32];
} header_line;

static const char *make_line(header_line *line, const char *name, const char *value) {
    snprintf(line->text, sizeof(line->text), "%s: %s", name, value);
    return line->text;
}

/* ---- head ---- */

static weft_status get_object(http_store *store, weft_context *context,
                              const weft_store_get_request *request, weft_store_get_result *result);

/* Where HEAD does not tell the size, the range of a get does. */
static weft_status look_by_get(http_store *store, weft_context *context, const char *key,
                               weft_store_get_result *result) {
    uint8_t byte = 0;
    weft_store_get_request request = {.key = key, .length = 1, .buffer = &byte};
    weft_status status = get_object(store, context, &request, result);
    result->received = 0;
    return status;
}

/* Size and tag. `unless` as in a get. */
static weft_status look(http_store *store, weft_context *context, const char *key,
                        const weft_store_tag *unless, weft_store_get_result *result) {
    effort effort = {.store = store, .context = context, .key = key};
    bool conditional = unless != NULL && is_entity_tag(unless);
    header_line line;
    weft_http_exchange exchange;
    do {
        begin_exchange(&effort, &exchange, WEFT_HTTP_HEAD);
        exchange.conditions[0] = conditional ? make_line(&line, "If-None-Match", unless->text) : NULL;
        weft_status status = run_exchange(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        const weft_http_answer *answer = &exchange.answer;
        memset(result, 0, sizeof(*result));
        if (answer->status == 304 && conditional) {
            result->unchanged = true;
            result->tag = *unless;
            return WEFT_OK;
        }
        if (answer->code == CURLE_OK && answer->status == 200 && !answer->encoded) {
            result->size = answer->length;
            result->tag = answer->tag;
            return answer->has_length ? WEFT_OK : look_by_get(store, context, key, result);
        }
    } while (weft_http_passing(&exchange) && wait_for_attempt(&effort, &exchange));
    return fail_exchange(&effort, &exchange);
}

/* ---- get ---- */

/* A get with what it has so far. */
typedef struct getting {
    const weft_store_get_request *request;
    bool conditional; /* `unless` can be asked for */
    header_line line;
    uint64_t have;      /* bytes in the buffer, all of the object with `tag` */
    uint64_t size;      /* of the object */
    weft_store_tag tag; /* empty: nothing can be kept from one attempt to the next */
    bool unchanged;
    bool beyond; /* there is nothing at the offset */
} getting;

typedef enum verdict { VERDICT_DONE, VERDICT_AGAIN, VERDICT_FAILED } verdict;

static void begin_get(const effort *effort, getting *getting, weft_http_exchange *exchange) {
    const weft_store_get_request *request = getting->request;
    uint64_t most = LAST_OFFSET - request->offset;
    begin_exchange(effort, exchange, WEFT_HTTP_GET);
    exchange->ranged = true;
    exchange->first = request->offset + getting->have;
    exchange->last = request->offset + (request->length - 1 < most ? request->length - 1 : most);
    exchange->buffer = (uint8_t *)request->buffer + getting->have;
    exchange->room = exchange->last - exchange->first + 1;
    if (getting->have > 0) {
        exchange->conditions[0] = make_line(&getting->line, "If-Range", getting->tag.text);
    } else if (getting->conditional) {
        exchange->conditions[0] = make_line(&getting->line, "If-None-Match", request->unless->text);
    }
}

/* The size of the object, as far as the answer tells. */
static bool answer_size(const weft_http_exchange *exchange, uint64_t *size_out) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->status == 206) {
        *size_out = answer->range_size;
        return true;
    }
    *size_out = answer->has_length ? answer->length : exchange->body;
    return answer->has_length || answer->code == CURLE_OK;
}

static verdict start_over(getting *getting) {
    getting->have = 0;
    return VERDICT_AGAIN;
}

/* Bytes came. */
static verdict take_part(getting *getting, const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    const weft_store_get_request *request = getting->request;
    uint64_t size = 0;
    if (!answer_size(exchange, &size)) {
        return exchange->satisfied ? VERDICT_FAILED : start_over(getting);
    }
    if (getting->have > 0 && (strcmp(answer->tag.text, getting->tag.text) != 0 || size != getting->size)) {
        return start_over(getting);
    }
    getting->size = size;
    getting->tag = answer->tag;
    getting->have += exchange->received;
    uint64_t there = size > request->offset ? size - request->offset : 0;
    uint64_t wanted = there < request->length ? there : request->length;
    if (getting->have >= wanted) {
        return VERDICT_DONE;
    }
    return answer->tag.text[0] != '\0' ? VERDICT_AGAIN : start_over(getting);
}

static verdict judge_get(getting *getting, const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    bool sound = !exchange->misranged && !exchange->overrun && !answer->encoded;
    if ((answer->status == 200 || answer->status == 206) && sound) {
        return take_part(getting, exchange);
    }
    if (answer->status == 304 && getting->conditional && getting->have == 0) {
        getting->unchanged = true;
        return VERDICT_DONE;
    }
    if (answer->status == 416) {
        getting->beyond = getting->have == 0;
        return getting->beyond ? VERDICT_DONE : start_over(getting);
    }
    return weft_http_passing(exchange) ? VERDICT_AGAIN : VERDICT_FAILED;
}

static weft_status finish_get(const effort *effort, const getting *getting, weft_store_get_result *result) {
    if (getting->beyond) {
        return look(effort->store, effort->context, effort->key, getting->request->unless, result);
    }
    memset(result, 0, sizeof(*result));
    result->unchanged = getting->unchanged;
    result->tag = getting->unchanged ? *getting->request->unless : getting->tag;
    result->received = getting->have;
    result->size = getting->size;
    return WEFT_OK;
}

/* The offset is below LAST_OFFSET and the length is not 0. */
static weft_status get_object(http_store *store, weft_context *context,
                              const weft_store_get_request *request, weft_store_get_result *result) {
    effort effort = {.store = store, .context = context, .key = request->key};
    getting getting = {.request = request};
    getting.conditional = request->unless != NULL && is_entity_tag(request->unless);
    weft_http_exchange exchange;
    verdict verdict = VERDICT_AGAIN;
    do {
        begin_get(&effort, &getting, &exchange);
        weft_status status = run_exchange(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        verdict = judge_get(&getting, &exchange);
        if (verdict == VERDICT_DONE) {
            return finish_get(&effort, &getting, result);
        }
        if (getting.have > 0 && exchange.received >= PROGRESS_BYTES) {
            effort.failures = 0;
        }
    } while (verdict == VERDICT_AGAIN && wait_for_attempt(&effort, &exchange));
    return fail_exchange(&effort, &exchange);
}

/* ---- put ---- */

/* True in `same_out` if the object holds the bytes of the feed. */
static weft_status compare_part(http_store *store, weft_context *context,
                                const weft_store_put_request *request, uint8_t *buffer, uint64_t offset,
                                weft_store_get_result *result, bool *same_out) {
    weft_store_get_request get = {
        .key = request->key, .offset = offset, .length = COMPARE_BYTES, .buffer = buffer};
    weft_status status = get_object(store, context, &get, result);
    uint8_t *ours = buffer + COMPARE_BYTES;
    uint64_t compared = 0;
    *same_out = status == WEFT_OK;
    size_t count = 1;
    while (status == WEFT_OK && *same_out && compared < result->received && count > 0) {
        status = weft_store_feed_read(context, request, offset + compared, ours,
                                      (size_t)(result->received - compared), &count);
        *same_out = status == WEFT_OK && count > 0 && memcmp(buffer + compared, ours, count) == 0;
        compared += count;
    }
    return status;
}

static weft_status compare_object(http_store *store, weft_context *context,
                                  const weft_store_put_request *request, uint8_t *buffer,
                                  weft_store_tag *tag_out, bool *same_out) {
    uint64_t offset = 0;
    weft_store_get_result result = {.size = 1};
    weft_store_tag tag = {{0}};
    *same_out = true;
    while (*same_out && offset < result.size) {
        weft_status status = compare_part(store, context, request, buffer, offset, &result, same_out);
        if (status != WEFT_OK) {
            *same_out = false;
            return status == WEFT_NOT_FOUND ? WEFT_OK : status;
        }
        *same_out = *same_out && (offset == 0 || strcmp(tag.text, result.tag.text) == 0);
        tag = result.tag;
        offset += result.received;
        if (result.received == 0) {
            break;
        }
    }
    /* The feed must end where the object does. */
    size_t count = 0;
    weft_status status = WEFT_OK;
    if (*same_out) {
        status = weft_store_feed_read(context, request, offset, buffer, 1, &count);
        *same_out = status == WEFT_OK && count == 0;
    }
    *tag_out = tag;
    return status;
}

static weft_status is_there(http_store *store, weft_context *context, const weft_store_put_request *request,
                            weft_store_tag *tag_out, bool *there_out) {
    uint8_t *buffer = weft_allocate(context, (size_t)2 * COMPARE_BYTES);
    if (buffer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = compare_object(store, context, request, buffer, tag_out, there_out);
    weft_release(context, buffer);
    return status;
}

/* Asks who the server is, if nobody knows yet. */
static weft_status learn_kind(http_store *store, weft_context *context, const char *key) {
    effort effort = {.store = store, .context = context, .key = key};
    weft_http_exchange exchange;
    while (atomic_load(&store->kind) == SERVER_UNKNOWN) {
        begin_exchange(&effort, &exchange, WEFT_HTTP_HEAD);
        weft_status status = run_exchange(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        if (atomic_load(&store->kind) == SERVER_UNKNOWN &&
            (!weft_http_passing(&exchange) || !wait_for_attempt(&effort, &exchange))) {
            return fail_exchange(&effort, &exchange);
        }
    }
    return WEFT_OK;
}

static weft_status check_condition(http_store *store, weft_context *context,
                                   const weft_store_put_request *request) {
    if (request->condition == WEFT_STORE_ALWAYS) {
        return WEFT_OK;
    }
    weft_status status = learn_kind(store, context, request->key);
    if (status == WEFT_OK && atomic_load(&store->kind) != SERVER_WEFT) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "the server at %s is not a `weft serve`, and others cannot be trusted to put an "
                         "object on condition",
                         store->base);
    }
    if (status == WEFT_OK && request->condition == WEFT_STORE_IF_SAME && !is_entity_tag(&request->tag)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the tag of the put of %s is not one of this store", request->key);
    }
    return status;
}

static void begin_put(const effort *effort, const weft_store_put_request *request, header_line *line,
                      weft_http_exchange *exchange) {
    begin_exchange(effort, exchange, WEFT_HTTP_PUT);
    exchange->put_size = request->feed.size;
    exchange->fresh = request->condition != WEFT_STORE_ALWAYS;
    if (request->condition == WEFT_STORE_IF_ABSENT) {
        exchange->conditions[0] = make_line(line, "If-None-Match", "*");
    } else if (request->condition == WEFT_STORE_IF_SAME) {
        exchange->conditions[0] = make_line(line, "If-Match", request->tag.text);
    }
}

/* The put did not go through, or so it seems. `doubtful`: an attempt may have been carried out without our
 * hearing of it. */
static weft_status settle_put(const effort *effort, const weft_http_exchange *exchange,
                              const weft_store_put_request *request, bool doubtful,
                              weft_store_tag *tag_out) {
    if (doubtful && request->condition != WEFT_STORE_ALWAYS && effort->cancelled == WEFT_OK) {
        bool there = false;
        weft_store_tag tag;
        weft_status status = is_there(effort->store, effort->context, request, &tag, &there);
        if (status == WEFT_OK && there) {
            *tag_out = tag;
            return WEFT_OK;
        }
        if (status != WEFT_OK && exchange->answer.status == 412) {
            return status;
        }
    }
    return fail_exchange(effort, exchange);
}

/* A server that is no longer ours has taken the put, but hardly heeded its condition. */
static weft_status accept_put(const http_store *store, weft_context *context,
                              const weft_store_put_request *request, const weft_http_answer *answer,
                              weft_store_tag *tag_out) {
    if (request->condition != WEFT_STORE_ALWAYS && !answer->weft) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "the server at %s is no longer a `weft serve`: %s was put there without regard to "
                         "what it replaced",
                         store->base, request->key);
    }
    *tag_out = answer->tag;
    return WEFT_OK;
}

static weft_status put_object(http_store *store, weft_context *context,
                              const weft_store_put_request *request, weft_store_tag *tag_out) {
    weft_status status = check_condition(store, context, request);
    if (status != WEFT_OK) {
        return status;
    }
    effort effort = {.store = store, .context = context, .key = request->key};
    header_line line;
    weft_http_exchange exchange;
    bool doubtful = false;
    do {
        begin_put(&effort, request, &line, &exchange);
        status = run_exchange(&effort, &exchange, request);
        if (status != WEFT_OK) {
            return status;
        }
        const weft_http_answer *answer = &exchange.answer;
        if (answer->code == CURLE_OK && answer->status >= 200 && answer->status < 300) {
            return accept_put(store, context, request, answer, tag_out);
        }
        doubtful = doubtful || !weft_http_unheard(&exchange);
    } while (weft_http_passing(&exchange) && wait_for_attempt(&effort, &exchange));
    return settle_put(&effort, &exchange, request, doubtful, tag_out);
}

/* ---- remove ---- */

static weft_status remove_object(http_store *store, weft_context *context, const char *key) {
    effort effort = {.store = store, .context = context, .key = key};
    weft_http_exchange exchange;
    do {
        begin_exchange(&effort, &exchange, WEFT_HTTP_DELETE);
        weft_status status = run_exchange(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        const weft_http_answer *answer = &exchange.answer;
        bool removed = answer->status >= 200 && answer->status < 300 && answer->code == CURLE_OK;
        if (removed || answer->status == 404 || answer->status == 410) {
            return WEFT_OK;
        }
    } while (weft_http_passing(&exchange) && wait_for_attempt(&effort, &exchange));
    return fail_exchange(&effort, &exchange);
}

/* ---- watch ---- */

static weft_status cannot_watch(const effort *effort) {
    return weft_fail(effort->context, WEFT_UNSUPPORTED,
                     "the server at %s is not a `weft serve` and cannot wait for a version; poll it",
                     effort->store->base);
}

static weft_status finish_watch(const effort *effort, const weft_http_exchange *exchange,
                                size_t *received_out) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->code == CURLE_OK && answer->status == 204) {
        return WEFT_MORE;
    }
    if (answer->code == CURLE_OK && answer->status == 200 && !answer->encoded) {
        *received_out = (size_t)exchange->received;
        return WEFT_OK;
    }
    if (exchange->satisfied) {
        return weft_fail(effort->context, WEFT_LIMIT_EXCEEDED, "%s: the head is longer than %llu bytes",
                         exchange->url, (unsigned long long)exchange->room);
    }
    return fail_exchange(effort, exchange);
}

static weft_status watch_server(http_store *store, weft_context *context, uint64_t after, double seconds,
                                void *buffer, size_t capacity, size_t *received_out) {
    /* No longer than the server would think sane; the caller asks again. */
    uint64_t milliseconds = (uint64_t)((seconds < 3600 ? seconds : 3600) * 1000);
    char path[128];
    snprintf(path, sizeof(path), "v1/watch?after=%llu&seconds=%llu.%03llu", (unsigned long long)after,
             (unsigned long long)(milliseconds / 1000), (unsigned long long)(milliseconds % 1000));
    effort effort = {.store = store, .context = context, .key = path};
    weft_http_exchange exchange;
    do {
        if (atomic_load(&store->kind) == SERVER_PLAIN) {
            return cannot_watch(&effort);
        }
        begin_exchange(&effort, &exchange, WEFT_HTTP_GET);
        exchange.buffer = buffer;
        exchange.room = capacity;
        /* Also with nothing to wait for, so that it does not queue behind transfers. */
        exchange.wait_seconds = (double)milliseconds / 1000 + 0.001;
        weft_status status = run_exchange(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
    } while (weft_http_passing(&exchange) && wait_for_attempt(&effort, &exchange));
    bool refused = exchange.answer.status == 401 || exchange.answer.status == 403;
    if (exchange.answer.status > 0 && !exchange.answer.weft && !refused && !weft_http_passing(&exchange)) {
        return cannot_watch(&effort);
    }
    return finish_watch(&effort, &exchange, received_out);
}

/* ---- the table ---- */

static weft_status http_get(void *self, weft_context *context, const weft_store_get_request *request,
                            weft_store_get_result *result_out) {
    http_store *store = self;
    weft_store_get_result result;
    weft_http_engine_enter(store->engine);
    weft_status status = request->length == 0 || request->offset > LAST_OFFSET
                             ? look(store, context, request->key, request->unless, &result)
                             : get_object(store, context, request, &result);
    weft_http_engine_leave(store->engine);
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}

static weft_status http_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                             weft_store_tag *tag_out) {
    http_store *store = self;
    weft_store_get_result result;
    weft_http_engine_enter(store->engine);
    weft_status status = look(store, context, key, NULL, &result);
    weft_http_engine_leave(store->engine);
    if (status == WEFT_OK) {
        *size_out = result.size;
        *tag_out = result.tag;
    }
    return status;
}

static weft_status http_put(void *self, weft_context *context, const weft_store_put_request *request,
                            weft_store_tag *tag_out) {
    http_store *store = self;
    weft_http_engine_enter(store->engine);
    weft_status status = put_object(store, context, request, tag_out);
    weft_http_engine_leave(store->engine);
    return status;
}

static weft_status http_remove(void *self, weft_context *context, const char *key) {
    http_store *store = self;
    weft_http_engine_enter(store->engine);
    weft_status status = remove_object(store, context, key);
    weft_http_engine_leave(store->engine);
    return status;
}

static weft_status http_watch(void *self, weft_context *context, uint64_t after, double seconds,
                              void *buffer, size_t capacity, size_t *received_out) {
    http_store *store = self;
    weft_http_engine_enter(store->engine);
    weft_status status = watch_server(store, context, after, seconds, buffer, capacity, received_out);
    weft_http_engine_leave(store->engine);
    return status;
}

static bool http_conditional(void *self) {
    http_store *store = self;
    return atomic_load(&store->kind) == SERVER_WEFT;
}

static void http_close(void *self) {
    http_store *store = self;
    weft_context *context = store->context;
    if (store->engine != NULL) {
        weft_http_engine_destroy(store->engine);
    }
    if (store->settings.authorization != NULL) {
        explicit_bzero(store->settings.authorization, strlen(store->settings.authorization));
    }
    weft_release(context, store->settings.authorization);
    weft_release(context, store->settings.ca_file);
    weft_release(context, store->base);
    weft_release(context, store);
}

const weft_store_operations weft_http_operations = {
    .name = "http",
    .conditional = http_conditional,
    .get = http_get,
    .put = http_put,
    .head = http_head,
    .remove = http_remove,
    .watch = http_watch,
    .close = http_close,
};

/* ---- opening ---- */

static bool has_part(CURLU *url, CURLUPart part) {
    char *text = NULL;
    bool there = curl_url_get(url, part, &text, 0) == CURLUE_OK;
    curl_free(text);
    return there;
}

/* Texts of ours quote URLs: a password in one would soon stand in a log. Hence this one quotes nothing. */
static weft_status check_parts(weft_context *context, CURLU *parsed, const char *url) {
    CURLUcode code = curl_url_set(parsed, CURLUPART_URL, url, 0);
    if (code == CURLUE_OK && (has_part(parsed, CURLUPART_USER) || has_part(parsed, CURLUPART_PASSWORD))) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the store's URL has a user or password in it, which would end up in logs; give a "
                         "token with --token-file or WEFT_TOKEN instead");
    }
    if (code != CURLUE_OK) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the store's URL is not one: %s",
                         curl_url_strerror(code));
    }
    if (has_part(parsed, CURLUPART_QUERY) || has_part(parsed, CURLUPART_FRAGMENT)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the store's URL must end with its path, without \"?\" or \"#\"");
    }
    return WEFT_OK;
}

static weft_status check_url(weft_context *context, const char *url) {
    if (strlen(url) > BASE_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the store's URL is longer than %d bytes",
                         BASE_MAX);
    }
    CURLU *parsed = curl_url();
    if (parsed == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "out of memory for a URL");
    }
    weft_status status = check_parts(context, parsed, url);
    curl_url_cleanup(parsed);
    return status;
}

static weft_status check_options(weft_context *context, const weft_store_options *options) {
    if (options->token != NULL) {
        for (const char *byte = options->token; *byte != '\0'; byte++) {
            if (*byte <= 0x20 || *byte == 0x7f) {
                return weft_fail(context, WEFT_INVALID_ARGUMENT,
                                 "the token has spaces, line ends or other bytes that no token has");
            }
        }
        if (*options->token == '\0') {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "the token is empty");
        }
    }
    if (options->ca_file != NULL && access(options->ca_file, R_OK) != 0) {
        return weft_fail_errno(context, errno, "cannot read the certificates of %s", options->ca_file);
    }
    return WEFT_OK;
}

static double or_default(double value, double otherwise) {
    return value > 0 ? value : otherwise;
}

static weft_status copy_options(http_store *store, const weft_store_options *options) {
    weft_context *context = store->context;
    store->settings.connect_seconds = or_default(options->connect_seconds, 10);
    store->settings.stall_seconds = or_default(options->stall_seconds, 20);
    store->backoff_seconds = or_default(options->backoff_seconds, 0.1);
    store->attempts = options->attempts > 0 ? options->attempts : 5;
    if (options->token != NULL) {
        static const char prefix[] = "Authorization: Bearer ";
        size_t size = sizeof(prefix) + strlen(options->token);
        store->settings.authorization = weft_allocate(context, size);
        if (store->settings.authorization == NULL) {
            return WEFT_NO_MEMORY;
        }
        snprintf(store->settings.authorization, size, "%s%s", prefix, options->token);
    }
    if (options->ca_file != NULL) {
        store->settings.ca_file = weft_copy_text(context, options->ca_file, strlen(options->ca_file));
        if (store->settings.ca_file == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

static weft_status fill_store(http_store *store, const char *url, const weft_store_options *options) {
    size_t length = strlen(url);
    while (length > 0 && url[length - 1] == '/') {
        length--;
    }
    store->base = weft_copy_text(store->context, url, length);
    weft_status status = store->base != NULL ? copy_options(store, options) : WEFT_NO_MEMORY;
    if (status != WEFT_OK) {
        return status;
    }
    unsigned transfers = options->transfers > 0 ? options->transfers : 8;
    return weft_http_engine_create(store->context, &store->settings,
                                   transfers < TRANSFERS_MAX ? transfers : TRANSFERS_MAX, &store->engine);
}

weft_status weft_http_open(weft_context *context, const char *url, const weft_store_options *options,
                           void **self_out) {
    weft_status status = check_url(context, url);
    if (status == WEFT_OK) {
        status = check_options(context, options);
    }
    if (status != WEFT_OK) {
        return status;
    }
    http_store *store = weft_allocate_zeroed(context, 1, sizeof(*store));
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    store->context = context;
    atomic_init(&store->kind, SERVER_UNKNOWN);
    status = fill_store(store, url, options);
    if (status != WEFT_OK) {
        http_close(store);
        return status;
    }
    *self_out = store;
    return WEFT_OK;
}
