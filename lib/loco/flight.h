/* SPDX-License-Identifier: Apache-2.0
 *
 * flight.h: the exchange of a round that was begun, on a thread of its own, while the rank trains.
 *
 * The thread has a context of its own and touches nothing of the rank but the payload, which nobody changes
 * as long as it is pending. So all that the rank holds changes on the caller's thread alone.
 */
#ifndef WEFT_LOCO_FLIGHT_H
#define WEFT_LOCO_FLIGHT_H

#include "loco.h"

/* Begins to share the pending payload. */
weft_status weft_loco_flight_start(weft_loco *loco, const weft_loco_exchange *exchange,
                                   const weft_loco_payload *own);
/* Waits for the exchange, and sets `all`, one for each rank. Then there is no flight any more, however it
 * has ended; the payload is still pending. */
weft_status weft_loco_flight_land(weft_loco *loco, weft_loco_payload *all);
/* The same without asking what has come: tells the exchange to stop. */
void weft_loco_flight_close(weft_loco *loco);

/* Gives a payload to all ranks, and sets `all`; on whichever thread. */
weft_status weft_loco_share(const weft_loco_exchange *exchange, weft_context *context, uint64_t round,
                            const weft_loco_payload *own, weft_loco_payload *all, size_t ranks);

#endif
