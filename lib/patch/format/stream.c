/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c: the writer of patch files.
 */
#include "stream.h"

#include "../../base/status.h"
#include "../bucket/bucket.h"

/* The library's own sinks say what failed and where. */
static weft_status put(weft_patch_stream *stream, const void *data, size_t size) {
    weft_context_clear(stream->context);
    weft_status status =
        weft_answer_told(stream->context, stream->sink->write(stream->sink->opaque, data, size),
                         "writing the patch after %llu bytes", (unsigned long long)stream->written);
    stream->written += status == WEFT_OK ? size : 0;
    return status;
}

weft_status weft_stream_open(weft_patch_stream *stream, weft_context *context, const weft_sink *sink,
                             unsigned format, weft_profile profile, unsigned depth,
                             const weft_roster *roster, bool same_files, const weft_container *container,
                             const char *const *labels) {
    *stream = (weft_patch_stream){.context = context, .sink = sink, .roster = roster};
    weft_writer_open(&stream->entries, context);
    weft_writer header;
    weft_writer_open(&header, context);
    weft_status status =
        weft_header_write(context, format, profile, depth, roster, same_files, container, labels, &header);
    if (status == WEFT_OK) {
        status = put(stream, header.data, header.size);
    }
    weft_writer_close(&header);
    return status;
}

weft_status weft_stream_frame(weft_patch_stream *stream, const weft_bucket *bucket,
                              const weft_writer *frame, uint64_t changed) {
    weft_frame_index_write_entry(bucket, stream->roster, frame->size,
                                 weft_frame_checksum(frame->data, frame->size), &stream->entries);
    if (weft_writer_failed(&stream->entries)) {
        return WEFT_NO_MEMORY;
    }
    stream->frames++;
    stream->changed += changed;
    return put(stream, frame->data, frame->size);
}

void weft_roster_measure(const weft_roster *roster, uint64_t *units_out, uint64_t *bytes_out) {
    *units_out = 0;
    *bytes_out = 0;
    for (size_t i = 0; i < roster->count; i++) {
        if (roster->entries[i].fate != WEFT_FATE_REMOVED) {
            *units_out += weft_tensor_units(&roster->entries[i].tensor);
            *bytes_out += roster->entries[i].tensor.bytes;
        }
    }
}

weft_status weft_stream_write_footer(weft_context *context, const weft_roster *roster,
                                     uint64_t index_offset, weft_writer *index, weft_diff_stats *stats) {
    weft_roster_measure(roster, &stats->total, &stats->dense_bytes);
    const weft_footer footer = {
        .index_offset = index_offset,
        .index_bytes = index->size,
        .base = stats->base,
        .result = stats->result,
        .changed = stats->changed,
        .total = stats->total,
        .dense_bytes = stats->dense_bytes,
    };
    weft_footer_write(&footer, index);
    if (weft_writer_failed(index)) {
        return WEFT_NO_MEMORY;
    }
    if (footer.index_bytes > weft_context_limits(context)->header_bytes) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                         "the patch's index would be larger than the limit; choose larger buckets");
    }
    stats->patch_bytes = index_offset + index->size;
    return WEFT_OK;
}

weft_status weft_stream_finish(weft_patch_stream *stream, weft_diff_stats *stats) {
    stats->changed = stream->changed;
    stats->buckets = stream->frames;
    weft_writer tail;
    weft_writer_open(&tail, stream->context);
    weft_writer_varint(&tail, stream->frames);
    weft_writer_bytes(&tail, stream->entries.data, stream->entries.size);
    weft_status status =
        weft_stream_write_footer(stream->context, stream->roster, stream->written, &tail, stats);
    if (status == WEFT_OK) {
        status = put(stream, tail.data, tail.size);
    }
    weft_writer_close(&tail);
    return status;
}

void weft_stream_close(weft_patch_stream *stream) {
    weft_writer_close(&stream->entries);
}

bool weft_container_same(const weft_container *a, const weft_container *b) {
    if (a == NULL || b == NULL || a->sharded != b->sharded || a->file_count != b->file_count ||
        a->index_bytes != b->index_bytes) {
        return false;
    }
    for (size_t i = 0; i < a->file_count; i++) {
        if (strcmp(a->files[i].name, b->files[i].name) != 0 ||
            a->files[i].header_bytes != b->files[i].header_bytes ||
            memcmp(a->files[i].header, b->files[i].header, a->files[i].header_bytes) != 0) {
            return false;
        }
    }
    return a->index_bytes == 0 || memcmp(a->index, b->index, a->index_bytes) == 0;
}
