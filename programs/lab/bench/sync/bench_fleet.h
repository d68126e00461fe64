/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet.h: the parts of `weft bench --fleet`: many followers behind a few relays.
 */
#ifndef WEFT_PROGRAMS_LAB_BENCH_SYNC_BENCH_FLEET_H
#define WEFT_PROGRAMS_LAB_BENCH_SYNC_BENCH_FLEET_H

#include "bench_sync.h"

enum { FLEET_FOLLOWERS_MAX = 1024, FLEET_RELAYS_MAX = 16, FLEET_PROCESSES_MAX = 256 };

/* Resident bytes of a server. */
typedef struct fleet_memory {
    uint64_t early, late;
} fleet_memory;

typedef struct fleet_crowd_results {
    uint64_t total, changed; /* on the average */
    uint64_t lost;           /* of versions times followers: where a follower never stood */
    uint64_t alive;          /* followers, as the origin has heard of them through the relays */
    sync_times seconds;      /* publish to commit, of all followers and versions */
    double elapsed;          /* for all versions */
    /* of all versions but the first, which followers begin with */
    uint64_t patch_bytes, page_bytes, head_bytes;
    uint64_t origin_bytes; /* of bodies that it sent */
    uint64_t origin_requests;
    uint64_t early_versions;                   /* after so many, and after the last one: */
    fleet_memory memory[1 + FLEET_RELAYS_MAX]; /* the origin's, and the relays' */
} fleet_crowd_results;

/* An object that a fresh relay is asked for by everybody at once. */
typedef struct fleet_asked {
    const char *room;
    uint64_t bytes;
    uint64_t origin_requests;
    uint64_t origin_bytes;
} fleet_asked;

enum { FLEET_ASKED = 2 };
typedef struct fleet_results {
    fleet_crowd_results crowd;
    fleet_asked asked[FLEET_ASKED];
    sync_latency_results direct, relayed;
} fleet_results;

/* ---- bench_fleet.c ---- */

/* Of the options, 0 is: 64 followers, 2 relays, 200 versions, 8M parameters; or 8, 2, 12 and 1M if
 * `quick`. Runs all and prints the results. */
int bench_fleet(weft_command *command, const bench_options *options);

/* ---- bench_fleet_tools.c: what servers tell of themselves, and threads that wait for each other ---- */

/* A server's counters, without what reading them adds. */
typedef struct fleet_meter {
    sync_bench *bench;
    weft_context *context;
    weft_store *store;
    uint64_t own; /* bytes of its answers to us */
} fleet_meter;

typedef struct fleet_counts {
    uint64_t requests; /* for objects, of any method */
    uint64_t sent;     /* bytes of bodies, heads that were waited for included */
} fleet_counts;

int fleet_meter_open(sync_bench *bench, const char *url, fleet_meter *meter);
void fleet_meter_close(fleet_meter *meter);
/* Waits until nothing changes any more. */
int fleet_meter_read(fleet_meter *meter, fleet_counts *counts_out);

/* Resident bytes of a process; 0 if it is gone. */
uint64_t fleet_resident(pid_t pid);

/* ---- bench_fleet_process.c: a follower that is a process ---- */

typedef struct fleet_process {
    pid_t pid;
    FILE *lines; /* that it prints */
} fleet_process;

int fleet_process_start(sync_bench *bench, const char *url, const char *out, const char *name,
                        fleet_process *process);
/* Waits for the next version that it has put in place. False: it has ended. */
bool fleet_process_next(fleet_process *process, uint64_t *version_out, weft_digest *digest_out);
/* Ends it, without a word; it is still to be stopped, which waits for that. */
void fleet_process_interrupt(const fleet_process *process);
void fleet_process_stop(fleet_process *process);

/* ---- the parts ---- */

/* Where the crowd's store is served, and lies; for the part after it. */
typedef struct fleet_origin {
    char *path;
    sync_server server;
} fleet_origin;

/* bench_fleet_crowd.c */
int bench_fleet_crowd(sync_bench *bench, const fleet_origin *origin, fleet_crowd_results *results);
/* bench_fleet_ask.c: with a store that has two versions or more */
int bench_fleet_ask(sync_bench *bench, const fleet_origin *origin, fleet_asked asked[FLEET_ASKED]);

#endif
