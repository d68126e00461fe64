/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_pool.c: loops with one to eight threads: everything runs once, emits come in order and one at
 * a time, the window is kept and used, failures are the lowest ones whatever the threads do, and nothing
 * leaks when memory or patience runs out. ThreadSanitizer runs this file too.
 */
#include "../../lib/base/context.h"
#include "../../lib/base/pool.h"
#include "faults.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_THREADS = 8, NONE = -1 };

static weft_context *open_context(unsigned threads, faults *faults) {
    weft_context_options options = {.size = sizeof options, .threads = threads};
    if (faults != NULL) {
        options.allocator = faults_allocator(faults);
    }
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

/* A little work of uneven length, so that iterations overtake each other. */
static void dawdle(size_t index) {
    unsigned spin = (unsigned)(index * 2654435761u) >> 20 & 0x3ff;
    for (volatile unsigned i = 0; i < spin; i++) {
    }
    if (spin % 16 == 0) {
        sched_yield();
    }
}

/* What a loop did, told by its tasks. `slots` is deliberately not atomic: the pool's promise that slot
 * i % window is free again is what keeps it from being a race. */
typedef struct record {
    weft_context *context;
    unsigned threads;
    size_t count;
    size_t window;
    atomic_uint *runs;
    size_t *slots;
    atomic_size_t started;
    atomic_size_t emitted;
    atomic_int emitting;
    atomic_size_t widest;
    atomic_uint wrong;
    long fail_from;      /* tasks from here on fail */
    long emit_fail_from; /* emits from here on fail */
} record;

static record open_record(weft_context *context, size_t count, size_t window) {
    record record = {.context = context, .count = count, .window = window};
    record.threads = weft_context_threads(context);
    record.fail_from = NONE;
    record.emit_fail_from = NONE;
    record.runs = calloc(count + 1, sizeof *record.runs);
    record.slots = calloc(window + 1, sizeof *record.slots);
    assert_non_null(record.runs);
    assert_non_null(record.slots);
    return record;
}

static void close_record(record *record) {
    free(record->runs);
    free(record->slots);
}

static weft_status run_task(void *argument, size_t index, unsigned worker) {
    record *record = argument;
    if (index >= record->count || worker >= record->threads) {
        atomic_fetch_add(&record->wrong, 1);
        return WEFT_OK;
    }
    atomic_fetch_add(&record->runs[index], 1);
    size_t open = atomic_fetch_add(&record->started, 1) + 1 - atomic_load(&record->emitted);
    size_t widest = atomic_load(&record->widest);
    while (open > widest && !atomic_compare_exchange_weak(&record->widest, &widest, open)) {
    }
    if (record->window > 0) {
        size_t *slot = &record->slots[index % record->window];
        if (*slot != 0) {
            atomic_fetch_add(&record->wrong, 1);
        }
        *slot = index + 1;
    }
    dawdle(index);
    if (record->fail_from != NONE && index >= (size_t)record->fail_from) {
        return weft_fail(record->context, WEFT_MALFORMED, "task %zu failed", index);
    }
    return WEFT_OK;
}

static weft_status run_emit(void *argument, size_t index, unsigned worker) {
    record *record = argument;
    bool alone = atomic_fetch_add(&record->emitting, 1) == 0;
    bool in_order = index == atomic_load(&record->emitted);
    bool kept = record->slots[index % record->window] == index + 1;
    if (!alone || !in_order || !kept || worker >= record->threads) {
        atomic_fetch_add(&record->wrong, 1);
    }
    dawdle(index + 1);
    record->slots[index % record->window] = 0;
    weft_status status = WEFT_OK;
    if (record->emit_fail_from != NONE && index >= (size_t)record->emit_fail_from) {
        status = weft_fail(record->context, WEFT_NO_SPACE, "emit %zu failed", index);
    } else {
        atomic_fetch_add(&record->emitted, 1);
    }
    atomic_fetch_sub(&record->emitting, 1);
    return status;
}

static void test_plain_loop_runs_everything_once(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 1000};
    for (unsigned threads = 1; threads <= MOST_THREADS; threads++) {
        weft_context *context = open_context(threads, NULL);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            record record = open_record(context, counts[c], 0);
            assert_int_equal(weft_parallel(context, counts[c], run_task, &record), WEFT_OK);
            for (size_t i = 0; i < counts[c]; i++) {
                assert_int_equal(record.runs[i], 1);
            }
            assert_int_equal(record.wrong, 0);
            close_record(&record);
        }
        weft_context_destroy(context);
    }
}

static void test_many_small_loops(void **state) {
    (void)state;
    weft_context *context = open_context(4, NULL);
    for (size_t round = 0; round < 3000; round++) {
        size_t count = round % 6;
        record record = open_record(context, count, 0);
        assert_int_equal(weft_parallel(context, count, run_task, &record), WEFT_OK);
        assert_int_equal(record.started, count);
        assert_int_equal(record.wrong, 0);
        close_record(&record);
    }
    weft_context_destroy(context);
}

static void test_plain_loop_returns_the_lowest_failure(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= MOST_THREADS; threads++) {
        weft_context *context = open_context(threads, NULL);
        for (long lowest = 0; lowest < 100; lowest += 9) {
            record record = open_record(context, 100, 0);
            record.fail_from = lowest;
            assert_int_equal(weft_parallel(context, 100, run_task, &record), WEFT_MALFORMED);
            char expected[64];
            snprintf(expected, sizeof expected, "task %ld failed", lowest);
            assert_string_equal(weft_context_error(context), expected);
            /* Each thread may have been in one iteration, and no more started afterwards. */
            assert_true(record.started <= (size_t)lowest + threads);
            for (long i = 0; i <= lowest; i++) {
                assert_int_equal(record.runs[i], 1);
            }
            close_record(&record);
            weft_context_clear(context);
        }
        weft_context_destroy(context);
    }
}

static void test_ordered_loop(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 5, 64, 500};
    static const size_t windows[] = {0, 1, 2, 3, 8, 1000};
    for (unsigned threads = 1; threads <= MOST_THREADS; threads++) {
        weft_context *context = open_context(threads, NULL);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
                size_t window = windows[w] != 0 ? windows[w] : weft_parallel_window(context);
                record record = open_record(context, counts[c], window);
                assert_int_equal(
                    weft_parallel_ordered(context, counts[c], windows[w], run_task, run_emit, &record),
                    WEFT_OK);
                assert_int_equal(record.emitted, counts[c]);
                assert_int_equal(record.started, counts[c]);
                assert_int_equal(record.wrong, 0);
                assert_true(record.widest <= window);
                close_record(&record);
            }
        }
        weft_context_destroy(context);
    }
}

static void expect_lowest(record *record, size_t window, weft_status status, const char *kind,
                          long lowest) {
    assert_int_equal(
        weft_parallel_ordered(record->context, record->count, window, run_task, run_emit, record), status);
    char expected[64];
    snprintf(expected, sizeof expected, "%s %ld failed", kind, lowest);
    assert_string_equal(weft_context_error(record->context), expected);
    /* All below is emitted, as it would be without threads, and nothing above. */
    assert_int_equal(record->emitted, lowest);
    assert_true(record->started <= (size_t)lowest + window);
    assert_int_equal(record->wrong, 0);
    weft_context_clear(record->context);
}

static void test_ordered_loop_returns_the_lowest_failure(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= MOST_THREADS; threads++) {
        weft_context *context = open_context(threads, NULL);
        for (long lowest = 0; lowest < 60; lowest += 7) {
            record record = open_record(context, 60, 5);
            record.fail_from = lowest;
            expect_lowest(&record, 5, WEFT_MALFORMED, "task", lowest);
            close_record(&record);

            record = open_record(context, 60, 5);
            record.emit_fail_from = lowest;
            expect_lowest(&record, 5, WEFT_NO_SPACE, "emit", lowest);
            close_record(&record);

            /* An emit that fails lies below a task that fails, and wins. */
            record = open_record(context, 60, 5);
            record.emit_fail_from = lowest;
            record.fail_from = lowest + 2;
            expect_lowest(&record, 5, WEFT_NO_SPACE, "emit", lowest);
            close_record(&record);
        }
        weft_context_destroy(context);
    }
}

/* ---- a slow emit ---- */

typedef struct gate {
    atomic_size_t finished;
    size_t awaited;
    bool reached;
} gate;

static weft_status count_finished(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    gate *gate = argument;
    atomic_fetch_add(&gate->finished, 1);
    return WEFT_OK;
}

/* The first emit waits until the rest of the window is done; it can only be done by others. */
static weft_status wait_for_window(void *argument, size_t index, unsigned worker) {
    (void)worker;
    gate *gate = argument;
    if (index > 0) {
        return WEFT_OK;
    }
    for (unsigned tries = 0; tries < 20000 && atomic_load(&gate->finished) < gate->awaited; tries++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    /* Time for too eager workers to go beyond the window. */
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    gate->reached = atomic_load(&gate->finished) == gate->awaited;
    return WEFT_OK;
}

static void test_a_blocked_emit_does_not_stop_the_others(void **state) {
    (void)state;
    for (unsigned threads = 2; threads <= 4; threads++) {
        weft_context *context = open_context(threads, NULL);
        gate gate = {.awaited = 6};
        assert_int_equal(weft_parallel_ordered(context, 50, 6, count_finished, wait_for_window, &gate),
                         WEFT_OK);
        assert_true(gate.reached);
        assert_int_equal(gate.finished, 50);
        weft_context_destroy(context);
    }
}

/* ---- threads ---- */

typedef struct meeting {
    pthread_barrier_t barrier;
    pthread_t caller;
    bool strangers;
} meeting;

static weft_status meet(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    meeting *meeting = argument;
    pthread_barrier_wait(&meeting->barrier);
    return WEFT_OK;
}

/* Returns only if all threads are in the loop at the same time. */
static void test_all_threads_take_part(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= MOST_THREADS; threads++) {
        weft_context *context = open_context(threads, NULL);
        for (unsigned round = 0; round < 20; round++) {
            meeting meeting = {0};
            assert_int_equal(pthread_barrier_init(&meeting.barrier, NULL, threads), 0);
            assert_int_equal(weft_parallel(context, threads, meet, &meeting), WEFT_OK);
            pthread_barrier_destroy(&meeting.barrier);
        }
        weft_context_destroy(context);
    }
}

static weft_status look_who(void *argument, size_t index, unsigned worker) {
    (void)index;
    meeting *meeting = argument;
    if (worker != 0 || !pthread_equal(pthread_self(), meeting->caller)) {
        meeting->strangers = true;
    }
    return WEFT_OK;
}

static void test_one_thread_works_inline(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(1, &faults);
    meeting meeting = {.caller = pthread_self()};
    assert_int_equal(weft_parallel(context, 100, look_who, &meeting), WEFT_OK);
    assert_int_equal(weft_parallel_ordered(context, 100, 0, look_who, look_who, &meeting), WEFT_OK);
    assert_false(meeting.strangers);
    assert_int_equal(faults_live_blocks(&faults), 1);
    weft_context_destroy(context);
}

/* No thread can be started with a stack larger than the address space; the caller then works alone. */
static void test_threads_that_do_not_start(void **state) {
    (void)state;
    pthread_attr_t usual;
    pthread_attr_t absurd;
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    assert_int_equal(pthread_getattr_default_np(&absurd), 0);
    assert_int_equal(pthread_attr_setstacksize(&absurd, (size_t)1 << 50), 0);
    assert_int_equal(pthread_setattr_default_np(&absurd), 0);
    weft_context *context = open_context(4, NULL);
    meeting meeting = {.caller = pthread_self()};
    weft_status plain = weft_parallel(context, 100, look_who, &meeting);
    weft_status ordered = weft_parallel_ordered(context, 100, 0, look_who, look_who, &meeting);
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    assert_int_equal(plain, WEFT_OK);
    assert_int_equal(ordered, WEFT_OK);
    assert_false(meeting.strangers);
    weft_context_destroy(context);
    pthread_attr_destroy(&usual);
    pthread_attr_destroy(&absurd);
}

/* ---- failures that are not the loop's ---- */

static weft_status recover_or_fail(void *argument, size_t index, unsigned worker) {
    (void)worker;
    weft_context *context = argument;
    weft_status status = weft_fail(context, WEFT_BUSY, "tried %zu", index);
    return index == 40  ? weft_fail(context, WEFT_NOT_FOUND, "gave up at %zu", index)
           : index < 40 ? WEFT_OK
                        : status;
}

/* Lower iterations fail inside and recover: their texts must not show. */
static void test_recovered_failures_leave_no_text(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads++) {
        weft_context *context = open_context(threads, NULL);
        assert_int_equal(weft_parallel(context, 100, recover_or_fail, context), WEFT_NOT_FOUND);
        assert_string_equal(weft_context_error(context), "gave up at 40");
        weft_context_clear(context);
        assert_int_equal(weft_parallel(context, 40, recover_or_fail, context), WEFT_OK);
        assert_string_equal(weft_context_error(context), "");
        weft_context_destroy(context);
    }
}

static weft_status nest(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    return weft_parallel(argument, 3, nest, argument);
}

static void test_nesting_is_refused(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 3; threads++) {
        weft_context *context = open_context(threads, NULL);
        assert_int_equal(weft_parallel(context, 10, nest, context), WEFT_BUSY);
        assert_int_equal(weft_parallel_ordered(context, 10, 0, nest, nest, context), WEFT_BUSY);
        assert_string_not_equal(weft_context_error(context), "");
        weft_context_destroy(context);
    }
}

typedef struct pair {
    weft_context *outer;
    weft_context *inner;
} pair;

static weft_status fail_inside(void *argument, size_t index, unsigned worker) {
    (void)worker;
    return weft_fail(argument, WEFT_MALFORMED, "inner %zu", index);
}

static weft_status use_another(void *argument, size_t index, unsigned worker) {
    (void)worker;
    pair *pair = argument;
    if (weft_parallel(pair->inner, 4, fail_inside, pair->inner) != WEFT_MALFORMED) {
        return WEFT_OK;
    }
    return weft_fail(pair->outer, WEFT_NOT_FOUND, "outer %zu", index);
}

/* A callback may use another context; the two do not see each other. */
static void test_contexts_do_not_mix(void **state) {
    (void)state;
    pair pair = {open_context(1, NULL), open_context(3, NULL)};
    assert_int_equal(weft_parallel(pair.outer, 2, use_another, &pair), WEFT_NOT_FOUND);
    assert_string_equal(weft_context_error(pair.outer), "outer 0");
    assert_string_equal(weft_context_error(pair.inner), "inner 0");
    weft_context_destroy(pair.outer);
    weft_context_destroy(pair.inner);
}

static weft_status take_and_release(void *argument, size_t index, unsigned worker) {
    (void)worker;
    weft_context *context = argument;
    void *memory = weft_allocate(context, index + 1);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_release(context, memory);
    return WEFT_OK;
}

static weft_status emit_nothing(void *argument, size_t index, unsigned worker) {
    (void)argument;
    (void)index;
    (void)worker;
    return WEFT_OK;
}

/* Without memory for threads the loop is done alone; any other failure is told; nothing leaks. */
static void test_every_allocation_fails_once(void **state) {
    (void)state;
    faults faults = {0};
    bool fired = true;
    unsigned told = 0;
    for (size_t n = 1; fired; n++) {
        faults_reset(&faults, 0);
        weft_context *context = open_context(3, &faults);
        faults_reset(&faults, n);
        weft_status plain = weft_parallel(context, 20, take_and_release, context);
        weft_status ordered =
            weft_parallel_ordered(context, 20, 4, take_and_release, emit_nothing, context);
        fired = faults_fired(&faults);
        bool failed = plain != WEFT_OK || ordered != WEFT_OK;
        assert_true(plain == WEFT_OK || plain == WEFT_NO_MEMORY);
        assert_true(ordered == WEFT_OK || ordered == WEFT_NO_MEMORY);
        assert_int_equal(weft_context_error(context)[0] != '\0', failed);
        told += failed;
        weft_context_destroy(context);
        assert_int_equal(faults_live_blocks(&faults), 0);
    }
    assert_true(told >= 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_loop_runs_everything_once),
        cmocka_unit_test(test_many_small_loops),
        cmocka_unit_test(test_plain_loop_returns_the_lowest_failure),
        cmocka_unit_test(test_ordered_loop),
        cmocka_unit_test(test_ordered_loop_returns_the_lowest_failure),
        cmocka_unit_test(test_a_blocked_emit_does_not_stop_the_others),
        cmocka_unit_test(test_all_threads_take_part),
        cmocka_unit_test(test_one_thread_works_inline),
        cmocka_unit_test(test_threads_that_do_not_start),
        cmocka_unit_test(test_recovered_failures_leave_no_text),
        cmocka_unit_test(test_nesting_is_refused),
        cmocka_unit_test(test_contexts_do_not_mix),
        cmocka_unit_test(test_every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
