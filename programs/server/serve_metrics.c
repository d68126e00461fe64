/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_metrics.c: what is counted, and how it is told: Prometheus' text format at /metrics, JSON at
 * /v1/status, a few lines for people at /.
 */
#include "../cli/metrics.h"
#include "serve.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const method_names[METHOD_COUNT] = {"GET", "HEAD", "PUT", "DELETE", "other"};
static const char *const route_names[ROUTE_COUNT] = {"object", "watch", "info"};

/* The codes that we give. The last place is for others, which there should not be. */
static const unsigned codes[CODE_COUNT] = {200, 201, 204, 206, 304, 308, 400, 401, 403, 404, 405,
                                           411, 412, 413, 416, 421, 500, 501, 502, 503, 507, 0};

/* Upper bounds in seconds. */
static const double bounds[BUCKET_COUNT] = {0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 300, INFINITY};

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void serve_metrics_open(serve_metrics *metrics) {
    metrics->started = clock_seconds();
    metrics->printed = -1;
    pthread_mutex_init(&metrics->mutex, NULL);
}

void serve_metrics_close(serve_metrics *metrics) {
    pthread_mutex_destroy(&metrics->mutex);
}

/* ---- counting ---- */

static void count_seconds(serve_histogram *histogram, double seconds) {
    size_t bucket = 0;
    while (seconds > bounds[bucket]) {
        bucket++;
    }
    atomic_fetch_add(&histogram->buckets[bucket], 1);
    atomic_fetch_add(&histogram->microseconds, (uint64_t)(seconds * 1e6));
}

void serve_metrics_count(serve_metrics *metrics, const serve_request *request, bool whole) {
    atomic_fetch_add(&metrics->received, request->received);
    if (!whole || request->code == 0) {
        atomic_fetch_add(&metrics->cut, 1);
        return;
    }
    size_t code = 0;
    while (code + 1 < CODE_COUNT && codes[code] != request->code) {
        code++;
    }
    atomic_fetch_add(&metrics->requests[request->method][code], 1);
    atomic_fetch_add(&metrics->sent, request->body);
    count_seconds(&metrics->seconds[request->route], clock_seconds() - request->started);
}

void serve_report(serve_server *server, const char *format, ...) {
    serve_metrics *metrics = &server->metrics;
    serve_error error = {.at = wall_seconds()};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error.text, sizeof error.text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&metrics->mutex);
    metrics->errors[metrics->error_count++ % ERROR_COUNT] = error;
    double now = clock_seconds();
    if (!server->command->quiet && (metrics->printed < 0 || now - metrics->printed >= 1)) {
        metrics->printed = now;
        log_write(server->command, LOG_ERROR, NULL, error.text);
    }
    pthread_mutex_unlock(&metrics->mutex);
}

/* ---- Prometheus ---- */

void serve_print_metric(FILE *out, const char *name, const char *type, const char *help, double value) {
    metrics_print(out, name, type, help, value);
}

static void print_requests(FILE *out, serve_metrics *metrics) {
    fputs("# HELP weft_serve_requests_total Requests that were answered, by method and status code.\n"
          "# TYPE weft_serve_requests_total counter\n",
          out);
    for (size_t m = 0; m < METHOD_COUNT; m++) {
        for (size_t c = 0; c < CODE_COUNT; c++) {
            uint64_t count = atomic_load(&metrics->requests[m][c]);
            if (count > 0) {
                fprintf(out, "weft_serve_requests_total{method=\"%s\",code=\"%u\"} %" PRIu64 "\n",
                        method_names[m], codes[c], count);
            }
        }
    }
}

static void print_seconds(FILE *out, serve_metrics *metrics) {
    static const char name[] = "weft_serve_request_seconds";
    fprintf(out,
            "# HELP %s Time from a request's header to the last byte of its answer; a watch waits.\n"
            "# TYPE %s histogram\n",
            name, name);
    for (size_t r = 0; r < ROUTE_COUNT; r++) {
        uint64_t count = 0;
        for (size_t b = 0; b < BUCKET_COUNT; b++) {
            char bound[16] = "+Inf";
            if (b + 1 < BUCKET_COUNT) {
                snprintf(bound, sizeof bound, "%g", bounds[b]);
            }
            count += atomic_load(&metrics->seconds[r].buckets[b]);
            fprintf(out, "%s_bucket{route=\"%s\",le=\"%s\"} %" PRIu64 "\n", name, route_names[r], bound,
                    count);
        }
        fprintf(out, "%s_sum{route=\"%s\"} %.6f\n", name, route_names[r],
                1e-6 * (double)atomic_load(&metrics->seconds[r].microseconds));
        fprintf(out, "%s_count{route=\"%s\"} %" PRIu64 "\n", name, route_names[r], count);
    }
}

static uint64_t count_errors(serve_metrics *metrics) {
    pthread_mutex_lock(&metrics->mutex);
    uint64_t count = metrics->error_count;
    pthread_mutex_unlock(&metrics->mutex);
    return count;
}

static void print_counters(FILE *out, serve_metrics *metrics) {
    print_requests(out, metrics);
    serve_print_metric(out, "weft_serve_requests_cut_total", "counter",
                       "Requests that ended before their answer was sent whole.",
                       (double)atomic_load(&metrics->cut));
    serve_print_metric(out, "weft_serve_bytes_sent_total", "counter",
                       "Bytes of bodies that were sent whole.", (double)atomic_load(&metrics->sent));
    serve_print_metric(out, "weft_serve_bytes_received_total", "counter",
                       "Bytes of bodies that were received.", (double)atomic_load(&metrics->received));
    serve_print_metric(out, "weft_serve_errors_total", "counter",
                       "Failures of the server's own, such as a full disk.", (double)count_errors(metrics));
    print_seconds(out, metrics);
}

void serve_metrics_print_site(FILE *out, serve_server *server) {
    serve_print_metric(out, "weft_serve_uptime_seconds", "gauge", "Time since the server was started.",
                       clock_seconds() - server->metrics.started);
    const serve_certificate *certificate = server->site->certificate;
    serve_print_metric(out, "weft_serve_certificate_not_after_seconds", "gauge",
                       "When the certificate expires, in seconds since 1970; 0: there is none.",
                       certificate != NULL ? (double)atomic_load(&certificate->not_after) : 0);
    serve_print_metric(out, "weft_serve_connections", "gauge", "Open connections.",
                       (double)atomic_load(&server->site->connections.count));
    serve_print_metric(out, "weft_serve_connections_limit", "gauge",
                       "Connections that may be open at once.", server->site->connections.most);
    serve_print_metric(out, "weft_serve_connections_late_total", "counter",
                       "Connections that were cut because a request or its answer took too long.",
                       (double)atomic_load(&server->site->connections.late));
    serve_print_metric(out, "weft_serve_connections_evicted_total", "counter",
                       "Connections that were cut to make room for others.",
                       (double)atomic_load(&server->site->connections.evicted));
    serve_print_metric(out, "weft_serve_watchers_limit", "gauge",
                       "Requests that may wait; others are told to poll.", server->max_watchers);
}

char *serve_metrics_text(serve_server *server, size_t *size_out) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size_out);
    if (out == NULL) {
        return NULL;
    }
    size_t watchers = 0;
    serve_head head = serve_watch_head(&server->watch, &watchers);
    print_counters(out, &server->metrics);
    if (server->site == server) {
        serve_metrics_print_site(out, server);
    }
    serve_print_metric(out, "weft_serve_watchers", "gauge", "Requests that wait for a new version.",
                       (double)watchers);
    serve_print_metric(out, "weft_serve_version", "gauge",
                       "The newest published version; 0 before the first.", (double)head.info.version);
    serve_print_metric(out, "weft_serve_epoch", "gauge", "The publisher's epoch; 0 before the first.",
                       (double)head.info.epoch);
    serve_print_metric(out, "weft_serve_published_timestamp_seconds", "gauge",
                       "When the newest version was published, by the publisher's clock.",
                       1e-3 * (double)head.info.milliseconds);
    serve_print_metric(out, "weft_serve_patch_bytes", "gauge", "Size of the newest version's patch.",
                       (double)head.info.patch_bytes);
    serve_print_metric(out, "weft_serve_dense_bytes", "gauge", "Size of the model.",
                       (double)head.info.dense_bytes);
    serve_print_metric(out, "weft_serve_changed_ratio", "gauge",
                       "Part of the model's elements that the newest version changed.",
                       head.info.total > 0 ? (double)head.info.changed / (double)head.info.total : 0);
    serve_fleet fleet = serve_reports_count(&server->reports);
    serve_print_metric(out, "weft_serve_follower_reports", "gauge",
                       "Followers that have reported within a day.", (double)fleet.reports);
    serve_print_metric(out, "weft_serve_followers_live", "gauge", "Followers that are heard of.",
                       (double)fleet.live);
    serve_print_metric(out, "weft_serve_followers_failed", "gauge",
                       "Of these, those that say that they have failed.", (double)fleet.failed);
    serve_print_metric(out, "weft_serve_followers_least_version", "gauge",
                       "The lowest version that one of them holds; 0 if none does.",
                       (double)fleet.least_version);
    serve_print_metric(out, "weft_serve_followers_greatest_version", "gauge",
                       "The highest version that one of them holds; 0 if none does.",
                       (double)fleet.greatest_version);
    serve_print_metric(out, "weft_serve_followers_most_lag", "gauge",
                       "Versions by which one of them is behind the newest, at most.",
                       (double)fleet.most_lag);
    server->source->print_metrics(server, out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- JSON ---- */

static json_t *json_fleet(const serve_fleet *fleet) {
    json_t *json = json_object();
    json_object_set_new(json, "reports", json_count(fleet->reports));
    json_object_set_new(json, "left_out", json_count(fleet->left_out));
    json_object_set_new(json, "live", json_count(fleet->live));
    json_object_set_new(json, "failed", json_count(fleet->failed));
    json_object_set_new(json, "least_version", json_count(fleet->least_version));
    json_object_set_new(json, "greatest_version", json_count(fleet->greatest_version));
    json_object_set_new(json, "most_lag", json_count(fleet->most_lag));
    return json;
}

static json_t *json_head(const serve_head *head) {
    if (!head->known) {
        return json_null();
    }
    const weft_head_info *info = &head->info;
    double age = wall_seconds() - 1e-3 * (double)info->milliseconds;
    json_t *json = json_object();
    json_object_set_new(json, "run", json_string(info->run));
    json_object_set_new(json, "epoch", json_count(info->epoch));
    json_object_set_new(json, "sequence", json_count(info->sequence));
    json_object_set_new(json, "version", json_count(info->version));
    json_object_set_new(json, "digest", json_digest(&info->digest));
    json_object_set_new(json, "published_milliseconds", json_count(info->milliseconds));
    json_object_set_new(json, "age_seconds", json_real(age));
    json_object_set_new(json, "patch_bytes", json_count(info->patch_bytes));
    json_object_set_new(json, "dense_bytes", json_count(info->dense_bytes));
    json_object_set_new(json, "density", json_ratio((double)info->changed, (double)info->total));
    json_object_set_new(json, "signed", json_boolean(info->is_signed));
    return json;
}

static json_t *json_requests(serve_metrics *metrics) {
    json_t *json = json_object();
    for (size_t m = 0; m < METHOD_COUNT; m++) {
        json_t *method = json_object();
        for (size_t c = 0; c < CODE_COUNT; c++) {
            uint64_t count = atomic_load(&metrics->requests[m][c]);
            if (count > 0) {
                char code[16];
                snprintf(code, sizeof code, "%u", codes[c]);
                json_object_set_new(method, code, json_count(count));
            }
        }
        json_object_set_new(json, method_names[m], method);
    }
    return json;
}

/* Without slashes at the end. */
static size_t path_length(const char *directory) {
    size_t end = strlen(directory);
    while (end > 1 && directory[end - 1] == '/') {
        end--;
    }
    return end;
}

/* The last part of the directory's path: where it lies is nobody's business. */
static const char *store_name(const char *directory, char name[NAME_MAX + 1]) {
    size_t end = path_length(directory);
    size_t begin = end;
    while (begin > 0 && directory[begin - 1] != '/') {
        begin--;
    }
    snprintf(name, NAME_MAX + 1, "%.*s", (int)(end - begin), directory + begin);
    return name;
}

bool serve_tells_where(const serve_server *server) {
    return server->relay == NULL || serve_tokens_needed(server, false);
}

void serve_text_hide(const serve_server *server, const char *text, char *hidden, size_t capacity) {
    if (!serve_tells_where(server)) {
        snprintf(hidden, capacity, "%s", *text != 0 ? "told to readers where reading needs a token" : "");
        return;
    }
    char name[NAME_MAX + 1];
    const char *path = server->directory;
    size_t length = path_length(path);
    store_name(path, name);
    bool secret = length > strlen(name) && *name != 0;
    size_t used = 0;
    while (*text != 0 && used + 1 < capacity) {
        if (secret && strncmp(text, path, length) == 0) {
            int added = snprintf(hidden + used, capacity - used, "%s", name);
            used += (size_t)added < capacity - used ? (size_t)added : capacity - used - 1;
            text += length;
        } else {
            hidden[used++] = *text++;
        }
    }
    hidden[used] = 0;
}

/* The newest first. */
static json_t *json_errors(serve_server *server) {
    serve_metrics *metrics = &server->metrics;
    json_t *json = json_array();
    double now = wall_seconds();
    pthread_mutex_lock(&metrics->mutex);
    for (uint64_t i = 0; i < ERROR_COUNT && i < metrics->error_count; i++) {
        const serve_error *error = &metrics->errors[(metrics->error_count - 1 - i) % ERROR_COUNT];
        char text[ERROR_TEXT];
        serve_text_hide(server, error->text, text, sizeof text);
        json_t *entry = json_object();
        json_object_set_new(entry, "age_seconds", json_real(now - error->at));
        json_object_set_new(entry, "text", json_string(text));
        json_array_append_new(json, entry);
    }
    pthread_mutex_unlock(&metrics->mutex);
    return json;
}

char *serve_text_status(serve_request *request, size_t *size_out) {
    serve_server *server = request->server;
    serve_metrics *metrics = &server->metrics;
    size_t watchers = 0;
    serve_head head = serve_watch_head(&server->watch, &watchers);
    char version[32], name[NAME_MAX + 1];
    snprintf(version, sizeof version, "%d.%d.%d", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR,
             WEFT_VERSION_PATCH);
    json_t *json = json_object();
    json_object_set_new(json, "weft", json_string(version));
    json_object_set_new(json, "store", json_string(store_name(server->directory, name)));
    json_object_set_new(json, "head", json_head(&head));
    json_object_set_new(json, "history", serve_history_summary(&server->history));
    json_object_set_new(json, "read_only", json_boolean(server->read_only));
    json_object_set_new(json, "uptime_seconds", json_real(clock_seconds() - metrics->started));
    json_object_set_new(json, "connections", json_count(atomic_load(&server->site->connections.count)));
    json_object_set_new(json, "watchers", json_count(watchers));
    serve_fleet fleet = serve_reports_count(&server->reports);
    json_object_set_new(json, "fleet", json_fleet(&fleet));
    json_object_set_new(json, "followers", serve_reports_list(&server->reports));
    json_object_set_new(json, "requests", json_requests(metrics));
    json_object_set_new(json, "requests_cut", json_count(atomic_load(&metrics->cut)));
    json_object_set_new(json, "bytes_sent", json_count(atomic_load(&metrics->sent)));
    json_object_set_new(json, "bytes_received", json_count(atomic_load(&metrics->received)));
    json_object_set_new(json, "errors", json_errors(server));
    server->source->add_status(server, json);
    char *text = NULL;
    FILE *out = open_memstream(&text, size_out);
    bool failed = out == NULL || json_dumpf(json, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(json);
    if (out != NULL) {
        putc('\n', out);
        failed |= fclose(out) != 0;
    }
    if (failed) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- for people ---- */

char *serve_text_welcome(serve_request *request, size_t *size_out) {
    serve_server *server = request->server;
    char *text = NULL;
    size_t watchers = 0;
    serve_head head = serve_watch_head(&server->watch, &watchers);
    FILE *out = open_memstream(&text, size_out);
    if (out == NULL) {
        return NULL;
    }
    fprintf(out,
            "This is a weft store: versions of a model's weights, as exact patches.\n\n"
            "Newest version: %" PRIu64 "\nWatching now:   %zu\n\n"
            "  /                    in a browser: a page with all this, which keeps itself up to date\n"
            "  /v1/status           what is here, and what was done, as JSON\n"
            "  /metrics             the same for Prometheus\n"
            "  /v1/history?since=N  the versions above N, as JSON\n"
            "  /v1/train?from=N     the steps of a trainer from N on, if one trains here, as JSON\n"
            "  /v1/watch?after=N    waits for a version above N and answers with its head\n"
            "  /KEY                 an object: GET, HEAD%s\n\n"
            "To follow it:  weft follow %s%s model.safetensors\n",
            head.info.version, watchers, server->read_only ? "" : ", PUT, DELETE", server->url,
            server->name != NULL ? server->name : "");
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
