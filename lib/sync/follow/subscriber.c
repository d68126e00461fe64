/* SPDX-License-Identifier: Apache-2.0
 *
 * subscriber.c: a replica that follows a run: follow.c finds the head, planner.c the route, objects/fetch.c
 * gets each step's object, and replica.c applies it.
 *
 * What goes wrong with a step decides what is done about it (heal_step):
 *   the network or the disk   the call fails, and may be made again; nothing has changed
 *   an object is missing      it may be late: wait a little, then plan around it
 *   an object is damaged      it was fetched again already: plan around it
 *   the replica has drifted   it is not believed any more: start from an anchor
 *   no route is left          the call fails, and says why
 */
#include "subscriber.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../../base/sized.h"
#include "../../patch/format/patch.h"
#include "../format/leap.h"
#include "../objects/fetch.h"
#include "follow.h"
#include "planner.h"
#include "replica.h"
#include "reporter.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 512 };

static const uint64_t AUDIT_BYTES = (uint64_t)16 << 20;
static const uint64_t FETCH_BYTES = (uint64_t)256 << 20;
/* the longest that a store is asked to wait */
static const double WATCH_SECONDS = 25;
/* between two long polls that end without news */
static const double WATCH_PAUSE_SECONDS = 1;

/* The version that the replica is at. */
typedef struct position {
    uint64_t version;
    uint64_t milliseconds;
    weft_texts labels;
} position;

struct weft_subscriber {
    weft_context *context;
    pid_t process; /* that opened it */
    weft_store *store;
    weft_subscriber_options options;
    double idle_seconds; /* the longest pause between two looks; 0: the store is not polled with care */
    weft_follow follow;
    weft_replica replica;
    /* opened by a layout: the view that was made from it, and the anchor whose table it refers to */
    weft_view *own_view;
    weft_patch *layout_patch;
    weft_fetch *layout_fetch;

    weft_step_listener listener;

    weft_route route;
    weft_texts avoid;               /* keys of objects that routes go around */
    char trouble[TEXT_BYTES];       /* why the last route was given up */
    bool looked;                    /* the head was read since the last prepare */
    weft_watermark mark_at_opening; /* of a checkpoint */
    bool ours;                      /* what stands at the path of a checkpoint may be replaced */
    char missing[WEFT_KEY_SIZE];    /* an object that was not there, and since when */
    double missing_since;
    bool doubted; /* what the replica recalled was given up, and nothing has arrived since */

    /* the prepared step */
    weft_fetch *fetch;
    weft_patch *patch;
    bool prepared;

    position here;
    position before; /* the last commit, for a rollback */
    weft_store_traffic traffic_at_opening;
    weft_subscriber_info info;
    weft_reporter *reporter; /* NULL: it does not report */
    bool in_phase_function;  /* the caller's, which must not call back */
};

static void report_phase(weft_subscriber *subscriber, weft_sync_phase phase, uint64_t version,
                         double seconds, uint64_t bytes) {
    if (subscriber->options.phase != NULL) {
        subscriber->in_phase_function = true;
        subscriber->options.phase(subscriber->options.phase_opaque, phase, version, seconds, bytes);
        subscriber->in_phase_function = false;
    }
    weft_reporter_phase(subscriber->reporter, phase, seconds);
}

/* Updates what is reported to the fleet. */
static void report_state(const weft_subscriber *subscriber, const char *state, bool news) {
    if (subscriber->reporter != NULL) {
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(subscriber, &info);
        const char *run = subscriber->follow.seen ? subscriber->follow.head.run : "";
        weft_reporter_tell(subscriber->reporter, run, &info, state, news);
    }
}

/* The same after an operation that may have failed. */
static weft_status report_outcome(const weft_subscriber *subscriber, weft_status status, const char *state,
                                  bool news) {
    bool failed = status < 0 && status != WEFT_CANCELLED;
    if (failed) {
        const char *text = weft_context_error(subscriber->context);
        weft_reporter_error(subscriber->reporter, text[0] != '\0' ? text : weft_status_name(status));
    }
    report_state(subscriber, failed ? "failed" : state, failed || news);
    return status;
}

/* The version that the replica is at; 0 if it has to be found in the history, by its digest. */
static uint64_t remembered_version(const weft_subscriber *subscriber) {
    const weft_watermark *mark = &subscriber->mark_at_opening;
    if (subscriber->here.version != 0) {
        return subscriber->here.version;
    }
    if (subscriber->replica.loaded_version != 0) {
        return subscriber->replica.loaded_version;
    }
    return weft_digest_equal(&mark->digest, &subscriber->replica.digest) ? mark->version : 0;
}

/* ---- life ---- */

static weft_status create_subscriber(weft_context *context, weft_store *store,
                                     const weft_subscriber_options *options,
                                     weft_subscriber **subscriber_out) {
    weft_context_clear(context);
    weft_subscriber *subscriber = weft_allocate_zeroed(context, 1, sizeof *subscriber);
    if (subscriber == NULL) {
        return WEFT_NO_MEMORY;
    }
    subscriber->context = context;
    subscriber->process = getpid();
    subscriber->store = store;
    weft_status status = weft_sized_read(context, options, &subscriber->options, sizeof subscriber->options,
                                         "weft_subscriber_options");
    if (status != WEFT_OK) {
        weft_release(context, subscriber);
        return status;
    }
    weft_subscriber_options *chosen = &subscriber->options;
    chosen->audit_bytes = chosen->audit_bytes != 0 ? chosen->audit_bytes : AUDIT_BYTES;
    chosen->fetch_bytes = chosen->fetch_bytes != 0 ? chosen->fetch_bytes : FETCH_BYTES;
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    bool given = chosen->poll_seconds > 0; /* NaN, too, would poll without a pause */
    chosen->poll_seconds = given ? chosen->poll_seconds : traits.poll_seconds;
    if (traits.idle_seconds > 0) {
        subscriber->idle_seconds = given ? chosen->poll_seconds : traits.idle_seconds;
    }
    subscriber->traffic_at_opening.size = sizeof subscriber->traffic_at_opening;
    weft_store_traffic_of(store, &subscriber->traffic_at_opening);
    weft_route_open(&subscriber->route, context);
    subscriber->replica.context = context;
    subscriber->follow.context = context;
    *subscriber_out = subscriber;
    return WEFT_OK;
}

static void drop_step(weft_subscriber *subscriber) {
    weft_patch_close(subscriber->patch);
    weft_fetch_close(subscriber->fetch);
    subscriber->patch = NULL;
    subscriber->fetch = NULL;
    subscriber->prepared = false;
}

void weft_subscriber_close(weft_subscriber *subscriber) {
    if (subscriber == NULL || !weft_process_is(subscriber->process)) {
        return;
    }
    weft_context *context = subscriber->context;
    weft_reporter_close(subscriber->reporter);
    weft_replica_save(&subscriber->replica, remembered_version(subscriber));
    weft_replica_close(&subscriber->replica);
    drop_step(subscriber);
    weft_route_clear(&subscriber->route);
    weft_texts_close(&subscriber->avoid, context);
    weft_texts_close(&subscriber->here.labels, context);
    weft_texts_close(&subscriber->before.labels, context);
    weft_view_destroy(subscriber->own_view);
    weft_patch_close(subscriber->layout_patch);
    weft_fetch_close(subscriber->layout_fetch);
    weft_follow_close(&subscriber->follow);
    weft_release(context, subscriber);
}

static weft_status finish_open(weft_subscriber *subscriber, weft_status status,
                               weft_subscriber **subscriber_out) {
    const weft_subscriber_options *options = &subscriber->options;
    if (status == WEFT_OK && options->report_name != NULL) {
        status = weft_reporter_open(subscriber->context, subscriber->store, options, &subscriber->reporter);
    }
    if (status != WEFT_OK) {
        weft_subscriber_close(subscriber);
        return status;
    }
    subscriber->options.report_name = NULL; /* was the caller's, as the cuts were */
    subscriber->options.cuts = NULL;
    subscriber->options.cut_count = 0;
    *subscriber_out = subscriber;
    return WEFT_OK;
}

weft_status weft_subscriber_open(weft_context *context, weft_store *store, const weft_view *view,
                                 const weft_subscriber_options *options, weft_subscriber **subscriber_out) {
    weft_subscriber *subscriber;
    weft_status status = create_subscriber(context, store, options, &subscriber);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_subscriber_options *chosen = &subscriber->options;
    status =
        weft_follow_open(&subscriber->follow, context, store, chosen->trusted, chosen->state_path, false);
    if (status == WEFT_OK) {
        status = weft_follow_keep(&subscriber->follow);
    }
    if (status == WEFT_OK) {
        status = weft_replica_open_live(&subscriber->replica, context, view, chosen->empty);
    }
    subscriber->ours = true;
    return finish_open(subscriber, status, subscriber_out);
}

static weft_status open_file(weft_subscriber *subscriber, const char *path) {
    weft_context *context = subscriber->context;
    const weft_subscriber_options *options = &subscriber->options;
    char *mark_path = NULL;
    weft_status status = weft_watermark_path(context, path, &mark_path);
    if (status == WEFT_OK) {
        const char *chosen = options->state_path != NULL ? options->state_path : mark_path;
        status = weft_follow_open(&subscriber->follow, context, subscriber->store, options->trusted, chosen,
                                  options->durable);
    }
    weft_release(context, mark_path);
    subscriber->mark_at_opening = subscriber->follow.mark;
    subscriber->ours = subscriber->follow.mark.run[0] != '\0' || options->replace;
    if (status == WEFT_OK) {
        status =
            weft_replica_open_file(&subscriber->replica, context, path, options->durable, subscriber->ours);
    }
    /* what is recalled of a version is of one run, which only the mark tells */
    if (status == WEFT_OK && subscriber->follow.mark.run[0] == '\0') {
        weft_replica_skip(&subscriber->replica, false);
    }
    if (status == WEFT_OK && (subscriber->ours || !subscriber->replica.present)) {
        subscriber->ours = true;
        status = weft_follow_keep(&subscriber->follow);
    }
    return status;
}

weft_status weft_subscriber_open_file(weft_context *context, weft_store *store, const char *path,
                                      const weft_subscriber_options *options,
                                      weft_subscriber **subscriber_out) {
    weft_subscriber *subscriber;
    weft_status status = create_subscriber(context, store, options, &subscriber);
    if (status != WEFT_OK) {
        return status;
    }
    return finish_open(subscriber, open_file(subscriber, path), subscriber_out);
}

/* Opens an anchor for its table, which says what the checkpoint's tensors are. It lies at the ends of the
 * object, and only these are fetched. */
static weft_status read_table(weft_subscriber *subscriber) {
    weft_context *context = subscriber->context;
    weft_follow *follow = &subscriber->follow;
    weft_status status = weft_follow_look(follow);
    if (status < 0) {
        return status;
    }
    weft_page *page = NULL;
    if (follow->head.started) {
        status = weft_history_front(context, subscriber->store, &follow->head, &page);
    }
    if (status >= 0 && (page == NULL || page->anchor_count == 0)) {
        status = weft_fail(context, WEFT_NOT_FOUND, "%s: nothing is published there yet",
                           weft_store_url(subscriber->store));
    }
    if (status >= 0) {
        status = weft_fetch_open(context, subscriber->store, &page->anchors[0].object,
                                 subscriber->options.fetch_bytes, false, &subscriber->layout_fetch);
    }
    weft_history_release(context, page);
    if (status != WEFT_OK) {
        return status;
    }
    weft_source source = weft_fetch_source(subscriber->layout_fetch);
    status = weft_patch_open(context, &source, &subscriber->layout_patch);
    return weft_fetch_explain(context, subscriber->layout_fetch, status);
}

weft_status weft_subscriber_open_layout(weft_context *context, weft_store *store, const weft_table *table,
                                        const weft_layout *layout, const weft_subscriber_options *options,
                                        weft_subscriber **subscriber_out) {
    weft_subscriber *subscriber;
    weft_status status = create_subscriber(context, store, options, &subscriber);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_subscriber_options *chosen = &subscriber->options;
    subscriber->ours = true;
    status =
        weft_follow_open(&subscriber->follow, context, store, chosen->trusted, chosen->state_path, false);
    if (status == WEFT_OK) {
        status = weft_follow_keep(&subscriber->follow);
    }
    if (status == WEFT_OK) {
        status = read_table(subscriber);
    }
    if (status == WEFT_OK) {
        status = weft_view_create_layout(context, table, layout, weft_patch_table(subscriber->layout_patch),
                                         &subscriber->own_view);
    }
    if (status == WEFT_OK) {
        bool blank = chosen->empty || !weft_view_complete(subscriber->own_view);
        status = weft_replica_open_live(&subscriber->replica, context, subscriber->own_view, blank);
    }
    return finish_open(subscriber, status, subscriber_out);
}

/* ---- waiting for a version ---- */

/* A newer head may name other objects: nothing is avoided any more. */
static weft_status take_look(weft_subscriber *subscriber, weft_status status) {
    if (status >= 0) {
        subscriber->looked = true;
    }
    if (status == WEFT_OK) {
        weft_texts_close(&subscriber->avoid, subscriber->context);
    }
    return status;
}

static weft_status look_at_head(weft_subscriber *subscriber) {
    return take_look(subscriber, weft_follow_look(&subscriber->follow));
}

/* How long after one look the next is due, where nobody can wait on the store. */
static double choose_pause(const weft_subscriber *subscriber) {
    double least = subscriber->options.poll_seconds;
    double most = subscriber->idle_seconds;
    return most > least ? weft_follow_pause(&subscriber->follow, least, most) : least;
}

/* A look within a wait. At a store that is polled with care it costs one request, and none before it is
 * due, however short the waits are. */
static weft_status look_again(weft_subscriber *subscriber) {
    weft_follow *follow = &subscriber->follow;
    if (!(subscriber->idle_seconds > 0) || !follow->seen || !follow->polls) {
        return look_at_head(subscriber);
    }
    double pause = choose_pause(subscriber);
    return weft_clock_now() < follow->looked + pause
               ? WEFT_MORE
               : take_look(subscriber, weft_follow_glance(follow, pause));
}

static bool is_behind(const weft_subscriber *subscriber) {
    const weft_follow *follow = &subscriber->follow;
    return follow->seen && follow->head.started &&
           (!subscriber->replica.known || subscriber->here.version != follow->head.newest.version ||
            !weft_digest_equal(&subscriber->replica.digest, &follow->head.newest.digest));
}

/* One long poll, or one pause and a look at the head. After a long poll without news the rest of a pause is
 * slept: a store that answers at once is not asked in a tight loop. That pause is at most
 * WATCH_PAUSE_SECONDS, however long the caller's poll_seconds are. */
static weft_status await_news(weft_subscriber *subscriber, double seconds) {
    weft_follow *follow = &subscriber->follow;
    uint64_t after = follow->seen ? follow->head.newest.version : 0;
    double start = weft_clock_now();
    weft_status status =
        weft_follow_watch(follow, after, seconds < WATCH_SECONDS ? seconds : WATCH_SECONDS);
    if (status == WEFT_OK) {
        weft_texts_close(&subscriber->avoid, subscriber->context);
        subscriber->looked = true;
        return WEFT_OK;
    }
    if (status == WEFT_MORE || status == WEFT_UNSUPPORTED) {
        double pause = choose_pause(subscriber);
        bool paced = status == WEFT_UNSUPPORTED && subscriber->idle_seconds > 0;
        pause = status == WEFT_MORE && pause > WATCH_PAUSE_SECONDS ? WATCH_PAUSE_SECONDS : pause;
        pause = paced ? follow->looked + pause - start : pause;
        double rest = (seconds < pause ? seconds : pause) - (weft_clock_now() - start);
        status = rest > 0 ? weft_clock_sleep(subscriber->context, rest) : WEFT_OK;
    }
    return status >= 0 ? look_again(subscriber) : status;
}

static weft_status wait_for_news(weft_subscriber *subscriber, double seconds, uint64_t *version_out) {
    weft_progress_begin(subscriber->context, "wait", 0);
    double start = weft_clock_now();
    /* A store that can wait tells all that a look would. Without time, only a look tells. */
    bool watched = seconds > 0 && subscriber->follow.seen && !subscriber->follow.polls;
    weft_status status = watched       ? WEFT_MORE
                         : seconds > 0 ? look_again(subscriber)
                                       : look_at_head(subscriber);
    while (!is_behind(subscriber) && (status >= 0 || status == WEFT_NOT_FOUND)) {
        double left = start + seconds - weft_clock_now();
        if (!(left > 0)) { /* NaN is over, too */
            return WEFT_MORE;
        }
        status = await_news(subscriber, left);
    }
    if (status < 0) {
        return status;
    }
    report_phase(subscriber, WEFT_SYNC_WAIT, subscriber->follow.head.newest.version,
                 weft_clock_now() - start, 0);
    if (version_out != NULL) {
        *version_out = subscriber->follow.head.newest.version;
    }
    return WEFT_OK;
}

/* Every public call but those that describe begins with this. */
static weft_status enter_call(const weft_subscriber *subscriber) {
    weft_status status = weft_context_enter(subscriber->context);
    if (status == WEFT_OK && subscriber->in_phase_function) {
        return weft_fail(
            subscriber->context, WEFT_BUSY,
            "this subscriber waits for its phase function; go on with it after the call under way");
    }
    return status == WEFT_OK
               ? weft_process_check(subscriber->context, subscriber->process, "this subscriber")
               : status;
}

weft_status weft_subscriber_wait(weft_subscriber *subscriber, double seconds, uint64_t *version_out) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    report_state(subscriber, "waiting", false);
    weft_status status = wait_for_news(subscriber, seconds, version_out);
    /* A prepare goes by what a wait has found. One that found nothing has seen the past only. */
    subscriber->looked = subscriber->looked && status == WEFT_OK;
    return report_outcome(subscriber, status, "waiting", false);
}

/* ---- planning ---- */

static weft_status choose_target(weft_subscriber *subscriber, uint64_t version, uint64_t *target_out) {
    weft_follow *follow = &subscriber->follow;
    weft_context *context = subscriber->context;
    const char *url = weft_store_url(subscriber->store);
    weft_status status = subscriber->looked ? WEFT_OK : look_at_head(subscriber);
    if (status < 0) {
        return status;
    }
    uint64_t newest = follow->seen ? follow->head.newest.version : 0;
    if (newest == 0 && follow->mark.epoch > 0 && !follow->seen) {
        return weft_fail(context, WEFT_NOT_FOUND,
                         "%s has no head as new as one that was seen there before (epoch %llu, sequence "
                         "%llu): it lags behind, or somebody has put back an older state of it",
                         url, (unsigned long long)follow->mark.epoch,
                         (unsigned long long)follow->mark.sequence);
    }
    if (newest == 0) {
        return weft_fail(context, WEFT_NOT_FOUND, "%s: nothing is published there yet", url);
    }
    if (version > newest) {
        return weft_fail(context, WEFT_NOT_FOUND,
                         "%s: version %llu is not published yet; the newest is %llu", url,
                         (unsigned long long)version, (unsigned long long)newest);
    }
    *target_out = version != 0 ? version : newest;
    return WEFT_OK;
}

static weft_status set_here(weft_subscriber *subscriber, const weft_record *record) {
    weft_record copy;
    weft_status status = weft_record_copy(subscriber->context, record, &copy);
    if (status == WEFT_OK) {
        weft_texts_close(&subscriber->here.labels, subscriber->context);
        subscriber->here = (position){copy.version, copy.milliseconds, copy.labels};
        weft_texts_close(&copy.retired, subscriber->context);
        weft_leaps_close(&copy.leaps, subscriber->context);
    }
    return status;
}

/* The checkpoint is at a version of this run, so it is ours from now on. */
static weft_status adopt_run(weft_subscriber *subscriber) {
    subscriber->ours = true;
    return weft_follow_keep(&subscriber->follow);
}

/* The replica has the state of this version already, though it may have come to that by another one. */
static weft_status arrive(weft_subscriber *subscriber, const weft_record *record) {
    uint64_t version = remembered_version(subscriber);
    if (version != record->version) {
        weft_replica_skip(&subscriber->replica, version != 0 && version + 1 == record->version);
    }
    weft_status status = set_here(subscriber, record);
    return status == WEFT_OK ? adopt_run(subscriber) : status;
}

/* Refuses a route that replaces a checkpoint which somebody else put there. */
static weft_status check_may_replace(const weft_subscriber *subscriber) {
    const weft_route *route = &subscriber->route;
    if (subscriber->ours || route->count == 0 || !route->steps[0].anchor) {
        return WEFT_OK;
    }
    return weft_fail(
        subscriber->context, WEFT_INVALID_ARGUMENT,
        "%s holds a model that is of no version of this run; choose another place, or let it be "
        "replaced (--replace)",
        subscriber->replica.path);
}

/* A route that was begun is followed to its end, unless another version is wanted. */
static bool route_leads_to(const weft_route *route, uint64_t version) {
    return route->next < route->count &&
           (version == 0 || route->steps[route->count - 1].record.version == version);
}

static bool has_arrived(const weft_subscriber *subscriber, uint64_t target) {
    const weft_record *newest = &subscriber->follow.head.newest;
    return subscriber->replica.known && target == newest->version &&
           weft_digest_equal(&subscriber->replica.digest, &newest->digest);
}

/* Afterwards the route has a next step, or the replica is at the version and the route is empty. */
static weft_status plan_route(weft_subscriber *subscriber, uint64_t version) {
    if (route_leads_to(&subscriber->route, version)) {
        return WEFT_OK;
    }
    uint64_t target = 0;
    weft_status status = choose_target(subscriber, version, &target);
    if (status != WEFT_OK) {
        return status;
    }
    if (has_arrived(subscriber, target)) {
        weft_route_clear(&subscriber->route);
        return arrive(subscriber, &subscriber->follow.head.newest);
    }
    weft_replica *replica = &subscriber->replica;
    weft_route_request request = {
        .store = subscriber->store,
        .head = &subscriber->follow.head,
        .version = target,
        .from = replica->known ? &replica->digest : NULL,
        .from_version = remembered_version(subscriber),
        .depth = weft_replica_recalls(replica),
        .avoid = &subscriber->avoid,
    };
    weft_route_clear(&subscriber->route);
    status = weft_route_plan(&subscriber->route, &request);
    if (status == WEFT_NOT_FOUND && subscriber->trouble[0] != '\0') {
        return weft_fail(subscriber->context, WEFT_CHECKSUM_MISMATCH, "%.511s; %s",
                         weft_context_error(subscriber->context), subscriber->trouble);
    }
    if (status == WEFT_OK) {
        status = check_may_replace(subscriber);
    }
    return status == WEFT_OK && subscriber->route.count == 0 ? arrive(subscriber, &subscriber->route.start)
                                                             : status;
}

/* Plans again for as long as a page is missing and the head has moved: gc may have removed the page since
 * the head was read. */
static weft_status plan_again_if_moved(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = plan_route(subscriber, version);
    while (status == WEFT_NOT_FOUND) {
        weft_failure failure = weft_failure_keep(subscriber->context, status);
        weft_status looked = look_at_head(subscriber);
        if (looked != WEFT_OK) {
            return looked < 0 ? looked : weft_failure_tell(subscriber->context, &failure);
        }
        status = plan_route(subscriber, version);
    }
    return status;
}

/* ---- one step ---- */

/* The bytes are proven by their hashes. This checks that the patch says of itself what the history says. */
static weft_status check_patch(const weft_subscriber *subscriber, const weft_route_step *step) {
    weft_patch_info info = {.size = sizeof info};
    weft_patch_describe(subscriber->patch, &info);
    weft_digest base = step->anchor ? weft_state_nothing() : step->base;
    if (weft_digest_equal(&info.result, &step->record.digest) && weft_digest_equal(&info.base, &base)) {
        return WEFT_OK;
    }
    return weft_fail(subscriber->context, WEFT_CHECKSUM_MISMATCH,
                     "%s/%s does not lead to version %llu as the history says",
                     weft_store_url(subscriber->store), step->object.key,
                     (unsigned long long)step->record.version);
}

static weft_status open_step(weft_subscriber *subscriber, const weft_route_step *step) {
    weft_context *context = subscriber->context;
    bool whole = weft_replica_complete(&subscriber->replica);
    weft_status status = weft_fetch_open(context, subscriber->store, &step->object,
                                         subscriber->options.fetch_bytes, whole, &subscriber->fetch);
    if (status != WEFT_OK) {
        return status;
    }
    weft_source source = weft_fetch_source(subscriber->fetch);
    status = weft_patch_open(context, &source, &subscriber->patch);
    status = weft_fetch_explain(context, subscriber->fetch, status);
    return status == WEFT_OK ? check_patch(subscriber, step) : status;
}

static weft_status audit_weights(weft_subscriber *subscriber, const weft_route_step *step) {
    if (step->anchor || !subscriber->replica.known) {
        return WEFT_OK;
    }
    double start = weft_clock_now();
    weft_status status = weft_replica_audit(&subscriber->replica, subscriber->options.audit_bytes);
    report_phase(subscriber, WEFT_SYNC_VERIFY, step->record.version, weft_clock_now() - start,
                 subscriber->options.audit_bytes);
    return status;
}

static weft_replica_step step_kind(const weft_route_step *step) {
    bool next = strcmp(step->object.key, step->record.patch.key) == 0;
    return step->anchor ? WEFT_STEP_ANCHOR : next ? WEFT_STEP_PATCH : WEFT_STEP_LEAP;
}

static weft_status prepare_step(weft_subscriber *subscriber, const weft_route_step *step) {
    weft_replica_settle(&subscriber->replica);
    drop_step(subscriber);
    /* what is recalled is of one version, not of another with the same state */
    if (step->first != remembered_version(subscriber)) {
        weft_replica_skip(&subscriber->replica, false);
    }
    weft_status status = audit_weights(subscriber, step);
    double start = weft_clock_now();
    if (status == WEFT_OK) {
        status = open_step(subscriber, step);
    }
    if (status == WEFT_OK && subscriber->listener.begin != NULL) {
        status = subscriber->listener.begin(subscriber->listener.opaque, &step->record, subscriber->patch,
                                            step->anchor);
    }
    if (status == WEFT_OK) {
        status = weft_replica_prepare(&subscriber->replica, subscriber->patch, step_kind(step));
        status = weft_fetch_explain(subscriber->context, subscriber->fetch, status);
    }
    if (status != WEFT_OK) {
        drop_step(subscriber);
        return status;
    }
    subscriber->prepared = true;
    weft_fetch_stats stats = weft_fetch_describe(subscriber->fetch);
    subscriber->info.healed += stats.damaged;
    report_phase(subscriber, WEFT_SYNC_FETCH, step->record.version, stats.last - start, stats.bytes);
    report_phase(subscriber, WEFT_SYNC_DECODE, step->record.version, weft_clock_now() - stats.last,
                 step->object.bytes);
    return WEFT_OK;
}

/* ---- when a step fails ---- */

/* Gives the route up and remembers why, for the case that none is left. */
static void note_trouble(weft_subscriber *subscriber) {
    snprintf(subscriber->trouble, sizeof subscriber->trouble, "%s",
             weft_context_error(subscriber->context));
    weft_route_clear(&subscriber->route);
    subscriber->info.healed++;
}

static weft_status avoid_object(weft_subscriber *subscriber, const char *key) {
    note_trouble(subscriber);
    return weft_texts_add(&subscriber->avoid, subscriber->context, key);
}

/* True if a missing object is worth waiting for: an anchor or the patch of one version, not below the
 * floor. A leap is only a shorter route. */
static bool is_promised(const weft_subscriber *subscriber, const weft_route_step *step) {
    uint64_t floor = subscriber->follow.head.newest.floor;
    return step->anchor ? step->record.version >= floor
                        : step->first >= floor && step->first + 1 == step->record.version;
}

/* The object may be late, or gc may have removed it. The floor of the newest head tells which, so the head
 * is read again before each attempt. */
static weft_status handle_missing(weft_subscriber *subscriber, const weft_route_step *step,
                                  const char *key) {
    double now = weft_clock_now();
    if (strcmp(subscriber->missing, key) != 0) {
        snprintf(subscriber->missing, sizeof subscriber->missing, "%s", key);
        subscriber->missing_since = now;
    }
    double waited = now - subscriber->missing_since;
    if (waited >= WEFT_VISIBLE_SECONDS || !is_promised(subscriber, step)) {
        return avoid_object(subscriber, key);
    }
    weft_status looked = weft_follow_look(&subscriber->follow);
    return looked == WEFT_MORE ? weft_clock_sleep(subscriber->context, 0.02 + waited / 2) : looked;
}

/* The proof of a step has failed. If a whole audit finds the weights right, the patch is not what it
 * promises and is avoided. Else the weights have drifted, and the next route starts from an anchor. */
static weft_status handle_mismatch(weft_subscriber *subscriber, const weft_route_step *step,
                                   const char *key) {
    weft_failure failure = weft_failure_keep(subscriber->context, WEFT_DIGEST_MISMATCH);
    weft_replica *replica = &subscriber->replica;
    bool sound = step->anchor || (replica->known && weft_replica_audit(replica, UINT64_MAX) == WEFT_OK);
    (void)weft_failure_tell(subscriber->context, &failure);
    if (sound) {
        return avoid_object(subscriber, key);
    }
    note_trouble(subscriber);
    weft_replica_forget(replica);
    return WEFT_OK;
}

/* A patch that recalls other changes than the replica does is not damaged: a replica that recalls none
 * takes another way. What it recalls on that is right: a patch that still recalls others is for nobody. */
static weft_status handle_unsupported(weft_subscriber *subscriber, const weft_route_step *step,
                                      const char *key) {
    if (step_kind(step) != WEFT_STEP_PATCH || weft_replica_recalls(&subscriber->replica) == 0 ||
        subscriber->doubted) {
        return avoid_object(subscriber, key);
    }
    subscriber->doubted = true;
    note_trouble(subscriber);
    weft_replica_skip(&subscriber->replica, false);
    return WEFT_OK;
}

/* WEFT_OK: plan and try again. */
static weft_status heal_step(weft_subscriber *subscriber, weft_status status) {
    const weft_route_step *step = &subscriber->route.steps[subscriber->route.next];
    char key[WEFT_KEY_SIZE];
    memcpy(key, step->object.key, sizeof key);
    switch (status) {
    case WEFT_NOT_FOUND:
        return handle_missing(subscriber, step, key);
    case WEFT_MALFORMED:
    case WEFT_TRUNCATED:
    case WEFT_WRONG_VERSION:
    case WEFT_CHECKSUM_MISMATCH:
        return avoid_object(subscriber, key);
    case WEFT_UNSUPPORTED:
        return handle_unsupported(subscriber, step, key);
    case WEFT_BASE_MISMATCH:
    case WEFT_DIGEST_MISMATCH:
        return handle_mismatch(subscriber, step, key);
    default:
        return status;
    }
}

/* The next call reads the head first: there may be newer versions by then. */
static void give_up_route(weft_subscriber *subscriber) {
    weft_route_clear(&subscriber->route);
    subscriber->looked = false;
}

/* Ends a prepare that needs no further step of this route. The next one tries again what this one avoided.
 */
static weft_status stop_preparing(weft_subscriber *subscriber, weft_status status) {
    weft_texts_close(&subscriber->avoid, subscriber->context);
    if (status != WEFT_OK) {
        weft_route_clear(&subscriber->route);
    }
    subscriber->doubted = subscriber->doubted && status != WEFT_OK;
    subscriber->missing[0] = '\0';
    subscriber->trouble[0] = '\0';
    subscriber->looked = false;
    return status;
}

/* Prepares the next step of a route to `version`. WEFT_MORE: there are more after it. */
static weft_status prepare_next_step(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = WEFT_OK;
    if (subscriber->prepared) {
        status = weft_subscriber_rollback(subscriber);
    }
    if (status == WEFT_OK) {
        status = weft_replica_recover(&subscriber->replica);
    }
    while (status == WEFT_OK) {
        status = plan_again_if_moved(subscriber, version);
        const weft_route *route = &subscriber->route;
        if (status == WEFT_OK && route->next == route->count) {
            return stop_preparing(subscriber, WEFT_OK);
        }
        if (status == WEFT_OK) {
            status = prepare_step(subscriber, &route->steps[route->next]);
            if (status == WEFT_OK) {
                return route->next + 1 < route->count ? WEFT_MORE : stop_preparing(subscriber, WEFT_OK);
            }
            status = heal_step(subscriber, status);
        }
    }
    return stop_preparing(subscriber, status);
}

weft_status weft_subscriber_prepare(weft_subscriber *subscriber, uint64_t version) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    report_state(subscriber, "fetching", false);
    weft_status status = prepare_next_step(subscriber, version);
    bool prepared = subscriber->prepared;
    return report_outcome(subscriber, status, prepared ? "prepared" : "waiting", !prepared);
}

weft_status weft_subscriber_changes(weft_subscriber *subscriber, size_t batch, weft_change_function visit,
                                    void *opaque) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    return subscriber->prepared ? weft_replica_changes(&subscriber->replica, batch, visit, opaque)
                                : WEFT_OK;
}

/* ---- committing ---- */

static weft_status commit_step(weft_subscriber *subscriber) {
    weft_route_step *step = &subscriber->route.steps[subscriber->route.next];
    double start = weft_clock_now();
    weft_status status = weft_replica_commit(&subscriber->replica);
    double seconds = weft_clock_now() - start;
    subscriber->prepared = false;
    if (status != WEFT_OK) {
        drop_step(subscriber);
        weft_route_clear(&subscriber->route);
        return status;
    }
    report_phase(subscriber, WEFT_SYNC_COMMIT, step->record.version, seconds, step->record.changed);
    weft_texts_close(&subscriber->before.labels, subscriber->context);
    subscriber->before = subscriber->here;
    subscriber->here = (position){step->record.version, step->record.milliseconds, step->record.labels};
    step->record.labels = (weft_texts){0};
    subscriber->info.pause_seconds = seconds;
    subscriber->info.patches += !step->anchor;
    subscriber->info.anchors += step->anchor;
    subscriber->route.next++;
    /* who is killed from here on goes on where it was */
    if (weft_replica_recalls(&subscriber->replica) > 0) {
        weft_replica_save(&subscriber->replica, subscriber->here.version);
    }
    /* the patch stays open: live memory may be rolled back yet */
    return adopt_run(subscriber);
}

weft_status weft_subscriber_commit(weft_subscriber *subscriber) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    return subscriber->prepared ? report_outcome(subscriber, commit_step(subscriber), "waiting", true)
                                : WEFT_OK;
}

weft_status weft_subscriber_rollback(weft_subscriber *subscriber) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    bool committed = !subscriber->prepared;
    weft_status status = weft_replica_rollback(&subscriber->replica);
    drop_step(subscriber);
    give_up_route(subscriber);
    if (status == WEFT_OK && committed) {
        weft_texts_close(&subscriber->here.labels, subscriber->context);
        subscriber->here = subscriber->before;
        subscriber->before = (position){0};
    }
    return report_outcome(subscriber, status, "waiting", true);
}

weft_status weft_subscriber_pull(weft_subscriber *subscriber, uint64_t version) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_status status = WEFT_MORE;
    /* a route that was left half done may lead to a version that is no longer the newest */
    if (!subscriber->prepared && subscriber->route.next < subscriber->route.count) {
        give_up_route(subscriber);
    }
    while (status == WEFT_MORE) {
        status = weft_subscriber_prepare(subscriber, version);
        if (status >= 0) {
            weft_status committed = weft_subscriber_commit(subscriber);
            status = committed != WEFT_OK ? committed : status;
        }
    }
    return status;
}

weft_status weft_subscriber_verify(weft_subscriber *subscriber) {
    weft_status entered = enter_call(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (!subscriber->replica.known) {
        return weft_fail(subscriber->context, WEFT_INVALID_ARGUMENT,
                         "this replica is at no version yet; pull one first");
    }
    return weft_replica_audit(&subscriber->replica, UINT64_MAX);
}

/* ---- describing ---- */

void weft_subscriber_describe(const weft_subscriber *subscriber, weft_subscriber_info *info_out) {
    weft_subscriber_info info = subscriber->info;
    weft_store_traffic traffic = {.size = sizeof traffic};
    weft_store_traffic_of(subscriber->store, &traffic);
    info.fetched_bytes = traffic.received - subscriber->traffic_at_opening.received;
    info.requests = traffic.requests - subscriber->traffic_at_opening.requests;
    info.version = subscriber->replica.known ? subscriber->here.version : 0;
    info.digest = subscriber->replica.digest;
    info.milliseconds = subscriber->here.milliseconds;
    info.newest = subscriber->follow.seen ? subscriber->follow.head.newest.version : 0;
    info.epoch = subscriber->follow.mark.epoch;
    info.sequence = subscriber->follow.mark.sequence;
    weft_sized_write(&info, info_out, sizeof info);
}

const char *weft_subscriber_label(const weft_subscriber *subscriber, const char *key) {
    const weft_texts *labels = &subscriber->here.labels;
    for (size_t i = 0; i + 1 < labels->count; i += 2) {
        if (strcmp(labels->items[i], key) == 0) {
            return labels->items[i + 1];
        }
    }
    return NULL;
}

const char *const *weft_subscriber_labels(const weft_subscriber *subscriber) {
    static const char *const none[] = {NULL};
    const weft_texts *labels = &subscriber->here.labels;
    return labels->items != NULL ? (const char *const *)labels->items : none;
}

/* ---- for other folders of lib/sync ---- */

weft_status weft_subscriber_look(weft_subscriber *subscriber, uint64_t *newest_out) {
    weft_status status = look_at_head(subscriber);
    if (status >= 0) {
        *newest_out = subscriber->follow.seen ? subscriber->follow.head.newest.version : 0;
    }
    return status < 0 ? status : WEFT_OK;
}

void weft_subscriber_listen(weft_subscriber *subscriber, const weft_step_listener *listener) {
    subscriber->listener = *listener;
}

bool weft_subscriber_prepared(const weft_subscriber *subscriber) {
    return subscriber->prepared;
}

bool weft_subscriber_holds(const weft_subscriber *subscriber, const weft_digest *digest) {
    return subscriber->replica.known && weft_digest_equal(&subscriber->replica.digest, digest);
}

bool weft_subscriber_unusable(weft_status status) {
    return weft_status_is_integrity(status) || status == WEFT_NOT_FOUND || status == WEFT_UNSUPPORTED;
}
