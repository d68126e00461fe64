/* SPDX-License-Identifier: Apache-2.0
 *
 * head.h: the one small object of a run that changes.
 *
 * Its bytes are lines: the JSON; "sha256 " and the hash of the JSON; and if it is signed, "ed25519 " and
 * the signature of the JSON. The hash tells damage on the way, which another try heals, from a signature
 * that is wrong, which nothing heals.
 */
#ifndef WEFT_SYNC_FORMAT_HEAD_H
#define WEFT_SYNC_FORMAT_HEAD_H

#include "record.h"

enum { WEFT_WRITER_TEXT = 17 };

typedef struct weft_sync_head {
    unsigned format; /* of it, and of what the writer writes besides; 0: the newest */
    char run[WEFT_RUN_TEXT];
    uint64_t epoch;
    uint64_t sequence;
    char writer[WEFT_WRITER_TEXT]; /* who wrote it, so that two writers of one epoch find each other out */
    bool started;                  /* there is a version: the rest holds */
    weft_blob page;
    weft_record newest;
    bool is_signed;
} weft_sync_head;

void weft_sync_head_close(weft_sync_head *head, weft_context *context);
/* `key` may be NULL. WEFT_LIMIT_EXCEEDED if the labels leave no room. */
weft_status weft_sync_head_format(weft_context *context, const weft_sync_head *head, const weft_key *key,
                                  uint8_t data[WEFT_HEAD_MAX], size_t *size_out);
weft_status weft_sync_head_parse(weft_context *context, const char *where, const void *data, size_t size,
                                 const weft_key *trusted, weft_sync_head *head);
/* What it says, for who need not know more. */
weft_head_info weft_sync_head_describe(const weft_sync_head *head);
/* Order of heads: by epoch, then by sequence. */
bool weft_sync_head_newer(const weft_sync_head *head, uint64_t epoch, uint64_t sequence);
/* It only claims its epoch, and is believed by nobody: where puts have no conditions, the head of the epoch
 * before may be ahead of it, until its writer has looked and written the next one. */
bool weft_sync_head_unsettled(const weft_sync_head *head);
/* The version that it leads to; 0: there is none yet. */
uint64_t weft_sync_head_version(const weft_sync_head *head);

weft_status weft_head_exists(weft_context *context, weft_store *store, uint64_t epoch, bool *exists);
/* The bytes of an epoch's head. With `unless`, WEFT_MORE says that it is still that one. `tag` may be
 * NULL. */
weft_status weft_sync_head_read(weft_context *context, weft_store *store, uint64_t epoch,
                                const weft_store_tag *unless, uint8_t data[WEFT_HEAD_MAX], size_t *size_out,
                                weft_store_tag *tag);

/* A head as it lies in a store. */
typedef struct weft_stored_head {
    uint8_t data[WEFT_HEAD_MAX];
    size_t size;
    uint64_t epoch;     /* of the key that it lies under */
    uint64_t last;      /* the highest epoch, which may only be claimed */
    weft_store_tag tag; /* of that epoch's head */
} weft_stored_head;

/* The newest head that counts: that of the highest epoch, or if it is unsettled, the first before it that
 * is not. Where none of those is believed, it is the unsettled one. */
weft_status weft_sync_head_newest(weft_context *context, weft_store *store, const weft_key *trusted,
                                  weft_stored_head *stored, weft_sync_head *head);
/* The same, of a given epoch and those before it; `last` and `tag` are left alone. */
weft_status weft_sync_head_settled(weft_context *context, weft_store *store, const weft_key *trusted,
                                   uint64_t epoch, weft_stored_head *stored, weft_sync_head *head);

#endif
