/* SPDX-License-Identifier: Apache-2.0
 *
 * values.c: see values.h.
 */
#include "values.h"

#include "../base/context.h"
#include "../base/pool.h"

/* ---- is it meant for this round? ---- */

static weft_status check_origin(const weft_loco *loco, const weft_loco_info *info, size_t rank) {
    weft_context *context = loco->context;
    if (strcmp(info->run, loco->run) != 0) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "rank %zu sent a payload of run '%s'; this is run '%s'", rank, info->run,
                         loco->run);
    }
    if (info->rank != rank || info->ranks != loco->options.ranks) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "a payload in the place of rank %zu of %u is that of rank %u of %u", rank,
                         loco->options.ranks, info->rank, info->ranks);
    }
    if (info->round != loco->rounds) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "rank %zu sent a payload of round %llu; this rank is in round %llu", rank,
                         (unsigned long long)info->round, (unsigned long long)loco->rounds);
    }
    return WEFT_OK;
}

static weft_status check_payload(const weft_loco *loco, const weft_payload *payload, size_t rank) {
    const weft_loco_info *info = &payload->info;
    const weft_loco_options *options = &loco->options;
    weft_status status = check_origin(loco, info, rank);
    if (status != WEFT_OK) {
        return status;
    }
    if (info->elements != loco->elements || payload->block_elements != WEFT_PAYLOAD_BLOCK) {
        return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                         "rank %zu has %llu weights, this rank %llu: they train different models", rank,
                         (unsigned long long)info->elements, (unsigned long long)loco->elements);
    }
    if (info->rate != options->rate || info->momentum != options->momentum || info->open != options->open ||
        info->raw != options->raw || info->average != options->average ||
        info->significant != options->significant) {
        return weft_fail(
            loco->context, WEFT_INVALID_ARGUMENT,
            "rank %zu has another configuration: rate %g, momentum %g, %u significant bits%s%s; "
            "this rank has %g, %g, %u%s%s",
            rank, (double)info->rate, (double)info->momentum, info->significant,
            info->open ? ", open gate" : "", info->average ? ", averages" : "", (double)options->rate,
            (double)options->momentum, options->significant, options->open ? ", open gate" : "",
            options->average ? ", averages" : "");
    }
    if (!weft_digest_equal(&info->base, &loco->digest)) {
        char theirs[WEFT_DIGEST_TEXT], ours[WEFT_DIGEST_TEXT];
        weft_digest_format(&info->base, theirs);
        weft_digest_format(&loco->digest, ours);
        return weft_fail(loco->context, WEFT_BASE_MISMATCH,
                         "the ranks have come apart: in round %llu rank %zu holds consensus %s and rank %u "
                         "%s; start all ranks again from states that were saved in the same round",
                         (unsigned long long)loco->rounds, rank, theirs, options->rank, ours);
    }
    return WEFT_OK;
}

/* ---- decoding ---- */

static size_t elements_of(const weft_loco *loco, size_t block) {
    return (size_t)(weft_loco_block_end(loco, block) - (uint64_t)block * WEFT_PAYLOAD_BLOCK);
}

/* Raw values are looked at where they lie. */
static weft_status check_raw(const weft_loco *loco, const weft_payload_block *block) {
    uint32_t highest = 0;
    for (size_t i = 0; i < block->fired; i++) {
        uint32_t bits;
        memcpy(&bits, block->data + sizeof bits * i, sizeof bits);
        bits &= 0x7fffffffu;
        highest = bits > highest ? bits : highest;
    }
    if (highest >= WEFT_NOT_FINITE) {
        return weft_fail(loco->context, WEFT_MALFORMED, "a block holds a value that is not finite");
    }
    return WEFT_OK;
}

static weft_status allocate_values(weft_context *context, size_t count, weft_block_values *values) {
    count += WEFT_KERNEL_SLACK;
    values->positions = weft_allocate_array(context, count, sizeof *values->positions);
    values->values = weft_allocate_array(context, count, sizeof *values->values);
    return values->positions == NULL || values->values == NULL ? WEFT_NO_MEMORY : WEFT_OK;
}

static void release_values(weft_context *context, weft_block_values *values) {
    weft_release(context, values->positions);
    weft_release(context, values->values);
    *values = (weft_block_values){0};
}

static weft_status decode_block(weft_loco_values *values, size_t payload, size_t block, unsigned worker,
                                weft_block_values *to) {
    const weft_loco *loco = values->loco;
    const weft_payload_block *from = &values->payloads[payload].blocks[block];
    return weft_block_decode(&values->decoders[worker],
                             loco->consensus + (uint64_t)block * WEFT_PAYLOAD_BLOCK,
                             elements_of(loco, block), from->data, from->size, from->fired, to);
}

static weft_status prove_block(void *argument, size_t index, unsigned worker) {
    weft_loco_values *values = argument;
    size_t payload = index / values->loco->blocks;
    size_t block = index % values->loco->blocks;
    const weft_payload_block *from = &values->payloads[payload].blocks[block];
    if (from->fired == 0) {
        return WEFT_OK;
    }
    if (values->payloads[payload].info.raw) {
        return check_raw(values->loco, from);
    }
    if (values->kept == NULL) {
        return decode_block(values, payload, block, worker, &values->scratch[worker]);
    }
    return decode_block(values, payload, block, worker, &values->kept[index]);
}

/* How many values the fullest block has. */
static size_t fullest(const weft_loco_values *values) {
    size_t most = 1;
    for (size_t i = 0; i < values->count * values->loco->blocks; i++) {
        const weft_payload *payload = &values->payloads[i / values->loco->blocks];
        size_t fired = payload->blocks[i % values->loco->blocks].fired;
        most = fired > most ? fired : most;
    }
    return most;
}

/* Room for all values of all blocks in one piece, of large pages: what comes in small ones is cleared by
 * the system a page at a time. */
static weft_status keep_all(weft_loco_values *values, uint64_t entries) {
    const weft_loco *loco = values->loco;
    weft_context *context = loco->context;
    size_t blocks = values->count * loco->blocks;
    size_t next = 0;
    size_t room = (size_t)entries + blocks * WEFT_KERNEL_SLACK;
    values->kept = weft_allocate_zeroed(context, blocks, sizeof *values->kept);
    values->memory = weft_allocate_array(context, room, sizeof(uint32_t) + sizeof(float));
    if (values->kept == NULL || values->memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_prefer_large_pages(values->memory, room * (sizeof(uint32_t) + sizeof(float)));
    uint32_t *positions = values->memory;
    float *numbers = (float *)values->memory + room;
    for (size_t i = 0; i < blocks; i++) {
        values->kept[i] = (weft_block_values){0, positions + next, numbers + next};
        next += values->payloads[i / loco->blocks].blocks[i % loco->blocks].fired + WEFT_KERNEL_SLACK;
    }
    return WEFT_OK;
}

static weft_status prepare(weft_loco_values *values) {
    const weft_loco *loco = values->loco;
    weft_context *context = loco->context;
    uint64_t entries = 0;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < values->count; i++) {
        entries += values->payloads[i].info.fired;
    }
    values->decoders = weft_allocate_array(context, values->workers, sizeof *values->decoders);
    values->scratch = weft_allocate_zeroed(context, values->workers, sizeof *values->scratch);
    if (values->decoders == NULL || values->scratch == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (unsigned i = 0; i < values->workers; i++) {
        weft_block_decoder_open(&values->decoders[i], context, loco->options.significant);
    }
    if (loco->options.raw) {
        return WEFT_OK;
    }
    if (entries * (sizeof(uint32_t) + sizeof(float)) <= weft_context_limits(context)->stage_bytes) {
        return keep_all(values, entries);
    }
    for (unsigned i = 0; i < values->workers && status == WEFT_OK; i++) {
        status = allocate_values(context, fullest(values), &values->scratch[i]);
    }
    return status;
}

static weft_status open_payloads(weft_loco_values *values, const weft_loco_payload *payloads,
                                 size_t count) {
    weft_context *context = values->loco->context;
    for (size_t rank = 0; rank < count; rank++) {
        if (payloads[rank].data == NULL) {
            continue;
        }
        weft_payload *payload = &values->payloads[values->count];
        weft_status status = weft_payload_open(context, payloads[rank].data, payloads[rank].size, payload);
        if (status != WEFT_OK) {
            return status;
        }
        values->count++;
        status = check_payload(values->loco, payload, rank);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_status weft_loco_values_open(const weft_loco *loco, const weft_loco_payload *payloads, size_t count,
                                  weft_loco_values *values_out) {
    weft_loco_values values = {.loco = loco, .workers = weft_context_threads(loco->context)};
    values.payloads = weft_allocate_zeroed(loco->context, count, sizeof *values.payloads);
    weft_status status = values.payloads == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        status = open_payloads(&values, payloads, count);
    }
    if (status == WEFT_OK) {
        status = prepare(&values);
    }
    if (status == WEFT_OK) {
        status = weft_parallel(loco->context, values.count * loco->blocks, prove_block, &values);
    }
    if (status != WEFT_OK) {
        weft_loco_values_close(&values);
        return status;
    }
    *values_out = values;
    return WEFT_OK;
}

void weft_loco_values_close(weft_loco_values *values) {
    const weft_loco *loco = values->loco;
    weft_context *context = loco->context;
    for (unsigned i = 0; i < values->workers; i++) {
        if (values->scratch != NULL) {
            release_values(context, &values->scratch[i]);
        }
        if (values->decoders != NULL && values->scratch != NULL) {
            weft_block_decoder_close(&values->decoders[i]);
        }
    }
    for (size_t i = 0; values->payloads != NULL && i < values->count; i++) {
        weft_payload_close(context, &values->payloads[i]);
    }
    weft_release(context, values->kept);
    weft_release(context, values->memory);
    weft_release(context, values->scratch);
    weft_release(context, values->decoders);
    weft_release(context, values->payloads);
}

/* ---- adding ---- */

static void add_raw(const weft_payload_block *block, size_t first, size_t count, float *sums) {
    const uint8_t *from = block->data + sizeof *sums * first;
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, from + sizeof value * i, sizeof value);
        sums[i] += value;
    }
}

void weft_loco_values_add_tile(const weft_loco_values *values, size_t payload, size_t block, size_t first,
                               size_t count, size_t *cursor, float *sums) {
    if (values->loco->options.raw) {
        add_raw(&values->payloads[payload].blocks[block], first, count, sums);
        return;
    }
    const weft_block_values *kept = &values->kept[payload * values->loco->blocks + block];
    size_t i = *cursor;
    for (; i < kept->count && kept->positions[i] - first < count; i++) {
        sums[kept->positions[i] - first] += kept->values[i];
    }
    *cursor = i;
}

weft_status weft_loco_values_add(weft_loco_values *values, size_t payload, size_t block, unsigned worker,
                                 float *sums) {
    if (weft_loco_values_ready(values)) {
        size_t cursor = 0;
        weft_loco_values_add_tile(values, payload, block, 0, elements_of(values->loco, block), &cursor,
                                  sums);
        return WEFT_OK;
    }
    if (values->payloads[payload].blocks[block].fired == 0) {
        return WEFT_OK;
    }
    weft_block_values *decoded = &values->scratch[worker];
    weft_status status = decode_block(values, payload, block, worker, decoded);
    for (size_t i = 0; i < decoded->count && status == WEFT_OK; i++) {
        sums[decoded->positions[i]] += decoded->values[i];
    }
    return status;
}
