/* SPDX-License-Identifier: Apache-2.0
 *
 * head.h: the one small object of a run that changes.
 *
 * Its bytes are lines: the JSON; "sha256 " and the hash of the JSON; and if it is signed, "ed25519 " and
 * the signature of the JSON. The hash tells damage on the way, which another try heals, from a signature
 * that is wrong, which nothing heals.
 */
#ifndef WEFT_SYNC_HEAD_H
#define WEFT_SYNC_HEAD_H

#include "record.h"

enum { WEFT_WRITER_TEXT = 17 };

typedef struct weft_sync_head {
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

/* The bytes of an epoch's head. With `unless`, WEFT_MORE says that it is still that one. `tag` may be
 * NULL. */
weft_status weft_sync_head_read(weft_context *context, weft_store *store, uint64_t epoch,
                                const weft_store_tag *unless, uint8_t data[WEFT_HEAD_MAX], size_t *size_out,
                                weft_store_tag *tag);

#endif
