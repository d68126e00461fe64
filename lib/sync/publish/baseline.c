/* SPDX-License-Identifier: Apache-2.0
 *
 * baseline.c: what was published last, and its copy in memory.
 *
 * Memory is brought forward by the diff itself, and back by its trail if the version is not published. A
 * checkpoint follows afterwards, by the patch, like any replica.
 */
#include "baseline.h"

#include "../../base/context.h"
#include "../../base/pool.h"
#include "../../patch/bucket/window.h"
#include "../../patch/format/patch.h"
#include "../../tensor/digest.h"
#include "../../tensor/pieces.h"
#include "../follow/subscriber.h"
#include "../follow/watermark.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- mirrors ---- */

enum { ALIGNMENT = 64, PIECE_BYTES = 4 << 20 };

static uint64_t align_bytes(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint8_t *first_byte(const weft_mirror *mirror) {
    return mirror->memory + (ALIGNMENT - (uintptr_t)mirror->memory % ALIGNMENT) % ALIGNMENT;
}

static weft_status add_tensors(weft_mirror *mirror, const weft_view *like) {
    uint8_t *cursor = first_byte(mirror);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < weft_view_count(like) && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_view_at(like, i);
        tensor.storage = tensor.dtype;
        tensor.data = tensor.bytes > 0 ? cursor : NULL;
        tensor.access = NULL;
        tensor.strides = NULL;
        tensor.converter = NULL;
        tensor.writable = true;
        cursor += align_bytes(tensor.bytes);
        status = weft_table_add(mirror->table, &tensor);
    }
    return status;
}

weft_status weft_mirror_open(weft_mirror *mirror, weft_context *context, const weft_view *like) {
    *mirror = (weft_mirror){.context = context, .bytes = ALIGNMENT};
    for (size_t i = 0; i < weft_view_count(like); i++) {
        mirror->bytes += align_bytes(weft_view_at(like, i)->bytes);
    }
    mirror->memory = weft_allocate(context, (size_t)mirror->bytes);
    if (mirror->memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_prefer_large_pages(mirror->memory, (size_t)mirror->bytes);
    weft_status status = weft_table_create(context, &mirror->table);
    if (status == WEFT_OK) {
        status = add_tensors(mirror, like);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(context, mirror->table, &mirror->view);
    }
    if (status != WEFT_OK) {
        weft_mirror_close(mirror);
    }
    return status;
}

/* ---- of a part ---- */

/* The span of a bucket as the same range of each row of its tensor. */
typedef struct part_range {
    size_t tensor;
    uint64_t row;
    uint64_t start;
    uint64_t length;
} part_range;

static int compare_ranges(const void *a, const void *b) {
    const part_range *first = a;
    const part_range *second = b;
    if (first->tensor != second->tensor) {
        return first->tensor < second->tensor ? -1 : 1;
    }
    return (first->start > second->start) - (first->start < second->start);
}

static bool same_range(const part_range *a, const part_range *b) {
    return a->tensor == b->tensor && a->start == b->start;
}

/* Sorted, each once: the buckets of a box share one range. */
static size_t sort_ranges(part_range *ranges, size_t count) {
    size_t kept = 0;
    if (count > 0) {
        qsort(ranges, count, sizeof *ranges, compare_ranges);
    }
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || !same_range(&ranges[kept - 1], &ranges[i])) {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

static weft_status list_ranges(weft_context *context, const weft_view *like, const weft_part_plan *plan,
                               const bool *owned, part_range **ranges_out, size_t *count_out) {
    size_t room = 0;
    for (size_t i = 0; i < plan->plan.count; i++) {
        room += owned[i] ? plan->plan.items[i].bucket.span_count : 0;
    }
    part_range *ranges = weft_allocate_array(context, room, sizeof *ranges);
    if (ranges == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t count = 0;
    for (size_t i = 0; i < plan->plan.count; i++) {
        const weft_bucket *bucket = &plan->plan.items[i].bucket;
        for (size_t j = 0; owned[i] && j < bucket->span_count; j++) {
            const weft_span *span = &bucket->spans[j].span;
            size_t tensor = bucket->spans[j].tensor;
            uint64_t row = span->stride > 0 ? span->stride : weft_tensor_units(weft_view_at(like, tensor));
            ranges[count++] = (part_range){tensor, row, span->start % row, span->run};
        }
    }
    *count_out = sort_ranges(ranges, count);
    *ranges_out = ranges;
    return WEFT_OK;
}

/* One block of memory for all ranges of a tensor, one behind the other. */
static void place_ranges(weft_mirror *mirror, weft_view *view, const part_range *ranges, size_t count) {
    uint64_t cursor = 0;
    for (size_t i = 0; i < count; i++) {
        size_t tensor = ranges[i].tensor;
        weft_mapping *mapping = &view->mappings[tensor];
        weft_tensor *live = &view->live[tensor];
        unsigned width = weft_dtype_width(live->dtype);
        uint64_t units = mapping->units / ranges[i].row * ranges[i].length;
        if (mapping->piece_count == 0) {
            cursor = align_bytes(cursor);
            live->data = first_byte(mirror) + cursor;
            live->bytes = 0;
            mapping->pieces = &view->pieces[i];
            mapping->row = ranges[i].row;
        }
        view->pieces[i] = (weft_piece){
            .live = live,
            .start = ranges[i].start,
            .length = ranges[i].length,
            .live_base = live->bytes / width,
            .live_run = units,
            .live_stride = units,
        };
        mapping->piece_count++;
        live->bytes += units * width;
        cursor += units * width;
    }
    weft_view_settle(view);
}

static uint64_t measure_ranges(const weft_view *like, const part_range *ranges, size_t count) {
    uint64_t bytes = ALIGNMENT;
    for (size_t i = 0; i < count; i++) {
        const weft_tensor *tensor = weft_view_at(like, ranges[i].tensor);
        uint64_t rows = weft_tensor_units(tensor) / ranges[i].row;
        bytes += align_bytes(rows * ranges[i].length * weft_dtype_width(tensor->dtype)) + ALIGNMENT;
    }
    return bytes;
}

static weft_status build_part(weft_mirror *mirror, const part_range *ranges, size_t count) {
    weft_context *context = mirror->context;
    weft_view *view;
    weft_status status = weft_view_begin(context, mirror->table, count, &view);
    if (status != WEFT_OK) {
        return status;
    }
    mirror->view = view;
    view->live = weft_allocate_array(context, view->count, sizeof *view->live);
    if (view->live == NULL) {
        return WEFT_NO_MEMORY;
    }
    /* pages that nobody writes to cost nothing */
    void *memory = mmap(NULL, (size_t)mirror->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return weft_fail(mirror->context, WEFT_NO_MEMORY, "no memory for a copy of %llu bytes of the model",
                         (unsigned long long)mirror->bytes);
    }
    mirror->memory = memory;
    mirror->mapped = true;
    for (size_t i = 0; i < view->count; i++) {
        view->live[i] = view->tensors[i];
        view->live[i].writable = true;
    }
    weft_prefer_large_pages(mirror->memory, (size_t)mirror->bytes);
    place_ranges(mirror, view, ranges, count);
    return WEFT_OK;
}

weft_status weft_mirror_open_part(weft_mirror *mirror, weft_context *context, const weft_view *like,
                                  const weft_part_plan *plan, const bool *owned) {
    part_range *ranges;
    size_t count;
    *mirror = (weft_mirror){.context = context};
    weft_status status = list_ranges(context, like, plan, owned, &ranges, &count);
    if (status != WEFT_OK) {
        return status;
    }
    mirror->bytes = measure_ranges(like, ranges, count);
    /* the tensors of the model, without memory */
    status = weft_table_create(mirror->context, &mirror->table);
    for (size_t i = 0; i < weft_view_count(like) && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_view_at(like, i);
        tensor.storage = tensor.dtype;
        tensor.data = NULL;
        tensor.access = NULL;
        tensor.strides = NULL;
        tensor.converter = NULL;
        status = weft_table_add(mirror->table, &tensor);
    }
    if (status == WEFT_OK) {
        status = build_part(mirror, ranges, count);
    }
    weft_release(context, ranges);
    if (status != WEFT_OK) {
        weft_mirror_close(mirror);
    }
    return status;
}

void weft_mirror_close(weft_mirror *mirror) {
    weft_view_destroy(mirror->view);
    weft_table_destroy(mirror->table);
    if (mirror->mapped) {
        munmap(mirror->memory, (size_t)mirror->bytes);
    } else if (mirror->memory != NULL) {
        weft_release(mirror->context, mirror->memory);
    }
    *mirror = (weft_mirror){0};
}

/* ---- filling ---- */

typedef struct fill_piece {
    size_t tensor;
    uint64_t start; /* in units */
    uint64_t units;
} fill_piece;

typedef struct fill_job {
    weft_context *context;
    const weft_mirror *mirror;
    const weft_view *view;
    fill_piece *pieces;
    size_t count;
} fill_job;

static weft_status list_pieces(fill_job *job) {
    size_t count = 0;
    for (size_t i = 0; i < weft_view_count(job->view); i++) {
        count += (size_t)(weft_view_at(job->view, i)->bytes / PIECE_BYTES) + 1;
    }
    job->pieces = weft_allocate_array(job->context, count, sizeof *job->pieces);
    if (job->pieces == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < weft_view_count(job->view); i++) {
        const weft_tensor *tensor = weft_view_at(job->view, i);
        uint64_t step = PIECE_BYTES / weft_dtype_width(tensor->dtype);
        uint64_t units = weft_tensor_units(tensor);
        for (uint64_t start = 0; start < units; start += step) {
            job->pieces[job->count++] = (fill_piece){i, start, units - start < step ? units - start : step};
        }
    }
    return WEFT_OK;
}

static weft_status fill_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const fill_job *job = argument;
    const fill_piece *piece = &job->pieces[index];
    const weft_tensor *target = weft_view_at(job->mirror->view, piece->tensor);
    unsigned width = weft_dtype_width(target->dtype);
    uint8_t *output = (uint8_t *)target->data + piece->start * width;
    weft_span span = {piece->start, piece->units, 0, 1};
    weft_window window = {.context = job->context, .segments = {.context = job->context}};
    weft_holding holding;
    weft_status status = weft_view_map(job->view, piece->tensor, &span, 0, &window.segments, &holding);
    if (status == WEFT_OK) {
        status = weft_window_copy(&window, output, width);
    }
    weft_segments_close(&window.segments);
    return status;
}

weft_status weft_mirror_fill(weft_context *context, weft_mirror *mirror, const weft_view *view) {
    fill_job job = {.context = context, .mirror = mirror, .view = view};
    weft_status status = list_pieces(&job);
    if (status == WEFT_OK) {
        status = weft_parallel(context, job.count, fill_task, &job);
    }
    weft_release(context, job.pieces);
    return status;
}

void weft_mirror_copy(weft_mirror *mirror, const weft_mirror *from) {
    for (size_t i = 0; i < weft_view_count(from->view); i++) {
        const weft_tensor *source = weft_view_at(from->view, i);
        if (source->bytes > 0) {
            memcpy(weft_view_at(mirror->view, i)->data, source->data, (size_t)source->bytes);
        }
    }
}

/* ---- baselines ---- */

weft_status weft_baseline_open(weft_baseline *baseline, weft_context *context, weft_store *store,
                               const weft_view *like, const char *path) {
    *baseline = (weft_baseline){.context = context, .store = store, .path = path};
    pthread_mutex_init(&baseline->lock, NULL);
    return path == NULL && like != NULL ? weft_mirror_open(&baseline->mirror, context, like) : WEFT_OK;
}

weft_status weft_baseline_share(weft_baseline *baseline, const weft_view *like, const weft_part_plan *plan,
                                const bool *owned) {
    baseline->holds = false;
    weft_sums_destroy(baseline->sums);
    weft_trail_destroy(baseline->trail);
    baseline->sums = NULL;
    baseline->trail = NULL;
    weft_mirror_close(&baseline->mirror);
    return weft_mirror_open_part(&baseline->mirror, baseline->context, like, plan, owned);
}

void weft_baseline_close(weft_baseline *baseline) {
    if (baseline->context == NULL) {
        return;
    }
    weft_sums_destroy(baseline->sums);
    weft_trail_destroy(baseline->trail);
    weft_mirror_close(&baseline->mirror);
    weft_in_place_close(baseline->place);
    pthread_mutex_destroy(&baseline->lock);
}

const weft_view *weft_baseline_view(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_in_place_view(baseline->place) : baseline->mirror.view;
}

const weft_sums *weft_baseline_sums(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_in_place_sums(baseline->place) : baseline->sums;
}

const weft_container *weft_baseline_container(const weft_baseline *baseline) {
    return baseline->place != NULL ? weft_checkpoint_container(weft_in_place_checkpoint(baseline->place))
                                   : NULL;
}

/* ---- from the store ---- */

static weft_status pull_version(weft_subscriber *subscriber, uint64_t version) {
    weft_status status = weft_subscriber_pull(subscriber, version);
    weft_subscriber_close(subscriber);
    return status;
}

static weft_status rebuild_memory(weft_baseline *baseline, uint64_t version) {
    weft_subscriber *subscriber;
    const weft_subscriber_options options = {
        .size = sizeof options, .trusted = baseline->trusted, .empty = true};
    weft_status status = weft_subscriber_open(baseline->context, baseline->store, baseline->mirror.view,
                                              &options, &subscriber);
    if (status == WEFT_OK) {
        status = pull_version(subscriber, version);
    }
    if (status == WEFT_OK) {
        weft_sums_destroy(baseline->sums);
        baseline->sums = NULL;
        status = weft_sums_compute(baseline->context, baseline->mirror.view, &baseline->sums);
    }
    return status;
}

static weft_status open_place(weft_baseline *baseline) {
    weft_status status = weft_in_place_open(baseline->context, baseline->path, false, &baseline->place);
    if (status == WEFT_OK) {
        status = weft_in_place_load(baseline->place);
    }
    if (status != WEFT_OK) {
        weft_in_place_close(baseline->place);
        baseline->place = NULL;
    }
    return status;
}

static weft_status rebuild_file(weft_baseline *baseline, const weft_sync_head *head) {
    weft_subscriber *subscriber;
    const weft_subscriber_options options = {
        .size = sizeof options, .trusted = baseline->trusted, .replace = true};
    weft_in_place_close(baseline->place);
    baseline->place = NULL;
    /* the checkpoint is ours, whatever run it was of before */
    char *mark;
    weft_status status = weft_watermark_path(baseline->context, baseline->path, &mark);
    if (status == WEFT_OK) {
        weft_watermark_drop(baseline->context, mark, head->run);
        weft_release(baseline->context, mark);
    }
    if (status == WEFT_OK) {
        status = weft_subscriber_open_file(baseline->context, baseline->store, baseline->path, &options,
                                           &subscriber);
    }
    if (status == WEFT_OK) {
        status = pull_version(subscriber, head->newest.version);
    }
    return status == WEFT_OK ? open_place(baseline) : status;
}

weft_status weft_baseline_rebuild(weft_baseline *baseline, const weft_sync_head *head) {
    baseline->holds = false;
    if (!head->started) {
        return WEFT_OK;
    }
    weft_status status = baseline->path != NULL ? rebuild_file(baseline, head)
                                                : rebuild_memory(baseline, head->newest.version);
    baseline->holds = status == WEFT_OK;
    baseline->version = head->newest.version;
    baseline->digest = head->newest.digest;
    return weft_subscriber_unusable(status) ? WEFT_OK : status;
}

/* ---- forward and back ---- */

static weft_status follow_patch(weft_baseline *baseline, const weft_patch *patch) {
    weft_status status = weft_in_place_prepare(baseline->place, patch);
    if (status == WEFT_OK) {
        status = weft_in_place_commit(baseline->place);
    }
    return status == WEFT_OK ? weft_in_place_load(baseline->place) : status;
}

static weft_status follow_anchor(weft_baseline *baseline, const weft_patch *patch) {
    weft_checkpoint *draft;
    weft_in_place_close(baseline->place);
    baseline->place = NULL;
    weft_status status =
        weft_apply_rebuild_draft(baseline->context, NULL, &patch, 1, baseline->path, &draft);
    if (status == WEFT_OK) {
        status = weft_checkpoint_finish(draft, false);
    }
    return status == WEFT_OK ? open_place(baseline) : status;
}

static weft_status follow_spool(weft_baseline *baseline, weft_spool *spool, bool anchor,
                                weft_recall *recall) {
    weft_source source = weft_spool_source(spool);
    weft_patch *patch;
    weft_status status = weft_patch_open(baseline->context, &source, &patch);
    if (status == WEFT_OK) {
        patch->recall = recall;
        status = anchor ? follow_anchor(baseline, patch) : follow_patch(baseline, patch);
        weft_patch_close(patch);
    }
    return status;
}

void weft_baseline_advance(weft_baseline *baseline, weft_spool *spool, bool anchor, weft_sums **sums,
                           uint64_t version, const weft_digest *digest, weft_recall *recall) {
    baseline->holds = true;
    baseline->version = version;
    baseline->digest = *digest;
    if (baseline->path == NULL) {
        weft_sums_destroy(baseline->sums);
        baseline->sums = *sums;
        weft_sums_attach(baseline->sums, baseline->mirror.view);
        *sums = NULL;
    } else if (follow_spool(baseline, spool, anchor, recall) != WEFT_OK) {
        baseline->holds = false;
    }
}

/* Plain memory: that cannot fail but for want of a thread's memory, and then nothing is believed. */
void weft_baseline_undo(weft_baseline *baseline) {
    if (weft_trail_undo(baseline->context, baseline->trail) != WEFT_OK) {
        baseline->holds = false;
    }
}

weft_status weft_baseline_audit(weft_baseline *baseline, uint64_t bytes) {
    if (!baseline->holds) {
        return WEFT_OK;
    }
    weft_sums *sums = baseline->place != NULL ? weft_in_place_sums(baseline->place) : baseline->sums;
    weft_status status = weft_sums_audit(baseline->context, sums, bytes);
    if (status != WEFT_DIGEST_MISMATCH) {
        return status;
    }
    baseline->holds = false;
    weft_context_clear(baseline->context);
    return WEFT_OK;
}
