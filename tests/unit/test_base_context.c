/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base_context.c: status names and numbers, a context's options and defaults, its memory under
 * failure, its error text, pauses and waits, what it makes of strangers' numbers, and progress with
 * cancelling.
 */
#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../../lib/base/cpu.h"
#include "../../lib/base/pool.h"
#include "../../lib/base/status.h"
#include "faults.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* The numbers are pinned for ever; a change here is a break of the interface. */
static const struct {
    int number;
    const char *name;
} statuses[] = {
    {0, "ok"},
    {1, "more"},
    {-100, "invalid argument"},
    {-101, "unsupported"},
    {-102, "not found"},
    {-103, "busy"},
    {-104, "callback failed"},
    {-200, "malformed"},
    {-201, "truncated"},
    {-202, "wrong version"},
    {-300, "checksum mismatch"},
    {-301, "base mismatch"},
    {-302, "digest mismatch"},
    {-303, "signature mismatch"},
    {-400, "input/output failed"},
    {-401, "no space"},
    {-500, "remote failed"},
    {-501, "remote denied"},
    {-502, "conflict"},
    {-503, "aborted"},
    {-600, "no memory"},
    {-601, "limit exceeded"},
    {-602, "cancelled"},
};

static void test_status_names(void **state) {
    (void)state;
    size_t count = sizeof statuses / sizeof statuses[0];
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(weft_status_name((weft_status)statuses[i].number), statuses[i].name);
        int block = statuses[i].number / 100;
        assert_int_equal(weft_status_is_integrity((weft_status)statuses[i].number),
                         block == -2 || block == -3);
    }
    size_t known = 0;
    for (int number = -1000; number <= 1000; number++) {
        known += strcmp(weft_status_name((weft_status)number), "unknown status") != 0;
    }
    assert_int_equal(known, count);
}

static void test_defaults(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    const weft_limits *limits = weft_context_limits(context);
    assert_int_equal(limits->header_bytes, 32 << 20);
    assert_int_equal(limits->tensors, 1 << 20);
    assert_int_equal(limits->bucket_bytes, 32 << 20);
    assert_true(limits->stage_bytes == (uint64_t)4 << 30);
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(weft_context_threads(context), CPU_COUNT(&set));
    assert_string_equal(weft_context_error(context), "");
    weft_context_destroy(context);
    weft_context_destroy(NULL);
}

static void test_options(void **state) {
    (void)state;
    weft_context_options options = {
        .size = sizeof options,
        .limits =
            &(weft_limits){.size = sizeof(weft_limits), .header_bytes = 1, .tensors = 2, .bucket_bytes = 3},
        .threads = 5};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    assert_int_equal(weft_context_limits(context)->header_bytes, 1);
    assert_int_equal(weft_context_limits(context)->tensors, 2);
    assert_int_equal(weft_context_limits(context)->bucket_bytes, 3);
    assert_true(weft_context_limits(context)->stage_bytes == (uint64_t)4 << 30);
    assert_int_equal(weft_context_threads(context), 5);
    assert_int_equal(weft_parallel_window(context), 20);
    weft_context_destroy(context);
}

static void test_wrong_options(void **state) {
    (void)state;
    faults faults = {0};
    weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&faults)};
    options.allocator.release = NULL;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_INVALID_ARGUMENT);
    assert_null(context);
    assert_int_equal(weft_context_create(NULL, NULL), WEFT_INVALID_ARGUMENT);
}

static weft_context *open_context(faults *faults) {
    weft_context_options options = {
        .size = sizeof options, .allocator = faults_allocator(faults), .threads = 3};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static void test_no_memory_for_a_context(void **state) {
    (void)state;
    faults faults = {0};
    faults_reset(&faults, 1);
    weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&faults)};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_NO_MEMORY);
    assert_null(context);
}

static void test_memory_comes_from_the_hooks(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(&faults);
    assert_int_equal(faults_live_blocks(&faults), 1);
    void *plain = weft_allocate(context, 0);
    uint8_t *zeroed = weft_allocate_zeroed(context, 100, 3);
    uint32_t *array = weft_allocate_array(context, 10, sizeof *array);
    char *text = weft_copy_text(context, "weft and more", 4);
    assert_non_null(plain);
    for (size_t i = 0; i < 300; i++) {
        assert_int_equal(zeroed[i], 0);
    }
    assert_string_equal(text, "weft");
    for (uint32_t i = 0; i < 10; i++) {
        array[i] = i;
    }
    array = weft_reallocate_array(context, array, 1000, sizeof *array);
    assert_int_equal(array[9], 9);
    assert_int_equal(faults_live_blocks(&faults), 5);
    weft_release(context, plain);
    weft_release(context, zeroed);
    weft_release(context, array);
    weft_release(context, text);
    weft_release(context, NULL);
    assert_int_equal(faults_live_blocks(&faults), 1);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
    assert_int_equal(faults_live_bytes(&faults), 0);
}

static void test_memory_runs_out(void **state) {
    (void)state;
    faults faults = {.fail_on = true};
    weft_context *context = open_context(&faults);
    uint8_t *kept = weft_allocate(context, 8);
    memset(kept, 3, 8);
    faults_reset(&faults, 1);
    assert_null(weft_allocate(context, 1234));
    assert_non_null(strstr(weft_context_error(context), "1234"));
    assert_null(weft_allocate_zeroed(context, 1, 1));
    assert_null(weft_allocate_array(context, 1, 1));
    assert_null(weft_copy_text(context, "x", 1));
    assert_null(weft_reallocate_array(context, kept, 100, 1));
    assert_int_equal(kept[7], 3);
    weft_release(context, kept);
    weft_context_destroy(context);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

static void test_sizes_that_overflow(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(&faults);
    faults_reset(&faults, 0);
    assert_null(weft_allocate_array(context, SIZE_MAX / 2 + 1, 2));
    assert_null(weft_allocate_zeroed(context, (size_t)1 << 40, (size_t)1 << 40));
    assert_null(weft_reallocate_array(context, NULL, SIZE_MAX, SIZE_MAX));
    assert_null(weft_copy_text(context, "", SIZE_MAX));
    assert_int_equal(faults_calls(&faults), 0);
    assert_non_null(strstr(weft_context_error(context), "out of memory"));
    weft_context_destroy(context);
}

static void test_error_text(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(&faults);
    faults_reset(&faults, 0);
    assert_int_equal(weft_fail(context, WEFT_MALFORMED, "%s at byte %d", "rubbish", 7), WEFT_MALFORMED);
    assert_string_equal(weft_context_error(context), "rubbish at byte 7");
    weft_fail(context, WEFT_MALFORMED, "tensor %s", "a\nb\x1b[2Jc\x7f\t\xc3\xa9");
    assert_string_equal(weft_context_error(context), "tensor a?b?[2Jc??\xc3\xa9");
    assert_int_equal(weft_fail(context, WEFT_NOT_FOUND, "second"), WEFT_NOT_FOUND);
    assert_string_equal(weft_context_error(context), "second");
    weft_context_clear(context);
    assert_string_equal(weft_context_error(context), "");

    char longer[4000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    weft_fail(context, WEFT_MALFORMED, "%s", longer);
    assert_int_equal(strlen(weft_context_error(context)), 1023);
    assert_int_equal(weft_fail_errno(context, EIO, "%s", longer), WEFT_IO_FAILED);
    assert_int_equal(strlen(weft_context_error(context)), 1023);
    assert_int_equal(faults_calls(&faults), 0);
    weft_context_destroy(context);
}

static void test_failure_is_put_aside(void **state) {
    (void)state;
    weft_context *context;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_fail(context, WEFT_MALFORMED, "the first");
    weft_failure failure = weft_failure_keep(context, WEFT_MALFORMED);
    weft_fail(context, WEFT_IO_FAILED, "another");
    assert_int_equal(weft_failure_tell(context, &failure), WEFT_MALFORMED);
    assert_string_equal(weft_context_error(context), "the first");
    failure = weft_failure_keep(context, WEFT_OK);
    weft_fail(context, WEFT_IO_FAILED, "another");
    assert_int_equal(weft_failure_tell(context, &failure), WEFT_OK);
    assert_string_equal(weft_context_error(context), "another");
    weft_fail(context, WEFT_IO_FAILED, "because of %s, %s", weft_context_error(context), "it failed");
    assert_string_equal(weft_context_error(context), "because of another, it failed");
    weft_context_destroy(context);
}

static void test_pauses_double(void **state) {
    (void)state;
    const double expected[] = {0.1, 0.1, 0.2, 0.4, 0.8, 1, 1};
    for (unsigned i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_true(weft_clock_backoff(0.1, 1, i) == expected[i]);
    }
    assert_true(weft_clock_backoff(2, 1, UINT_MAX) == 1);
    for (int i = 0; i < 100; i++) {
        double factor = weft_clock_jitter();
        assert_true(factor >= 0.5 && factor <= 1);
    }
}

static void test_waits_end(void **state) {
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    weft_condition_open(&condition);
    pthread_mutex_lock(&mutex);
    double start = weft_clock_now();
    while (weft_condition_wait(&condition, &mutex, start + 0.05)) {
    }
    assert_true(weft_clock_now() >= start + 0.05);
    assert_false(weft_condition_wait(&condition, &mutex, 0));
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&condition);
}

static void test_error_of_the_system(void **state) {
    (void)state;
    faults faults = {0};
    weft_context *context = open_context(&faults);
    assert_int_equal(weft_fail_errno(context, ENOENT, "cannot open %s", "model"), WEFT_IO_FAILED);
    assert_string_equal(weft_context_error(context), "cannot open model: No such file or directory");
    assert_int_equal(weft_fail_errno(context, ENOSPC, "x"), WEFT_NO_SPACE);
    assert_int_equal(weft_fail_errno(context, EDQUOT, "x"), WEFT_NO_SPACE);
    weft_context_destroy(context);
}

/* ---- what strangers return ---- */

static void test_answers(void **state) {
    (void)state;
    const int foreign[] = {1, 2, 700, INT_MAX, -1, -99, -105, INT_MIN};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    assert_int_equal(weft_answer(context, WEFT_OK, "the function %d", 7), WEFT_OK);
    assert_string_equal(weft_context_error(context), "");
    assert_int_equal(weft_answer(context, WEFT_NO_SPACE, "the function %d", 7), WEFT_NO_SPACE);
    assert_string_equal(weft_context_error(context), "the function 7 failed: no space");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char text[64];
        snprintf(text, sizeof text, "the function 7 returned %d,", foreign[i]);
        weft_context_clear(context);
        assert_int_equal(weft_status_from((weft_status)foreign[i]), WEFT_CALLBACK_FAILED);
        assert_int_equal(weft_answer(context, (weft_status)foreign[i], "the function %d", 7),
                         WEFT_CALLBACK_FAILED);
        assert_non_null(strstr(weft_context_error(context), text));
        /* a text of its own cannot have been about this */
        weft_fail(context, WEFT_IO_FAILED, "the disk is gone");
        assert_int_equal(weft_answer_told(context, (weft_status)foreign[i], "the function %d", 7),
                         WEFT_CALLBACK_FAILED);
        assert_non_null(strstr(weft_context_error(context), text));
    }
    weft_fail(context, WEFT_IO_FAILED, "the disk is gone");
    assert_int_equal(weft_answer_told(context, WEFT_IO_FAILED, "the function"), WEFT_IO_FAILED);
    assert_string_equal(weft_context_error(context), "the disk is gone");
    weft_context_clear(context);
    assert_int_equal(weft_answer_told(context, WEFT_IO_FAILED, "the function"), WEFT_IO_FAILED);
    assert_string_equal(weft_context_error(context), "the function failed: input/output failed");
    weft_context_destroy(context);
}

/* ---- progress ---- */

typedef struct witness {
    atomic_int inside;
    int overlaps;
    unsigned calls;
    unsigned backwards;
    uint64_t last_done;
    uint64_t last_total;
    char phase[16];
    uint64_t cancel_at;
} witness;

static bool watch(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    witness *self = opaque;
    self->overlaps += atomic_fetch_add(&self->inside, 1) != 0;
    self->calls += 1;
    self->backwards += done < self->last_done;
    self->last_done = done;
    self->last_total = total;
    snprintf(self->phase, sizeof self->phase, "%s", phase);
    atomic_fetch_sub(&self->inside, 1);
    return done < self->cancel_at;
}

static weft_context *open_watched(witness *witness, unsigned threads) {
    weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = watch, .progress_opaque = witness};
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(&options, &context), WEFT_OK);
    return context;
}

static weft_status add_one(void *argument, size_t index, unsigned worker) {
    (void)index;
    (void)worker;
    return weft_progress_add(argument, 1);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_progress_is_throttled(void **state) {
    (void)state;
    enum { STEPS = 200000 };
    witness witness = {.cancel_at = UINT64_MAX};
    weft_context *context = open_watched(&witness, 4);
    double start = seconds_now();
    weft_progress_begin(context, "counting", STEPS);
    assert_int_equal(weft_parallel(context, STEPS, add_one, context), WEFT_OK);
    double elapsed = seconds_now() - start;
    assert_int_equal(witness.overlaps, 0);
    assert_int_equal(witness.backwards, 0);
    assert_int_equal(witness.last_done, STEPS);
    assert_int_equal(witness.last_total, STEPS);
    assert_string_equal(witness.phase, "counting");
    assert_true(witness.calls >= 1);
    assert_true(witness.calls <= 3 + (unsigned)(elapsed * 20));
    weft_context_destroy(context);
}

static void test_progress_cancels(void **state) {
    (void)state;
    /* more than are done before the first thread is asked, however long it takes to be */
    const uint64_t STEPS = (uint64_t)1 << 40;
    for (unsigned threads = 1; threads <= 4; threads++) {
        witness witness = {.cancel_at = 0};
        weft_context *context = open_watched(&witness, threads);
        weft_progress_begin(context, "counting", STEPS);
        assert_int_equal(weft_parallel(context, STEPS, add_one, context), WEFT_CANCELLED);
        assert_string_equal(weft_context_error(context), "cancelled during counting");
        assert_int_equal(witness.calls, 1);
        assert_true(witness.last_done < STEPS);
        /* It sticks until the next work begins, and the function is not asked again. */
        assert_int_equal(weft_progress_add(context, STEPS), WEFT_CANCELLED);
        assert_int_equal(witness.calls, 1);
        witness.cancel_at = UINT64_MAX;
        weft_progress_begin(context, "again", 5);
        assert_int_equal(weft_progress_add(context, 5), WEFT_OK);
        assert_int_equal(witness.last_done, 5);
        weft_context_destroy(context);
    }
}

/* Where there is no way back nobody is asked, in whatever order the work is done. */
static void test_progress_is_held(void **state) {
    (void)state;
    for (unsigned threads = 1; threads <= 4; threads++) {
        witness witness = {.cancel_at = 0};
        weft_context *context = open_watched(&witness, threads);
        weft_progress_hold(context);
        weft_progress_hold(context);
        weft_progress_begin(context, "counting", 100);
        assert_int_equal(weft_parallel(context, 100, add_one, context), WEFT_OK);
        weft_progress_go_on(context);
        assert_int_equal(weft_progress_ask(context), WEFT_OK);
        assert_int_equal(witness.calls, 0);
        weft_progress_go_on(context);
        assert_int_equal(weft_progress_ask(context), WEFT_CANCELLED);
        assert_int_equal(witness.calls, 1);
        weft_context_destroy(context);
    }
}

static void test_progress_without_a_function(void **state) {
    (void)state;
    weft_context *context = NULL;
    assert_int_equal(weft_context_create(NULL, &context), WEFT_OK);
    weft_progress_begin(context, "nothing", 10);
    assert_int_equal(weft_progress_add(context, 20), WEFT_OK);
    weft_context_destroy(context);
}

/* ---- the processor ---- */

/* The variable is read once per process, so each value gets a process of its own. */
static void expect_level(const char *wanted, const char *expected) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("WEFT_CPU", wanted, 1);
        _exit(strcmp(weft_cpu_name(), expected) == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Must run before anything in this process asks for the level. */
static void test_cpu_choice(void **state) {
    (void)state;
    int best = WEFT_CPU_PORTABLE;
#ifdef WEFT_ARM
    static const char *const names[] = {"portable", "neon"};
    if ((getauxval(AT_HWCAP) & HWCAP_AES) != 0) {
        best = WEFT_CPU_NEON;
    }
#else
    static const char *const names[] = {"portable", "avx2", "avx512"};
#endif
#ifdef WEFT_X86
    /* The compiler's own opinion, about one extension of each level. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) {
        best = WEFT_CPU_AVX2;
    }
    if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("gfni")) {
        best = WEFT_CPU_AVX512;
    }
#endif
    for (int level = 0; level < (int)(sizeof names / sizeof *names); level++) {
        expect_level(names[level], names[level <= best ? level : best]);
    }
    expect_level("", names[best]);
    expect_level("abacus", names[best]);
    assert_int_equal(weft_cpu_best(), best);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_choice),
        cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_no_memory_for_a_context),
        cmocka_unit_test(test_memory_comes_from_the_hooks),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_sizes_that_overflow),
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_failure_is_put_aside),
        cmocka_unit_test(test_pauses_double),
        cmocka_unit_test(test_waits_end),
        cmocka_unit_test(test_error_of_the_system),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_progress_is_throttled),
        cmocka_unit_test(test_progress_cancels),
        cmocka_unit_test(test_progress_is_held),
        cmocka_unit_test(test_progress_without_a_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
