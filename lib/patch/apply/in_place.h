/* SPDX-License-Identifier: Apache-2.0
 *
 * in_place.h: a checkpoint on disk that is brought forward where it lies, patch after patch. Between
 * patches it stays locked, mapped and summed, so that each costs what it changes and not what the model
 * holds.
 */
#ifndef WEFT_PATCH_APPLY_IN_PLACE_H
#define WEFT_PATCH_APPLY_IN_PLACE_H

#include "apply.h"

typedef struct weft_in_place weft_in_place;

/* Locks the checkpoint, and finishes or clears away what a killed process left of an apply. WEFT_BUSY if
 * another process has it. */
weft_status weft_in_place_open(weft_context *context, const char *path, bool durable,
                               weft_in_place **place_out);
void weft_in_place_close(weft_in_place *place);
/* Maps and sums the checkpoint, unless that was done. The sums are its present state's. */
weft_status weft_in_place_load(weft_in_place *place);
const weft_view *weft_in_place_view(const weft_in_place *place);
weft_sums *weft_in_place_sums(const weft_in_place *place);
const weft_checkpoint *weft_in_place_checkpoint(const weft_in_place *place);

/* Decodes and proves the patch, and puts its changes where a commit finds them. The checkpoint is not
 * touched. */
weft_status weft_in_place_prepare(weft_in_place *place, const weft_patch *patch);
/* Killed at any instant, the checkpoint is at the state before or after: see weft_apply_recover. */
weft_status weft_in_place_commit(weft_in_place *place);
/* Drops what is prepared. */
void weft_in_place_rollback(weft_in_place *place);

#endif
