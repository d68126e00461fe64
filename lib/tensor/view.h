/* SPDX-License-Identifier: Apache-2.0
 *
 * view.h: what a view offers to the rooms above: where, in live memory, a span of a checkpoint tensor
 * lies.
 *
 * A span is the shape of what a layout holds and of what a bucket covers: `count` runs of `run` units, the
 * first at unit `start`, each `stride` units after the one before. A flat range has count 1. Runs of a box
 * along dimension d are (b - a) * inner units long, at a stride of shape[d] * inner.
 *
 * A segment is a piece of a span that lies regularly everywhere: one stretch, or rows of equal length with
 * equal gaps between them, in the checkpoint tensor, in live memory and along the bucket, each with a gap
 * of its own, which may be none. So a box is one segment however many rows it has, whether it is held alone
 * or within a larger tensor, and so is a tensor that is joined with others row by row. Only what takes
 * turns (rows that are held by several live tensors) is a segment for each turn.
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
    uint64_t units;          /* of all rows together */
    uint64_t row;            /* units of a row; 0 if all of it is one stretch, and then there are no gaps */
    uint64_t linear_gap;     /* between the end of a row and the next; none if all of the span is held */
    uint64_t unit;           /* first unit in the checkpoint tensor */
    uint64_t gap;            /* the same there */
    size_t tensor;           /* view index of the checkpoint tensor */
    const weft_tensor *live; /* the live tensor that holds it */
    uint64_t live_unit;      /* first unit in the live tensor */
    uint64_t live_gap;       /* the same there */
    bool tied;               /* its memory is another tensor's too, and written as that */
} weft_segment;

/* Of what lies `offset` units into the segment: the unit of the checkpoint tensor, */
static inline uint64_t weft_segment_unit(const weft_segment *segment, uint64_t offset) {
    return segment->unit + offset + (segment->row != 0 ? offset / segment->row * segment->gap : 0);
}
/* that of the live tensor, */
static inline uint64_t weft_segment_live(const weft_segment *segment, uint64_t offset) {
    return segment->live_unit + offset +
           (segment->live_gap != 0 ? offset / segment->row * segment->live_gap : 0);
}
/* the place along the bucket, */
static inline uint64_t weft_segment_linear(const weft_segment *segment, uint64_t offset) {
    return segment->linear + offset +
           (segment->linear_gap != 0 ? offset / segment->row * segment->linear_gap : 0);
}
/* and how many units follow each other from there on, everywhere. */
static inline uint64_t weft_segment_left(const weft_segment *segment, uint64_t offset) {
    return segment->row != 0 ? segment->row - offset % segment->row : segment->units - offset;
}

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
 * continue each other, or repeat each other at a distance, are joined. */
weft_status weft_view_map(const weft_view *view, size_t tensor, const weft_span *span, uint64_t linear,
                          weft_segments *segments, weft_holding *holding_out);
/* The index of a segment's live tensor in the table that the view was made of. */
size_t weft_view_live(const weft_view *view, const weft_tensor *live);
/* The tensor, with the same dtype and shape, whose memory the view holds this one in, too; it is the first
 * of them, and has none itself: WEFT_NO_TIE. Both are in the checkpoint, and must always be the same. */
#define WEFT_NO_TIE SIZE_MAX
size_t weft_view_tie(const weft_view *view, size_t tensor);
/* True if some tensor has one. */
bool weft_view_tied(const weft_view *view);
/* How live tensors that have an access are reached in batches; NULL if each is through its own. */
const weft_batch_access *weft_view_batch(const weft_view *view);
/* True if some live tensor has a converter. */
bool weft_view_converts(const weft_view *view);
/* Releases the items. */
void weft_segments_close(weft_segments *segments);

/* The first byte of a segment of plain memory in its storage type; NULL if it is reached by callbacks, or
 * through strides (weft_tensor_memory). */
void *weft_segment_memory(const weft_segment *segment);
/* Copies `units` units (in dtype; F32 masters are cast) from `first` units into the segment, row behind
 * row. */
weft_status weft_segment_read(weft_context *context, const weft_segment *segment, uint64_t first,
                              uint64_t units, void *output);

#endif
