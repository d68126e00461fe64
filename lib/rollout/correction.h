/* SPDX-License-Identifier: Apache-2.0
 *
 * correction.h: checks, bounds and choices that the correction and the objective share.
 */
#ifndef WEFT_ROLLOUT_CORRECTION_H
#define WEFT_ROLLOUT_CORRECTION_H

#include "../base/exponential.h"

#include <weft/rollout.h>

#include <string.h>

WEFT_CHECKED weft_status weft_correction_check(weft_context *context,
                                               const weft_correction_options *options);
WEFT_CHECKED weft_status weft_correction_batch_check(weft_context *context,
                                                     const weft_correction_batch *batch);

/* Logarithms of ratios beyond any sense are cut to this, to either side, before they overflow. */
enum { WEFT_LOG_RATIO_MAX = 20 };

static inline double weft_log_ratio_bounded(double value) {
    const double most = WEFT_LOG_RATIO_MAX;
    value = value < -most ? -most : value;
    return value > most ? most : value;
}

/* The ratio whose logarithm is given. */
static inline double weft_ratio_bounded(double value) {
    return weft_exponential_double(weft_log_ratio_bounded(value));
}

/* The value, or 0 if `counts` is 0 and not 1. The loops below become vectors only without branches, and the
 * compiler would make some of choices that later computations depend on. */
static inline float weft_float_only_if(int32_t counts, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0u - (uint32_t)counts;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double weft_double_only_if(int64_t counts, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0u - (uint64_t)counts;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
