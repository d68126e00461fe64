/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: cutting tensors into buckets.
 *
 * A tensor larger than a bucket is cut into even flat pieces; smaller ones of the same dtype share a
 * bucket, in name order. A tensor that the publisher cuts along a dimension becomes boxes, and boxes
 * share buckets only with boxes of the same part, so that a holder of one part needs no other; a cut into
 * one part keeps a tensor alone. All cuts fall on 16-byte words: the digest is additive over words, so a
 * bucket can be proven alone.
 */
#include "plan.h"

#include <fnmatch.h>

enum { CUT_UNITS = 4096, /* flat cuts fall on multiples of this */ DEFAULT_BUCKET = 8 << 20 };

void weft_plan_open(weft_plan *plan, weft_context *context) {
    *plan = (weft_plan){.context = context};
}

void weft_plan_close(weft_plan *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        weft_bucket_close(&plan->items[i].bucket, plan->context);
    }
    weft_release(plan->context, plan->items);
    weft_plan_open(plan, plan->context);
}

/* Buckets that are still being filled, one for each kind of content. */
typedef struct plan_bucket {
    weft_dtype dtype;
    uint32_t part;
    uint32_t parts;
    bool whole;
    weft_bucket bucket;
} plan_bucket;

typedef struct planner {
    weft_plan *plan;
    const weft_roster *roster;
    uint64_t bucket_bytes;
    plan_bucket *open;
    size_t open_count;
} planner;

static weft_status plan_close_bucket(planner *p, plan_bucket *source) {
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

static plan_bucket *plan_find_bucket(planner *p, weft_dtype dtype, uint32_t part, uint32_t parts,
                                     bool whole) {
    for (size_t i = 0; i < p->open_count; i++) {
        plan_bucket *o = &p->open[i];
        if (o->dtype == dtype && o->part == part && o->parts == parts && o->whole == whole) {
            return o;
        }
    }
    plan_bucket *open = weft_reallocate_array(p->plan->context, p->open, p->open_count + 1, sizeof *open);
    if (open == NULL) {
        return NULL;
    }
    p->open = open;
    open[p->open_count] = (plan_bucket){.dtype = dtype, .part = part, .parts = parts, .whole = whole};
    return &open[p->open_count++];
}

enum { ALONE = 0 /* in place of a number of parts: the span shares its bucket with no other */ };

/* Puts a span into the bucket of its kind, which is closed first if it would grow too large. */
static weft_status plan_place_span(planner *p, size_t tensor, const weft_span *span, uint32_t part,
                                   uint32_t parts) {
    const weft_roster_entry *entry = &p->roster->entries[tensor];
    bool whole = entry->fate != WEFT_FATE_KEPT;
    plan_bucket *open = plan_find_bucket(p, entry->tensor.dtype, part, parts, whole);
    if (open == NULL) {
        return WEFT_NO_MEMORY;
    }
    uint64_t limit = p->bucket_bytes / weft_dtype_width(entry->tensor.dtype);
    uint64_t units = span->run * span->count;
    if (open->bucket.units + units > limit) {
        weft_status status = plan_close_bucket(p, open);
        if (status != WEFT_OK) {
            return status;
        }
    }
    weft_status status = weft_bucket_add(&open->bucket, p->plan->context, tensor, &entry->tensor, span);
    return status == WEFT_OK && parts == ALONE ? plan_close_bucket(p, open) : status;
}

static uint64_t plan_divide_up(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

/* A flat range [start, start + units), in even pieces. */
static weft_status plan_place_flat(planner *p, size_t tensor, uint64_t start, uint64_t units, uint32_t part,
                                   uint32_t parts) {
    uint64_t limit = p->bucket_bytes / weft_dtype_width(p->roster->entries[tensor].tensor.dtype);
    uint64_t pieces = plan_divide_up(units, limit);
    uint64_t size = plan_divide_up(plan_divide_up(units, pieces), CUT_UNITS) * CUT_UNITS;
    for (uint64_t done = 0; done < units; done += size) {
        uint64_t run = units - done < size ? units - done : size;
        weft_span span = {start + done, run, 0, 1};
        weft_status status = plan_place_span(p, tensor, &span, part, parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

/* One box of `rows` runs. */
static weft_status plan_place_box(planner *p, size_t tensor, const weft_span *box, uint32_t part,
                                  uint32_t parts) {
    uint64_t limit = p->bucket_bytes / weft_dtype_width(p->roster->entries[tensor].tensor.dtype);
    uint64_t rows = limit / box->run > 0 ? limit / box->run : 1;
    for (uint64_t done = 0; done < box->count; done += rows) {
        uint64_t count = box->count - done < rows ? box->count - done : rows;
        weft_span span = {box->start + done * box->stride, box->run, box->stride, count};
        weft_status status = plan_place_span(p, tensor, &span, part, parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status plan_refuse_cut(const planner *p, size_t tensor, const weft_cut *cut, const char *why) {
    return weft_fail(p->plan->context, WEFT_INVALID_ARGUMENT,
                     "cut %s along dimension %u into %u: tensor %s %s", cut->pattern, cut->dim, cut->parts,
                     p->roster->entries[tensor].tensor.name, why);
}

/* The rows of a tensor that a cut along `dim` divides. */
static uint64_t plan_outer_rows(const weft_tensor *tensor, uint32_t dim) {
    uint64_t outer = 1;
    for (uint32_t d = 0; d < dim; d++) {
        outer *= tensor->shape[d];
    }
    return outer;
}

const char *weft_plan_cut_fault(const weft_context *context, const weft_tensor *tensor,
                                const weft_cut *cut) {
    if (cut->parts == 0 || cut->dim >= tensor->rank || tensor->shape[cut->dim] % cut->parts != 0) {
        return "has no such dimension, or it is not divisible";
    }
    uint64_t units = weft_tensor_units(tensor);
    if (cut->parts == 1 || units == 0) {
        return NULL;
    }
    uint64_t outer = plan_outer_rows(tensor, cut->dim);
    uint64_t stride = units / outer;
    uint64_t run = stride / cut->parts;
    unsigned width = weft_dtype_width(tensor->dtype);
    if (units % outer != 0 || stride % cut->parts != 0 || run * width % WEFT_WORD != 0) {
        return "would be cut inside of a 16-byte word";
    }
    if (outer > 1 && run > weft_bucket_unit_limit(context, width)) {
        return "would give runs above the bucket limit";
    }
    return NULL;
}

static weft_status plan_place_cut(planner *p, size_t tensor, const weft_cut *cut) {
    const weft_tensor *t = &p->roster->entries[tensor].tensor;
    const char *fault = weft_plan_cut_fault(p->plan->context, t, cut);
    if (fault != NULL) {
        return plan_refuse_cut(p, tensor, cut, fault);
    }
    uint64_t units = weft_tensor_units(t);
    if (cut->parts == 1) {
        return plan_place_flat(p, tensor, 0, units, 0, ALONE);
    }
    uint64_t outer = plan_outer_rows(t, cut->dim);
    uint64_t stride = units / outer;
    uint64_t run = stride / cut->parts;
    for (uint32_t part = 0; part < cut->parts; part++) {
        weft_span box = {part * run, run, stride, outer};
        weft_status status = outer == 1 ? plan_place_flat(p, tensor, part * run, run, part, cut->parts)
                                        : plan_place_box(p, tensor, &box, part, cut->parts);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status plan_place_tensor(planner *p, size_t tensor, const weft_cut *cuts, size_t cut_count) {
    const weft_roster_entry *entry = &p->roster->entries[tensor];
    uint64_t units = weft_tensor_units(&entry->tensor);
    if (entry->fate == WEFT_FATE_REMOVED || units == 0) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < cut_count; i++) {
        if (fnmatch(cuts[i].pattern, entry->tensor.name, 0) == 0) {
            return plan_place_cut(p, tensor, &cuts[i]);
        }
    }
    return plan_place_flat(p, tensor, 0, units, 0, 1);
}

/* A pattern that names nothing is a mistake that would show only at the receivers. */
static weft_status plan_check_cuts(weft_context *context, const weft_roster *roster, const weft_cut *cuts,
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
    if (p.bucket_bytes < CUT_UNITS * 8 || p.bucket_bytes > weft_bucket_unit_limit(plan->context, 1)) {
        return weft_fail(plan->context, WEFT_INVALID_ARGUMENT,
                         "a bucket of %llu bytes is out of range: 32 KiB to the bucket limit",
                         (unsigned long long)bucket_bytes);
    }
    /* whole cuts of every width fit, so that rounding a piece up to a cut keeps it within the limit */
    p.bucket_bytes -= p.bucket_bytes % (CUT_UNITS * 8);
    weft_status status = plan_check_cuts(plan->context, roster, cuts, cut_count);
    for (size_t i = 0; i < roster->count && status == WEFT_OK; i++) {
        status = plan_place_tensor(&p, i, cuts, cut_count);
    }
    for (size_t i = 0; i < p.open_count; i++) {
        if (status == WEFT_OK) {
            status = plan_close_bucket(&p, &p.open[i]);
        }
        weft_bucket_close(&p.open[i].bucket, plan->context);
    }
    weft_release(plan->context, p.open);
    return status;
}

void weft_plan_set_format(weft_plan *plan, unsigned format) {
    for (size_t i = 0; i < plan->count; i++) {
        plan->items[i].bucket.format = format;
    }
}
