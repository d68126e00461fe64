/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.h: the objects of an exchange over a store besides payloads: the one that closes a round, which
 * names the payloads that count, and the one that names the newest snapshot.
 *
 * A round is closed once: the object is put only if there is none yet, and every rank obeys the one that is
 * there, its leader included.
 */
#ifndef WEFT_LOCO_MANIFEST_H
#define WEFT_LOCO_MANIFEST_H

#include "../base/bytes.h"
#include "../base/hash.h"

#include <weft/loco.h>

/* ---- what all of them begin and end with ---- */

typedef enum weft_manifest_kind {
    WEFT_MANIFEST_ROUND = 1,
    WEFT_MANIFEST_NEWEST = 2,
    WEFT_MANIFEST_SNAPSHOT = 3,
} weft_manifest_kind;

void weft_manifest_begin(weft_writer *writer, weft_manifest_kind kind, const char *run);
void weft_manifest_end(weft_writer *writer);
/* Checks kind, run and checksum, and leaves `reader` at the fields between. */
weft_status weft_manifest_open(weft_context *context, const void *data, size_t size,
                               weft_manifest_kind kind, const char *run, weft_reader *reader);
/* Nothing may be left. */
weft_status weft_manifest_close(weft_context *context, const weft_reader *reader);

/* ---- rounds ---- */

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

/* More than the manifest of so many ranks has. */
static inline size_t weft_manifest_most(uint32_t ranks) {
    return 256 + (size_t)44 * ranks;
}

void weft_manifest_write(const weft_manifest *manifest, const char *run, weft_writer *writer);
/* `manifest_out->payloads` has room for `ranks`. WEFT_MALFORMED unless it is of this run and round and of
 * so many ranks. */
weft_status weft_manifest_parse(weft_context *context, const void *data, size_t size, const char *run,
                                uint64_t round, uint32_t ranks, weft_manifest *manifest_out);

/* ---- snapshots ---- */

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
