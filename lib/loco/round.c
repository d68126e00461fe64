/* SPDX-License-Identifier: Apache-2.0
 *
 * round.c: a round from end to end over an exchange, and the way back for a rank that has missed some.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "../base/status.h"
#include "flight.h"
#include "snapshot.h"

/* Leaves a snapshot if one is due. Without it nothing but the way back gets longer. */
static void leave_snapshot(weft_loco *loco, const weft_loco_exchange *exchange) {
    if (exchange->snapshot_due == NULL || exchange->snapshot_put == NULL ||
        !exchange->snapshot_due(exchange->opaque, loco->rounds)) {
        return;
    }
    weft_writer writer;
    weft_writer_open(&writer, loco->context);
    weft_loco_snapshot_write(loco, &writer);
    const weft_loco_payload snapshot = {writer.data, writer.size};
    if (!weft_writer_failed(&writer)) {
        weft_status ignored =
            exchange->snapshot_put(exchange->opaque, loco->context, loco->rounds, &snapshot);
        (void)ignored;
    }
    weft_writer_close(&writer);
    weft_context_clear(loco->context);
}

/* Gives the payload to the others, or waits for who does so since the round was begun. */
static weft_status share_payload(weft_loco *loco, const weft_loco_exchange *exchange,
                                 const weft_loco_payload *own, weft_loco_payload *all) {
    return loco->flight != NULL
               ? weft_loco_flight_land(loco, all)
               : weft_loco_share(exchange, loco->context, loco->rounds, own, all, loco->options.ranks);
}

weft_status weft_loco_round(weft_loco *loco, const weft_loco_exchange *given, weft_loco_stats *stats) {
    weft_loco_exchange exchange = {.size = sizeof exchange};
    weft_loco_payload own;
    weft_status status =
        weft_sized_read(loco->context, given, &exchange, sizeof exchange, "weft_loco_exchange");
    if (status == WEFT_OK) {
        status = weft_sized_check(loco->context, stats, "weft_loco_stats");
    }
    if (status == WEFT_OK) {
        status = weft_loco_encode(loco, &own);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_loco_payload *all = weft_allocate_zeroed(loco->context, loco->options.ranks, sizeof *all);
    if (all == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = share_payload(loco, &exchange, &own, all);
    if (status == WEFT_OK) {
        status = weft_loco_aggregate(loco, all, loco->options.ranks, stats);
    }
    weft_release(loco->context, all);
    if (status == WEFT_OK) {
        leave_snapshot(loco, &exchange);
    }
    return status;
}

weft_status weft_loco_round_begin(weft_loco *loco, const weft_loco_exchange *given) {
    weft_loco_exchange exchange = {.size = sizeof exchange};
    weft_loco_payload own;
    weft_status status =
        weft_sized_read(loco->context, given, &exchange, sizeof exchange, "weft_loco_exchange");
    if (status != WEFT_OK) {
        return status;
    }
    if (!loco->options.overlap) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT,
                         "a round that is begun ends after more training, which only ranks with the option "
                         "overlap do not lose");
    }
    if (!exchange.threads) {
        return weft_fail(loco->context, WEFT_UNSUPPORTED,
                         "this exchange cannot be used by a thread beside the one that trains, so rounds "
                         "cannot overlap over it; use another, or rounds without overlap");
    }
    if (loco->flight != NULL) {
        return weft_fail(loco->context, WEFT_BUSY, "round %llu was begun already: weft_loco_round ends it",
                         (unsigned long long)loco->rounds);
    }
    status = weft_loco_encode(loco, &own);
    return status == WEFT_OK ? weft_loco_flight_start(loco, &exchange, &own) : status;
}

/* What was trained since the last round goes into the residual, unless it has been included under this
 * rank's number; then the snapshot's consensus is ours. */
static weft_status take_snapshot(weft_loco *loco, const weft_loco_exchange *exchange) {
    weft_loco_payload own;
    weft_loco_payload bytes = {NULL, 0};
    weft_loco_snapshot snapshot;
    uint64_t most = weft_loco_snapshot_most(loco);
    weft_context_clear(loco->context);
    weft_status status =
        exchange->snapshot_get == NULL
            ? weft_fail(loco->context, WEFT_NOT_FOUND,
                        "round %llu is gone, and the exchange has no snapshots: start this rank again",
                        (unsigned long long)loco->rounds)
            : weft_answer_told(loco->context,
                               exchange->snapshot_get(exchange->opaque, loco->context, most, &bytes),
                               "the exchange's snapshot_get");
    if (status == WEFT_OK && (bytes.data == NULL || bytes.size > most)) {
        status =
            weft_fail(loco->context, WEFT_CALLBACK_FAILED,
                      "the exchange's snapshot_get gave no snapshot, or one of %zu bytes where at most "
                      "%llu were asked for",
                      bytes.size, (unsigned long long)most);
    }
    if (status == WEFT_OK) {
        status = weft_loco_snapshot_open(loco, bytes.data, bytes.size, &snapshot);
    }
    if (status == WEFT_OK) {
        status = weft_loco_encode(loco, &own);
    }
    if (status == WEFT_OK && !weft_loco_snapshot_includes(loco, &snapshot)) {
        status = weft_loco_return_values(loco);
    }
    if (status == WEFT_OK) {
        status = weft_loco_snapshot_take(loco, &snapshot);
        loco->pending = false;
    }
    return status;
}

/* What the round needs is damaged or gone. That ranks have come apart is none of these: a snapshot would
 * hide it. */
static bool is_lost(weft_status status) {
    return status == WEFT_NOT_FOUND || status == WEFT_MALFORMED || status == WEFT_TRUNCATED ||
           status == WEFT_CHECKSUM_MISMATCH || status == WEFT_DIGEST_MISMATCH;
}

/* Ends a round that the others have ended. One that cannot be ended any more is passed over by a snapshot,
 * if there is one beyond it. */
static weft_status end_missed(weft_loco *loco, const weft_loco_exchange *exchange) {
    weft_status status = weft_loco_round(loco, exchange, NULL);
    if (status == WEFT_OK || !is_lost(status) || loco->broken) {
        return status;
    }
    weft_failure failure = weft_failure_keep(loco->context, status);
    weft_status taken = take_snapshot(loco, exchange);
    if (taken == WEFT_OK) {
        weft_context_clear(loco->context);
        return WEFT_OK;
    }
    if (loco->broken) {
        return weft_loco_check(loco);
    }
    /* of a round that is gone there was no other way than the snapshot */
    return status == WEFT_NOT_FOUND ? taken : weft_failure_tell(loco->context, &failure);
}

weft_status weft_loco_catch_up(weft_loco *loco, const weft_loco_exchange *given, uint64_t *rounds_out) {
    uint64_t began = loco->rounds;
    weft_loco_exchange exchange = {.size = sizeof exchange};
    weft_status status = weft_context_enter(loco->context);
    if (status == WEFT_OK) {
        status = weft_sized_read(loco->context, given, &exchange, sizeof exchange, "weft_loco_exchange");
    }
    if (status == WEFT_OK && exchange.ended != NULL) {
        weft_loco_flight_close(loco);
    }
    while (status == WEFT_OK && exchange.ended != NULL) {
        status = exchange.ended(exchange.opaque, loco->context, loco->rounds);
        if (status == WEFT_MORE) {
            status = WEFT_OK; /* the round is not over */
            break;
        }
        status =
            weft_answer_told(loco->context, status, "the exchange's answer whether round %llu has ended",
                             (unsigned long long)loco->rounds);
        if (status == WEFT_OK) {
            status = end_missed(loco, &exchange);
        } else if (status == WEFT_NOT_FOUND) {
            status = take_snapshot(loco, &exchange);
        }
    }
    if (status == WEFT_OK && rounds_out != NULL) {
        *rounds_out = loco->rounds - began;
    }
    return status;
}
