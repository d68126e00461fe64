/* SPDX-License-Identifier: Apache-2.0
 *
 * correction.h: checks and bounds that correction.c and objective.c share.
 */
#ifndef WEFT_ROLLOUT_CORRECTION_H
#define WEFT_ROLLOUT_CORRECTION_H

#include "../base/exponential.h"

#include <weft/rollout.h>

WEFT_CHECKED weft_status weft_correction_check(weft_context *context,
                                               const weft_correction_options *options);
WEFT_CHECKED weft_status weft_correction_batch_check(weft_context *context,
                                                     const weft_correction_batch *batch);

/* Logarithms of ratios beyond any sense are cut to this, to either side, before they overflow. */
enum { WEFT_LOG_RATIO_MAX = 20 };

static inline double weft_log_ratio_bounded(double value) {
    const double most = WEFT_LOG_RATIO_MAX;
    return value > most ? most : value < -most ? -most : value;
}

/* The ratio whose logarithm is given. */
static inline double weft_ratio_bounded(double value) {
    return weft_exponential_double(weft_log_ratio_bounded(value));
}

#endif
