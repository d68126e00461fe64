/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_latency.c: from the call of publish to the end of commit, version after version, over HTTP.
 *
 * Trainer and worker are threads with contexts, stores and connections of their own; the server between
 * them is another process. The worker waits on the server. The trainer makes the next version as soon as
 * the worker has committed the one before, or after ten seconds without it. With a relay, that is a third
 * process, and the worker's server.
 */
#include "bench_sync.h"

#include "../../../../lib/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct sync_line {
    sync_bench *bench;
    sync_walk walk;
    char *path, *cache;
    sync_server server, relay;
    sync_pair pair;
    uint64_t versions; /* that may be made; the first of them is version 2 */
    uint64_t made;
    double *begun; /* by version */
    double *ended; /* 0: it was never committed */
    weft_subscriber_info before;
    sync_latency_results sums;
    pthread_t worker;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t committed; /* under the lock */
    bool stopped;       /* under the lock: there is nothing more to come, or the other side has failed */
    int worker_code;
};

/* ---- the worker ---- */

static bool is_stopped(sync_line *line) {
    pthread_mutex_lock(&line->lock);
    bool stopped = line->stopped;
    pthread_mutex_unlock(&line->lock);
    return stopped;
}

static void tell_line(sync_line *line, uint64_t version, bool stopped) {
    pthread_mutex_lock(&line->lock);
    line->committed = version > line->committed ? version : line->committed;
    line->stopped = line->stopped || stopped;
    pthread_cond_broadcast(&line->moved);
    pthread_mutex_unlock(&line->lock);
}

/* One version, or half a second without one. */
static weft_status follow_once(sync_line *line) {
    weft_subscriber *subscriber = line->pair.subscriber;
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
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(subscriber, &info);
        uint64_t version = info.version;
        if (version >= 2 && version < line->versions + 2) {
            line->ended[version - 2] = now;
        }
        tell_line(line, version, false);
    }
    return status;
}

static void *follow(void *opaque) {
    sync_line *line = opaque;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && !is_stopped(line)) {
        status = follow_once(line);
    }
    if (status != WEFT_OK) {
        line->worker_code = sync_fail(line->bench, line->pair.worker_context, status);
        tell_line(line, 0, true);
    }
    return NULL;
}

/* Its exit code. */
static int join_worker(sync_line *line) {
    if (line->running) {
        tell_line(line, 0, true);
        pthread_join(line->worker, NULL);
        line->running = false;
    }
    return line->worker_code;
}

/* ---- the trainer ---- */

static void await_version(sync_line *line, uint64_t version) {
    enum { PATIENCE_SECONDS = 10 };
    double end = weft_clock_now() + PATIENCE_SECONDS;
    bool in_time = true;
    pthread_mutex_lock(&line->lock);
    while (line->committed < version && !line->stopped && in_time) {
        in_time = weft_condition_wait(&line->moved, &line->lock, end);
    }
    pthread_mutex_unlock(&line->lock);
}

/* Where the store lies, the head that was put last can be looked at. */
static uint64_t measure_head(const sync_line *line) {
    char path[4096];
    struct stat status;
    snprintf(path, sizeof path, "%s/heads/00000001", line->path);
    return stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
}

static bool add_page(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)age_seconds;
    *(double *)opaque += (double)size;
    return true;
}

static weft_status measure_pages(const sync_line *line, double *bytes) {
    weft_context *context = line->pair.trainer_context;
    weft_store *store;
    weft_status status = weft_store_open(context, line->path, NULL, &store);
    if (status == WEFT_OK) {
        status = weft_store_list(context, store, "pages", add_page, bytes);
        weft_store_close(store);
    }
    return status;
}

int sync_line_step(sync_line *line) {
    weft_publish_result result = {.size = sizeof result};
    line->sums.changed += sync_walk_step(&line->walk);
    line->begun[line->made++] = clock_seconds();
    weft_status status = weft_publisher_publish(line->pair.publisher, NULL, &result);
    if (status != WEFT_OK) {
        return sync_fail(line->bench, line->pair.trainer_context, status);
    }
    line->sums.requests_up += (double)result.requests;
    line->sums.bytes_up += (double)result.uploaded_bytes;
    line->sums.head_bytes += (double)measure_head(line);
    await_version(line, result.version);
    return is_stopped(line) ? join_worker(line) : sync_go_on(line->bench);
}

/* ---- the whole ---- */

static bool count_anchor(void *opaque, const weft_log_entry *entry) {
    uint64_t *count = opaque;
    *count += entry->version > 1 && entry->anchor_bytes > 0;
    return true;
}

static int collect_latencies(sync_line *line, sync_latency_results *results) {
    double versions = (double)line->made, *seconds = line->begun;
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(line->pair.subscriber, &after);
    uint64_t arrived = 0;
    for (uint64_t i = 0; i < line->made; i++) {
        if (line->ended[i] > 0) {
            seconds[arrived++] = line->ended[i] - line->begun[i];
        }
    }
    if (arrived == 0) {
        return command_error(line->bench->command, EXIT_FAILED, "no version has arrived");
    }
    *results = line->sums;
    results->seconds = sync_times_of(seconds, arrived);
    results->total = line->walk.model.units;
    results->versions = line->made;
    results->lost = line->made - arrived;
    results->changed /= line->made;
    results->requests_up /= versions;
    results->bytes_up /= versions;
    results->requests_down = (double)(after.requests - line->before.requests) / versions;
    results->bytes_down = (double)(after.fetched_bytes - line->before.fetched_bytes) / versions;
    results->head_bytes /= versions;
    weft_status status = weft_publisher_settle(line->pair.publisher);
    if (status == WEFT_OK) {
        status = measure_pages(line, &results->page_bytes);
    }
    results->page_bytes /= versions;
    if (status == WEFT_OK) {
        status = weft_log_walk(line->pair.trainer_context, line->pair.trainer_store, NULL, count_anchor,
                               &results->anchors);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(line->bench, line->pair.trainer_context, status);
}

int sync_line_finish(sync_line *line, sync_latency_results *results) {
    int code = join_worker(line);
    if (code == EXIT_DONE) {
        code = sync_pair_compare(&line->pair);
    }
    return code == EXIT_DONE ? collect_latencies(line, results) : code;
}

void sync_line_close(sync_line *line) {
    if (line == NULL) {
        return;
    }
    join_worker(line);
    sync_pair_close(&line->pair);
    sync_server_stop(&line->relay);
    sync_server_stop(&line->server);
    sync_store_remove(line->cache);
    sync_store_remove(line->path);
    sync_walk_close(&line->walk);
    free(line->begun);
    free(line->ended);
    pthread_cond_destroy(&line->moved);
    pthread_mutex_destroy(&line->lock);
    free(line);
}

static sync_line *allocate_line(sync_bench *bench, uint64_t versions) {
    sync_line *line = calloc(1, sizeof *line);
    if (line == NULL) {
        return NULL;
    }
    pthread_mutex_init(&line->lock, NULL);
    weft_condition_open(&line->moved);
    line->bench = bench;
    line->versions = versions;
    line->committed = 1;
    line->begun = calloc(versions, sizeof *line->begun);
    line->ended = calloc(versions, sizeof *line->ended);
    return line;
}

static int start_servers(sync_line *line, bool relayed) {
    line->path = sync_store_path(line->bench, relayed ? "relayed" : "direct");
    line->cache = sync_store_path(line->bench, "cache");
    if (line->path == NULL || line->cache == NULL) {
        return EXIT_FAILED;
    }
    int code = sync_server_start(line->bench, line->path, true, &line->server);
    return code == EXIT_DONE && relayed
               ? sync_relay_start(line->bench, line->server.url, line->cache, &line->relay)
               : code;
}

static int start_line(sync_line *line, bool relayed) {
    const sync_pair_options options = {.profile = WEFT_PROFILE_SMALL,
                                       .follow = true,
                                       .anchors = true,
                                       .worker_url = relayed ? line->relay.url : NULL};
    int code = sync_pair_open(line->bench, &line->walk.model, line->server.url, &options, &line->pair);
    if (code != EXIT_DONE) {
        return code;
    }
    line->before.size = sizeof line->before;
    weft_subscriber_describe(line->pair.subscriber, &line->before);
    if (pthread_create(&line->worker, NULL, follow, line) != 0) {
        return command_error(line->bench->command, EXIT_FAILED, "cannot start a thread");
    }
    line->running = true;
    return EXIT_DONE;
}

int sync_line_open(sync_bench *bench, bool relayed, uint64_t versions, sync_line **line_out) {
    enum { PARAMETERS = 8000000 };
    uint64_t parameters = bench->options->parameters;
    sync_line *line = allocate_line(bench, versions);
    int code = line != NULL && line->begun != NULL && line->ended != NULL
                   ? sync_walk_open(bench, parameters < PARAMETERS ? parameters : PARAMETERS, &line->walk)
                   : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = start_servers(line, relayed);
    }
    if (code == EXIT_DONE) {
        code = start_line(line, relayed);
    }
    if (code != EXIT_DONE) {
        sync_line_close(line);
        return code;
    }
    *line_out = line;
    return EXIT_DONE;
}

int bench_sync_latency(sync_bench *bench, sync_results *all) {
    sync_latency_results *results = &all->latency;
    uint64_t versions = bench->options->versions;
    sync_line *line;
    int code = sync_line_open(bench, false, versions, &line);
    if (code != EXIT_DONE) {
        return code;
    }
    for (uint64_t i = 0; i < versions && code == EXIT_DONE; i++) {
        code = sync_line_step(line);
    }
    if (code == EXIT_DONE) {
        code = sync_line_finish(line, results);
    }
    sync_line_close(line);
    return code;
}
