/* SPDX-License-Identifier: Apache-2.0
 *
 * pauses.h: somebody is stopped at each of the operations that they do on a store, in turn, or killed
 * there; meanwhile something else happens; then they go on. A sweep does that at every operation, in every
 * way, with everything that can happen meanwhile, each in a scene of its own, and tells which cases failed:
 *
 *     static void run(void *opaque, pause_case *pause) {
 *         build a scene, in which the subject comes by a store of its own with faults
 *         pause_begin(pause, faults, meanwhile, &scene);
 *         the subject does what it does
 *         if (pause_end(pause, context)) {
 *             pause_require(pause, it is as it should be, "what is not");
 *         }
 *     }
 *
 *     static const pause_sweep sweep = {.subject = "publish", .run = run, .events = names, .event_count =
 * 3}; pause_tally tally = {0}; pauses_sweep(&sweep, &tally); assert_int_equal(pauses_report(&tally), 0);
 *
 * Nothing here waits for a clock: what happens meanwhile is run to its end by the thread that is stopped.
 */
#ifndef WEFT_TESTS_PAUSES_H
#define WEFT_TESTS_PAUSES_H

#include "fault_store.h"

/* Who is stopped after an operation is stopped before the next one. What concerns puts and removes goes
 * from one of these to the next, and the other kinds from one operation of any sort to the next. */
typedef enum pause_kind {
    PAUSE_BEFORE, /* stopped before the operation */
    PAUSE_LATE,   /* a put or remove: told that it failed; it arrives after all that happened meanwhile */
    PAUSE_LATER,  /* the same, but the subject tries once more before that: see pause_retries */
    PAUSE_KILLED, /* before a put or remove: there is no subject from there on */
    PAUSE_KILLED_LATE, /* the same, and its last request arrives after all that happened meanwhile */
    PAUSE_KINDS,
} pause_kind;

enum { PAUSE_LIMITS_MAX = 4 };

typedef struct pause_tally {
    uint64_t cases, failed;
    /* failed by a limit that the documents state: see pause_excuse */
    const char *limits[PAUSE_LIMITS_MAX];
    uint64_t excused[PAUSE_LIMITS_MAX];
} pause_tally;

/* One case. */
typedef struct pause_case {
    const char *subject;
    const char *place; /* what kind of store it is, or NULL */
    pause_kind kind;
    size_t event; /* what happens meanwhile: which of the sweep's */
    const char *event_name;
    uint64_t at; /* the operation, or put or remove, from 1 */
    /* for pauses.c */
    fault_store *faults;
    fault_meanwhile meanwhile;
    void *opaque;
    bool reached, happened, failed;
    const char *excuse;
    char operation[WEFT_STORE_KEY_MAX + 32];
} pause_case;

typedef struct pause_sweep {
    const char *subject;
    const char *place;
    void (*run)(void *opaque, pause_case *pause);
    void *opaque;
    const char *const *events;
    size_t event_count;
    unsigned kinds; /* of 1 << PAUSE_…; 0: all */
    uint64_t most;  /* operations, for a subject that never ends; 0: no limit */
} pause_sweep;

/* From now on the operations behind `faults` are counted, and the one that the case is about strikes. */
void pause_begin(pause_case *pause, fault_store *faults, fault_meanwhile meanwhile, void *opaque);
/* The subject has done what it does, or is dead. What was to happen meanwhile has happened when this
 * returns, and what was on its way has arrived. False: the operation was not reached, or is none that this
 * kind of pause is for; there is nothing to check then. The context is of whoever is not behind the faults.
 */
bool pause_end(pause_case *pause, weft_context *context);
/* True if the subject is still there. */
bool pause_alive(const pause_case *pause);
/* True if the subject, told of a failure, should try once more before pause_end. */
bool pause_retries(const pause_case *pause);
/* Fails the case unless the condition holds, and says so the first time: the rest follows from that.
 * Returns the condition. */
__attribute__((format(printf, 3, 4))) bool pause_require(pause_case *pause, bool condition,
                                                         const char *format, ...);
/* A limit that the documents state, by name: a failure of the case is counted apart. */
void pause_excuse(pause_case *pause, const char *limit);

/* For each event and kind at every operation, until one is not reached. WEFT_TEST_STRIDE leaves out some
 * operations, and if it is large some events and kinds. */
void pauses_sweep(const pause_sweep *sweep, pause_tally *tally);
/* Prints the counts, those by limits with their names, and returns how many cases failed. */
int pauses_report(const pause_tally *tally);

#endif
