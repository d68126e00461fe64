/* SPDX-License-Identifier: Apache-2.0
 *
 * correction.h: checks that correction.c and objective.c share.
 */
#ifndef WEFT_ROLLOUT_CORRECTION_H
#define WEFT_ROLLOUT_CORRECTION_H

#include <weft/rollout.h>

WEFT_CHECKED weft_status weft_correction_check(weft_context *context,
                                               const weft_correction_options *options);
WEFT_CHECKED weft_status weft_correction_batch_check(weft_context *context,
                                                     const weft_correction_batch *batch);

#endif
