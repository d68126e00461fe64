/* SPDX-License-Identifier: Apache-2.0
 *
 * code.h: the codings of a bucket's payload. doc/FORMAT.md specifies the bytes.
 *
 * fast    gaps and steps, bit-packed; decoding needs nothing else
 * small   gaps within classes of the base's exponent, and steps, entropy-coded; needs the base
 * smallest  small, with weights that changed lately in classes of their own; needs their list too
 * dense   every unit, as steps or as values, in byte planes under zstd
 * packed  every unit, as steps by class or as values: codes entropy-coded, lowest bits as they are; of
 * floats
 *
 * Encoders keep their buffers from bucket to bucket: one of each per worker.
 */
#ifndef WEFT_PATCH_BUCKET_CODE_H
#define WEFT_PATCH_BUCKET_CODE_H

#include "../../code/classes_read.h"
#include "../../code/classes_write.h"
#include "../../code/pack/packed.h"
#include "../recall/recall.h"
#include "changes.h"
#include "kernels.h"
#include "window.h"

#include <weft/patch.h>

/* Which bits of a unit of that type are its exponent. */
weft_exponent weft_exponent_of(weft_dtype dtype);

/* ---- fast ---- */

weft_status weft_fast_encode(const weft_changes *changes, uint64_t units, weft_writer *writer);
/* `payload` is followed by WEFT_BITS_SLACK readable bytes. */
weft_status weft_fast_decoder_begin(weft_fast_decoder *decoder, weft_context *context,
                                    const uint8_t *payload, size_t size, uint64_t units);
/* Appends the next `count` changes: positions, and steps in `news`. */
weft_status weft_fast_decoder_some(weft_fast_decoder *decoder, weft_changes *changes, size_t count);
/* The failure of a stream that does not hold its changes. */
weft_status weft_fast_decoder_broken(const weft_fast_decoder *decoder);
/* Checks that nothing is left. */
weft_status weft_fast_decoder_finish(const weft_fast_decoder *decoder);

/* ---- small ---- */

enum { WEFT_SHORT_STEP_TOKENS = 64 /* steps of two bytes have codes below 2^16 */ };

/* What a weight that changed lately is sorted by: whether that was in the version before, and its exponent,
 * which starts at bit `shift`; those from 1.0 on are as one. */
static inline uint8_t weft_recent_context(uint64_t item, uint16_t old, unsigned shift) {
    unsigned exponent = (old & 0x7fffu) >> shift;
    return (uint8_t)((weft_recent_age(item) > 1 ? 128 : 0) + (exponent < 127 ? exponent : 127));
}

/* The code of a step, told from the direction of the last one. The farthest step goes either way: it has
 * one code. */
static inline uint32_t weft_recent_code(uint32_t code, uint64_t item) {
    return code == UINT16_MAX ? code : code ^ weft_recent_down(item);
}

/* What is said of the weights that changed lately. */
typedef struct weft_recent_encoder {
    weft_class_encoder coder;
    weft_recent list;  /* of the bucket; empty if nothing is known, or nothing is to be used */
    size_t next;       /* the first item that no tile had yet */
    uint8_t *contexts; /* of each item */
    uint32_t *codes;   /* of its step, told from the last one's direction; -1 if it does not change */
    size_t capacity;
    size_t changed;
} weft_recent_encoder;

/* The first token that no step of `width` bytes has. */
static inline unsigned weft_step_tokens(unsigned width) {
    return 32 * width;
}

typedef struct weft_small_encoder {
    weft_class_encoder coder;
    weft_exponent exponent;
    bool lawful;               /* tables may follow laws */
    uint32_t codes[WEFT_TILE]; /* of the steps of a tile */
    /* of its units, where these are not words themselves, or of changes that are left of it */
    uint16_t words[WEFT_TILE + WEFT_KERNEL_SLACK];
    uint16_t olds[WEFT_TILE]; /* and of those that change */
    /* with a list of recent changes: what is left of a tile, and where those of the list are */
    uint32_t positions[WEFT_TILE + WEFT_KERNEL_SLACK];
    uint16_t indices[WEFT_TILE];
    weft_recent_encoder recent;
} weft_small_encoder;

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context);
void weft_small_encoder_close(weft_small_encoder *encoder);
/* Chooses classes for a bucket of `units` units. `sample` is NULL for units without an exponent; `lawful`
 * is false in format 1, whose tables follow no laws. */
void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units, bool lawful);
/* Goes on to the next stretch, of at most WEFT_TILE units, which starts at `linear`, and takes its changes:
 * those from index `first` on. */
weft_status weft_small_encoder_tile(weft_small_encoder *encoder, const void *base, size_t units,
                                    uint32_t linear, const weft_changes *changes, size_t first);
/* In the coding `small`, or `smallest` if the list of recent changes is not empty. */
weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer);

typedef struct weft_small_decoder {
    weft_class_decoder coder; /* its values are steps: uint16_t, uint32_t or uint64_t, by the width */
    const weft_entry_kernels *entry_kernels;
    uint8_t scratch[4 * WEFT_TILE]; /* a tile's weights, for proofs that must not write to them */
    uint16_t words[WEFT_TILE];      /* its words, where weights are not words themselves */
} weft_small_decoder;

void weft_small_decoder_open(weft_small_decoder *decoder, weft_context *context);
void weft_small_decoder_close(weft_small_decoder *decoder);
/* Sets positions, olds and news from the memory of the proof's window, and proves them on the way, while
 * the weights are in the cache. Positions ascend from tile to tile; within one, only if the window is a
 * copy. The proof is one of steps. */
weft_status weft_small_decode(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                              weft_exponent exponent, const uint8_t *payload, size_t size, uint64_t units,
                              size_t count, weft_changes *changes, weft_proof *proof);

/* Of a bucket of the coding `smallest`, appends the positions, and steps in `news`, in any order. The
 * window is the base's. */
weft_status weft_smallest_decode(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                                 weft_exponent exponent, const weft_recent *recent, const uint8_t *payload,
                                 size_t size, uint64_t units, size_t count, const weft_window *window,
                                 weft_changes *changes);

/* True if all changes are of one class: their positions do not depend on the base. */
bool weft_small_single(weft_exponent exponent, const uint8_t *payload, size_t size, size_t count);
/* Of such a bucket, appends the positions, and steps in `news`. */
weft_status weft_small_decode_steps(weft_small_decoder *decoder, weft_exponent exponent,
                                    const uint8_t *payload, size_t size, uint64_t units, size_t count,
                                    weft_changes *changes);

/* ---- dense ---- */

/* Codes `units` units as values, or with `base` as steps from it. */
weft_status weft_dense_encode(weft_context *context, const void *base, const void *values, size_t units,
                              unsigned width, weft_profile profile, weft_writer *writer);
weft_status weft_dense_decode(weft_context *context, const uint8_t *payload, size_t size, const void *base,
                              size_t units, unsigned width, void *output);

/* ---- packed ---- */

/* How units of that type are packed: not at all if `low` is 0. */
weft_packed_kind weft_packed_kind_of(weft_dtype dtype);

#endif
