/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_pair.c: a trainer that publishes and a worker that follows, in one process, through a store.
 */
#include "bench_sync.h"

#include <string.h>

static int open_trainer(sync_pair *pair, const char *url, const sync_pair_options *options) {
    sync_bench *bench = pair->bench;
    int code = sync_context(bench, bench->threads, &pair->trainer_context);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_context *context = pair->trainer_context;
    weft_publisher_options publisher_options = {.size = sizeof publisher_options,
                                                .profile = options->profile,
                                                .anchor_ratio = options->anchors ? 0 : -1,
                                                .keep_anchors = options->keep_all ? 15 : 0,
                                                .anchors_in_background = options->anchors,
                                                .no_leaps = options->no_leaps,
                                                .no_announced_cuts = options->no_looks,
                                                .spool_directory = bench->directory};
    const weft_store_options store_options = {.size = sizeof store_options,
                                              .volatile_writes = options->unsynced};
    weft_status status = weft_store_open(context, url, &store_options, &pair->trainer_store);
    if (status == WEFT_OK) {
        status = weft_view_create(context, pair->model->base_table, &pair->trainer_view);
    }
    if (status == WEFT_OK) {
        status = weft_publisher_open(context, pair->trainer_store, pair->trainer_view, &publisher_options,
                                     &pair->publisher);
    }
    if (status == WEFT_OK) {
        status = weft_publisher_publish(pair->publisher, NULL, NULL);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(bench, context, status);
}

static int open_worker(sync_pair *pair, const char *url) {
    sync_bench *bench = pair->bench;
    int code = sync_context(bench, bench->threads, &pair->worker_context);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_context *context = pair->worker_context;
    weft_subscriber_options subscriber_options = {.size = sizeof subscriber_options, .empty = true};
    weft_status status = weft_store_open(context, url, NULL, &pair->worker_store);
    if (status == WEFT_OK) {
        status = weft_view_create(context, pair->model->next_table, &pair->worker_view);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_open(context, pair->worker_store, pair->worker_view, &subscriber_options,
                                      &pair->subscriber);
    }
    /* a relay may learn of the first version a moment later */
    if (status == WEFT_OK) {
        status = weft_subscriber_wait(pair->subscriber, 60, NULL);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(pair->subscriber, 0);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(bench, context, status);
}

int sync_pair_open(sync_bench *bench, bench_model *model, const char *url, const sync_pair_options *options,
                   sync_pair *pair) {
    *pair = (sync_pair){.bench = bench, .model = model};
    int code = open_trainer(pair, url, options);
    if (code == EXIT_DONE && options->follow) {
        code = open_worker(pair, options->worker_url != NULL ? options->worker_url : url);
    }
    if (code != EXIT_DONE) {
        sync_pair_close(pair);
    }
    return code;
}

static void close_side(weft_view *view, weft_store *store, weft_context *context) {
    weft_view_destroy(view);
    weft_store_close(store);
    weft_context_destroy(context);
}

void sync_pair_close(sync_pair *pair) {
    weft_subscriber_close(pair->subscriber);
    weft_publisher_close(pair->publisher);
    close_side(pair->worker_view, pair->worker_store, pair->worker_context);
    close_side(pair->trainer_view, pair->trainer_store, pair->trainer_context);
    *pair = (sync_pair){0};
}

int sync_pair_publish(sync_pair *pair, const sync_flips *flips, weft_publish_result *result_out) {
    /* what is made between two versions of a training run is not timed */
    weft_status status = weft_publisher_settle(pair->publisher);
    sync_flips_apply(flips, pair->model->base);
    bench_chill();
    if (status == WEFT_OK) {
        status = weft_publisher_publish(pair->publisher, NULL, result_out);
    }
    if (status != WEFT_OK) {
        return sync_fail(pair->bench, pair->trainer_context, status);
    }
    return sync_go_on(pair->bench);
}

int sync_pair_compare(const sync_pair *pair) {
    const bench_model *model = pair->model;
    if (memcmp(model->base, model->next, bench_model_bytes(model)) != 0) {
        return command_error(pair->bench->command, EXIT_INTEGRITY, "the worker is not what the trainer is");
    }
    return EXIT_DONE;
}

int sync_pair_follow(sync_pair *pair, double *prepare_seconds, double *commit_seconds) {
    bench_chill();
    double start = clock_seconds();
    weft_status status = weft_subscriber_prepare(pair->subscriber, 0);
    *prepare_seconds = clock_seconds() - start;
    if (status == WEFT_MORE) {
        return command_error(pair->bench->command, EXIT_FAILED,
                             "a version does not fit into one step; nothing to measure");
    }
    if (status == WEFT_OK) {
        bench_chill();
        start = clock_seconds();
        status = weft_subscriber_commit(pair->subscriber);
        *commit_seconds = clock_seconds() - start;
    }
    if (status != WEFT_OK) {
        return sync_fail(pair->bench, pair->worker_context, status);
    }
    return sync_pair_compare(pair);
}
