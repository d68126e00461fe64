/* SPDX-License-Identifier: Apache-2.0
 *
 * fill.h: live weights from a copy of the whole model in memory.
 */
#ifndef WEFT_SYNC_GROUP_FILL_H
#define WEFT_SYNC_GROUP_FILL_H

#include <weft/tensor.h>

/* Writes all that `view` holds, from the tensors of the same names in `table`, which are plain memory. */
weft_status weft_fill(weft_context *context, const weft_view *view, const weft_table *table);

#endif
