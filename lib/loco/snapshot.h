/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: what all ranks have in common after a round, consensus and momentum, as bytes; for a rank
 * that was away for longer than payloads are kept. doc/FORMAT.md specifies them.
 */
#ifndef WEFT_LOCO_SNAPSHOT_H
#define WEFT_LOCO_SNAPSHOT_H

#include "loco.h"

/* More than a snapshot of this rank's model has. */
uint64_t weft_loco_snapshot_most(const weft_loco *loco);
void weft_loco_snapshot_write(const weft_loco *loco, weft_writer *writer);
/* Refuses one that is damaged, of another run, model or configuration, or not newer than this rank. */
weft_status weft_loco_snapshot_check(const weft_loco *loco, const void *data, size_t size);
/* Takes over one that was checked: consensus, momentum, round and the local weights. */
weft_status weft_loco_snapshot_take(weft_loco *loco, const void *data, size_t size);

#endif
