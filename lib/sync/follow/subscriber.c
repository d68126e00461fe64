/* SPDX-License-Identifier: Apache-2.0
 *
 * subscriber.c: a replica that follows a run.
 *
 * What can go wrong with a step decides what is done about it:
 *   the network or the disk   the caller is told, and may try again; nothing has changed
 *   an object is missing      it may be late: wait a little; then plan around it
 *   an object is damaged      it was fetched again already: plan around it
 *   the replica has drifted   it is not believed any more: start from an anchor
 *   no way is left            the caller is told why
 */
#include "subscriber.h"
#include "../../base/clock.h"
#include "../../base/context.h"
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
static const uint64_t HOLD_BYTES = (uint64_t)256 << 20;
static const double WATCH_SECONDS = 25;
static const double WATCH_PAUSE = 1;

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
    weft_follow follow;
    weft_replica replica;
    weft_view *own_view; /* made from a layout */
    weft_patch *layout_patch;
    weft_fetch *layout_fetch;

    weft_step_listener listener;

    weft_route route;
    weft_texts avoid;
    char trouble[TEXT_BYTES];    /* why the last way was given up */
    bool looked;                 /* the head was looked at since the last prepare */
    weft_watermark last_time;    /* the newest head that was seen before the opening */
    bool ours;                   /* what stands at the path of a checkpoint may be replaced */
    char missing[WEFT_KEY_SIZE]; /* an object that was not there, and since when */
    double missing_since;

    /* the prepared step */
    weft_fetch *fetch;
    weft_patch *patch;
    bool prepared;

    position here;
    position before;               /* the last commit */
    weft_store_traffic at_opening; /* of the store */
    weft_subscriber_info info;
    weft_reporter *reporter; /* NULL: this one is not to be seen */
    bool telling;            /* the caller's phase function runs */
};

static void report_phase(weft_subscriber *subscriber, weft_sync_phase phase, uint64_t version,
                         double seconds, uint64_t bytes) {
    if (subscriber->options.phase != NULL) {
        subscriber->telling = true;
        subscriber->options.phase(subscriber->options.phase_opaque, phase, version, seconds, bytes);
        subscriber->telling = false;
    }
    weft_reporter_phase(subscriber->reporter, phase, seconds);
}

/* Lets others know, if they are to. */
static void tell_reporter(const weft_subscriber *subscriber, const char *state, bool news) {
    if (subscriber->reporter != NULL) {
        weft_subscriber_info info = weft_subscriber_describe(subscriber);
        const char *run = subscriber->follow.seen ? subscriber->follow.head.run : "";
        weft_reporter_tell(subscriber->reporter, run, &info, state, news);
    }
}

/* The same after an operation that may have failed. */
static weft_status tell_outcome(const weft_subscriber *subscriber, weft_status status, const char *state,
                                bool news) {
    bool failed = status < 0 && status != WEFT_CANCELLED;
    if (failed) {
        const char *text = weft_context_error(subscriber->context);
        weft_reporter_error(subscriber->reporter, text[0] != '\0' ? text : weft_status_name(status));
    }
    tell_reporter(subscriber, failed ? "failed" : state, failed || news);
    return status;
}

/* ---- life ---- */

static weft_status create(weft_context *context, weft_store *store, const weft_subscriber_options *options,
                          weft_subscriber **subscriber_out) {
    weft_context_clear(context);
    weft_subscriber *subscriber = weft_allocate_zeroed(context, 1, sizeof *subscriber);
    if (subscriber == NULL) {
        return WEFT_NO_MEMORY;
    }
    subscriber->context = context;
    subscriber->process = getpid();
    subscriber->store = store;
    if (options != NULL) {
        subscriber->options = *options;
    }
    weft_subscriber_options *chosen = &subscriber->options;
    chosen->audit_bytes = chosen->audit_bytes != 0 ? chosen->audit_bytes : AUDIT_BYTES;
    chosen->fetch_bytes = chosen->fetch_bytes != 0 ? chosen->fetch_bytes : HOLD_BYTES;
    if (chosen->poll_seconds <= 0) {
        chosen->poll_seconds = weft_store_traits_of(store).poll_seconds;
    }
    subscriber->at_opening = weft_store_traffic_of(store);
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
        status = weft_reporter_open(subscriber->context, subscriber->store, options->report_name,
                                    options->report_seconds, &subscriber->reporter);
    }
    if (status != WEFT_OK) {
        weft_subscriber_close(subscriber);
        return status;
    }
    subscriber->options.report_name = NULL; /* was the caller's */
    *subscriber_out = subscriber;
    return WEFT_OK;
}

weft_status weft_subscriber_open(weft_context *context, weft_store *store, const weft_view *view,
                                 const weft_subscriber_options *options, weft_subscriber **subscriber_out) {
    weft_subscriber *subscriber;
    weft_status status = create(context, store, options, &subscriber);
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
    subscriber->last_time = subscriber->follow.mark;
    subscriber->ours = subscriber->follow.mark.run[0] != '\0' || options->replace;
    if (status == WEFT_OK) {
        status =
            weft_replica_open_file(&subscriber->replica, context, path, options->durable, subscriber->ours);
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
    weft_status status = create(context, store, options, &subscriber);
    if (status != WEFT_OK) {
        return status;
    }
    return finish_open(subscriber, open_file(subscriber, path), subscriber_out);
}

/* What the checkpoint's tensors are stands at the ends of every anchor; only these are fetched. */
static weft_status read_table(weft_subscriber *subscriber) {
    weft_context *context = subscriber->context;
    weft_follow *follow = &subscriber->follow;
    weft_status status = weft_follow_look(follow);
    if (status < 0) {
        return status;
    }
    weft_page *page = NULL;
    if (follow->head.started) {
        status = weft_history_page(context, subscriber->store, &follow->head.page, follow->head.run, &page);
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
    weft_status status = create(context, store, options, &subscriber);
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
        status = weft_replica_open_live(&subscriber->replica, context, subscriber->own_view, true);
    }
    return finish_open(subscriber, status, subscriber_out);
}

/* ---- looking ---- */

static weft_status look_at_head(weft_subscriber *subscriber) {
    weft_status status = weft_follow_look(&subscriber->follow);
    if (status >= 0) {
        subscriber->looked = true;
    }
    if (status == WEFT_OK) {
        weft_texts_close(&subscriber->avoid, subscriber->context);
    }
    return status;
}

static bool behind(const weft_subscriber *subscriber) {
    const weft_follow *follow = &subscriber->follow;
    return follow->seen && follow->head.started &&
           (!subscriber->replica.known || subscriber->here.version != follow->head.newest.version ||
            !weft_digest_equal(&subscriber->replica.digest, &follow->head.newest.digest));
}

/* Waits on the store, or a while, and looks. A store that answers at once, and not with news, is not asked
 * more often than one that cannot wait; one that lets nobody wait for long is asked again all the same,
 * however seldom others are. */
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
        double pause = subscriber->options.poll_seconds;
        pause = status == WEFT_MORE && pause > WATCH_PAUSE ? WATCH_PAUSE : pause;
        double rest = (seconds < pause ? seconds : pause) - (weft_clock_now() - start);
        status = rest > 0 ? weft_clock_sleep(subscriber->context, rest) : WEFT_OK;
    }
    return status >= 0 ? look_at_head(subscriber) : status;
}

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

static weft_status wait_for_news(weft_subscriber *subscriber, double seconds, uint64_t *version_out) {
    weft_progress_begin(subscriber->context, "wait", 0);
    double start = weft_clock_now();
    /* where the store can wait, that tells all that a look would */
    bool watched = subscriber->follow.seen && !subscriber->follow.polls;
    weft_status status = watched ? WEFT_MORE : look_at_head(subscriber);
    while (!behind(subscriber) && (status >= 0 || status == WEFT_NOT_FOUND)) {
        double left = start + seconds - weft_clock_now();
        if (!(left > 0)) { /* a time that is no number is over, too */
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

/* Where every call begins. */
static weft_status enter(const weft_subscriber *subscriber) {
    weft_status status = weft_context_enter(subscriber->context);
    if (status == WEFT_OK && subscriber->telling) {
        return weft_fail(
            subscriber->context, WEFT_BUSY,
            "this subscriber waits for its phase function; go on with it after the call under way");
    }
    return status == WEFT_OK
               ? weft_process_check(subscriber->context, subscriber->process, "this subscriber")
               : status;
}

weft_status weft_subscriber_wait(weft_subscriber *subscriber, double seconds, uint64_t *version_out) {
    weft_status entered = enter(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    tell_reporter(subscriber, "waiting", false);
    return tell_outcome(subscriber, wait_for_news(subscriber, seconds, version_out), "waiting", false);
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

/* A checkpoint that turned out to be of this run is ours from now on. */
static weft_status adopt(weft_subscriber *subscriber) {
    subscriber->ours = true;
    return weft_follow_keep(&subscriber->follow);
}

/* A checkpoint that somebody else put there is not replaced by accident. */
static weft_status check_route(const weft_subscriber *subscriber) {
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

/* Which version the replica is at, if that is remembered: 0 if it has to be found in the history. */
static uint64_t version_of(const weft_subscriber *subscriber) {
    const weft_watermark *mark = &subscriber->last_time;
    if (subscriber->here.version != 0) {
        return subscriber->here.version;
    }
    return weft_digest_equal(&mark->digest, &subscriber->replica.digest) ? mark->version : 0;
}

static weft_status find_route(weft_subscriber *subscriber, uint64_t target) {
    weft_replica *replica = &subscriber->replica;
    weft_route_request request = {
        .store = subscriber->store,
        .head = &subscriber->follow.head,
        .version = target,
        .from = replica->known ? &replica->digest : NULL,
        .from_version = version_of(subscriber),
        .avoid = &subscriber->avoid,
    };
    weft_route_clear(&subscriber->route);
    weft_status status = weft_route_plan(&subscriber->route, &request);
    if (status == WEFT_NOT_FOUND && subscriber->trouble[0] != '\0') {
        return weft_fail(subscriber->context, WEFT_CHECKSUM_MISMATCH, "%.511s; %s",
                         weft_context_error(subscriber->context), subscriber->trouble);
    }
    return status == WEFT_OK ? check_route(subscriber) : status;
}

/* A route that was begun is gone to its end, unless somebody wants to go elsewhere. */
static bool route_leads_to(const weft_route *route, uint64_t version) {
    return route->next < route->count &&
           (version == 0 || route->steps[route->count - 1].record.version == version);
}

static bool arrived(const weft_subscriber *subscriber, uint64_t target) {
    const weft_record *newest = &subscriber->follow.head.newest;
    return subscriber->replica.known && target == newest->version &&
           weft_digest_equal(&subscriber->replica.digest, &newest->digest);
}

/* After this the route's next step is to be done, or there is none. */
static weft_status plan(weft_subscriber *subscriber, uint64_t version) {
    if (route_leads_to(&subscriber->route, version)) {
        return WEFT_OK;
    }
    uint64_t target = 0;
    weft_status status = choose_target(subscriber, version, &target);
    if (status != WEFT_OK) {
        return status;
    }
    if (arrived(subscriber, target)) {
        weft_route_clear(&subscriber->route);
        status = set_here(subscriber, &subscriber->follow.head.newest);
        return status == WEFT_OK ? adopt(subscriber) : status;
    }
    status = find_route(subscriber, target);
    if (status == WEFT_OK && subscriber->route.count == 0) {
        status = set_here(subscriber, &subscriber->route.start);
        status = status == WEFT_OK ? adopt(subscriber) : status;
    }
    return status;
}

/* A page that is not there may have been removed since the head was looked at: then the head has moved. */
static weft_status plan_from_newest(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = plan(subscriber, version);
    while (status == WEFT_NOT_FOUND) {
        weft_failure failure = weft_failure_keep(subscriber->context, status);
        weft_status looked = look_at_head(subscriber);
        if (looked != WEFT_OK) {
            return looked < 0 ? looked : weft_failure_tell(subscriber->context, &failure);
        }
        status = plan(subscriber, version);
    }
    return status;
}

/* ---- one step ---- */

/* The hashes have proven the bytes; this proves that the history is not at odds with them. */
static weft_status check_patch(const weft_subscriber *subscriber, const weft_route_step *step) {
    weft_patch_info info = weft_patch_describe(subscriber->patch);
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

static weft_status audit(weft_subscriber *subscriber, const weft_route_step *step) {
    if (step->anchor || !subscriber->replica.known) {
        return WEFT_OK;
    }
    double start = weft_clock_now();
    weft_status status = weft_replica_audit(&subscriber->replica, subscriber->options.audit_bytes);
    report_phase(subscriber, WEFT_SYNC_VERIFY, step->record.version, weft_clock_now() - start,
                 subscriber->options.audit_bytes);
    return status;
}

static void note_fetch(weft_subscriber *subscriber, const weft_route_step *step, double start) {
    weft_fetch_stats stats = weft_fetch_describe(subscriber->fetch);
    subscriber->info.healed += stats.damaged;
    report_phase(subscriber, WEFT_SYNC_FETCH, step->record.version, stats.last - start, stats.bytes);
    report_phase(subscriber, WEFT_SYNC_DECODE, step->record.version, weft_clock_now() - stats.last,
                 step->object.bytes);
}

static weft_status run_step(weft_subscriber *subscriber, const weft_route_step *step) {
    weft_replica_settle(&subscriber->replica);
    drop_step(subscriber);
    weft_status status = audit(subscriber, step);
    double start = weft_clock_now();
    if (status == WEFT_OK) {
        status = open_step(subscriber, step);
    }
    if (status == WEFT_OK && subscriber->listener.begin != NULL) {
        status = subscriber->listener.begin(subscriber->listener.opaque, &step->record, subscriber->patch,
                                            step->anchor);
    }
    if (status == WEFT_OK) {
        status = weft_replica_prepare(&subscriber->replica, subscriber->patch, step->anchor);
        status = weft_fetch_explain(subscriber->context, subscriber->fetch, status);
    }
    if (status != WEFT_OK) {
        drop_step(subscriber);
        return status;
    }
    subscriber->prepared = true;
    note_fetch(subscriber, step, start);
    return WEFT_OK;
}

/* ---- when a step fails ---- */

static void note_trouble(weft_subscriber *subscriber) {
    snprintf(subscriber->trouble, sizeof subscriber->trouble, "%s",
             weft_context_error(subscriber->context));
    weft_route_clear(&subscriber->route);
    subscriber->info.healed++;
}

static weft_status give_up_object(weft_subscriber *subscriber, const char *key) {
    note_trouble(subscriber);
    return weft_texts_add(&subscriber->avoid, subscriber->context, key);
}

/* A leap is a shorter way and never the only one: it is not waited for. */
static bool promised(const weft_subscriber *subscriber, const weft_route_step *step) {
    uint64_t floor = subscriber->follow.head.newest.floor;
    return step->anchor ? step->record.version >= floor
                        : step->first >= floor && step->first + 1 == step->record.version;
}

/* What is missing may be late, or may have been removed because it is no longer needed: the newest head
 * knows. */
static weft_status meet_missing(weft_subscriber *subscriber, const weft_route_step *step, const char *key) {
    double now = weft_clock_now();
    if (strcmp(subscriber->missing, key) != 0) {
        snprintf(subscriber->missing, sizeof subscriber->missing, "%s", key);
        subscriber->missing_since = now;
    }
    double waited = now - subscriber->missing_since;
    if (waited >= WEFT_VISIBLE_SECONDS || !promised(subscriber, step)) {
        return give_up_object(subscriber, key);
    }
    weft_status looked = weft_follow_look(&subscriber->follow);
    return looked == WEFT_MORE ? weft_clock_sleep(subscriber->context, 0.02 + waited / 2) : looked;
}

/* Weights that are not what they were taken for start from an anchor. If they are, the patch is not what it
 * promises, and another way is to be found. */
static weft_status meet_mismatch(weft_subscriber *subscriber, const weft_route_step *step,
                                 const char *key) {
    weft_failure failure = weft_failure_keep(subscriber->context, WEFT_DIGEST_MISMATCH);
    weft_replica *replica = &subscriber->replica;
    bool sound = step->anchor || (replica->known && weft_replica_audit(replica, UINT64_MAX) == WEFT_OK);
    (void)weft_failure_tell(subscriber->context, &failure);
    if (sound) {
        return give_up_object(subscriber, key);
    }
    note_trouble(subscriber);
    weft_replica_forget(replica);
    return WEFT_OK;
}

/* WEFT_OK: try again, in another way. */
static weft_status heal(weft_subscriber *subscriber, weft_status status) {
    const weft_route_step *step = &subscriber->route.steps[subscriber->route.next];
    char key[WEFT_KEY_SIZE];
    memcpy(key, step->object.key, sizeof key);
    switch (status) {
    case WEFT_NOT_FOUND:
        return meet_missing(subscriber, step, key);
    case WEFT_MALFORMED:
    case WEFT_TRUNCATED:
    case WEFT_WRONG_VERSION:
    case WEFT_CHECKSUM_MISMATCH:
    case WEFT_UNSUPPORTED:
        return give_up_object(subscriber, key);
    case WEFT_BASE_MISMATCH:
    case WEFT_DIGEST_MISMATCH:
        return meet_mismatch(subscriber, step, key);
    default:
        return status;
    }
}

/* By the time that somebody comes back there may be newer versions. */
static void give_up_route(weft_subscriber *subscriber) {
    weft_route_clear(&subscriber->route);
    subscriber->looked = false;
}

/* What was avoided is worth another try when the caller comes back. */
static weft_status stop(weft_subscriber *subscriber, weft_status status) {
    weft_texts_close(&subscriber->avoid, subscriber->context);
    if (status != WEFT_OK) {
        give_up_route(subscriber);
    }
    subscriber->missing[0] = '\0';
    subscriber->trouble[0] = '\0';
    subscriber->looked = false;
    return status;
}

static weft_status prepare(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = WEFT_OK;
    if (subscriber->prepared) {
        status = weft_subscriber_rollback(subscriber);
    }
    if (status == WEFT_OK) {
        status = weft_replica_recover(&subscriber->replica);
    }
    while (status == WEFT_OK) {
        status = plan_from_newest(subscriber, version);
        const weft_route *route = &subscriber->route;
        if (status == WEFT_OK && route->next == route->count) {
            return stop(subscriber, WEFT_OK);
        }
        if (status == WEFT_OK) {
            status = run_step(subscriber, &route->steps[route->next]);
            if (status == WEFT_OK) {
                return route->next + 1 < route->count ? WEFT_MORE : stop(subscriber, WEFT_OK);
            }
            status = heal(subscriber, status);
        }
    }
    return stop(subscriber, status);
}

weft_status weft_subscriber_prepare(weft_subscriber *subscriber, uint64_t version) {
    weft_status entered = enter(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    tell_reporter(subscriber, "fetching", false);
    weft_status status = prepare(subscriber, version);
    bool prepared = subscriber->prepared;
    return tell_outcome(subscriber, status, prepared ? "prepared" : "waiting", !prepared);
}

/* ---- committing ---- */

static void note_commit(weft_subscriber *subscriber, weft_route_step *step, double seconds) {
    weft_texts_close(&subscriber->before.labels, subscriber->context);
    subscriber->before = subscriber->here;
    subscriber->here = (position){step->record.version, step->record.milliseconds, step->record.labels};
    step->record.labels = (weft_texts){0};
    subscriber->info.pause_seconds = seconds;
    subscriber->info.patches += !step->anchor;
    subscriber->info.anchors += step->anchor;
}

static weft_status commit(weft_subscriber *subscriber) {
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
    note_commit(subscriber, step, seconds);
    subscriber->route.next++;
    /* the patch stays open: live memory may be rolled back yet */
    return adopt(subscriber);
}

weft_status weft_subscriber_commit(weft_subscriber *subscriber) {
    weft_status entered = enter(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    return subscriber->prepared ? tell_outcome(subscriber, commit(subscriber), "waiting", true) : WEFT_OK;
}

weft_status weft_subscriber_rollback(weft_subscriber *subscriber) {
    weft_status entered = enter(subscriber);
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
    return tell_outcome(subscriber, status, "waiting", true);
}

weft_status weft_subscriber_pull(weft_subscriber *subscriber, uint64_t version) {
    weft_status entered = enter(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    weft_status status = WEFT_MORE;
    /* what somebody prepared and left half done may lead to a version that is no longer the newest */
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
    weft_status entered = enter(subscriber);
    if (entered != WEFT_OK) {
        return entered;
    }
    if (!subscriber->replica.known) {
        return weft_fail(subscriber->context, WEFT_INVALID_ARGUMENT,
                         "this replica is at no version yet; pull one first");
    }
    return weft_replica_audit(&subscriber->replica, UINT64_MAX);
}

/* ---- telling ---- */

weft_subscriber_info weft_subscriber_describe(const weft_subscriber *subscriber) {
    weft_subscriber_info info = subscriber->info;
    weft_store_traffic traffic = weft_store_traffic_of(subscriber->store);
    info.fetched_bytes = traffic.received - subscriber->at_opening.received;
    info.requests = traffic.requests - subscriber->at_opening.requests;
    info.version = subscriber->replica.known ? subscriber->here.version : 0;
    info.digest = subscriber->replica.digest;
    info.milliseconds = subscriber->here.milliseconds;
    info.newest = subscriber->follow.seen ? subscriber->follow.head.newest.version : 0;
    info.epoch = subscriber->follow.mark.epoch;
    info.sequence = subscriber->follow.mark.sequence;
    return info;
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
