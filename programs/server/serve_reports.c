/* SPDX-License-Identifier: Apache-2.0
 *
 * serve_reports.c: what followers tell of themselves: taken in, listed, and shown.
 *
 * Who may read may report, also to a server that is otherwise read-only: reports are small, checked before
 * they are kept, and bounded in number. They are kept in memory, and answers are given from there: a
 * thousand followers put a thousand reports a second, and as many new files would leave a disk no time for
 * objects. A thread writes them into the directory too, so that others who look there see them, and reads
 * what followers write there themselves, both as often as a small part of a processor allows. Where that is
 * more rarely than a follower reports, what is written says that it was held here for a while, as a relay
 * says it.
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
/* those that were not heard of for so many intervals are silent */
static const double SILENT_FROM = 3;
/* of those that a relay has not heard of for so many, it says nothing any more */
static const double SILENT_INTERVALS = 5;

struct serve_known {
    weft_follower follower;
    char text[WEFT_REPORT_MAX]; /* as it was put */
    size_t size;
    double came;
    bool written; /* by us, once */
    bool dirty;   /* what lies in the directory is not this */
    bool held;    /* it was written as one that was held here */
    bool met;     /* at the last look into the directory */
};

/* ---- what is known ---- */

/* With the lock, as all of these. */
static serve_known *find_known(serve_reports *reports, const char *name) {
    for (size_t i = 0; i < reports->known_count; i++) {
        if (strcmp(reports->known[i].follower.name, name) == 0) {
            return &reports->known[i];
        }
    }
    return NULL;
}

/* NULL: there are too many. */
static serve_known *add_known(serve_reports *reports) {
    if (reports->known_count + reports->left_out >= WEFT_FLEET_MAX) {
        return NULL;
    }
    if (reports->known_count == reports->known_room) {
        size_t room = reports->known_room > 0 ? 2 * reports->known_room : 16;
        serve_known *known = realloc(reports->known, room * sizeof *known);
        if (known == NULL) {
            return NULL;
        }
        reports->known = known;
        reports->known_room = room;
    }
    serve_known *added = &reports->known[reports->known_count++];
    memset(added, 0, sizeof *added);
    return added;
}

static void drop_known(serve_reports *reports, serve_known *known) {
    *known = reports->known[--reports->known_count];
}

/* ---- taking in ---- */

/* False: too many report here. */
static bool keep_report(serve_reports *reports, const weft_follower *follower, const void *text,
                        size_t size) {
    pthread_mutex_lock(&reports->mutex);
    serve_known *known = find_known(reports, follower->name);
    known = known != NULL ? known : add_known(reports);
    bool kept = known != NULL;
    if (kept) {
        known->follower = *follower;
        memcpy(known->text, text, size);
        known->size = size;
        known->came = clock_seconds();
        known->dirty = true;
        reports->poked = true;
        pthread_cond_signal(&reports->wake);
    }
    pthread_mutex_unlock(&reports->mutex);
    if (kept) {
        serve_onward_add(&reports->server->onward, follower, 0);
    }
    return kept;
}

void serve_report_forget(serve_reports *reports, const char *key) {
    const char *name = weft_report_name(key);
    pthread_mutex_lock(&reports->mutex);
    serve_known *known = name != NULL ? find_known(reports, name) : NULL;
    if (known != NULL) {
        drop_known(reports, known);
        reports->poked = true;
        pthread_cond_signal(&reports->wake);
    }
    pthread_mutex_unlock(&reports->mutex);
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

/* NULL: it is kept. */
static const char *find_fault(serve_request *request, unsigned *code_out) {
    size_t watchers = 0;
    const char *name = weft_report_name(request->key);
    weft_follower *follower = &request->follower;
    serve_head head = serve_watch_head(&request->server->watch, &watchers);
    size_t size = (size_t)request->received;
    *code_out = MHD_HTTP_BAD_REQUEST;
    if (weft_report_parse(request->context, name, request->report, size, follower) != WEFT_OK) {
        return "this is not a report of that follower";
    }
    if (!head.known || strcmp(head.info.run, follower->run) != 0) {
        return "this is a report of another run";
    }
    *code_out = MHD_HTTP_INSUFFICIENT_STORAGE;
    return keep_report(&request->server->reports, follower, request->report, size)
               ? NULL
               : "too many followers report here";
}

enum MHD_Result serve_report_end(serve_request *request) {
    unsigned code = 0;
    const char *fault = find_fault(request, &code);
    return fault == NULL ? serve_answer_empty(request, MHD_HTTP_NO_CONTENT)
                         : serve_answer_text(request, code, fault);
}

/* ---- many at once ---- */

bool serve_reports_batch(const serve_request *request) {
    return request->method == METHOD_PUT && strcmp(request->key, WEFT_REPORT_BATCH_KEY) == 0;
}

void serve_batch_begin(serve_request *request) {
    if (request->expected == UINT64_MAX) {
        serve_refuse(request, MHD_HTTP_LENGTH_REQUIRED, "say how long the batch is");
        return;
    }
    if (request->expected > WEFT_REPORT_BATCH_MAX) {
        serve_refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "a batch of reports has at most 524288 bytes");
        return;
    }
    request->batch = malloc((size_t)request->expected + 1);
    if (request->batch == NULL) {
        serve_refuse(request, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory for this batch");
    }
}

/* libmicrohttpd gives no more than was announced. */
void serve_batch_append(serve_request *request, const char *data, size_t size) {
    memcpy(request->batch + request->batch_size, data, size);
    request->batch_size += size;
}

/* One line. What is no report, or of another run, is passed over: it is not the relay's fault. */
static void put_line(serve_request *request, weft_follower *follower, double age, const char *run) {
    uint8_t data[WEFT_REPORT_MAX];
    size_t size = 0;
    follower->relayed = true;
    follower->relay_seconds += age;
    if (strcmp(follower->run, run) == 0 &&
        weft_report_format(request->context, follower, data, &size) == WEFT_OK) {
        (void)keep_report(&request->server->reports, follower, data, size);
    }
}

static void put_batch(serve_request *request) {
    size_t watchers = 0;
    serve_head head = serve_watch_head(&request->server->watch, &watchers);
    const char *text = request->batch;
    size_t left = request->batch_size;
    size_t before = left + 1;
    while (left > 0 && left < before && head.known) {
        double age = 0;
        before = left;
        if (weft_report_line_parse(request->context, &text, &left, &request->follower, &age) == WEFT_OK) {
            put_line(request, &request->follower, age, head.info.run);
        }
    }
    request->is_whole = left == 0;
}

enum MHD_Result serve_batch_end(serve_request *request) {
    if (!request->job_done) {
        request->job = put_batch;
        if (serve_jobs_defer(&request->server->site->jobs, request)) {
            return MHD_YES;
        }
    }
    return request->is_whole
               ? serve_answer_empty(request, MHD_HTTP_NO_CONTENT)
               : serve_answer_text(request, MHD_HTTP_BAD_REQUEST,
                                   "this is not a batch of reports, or there is no run here yet");
}

/* From memory; from the directory if it was just written there, or is of no run that is known. */
static bool find_report(serve_request *request, size_t *size_out) {
    serve_reports *reports = &request->server->reports;
    const char *name = weft_report_name(request->key);
    pthread_mutex_lock(&reports->mutex);
    const serve_known *known = name != NULL ? find_known(reports, name) : NULL;
    bool found = known != NULL && known->size > 0;
    if (found) {
        memcpy(request->report, known->text, known->size);
        *size_out = known->size;
    }
    pthread_mutex_unlock(&reports->mutex);
    if (!found) {
        weft_store_get_request get = {.size = sizeof get,
                                      .key = request->key,
                                      .length = sizeof request->report,
                                      .buffer = request->report};
        weft_store_get_result result = {.size = sizeof result};
        found = weft_store_get(request->context, reports->store, &get, &result) == WEFT_OK;
        *size_out = (size_t)result.received;
    }
    return found;
}

enum MHD_Result serve_report_get(serve_request *request) {
    size_t size = 0;
    if (!find_report(request, &size)) {
        return serve_answer_text(request, MHD_HTTP_NOT_FOUND, "there is no such report");
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, request->report, MHD_RESPMEM_MUST_COPY);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "application/json");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    request->body = request->method == METHOD_HEAD ? 0 : size;
    return serve_answer(request, MHD_HTTP_OK, response);
}

/* ---- the directory ---- */

/* Says so once, until a report can be written again. */
static void note_outcome(serve_reports *reports, weft_status status) {
    bool failed = status != WEFT_OK;
    if (failed && !reports->complained) {
        serve_report(reports->server, "a follower's report cannot be written: %s",
                     weft_context_error(reports->context));
    }
    reports->complained = failed;
}

/* As it was put; or, if it will be a while until the next time, as one that was held here so long. */
static weft_status write_report(serve_reports *reports, serve_known *copy, bool *held_out) {
    char key[WEFT_KEY_SIZE];
    weft_follower *follower = &copy->follower;
    weft_report_key(follower->name, key);
    double age = clock_seconds() - copy->came;
    bool rare = reports->disk_pause > follower->interval_seconds;
    *held_out = rare && age < SILENT_FROM * follower->interval_seconds;
    if (rare || copy->held) {
        follower->relayed = true;
        follower->relay_seconds += age;
        weft_status status =
            weft_report_format(reports->context, follower, (uint8_t *)copy->text, &copy->size);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return weft_store_put_bytes(reports->context, reports->store, key, copy->text, copy->size,
                                WEFT_STORE_ALWAYS, NULL, NULL);
}

/* Takes what is to be written off the list; false if there is no such place any more. */
static bool take_dirty(serve_reports *reports, size_t place, serve_known *copy, bool *dirty_out) {
    pthread_mutex_lock(&reports->mutex);
    bool there = place < reports->known_count;
    *dirty_out = there && reports->known[place].dirty;
    if (*dirty_out) {
        *copy = reports->known[place];
        reports->known[place].dirty = false;
    }
    pthread_mutex_unlock(&reports->mutex);
    return there;
}

/* Writes what has changed. The list may change meanwhile: what moves within it is met the next time. */
static void write_reports(serve_reports *reports) {
    serve_known *copy = malloc(sizeof *copy);
    bool dirty = false;
    for (size_t i = 0; copy != NULL && take_dirty(reports, i, copy, &dirty); i++) {
        if (!dirty) {
            continue;
        }
        bool held = false;
        weft_status status = write_report(reports, copy, &held);
        note_outcome(reports, status);
        pthread_mutex_lock(&reports->mutex);
        serve_known *known = find_known(reports, copy->follower.name);
        if (known != NULL) {
            known->written = known->written || status == WEFT_OK;
            known->held = status == WEFT_OK ? held : known->held;
            known->dirty = known->dirty || status != WEFT_OK;
        }
        pthread_mutex_unlock(&reports->mutex);
    }
    free(copy);
}

/* Takes over what a follower has written into the directory itself. What we wrote says nothing new. */
static void meet_report(serve_reports *reports, const weft_follower *found, double now) {
    serve_known *known = find_known(reports, found->name);
    bool news = known == NULL || !known->written || found->milliseconds > known->follower.milliseconds;
    known = known != NULL ? known : add_known(reports);
    if (known == NULL) {
        return;
    }
    known->met = true;
    if (news && !known->dirty) {
        known->follower = *found;
        known->came = now - (found->age_seconds - found->relay_seconds);
        known->written = false;
        known->size = 0;
    }
}

/* What is neither there nor to be written has been removed. */
static void read_reports(serve_reports *reports, const weft_head_info *head) {
    const weft_fleet_options options = {.size = sizeof options, .head = head};
    weft_fleet fleet = {.size = sizeof fleet};
    if (weft_fleet_read(reports->context, reports->store, &options, &fleet) != WEFT_OK) {
        return;
    }
    pthread_mutex_lock(&reports->mutex);
    double now = clock_seconds();
    for (size_t i = 0; i < reports->known_count; i++) {
        reports->known[i].met = false;
    }
    reports->left_out = 0;
    for (size_t i = 0; i < fleet.count; i++) {
        meet_report(reports, fleet.followers[i], now);
    }
    for (size_t i = reports->known_count; i > 0; i--) {
        if (!reports->known[i - 1].met && !reports->known[i - 1].dirty) {
            drop_known(reports, &reports->known[i - 1]);
        }
    }
    reports->left_out = fleet.left_out;
    pthread_mutex_unlock(&reports->mutex);
    weft_fleet_close(reports->context, &fleet);
}

/* ---- looking ---- */

/* A relay tells of followers that have fallen silent, for a while: who is handed on with the age of its
 * report is no longer live at the next store either, and until then it is. */
static void tell_silence(serve_reports *reports) {
    const weft_fleet *fleet = &reports->fleet;
    for (size_t i = fleet->live; i < fleet->count; i++) {
        const weft_follower *follower = fleet->followers[i];
        bool lately = follower->age_seconds < SILENT_INTERVALS * follower->interval_seconds;
        if (lately && strcmp(follower->state, "ended") != 0) {
            serve_onward_add(&reports->server->onward, follower,
                             follower->age_seconds - follower->relay_seconds);
        }
    }
}

/* Of one that has fallen silent who reads the directory must be told, if what lies there says that it was
 * held here, which can be believed for long. */
static void mark_silent(serve_reports *reports) {
    for (size_t i = reports->fleet.live; i < reports->fleet.count; i++) {
        serve_known *known = find_known(reports, reports->fleet.followers[i]->name);
        if (known != NULL && known->held && strcmp(known->follower.state, "ended") != 0) {
            known->dirty = true;
        }
    }
}

/* Makes the fleet of what is known now. */
static void arrange_reports(serve_reports *reports, const serve_head *head) {
    weft_fleet fleet = {.size = sizeof fleet};
    pthread_mutex_lock(&reports->mutex);
    size_t count = head->known ? reports->known_count : 0;
    size_t left_out = reports->left_out;
    weft_follower *followers = calloc(count + 1, sizeof *followers);
    double *ages = calloc(count + 1, sizeof *ages);
    bool room = followers != NULL && ages != NULL;
    double now = clock_seconds();
    for (size_t i = 0; i < count && room; i++) {
        followers[i] = reports->known[i].follower;
        ages[i] = now - reports->known[i].came;
    }
    pthread_mutex_unlock(&reports->mutex);
    if (!room ||
        weft_fleet_make(reports->context, &head->info, followers, ages, count, &fleet) != WEFT_OK) {
        fleet = (weft_fleet){.size = sizeof(weft_fleet)};
    }
    fleet.left_out += left_out;
    free(followers);
    free(ages);
    pthread_mutex_lock(&reports->mutex);
    weft_fleet before = reports->fleet;
    reports->fleet = fleet;
    reports->read = now;
    mark_silent(reports);
    pthread_mutex_unlock(&reports->mutex);
    weft_fleet_close(reports->context, &before);
}

/* The directory is written and read as often as its share allows; the rest is memory. */
static void look_for_reports(serve_reports *reports) {
    size_t watchers = 0;
    serve_head head = serve_watch_head(&reports->server->watch, &watchers);
    double start = clock_seconds();
    if (head.known && start >= reports->disk_at) {
        write_reports(reports);
        read_reports(reports, &head.info);
        double end = clock_seconds();
        double pause = LOOK_SHARE * (end - start);
        reports->disk_pause = pause > LEAST_SECONDS ? pause : LEAST_SECONDS;
        reports->disk_at = end + reports->disk_pause;
    }
    arrange_reports(reports, &head);
    if (reports->server->source->hand_on != NULL && atomic_load(&reports->hands_on)) {
        tell_silence(reports);
    }
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
    double start, pause;
    do {
        if (clock_seconds() - reports->swept >= SWEEP_SECONDS) {
            weft_status ignored = weft_fleet_sweep(reports->context, reports->store);
            (void)ignored;
            reports->swept = clock_seconds();
        }
        start = clock_seconds();
        look_for_reports(reports);
        pause = LEAST_SECONDS + clock_seconds() - start;
        pause = pause < LOOK_SECONDS ? pause : LOOK_SECONDS;
    } while (wait_for_news(reports, clock_seconds() + pause, clock_seconds() + LOOK_SECONDS));
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

/* They are copied, so that nobody waits while they are written out. */
static weft_follower *copy_followers(serve_reports *reports, size_t *count_out, double *read_out) {
    pthread_mutex_lock(&reports->mutex);
    size_t count = reports->fleet.count;
    weft_follower *copies = calloc(count + 1, sizeof *copies);
    for (size_t i = 0; i < count && copies != NULL; i++) {
        copies[i] = *reports->fleet.followers[i];
    }
    *read_out = reports->read;
    pthread_mutex_unlock(&reports->mutex);
    *count_out = copies != NULL ? count : 0;
    return copies;
}

void serve_reports_collect(serve_request *request) {
    size_t count = 0;
    double read = 0;
    weft_follower *followers = copy_followers(&request->server->reports, &count, &read);
    FILE *out = followers != NULL ? open_memstream(&request->batch, &request->batch_size) : NULL;
    for (size_t i = 0; i < count && out != NULL; i++) {
        char line[WEFT_REPORT_LINE_MAX];
        size_t size = 0;
        double age = followers[i].age_seconds - followers[i].relay_seconds + clock_seconds() - read;
        if (weft_report_line_format(request->context, &followers[i], age, line, &size) == WEFT_OK) {
            fwrite(line, 1, size, out);
        }
    }
    if (out != NULL && fclose(out) != 0) {
        free(request->batch);
        request->batch = NULL;
    }
    free(followers);
}

char *serve_text_batch(serve_request *request, size_t *size_out) {
    char *text = request->batch;
    *size_out = request->batch_size;
    request->batch = NULL;
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
    free(reports->known);
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
    write_reports(reports);
    release(reports);
}
