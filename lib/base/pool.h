/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h: the context's threads. Work is a counted loop whose iterations are independent; iterations
 * are handed out in order, and the calling thread takes part as worker 0. Threads start with the first
 * loop that can use them and end with the context. Loops do not nest. A loop of one iteration is the
 * calling thread's: so a callback that must come from there is still known to be one, and cannot call back
 * in.
 */
#ifndef WEFT_BASE_POOL_H
#define WEFT_BASE_POOL_H

#include <weft/base.h>

/* `worker` is below weft_context_threads. A failure stops the loop: no new iteration starts, those
 * under way finish, and the failure with the lowest index is returned. */
typedef weft_status (*weft_task)(void *argument, size_t index, unsigned worker);

weft_status weft_parallel(weft_context *context, size_t count, weft_task task, void *argument);

/* Like weft_parallel, and afterwards `emit(argument, index, worker)` runs once for each index, strictly
 * in ascending order and never two at a time, on whichever worker is free. At most `window` indices
 * (0: four per thread) are between the start of `task` and the end of `emit`, which bounds memory:
 * index i may use slot i % window. */
weft_status weft_parallel_ordered(weft_context *context, size_t count, size_t window, weft_task task,
                                  weft_task emit, void *argument);
/* The window that 0 stands for. */
size_t weft_parallel_window(const weft_context *context);

/* Processor time that loops of more than one iteration took, of all contexts, in seconds: what more threads
 * would share, what goes one after the other, and how much of both was done by the thread that asks. */
typedef struct weft_parallel_times {
    double tasks;
    double emits;
    double own;
} weft_parallel_times;

/* For benches: from the first call on it is measured, which takes time itself. */
weft_parallel_times weft_parallel_measured(void);

#endif
