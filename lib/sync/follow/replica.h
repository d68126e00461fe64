/* SPDX-License-Identifier: Apache-2.0
 *
 * replica.h: the copy that a subscriber brings forward: live memory, or a checkpoint on disk. One step is
 * prepared, then committed or rolled back; which kind of copy it is, nobody above needs to know.
 */
#ifndef WEFT_SYNC_FOLLOW_REPLICA_H
#define WEFT_SYNC_FOLLOW_REPLICA_H

#include "../../patch/apply/in_place.h"

typedef struct weft_replica {
    weft_context *context;
    bool known; /* the copy is at the state with `digest` */
    weft_digest digest;

    /* live memory */
    const weft_view *view;
    weft_sums *sums;
    weft_sums *before; /* the sums that an anchor replaced, for a rollback */
    weft_apply *apply; /* prepared or committed last */
    bool blank;        /* what the memory holds means nothing: prepare may fill it */
    bool more;         /* the staging limit asks for another step within the commit */
    bool committed;    /* `apply` is in place and can be rolled back */

    /* a checkpoint */
    char *path; /* NULL: live memory */
    bool durable;
    bool present; /* something stands at the path */
    weft_in_place *place;
    weft_checkpoint *draft;

    const weft_patch *patch; /* of the prepared step */
    weft_digest digest_before;
    bool known_before;
} weft_replica;

/* `blank`: what the view holds means nothing. */
weft_status weft_replica_open_live(weft_replica *replica, weft_context *context, const weft_view *view,
                                   bool blank);
/* For a view that was just filled with what it holds of the state with this digest, which is proven if the
 * view is complete. */
weft_status weft_replica_open_filled(weft_replica *replica, weft_context *context, const weft_view *view,
                                     const weft_digest *digest);
/* What stands at the path and is no checkpoint is an error, unless it is `ours` to replace. */
weft_status weft_replica_open_file(weft_replica *replica, weft_context *context, const char *path,
                                   bool durable, bool ours);
void weft_replica_close(weft_replica *replica);

/* After a commit that failed: looks what a checkpoint holds now. */
weft_status weft_replica_recover(weft_replica *replica);
/* What was committed stays: it is not rolled back any more, and its patch may be closed. */
void weft_replica_settle(weft_replica *replica);
/* The patch must stay open until the step is committed or rolled back. */
weft_status weft_replica_prepare(weft_replica *replica, const weft_patch *patch, bool anchor);
weft_status weft_replica_commit(weft_replica *replica);
weft_status weft_replica_rollback(weft_replica *replica);
/* Re-sums a part of the copy. On a mismatch the copy is no longer known. */
weft_status weft_replica_audit(weft_replica *replica, uint64_t bytes);
/* The present state is not to be believed. */
void weft_replica_forget(weft_replica *replica);
/* False if the copy holds a part of the model only. */
bool weft_replica_complete(const weft_replica *replica);

#endif
