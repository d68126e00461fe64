/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync.h: the parts of `weft bench --sync`: what PULSESync costs from the trainer's weights to the
 * worker's.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_SYNC_BENCH_SYNC_H
#define WEFT_PROGRAMS_LAB_BENCH_SYNC_BENCH_SYNC_H

#include "../bench.h"

#include <sys/types.h>

/* ---- bench_sync.c: what to run, and the results ---- */

/* Of bench_options.parts: every bit that has a part. */
enum { SYNC_ALL = 511 };

enum { SYNC_VERSIONS_MAX = 10000, SYNC_TENSORS_MAX = 20000 };

/* Parses "publish,pause". False if a part is unknown. */
bool bench_sync_parse_parts(const char *text, unsigned *parts_out);
/* Runs the parts and prints the results. */
int bench_sync(weft_command *command, const bench_options *options);

/* Of several runs. */
typedef struct sync_times {
    double best;
    double median;
    double p99;
    double worst;
} sync_times;

typedef struct sync_publish_row {
    weft_profile profile;
    uint64_t patch_bytes;
    uint64_t uploaded_bytes; /* patch, page and head */
    sync_times seconds;
    double diff, upload, head; /* of the fastest run */
} sync_publish_row;

typedef struct sync_publish_results {
    uint64_t total, changed, bytes;
    double copy; /* seconds that memcpy takes for as many bytes, the fastest */
    sync_publish_row rows[2];
} sync_publish_results;

typedef struct sync_pause_results {
    uint64_t total, changed;
    sync_times prepare;
    sync_times commit;
    double copy; /* seconds that memcpy takes for the whole model, the fastest */
} sync_pause_results;

typedef struct sync_scaling_results {
    uint64_t totals[2]; /* a small model and a large one */
    uint64_t changed;   /* the same in both */
    sync_times commits[2];
} sync_scaling_results;

typedef struct sync_latency_results {
    uint64_t total, changed; /* on the average */
    uint64_t versions, lost;
    sync_times seconds;
    double requests_up, bytes_up; /* per version */
    double requests_down, bytes_down;
    double head_bytes, page_bytes; /* of what the publisher sends */
    uint64_t anchors;              /* that were written meanwhile */
} sync_latency_results;

/* One way to bring many tensors over. */
typedef struct sync_bucketing_row {
    const char *name;
    const char *text; /* for people */
    uint64_t requests, bytes;
    sync_times seconds;
} sync_bucketing_row;

enum { SYNC_WAYS = 3 };
typedef struct sync_bucketing_results {
    uint64_t tensors, total, changed;
    sync_bucketing_row rows[SYNC_WAYS];
} sync_bucketing_results;

/* One worker that was away. */
typedef struct sync_absence {
    uint64_t from;     /* the version that it was at */
    uint64_t replayed; /* bytes of all patches that it missed */
    uint64_t fetched;  /* bytes that it took to come back */
    uint64_t requests, steps, anchors;
    double seconds;
} sync_absence;

enum { SYNC_ABSENCES = 16 };
typedef struct sync_catch_up_results {
    uint64_t total, changed; /* on the average */
    uint64_t missed;         /* versions, by each */
    uint64_t anchor_bytes;   /* of the first one */
    uint64_t leap_bytes;     /* that the publisher sent besides, in all */
    uint64_t patch_bytes;    /* of all versions */
    sync_absence absences[SYNC_ABSENCES];
} sync_catch_up_results;

enum { SYNC_GROUP_RANKS = 4 };

/* Replicas on one host. */
typedef struct sync_group_row {
    const char *name;
    sync_times pause;   /* commit at a replica, from the decision on */
    sync_times seconds; /* from the call of publish until all have committed */
    double processor;   /* seconds per version, of all but the publisher */
    double bytes;       /* fetched per version, by all together */
    double requests;
} sync_group_row;

typedef struct sync_group_results {
    uint64_t total, changed, versions;
    sync_group_row rows[2]; /* as a group, and each on its own */
} sync_group_results;

/* Processes that publish together, against one alone. */
enum { SYNC_TEAM = 4 };
typedef struct sync_parts_row {
    weft_profile profile;
    uint64_t patch_bytes;
    sync_times alone, together;
    double alone_processor, together_processor; /* seconds of all threads, the fewest */
    uint64_t alone_peak, alone_held;            /* bytes: of memory at most, and of weights */
    uint64_t peaks[SYNC_TEAM], held[SYNC_TEAM];
} sync_parts_row;

typedef struct sync_parts_results {
    uint64_t total, changed;
    sync_parts_row rows[2];
} sync_parts_results;

/* What a call takes of the processor, in seconds per version, and what of it goes one after the other. */
typedef struct sync_serial_call {
    double all;     /* of the whole process */
    double outside; /* of all loops: nobody else works meanwhile */
    double emits;   /* ordered parts of loops, which are beside others' work */
    double beside;  /* other threads, which write and send what is made */
} sync_serial_call;

enum { SYNC_SERIAL_CALLS = 3, SYNC_SERIAL_THREADS = 2 };
typedef struct sync_serial_results {
    uint64_t total, changed;
    sync_serial_call calls[SYNC_SERIAL_THREADS][SYNC_SERIAL_CALLS]; /* publish, prepare, commit */
} sync_serial_results;

typedef struct sync_results {
    unsigned threads;
    sync_publish_results publish;
    sync_pause_results pause;
    sync_scaling_results scaling;
    sync_latency_results latency;
    sync_bucketing_results bucketing;
    sync_catch_up_results catch_up;
    sync_group_results group;
    sync_parts_results parts;
    sync_serial_results serial;
} sync_results;

json_t *sync_times_json(const sync_times *times);
json_t *sync_latency_json(const sync_latency_results *results);

/* ---- bench_sync_tools.c: samples, directories, a server, changes ---- */

/* A bench in its surroundings. */
typedef struct sync_bench {
    weft_command *command;
    const bench_options *options;
    unsigned threads;
    char *directory; /* everything that is written lies in it */
} sync_bench;

/* Sorts `values`, of which there is at least one. */
sync_times sync_times_of(double *values, size_t count);

/* A context with `threads` threads that a signal cancels. */
int sync_context(sync_bench *bench, unsigned threads, weft_context **context_out);
/* The message of a failed call, or that of an interruption. */
int sync_fail(sync_bench *bench, const weft_context *context, weft_status status);
/* EXIT_DONE, or the message that it was interrupted. */
int sync_go_on(sync_bench *bench);
int sync_no_memory(sync_bench *bench);

/* Makes the directory. `sync_bench_close` removes it with all that it holds. */
/* A number that was given, or one of two usual ones. */
static inline uint64_t sync_choose(uint64_t given, bool quick, uint64_t short_one, uint64_t usual) {
    return given > 0 ? given : quick ? short_one : usual;
}
int sync_bench_open(weft_command *command, const bench_options *options, sync_bench *bench);
void sync_bench_close(sync_bench *bench);
/* The path of a new store, and its removal. */
char *sync_store_path(sync_bench *bench, const char *name);
void sync_store_remove(char *path);

/* `weft serve` as a process of its own, on a port of the kernel's choice. */
typedef struct sync_server {
    pid_t pid;
    char url[128];
} sync_server;

/* `durable`: puts are synced to the disk before they are answered. */
int sync_server_start(sync_bench *bench, const char *path, bool durable, sync_server *server);
/* The same as a relay of `upstream`, with its cache at `path`. */
int sync_relay_start(sync_bench *bench, const char *upstream, const char *path, sync_server *server);
void sync_server_stop(sync_server *server);

/* The difference of two states, bit by bit: applied to one it gives the other, and the other way round. */
typedef struct sync_flips {
    uint64_t *positions; /* ascending, units of the model's memory */
    uint16_t *bits;
    uint64_t count;
} sync_flips;

int sync_flips_between(sync_bench *bench, const bench_model *model, const uint16_t *from,
                       const uint16_t *to, sync_flips *flips);
/* Exactly `count` changes of the lowest bit, spread evenly over the model. */
int sync_flips_scatter(sync_bench *bench, const bench_model *model, uint64_t count, sync_flips *flips);
/* The first `count` steps of the trace that the model was made of. */
int sync_flips_trace(sync_bench *bench, const bench_model *model, const weft_trace *trace,
                     sync_flips *flips, size_t count);
void sync_flips_apply(const sync_flips *flips, uint16_t *state);
void sync_flips_close(sync_flips *flips);

/* ---- bench_sync_tools.c: a training run of any length ---- */

enum { SYNC_WALK_STEPS = 8 };
typedef struct sync_walk {
    bench_model model; /* the weights are its `base` */
    sync_flips flips[SYNC_WALK_STEPS];
    uint64_t steps; /* that were made */
} sync_walk;

int sync_walk_open(sync_bench *bench, uint64_t parameters, sync_walk *walk);
void sync_walk_close(sync_walk *walk);
/* Makes the next step, and gives the number of its changes. */
uint64_t sync_walk_step(sync_walk *walk);

/* ---- bench_sync_pair.c: a trainer and a worker ---- */

/* The trainer's weights are the model's `base`, the worker's its `next`, so that a model of N bytes takes
 * 3 N with the publisher's mirror. */
typedef struct sync_pair {
    sync_bench *bench;
    bench_model *model;
    weft_context *trainer_context;
    weft_store *trainer_store;
    weft_view *trainer_view;
    weft_publisher *publisher;
    weft_context *worker_context;
    weft_store *worker_store;
    weft_view *worker_view;
    weft_subscriber *subscriber; /* NULL: nobody follows */
} sync_pair;

typedef struct sync_pair_options {
    weft_profile profile;
    bool follow;
    bool anchors;           /* later ones too, in the background, as a run has them */
    bool no_leaps;          /* nothing beside publishing but what is measured */
    bool no_looks;          /* the trainer does not read reports, which are bytes of the server too */
    bool keep_all;          /* and no version goes for them */
    bool unsynced;          /* where bytes are counted and no time is taken: puts need not reach the disk */
    const char *worker_url; /* where the worker follows; NULL: where the trainer publishes */
} sync_pair_options;

/* Publishes the first version; the worker, if there is one, has it in the end. */
int sync_pair_open(sync_bench *bench, bench_model *model, const char *url, const sync_pair_options *options,
                   sync_pair *pair);
void sync_pair_close(sync_pair *pair);
/* A model, and the changes of one step of its training. */
typedef struct sync_stepped {
    bench_model model;
    sync_flips flips;
} sync_stepped;

/* bench_sync_memory.c */
int sync_stepped_open(sync_bench *bench, uint64_t parameters, sync_stepped *stepped);
/* The changes are the step's, or `count` of our own. */
int sync_stepped_changes(sync_bench *bench, sync_stepped *stepped, uint64_t count);
void sync_stepped_close(sync_stepped *stepped);

/* Changes the trainer's weights and publishes them; caches are cold. */
int sync_pair_publish(sync_pair *pair, const sync_flips *flips, weft_publish_result *result_out);
/* Brings the worker to the newest version, and compares it bit for bit with the trainer. Caches are cold
 * before prepare, and before commit. */
int sync_pair_follow(sync_pair *pair, double *prepare_seconds, double *commit_seconds);
/* Are they the same? */
int sync_pair_compare(const sync_pair *pair);

/* ---- bench_sync_latency.c: a trainer, a server, and a worker that waits on it ---- */

typedef struct sync_line sync_line;

/* With at most 8M parameters, for up to `versions` versions. `relayed`: the worker's server is a relay of
 * the trainer's. */
int sync_line_open(sync_bench *bench, bool relayed, uint64_t versions, sync_line **line_out);
/* Publishes a version, and waits until the worker has committed it. */
int sync_line_step(sync_line *line);
/* After the last step: the worker is what the trainer is, and so long it took. */
int sync_line_finish(sync_line *line, sync_latency_results *results);
void sync_line_close(sync_line *line);

/* ---- the parts ---- */

/* bench_sync_memory.c */
int bench_sync_publish(sync_bench *bench, sync_results *all);
int bench_sync_pause(sync_bench *bench, sync_results *all);
int bench_sync_scaling(sync_bench *bench, sync_results *all);
/* bench_sync_latency.c */
int bench_sync_latency(sync_bench *bench, sync_results *all);
/* bench_sync_buckets.c */
int bench_sync_buckets(sync_bench *bench, sync_results *all);
/* bench_sync_group.c */
int bench_sync_group(sync_bench *bench, sync_results *all);
/* bench_sync_catch_up.c */
int bench_sync_catch_up(sync_bench *bench, sync_results *all);
/* Of the worst and of all, as a share of the patches that were missed. */
double sync_catch_up_worst(const sync_catch_up_results *results, size_t *index_out);
double sync_catch_up_mean(const sync_catch_up_results *results);
/* bench_sync_parts.c */
int bench_sync_parts(sync_bench *bench, sync_results *all);
/* bench_sync_serial.c */
int bench_sync_serial(sync_bench *bench, sync_results *all);
json_t *sync_serial_json(const sync_results *all);
void sync_serial_print(const sync_results *all);

#endif
