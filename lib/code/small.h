/* SPDX-License-Identifier: Apache-2.0
 *
 * small.h: the encoder of the `small` coding: gaps within classes of the base's exponent, and steps,
 * entropy-coded. doc/FORMAT.md specifies the bytes.
 */
#ifndef WEFT_CODE_SMALL_H
#define WEFT_CODE_SMALL_H

#include "../base/bytes.h"
#include "changes.h"
#include "classes.h"

typedef struct weft_small_encoder {
    weft_context *context;
    weft_exponent exponent;
    weft_classes classes;
    uint32_t offsets[WEFT_CLASS_MAX]; /* rank in the tile + offset = gap */
    uint32_t counts[WEFT_CLASS_MAX];  /* changes */
    size_t capacity;
    weft_ranked ranked;   /* each change, in position order */
    uint32_t *class_gaps; /* sorted by class */
    uint64_t *class_steps;
    uint8_t *tokens;
    weft_tile tile;
} weft_small_encoder;

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context);
void weft_small_encoder_close(weft_small_encoder *encoder);
/* Chooses classes for a bucket of `units` units. `sample` is NULL for units without an exponent. */
void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units);
/* Goes on to the next stretch, of at most WEFT_TILE units. */
void weft_small_encoder_classify(weft_small_encoder *encoder, const weft_tile_kernels *kernels,
                                 const void *base, size_t units);
/* Ranks changes of this stretch, which starts at `linear`: those from index `first` on. */
weft_status weft_small_encoder_rank(weft_small_encoder *encoder, const weft_tile_kernels *kernels,
                                    uint64_t linear, const weft_changes *changes, size_t first);
weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer);

#endif
