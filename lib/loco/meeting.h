/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting.h: trainers that meet in a store, and so need reach nothing else than it.
 *
 *     loco/RUN/ROUND/RANK      a payload: put once, never changed
 *     loco/RUN/ROUND/closed    the manifest of the round
 *     loco/RUN/snapshot-N      what all have in common after N rounds, for who comes back after a long time
 *     loco/RUN/snapshot        names the newest of them
 *
 * meeting.c opens and closes, and has keys and objects; meeting_round.c has the rounds; meeting_back.c the
 * way back for who has missed some.
 */
#ifndef WEFT_LOCO_MEETING_H
#define WEFT_LOCO_MEETING_H

#include "../store/rendezvous.h"
#include "manifest.h"
#include "payload.h"

/* What is known of a rank's payload in the round that is open. */
typedef struct weft_meeting_place {
    const uint8_t *data; /* checked; NULL: not here yet */
    uint8_t *fetched;    /* the same, unless it is this rank's own */
    size_t size;
    weft_hash hash;
    bool refused; /* what lies there cannot be used */
    bool apart;   /* because it is coded against another consensus than this rank's */
} weft_meeting_place;

typedef struct weft_meeting {
    weft_context *context; /* its own, for memory: rounds may be shared on a thread beside the caller's */
    weft_store *store;
    weft_loco_store_options options;
    char run[WEFT_LOCO_RUN_MAX + 1];
    weft_meeting_place *places;
    weft_manifest manifest; /* of the last round that was closed */
    uint32_t leader;        /* who led it */
    bool *missing;          /* who was not in it, and is not waited for long */
    bool looked_back;       /* of those it was found out who is only slow */
    bool unconditional;     /* the store has refused a condition: only rank 0 leads */
    uint64_t round;         /* the one under way */
    double began;           /* when this rank came to it; below zero: not yet */
    uint8_t *snapshot;      /* fetched */
    weft_loco_store_stats stats;
} weft_meeting;

typedef struct weft_meeting_key {
    char text[WEFT_STORE_KEY_MAX + 1];
} weft_meeting_key;

weft_meeting_key weft_meeting_payload_key(const weft_meeting *meeting, uint64_t round, uint32_t rank);
weft_meeting_key weft_meeting_closed_key(const weft_meeting *meeting, uint64_t round);
weft_meeting_key weft_meeting_snapshot_key(const weft_meeting *meeting, uint64_t rounds);
weft_meeting_key weft_meeting_note_key(const weft_meeting *meeting);

/* Says which object the last failure is about, and what to do. */
weft_status weft_meeting_unusable(weft_context *context, weft_status status, const char *key,
                                  const char *next);
/* Puts an object; with a key, its signature behind it. */
weft_status weft_meeting_put(const weft_meeting *meeting, weft_context *context,
                             const weft_message *message);
/* An object of at most `most` bytes, in memory that `memory` allocates, and its SHA-256. With a key it must
 * be signed: else WEFT_SIGNATURE_MISMATCH. */
weft_status weft_meeting_get(const weft_meeting *meeting, weft_context *context, const char *key,
                             uint64_t most, weft_context *memory, weft_received *received_out,
                             weft_hash *hash_out);
/* One of exactly `size` bytes whose SHA-256 is `hash`. Nothing is taken on trust: a size above `most` is
 * refused. */
weft_status weft_meeting_get_named(weft_meeting *meeting, weft_context *context, const char *key,
                                   uint64_t size, uint64_t most, const weft_hash *hash, uint8_t **data_out);
/* Why a round has no manifest: WEFT_MORE if it is open, WEFT_NOT_FOUND if it was long ago. */
weft_status weft_meeting_why_open(weft_meeting *meeting, weft_context *context, uint64_t round);

/* The operations of the exchange. */
weft_status weft_meeting_share(void *opaque, weft_context *context, uint64_t round,
                               const weft_loco_payload *own, weft_loco_payload *all, size_t ranks);
weft_status weft_meeting_ended(void *opaque, weft_context *context, uint64_t round);
bool weft_meeting_snapshot_due(void *opaque, uint64_t rounds);
weft_status weft_meeting_snapshot_put(void *opaque, weft_context *context, uint64_t rounds,
                                      const weft_loco_payload *snapshot);
weft_status weft_meeting_snapshot_get(void *opaque, weft_context *context, uint64_t most,
                                      weft_loco_payload *snapshot_out);

/* Between the parts of the meeting. */
void weft_meeting_forget(weft_meeting *meeting);

#endif
