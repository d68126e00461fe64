/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_buckets.c: many tensors over HTTP: one object with shared buckets, as weft publishes them,
 * against an object, a put and a get for each tensor.
 *
 * The other way is ours in everything but that: the same codec, server and connections, patches of one
 * tensor each, sums known beforehand on both sides. It is given the sizes and names of its objects for
 * nothing, and publishes no head. The server does not sync to the disk, which would cost the other way
 * thousands of syncs and ours three.
 */
#include "bench_sync.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 8 }; /* as many transfers at once as a store makes by default */

/* ---- one tensor alone ---- */

enum { OLD, NEW, LIVE, STATES };

typedef struct frame {
    weft_table *tables[STATES];
    weft_view *views[STATES];
    weft_sums *sums[STATES]; /* of the old state, and of the live one, which moves */
    char key[32];
    uint8_t *patch;
    size_t capacity;
    size_t size;
} frame;

typedef struct frame_run {
    sync_bench *bench;
    bench_model *model;
    frame *frames;
    weft_store *store;
    weft_context *contexts[WIDE]; /* one per worker, each of one thread */
    weft_context *failed;         /* whose text tells why */
    weft_status status;
    atomic_flag reported;
    atomic_bool stop;
} frame_run;

static weft_status append(void *opaque, const void *data, size_t size) {
    frame *frame = opaque;
    if (size > frame->capacity - frame->size) {
        return WEFT_NO_SPACE;
    }
    memcpy(frame->patch + frame->size, data, size);
    frame->size += size;
    return WEFT_OK;
}

static weft_status open_state(weft_context *context, frame *frame, int state, const bench_tensor *tensor,
                              uint16_t *memory) {
    weft_tensor entry = {.size = sizeof entry,
                         .name = tensor->name,
                         .dtype = WEFT_DTYPE_BF16,
                         .rank = tensor->rank,
                         .data = memory + tensor->start,
                         .writable = true,
                         .tied_to = -1};
    memcpy(entry.shape, tensor->shape, sizeof entry.shape);
    weft_status status = weft_table_create(context, &frame->tables[state]);
    if (status == WEFT_OK) {
        status = weft_table_add(frame->tables[state], &entry);
    }
    return status == WEFT_OK ? weft_view_create(context, frame->tables[state], &frame->views[state])
                             : status;
}

static weft_status open_frame(frame_run *run, size_t index) {
    enum { ROOM = 16384 };
    weft_context *context = run->contexts[0];
    frame *frame = &run->frames[index];
    const bench_tensor *tensor = &run->model->tensors[index];
    uint16_t *memory[STATES] = {run->model->base, run->model->next, run->model->live};
    frame->capacity = tensor->rows * tensor->columns * sizeof(uint16_t) + ROOM;
    frame->patch = malloc(frame->capacity);
    snprintf(frame->key, sizeof frame->key, "frames/%zu", index);
    weft_status status = frame->patch != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (int state = 0; state < STATES && status == WEFT_OK; state++) {
        status = open_state(context, frame, state, tensor, memory[state]);
    }
    return status == WEFT_OK ? weft_sums_compute(context, frame->views[OLD], &frame->sums[OLD]) : status;
}

static void close_frame(frame *frame) {
    for (int state = 0; state < STATES; state++) {
        weft_sums_destroy(frame->sums[state]);
        weft_view_destroy(frame->views[state]);
        weft_table_destroy(frame->tables[state]);
    }
    free(frame->patch);
}

/* Diff, encode and put. */
static weft_status send_frame(frame_run *run, weft_context *context, frame *frame) {
    weft_sums *sums = NULL;
    weft_sink sink = {.write = append, .opaque = frame};
    weft_diff_options options = {.size = sizeof options,
                                 .profile = WEFT_PROFILE_SMALL,
                                 .base_sums = frame->sums[OLD],
                                 .new_sums_out = &sums};
    frame->size = 0;
    weft_status status = weft_diff(context, frame->views[OLD], frame->views[NEW], &options, &sink, NULL);
    if (status == WEFT_OK) {
        weft_sums_destroy(sums);
        status = weft_store_put_bytes(context, run->store, frame->key, frame->patch, frame->size,
                                      WEFT_STORE_ALWAYS, NULL, NULL);
    }
    return status;
}

static weft_status apply_frame(weft_context *context, frame *frame) {
    weft_source source = {.memory = frame->patch, .size = frame->size};
    weft_patch *patch = NULL;
    weft_apply *apply = NULL;
    weft_status status = weft_patch_open(context, &source, &patch);
    if (status == WEFT_OK) {
        status = weft_apply_create(context, patch, frame->views[LIVE], frame->sums[LIVE], &apply);
    }
    if (status == WEFT_OK) {
        status = weft_apply_prepare(apply);
    }
    if (status == WEFT_OK) {
        status = weft_apply_commit(apply);
    }
    weft_apply_destroy(apply);
    weft_patch_close(patch);
    return status;
}

/* Get, check, decode and commit, from the bytes that the server gave. */
static weft_status receive_frame(frame_run *run, weft_context *context, frame *frame) {
    weft_store_get_request request = {
        .size = sizeof request, .key = frame->key, .length = frame->size, .buffer = frame->patch};
    weft_store_get_result result = {.size = sizeof result};
    memset(frame->patch, 0, frame->size);
    weft_status status = weft_store_get(context, run->store, &request, &result);
    return status == WEFT_OK ? apply_frame(context, frame) : status;
}

/* ---- all of them, by some workers ---- */

typedef weft_status (*frame_work)(frame_run *run, weft_context *context, frame *frame);

typedef struct frame_phase {
    frame_run *run;
    frame_work work;
} frame_phase;

static void run_frame(void *argument, size_t index, unsigned worker) {
    const frame_phase *phase = argument;
    frame_run *run = phase->run;
    if (atomic_load(&run->stop)) {
        return;
    }
    weft_status status = phase->work(run, run->contexts[worker], &run->frames[index]);
    if (status != WEFT_OK && !atomic_flag_test_and_set(&run->reported)) {
        run->status = status;
        run->failed = run->contexts[worker];
    }
    if (status != WEFT_OK || command_interrupted() != EXIT_DONE) {
        atomic_store(&run->stop, true);
    }
}

static int run_phase(frame_run *run, unsigned workers, frame_work work) {
    frame_phase phase = {.run = run, .work = work};
    parallel_run(workers, run->model->count, run_frame, &phase);
    return run->failed != NULL ? sync_fail(run->bench, run->failed, run->status) : sync_go_on(run->bench);
}

/* The worker's copy is at the old state again, and its sums with it. */
static int restore_live(frame_run *run) {
    weft_context *context = run->contexts[0];
    bench_model_restore(run->model);
    for (size_t i = 0; i < run->model->count; i++) {
        frame *frame = &run->frames[i];
        if (frame->sums[LIVE] != NULL) {
            weft_sums_destroy(frame->sums[LIVE]);
            frame->sums[LIVE] = NULL;
        }
        weft_status status = weft_sums_compute(context, frame->views[LIVE], &frame->sums[LIVE]);
        if (status != WEFT_OK) {
            return sync_fail(run->bench, context, status);
        }
    }
    return EXIT_DONE;
}

static int time_frames(frame_run *run, unsigned workers, sync_bucketing_row *row, double *seconds) {
    int code = restore_live(run);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_store_traffic before = {.size = sizeof before};
    weft_store_traffic_of(run->store, &before);
    double start = clock_seconds();
    code = run_phase(run, workers, send_frame);
    if (code == EXIT_DONE) {
        code = run_phase(run, workers, receive_frame);
    }
    *seconds = clock_seconds() - start;
    if (code != EXIT_DONE) {
        return code;
    }
    weft_store_traffic after = {.size = sizeof after};
    weft_store_traffic_of(run->store, &after);
    row->requests = after.requests - before.requests;
    row->bytes = after.sent + after.received - before.sent - before.received;
    const bench_model *model = run->model;
    if (memcmp(model->live, model->next, bench_model_bytes(model)) != 0) {
        return command_error(run->bench->command, EXIT_INTEGRITY, "%s: not the new state", row->text);
    }
    return EXIT_DONE;
}

static int open_frames(frame_run *run, const char *url) {
    int code = EXIT_DONE;
    for (int i = 0; i < WIDE && code == EXIT_DONE; i++) {
        code = sync_context(run->bench, 1, &run->contexts[i]);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    run->frames = calloc(run->model->count, sizeof *run->frames);
    if (run->frames == NULL) {
        return sync_no_memory(run->bench);
    }
    weft_status status = weft_store_open(run->contexts[0], url, NULL, &run->store);
    for (size_t i = 0; i < run->model->count && status == WEFT_OK; i++) {
        status = open_frame(run, i);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(run->bench, run->contexts[0], status);
}

static void close_frames(frame_run *run) {
    for (size_t i = 0; run->frames != NULL && i < run->model->count; i++) {
        close_frame(&run->frames[i]);
    }
    free(run->frames);
    weft_store_close(run->store);
    for (int i = 0; i < WIDE; i++) {
        weft_context_destroy(run->contexts[i]);
    }
}

/* One by one, and several at once, in turn. */
static int run_frames(sync_bench *bench, bench_model *model, const char *url, double *samples,
                      sync_bucketing_row *rows) {
    unsigned repeat = bench->options->repeat;
    frame_run run = {.bench = bench, .model = model, .reported = ATOMIC_FLAG_INIT};
    int code = open_frames(&run, url);
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        code = time_frames(&run, 1, &rows[0], &samples[i]);
        if (code == EXIT_DONE) {
            code = time_frames(&run, WIDE, &rows[1], &samples[repeat + i]);
        }
    }
    close_frames(&run);
    if (code == EXIT_DONE) {
        rows[0].seconds = sync_times_of(samples, repeat);
        rows[1].seconds = sync_times_of(samples + repeat, repeat);
    }
    return code;
}

/* ---- ours ---- */

static int time_version(sync_pair *pair, const sync_flips *flips, sync_bucketing_row *row,
                        double *seconds) {
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(pair->subscriber, &before);
    weft_publish_result result = {.size = sizeof result};
    uint64_t newest;
    sync_flips_apply(flips, pair->model->base);
    bench_chill();
    double start = clock_seconds();
    weft_status status = weft_publisher_publish(pair->publisher, NULL, &result);
    if (status != WEFT_OK) {
        return sync_fail(pair->bench, pair->trainer_context, status);
    }
    status = weft_subscriber_wait(pair->subscriber, 10, &newest);
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(pair->subscriber, newest);
    }
    *seconds = clock_seconds() - start;
    if (status != WEFT_OK) {
        return sync_fail(pair->bench, pair->worker_context, status);
    }
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(pair->subscriber, &after);
    row->requests = result.requests + after.requests - before.requests;
    row->bytes = result.uploaded_bytes + after.fetched_bytes - before.fetched_bytes;
    int code = sync_pair_compare(pair);
    return code == EXIT_DONE ? sync_go_on(pair->bench) : code;
}

static int run_versions(sync_bench *bench, bench_model *model, const sync_flips *flips, const char *url,
                        double *samples, sync_bucketing_row *row) {
    unsigned repeat = bench->options->repeat;
    sync_pair pair;
    sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .follow = true};
    int code = sync_pair_open(bench, model, url, &options, &pair);
    if (code != EXIT_DONE) {
        return code;
    }
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        code = time_version(&pair, flips, row, &samples[i]);
    }
    sync_pair_close(&pair);
    if (code == EXIT_DONE) {
        row->seconds = sync_times_of(samples, repeat);
    }
    return code;
}

/* ---- both ---- */

static int run_ways(sync_bench *bench, bench_model *model, sync_bucketing_results *results) {
    sync_server server = {0};
    sync_flips flips;
    double *samples = calloc(2 * (size_t)bench->options->repeat, sizeof *samples);
    char *path = sync_store_path(bench, "buckets");
    int code = sync_flips_between(bench, model, model->base, model->next, &flips);
    if (code == EXIT_DONE && (samples == NULL || path == NULL)) {
        code = sync_no_memory(bench);
    }
    if (code == EXIT_DONE) {
        code = sync_server_start(bench, path, false, &server);
    }
    if (code == EXIT_DONE) {
        code = run_frames(bench, model, server.url, samples, &results->rows[1]);
    }
    /* the pair needs the memory of the new state for its worker, so it comes last */
    if (code == EXIT_DONE) {
        code = run_versions(bench, model, &flips, server.url, samples, &results->rows[0]);
    }
    results->changed = flips.count;
    sync_flips_close(&flips);
    sync_server_stop(&server);
    sync_store_remove(path);
    free(samples);
    return code;
}

int bench_sync_buckets(sync_bench *bench, sync_results *all) {
    sync_bucketing_results *results = &all->bucketing;
    const bench_options *options = bench->options;
    weft_trace trace;
    bench_model model;
    *results = (sync_bucketing_results){
        .rows = {{.name = "buckets", .text = "weft: shared buckets"},
                 {.name = "per_tensor", .text = "per tensor, one by one"},
                 {.name = "per_tensor_parallel", .text = "per tensor, 8 at once"}}};
    int code =
        trace_open_many(bench->command, &trace, options->tensors, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(bench->command, &model, &trace);
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    if (code != EXIT_DONE) {
        return code;
    }
    results->tensors = model.count;
    results->total = model.units;
    code = run_ways(bench, &model, results);
    bench_model_close(&model);
    return code;
}
