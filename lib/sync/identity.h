/* SPDX-License-Identifier: Apache-2.0
 *
 * identity.h: a writer that is several processes, one after the other, such as one `weft publish` per step.
 * A file beside the mirror remembers who it was, so that each goes on with the epoch of the one before; its
 * lock lets only one of them live at a time.
 */
#ifndef WEFT_SYNC_IDENTITY_H
#define WEFT_SYNC_IDENTITY_H

#include "head.h"

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

#endif
