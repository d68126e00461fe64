/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.c: live weights from a copy of the whole model in memory, piece by piece with all threads.
 */
#include "fill.h"

#include "../../base/context.h"
#include "../../base/pool.h"
#include "../../patch/apply/batch.h"
#include "../../tensor/table.h"

enum { PIECE_BYTES = 4 << 20 };

typedef struct fill_piece {
    size_t tensor; /* of the view */
    const uint8_t *source;
    uint64_t start; /* in units */
    uint64_t units;
} fill_piece;

typedef struct fill_job {
    weft_context *context;
    const weft_view *view;
    fill_piece *pieces;
    size_t count;
} fill_job;

static weft_status find_source(const fill_job *job, size_t index, const weft_table *table,
                               const weft_tensor **source_out) {
    const weft_tensor *wanted = weft_view_at(job->view, index);
    int64_t found = weft_table_find(table, wanted->name);
    if (found < 0 || !weft_tensor_alike(weft_table_at(table, (size_t)found), wanted)) {
        return weft_fail(
            job->context, WEFT_BASE_MISMATCH,
            "tensor %s is not in the model that is to be loaded, or has another dtype or shape "
            "there",
            wanted->name);
    }
    *source_out = weft_table_at(table, (size_t)found);
    return WEFT_OK;
}

static weft_status list_pieces(fill_job *job, const weft_table *table) {
    size_t count = 0;
    for (size_t i = 0; i < weft_view_count(job->view); i++) {
        count += (size_t)(weft_view_at(job->view, i)->bytes / PIECE_BYTES) + 1;
    }
    job->pieces = weft_allocate_array(job->context, count, sizeof *job->pieces);
    weft_status status = job->pieces != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    for (size_t i = 0; i < weft_view_count(job->view) && status == WEFT_OK; i++) {
        const weft_tensor *source = NULL;
        status = find_source(job, i, table, &source);
        uint64_t units = status == WEFT_OK ? weft_tensor_units(source) : 0;
        uint64_t step = units > 0 ? PIECE_BYTES / weft_dtype_width(source->dtype) : 1;
        for (uint64_t start = 0; start < units; start += step) {
            uint64_t length = units - start < step ? units - start : step;
            job->pieces[job->count++] = (fill_piece){i, source->data, start, length};
        }
    }
    return status;
}

static weft_status check_segments(const fill_job *job, const weft_segments *segments) {
    for (size_t i = 0; i < segments->count; i++) {
        const weft_tensor *live = segments->items[i].live;
        if (!live->writable || live->storage != live->dtype) {
            return weft_fail(job->context, WEFT_INVALID_ARGUMENT,
                             "tensor %s cannot be loaded: it is not writable, or held as F32 masters",
                             live->name);
        }
    }
    return WEFT_OK;
}

/* What weft_window_fill leaves out. */
static weft_status fill_rest(const fill_job *job, const weft_window *window, const void *values,
                             unsigned width) {
    uint64_t *targets;
    size_t count;
    weft_status status = weft_targets_list(window, NULL, &targets, &count);
    if (status != WEFT_OK || count == 0) {
        return status;
    }
    status = weft_targets_convert(window, NULL, targets, values, width);
    if (status == WEFT_OK && weft_window_batched(window)) {
        weft_batch batch;
        weft_batch_begin(&batch, job->context, weft_view_batch(job->view));
        weft_batch_scatter(&batch, window, NULL, targets, values, width);
        status = weft_batch_end(&batch);
    }
    weft_release(job->context, targets);
    return status;
}

static weft_status fill_task(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const fill_job *job = argument;
    const fill_piece *piece = &job->pieces[index];
    unsigned width = weft_dtype_width(weft_view_at(job->view, piece->tensor)->dtype);
    weft_span span = {piece->start, piece->units, 0, 1};
    weft_window window = {
        .context = job->context, .view = job->view, .segments = {.context = job->context}};
    weft_holding holding;
    weft_status status = weft_view_map(job->view, piece->tensor, &span, 0, &window.segments, &holding);
    if (status == WEFT_OK) {
        status = check_segments(job, &window.segments);
    }
    if (status == WEFT_OK) {
        status = weft_window_fill(&window, piece->source + piece->start * width, width);
    }
    if (status == WEFT_OK) {
        status = fill_rest(job, &window, piece->source + piece->start * width, width);
    }
    weft_segments_close(&window.segments);
    return status;
}

/* All pieces, for a loop of one. */
static weft_status fill_alone(void *argument, size_t index, unsigned worker) {
    (void)index;
    const fill_job *job = argument;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < job->count && status == WEFT_OK; i++) {
        status = fill_task(argument, i, worker);
    }
    return status;
}

weft_status weft_fill(weft_context *context, const weft_view *view, const weft_table *table) {
    fill_job job = {.context = context, .view = view};
    weft_status status = list_pieces(&job, table);
    bool alone = weft_view_batch(view) != NULL || weft_view_converts(view); /* in this thread */
    if (status == WEFT_OK) {
        status = alone ? weft_parallel(context, 1, fill_alone, &job)
                       : weft_parallel(context, job.count, fill_task, &job);
    }
    weft_release(context, job.pieces);
    return status;
}
