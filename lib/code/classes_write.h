/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_write.h: writing what is coded by classes of the exponent, which classes_read.h reads: the
 * changes of a `small` bucket, and the values of a block of PULSELoCo.
 *
 * The classes are cut from a sample before anything is coded, so that comparing, classifying, ranking and
 * sorting happen in one pass, tile by tile, while all is in the cache. What remains is a few loops over the
 * entries, none of which branches on data. Front, tables and stream are the same for all; tokens and plain
 * bits are made by those who know what the values mean:
 *
 *     weft_class_encoder_begin, _tile for each tile
 *     weft_class_encoder_tokens, and all tokens are set
 *     weft_class_encoder_front, and all plain bits are put
 *     weft_class_encoder_back
 */
#ifndef WEFT_CODE_CLASSES_WRITE_H
#define WEFT_CODE_CLASSES_WRITE_H

#include "../base/bytes.h"
#include "../base/context.h"
#include "classes.h"
#include "entries.h"
#include "rans.h"

typedef struct weft_class_encoder {
    weft_context *context;
    const weft_tile_kernels *tile_kernels;
    const weft_entry_kernels *entry_kernels;
    weft_classes classes;
    weft_tile tile;
    weft_sorting sorting;
    uint64_t *items[WEFT_CLASS_MAX]; /* as weft_item_pack packs them */
    size_t capacities[WEFT_CLASS_MAX];
    size_t counts[WEFT_CLASS_MAX];
    size_t count;    /* entries of all classes */
    uint8_t *tokens; /* of all gaps, class after class, and behind them of all values */
    size_t token_capacity;
    weft_rans_table gaps[WEFT_CLASS_MAX];
    weft_rans_table values[WEFT_CLASS_MAX];
    weft_rans_costs *costs; /* of laws; NULL as long as no table may follow one */
    uint8_t *room;          /* where the bits and then the stream are written */
    size_t room_size;
} weft_class_encoder;

/* `exponents` is WEFT_ITEM_VALUES or WEFT_ITEM_STEPS. */
void weft_class_encoder_open(weft_class_encoder *encoder, weft_context *context, uint32_t exponents);
void weft_class_encoder_close(weft_class_encoder *encoder);
/* Begins with classes for `units` weights, whose exponents begin at bit `shift`: for the sample, or one
 * class if that is NULL. */
void weft_class_encoder_begin(weft_class_encoder *encoder, unsigned shift, const weft_class_sample *sample,
                              uint64_t units);
/* Takes the entries of the next tile, which has `count` weights and starts at `linear`. */
weft_status weft_class_encoder_tile(weft_class_encoder *encoder, const void *weights, size_t count,
                                    uint32_t linear, const weft_entries *entries);
/* The same without the weights at `left` indices, which no entry is of: they count nowhere. */
weft_status weft_class_encoder_tile_without(weft_class_encoder *encoder, const void *weights, size_t count,
                                            uint32_t linear, const weft_entries *entries,
                                            const uint16_t *indices, size_t left);
/* Makes room for `more` items of class `c`. */
weft_status weft_class_encoder_reserve(weft_class_encoder *encoder, unsigned c, size_t more);
/* Makes room for the tokens. */
weft_status weft_class_encoder_tokens(weft_class_encoder *encoder);
/* Writes all up to the tables, which fit the tokens, and makes room for `rest` bytes of plain bits for each
 * entry. Tables follow laws if values are steps, whose tokens are below `step_tokens`; 0 if they are not.
 */
weft_status weft_class_encoder_front(weft_class_encoder *encoder, size_t rest, unsigned step_tokens,
                                     weft_writer *writer, weft_bits_writer *bits);
/* Writes the bits and the stream. */
weft_status weft_class_encoder_back(weft_class_encoder *encoder, weft_bits_writer *bits,
                                    weft_writer *writer);

#endif
