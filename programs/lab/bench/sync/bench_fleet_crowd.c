/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet_crowd.c: a trainer, an origin, relays, and many followers with live memory, each a thread
 * with a context of one thread, a store and connections of its own.
 *
 * Some may be processes instead, whose weights are files. All report to their relay.
 *
 * The trainer makes the next version when all followers have committed the one before, or after a minute
 * without that: no version is skipped unless something is wrong. Each commit's digest is compared with what
 * the trainer computes of its own weights before it publishes them, and in the end the weights of each
 * follower in memory with the trainer's, bit by bit.
 */
#include "bench_fleet.h"

#include "../../../../lib/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct crowd crowd;

/* How a version came to a follower. */
typedef struct arrival {
    double at; /* 0: never */
    weft_digest digest;
} arrival;

typedef struct follower {
    crowd *crowd;
    const char *url;
    uint16_t *weights;
    weft_table *table;
    weft_context *context;
    weft_store *store;
    weft_view *view;
    weft_subscriber *subscriber;
    arrival *arrivals; /* by version, from 2 on */
    char name[32];
    fleet_process process; /* of one that is a process: that, and its directory */
    char *out;
    pthread_t thread;
    bool running;
} follower;

struct crowd {
    sync_bench *bench;
    const fleet_origin *origin;
    fleet_crowd_results *results;
    uint64_t versions; /* after the first */
    sync_walk walk;
    sync_pair pair;        /* the trainer */
    weft_store *directory; /* what the origin serves, to see what lies there */
    fleet_meter meter;
    sync_server relays[FLEET_RELAYS_MAX];
    char *caches[FLEET_RELAYS_MAX];
    follower *followers;
    uint64_t count;
    double *begun;        /* by version, from 2 on */
    weft_digest *digests; /* likewise, the trainer's */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    /* under the lock */
    uint64_t awaited; /* a version */
    uint64_t arrived; /* followers that have it */
    bool stopped;
    int code; /* of the follower that failed first */
};

/* ---- a follower ---- */

static bool is_stopped(crowd *crowd) {
    pthread_mutex_lock(&crowd->lock);
    bool stopped = crowd->stopped;
    pthread_mutex_unlock(&crowd->lock);
    return stopped;
}

static void stop(crowd *crowd) {
    pthread_mutex_lock(&crowd->lock);
    crowd->stopped = true;
    pthread_cond_broadcast(&crowd->moved);
    pthread_mutex_unlock(&crowd->lock);
    for (uint64_t i = 0; i < crowd->count; i++) {
        fleet_process_interrupt(&crowd->followers[i].process);
    }
}

static void tell_crowd(crowd *crowd, uint64_t version) {
    pthread_mutex_lock(&crowd->lock);
    if (version == crowd->awaited && ++crowd->arrived == crowd->count) {
        pthread_cond_broadcast(&crowd->moved);
    }
    pthread_mutex_unlock(&crowd->lock);
}

static void note_arrival(follower *follower, uint64_t version, const weft_digest *digest) {
    crowd *crowd = follower->crowd;
    if (version >= 2 && version < crowd->versions + 2) {
        follower->arrivals[version - 2] = (arrival){clock_seconds(), *digest};
    }
    tell_crowd(crowd, version);
}

/* One version, or half a second without one. */
static weft_status follow_once(follower *follower) {
    uint64_t newest;
    weft_status status = weft_subscriber_wait(follower->subscriber, 0.5, &newest);
    if (status != WEFT_OK) {
        return status == WEFT_MORE ? WEFT_OK : status;
    }
    status = weft_subscriber_prepare(follower->subscriber, 0);
    if (status == WEFT_OK || status == WEFT_MORE) {
        status = weft_subscriber_commit(follower->subscriber);
    }
    if (status == WEFT_OK) {
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(follower->subscriber, &info);
        note_arrival(follower, info.version, &info.digest);
    }
    return status;
}

static weft_status open_subscriber(follower *follower) {
    const weft_subscriber_options options = {
        .size = sizeof options, .empty = true, .report_name = follower->name};
    weft_status status = weft_store_open(follower->context, follower->url, NULL, &follower->store);
    if (status == WEFT_OK) {
        status = weft_view_create(follower->context, follower->table, &follower->view);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_open(follower->context, follower->store, follower->view, &options,
                                      &follower->subscriber);
    }
    return status;
}

static void *follow_process(void *opaque) {
    follower *follower = opaque;
    uint64_t version;
    weft_digest digest;
    while (fleet_process_next(&follower->process, &version, &digest)) {
        note_arrival(follower, version, &digest);
    }
    crowd *crowd = follower->crowd;
    pthread_mutex_lock(&crowd->lock);
    if (!crowd->stopped) {
        crowd->code = command_error(crowd->bench->command, EXIT_FAILED, "a follower ended too early");
        crowd->stopped = true;
        pthread_cond_broadcast(&crowd->moved);
    }
    pthread_mutex_unlock(&crowd->lock);
    return NULL;
}

static void *follow(void *opaque) {
    follower *follower = opaque;
    weft_status status = open_subscriber(follower);
    while (status == WEFT_OK && !is_stopped(follower->crowd)) {
        status = follow_once(follower);
    }
    if (status != WEFT_OK) {
        /* Only the first that fails speaks. */
        crowd *crowd = follower->crowd;
        pthread_mutex_lock(&crowd->lock);
        if (!crowd->stopped) {
            crowd->code = sync_fail(crowd->bench, follower->context, status);
            crowd->stopped = true;
            pthread_cond_broadcast(&crowd->moved);
        }
        pthread_mutex_unlock(&crowd->lock);
    }
    return NULL;
}

static int start_process(crowd *crowd, follower *follower) {
    char path[4096];
    follower->out = sync_store_path(crowd->bench, follower->name);
    if (follower->out == NULL) {
        return EXIT_FAILED;
    }
    int length = snprintf(path, sizeof path, "%s/model.safetensors", follower->out);
    if (length >= (int)sizeof path || mkdir(follower->out, 0700) != 0) {
        return command_error(crowd->bench->command, EXIT_FAILED, "cannot make a directory for a follower");
    }
    int code = fleet_process_start(crowd->bench, follower->url, path, follower->name, &follower->process);
    if (code == EXIT_DONE && pthread_create(&follower->thread, NULL, follow_process, follower) != 0) {
        code = command_error(crowd->bench->command, EXIT_FAILED, "cannot start a thread");
    }
    follower->running = code == EXIT_DONE;
    return code;
}

/* The first ones are the processes: they are forked while there are few threads. */
static int start_follower(crowd *crowd, uint64_t index) {
    follower *follower = &crowd->followers[index];
    const bench_model *model = &crowd->walk.model;
    bool process = index < crowd->bench->options->processes;
    follower->crowd = crowd;
    follower->url = crowd->relays[index % crowd->bench->options->relays].url;
    snprintf(follower->name, sizeof follower->name, "%s-%llu", process ? "process" : "thread",
             (unsigned long long)index);
    follower->arrivals = calloc(crowd->versions, sizeof *follower->arrivals);
    if (follower->arrivals == NULL) {
        return sync_no_memory(crowd->bench);
    }
    if (process) {
        return start_process(crowd, follower);
    }
    follower->weights = bench_map(model->extent * sizeof *follower->weights);
    if (follower->weights == NULL) {
        return sync_no_memory(crowd->bench);
    }
    int code = bench_model_table(crowd->bench->command, model, follower->weights, &follower->table);
    if (code == EXIT_DONE) {
        code = sync_context(crowd->bench, 1, &follower->context);
    }
    if (code == EXIT_DONE && pthread_create(&follower->thread, NULL, follow, follower) != 0) {
        code = command_error(crowd->bench->command, EXIT_FAILED, "cannot start a thread");
    }
    follower->running = code == EXIT_DONE;
    return code;
}

static void close_follower(follower *follower, const bench_model *model) {
    weft_subscriber_close(follower->subscriber);
    weft_view_destroy(follower->view);
    weft_store_close(follower->store);
    weft_context_destroy(follower->context);
    weft_table_destroy(follower->table);
    if (follower->weights != NULL) {
        bench_unmap(follower->weights, model->extent * sizeof *follower->weights);
    }
    sync_store_remove(follower->out);
    free(follower->arrivals);
}

/* ---- the trainer ---- */

static void expect(crowd *crowd, uint64_t version) {
    pthread_mutex_lock(&crowd->lock);
    crowd->awaited = version;
    crowd->arrived = 0;
    pthread_mutex_unlock(&crowd->lock);
}

/* Until all have what is expected, or for a minute. The code of a follower that failed. */
static int await_all(crowd *crowd, bool *all_out) {
    enum { PATIENCE_SECONDS = 60 };
    double end = weft_clock_now() + PATIENCE_SECONDS;
    bool in_time = true;
    pthread_mutex_lock(&crowd->lock);
    while (crowd->arrived < crowd->count && !crowd->stopped && in_time) {
        in_time = weft_condition_wait(&crowd->moved, &crowd->lock, end);
    }
    *all_out = crowd->arrived == crowd->count;
    int code = crowd->code;
    pthread_mutex_unlock(&crowd->lock);
    return code == EXIT_DONE ? sync_go_on(crowd->bench) : code;
}

static weft_status own_digest(crowd *crowd, weft_digest *digest_out) {
    weft_sums *sums;
    weft_status status = weft_sums_compute(crowd->pair.trainer_context, crowd->pair.trainer_view, &sums);
    if (status == WEFT_OK) {
        *digest_out = weft_sums_digest(sums);
        weft_sums_destroy(sums);
    }
    return status;
}

/* The head is written over by the next one. */
static weft_status add_head(crowd *crowd) {
    uint8_t head[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch = weft_publisher_epoch(crowd->pair.publisher);
    weft_status status =
        weft_head_find(crowd->pair.trainer_context, crowd->directory, epoch, head, &size, &epoch);
    crowd->results->head_bytes += status == WEFT_OK ? size : 0;
    return status;
}

static int train_once(crowd *crowd, uint64_t index) {
    weft_context *context = crowd->pair.trainer_context;
    weft_publish_result result = {.size = sizeof result};
    bool all;
    crowd->results->changed += sync_walk_step(&crowd->walk);
    expect(crowd, index + 2);
    weft_status status = own_digest(crowd, &crowd->digests[index]);
    if (status == WEFT_OK) {
        crowd->begun[index] = clock_seconds();
        status = weft_publisher_publish(crowd->pair.publisher, NULL, &result);
    }
    if (status != WEFT_OK) {
        return sync_fail(crowd->bench, context, status);
    }
    crowd->results->patch_bytes += result.patch_bytes;
    int code = await_all(crowd, &all);
    if (code == EXIT_DONE) {
        status = add_head(crowd);
    }
    return status == WEFT_OK ? code : sync_fail(crowd->bench, context, status);
}

static uint64_t resident_of(const crowd *crowd, uint64_t index) {
    return fleet_resident(index == 0 ? crowd->origin->server.pid : crowd->relays[index - 1].pid);
}

static int train(crowd *crowd) {
    enum { EARLY = 20 };
    fleet_crowd_results *results = crowd->results;
    uint64_t servers = 1 + crowd->bench->options->relays;
    double start = clock_seconds();
    int code = EXIT_DONE;
    results->early_versions = crowd->versions > EARLY ? EARLY : crowd->versions / 2;
    for (uint64_t i = 0; i < crowd->versions && code == EXIT_DONE; i++) {
        code = train_once(crowd, i);
        for (uint64_t s = 0; s < servers && i + 1 == results->early_versions; s++) {
            results->memory[s].early = resident_of(crowd, s);
        }
    }
    results->elapsed = clock_seconds() - start;
    for (uint64_t s = 0; s < servers; s++) {
        results->memory[s].late = resident_of(crowd, s);
    }
    return code;
}

/* ---- bytes ---- */

static bool add_bytes(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)age_seconds;
    uint64_t *bytes = opaque;
    *bytes += size;
    return true;
}

static int measure_pages(crowd *crowd, uint64_t *bytes_out) {
    *bytes_out = 0;
    weft_context *context = crowd->pair.trainer_context;
    weft_status status = weft_store_list(context, crowd->directory, "pages", add_bytes, bytes_out);
    return status == WEFT_OK ? EXIT_DONE : sync_fail(crowd->bench, context, status);
}

/* Trains between two readings of what the origin has sent and of what lies there. */
static int train_measured(crowd *crowd) {
    fleet_crowd_results *results = crowd->results;
    fleet_counts before = {0}, after = {0};
    uint64_t pages_before = 0, pages_after = 0;
    int code = measure_pages(crowd, &pages_before);
    if (code == EXIT_DONE) {
        code = fleet_meter_read(&crowd->meter, &before);
    }
    if (code == EXIT_DONE) {
        code = train(crowd);
    }
    if (code == EXIT_DONE) {
        code = fleet_meter_read(&crowd->meter, &after);
    }
    if (code == EXIT_DONE) {
        code = measure_pages(crowd, &pages_after);
    }
    results->page_bytes = pages_after - pages_before;
    results->origin_bytes = after.sent - before.sent;
    results->origin_requests = after.requests - before.requests;
    return code;
}

/* All of them are heard of within a few intervals, or are not. */
static int count_alive(crowd *crowd) {
    enum { PATIENCE_SECONDS = 30 };
    const struct timespec moment = {.tv_nsec = 200000000};
    double end = weft_clock_now() + PATIENCE_SECONDS;
    weft_context *context = crowd->meter.context;
    weft_status status;
    int code;
    do {
        weft_fleet fleet = {.size = sizeof fleet};
        nanosleep(&moment, NULL);
        status = weft_fleet_read(context, crowd->meter.store, NULL, &fleet);
        crowd->results->alive = fleet.live;
        weft_fleet_close(context, &fleet);
        code = sync_go_on(crowd->bench);
    } while (code == EXIT_DONE && status == WEFT_OK && crowd->results->alive < crowd->count &&
             weft_clock_now() < end);
    return status == WEFT_OK ? code : sync_fail(crowd->bench, context, status);
}

/* ---- what came of it ---- */

static int check_arrivals(crowd *crowd, double *seconds, uint64_t *count_out) {
    *count_out = 0;
    for (uint64_t f = 0; f < crowd->count; f++) {
        for (uint64_t i = 0; i < crowd->versions; i++) {
            const arrival *arrival = &crowd->followers[f].arrivals[i];
            if (arrival->at == 0) {
                continue;
            }
            if (!weft_digest_equal(&arrival->digest, &crowd->digests[i])) {
                return command_error(crowd->bench->command, EXIT_INTEGRITY,
                                     "follower %llu stood at a version %llu that was never published",
                                     (unsigned long long)f, (unsigned long long)(i + 2));
            }
            seconds[(*count_out)++] = arrival->at - crowd->begun[i];
        }
    }
    return EXIT_DONE;
}

static int check_weights(crowd *crowd) {
    const bench_model *model = &crowd->walk.model;
    for (uint64_t f = 0; f < crowd->count; f++) {
        const void *weights = crowd->followers[f].weights;
        if (weights != NULL && memcmp(weights, model->base, bench_model_bytes(model)) != 0) {
            return command_error(crowd->bench->command, EXIT_INTEGRITY,
                                 "follower %llu is not what the trainer is", (unsigned long long)f);
        }
    }
    return EXIT_DONE;
}

static int collect_crowd(crowd *crowd) {
    fleet_crowd_results *results = crowd->results;
    uint64_t arrived = 0;
    double *seconds = calloc(crowd->count * crowd->versions, sizeof *seconds);
    int code = seconds != NULL ? check_arrivals(crowd, seconds, &arrived) : sync_no_memory(crowd->bench);
    if (code == EXIT_DONE && arrived == 0) {
        code = command_error(crowd->bench->command, EXIT_FAILED, "no version has arrived");
    }
    if (code == EXIT_DONE) {
        code = check_weights(crowd);
    }
    if (code == EXIT_DONE) {
        results->seconds = sync_times_of(seconds, arrived);
        results->lost = crowd->count * crowd->versions - arrived;
        results->total = crowd->walk.model.units;
        results->changed /= crowd->versions;
    }
    free(seconds);
    return code;
}

/* ---- the whole ---- */

static int start_relays(crowd *crowd) {
    int code = EXIT_DONE;
    for (uint64_t i = 0; i < crowd->bench->options->relays && code == EXIT_DONE; i++) {
        char name[32];
        snprintf(name, sizeof name, "cache-%llu", (unsigned long long)i);
        crowd->caches[i] = sync_store_path(crowd->bench, name);
        code = crowd->caches[i] != NULL ? sync_relay_start(crowd->bench, crowd->origin->server.url,
                                                           crowd->caches[i], &crowd->relays[i])
                                        : EXIT_FAILED;
    }
    return code;
}

static int run_crowd(crowd *crowd) {
    const sync_pair_options options = {
        .profile = WEFT_PROFILE_SMALL, .anchors = true, .keep_all = true, .no_looks = true};
    sync_bench *bench = crowd->bench;
    const char *url = crowd->origin->server.url;
    int code = sync_pair_open(bench, &crowd->walk.model, url, &options, &crowd->pair);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status =
        weft_store_open(crowd->pair.trainer_context, crowd->origin->path, NULL, &crowd->directory);
    if (status != WEFT_OK) {
        return sync_fail(bench, crowd->pair.trainer_context, status);
    }
    code = fleet_meter_open(bench, url, &crowd->meter);
    if (code == EXIT_DONE) {
        code = start_relays(crowd);
    }
    if (code == EXIT_DONE) {
        /* All followers, at the first version. */
        bool all = false;
        expect(crowd, 1);
        for (uint64_t i = 0; i < crowd->count && code == EXIT_DONE; i++) {
            code = start_follower(crowd, i);
        }
        if (code == EXIT_DONE) {
            code = await_all(crowd, &all);
        }
        if (code == EXIT_DONE && !all) {
            code = command_error(crowd->bench->command, EXIT_FAILED,
                                 "not all followers had the first version after a minute");
        }
    }
    if (code == EXIT_DONE) {
        code = train_measured(crowd);
    }
    return code == EXIT_DONE ? count_alive(crowd) : code;
}

static void close_crowd(crowd *crowd) {
    for (uint64_t i = 0; crowd->followers != NULL && i < crowd->count; i++) {
        close_follower(&crowd->followers[i], &crowd->walk.model);
    }
    for (uint64_t i = 0; i < FLEET_RELAYS_MAX; i++) {
        sync_server_stop(&crowd->relays[i]);
        sync_store_remove(crowd->caches[i]);
    }
    fleet_meter_close(&crowd->meter);
    weft_store_close(crowd->directory);
    sync_pair_close(&crowd->pair);
    sync_walk_close(&crowd->walk);
    free(crowd->followers);
    free(crowd->begun);
    free(crowd->digests);
    pthread_cond_destroy(&crowd->moved);
    pthread_mutex_destroy(&crowd->lock);
}

int bench_fleet_crowd(sync_bench *bench, const fleet_origin *origin, fleet_crowd_results *results) {
    const bench_options *options = bench->options;
    crowd crowd = {.bench = bench,
                   .origin = origin,
                   .results = results,
                   .versions = options->versions,
                   .count = options->followers};
    pthread_mutex_init(&crowd.lock, NULL);
    weft_condition_open(&crowd.moved);
    crowd.followers = calloc(crowd.count, sizeof *crowd.followers);
    crowd.begun = calloc(crowd.versions, sizeof *crowd.begun);
    crowd.digests = calloc(crowd.versions, sizeof *crowd.digests);
    int code = crowd.followers != NULL && crowd.begun != NULL && crowd.digests != NULL
                   ? sync_walk_open(bench, options->parameters, &crowd.walk)
                   : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = run_crowd(&crowd);
    }
    if (crowd.followers != NULL) {
        stop(&crowd);
        for (uint64_t i = 0; i < crowd.count; i++) {
            if (crowd.followers[i].running) {
                pthread_join(crowd.followers[i].thread, NULL);
            }
        }
    }
    for (uint64_t i = 0; crowd.followers != NULL && i < crowd.count; i++) {
        fleet_process_stop(&crowd.followers[i].process);
    }
    if (code == EXIT_DONE) {
        code = collect_crowd(&crowd);
    }
    close_crowd(&crowd);
    return code;
}
