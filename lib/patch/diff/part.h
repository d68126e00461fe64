/* SPDX-License-Identifier: Apache-2.0
 *
 * part.h: one patch that several processes make together, each of what it holds.
 *
 * Where the buckets lie depends on names, dtypes, shapes and cuts only: processes that know these have the
 * same plan, and each encodes the buckets that it owns. Frames stand alone and may come in any order, so
 * that a header, the frames of one after the frames of the other, and an index make a patch like any other.
 */
#ifndef WEFT_PATCH_DIFF_PART_H
#define WEFT_PATCH_DIFF_PART_H

#include "../format/format.h"

typedef struct weft_part_plan {
    weft_context *context;
    unsigned format; /* 0: the newest */
    weft_profile profile;
    weft_roster kept;  /* of a patch between two states of the model */
    weft_roster fresh; /* of a patch from nothing */
    weft_plan plan;    /* the same for both */
} weft_part_plan;

/* The plan of the model that `view` shows, whatever it holds of it. */
weft_status weft_part_plan_open(weft_part_plan *plan, weft_context *context, const weft_view *view,
                                const weft_diff_options *options);
/* What is encoded from now on is for patches of that format. */
void weft_part_plan_set_format(weft_part_plan *plan, unsigned format);
void weft_part_plan_close(weft_part_plan *plan);
/* All that two processes must agree on. */
void weft_part_plan_write(const weft_part_plan *plan, weft_writer *writer);
/* The bytes of weights in a bucket. */
uint64_t weft_part_weight(const weft_part_plan *plan, size_t bucket);
/* The first tensor of a bucket. */
const char *weft_part_tensor(const weft_part_plan *plan, size_t bucket);
/* Sets held[i] for each bucket of which the view has everything. */
weft_status weft_part_holds(const weft_part_plan *plan, const weft_view *view, bool *held);

/* A frame of a bucket, in the order in which frames were written. */
typedef struct weft_part_frame {
    uint64_t bucket;
    uint64_t length;
    uint64_t checksum;
    uint64_t changed;
} weft_part_frame;

typedef struct weft_part_request {
    const weft_part_plan *plan;
    const bool *owned;     /* of each bucket */
    const weft_view *base; /* a private copy that follows, as with weft_diff; NULL: from nothing */
    const weft_view *next;
    weft_trail **trail; /* with a base: the way back */
} weft_part_request;

typedef struct weft_part_result {
    weft_part_frame *frames; /* released by the caller */
    size_t frame_count;
    uint64_t bytes;
    uint64_t changed;
    weft_sums *moves; /* what the owned buckets do to the sums of the state; destroyed by the caller */
} weft_part_result;

/* Writes the frames of the owned buckets. On failure the base is as it was. */
weft_status weft_part_encode(weft_context *context, const weft_part_request *request, const weft_sink *sink,
                             weft_part_result *result_out);

/* Copies the owned buckets from one view to another. */
weft_status weft_part_copy(weft_context *context, const weft_part_plan *plan, const bool *owned,
                           const weft_view *from, const weft_view *to);
/* Adds the sums of the owned buckets to totals[tensor]. */
weft_status weft_part_total(weft_context *context, const weft_part_plan *plan, const bool *owned,
                            const weft_view *view, weft_sum *totals);

/* The bytes before the first frame. */
weft_status weft_part_write_header(const weft_part_plan *plan, bool fresh, const weft_container *container,
                                   const char *const *labels, weft_writer *writer);
/* The bytes behind the last frame. The frames are all of them, in the order of the file, and begin at
 * `header_bytes`. The stats have the digests of base and result, and are given all the rest. */
weft_status weft_part_write_tail(const weft_part_plan *plan, bool fresh, const weft_part_frame *frames,
                                 size_t frame_count, uint64_t header_bytes, weft_writer *writer,
                                 weft_diff_stats *stats);

#endif
