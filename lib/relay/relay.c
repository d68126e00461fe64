/* SPDX-License-Identifier: Apache-2.0
 *
 * relay.c: the newest head, and the life of a relay.
 *
 * One thread watches the store, as any follower does, and believes heads as a follower does: none that goes
 * back, none of another run, none that the trusted key has not signed. What it has seen is written down
 * beside the cache before anybody is told. A new head is learned from, its patch is asked for at once,
 * since everybody will want it, and only then who waits is told.
 */
#include "relay.h"
#include "../base/sized.h"

#include "../base/clock.h"
#include "../base/context.h"
#include "../sync/format/report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MARK ".relay-mark"

static const uint64_t CACHE_BYTES = (uint64_t)10 << 30;
static const double WATCH_SECONDS = 10;
static const double OPEN_SECONDS = 2;
static const double FIRST_PAUSE = 0.05;
static const double LONGEST_PAUSE = 1;

/* ---- heads ---- */

/* Under the lock. */
static void take_head(weft_relay *relay, const weft_sync_head *head, const uint8_t *data, size_t size) {
    memcpy(relay->data, data, size);
    relay->size = size;
    relay->info = weft_sync_head_describe(head);
    relay->generation++;
    relay->started = head->started;
    if (strcmp(relay->catalog.run, head->run) != 0) {
        memcpy(relay->catalog.run, head->run, sizeof relay->catalog.run);
    }
    weft_relay_catalog_prune(&relay->catalog);
    relay->error[0] = '\0';
    if (!head->started) {
        return;
    }
    relay->page = head->page;
    relay->floor = head->newest.floor;
    (void)weft_relay_catalog_page(&relay->catalog, &head->page);
    weft_relay_item *patch = weft_relay_catalog_record(&relay->catalog, &head->newest);
    if (patch != NULL && !patch->proven) {
        (void)weft_flight_want(relay, patch);
    }
}

/* Under the lock. */
static bool is_news(const weft_relay *relay, const weft_sync_head *head) {
    return relay->generation == 0 || weft_sync_head_newer(head, relay->info.epoch, relay->info.sequence);
}

static void publish_head(weft_relay *relay, const weft_sync_head *head, const uint8_t *data, size_t size) {
    pthread_mutex_lock(&relay->mutex);
    bool news = is_news(relay, head);
    if (news) {
        take_head(relay, head, data, size);
    }
    pthread_mutex_unlock(&relay->mutex);
    if (news && relay->options.news != NULL) {
        relay->options.news(relay->options.opaque);
    }
}

/* True if the follow has a head that nobody was told of. How its last look ended does not tell: it may have
 * found one, and then have failed to ask for the head of the next epoch. */
static bool has_news(weft_relay *relay) {
    const weft_follow *follow = &relay->follow;
    pthread_mutex_lock(&relay->mutex);
    bool news = follow->seen && is_news(relay, &follow->head);
    pthread_mutex_unlock(&relay->mutex);
    return news;
}

/* A new head is written down before anybody is told, so that a relay that is started again does not go
 * back; that it cannot be, matters only when the store is gone too. */
static void take_news(weft_relay *relay) {
    char key[WEFT_HEAD_KEY];
    const weft_follow *follow = &relay->follow;
    if (!has_news(relay)) {
        return;
    }
    weft_head_key(follow->head.epoch, key);
    weft_status status =
        weft_relay_cache_write(&relay->cache, relay->watcher_context, key, follow->data, follow->size);
    pthread_mutex_lock(&relay->mutex);
    relay->head_lost = status == WEFT_NO_SPACE;
    pthread_mutex_unlock(&relay->mutex);
    publish_head(relay, &follow->head, follow->data, follow->size);
}

/* The head that was the newest when the last process ended: nobody need wait for the store. One that is
 * older than the mark is not it. */
static void recall_head(weft_relay *relay) {
    char key[WEFT_HEAD_KEY];
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    weft_context *context = relay->watcher_context;
    weft_sync_head head;
    weft_head_key(relay->follow.mark.epoch, key);
    if (relay->follow.mark.epoch > 0 &&
        weft_relay_cache_read(&relay->cache, context, key, data, sizeof data, &size) == WEFT_OK &&
        weft_sync_head_parse(context, key, data, size, relay->options.trusted, &head) == WEFT_OK) {
        const weft_watermark *mark = &relay->follow.mark;
        if (strcmp(head.run, mark->run) == 0 && head.epoch == mark->epoch &&
            head.sequence >= mark->sequence) {
            publish_head(relay, &head, data, size);
        }
        weft_sync_head_close(&head, context);
    }
}

/* ---- watching ---- */

static bool is_refusal(weft_status status) {
    return status == WEFT_SIGNATURE_MISMATCH || status == WEFT_MALFORMED || status == WEFT_WRONG_VERSION ||
           status == WEFT_CHECKSUM_MISMATCH || status == WEFT_INVALID_ARGUMENT;
}

/* Writes down how the last look went. */
static void note_state(weft_relay *relay, weft_status status) {
    bool reached = status >= 0 || status == WEFT_NOT_FOUND;
    double now = weft_clock_now();
    pthread_mutex_lock(&relay->mutex);
    if (reached != relay->reached) {
        relay->reached = reached;
        relay->state_since = now;
        relay->error[0] = '\0';
    }
    relay->mark_lost = relay->follow.unwritten == WEFT_NO_SPACE;
    relay->looked = true;
    relay->asked = relay->asked || reached;
    if (status >= 0) {
        relay->confirmed = now;
    }
    relay->stats.refused_heads += is_refusal(status);
    if (!reached) {
        snprintf(relay->error, sizeof relay->error, "%s", weft_context_error(relay->watcher_context));
    }
    pthread_mutex_unlock(&relay->mutex);
}

static weft_status look_now(weft_relay *relay) {
    weft_status status = weft_follow_look(&relay->follow);
    take_news(relay);
    return status;
}

/* After a pause: with one request, where a store is polled with care. */
static weft_status look_again(weft_relay *relay) {
    weft_follow *follow = &relay->follow;
    if (!(relay->idle_seconds > 0) || !follow->polls) {
        return look_now(relay);
    }
    weft_status status = weft_follow_glance(
        follow, weft_follow_pause(follow, relay->options.poll_seconds, relay->idle_seconds));
    take_news(relay);
    return status;
}

/* As a subscriber waits: on the store if it can, and otherwise by looking now and then. */
static weft_status await_news(weft_relay *relay) {
    weft_follow *follow = &relay->follow;
    (void)weft_follow_keep(follow);
    uint64_t after = follow->seen ? follow->head.newest.version : 0;
    double start = weft_clock_now();
    weft_status status = weft_follow_watch(follow, after, WATCH_SECONDS);
    take_news(relay);
    if (status == WEFT_OK) {
        return WEFT_OK;
    }
    /* who waits on a server that was led astray is told the same again and again; the store is not */
    bool refused = is_refusal(status);
    if (status == WEFT_MORE || status == WEFT_UNSUPPORTED || refused) {
        double pause = relay->options.poll_seconds;
        if (status == WEFT_UNSUPPORTED && relay->idle_seconds > pause) {
            pause = weft_follow_pause(follow, pause, relay->idle_seconds);
        }
        double rest = pause - (weft_clock_now() - start);
        status = rest > 0 ? weft_clock_sleep(relay->watcher_context, rest) : WEFT_OK;
    }
    status = status >= 0 ? look_again(relay) : status;
    /* what the look has refused is counted with it */
    if (refused && !is_refusal(status)) {
        pthread_mutex_lock(&relay->mutex);
        relay->stats.refused_heads++;
        pthread_mutex_unlock(&relay->mutex);
    }
    return status;
}

static void *watcher_main(void *argument) {
    weft_relay *relay = argument;
    unsigned failures = 0;
    weft_status status = look_now(relay);
    while (status != WEFT_CANCELLED && !atomic_load(&relay->stopping)) {
        note_state(relay, status);
        if (status < 0 && status != WEFT_NOT_FOUND) {
            double pause = weft_clock_backoff(FIRST_PAUSE, LONGEST_PAUSE, ++failures);
            (void)weft_clock_sleep(relay->watcher_context, pause);
        } else {
            failures = 0;
        }
        status = await_news(relay);
    }
    return NULL;
}

weft_status weft_relay_enter(weft_context *context, const weft_relay *relay) {
    weft_context_clear(context);
    return weft_process_check(context, relay->process, "this relay");
}

weft_status weft_relay_head(weft_context *context, weft_relay *relay, uint8_t data[WEFT_HEAD_MAX],
                            size_t *size_out, weft_head_info *info_out) {
    weft_status status = weft_relay_enter(context, relay);
    if (status == WEFT_OK) {
        status = weft_sized_check(context, info_out, "weft_head_info");
    }
    if (status != WEFT_OK) {
        return status;
    }
    pthread_mutex_lock(&relay->mutex);
    if (relay->generation > 0) {
        memcpy(data, relay->data, relay->size);
        *size_out = relay->size;
        weft_sized_write(&relay->info, info_out, sizeof relay->info);
    } else if (relay->asked) {
        status = weft_fail(context, WEFT_NOT_FOUND, "nothing was published yet");
    } else {
        status = weft_fail(context, WEFT_REMOTE_FAILED, "%s", relay->error);
    }
    pthread_mutex_unlock(&relay->mutex);
    return status;
}

/* Another web server would take a batch for an object. */
static bool is_served(const weft_store *store) {
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(store, &traits);
    return traits.conditional && strncmp(weft_store_url(store), "http", 4) == 0;
}

weft_status weft_relay_report(weft_context *context, weft_relay *relay, const char *key, const void *data,
                              size_t size) {
    weft_status entered = weft_relay_enter(context, relay);
    if (entered != WEFT_OK) {
        return entered;
    }
    pthread_mutex_lock(&relay->mutex);
    bool reached = relay->reached;
    pthread_mutex_unlock(&relay->mutex);
    bool batch = strcmp(key, WEFT_REPORT_BATCH_KEY) == 0;
    if (!batch && weft_report_name(key) == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "%.100s is not the key of a report", key);
    }
    if (batch && !is_served(relay->upstream)) {
        return weft_fail(context, WEFT_UNSUPPORTED, "%s takes reports one by one",
                         weft_store_url(relay->upstream));
    }
    if (!reached) {
        return weft_fail(context, WEFT_REMOTE_FAILED, "%s cannot be reached",
                         weft_store_url(relay->upstream));
    }
    return weft_store_put_bytes(context, relay->upstream, key, data, size, WEFT_STORE_ALWAYS, NULL, NULL);
}

/* ---- numbers ---- */

void weft_relay_describe(weft_relay *relay, weft_relay_stats *stats_out) {
    if (!weft_process_is(relay->process)) {
        const weft_relay_stats nothing = {.size = sizeof nothing};
        weft_sized_write(&nothing, stats_out, sizeof nothing);
        return;
    }
    weft_store_traffic traffic = {.size = sizeof traffic};
    weft_store_traffic_of(relay->upstream, &traffic);
    double now = weft_clock_now();
    pthread_mutex_lock(&relay->mutex);
    weft_relay_stats stats = relay->stats;
    stats.disk_full = stats.disk_full || relay->head_lost || relay->mark_lost;
    stats.objects = relay->catalog.items.count;
    stats.evictions = relay->cache.evictions;
    stats.cached_bytes = relay->cache.used;
    stats.cache_limit = relay->cache.limit;
    for (const weft_flight *flight = relay->flights; flight != NULL; flight = flight->next) {
        stats.under_way += flight->loaders > 0;
    }
    stats.reached = relay->reached;
    stats.state_seconds = now - relay->state_since;
    stats.head_seconds = relay->confirmed > 0 ? now - relay->confirmed : -1;
    memcpy(stats.error, relay->error, sizeof stats.error);
    pthread_mutex_unlock(&relay->mutex);
    stats.upstream_requests = traffic.requests;
    stats.upstream_bytes = traffic.received;
    weft_sized_write(&stats, stats_out, sizeof stats);
}

/* ---- life ---- */

static weft_status open_follow(weft_relay *relay) {
    char path[PATH_MAX];
    weft_relay_cache_path(&relay->cache, MARK, path);
    weft_status status = weft_follow_open(&relay->follow, relay->watcher_context, relay->upstream,
                                          relay->options.trusted, path, false);
    relay->follow.lenient = true;
    if (status == WEFT_MALFORMED || status == WEFT_WRONG_VERSION) {
        return weft_fail(relay->watcher_context, status,
                         "%s cannot be understood: what this relay has seen is lost; remove the file to "
                         "trust the store afresh, or give --cache another directory",
                         path);
    }
    return status == WEFT_OK ? weft_follow_keep(&relay->follow) : status;
}

/* The first who ask should not be told that nothing is known, nor of the head that was the newest when the
 * last process ended, which may lead to what was collected since. A store that gives no answer is not
 * waited for: then that head is all there is. */
static void wait_for_look(weft_relay *relay) {
    double end = weft_clock_now() + OPEN_SECONDS;
    bool looked = false;
    while (!looked && weft_clock_now() < end && weft_clock_sleep(relay->context, 0.005) == WEFT_OK) {
        pthread_mutex_lock(&relay->mutex);
        looked = relay->looked;
        pthread_mutex_unlock(&relay->mutex);
    }
}

static weft_status start_relay(weft_relay *relay, const char *directory) {
    uint64_t limit = relay->options.cache_bytes > 0 ? relay->options.cache_bytes : CACHE_BYTES;
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(relay->upstream, &traits);
    weft_status status =
        weft_relay_cache_open(&relay->cache, relay->context, directory, traits.directory, limit);
    if (status == WEFT_OK) {
        status = weft_relay_catalog_open(&relay->catalog, relay->context, &relay->mutex);
    }
    if (status == WEFT_OK) {
        status = open_follow(relay);
    }
    if (status == WEFT_OK) {
        status = weft_flight_start(relay);
    }
    if (status != WEFT_OK) {
        return status;
    }
    recall_head(relay);
    int error = pthread_create(&relay->watcher, NULL, watcher_main, relay);
    if (error != 0) {
        return weft_fail_errno(relay->context, error, "cannot start a thread of the relay");
    }
    relay->watching = true;
    wait_for_look(relay);
    return WEFT_OK;
}

static weft_status create_relay(weft_context *context, weft_store *upstream,
                                const weft_relay_options *options, weft_relay **relay_out) {
    weft_relay *relay = weft_allocate_zeroed(context, 1, sizeof *relay);
    if (relay == NULL) {
        return WEFT_NO_MEMORY;
    }
    relay->process = getpid();
    relay->upstream = upstream;
    weft_status status =
        weft_sized_read(context, options, &relay->options, sizeof relay->options, "weft_relay_options");
    if (status != WEFT_OK) {
        weft_release(context, relay);
        return status;
    }
    weft_store_traits traits = {.size = sizeof traits};
    weft_store_traits_of(upstream, &traits);
    bool given = relay->options.poll_seconds > 0;
    relay->options.poll_seconds = given ? relay->options.poll_seconds : traits.poll_seconds;
    if (traits.idle_seconds > 0) {
        relay->idle_seconds = given ? relay->options.poll_seconds : traits.idle_seconds;
    }
    relay->state_since = weft_clock_now();
    status = weft_context_derive(context, weft_thread_keep_on, &relay->stopping, &relay->context);
    if (status == WEFT_OK) {
        status =
            weft_context_derive(context, weft_thread_keep_on, &relay->stopping, &relay->watcher_context);
    }
    if (status != WEFT_OK) {
        weft_context_destroy(relay->context);
        weft_release(context, relay);
        return status;
    }
    relay->cache = (weft_relay_cache){.context = relay->context, .lock = -1};
    relay->owner = context;
    pthread_mutex_init(&relay->mutex, NULL);
    pthread_cond_init(&relay->work, NULL);
    *relay_out = relay;
    return WEFT_OK;
}

weft_status weft_relay_open(weft_context *context, weft_store *upstream, const char *directory,
                            const weft_relay_options *options, weft_relay **relay_out) {
    weft_context_clear(context);
    weft_relay *relay;
    weft_status status = create_relay(context, upstream, options, &relay);
    if (status != WEFT_OK) {
        return status;
    }
    status = start_relay(relay, directory);
    if (status != WEFT_OK) {
        const char *text = weft_context_error(relay->context);
        const char *other = weft_context_error(relay->watcher_context);
        status = weft_fail(context, status, "%s", *text != '\0' ? text : other);
        weft_relay_close(relay);
        return status;
    }
    *relay_out = relay;
    return WEFT_OK;
}

void weft_relay_stop(weft_relay *relay) {
    if (!weft_process_is(relay->process)) {
        return;
    }
    pthread_mutex_lock(&relay->mutex);
    atomic_store(&relay->stopping, true);
    pthread_cond_broadcast(&relay->work);
    pthread_mutex_unlock(&relay->mutex);
    if (relay->watching) {
        pthread_join(relay->watcher, NULL);
        relay->watching = false;
    }
    weft_flight_stop(relay);
}

void weft_relay_close(weft_relay *relay) {
    if (relay == NULL || !weft_process_is(relay->process)) {
        return;
    }
    weft_context *owner = relay->owner;
    weft_relay_stop(relay);
    weft_flight_release_all(relay);
    if (relay->follow.context != NULL) {
        weft_follow_close(&relay->follow);
    }
    weft_relay_catalog_close(&relay->catalog);
    weft_relay_cache_close(&relay->cache);
    pthread_cond_destroy(&relay->work);
    pthread_mutex_destroy(&relay->mutex);
    weft_context_destroy(relay->watcher_context);
    weft_context_destroy(relay->context);
    weft_release(owner, relay);
}
