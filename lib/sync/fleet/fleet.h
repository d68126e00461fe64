/* SPDX-License-Identifier: Apache-2.0
 *
 * fleet.h: the followers of a run, by their reports, for the rest of this room and for who serves a store.
 */
#ifndef WEFT_SYNC_FLEET_FLEET_H
#define WEFT_SYNC_FLEET_FLEET_H

#include "../format/head.h"

/* What weft_fleet_read needs of a head. */
weft_head_info weft_fleet_head(const weft_sync_head *head);
/* As weft_fleet_read, for who asks for the live ones only: of others it may leave out any. */
weft_status weft_fleet_read_live(weft_context *context, weft_store *store, const weft_sync_head *head,
                                 weft_fleet *fleet_out);
/* The fleet that weft_fleet_read would give for these reports, which are so old; those of another run are
 * left out. */
weft_status weft_fleet_make(weft_context *context, const weft_head_info *head,
                            const weft_follower *followers, const double *ages, size_t count,
                            weft_fleet *fleet_out);
/* Removes reports that are older than a day. */
weft_status weft_fleet_sweep(weft_context *context, weft_store *store);

#endif
