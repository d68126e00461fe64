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

/* Which bits of a unit are its exponent: the `small` profile's context. */
typedef struct weft_exponent {
    bool present;   /* units without one form a single class */
    unsigned shift; /* of the two-byte types BF16 and F16 */
} weft_exponent;

/* Histograms of a sample, by exponent. */
typedef struct weft_class_sample {
    uint32_t units[256];
    uint32_t changed[256];
    uint32_t octaves[256][8]; /* of the steps' magnitudes */
    uint64_t sampled;
} weft_class_sample;

typedef struct weft_classes {
    unsigned count;
    uint8_t cuts[WEFT_CLASS_MAX]; /* cuts[c]: the smallest exponent of class c */
    uint8_t of_exponent[256];
} weft_classes;

/* log2(x) in 16.16 fixed point, good to a hundredth; log2(0) counts as 0. For decisions that must be the
 * same on every machine. */
uint64_t weft_fixed_log2(uint64_t x);
/* Counts the exponents of `count` weights, which begin at bit `shift`. */
void weft_class_sample_units(weft_class_sample *sample, const void *weights, size_t count, unsigned shift);
/* Chooses classes for `units` units. One class, if there is no sample. */
void weft_classes_cut(weft_classes *classes, const weft_class_sample *sample, uint64_t units);

#endif
