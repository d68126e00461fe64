/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.h: what all ranks have in common after a round, consensus, momentum and who was included last,
 * as bytes; for a rank that was away for longer than payloads are kept. doc/FORMAT.md specifies them.
 */
#ifndef WEFT_LOCO_SNAPSHOT_H
#define WEFT_LOCO_SNAPSHOT_H

#include "loco.h"

/* One that was checked. It points into its bytes. */
typedef struct weft_loco_snapshot {
    uint64_t rounds;
    weft_digest digest;
    const uint8_t *included; /* as in included.h, one for each rank */
    const uint8_t *consensus;
    const uint8_t *momentum; /* NULL: none */
} weft_loco_snapshot;

/* More than a snapshot of this rank's model has. */
uint64_t weft_loco_snapshot_most(const weft_loco *loco);
void weft_loco_snapshot_write(const weft_loco *loco, weft_writer *writer);
/* Refuses one that is damaged, of another run, model or configuration, or not newer than this rank. */
weft_status weft_loco_snapshot_open(const weft_loco *loco, const void *data, size_t size,
                                    weft_loco_snapshot *snapshot_out);
/* Whether the payload that this rank holds for its present round was included in it. */
bool weft_loco_snapshot_includes(const weft_loco *loco, const weft_loco_snapshot *snapshot);
/* Takes it over: consensus, momentum, who was included, round and the local weights. */
weft_status weft_loco_snapshot_take(weft_loco *loco, const weft_loco_snapshot *snapshot);

#endif
