/* SPDX-License-Identifier: Apache-2.0
 *
 * subscriber.h: what a subscriber offers to the files of this room: to hear of a step before it is decoded,
 * so that its buckets can be passed on as they are, and what a failed pull means.
 */
#ifndef WEFT_SYNC_FOLLOW_SUBSCRIBER_H
#define WEFT_SYNC_FOLLOW_SUBSCRIBER_H

#include "../../patch/format/patch.h"
#include "../format/record.h"

/* A step is about to be decoded; the patch may be given a listener. Called again if another way is tried.
 */
typedef struct weft_step_listener {
    weft_status (*begin)(void *opaque, const weft_record *record, weft_patch *patch, bool anchor);
    void *opaque;
} weft_step_listener;

void weft_subscriber_listen(weft_subscriber *subscriber, const weft_step_listener *listener);
/* Looks at the store now, whatever is prepared: the newest version there, or 0. */
weft_status weft_subscriber_look(weft_subscriber *subscriber, uint64_t *newest_out);
/* True if a commit would do something. */
bool weft_subscriber_prepared(const weft_subscriber *subscriber);
/* True if the replica is in the state with this digest. */
bool weft_subscriber_holds(const weft_subscriber *subscriber, const weft_digest *digest);
/* What can be wrong with what the store holds, as opposed to reaching it. */
bool weft_subscriber_unusable(weft_status status);

#endif
