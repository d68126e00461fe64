/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h: writing a patch file from front to back: header, frames as they come, index and footer.
 */
#ifndef WEFT_PATCH_FORMAT_STREAM_H
#define WEFT_PATCH_FORMAT_STREAM_H

#include "format.h"

typedef struct weft_patch_stream {
    weft_context *context;
    const weft_sink *sink;
    const weft_roster *roster;
    weft_writer entries; /* of the index */
    uint64_t frames;
    uint64_t written;
    uint64_t changed;
} weft_patch_stream;

/* Writes the header. */
weft_status weft_stream_open(weft_patch_stream *stream, weft_context *context, const weft_sink *sink,
                             unsigned format, weft_profile profile, unsigned depth,
                             const weft_roster *roster, bool same_files, const weft_container *container,
                             const char *const *labels);
/* `frame` holds one whole frame of the bucket. */
weft_status weft_stream_frame(weft_patch_stream *stream, const weft_bucket *bucket,
                              const weft_writer *frame, uint64_t changed);
/* Writes index and footer. The stats have the digests of base and result, and are given all the rest but
 * what an inverse takes. */
weft_status weft_stream_finish(weft_patch_stream *stream, weft_diff_stats *stats);
/* One that is all zeros counts as closed. */
void weft_stream_close(weft_patch_stream *stream);

/* The end of a patch that is not written by a stream: appends the footer to an index that begins at
 * `index_offset` of the file. The stats have digests and counts, and are given the sizes. */
weft_status weft_stream_write_footer(weft_context *context, const weft_roster *roster,
                                     uint64_t index_offset, weft_writer *index, weft_diff_stats *stats);

/* True if both are given and say the same. */
bool weft_container_same(const weft_container *a, const weft_container *b);

/* Units and bytes of all tensors of the result. */
void weft_roster_measure(const weft_roster *roster, uint64_t *units_out, uint64_t *bytes_out);

#endif
