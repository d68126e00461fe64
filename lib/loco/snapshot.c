/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.c: see snapshot.h. Values lie as in memory: a snapshot is rare, and FP32 weights hardly
 * compress.
 */
#include "snapshot.h"

#include "../base/context.h"

#include <string.h>
#include <xxhash.h>

enum { SNAPSHOT_VERSION = 1, CHECKSUM_BYTES = 8 };

static const char MAGIC[8] = {'w', 'e', 'f', 't', 's', 'n', 'a', 'p'};

typedef struct snapshot_fields {
    uint64_t rounds;
    weft_digest digest;
    const uint8_t *consensus;
    const uint8_t *momentum; /* NULL: none */
} snapshot_fields;

static void write_values(weft_writer *writer, const float *values, uint64_t count) {
    weft_writer_bytes(writer, values, (size_t)count * sizeof *values);
}

void weft_loco_snapshot_write(const weft_loco *loco, weft_writer *writer) {
    size_t length = strlen(loco->run);
    weft_writer_bytes(writer, MAGIC, sizeof MAGIC);
    weft_writer_u8(writer, SNAPSHOT_VERSION);
    weft_writer_varint(writer, length);
    weft_writer_bytes(writer, loco->run, length);
    weft_writer_u64(writer, loco->rounds);
    weft_writer_u64(writer, loco->elements);
    weft_writer_u8(writer, loco->momentum != NULL);
    weft_writer_bytes(writer, loco->digest.bytes, sizeof loco->digest.bytes);
    write_values(writer, loco->consensus, loco->elements);
    if (loco->momentum != NULL) {
        write_values(writer, loco->momentum, loco->elements);
    }
    if (!weft_writer_failed(writer)) {
        weft_writer_u64(writer, XXH3_64bits(writer->data, writer->size));
    }
}

static bool same_run(const weft_loco *loco, weft_reader *reader) {
    size_t length = strlen(loco->run);
    uint64_t said = weft_reader_varint(reader);
    const uint8_t *name = said == length ? weft_reader_bytes(reader, length) : NULL;
    return name != NULL && memcmp(name, loco->run, length) == 0;
}

static weft_status parse(const weft_loco *loco, const uint8_t *data, size_t size, snapshot_fields *fields) {
    weft_context *context = loco->context;
    weft_reader tail = weft_reader_over(data + size - CHECKSUM_BYTES, CHECKSUM_BYTES);
    if (weft_reader_u64(&tail) != XXH3_64bits(data, size - CHECKSUM_BYTES)) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "a snapshot of the consensus was damaged");
    }
    weft_reader reader = weft_reader_over(data, size - CHECKSUM_BYTES);
    const uint8_t *magic = weft_reader_bytes(&reader, sizeof MAGIC);
    if (magic == NULL || memcmp(magic, MAGIC, sizeof MAGIC) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "this is no snapshot of a consensus");
    }
    if (weft_reader_u8(&reader) != SNAPSHOT_VERSION) {
        return weft_fail(context, WEFT_WRONG_VERSION, "the snapshot is of another version of weft");
    }
    bool ours = same_run(loco, &reader);
    fields->rounds = weft_reader_u64(&reader);
    uint64_t elements = weft_reader_u64(&reader);
    bool momentum = weft_reader_u8(&reader) != 0;
    const uint8_t *digest = weft_reader_bytes(&reader, sizeof fields->digest.bytes);
    if (weft_reader_failed(&reader) || !ours || elements != loco->elements ||
        momentum != (loco->momentum != NULL)) {
        return weft_fail(context, WEFT_BASE_MISMATCH,
                         "the snapshot is of another run, model or configuration than this rank's");
    }
    memcpy(fields->digest.bytes, digest, sizeof fields->digest.bytes);
    size_t bytes = (size_t)elements * sizeof(float);
    fields->consensus = weft_reader_bytes(&reader, bytes);
    fields->momentum = momentum ? weft_reader_bytes(&reader, bytes) : NULL;
    if (weft_reader_failed(&reader) || weft_reader_left(&reader) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "a snapshot of the consensus has the wrong size");
    }
    return WEFT_OK;
}

weft_status weft_loco_snapshot_check(const weft_loco *loco, const void *data, size_t size) {
    snapshot_fields fields;
    if (size < CHECKSUM_BYTES) {
        return weft_fail(loco->context, WEFT_MALFORMED, "a snapshot of the consensus was cut short");
    }
    weft_status status = parse(loco, data, size, &fields);
    if (status == WEFT_OK && fields.rounds <= loco->rounds) {
        return weft_fail(
            loco->context, WEFT_NOT_FOUND,
            "round %llu is gone from the store, and the newest snapshot is of round %llu: start "
            "this rank again when there is a newer one",
            (unsigned long long)loco->rounds, (unsigned long long)fields.rounds);
    }
    return status;
}

weft_status weft_loco_snapshot_take(weft_loco *loco, const void *data, size_t size) {
    snapshot_fields fields;
    weft_status status = parse(loco, data, size, &fields);
    if (status != WEFT_OK) {
        return status;
    }
    size_t bytes = (size_t)loco->elements * sizeof(float);
    memcpy(loco->consensus, fields.consensus, bytes);
    if (fields.momentum != NULL) {
        memcpy(loco->momentum, fields.momentum, bytes);
    }
    weft_loco_set_local(loco, 0, loco->elements);
    loco->rounds = fields.rounds;
    loco->broken = true;
    status = weft_loco_move_digest(loco);
    if (status == WEFT_OK && !weft_digest_equal(&loco->digest, &fields.digest)) {
        status = weft_fail(loco->context, WEFT_DIGEST_MISMATCH,
                           "the snapshot's values are not those of its digest; go on from a saved state");
    }
    loco->broken = status != WEFT_OK;
    return status;
}
