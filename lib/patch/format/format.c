/* SPDX-License-Identifier: Apache-2.0
 *
 * format.c: index and footer of a patch file, and the proof that its buckets do not overlap.
 */
#include "format.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint8_t end_magic[8] = {'W', 'E', 'F', 'T', 'E', 'N', 'D', '1'};

void weft_frame_index_open(weft_frame_index *index, weft_context *context) {
    *index = (weft_frame_index){.context = context};
}

void weft_frame_index_close(weft_frame_index *index) {
    for (size_t i = 0; i < index->count; i++) {
        weft_bucket_close(&index->entries[i].bucket, index->context);
    }
    weft_release(index->context, index->entries);
    weft_frame_index_open(index, index->context);
}

void weft_frame_index_write_entry(const weft_bucket *bucket, const weft_roster *roster, uint64_t length,
                                  uint64_t checksum, weft_writer *writer) {
    weft_writer_varint(writer, length);
    weft_writer_u64(writer, checksum);
    weft_bucket_write_spans(bucket, roster, writer);
}

void weft_footer_write(const weft_footer *footer, weft_writer *writer) {
    weft_writer_u64(writer, footer->index_offset);
    weft_writer_u32(writer, (uint32_t)footer->index_bytes);
    weft_writer_bytes(writer, footer->base.bytes, sizeof footer->base.bytes);
    weft_writer_bytes(writer, footer->result.bytes, sizeof footer->result.bytes);
    weft_writer_u64(writer, footer->changed);
    weft_writer_u64(writer, footer->total);
    weft_writer_u64(writer, footer->dense_bytes);
    weft_writer_u64(writer, 0);
    if (!weft_writer_failed(writer)) {
        weft_writer_u64(writer, XXH3_64bits(writer->data, writer->size));
    }
    weft_writer_bytes(writer, end_magic, sizeof end_magic);
}

weft_status weft_footer_read(weft_context *context, const uint8_t *data, uint64_t header_size,
                             uint64_t file_size, weft_footer *footer) {
    if (memcmp(data + WEFT_FOOTER_BYTES - sizeof end_magic, end_magic, sizeof end_magic) != 0) {
        return weft_fail(context, WEFT_TRUNCATED,
                         "the patch does not end as a patch ends: it was cut short "
                         "or is still being written; fetch it again");
    }
    weft_reader reader = weft_reader_over(data, WEFT_FOOTER_BYTES);
    footer->index_offset = weft_reader_u64(&reader);
    footer->index_bytes = weft_reader_u32(&reader);
    memcpy(footer->base.bytes, weft_reader_bytes(&reader, 16), 16);
    memcpy(footer->result.bytes, weft_reader_bytes(&reader, 16), 16);
    footer->changed = weft_reader_u64(&reader);
    footer->total = weft_reader_u64(&reader);
    footer->dense_bytes = weft_reader_u64(&reader);
    if (weft_reader_u64(&reader) != 0) {
        return weft_fail(context, WEFT_WRONG_VERSION,
                         "the patch's footer says what this weft does not know; "
                         "upgrade weft");
    }
    if (footer->index_offset < header_size || footer->index_offset > file_size - WEFT_FOOTER_BYTES ||
        footer->index_bytes != file_size - WEFT_FOOTER_BYTES - footer->index_offset) {
        return weft_fail(context, WEFT_MALFORMED, "the patch's footer does not fit its %llu bytes",
                         (unsigned long long)file_size);
    }
    if (footer->index_bytes > weft_context_limits(context)->header_bytes) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "the patch's index is larger than the limit");
    }
    return WEFT_OK;
}

/* How far a tensor is covered. A tensor is covered by flat ranges or by boxes of one stride, never by
 * both. Sorted by tensor, column and row, spans overlap only if neighbours do: flat ranges are in order,
 * and boxes go band after band, each band downwards. */
typedef struct coverage {
    size_t tensor;
    uint64_t next;      /* flat: first unit not covered */
    uint64_t stride;    /* boxes: their common stride, else 0 */
    uint64_t band;      /* boxes: first column of the current band */
    uint64_t band_run;  /* boxes: its width */
    uint64_t band_next; /* boxes: first row of the band not covered */
} coverage;

static bool cover_flat(coverage *c, const weft_span *span) {
    if (span->start < c->next) {
        return false;
    }
    c->next = span->start + span->run;
    return true;
}

static bool cover_box(coverage *c, const weft_span *span, uint64_t stride) {
    uint64_t column = span->start % stride;
    uint64_t row = span->start / stride;
    if (span->run > stride - column) {
        return false;
    }
    bool same_band = column == c->band && span->run == c->band_run;
    if (same_band ? row < c->band_next : column < c->band + c->band_run) {
        return false;
    }
    c->band = column;
    c->band_run = span->run;
    c->band_next = row + span->count;
    return true;
}

static bool cover(coverage *c, const weft_span *span) {
    if (span->stride == 0) {
        return c->stride == 0 && cover_flat(c, span);
    }
    if (c->next != 0 || (c->stride != 0 && c->stride != span->stride)) {
        return false;
    }
    c->stride = span->stride;
    return cover_box(c, span, c->stride);
}

static int order(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_spans(const void *first, const void *second) {
    const weft_bucket_span *a = first;
    const weft_bucket_span *b = second;
    int by_tensor = order(a->tensor, b->tensor);
    if (by_tensor != 0 || a->span.stride != b->span.stride) {
        return by_tensor != 0 ? by_tensor : order(a->span.stride, b->span.stride);
    }
    if (a->span.stride == 0) {
        return order(a->span.start, b->span.start);
    }
    int by_column = order(a->span.start % a->span.stride, b->span.start % b->span.stride);
    return by_column != 0 ? by_column : order(a->span.start, b->span.start);
}

/* Tensors that the base has not in this form are there whole, or the result would hold what nobody wrote.
 */
static weft_status check_fresh(const weft_frame_index *index, const weft_roster *roster) {
    uint64_t *covered = weft_allocate_zeroed(index->context, roster->count, sizeof *covered);
    if (covered == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < index->count; i++) {
        const weft_bucket *bucket = &index->entries[i].bucket;
        for (size_t j = 0; j < bucket->span_count; j++) {
            covered[bucket->spans[j].tensor] += bucket->spans[j].span.run * bucket->spans[j].span.count;
        }
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < roster->count && status == WEFT_OK; i++) {
        const weft_roster_entry *entry = &roster->entries[i];
        bool fresh = entry->fate == WEFT_FATE_ADDED || entry->fate == WEFT_FATE_REPLACED;
        if (fresh && covered[i] != weft_tensor_units(&entry->tensor)) {
            status = weft_fail(index->context, WEFT_MALFORMED,
                               "the patch does not hold all of tensor %s, "
                               "which the base has not",
                               entry->tensor.name);
        }
    }
    weft_release(index->context, covered);
    return status;
}

weft_status weft_frame_index_check(const weft_frame_index *index, const weft_roster *roster) {
    size_t total = 0;
    for (size_t i = 0; i < index->count; i++) {
        total += index->entries[i].bucket.span_count;
    }
    weft_bucket_span *spans = weft_allocate_array(index->context, total, sizeof *spans);
    if (spans == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t count = 0;
    for (size_t i = 0; i < index->count; i++) {
        const weft_bucket *bucket = &index->entries[i].bucket;
        memcpy(spans + count, bucket->spans, bucket->span_count * sizeof *spans);
        count += bucket->span_count;
    }
    qsort(spans, count, sizeof *spans, compare_spans);
    coverage covered = {.tensor = SIZE_MAX};
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        if (spans[i].tensor != covered.tensor) {
            covered = (coverage){.tensor = spans[i].tensor};
        }
        if (!cover(&covered, &spans[i].span)) {
            status =
                weft_fail(index->context, WEFT_MALFORMED,
                          "two buckets cover the same weights of tensor %s, or cut it in different ways",
                          roster->entries[spans[i].tensor].tensor.name);
        }
    }
    weft_release(index->context, spans);
    return status == WEFT_OK ? check_fresh(index, roster) : status;
}

/* A span takes four bytes, except for whole tensors, of which there can be no more than tensors: an index
 * with more spans covers something twice, and is refused before it takes memory for them all. */
static weft_status read_entries(weft_frame_index *index, const weft_roster *roster, weft_reader *reader,
                                uint64_t count, uint64_t offset, uint64_t end) {
    uint64_t spans_left = roster->count + weft_reader_left(reader) / 4;
    for (uint64_t i = 0; i < count; i++) {
        weft_frame_index_entry *entry = &index->entries[index->count];
        *entry = (weft_frame_index_entry){.offset = offset};
        entry->length = weft_reader_varint(reader);
        entry->checksum = weft_reader_u64(reader);
        if (weft_reader_failed(reader) || entry->length > end - offset || entry->length > UINT32_MAX) {
            return weft_fail(index->context, WEFT_MALFORMED,
                             "the patch's index points outside of the patch");
        }
        offset += entry->length;
        index->count++;
        weft_status status = weft_bucket_read_spans(&entry->bucket, roster, reader);
        if (status != WEFT_OK) {
            return status;
        }
        if (entry->bucket.span_count > spans_left) {
            return weft_fail(index->context, WEFT_MALFORMED,
                             "the patch's index covers tensors more than once");
        }
        spans_left -= entry->bucket.span_count;
    }
    if (weft_reader_left(reader) != 0 || offset != end) {
        return weft_fail(index->context, WEFT_MALFORMED, "the patch's index leaves bytes unaccounted for");
    }
    return WEFT_OK;
}

weft_status weft_frame_index_read(weft_frame_index *index, const weft_roster *roster,
                                  const weft_footer *footer, uint64_t header_size, const uint8_t *data,
                                  size_t size) {
    size_t hashed = size - WEFT_CHECKSUM_BYTES - sizeof end_magic;
    weft_reader sum = weft_reader_over(data + hashed, WEFT_CHECKSUM_BYTES);
    if (XXH3_64bits(data, hashed) != weft_reader_u64(&sum)) {
        return weft_fail(index->context, WEFT_CHECKSUM_MISMATCH,
                         "the patch's index or footer was damaged on its way; fetch the patch again");
    }
    weft_reader reader = weft_reader_over(data, (size_t)footer->index_bytes);
    uint64_t count = weft_reader_varint(&reader);
    /* a record takes at least twelve bytes */
    if (weft_reader_failed(&reader) || count > weft_reader_left(&reader) / 12) {
        return weft_fail(index->context, WEFT_MALFORMED, "the patch's index is broken");
    }
    index->entries = weft_allocate_array(index->context, (size_t)count, sizeof *index->entries);
    if (index->entries == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = read_entries(index, roster, &reader, count, header_size, footer->index_offset);
    if (status == WEFT_OK) {
        status = weft_frame_index_check(index, roster);
    }
    return status;
}
