/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c: a context's life, its memory, its error text and its progress.
 */
#include "context.h"
#include "sized.h"
#include "state.h"
#include "status.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MEBIBYTE ((uint64_t)1 << 20)

/* More threads than this help nobody, and a wrong number should not start a million. */
enum { MOST_THREADS = 1024 };

/* At most twenty calls of the progress function per second. */
static const uint64_t PROGRESS_NANOSECONDS = 50000000;

static _Thread_local weft_scope *innermost_scope;

/* ---- life ---- */

static void *default_allocate(void *opaque, size_t size) {
    (void)opaque;
    return malloc(size);
}

static void *default_reallocate(void *opaque, void *memory, size_t size) {
    (void)opaque;
    return realloc(memory, size);
}

static void default_release(void *opaque, void *memory) {
    (void)opaque;
    free(memory);
}

/* All three hooks or none; a mixture would release with one what another allocated. */
static bool choose_allocator(const weft_allocator *wanted, weft_allocator *chosen) {
    if (wanted->allocate == NULL && wanted->reallocate == NULL && wanted->release == NULL) {
        *chosen = (weft_allocator){default_allocate, default_reallocate, default_release, NULL};
        return true;
    }
    *chosen = *wanted;
    return wanted->allocate != NULL && wanted->reallocate != NULL && wanted->release != NULL;
}

static uint64_t or_default(uint64_t value, uint64_t otherwise) {
    return value != 0 ? value : otherwise;
}

static weft_limits choose_limits(const weft_limits *wanted) {
    return (weft_limits){
        .size = sizeof(weft_limits),
        .header_bytes = or_default(wanted->header_bytes, 32 * MEBIBYTE),
        .tensors = or_default(wanted->tensors, (uint64_t)1 << 20),
        .bucket_bytes = or_default(wanted->bucket_bytes, 32 * MEBIBYTE),
        .stage_bytes = or_default(wanted->stage_bytes, 4096 * MEBIBYTE),
    };
}

static unsigned choose_threads(unsigned wanted) {
    long threads = (long)wanted;
    if (wanted == 0) {
        cpu_set_t set;
        /* Fails where there are more processors than the set has room for. */
        threads =
            sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    }
    if (threads < 1) {
        return 1;
    }
    return threads > MOST_THREADS ? MOST_THREADS : (unsigned)threads;
}

weft_status weft_context_create(const weft_context_options *given, weft_context **context_out) {
    weft_context_options options;
    weft_limits limits;
    if (context_out == NULL) {
        return WEFT_INVALID_ARGUMENT;
    }
    weft_status status = weft_sized_read(NULL, given, &options, sizeof options, "weft_context_options");
    if (status == WEFT_OK) {
        status = weft_sized_read(NULL, options.limits, &limits, sizeof limits, "weft_limits");
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_allocator allocator;
    if (!choose_allocator(&options.allocator, &allocator)) {
        return WEFT_INVALID_ARGUMENT;
    }
    weft_context *context = allocator.allocate(allocator.opaque, sizeof *context);
    if (context == NULL) {
        return WEFT_NO_MEMORY;
    }
    memset(context, 0, sizeof *context);
    context->allocator = allocator;
    context->limits = choose_limits(&limits);
    context->threads = choose_threads(options.threads);
    context->process = getpid();
    context->progress = options.progress;
    context->progress_opaque = options.progress_opaque;
    context->progress_phase = "";
    context->progress_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    atomic_init(&context->progress_done, 0);
    atomic_init(&context->progress_next, 0);
    atomic_init(&context->cancelled, false);
    *context_out = context;
    return WEFT_OK;
}

bool weft_process_is(pid_t maker) {
    return maker == getpid();
}

weft_status weft_process_check(weft_context *context, pid_t maker, const char *what) {
    if (weft_process_is(maker)) {
        return WEFT_OK;
    }
    return weft_fail(context, WEFT_INVALID_ARGUMENT,
                     "%s was made before a fork, in process %ld; open a new one in this process", what,
                     (long)maker);
}

void weft_context_settle(weft_context *context) {
    if (!weft_process_is(context->process)) {
        context->process = getpid();
        context->progress_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        weft_pool_forget(context);
    }
}

void weft_context_destroy(weft_context *context) {
    if (context == NULL) {
        return;
    }
    weft_context_settle(context);
    weft_pool_destroy(context, context->pool);
    pthread_mutex_destroy(&context->progress_mutex);
    context->allocator.release(context->allocator.opaque, context);
}

unsigned weft_context_threads(const weft_context *context) {
    return context->threads;
}

const weft_limits *weft_context_limits(const weft_context *context) {
    return &context->limits;
}

weft_status weft_context_derive(weft_context *context, weft_progress_function progress, void *opaque,
                                weft_context **derived_out) {
    weft_context_options options = {
        .size = sizeof options,
        .allocator = context->allocator,
        .limits = &context->limits,
        .threads = 1,
        .progress = progress,
        .progress_opaque = opaque,
    };
    weft_status status = weft_context_create(&options, derived_out);
    return status == WEFT_OK ? WEFT_OK : weft_fail(context, status, "out of memory for a thread");
}

/* ---- failure ---- */

weft_scope *weft_scope_find(const weft_context *context) {
    weft_scope *scope = innermost_scope;
    while (scope != NULL && scope->context != context) {
        scope = scope->outer;
    }
    return scope;
}

void weft_scope_push(weft_scope *scope, const weft_context *context) {
    scope->context = context;
    scope->outer = innermost_scope;
    scope->asking = false;
    scope->text[0] = '\0';
    innermost_scope = scope;
}

void weft_scope_pop(weft_scope *scope) {
    innermost_scope = scope->outer;
}

static char *current_text(weft_context *context) {
    weft_scope *scope = weft_scope_find(context);
    return scope != NULL ? scope->text : context->text;
}

const char *weft_context_error(const weft_context *context) {
    const weft_scope *scope = weft_scope_find(context);
    return scope != NULL ? scope->text : context->text;
}

void weft_context_clear(weft_context *context) {
    weft_context_settle(context);
    current_text(context)[0] = '\0';
}

/* The caller of either is inside of a callback. */
static weft_status refuse_asking(weft_context *context) {
    return weft_fail(context, WEFT_BUSY,
                     "this context waits for its progress function; use another context there");
}

weft_status weft_refuse_nesting(weft_context *context) {
    return weft_fail(context, WEFT_BUSY,
                     "this context already runs a loop; use another context in callbacks");
}

weft_status weft_context_enter(weft_context *context) {
    weft_context_clear(context);
    const weft_scope *scope = weft_scope_find(context);
    if (scope == NULL) {
        return WEFT_OK;
    }
    return scope->asking ? refuse_asking(context) : weft_refuse_nesting(context);
}

/* Texts quote names from hostile files and end up on terminals: one line, and nothing that moves a cursor.
 */
static void write_text(char *text, const char *format, va_list arguments) {
    char fresh[WEFT_ERROR_TEXT]; /* the arguments may be in `text` */
    vsnprintf(fresh, sizeof fresh, format, arguments);
    for (char *byte = fresh; *byte != '\0'; byte++) {
        if ((unsigned char)*byte < 0x20 || *byte == 0x7f) {
            *byte = '?';
        }
    }
    memcpy(text, fresh, strlen(fresh) + 1);
}

weft_status weft_fail(weft_context *context, weft_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_text(current_text(context), format, arguments);
    va_end(arguments);
    return status;
}

weft_status weft_fail_errno(weft_context *context, int error, const char *format, ...) {
    char *text = current_text(context);
    va_list arguments;
    va_start(arguments, format);
    write_text(text, format, arguments);
    va_end(arguments);
    char buffer[128];
    size_t length = strlen(text);
    snprintf(text + length, WEFT_ERROR_TEXT - length, ": %s", strerror_r(error, buffer, sizeof buffer));
    return error == ENOSPC || error == EDQUOT ? WEFT_NO_SPACE : WEFT_IO_FAILED;
}

weft_failure weft_failure_keep(const weft_context *context, weft_status status) {
    weft_failure failure = {.status = status};
    snprintf(failure.text, sizeof failure.text, "%s", weft_context_error(context));
    return failure;
}

weft_status weft_failure_tell(weft_context *context, const weft_failure *failure) {
    if (failure->status != WEFT_OK) {
        snprintf(current_text(context), WEFT_ERROR_TEXT, "%s", failure->text);
    }
    return failure->status;
}

/* ---- what strangers return ---- */

static weft_status name_answer(weft_context *context, weft_status answer, const char *format,
                               va_list arguments) {
    char name[WEFT_ERROR_TEXT / 2];
    weft_status status = weft_status_from(answer);
    vsnprintf(name, sizeof name, format, arguments);
    return status == answer
               ? weft_fail(context, status, "%s failed: %s", name, weft_status_name(status))
               : weft_fail(
                     context, status,
                     "%s returned %d, which is neither WEFT_OK nor a failure of weft/base.h; it "
                     "counts as failed: look there for what %d means, and return WEFT_IO_FAILED for it",
                     name, (int)answer, (int)answer);
}

weft_status weft_answer(weft_context *context, weft_status answer, const char *format, ...) {
    if (answer == WEFT_OK) {
        return WEFT_OK;
    }
    va_list arguments;
    va_start(arguments, format);
    weft_status status = name_answer(context, answer, format, arguments);
    va_end(arguments);
    return status;
}

weft_status weft_answer_told(weft_context *context, weft_status answer, const char *format, ...) {
    bool told = current_text(context)[0] != '\0' && weft_status_from(answer) == answer;
    if (answer == WEFT_OK || told) {
        return answer;
    }
    va_list arguments;
    va_start(arguments, format);
    weft_status status = name_answer(context, answer, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- memory ---- */

static void report_no_memory(weft_context *context, size_t count, size_t size) {
    if (count == 1) {
        weft_fail(context, WEFT_NO_MEMORY, "out of memory: cannot take %zu bytes", size);
    } else {
        weft_fail(context, WEFT_NO_MEMORY, "out of memory: cannot take %zu times %zu bytes", count, size);
    }
}

/* Hooks are never asked for nothing: what they would answer differs from one to the next. */
static size_t at_least_one(size_t size) {
    return size > 0 ? size : 1;
}

void *weft_allocate_array(weft_context *context, size_t count, size_t size) {
    size_t bytes = 0;
    void *memory = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes)) {
        memory = context->allocator.allocate(context->allocator.opaque, at_least_one(bytes));
    }
    if (memory == NULL) {
        report_no_memory(context, count, size);
    }
    return memory;
}

void *weft_allocate(weft_context *context, size_t size) {
    return weft_allocate_array(context, 1, size);
}

void *weft_allocate_zeroed(weft_context *context, size_t count, size_t size) {
    void *memory = weft_allocate_array(context, count, size);
    if (memory != NULL) {
        memset(memory, 0, count * size);
    }
    return memory;
}

void weft_prefer_large_pages(void *memory, size_t bytes) {
    const uintptr_t page = (uintptr_t)2 << 20;
    uintptr_t start = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (end > start) {
        (void)madvise((void *)start, end - start, MADV_HUGEPAGE);
    }
}

void *weft_reallocate_array(weft_context *context, void *memory, size_t count, size_t size) {
    size_t bytes = 0;
    void *moved = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes)) {
        moved = context->allocator.reallocate(context->allocator.opaque, memory, at_least_one(bytes));
    }
    if (moved == NULL) {
        report_no_memory(context, count, size);
    }
    return moved;
}

char *weft_copy_text(weft_context *context, const char *text, size_t length) {
    if (length == SIZE_MAX) {
        report_no_memory(context, 1, length);
        return NULL;
    }
    char *copy = weft_allocate(context, length + 1);
    if (copy != NULL) {
        if (length > 0) {
            memcpy(copy, text, length);
        }
        copy[length] = '\0';
    }
    return copy;
}

char *weft_join_texts(weft_context *context, const char *first, const char *second, const char *third) {
    char *joined = weft_allocate(context, strlen(first) + strlen(second) + strlen(third) + 1);
    if (joined != NULL) {
        stpcpy(stpcpy(stpcpy(joined, first), second), third);
    }
    return joined;
}

void weft_release(weft_context *context, void *memory) {
    if (memory != NULL) {
        context->allocator.release(context->allocator.opaque, memory);
    }
}

/* ---- progress ---- */

static uint64_t monotonic_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* True on a thread that is inside of the context's progress function. It would wait for itself. */
static bool is_asking(const weft_context *context) {
    const weft_scope *scope = weft_scope_find(context);
    return scope != NULL && scope->asking;
}

void weft_progress_begin(weft_context *context, const char *phase, uint64_t total) {
    if (is_asking(context)) {
        return; /* the phase is that of the call under way */
    }
    context->progress_phase = phase;
    context->progress_total = total;
    atomic_store(&context->progress_done, 0);
    atomic_store(&context->cancelled, false);
}

void weft_progress_hold(weft_context *context) {
    context->progress_held++;
}

void weft_progress_go_on(weft_context *context) {
    context->progress_held--;
}

/* The caller holds the mutex, so that what the function sees never goes backwards. What the function does
 * with this context finds the scope: its failures are told there, and do not reach the call under way. */
static bool call_progress(weft_context *context) {
    weft_scope scope;
    weft_scope_push(&scope, context);
    scope.asking = true;
    bool go_on = context->progress(context->progress_opaque, context->progress_phase,
                                   atomic_load(&context->progress_done), context->progress_total);
    weft_scope_pop(&scope);
    if (!go_on) {
        atomic_store(&context->cancelled, true);
    }
    return go_on;
}

weft_status weft_progress_add(weft_context *context, uint64_t done) {
    if (context->progress == NULL || context->progress_held > 0) {
        return WEFT_OK;
    }
    if (is_asking(context)) {
        return refuse_asking(context);
    }
    uint64_t before = atomic_fetch_add(&context->progress_done, done);
    /* The end is always told; anything else only when the time has come and nobody is telling yet. */
    bool ending = before < context->progress_total && done >= context->progress_total - before;
    uint64_t now = monotonic_nanoseconds();
    bool due = now >= atomic_load(&context->progress_next);
    if (ending || due) {
        bool locked = ending ? pthread_mutex_lock(&context->progress_mutex) == 0
                             : pthread_mutex_trylock(&context->progress_mutex) == 0;
        if (locked) {
            bool still_due = now >= atomic_load(&context->progress_next);
            if ((ending || still_due) && !atomic_load(&context->cancelled)) {
                atomic_store(&context->progress_next, now + PROGRESS_NANOSECONDS);
                call_progress(context);
            }
            pthread_mutex_unlock(&context->progress_mutex);
        }
    }
    if (atomic_load(&context->cancelled)) {
        return weft_fail(context, WEFT_CANCELLED, "cancelled during %s", context->progress_phase);
    }
    return WEFT_OK;
}

weft_status weft_progress_ask(weft_context *context) {
    if (context->progress == NULL || context->progress_held > 0) {
        return WEFT_OK;
    }
    if (is_asking(context)) {
        return refuse_asking(context);
    }
    pthread_mutex_lock(&context->progress_mutex);
    bool go_on = call_progress(context);
    pthread_mutex_unlock(&context->progress_mutex);
    return go_on ? WEFT_OK : weft_fail(context, WEFT_CANCELLED, "cancelled while waiting");
}
