/* SPDX-License-Identifier: Apache-2.0
 *
 * patience.h: how a role talks to its caller, and what it does about trouble that may pass: a store that
 * cannot be reached, or is full. It says so once, waits, longer each time, and tries again; when nothing
 * has gone right for too long, it gives up with the failure that it had.
 */
#ifndef WEFT_TRAIN_PATIENCE_H
#define WEFT_TRAIN_PATIENCE_H

#include <jansson.h>
#include <weft/base.h>

/* Whom a role tells what it does. */
typedef struct train_watch {
    void (*note)(void *opaque, const char *text); /* talk */
    void (*warn)(void *opaque, const char *text); /* what somebody should know */
    /* A step of the trainer has ended; its line of metrics. May be NULL. */
    void (*step)(void *opaque, const json_t *line);
    void *opaque;
} train_watch;

void train_note(const train_watch *watch, const char *format, ...) __attribute__((format(printf, 2, 3)));
void train_warn(const train_watch *watch, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct train_patience {
    weft_context *context;
    const train_watch *watch;
    double seconds; /* without any success, until it is given up */
    double since;   /* of the last success */
    unsigned failures;
    char trouble[512]; /* that was told of; "" if there is none */
} train_patience;

void train_patience_open(train_patience *patience, weft_context *context, const train_watch *watch,
                         double seconds);
/* Something went right. */
void train_patience_calm(train_patience *patience);
/* An operation failed with `status` and the context's text. WEFT_OK: after a while, try again. Else what to
 * fail with: the same, if it cannot pass or has lasted too long. */
WEFT_CHECKED weft_status train_patience_bear(train_patience *patience, weft_status status);
/* Makes an attempt until it succeeds, and bears that it fails. */
WEFT_CHECKED weft_status train_patience_try(train_patience *patience, weft_status (*attempt)(void *opaque),
                                            void *opaque);
/* Nothing failed, but nothing came either. WEFT_OK until that has lasted too long. */
WEFT_CHECKED weft_status train_patience_wait(train_patience *patience, double seconds, const char *what);

#endif
