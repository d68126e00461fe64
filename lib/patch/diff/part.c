/* SPDX-License-Identifier: Apache-2.0
 *
 * part.c: the owned buckets of a plan: encoded, copied or summed, by all threads.
 */
#include "part.h"

#include "../../base/pool.h"
#include "../../base/status.h"
#include "../bucket/bucket.h"
#include "../format/stream.h"
#include "trail.h"

#include <string.h>

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

/* A frame that waits to be written. */
typedef struct part_slot {
    weft_writer frame;
    weft_frame_result result;
} part_slot;

typedef struct part_pass {
    weft_context *context;
    const weft_part_plan *plan;
    const weft_view *from;
    const weft_view *to;
    int64_t *from_map;
    int64_t *to_map;
    size_t *buckets; /* numbers of the owned ones */
    size_t count;
    weft_bucket_coder *coders;
    unsigned coder_count;
    part_slot *slots;
    size_t window;
    weft_trail *trail;
    const weft_sink *sink;
    weft_part_result result;
} part_pass;

static const weft_bucket *bucket_of(const part_pass *pass, size_t index) {
    return &pass->plan->plan.items[pass->buckets[index]].bucket;
}

static weft_status list_owned(part_pass *pass, const bool *owned) {
    size_t all = pass->plan->plan.count;
    pass->buckets = weft_allocate_array(pass->context, all, sizeof *pass->buckets);
    if (pass->buckets == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < all; i++) {
        if (owned[i]) {
            pass->buckets[pass->count++] = i;
        }
    }
    return WEFT_OK;
}

static weft_status open_coders(part_pass *pass, bool follows) {
    unsigned threads = weft_context_threads(pass->context);
    pass->coders = weft_allocate_array(pass->context, threads, sizeof *pass->coders);
    if (pass->coders == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (; pass->coder_count < threads; pass->coder_count++) {
        weft_bucket_coder_open(&pass->coders[pass->coder_count], pass->context);
        pass->coders[pass->coder_count].follows = follows;
    }
    return WEFT_OK;
}

static weft_status map_view(const part_pass *pass, const weft_view *view, int64_t **map) {
    return view != NULL ? weft_roster_map(&pass->plan->kept, view, map) : WEFT_OK;
}

static weft_status open_pass(part_pass *pass, const bool *owned, bool follows) {
    weft_status status = list_owned(pass, owned);
    if (status == WEFT_OK) {
        status = open_coders(pass, follows);
    }
    if (status == WEFT_OK) {
        status = map_view(pass, pass->from, &pass->from_map);
    }
    return status == WEFT_OK ? map_view(pass, pass->to, &pass->to_map) : status;
}

static void close_pass(part_pass *pass) {
    for (size_t i = 0; pass->slots != NULL && i < pass->window; i++) {
        weft_writer_close(&pass->slots[i].frame);
    }
    weft_release(pass->context, pass->slots);
    for (unsigned i = 0; i < pass->coder_count; i++) {
        weft_bucket_coder_close(&pass->coders[i]);
    }
    weft_release(pass->context, pass->coders);
    weft_release(pass->context, pass->from_map);
    weft_release(pass->context, pass->to_map);
    weft_release(pass->context, pass->buckets);
}

/* ---- encoding ---- */

/* What the encoder has written is taken back unless the trail knows it. */
static weft_status follow_bucket(part_pass *pass, weft_bucket_coder *coder, size_t index,
                                 const weft_bucket_side *next, const weft_frame_result *result,
                                 weft_status status) {
    if (status == WEFT_OK) {
        status = weft_trail_advance(pass->trail, index, coder, bucket_of(pass, index), next, result);
    }
    if (status != WEFT_OK && result->written) {
        weft_status ignored = weft_window_scatter(&coder->from, &coder->changes, true);
        (void)ignored;
    }
    return status;
}

static weft_status encode_task(void *argument, size_t index, unsigned worker) {
    part_pass *pass = argument;
    const weft_part_plan *plan = pass->plan;
    const weft_bucket *bucket = bucket_of(pass, index);
    weft_bucket_coder *coder = &pass->coders[worker];
    part_slot *slot = &pass->slots[index % pass->window];
    weft_bucket_side next = {pass->to, pass->to_map};
    weft_status status;
    slot->frame.size = 0;
    slot->result = (weft_frame_result){0, false, false};
    if (pass->from == NULL) {
        status = weft_bucket_encode_whole(coder, bucket, &plan->fresh, plan->profile, &next,
                                          pass->result.moves, &slot->frame, &slot->result);
    } else {
        weft_bucket_side base = {pass->from, pass->from_map};
        status = weft_bucket_encode(coder, bucket, &plan->kept, plan->profile, &base, &next,
                                    pass->result.moves, &slot->frame, &slot->result);
        status = follow_bucket(pass, coder, index, &next, &slot->result, status);
    }
    return status == WEFT_OK ? weft_progress_add(pass->context, bucket->units * bucket->width) : status;
}

static weft_status emit_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    part_pass *pass = argument;
    const part_slot *slot = &pass->slots[index % pass->window];
    const weft_writer *frame = &slot->frame;
    if (!slot->result.present) {
        return WEFT_OK;
    }
    weft_status status =
        weft_answer(pass->context, pass->sink->write(pass->sink->opaque, frame->data, frame->size),
                    "writing a part of a patch");
    if (status != WEFT_OK) {
        return status;
    }
    weft_reader last =
        weft_reader_over(frame->data + frame->size - WEFT_FRAME_CHECKSUM, WEFT_FRAME_CHECKSUM);
    weft_part_result *result = &pass->result;
    result->frames[result->frame_count++] = (weft_part_frame){
        .bucket = pass->buckets[index],
        .length = frame->size,
        .checksum = weft_reader_u64(&last),
        .changed = slot->result.changed,
    };
    result->bytes += frame->size;
    result->changed += slot->result.changed;
    return WEFT_OK;
}

static weft_status open_encoding(part_pass *pass, const weft_part_request *request) {
    weft_context *context = pass->context;
    weft_status status = open_pass(pass, request->owned, pass->from != NULL);
    if (status != WEFT_OK) {
        return status;
    }
    pass->window = weft_parallel_window(context);
    pass->slots = weft_allocate_array(context, pass->window, sizeof *pass->slots);
    pass->result.frames = weft_allocate_array(context, pass->count, sizeof *pass->result.frames);
    for (size_t i = 0; pass->slots != NULL && i < pass->window; i++) {
        weft_writer_open(&pass->slots[i].frame, context);
    }
    if (pass->slots == NULL || pass->result.frames == NULL) {
        return WEFT_NO_MEMORY;
    }
    const weft_view *summed = pass->from != NULL ? pass->from : pass->to;
    status = weft_sums_zero(context, summed, &pass->result.moves);
    if (status == WEFT_OK && pass->from != NULL) {
        status = weft_trail_prepare(context, pass->count, request->trail);
        pass->trail = status == WEFT_OK ? *request->trail : NULL;
    }
    return status;
}

static void begin_progress(const part_pass *pass) {
    uint64_t work = 0;
    for (size_t i = 0; i < pass->count; i++) {
        work += weft_part_weight(pass->plan, pass->buckets[i]);
    }
    weft_progress_begin(pass->context, "diff", work);
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
    weft_status status = open_encoding(&pass, request);
    if (status == WEFT_OK) {
        begin_progress(&pass);
        status = weft_parallel_ordered(context, pass.count, pass.window, encode_task, emit_task, &pass);
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
    close_pass(&pass);
    return status;
}

/* ---- copying and summing ---- */

static weft_status copy_task(void *argument, size_t index, unsigned worker) {
    part_pass *pass = argument;
    weft_bucket_coder *coder = &pass->coders[worker];
    const weft_bucket *bucket = bucket_of(pass, index);
    weft_writer *scratch = &coder->payload;
    scratch->size = 0;
    if (weft_writer_reserve(scratch, (size_t)bucket->units * bucket->width) == NULL) {
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
        status = weft_window_copy(&coder->from, scratch->data, bucket->width);
    }
    return status == WEFT_OK ? weft_window_fill(&coder->to, scratch->data, bucket->width) : status;
}

weft_status weft_part_copy(weft_context *context, const weft_part_plan *plan, const bool *owned,
                           const weft_view *from, const weft_view *to) {
    part_pass pass = {.context = context, .plan = plan, .from = from, .to = to};
    weft_status status = open_pass(&pass, owned, false);
    if (status == WEFT_OK) {
        status = weft_parallel(context, pass.count, copy_task, &pass);
    }
    close_pass(&pass);
    return status;
}

static weft_status total_task(void *argument, size_t index, unsigned worker) {
    part_pass *pass = argument;
    weft_window *window = &pass->coders[worker].from;
    const weft_bucket *bucket = bucket_of(pass, index);
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
    weft_status status = open_pass(&pass, owned, false);
    if (status == WEFT_OK) {
        status = weft_sums_zero(context, view, &pass.result.moves);
    }
    if (status == WEFT_OK) {
        status = weft_parallel(context, pass.count, total_task, &pass);
    }
    for (size_t i = 0; status == WEFT_OK && i < weft_view_count(view); i++) {
        weft_sum_add(&totals[i], weft_sums_total(pass.result.moves, i));
    }
    weft_sums_destroy(pass.result.moves);
    close_pass(&pass);
    return status;
}

/* ---- around the frames ---- */

static const weft_roster *roster_of(const weft_part_plan *plan, bool fresh) {
    return fresh ? &plan->fresh : &plan->kept;
}

weft_status weft_part_write_header(const weft_part_plan *plan, bool fresh, const weft_container *container,
                                   const char *const *labels, weft_writer *writer) {
    return weft_header_write(plan->context, plan->profile, roster_of(plan, fresh), !fresh, container,
                             labels, writer);
}

weft_status weft_part_write_tail(const weft_part_plan *plan, bool fresh, const weft_part_frame *frames,
                                 size_t frame_count, uint64_t header_bytes, const weft_digest *base,
                                 const weft_digest *result, weft_writer *writer) {
    const weft_roster *roster = roster_of(plan, fresh);
    weft_footer footer = {.index_offset = header_bytes, .base = *base, .result = *result};
    weft_writer_varint(writer, frame_count);
    for (size_t i = 0; i < frame_count; i++) {
        const weft_part_frame *frame = &frames[i];
        weft_frame_index_write_entry(&plan->plan.items[frame->bucket].bucket, roster, frame->length,
                                     frame->checksum, writer);
        footer.index_offset += frame->length;
        footer.changed += frame->changed;
    }
    footer.index_bytes = writer->size;
    weft_roster_measure(roster, &footer.total, &footer.dense_bytes);
    weft_footer_write(&footer, writer);
    if (weft_writer_failed(writer)) {
        return WEFT_NO_MEMORY;
    }
    if (footer.index_bytes > weft_context_limits(plan->context)->header_bytes) {
        return weft_fail(plan->context, WEFT_LIMIT_EXCEEDED,
                         "the patch's index would be larger than the limit; choose larger buckets");
    }
    return WEFT_OK;
}
