/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_objects.c: objects over HTTP: GET and HEAD with ranges and conditions, PUT that appears whole or
 * not at all, DELETE.
 *
 * A GET's body goes from a descriptor to the socket and costs no memory. A PUT's body goes to a temporary
 * file as it comes; when it is there, a job syncs it and puts it in place.
 */
#include "serve.h"
#include "serve_fields.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DATE_SIZE = 32 };

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* ---- reading ---- */

/* Immutable objects may be kept for ever, but where reading needs a token not by caches that serve others.
 */
static const char *cache_policy(const serve_request *request) {
    static const char *const immutable[] = {"pages/",  "patches/", "anchors/",
                                            "chunks/", "pieces/",  "leaps/"};
    for (size_t i = 0; i < sizeof immutable / sizeof immutable[0]; i++) {
        if (starts_with(request->key, immutable[i])) {
            return serve_tokens_needed(request->server, false) ? "private, max-age=31536000, immutable"
                                                               : "public, max-age=31536000, immutable";
        }
    }
    return "no-cache";
}

static void add_object_fields(const serve_request *request, struct MHD_Response *response) {
    serve_response_tag(response, &request->tag);
    MHD_add_response_header(response, "Accept-Ranges", "bytes");
    MHD_add_response_header(response, "Cache-Control", cache_policy(request));
    MHD_add_response_header(response, "Content-Type",
                            starts_with(request->key, "heads/") ? "application/json"
                                                                : "application/octet-stream");
    if (request->modified != 0) {
        char date[DATE_SIZE];
        struct tm time;
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&request->modified, &time));
        MHD_add_response_header(response, "Last-Modified", date);
    }
}

/* The range that is asked for, unless If-Range says that it was of another content. */
static serve_range choose_range(const serve_request *request, uint64_t size) {
    const char *condition = serve_field(request, "If-Range");
    if (request->method != METHOD_GET ||
        (condition != NULL &&
         (serve_tags_any(condition) || !serve_tags_hold(condition, request->tag.text, false)))) {
        return (serve_range){.kind = RANGE_WHOLE};
    }
    return serve_range_parse(serve_field(request, "Range"), size);
}

static struct MHD_Response *make_from_file(serve_request *request, const serve_body *body, uint64_t offset,
                                           uint64_t length) {
    (void)request;
    return MHD_create_response_from_fd_at_offset64(length, body->descriptor, offset);
}

serve_body serve_body_of_file(int descriptor, uint64_t size) {
    return (serve_body){.size = size, .make = make_from_file, .descriptor = descriptor};
}

static void drop_body(const serve_body *body) {
    if (body->descriptor >= 0) {
        close(body->descriptor);
    }
}

/* Of a 304, as of a HEAD, only the fields are sent, with the length that a 200 would have. */
static enum MHD_Result send_range(serve_request *request, unsigned code, const serve_body *body,
                                  serve_range range) {
    struct MHD_Response *response =
        range.length == 0 ? serve_response_empty() : body->make(request, body, range.offset, range.length);
    if (range.length == 0 || response == NULL) {
        drop_body(body);
    }
    if (response != NULL) {
        add_object_fields(request, response);
    }
    if (response != NULL && code == MHD_HTTP_PARTIAL_CONTENT) {
        char text[80];
        snprintf(text, sizeof text, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, range.offset,
                 range.offset + range.length - 1, body->size);
        MHD_add_response_header(response, "Content-Range", text);
    }
    bool has_body = request->method == METHOD_GET && code != MHD_HTTP_NOT_MODIFIED;
    request->body = has_body ? range.length : 0;
    return serve_answer(request, code, response);
}

static enum MHD_Result send_unsatisfiable(serve_request *request, uint64_t size) {
    struct MHD_Response *response = serve_response_empty();
    if (response != NULL) {
        char text[48];
        snprintf(text, sizeof text, "bytes */%" PRIu64, size);
        MHD_add_response_header(response, "Content-Range", text);
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    return serve_answer(request, MHD_HTTP_RANGE_NOT_SATISFIABLE, response);
}

/* The answer begins when its first bytes can be had: until then a failure can still be told. */
static enum MHD_Result send_when_there(serve_request *request, unsigned code, const serve_body *body,
                                       serve_range range) {
    bool awaits = body->await != NULL && request->method == METHOD_GET && range.length > 0;
    weft_status status = awaits ? body->await(request, range.offset) : WEFT_OK;
    if (status == WEFT_MORE) {
        return MHD_YES;
    }
    if (status != WEFT_OK) {
        drop_body(body);
        return serve_object_fail(request, status);
    }
    return send_range(request, code, body, range);
}

enum MHD_Result serve_object_send(serve_request *request, const serve_body *body) {
    const char *match = serve_field(request, "If-Match");
    const char *none_match = serve_field(request, "If-None-Match");
    const serve_range whole = {.kind = RANGE_WHOLE, .length = body->size};
    serve_range range = choose_range(request, body->size);
    if (match != NULL && !serve_tags_hold(match, request->tag.text, false)) {
        drop_body(body);
        return serve_answer_text(request, MHD_HTTP_PRECONDITION_FAILED, "the object is another one");
    }
    if (none_match != NULL && serve_tags_hold(none_match, request->tag.text, true)) {
        return send_range(request, MHD_HTTP_NOT_MODIFIED, body, whole);
    }
    if (range.kind == RANGE_UNSATISFIABLE) {
        drop_body(body);
        return send_unsatisfiable(request, body->size);
    }
    if (range.kind == RANGE_WHOLE) {
        return send_when_there(request, MHD_HTTP_OK, body, whole);
    }
    return send_when_there(request, MHD_HTTP_PARTIAL_CONTENT, body, range);
}

/* ---- answers about the store's failures ---- */

/* Texts of the store name files of this machine: they are for its owner, not for the client. */
static const char *failure_text(weft_status status) {
    switch (status) {
    case WEFT_NOT_FOUND:
        return "there is no such object";
    case WEFT_CONFLICT:
        return "the condition does not hold: the object is there already, or is another one";
    case WEFT_NO_SPACE:
        return "there is no room: the server's disk is full, or --max-bytes is reached";
    case WEFT_REMOTE_FAILED:
    case WEFT_REMOTE_DENIED:
        return "the object is not here, and where it comes from cannot be reached";
    case WEFT_CANCELLED:
        return "the server is ending";
    default:
        return "the server cannot read or write its files; its log says why";
    }
}

static void refuse_failure(serve_request *request, weft_status status) {
    serve_report_status(request, status);
    serve_refuse(request, serve_status_code(status), failure_text(status));
}

enum MHD_Result serve_object_fail(serve_request *request, weft_status status) {
    serve_report_status(request, status);
    return serve_answer_text(request, serve_status_code(status), failure_text(status));
}

/* An object's age is by the clock of the file system, which may be another machine's; a date is told by the
 * clock of this one, and so the difference to the answer's Date is that age. It takes a look at that clock,
 * which is a new file: who fetches an object does not ask for it. */
static void find_date(serve_request *request) {
    double age;
    if (request->method == METHOD_HEAD &&
        weft_store_age(request->context, request->server->store, request->key, &age) == WEFT_OK) {
        request->modified = time(NULL) - (time_t)age;
    }
}

static enum MHD_Result get_object(serve_request *request) {
    if (serve_reports_concern(request->key)) {
        return serve_report_get(request);
    }
    int descriptor = -1;
    uint64_t size = 0;
    weft_status status = weft_directory_object(request->context, request->server->files, request->key,
                                               &descriptor, &size, &request->tag);
    if (status != WEFT_OK) {
        return serve_object_fail(request, status);
    }
    find_date(request);
    serve_body body = serve_body_of_file(descriptor, size);
    return serve_object_send(request, &body);
}

static weft_status find_head(serve_server *server, weft_context *context, uint64_t least, serve_head *found,
                             uint64_t *epoch_out) {
    weft_status status =
        weft_head_find(context, server->store, least, found->data, &found->size, epoch_out);
    found->info.size = sizeof found->info;
    return status == WEFT_OK ? weft_head_inspect(context, found->data, found->size, NULL, &found->info)
                             : status;
}

static void add_nothing(serve_server *server, json_t *json) {
    (void)server;
    (void)json;
}

static void print_nothing(serve_server *server, FILE *out) {
    (void)server;
    (void)out;
}

static void stop_nothing(serve_server *server) {
    (void)server;
}

const serve_source serve_directory_source = {find_head,     get_object, add_nothing,
                                             print_nothing, NULL,       stop_nothing};

/* ---- writing ---- */

/* What a run of training puts is small, however large models may be: see doc/FORMAT.md. */
static uint64_t object_limit(const serve_request *request) {
    const uint64_t training = (uint64_t)16 << 20;
    uint64_t most = request->server->max_object;
    return starts_with(request->key, "train/") && training < most ? training : most;
}

/* Alone, whatever else is there. */
static bool exceeds_quota(const serve_request *request, uint64_t size) {
    uint64_t most = request->server->quota.most;
    return most != 0 && size > most;
}

/* Turns If-Match into the tag that has to be there still when the object is put in place. */
static weft_status require_match(serve_request *request, const char *match, weft_store_put_request *put) {
    if (!request->replaces || !serve_tags_hold(match, request->tag.text, false)) {
        return WEFT_CONFLICT;
    }
    put->condition = WEFT_STORE_IF_SAME;
    put->tag = request->tag;
    return WEFT_OK;
}

static weft_status read_conditions(serve_request *request, weft_store_put_request *put) {
    const char *match = serve_field(request, "If-Match");
    uint64_t size = 0;
    weft_status status =
        weft_store_head(request->context, request->server->store, request->key, &size, &request->tag);
    request->replaces = status == WEFT_OK;
    if (status != WEFT_OK && status != WEFT_NOT_FOUND) {
        return status;
    }
    if (serve_field(request, "If-None-Match") != NULL) {
        put->condition = WEFT_STORE_IF_ABSENT;
        return WEFT_OK;
    }
    return match == NULL ? WEFT_OK : require_match(request, match, put);
}

static void begin_put(serve_request *request) {
    const char *none_match = serve_field(request, "If-None-Match");
    if (request->expected != UINT64_MAX && request->expected > object_limit(request)) {
        serve_refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "the object is larger than this server takes");
        return;
    }
    if (request->expected != UINT64_MAX && exceeds_quota(request, request->expected)) {
        serve_refuse(request, MHD_HTTP_INSUFFICIENT_STORAGE, failure_text(WEFT_NO_SPACE));
        return;
    }
    if (request->expected == 0 && serve_field(request, "Content-Length") == NULL) {
        serve_refuse(request, MHD_HTTP_LENGTH_REQUIRED, "say how long the object is, or send it in chunks");
        return;
    }
    if (serve_field(request, "Content-Range") != NULL || serve_field(request, "Content-Encoding") != NULL) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "objects are put whole and as they are");
        return;
    }
    if (none_match != NULL && (!serve_tags_any(none_match) || serve_field(request, "If-Match") != NULL)) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "a put knows If-None-Match: * or If-Match");
        return;
    }
    weft_store_put_request put = {.size = sizeof put, .key = request->key};
    weft_status status = read_conditions(request, &put);
    if (status == WEFT_OK) {
        status = weft_directory_draft_open(request->context, request->server->files, &put, &request->draft);
    }
    if (status != WEFT_OK) {
        refuse_failure(request, status);
    }
}

void serve_object_begin(serve_request *request) {
    if (request->method == METHOD_PUT) {
        begin_put(request);
    } else if (request->method == METHOD_DELETE && (serve_field(request, "If-Match") != NULL ||
                                                    serve_field(request, "If-None-Match") != NULL)) {
        serve_refuse(request, MHD_HTTP_NOT_IMPLEMENTED, "removals cannot be conditional");
    }
}

static void drop_draft(serve_request *request) {
    weft_directory_draft_abandon(request->draft);
    request->draft = NULL;
}

void serve_object_append(serve_request *request, const char *data, size_t size) {
    if (request->received > object_limit(request)) {
        serve_refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "the object is larger than this server takes");
        drop_draft(request);
        return;
    }
    /* one whose length nobody told must not fill the disk before it is counted */
    if (exceeds_quota(request, request->received)) {
        serve_refuse(request, MHD_HTTP_INSUFFICIENT_STORAGE, failure_text(WEFT_NO_SPACE));
        drop_draft(request);
        return;
    }
    weft_status status = weft_directory_draft_append(request->draft, data, size);
    if (status != WEFT_OK) {
        refuse_failure(request, status);
        drop_draft(request);
    }
}

static void finish_put(serve_request *request) {
    weft_directory_draft *draft = request->draft;
    request->draft = NULL;
    request->status = serve_quota_take(request);
    if (request->status != WEFT_OK) {
        weft_directory_draft_abandon(draft);
        return;
    }
    request->status = weft_directory_draft_finish(draft, &request->tag);
    if (request->status == WEFT_OK && starts_with(request->key, "heads/")) {
        serve_watch_poke(&request->server->watch);
    }
}

static void finish_remove(serve_request *request) {
    request->status = weft_store_remove(request->context, request->server->store, request->key);
    if (serve_reports_concern(request->key)) {
        serve_report_forget(&request->server->reports, request->key);
    }
}

enum MHD_Result serve_object_end(serve_request *request) {
    if (request->method == METHOD_GET || request->method == METHOD_HEAD) {
        return request->server->source->get(request);
    }
    if (!request->job_done) {
        request->job = request->method == METHOD_PUT ? finish_put : finish_remove;
        if (serve_jobs_defer(&request->server->site->jobs, request)) {
            return MHD_YES;
        }
    }
    if (request->status != WEFT_OK) {
        return serve_object_fail(request, request->status);
    }
    if (request->method == METHOD_DELETE) {
        return serve_answer_empty(request, MHD_HTTP_NO_CONTENT);
    }
    struct MHD_Response *response = serve_response_empty();
    if (response != NULL) {
        serve_response_tag(response, &request->tag);
    }
    return serve_answer(request, request->replaces ? MHD_HTTP_NO_CONTENT : MHD_HTTP_CREATED, response);
}
