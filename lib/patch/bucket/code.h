/* SPDX-License-Identifier: Apache-2.0
 *
 * code.h: the codings of a bucket's payload. doc/FORMAT.md specifies the bytes.
 *
 * fast    gaps and steps, bit-packed; decoding needs nothing else
 * small   gaps within classes of the base's exponent, and steps, entropy-coded; needs the base
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
#include "../../code/pack.h"
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

typedef struct weft_small_encoder {
    weft_class_encoder coder;
    uint32_t codes[WEFT_TILE]; /* of the steps of a tile */
} weft_small_encoder;

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context);
void weft_small_encoder_close(weft_small_encoder *encoder);
/* Chooses classes for a bucket of `units` units. `sample` is NULL for units without an exponent. */
void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units);
/* Goes on to the next stretch, of at most WEFT_TILE units, which starts at `linear`, and takes its changes:
 * those from index `first` on. */
weft_status weft_small_encoder_tile(weft_small_encoder *encoder, const void *base, size_t units,
                                    uint32_t linear, const weft_changes *changes, size_t first);
weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer);

typedef struct weft_small_decoder {
    weft_class_decoder coder;       /* its values are steps: uint16_t for two-byte units, else uint64_t */
    uint8_t scratch[2 * WEFT_TILE]; /* a tile's weights, for proofs that must not write to them */
} weft_small_decoder;

void weft_small_decoder_open(weft_small_decoder *decoder, weft_context *context);
void weft_small_decoder_close(weft_small_decoder *decoder);
/* Sets positions, olds and news from the memory of the proof's window, and proves them on the way, while
 * the weights are in the cache. Positions ascend from tile to tile; within one, only if the window is a
 * copy. The proof is one of steps. */
weft_status weft_small_decode(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                              weft_exponent exponent, const uint8_t *payload, size_t size, uint64_t units,
                              size_t count, weft_changes *changes, weft_proof *proof);

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

/* The bits of a value below its exponent, the sign's included; 0 if the dtype is not one whose weights are
 * packed. */
unsigned weft_packed_low(weft_dtype dtype);

/* Units that stand for those of a bucket; whole ones have no old ones. */
typedef struct weft_packed_sample {
    const void *olds;
    const void *news;
    size_t count; /* at most WEFT_PACK_SAMPLE */
} weft_packed_sample;

/* Memory that grows. */
typedef struct weft_packed_bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
} weft_packed_bytes;

/* What becomes of a class. */
typedef struct weft_packed_part {
    weft_pack_form form;
    uint64_t still;   /* lowest bits that did not vary in the sample, */
    uint64_t moved;   /* and those of them that do */
    uint8_t *numbers; /* those that wait for a whole group, and those of a tile */
    size_t waiting;
    size_t units; /* that are coded */
    size_t escapes;
    weft_packed_bytes symbols;
    weft_packed_bytes planes;
    weft_packed_bytes tokens; /* of the escapes */
    weft_packed_bytes rests;  /* and their plain bits, eight bytes each */
    weft_rans_table codes;
    weft_rans_table beyond; /* of the escapes */
} weft_packed_part;

typedef struct weft_packed_encoder {
    weft_context *context;
    const weft_patch_kernels *kernels;
    unsigned width;
    unsigned shift; /* of the exponent */
    bool values;
    size_t units;
    size_t changed; /* units whose step is not zero, so far */
    weft_classes classes;
    weft_packed_part parts[WEFT_CLASS_MAX];
    weft_tile tile;
    uint16_t numbers[WEFT_TILE];
    uint64_t sample[WEFT_PACK_SAMPLE];
    uint64_t chosen[WEFT_PACK_SAMPLE]; /* those of a class */
    weft_packed_bytes room;            /* where the bits and then the stream are written */
} weft_packed_encoder;

void weft_packed_encoder_open(weft_packed_encoder *encoder, weft_context *context);
void weft_packed_encoder_close(weft_packed_encoder *encoder);
/* True if units like these cost less as values than as steps. */
bool weft_packed_prefers_values(weft_packed_encoder *encoder, const weft_patch_kernels *kernels,
                                weft_dtype dtype, weft_profile profile, const weft_packed_sample *sample);
/* Begins a bucket of `units` units, as values or as steps, with classes for `exponents`, or one if that is
 * NULL. */
weft_status weft_packed_encoder_begin(weft_packed_encoder *encoder, const weft_patch_kernels *kernels,
                                      weft_dtype dtype, bool values, weft_profile profile,
                                      const weft_class_sample *exponents, const weft_packed_sample *sample,
                                      uint64_t units);
/* Takes the next units, at most WEFT_TILE. Values need no old ones. */
weft_status weft_packed_encoder_tile(weft_packed_encoder *encoder, const void *old, const void *new,
                                     size_t units);
/* After the last tile. Sets *again_out if the sample misled about bits that never vary: then all tiles, and
 * this call, are to come once more. */
weft_status weft_packed_encoder_end(weft_packed_encoder *encoder, bool *again_out);
weft_status weft_packed_encoder_finish(weft_packed_encoder *encoder, weft_writer *writer);

typedef struct weft_packed_decoder {
    weft_context *context;
    const weft_patch_kernels *kernels;
    unsigned width;
    bool values;
    unsigned classes;
    unsigned shift;
    uint8_t cuts[WEFT_CLASS_MAX];
    uint8_t *numbers; /* of all classes */
    size_t number_bytes;
    uint8_t *symbols; /* of a class, and behind them the tokens of its escapes */
    size_t symbol_bytes;
    uint64_t *escapes; /* which numbers of a class have one */
    size_t escape_bytes;
    const void *nexts[WEFT_CLASS_MAX]; /* the next number of each class */
    size_t left[WEFT_CLASS_MAX];       /* how many there are */
    weft_tile tile;
    uint16_t merged[WEFT_TILE];
} weft_packed_decoder;

void weft_packed_decoder_open(weft_packed_decoder *decoder, weft_context *context);
void weft_packed_decoder_close(weft_packed_decoder *decoder);
/* Decodes the numbers of a bucket of `units` units. `payload` is followed by WEFT_BITS_SLACK readable
 * bytes. */
weft_status weft_packed_decoder_begin(weft_packed_decoder *decoder, const weft_patch_kernels *kernels,
                                      weft_dtype dtype, bool values, const uint8_t *payload, size_t size,
                                      size_t units);
/* The next units, at most WEFT_TILE, from the old ones, which may be where the new ones go. After all units
 * of the bucket were taken, nothing is left. Values need no old ones. */
weft_status weft_packed_decoder_next(weft_packed_decoder *decoder, const void *old, size_t units,
                                     void *new);

#endif
