/* SPDX-License-Identifier: Apache-2.0
 *
 * fleet.h: the followers of a run, by their reports, for the rest of this room and for who serves a store.
 */
#ifndef WEFT_SYNC_FLEET_FLEET_H
#define WEFT_SYNC_FLEET_FLEET_H

#include "../format/head.h"

/* What weft_fleet_read needs of a head. */
weft_head_info weft_fleet_head(const weft_sync_head *head);
/* Removes reports that are older than a day. */
weft_status weft_fleet_sweep(weft_context *context, weft_store *store);

#endif
