/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_reports.c: what followers tell of themselves: taken in, listed, and shown.
 *
 * Who may read may report, also to a server that is otherwise read-only: reports are small, checked before
 * they are kept, and bounded in number. They lie in the store like any object, so that others who look
 * there see them too, and followers that write into the directory are seen here. A thread reads them now
 * and then; answers are given from what it read last and touch no disk.
 */
#include "serve.h"

#include "../../lib/base/clock.h"
#include "../../lib/sync/fleet/fleet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Between looks that nothing has caused, and at least between any two. */
static const double LOOK_SECONDS = 1.0;
static const double LEAST_SECONDS = 0.1;
/* of the time that a look takes: what it may cost is a small part of a processor */
static const double LOOK_SHARE = 20;
static const double SWEEP_SECONDS = 600;

/* ---- taking in ---- */

static bool is_known(const weft_fleet *fleet, const char *name) {
    for (size_t i = 0; i < fleet->count; i++) {
        if (strcmp(fleet->followers[i]->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Names that the last look has not seen are counted as if each were another. */
static bool find_room(serve_reports *reports, serve_request *request, const char *name) {
    pthread_mutex_lock(&reports->mutex);
    const weft_fleet *fleet = &reports->fleet;
    bool known = is_known(fleet, name);
    bool room = fleet->count + fleet->left_out + reports->coming + reports->added < WEFT_FLEET_MAX;
    request->is_new = !known && room;
    reports->coming += request->is_new;
    pthread_mutex_unlock(&reports->mutex);
    return known || room;
}

bool serve_reports_concern(const char *key) {
    return strncmp(key, WEFT_REPORT_ROOM "/", sizeof WEFT_REPORT_ROOM) == 0;
}

void serve_report_begin(serve_request *request) {
    if (weft_report_name(request->key) == NULL) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST,
                     "a follower's name has 1 to 64 of A-Z a-z 0-9 . _ - and no dot first");
    } else if (request->expected != UINT64_MAX && request->expected > WEFT_REPORT_MAX) {
        serve_refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "a report has at most 2048 bytes");
    } else if (serve_field(request, "If-Match") != NULL || serve_field(request, "If-None-Match") != NULL ||
               serve_field(request, "Content-Range") != NULL ||
               serve_field(request, "Content-Encoding") != NULL) {
        serve_refuse(request, MHD_HTTP_BAD_REQUEST, "reports are put whole, as they are, and always");
    }
}

void serve_report_append(serve_request *request, const char *data, size_t size) {
    if (request->received > WEFT_REPORT_MAX) {
        serve_refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "a report has at most 2048 bytes");
        return;
    }
    memcpy(request->report + request->received - size, data, size);
}

/* Says so once, until a report can be kept again. */
static void note_outcome(serve_reports *reports, const serve_request *request) {
    bool failed = request->status != WEFT_OK;
    pthread_mutex_lock(&reports->mutex);
    bool complain = failed && !reports->complained;
    reports->complained = failed;
    reports->coming -= request->is_new;
    reports->added += request->is_new && !failed;
    reports->poked = true;
    pthread_cond_signal(&reports->wake);
    pthread_mutex_unlock(&reports->mutex);
    if (complain) {
        serve_report(reports->server, "a follower's report cannot be kept: %s",
                     weft_context_error(request->context));
    }
}

static void put_report(serve_request *request) {
    serve_reports *reports = &request->server->reports;
    request->status = weft_store_put_bytes(request->context, reports->store, request->key, request->report,
                                           (size_t)request->received, WEFT_STORE_ALWAYS, NULL, NULL);
    note_outcome(reports, request);
    if (request->status == WEFT_OK) {
        serve_onward_add(&request->server->onward, request->key, request->report,
                         (size_t)request->received);
    }
}

/* NULL: it may be kept. */
static const char *find_fault(serve_request *request, unsigned *code_out) {
    size_t watchers = 0;
    const char *name = weft_report_name(request->key);
    weft_follower follower;
    serve_head head = serve_watch_head(&request->server->watch, &watchers);
    *code_out = MHD_HTTP_BAD_REQUEST;
    if (weft_report_parse(request->context, name, request->report, (size_t)request->received, &follower) !=
        WEFT_OK) {
        return "this is not a report of that follower";
    }
    if (!head.known || strcmp(head.info.run, follower.run) != 0) {
        return "this is a report of another run";
    }
    *code_out = MHD_HTTP_INSUFFICIENT_STORAGE;
    return find_room(&request->server->reports, request, name) ? NULL : "too many followers report here";
}

enum MHD_Result serve_report_end(serve_request *request) {
    if (!request->job_done) {
        unsigned code = 0;
        const char *fault = find_fault(request, &code);
        if (fault != NULL) {
            return serve_answer_text(request, code, fault);
        }
        request->job = put_report;
        if (serve_jobs_defer(&request->server->jobs, request)) {
            return MHD_YES;
        }
    }
    return request->status == WEFT_OK ? serve_answer_empty(request, MHD_HTTP_NO_CONTENT)
                                      : serve_answer_text(request, MHD_HTTP_INSUFFICIENT_STORAGE,
                                                          "the report cannot be kept here");
}

enum MHD_Result serve_report_get(serve_request *request) {
    weft_store_get_request get = {.size = sizeof get,
                                  .key = request->key,
                                  .length = sizeof request->report,
                                  .buffer = request->report};
    weft_store_get_result result = {.size = sizeof result};
    if (weft_store_get(request->context, request->server->reports.store, &get, &result) != WEFT_OK) {
        return serve_answer_text(request, MHD_HTTP_NOT_FOUND, "there is no such report");
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer((size_t)result.received, request->report, MHD_RESPMEM_MUST_COPY);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "application/json");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    request->body = request->method == METHOD_HEAD ? 0 : result.received;
    return serve_answer(request, MHD_HTTP_OK, response);
}

/* ---- looking ---- */

static void look_for_reports(serve_reports *reports) {
    size_t watchers = 0;
    serve_head head = serve_watch_head(&reports->server->watch, &watchers);
    const weft_fleet_options options = {.size = sizeof options, .head = &head.info};
    weft_fleet fleet = {.size = sizeof fleet};
    pthread_mutex_lock(&reports->mutex);
    size_t added = reports->added;
    pthread_mutex_unlock(&reports->mutex);
    if (!head.known || weft_fleet_read(reports->context, reports->store, &options, &fleet) != WEFT_OK) {
        fleet = (weft_fleet){.size = sizeof(weft_fleet)};
    }
    pthread_mutex_lock(&reports->mutex);
    weft_fleet before = reports->fleet;
    reports->fleet = fleet;
    reports->read = clock_seconds();
    /* what came meanwhile may have been seen or not */
    reports->added -= added;
    pthread_mutex_unlock(&reports->mutex);
    weft_fleet_close(reports->context, &before);
}

/* Until `least` in any case, but for the end, and then until there is news or `most`. */
static bool wait_for_news(serve_reports *reports, double least, double most) {
    pthread_mutex_lock(&reports->mutex);
    bool in_time = true;
    while (!reports->closing && in_time) {
        in_time = weft_condition_wait(&reports->wake, &reports->mutex, least);
    }
    in_time = true;
    while (!reports->closing && !reports->poked && in_time) {
        in_time = weft_condition_wait(&reports->wake, &reports->mutex, most);
    }
    reports->poked = false;
    bool more = !reports->closing;
    pthread_mutex_unlock(&reports->mutex);
    return more;
}

static void *watch_reports(void *opaque) {
    serve_reports *reports = opaque;
    double start, end, pause;
    do {
        start = clock_seconds();
        if (clock_seconds() - reports->swept >= SWEEP_SECONDS) {
            weft_status ignored = weft_fleet_sweep(reports->context, reports->store);
            (void)ignored;
            reports->swept = clock_seconds();
        }
        look_for_reports(reports);
        end = clock_seconds();
        pause = LOOK_SHARE * (end - start);
        pause = pause > LEAST_SECONDS ? pause : LEAST_SECONDS;
    } while (wait_for_news(reports, end + pause, end + (pause > LOOK_SECONDS ? pause : LOOK_SECONDS)));
    return NULL;
}

/* ---- telling ---- */

/* Ages grow between two looks. */
static double age_now(const serve_reports *reports, const weft_follower *follower) {
    return follower->age_seconds + clock_seconds() - reports->read;
}

/* Names are made of letters that need no escape. */
char *serve_text_reports(serve_request *request, size_t *size_out) {
    serve_reports *reports = &request->server->reports;
    char *text = NULL;
    FILE *out = open_memstream(&text, size_out);
    if (out == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&reports->mutex);
    for (size_t i = 0; i < reports->fleet.count; i++) {
        const weft_follower *follower = reports->fleet.followers[i];
        fprintf(out, "{\"key\":\"" WEFT_REPORT_ROOM "/%s\",\"age\":%.3f}\n", follower->name,
                age_now(reports, follower));
    }
    pthread_mutex_unlock(&reports->mutex);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

json_t *serve_reports_list(serve_reports *reports) {
    json_t *json = json_array();
    pthread_mutex_lock(&reports->mutex);
    for (size_t i = 0; i < reports->fleet.count && i < SHOWN_MAX; i++) {
        const weft_follower *follower = reports->fleet.followers[i];
        json_array_append_new(json, remote_follower(follower, age_now(reports, follower)));
    }
    pthread_mutex_unlock(&reports->mutex);
    return json;
}

serve_fleet serve_reports_count(serve_reports *reports) {
    serve_fleet counts = {0};
    pthread_mutex_lock(&reports->mutex);
    const weft_fleet *fleet = &reports->fleet;
    counts.reports = fleet->count;
    counts.left_out = fleet->left_out;
    counts.live = fleet->live;
    counts.least_version = fleet->slowest;
    counts.most_lag = fleet->live > 0 ? fleet->followers[0]->lag : 0;
    for (size_t i = 0; i < fleet->live; i++) {
        uint64_t version = fleet->followers[i]->version;
        counts.failed += strcmp(fleet->followers[i]->state, "failed") == 0;
        counts.greatest_version = version > counts.greatest_version ? version : counts.greatest_version;
    }
    pthread_mutex_unlock(&reports->mutex);
    return counts;
}

/* ---- life ---- */

static void release(serve_reports *reports) {
    weft_fleet_close(reports->context, &reports->fleet);
    weft_store_close(reports->store);
    weft_context_destroy(reports->context);
    pthread_cond_destroy(&reports->wake);
    pthread_mutex_destroy(&reports->mutex);
}

static bool start(serve_reports *reports) {
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    /* what is old after a few seconds need not outlast a power cut */
    const weft_store_options store_options = {.size = sizeof store_options, .volatile_writes = true};
    if (weft_context_create(&options, &reports->context) != WEFT_OK ||
        weft_store_open(reports->context, reports->server->directory, &store_options, &reports->store) !=
            WEFT_OK) {
        return false;
    }
    reports->swept = -SWEEP_SECONDS;
    look_for_reports(reports);
    return pthread_create(&reports->thread, NULL, watch_reports, reports) == 0;
}

bool serve_reports_open(serve_reports *reports, serve_server *server) {
    *reports = (serve_reports){.server = server};
    weft_condition_open(&reports->wake);
    pthread_mutex_init(&reports->mutex, NULL);
    bool started = start(reports);
    if (!started) {
        release(reports);
    }
    return started;
}

void serve_reports_close(serve_reports *reports) {
    pthread_mutex_lock(&reports->mutex);
    reports->closing = true;
    pthread_cond_signal(&reports->wake);
    pthread_mutex_unlock(&reports->mutex);
    pthread_join(reports->thread, NULL);
    release(reports);
}
