/* SPDX-License-Identifier: Apache-2.0
 *
 * replica.h: the weights that a subscriber brings forward: live memory, or a checkpoint on disk. One step
 * is prepared, then committed or rolled back. Callers need not know which of the two it is.
 */
#ifndef WEFT_SYNC_FOLLOW_REPLICA_H
#define WEFT_SYNC_FOLLOW_REPLICA_H

#include "../../patch/apply/in_place.h"

typedef struct weft_replica {
    weft_context *context;
    bool known; /* the replica is at the state with `digest` */
    weft_digest digest;

    /* live memory */
    const weft_view *view;
    weft_sums *sums;
    weft_sums *before; /* the sums that an anchor replaced, for a rollback */
    weft_apply *apply; /* prepared or committed last */
    bool blank;        /* what the memory holds means nothing: prepare may fill it */
    bool more;         /* limits.stage_bytes cuts the step into portions, and only the first is prepared */
    bool committed;    /* `apply` is in place and can be rolled back */

    /* a checkpoint */
    char *path; /* NULL: live memory */
    bool durable;
    bool present; /* something stands at the path */
    weft_in_place
        *place; /* the checkpoint, locked, mapped and summed; NULL: there is none, or not any more */
    weft_checkpoint *draft; /* of a step that writes all files anew: what will take its place */

    /* What the profile `smallest` recalls of the versions that were followed one by one; NULL: none was of
     * that profile. `alone`: the prepared step is of one version. */
    weft_recall *recall;
    bool alone;
    char *recall_path;       /* of a checkpoint: where it lies between processes */
    uint64_t loaded_version; /* the version that a loaded one is of; 0: none was */

    const weft_patch *patch;   /* of the prepared step; NULL: none is */
    weft_digest digest_before; /* of the state that a rollback goes back to */
    bool known_before;
} weft_replica;

/* `blank`: what the view holds means nothing. */
weft_status weft_replica_open_live(weft_replica *replica, weft_context *context, const weft_view *view,
                                   bool blank);
/* A view that was just filled from the state with this digest. That is checked if the view is complete; a
 * part of a model has no digest of its own. */
weft_status weft_replica_open_filled(weft_replica *replica, weft_context *context, const weft_view *view,
                                     const weft_digest *digest);
/* Something at the path that is no checkpoint is an error, unless it is `ours` to replace. */
weft_status weft_replica_open_file(weft_replica *replica, weft_context *context, const char *path,
                                   bool durable, bool ours);
void weft_replica_close(weft_replica *replica);

/* After a commit of a checkpoint that failed: finds out what it holds now. Does nothing otherwise. */
weft_status weft_replica_recover(weft_replica *replica);
/* Gives up the means to roll the last commit back, after which its patch may be closed. */
void weft_replica_settle(weft_replica *replica);
/* What a step is. */
typedef enum weft_replica_step {
    WEFT_STEP_ANCHOR,
    WEFT_STEP_LEAP,  /* a patch over several versions, or one of whom it is not known */
    WEFT_STEP_PATCH, /* of the next version */
} weft_replica_step;

/* The patch must stay open until the step is committed or rolled back. WEFT_UNSUPPORTED also if it recalls
 * more versions than the replica does, or others. */
weft_status weft_replica_prepare(weft_replica *replica, weft_patch *patch, weft_replica_step kind);
/* How many versions it recalls. */
unsigned weft_replica_recalls(const weft_replica *replica);
/* Keeps what it recalls of a checkpoint, which is at that version, for the next process. */
void weft_replica_save(weft_replica *replica, uint64_t version);
/* It is at another version now, which has the same state: the next one, or another. */
void weft_replica_skip(weft_replica *replica, bool next);
/* weft_apply_changes of the prepared step. */
weft_status weft_replica_changes(weft_replica *replica, size_t batch, weft_change_function visit,
                                 void *opaque);
weft_status weft_replica_commit(weft_replica *replica);
weft_status weft_replica_rollback(weft_replica *replica);
/* Re-sums the next `bytes` of the replica, in turn. On a mismatch its state is no longer known. */
weft_status weft_replica_audit(weft_replica *replica, uint64_t bytes);
/* The state is no longer known: the next step must be an anchor. */
void weft_replica_forget(weft_replica *replica);
/* False if the replica holds a part of the model only. */
bool weft_replica_complete(const weft_replica *replica);

#endif
