/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: cutting tensors into buckets, and the bytes of a bucket's spans.
 *
 * A tensor larger than a bucket is cut into even flat pieces; smaller ones of the same dtype share a
 * bucket, in name order. A tensor that the publisher cuts along a dimension becomes boxes, and boxes
 * share buckets only with boxes of the same part, so that a holder of one part needs no other; a cut into
 * one part keeps a tensor alone. All cuts fall on 16-byte words: the digest is additive over words, so a
 * bucket can be proven alone.
 */
#include "plan.h"

#include <fnmatch.h>
#include <string.h>

enum { CUT_UNITS = 4096, /* flat cuts fall on multiples of this */ DEFAULT_BUCKET = 8 << 20 };

void weft_plan_open(weft_plan *plan, weft_context *context) {
    *plan = (weft_plan){.context = context};
}

void weft_bucket_close(weft_bucket *bucket, weft_context *context) {
    weft_release(context, bucket->spans);
    *bucket = (weft_bucket){0};
}

void weft_plan_close(weft_plan *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        weft_bucket_close(&plan->items[i].bucket, plan->context);
    }
    weft_release(plan->context, plan->items);
    weft_plan_open(plan, plan->context);
}

weft_status weft_bucket_add(weft_bucket *bucket, weft_context *context, size_t tensor,
                            const weft_tensor *description, const weft_span *span) {
    size_t count = bucket->span_count;
    /* the room doubles each time it is used up, which is when the count is a power of two */
    if ((count & (count - 1)) == 0) {
        size_t room = count == 0 ? 1 : 2 * count;
        weft_bucket_span *spans = weft_reallocate_array(context, bucket->spans, room, sizeof *spans);
        if (spans == NULL) {
            return WEFT_NO_MEMORY;
        }
        bucket->spans = spans;
    }
    bucket->spans[bucket->span_count++] = (weft_bucket_span){tensor, *span};
    bucket->dtype = description->dtype;
    bucket->width = weft_dtype_width(description->dtype);
    bucket->units += span->run * span->count;
    return WEFT_OK;
}

/* The most units that a bucket may have: positions are 32 bits wide. */
static uint64_t unit_limit(const weft_context *context, unsigned width) {
    uint64_t limit = weft_context_limits(context)->bucket_bytes / width;
    return limit < UINT32_MAX ? limit : UINT32_MAX;
}

/* Buckets that are still being filled, one for each kind of content. */
typedef struct open_bucket {
    weft_dtype dtype;
    uint32_t part;
    uint32_t parts;
    bool whole;
    weft_bucket bucket;
} open_bucket;

typedef struct planner {
    weft_plan *plan;
    const weft_roster *roster;
    uint64_t bucket_bytes;
    open_bucket *open;
    size_t open_count;
} planner;

static weft_status emit(planner *p, open_bucket *source) {
    weft_plan *plan = p->plan;
    if (source->bucket.span_count == 0) {
        return WEFT_OK;
    }
    if (plan->count == plan->capacity) {
        size_t capacity = 2 * plan->capacity + 64;
        weft_plan_item *items = weft_reallocate_array(plan->context, plan->items, capacity, sizeof *items);
        if (items == NULL) {
            return WEFT_NO_MEMORY;
        }
        plan->items = items;
        plan->capacity = capacity;
    }
    plan->items[plan->count++] = (weft_plan_item){source->bucket, source->whole};
    source->bucket = (weft_bucket){0};
    return WEFT_OK;
}

static open_bucket *find_open(planner *p, weft_dtype dtype, uint32_t part, uint32_t parts, bool whole) {
    for (size_t i = 0; i < p->open_count; i++) {
        open_bucket *o = &p->open[i];
        if (o->dtype == dtype && o->part == part && o->parts == parts && o->whole == whole) {
            return o;
        }
    }
    open_bucket *open = weft_reallocate_array(p->plan->context, p->open, p->open_count + 1, sizeof *open);
    if (open == NULL) {
        return NULL;
    }
    p->open = open;
    open[p->open_count] = (open_bucket){.dtype = dtype, .part = part, .parts = parts, .whole = whole};
    return &open[p->open_count++];
}

enum { ALONE = 0 /* in place of a number of parts: the span shares its bucket with no other */ };

/* Puts a span into the bucket of its kind, which is closed first if it would grow too large. */
static weft_status place(planner *p, size_t tensor, const weft_span *span, uint32_t part, uint32_t parts) {
    const weft_roster_entry *entry = &p->roster->entries[tensor];
    bool whole = entry->fate != WEFT_FATE_KEPT;
    open_bucket *open = find_open(p, entry->tensor.dtype, part, parts, whole);
    if (open == NULL) {
        return WEFT_NO_MEMORY;
    }
    uint64_t limit = p->bucket_bytes / weft_dtype_width(entry->tensor.dtype);
    uint64_t units = span->run * span->count;
    if (open->bucket.units + units > limit) {
        weft_status status = emit(p, open);
        if (status != WEFT_OK) {
            return status;
        }
    }
    weft_status status = weft_bucket_add(&open->bucket, p->plan->context, tensor, &entry->tensor, span);
    return status == WEFT_OK && parts == ALONE ? emit(p, open) : status;
}

static uint64_t divide_up(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

/* A flat range [start, start + units), in even pieces. */
static weft_status place_flat(planner *p, size_t tensor, uint64_t start, uint64_t units, uint32_t part,
                              uint32_t parts) {
    uint64_t limit = p->bucket_bytes / weft_dtype_width(p->roster->entries[tensor].tensor.dtype);
    uint64_t pieces = divide_up(units, limit);
    uint64_t size = divide_up(divide_up(units, pieces), CUT_UNITS) * CUT_UNITS;
    for (uint64_t done = 0; done < units; done += size) {
        uint64_t run = units - done < size ? units - done : size;
        weft_span span = {start + done, run, 0, 1};
        weft_status status = place(p, tensor, &span, part, parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

/* One box of `rows` runs. */
static weft_status place_box(planner *p, size_t tensor, const weft_span *box, uint32_t part,
                             uint32_t parts) {
    uint64_t limit = p->bucket_bytes / weft_dtype_width(p->roster->entries[tensor].tensor.dtype);
    uint64_t rows = limit / box->run > 0 ? limit / box->run : 1;
    for (uint64_t done = 0; done < box->count; done += rows) {
        uint64_t count = box->count - done < rows ? box->count - done : rows;
        weft_span span = {box->start + done * box->stride, box->run, box->stride, count};
        weft_status status = place(p, tensor, &span, part, parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status cut_failed(const planner *p, size_t tensor, const weft_cut *cut, const char *why) {
    return weft_fail(p->plan->context, WEFT_INVALID_ARGUMENT,
                     "cut %s along dimension %u into %u: tensor %s %s", cut->pattern, cut->dim, cut->parts,
                     p->roster->entries[tensor].tensor.name, why);
}

static weft_status place_cut(planner *p, size_t tensor, const weft_cut *cut) {
    const weft_tensor *t = &p->roster->entries[tensor].tensor;
    if (cut->parts == 0 || cut->dim >= t->rank || t->shape[cut->dim] % cut->parts != 0) {
        return cut_failed(p, tensor, cut, "has no such dimension, or it is not divisible");
    }
    uint64_t units = weft_tensor_units(t);
    if (cut->parts == 1) {
        return place_flat(p, tensor, 0, units, 0, ALONE);
    }
    uint64_t outer = 1;
    for (uint32_t d = 0; d < cut->dim; d++) {
        outer *= t->shape[d];
    }
    uint64_t stride = units / outer;
    uint64_t run = stride / cut->parts;
    unsigned width = weft_dtype_width(t->dtype);
    if (units % outer != 0 || stride % cut->parts != 0 || run * width % WEFT_WORD != 0) {
        return cut_failed(p, tensor, cut, "would be cut inside of a 16-byte word");
    }
    if (outer > 1 && run > unit_limit(p->plan->context, width)) {
        return cut_failed(p, tensor, cut, "would give runs above the bucket limit");
    }
    for (uint32_t part = 0; part < cut->parts; part++) {
        weft_span box = {part * run, run, stride, outer};
        weft_status status = outer == 1 ? place_flat(p, tensor, part * run, run, part, cut->parts)
                                        : place_box(p, tensor, &box, part, cut->parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status plan_tensor(planner *p, size_t tensor, const weft_cut *cuts, size_t cut_count) {
    const weft_roster_entry *entry = &p->roster->entries[tensor];
    uint64_t units = weft_tensor_units(&entry->tensor);
    if (entry->fate == WEFT_FATE_REMOVED || units == 0) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < cut_count; i++) {
        if (fnmatch(cuts[i].pattern, entry->tensor.name, 0) == 0) {
            return place_cut(p, tensor, &cuts[i]);
        }
    }
    return place_flat(p, tensor, 0, units, 0, 1);
}

/* A pattern that names nothing is a mistake that would show only at the receivers. */
static weft_status check_cuts(weft_context *context, const weft_roster *roster, const weft_cut *cuts,
                              size_t cut_count) {
    for (size_t i = 0; i < cut_count; i++) {
        bool found = false;
        for (size_t j = 0; j < roster->count && !found; j++) {
            found = fnmatch(cuts[i].pattern, roster->entries[j].tensor.name, 0) == 0;
        }
        if (!found) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "no tensor matches the cut %s",
                             cuts[i].pattern);
        }
    }
    return WEFT_OK;
}

weft_status weft_plan_build(weft_plan *plan, const weft_roster *roster, uint64_t bucket_bytes,
                            const weft_cut *cuts, size_t cut_count) {
    planner p = {.plan = plan, .roster = roster};
    p.bucket_bytes = bucket_bytes == 0 ? DEFAULT_BUCKET : bucket_bytes;
    if (p.bucket_bytes < CUT_UNITS * 8 || p.bucket_bytes > unit_limit(plan->context, 1)) {
        return weft_fail(plan->context, WEFT_INVALID_ARGUMENT,
                         "a bucket of %llu bytes is out of range: 32 KiB to the bucket limit",
                         (unsigned long long)bucket_bytes);
    }
    /* whole cuts of every width fit, so that rounding a piece up to a cut keeps it within the limit */
    p.bucket_bytes -= p.bucket_bytes % (CUT_UNITS * 8);
    weft_status status = check_cuts(plan->context, roster, cuts, cut_count);
    for (size_t i = 0; i < roster->count && status == WEFT_OK; i++) {
        status = plan_tensor(&p, i, cuts, cut_count);
    }
    for (size_t i = 0; i < p.open_count; i++) {
        if (status == WEFT_OK) {
            status = emit(&p, &p.open[i]);
        }
        weft_bucket_close(&p.open[i].bucket, plan->context);
    }
    weft_release(plan->context, p.open);
    return status;
}

/* ---- the bytes of spans ---- */

enum { SPAN_TENSORS = 0, SPAN_FLAT = 1, SPAN_BOX = 2 };

static bool covers_tensor(const weft_bucket_span *item, const weft_roster *roster) {
    return item->span.start == 0 && item->span.stride == 0 &&
           item->span.run == weft_tensor_units(&roster->entries[item->tensor].tensor);
}

/* How many spans from `first` on are whole tensors that follow each other in the roster. */
static size_t whole_sequence(const weft_bucket *bucket, const weft_roster *roster, size_t first) {
    size_t count = 0;
    while (first + count < bucket->span_count && covers_tensor(&bucket->spans[first + count], roster) &&
           bucket->spans[first + count].tensor == bucket->spans[first].tensor + count) {
        count++;
    }
    return count;
}

void weft_bucket_write_spans(const weft_bucket *bucket, const weft_roster *roster, weft_writer *writer) {
    size_t records = 0;
    for (size_t i = 0; i < bucket->span_count; records++) {
        size_t sequence = whole_sequence(bucket, roster, i);
        i += sequence > 0 ? sequence : 1;
    }
    weft_writer_varint(writer, records);
    for (size_t i = 0; i < bucket->span_count;) {
        const weft_bucket_span *item = &bucket->spans[i];
        size_t sequence = whole_sequence(bucket, roster, i);
        if (sequence > 0) {
            weft_writer_u8(writer, SPAN_TENSORS);
            weft_writer_varint(writer, item->tensor);
            weft_writer_varint(writer, sequence);
            i += sequence;
            continue;
        }
        weft_writer_u8(writer, item->span.stride == 0 ? SPAN_FLAT : SPAN_BOX);
        weft_writer_varint(writer, item->tensor);
        weft_writer_varint(writer, item->span.start);
        weft_writer_varint(writer, item->span.run);
        if (item->span.stride != 0) {
            weft_writer_varint(writer, item->span.stride);
            weft_writer_varint(writer, item->span.count);
        }
        i++;
    }
}

/* True if the span lies inside of `units` units and starts and ends on words, or at the tensor's end. */
static bool span_fits(const weft_span *span, uint64_t units, unsigned width) {
    if (span->run == 0 || span->count == 0 || span->start > units) {
        return false;
    }
    if (span->stride == 0) {
        bool ends = span->run == units - span->start;
        return span->run <= units - span->start && span->start * width % WEFT_WORD == 0 &&
               (ends || span->run * width % WEFT_WORD == 0);
    }
    uint64_t last;
    if (span->stride < span->run || __builtin_mul_overflow(span->stride, span->count - 1, &last)) {
        return false;
    }
    return last <= units - span->start && span->run <= units - span->start - last &&
           span->start * width % WEFT_WORD == 0 && span->run * width % WEFT_WORD == 0 &&
           span->stride * width % WEFT_WORD == 0;
}

static weft_status add_read_span(weft_bucket *bucket, const weft_roster *roster, uint64_t tensor,
                                 weft_span *span, bool all) {
    weft_context *context = roster->context;
    if (tensor >= roster->count || roster->entries[tensor].fate == WEFT_FATE_REMOVED) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket covers a tensor that is not there");
    }
    const weft_tensor *description = &roster->entries[tensor].tensor;
    uint64_t units = weft_tensor_units(description);
    if (all) {
        *span = (weft_span){0, units, 0, 1};
    }
    unsigned width = weft_dtype_width(description->dtype);
    uint64_t limit = unit_limit(context, width);
    if (!span_fits(span, units, width)) {
        return weft_fail(context, WEFT_MALFORMED, "a bucket covers a range that tensor %s does not have",
                         description->name);
    }
    if (bucket->span_count > 0) {
        const weft_roster_entry *first = &roster->entries[bucket->spans[0].tensor];
        if (bucket->dtype != description->dtype ||
            (first->fate == WEFT_FATE_KEPT) != (roster->entries[tensor].fate == WEFT_FATE_KEPT)) {
            return weft_fail(context, WEFT_MALFORMED, "a bucket mixes tensors of different kinds");
        }
    }
    if (span->run > limit || span->count > limit / span->run ||
        bucket->units + span->run * span->count > limit) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "a bucket covers more weights than the limit");
    }
    return weft_bucket_add(bucket, context, (size_t)tensor, description, span);
}

/* No tensor is covered twice, so a bucket that lists more whole tensors than there are is refused before
 * memory is taken for them. */
weft_status weft_bucket_read_spans(weft_bucket *bucket, const weft_roster *roster, weft_reader *reader) {
    uint64_t records = weft_reader_varint(reader);
    uint64_t listed = 0;
    for (uint64_t i = 0; i < records; i++) {
        uint8_t kind = weft_reader_u8(reader);
        uint64_t tensor = weft_reader_varint(reader);
        weft_span span = {0, 0, 0, 1};
        uint64_t sequence = 1;
        if (kind == SPAN_TENSORS) {
            sequence = weft_reader_varint(reader);
        } else {
            span.start = weft_reader_varint(reader);
            span.run = weft_reader_varint(reader);
        }
        if (kind == SPAN_BOX) {
            span.stride = weft_reader_varint(reader);
            span.count = weft_reader_varint(reader);
        }
        if (weft_reader_failed(reader) || kind > SPAN_BOX ||
            (kind == SPAN_TENSORS && sequence > roster->count - listed) ||
            (kind == SPAN_BOX && span.stride == 0)) {
            return weft_fail(roster->context, WEFT_MALFORMED, "a bucket's list of ranges is broken");
        }
        listed += kind == SPAN_TENSORS ? sequence : 0;
        for (uint64_t j = 0; j < sequence; j++) {
            weft_status status = add_read_span(bucket, roster, tensor + j, &span, kind == SPAN_TENSORS);
            if (status != WEFT_OK) {
                return status;
            }
        }
    }
    if (bucket->span_count == 0) {
        return weft_fail(roster->context, WEFT_MALFORMED, "a bucket covers nothing");
    }
    return WEFT_OK;
}

bool weft_bucket_same_spans(const weft_bucket *a, const weft_bucket *b) {
    return a->span_count == b->span_count &&
           memcmp(a->spans, b->spans, a->span_count * sizeof *a->spans) == 0;
}
