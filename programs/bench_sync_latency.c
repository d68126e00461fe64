/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_latency.c: from the call of publish to the end of commit, version after version, over HTTP.
 *
 * Trainer and worker are threads with contexts, stores and connections of their own; the server between
 * them is another process. The worker waits on the server. The trainer makes the next version as soon as
 * the worker has committed the one before, or after ten seconds without it. Weights walk to and fro along a
 * short training run, so that each version is a step of it, forwards or backwards. With a relay, that is a
 * third process, and the worker's server.
 */
#include "bench_sync.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 8 };

typedef struct latency_run {
    sync_bench *bench;
    bench_model model;
    sync_flips flips[STEPS];
    sync_pair pair;
    uint64_t versions;
    double *begun; /* by version from 2 on, the first of which is at 0 */
    double *ended; /* 0: it was never committed */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t committed; /* under the lock */
    bool stopped;       /* under the lock: the other side has failed */
    int worker_code;
    bool relayed;
} latency_run;

/* ---- the model and its steps ---- */

static int make_model(latency_run *run) {
    enum { PARAMETERS = 8000000 };
    const sync_options *options = run->bench->options;
    uint64_t parameters = options->parameters < PARAMETERS ? options->parameters : PARAMETERS;
    weft_trace trace;
    int code = trace_open(run->bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(run->bench->command, &run->model, &trace);
    if (code == EXIT_DONE) {
        code = sync_flips_trace(run->bench, &run->model, &trace, run->flips, STEPS);
    }
    trace_close(&trace);
    progress_clear(&run->bench->command->progress);
    return code;
}

/* The step that leads to the n-th state of the walk, from 1 on. */
static const sync_flips *step_of(const latency_run *run, uint64_t n) {
    uint64_t place = (n - 1) % (2 * (uint64_t)STEPS);
    return &run->flips[place < STEPS ? place : 2 * STEPS - 1 - place];
}

/* ---- the worker ---- */

static bool is_stopped(latency_run *run) {
    pthread_mutex_lock(&run->lock);
    bool stopped = run->stopped;
    pthread_mutex_unlock(&run->lock);
    return stopped;
}

static void tell(latency_run *run, uint64_t version, bool stopped) {
    pthread_mutex_lock(&run->lock);
    run->committed = version > run->committed ? version : run->committed;
    run->stopped = run->stopped || stopped;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
}

/* One version, or half a second without one. */
static weft_status follow_once(latency_run *run) {
    weft_subscriber *subscriber = run->pair.subscriber;
    uint64_t newest;
    weft_status status = weft_subscriber_wait(subscriber, 0.5, &newest);
    if (status != WEFT_OK) {
        return status == WEFT_MORE ? WEFT_OK : status;
    }
    status = weft_subscriber_prepare(subscriber, 0);
    if (status == WEFT_OK || status == WEFT_MORE) {
        status = weft_subscriber_commit(subscriber);
    }
    if (status == WEFT_OK) {
        double now = clock_seconds();
        uint64_t version = weft_subscriber_describe(subscriber).version;
        if (version >= 2 && version < run->versions + 2) {
            run->ended[version - 2] = now;
        }
        tell(run, version, false);
    }
    return status;
}

static void *follow(void *opaque) {
    latency_run *run = opaque;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && !is_stopped(run) &&
           weft_subscriber_describe(run->pair.subscriber).version < run->versions + 1) {
        status = follow_once(run);
    }
    if (status != WEFT_OK) {
        run->worker_code = sync_fail(run->bench, run->pair.worker_context, status);
        tell(run, 0, true);
    }
    return NULL;
}

/* ---- the trainer ---- */

/* False if the other side has failed. */
static bool await(latency_run *run, uint64_t version) {
    enum { PATIENCE_SECONDS = 10 };
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += PATIENCE_SECONDS;
    pthread_mutex_lock(&run->lock);
    int waited = 0;
    while (run->committed < version && !run->stopped && waited == 0) {
        waited = pthread_cond_timedwait(&run->moved, &run->lock, &deadline);
    }
    bool stopped = run->stopped;
    pthread_mutex_unlock(&run->lock);
    return !stopped;
}

static int train(latency_run *run, sync_latency_results *results) {
    int code = EXIT_DONE;
    for (uint64_t i = 0; i < run->versions && code == EXIT_DONE; i++) {
        const sync_flips *flips = step_of(run, i + 1);
        weft_publish_result result = {0};
        sync_flips_apply(flips, run->model.base);
        results->changed += flips->count;
        run->begun[i] = clock_seconds();
        weft_status status = weft_publisher_publish(run->pair.publisher, NULL, &result);
        if (status != WEFT_OK) {
            code = sync_fail(run->bench, run->pair.trainer_context, status);
        } else if (!await(run, result.version)) {
            break;
        } else {
            code = sync_go_on(run->bench);
        }
        results->requests_up += (double)result.requests;
        results->bytes_up += (double)result.uploaded_bytes;
    }
    return code;
}

/* ---- the whole ---- */

static bool count_anchor(void *opaque, const weft_log_entry *entry) {
    uint64_t *count = opaque;
    *count += entry->version > 1 && entry->anchor_bytes > 0;
    return true;
}

static int collect(latency_run *run, const weft_subscriber_info *before, sync_latency_results *results) {
    double versions = (double)run->versions, *seconds = run->begun;
    weft_subscriber_info after = weft_subscriber_describe(run->pair.subscriber);
    uint64_t arrived = 0;
    for (uint64_t i = 0; i < run->versions; i++) {
        if (run->ended[i] > 0) {
            seconds[arrived++] = run->ended[i] - run->begun[i];
        }
    }
    if (arrived == 0) {
        return command_error(run->bench->command, EXIT_FAILED, "no version has arrived");
    }
    results->seconds = sync_times_of(seconds, arrived);
    results->total = run->model.units;
    results->versions = run->versions;
    results->lost = run->versions - arrived;
    results->changed /= run->versions;
    results->requests_up /= versions;
    results->bytes_up /= versions;
    results->requests_down = (double)(after.requests - before->requests) / versions;
    results->bytes_down = (double)(after.fetched_bytes - before->fetched_bytes) / versions;
    weft_status status = weft_publisher_settle(run->pair.publisher);
    if (status == WEFT_OK) {
        status = weft_log_walk(run->pair.trainer_context, run->pair.trainer_store, NULL, count_anchor,
                               &results->anchors);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(run->bench, run->pair.trainer_context, status);
}

static int run_threads(latency_run *run, sync_latency_results *results) {
    weft_subscriber_info before = weft_subscriber_describe(run->pair.subscriber);
    pthread_t worker;
    if (pthread_create(&worker, NULL, follow, run) != 0) {
        return command_error(run->bench->command, EXIT_FAILED, "cannot start a thread");
    }
    int code = train(run, results);
    if (code != EXIT_DONE) {
        tell(run, 0, true);
    }
    pthread_join(worker, NULL);
    code = code == EXIT_DONE ? run->worker_code : code;
    if (code == EXIT_DONE) {
        code = sync_pair_compare(&run->pair);
    }
    return code == EXIT_DONE ? collect(run, &before, results) : code;
}

static int run_served(latency_run *run, sync_latency_results *results) {
    sync_server server = {0}, relay = {0};
    sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .follow = true, .anchors = true};
    char *path = sync_store_path(run->bench, "served");
    char *cache = sync_store_path(run->bench, "cache");
    int code = path != NULL && cache != NULL ? sync_server_start(run->bench, path, true, &server)
                                             : sync_no_memory(run->bench);
    if (code == EXIT_DONE && run->relayed) {
        code = sync_relay_start(run->bench, server.url, cache, &relay);
        options.worker_url = relay.url;
    }
    if (code == EXIT_DONE) {
        code = sync_pair_open(run->bench, &run->model, server.url, &options, &run->pair);
    }
    if (code == EXIT_DONE) {
        code = run_threads(run, results);
        sync_pair_close(&run->pair);
    }
    sync_server_stop(&relay);
    sync_server_stop(&server);
    sync_store_remove(cache);
    sync_store_remove(path);
    return code;
}

int bench_sync_latency(sync_bench *bench, bool relayed, sync_latency_results *results) {
    latency_run run = {
        .bench = bench, .relayed = relayed, .versions = bench->options->versions, .committed = 1};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&run.lock, NULL);
    pthread_cond_init(&run.moved, &attributes);
    pthread_condattr_destroy(&attributes);
    run.begun = calloc(run.versions, sizeof *run.begun);
    run.ended = calloc(run.versions, sizeof *run.ended);
    int code = run.begun != NULL && run.ended != NULL ? make_model(&run) : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = run_served(&run, results);
    }
    for (size_t s = 0; s < STEPS; s++) {
        sync_flips_close(&run.flips[s]);
    }
    bench_model_close(&run.model);
    free(run.begun);
    free(run.ended);
    pthread_cond_destroy(&run.moved);
    pthread_mutex_destroy(&run.lock);
    return code;
}
