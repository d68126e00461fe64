/* SPDX-License-Identifier: Apache-2.0
 *
 * packed.h: all units of a bucket to bytes and back: numbers in classes of the old exponent, each class in
 * a form of its own (pack.h), symbols and escapes under the entropy coder (rans_wide.h). doc/FORMAT.md,
 * section 10, has the bytes. Both sides keep their memory from bucket to bucket.
 */
#ifndef WEFT_CODE_PACK_PACKED_H
#define WEFT_CODE_PACK_PACKED_H

#include "../../base/bytes.h"
#include "../../base/context.h"
#include "../classes.h"
#include "../entries.h"
#include "pack.h"
#include "rans_wide.h"
#include "rice.h"

#include <string.h>

/* The number at `index` of an array of numbers of `width` bytes. */
/* One copy for each width, which compilers make a load of; one of any length would be a call. */
static inline uint64_t weft_packed_load(const void *numbers, size_t index, unsigned width) {
    const uint8_t *number = (const uint8_t *)numbers + index * width;
    uint64_t value = 0;
    switch (width) {
    case 1:
        return *number;
    case 2:
        memcpy(&value, number, 2);
        return value;
    case 4:
        memcpy(&value, number, 4);
        return value;
    default:
        memcpy(&value, number, 8);
        return value;
    }
}

static inline void weft_packed_store(void *numbers, size_t index, unsigned width, uint64_t value) {
    memcpy((uint8_t *)numbers + index * width, &value, width);
}

/* What units are like. */
typedef struct weft_packed_kind {
    unsigned width;         /* in bytes */
    unsigned low;           /* bits of a value below its exponent, the sign's included */
    weft_exponent exponent; /* that steps are sorted by */
} weft_packed_kind;

typedef struct weft_packed_kernels {
    const weft_tile_kernels *tiles;
    const weft_pack_kernels *packs;
    const weft_rans_wide_kernels *wide;
    const weft_rice_kernels *rice;
} weft_packed_kernels;

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
    size_t expected; /* units, to judge by the sample */
    size_t units;    /* that are coded */
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
    const weft_packed_kernels *kernels;
    const weft_entry_kernels *entries;
    unsigned width;
    weft_exponent exponent;
    bool values;
    size_t units;
    size_t changed; /* units whose step is not zero, so far */
    weft_classes classes;
    weft_packed_part parts[WEFT_CLASS_MAX];
    weft_tile tile;
    uint32_t numbers[WEFT_TILE]; /* of any width that has classes, */
    uint16_t words[WEFT_TILE];   /* and words of that, where units are not words themselves */
    uint64_t sample[WEFT_PACK_SAMPLE];
    uint64_t chosen[WEFT_PACK_SAMPLE]; /* the same, class by class */
    weft_packed_bytes room;            /* where the bits and then the stream are written */
} weft_packed_encoder;

void weft_packed_encoder_open(weft_packed_encoder *encoder, weft_context *context);
void weft_packed_encoder_close(weft_packed_encoder *encoder);
/* True if units like these cost less as values than as steps: as packed ones if `rice` is NULL, otherwise
 * in the form of rice.h that fits them best, which it sets. */
bool weft_packed_prefers_values(weft_packed_encoder *encoder, const weft_packed_kernels *kernels,
                                weft_packed_kind kind, const weft_packed_sample *sample,
                                weft_rice_form *rice);
/* Begins a bucket of `units` units, as values or as steps, with classes for `exponents`, or one if that is
 * NULL. */
weft_status weft_packed_encoder_begin(weft_packed_encoder *encoder, const weft_packed_kernels *kernels,
                                      weft_packed_kind kind, bool values,
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
    const weft_packed_kernels *kernels;
    const weft_entry_kernels *entries;
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
    const uint8_t *nexts[WEFT_CLASS_MAX]; /* the next number of each class */
    size_t left[WEFT_CLASS_MAX];          /* how many there are */
    weft_tile tile;
    uint16_t words[WEFT_TILE];
    uint32_t merged[WEFT_TILE];
} weft_packed_decoder;

void weft_packed_decoder_open(weft_packed_decoder *decoder, weft_context *context);
void weft_packed_decoder_close(weft_packed_decoder *decoder);
/* Decodes the numbers of a bucket of `units` units. `payload` is followed by WEFT_BITS_SLACK readable
 * bytes. */
weft_status weft_packed_decoder_begin(weft_packed_decoder *decoder, const weft_packed_kernels *kernels,
                                      weft_packed_kind kind, bool values, const uint8_t *payload,
                                      size_t size, size_t units);
/* The next units, at most WEFT_TILE, from the old ones, which may be where the new ones go. After all units
 * of the bucket were taken, nothing is left. Values need no old ones. */
weft_status weft_packed_decoder_next(weft_packed_decoder *decoder, const void *old, size_t units,
                                     void *new);

#endif
