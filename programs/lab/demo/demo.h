/* SPDX-License-Identifier: Apache-2.0
 *
 * demo.h: the parts of `weft demo`: a trainer and its workers as processes, what they tell while they run,
 * and what is left of it at the end, on the terminal and as a page.
 */
#ifndef WEFT_PROGRAMS_LAB_DEMO_DEMO_H
#define WEFT_PROGRAMS_LAB_DEMO_DEMO_H

#include "../../base/training.h"
#include "../../cli/command.h"
#include "../bench/sync/bench_sync.h"

#include "../../../train/run.h"

#include <sys/types.h>

/* ---- demo_processes.c: the processes ---- */

enum { DEMO_WORKERS_MAX = 16, DEMO_ARGUMENTS_MAX = 40 };

typedef struct demo_process {
    char name[TEXT_SIZE]; /* "the trainer", "worker 1" */
    char *log;            /* where its talk goes */
    pid_t pid;            /* 0: it was not started, or has ended */
    int code;             /* of its end; 128 + the number of a signal */
} demo_process;

typedef struct demo_processes {
    weft_command *command;
    demo_process list[1 + DEMO_WORKERS_MAX]; /* the trainer first */
    size_t count;
} demo_processes;

/* Starts this program with arguments, the verb first. Its end comes with this process's own, whatever ends
 * it; its output goes to a file in `directory`. */
int demo_process_start(demo_processes *processes, const char *directory, const char *name,
                       const char *const *arguments);
/* Looks who has ended. An error if one has that should not have. */
int demo_processes_check(demo_processes *processes, bool *finished_out);
/* Ends all that still run, and waits until they are gone. */
void demo_processes_end(demo_processes *processes);
void demo_processes_close(demo_processes *processes);
/* The last line that a process has written, or "". */
const char *demo_process_talk(const demo_process *process, char *text, size_t capacity);

/* ---- demo_tail.c: a file of lines that grows ---- */

typedef struct demo_tail {
    weft_command *command;
    const char *path;
    int descriptor; /* -1: it was not there yet */
    char *line;     /* what has come of one that has not ended; TRAINING_LINE_MAX bytes */
    size_t length;
    uint64_t number; /* of lines that have ended */
} demo_tail;

int demo_tail_open(weft_command *command, const char *path, demo_tail *tail);
/* Appends the steps that have come since. A file that is not there has none. */
int demo_tail_read(demo_tail *tail, json_t *steps);
void demo_tail_close(demo_tail *tail);

/* ---- demo_show.c: the terminal while it runs ---- */

typedef struct demo_show {
    bool quiet;
    bool redraw; /* a terminal: one block that is drawn again and again */
    int drawn;   /* lines of the block */
    size_t told; /* steps when a line was last printed */
    double at;   /* when the block was last drawn, or the warm-up told of */
    double started;
    uint64_t total; /* steps of the run; 0: not known yet */
    double pause;   /* the longest so far */
    double saved;   /* bytes, so far */
    size_t seen;    /* steps that are in these */
} demo_show;

void demo_show_open(demo_show *show, const weft_command *command);
/* `talk` is what the trainer has said last, which is shown until there are steps. */
void demo_show_update(demo_show *show, const json_t *steps, const char *talk);
/* Leaves the last state on the terminal. */
void demo_show_close(demo_show *show, const json_t *steps);

/* ---- demo_summary.c: a run in a few numbers ---- */

/* `steps` must not be empty. */
json_t *demo_summary_make(const json_t *steps);
/* `large` is demo_large_measure's, or null. */
void demo_summary_print(const json_t *summary, const json_t *large);

/* ---- demo_large.c: one step of a model of real size, and the page ---- */

/* Starts a server for the store, whose page shows it, and says where. A build without a server has none. */
int demo_page_open(sync_bench *bench, const char *store, sync_server *server_out);
/* Publishes a step of a model with so many parameters, follows it and compares, below `directory`. */
int demo_large_measure(weft_command *command, const char *directory, uint64_t parameters,
                       json_t **large_out);

/* ---- demo_report.c: the page ---- */

typedef struct demo_report {
    const char *command; /* as it could be typed again */
    bool interrupted;
    const json_t *run; /* its settings */
    const json_t *steps;
    const json_t *summary;
    const json_t *large; /* null: there was none */
} demo_report;

int demo_report_write(weft_command *command, const char *path, const demo_report *report);

#endif
