/* SPDX-License-Identifier: Apache-2.0
 *
 * claim.h: being the one writer of a run.
 *
 * Each writer begins an epoch with a head of its own; readers follow the highest epoch, so that whoever
 * wrote before is fenced: it may waste objects, but moves nobody. A writer that finds a later epoch, or
 * somebody else's head in its own, stops.
 *
 * What a writer was told to be published stays published, whoever takes over and whenever. Where puts have
 * conditions, who takes over first seals the epoch that ends: it writes the head that it found there once
 * more, in its own name. A move of the former writer that is still on its way does not find its own head
 * any more and is refused; one that came before is in the head that was sealed, and taken along. Where puts
 * have none, both sides write first and then look: the writer at the next epoch after each of its heads,
 * who takes over at the epoch before after its claim. One of them sees the other. A claim counts only when
 * its writer has looked (weft_sync_head_unsettled).
 *
 * A writer may be several processes, one after the other, such as one `weft publish` per step. A file
 * beside the mirror, its *identity*, remembers who it was, so that each goes on with the epoch of the one
 * before; its lock lets only one of them live at a time.
 */
#ifndef WEFT_SYNC_PUBLISH_CLAIM_H
#define WEFT_SYNC_PUBLISH_CLAIM_H

#include "../format/head.h"

typedef struct weft_identity {
    weft_context *context;
    char *path;
    int file; /* -1: nothing is remembered */
} weft_identity;

/* Locks the identity of the mirror at `mirror_path`; NULL: there is none. WEFT_BUSY if another process has
 * it. */
weft_status weft_identity_open(weft_identity *identity, weft_context *context, const char *mirror_path);
void weft_identity_close(weft_identity *identity);
/* True if the head was written under this identity. */
bool weft_identity_owns(const weft_identity *identity, const weft_sync_head *head);
/* The head's writer is this identity from now on. */
weft_status weft_identity_keep(const weft_identity *identity, const weft_sync_head *head);

typedef struct weft_claim {
    weft_context *context;
    weft_store *store;
    const weft_key *key;
    const weft_key *trusted; /* heads that are taken over must be signed by it; NULL: any will do */
    unsigned format;         /* that was asked for; 0: the run's own */
    weft_sync_head head;     /* as it was written last */
    uint8_t bytes[WEFT_HEAD_MAX];
    size_t size;
    weft_store_tag tag;
    uint64_t issued; /* the highest sequence of a head that may have been written: none is used twice */
    bool sealed;     /* the epoch before cannot move any more */
    bool fenced;
} weft_claim;

/* Begins a run, or the next epoch of the run that is there, or goes on with the epoch that the same
 * identity began. Who signs goes on with what was signed by the same key only, unless `adopt_any`. The head
 * is of the run's format, or the newest for a new run, unless `format` is higher. */
weft_status weft_claim_take(weft_claim *claim, weft_context *context, weft_store *store,
                            const weft_key *key, bool adopt_any, unsigned format,
                            const weft_identity *identity);
void weft_claim_close(weft_claim *claim);

/* A head that is to follow the present one. */
typedef struct weft_claim_move {
    weft_sync_head head;
    uint8_t bytes[WEFT_HEAD_MAX];
    size_t size;
} weft_claim_move;

/* Prepares the bytes of the next head. `newest` is copied. */
weft_status weft_claim_prepare(weft_claim *claim, const weft_blob *page, const weft_record *newest,
                               weft_claim_move *move);
/* WEFT_CONFLICT if somebody else has taken over. */
weft_status weft_claim_check(weft_claim *claim);
/* Writes the head; from WEFT_OK on it is in the history for good, and the move is empty, though the claim
 * may be fenced. If that cannot be known, `unknown_out` is set, and weft_claim_resolve finds out later. */
weft_status weft_claim_commit(weft_claim *claim, weft_claim_move *move, bool *unknown_out);
weft_status weft_claim_resolve(weft_claim *claim, weft_claim_move *move, bool *written_out);
void weft_claim_drop(weft_claim *claim, weft_claim_move *move);

#endif
