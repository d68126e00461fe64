/* SPDX-License-Identifier: Apache-2.0
 *
 * diff.h: a diff with a recall, which only a publisher has (lib/patch/recall).
 */
#ifndef WEFT_PATCH_DIFF_DIFF_H
#define WEFT_PATCH_DIFF_DIFF_H

#include "../recall/recall.h"

#include <weft/patch.h>

/* weft_diff in the profile `smallest`: coded with the last `depth` steps of the recall, which is told of
 * this one. The caller begins that step, and commits it or takes it back. */
weft_status weft_diff_recalling(weft_context *context, const weft_view *base, const weft_view *next,
                                const weft_diff_options *options, weft_recall *recall, unsigned depth,
                                const weft_sink *sink, weft_diff_stats *stats);

#endif
