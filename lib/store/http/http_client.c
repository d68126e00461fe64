/* SPDX-License-Identifier: Apache-2.0
 *
 * http_client.c: operations of a store behind HTTP, as one exchange or several.
 *
 * What fails in passing is tried again after a pause that doubles. A get goes on from the bytes that it
 * has, if the server's tag proves that the object is still the same.
 */
#include "http_client.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../table/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    TRANSFERS_MAX = 1024,
    COMPARE_BYTES = 256 << 10,
    /* An attempt that brought so much was not in vain, and the next one is a first one again. */
    PROGRESS_BYTES = 64 << 10,
};

static const double LONGEST_PAUSE = 30;
static const double SLICE_SECONDS = 0.1;

/* Servers count offsets in signed numbers. */
static const uint64_t LAST_OFFSET = (uint64_t)INT64_MAX - 1;

/* ---- attempts ---- */

void weft_http_effort_begin(const weft_http_effort *effort, weft_http_exchange *exchange,
                            weft_http_method method) {
    memset(exchange, 0, sizeof(*exchange));
    exchange->method = method;
    snprintf(exchange->url, sizeof(exchange->url), "%s/%s", effort->client->base, effort->key);
}

weft_status weft_http_effort_run(weft_http_effort *effort, weft_http_exchange *exchange,
                                 const weft_store_put_request *request) {
    effort->attempts++;
    weft_status status = weft_http_engine_run(effort->client->engine, effort->context, exchange, request);
    effort->client->dialect->note(effort->client, exchange);
    return status;
}

weft_status weft_http_effort_fail(const weft_http_effort *effort, const weft_http_exchange *exchange) {
    if (effort->cancelled != WEFT_OK) {
        return effort->cancelled;
    }
    return effort->client->dialect->fail(effort->context, exchange, &effort->client->settings,
                                         effort->attempts);
}

static double pause_seconds(const weft_http_effort *effort, const weft_http_exchange *exchange) {
    double seconds = weft_clock_backoff(effort->client->backoff_seconds, LONGEST_PAUSE, effort->failures) *
                     weft_clock_jitter();
    if (exchange->answer.retry_seconds > seconds) {
        seconds = exchange->answer.retry_seconds;
    }
    return seconds < LONGEST_PAUSE ? seconds : LONGEST_PAUSE;
}

/* In slices, between which the caller may cancel. False if it did, or if the store is closed. */
static bool sleep_in_slices(weft_http_effort *effort, double seconds) {
    bool awake = true;
    while (seconds > 0 && awake && effort->cancelled == WEFT_OK) {
        double slice = seconds < SLICE_SECONDS ? seconds : SLICE_SECONDS;
        awake = weft_http_engine_sleep(effort->client->engine, slice);
        effort->cancelled = weft_progress_ask(effort->context);
        seconds -= slice;
    }
    return awake && effort->cancelled == WEFT_OK;
}

bool weft_http_effort_retry(weft_http_effort *effort, const weft_http_exchange *exchange) {
    if (exchange->answer.stale) {
        effort->attempts--;
        return weft_http_engine_sleep(effort->client->engine, 0);
    }
    effort->failures++;
    return effort->failures < effort->client->attempts &&
           sleep_in_slices(effort, pause_seconds(effort, exchange));
}

bool weft_http_effort_again(weft_http_effort *effort, const weft_http_exchange *exchange) {
    return effort->client->dialect->passing(exchange) && weft_http_effort_retry(effort, exchange);
}

bool weft_http_succeeded(const weft_http_answer *answer) {
    return answer->code == CURLE_OK && answer->status >= 200 && answer->status < 300;
}

/* ---- tags ---- */

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

static const char *make_line(weft_http_line *line, const char *name, const char *value) {
    snprintf(line->text, sizeof(line->text), "%s: %s", name, value);
    return line->text;
}

const char *weft_http_condition_line(const weft_store_put_request *request, weft_http_line *line) {
    switch (request->condition) {
    case WEFT_STORE_IF_ABSENT:
        return make_line(line, "If-None-Match", "*");
    case WEFT_STORE_IF_SAME:
        return make_line(line, "If-Match", request->tag.text);
    default:
        return NULL;
    }
}

/* ---- head ---- */

static weft_status get_object(weft_http_client *client, weft_context *context,
                              const weft_store_get_request *request, weft_store_get_result *result);

/* Where HEAD does not tell the size, the range of a get does. */
static weft_status look_by_get(weft_http_client *client, weft_context *context, const char *key,
                               weft_store_get_result *result) {
    uint8_t byte = 0;
    weft_store_get_request request = {.key = key, .length = 1, .buffer = &byte};
    weft_status status = get_object(client, context, &request, result);
    result->received = 0;
    return status;
}

static bool asks_why(weft_http_client *client, const weft_http_answer *answer) {
    return answer->status >= 300 && client->dialect->asks_why != NULL &&
           client->dialect->asks_why(client, answer);
}

weft_status weft_http_look(weft_http_client *client, weft_context *context, const char *key,
                           const weft_store_tag *unless, weft_store_get_result *result) {
    weft_http_effort effort = {.client = client, .context = context, .key = key};
    bool conditional = unless != NULL && weft_http_tag_valid(unless);
    weft_http_line line;
    weft_http_exchange exchange;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_HEAD);
        exchange.conditions[0] = conditional ? make_line(&line, "If-None-Match", unless->text) : NULL;
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
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
            return answer->has_length ? WEFT_OK : look_by_get(client, context, key, result);
        }
    } while (weft_http_effort_again(&effort, &exchange));
    if (effort.cancelled == WEFT_OK && asks_why(client, &exchange.answer)) {
        return look_by_get(client, context, key, result);
    }
    return weft_http_effort_fail(&effort, &exchange);
}

/* ---- age ---- */

/* Both dates are whole seconds of the server's clock: the difference can be almost one too many. */
static weft_status compute_age(const weft_http_effort *effort, const weft_http_answer *answer,
                               double *seconds_out) {
    if (answer->date < 0 || answer->modified < 0) {
        return weft_fail(effort->context, WEFT_UNSUPPORTED,
                         "the server at %s does not tell how old %s is: its answer has no %s",
                         effort->client->base, effort->key, answer->date < 0 ? "Date" : "Last-Modified");
    }
    double seconds = difftime(answer->date, answer->modified) - 1;
    *seconds_out = seconds > 0 ? seconds : 0;
    return WEFT_OK;
}

static weft_status find_age(weft_http_client *client, weft_context *context, const char *key,
                            double *seconds_out) {
    weft_http_effort effort = {.client = client, .context = context, .key = key};
    weft_http_exchange exchange;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_HEAD);
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        if (exchange.answer.code == CURLE_OK && exchange.answer.status == 200) {
            return compute_age(&effort, &exchange.answer, seconds_out);
        }
    } while (weft_http_effort_again(&effort, &exchange));
    weft_store_get_result result;
    weft_status status = effort.cancelled == WEFT_OK && asks_why(client, &exchange.answer)
                             ? look_by_get(client, context, key, &result)
                             : WEFT_OK;
    return status != WEFT_OK ? status : weft_http_effort_fail(&effort, &exchange);
}

/* ---- get ---- */

/* A get with what it has so far. */
typedef struct getting {
    const weft_store_get_request *request;
    bool conditional; /* `unless` can be asked for */
    weft_http_line line;
    uint64_t have;      /* bytes in the buffer, all of the object with `tag` */
    uint64_t size;      /* of the object */
    weft_store_tag tag; /* empty: nothing can be kept from one attempt to the next */
    bool unchanged;
    bool beyond; /* there is nothing at the offset */
} getting;

typedef enum verdict { VERDICT_DONE, VERDICT_AGAIN, VERDICT_FAILED } verdict;

static void begin_get(const weft_http_effort *effort, getting *getting, weft_http_exchange *exchange) {
    const weft_store_get_request *request = getting->request;
    uint64_t most = LAST_OFFSET - request->offset;
    weft_http_effort_begin(effort, exchange, WEFT_HTTP_GET);
    exchange->ranged = true;
    exchange->first = request->offset + getting->have;
    exchange->last = request->offset + (request->length - 1 < most ? request->length - 1 : most);
    exchange->buffer = (uint8_t *)request->buffer + getting->have;
    exchange->room = exchange->last - exchange->first + 1;
    exchange->arrived = request->arrived;
    exchange->arrived_opaque = request->opaque;
    exchange->arrived_before = getting->have;
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

static verdict judge_get(const weft_http_effort *effort, getting *getting,
                         const weft_http_exchange *exchange) {
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
    return effort->client->dialect->passing(exchange) ? VERDICT_AGAIN : VERDICT_FAILED;
}

static weft_status finish_get(const weft_http_effort *effort, const getting *getting,
                              weft_store_get_result *result) {
    if (getting->beyond) {
        return weft_http_look(effort->client, effort->context, effort->key, getting->request->unless,
                              result);
    }
    memset(result, 0, sizeof(*result));
    result->unchanged = getting->unchanged;
    result->tag = getting->unchanged ? *getting->request->unless : getting->tag;
    result->received = getting->have;
    result->size = getting->size;
    return WEFT_OK;
}

/* The offset is below LAST_OFFSET and the length is not 0. */
static weft_status get_object(weft_http_client *client, weft_context *context,
                              const weft_store_get_request *request, weft_store_get_result *result) {
    weft_http_effort effort = {.client = client, .context = context, .key = request->key};
    getting getting = {.request = request};
    getting.conditional = request->unless != NULL && weft_http_tag_valid(request->unless);
    weft_http_exchange exchange;
    verdict verdict = VERDICT_AGAIN;
    do {
        begin_get(&effort, &getting, &exchange);
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        verdict = judge_get(&effort, &getting, &exchange);
        if (verdict == VERDICT_DONE) {
            return finish_get(&effort, &getting, result);
        }
        if (getting.have > 0 && exchange.received >= PROGRESS_BYTES) {
            effort.failures = 0;
        }
    } while (verdict == VERDICT_AGAIN && weft_http_effort_retry(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

static weft_status get_or_look(weft_http_client *client, weft_context *context,
                               const weft_store_get_request *request, weft_store_get_result *result) {
    return request->length == 0 || request->offset > LAST_OFFSET
               ? weft_http_look(client, context, request->key, request->unless, result)
               : get_object(client, context, request, result);
}

/* ---- what is there ---- */

/* True in `same_out` if the object holds the bytes of the feed. */
static weft_status compare_part(weft_http_client *client, weft_context *context,
                                const weft_store_put_request *request, uint8_t *buffer, uint64_t offset,
                                weft_store_get_result *result, bool *same_out) {
    weft_store_get_request get = {
        .key = request->key, .offset = offset, .length = COMPARE_BYTES, .buffer = buffer};
    weft_status status = get_object(client, context, &get, result);
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

static weft_status compare_object(weft_http_client *client, weft_context *context,
                                  const weft_store_put_request *request, uint8_t *buffer,
                                  weft_store_tag *tag_out, bool *same_out) {
    uint64_t offset = 0;
    weft_store_get_result result = {.size = 1};
    weft_store_tag tag = {{0}};
    *same_out = true;
    while (*same_out && offset < result.size) {
        weft_status status = compare_part(client, context, request, buffer, offset, &result, same_out);
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

weft_status weft_http_is_there(weft_http_client *client, weft_context *context,
                               const weft_store_put_request *request, weft_store_tag *tag_out,
                               bool *there_out) {
    uint8_t *buffer = weft_allocate(context, (size_t)2 * COMPARE_BYTES);
    if (buffer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = compare_object(client, context, request, buffer, tag_out, there_out);
    weft_release(context, buffer);
    return status;
}

/* ---- remove ---- */

static weft_status remove_object(weft_http_client *client, weft_context *context, const char *key) {
    weft_http_effort effort = {.client = client, .context = context, .key = key};
    weft_http_exchange exchange;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_DELETE);
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        const weft_http_answer *answer = &exchange.answer;
        bool removed = answer->status >= 200 && answer->status < 300 && answer->code == CURLE_OK;
        if (removed || answer->status == 404 || answer->status == 410) {
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

/* ---- for a table of operations ---- */

weft_status weft_http_table_get(void *self, weft_context *context, const weft_store_get_request *request,
                                weft_store_get_result *result_out) {
    weft_http_client *client = self;
    weft_store_get_result result;
    weft_http_engine_enter(client->engine);
    weft_status status = get_or_look(client, context, request, &result);
    weft_http_engine_leave(client->engine);
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}

weft_status weft_http_table_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                                 weft_store_tag *tag_out) {
    weft_http_client *client = self;
    weft_store_get_result result;
    weft_http_engine_enter(client->engine);
    weft_status status = weft_http_look(client, context, key, NULL, &result);
    weft_http_engine_leave(client->engine);
    if (status == WEFT_OK) {
        *size_out = result.size;
        *tag_out = result.tag;
    }
    return status;
}

weft_status weft_http_table_age(void *self, weft_context *context, const char *key, double *seconds_out) {
    weft_http_client *client = self;
    weft_http_engine_enter(client->engine);
    weft_status status = find_age(client, context, key, seconds_out);
    weft_http_engine_leave(client->engine);
    return status;
}

weft_status weft_http_table_remove(void *self, weft_context *context, const char *key) {
    weft_http_client *client = self;
    weft_http_engine_enter(client->engine);
    weft_status status = remove_object(client, context, key);
    weft_http_engine_leave(client->engine);
    return status;
}

/* ---- opening ---- */

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

static weft_status copy_options(weft_http_client *client, const weft_store_options *options) {
    weft_context *context = client->context;
    client->settings.connect_seconds = or_default(options->connect_seconds, 10);
    client->settings.stall_seconds = or_default(options->stall_seconds, 20);
    client->backoff_seconds = or_default(options->backoff_seconds, 0.1);
    client->attempts = options->attempts > 0 ? options->attempts : 5;
    if (options->token != NULL) {
        static const char prefix[] = "Authorization: Bearer ";
        size_t size = sizeof(prefix) + strlen(options->token);
        client->settings.authorization = weft_allocate(context, size);
        if (client->settings.authorization == NULL) {
            return WEFT_NO_MEMORY;
        }
        snprintf(client->settings.authorization, size, "%s%s", prefix, options->token);
    }
    if (options->ca_file != NULL) {
        client->settings.ca_file = weft_copy_text(context, options->ca_file, strlen(options->ca_file));
        if (client->settings.ca_file == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

weft_status weft_http_client_open(weft_http_client *client, weft_context *context, const char *base,
                                  const weft_store_options *options, const weft_http_dialect *dialect) {
    client->context = context;
    client->dialect = dialect;
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/') {
        length--;
    }
    weft_status status = check_options(context, options);
    if (status != WEFT_OK) {
        return status;
    }
    client->base = weft_copy_text(context, base, length);
    status = client->base != NULL ? copy_options(client, options) : WEFT_NO_MEMORY;
    if (status != WEFT_OK) {
        return status;
    }
    unsigned transfers = options->transfers > 0 ? options->transfers : 8;
    return weft_http_engine_create(context, &client->settings,
                                   transfers < TRANSFERS_MAX ? transfers : TRANSFERS_MAX, &client->engine);
}

void weft_http_client_close(weft_http_client *client) {
    weft_context *context = client->context;
    if (client->engine != NULL) {
        weft_http_engine_destroy(client->engine);
    }
    if (client->settings.authorization != NULL) {
        explicit_bzero(client->settings.authorization, strlen(client->settings.authorization));
    }
    weft_release(context, client->settings.authorization);
    weft_release(context, client->settings.ca_file);
    weft_release(context, client->base);
}
