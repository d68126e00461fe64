/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_request.c: one request from its header to its end: where it goes, whether it may, what becomes of
 * its body, and what every answer carries.
 *
 * libmicrohttpd calls serve_request_handle once when the header is there, once for each piece of a body,
 * and once when the body has ended, and again whenever a suspended connection is resumed. Answers are given
 * at the end, so that a refused request leaves its connection usable; a body that nobody wants is read for
 * that up to DISCARD_BYTES. Where more is announced, or the client still waits for a "100 Continue", the
 * refusal is sent at once and the connection closed.
 */
#include "serve.h"
#include "serve_fields.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const uint64_t DISCARD_BYTES = (uint64_t)8 << 20;

#define HISTORY_PATH "v1/history"
#define TRAINING_PATH "v1/train"
#define LIST_PATH "v1/list"

const char *serve_field(const serve_request *request, const char *name) {
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/* ---- answers ---- */

static const char *allowed_methods(const serve_request *request) {
    if (request->route == ROUTE_OBJECT) {
        return request->server->read_only ? "GET, HEAD" : "GET, HEAD, PUT, DELETE";
    }
    return request->route == ROUTE_WATCH ? "GET" : "GET, HEAD";
}

/* What RFC 9110 wants to be with certain codes, and what we want to be with all. */
static void add_common_fields(const serve_request *request, unsigned code, struct MHD_Response *response) {
    MHD_add_response_header(response, "Weft-Server", "1");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (code == MHD_HTTP_UNAUTHORIZED) {
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"weft\"");
    }
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, "Allow", allowed_methods(request));
    }
    if (code == MHD_HTTP_SERVICE_UNAVAILABLE) {
        MHD_add_response_header(response, "Retry-After", "1");
    }
    if (atomic_load(&request->server->site->stopping)) {
        MHD_add_response_header(response, "Connection", "close");
    }
}

enum MHD_Result serve_answer(serve_request *request, unsigned code, struct MHD_Response *response) {
    if (response == NULL) {
        return MHD_NO;
    }
    add_common_fields(request, code, response);
    request->code = code;
    serve_connections_answer(request);
    enum MHD_Result result = MHD_queue_response(request->connection, code, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result serve_answer_text(serve_request *request, unsigned code, const char *text) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", text);
    size_t size = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    struct MHD_Response *response = MHD_create_response_from_buffer(size, line, MHD_RESPMEM_MUST_COPY);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "text/plain; charset=utf-8");
        /* what is not there may come, and what failed may go well, the next moment */
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    request->body = request->method == METHOD_HEAD ? 0 : size;
    return serve_answer(request, code, response);
}

struct MHD_Response *serve_response_empty(void) {
    static char nothing[1];
    return MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
}

enum MHD_Result serve_answer_empty(serve_request *request, unsigned code) {
    struct MHD_Response *response = serve_response_empty();
    if (response != NULL) {
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    return serve_answer(request, code, response);
}

void serve_response_tag(struct MHD_Response *response, const weft_store_tag *tag) {
    char text[WEFT_STORE_TAG_MAX + 2];
    snprintf(text, sizeof text, "\"%s\"", tag->text);
    MHD_add_response_header(response, "ETag", text);
}

unsigned serve_status_code(weft_status status) {
    switch (status) {
    case WEFT_NOT_FOUND:
        return MHD_HTTP_NOT_FOUND;
    case WEFT_CONFLICT:
        return MHD_HTTP_PRECONDITION_FAILED;
    case WEFT_NO_SPACE:
        return MHD_HTTP_INSUFFICIENT_STORAGE;
    case WEFT_NO_MEMORY:
    case WEFT_REMOTE_FAILED:
    case WEFT_CANCELLED:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    case WEFT_REMOTE_DENIED:
        return MHD_HTTP_BAD_GATEWAY;
    default:
        return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}

void serve_report_status(serve_request *request, weft_status status) {
    static const char *const methods[METHOD_COUNT] = {"GET", "HEAD", "PUT", "DELETE", "?"};
    if (serve_status_code(status) >= MHD_HTTP_INTERNAL_SERVER_ERROR) {
        const char *text = weft_context_error(request->context);
        serve_report(request->server, "%s %s: %s", methods[request->method], request->key,
                     *text != 0 ? text : weft_status_name(status));
    }
}

void serve_refuse(serve_request *request, unsigned code, const char *text) {
    request->refusal = code;
    request->refusal_text = text;
}

/* ---- the header ---- */

static serve_method parse_method(const char *method) {
    static const char *const names[] = {"GET", "HEAD", "PUT", "DELETE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(method, names[i]) == 0) {
            return (serve_method)i;
        }
    }
    return METHOD_OTHER;
}

typedef struct framing {
    unsigned lengths;
    unsigned encodings;
} framing;

static enum MHD_Result count_framing(void *opaque, enum MHD_ValueKind kind, const char *name,
                                     const char *value) {
    framing *counts = opaque;
    (void)kind;
    (void)value;
    counts->lengths += strcasecmp(name, "Content-Length") == 0;
    counts->encodings += strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* How long the body is. Two ways to say it are how requests are smuggled past a proxy. */
static void read_framing(serve_request *request) {
    framing counts = {0};
    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, count_framing, &counts);
    const char *length = serve_field(request, "Content-Length");
    if (counts.lengths + counts.encodings > 1) {
        request->expected = UINT64_MAX;
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "the length of the body is said more than once");
    } else if (counts.encodings > 0) {
        request->expected = UINT64_MAX;
    } else if (length != NULL && !serve_number(length, &request->expected)) {
        request->expected = UINT64_MAX;
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "the length of the body is not a number");
    }
}

static void begin_watch(serve_request *request) {
    const char *after = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "after");
    const char *seconds =
        MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "seconds");
    double wait = request->server->watch_seconds;
    double wanted = wait;
    if ((after != NULL && !serve_number(after, &request->after)) ||
        (seconds != NULL && !serve_seconds(seconds, &wanted))) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "give /v1/watch?after=VERSION&seconds=SECONDS");
    }
    request->deadline = request->started + (wanted < wait ? wanted : wait);
}

static void begin_history(serve_request *request) {
    const char *since = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "since");
    const char *limit = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "limit");
    request->limit = HISTORY_MAX;
    if ((since != NULL && !serve_number(since, &request->after)) ||
        (limit != NULL && !serve_number(limit, &request->limit))) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "give /v1/history?since=VERSION&limit=NUMBER");
    }
}

static void begin_training(serve_request *request) {
    const char *from = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "from");
    if (from != NULL && !serve_number(from, &request->after)) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "give /v1/train?from=STEP");
    }
}

typedef struct page {
    const char *path;
    const char *type;
    char *(*text)(serve_request *request, size_t *size_out);
    void (*job)(serve_request *request); /* to be done before, by a thread that may wait; or NULL */
} page;

static const page pages[] = {
    {"", "text/plain; charset=utf-8", serve_text_welcome, NULL},
    {"v1/status", "application/json", serve_text_status, NULL},
    {HISTORY_PATH, "application/json", serve_text_history, NULL},
    {TRAINING_PATH, "application/json", serve_text_training, serve_training_look},
    {LIST_PATH, "application/x-ndjson", serve_text_list, serve_list_collect},
    {WEFT_REPORT_BATCH_KEY, "application/x-ndjson", serve_text_batch, serve_reports_collect},
    {"metrics", "text/plain; version=0.0.4; charset=utf-8", serve_text_metrics, NULL},
};

/* Of a server of many runs. */
static const page site_pages[] = {
    {"", NULL, serve_text_site, serve_runs_look},
    {"v1/runs", "application/json", serve_text_runs, serve_runs_look},
    {"metrics", "text/plain; version=0.0.4; charset=utf-8", serve_text_site_metrics, serve_runs_look},
};

static const page *find_page(const serve_request *request) {
    bool site = request->server->runs != NULL;
    const page *table = site ? site_pages : pages;
    size_t count = site ? sizeof site_pages / sizeof site_pages[0] : sizeof pages / sizeof pages[0];
    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].path, request->key) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* The first part of a path names a run; a request whose run is not there yet stays with the site. */
static bool split_path(serve_request *request, const char *url) {
    char path[sizeof request->run + sizeof request->key];
    serve_server *site = request->server;
    if (site->runs == NULL) {
        return serve_path_decode(url, request->key, sizeof request->key);
    }
    if (!serve_path_decode(url, path, sizeof path)) {
        return false;
    }
    size_t length = strcspn(path, "/");
    const char *rest = path + length + (path[length] == '/');
    bool named = length > 0 && length < sizeof request->run;
    snprintf(request->run, sizeof request->run, "%.*s", (int)(named ? length : 0), path);
    if (!named || !serve_run_name_valid(request->run)) {
        request->run[0] = 0;
        rest = path;
    }
    size_t size = strlen(rest) + 1;
    if (size > sizeof request->key) {
        return false;
    }
    memcpy(request->key, rest, size);
    serve_server *run = request->run[0] != 0 ? serve_runs_find(site->runs, request->run, false) : NULL;
    request->server = run != NULL ? run : site;
    request->lacks_run = request->run[0] != 0 && run == NULL;
    request->lacks_slash = request->run[0] != 0 && path[length] == 0;
    return true;
}

static void find_route(serve_request *request, const char *url) {
    if (!split_path(request, url)) {
        request->key[0] = 0;
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "this path cannot be the key of an object");
    } else if (!request->lacks_run && find_page(request) != NULL) {
        request->route = ROUTE_INFO;
    } else if (strcmp(request->key, "v1/watch") == 0) {
        request->route = ROUTE_WATCH;
    } else if (strncmp(request->key, "v1/", 3) == 0) {
        serve_refuse(request, MHD_HTTP_NOT_FOUND, "there is nothing at this path");
    } else if (request->server->runs != NULL && !request->lacks_run) {
        serve_refuse(request, MHD_HTTP_NOT_FOUND, "there is nothing at this path");
    } else if (!request->lacks_run && !weft_store_key_valid(request->key)) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "this path cannot be the key of an object");
    }
}

static bool is_method_allowed(const serve_request *request) {
    switch (request->method) {
    case METHOD_GET:
        return true;
    case METHOD_HEAD:
        return request->route != ROUTE_WATCH;
    case METHOD_PUT:
        return request->route == ROUTE_OBJECT || serve_reports_batch(request);
    case METHOD_DELETE:
        return request->route == ROUTE_OBJECT;
    default:
        return false;
    }
}

static bool is_report(const serve_request *request) {
    return request->method == METHOD_PUT && request->route == ROUTE_OBJECT &&
           serve_reports_concern(request->key);
}

/* A page of the web can have its own name point to this machine; what it asks for then goes under that
 * name. Where nothing but the loopback address keeps others out, such names are refused. */
static bool is_misdirected(const serve_request *request, bool writes) {
    const serve_server *server = request->server;
    const char *field = serve_field(request, "Host");
    return server->loopback && !serve_tokens_needed(server, writes) && field != NULL &&
           !serve_host_known(field, server->hosts, server->host_count);
}

/* Who may read may report. `known_out`: with a token that is valid. */
static void check_permission(serve_request *request, bool *known_out) {
    bool report = is_report(request) || serve_reports_batch(request);
    bool writes = !report && (request->method == METHOD_PUT || request->method == METHOD_DELETE);
    if (is_misdirected(request, writes)) {
        serve_refuse(request, MHD_HTTP_MISDIRECTED_REQUEST,
                     "this server goes by its address, or by names that it was given with --host");
        return;
    }
    if (!is_method_allowed(request)) {
        serve_refuse(request, MHD_HTTP_METHOD_NOT_ALLOWED, "this method is not for this path");
        return;
    }
    if (serve_page_wanted(request)) {
        return;
    }
    unsigned code = serve_tokens_refusal(request->server, request->connection, writes, known_out);
    if (code == MHD_HTTP_UNAUTHORIZED) {
        serve_refuse(request, code, "send a token: Authorization: Bearer TOKEN");
    } else if (code != 0) {
        serve_refuse(request, code, "this token may read and not write");
    } else if (writes && request->server->read_only) {
        serve_refuse(request, MHD_HTTP_FORBIDDEN, "this server is read-only");
    } else if (report && request->server->no_reports) {
        serve_refuse(request, MHD_HTTP_FORBIDDEN, "this server takes no reports");
    }
}

/* A run begins with the first object that is put into it, by who may write here: a report is no such
 * object, since who may only read puts it. What the run says of who may write to it counts from that object
 * on. */
static void supply_run(serve_request *request, bool *known_out) {
    bool make = request->method == METHOD_PUT && !is_report(request) && !request->server->read_only &&
                weft_store_key_valid(request->key);
    serve_server *run = make ? serve_runs_find(request->server->runs, request->run, true) : NULL;
    if (run == NULL) {
        serve_refuse(request, make ? MHD_HTTP_INSUFFICIENT_STORAGE : MHD_HTTP_NOT_FOUND,
                     make ? "no more runs can be served here" : "there is no such run");
    } else {
        request->server = run;
        check_permission(request, known_out);
    }
}

static void begin(serve_request *request, const char *url) {
    bool known = false;
    read_framing(request);
    if (request->refusal == 0) {
        find_route(request, url);
    }
    if (request->refusal == 0) {
        check_permission(request, &known);
    }
    if (request->refusal == 0 && request->lacks_run) {
        supply_run(request, &known);
    }
    serve_connections_begin(request, request->refusal != 0 ? STANDING_NONE
                                     : known               ? STANDING_TOKEN
                                                           : STANDING_HEARD);
    if (request->refusal == 0 && request->route == ROUTE_WATCH) {
        begin_watch(request);
    }
    if (request->refusal == 0 && strcmp(request->key, HISTORY_PATH) == 0) {
        begin_history(request);
    }
    if (request->refusal == 0 && strcmp(request->key, TRAINING_PATH) == 0) {
        begin_training(request);
    }
    if (request->refusal == 0 && strcmp(request->key, LIST_PATH) == 0) {
        serve_list_begin(request);
    }
    if (request->refusal == 0 && is_report(request)) {
        serve_report_begin(request);
    } else if (request->refusal == 0 && serve_reports_batch(request)) {
        serve_batch_begin(request);
    } else if (request->refusal == 0 && request->route == ROUTE_OBJECT) {
        serve_object_begin(request);
    }
}

/* ---- the body ---- */

/* True if a refusal cannot wait for the end of the body. */
static bool is_urgent(const serve_request *request) {
    bool announced = request->expected != UINT64_MAX;
    return request->refusal != 0 && request->expected > 0 &&
           (serve_field(request, "Expect") != NULL || (announced && request->expected > DISCARD_BYTES));
}

static enum MHD_Result take_body(serve_request *request, const char *data, size_t size) {
    request->received += size;
    serve_connections_receive(request);
    if (request->refusal == 0 && is_report(request)) {
        serve_report_append(request, data, size);
        return MHD_YES;
    }
    if (request->refusal == 0 && serve_reports_batch(request)) {
        serve_batch_append(request, data, size);
        return MHD_YES;
    }
    if (request->refusal == 0 && request->method == METHOD_PUT) {
        serve_object_append(request, data, size);
        return MHD_YES;
    }
    request->discarded += size;
    return request->discarded <= DISCARD_BYTES ? MHD_YES : MHD_NO;
}

/* ---- the end ---- */

static enum MHD_Result end_watch(serve_request *request) {
    serve_head head;
    switch (serve_watch_ask(&request->server->watch, request, &head)) {
    case VERDICT_SUSPENDED:
        return MHD_YES;
    case VERDICT_FULL:
        return serve_answer_text(request, MHD_HTTP_SERVICE_UNAVAILABLE, "too many are watching already");
    case VERDICT_NONE:
        return serve_answer_empty(request, MHD_HTTP_NO_CONTENT);
    default:
        break;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(head.size, head.data, MHD_RESPMEM_MUST_COPY);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "application/json");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    request->body = head.size;
    return serve_answer(request, MHD_HTTP_OK, response);
}

static enum MHD_Result end_page(serve_request *request) {
    const page *page = find_page(request);
    size_t size = 0;
    if (page->job != NULL && !request->job_done) {
        request->job = page->job;
        if (serve_jobs_defer(&request->server->site->jobs, request)) {
            return MHD_YES;
        }
    }
    char *text = page->text(request, &size);
    if (text == NULL) {
        return serve_answer_text(request, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory for this page");
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    bool html = page->type == NULL && serve_accepts_html(request);
    MHD_add_response_header(response, "Content-Type",
                            html                 ? "text/html; charset=utf-8"
                            : page->type != NULL ? page->type
                                                 : "text/plain; charset=utf-8");
    if (html) {
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; frame-ancestors 'none'");
    }
    MHD_add_response_header(response, "Cache-Control", "no-store");
    request->body = request->method == METHOD_HEAD ? 0 : size;
    return serve_answer(request, MHD_HTTP_OK, response);
}

/* Links of a run's page are relative to its path, which ends with a slash. */
static enum MHD_Result send_to_slash(serve_request *request) {
    char place[sizeof request->run + 2];
    struct MHD_Response *response = serve_response_empty();
    snprintf(place, sizeof place, "/%s/", request->run);
    if (response != NULL) {
        MHD_add_response_header(response, "Location", place);
    }
    return serve_answer(request, MHD_HTTP_PERMANENT_REDIRECT, response);
}

static enum MHD_Result end(serve_request *request) {
    if (request->refusal != 0) {
        return serve_answer_text(request, request->refusal, request->refusal_text);
    }
    if (request->lacks_slash) {
        return send_to_slash(request);
    }
    switch (request->route) {
    case ROUTE_WATCH:
        return end_watch(request);
    case ROUTE_INFO:
        if (request->method == METHOD_PUT) {
            return serve_batch_end(request);
        }
        return serve_page_wanted(request) ? serve_page_answer(request) : end_page(request);
    default:
        return is_report(request) ? serve_report_end(request) : serve_object_end(request);
    }
}

/* ---- callbacks ---- */

static serve_request *open_request(serve_server *server, struct MHD_Connection *connection,
                                   const char *method, const char *url, const char *version) {
    serve_request *request = calloc(1, sizeof *request);
    weft_context_options options = {.size = sizeof options, .threads = 1};
    if (request == NULL || weft_context_create(&options, &request->context) != WEFT_OK) {
        free(request);
        return NULL;
    }
    request->server = server;
    request->connection = connection;
    request->place =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    request->method = parse_method(method);
    snprintf(request->word, sizeof request->word, "%s", method);
    snprintf(request->target, sizeof request->target, "%s", url);
    snprintf(request->version, sizeof request->version, "%s", version);
    request->started = clock_seconds();
    atomic_fetch_add(&server->metrics.active, 1);
    return request;
}

enum MHD_Result serve_request_handle(void *opaque, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *data,
                                     size_t *data_size, void **state) {
    serve_request *request = *state;
    if (request == NULL) {
        request = open_request(opaque, connection, method, url, version);
        *state = request;
        if (request == NULL) {
            return MHD_NO;
        }
        begin(request, url);
        return is_urgent(request) ? end(request) : MHD_YES;
    }
    if (*data_size > 0) {
        size_t size = *data_size;
        *data_size = 0;
        return take_body(request, data, size);
    }
    serve_connections_work(request);
    return end(request);
}

void serve_request_complete(void *opaque, struct MHD_Connection *connection, void **state,
                            enum MHD_RequestTerminationCode ending) {
    serve_server *server = opaque;
    serve_request *request = *state;
    (void)connection;
    if (request == NULL) {
        return;
    }
    if (request->draft != NULL) {
        weft_directory_draft_abandon(request->draft);
    }
    serve_server *run = request->server;
    weft_relay_reader_close(request->reader);
    serve_connections_end(request);
    bool whole = ending == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    serve_metrics_count(&run->metrics, request, whole);
    serve_access_note(&server->access, request, whole);
    weft_context_destroy(request->context);
    free(request->batch);
    free(request);
    *state = NULL;
    atomic_fetch_sub(&server->metrics.active, 1);
}
