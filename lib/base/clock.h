/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h: time that only goes forward, and waits that can be ended.
 */
#ifndef WEFT_BASE_CLOCK_H
#define WEFT_BASE_CLOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <weft/base.h>

/* Seconds of the monotonic clock. */
double weft_clock_now(void);
/* Sleeps, and between the slices of sleep asks whether to stop: WEFT_CANCELLED. */
weft_status weft_clock_sleep(weft_context *context, double seconds);
/* How long to pause after so many failures in a row: `first` after one, and with each twice as long as
 * before, up to `longest`. */
double weft_clock_backoff(double first, double longest, unsigned failures);
/* How long to pause before the next look for what somebody else is to bring, which has been waited for so
 * long already: a share of that, so that the wait lasts little longer than it must, from `least` to `most`.
 */
double weft_clock_pause(double waited, double least, double most);
/* A factor between a half and one, for pauses of many who must not come back at once. */
double weft_clock_jitter(void);
/* A condition variable that is waited on by the monotonic clock. */
void weft_condition_open(pthread_cond_t *condition);
/* Waits until somebody signals, or weft_clock_now() is `end`: then false. It may also return for nothing.
 */
bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, double end);
/* A progress function for a thread of ours: it goes on until the flag, its opaque, is set. */
bool weft_thread_keep_on(void *stopping, const char *phase, uint64_t done, uint64_t total);
/* Waits for such a thread, and sets its flag when the caller wants to stop. */
void weft_thread_join(weft_context *context, pthread_t thread, atomic_bool *stopping);
/* Milliseconds since 1970, which may jump. */
uint64_t weft_clock_date(void);

#endif
