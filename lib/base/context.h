/* SPDX-License-Identifier: Apache-2.0
 *
 * context.h: how the library's own code fails, takes memory and reports progress.
 *
 * Rule: the place that first detects a failure calls weft_fail with a text; everyone above only passes
 * the status on. Outputs are set on success only.
 */
#ifndef WEFT_BASE_CONTEXT_H
#define WEFT_BASE_CONTEXT_H

#include <weft/base.h>

#include <sys/types.h>

/* Fixed, so that running out of memory can be reported without memory. */
enum { WEFT_ERROR_TEXT = 1024 };

/* Records the text of a failure and returns `status`. While a parallel loop runs, the failure of the
 * lowest index wins, so that the text is the same whatever the threads did. The text that is replaced may
 * be among the arguments: weft_context_error(context). */
weft_status weft_fail(weft_context *context, weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with ": strerror(error)" behind it; ENOSPC and EDQUOT become WEFT_NO_SPACE. */
weft_status weft_fail_errno(weft_context *context, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A failure that is put aside while what it makes necessary is done: that may fail too, and what is told is
 * why it came to that. Of a status of WEFT_OK nothing is told. */
typedef struct weft_failure {
    weft_status status;
    char text[WEFT_ERROR_TEXT];
} weft_failure;
weft_failure weft_failure_keep(const weft_context *context, weft_status status);
weft_status weft_failure_tell(weft_context *context, const weft_failure *failure);
/* Forgets the text; every public entry point begins with it. */
void weft_context_clear(weft_context *context);
/* The same for calls that go on with an object which another call may be at work on. WEFT_BUSY inside of a
 * callback of the context, and then nothing may be touched: the object may be the one that waits for the
 * callback, and half of what it holds may be on its way. */
weft_status weft_context_enter(weft_context *context);

const weft_limits *weft_context_limits(const weft_context *context);
/* A context for a thread of the library's own: the same memory and limits, one thread. `progress` may be
 * NULL; it is where the thread learns that it is to stop. */
weft_status weft_context_derive(weft_context *context, weft_progress_function progress, void *opaque,
                                weft_context **derived_out);

/* A child that fork makes has none of its parent's threads, and shares connections, locks and unfinished
 * files with it. What has any of these remembers the process that made it. */
bool weft_process_is(pid_t maker);
/* WEFT_INVALID_ARGUMENT in any other process. `what` is said of the object, such as "this store". */
weft_status weft_process_check(weft_context *context, pid_t maker, const char *what);

/* NULL on failure, which is already recorded as WEFT_NO_MEMORY. A size of zero gives a valid pointer. */
void *weft_allocate(weft_context *context, size_t size);
void *weft_allocate_zeroed(weft_context *context, size_t count, size_t size);
/* `count * size` with the multiplication checked. */
void *weft_allocate_array(weft_context *context, size_t count, size_t size);
void *weft_reallocate_array(weft_context *context, void *memory, size_t count, size_t size);
/* Asks for large pages, before memory is first touched: they save most of the address translation where it
 * is much and is met all over, or as one of several streams. */
void weft_prefer_large_pages(void *memory, size_t bytes);
char *weft_copy_text(weft_context *context, const char *text, size_t length);
/* The three texts as one; NULL if there is no memory. */
char *weft_join_texts(weft_context *context, const char *first, const char *second, const char *third);
void weft_release(weft_context *context, void *memory);

/* Counts work done and calls the progress function now and then. Returns WEFT_CANCELLED if it said so.
 * Safe from workers. */
void weft_progress_begin(weft_context *context, const char *phase, uint64_t total);
weft_status weft_progress_add(weft_context *context, uint64_t done);
/* For who waits and does no work: asks the progress function now. Whether it has said so before does not
 * count. */
weft_status weft_progress_ask(weft_context *context);
/* Between these two the progress function is not called, whoever counts or asks: who is asked must be able
 * to go back, and this work has passed the point where it could. They nest. Not from workers. */
void weft_progress_hold(weft_context *context);
void weft_progress_go_on(weft_context *context);

#endif
