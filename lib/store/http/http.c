/* SPDX-License-Identifier: Apache-2.0
 *
 * http.c: a store behind an HTTP(S) server. An object is what GET gives for base/key; PUT and DELETE change
 * it. Any server that knows these will do, such as nginx with its WebDAV module.
 *
 * Conditional puts, waiting for versions and listings need a server of ours, since others ignore a
 * condition that they do not know and would overwrite what they should not. Ours says who it is in every
 * answer ("Weft-Server"), and what was last seen is remembered.
 *
 * A conditional put whose answer was lost may have been carried out: when the next attempt meets a
 * conflict, or there is none, the object is compared with the bytes that were to be put.
 */
#include "http.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../tensor/json.h"
#include "http_client.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { BASE_MAX = WEFT_HTTP_URL_MAX - 2 * WEFT_STORE_KEY_MAX - 64 };
/* of a listing */
enum { LIST_BYTES = 4 << 20, LINE_BYTES = 512, LINE_DEPTH = 1, LINE_CONTAINERS = 1 };

typedef enum server_kind { SERVER_UNKNOWN, SERVER_PLAIN, SERVER_WEFT } server_kind;

/* Where too many wait for a version already: pauses between questions, in seconds. */
static const double CROWDED_FIRST = 0.25;
static const double CROWDED_LONGEST = 8;

typedef struct http_store {
    weft_http_client client;
    atomic_int kind;
    atomic_uint crowded;     /* watches in a row for which the server had no place */
    _Atomic double watch_at; /* after these, when it is asked again */
} http_store;

/* A refusal or failure may come from a proxy on the way: it does not unmake what the server was seen to be.
 */
static void note_kind(weft_http_client *client, const weft_http_exchange *exchange) {
    http_store *store = (http_store *)client;
    const weft_http_answer *answer = &exchange->answer;
    bool success = answer->status >= 200 && answer->status < 300;
    bool refusal = answer->status >= 300 && answer->status < 500;
    if (answer->weft) {
        atomic_store(&store->kind, SERVER_WEFT);
    } else if (success || (refusal && atomic_load(&store->kind) == SERVER_UNKNOWN)) {
        atomic_store(&store->kind, SERVER_PLAIN);
    }
}

static const weft_http_dialect dialect = {
    .note = note_kind,
    .passing = weft_http_passing,
    .fail = weft_http_fail,
};

/* ---- put ---- */

/* Asks who the server is, if nobody knows yet. */
static weft_status learn_kind(http_store *store, weft_context *context, const char *key) {
    weft_http_effort effort = {.client = &store->client, .context = context, .key = key};
    weft_http_exchange exchange;
    while (atomic_load(&store->kind) == SERVER_UNKNOWN) {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_HEAD);
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        if (atomic_load(&store->kind) == SERVER_UNKNOWN && !weft_http_effort_again(&effort, &exchange)) {
            return weft_http_effort_fail(&effort, &exchange);
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
                         store->client.base);
    }
    if (status == WEFT_OK && request->condition == WEFT_STORE_IF_SAME &&
        !weft_http_tag_valid(&request->tag)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the tag of the put of %s is not one of this store", request->key);
    }
    return status;
}

static weft_status put_object(http_store *store, weft_context *context,
                              const weft_store_put_request *request, weft_store_tag *tag_out) {
    weft_status status = check_condition(store, context, request);
    if (status != WEFT_OK) {
        return status;
    }
    weft_http_effort effort = {.client = &store->client, .context = context, .key = request->key};
    weft_http_line line;
    weft_http_exchange exchange;
    bool conditional = request->condition != WEFT_STORE_ALWAYS;
    bool doubtful = false;
    do {
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_PUT);
        exchange.put_size = request->feed.size;
        exchange.fresh = conditional;
        /* What is sent while it is still being made may be small, and is not worth a round trip. A
         * condition is: a put that heard no answer would have to look whether it was carried out. */
        exchange.asks =
            atomic_load(&store->kind) == SERVER_WEFT && (conditional || request->feed.size != UINT64_MAX);
        exchange.conditions[0] = weft_http_condition_line(request, &line);
        status = weft_http_effort_run(&effort, &exchange, request);
        if (status != WEFT_OK) {
            return status;
        }
        const weft_http_answer *answer = &exchange.answer;
        if (weft_http_succeeded(answer) && conditional && !answer->weft) {
            return weft_fail(
                context, WEFT_UNSUPPORTED,
                "the server at %s is no longer a `weft serve`: %s was put there without regard "
                "to what it replaced",
                store->client.base, request->key);
        }
        if (weft_http_succeeded(answer)) {
            *tag_out = answer->tag;
            return WEFT_OK;
        }
        doubtful = doubtful || !weft_http_unheard(&exchange);
    } while (weft_http_effort_again(&effort, &exchange));
    return weft_http_settle(&effort, &exchange, request, doubtful, exchange.answer.status == 412, tag_out);
}

/* ---- watch ---- */

static weft_status cannot_watch(const weft_http_effort *effort) {
    return weft_fail(effort->context, WEFT_UNSUPPORTED,
                     "the server at %s is not a `weft serve` of that place and cannot wait for a version; "
                     "poll it",
                     effort->client->base);
}

static weft_status finish_watch(const weft_http_effort *effort, const weft_http_exchange *exchange,
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
    return weft_http_effort_fail(effort, exchange);
}

/* A server that answers so has nothing newer, and no place for one more who waits. */
static bool is_crowded(const weft_http_exchange *exchange) {
    return exchange->answer.code == CURLE_OK && exchange->answer.weft && exchange->answer.status == 503;
}

/* WEFT_BUSY: it is crowded. */
static weft_status watch_once(http_store *store, weft_context *context, uint64_t after, double seconds,
                              void *buffer, size_t capacity, size_t *received_out) {
    /* No longer than the server would think sane; the caller asks again. */
    uint64_t milliseconds = (uint64_t)((seconds < 3600 ? seconds : 3600) * 1000);
    char path[128];
    snprintf(path, sizeof(path), "v1/watch?after=%llu&seconds=%llu.%03llu", (unsigned long long)after,
             (unsigned long long)(milliseconds / 1000), (unsigned long long)(milliseconds % 1000));
    weft_http_effort effort = {.client = &store->client, .context = context, .key = path};
    weft_http_exchange exchange;
    do {
        if (atomic_load(&store->kind) == SERVER_PLAIN) {
            return cannot_watch(&effort);
        }
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_GET);
        exchange.buffer = buffer;
        exchange.room = capacity;
        /* Also with nothing to wait for, so that it does not queue behind transfers. */
        exchange.wait_seconds = (double)milliseconds / 1000 + 0.001;
        weft_status status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
        if (is_crowded(&exchange)) {
            return WEFT_BUSY;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    long answer = exchange.answer.status;
    bool refused = answer == 401 || answer == 403;
    /* a `weft serve` waits for the store that it serves, and not for one below that */
    bool absent = answer == 404 || (answer > 0 && !exchange.answer.weft && !refused);
    if (absent && !weft_http_passing(&store->client, &exchange)) {
        return cannot_watch(&effort);
    }
    return finish_watch(&effort, &exchange, received_out);
}

static void note_crowd(http_store *store, bool full) {
    unsigned crowded = full ? atomic_load(&store->crowded) + 1 : 0;
    double pause = weft_clock_jitter() * weft_clock_backoff(CROWDED_FIRST, CROWDED_LONGEST, crowded);
    atomic_store(&store->watch_at, weft_clock_now() + pause);
    atomic_store(&store->crowded, crowded);
}

/* Where too many wait, the same question is asked again and again, ever more rarely: it brings a head that
 * is newer, or finds a place. */
static weft_status watch_server(http_store *store, weft_context *context, uint64_t after, double seconds,
                                void *buffer, size_t capacity, size_t *received_out) {
    double end = weft_clock_now() + seconds;
    double left = seconds;
    weft_status status = WEFT_OK;
    do {
        double pause =
            atomic_load(&store->crowded) > 0 ? atomic_load(&store->watch_at) - weft_clock_now() : 0;
        if (pause > 0 && left > 0) {
            status = weft_clock_sleep(context, pause < left ? pause : left);
            if (status != WEFT_OK) {
                return status;
            }
            left = end - weft_clock_now();
            if (left <= 0) {
                return WEFT_MORE;
            }
        }
        status = watch_once(store, context, after, left, buffer, capacity, received_out);
        note_crowd(store, status == WEFT_BUSY);
        left = end - weft_clock_now();
    } while (status == WEFT_BUSY && left > 0);
    return status == WEFT_BUSY ? WEFT_MORE : status;
}

/* ---- list ---- */

static weft_status cannot_list(const weft_http_effort *effort) {
    return weft_fail(effort->context, WEFT_UNSUPPORTED, "the server at %s gives no such listing",
                     effort->client->base);
}

/* {"key":"followers/a","size":700,"age":1.5}; what is not said is 0. Or {"after":"pages/b"}, the last one:
 * there is more from there on. */
static weft_status visit_line(const weft_http_effort *effort, const char *line, size_t size,
                              const char *prefix, weft_store_visit visit, void *opaque,
                              char after[WEFT_STORE_KEY_MAX + 1]) {
    json_t *json;
    weft_status status =
        weft_json_parse(effort->context, "a listing", line, size, LINE_DEPTH, LINE_CONTAINERS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    const char *more = json_string_value(json_object_get(json, "after"));
    const char *key = more != NULL ? more : json_string_value(json_object_get(json, "key"));
    json_int_t bytes = json_integer_value(json_object_get(json, "size"));
    double age = json_number_value(json_object_get(json, "age"));
    size_t length = strlen(prefix);
    bool good = weft_store_key_valid(key) && strncmp(key, prefix, length) == 0 && key[length] == '/';
    if (!good) {
        status = weft_fail(effort->context, WEFT_MALFORMED, "%s: a line of the listing of %s is none",
                           effort->client->base, prefix);
    } else if (more != NULL) {
        snprintf(after, WEFT_STORE_KEY_MAX + 1, "%s", more);
    } else if (!visit(opaque, key, bytes > 0 ? (uint64_t)bytes : 0, age > 0 ? age : 0)) {
        status = WEFT_MORE;
    }
    json_decref(json);
    return status;
}

/* WEFT_MORE: the visitor has seen enough. */
static weft_status visit_lines(const weft_http_effort *effort, const char *text, size_t size,
                               const char *prefix, weft_store_visit visit, void *opaque,
                               char after[WEFT_STORE_KEY_MAX + 1]) {
    weft_status status = WEFT_OK;
    while (size > 0 && status == WEFT_OK) {
        const char *end = memchr(text, '\n', size);
        if (end == NULL || end - text > LINE_BYTES) {
            return weft_fail(effort->context, WEFT_MALFORMED, "%s: the listing of %s breaks off",
                             effort->client->base, prefix);
        }
        status = visit_line(effort, text, (size_t)(end - text), prefix, visit, opaque, after);
        size -= (size_t)(end - text) + 1;
        text = end + 1;
    }
    return status;
}

/* Keys above `after`, which is then the last one if there are more; else "". */
static weft_status list_some(http_store *store, weft_context *context, const char *prefix, char *text,
                             weft_store_visit visit, void *opaque, char after[WEFT_STORE_KEY_MAX + 1]) {
    char path[2 * WEFT_STORE_KEY_MAX + 64];
    snprintf(path, sizeof(path), "v1/list?prefix=%s%s%s", prefix, after[0] != '\0' ? "&after=" : "", after);
    after[0] = '\0';
    weft_http_effort effort = {.client = &store->client, .context = context, .key = path};
    weft_http_exchange exchange;
    weft_status status;
    do {
        if (atomic_load(&store->kind) == SERVER_PLAIN) {
            return cannot_list(&effort);
        }
        weft_http_effort_begin(&effort, &exchange, WEFT_HTTP_GET);
        exchange.buffer = (uint8_t *)text;
        exchange.room = LIST_BYTES;
        status = weft_http_effort_run(&effort, &exchange, NULL);
        if (status != WEFT_OK) {
            return status;
        }
    } while (weft_http_effort_again(&effort, &exchange));
    const weft_http_answer *answer = &exchange.answer;
    bool foreign = weft_http_succeeded(answer) && !answer->weft;
    if (exchange.satisfied && !foreign) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s: the listing is longer than %d bytes",
                         exchange.url, LIST_BYTES);
    }
    if (foreign || answer->status == 403 || answer->status == 404 || answer->status == 405) {
        return cannot_list(&effort);
    }
    if (answer->code != CURLE_OK || answer->status != 200 || answer->encoded) {
        return weft_http_effort_fail(&effort, &exchange);
    }
    return visit_lines(&effort, text, (size_t)exchange.received, prefix, visit, opaque, after);
}

/* In parts, each of which begins behind the one before: a server that goes round in circles is none. */
static weft_status list_server(http_store *store, weft_context *context, const char *prefix, char *text,
                               weft_store_visit visit, void *opaque) {
    char after[WEFT_STORE_KEY_MAX + 1] = "";
    char before[WEFT_STORE_KEY_MAX + 1];
    weft_status status;
    do {
        memcpy(before, after, sizeof before);
        status = list_some(store, context, prefix, text, visit, opaque, after);
        if (status == WEFT_OK && after[0] != '\0' && strcmp(after, before) <= 0) {
            status = weft_fail(context, WEFT_MALFORMED, "%s: the listing of %s does not end",
                               store->client.base, prefix);
        }
    } while (status == WEFT_OK && after[0] != '\0');
    return status == WEFT_MORE ? WEFT_OK : status;
}

/* ---- the table ---- */

static weft_status http_put(void *self, weft_context *context, const weft_store_put_request *request,
                            weft_store_tag *tag_out) {
    http_store *store = self;
    weft_http_engine_enter(store->client.engine);
    weft_status status = put_object(store, context, request, tag_out);
    weft_http_engine_leave(store->client.engine);
    return status;
}

static weft_status http_watch(void *self, weft_context *context, uint64_t after, double seconds,
                              void *buffer, size_t capacity, size_t *received_out) {
    http_store *store = self;
    weft_http_engine_enter(store->client.engine);
    weft_status status = watch_server(store, context, after, seconds, buffer, capacity, received_out);
    weft_http_engine_leave(store->client.engine);
    return status;
}

static weft_status http_list(void *self, weft_context *context, const char *prefix, weft_store_visit visit,
                             void *opaque) {
    http_store *store = self;
    char *text = weft_allocate(context, LIST_BYTES);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_http_engine_enter(store->client.engine);
    weft_status status = list_server(store, context, prefix, text, visit, opaque);
    weft_http_engine_leave(store->client.engine);
    weft_release(context, text);
    return status;
}

static void http_traits(void *self, weft_store_traits *traits) {
    http_store *store = self;
    weft_http_traits(&store->client, traits);
    traits->conditional = atomic_load(&store->kind) == SERVER_WEFT;
}

static void http_close(void *self) {
    http_store *store = self;
    weft_context *context = store->client.context;
    weft_http_client_close(&store->client);
    weft_release(context, store);
}

const weft_store_operations weft_http_operations = {
    .size = sizeof weft_http_operations,
    .name = "http",
    .traits = http_traits,
    .get = weft_http_table_get,
    .put = http_put,
    .head = weft_http_table_head,
    .remove = weft_http_table_remove,
    .watch = http_watch,
    .list = http_list,
    .age = weft_http_table_age,
    .close = http_close,
};

/* ---- opening ---- */

/* Error texts quote URLs, and a password in one would end up in a log. So such URLs are refused, and this
 * text quotes nothing. */
static weft_status check_parts(weft_context *context, CURLU *parsed, const char *url) {
    CURLUcode code = curl_url_set(parsed, CURLUPART_URL, url, 0);
    if (code == CURLUE_OK &&
        (weft_http_url_has(parsed, CURLUPART_USER) || weft_http_url_has(parsed, CURLUPART_PASSWORD))) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the store's URL has a user or password in it, which would end up in logs; give a "
                         "token with --token-file or WEFT_TOKEN instead");
    }
    if (code != CURLUE_OK) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the store's URL is not one: %s",
                         curl_url_strerror(code));
    }
    if (weft_http_url_has(parsed, CURLUPART_QUERY) || weft_http_url_has(parsed, CURLUPART_FRAGMENT)) {
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

weft_status weft_http_open(weft_context *context, const char *url, const weft_store_options *options,
                           void **self_out) {
    weft_status status = check_url(context, url);
    if (status != WEFT_OK) {
        return status;
    }
    http_store *store = weft_allocate_zeroed(context, 1, sizeof(*store));
    if (store == NULL) {
        return WEFT_NO_MEMORY;
    }
    atomic_init(&store->kind, SERVER_UNKNOWN);
    status = weft_http_client_open(&store->client, context, url, options, &dialect);
    if (status != WEFT_OK) {
        http_close(store);
        return status;
    }
    *self_out = store;
    return WEFT_OK;
}
