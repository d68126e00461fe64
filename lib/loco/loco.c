/* SPDX-License-Identifier: Apache-2.0
 *
 * loco.c: a rank is made and taken down; its tensors as flat arrays; its digest.
 */
#include "loco.h"
#include "../base/sized.h"

#include "../base/context.h"
#include "flight.h"
#include "gate/gate.h"
#include "included.h"
#include "step/step.h"

#include <stdlib.h>
#include <string.h>

/* Most values on a grid have few bits: a step, two or three. What is cut from others stays in the residual.
 */
enum { GRID_SIGNIFICANT = 3 };

void weft_loco_defaults(weft_loco_options *options_out) {
    const weft_loco_options defaults = {
        .size = sizeof defaults, .run = "", .ranks = 1, .rate = 0.7f, .momentum = 0.9f};
    weft_sized_write(&defaults, options_out, sizeof defaults);
}

static weft_status check_options(weft_context *context, const weft_loco_options *options) {
    if (options->run == NULL || strlen(options->run) > WEFT_LOCO_RUN_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the name of a run has at most %d bytes",
                         WEFT_LOCO_RUN_MAX);
    }
    if (options->ranks < 1 || options->ranks > WEFT_LOCO_RANKS_MAX || options->rank >= options->ranks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there is no rank %u of %u: ranks count from 0, and there are at most %d",
                         options->rank, options->ranks, WEFT_LOCO_RANKS_MAX);
    }
    if (!(options->rate > 0 && options->rate <= 1000) ||
        !(options->momentum >= 0 && options->momentum < 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the outer optimizer cannot use rate %g and momentum %g", (double)options->rate,
                         (double)options->momentum);
    }
    if (options->significant == 1 || options->significant > 23) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "values can be cut to 2 to 23 significant bits, or not at all (0), not to %u",
                         options->significant);
    }
    if (options->grid > 8 || (options->grid != 0 && options->open)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a grid of values is 1 to 8, or none (0), and none with an open gate; not %u",
                         options->grid);
    }
    if (options->raw && (!options->open || options->significant != 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "raw values are those of an open gate, and are not cut");
    }
    if (options->average && (!options->raw || options->rate != 1 || options->momentum != 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "averages are of raw values, with rate 1 and no momentum");
    }
    if (options->average && options->overlap) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "averages do not overlap: a gradient is of the weights that it was made with");
    }
    return WEFT_OK;
}

static int compare_places(const void *a, const void *b) {
    return strcmp(((const weft_loco_place *)a)->name, ((const weft_loco_place *)b)->name);
}

static weft_status copy_places(weft_loco *loco, const weft_loco_tensor *tensors, size_t count) {
    loco->places = weft_allocate_zeroed(loco->context, count, sizeof *loco->places);
    if (loco->places == NULL) {
        return WEFT_NO_MEMORY;
    }
    loco->place_count = count;
    for (size_t i = 0; i < count; i++) {
        weft_loco_place *place = &loco->places[i];
        place->name = weft_copy_text(loco->context, tensors[i].name, strlen(tensors[i].name));
        place->data = tensors[i].data;
        place->count = tensors[i].count;
        if (place->name == NULL) {
            return WEFT_NO_MEMORY;
        }
        if (place->count > UINT64_MAX / 16 - loco->elements) {
            return weft_fail(loco->context, WEFT_INVALID_ARGUMENT, "tensor '%s' is too large", place->name);
        }
        loco->elements += place->count;
    }
    if (loco->elements == 0) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT, "there are no weights to bring together");
    }
    qsort(loco->places, count, sizeof *loco->places, compare_places);
    uint64_t start = 0;
    for (size_t i = 0; i < count; i++) {
        loco->places[i].start = start;
        start += loco->places[i].count;
    }
    loco->blocks = (size_t)((loco->elements - 1) / WEFT_PAYLOAD_BLOCK + 1);
    return WEFT_OK;
}

/* All arrays begin on a line of the cache: vectors that lie across two are slower.
 */
static weft_status allocate_arrays(weft_loco *loco) {
    enum { LINE = 64, LINE_FLOATS = LINE / sizeof(float) };
    size_t stride = (size_t)((loco->elements + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS);
    bool momentum = loco->options.momentum > 0;
    size_t arrays = 2 + momentum + loco->options.overlap;
    size_t bytes = LINE + arrays * stride * sizeof(float);
    loco->memory = weft_allocate(loco->context, bytes);
    if (loco->memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_prefer_large_pages(loco->memory, bytes);
    memset(loco->memory, 0, bytes);
    uintptr_t first = ((uintptr_t)loco->memory + LINE - 1) / LINE * LINE;
    loco->consensus = (float *)first;
    loco->residual = loco->consensus + stride;
    loco->momentum = momentum ? loco->residual + stride : NULL;
    loco->ahead = loco->options.overlap ? loco->consensus + (arrays - 1) * stride : NULL;
    for (size_t i = 0; i < loco->place_count && !loco->options.average; i++) {
        const weft_loco_place *place = &loco->places[i];
        if (place->count > 0) {
            memcpy(loco->consensus + place->start, place->data, (size_t)place->count * sizeof(float));
        }
    }
    return WEFT_OK;
}

/* The place that holds an element: the last one that starts at or before it and is not empty. */
static const weft_loco_place *find_place(const weft_loco *loco, uint64_t element) {
    size_t low = 0;
    size_t high = loco->place_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (loco->places[middle].start <= element) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &loco->places[low];
}

/* Averages begin with a consensus of zeros, whatever the tensors hold. */
static weft_status check_finite(const weft_loco *loco) {
    uint64_t element = 0;
    if (weft_loco_all_finite(loco->consensus, loco->elements)) {
        return WEFT_OK;
    }
    while (__builtin_isfinite(loco->consensus[element])) {
        element++;
    }
    const weft_loco_place *place = find_place(loco, element);
    return weft_fail(loco->context, WEFT_INVALID_ARGUMENT,
                     "the weight of tensor '%s' at element %llu is not finite: ranks begin with the same "
                     "numbers; give the weights of a model that is whole",
                     place->name, (unsigned long long)(element - place->start));
}

static weft_status make_table(weft_loco *loco) {
    weft_status status = weft_table_create(loco->context, &loco->table);
    for (size_t i = 0; i < loco->place_count && status == WEFT_OK; i++) {
        const weft_loco_place *place = &loco->places[i];
        const weft_tensor tensor = weft_loco_place_tensor(place, loco->consensus + place->start);
        status = weft_table_add(loco->table, &tensor);
    }
    if (status == WEFT_OK) {
        status = weft_view_create(loco->context, loco->table, &loco->view);
    }
    return status;
}

weft_status weft_loco_create(weft_context *context, const weft_loco_options *given,
                             const weft_loco_tensor *tensors, size_t count, weft_loco **loco_out) {
    weft_context_clear(context);
    weft_loco_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_loco_options");
    if (status == WEFT_OK) {
        status = check_options(context, &options);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_loco *loco = weft_allocate_zeroed(context, 1, sizeof *loco);
    if (loco == NULL) {
        return WEFT_NO_MEMORY;
    }
    loco->context = context;
    loco->options = options;
    memcpy(loco->run, options.run, strlen(options.run) + 1);
    loco->options.run = loco->run;
    if (options.grid != 0 && options.significant == 0) {
        loco->options.significant = GRID_SIGNIFICANT;
    }
    weft_writer_open(&loco->payload, context);
    loco->included = weft_allocate_zeroed(context, options.ranks, sizeof *loco->included);
    status = loco->included == NULL ? WEFT_NO_MEMORY : copy_places(loco, tensors, count);
    if (status == WEFT_OK) {
        status = allocate_arrays(loco);
    }
    if (status == WEFT_OK) {
        status = check_finite(loco);
    }
    if (status == WEFT_OK) {
        status = make_table(loco);
    }
    if (status == WEFT_OK) {
        status = weft_loco_move_digest(loco);
    }
    if (status != WEFT_OK) {
        weft_loco_destroy(loco);
        return status;
    }
    *loco_out = loco;
    return WEFT_OK;
}

void weft_loco_destroy(weft_loco *loco) {
    if (loco == NULL) {
        return;
    }
    weft_context *context = loco->context;
    weft_loco_flight_close(loco);
    weft_loco_job_destroy(loco->job);
    weft_writer_close(&loco->payload);
    weft_view_destroy(loco->view);
    weft_table_destroy(loco->table);
    weft_release(context, loco->memory);
    weft_release(context, loco->included);
    for (size_t i = 0; i < loco->place_count; i++) {
        weft_release(context, loco->places[i].name);
    }
    weft_release(context, loco->places);
    weft_release(context, loco);
}

uint64_t weft_loco_rounds(const weft_loco *loco) {
    return loco->rounds;
}

weft_digest weft_loco_digest(const weft_loco *loco) {
    return loco->digest;
}

const float *weft_loco_consensus(const weft_loco *loco, const char *name) {
    for (size_t i = 0; i < loco->place_count; i++) {
        if (strcmp(loco->places[i].name, name) == 0) {
            return loco->consensus + loco->places[i].start;
        }
    }
    return NULL;
}

/* Summed block by block, so that large models lose no digits. */
double weft_loco_residual_energy(const weft_loco *loco) {
    double total = 0;
    for (size_t b = 0; b < loco->blocks; b++) {
        double sum = 0;
        for (uint64_t i = (uint64_t)b * WEFT_PAYLOAD_BLOCK; i < weft_loco_block_end(loco, b); i++) {
            sum += (double)loco->residual[i] * (double)loco->residual[i];
        }
        total += sum;
    }
    return total;
}

/* ---- inside ---- */

weft_loco_stretch weft_loco_stretch_at(const weft_loco *loco, uint64_t start, uint64_t end, size_t most) {
    const weft_loco_place *place = find_place(loco, start);
    uint64_t place_end = place->start + place->count;
    uint64_t count = (end < place_end ? end : place_end) - start;
    return (weft_loco_stretch){
        .place = place,
        .start = start,
        .count = count < most ? (size_t)count : most,
        .local = place->data + (start - place->start),
    };
}

weft_status weft_loco_check(const weft_loco *loco) {
    if (loco->broken) {
        return weft_fail(loco->context, WEFT_INVALID_ARGUMENT,
                         "a failure has left this rank between two rounds: go on from a saved state");
    }
    return WEFT_OK;
}

bool weft_loco_all_finite(const void *values, uint64_t count) {
    uint32_t highest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, (const uint8_t *)values + i * sizeof bits, sizeof bits);
        bits &= 0x7fffffffu;
        highest = bits > highest ? bits : highest;
    }
    return highest < WEFT_NOT_FINITE;
}

weft_status weft_loco_not_finite(const weft_loco *loco, uint64_t element, const char *what) {
    const weft_loco_place *place = find_place(loco, element);
    return weft_fail(
        loco->context, WEFT_INVALID_ARGUMENT,
        "%s of tensor '%s' at element %llu is not finite in round %llu: training is broken; go "
        "back to a saved state",
        what, place->name, (unsigned long long)(element - place->start), (unsigned long long)loco->rounds);
}

weft_status weft_loco_move_digest(weft_loco *loco) {
    weft_sums *sums = NULL;
    weft_progress_hold(loco->context);
    weft_status status = weft_sums_compute(loco->context, loco->view, &sums);
    weft_progress_go_on(loco->context);
    if (status == WEFT_OK) {
        loco->digest = weft_sums_digest(sums);
        weft_sums_destroy(sums);
    }
    return status;
}

void weft_loco_set_local(const weft_loco *loco, uint64_t start, uint64_t end) {
    while (start < end) {
        weft_loco_stretch stretch = weft_loco_stretch_at(loco, start, end, SIZE_MAX);
        if (loco->ahead != NULL && loco->pending) {
            weft_step_carry(stretch.local, loco->consensus + start, loco->ahead + start, stretch.count);
        } else {
            weft_step_copy(stretch.local, loco->consensus + start, stretch.count);
        }
        start += stretch.count;
    }
}
