/* SPDX-License-Identifier: Apache-2.0
 *
 * flight.c: see flight.h.
 */
#include "flight.h"

#include "../base/clock.h"
#include "../base/context.h"
#include "../base/status.h"

#include <string.h>

struct weft_loco_flight {
    weft_context *context; /* the thread's */
    weft_loco_exchange exchange;
    weft_loco_payload own;
    weft_loco_payload *all;
    uint64_t round;
    size_t ranks;
    pthread_t thread;
    atomic_bool stopping;
    weft_failure failure;
};

weft_status weft_loco_share(const weft_loco_exchange *exchange, weft_context *context, uint64_t round,
                            const weft_loco_payload *own, weft_loco_payload *all, size_t ranks) {
    return weft_answer_told(context, exchange->share(exchange->opaque, context, round, own, all, ranks),
                            "the exchange's share of round %llu", (unsigned long long)round);
}

static void *flight_main(void *argument) {
    weft_loco_flight *flight = argument;
    weft_status status = weft_loco_share(&flight->exchange, flight->context, flight->round, &flight->own,
                                         flight->all, flight->ranks);
    flight->failure = weft_failure_keep(flight->context, status);
    return NULL;
}

/* Of one whose thread is not there, or no more. */
static void release_flight(weft_loco *loco, weft_loco_flight *flight) {
    weft_context_destroy(flight->context);
    weft_release(loco->context, flight->all);
    weft_release(loco->context, flight);
}

weft_status weft_loco_flight_start(weft_loco *loco, const weft_loco_exchange *exchange,
                                   const weft_loco_payload *own) {
    weft_context *context = loco->context;
    weft_loco_flight *flight = weft_allocate_zeroed(context, 1, sizeof *flight);
    if (flight == NULL) {
        return WEFT_NO_MEMORY;
    }
    flight->exchange = *exchange;
    flight->own = *own;
    flight->round = loco->rounds;
    flight->ranks = loco->options.ranks;
    atomic_init(&flight->stopping, false);
    flight->all = weft_allocate_zeroed(context, flight->ranks, sizeof *flight->all);
    weft_status status = flight->all == NULL ? WEFT_NO_MEMORY
                                             : weft_context_derive(context, weft_thread_keep_on,
                                                                   &flight->stopping, &flight->context);
    if (status == WEFT_OK) {
        int error = pthread_create(&flight->thread, NULL, flight_main, flight);
        if (error != 0) {
            status = weft_fail_errno(context, error, "cannot start a thread for the exchange of round %llu",
                                     (unsigned long long)flight->round);
        }
    }
    if (status != WEFT_OK) {
        release_flight(loco, flight);
        return status;
    }
    loco->flight = flight;
    return WEFT_OK;
}

weft_status weft_loco_flight_land(weft_loco *loco, weft_loco_payload *all) {
    weft_loco_flight *flight = loco->flight;
    weft_thread_join(loco->context, flight->thread, &flight->stopping);
    weft_status status = weft_failure_tell(loco->context, &flight->failure);
    if (status == WEFT_OK) {
        memcpy(all, flight->all, flight->ranks * sizeof *all);
    }
    loco->flight = NULL;
    release_flight(loco, flight);
    return status;
}

void weft_loco_flight_close(weft_loco *loco) {
    weft_loco_flight *flight = loco->flight;
    if (flight == NULL) {
        return;
    }
    atomic_store(&flight->stopping, true);
    pthread_join(flight->thread, NULL);
    loco->flight = NULL;
    release_flight(loco, flight);
}
