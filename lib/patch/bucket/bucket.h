/* SPDX-License-Identifier: Apache-2.0
 *
 * bucket.h: a bucket's frame: made from two states, and turned back into changes.
 *
 * A frame stands alone: with the patch's roster it can be checked, decoded and proven without any other
 * frame. One coder per worker keeps the buffers.
 */
#ifndef WEFT_PATCH_BUCKET_BUCKET_H
#define WEFT_PATCH_BUCKET_BUCKET_H

#include "code.h"
#include "plan.h"

enum {
    WEFT_FRAME_LENGTH = 4,   /* bytes of the length field that a frame starts with */
    WEFT_FRAME_CHECKSUM = 8, /* bytes of the checksum that it ends with */
};

typedef struct weft_bucket_coder {
    weft_context *context;
    const weft_patch_kernels *kernels;
    weft_window from;
    weft_window to;
    weft_changes changes;
    weft_small_encoder small_encoder;
    weft_small_decoder small_decoder;
    weft_packed_encoder packed_encoder;
    weft_packed_decoder packed_decoder;
    weft_rice_encoder rice_encoder;
    weft_rice_decoder rice_decoder;
    uint8_t tile_olds[8 * WEFT_TILE]; /* units of a tile, where they do not lie end to end */
    uint8_t tile_news[8 * WEFT_TILE];
    uint32_t tile_positions[WEFT_TILE + WEFT_KERNEL_SLACK];
    weft_writer payload;
    /* What the profile `smallest` and its coding know besides the base, and how far back it counts; NULL:
     * nothing. */
    weft_recall *recall;
    unsigned depth;
    weft_recent recent; /* of the bucket that is decoded */
    /* Encoding writes the new values into the window `from`, where it touches them anyway, unless there are
     * so many that it may want all old ones again. */
    bool follows;
} weft_bucket_coder;

void weft_bucket_coder_open(weft_bucket_coder *coder, weft_context *context);
void weft_bucket_coder_close(weft_bucket_coder *coder);

/* One side of a difference. */
typedef struct weft_bucket_side {
    const weft_view *view;
    const int64_t *tensor_map;
} weft_bucket_side;

typedef struct weft_frame_result {
    uint64_t changed;
    bool present; /* false: nothing changed, and the frame is empty */
    bool written; /* the new values are in place: see weft_bucket_coder.follows */
} weft_frame_result;

/* Writes the frame that leads from one side to the other. `moves`, shaped like the `from` view, receives
 * what the changes do to the digest; NULL if nobody asks. */
weft_status weft_bucket_encode(weft_bucket_coder *coder, const weft_bucket *bucket,
                               const weft_roster *roster, weft_profile profile,
                               const weft_bucket_side *from, const weft_bucket_side *to, weft_sums *moves,
                               weft_writer *frame, weft_frame_result *result);
/* The same for tensors that were not there before. `sums` is shaped like the `to` view. */
weft_status weft_bucket_encode_whole(weft_bucket_coder *coder, const weft_bucket *bucket,
                                     const weft_roster *roster, weft_profile profile,
                                     const weft_bucket_side *to, weft_sums *sums, weft_writer *frame,
                                     weft_frame_result *result);
/* The same for the two windows of the coder, already set, in dtype on the `from` side. `moves` is shaped
 * like the view behind coder->from. */
weft_status weft_bucket_encode_windows(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       const weft_roster *roster, weft_profile profile, weft_sums *moves,
                                       weft_writer *frame, weft_frame_result *result);
/* True if so many units of the bucket differ that dense codings are for it, which want both windows. */
bool weft_bucket_many(const weft_bucket *bucket, weft_profile profile, uint64_t changed);
/* True if so few differ that a list of them takes less memory than all units. */
bool weft_bucket_few(const weft_bucket *bucket, uint64_t changed);
/* Makes sure that coder->changes lists what was just encoded, if it is few. */
weft_status weft_bucket_list(weft_bucket_coder *coder, const weft_bucket *bucket,
                             const weft_frame_result *result);
/* The same as weft_bucket_encode_windows for coder->changes, which hold all that is to differ from
 * coder->from, ascending, and are not many. */
weft_status weft_bucket_encode_known(weft_bucket_coder *coder, const weft_bucket *bucket,
                                     const weft_roster *roster, weft_profile profile, weft_sums *moves,
                                     weft_writer *frame, weft_frame_result *result);
/* Points coder->from at the base, in dtype. One that is to follow must be such that it can. */
weft_status weft_bucket_open_base(weft_bucket_coder *coder, const weft_bucket *bucket,
                                  const weft_bucket_side *from);
/* The same, in the fast coding, for the changes in coder->changes, which do `delta` to the digest. */
weft_status weft_bucket_encode_changes(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       const weft_roster *roster, weft_sum delta, weft_writer *frame,
                                       weft_frame_result *result);

/* Tells coder->recall what the encoder has found, which coder->changes have if it is few. */
weft_status weft_bucket_note(weft_bucket_coder *coder, const weft_bucket *bucket, const weft_roster *roster,
                             const weft_frame_result *result);

/* A frame's fields. The payload points into the frame and is followed by the checksum, which serves the
 * bit readers as slack. */
typedef struct weft_frame {
    weft_coding coding;
    weft_bucket bucket; /* owned: weft_bucket_close */
    uint64_t changed;
    weft_sum delta;
    const uint8_t *payload;
    size_t payload_size;
    uint64_t checksum;
    uint64_t place;      /* of its bucket: what is recalled of it is kept under that */
    const uint8_t *data; /* the whole frame */
    size_t size;
} weft_frame;

weft_status weft_frame_read(weft_context *context, const weft_roster *roster, const uint8_t *data,
                            size_t size, weft_frame *frame);
/* The checksum that a whole frame ends with. */
uint64_t weft_frame_checksum(const uint8_t *data, size_t size);
/* True if all units of its bucket are decoded at once: the dense codings, except packed ones of so few
 * changes that these are listed, like those of the sparse codings. */
bool weft_frame_dense(const weft_frame *frame);
/* Appends a frame that does the same and decodes without the base: a `small` one becomes a `fast` one of
 * its `changes`, which ascend; any other is copied. */
weft_status weft_frame_relay(weft_context *context, const weft_frame *frame, const weft_roster *roster,
                             const weft_changes *changes, weft_writer *output);

/* Where a frame is not dense: fills `changes` from the window coder->from, which must be set, and proves
 * them. */
weft_status weft_frame_decode(weft_bucket_coder *coder, const weft_frame *frame, weft_changes *changes,
                              weft_sums *moves, weft_sum *delta_out);
/* Notes what a frame has changed; `changes` ascend, and count only if it is sparse. */
weft_status weft_frame_note(weft_recall *recall, const weft_frame *frame, const weft_changes *changes);
/* True if weft_frame_decode_through decodes it: any but those under zstd. */
bool weft_frame_passes(const weft_frame *frame);
/* The same, writing the new values into the window as they are decoded and keeping nothing. The window
 * must be direct, writable and plain memory. `fresh` means that nothing was there before. */
weft_status weft_frame_decode_through(weft_bucket_coder *coder, const weft_frame *frame, bool fresh,
                                      weft_sums *moves, weft_sum *delta_out);
/* True if the changes can be decoded without the base, whose words are needed only where it changes: the
 * fast coding, and the small one of a single class. */
bool weft_frame_by_words(const weft_frame *frame);
/* Such a frame without a window: positions, and steps in `news`. */
weft_status weft_frame_decode_steps(weft_bucket_coder *coder, const weft_frame *frame,
                                    weft_changes *changes);
/* Dense codings: all new values; `base` holds all old ones, in dtype, if the frame needs them. */
weft_status weft_frame_decode_dense(weft_bucket_coder *coder, const weft_frame *frame, const void *base,
                                    void *output);

/* ---- scan.c: comparing a bucket of two states ---- */

/* Looks at units all over the bucket, in both windows: at most `most` of them, or as many as
 * coder->tile_olds and coder->tile_news have room for, where it puts them. Returns how many. */
size_t weft_scan_pick(weft_bucket_coder *coder, const weft_window *from, const weft_window *to,
                      const weft_bucket *bucket, size_t most);
/* Looks at some of coder->from and coder->to, all over the bucket, and counts those that differ. Returns
 * how many it has looked at. */
size_t weft_scan_glance(weft_bucket_coder *coder, const weft_bucket *bucket, size_t *differing);
/* A sample that classes can be cut from. */
weft_status weft_scan_sample(weft_bucket_coder *coder, const weft_bucket *bucket,
                             weft_class_sample *sample);
/* Fills coder->changes with what differs between the windows coder->from and coder->to. On the way, with
 * `small`, it feeds the small encoder, and unless `delta` is NULL proves what it finds: adds it to `delta`,
 * which starts at zero, and to `moves`, unless that is NULL. Stops early, with *dense_out set and all that
 * is proven taken back, once more than `most` units differ. */
weft_status weft_scan(weft_bucket_coder *coder, const weft_bucket *bucket, bool small, uint64_t most,
                      weft_sums *moves, weft_sum *delta, bool *dense_out);
/* Where coder->changes are known, ascending: feeds the small encoder with them and with coder->from. */
weft_status weft_scan_known(weft_bucket_coder *coder, const weft_bucket *bucket);

/* ---- bucket_packed.c: the packed codings between the weights of a bucket and its payload ---- */

/* True if a bucket that is dense is packed: one of floats that is not tiny. */
bool weft_bucket_packs(const weft_bucket *bucket);
/* Codes what leads from the window coder->from to coder->to, with coder->packed_encoder, all but the
 * writing, or by Rice's code, into coder->payload, and proves it. If fewer than `least` units differ, all
 * is left as it was. */
weft_status weft_bucket_pack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_profile profile,
                             uint64_t least, weft_sums *moves, weft_coding *coding, uint64_t *changed,
                             weft_sum *delta);
/* The same for all that coder->to has, where nothing was before. */
weft_status weft_bucket_pack_whole(weft_bucket_coder *coder, const weft_bucket *bucket, weft_sums *sums,
                                   weft_sum *delta);
/* All new units of the bucket, from the old ones, which values do not need. */
weft_status weft_bucket_unpack(weft_bucket_coder *coder, const weft_bucket *bucket, weft_coding coding,
                               const uint8_t *payload, size_t size, const void *base, void *output);
/* The same into the window coder->from, which is plain memory that may be written, proven on the way.
 * `fresh` means that nothing was there before. */
weft_status weft_bucket_unpack_through(weft_bucket_coder *coder, const weft_bucket *bucket,
                                       weft_coding coding, const uint8_t *payload, size_t size, bool fresh,
                                       weft_sums *moves, weft_sum *delta_out);

/* The same as a list of changes, which has as many as the frame says unless that lies. */
weft_status weft_bucket_unpack_changes(weft_bucket_coder *coder, const weft_frame *frame,
                                       weft_changes *changes, weft_sums *moves, weft_sum *delta_out);

#endif
