/* SPDX-License-Identifier: Apache-2.0
 *
 * mirror.c: a private copy of a model.
 */
#include "mirror.h"

#include "../base/context.h"
#include "../base/pool.h"
#include "../tensor/view.h"

#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, PIECE_BYTES = 4 << 20 };

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Changes are scattered all over the copy: large pages save most of the address translation. */
static void advise(uint8_t *memory, uint64_t bytes) {
    const uintptr_t page = (uintptr_t)2 << 20;
    uintptr_t start = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (end > start) {
        madvise((void *)start, end - start, MADV_HUGEPAGE);
    }
}

static weft_status add_tensors(weft_mirror *mirror, const weft_view *like) {
    uint8_t *cursor = mirror->memory + (ALIGNMENT - (uintptr_t)mirror->memory % ALIGNMENT) % ALIGNMENT;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < weft_view_count(like) && status == WEFT_OK; i++) {
        weft_tensor tensor = *weft_view_at(like, i);
        tensor.storage = tensor.dtype;
        tensor.data = tensor.bytes > 0 ? cursor : NULL;
        tensor.access = NULL;
        tensor.writable = true;
        cursor += aligned(tensor.bytes);
        status = weft_table_add(mirror->table, &tensor);
    }
    return status;
}

weft_status weft_mirror_open(weft_mirror *mirror, weft_context *context, const weft_view *like) {
    *mirror = (weft_mirror){.context = context, .bytes = ALIGNMENT};
    for (size_t i = 0; i < weft_view_count(like); i++) {
        mirror->bytes += aligned(weft_view_at(like, i)->bytes);
    }
    mirror->memory = weft_allocate(context, (size_t)mirror->bytes);
    if (mirror->memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    advise(mirror->memory, mirror->bytes);
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

void weft_mirror_close(weft_mirror *mirror) {
    weft_view_destroy(mirror->view);
    weft_table_destroy(mirror->table);
    if (mirror->memory != NULL) {
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
    weft_segments segments = {.context = job->context};
    weft_holding holding;
    weft_status status = weft_view_map(job->view, piece->tensor, &span, 0, &segments, &holding);
    for (size_t i = 0; i < segments.count && status == WEFT_OK; i++) {
        const weft_segment *segment = &segments.items[i];
        status =
            weft_segment_read(job->context, segment, 0, segment->units, output + segment->linear * width);
    }
    weft_segments_close(&segments);
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
