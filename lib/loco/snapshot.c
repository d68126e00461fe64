/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: see snapshot.h. Values lie as in memory: a snapshot is rare, and FP32 weights hardly
 * compress.
 */
#include "snapshot.h"

#include "../base/context.h"
#include "included.h"
#include "manifest.h"

#include <string.h>

enum { FIELDS_MOST = 256 };

static size_t values_bytes(const weft_loco *loco) {
    return (size_t)loco->elements * sizeof(float);
}

uint64_t weft_loco_snapshot_most(const weft_loco *loco) {
    return (uint64_t)values_bytes(loco) * (loco->momentum != NULL ? 2 : 1) +
           weft_loco_included_bytes(loco) + FIELDS_MOST;
}

void weft_loco_snapshot_write(const weft_loco *loco, weft_writer *writer) {
    if (weft_writer_reserve(writer, (size_t)weft_loco_snapshot_most(loco)) == NULL) {
        return;
    }
    weft_manifest_begin(writer, WEFT_MANIFEST_SNAPSHOT, loco->run);
    weft_writer_u64(writer, loco->rounds);
    weft_writer_u64(writer, loco->elements);
    weft_writer_u8(writer, loco->momentum != NULL);
    weft_writer_bytes(writer, loco->digest.bytes, sizeof loco->digest.bytes);
    weft_writer_u32(writer, loco->options.ranks);
    weft_writer_bytes(writer, loco->included, weft_loco_included_bytes(loco));
    weft_writer_bytes(writer, loco->consensus, values_bytes(loco));
    if (loco->momentum != NULL) {
        weft_writer_bytes(writer, loco->momentum, values_bytes(loco));
    }
    weft_manifest_end(writer);
}

static weft_status parse(const weft_loco *loco, const void *data, size_t size,
                         weft_loco_snapshot *snapshot) {
    weft_context *context = loco->context;
    weft_reader reader;
    weft_status status =
        weft_manifest_open(context, data, size, WEFT_MANIFEST_SNAPSHOT, loco->run, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    snapshot->rounds = weft_reader_u64(&reader);
    uint64_t elements = weft_reader_u64(&reader);
    bool momentum = weft_reader_u8(&reader) != 0;
    const uint8_t *digest = weft_reader_bytes(&reader, sizeof snapshot->digest.bytes);
    uint32_t ranks = weft_reader_u32(&reader);
    if (weft_reader_failed(&reader) || elements != loco->elements || momentum != (loco->momentum != NULL) ||
        ranks != loco->options.ranks) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "the snapshot is of another model or configuration than this rank's");
    }
    memcpy(snapshot->digest.bytes, digest, sizeof snapshot->digest.bytes);
    snapshot->included = weft_reader_bytes(&reader, weft_loco_included_bytes(loco));
    snapshot->consensus = weft_reader_bytes(&reader, values_bytes(loco));
    snapshot->momentum = momentum ? weft_reader_bytes(&reader, values_bytes(loco)) : NULL;
    return weft_manifest_close(context, &reader);
}

weft_status weft_loco_snapshot_open(const weft_loco *loco, const void *data, size_t size,
                                    weft_loco_snapshot *snapshot_out) {
    weft_loco_snapshot snapshot = {.rounds = 0};
    weft_status status = parse(loco, data, size, &snapshot);
    if (status != WEFT_OK) {
        return status;
    }
    if (snapshot.rounds <= loco->rounds) {
        return weft_fail(loco->context, WEFT_NOT_FOUND,
                         "round %llu is gone from the store, and the newest snapshot is of round %llu: "
                         "start this rank again when there is a newer one",
                         (unsigned long long)loco->rounds, (unsigned long long)snapshot.rounds);
    }
    if (!weft_loco_included_possible(loco, snapshot.included, snapshot.rounds)) {
        return weft_fail(loco->context, WEFT_MALFORMED,
                         "the snapshot has ranks in rounds that cannot have been");
    }
    if (!weft_loco_all_finite(snapshot.consensus, loco->elements) ||
        (snapshot.momentum != NULL && !weft_loco_all_finite(snapshot.momentum, loco->elements))) {
        return weft_fail(loco->context, WEFT_MALFORMED, "the snapshot has values that are not finite");
    }
    *snapshot_out = snapshot;
    return WEFT_OK;
}

bool weft_loco_snapshot_includes(const weft_loco *loco, const weft_loco_snapshot *snapshot) {
    weft_loco_included own;
    memcpy(&own, snapshot->included + loco->options.rank * sizeof own, sizeof own);
    return weft_loco_included_has(loco, &own);
}

weft_status weft_loco_snapshot_take(weft_loco *loco, const weft_loco_snapshot *snapshot) {
    memcpy(loco->consensus, snapshot->consensus, values_bytes(loco));
    if (snapshot->momentum != NULL) {
        memcpy(loco->momentum, snapshot->momentum, values_bytes(loco));
    }
    memcpy(loco->included, snapshot->included, weft_loco_included_bytes(loco));
    weft_loco_set_local(loco, 0, loco->elements);
    loco->rounds = snapshot->rounds;
    loco->broken = true;
    weft_status status = weft_loco_move_digest(loco);
    if (status == WEFT_OK && !weft_digest_equal(&loco->digest, &snapshot->digest)) {
        status = weft_fail(loco->context, WEFT_DIGEST_MISMATCH,
                           "the snapshot's values are not those of its digest; go on from a saved state");
    }
    loco->broken = status != WEFT_OK;
    return status;
}
