/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.h: the small objects of an exchange over a store: the one that closes a round, which names the
 * payloads that count, and the one that names the newest snapshot.
 *
 * A round is closed once: the object is put only if there is none yet, and every rank obeys the one that is
 * there, its leader included.
 */
#ifndef WEFT_LOCO_MANIFEST_H
#define WEFT_LOCO_MANIFEST_H

#include "../base/bytes.h"
#include "../base/hash.h"

#include <weft/loco.h>

enum { WEFT_MANIFEST_MAX = 256 + 44 * WEFT_LOCO_RANKS_MAX };

typedef struct weft_manifest_payload {
    bool included;
    uint64_t bytes;
    weft_hash hash;
} weft_manifest_payload;

typedef struct weft_manifest {
    uint64_t round;
    uint32_t leader; /* the rank that closed it, and leads the next round too */
    uint32_t ranks;
    uint32_t included;
    weft_manifest_payload *payloads; /* one for each rank; the caller's */
} weft_manifest;

void weft_manifest_write(const weft_manifest *manifest, const char *run, weft_writer *writer);
/* `manifest_out->payloads` has room for `ranks`. WEFT_MALFORMED unless it is of this run and round and of
 * so many ranks. */
weft_status weft_manifest_parse(weft_context *context, const void *data, size_t size, const char *run,
                                uint64_t round, uint32_t ranks, weft_manifest *manifest_out);

/* The newest snapshot: the consensus after so many rounds, as one object. */
typedef struct weft_snapshot_note {
    uint64_t rounds;
    uint64_t bytes;
    weft_hash hash;
} weft_snapshot_note;

enum { WEFT_SNAPSHOT_NOTE_MAX = 256 };

void weft_snapshot_note_write(const weft_snapshot_note *note, const char *run, weft_writer *writer);
weft_status weft_snapshot_note_parse(weft_context *context, const void *data, size_t size, const char *run,
                                     weft_snapshot_note *note_out);

#endif
