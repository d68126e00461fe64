/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c: time that only goes forward, and waits that can be ended.
 */
#include "clock.h"

#include "context.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

double weft_clock_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

weft_status weft_clock_sleep(weft_context *context, double seconds) {
    double end = weft_clock_now() + seconds;
    weft_status status = weft_progress_ask(context);
    for (double left = seconds; left > 0 && status == WEFT_OK; left = end - weft_clock_now()) {
        double slice = left < 0.1 ? left : 0.1;
        struct timespec time = {0, (long)(slice * 1e9)};
        nanosleep(&time, NULL);
        status = weft_progress_ask(context);
    }
    return status;
}

uint64_t weft_clock_date(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

double weft_clock_backoff(double first, double longest, unsigned failures) {
    double seconds = first;
    for (unsigned i = 1; i < failures && seconds < longest; i++) {
        seconds *= 2;
    }
    return seconds < longest ? seconds : longest;
}

double weft_clock_pause(double waited, double least, double most) {
    double seconds = waited / 16 > least ? waited / 16 : least;
    return seconds < most ? seconds : most;
}

double weft_clock_jitter(void) {
    uint32_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number) {
        return 1;
    }
    return 0.5 + (double)number / UINT32_MAX / 2;
}

void weft_condition_open(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, double end) {
    time_t whole = (time_t)end;
    struct timespec until = {whole, (long)((end - (double)whole) * 1e9)};
    return pthread_cond_timedwait(condition, mutex, &until) != ETIMEDOUT;
}

bool weft_thread_keep_on(void *stopping, const char *phase, uint64_t done, uint64_t total) {
    (void)phase;
    (void)done;
    (void)total;
    return !atomic_load((const atomic_bool *)stopping);
}

/* A join by the monotonic clock would be right too, but ThreadSanitizer does not know that call as a join.
 * A clock that jumps only makes one look at the caller early or late. */
void weft_thread_join(weft_context *context, pthread_t thread, atomic_bool *stopping) {
    struct timespec until;
    int error = ETIMEDOUT;
    while (error == ETIMEDOUT) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        error = pthread_timedjoin_np(thread, NULL, &until);
        if (error == ETIMEDOUT && weft_progress_ask(context) != WEFT_OK) {
            atomic_store(stopping, true);
        }
    }
}
