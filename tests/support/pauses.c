/* SPDX-License-Identifier: Apache-2.0
 *
 * pauses.c: sweeps of pauses; see pauses.h.
 */
#include "pauses.h"

#include "stride.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Operations that are left out between two cases. A larger stride leaves out events and kinds besides: rows
 * that begin behind the last operation would be scenes for nothing. */
enum { STEP_MAX = 6, ROWS_AT_ONCE = 12 };

static const char *const kind_names[PAUSE_KINDS] = {
    [PAUSE_BEFORE] = "stopped before",         [PAUSE_LATE] = "told of a failure, and late:",
    [PAUSE_LATER] = "tried again, and late:",  [PAUSE_KILLED] = "killed before",
    [PAUSE_KILLED_LATE] = "killed, and late:",
};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "pauses: %s\n", what);
        abort();
    }
}

static void happen(void *opaque) {
    pause_case *pause = opaque;
    snprintf(pause->operation, sizeof pause->operation, "%s", fault_store_reached(pause->faults));
    pause->happened = true;
    if (pause->meanwhile != NULL) {
        pause->meanwhile(pause->opaque);
    }
}

void pause_begin(pause_case *pause, fault_store *faults, fault_meanwhile meanwhile, void *opaque) {
    const fault_rule rule = {.kind = pause->kind == PAUSE_BEFORE ? FAULT_PAUSE : FAULT_HOLD,
                             .meanwhile = happen,
                             .opaque = pause};
    pause->faults = faults;
    pause->meanwhile = meanwhile;
    pause->opaque = opaque;
    fault_store_strike_at(faults, pause->at, &rule, !pause_alive(pause));
}

bool pause_end(pause_case *pause, weft_context *context) {
    pause->reached = fault_store_fired(pause->faults);
    if (!pause->reached) {
        fault_store_fail_at(pause->faults, 0, WEFT_OK);
        return false;
    }
    if (pause->kind != PAUSE_BEFORE) {
        happen(pause);
    }
    if (pause->kind != PAUSE_KILLED) {
        fault_store_release(pause->faults, context);
    }
    if (pause_alive(pause)) {
        fault_store_fail_at(pause->faults, 0, WEFT_OK);
    }
    return true;
}

bool pause_alive(const pause_case *pause) {
    return pause->kind != PAUSE_KILLED && pause->kind != PAUSE_KILLED_LATE;
}

bool pause_retries(const pause_case *pause) {
    return pause->kind == PAUSE_LATER && fault_store_fired(pause->faults);
}

bool pause_require(pause_case *pause, bool condition, const char *format, ...) {
    if (condition || pause->failed) {
        return condition;
    }
    va_list arguments;
    pause->failed = true;
    va_start(arguments, format);
    printf("%s%s%s, %s %s (%" PRIu64 "), meanwhile %s: ", pause->place != NULL ? pause->place : "",
           pause->place != NULL ? ": " : "", pause->subject, kind_names[pause->kind], pause->operation,
           pause->at, pause->event_name);
    vprintf(format, arguments);
    if (pause->excuse != NULL) {
        printf(" [a known limit: %s]", pause->excuse);
    }
    printf("\n");
    va_end(arguments);
    return false;
}

void pause_excuse(pause_case *pause, const char *limit) {
    pause->excuse = limit;
}

static void count_excuse(pause_tally *tally, const char *limit) {
    size_t i = 0;
    while (tally->limits[i] != NULL && strcmp(tally->limits[i], limit) != 0) {
        i++;
        require(i < PAUSE_LIMITS_MAX, "more limits than a tally has");
    }
    tally->limits[i] = limit;
    tally->excused[i]++;
}

/* True if the operation was reached. */
static bool run_case(const pause_sweep *sweep, pause_kind kind, size_t event, uint64_t at,
                     pause_tally *tally) {
    pause_case pause = {
        .subject = sweep->subject,
        .place = sweep->place,
        .kind = kind,
        .event = event,
        .event_name = sweep->events[event],
        .at = at,
    };
    sweep->run(sweep->opaque, &pause);
    tally->cases += pause.happened;
    if (pause.failed && pause.excuse != NULL) {
        count_excuse(tally, pause.excuse);
    } else {
        tally->failed += pause.failed;
    }
    return pause.reached;
}

/* All operations of one kind of pause and one event. */
static void run_row(const pause_sweep *sweep, pause_kind kind, size_t event, uint64_t at,
                    pause_tally *tally) {
    unsigned step = test_stride() < STEP_MAX ? test_stride() : STEP_MAX;
    uint64_t most = sweep->most != 0 ? sweep->most : UINT64_MAX;
    while (at <= most && run_case(sweep, kind, event, at, tally)) {
        at += step;
    }
}

static void add_tally(pause_tally *sum, const pause_tally *tally) {
    sum->cases += tally->cases;
    sum->failed += tally->failed;
    for (size_t i = 0; i < PAUSE_LIMITS_MAX && tally->limits[i] != NULL; i++) {
        size_t k = 0;
        while (k + 1 < PAUSE_LIMITS_MAX && sum->limits[k] != NULL && sum->limits[k] != tally->limits[i]) {
            k++;
        }
        sum->limits[k] = tally->limits[i];
        sum->excused[k] += tally->excused[i];
    }
}

/* Waits for one of the processes that run rows; what one leaves that did not end by itself is a failure. */
static void join_row(unsigned *running, pause_tally *tally) {
    int status = 0;
    if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("a row of pauses ended with %#x\n", (unsigned)status);
        tally->failed++;
    }
    (*running)--;
}

/* Each row has a process of its own, several at once: what is stopped mostly waits. */
void pauses_sweep(const pause_sweep *sweep, pause_tally *tally) {
    static unsigned rows;
    unsigned kinds = sweep->kinds != 0 ? sweep->kinds : (1u << PAUSE_KINDS) - 1;
    unsigned step = test_stride() < STEP_MAX ? test_stride() : STEP_MAX;
    size_t bytes = sweep->event_count * PAUSE_KINDS * sizeof(pause_tally);
    pause_tally *told = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned running = 0;
    if (told == MAP_FAILED) {
        tally->failed++;
        return;
    }
    for (size_t row = 0; row < sweep->event_count * PAUSE_KINDS; row++) {
        pause_kind kind = (pause_kind)(row % PAUSE_KINDS);
        if ((kinds & 1u << kind) == 0 || rows++ % (test_stride() / step) != 0) {
            continue;
        }
        while (running >= ROWS_AT_ONCE) {
            join_row(&running, tally);
        }
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            run_row(sweep, kind, row / PAUSE_KINDS, 1 + rows % step, &told[row]);
            fflush(stdout);
            _exit(0);
        }
        running += child > 0;
        tally->failed += child < 0;
    }
    while (running > 0) {
        join_row(&running, tally);
    }
    for (size_t row = 0; row < sweep->event_count * PAUSE_KINDS; row++) {
        add_tally(tally, &told[row]);
    }
    munmap(told, bytes);
}

int pauses_report(const pause_tally *tally) {
    printf("%" PRIu64 " cases, %" PRIu64 " failed\n", tally->cases, tally->failed);
    for (size_t i = 0; i < PAUSE_LIMITS_MAX && tally->limits[i] != NULL; i++) {
        printf("%" PRIu64 " more failed by a limit that the documents state: %s\n", tally->excused[i],
               tally->limits[i]);
    }
    return (int)tally->failed;
}
