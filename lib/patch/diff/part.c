/* SPDX-License-Identifier: Apache-2.0
 *
 * part.c: the owned buckets of a plan: encoded, copied or summed, by all threads.
 */
#include "part.h"

#include "../../base/status.h"
#include "../format/stream.h"
#include "pipeline.h"
#include "trail.h"

/* ---- the plan ---- */

weft_status weft_part_plan_open(weft_part_plan *plan, weft_context *context, const weft_view *view,
                                const weft_diff_options *options) {
    *plan = (weft_part_plan){.context = context, .profile = options->profile};
    weft_roster_open(&plan->kept, context);
    weft_roster_open(&plan->fresh, context);
    weft_plan_open(&plan->plan, context);
    weft_status status = weft_roster_build(&plan->kept, view, view);
    if (status == WEFT_OK) {
        status = weft_roster_build(&plan->fresh, view, view);
    }
    for (size_t i = 0; i < plan->fresh.count; i++) {
        plan->fresh.entries[i].fate = WEFT_FATE_ADDED;
    }
    if (status == WEFT_OK) {
        status = weft_plan_build(&plan->plan, &plan->kept, options->bucket_bytes, options->cuts,
                                 options->cut_count);
    }
    if (status != WEFT_OK) {
        weft_part_plan_close(plan);
    }
    return status;
}

void weft_part_plan_set_format(weft_part_plan *plan, unsigned format) {
    plan->format = format;
    weft_plan_set_format(&plan->plan, format);
}

void weft_part_plan_close(weft_part_plan *plan) {
    weft_plan_close(&plan->plan);
    weft_roster_close(&plan->kept);
    weft_roster_close(&plan->fresh);
}

void weft_part_plan_write(const weft_part_plan *plan, weft_writer *writer) {
    weft_writer_u8(writer, (uint8_t)plan->profile);
    weft_roster_write(&plan->kept, writer);
    weft_writer_varint(writer, plan->plan.count);
    for (size_t i = 0; i < plan->plan.count; i++) {
        weft_bucket_write_spans(&plan->plan.items[i].bucket, &plan->kept, writer);
    }
}

uint64_t weft_part_weight(const weft_part_plan *plan, size_t bucket) {
    const weft_bucket *item = &plan->plan.items[bucket].bucket;
    return item->units * item->width;
}

const char *weft_part_tensor(const weft_part_plan *plan, size_t bucket) {
    return plan->kept.entries[plan->plan.items[bucket].bucket.spans[0].tensor].tensor.name;
}

weft_status weft_part_holds(const weft_part_plan *plan, const weft_view *view, bool *held) {
    weft_window window;
    int64_t *map;
    weft_status status = weft_roster_map(&plan->kept, view, &map);
    if (status != WEFT_OK) {
        return status;
    }
    weft_window_open(&window, plan->context);
    for (size_t i = 0; i < plan->plan.count && status == WEFT_OK; i++) {
        status = weft_window_set(&window, view, map, &plan->plan.items[i].bucket, WEFT_NEED_NOTHING);
        held[i] = status == WEFT_OK && window.holding == WEFT_HELD_ALL;
    }
    weft_window_close(&window);
    weft_release(plan->context, map);
    return status;
}

/* ---- passes over the owned buckets ---- */

typedef struct part_pass {
    weft_context *context;
    const weft_part_plan *plan;
    const weft_view *from; /* NULL: from nothing */
    const weft_view *to;   /* NULL: nowhere */
    int64_t *from_map;
    int64_t *to_map;
    size_t *buckets; /* numbers of the owned ones */
    size_t count;
    weft_trail *trail;
    const weft_sink *sink;
    weft_part_result result;
} part_pass;

static const weft_bucket *part_bucket(const void *opaque, size_t index) {
    const part_pass *pass = opaque;
    return &pass->plan->plan.items[pass->buckets[index]].bucket;
}

static weft_status part_open_pass(part_pass *pass, const bool *owned) {
    size_t all = pass->plan->plan.count;
    pass->buckets = weft_allocate_array(pass->context, all, sizeof *pass->buckets);
    weft_status status = pass->buckets != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (size_t i = 0; i < all && status == WEFT_OK; i++) {
        if (owned[i]) {
            pass->buckets[pass->count++] = i;
        }
    }
    if (status == WEFT_OK && pass->from != NULL) {
        status = weft_roster_map(&pass->plan->kept, pass->from, &pass->from_map);
    }
    if (status == WEFT_OK && pass->to != NULL) {
        status = weft_roster_map(&pass->plan->kept, pass->to, &pass->to_map);
    }
    return status;
}

static void part_close_pass(part_pass *pass) {
    weft_release(pass->context, pass->from_map);
    weft_release(pass->context, pass->to_map);
    weft_release(pass->context, pass->buckets);
}

/* ---- encoding ---- */

static weft_status part_encode_bucket(void *opaque, size_t index, weft_pipeline_worker *worker,
                                      weft_pipeline_slot *slot) {
    part_pass *pass = opaque;
    const weft_part_plan *plan = pass->plan;
    const weft_bucket *bucket = part_bucket(pass, index);
    weft_pipeline_frame *frame = &slot->forward;
    weft_bucket_side next = {pass->to, pass->to_map};
    if (pass->from == NULL) {
        return weft_bucket_encode_whole(&worker->coder, bucket, &plan->fresh, plan->profile, &next,
                                        pass->result.moves, &frame->bytes, &frame->result);
    }
    weft_bucket_side base = {pass->from, pass->from_map};
    weft_status status = weft_bucket_encode(&worker->coder, bucket, &plan->kept, plan->profile, &base,
                                            &next, pass->result.moves, &frame->bytes, &frame->result);
    return weft_trail_advance(pass->trail, index, &worker->coder, bucket, &next, &frame->result, status);
}

static weft_status part_emit_frame(void *opaque, size_t index, const weft_pipeline_slot *slot) {
    part_pass *pass = opaque;
    const weft_writer *bytes = &slot->forward.bytes;
    uint64_t changed = slot->forward.result.changed;
    if (!slot->forward.result.present) {
        return WEFT_OK;
    }
    weft_status status =
        weft_answer(pass->context, pass->sink->write(pass->sink->opaque, bytes->data, bytes->size),
                    "writing a part of a patch");
    if (status != WEFT_OK) {
        return status;
    }
    weft_part_result *result = &pass->result;
    result->frames[result->frame_count++] = (weft_part_frame){
        .bucket = pass->buckets[index],
        .length = bytes->size,
        .checksum = weft_frame_checksum(bytes->data, bytes->size),
        .changed = changed,
    };
    result->bytes += bytes->size;
    result->changed += changed;
    return WEFT_OK;
}

weft_status weft_part_encode(weft_context *context, const weft_part_request *request, const weft_sink *sink,
                             weft_part_result *result_out) {
    part_pass pass = {
        .context = context,
        .plan = request->plan,
        .from = request->base,
        .to = request->next,
        .sink = sink,
    };
    weft_status status = part_open_pass(&pass, request->owned);
    if (status == WEFT_OK) {
        pass.result.frames = weft_allocate_array(context, pass.count, sizeof *pass.result.frames);
        status = pass.result.frames != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, pass.from != NULL ? pass.from : pass.to, &pass.result.moves);
    }
    if (status == WEFT_OK && pass.from != NULL) {
        status = weft_trail_prepare(context, pass.count, request->trail);
        pass.trail = *request->trail;
    }
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {
            .count = pass.count,
            .phase = "diff",
            .follows = pass.from != NULL,
            .opaque = &pass,
            .bucket = part_bucket,
            .produce = part_encode_bucket,
            .emit = part_emit_frame,
        };
        status = weft_pipeline_run(context, &pipeline);
    }
    if (status != WEFT_OK) {
        /* the copy is put back; its memory is plain, and that cannot fail */
        if (pass.trail != NULL) {
            weft_status ignored = weft_trail_undo(context, pass.trail);
            (void)ignored;
        }
        weft_release(context, pass.result.frames);
        weft_sums_destroy(pass.result.moves);
    } else {
        *result_out = pass.result;
    }
    part_close_pass(&pass);
    return status;
}

/* ---- copying and summing ---- */

static weft_status part_copy_bucket(void *opaque, size_t index, weft_pipeline_worker *worker,
                                    weft_pipeline_slot *slot) {
    (void)slot;
    part_pass *pass = opaque;
    weft_bucket_coder *coder = &worker->coder;
    const weft_bucket *bucket = part_bucket(pass, index);
    uint8_t *values = weft_pipeline_scratch(worker, 0, (size_t)bucket->units * bucket->width);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status =
        weft_window_set(&coder->from, pass->from, pass->from_map, bucket, WEFT_NEED_NOTHING);
    if (status == WEFT_OK) {
        status = weft_window_set(&coder->to, pass->to, pass->to_map, bucket, WEFT_NEED_NOTHING);
    }
    if (status == WEFT_OK && (coder->from.holding != WEFT_HELD_ALL || coder->to.holding != WEFT_HELD_ALL)) {
        status = weft_fail(pass->context, WEFT_INVALID_ARGUMENT, "tensor %s is not held where it is owned",
                           weft_part_tensor(pass->plan, pass->buckets[index]));
    }
    if (status == WEFT_OK) {
        status = weft_window_copy(&coder->from, values, bucket->width);
    }
    return status == WEFT_OK ? weft_window_fill(&coder->to, values, bucket->width) : status;
}

weft_status weft_part_copy(weft_context *context, const weft_part_plan *plan, const bool *owned,
                           const weft_view *from, const weft_view *to) {
    part_pass pass = {.context = context, .plan = plan, .from = from, .to = to};
    weft_status status = part_open_pass(&pass, owned);
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {.count = pass.count, .opaque = &pass, .produce = part_copy_bucket};
        status = weft_pipeline_run(context, &pipeline);
    }
    part_close_pass(&pass);
    return status;
}

static weft_status part_sum_bucket(void *opaque, size_t index, weft_pipeline_worker *worker,
                                   weft_pipeline_slot *slot) {
    (void)slot;
    part_pass *pass = opaque;
    weft_window *window = &worker->coder.from;
    const weft_bucket *bucket = part_bucket(pass, index);
    const weft_digest_kernels *kernels = weft_digest_kernels_for(weft_cpu_level());
    weft_status status = weft_window_set(window, pass->from, pass->from_map, bucket, WEFT_NEED_BYTES);
    for (size_t i = 0; status == WEFT_OK && i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        for (uint64_t done = 0; done < run->units; done += weft_run_left(run, done)) {
            uint64_t start = weft_run_unit(run, done) * bucket->width;
            size_t bytes = (size_t)(weft_run_left(run, done) * bucket->width);
            const uint8_t *memory = run->memory + weft_run_offset(run, done) * bucket->width;
            weft_sum sum = kernels->sum(memory, bytes, start / WEFT_WORD);
            weft_sums_move(pass->result.moves, run->tensor, start, sum);
        }
    }
    return status;
}

weft_status weft_part_total(weft_context *context, const weft_part_plan *plan, const bool *owned,
                            const weft_view *view, weft_sum *totals) {
    part_pass pass = {.context = context, .plan = plan, .from = view};
    weft_status status = part_open_pass(&pass, owned);
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, view, &pass.result.moves);
    }
    if (status == WEFT_OK) {
        const weft_pipeline pipeline = {.count = pass.count, .opaque = &pass, .produce = part_sum_bucket};
        status = weft_pipeline_run(context, &pipeline);
    }
    for (size_t i = 0; status == WEFT_OK && i < weft_view_count(view); i++) {
        weft_sum_add(&totals[i], weft_sums_total(pass.result.moves, i));
    }
    weft_sums_destroy(pass.result.moves);
    part_close_pass(&pass);
    return status;
}

/* ---- around the frames ---- */

static const weft_roster *part_roster(const weft_part_plan *plan, bool fresh) {
    return fresh ? &plan->fresh : &plan->kept;
}

weft_status weft_part_write_header(const weft_part_plan *plan, bool fresh, const weft_container *container,
                                   const char *const *labels, weft_writer *writer) {
    return weft_header_write(plan->context, plan->format, plan->profile, 0, part_roster(plan, fresh),
                             !fresh, container, labels, writer);
}

weft_status weft_part_write_tail(const weft_part_plan *plan, bool fresh, const weft_part_frame *frames,
                                 size_t frame_count, uint64_t header_bytes, weft_writer *writer,
                                 weft_diff_stats *stats) {
    const weft_roster *roster = part_roster(plan, fresh);
    uint64_t index_offset = header_bytes;
    stats->changed = 0;
    stats->buckets = frame_count;
    weft_writer_varint(writer, frame_count);
    for (size_t i = 0; i < frame_count; i++) {
        const weft_part_frame *frame = &frames[i];
        weft_frame_index_write_entry(&plan->plan.items[frame->bucket].bucket, roster, frame->length,
                                     frame->checksum, writer);
        index_offset += frame->length;
        stats->changed += frame->changed;
    }
    return weft_stream_write_footer(plan->context, roster, index_offset, writer, stats);
}
