/* SPDX-License-Identifier: Apache-2.0
 *
 * aggregate.c: the end of a round. Payloads are added in the order of ranks, divided by how many there are,
 * and the outer optimizer moves the consensus; each block is the work of one thread from end to end, and
 * all is done with a tile while it is in the cache.
 */
#include "../base/clock.h"
#include "../base/context.h"
#include "../base/pool.h"
#include "../base/sized.h"
#include "../tensor/digest.h"
#include "included.h"
#include "step/step.h"
#include "values.h"

typedef struct aggregate_job {
    weft_loco *loco;
    weft_loco_values values;
    weft_step step;
    weft_step_kernel kernel;
    const weft_digest_kernels *digests;
    weft_sums *moved; /* of the new consensus */
    float *sums;      /* for each worker of a tile, or of a block if values are not ready */
    size_t *cursors;  /* for each worker, one for each payload */
} aggregate_job;

static weft_status name_broken(const weft_loco *loco, uint64_t start, uint64_t end) {
    while (start + 1 < end && __builtin_isfinite(loco->consensus[start])) {
        start++;
    }
    return weft_loco_not_finite(loco, start, "the consensus");
}

/* ---- the digest ----
 *
 * The new consensus is summed while it is in the cache. Sums are of words of the tensors, which the ends of
 * blocks may lie across: such a word is left to the end. */

enum { WORD_FLOATS = WEFT_WORD / sizeof(float) };

static void sum_words(const aggregate_job *job, const weft_loco_place *place, uint64_t start,
                      uint64_t count) {
    const weft_loco *loco = job->loco;
    uint64_t byte = (start - place->start) * sizeof(float);
    weft_sum sum =
        job->digests->sum(loco->consensus + start, (size_t)count * sizeof(float), byte / WEFT_WORD);
    weft_sums_move(job->moved, (size_t)(place - loco->places), byte, sum);
}

/* The first word of a block that begins in it. */
static uint64_t first_word(const weft_loco *loco, uint64_t start, uint64_t end) {
    weft_loco_stretch stretch = weft_loco_stretch_at(loco, start, end, SIZE_MAX);
    uint64_t over = (start - stretch.place->start) % WORD_FLOATS;
    uint64_t skipped = over == 0 ? 0 : WORD_FLOATS - over;
    return start + (skipped < stretch.count ? skipped : stretch.count);
}

/* Sums all words from `start`, where one begins, that end at `end` or before. Returns where it has come. */
static uint64_t sum_consensus(const aggregate_job *job, uint64_t start, uint64_t end) {
    while (start < end) {
        weft_loco_stretch stretch = weft_loco_stretch_at(job->loco, start, end, SIZE_MAX);
        uint64_t count = stretch.count;
        if (start + count < stretch.place->start + stretch.place->count) {
            count -= count % WORD_FLOATS;
        }
        if (count == 0) {
            break;
        }
        sum_words(job, stretch.place, start, count);
        start += count;
    }
    return start;
}

/* The words that lie across the ends of blocks. */
static void sum_seams(const aggregate_job *job) {
    const weft_loco *loco = job->loco;
    for (size_t block = 1; block < loco->blocks; block++) {
        uint64_t seam = (uint64_t)block * WEFT_PAYLOAD_BLOCK;
        const weft_loco_place *place = weft_loco_stretch_at(loco, seam, seam + 1, 1).place;
        uint64_t start = seam - (seam - place->start) % WORD_FLOATS;
        uint64_t left = place->start + place->count - start;
        if (start < seam) {
            sum_words(job, place, start, left < WORD_FLOATS ? left : WORD_FLOATS);
        }
    }
}

/* ---- moving ---- */

/* What the ranks have sent of a tile. */
static const float *sum_tile(const aggregate_job *job, size_t block, size_t first, size_t count,
                             unsigned worker) {
    const weft_loco_values *values = &job->values;
    if (!weft_loco_values_ready(values)) {
        return job->sums + (size_t)worker * WEFT_PAYLOAD_BLOCK + first;
    }
    float *sums = job->sums + (size_t)worker * WEFT_TILE;
    memset(sums, 0, count * sizeof *sums);
    for (size_t i = 0; i < values->count; i++) {
        size_t *cursor = &job->cursors[worker * values->count + i];
        weft_loco_values_add_tile(values, i, block, first, count, cursor, sums);
    }
    return sums;
}

/* Gets the values of a block ready to be added tile by tile: their sums, where there is no room for them.
 */
static weft_status begin_block(aggregate_job *job, size_t block, size_t count, unsigned worker) {
    weft_loco_values *values = &job->values;
    if (weft_loco_values_ready(values)) {
        memset(job->cursors + worker * values->count, 0, values->count * sizeof *job->cursors);
        return WEFT_OK;
    }
    float *sums = job->sums + (size_t)worker * WEFT_PAYLOAD_BLOCK;
    weft_status status = WEFT_OK;
    memset(sums, 0, count * sizeof *sums);
    for (size_t i = 0; i < values->count && status == WEFT_OK; i++) {
        status = weft_loco_values_add(values, i, block, worker, sums);
    }
    return status;
}

static weft_status move_block(void *argument, size_t block, unsigned worker) {
    aggregate_job *job = argument;
    weft_loco *loco = job->loco;
    uint64_t start = (uint64_t)block * WEFT_PAYLOAD_BLOCK;
    uint64_t end = weft_loco_block_end(loco, block);
    uint64_t summed = first_word(loco, start, end);
    weft_status status = begin_block(job, block, (size_t)(end - start), worker);
    for (uint64_t at = start; at < end && status == WEFT_OK; at += WEFT_TILE) {
        size_t some = end - at < WEFT_TILE ? (size_t)(end - at) : WEFT_TILE;
        const float *sums = sum_tile(job, block, (size_t)(at - start), some, worker);
        if (job->kernel(&job->step, some, sums, loco->consensus + at,
                        loco->momentum == NULL ? NULL : loco->momentum + at) >= WEFT_NOT_FINITE) {
            return name_broken(loco, at, at + some);
        }
        weft_loco_set_local(loco, at, at + some);
        if (loco->options.average) {
            memset(loco->consensus + at, 0, some * sizeof *loco->consensus);
        }
        summed = sum_consensus(job, summed, at + some);
    }
    return status;
}

static weft_status move_consensus(aggregate_job *job) {
    weft_loco *loco = job->loco;
    weft_status status = weft_parallel(loco->context, loco->blocks, move_block, job);
    loco->broken = status != WEFT_OK;
    if (status == WEFT_OK) {
        sum_seams(job);
        loco->digest = weft_sums_digest(job->moved);
        loco->rounds++;
        loco->pending = false;
    }
    return status;
}

static weft_status open_job(aggregate_job *job) {
    const weft_loco *loco = job->loco;
    weft_context *context = loco->context;
    const weft_loco_values *values = &job->values;
    size_t workers = weft_context_threads(context);
    size_t elements = weft_loco_values_ready(values) ? WEFT_TILE : WEFT_PAYLOAD_BLOCK;
    job->step = (weft_step){(float)values->count, loco->options.rate, loco->options.momentum};
    job->kernel = weft_step_kernel_for(weft_cpu_level());
    job->digests = weft_digest_kernels_for(weft_cpu_level());
    job->sums = weft_allocate_array(context, workers, elements * sizeof *job->sums);
    job->cursors = weft_allocate_array(context, workers, values->count * sizeof *job->cursors);
    return job->sums == NULL || job->cursors == NULL ? WEFT_NO_MEMORY
                                                     : weft_sums_zero(context, loco->view, &job->moved);
}

static void close_job(aggregate_job *job) {
    weft_context *context = job->loco->context;
    weft_sums_destroy(job->moved);
    weft_release(context, job->cursors);
    weft_release(context, job->sums);
    weft_loco_values_close(&job->values);
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
    if (loco->flight != NULL) {
        return weft_fail(loco->context, WEFT_BUSY,
                         "round %llu was begun, and its exchange is under way: weft_loco_round ends it",
                         (unsigned long long)loco->rounds);
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
    status = open_job(&job);
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
    close_job(&job);
    for (size_t i = 0; i < count; i++) {
        result.received += i != loco->options.rank && payloads[i].data != NULL ? payloads[i].size : 0;
    }
    if (status == WEFT_OK) {
        weft_sized_write(&result, stats, sizeof result);
    }
    return status;
}
