/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.h: the inside of a view, shared by view.c, which walks it, and view_layout.c, which builds it
 * from a layout.
 *
 * Two slices of one tensor along different dimensions always meet, so slices that do not overlap are
 * all cut along the same dimension. Seen flat, a checkpoint tensor is therefore a sequence of rows of
 * equal length, and each piece is the same range of every row. That is what makes mapping cheap: the
 * place of a unit is one division by the row and one search among the pieces of a row.
 */
#ifndef WEFT_TENSOR_PIECES_H
#define WEFT_TENSOR_PIECES_H

#include "view.h"

/* One slice and where it lies. The units of the slice, counted in row-major order from 0, are cut into
 * runs of `live_run`, and run k starts at live unit live_base + k * live_stride. */
typedef struct weft_piece {
    const weft_tensor *live;
    uint64_t start;  /* first unit within each row */
    uint64_t length; /* units within each row, never 0 */
    uint64_t live_base;
    uint64_t live_run; /* never 0; at least all units of the piece if they are contiguous */
    uint64_t live_stride;
} weft_piece;

typedef struct weft_mapping {
    uint64_t units;     /* of the checkpoint tensor */
    uint64_t row;       /* units of a row; all units if it is held whole, or not at all */
    uint64_t held;      /* units held */
    weft_piece *pieces; /* ascending by start, without overlap; within weft_view.pieces */
    size_t piece_count;
    bool whole; /* held by one live tensor in one contiguous run */
    size_t tie; /* the tensor whose memory this is too, or WEFT_NO_TIE */
} weft_mapping;

struct weft_view {
    weft_context *context;
    const weft_table *table; /* of a straight view: where its tensors come from */
    size_t count;
    weft_tensor *tensors; /* the checkpoint's, in canonical order */
    weft_mapping *mappings;
    char *names;       /* of the checkpoint's tensors, one behind the other */
    weft_tensor *live; /* what pieces point to; NULL in a straight view, where it is `tensors` */
    weft_piece *pieces;
    weft_batch_access batch; /* how live tensors with an access are reached; its size is 0 if singly */
    bool complete;
    bool tied;     /* some tensor has a tie */
    bool converts; /* some live tensor has a converter */
};

/* A view of the tensors of `checkpoint` that holds nothing yet, with room for `piece_count` pieces. */
weft_status weft_view_begin(weft_context *context, const weft_table *checkpoint, size_t piece_count,
                            weft_view **view_out);
/* Counts what the pieces hold, once they are in place. */
void weft_view_settle(weft_view *view);
/* Finds tensors that share their memory, among `count` live tensors; after that. */
weft_status weft_view_find_ties(weft_view *view, const weft_tensor *lives, size_t count);

#endif
