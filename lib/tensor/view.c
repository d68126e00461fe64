/* SPDX-License-Identifier: Apache-2.0
 *
 * view.c: views, and the way from a span of a checkpoint tensor to live memory.
 *
 * A view keeps its own copies of tensor descriptions, so that pointers into it stay valid for its life
 * whatever happens to the tables. Spans may come from hostile patches: weft_view_map checks each one
 * against the tensor before it believes it.
 */
#include "pieces.h"

#include "../base/context.h"
#include "../base/cpu.h"
#include "../base/status.h"
#include "strides.h"
#include "table.h"

#include <string.h>

static size_t names_size(const weft_table *table) {
    size_t size = 0;
    for (size_t i = 0; i < weft_table_sorted_count(table); i++) {
        size += strlen(weft_table_at(table, weft_table_sorted(table, i))->name) + 1;
    }
    return size;
}

static void copy_tensors(weft_view *view, const weft_table *table) {
    char *name = view->names;
    for (size_t i = 0; i < view->count; i++) {
        weft_tensor *tensor = &view->tensors[i];
        *tensor = *weft_table_at(table, weft_table_sorted(table, i));
        size_t size = strlen(tensor->name) + 1;
        memcpy(name, tensor->name, size);
        tensor->name = name;
        name += size;
        view->mappings[i].units = weft_tensor_units(tensor);
        view->mappings[i].row = view->mappings[i].units;
        view->mappings[i].tie = WEFT_NO_TIE;
    }
}

weft_status weft_view_begin(weft_context *context, const weft_table *checkpoint, size_t piece_count,
                            weft_view **view_out) {
    weft_view *view = weft_allocate_zeroed(context, 1, sizeof *view);
    if (view == NULL) {
        return WEFT_NO_MEMORY;
    }
    view->context = context;
    view->count = weft_table_sorted_count(checkpoint);
    view->tensors = weft_allocate_zeroed(context, view->count, sizeof *view->tensors);
    view->mappings = weft_allocate_zeroed(context, view->count, sizeof *view->mappings);
    view->names = weft_allocate(context, names_size(checkpoint));
    view->pieces = weft_allocate_zeroed(context, piece_count, sizeof *view->pieces);
    if (view->tensors == NULL || view->mappings == NULL || view->names == NULL || view->pieces == NULL) {
        weft_view_destroy(view);
        return WEFT_NO_MEMORY;
    }
    copy_tensors(view, checkpoint);
    *view_out = view;
    return WEFT_OK;
}

static void settle_mapping(weft_mapping *mapping) {
    uint64_t in_row = 0;
    for (size_t i = 0; i < mapping->piece_count; i++) {
        in_row += mapping->pieces[i].length;
    }
    mapping->held = mapping->row == 0 ? 0 : mapping->units / mapping->row * in_row;
    mapping->whole = mapping->piece_count == 1 && mapping->held == mapping->units &&
                     mapping->pieces[0].live_run >= mapping->units;
}

void weft_view_settle(weft_view *view) {
    view->complete = true;
    for (size_t i = 0; i < view->count; i++) {
        settle_mapping(&view->mappings[i]);
        view->complete = view->complete && view->mappings[i].held == view->mappings[i].units;
    }
}

/* Rows with padding between them are what pieces can say themselves, and are then worked on where they lie:
 * in a view of its own tensor, a unit may be a place. */
static void use_rows(weft_tensor *tensor, weft_mapping *mapping) {
    if (tensor->strides == NULL || mapping->piece_count == 0) {
        return;
    }
    weft_strides strides = weft_strides_of(tensor);
    if (strides.rank == 2 && strides.steps[1] == 1) {
        mapping->pieces[0].live_run = strides.counts[1];
        mapping->pieces[0].live_stride = strides.steps[0];
        mapping->whole = false;
        tensor->strides = NULL;
    }
}

weft_status weft_view_create(weft_context *context, const weft_table *table, weft_view **view_out) {
    weft_context_clear(context);
    weft_view *view;
    weft_status status = weft_view_begin(context, table, weft_table_sorted_count(table), &view);
    if (status != WEFT_OK) {
        return status;
    }
    view->table = table;
    view->batch = weft_table_batch(table);
    for (size_t i = 0; i < view->count; i++) {
        weft_mapping *mapping = &view->mappings[i];
        if (mapping->units == 0) {
            continue;
        }
        mapping->pieces = &view->pieces[i];
        mapping->piece_count = 1;
        view->pieces[i] = (weft_piece){
            .live = &view->tensors[i],
            .length = mapping->units,
            .live_run = mapping->units,
            .live_stride = mapping->units,
        };
    }
    weft_view_settle(view);
    status = weft_view_find_ties(view, view->tensors, view->count);
    for (size_t i = 0; i < view->count; i++) {
        use_rows(&view->tensors[i], &view->mappings[i]);
    }
    if (status != WEFT_OK) {
        weft_view_destroy(view);
        return status;
    }
    *view_out = view;
    return WEFT_OK;
}

void weft_view_destroy(weft_view *view) {
    if (view == NULL) {
        return;
    }
    weft_context *context = view->context;
    weft_release(context, view->pieces);
    weft_release(context, view->live);
    weft_release(context, view->names);
    weft_release(context, view->mappings);
    weft_release(context, view->tensors);
    weft_release(context, view);
}

size_t weft_view_count(const weft_view *view) {
    return view->count;
}

const weft_tensor *weft_view_at(const weft_view *view, size_t index) {
    return index < view->count ? &view->tensors[index] : NULL;
}

int64_t weft_view_find(const weft_view *view, const char *name) {
    size_t low = 0;
    size_t high = view->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(view->tensors[middle].name, name);
        if (order == 0) {
            return (int64_t)middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return -1;
}

bool weft_view_complete(const weft_view *view) {
    return view->complete;
}

const weft_batch_access *weft_view_batch(const weft_view *view) {
    return view->batch.size != 0 ? &view->batch : NULL;
}

bool weft_view_converts(const weft_view *view) {
    return view->converts;
}

size_t weft_view_live(const weft_view *view, const weft_tensor *live) {
    return view->live != NULL ? (size_t)(live - view->live)
                              : (size_t)weft_table_find(view->table, live->name);
}

/* ---- mapping ---- */

/* A span that lies within the tensor has no more units than the tensor, so nothing overflows later. */
static bool span_fits(const weft_span *span, uint64_t units) {
    if (span->count == 0 || span->run > units || span->start > units - span->run) {
        return false;
    }
    if (span->count == 1) {
        return true;
    }
    uint64_t room = units - span->run - span->start;
    return span->run > 0 && span->stride >= span->run && span->stride <= room &&
           span->count - 1 <= room / span->stride;
}

static weft_status reserve_segments(weft_segments *segments, uint64_t more) {
    if (more <= segments->capacity - segments->count) {
        return WEFT_OK;
    }
    if (more > SIZE_MAX / sizeof *segments->items / 2 - segments->count) {
        return weft_fail(segments->context, WEFT_NO_MEMORY,
                         "out of memory: a span falls into more segments than memory can hold");
    }
    size_t capacity = segments->count + (size_t)more;
    if (capacity < segments->capacity * 2) {
        capacity = segments->capacity * 2;
    }
    if (capacity < 16) {
        capacity = 16;
    }
    weft_segment *items =
        weft_reallocate_array(segments->context, segments->items, capacity, sizeof *items);
    if (items == NULL) {
        return WEFT_NO_MEMORY;
    }
    segments->items = items;
    segments->capacity = capacity;
    return WEFT_OK;
}

static bool continues(const weft_segment *last, const weft_segment *next) {
    return last->row == 0 && last->live == next->live && last->unit + last->units == next->unit &&
           last->live_unit + last->units == next->live_unit && last->linear + last->units == next->linear;
}

/* True if the stretch `next` is one more row of `last`, or can be its second. */
static bool repeats(const weft_segment *last, const weft_segment *next) {
    if (last->live != next->live) {
        return false;
    }
    if (last->row == 0) {
        return last->units == next->units && next->live_unit >= last->live_unit + last->units;
    }
    uint64_t rows = last->units / last->row;
    return last->row == next->units && next->unit == last->unit + rows * (last->row + last->gap) &&
           next->live_unit == last->live_unit + rows * (last->row + last->live_gap) &&
           next->linear == last->linear + rows * (last->row + last->linear_gap);
}

static void add_row(weft_segment *last, const weft_segment *next) {
    if (last->row == 0) {
        last->row = last->units;
        last->gap = next->unit - last->unit - last->row;
        last->live_gap = next->live_unit - last->live_unit - last->row;
        last->linear_gap = next->linear - last->linear - last->row;
    }
    last->units += last->row;
}

/* Adds a stretch. `floor` is the number of segments before this mapping: a segment of an earlier one is
 * never grown, because its owner may have counted it already. */
static weft_status append_stretch(weft_segments *segments, size_t floor, const weft_segment *stretch) {
    weft_segment *last = segments->count > floor ? &segments->items[segments->count - 1] : NULL;
    if (last != NULL && continues(last, stretch)) {
        last->units += stretch->units;
        return WEFT_OK;
    }
    if (last != NULL && repeats(last, stretch)) {
        add_row(last, stretch);
        return WEFT_OK;
    }
    weft_status status = reserve_segments(segments, 1);
    if (status == WEFT_OK) {
        segments->items[segments->count++] = *stretch;
    }
    return status;
}

/* The tensor lies in live memory as in the checkpoint. */
static weft_status map_whole(const weft_mapping *mapping, size_t tensor, const weft_span *span,
                             uint64_t linear, weft_segments *segments) {
    weft_status status = reserve_segments(segments, 1);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_piece *piece = &mapping->pieces[0];
    bool box = span->count > 1;
    uint64_t gap = box ? span->stride - span->run : 0;
    segments->items[segments->count++] = (weft_segment){
        .linear = linear,
        .units = span->run * span->count,
        .row = box ? span->run : 0,
        .unit = span->start,
        .gap = gap,
        .tensor = tensor,
        .live = piece->live,
        .live_unit = piece->live_base + span->start,
        .live_gap = gap,
        .tied = mapping->tie != WEFT_NO_TIE,
    };
    return WEFT_OK;
}

/* The first piece that ends behind `place` in the row, or NULL. */
static const weft_piece *piece_from(const weft_mapping *mapping, uint64_t place) {
    size_t low = 0;
    size_t high = mapping->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const weft_piece *piece = &mapping->pieces[middle];
        if (piece->start + piece->length <= place) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < mapping->piece_count ? &mapping->pieces[low] : NULL;
}

static uint64_t lesser(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Appends the segments of one run and adds the units that are held to `held`. */
static weft_status map_run(const weft_mapping *mapping, weft_segment next, uint64_t units,
                           weft_segments *segments, size_t floor, uint64_t *held) {
    while (units > 0) {
        uint64_t row = next.unit / mapping->row;
        uint64_t place = next.unit % mapping->row;
        const weft_piece *piece = piece_from(mapping, place);
        uint64_t step;
        if (piece == NULL) {
            step = lesser(units, mapping->row - place);
        } else if (piece->start > place) {
            step = lesser(units, piece->start - place);
        } else {
            uint64_t within = row * piece->length + (place - piece->start);
            uint64_t offset = within % piece->live_run;
            step = lesser(units, piece->start + piece->length - place);
            step = lesser(step, piece->live_run - offset);
            next.units = step;
            next.live = piece->live;
            next.live_unit = piece->live_base + within / piece->live_run * piece->live_stride + offset;
            weft_status status = append_stretch(segments, floor, &next);
            if (status != WEFT_OK) {
                return status;
            }
            *held += step;
        }
        next.unit += step;
        next.linear += step;
        units -= step;
    }
    return WEFT_OK;
}

/* How far apart in the piece the rows of a box lie, if the piece has all of them; 0 if not. */
static uint64_t step_in_piece(const weft_mapping *mapping, const weft_piece *piece, const weft_span *span) {
    uint64_t room = piece->start + piece->length - span->start % mapping->row;
    if (span->stride % mapping->row == 0 && span->run <= room) {
        return span->stride / mapping->row * piece->length;
    }
    return span->stride * (span->count - 1) + span->run <= room ? span->stride : 0;
}

/* Rows of a box lie alike: if the first is one segment, and the others are as far from it in live memory as
 * a division tells, they are one segment together. False: they must be looked at one by one. */
static bool repeat_run(const weft_mapping *mapping, const weft_span *span, weft_segments *segments,
                       size_t floor, uint64_t *held) {
    if (span->count < 2 || segments->count != floor + 1 || segments->items[floor].row != 0 ||
        *held != span->run) {
        return false;
    }
    const weft_piece *piece = piece_from(mapping, span->start % mapping->row);
    uint64_t step = step_in_piece(mapping, piece, span);
    uint64_t first = span->start / mapping->row * piece->length + span->start % mapping->row - piece->start;
    if (step == 0) {
        return false;
    }
    if (step % piece->live_run == 0) {
        step = step / piece->live_run * piece->live_stride;
    } else if (first + step * (span->count - 1) + span->run > piece->live_run) {
        return false;
    }
    weft_segment *box = &segments->items[floor];
    box->units = span->run * span->count;
    box->row = span->run;
    box->gap = span->stride - span->run;
    box->live_gap = step - span->run;
    *held = box->units;
    return true;
}

static weft_status map_pieces(const weft_mapping *mapping, size_t tensor, const weft_span *span,
                              uint64_t linear, weft_segments *segments, uint64_t *held) {
    size_t floor = segments->count;
    weft_segment next = {.tensor = tensor, .tied = mapping->tie != WEFT_NO_TIE};
    for (uint64_t i = 0; i < span->count; i++) {
        next.unit = span->start + i * span->stride;
        next.linear = linear + i * span->run;
        weft_status status = map_run(mapping, next, span->run, segments, floor, held);
        if (status != WEFT_OK) {
            return status;
        }
        /* Runs that lie alike in their rows are held alike: a box of another rank costs one look. */
        if (*held == 0 && span->stride % mapping->row == 0) {
            break;
        }
        if (i == 0 && repeat_run(mapping, span, segments, floor, held)) {
            return WEFT_OK;
        }
    }
    return WEFT_OK;
}

weft_status weft_view_map(const weft_view *view, size_t tensor, const weft_span *span, uint64_t linear,
                          weft_segments *segments, weft_holding *holding_out) {
    if (tensor >= view->count) {
        return weft_fail(segments->context, WEFT_INVALID_ARGUMENT, "tensor %zu of %zu does not exist",
                         tensor, view->count);
    }
    const weft_mapping *mapping = &view->mappings[tensor];
    if (!span_fits(span, mapping->units) || span->run * span->count > UINT64_MAX - linear) {
        return weft_fail(
            segments->context, WEFT_MALFORMED,
            "a span leaves tensor \"%.*s\": %llu runs of %llu units from unit %llu at stride %llu, "
            "but it has %llu units; the patch is damaged or for another model",
            WEFT_NAME_SHOWN, view->tensors[tensor].name, (unsigned long long)span->count,
            (unsigned long long)span->run, (unsigned long long)span->start,
            (unsigned long long)span->stride, (unsigned long long)mapping->units);
    }
    uint64_t units = span->run * span->count;
    weft_span flat = *span;
    if (span->count == 1 || span->stride == span->run) {
        flat = (weft_span){.start = span->start, .run = units, .count = 1};
    }
    uint64_t held = 0;
    weft_status status = WEFT_OK;
    if (mapping->whole && units > 0) {
        status = map_whole(mapping, tensor, &flat, linear, segments);
        held = units;
    } else if (mapping->piece_count > 0 && units > 0) {
        status = map_pieces(mapping, tensor, &flat, linear, segments, &held);
    }
    if (status == WEFT_OK) {
        *holding_out = held == units ? WEFT_HELD_ALL : held == 0 ? WEFT_HELD_NONE : WEFT_HELD_PART;
    }
    return status;
}

void weft_segments_close(weft_segments *segments) {
    weft_release(segments->context, segments->items);
    segments->items = NULL;
    segments->count = 0;
    segments->capacity = 0;
}

/* ---- reading ---- */

void *weft_segment_memory(const weft_segment *segment) {
    const weft_tensor *live = segment->live;
    if (live->data == NULL || live->strides != NULL) {
        return NULL;
    }
    return (uint8_t *)live->data + segment->live_unit * weft_dtype_width(live->storage);
}

static weft_status read_access(weft_context *context, const weft_tensor *live, uint64_t unit,
                               uint64_t units, void *output) {
    if (live->access == NULL || live->access->read == NULL) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tensor \"%.*s\" has neither memory nor a way to read it; give it data or access",
                         WEFT_NAME_SHOWN, live->name);
    }
    unsigned width = weft_dtype_width(live->dtype);
    return weft_answer(context,
                       live->access->read(live->opaque, unit * width, output, (size_t)(units * width)),
                       "the read function of tensor \"%.*s\", for %llu bytes at %llu,", WEFT_NAME_SHOWN,
                       live->name, (unsigned long long)(units * width), (unsigned long long)(unit * width));
}

/* The same of a stretch, which starts `first` units into the segment. */
static weft_status read_stretch(weft_context *context, const weft_segment *segment, uint64_t first,
                                uint64_t units, void *output) {
    const weft_tensor *live = segment->live;
    uint64_t unit = weft_segment_live(segment, first);
    if (live->data == NULL) {
        return read_access(context, live, unit, units, output);
    }
    if (live->strides != NULL) {
        weft_tensor_read(live, unit, units, output);
        return WEFT_OK;
    }
    const uint8_t *memory = (const uint8_t *)live->data + unit * weft_dtype_width(live->storage);
    if (live->storage != live->dtype) { /* the F32 masters of BF16 weights */
        weft_bf16_cast(weft_cpu_level(), (const float *)(const void *)memory, output, (size_t)units);
        return WEFT_OK;
    }
    memcpy(output, memory, (size_t)(units * weft_dtype_width(live->dtype)));
    return WEFT_OK;
}

weft_status weft_segment_read(weft_context *context, const weft_segment *segment, uint64_t first,
                              uint64_t units, void *output) {
    if (segment->live_gap == 0) {
        return read_stretch(context, segment, first, units, output);
    }
    unsigned width = weft_dtype_width(segment->live->dtype);
    weft_status status = WEFT_OK;
    for (uint64_t done = 0; done < units && status == WEFT_OK;) {
        uint64_t left = weft_segment_left(segment, first + done);
        uint64_t some = left < units - done ? left : units - done;
        status = read_stretch(context, segment, first + done, some, (uint8_t *)output + done * width);
        done += some;
    }
    return status;
}
