/* SPDX-License-Identifier: Apache-2.0
 *
 * reporter.c: the thread that puts a follower's reports.
 *
 * A put that fails is not repeated: the next report says more. After failures reports become rare, and a
 * store that refuses them for good (a read token, a plain web server) is not asked again.
 */
#include "reporter.h"

#include "../../base/clock.h"
#include "../../base/context.h"
#include "../format/cuts.h"

#include <stdio.h>
#include <string.h>

static const double INTERVAL_SECONDS = 5;
/* in a store where every put is paid for */
static const double INTERVAL_PAID_SECONDS = 60;
/* of the interval: news waits at least so long after the last put */
static const double NEWS_PART = 0.2;
/* the longest pause after failures */
static const double FAILED_SECONDS = 300;
/* that a close waits for the last report */
static const double GOODBYE_SECONDS = 1;
/* after which an error is no longer reported */
static const uint64_t ERROR_MILLISECONDS = 3600000;

struct weft_reporter {
    weft_context *owner;   /* for memory */
    weft_context *context; /* of the thread */
    weft_store *store;
    char key[WEFT_KEY_SIZE];
    pthread_t thread;
    atomic_bool stopping;  /* the put under way is given up */
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t changed;
    weft_follower follower;
    bool told;         /* `follower` has a run, and may be put */
    bool news;         /* there was some since the last put */
    bool refused;      /* the store takes no reports */
    unsigned failures; /* of puts, in a row */
    double last;       /* when the last put ended; 0: there was none */
    bool closing;
    bool ended; /* the thread has nothing left to put */
};

/* ---- the thread ---- */

/* When the next report is to be put. */
static double next_due(const weft_reporter *reporter) {
    double interval = reporter->follower.interval_seconds;
    if (reporter->last == 0) {
        return 0;
    }
    if (reporter->failures > 0) {
        unsigned failures = reporter->failures < 8 ? reporter->failures : 8;
        return reporter->last + weft_clock_backoff(2 * interval, FAILED_SECONDS, failures);
    }
    return reporter->last + (reporter->news ? interval * NEWS_PART : interval);
}

/* Called with the mutex, which is released during the put. */
static void send_report(weft_reporter *reporter) {
    reporter->follower.milliseconds = weft_clock_date();
    if (reporter->follower.milliseconds > reporter->follower.error_milliseconds + ERROR_MILLISECONDS) {
        reporter->follower.error[0] = '\0';
    }
    reporter->news = false;
    weft_follower copy = reporter->follower;
    pthread_mutex_unlock(&reporter->mutex);
    uint8_t data[WEFT_REPORT_MAX];
    size_t size;
    weft_status status = weft_report_format(reporter->context, &copy, data, &size);
    if (status == WEFT_OK) {
        status = weft_store_put_bytes(reporter->context, reporter->store, reporter->key, data, size,
                                      WEFT_STORE_ALWAYS, NULL, NULL);
    }
    pthread_mutex_lock(&reporter->mutex);
    reporter->last = weft_clock_now();
    reporter->failures = status == WEFT_OK ? 0 : reporter->failures + 1;
    reporter->refused = status == WEFT_REMOTE_DENIED || status == WEFT_UNSUPPORTED ||
                        status == WEFT_INVALID_ARGUMENT || status == WEFT_LIMIT_EXCEEDED;
}

static void *reporter_main(void *argument) {
    weft_reporter *reporter = argument;
    pthread_mutex_lock(&reporter->mutex);
    while (!reporter->closing && !reporter->refused) {
        double due = next_due(reporter);
        if (!reporter->told) {
            pthread_cond_wait(&reporter->changed, &reporter->mutex);
        } else if (weft_clock_now() < due) {
            weft_condition_wait(&reporter->changed, &reporter->mutex, due);
        } else {
            send_report(reporter);
        }
    }
    if (reporter->told && !reporter->refused && reporter->failures == 0) {
        snprintf(reporter->follower.state, sizeof reporter->follower.state, "ended");
        send_report(reporter);
    }
    reporter->ended = true;
    pthread_cond_broadcast(&reporter->changed);
    pthread_mutex_unlock(&reporter->mutex);
    return NULL;
}

/* ---- life ---- */

static double choose_interval(const weft_store *store, double seconds) {
    if (seconds <= 0) {
        weft_store_traits traits = {.size = sizeof traits};
        weft_store_traits_of(store, &traits);
        seconds = traits.paid ? INTERVAL_PAID_SECONDS : INTERVAL_SECONDS;
    }
    seconds = seconds > WEFT_REPORT_SHORTEST ? seconds : WEFT_REPORT_SHORTEST;
    return seconds < WEFT_REPORT_LONGEST ? seconds : WEFT_REPORT_LONGEST;
}

static void release_reporter(weft_reporter *reporter) {
    pthread_cond_destroy(&reporter->changed);
    pthread_mutex_destroy(&reporter->mutex);
    weft_context_destroy(reporter->context);
    weft_release(reporter->owner, reporter);
}

weft_status weft_reporter_open(weft_context *context, weft_store *store,
                               const weft_subscriber_options *options, weft_reporter **reporter_out) {
    const char *name = options->report_name;
    if (!weft_follower_name_valid(name)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "\"%s\" cannot be the name of a follower: 1 to 64 of A-Z a-z 0-9 . _ -, of which "
                         "the first is not a dot",
                         name);
    }
    weft_reporter *reporter = weft_allocate_zeroed(context, 1, sizeof *reporter);
    if (reporter == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status =
        weft_cuts_format(context, options->cuts, options->cut_count, reporter->follower.cuts);
    if (status != WEFT_OK) {
        weft_release(context, reporter);
        return status;
    }
    reporter->owner = context;
    reporter->store = store;
    reporter->follower.interval_seconds = choose_interval(store, options->report_seconds);
    reporter->follower.reads = WEFT_FORMAT_NEWEST;
    snprintf(reporter->follower.name, sizeof reporter->follower.name, "%s", name);
    weft_report_key(name, reporter->key);
    atomic_init(&reporter->stopping, false);
    weft_condition_open(&reporter->changed);
    pthread_mutex_init(&reporter->mutex, NULL);
    status = weft_context_derive(context, weft_thread_keep_on, &reporter->stopping, &reporter->context);
    int error = status == WEFT_OK ? pthread_create(&reporter->thread, NULL, reporter_main, reporter) : 0;
    if (error != 0) {
        status = weft_fail_errno(context, error, "cannot start a thread for reports");
    }
    if (status != WEFT_OK) {
        release_reporter(reporter);
        return status;
    }
    *reporter_out = reporter;
    return WEFT_OK;
}

void weft_reporter_close(weft_reporter *reporter) {
    if (reporter == NULL) {
        return;
    }
    double end = weft_clock_now() + GOODBYE_SECONDS;
    pthread_mutex_lock(&reporter->mutex);
    reporter->closing = true;
    pthread_cond_broadcast(&reporter->changed);
    bool in_time = true;
    while (!reporter->ended && in_time) {
        in_time = weft_condition_wait(&reporter->changed, &reporter->mutex, end);
    }
    pthread_mutex_unlock(&reporter->mutex);
    atomic_store(&reporter->stopping, true);
    pthread_join(reporter->thread, NULL);
    release_reporter(reporter);
}

/* ---- what the follower says ---- */

void weft_reporter_phase(weft_reporter *reporter, weft_sync_phase phase, double seconds) {
    if (reporter != NULL) {
        pthread_mutex_lock(&reporter->mutex);
        reporter->follower.phase_seconds[phase] = seconds;
        pthread_mutex_unlock(&reporter->mutex);
    }
}

void weft_reporter_tell(weft_reporter *reporter, const char *run, const weft_subscriber_info *info,
                        const char *state, bool news) {
    if (reporter == NULL || run[0] == '\0') {
        return;
    }
    pthread_mutex_lock(&reporter->mutex);
    weft_follower *follower = &reporter->follower;
    bool wake = !reporter->told || (news && !reporter->news);
    follower->version = info->version;
    follower->digest = info->version > 0 ? info->digest : (weft_digest){{0}};
    follower->newest = info->newest;
    follower->published = info->version > 0 ? info->milliseconds : 0;
    follower->pause_seconds = info->pause_seconds;
    follower->patches = info->patches;
    follower->anchors = info->anchors;
    follower->healed = info->healed;
    follower->fetched_bytes = info->fetched_bytes;
    follower->requests = info->requests;
    snprintf(follower->run, sizeof follower->run, "%s", run);
    snprintf(follower->state, sizeof follower->state, "%s", state);
    reporter->told = true;
    reporter->news = reporter->news || news;
    if (wake) {
        pthread_cond_broadcast(&reporter->changed);
    }
    pthread_mutex_unlock(&reporter->mutex);
}

void weft_reporter_error(weft_reporter *reporter, const char *text) {
    if (reporter != NULL) {
        pthread_mutex_lock(&reporter->mutex);
        reporter->follower.error_milliseconds = weft_clock_date();
        snprintf(reporter->follower.error, sizeof reporter->follower.error, "%s", text);
        pthread_mutex_unlock(&reporter->mutex);
    }
}
