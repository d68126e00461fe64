/* SPDX-License-Identifier: Apache-2.0
 *
 * view.h: what a view offers to the rooms above: where, in live memory, a span of a checkpoint tensor
 * lies.
 *
 * A span is the shape of every domain and bucket: `count` runs of `run` units, the first at unit
 * `start`, each `stride` units after the one before. A flat range has count 1. Runs of a box along
 * dimension d are (b - a) * inner units long, at a stride of shape[d] * inner.
 *
 * A segment is a piece of a span that is contiguous in live memory. In the checkpoint tensor it is too, or
 * it is rows of equal length with equal gaps between them: a box that is held alone is one segment, however
 * many rows it has.
 */
#ifndef WEFT_TENSOR_VIEW_H
#define WEFT_TENSOR_VIEW_H

#include <weft/tensor.h>

typedef struct weft_span {
    uint64_t start;
    uint64_t run;
    uint64_t stride; /* 0 for a flat range, which has count 1 */
    uint64_t count;
} weft_span;

typedef struct weft_segment {
    uint64_t linear;         /* first unit, counted along the bucket that the span belongs to */
    uint64_t units;          /* length */
    uint64_t unit;           /* first unit in the checkpoint tensor */
    uint64_t row;            /* units of a row there; 0 if all of it is one */
    uint64_t gap;            /* units there between the end of a row and the next */
    size_t tensor;           /* view index of the checkpoint tensor */
    const weft_tensor *live; /* the live tensor that holds it */
    uint64_t live_unit;      /* first unit in the live tensor */
} weft_segment;

typedef struct weft_segments {
    weft_context *context;
    weft_segment *items;
    size_t count;
    size_t capacity;
} weft_segments;

typedef enum weft_holding {
    WEFT_HELD_NONE = 0,
    WEFT_HELD_PART = 1,
    WEFT_HELD_ALL = 2,
} weft_holding;

/* Appends the segments of the span, ascending in `linear`, which starts at `linear`. Neighbours that
 * continue each other are joined. */
weft_status weft_view_map(const weft_view *view, size_t tensor, const weft_span *span, uint64_t linear,
                          weft_segments *segments, weft_holding *holding_out);
/* Releases the items. */
void weft_segments_close(weft_segments *segments);

/* The bytes of a segment of plain memory in its storage type; NULL if it is reached by callbacks. */
void *weft_segment_memory(const weft_segment *segment);
/* Copies `units` units (in dtype; F32 masters are cast) from `first` units into the segment. */
weft_status weft_segment_read(weft_context *context, const weft_segment *segment, uint64_t first,
                              uint64_t units, void *output);

#endif
