/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h: what is inside a context, for context.c and pool.c only.
 *
 * Error texts need no lock. Outside of loops one thread at a time uses a context, and its failures go
 * straight into the context. Inside a loop each worker has a scope, where the failures of the iteration
 * that it runs are noted; the loop then copies the text of the lowest index that failed. A task that
 * fails, recovers and succeeds therefore leaves no text behind.
 */
#ifndef WEFT_BASE_STATE_H
#define WEFT_BASE_STATE_H

#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* What a worker of a loop carries, and a thread that has called the progress function. Scopes of different
 * contexts may lie above each other on one thread: a callback of one context's loop may use another
 * context. */
typedef struct weft_scope {
    const weft_context *context;
    struct weft_scope *outer;
    bool asking; /* the progress function runs */
    char text[WEFT_ERROR_TEXT];
} weft_scope;

/* The scope of this thread in a loop of the context, or NULL. */
weft_scope *weft_scope_find(const weft_context *context);
void weft_scope_push(weft_scope *scope, const weft_context *context);
void weft_scope_pop(weft_scope *scope);
/* WEFT_BUSY, for who finds a scope of a loop. */
weft_status weft_refuse_nesting(weft_context *context);

typedef struct weft_pool weft_pool;

/* Ends the threads. The pool may be NULL. */
void weft_pool_destroy(weft_context *context, weft_pool *pool);
/* In a child that has none of the threads: the next loop starts new ones. */
void weft_pool_forget(weft_context *context);

/* Finds out whether this is a child of the process that used the context last. There, what the parent's
 * threads held at the fork stays held for ever, and so is made anew. */
void weft_context_settle(weft_context *context);

struct weft_context {
    weft_allocator allocator;
    weft_limits limits;
    unsigned threads;
    char text[WEFT_ERROR_TEXT];
    pid_t process;   /* that used it last */
    weft_pool *pool; /* made by the first loop that can use it */

    weft_progress_function progress;
    void *progress_opaque;
    pthread_mutex_t progress_mutex; /* held while the function runs */
    const char *progress_phase;
    uint64_t progress_total;
    _Atomic uint64_t progress_done;
    _Atomic uint64_t progress_next; /* not called before this instant, in monotonic nanoseconds */
    atomic_bool cancelled;
    unsigned progress_held; /* not called while above zero; changed only while no loop runs */
};

#endif
