/* SPDX-License-Identifier: Apache-2.0
 *
 * parallel.c: a counted loop over threads, for the work that the command does itself (the library has
 * its own pool). Threads live for one loop: the loops here run for tens of milliseconds at least.
 */
#include "survey.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct parallel_loop {
    atomic_size_t next;
    size_t count;
    parallel_task task;
    void *argument;
} parallel_loop;

typedef struct parallel_worker {
    pthread_t thread;
    parallel_loop *loop;
    unsigned number;
    bool running;
} parallel_worker;

static void *work(void *opaque) {
    const parallel_worker *worker = opaque;
    parallel_loop *loop = worker->loop;
    for (;;) {
        size_t index = atomic_fetch_add(&loop->next, 1);
        if (index >= loop->count) {
            return NULL;
        }
        loop->task(loop->argument, index, worker->number);
    }
}

void parallel_run(unsigned threads, size_t count, parallel_task task, void *argument) {
    enum { THREADS_MAX = 1024 };
    static parallel_worker workers[THREADS_MAX];
    parallel_loop loop = {.count = count, .task = task, .argument = argument};
    threads = threads > THREADS_MAX ? THREADS_MAX : threads;
    for (unsigned i = 1; i < threads; i++) {
        workers[i] = (parallel_worker){.loop = &loop, .number = i};
        workers[i].running = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
    }
    parallel_worker self = {.loop = &loop, .number = 0};
    work(&self);
    for (unsigned i = 1; i < threads; i++) {
        if (workers[i].running) {
            pthread_join(workers[i].thread, NULL);
        }
    }
}
