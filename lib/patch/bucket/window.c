/* SPDX-License-Identifier: Apache-2.0
 *
 * window.c: finding a bucket's memory, and writing to it.
 */
#include "window.h"

#include "../../base/status.h"
#include "../../tensor/strides.h"
#include "../../tensor/table.h"

void weft_window_open(weft_window *window, weft_context *context) {
    *window = (weft_window){.context = context, .segments = {.context = context}};
}

void weft_window_close(weft_window *window) {
    weft_segments_close(&window->segments);
    weft_release(window->context, window->runs);
    weft_release(window->context, window->scratch);
    weft_window_open(window, window->context);
}

bool weft_window_in_batch(const weft_window *window, const weft_segment *segment) {
    return segment->live->access != NULL && window->view != NULL && weft_view_batch(window->view) != NULL;
}

static weft_status map_spans(weft_window *window, const int64_t *tensor_map, const weft_bucket *bucket) {
    uint64_t linear = 0;
    bool any = false;
    bool all = true;
    window->segments.count = 0;
    for (size_t i = 0; i < bucket->span_count; i++) {
        const weft_bucket_span *item = &bucket->spans[i];
        int64_t tensor = tensor_map[item->tensor];
        weft_holding held = WEFT_HELD_NONE;
        if (tensor >= 0) {
            weft_status status =
                weft_view_map(window->view, (size_t)tensor, &item->span, linear, &window->segments, &held);
            if (status != WEFT_OK) {
                return status;
            }
        }
        any = any || held != WEFT_HELD_NONE;
        all = all && held == WEFT_HELD_ALL;
        linear += item->span.run * item->span.count;
    }
    window->holding = all ? WEFT_HELD_ALL : any ? WEFT_HELD_PART : WEFT_HELD_NONE;
    window->writable = true;
    bool batched = weft_view_batch(window->view) != NULL;
    const weft_tensor *last = NULL;
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_tensor *live = window->segments.items[i].live;
        if (live == last) {
            continue;
        }
        last = live;
        bool reachable =
            live->access != NULL ? batched || live->access->scatter != NULL : live->data != NULL;
        window->writable = window->writable && live->writable && reachable;
    }
    return WEFT_OK;
}

static weft_status reserve_runs(weft_window *window, uint64_t more) {
    if (more <= window->run_capacity - window->run_count) {
        return WEFT_OK;
    }
    if (more > SIZE_MAX / sizeof *window->runs / 2 - window->run_count) {
        return weft_fail(window->context, WEFT_NO_MEMORY,
                         "out of memory: a bucket falls into more runs than memory can hold");
    }
    size_t capacity = window->run_count + (size_t)more;
    capacity = capacity > 2 * window->run_capacity ? capacity : 2 * window->run_capacity;
    weft_run *runs = weft_reallocate_array(window->context, window->runs, capacity, sizeof *runs);
    if (runs == NULL) {
        return WEFT_NO_MEMORY;
    }
    window->runs = runs;
    window->run_capacity = capacity;
    return WEFT_OK;
}

static bool on_word(uint64_t unit, unsigned width) {
    return unit * width % WEFT_WORD == 0;
}

/* True if a run can be made of this segment alone, without a copy. What can neither be seen nor be gathered
 * is left to a copy, which says what is wrong if it cannot be read either. */
static bool usable(const weft_window *window, const weft_segment *segment, unsigned width,
                   weft_window_need need) {
    const weft_tensor *live = segment->live;
    if (!on_word(segment->unit, width) || !on_word(segment->row, width) || !on_word(segment->gap, width)) {
        return false;
    }
    if (live->access != NULL || live->strides != NULL) {
        /* words fetched from there must be this tensor's alone, to the last */
        uint64_t end = weft_segment_live(segment, segment->units - 1) + 1;
        bool gathers =
            live->access == NULL || weft_window_in_batch(window, segment) || live->access->gather != NULL;
        return need == WEFT_NEED_WORDS && gathers && on_word(segment->live_unit, width) &&
               on_word(segment->live_gap, width) && (on_word(end, width) || end == weft_tensor_units(live));
    }
    return live->data != NULL && (live->storage == live->dtype || need == WEFT_NEED_MASTERS);
}

static weft_status run_segments(weft_window *window) {
    weft_status status = reserve_runs(window, window->segments.count);
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        bool same = segment->live->storage == segment->live->dtype;
        const uint8_t *memory = weft_segment_memory(segment);
        window->runs[window->run_count++] = (weft_run){
            .linear = segment->linear,
            .units = segment->units,
            .unit = segment->unit,
            .row = segment->row,
            .gap = segment->gap,
            .memory_gap = segment->live_gap,
            .tensor = segment->tensor,
            .memory = same ? memory : NULL,
            .masters = same ? NULL : memory,
        };
    }
    return WEFT_OK;
}

/* Runs over memory that holds the bucket end to end: the spans' own, which start on words. */
static weft_status run_memory(weft_window *window, const int64_t *tensor_map, const weft_bucket *bucket,
                              const uint8_t *memory) {
    uint64_t linear = 0;
    for (size_t i = 0; i < bucket->span_count; i++) {
        const weft_bucket_span *item = &bucket->spans[i];
        bool box = item->span.count > 1;
        weft_status status = reserve_runs(window, 1);
        if (status != WEFT_OK) {
            return status;
        }
        window->runs[window->run_count++] = (weft_run){
            .linear = linear,
            .units = item->span.run * item->span.count,
            .unit = item->span.start,
            .row = box ? item->span.run : 0,
            .gap = box ? item->span.stride - item->span.run : 0,
            .tensor = tensor_map == NULL ? item->tensor : (size_t)tensor_map[item->tensor],
            .memory = memory + linear * bucket->width,
        };
        linear += item->span.run * item->span.count;
    }
    return WEFT_OK;
}

static weft_status run_scratch(weft_window *window, const int64_t *tensor_map, const weft_bucket *bucket) {
    size_t bytes = (size_t)bucket->units * bucket->width;
    if (window->scratch_capacity < bytes) {
        weft_release(window->context, window->scratch);
        window->scratch_capacity = 0;
        window->scratch = weft_allocate(window->context, bytes);
        if (window->scratch == NULL) {
            return WEFT_NO_MEMORY;
        }
        window->scratch_capacity = bytes;
    }
    weft_status status = weft_window_copy(window, window->scratch, bucket->width);
    if (status != WEFT_OK) {
        return status;
    }
    return run_memory(window, tensor_map, bucket, window->scratch);
}

weft_status weft_window_set_memory(weft_window *window, const weft_bucket *bucket, const uint8_t *memory) {
    window->view = NULL;
    window->segments.count = 0;
    window->run_count = 0;
    window->holding = WEFT_HELD_ALL;
    window->writable = false;
    window->direct = false;
    return run_memory(window, NULL, bucket, memory);
}

weft_status weft_window_set(weft_window *window, const weft_view *view, const int64_t *tensor_map,
                            const weft_bucket *bucket, weft_window_need need) {
    window->view = view;
    window->run_count = 0;
    weft_status status = map_spans(window, tensor_map, bucket);
    if (status != WEFT_OK || window->holding != WEFT_HELD_ALL || need == WEFT_NEED_NOTHING) {
        return status;
    }
    bool direct = true;
    for (size_t i = 0; i < window->segments.count; i++) {
        direct = direct && usable(window, &window->segments.items[i], bucket->width, need);
    }
    window->direct = direct;
    return direct ? run_segments(window) : run_scratch(window, tensor_map, bucket);
}

/* How many units from `first` on can be moved at once: to the row's end, or all if there are no gaps. */
static uint64_t units_at_once(const weft_segment *segment, uint64_t first, bool gaps) {
    return gaps ? weft_segment_left(segment, first) : segment->units - first;
}

/* Live memory is asked once for each setting of the window: what is copied later is what was proven, even
 * if a callback would give something else by now. */
weft_status weft_window_copy(const weft_window *window, void *output, unsigned width) {
    if (!window->direct && window->run_count > 0) {
        const weft_run *last = &window->runs[window->run_count - 1];
        memcpy(output, window->runs[0].memory, (size_t)(last->linear + last->units) * width);
        return WEFT_OK;
    }
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        for (uint64_t done = 0; done < segment->units;) {
            uint64_t some = units_at_once(segment, done, segment->linear_gap != 0);
            uint8_t *place = (uint8_t *)output + weft_segment_linear(segment, done) * width;
            weft_status status = weft_segment_read(window->context, segment, done, some, place);
            if (status != WEFT_OK) {
                return status;
            }
            done += some;
        }
    }
    return WEFT_OK;
}

void weft_window_copy_runs(const weft_window *window, unsigned width, uint8_t *output) {
    for (size_t i = 0; i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        for (uint64_t done = 0; done < run->units;) {
            size_t units = (size_t)weft_run_joined(run, done);
            uint64_t offset = weft_run_offset(run, done);
            uint8_t *place = output + (run->linear + done) * width;
            if (run->masters != NULL) {
                for (size_t j = 0; j < units; j++) {
                    uint32_t bits = (uint32_t)weft_unit_load(run->masters, (size_t)offset + j, 4);
                    weft_unit_store(place, j, 2, weft_bf16_round(bits));
                }
            } else {
                memcpy(place, run->memory + offset * width, units * width);
            }
            done += units;
        }
    }
}

/* Scattered stores miss the cache almost every time; asking for the lines ahead keeps many under way. They
 * are asked for into the second cache, which has more of them under way than the first. */
enum { AHEAD = 64, SECOND_CACHE = 2 };

/* Where units lie, in units from the segment's first. Handed over by value: stores of bytes could be to
 * anything that is pointed to. */
typedef struct scatter_place {
    uint64_t linear;
    uint32_t row;
    uint64_t gap;
} scatter_place;

static inline __attribute__((always_inline)) uint64_t place_at(scatter_place place, uint32_t position,
                                                               bool rows) {
    uint32_t offset = (uint32_t)(position - place.linear);
    return rows ? offset + offset / place.row * place.gap : offset;
}

static inline __attribute__((always_inline)) void scatter_units(uint8_t *memory, scatter_place place,
                                                                const uint32_t *positions,
                                                                const void *values, size_t count, bool rows,
                                                                unsigned width) {
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            __builtin_prefetch(memory + place_at(place, positions[i + AHEAD], rows) * width, 0,
                               SECOND_CACHE);
        }
        weft_unit_store(memory, place_at(place, positions[i], rows), width,
                        weft_unit_load(values, i, width));
    }
}

static void scatter_memory(uint8_t *memory, const weft_segment *segment, const uint32_t *positions,
                           const void *values, size_t count, unsigned width) {
    scatter_place place = {segment->linear, (uint32_t)segment->row, segment->live_gap};
    bool rows = segment->live_gap != 0;
    if (width == 2 && !rows) {
        scatter_units(memory, place, positions, values, count, false, 2);
        return;
    }
    switch (width) {
    case 1:
        scatter_units(memory, place, positions, values, count, rows, 1);
        break;
    case 2:
        scatter_units(memory, place, positions, values, count, true, 2);
        break;
    case 4:
        scatter_units(memory, place, positions, values, count, rows, 4);
        break;
    default:
        scatter_units(memory, place, positions, values, count, rows, 8);
        break;
    }
}

/* Writes through strides, to a place for each. */
static void scatter_strided(const weft_segment *segment, const uint32_t *positions, const uint8_t *values,
                            size_t count, unsigned width) {
    weft_strides strides = weft_strides_of(segment->live);
    for (size_t i = 0; i < count; i++) {
        uint64_t unit = weft_segment_live(segment, positions[i] - segment->linear);
        weft_unit_store(segment->live->data, (size_t)weft_strides_offset(&strides, unit), width,
                        weft_unit_load(values, i, width));
    }
}

/* Hands `count` units to the scatter callback, those at `positions` or, without them, all from `first`
 * units into the segment on. In pieces on the stack: a commit must not fail for want of memory. */
static weft_status scatter_callback(weft_context *context, const weft_segment *segment, uint64_t first,
                                    const uint32_t *positions, const uint8_t *values, uint64_t count,
                                    unsigned width) {
    enum { PIECE = 4096 };
    uint64_t units[PIECE];
    for (uint64_t done = 0; done < count;) {
        size_t some = count - done < PIECE ? (size_t)(count - done) : PIECE;
        for (size_t i = 0; i < some; i++) {
            uint64_t offset = positions != NULL ? positions[done + i] - segment->linear : first + done + i;
            units[i] = weft_segment_live(segment, offset);
        }
        weft_status status = weft_answer(
            context,
            segment->live->access->scatter(segment->live->opaque, units, some, values + done * width),
            "the scatter function of tensor \"%.*s\"", WEFT_NAME_SHOWN, segment->live->name);
        if (status != WEFT_OK) {
            return status;
        }
        done += some;
    }
    return WEFT_OK;
}

weft_status weft_window_scatter(const weft_window *window, const weft_changes *changes, bool restore) {
    const uint8_t *values = restore ? changes->olds : changes->news;
    size_t first = 0;
    for (size_t i = 0; i < window->segments.count && first < changes->count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        size_t end = weft_changes_before(changes, first, segment->linear + segment->units);
        const uint8_t *chosen = values + first * changes->width;
        uint8_t *memory = weft_segment_memory(segment);
        if (segment->tied || weft_window_in_batch(window, segment)) {
            first = end;
            continue;
        }
        if (end > first && segment->live->strides != NULL) {
            scatter_strided(segment, changes->positions + first, chosen, end - first, changes->width);
        } else if (end > first && memory == NULL) {
            weft_status status = scatter_callback(window->context, segment, 0, changes->positions + first,
                                                  chosen, end - first, changes->width);
            if (status != WEFT_OK) {
                return status;
            }
        } else if (end > first) {
            scatter_memory(memory, segment, changes->positions + first, chosen, end - first,
                           changes->width);
        }
        first = end;
    }
    return WEFT_OK;
}

static void fill_memory(const weft_segment *segment, uint64_t first, const uint8_t *values, uint64_t units,
                        unsigned width) {
    for (uint64_t done = 0; done < units;) {
        uint64_t left = units_at_once(segment, first + done, segment->live_gap != 0);
        uint64_t some = left < units - done ? left : units - done;
        weft_tensor_write(segment->live, weft_segment_live(segment, first + done), some,
                          values + done * width);
        done += some;
    }
}

weft_status weft_window_fill(const weft_window *window, const void *values, unsigned width) {
    for (size_t i = 0; i < window->segments.count; i++) {
        const weft_segment *segment = &window->segments.items[i];
        bool elsewhere = segment->tied || weft_window_in_batch(window, segment);
        for (uint64_t done = 0; done < segment->units && !elsewhere;) {
            uint64_t some = units_at_once(segment, done, segment->linear_gap != 0);
            const uint8_t *source = (const uint8_t *)values + weft_segment_linear(segment, done) * width;
            weft_status status = WEFT_OK;
            if (segment->live->data != NULL) {
                fill_memory(segment, done, source, some, width);
            } else {
                status = scatter_callback(window->context, segment, done, NULL, source, some, width);
            }
            if (status != WEFT_OK) {
                return status;
            }
            done += some;
        }
    }
    return WEFT_OK;
}
