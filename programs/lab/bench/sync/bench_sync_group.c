/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_group.c: four replicas on one host, as a group and each on its own, through a directory.
 * Versions are steps to and fro between two states; each begins when all replicas have committed the one
 * before. The replicas are threads with contexts of one thread; the group's leader has all of them.
 * Processor time is that of the whole process but for the calls of publish.
 */
#include "bench_sync.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = SYNC_GROUP_RANKS };

typedef struct group_run group_run;

typedef struct group_rank {
    group_run *run;
    unsigned rank;
    pthread_t thread;
    bool started;
    weft_context *context;
    weft_store *store;
    uint16_t *memory;
    weft_table *table;
    weft_view *view;
    weft_subscriber *subscriber; /* on its own */
    weft_member *member;         /* in a group */
    uint64_t fetched, requests;  /* at version 1 */
    int code;
} group_rank;

struct group_run {
    sync_bench *bench;
    bench_model *model;
    const sync_flips *flips;
    bool grouped;
    char *store_path;
    char *group_path;
    sync_pair pair;
    uint64_t versions; /* beside the first */
    group_rank ranks[RANKS];
    pthread_t leader;
    bool leading;
    weft_context *leader_context;
    weft_store *leader_store;
    weft_group *group;
    uint64_t fetched, requests; /* by the leader, at version 1 */
    int leader_code;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned *arrived; /* ranks that have committed each version; under the lock */
    bool stopped;      /* under the lock */
    double *pauses;    /* version by version, rank by rank */
    double *seconds;
};

/* ---- between threads ---- */

static bool is_stopped(group_run *run) {
    pthread_mutex_lock(&run->lock);
    bool stopped = run->stopped;
    pthread_mutex_unlock(&run->lock);
    return stopped;
}

static void tell(group_run *run, uint64_t version, bool stopped) {
    pthread_mutex_lock(&run->lock);
    run->arrived[version] += version > 0;
    run->stopped = run->stopped || stopped;
    pthread_cond_broadcast(&run->moved);
    pthread_mutex_unlock(&run->lock);
}

/* False if somebody has failed. */
static bool await(group_run *run, uint64_t version) {
    pthread_mutex_lock(&run->lock);
    while (run->arrived[version] < RANKS && !run->stopped) {
        pthread_cond_wait(&run->moved, &run->lock);
    }
    bool stopped = run->stopped;
    pthread_mutex_unlock(&run->lock);
    return !stopped;
}

/* ---- a replica ---- */

static weft_status open_rank(group_rank *rank) {
    group_run *run = rank->run;
    if (run->grouped) {
        return weft_member_open(rank->context, run->group_path, rank->rank, rank->view, NULL,
                                &rank->member);
    }
    const weft_subscriber_options options = {.size = sizeof options, .empty = true};
    weft_status status = weft_store_open(rank->context, run->store_path, NULL, &rank->store);
    if (status == WEFT_OK) {
        status = weft_subscriber_open(rank->context, rank->store, rank->view, &options, &rank->subscriber);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(rank->subscriber, 0);
    }
    if (status == WEFT_OK) {
        weft_subscriber_info info = {.size = sizeof info};
        weft_subscriber_describe(rank->subscriber, &info);
        rank->fetched = info.fetched_bytes;
        rank->requests = info.requests;
    }
    return status;
}

static weft_status step_member(group_rank *rank, uint64_t *version_out, double *pause_out) {
    weft_status status = weft_member_wait(rank->member, 0.5, NULL);
    if (status == WEFT_OK) {
        status = weft_member_prepare(rank->member, 0);
    }
    if (status == WEFT_OK) {
        status = weft_member_commit(rank->member);
    }
    weft_member_info info = {.size = sizeof info};
    weft_member_describe(rank->member, &info);
    *version_out = info.version;
    *pause_out = info.pause_seconds;
    return status;
}

static weft_status step_subscriber(group_rank *rank, uint64_t *version_out, double *pause_out) {
    weft_status status = weft_subscriber_wait(rank->subscriber, 0.5, NULL);
    if (status == WEFT_OK) {
        status = weft_subscriber_pull(rank->subscriber, 0);
    }
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(rank->subscriber, &info);
    *version_out = info.version;
    *pause_out = info.pause_seconds;
    return status;
}

static weft_status follow_versions(group_rank *rank) {
    group_run *run = rank->run;
    uint64_t version = 1;
    weft_status status = WEFT_OK;
    tell(run, version, false);
    while (status >= 0 && version <= run->versions && !is_stopped(run)) {
        uint64_t before = version;
        double pause = 0;
        status =
            run->grouped ? step_member(rank, &version, &pause) : step_subscriber(rank, &version, &pause);
        if (status == WEFT_OK && version > before) {
            run->pauses[(version - 2) * RANKS + rank->rank] = pause;
            tell(run, version, false);
        }
    }
    return status < 0 ? status : WEFT_OK;
}

static void *run_rank(void *opaque) {
    group_rank *rank = opaque;
    weft_status status = open_rank(rank);
    if (status == WEFT_OK) {
        status = follow_versions(rank);
    }
    if (status != WEFT_OK) {
        rank->code = sync_fail(rank->run->bench, rank->context, status);
        tell(rank->run, 0, true);
    }
    return NULL;
}

static int make_rank(group_run *run, unsigned index) {
    group_rank *rank = &run->ranks[index];
    rank->run = run;
    rank->rank = index;
    int code = sync_context(run->bench, 1, &rank->context);
    if (code != EXIT_DONE) {
        return code;
    }
    rank->memory = bench_map(run->model->extent * sizeof(uint16_t));
    if (rank->memory == NULL) {
        return sync_no_memory(run->bench);
    }
    code = bench_model_table(run->bench->command, run->model, rank->memory, &rank->table);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_view_create(rank->context, rank->table, &rank->view);
    if (status != WEFT_OK) {
        return sync_fail(run->bench, rank->context, status);
    }
    rank->started = pthread_create(&rank->thread, NULL, run_rank, rank) == 0;
    return rank->started ? EXIT_DONE
                         : command_error(run->bench->command, EXIT_FAILED, "cannot start a thread");
}

static int end_rank(group_rank *rank) {
    if (rank->started) {
        pthread_join(rank->thread, NULL);
    }
    return rank->code;
}

static void close_rank(group_rank *rank, const bench_model *model) {
    weft_member_close(rank->member);
    weft_subscriber_close(rank->subscriber);
    weft_view_destroy(rank->view);
    weft_table_destroy(rank->table);
    weft_store_close(rank->store);
    bench_unmap(rank->memory, model->extent * sizeof(uint16_t));
    weft_context_destroy(rank->context);
}

/* ---- the leader ---- */

static void *lead(void *opaque) {
    group_run *run = opaque;
    weft_status status = WEFT_OK;
    while (status >= 0 && !is_stopped(run)) {
        status = weft_group_run(run->group, 0.2, NULL);
    }
    if (status < 0) {
        run->leader_code = sync_fail(run->bench, run->leader_context, status);
        tell(run, 0, true);
    }
    return NULL;
}

static int open_leader(group_run *run) {
    int code = sync_context(run->bench, run->bench->threads, &run->leader_context);
    if (code != EXIT_DONE) {
        return code;
    }
    const weft_group_options options = {.size = sizeof options, .members = RANKS};
    weft_status status = weft_store_open(run->leader_context, run->store_path, NULL, &run->leader_store);
    if (status == WEFT_OK) {
        status =
            weft_group_lead(run->leader_context, run->leader_store, run->group_path, &options, &run->group);
    }
    if (status == WEFT_OK) {
        status = weft_group_run(run->group, 10, NULL);
    }
    if (status != WEFT_OK) {
        return sync_fail(run->bench, run->leader_context, status);
    }
    weft_group_info info = {.size = sizeof info};
    weft_group_describe(run->group, &info);
    run->fetched = info.fetched_bytes;
    run->requests = info.requests;
    run->leading = pthread_create(&run->leader, NULL, lead, run) == 0;
    return run->leading ? EXIT_DONE
                        : command_error(run->bench->command, EXIT_FAILED, "cannot start a thread");
}

static void close_leader(group_run *run) {
    weft_group_close(run->group);
    weft_store_close(run->leader_store);
    weft_context_destroy(run->leader_context);
}

/* ---- the trainer ---- */

static double processor_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int train(group_run *run, sync_group_row *row) {
    int code = await(run, 1) ? EXIT_DONE : EXIT_FAILED;
    double all = processor_seconds();
    double published = 0;
    for (uint64_t i = 0; i < run->versions && code == EXIT_DONE; i++) {
        sync_flips_apply(run->flips, run->model->base);
        double before = processor_seconds();
        double start = clock_seconds();
        weft_status status = weft_publisher_publish(run->pair.publisher, NULL, NULL);
        published += processor_seconds() - before;
        if (status != WEFT_OK) {
            code = sync_fail(run->bench, run->pair.trainer_context, status);
        } else if (!await(run, i + 2)) {
            break;
        } else {
            code = sync_go_on(run->bench);
        }
        run->seconds[i] = clock_seconds() - start;
    }
    row->processor = (processor_seconds() - all - published) / (double)run->versions;
    return code;
}

/* ---- the whole ---- */

static int compare(const group_run *run) {
    const bench_model *model = run->model;
    for (unsigned i = 0; i < RANKS; i++) {
        if (memcmp(run->ranks[i].memory, model->base, bench_model_bytes(model)) != 0) {
            return command_error(run->bench->command, EXIT_INTEGRITY,
                                 "a replica is not what the trainer is");
        }
    }
    return EXIT_DONE;
}

static int run_threads(group_run *run, sync_group_row *row) {
    int code = run->grouped ? open_leader(run) : EXIT_DONE;
    for (unsigned i = 0; i < RANKS && code == EXIT_DONE; i++) {
        code = make_rank(run, i);
    }
    if (code == EXIT_DONE) {
        code = train(run, row);
    }
    bool done = code == EXIT_DONE && !is_stopped(run);
    if (!done) {
        tell(run, 0, true);
    }
    for (unsigned i = 0; i < RANKS; i++) {
        int ended = end_rank(&run->ranks[i]);
        code = code == EXIT_DONE ? ended : code;
    }
    tell(run, 0, true);
    if (run->leading) {
        pthread_join(run->leader, NULL);
        code = code == EXIT_DONE ? run->leader_code : code;
    }
    if (code == EXIT_DONE) {
        code = compare(run);
    }
    if (code == EXIT_DONE) {
        double versions = (double)run->versions;
        uint64_t bytes = 0;
        uint64_t requests = 0;
        if (run->grouped) {
            weft_group_info info = {.size = sizeof info};
            weft_group_describe(run->group, &info);
            bytes = info.fetched_bytes - run->fetched;
            requests = info.requests - run->requests;
        }
        for (unsigned i = 0; i < RANKS && !run->grouped; i++) {
            weft_subscriber_info info = {.size = sizeof info};
            weft_subscriber_describe(run->ranks[i].subscriber, &info);
            bytes += info.fetched_bytes - run->ranks[i].fetched;
            requests += info.requests - run->ranks[i].requests;
        }
        row->bytes = (double)bytes / versions;
        row->requests = (double)requests / versions;
        row->pause = sync_times_of(run->pauses, (size_t)run->versions * RANKS);
        row->seconds = sync_times_of(run->seconds, (size_t)run->versions);
    }
    for (unsigned i = 0; i < RANKS; i++) {
        close_rank(&run->ranks[i], run->model);
    }
    close_leader(run);
    return code;
}

/* A directory in memory, if the system has one. */
static char *group_place(sync_bench *bench) {
    char *path = NULL;
    const char *memory = "/dev/shm";
    if (access(memory, W_OK) != 0) {
        return sync_store_path(bench, "group");
    }
    return asprintf(&path, "%s/weft-bench-%ld", memory, (long)getpid()) < 0 ? NULL : path;
}

static int run_way(group_run *run, sync_group_row *row) {
    const sync_pair_options options = {.profile = WEFT_PROFILE_SMALL, .no_leaps = true};
    run->store_path = sync_store_path(run->bench, "grouped");
    run->group_path = group_place(run->bench);
    run->arrived = calloc(run->versions + 2, sizeof *run->arrived);
    run->pauses = calloc(run->versions * RANKS, sizeof *run->pauses);
    run->seconds = calloc(run->versions, sizeof *run->seconds);
    bool complete = run->store_path != NULL && run->group_path != NULL && run->arrived != NULL &&
                    run->pauses != NULL && run->seconds != NULL;
    int code = complete ? EXIT_DONE : sync_no_memory(run->bench);
    if (code == EXIT_DONE) {
        code = sync_pair_open(run->bench, run->model, run->store_path, &options, &run->pair);
    }
    if (code == EXIT_DONE) {
        code = run_threads(run, row);
        sync_pair_close(&run->pair);
    }
    sync_store_remove(run->store_path);
    sync_store_remove(run->group_path);
    free(run->arrived);
    free(run->pauses);
    free(run->seconds);
    return code;
}

int bench_sync_group(sync_bench *bench, sync_results *all) {
    sync_group_results *results = &all->group;
    enum { PARAMETERS = 64000000, VERSIONS = 40 };
    const bench_options *options = bench->options;
    uint64_t parameters = options->parameters < PARAMETERS ? options->parameters : PARAMETERS;
    bench_model model = {0};
    sync_flips flips = {0};
    weft_trace trace;
    int code = trace_open(bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(bench->command, &model, &trace);
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    if (code == EXIT_DONE) {
        code = sync_flips_between(bench, &model, model.base, model.next, &flips);
    }
    results->total = model.units;
    results->changed = flips.count;
    results->versions = options->versions < VERSIONS ? options->versions : VERSIONS;
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        group_run run = {.bench = bench,
                         .model = &model,
                         .flips = &flips,
                         .grouped = i == 0,
                         .versions = results->versions};
        pthread_mutex_init(&run.lock, NULL);
        pthread_cond_init(&run.moved, NULL);
        results->rows[i].name = i == 0 ? "group" : "apart";
        code = run_way(&run, &results->rows[i]);
        pthread_cond_destroy(&run.moved);
        pthread_mutex_destroy(&run.lock);
    }
    sync_flips_close(&flips);
    bench_model_close(&model);
    return code;
}
