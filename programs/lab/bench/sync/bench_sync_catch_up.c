/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_catch_up.c: what it costs to come back after many versions.
 *
 * Workers stop following at versions that stand differently to the multiples of four where leaps begin and
 * end, miss all the same number of versions of one long training run, and come back. What they fetch, pages
 * and heads and all, is compared with the patches that they missed. The publisher writes anchors as it
 * always does: a way over an anchor is taken if it is shorter.
 */
#include "bench_sync.h"

#include <stdlib.h>
#include <string.h>

/* 17 and its multiples meet every remainder by 4, 16 and 64 in turn. */
enum { STRIDE = 17, FIRST = 2 };

typedef struct away {
    weft_context *context;
    weft_store *store;
    bench_model model; /* only the memory and table of `live` are used */
    weft_view *view;
    weft_subscriber *subscriber;
} away;

typedef struct catch_up_run {
    sync_bench *bench;
    sync_catch_up_results *results;
    bench_model model;
    weft_trace trace;
    sync_flips *flips;
    uint64_t versions; /* after the first */
    uint64_t *patches; /* bytes, by version */
    char *path;
    sync_pair pair;
    away workers[SYNC_ABSENCES];
} catch_up_run;

/* ---- one worker ---- */

static int fail_worker(catch_up_run *run, const away *worker, weft_status status) {
    return sync_fail(run->bench, worker->context, status);
}

static int open_worker(catch_up_run *run, away *worker) {
    int code = bench_model_generate(run->bench->command, &worker->model, &run->trace);
    if (code == EXIT_DONE) {
        code = sync_context(run->bench, run->bench->threads, &worker->context);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    const weft_subscriber_options options = {.size = sizeof options, .empty = true};
    weft_status status = weft_store_open(worker->context, run->path, NULL, &worker->store);
    if (status == WEFT_OK) {
        status = weft_view_create(worker->context, worker->model.live_table, &worker->view);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_open(worker->context, worker->store, worker->view, &options,
                                      &worker->subscriber);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(worker->subscriber, 0);
    }
    return status == WEFT_OK ? EXIT_DONE : fail_worker(run, worker, status);
}

static void close_worker(away *worker) {
    weft_subscriber_close(worker->subscriber);
    weft_view_destroy(worker->view);
    weft_store_close(worker->store);
    bench_model_close(&worker->model);
    weft_context_destroy(worker->context);
    *worker = (away){0};
}

static int come_back(catch_up_run *run, away *worker, sync_absence *absence) {
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(worker->subscriber, &before);
    double start = clock_seconds();
    weft_status status = weft_subscriber_pull(worker->subscriber, 0);
    absence->seconds = clock_seconds() - start;
    if (status != WEFT_OK) {
        return fail_worker(run, worker, status);
    }
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(worker->subscriber, &after);
    absence->fetched = after.fetched_bytes - before.fetched_bytes;
    absence->requests = after.requests - before.requests;
    absence->steps = after.patches + after.anchors - before.patches - before.anchors;
    absence->anchors = after.anchors - before.anchors;
    for (uint64_t version = absence->from + 1; version <= after.version; version++) {
        absence->replayed += run->patches[version];
    }
    size_t bytes = bench_model_bytes(&run->model);
    return memcmp(worker->model.live, run->model.base, bytes) == 0
               ? EXIT_DONE
               : command_error(run->bench->command, EXIT_INTEGRITY,
                               "the worker is not what the trainer is");
}

/* ---- the run ---- */

static int publish_next(catch_up_run *run, uint64_t version) {
    weft_publish_result result = {.size = sizeof result};
    sync_flips_apply(&run->flips[version - 2], run->model.base);
    weft_status status = weft_publisher_publish(run->pair.publisher, NULL, &result);
    if (status != WEFT_OK) {
        return sync_fail(run->bench, run->pair.trainer_context, status);
    }
    run->patches[version] = result.patch_bytes;
    run->results->changed += result.changed;
    run->results->patch_bytes += result.patch_bytes;
    return sync_go_on(run->bench);
}

/* Who stops here, and who comes back here. Whoever comes back finds what was made by then: a publisher that
 * goes on has named it. */
static int meet_workers(catch_up_run *run, uint64_t version) {
    int code = EXIT_DONE;
    for (int i = 0; i < SYNC_ABSENCES && code == EXIT_DONE; i++) {
        sync_absence *absence = &run->results->absences[i];
        uint64_t from = FIRST + (uint64_t)i * STRIDE;
        if (version == from) {
            absence->from = from;
            code = open_worker(run, &run->workers[i]);
        } else if (version == from + run->results->missed) {
            weft_status status = weft_publisher_settle(run->pair.publisher);
            code = status == WEFT_OK ? come_back(run, &run->workers[i], absence)
                                     : sync_fail(run->bench, run->pair.trainer_context, status);
            close_worker(&run->workers[i]);
        }
    }
    return code;
}

static bool note_anchor(void *opaque, const weft_log_entry *entry) {
    catch_up_run *run = opaque;
    if (entry->version == 1) {
        run->results->anchor_bytes = entry->anchor_bytes;
    }
    return true;
}

static bool add_leap(void *opaque, const char *key, uint64_t size, double age_seconds) {
    (void)key;
    (void)age_seconds;
    uint64_t *bytes = opaque;
    *bytes += size;
    return true;
}

static int run_versions(catch_up_run *run) {
    const sync_pair_options options = {
        .profile = WEFT_PROFILE_SMALL, .anchors = true, .keep_all = true, .unsynced = true};
    int code = sync_pair_open(run->bench, &run->model, run->path, &options, &run->pair);
    for (uint64_t version = 2; version <= run->versions + 1 && code == EXIT_DONE; version++) {
        code = publish_next(run, version);
        if (code == EXIT_DONE) {
            code = meet_workers(run, version);
        }
    }
    if (code == EXIT_DONE) {
        /* What lies in the rooms of patches and leaps beyond the versions' own patches. */
        uint64_t bytes = 0;
        weft_context *context = run->pair.trainer_context;
        weft_status status = weft_store_list(context, run->pair.trainer_store, "patches", add_leap, &bytes);
        if (status == WEFT_OK) {
            status = weft_store_list(context, run->pair.trainer_store, "leaps", add_leap, &bytes);
        }
        if (status == WEFT_OK) {
            status = weft_log_walk(context, run->pair.trainer_store, NULL, note_anchor, run);
        }
        run->results->leap_bytes = bytes - run->results->patch_bytes;
        code = status == WEFT_OK ? EXIT_DONE : sync_fail(run->bench, context, status);
    }
    for (int i = 0; i < SYNC_ABSENCES; i++) {
        close_worker(&run->workers[i]);
    }
    sync_pair_close(&run->pair);
    run->results->changed /= run->versions;
    return code;
}

static int make_run(catch_up_run *run) {
    enum { PARAMETERS = 2000000 };
    const bench_options *options = run->bench->options;
    uint64_t parameters = options->parameters < PARAMETERS ? options->parameters : PARAMETERS;
    run->flips = calloc(run->versions, sizeof *run->flips);
    run->patches = calloc(run->versions + 2, sizeof *run->patches);
    run->path = sync_store_path(run->bench, "catch-up");
    if (run->flips == NULL || run->patches == NULL || run->path == NULL) {
        return sync_no_memory(run->bench);
    }
    int code =
        trace_open(run->bench->command, &run->trace, parameters, options->learning_rate, options->seed);
    if (code == EXIT_DONE) {
        code = bench_model_generate(run->bench->command, &run->model, &run->trace);
    }
    if (code == EXIT_DONE) {
        code = sync_flips_trace(run->bench, &run->model, &run->trace, run->flips, run->versions);
    }
    progress_clear(&run->bench->command->progress);
    run->results->total = run->model.units;
    return code;
}

int bench_sync_catch_up(sync_bench *bench, sync_results *all) {
    sync_catch_up_results *results = &all->catch_up;
    enum { MISSED = 256, MISSED_QUICK = 64 };
    catch_up_run run = {.bench = bench, .results = results};
    results->missed = bench->options->quick ? MISSED_QUICK : MISSED;
    run.versions = FIRST + (SYNC_ABSENCES - 1) * (uint64_t)STRIDE + results->missed - 1;
    int code = make_run(&run);
    if (code == EXIT_DONE) {
        code = run_versions(&run);
    }
    for (uint64_t i = 0; run.flips != NULL && i < run.versions; i++) {
        sync_flips_close(&run.flips[i]);
    }
    free(run.flips);
    free(run.patches);
    bench_model_close(&run.model);
    trace_close(&run.trace);
    sync_store_remove(run.path);
    return code;
}

/* ---- what is told of it ---- */

static double share_of(const sync_absence *absence) {
    return absence->replayed > 0 ? (double)absence->fetched / (double)absence->replayed : 0;
}

double sync_catch_up_worst(const sync_catch_up_results *results, size_t *index_out) {
    *index_out = 0;
    for (size_t i = 1; i < SYNC_ABSENCES; i++) {
        if (share_of(&results->absences[i]) > share_of(&results->absences[*index_out])) {
            *index_out = i;
        }
    }
    return share_of(&results->absences[*index_out]);
}

double sync_catch_up_mean(const sync_catch_up_results *results) {
    double sum = 0;
    for (size_t i = 0; i < SYNC_ABSENCES; i++) {
        sum += share_of(&results->absences[i]);
    }
    return sum / SYNC_ABSENCES;
}
