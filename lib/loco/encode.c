/* SPDX-License-Identifier: Apache-2.0
 *
 * encode.c: gate and coding of a round, block by block on all threads, and the way back.
 *
 * The classes of a block are cut from a sample, for which the gate runs over a few stretches at fixed
 * places without touching the residual: so that afterwards one pass over the weights does all.
 */
#include "loco.h"

#include "../base/context.h"
#include "../base/pool.h"
#include "../code/block.h"
#include "gate/gate.h"
#include "step/step.h"

#include <string.h>

enum {
    SAMPLE_PLACES = 32,
    SAMPLE_STRETCH = 512,
    /* The gate goes through so many before they are coded: the memory is fastest in long runs. */
    GATE_TILES = 8,
};

/* What a worker has of its own. */
typedef struct encode_worker {
    weft_block_encoder encoder;
    weft_gate_room rooms[GATE_TILES];
    float kept[SAMPLE_STRETCH];
    float learned[WEFT_TILE]; /* in a tile, since the last round */
    float momentum[WEFT_TILE];
} encode_worker;

/* What the gate has made of a tile. */
typedef struct gated_tile {
    weft_gate_input input;
    weft_entries fired;
} gated_tile;

/* Made for the first round and kept: its buffers have grown to what a round needs. */
struct weft_loco_job {
    weft_loco *loco;
    weft_gate gate;
    weft_step_kernel step;
    encode_worker *workers;
    unsigned worker_count;
    weft_writer *frames; /* a window of them */
    size_t window;
    weft_payload_seal seal;
};
typedef struct weft_loco_job encode_job;

static weft_gate_input input_of(const weft_loco *loco, const weft_loco_stretch *stretch,
                                uint64_t block_start) {
    return (weft_gate_input){
        .consensus = loco->consensus + stretch->start,
        .local = stretch->local,
        .residual = loco->residual + stretch->start,
        .kept = loco->residual + stretch->start,
        .count = stretch->count,
        .first = (uint32_t)(stretch->start - block_start),
        .mask = weft_gate_mask(loco->options.significant),
        .open = loco->options.open,
        .grid = loco->options.grid,
    };
}

/* Finds and names what the gate has met. The residual holds s, or what is left of it. */
static weft_status name_broken(const weft_loco *loco, const weft_loco_stretch *stretch) {
    for (size_t i = 0; i < stretch->count; i++) {
        float sum = loco->consensus[stretch->start + i] - stretch->local[i];
        float rest = loco->residual[stretch->start + i];
        if (!__builtin_isfinite(sum) || !__builtin_isfinite(rest)) {
            return weft_loco_not_finite(loco, stretch->start + i, "the weight");
        }
    }
    return weft_loco_not_finite(loco, stretch->start, "a weight near the largest");
}

static weft_gate_input sample_input(const encode_job *job, uint64_t start, uint64_t end, uint64_t place) {
    uint64_t at = start + (end - start) * place / SAMPLE_PLACES;
    weft_loco_stretch stretch = weft_loco_stretch_at(job->loco, at, end, SAMPLE_STRETCH);
    return input_of(job->loco, &stretch, start);
}

static void sample_block(const encode_job *job, encode_worker *worker, uint64_t start, uint64_t end,
                         weft_class_sample *sample) {
    weft_gate_input next = sample_input(job, start, end, 0);
    for (uint64_t i = 0; i < SAMPLE_PLACES; i++) {
        weft_gate_input input = next;
        weft_entries fired = weft_fired_in(&worker->rooms[0]);
        if (i + 1 < SAMPLE_PLACES) {
            next = sample_input(job, start, end, i + 1);
            /* stretches are apart: the memory of the next one is prefetched */
            const float *streams[] = {next.consensus, next.local, next.residual};
            for (unsigned j = 0; j < 3; j++) {
                weft_prefetch_part((uintptr_t)streams[j], next.count * sizeof(float), 0, 1);
            }
        }
        input.kept = worker->kept;
        job->gate(&input, &fired, worker->rooms[0].words);
        weft_block_encoder_sample(&worker->encoder, worker->rooms[0].words, input.count, &fired, sample);
    }
}

/* Runs the gate over tiles from `at` on, and says how many there are. */
static weft_status gate_tiles(const encode_job *job, encode_worker *worker, uint64_t block_start,
                              uint64_t at, uint64_t end, gated_tile tiles[GATE_TILES], size_t *count_out) {
    size_t count = 0;
    for (; count < GATE_TILES && at < end; count++) {
        gated_tile *tile = &tiles[count];
        weft_gate_room *room = &worker->rooms[count];
        weft_loco_stretch stretch = weft_loco_stretch_at(job->loco, at, end, WEFT_TILE);
        tile->input = input_of(job->loco, &stretch, block_start);
        tile->fired = weft_fired_in(room);
        if (job->gate(&tile->input, &tile->fired, room->words) >= WEFT_NOT_FINITE) {
            return name_broken(job->loco, &stretch);
        }
        at += stretch.count;
    }
    *count_out = count;
    return WEFT_OK;
}

static weft_status encode_coded(const encode_job *job, encode_worker *worker, uint64_t start, uint64_t end,
                                weft_writer *frame) {
    weft_block_encoder *encoder = &worker->encoder;
    weft_status status = WEFT_OK;
    weft_class_sample sample;
    memset(&sample, 0, sizeof sample);
    sample_block(job, worker, start, end, &sample);
    weft_block_encoder_begin(encoder, &sample, end - start);
    for (uint64_t at = start; at < end && status == WEFT_OK;) {
        gated_tile tiles[GATE_TILES];
        size_t count = 0;
        status = gate_tiles(job, worker, start, at, end, tiles, &count);
        for (size_t i = 0; i < count && status == WEFT_OK; i++) {
            const weft_gate_input *input = &tiles[i].input;
            status = weft_block_encoder_tile(encoder, worker->rooms[i].words, input->count, input->first,
                                             &tiles[i].fired);
            at += input->count;
        }
    }
    if (status == WEFT_OK && encoder->coder.count > 0) {
        status = weft_block_encoder_finish(encoder, frame);
    }
    return status;
}

/* The values of an open gate as they lie. */
static weft_status encode_raw(const encode_job *job, encode_worker *worker, uint64_t start, uint64_t end,
                              weft_writer *frame) {
    weft_gate_room *room = &worker->rooms[0];
    for (uint64_t at = start; at < end;) {
        weft_loco_stretch stretch = weft_loco_stretch_at(job->loco, at, end, WEFT_TILE);
        weft_gate_input input = input_of(job->loco, &stretch, start);
        weft_entries fired = weft_fired_in(room);
        if (job->gate(&input, &fired, room->words) >= WEFT_NOT_FINITE) {
            return name_broken(job->loco, &stretch);
        }
        weft_writer_bytes(frame, fired.values, fired.count * sizeof *fired.values);
        at += stretch.count;
    }
    return WEFT_OK;
}

/* Where rounds overlap, the local weights go to where the consensus will be if the other ranks have learned
 * what this one has: most of the way, for the momentum is known, and the next steps are of use there. They
 * are kept as they are then, to tell what is learned from there on. */
static weft_status look_ahead(const encode_job *job, encode_worker *worker, uint64_t start, uint64_t end) {
    const weft_loco *loco = job->loco;
    const weft_step step = {1, loco->options.rate, loco->options.momentum};
    while (start < end) {
        weft_loco_stretch stretch = weft_loco_stretch_at(loco, start, end, WEFT_TILE);
        float *ahead = loco->ahead + start;
        for (size_t i = 0; i < stretch.count; i++) {
            ahead[i] = loco->consensus[start + i];
            worker->learned[i] = ahead[i] - stretch.local[i];
        }
        if (loco->momentum != NULL) {
            memcpy(worker->momentum, loco->momentum + start, stretch.count * sizeof *worker->momentum);
        }
        if (job->step(&step, stretch.count, worker->learned, ahead,
                      loco->momentum != NULL ? worker->momentum : NULL) >= WEFT_NOT_FINITE) {
            return weft_loco_not_finite(loco, start, "a weight near the largest");
        }
        weft_step_copy(stretch.local, ahead, stretch.count);
        start += stretch.count;
    }
    return WEFT_OK;
}

static weft_status encode_block(void *argument, size_t index, unsigned worker_index) {
    encode_job *job = argument;
    encode_worker *worker = &job->workers[worker_index];
    weft_writer *frame = &job->frames[index % job->window];
    uint64_t start = (uint64_t)index * WEFT_PAYLOAD_BLOCK;
    uint64_t end = weft_loco_block_end(job->loco, index);
    bool raw = job->loco->options.raw;
    frame->size = 0;
    size_t begun = weft_payload_frame_begin(frame);
    weft_status status =
        raw ? encode_raw(job, worker, start, end, frame) : encode_coded(job, worker, start, end, frame);
    if (status == WEFT_OK && job->loco->ahead != NULL) {
        status = look_ahead(job, worker, start, end);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_payload_frame_end(frame, begun,
                           raw ? (uint32_t)(end - start) : (uint32_t)worker->encoder.coder.count);
    return weft_writer_failed(frame) ? WEFT_NO_MEMORY : WEFT_OK;
}

static weft_status append_block(void *argument, size_t index, unsigned worker) {
    encode_job *job = argument;
    weft_writer *payload = &job->loco->payload;
    (void)worker;
    weft_payload_append(payload, &job->seal, &job->frames[index % job->window]);
    return weft_writer_failed(payload) || weft_writer_failed(&job->seal.checksums) ? WEFT_NO_MEMORY
                                                                                   : WEFT_OK;
}

void weft_loco_job_destroy(weft_loco_job *job) {
    if (job == NULL) {
        return;
    }
    weft_context *context = job->loco->context;
    for (unsigned i = 0; job->workers != NULL && i < job->worker_count; i++) {
        weft_block_encoder_close(&job->workers[i].encoder);
    }
    for (size_t i = 0; job->frames != NULL && i < job->window; i++) {
        weft_writer_close(&job->frames[i]);
    }
    weft_writer_close(&job->seal.checksums);
    weft_release(context, job->frames);
    weft_release(context, job->workers);
    weft_release(context, job);
}

static weft_status make_job(weft_loco *loco) {
    weft_context *context = loco->context;
    encode_job *job = weft_allocate_zeroed(context, 1, sizeof *job);
    if (job == NULL) {
        return WEFT_NO_MEMORY;
    }
    job->loco = loco;
    job->gate = weft_gate_for(weft_cpu_level());
    job->step = weft_step_kernel_for(weft_cpu_level());
    job->worker_count = weft_context_threads(context);
    job->window = weft_parallel_window(context);
    weft_writer_open(&job->seal.checksums, context);
    job->workers = weft_allocate_array(context, job->worker_count, sizeof *job->workers);
    job->frames = weft_allocate_array(context, job->window, sizeof *job->frames);
    for (unsigned i = 0; job->workers != NULL && i < job->worker_count; i++) {
        weft_block_encoder_open(&job->workers[i].encoder, context, loco->options.significant);
    }
    for (size_t i = 0; job->frames != NULL && i < job->window; i++) {
        weft_writer_open(&job->frames[i], context);
    }
    if (job->workers == NULL || job->frames == NULL) {
        weft_loco_job_destroy(job);
        return WEFT_NO_MEMORY;
    }
    loco->job = job;
    return WEFT_OK;
}

static weft_loco_info info_of(const weft_loco *loco) {
    weft_loco_info info = {
        .size = sizeof info,
        .round = loco->rounds,
        .rank = loco->options.rank,
        .ranks = loco->options.ranks,
        .elements = loco->elements,
        .blocks = loco->blocks,
        .significant = loco->options.significant,
        .open = loco->options.open,
        .raw = loco->options.raw,
        .average = loco->options.average,
        .rate = loco->options.rate,
        .momentum = loco->options.momentum,
        .base = loco->digest,
    };
    memcpy(info.run, loco->run, sizeof info.run);
    return info;
}

static weft_status run_job(encode_job *job) {
    weft_loco *loco = job->loco;
    weft_loco_info info = info_of(loco);
    weft_payload_begin(&info, WEFT_PAYLOAD_BLOCK, &loco->payload, &job->seal);
    weft_status status =
        weft_parallel_ordered(loco->context, loco->blocks, job->window, encode_block, append_block, job);
    if (status != WEFT_OK) {
        return status;
    }
    weft_payload_finish(&loco->payload, &job->seal);
    return weft_writer_failed(&loco->payload) || weft_writer_failed(&job->seal.checksums) ? WEFT_NO_MEMORY
                                                                                          : WEFT_OK;
}

weft_status weft_loco_encode(weft_loco *loco, weft_loco_payload *payload_out) {
    weft_status status = weft_context_enter(loco->context);
    if (status == WEFT_OK) {
        status = weft_loco_check(loco);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (!loco->pending) {
        status = loco->job == NULL ? make_job(loco) : WEFT_OK;
        /* the gate moves the residual, from the first tile on: now or never */
        if (status == WEFT_OK) {
            weft_progress_begin(loco->context, "encoding", loco->elements * sizeof(float));
            status = weft_progress_ask(loco->context);
        }
        if (status == WEFT_OK) {
            status = run_job(loco->job);
            loco->broken = status != WEFT_OK;
            loco->fired = loco->job->seal.fired;
        }
    }
    if (status == WEFT_OK) {
        loco->pending = true;
        *payload_out = (weft_loco_payload){loco->payload.data, loco->payload.size};
    }
    return status;
}
