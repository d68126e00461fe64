/* SPDX-License-Identifier: Apache-2.0
 *
 * http_client.c: operations of a store behind HTTP, each an effort of one exchange or several.
 *
 * After a failure that passes, the exchange is tried again with a backoff. A get resumes after the bytes
 * that it has, if the server's tag proves that the object is still the same.
 */
#include "http_client.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../table/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TRANSFERS_MAX = 1024,
    COMPARE_BYTES = 256 << 10,
    /* After an attempt that brought so much, failures are counted from the beginning again. */
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
    if (exchange->answer.date >= 0) {
        atomic_store(&effort->client->ahead_seconds, (long long)(exchange->answer.date - time(NULL)));
        atomic_store(&effort->client->dated, true);
    }
    return status;
}

weft_status weft_http_effort_fail(const weft_http_effort *effort, const weft_http_exchange *exchange) {
    if (effort->cancelled != WEFT_OK) {
        return effort->cancelled;
    }
    return effort->client->dialect->fail(effort->context, exchange, &effort->client->settings,
                                         effort->attempts);
}

bool weft_http_effort_retry(weft_http_effort *effort, const weft_http_exchange *exchange) {
    if (exchange->answer.stale) {
        effort->attempts--;
        return weft_http_engine_sleep(effort->client->engine, 0);
    }
    effort->failures++;
    if (effort->failures >= effort->client->attempts) {
        return false;
    }
    double seconds = weft_clock_backoff(effort->client->backoff_seconds, LONGEST_PAUSE, effort->failures) *
                     weft_clock_jitter();
    seconds = exchange->answer.retry_seconds > seconds ? exchange->answer.retry_seconds : seconds;
    seconds = seconds < LONGEST_PAUSE ? seconds : LONGEST_PAUSE;
    /* in slices, between which the caller may cancel and the store may be closed */
    bool open = true;
    while (seconds > 0 && open && effort->cancelled == WEFT_OK) {
        double slice = seconds < SLICE_SECONDS ? seconds : SLICE_SECONDS;
        open = weft_http_engine_sleep(effort->client->engine, slice);
        effort->cancelled = weft_progress_ask(effort->context);
        seconds -= slice;
    }
    return open && effort->cancelled == WEFT_OK;
}

bool weft_http_effort_again(weft_http_effort *effort, const weft_http_exchange *exchange) {
    return effort->client->dialect->passing(effort->client, exchange) &&
           weft_http_effort_retry(effort, exchange);
}

bool weft_http_succeeded(const weft_http_answer *answer) {
    return answer->code == CURLE_OK && answer->status >= 200 && answer->status < 300;
}

/* ---- tags ---- */

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

/* A get of one byte tells what HEAD did not: the size, or in its body why it was refused. */
static weft_status head_by_get(weft_http_client *client, weft_context *context, const char *key,
                               weft_store_get_result *result) {
    uint8_t byte = 0;
    weft_store_get_request request = {.size = sizeof request, .key = key, .length = 1, .buffer = &byte};
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
            result->object_bytes = answer->length;
            result->tag = answer->tag;
            return answer->has_length ? WEFT_OK : head_by_get(client, context, key, result);
        }
    } while (weft_http_effort_again(&effort, &exchange));
    if (effort.cancelled == WEFT_OK && asks_why(client, &exchange.answer)) {
        return head_by_get(client, context, key, result);
    }
    return weft_http_effort_fail(&effort, &exchange);
}

/* ---- age ---- */

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
        const weft_http_answer *answer = &exchange.answer;
        if (answer->code == CURLE_OK && answer->status == 200 &&
            (answer->date < 0 || answer->modified < 0)) {
            return weft_fail(context, WEFT_UNSUPPORTED,
                             "the server at %s does not tell how old %s is: its answer has no %s",
                             client->base, key, answer->date < 0 ? "Date" : "Last-Modified");
        }
        if (answer->code == CURLE_OK && answer->status == 200) {
            /* whole seconds of the server's clock: the difference can be almost one too many */
            double seconds = difftime(answer->date, answer->modified) - 1;
            *seconds_out = seconds > 0 ? seconds : 0;
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    weft_store_get_result result = {.size = sizeof result};
    weft_status status = effort.cancelled == WEFT_OK && asks_why(client, &exchange.answer)
                             ? head_by_get(client, context, key, &result)
                             : WEFT_OK;
    return status != WEFT_OK ? status : weft_http_effort_fail(&effort, &exchange);
}

/* ---- get ---- */

/* A get, and what it has so far. */
typedef struct get_state {
    const weft_store_get_request *request;
    bool conditional; /* `unless` can be asked for */
    weft_http_line line;
    uint64_t have;      /* bytes in the buffer, all of the object with `tag` */
    uint64_t size;      /* of the object */
    weft_store_tag tag; /* empty: nothing can be kept from one attempt to the next */
    bool unchanged;
    bool beyond; /* there is nothing at the offset */
} get_state;

typedef enum verdict { VERDICT_DONE, VERDICT_AGAIN, VERDICT_FAILED } verdict;

static void begin_get(const weft_http_effort *effort, get_state *get_state, weft_http_exchange *exchange) {
    const weft_store_get_request *request = get_state->request;
    uint64_t most = LAST_OFFSET - request->offset;
    weft_http_effort_begin(effort, exchange, WEFT_HTTP_GET);
    exchange->ranged = true;
    exchange->first = request->offset + get_state->have;
    exchange->last = request->offset + (request->length - 1 < most ? request->length - 1 : most);
    exchange->buffer = (uint8_t *)request->buffer + get_state->have;
    exchange->room = exchange->last - exchange->first + 1;
    exchange->arrived = request->arrived;
    exchange->arrived_opaque = request->opaque;
    exchange->arrived_before = get_state->have;
    if (get_state->have > 0) {
        exchange->conditions[0] = make_line(&get_state->line, "If-Range", get_state->tag.text);
    } else if (get_state->conditional) {
        exchange->conditions[0] = make_line(&get_state->line, "If-None-Match", request->unless->text);
    }
}

/* False if the answer does not tell the size of the object. */
static bool answer_size(const weft_http_exchange *exchange, uint64_t *size_out) {
    const weft_http_answer *answer = &exchange->answer;
    if (answer->status == 206) {
        *size_out = answer->range_size;
        return true;
    }
    *size_out = answer->has_length ? answer->length : exchange->body;
    return answer->has_length || answer->code == CURLE_OK;
}

static verdict start_over(get_state *get_state) {
    get_state->have = 0;
    return VERDICT_AGAIN;
}

/* Adds the bytes of an answer to the get, if they belong to the same object. */
static verdict judge_part(get_state *get_state, const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    const weft_store_get_request *request = get_state->request;
    uint64_t size = 0;
    if (!answer_size(exchange, &size)) {
        return exchange->satisfied ? VERDICT_FAILED : start_over(get_state);
    }
    if (get_state->have > 0 &&
        (strcmp(answer->tag.text, get_state->tag.text) != 0 || size != get_state->size)) {
        return start_over(get_state);
    }
    get_state->size = size;
    get_state->tag = answer->tag;
    get_state->have += exchange->received;
    uint64_t there = size > request->offset ? size - request->offset : 0;
    uint64_t wanted = there < request->length ? there : request->length;
    if (get_state->have >= wanted) {
        return VERDICT_DONE;
    }
    return answer->tag.text[0] != '\0' ? VERDICT_AGAIN : start_over(get_state);
}

static verdict judge_get(const weft_http_effort *effort, get_state *get_state,
                         const weft_http_exchange *exchange) {
    const weft_http_answer *answer = &exchange->answer;
    bool sound = !exchange->misranged && !exchange->overrun && !answer->encoded;
    if ((answer->status == 200 || answer->status == 206) && sound) {
        return judge_part(get_state, exchange);
    }
    if (answer->status == 304 && get_state->conditional && get_state->have == 0) {
        get_state->unchanged = true;
        return VERDICT_DONE;
    }
    if (answer->status == 416) {
        get_state->beyond = get_state->have == 0;
        return get_state->beyond ? VERDICT_DONE : start_over(get_state);
    }
    return effort->client->dialect->passing(effort->client, exchange) ? VERDICT_AGAIN : VERDICT_FAILED;
}

/* The offset is below LAST_OFFSET and the length is not 0. */
static weft_status get_object(weft_http_client *client, weft_context *context,
                              const weft_store_get_request *request, weft_store_get_result *result) {
    weft_http_effort effort = {.client = client, .context = context, .key = request->key};
    get_state get_state = {.request = request};
    get_state.conditional = request->unless != NULL && weft_http_tag_valid(request->unless);
    weft_http_exchange exchange;
    verdict verdict = VERDICT_AGAIN;
    do {
        begin_get(&effort, &get_state, &exchange);
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        verdict = judge_get(&effort, &get_state, &exchange);
        if (verdict == VERDICT_DONE && get_state.beyond) {
            return weft_http_look(client, context, request->key, request->unless, result);
        }
        if (verdict == VERDICT_DONE) {
            memset(result, 0, sizeof(*result));
            result->unchanged = get_state.unchanged;
            result->tag = get_state.unchanged ? *request->unless : get_state.tag;
            result->received = get_state.have;
            result->object_bytes = get_state.size;
            return WEFT_OK;
        }
        if (get_state.have > 0 && exchange.received >= PROGRESS_BYTES) {
            effort.failures = 0;
        }
    } while (verdict == VERDICT_AGAIN && weft_http_effort_retry(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

/* ---- whether a put has happened ---- */

/* True in `same_out` if COMPARE_BYTES of the object at `offset`, or what there is of them, are the feed's.
 */
static weft_status compare_part(weft_http_client *client, weft_context *context,
                                const weft_store_put_request *request, uint8_t *buffer, uint64_t offset,
                                weft_store_get_result *result, bool *same_out) {
    weft_store_get_request get = {.size = sizeof get,
                                  .key = request->key,
                                  .offset = offset,
                                  .length = COMPARE_BYTES,
                                  .buffer = buffer};
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
    weft_store_get_result result = {.size = sizeof result, .object_bytes = 1};
    weft_store_tag tag = {{0}};
    *same_out = true;
    while (*same_out && offset < result.object_bytes) {
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

weft_status weft_http_settle(const weft_http_effort *effort, const weft_http_exchange *exchange,
                             const weft_store_put_request *request, bool doubtful, bool conflict,
                             weft_store_tag *tag_out) {
    if (doubtful && request->condition != WEFT_STORE_ALWAYS && effort->cancelled == WEFT_OK) {
        bool there = false;
        weft_store_tag tag;
        weft_status status = weft_http_is_there(effort->client, effort->context, request, &tag, &there);
        if (status == WEFT_OK && there) {
            *tag_out = tag;
            return WEFT_OK;
        }
        if (status != WEFT_OK && conflict) {
            return status;
        }
    }
    if (conflict && effort->cancelled == WEFT_OK) {
        return weft_fail(effort->context, WEFT_CONFLICT, "PUT %.400s: somebody else wrote there in between",
                         exchange->url);
    }
    return weft_http_effort_fail(effort, exchange);
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
        if (weft_http_succeeded(answer) || answer->status == 404 || answer->status == 410) {
            return WEFT_OK;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_effort_fail(&effort, &exchange);
}

/* ---- for a table of operations ---- */

weft_status weft_http_table_get(void *self, weft_context *context, const weft_store_get_request *request,
                                weft_store_get_result *result_out) {
    weft_http_client *client = self;
    weft_store_get_result result = {.size = sizeof result};
    weft_http_engine_enter(client->engine);
    weft_status status = request->length == 0 || request->offset > LAST_OFFSET
                             ? weft_http_look(client, context, request->key, request->unless, &result)
                             : get_object(client, context, request, &result);
    weft_http_engine_leave(client->engine);
    if (status == WEFT_OK) {
        *result_out = result;
    }
    return status;
}

weft_status weft_http_table_head(void *self, weft_context *context, const char *key, uint64_t *size_out,
                                 weft_store_tag *tag_out) {
    weft_http_client *client = self;
    weft_store_get_result result = {.size = sizeof result};
    weft_http_engine_enter(client->engine);
    weft_status status = weft_http_look(client, context, key, NULL, &result);
    weft_http_engine_leave(client->engine);
    if (status == WEFT_OK) {
        *size_out = result.object_bytes;
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

void weft_http_traits(const weft_http_client *client, weft_store_traits *traits) {
    traits->idle_seconds = WEFT_HTTP_IDLE_SECONDS;
    traits->dated = atomic_load(&client->dated);
    traits->ahead_seconds = (double)atomic_load(&client->ahead_seconds);
}

/* ---- opening ---- */

/* The certificates to trust: the caller's, else those of SSL_CERT_FILE, as other programs heed it, else the
 * system's. libcurl looks for these where they lie on the system that it was built on; a library that was
 * carried to another looks where that has them. NULL: libcurl's own place. */
static const char *find_certificates(const weft_store_options *options) {
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch; libcurl's own where weft is built */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",             /* SUSE */
        "/etc/ssl/cert.pem",                  /* Alpine */
    };
    const char *named = getenv("SSL_CERT_FILE");
    if (options->ca_file != NULL || (named != NULL && *named != '\0')) {
        return options->ca_file != NULL ? options->ca_file : named;
    }
    const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);
    if (curl->age >= CURLVERSION_SEVENTH && curl->cainfo != NULL && access(curl->cainfo, R_OK) == 0) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (access(places[i], R_OK) == 0) {
            return places[i];
        }
    }
    return NULL;
}

static weft_status check_options(weft_context *context, const weft_store_options *options) {
    if (options->token != NULL && options->token_file != NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a token and a file that holds one are given; give one");
    }
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
    if (options->token != NULL || options->token_file != NULL) {
        weft_status status = weft_http_token_open(&client->token, context, options, &client->identity);
        if (status != WEFT_OK) {
            return status;
        }
        client->settings.identity = &client->identity;
    }
    const char *certificates = find_certificates(options);
    if (certificates != NULL) {
        client->settings.ca_file = weft_copy_text(context, certificates, strlen(certificates));
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
    weft_http_token_close(&client->token);
    weft_release(context, client->settings.ca_file);
    weft_release(context, client->base);
}
