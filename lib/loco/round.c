/* SPDX-License-Identifier: Apache-2.0
 *
 * round.c: a round from end to end over an exchange, and the way back for a rank that has missed some.
 */
#include "../base/context.h"
#include "loco.h"
#include "snapshot.h"

#include <stdio.h>

/* Leaves a snapshot if one is due. Without it nothing but the way back gets longer. */
static void leave_snapshot(weft_loco *loco, const weft_loco_exchange *exchange) {
    if (exchange->snapshot_due == NULL || !exchange->snapshot_due(exchange->opaque, loco->rounds)) {
        return;
    }
    weft_writer writer;
    weft_writer_open(&writer, loco->context);
    weft_loco_snapshot_write(loco, &writer);
    const weft_loco_payload snapshot = {writer.data, writer.size};
    weft_status status =
        weft_writer_failed(&writer)
            ? WEFT_NO_MEMORY
            : exchange->snapshot_put(exchange->opaque, loco->context, loco->rounds, &snapshot);
    weft_writer_close(&writer);
    if (status != WEFT_OK) {
        weft_context_clear(loco->context);
    }
}

weft_status weft_loco_round(weft_loco *loco, const weft_loco_exchange *exchange, weft_loco_stats *stats) {
    weft_loco_payload own;
    weft_status status = weft_loco_encode(loco, &own);
    if (status != WEFT_OK) {
        return status;
    }
    weft_loco_payload *all = weft_allocate_zeroed(loco->context, loco->options.ranks, sizeof *all);
    if (all == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = exchange->share(exchange->opaque, loco->context, loco->rounds, &own, all, loco->options.ranks);
    if (status == WEFT_OK) {
        status = weft_loco_aggregate(loco, all, loco->options.ranks, stats);
    }
    weft_release(loco->context, all);
    if (status == WEFT_OK) {
        leave_snapshot(loco, exchange);
    }
    return status;
}

/* What was trained since the last round goes into the residual, unless it has been included under this
 * rank's number; then the snapshot's consensus is ours. */
static weft_status take_snapshot(weft_loco *loco, const weft_loco_exchange *exchange) {
    weft_loco_payload own;
    weft_loco_payload bytes;
    weft_loco_snapshot snapshot;
    weft_status status =
        exchange->snapshot_get(exchange->opaque, loco->context, weft_loco_snapshot_most(loco), &bytes);
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
        loco->pending = false;
        status = weft_loco_snapshot_take(loco, &snapshot);
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
    char why[1024];
    weft_status status = weft_loco_round(loco, exchange, NULL);
    if (status == WEFT_OK || !is_lost(status) || loco->broken) {
        return status;
    }
    snprintf(why, sizeof why, "%s", weft_context_error(loco->context));
    if (take_snapshot(loco, exchange) == WEFT_OK) {
        weft_context_clear(loco->context);
        return WEFT_OK;
    }
    return loco->broken ? weft_loco_check(loco) : weft_fail(loco->context, status, "%s", why);
}

weft_status weft_loco_catch_up(weft_loco *loco, const weft_loco_exchange *exchange, uint64_t *rounds_out) {
    uint64_t began = loco->rounds;
    weft_status status = WEFT_OK;
    weft_context_clear(loco->context);
    while (status == WEFT_OK && exchange->ended != NULL) {
        status = exchange->ended(exchange->opaque, loco->context, loco->rounds);
        if (status == WEFT_OK) {
            status = end_missed(loco, exchange);
        } else if (status == WEFT_NOT_FOUND) {
            status = take_snapshot(loco, exchange);
        }
    }
    if (status == WEFT_MORE) {
        status = WEFT_OK;
    }
    if (status == WEFT_OK && rounds_out != NULL) {
        *rounds_out = loco->rounds - began;
    }
    return status;
}
