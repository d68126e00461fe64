/* SPDX-License-Identifier: Apache-2.0
 *
 * fold.h: safetensors headers without what follows from the rest.
 *
 * Most of what a compressor cannot shrink in such a header are the data offsets, although each tensor
 * usually begins where the one before ends. Folded, a pair of offsets that does so is only its length, and
 * lengths repeat from layer to layer.
 */
#ifndef WEFT_PATCH_FORMAT_FOLD_H
#define WEFT_PATCH_FORMAT_FOLD_H

#include "../../base/bytes.h"
#include "../../base/context.h"

/* Appends the folded text. False, with nothing said, if the text holds the bytes that folding uses. */
bool weft_fold_offsets(const char *text, size_t size, weft_writer *writer);
/* Appends the original text of a folded one. */
weft_status weft_unfold_offsets(weft_context *context, const char *text, size_t size, weft_writer *writer);

#endif
