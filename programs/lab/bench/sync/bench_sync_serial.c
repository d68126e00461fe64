/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_serial.c: what of publishing and following more threads cannot share (Amdahl). All is
 * processor time, so that it is the same on a busy machine. Any number of threads can share the iterations
 * of loops. What the calling thread does outside of them goes one after the other, and so does what loops
 * put in order, which is beside other iterations but never beside itself. Threads of their own, which write
 * and send, are beside all of it.
 */
#include "bench_sync.h"

#include "../../../../lib/base/pool.h"

#include <time.h>

enum { PUBLISH, PREPARE, COMMIT };

static const char *const call_names[SYNC_SERIAL_CALLS] = {"publish", "prepare", "commit"};

/* A moment of what is measured. */
typedef struct moment {
    double process;
    double thread;
    weft_parallel_times loops;
} moment;

static double processor_seconds(clockid_t whose) {
    struct timespec now;
    clock_gettime(whose, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static moment moment_now(void) {
    return (moment){processor_seconds(CLOCK_PROCESS_CPUTIME_ID), processor_seconds(CLOCK_THREAD_CPUTIME_ID),
                    weft_parallel_measured()};
}

/* Adds what a call took since then, one of so many. */
static void add_call(sync_serial_call *call, moment start, double share) {
    moment end = moment_now();
    double all = end.process - start.process, tasks = end.loops.tasks - start.loops.tasks;
    double emits = end.loops.emits - start.loops.emits;
    double outside = end.thread - start.thread - (end.loops.own - start.loops.own);
    call->all += share * all;
    call->outside += share * outside;
    call->emits += share * emits;
    call->beside += share * (all - outside - tasks - emits);
}

static weft_status run_version(sync_pair *pair, const sync_flips *flips, sync_serial_call *calls,
                               double share) {
    weft_status status = weft_publisher_settle(pair->publisher);
    sync_flips_apply(flips, pair->model->base);
    moment start = moment_now();
    if (status == WEFT_OK) {
        status = weft_publisher_publish(pair->publisher, NULL, NULL);
        add_call(&calls[PUBLISH], start, share);
    }
    start = moment_now();
    if (status == WEFT_OK) {
        status = weft_subscriber_prepare(pair->subscriber, 0);
        add_call(&calls[PREPARE], start, share);
    }
    start = moment_now();
    if (status == WEFT_OK) {
        status = weft_subscriber_commit(pair->subscriber);
        add_call(&calls[COMMIT], start, share);
    }
    return status;
}

static int run_threads(sync_bench *bench, sync_stepped *stepped, unsigned threads,
                       sync_serial_call *calls) {
    sync_bench with = *bench;
    sync_pair pair = {0};
    sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .follow = true, .no_leaps = true};
    unsigned repeat = bench->options->repeat;
    with.threads = threads;
    char *path = sync_store_path(&with, "serial");
    int code = path != NULL ? sync_pair_open(&with, &stepped->model, path, &options, &pair)
                            : sync_no_memory(bench);
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        weft_status status = run_version(&pair, &stepped->flips, calls, 1.0 / repeat);
        code =
            status == WEFT_OK ? sync_pair_compare(&pair) : sync_fail(&with, pair.trainer_context, status);
    }
    sync_pair_close(&pair);
    sync_store_remove(path);
    return code;
}

int bench_sync_serial(sync_bench *bench, sync_results *all) {
    enum { PARAMETERS = 256000000 };
    sync_serial_results *results = &all->serial;
    uint64_t parameters = bench->options->parameters;
    sync_stepped stepped;
    int code = sync_stepped_open(bench, parameters < PARAMETERS ? parameters : PARAMETERS, &stepped);
    if (code == EXIT_DONE) {
        code = sync_stepped_changes(bench, &stepped, 0);
    }
    results->total = stepped.model.units;
    results->changed = stepped.flips.count;
    for (unsigned t = 0; t < SYNC_SERIAL_THREADS && code == EXIT_DONE; t++) {
        code = run_threads(bench, &stepped, t + 1, results->calls[t]);
    }
    sync_stepped_close(&stepped);
    return code;
}

/* The clocks are read one after the other: of a call of microseconds, a part may seem more than all. */
static double share_of(const sync_serial_call *call) {
    double serial = call->emits + call->outside;
    return serial < call->all ? serial / call->all : 1;
}

json_t *sync_serial_json(const sync_results *all) {
    json_t *json = json_object(), *rows = json_array();
    for (unsigned t = 0; t < SYNC_SERIAL_THREADS; t++) {
        for (unsigned c = 0; c < SYNC_SERIAL_CALLS; c++) {
            const sync_serial_call *call = &all->serial.calls[t][c];
            json_t *row = json_object();
            json_object_set_new(row, "call", json_string(call_names[c]));
            json_object_set_new(row, "threads", json_count(t + 1));
            json_object_set_new(row, "processor_seconds", json_real(call->all));
            json_object_set_new(row, "outside_seconds", json_real(call->outside));
            json_object_set_new(row, "ordered_seconds", json_real(call->emits));
            json_object_set_new(row, "beside_seconds", json_real(call->beside));
            json_object_set_new(row, "serial_share", json_real(share_of(call)));
            json_array_append_new(rows, row);
        }
    }
    json_object_set_new(json, "total", json_count(all->serial.total));
    json_object_set_new(json, "changed", json_count(all->serial.changed));
    json_object_set_new(json, "rows", rows);
    return json;
}

void sync_serial_print(const sync_results *all) {
    char total[TEXT_SIZE];
    printf("\n%-10s %s weights, %.3f%% changed; processor time per version, ms\n", "serial",
           text_count(all->serial.total, total),
           100 * (double)all->serial.changed / (double)all->serial.total);
    printf("  %-8s %7s %9s %9s %9s %9s %7s\n", "", "threads", "all", "beside", "outside", "ordered",
           "serial");
    for (unsigned c = 0; c < SYNC_SERIAL_CALLS; c++) {
        for (unsigned t = 0; t < SYNC_SERIAL_THREADS; t++) {
            const sync_serial_call *call = &all->serial.calls[t][c];
            printf("  %-8s %7u %9.2f %9.3f %9.3f %9.3f %6.2f%%\n", t == 0 ? call_names[c] : "", t + 1,
                   1e3 * call->all, 1e3 * call->beside, 1e3 * call->outside, 1e3 * call->emits,
                   100 * share_of(call));
        }
    }
}
