/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline.c: the slots, the workers and the loop of every pass that makes frames.
 */
#include "pipeline.h"

#include "../../base/pool.h"

typedef struct pipeline_run {
    weft_context *context;
    const weft_pipeline *pipeline;
    weft_pipeline_worker *workers;
    weft_pipeline_slot *slots; /* bucket i has slot i % window; NULL if nothing leaves */
    size_t window;
} pipeline_run;

uint8_t *weft_pipeline_scratch(weft_pipeline_worker *worker, size_t which, size_t bytes) {
    if (worker->scratch[which].capacity < bytes) {
        weft_context *context = worker->coder.context;
        weft_release(context, worker->scratch[which].memory);
        worker->scratch[which].memory = weft_allocate(context, bytes);
        worker->scratch[which].capacity = worker->scratch[which].memory != NULL ? bytes : 0;
    }
    return worker->scratch[which].memory;
}

static uint64_t pipeline_weigh_bucket(const weft_pipeline *pipeline, size_t index) {
    const weft_bucket *bucket = pipeline->bucket(pipeline->opaque, index);
    return bucket->units * bucket->width;
}

static weft_status pipeline_produce_slot(void *argument, size_t index, unsigned worker) {
    const pipeline_run *run = argument;
    const weft_pipeline *pipeline = run->pipeline;
    weft_pipeline_slot *slot = NULL;
    if (run->slots != NULL) {
        slot = &run->slots[index % run->window];
        slot->forward.bytes.size = 0;
        slot->inverse.bytes.size = 0;
        slot->forward.result = (weft_frame_result){0, false, false};
        slot->inverse.result = (weft_frame_result){0, false, false};
    }
    weft_status status = pipeline->produce(pipeline->opaque, index, &run->workers[worker], slot);
    return status == WEFT_OK && pipeline->phase != NULL
               ? weft_progress_add(run->context, pipeline_weigh_bucket(pipeline, index))
               : status;
}

static weft_status pipeline_emit_slot(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const pipeline_run *run = argument;
    return run->pipeline->emit(run->pipeline->opaque, index, &run->slots[index % run->window]);
}

weft_status weft_pipeline_run(weft_context *context, const weft_pipeline *pipeline) {
    unsigned threads = weft_context_threads(context);
    pipeline_run run = {.context = context, .pipeline = pipeline};
    run.window = pipeline->emit != NULL ? weft_parallel_window(context) : 0;
    run.workers = weft_allocate_zeroed(context, threads, sizeof *run.workers);
    if (run.window > 0) {
        run.slots = weft_allocate_zeroed(context, run.window, sizeof *run.slots);
    }
    if (run.workers == NULL || (run.window > 0 && run.slots == NULL)) {
        weft_release(context, run.workers);
        weft_release(context, run.slots);
        return WEFT_NO_MEMORY;
    }
    for (unsigned i = 0; i < threads; i++) {
        weft_bucket_coder_open(&run.workers[i].coder, context);
        weft_bucket_coder_open(&run.workers[i].walker, context);
        weft_writer_open(&run.workers[i].fetched, context);
        weft_changes_open(&run.workers[i].steps, context);
        run.workers[i].coder.follows = pipeline->follows;
    }
    for (size_t i = 0; i < run.window; i++) {
        weft_writer_open(&run.slots[i].forward.bytes, context);
        weft_writer_open(&run.slots[i].inverse.bytes, context);
    }
    if (pipeline->phase != NULL) {
        uint64_t work = 0;
        for (size_t i = 0; i < pipeline->count; i++) {
            work += pipeline_weigh_bucket(pipeline, i);
        }
        weft_progress_begin(context, pipeline->phase, work);
    }
    weft_status status = run.slots != NULL
                             ? weft_parallel_ordered(context, pipeline->count, run.window,
                                                     pipeline_produce_slot, pipeline_emit_slot, &run)
                             : weft_parallel(context, pipeline->count, pipeline_produce_slot, &run);
    for (unsigned i = 0; i < threads; i++) {
        weft_bucket_coder_close(&run.workers[i].coder);
        weft_bucket_coder_close(&run.workers[i].walker);
        weft_writer_close(&run.workers[i].fetched);
        weft_changes_close(&run.workers[i].steps);
        for (size_t j = 0; j < WEFT_PIPELINE_SCRATCH; j++) {
            weft_release(context, run.workers[i].scratch[j].memory);
        }
    }
    for (size_t i = 0; i < run.window; i++) {
        weft_writer_close(&run.slots[i].forward.bytes);
        weft_writer_close(&run.slots[i].inverse.bytes);
    }
    weft_release(context, run.workers);
    weft_release(context, run.slots);
    return status;
}
