/* SPDX-License-Identifier: Apache-2.0
 *
 * classes.h: the classes that weights are sorted into by their exponents, which say how likely a weight is
 * to change and how far. A sample is looked at before coding starts, and both sides hold the exponents, so
 * that only the cuts travel.
 */
#ifndef WEFT_CODE_CLASSES_H
#define WEFT_CODE_CLASSES_H

#include "tile.h"

#include <stdbool.h>

/* Which bits of a unit are its exponent: the `small` profile's context. It is looked for in the unit's
 * *word*, two bytes whose highest bit is the sign: a unit of two bytes itself, the high half of one of
 * four, and one of a single byte above eight zeros. */
typedef struct weft_exponent {
    bool present;   /* units without one form a single class */
    unsigned shift; /* of a word */
    unsigned width; /* bytes of a unit: 1, 2 or 4 */
} weft_exponent;

static inline unsigned weft_exponent_in(weft_exponent exponent, uint64_t unit) {
    uint64_t word = exponent.width == 1 ? unit << 8 : exponent.width == 4 ? unit >> 16 : unit;
    return (unsigned)(word & 0x7fff) >> exponent.shift;
}

/* Histograms of a sample, by exponent. */
typedef struct weft_class_sample {
    uint32_t units[256];
    uint32_t changed[256];
    uint32_t octaves[256][8]; /* of the steps' magnitudes */
    uint64_t sampled;
} weft_class_sample;

/* Added to the number of classes: tables may follow laws. */
enum { WEFT_CLASS_LAWS = 0x80 };

typedef struct weft_classes {
    unsigned count;
    uint8_t cuts[WEFT_CLASS_MAX]; /* cuts[c]: the smallest exponent of class c */
    uint8_t of_exponent[256];
} weft_classes;

/* log2(x) in 16.16 fixed point, good to a hundredth; log2(0) counts as 0. For decisions that must be the
 * same on every machine. */
uint64_t weft_fixed_log2(uint64_t x);
/* Counts the exponents of `count` words, which begin at bit `shift`. */
void weft_class_sample_units(weft_class_sample *sample, const void *words, size_t count, unsigned shift);
/* Chooses classes for `units` units. One class, if there is no sample. With `steps`, for changes whose
 * tables follow laws. */
void weft_classes_cut(weft_classes *classes, const weft_class_sample *sample, uint64_t units, bool steps);
/* The same where the sample is all there is. */
void weft_classes_cut_known(weft_classes *classes, const weft_class_sample *sample);

#endif
