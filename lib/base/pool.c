/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c: loops over independent iterations, shared between the calling thread and the context's threads.
 *
 * A loop lives on the stack of its caller, who publishes it in the pool, takes part in it, withdraws it
 * and then waits until the last thread that joined has left. A thread that wakes too late finds nothing
 * to join, so that a short loop never waits for sleepers.
 *
 * Iterations start in ascending order and each one that started is finished. Below the lowest index that
 * fails, therefore, everything has run, in every interleaving: which failure is returned, and what was
 * emitted before it, does not depend on the threads.
 */
#include "pool.h"
#include "context.h"
#include "state.h"

#include <signal.h>
#include <string.h>
#include <time.h>

static const size_t NO_FAILURE = SIZE_MAX;

typedef struct weft_loop {
    weft_context *context;
    size_t count;
    weft_task task;
    weft_task emit; /* NULL: a plain loop, which uses only the fields up to `status` */
    void *argument;
    atomic_size_t next; /* the next index to start */
    atomic_bool stopping;

    pthread_mutex_t mutex; /* guards what follows, and in an ordered loop also `next` */
    size_t failed;         /* the lowest index that failed, or NO_FAILURE */
    weft_status status;

    pthread_cond_t moved; /* an index was emitted, or a failure was noted */
    size_t window;
    size_t emitted; /* all below are emitted */
    bool emitting;
    bool *finished; /* by index % window: the task is done, the emit is not */
} weft_loop;

typedef struct weft_worker {
    weft_pool *pool;
    pthread_t thread;
    unsigned number;
} weft_worker;

struct weft_pool {
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* a loop was published, or the pool ends */
    pthread_cond_t idle; /* the last thread left the loop */
    weft_loop *loop;
    uint64_t serial; /* of the loop, so that no thread joins one twice */
    unsigned seats;  /* how many more threads may join */
    unsigned joined;
    bool ending;
    unsigned worker_count; /* started threads; the calling thread is worker 0 and not among them */
    weft_worker workers[];
};

/* ---- measuring ---- */

static atomic_bool measuring;
static atomic_uint_fast64_t task_nanoseconds;
static atomic_uint_fast64_t emit_nanoseconds;
static _Thread_local uint64_t own_nanoseconds;

weft_parallel_times weft_parallel_measured(void) {
    atomic_store(&measuring, true);
    return (weft_parallel_times){1e-9 * (double)atomic_load(&task_nanoseconds),
                                 1e-9 * (double)atomic_load(&emit_nanoseconds),
                                 1e-9 * (double)own_nanoseconds};
}

static uint64_t thread_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- loops ---- */

/* Runs one step of an iteration with its failures noted in the scope. */
static weft_status run_step(weft_loop *loop, weft_task step, size_t index, unsigned worker,
                            weft_scope *scope) {
    scope->text[0] = '\0';
    if (loop->count == 1 || !atomic_load_explicit(&measuring, memory_order_relaxed)) {
        return step(loop->argument, index, worker);
    }
    uint64_t start = thread_nanoseconds();
    weft_status status = step(loop->argument, index, worker);
    uint64_t taken = thread_nanoseconds() - start;
    own_nanoseconds += taken;
    atomic_fetch_add(step == loop->emit ? &emit_nanoseconds : &task_nanoseconds, taken);
    return status;
}

/* The caller holds the loop's mutex. */
static void note_failure(weft_loop *loop, size_t index, weft_status status, const weft_scope *scope) {
    atomic_store(&loop->stopping, true);
    if (index < loop->failed) {
        loop->failed = index;
        loop->status = status;
        memcpy(loop->context->text, scope->text, sizeof scope->text);
    }
}

static void run_plain(weft_loop *loop, unsigned worker, weft_scope *scope) {
    while (!atomic_load(&loop->stopping)) {
        size_t index = atomic_fetch_add(&loop->next, 1);
        if (index >= loop->count) {
            return;
        }
        weft_status status = run_step(loop, loop->task, index, worker, scope);
        if (status != WEFT_OK) {
            pthread_mutex_lock(&loop->mutex);
            note_failure(loop, index, status, scope);
            pthread_mutex_unlock(&loop->mutex);
        }
    }
}

/* The following run with the loop's mutex held, and give it up only around a step. */

static weft_status run_unlocked(weft_loop *loop, weft_task step, size_t index, unsigned worker,
                                weft_scope *scope) {
    pthread_mutex_unlock(&loop->mutex);
    weft_status status = run_step(loop, step, index, worker, scope);
    pthread_mutex_lock(&loop->mutex);
    if (status != WEFT_OK) {
        note_failure(loop, index, status, scope);
        pthread_cond_broadcast(&loop->moved);
    }
    return status;
}

static void emit_one(weft_loop *loop, unsigned worker, weft_scope *scope) {
    size_t index = loop->emitted;
    loop->emitting = true;
    weft_status status = run_unlocked(loop, loop->emit, index, worker, scope);
    loop->emitting = false;
    loop->finished[index % loop->window] = false;
    if (status == WEFT_OK) {
        loop->emitted = index + 1;
        pthread_cond_broadcast(&loop->moved);
    }
}

/* Ends when all is emitted, or all below the lowest failure. */
static void run_ordered(weft_loop *loop, unsigned worker, weft_scope *scope) {
    pthread_mutex_lock(&loop->mutex);
    while (loop->emitted < loop->count && loop->emitted < loop->failed) {
        size_t next = atomic_load(&loop->next);
        if (!loop->emitting && loop->emitted < next && loop->finished[loop->emitted % loop->window]) {
            emit_one(loop, worker, scope);
        } else if (loop->failed == NO_FAILURE && next < loop->count &&
                   next - loop->emitted < loop->window) {
            /* a worker that finishes the next index in order goes on to emit it: nobody has to be woken */
            atomic_store(&loop->next, next + 1);
            if (run_unlocked(loop, loop->task, next, worker, scope) == WEFT_OK) {
                loop->finished[next % loop->window] = true;
            }
        } else {
            pthread_cond_wait(&loop->moved, &loop->mutex);
        }
    }
    pthread_mutex_unlock(&loop->mutex);
}

static void run_loop(weft_loop *loop, unsigned worker) {
    weft_scope scope;
    weft_scope_push(&scope, loop->context);
    if (loop->emit != NULL) {
        run_ordered(loop, worker, &scope);
    } else {
        run_plain(loop, worker, &scope);
    }
    weft_scope_pop(&scope);
}

/* ---- threads ---- */

static void *run_worker(void *argument) {
    const weft_worker *self = argument;
    weft_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->ending) {
        if (pool->loop == NULL || pool->serial == seen || pool->seats == 0) {
            pthread_cond_wait(&pool->wake, &pool->mutex);
            continue;
        }
        weft_loop *loop = pool->loop;
        seen = pool->serial;
        pool->seats -= 1;
        pool->joined += 1;
        pthread_mutex_unlock(&pool->mutex);
        run_loop(loop, self->number);
        pthread_mutex_lock(&pool->mutex);
        pool->joined -= 1;
        if (pool->joined == 0) {
            pthread_cond_signal(&pool->idle);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Signals are for the threads of the program, not for ours, except for those that a thread's own fault
 * raises: blocked, they would end the process before its handler is asked. A thread that cannot be started
 * is done without. */
static void start_workers(weft_pool *pool, unsigned wanted) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned i = 0; i < wanted; i++) {
        weft_worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->number = i + 1;
        if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0) {
            break;
        }
        pool->worker_count = i + 1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* NULL if the context has one thread or there is no memory for a pool; the caller then works alone. */
static weft_pool *context_pool(weft_context *context) {
    weft_context_settle(context);
    if (context->pool != NULL || context->threads < 2) {
        return context->pool;
    }
    unsigned wanted = context->threads - 1;
    weft_allocator *allocator = &context->allocator;
    weft_pool *pool =
        allocator->allocate(allocator->opaque, sizeof *pool + wanted * sizeof pool->workers[0]);
    if (pool == NULL) {
        return NULL;
    }
    *pool = (weft_pool){
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .wake = PTHREAD_COND_INITIALIZER,
        .idle = PTHREAD_COND_INITIALIZER,
    };
    context->pool = pool;
    start_workers(pool, wanted);
    return pool;
}

/* Its mutex may be held by a thread that is not there. */
void weft_pool_forget(weft_context *context) {
    weft_release(context, context->pool);
    context->pool = NULL;
}

void weft_pool_destroy(weft_context *context, weft_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->ending = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->worker_count; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->idle);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    weft_release(context, pool);
}

static weft_status finish_loop(weft_loop *loop) {
    weft_pool *pool = loop->count > 1 ? context_pool(loop->context) : NULL;
    if (pool != NULL) {
        size_t helpers = loop->count - 1;
        pthread_mutex_lock(&pool->mutex);
        pool->loop = loop;
        pool->serial += 1;
        pool->seats = helpers < pool->worker_count ? (unsigned)helpers : pool->worker_count;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    run_loop(loop, 0);
    if (pool != NULL) {
        pthread_mutex_lock(&pool->mutex);
        pool->loop = NULL;
        while (pool->joined > 0) {
            pthread_cond_wait(&pool->idle, &pool->mutex);
        }
        pthread_mutex_unlock(&pool->mutex);
    }
    pthread_mutex_destroy(&loop->mutex);
    pthread_cond_destroy(&loop->moved);
    return loop->status;
}

/* ---- entry points ---- */

static void open_loop(weft_loop *loop, weft_context *context, size_t count, weft_task task,
                      void *argument) {
    *loop = (weft_loop){
        .context = context,
        .count = count,
        .task = task,
        .argument = argument,
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .moved = PTHREAD_COND_INITIALIZER,
        .failed = NO_FAILURE,
        .status = WEFT_OK,
    };
}

weft_status weft_parallel(weft_context *context, size_t count, weft_task task, void *argument) {
    if (weft_scope_find(context) != NULL) {
        return weft_refuse_nesting(context);
    }
    if (count == 0) {
        return WEFT_OK;
    }
    weft_loop loop;
    open_loop(&loop, context, count, task, argument);
    return finish_loop(&loop);
}

size_t weft_parallel_window(const weft_context *context) {
    return 4 * (size_t)context->threads;
}

weft_status weft_parallel_ordered(weft_context *context, size_t count, size_t window, weft_task task,
                                  weft_task emit, void *argument) {
    if (weft_scope_find(context) != NULL) {
        return weft_refuse_nesting(context);
    }
    if (count == 0) {
        return WEFT_OK;
    }
    weft_loop loop;
    open_loop(&loop, context, count, task, argument);
    loop.emit = emit;
    loop.window = window != 0 ? window : weft_parallel_window(context);
    if (loop.window > count) {
        loop.window = count;
    }
    loop.finished = weft_allocate_zeroed(context, loop.window, sizeof *loop.finished);
    if (loop.finished == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = finish_loop(&loop);
    weft_release(context, loop.finished);
    return status;
}
