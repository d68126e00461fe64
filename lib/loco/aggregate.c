/* SPDX-License-Identifier: Apache-2.0
 *
 * aggregate.c: the end of a round. Payloads are added in the order of ranks, divided by how many there are,
 * and the outer optimizer moves the consensus; each block is the work of one thread from end to end.
 *
 * Nothing here may be reordered or fused: ranks with other processors must come to the same bits.
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "../base/pool.h"
#include "../base/sized.h"
#include "included.h"
#include "values.h"

typedef struct aggregate_job {
    weft_loco *loco;
    weft_loco_values values;
    float *sums; /* a block for each worker */
} aggregate_job;

/* One step of the outer optimizer. Returns the largest magnitude of the new consensus as bits. */
static uint32_t step(const weft_loco_options *options, size_t count, float included,
                     const float *restrict sums, float *restrict consensus, float *restrict momentum) {
    uint32_t highest = 0;
    float rate = options->rate;
    float mu = options->momentum;
    for (size_t i = 0; i < count; i++) {
        float gradient = sums[i] / included;
        float direction = gradient;
        if (momentum != NULL) {
            float moved = mu * momentum[i] + gradient;
            momentum[i] = moved;
            direction = gradient + mu * moved;
        }
        consensus[i] = consensus[i] - rate * direction;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &consensus[i], sizeof bits);
        bits &= 0x7fffffffu;
        highest = bits > highest ? bits : highest;
    }
    return highest;
}

static weft_status name_broken(const weft_loco *loco, uint64_t start, uint64_t end) {
    while (start + 1 < end && __builtin_isfinite(loco->consensus[start])) {
        start++;
    }
    return weft_loco_not_finite(loco, start, "the consensus");
}

static weft_status move_block(void *argument, size_t block, unsigned worker) {
    aggregate_job *job = argument;
    weft_loco *loco = job->loco;
    uint64_t start = (uint64_t)block * WEFT_PAYLOAD_BLOCK;
    uint64_t end = weft_loco_block_end(loco, block);
    size_t count = (size_t)(end - start);
    float *sums = job->sums + (size_t)worker * WEFT_PAYLOAD_BLOCK;
    weft_status status = WEFT_OK;
    memset(sums, 0, count * sizeof *sums);
    for (size_t i = 0; i < job->values.count && status == WEFT_OK; i++) {
        status = weft_loco_values_add(&job->values, i, block, worker, sums);
    }
    if (status != WEFT_OK) {
        return status;
    }
    enum { STRETCH = WEFT_TILE };
    for (uint64_t at = start; at < end; at += STRETCH) {
        size_t some = end - at < STRETCH ? (size_t)(end - at) : STRETCH;
        uint32_t highest = step(&loco->options, some, (float)job->values.count, sums + (at - start),
                                loco->consensus + at, loco->momentum == NULL ? NULL : loco->momentum + at);
        if (highest >= WEFT_NOT_FINITE) {
            return name_broken(loco, at, at + some);
        }
        weft_loco_set_local(loco, at, at + some);
        if (loco->options.average) {
            memset(loco->consensus + at, 0, some * sizeof *loco->consensus);
        }
    }
    return WEFT_OK;
}

static weft_status move_consensus(aggregate_job *job) {
    weft_loco *loco = job->loco;
    weft_context *context = loco->context;
    weft_status status = weft_parallel(context, loco->blocks, move_block, job);
    if (status == WEFT_OK) {
        status = weft_loco_move_digest(loco);
    }
    loco->broken = status != WEFT_OK;
    if (status == WEFT_OK) {
        loco->rounds++;
        loco->pending = false;
    }
    return status;
}

/* ---- taking back ---- */

static weft_status return_block(void *argument, size_t block, unsigned worker) {
    weft_loco_values *values = argument;
    return weft_loco_values_add(values, 0, block, worker,
                                values->loco->residual + (uint64_t)block * WEFT_PAYLOAD_BLOCK);
}

/* What is left of a value that was cut, and what was sent of it, add up to the value exactly. An average is
 * of one step: what has no part in it is of no use to the next one, and the residual stays zero. */
weft_status weft_loco_return_values(weft_loco *loco) {
    if (loco->options.average) {
        return WEFT_OK;
    }
    weft_loco_payload *payloads =
        weft_allocate_zeroed(loco->context, loco->options.ranks, sizeof *payloads);
    weft_loco_values values;
    if (payloads == NULL) {
        return WEFT_NO_MEMORY;
    }
    payloads[loco->options.rank] = (weft_loco_payload){loco->payload.data, loco->payload.size};
    weft_status status = weft_loco_values_open(loco, payloads, loco->options.ranks, &values);
    weft_release(loco->context, payloads);
    if (status != WEFT_OK) {
        return status;
    }
    status = weft_parallel(loco->context, loco->blocks, return_block, &values);
    weft_loco_values_close(&values);
    loco->broken = status != WEFT_OK;
    return status;
}

/* ---- the round ---- */

static weft_status check_call(const weft_loco *loco, const weft_loco_payload *payloads, size_t count) {
    size_t included = 0;
    weft_status status = weft_loco_check(loco);
    if (status != WEFT_OK) {
        return status;
    }
    if (!loco->pending) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT,
                         "a round ends with a payload of this rank: encode first");
    }
    if (count != loco->options.ranks) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT,
                         "%zu payloads were given for %u ranks: each rank has a place, filled or not",
                         count, loco->options.ranks);
    }
    for (size_t i = 0; i < count; i++) {
        included += payloads[i].data != NULL;
    }
    if (included == 0) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT, "a round needs the payload of a rank");
    }
    return WEFT_OK;
}

/* False too if what stands for this rank is another payload than its own: an earlier life of it has put
 * that, which knew nothing of what this one has trained. */
static bool own_included(const weft_loco *loco, const weft_loco_payload *payloads) {
    const weft_loco_payload *own = &payloads[loco->options.rank];
    return own->data != NULL && own->size == loco->payload.size &&
           memcmp(own->data, loco->payload.data, own->size) == 0;
}

weft_status weft_loco_aggregate(weft_loco *loco, const weft_loco_payload *payloads, size_t count,
                                weft_loco_stats *stats) {
    aggregate_job job = {.loco = loco};
    weft_loco_stats result = {.size = sizeof result,
                              .elements = loco->elements,
                              .fired = loco->fired,
                              .sent = loco->payload.size};
    double begun = weft_clock_now();
    weft_status status = weft_context_enter(loco->context);
    if (status == WEFT_OK) {
        status = weft_sized_check(loco->context, stats, "weft_loco_stats");
    }
    if (status == WEFT_OK) {
        status = check_call(loco, payloads, count);
    }
    if (status == WEFT_OK) {
        status = weft_loco_values_open(loco, payloads, count, &job.values);
    }
    if (status != WEFT_OK) {
        return status;
    }
    result.decoding = weft_clock_now() - begun;
    job.sums = weft_allocate_array(loco->context, weft_context_threads(loco->context),
                                   WEFT_PAYLOAD_BLOCK * sizeof *job.sums);
    status = job.sums == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK && !own_included(loco, payloads)) {
        status = weft_loco_return_values(loco);
    }
    if (status == WEFT_OK) {
        result.included = (uint32_t)job.values.count;
        status = move_consensus(&job);
    }
    if (status == WEFT_OK) {
        weft_loco_included_note(loco, payloads);
        result.moving = weft_clock_now() - begun - result.decoding;
    }
    weft_release(loco->context, job.sums);
    weft_loco_values_close(&job.values);
    for (size_t i = 0; i < count; i++) {
        result.received += i != loco->options.rank && payloads[i].data != NULL ? payloads[i].size : 0;
    }
    if (status == WEFT_OK) {
        weft_sized_write(&result, stats, sizeof result);
    }
    return status;
}
