/* SPDX-License-Identifier: Apache-2.0
 *
 * subscriber.h: what a subscriber offers to other folders of lib/sync, beside the public calls: the leader
 * of a group hears of each step before it is decoded and passes its buckets on, and a publisher that
 * rebuilds its baseline asks what a failed pull means.
 */
#ifndef WEFT_SYNC_FOLLOW_SUBSCRIBER_H
#define WEFT_SYNC_FOLLOW_SUBSCRIBER_H

#include "../../patch/format/patch.h"
#include "../format/record.h"

/* `begin` is called before a step is decoded, and may give the patch a listener of its own. It is called
 * again if the step fails and another route is tried. */
typedef struct weft_step_listener {
    weft_status (*begin)(void *opaque, const weft_record *record, weft_patch *patch, bool anchor);
    void *opaque;
} weft_step_listener;

void weft_subscriber_listen(weft_subscriber *subscriber, const weft_step_listener *listener);
/* Reads the head now, whatever is prepared. The newest version there, or 0. */
weft_status weft_subscriber_look(weft_subscriber *subscriber, uint64_t *newest_out);
/* True if a commit would do something. */
bool weft_subscriber_prepared(const weft_subscriber *subscriber);
/* True if the replica is in the state with this digest. */
bool weft_subscriber_holds(const weft_subscriber *subscriber, const weft_digest *digest);
/* True if a pull that ended with `status` found the store's objects damaged, missing or unreadable; false
 * if they could not be reached. */
bool weft_subscriber_unusable(weft_status status);

#endif
