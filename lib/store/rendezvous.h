/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.h: messages between processes that meet in a store and have no other channel: the parts of a
 * version, trainers in a round, workers that deliver trajectories. They know the keys of the objects that
 * they wait for, and poll (weft_clock_pause). A message is put whole and read whole. Where several may put
 * the same one, the first counts. With a signing key it is signed together with the object's key, so that
 * somebody who can write to the store can neither forge a message nor copy a true one to another place.
 *
 * What a message says, who decides, and what is removed when, is left to the callers.
 */
#ifndef WEFT_STORE_RENDEZVOUS_H
#define WEFT_STORE_RENDEZVOUS_H

#include "key.h"

/* ---- putting and getting ---- */

typedef struct weft_message {
    const char *key; /* of the object */
    const void *data;
    size_t size;
    const uint8_t *signature;       /* which follows the data; NULL: none does */
    weft_store_condition condition; /* IF_ABSENT: the first one counts */
    weft_store_tag tag;             /* IF_SAME: what was read */
    bool volatile_write;            /* as in weft_store_put_request */
    bool alone; /* nobody else puts it, or the last one may count as well: where the store has no
                   conditional puts, or none for an object of this size, a look before the put is enough */
} weft_message;

/* WEFT_CONFLICT if the condition does not hold. WEFT_UNSUPPORTED where the store has no conditional puts,
 * unless `alone`. */
weft_status weft_message_put(weft_context *context, weft_store *store, const weft_message *message);

typedef struct weft_received {
    weft_context *memory; /* whose memory the data is */
    uint8_t *data;
    size_t size;
    weft_store_tag tag;
} weft_received;

/* A whole object, in memory that `memory` allocates. WEFT_LIMIT_EXCEEDED if it has more than `most` bytes;
 * WEFT_CHECKSUM_MISMATCH if it was replaced meanwhile: read it again. */
weft_status weft_message_get(weft_context *context, weft_store *store, const char *key, uint64_t most,
                             weft_context *memory, weft_received *received_out);
void weft_received_close(weft_received *received);

/* ---- signing ---- */

/* What a message is bound to when it is signed. */
typedef struct weft_message_seal {
    const weft_key *key; /* may be NULL where messages are not signed: then do not call what follows */
    const char *run;
    const char *where; /* the object's key */
} weft_message_seal;

/* The signature covers "weft `who`", the run and the object's key, each with a line feed, and the bytes.
 * The seal has a signing key, here and below. */
weft_status weft_message_sign(weft_context *context, const weft_message_seal *seal, const char *who,
                              const void *data, size_t size, uint8_t signature[WEFT_SIGNATURE_BYTES]);
/* WEFT_SIGNATURE_MISMATCH if the signing key did not make the signature. `signature` is NULL if the message
 * has none. */
weft_status weft_message_check(weft_context *context, const weft_message_seal *seal, const char *who,
                               const void *data, size_t size, const uint8_t *signature);

#endif
