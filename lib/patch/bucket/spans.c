/* SPDX-License-Identifier: Apache-2.0
 *
 * spans.c: what a bucket covers, in memory and as bytes.
 */
#include "spans.h"

#include <string.h>

void weft_bucket_close(weft_bucket *bucket, weft_context *context) {
    weft_release(context, bucket->spans);
    *bucket = (weft_bucket){0};
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

uint64_t weft_bucket_unit_limit(const weft_context *context, unsigned width) {
    uint64_t limit = weft_context_limits(context)->bucket_bytes / width;
    return limit < UINT32_MAX ? limit : UINT32_MAX;
}

enum { SPAN_TENSORS = 0, SPAN_FLAT = 1, SPAN_BOX = 2 };

static bool spans_cover_tensor(const weft_bucket_span *item, const weft_roster *roster) {
    return item->span.start == 0 && item->span.stride == 0 &&
           item->span.run == weft_tensor_units(&roster->entries[item->tensor].tensor);
}

/* How many spans from `first` on are whole tensors that follow each other in the roster. */
static size_t spans_count_whole(const weft_bucket *bucket, const weft_roster *roster, size_t first) {
    size_t count = 0;
    while (first + count < bucket->span_count &&
           spans_cover_tensor(&bucket->spans[first + count], roster) &&
           bucket->spans[first + count].tensor == bucket->spans[first].tensor + count) {
        count++;
    }
    return count;
}

void weft_bucket_write_spans(const weft_bucket *bucket, const weft_roster *roster, weft_writer *writer) {
    size_t records = 0;
    for (size_t i = 0; i < bucket->span_count; records++) {
        size_t sequence = spans_count_whole(bucket, roster, i);
        i += sequence > 0 ? sequence : 1;
    }
    weft_writer_varint(writer, records);
    for (size_t i = 0; i < bucket->span_count;) {
        const weft_bucket_span *item = &bucket->spans[i];
        size_t sequence = spans_count_whole(bucket, roster, i);
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
static bool spans_fit(const weft_span *span, uint64_t units, unsigned width) {
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

static weft_status spans_add_read(weft_bucket *bucket, const weft_roster *roster, uint64_t tensor,
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
    uint64_t limit = weft_bucket_unit_limit(context, width);
    if (!spans_fit(span, units, width)) {
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
            weft_status status = spans_add_read(bucket, roster, tensor + j, &span, kind == SPAN_TENSORS);
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
