/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h: time that only goes forward, and sleep that can be ended.
 */
#ifndef WEFT_SYNC_CLOCK_H
#define WEFT_SYNC_CLOCK_H

#include <weft/base.h>

/* Seconds of the monotonic clock. */
double weft_sync_now(void);
/* Sleeps, and between the slices of sleep asks whether to stop: WEFT_CANCELLED. */
weft_status weft_sync_sleep(weft_context *context, double seconds);
/* Milliseconds since 1970, which may jump. */
uint64_t weft_sync_date(void);

#endif
