/* SPDX-License-Identifier: Apache-2.0
 *
 * clocked_store.h: stores over other stores that share a clock which only the test moves: what listings and
 * ages tell is reckoned by it.
 */
#ifndef WEFT_TESTS_CLOCKED_STORE_H
#define WEFT_TESTS_CLOCKED_STORE_H

#include <weft/store.h>

typedef struct store_clock store_clock;

store_clock *store_clock_open(void);
void store_clock_close(store_clock *clock);
void store_clock_advance(store_clock *clock, double seconds);

/* `inner` and the clock stay the caller's. What was put past all stores of the clock is as old as the clock
 * itself. */
weft_store *clocked_store_open(weft_context *context, weft_store *inner, store_clock *clock);

#endif
