/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_relay.c: objects that come over a relay (weft_relay_…). What is here whole goes from its file to
 * the socket, as in a server over a directory. What is still coming is sent as its chunks come: while the
 * next one is not there, the connection is suspended, and the relay resumes it.
 */
#include "serve.h"

#include <string.h>

enum { BLOCK_BYTES = 256 << 10 };

static void suspend(void *opaque) {
    serve_request *request = opaque;
    MHD_suspend_connection(request->connection);
}

static void resume(void *opaque) {
    serve_request *request = opaque;
    MHD_resume_connection(request->connection);
}

/* ---- bodies ---- */

/* The client has taken what it was given before, and has time again for what it is given now; while there
 * is nothing, it waits for us. A failure in the middle of a body can only be told by cutting the
 * connection. */
static ssize_t read_body(void *opaque, uint64_t position, char *buffer, size_t capacity) {
    serve_request *request = opaque;
    size_t count = 0;
    serve_connections_work(request);
    weft_status status =
        weft_relay_reader_read(request->reader, request->offset + position, buffer, capacity, &count);
    if (status == WEFT_MORE) {
        return 0;
    }
    if (status != WEFT_OK) {
        serve_report(request->server, "GET %s: cut after %llu bytes: %s", request->key,
                     (unsigned long long)position, weft_context_error(request->context));
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    serve_connections_pass(request, count);
    return (ssize_t)count;
}

static struct MHD_Response *make_from_reader(serve_request *request, const serve_body *body,
                                             uint64_t offset, uint64_t length) {
    (void)body;
    request->offset = offset;
    request->comes = true;
    return MHD_create_response_from_callback(length, BLOCK_BYTES, read_body, request, NULL);
}

/* An object that is damaged where it comes from is as good as none: who is told so goes another way, and
 * who is told of a failure would only ask again. */
static weft_status await_reader(serve_request *request, uint64_t offset) {
    weft_status status = weft_relay_reader_await(request->reader, offset);
    if (status == WEFT_CHECKSUM_MISMATCH) {
        serve_report(request->server, "GET %s: %s", request->key, weft_context_error(request->context));
        status = WEFT_NOT_FOUND;
    }
    return status;
}

/* The answer closes the descriptor that it is sent from, so that a connection holds no second one. */
static enum MHD_Result send_file(serve_request *request, const weft_relay_object *object) {
    int descriptor = weft_relay_reader_release_file(request->reader);
    serve_body body = serve_body_of_file(descriptor, object->bytes);
    return serve_object_send(request, &body);
}

static enum MHD_Result get_relayed(serve_request *request) {
    const weft_relay_hooks hooks = {suspend, resume, request};
    weft_relay_object object = {.size = sizeof object};
    weft_status status = WEFT_OK;
    if (serve_reports_concern(request->key)) {
        return serve_report_get(request);
    }
    if (request->reader == NULL) {
        status = weft_relay_reader_open(request->context, request->server->relay, request->key, &hooks,
                                        &request->reader);
    }
    if (status == WEFT_OK) {
        status = weft_relay_reader_find(request->reader, &object);
    }
    if (status == WEFT_MORE) {
        return MHD_YES;
    }
    if (status != WEFT_OK) {
        return serve_object_fail(request, status);
    }
    request->tag = object.tag;
    if (object.file >= 0) {
        return send_file(request, &object);
    }
    serve_body body = {
        .size = object.bytes, .make = make_from_reader, .await = await_reader, .descriptor = -1};
    return serve_object_send(request, &body);
}

/* ---- heads ---- */

static weft_status find_head(serve_server *server, weft_context *context, uint64_t least, serve_head *found,
                             uint64_t *epoch_out) {
    (void)least;
    found->info.size = sizeof found->info;
    weft_status status = weft_relay_head(context, server->relay, found->data, &found->size, &found->info);
    *epoch_out = found->info.epoch;
    return status;
}

/* ---- what is told of it ---- */

/* Where a store lies, for who needs no token to ask: only how it is reached. */
static void hide_place(const weft_store *store, char place[TEXT_SIZE]) {
    const char *url = weft_store_url(store);
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    if (traits.directory != NULL) {
        snprintf(place, TEXT_SIZE, "a directory");
    } else {
        snprintf(place, TEXT_SIZE, "%.*s://…", (int)strcspn(url, ":"), url);
    }
}

/* Texts may have been cut within a character, or be none; JSON takes only whole ones. */
static json_t *make_text(const char *text) {
    json_t *json = json_string(text);
    if (json != NULL) {
        return json;
    }
    char plain[WEFT_RELAY_TEXT];
    snprintf(plain, sizeof plain, "%s", text);
    for (char *c = plain; *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    return json_string(plain);
}

static void add_status(serve_server *server, json_t *json) {
    weft_relay_stats stats = {.size = sizeof stats};
    weft_relay_describe(server->relay, &stats);
    char place[TEXT_SIZE], error[WEFT_RELAY_TEXT];
    json_t *relay = json_object();
    serve_text_hide(server, stats.error, error, sizeof error);
    hide_place(server->store, place);
    json_object_set_new(relay, "upstream",
                        make_text(serve_tells_where(server) ? weft_store_url(server->store) : place));
    json_object_set_new(relay, "reached", json_boolean(stats.reached));
    json_object_set_new(relay, "state_seconds", json_real(stats.state_seconds));
    json_object_set_new(relay, "head_seconds",
                        stats.head_seconds >= 0 ? json_real(stats.head_seconds) : json_null());
    json_object_set_new(relay, "error", error[0] != '\0' ? make_text(error) : json_null());
    json_object_set_new(relay, "upstream_requests", json_count(stats.upstream_requests));
    json_object_set_new(relay, "upstream_bytes", json_count(stats.upstream_bytes));
    json_object_set_new(relay, "fetches", json_count(stats.fetches));
    json_object_set_new(relay, "hits", json_count(stats.hits));
    json_object_set_new(relay, "misses", json_count(stats.misses));
    json_object_set_new(relay, "joined", json_count(stats.joined));
    json_object_set_new(relay, "evictions", json_count(stats.evictions));
    json_object_set_new(relay, "damaged", json_count(stats.damaged));
    json_object_set_new(relay, "damaged_cached", json_count(stats.damaged_cached));
    json_object_set_new(relay, "refused_heads", json_count(stats.refused_heads));
    json_object_set_new(relay, "objects", json_count(stats.objects));
    json_object_set_new(relay, "under_way", json_count(stats.under_way));
    json_object_set_new(relay, "cached_bytes", json_count(stats.cached_bytes));
    json_object_set_new(relay, "cache_limit", json_count(stats.cache_limit));
    json_object_set_new(relay, "disk_full", json_boolean(stats.disk_full));
    json_object_set_new(json, "relay", relay);
}

static void print_metrics(serve_server *server, FILE *out) {
    weft_relay_stats stats = {.size = sizeof stats};
    weft_relay_describe(server->relay, &stats);
    const struct {
        const char *name, *type, *help;
        double value;
    } numbers[] = {
        {"weft_relay_upstream_up", "gauge", "1 if the last look at the upstream store succeeded.",
         stats.reached},
        {"weft_relay_upstream_state_seconds", "gauge", "Time since that last changed.",
         stats.state_seconds},
        {"weft_relay_head_age_seconds", "gauge",
         "Time since the upstream store last confirmed the newest head; -1: never.", stats.head_seconds},
        {"weft_relay_upstream_requests_total", "counter", "Requests to the upstream store.",
         (double)stats.upstream_requests},
        {"weft_relay_upstream_bytes_total", "counter", "Bytes of objects from the upstream store.",
         (double)stats.upstream_bytes},
        {"weft_relay_fetches_total", "counter", "Objects whose fetch was begun.", (double)stats.fetches},
        {"weft_relay_hits_total", "counter", "Asked for, and here.", (double)stats.hits},
        {"weft_relay_misses_total", "counter", "Asked for, and not here.", (double)stats.misses},
        {"weft_relay_joined_total", "counter", "Asked for, and on their way already.",
         (double)stats.joined},
        {"weft_relay_evictions_total", "counter", "Objects removed from the cache for want of room.",
         (double)stats.evictions},
        {"weft_relay_damaged_chunks_total", "counter", "Chunks that came wrong and were not handed on.",
         (double)stats.damaged},
        {"weft_relay_damaged_cached_chunks_total", "counter", "Chunks that were wrong in the cache.",
         (double)stats.damaged_cached},
        {"weft_relay_refused_heads_total", "counter", "Heads that were not believed.",
         (double)stats.refused_heads},
        {"weft_relay_cached_bytes", "gauge", "Bytes in the cache, with what is under way.",
         (double)stats.cached_bytes},
        {"weft_relay_cache_limit_bytes", "gauge", "Bytes that the cache may hold.",
         (double)stats.cache_limit},
        {"weft_relay_disk_full", "gauge", "1 if the last object that came could not be kept.",
         stats.disk_full},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        serve_print_metric(out, numbers[i].name, numbers[i].type, numbers[i].help, numbers[i].value);
    }
}

static weft_status hand_on(serve_server *server, weft_context *context, const char *key, const void *data,
                           size_t size) {
    return weft_relay_report(context, server->relay, key, data, size);
}

static void stop(serve_server *server) {
    weft_relay_stop(server->relay);
}

const serve_source serve_relay_source = {find_head, get_relayed, add_status, print_metrics, hand_on, stop};
