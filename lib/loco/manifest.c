/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.c: the small objects of an exchange to bytes and back.
 */
#include "manifest.h"

#include "../base/context.h"

#include <string.h>
#include <xxhash.h>

enum { MANIFEST_VERSION = 2, CHECKSUM_BYTES = 8 };

static const char MAGIC[8] = {'w', 'e', 'f', 't', 'm', 'e', 'e', 't'};

void weft_manifest_begin(weft_writer *writer, weft_manifest_kind kind, const char *run) {
    size_t length = strlen(run);
    weft_writer_bytes(writer, MAGIC, sizeof MAGIC);
    weft_writer_u8(writer, MANIFEST_VERSION);
    weft_writer_u8(writer, (uint8_t)kind);
    weft_writer_varint(writer, length);
    weft_writer_bytes(writer, run, length);
}

void weft_manifest_end(weft_writer *writer) {
    if (!weft_writer_failed(writer)) {
        weft_writer_u64(writer, XXH3_64bits(writer->data, writer->size));
    }
}

static weft_status malformed(weft_context *context, const char *what) {
    return weft_fail(context, WEFT_MALFORMED, "what trainers agree by is %s", what);
}

weft_status weft_manifest_open(weft_context *context, const void *data, size_t size,
                               weft_manifest_kind kind, const char *run, weft_reader *reader) {
    if (size < CHECKSUM_BYTES) {
        return malformed(context, "cut short");
    }
    weft_reader tail = weft_reader_over((const uint8_t *)data + size - CHECKSUM_BYTES, CHECKSUM_BYTES);
    if (weft_reader_u64(&tail) != XXH3_64bits(data, size - CHECKSUM_BYTES)) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "what trainers agree by was damaged");
    }
    *reader = weft_reader_over(data, size - CHECKSUM_BYTES);
    const uint8_t *magic = weft_reader_bytes(reader, sizeof MAGIC);
    uint8_t version = weft_reader_u8(reader);
    uint8_t said = weft_reader_u8(reader);
    if (magic == NULL || memcmp(magic, MAGIC, sizeof MAGIC) != 0 || said != kind) {
        return malformed(context, "of another kind");
    }
    if (version != MANIFEST_VERSION) {
        return weft_fail(context, WEFT_WRONG_VERSION, "the trainers run different versions of weft");
    }
    size_t length = strlen(run);
    uint64_t said_length = weft_reader_varint(reader);
    const uint8_t *name = said_length == length ? weft_reader_bytes(reader, length) : NULL;
    if (name == NULL || memcmp(name, run, length) != 0) {
        return malformed(context, "of another run");
    }
    return WEFT_OK;
}

weft_status weft_manifest_close(weft_context *context, const weft_reader *reader) {
    return !weft_reader_failed(reader) && weft_reader_left(reader) == 0
               ? WEFT_OK
               : malformed(context, "longer or shorter than it says");
}

static void read_hash(weft_reader *reader, weft_hash *hash) {
    const uint8_t *bytes = weft_reader_bytes(reader, sizeof hash->bytes);
    if (bytes != NULL) {
        memcpy(hash->bytes, bytes, sizeof hash->bytes);
    }
}

/* ---- rounds ---- */

void weft_manifest_write(const weft_manifest *manifest, const char *run, weft_writer *writer) {
    weft_manifest_begin(writer, WEFT_MANIFEST_ROUND, run);
    weft_writer_u64(writer, manifest->round);
    weft_writer_u32(writer, manifest->leader);
    weft_writer_u32(writer, manifest->ranks);
    for (uint32_t rank = 0; rank < manifest->ranks; rank++) {
        const weft_manifest_payload *payload = &manifest->payloads[rank];
        weft_writer_u8(writer, payload->included);
        if (payload->included) {
            weft_writer_u64(writer, payload->bytes);
            weft_writer_bytes(writer, payload->hash.bytes, sizeof payload->hash.bytes);
        }
    }
    weft_manifest_end(writer);
}

static bool read_payload(weft_reader *reader, weft_manifest_payload *payload) {
    uint8_t included = weft_reader_u8(reader);
    *payload = (weft_manifest_payload){.included = included == 1};
    if (included == 1) {
        payload->bytes = weft_reader_u64(reader);
        read_hash(reader, &payload->hash);
    }
    return included <= 1;
}

weft_status weft_manifest_parse(weft_context *context, const void *data, size_t size, const char *run,
                                uint64_t round, uint32_t ranks, weft_manifest *manifest_out) {
    weft_reader reader;
    weft_status status = weft_manifest_open(context, data, size, WEFT_MANIFEST_ROUND, run, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    weft_manifest manifest = {.payloads = manifest_out->payloads};
    manifest.round = weft_reader_u64(&reader);
    manifest.leader = weft_reader_u32(&reader);
    manifest.ranks = weft_reader_u32(&reader);
    if (weft_reader_failed(&reader) || manifest.round != round || manifest.ranks != ranks ||
        manifest.leader >= ranks) {
        return malformed(context, "of another round, or of another number of trainers");
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (!read_payload(&reader, &manifest.payloads[rank])) {
            return malformed(context, "not one");
        }
        manifest.included += manifest.payloads[rank].included;
    }
    status = weft_manifest_close(context, &reader);
    if (status == WEFT_OK && manifest.included == 0) {
        status = malformed(context, "a round of nobody");
    }
    if (status == WEFT_OK) {
        *manifest_out = manifest;
    }
    return status;
}

/* ---- snapshots ---- */

void weft_snapshot_note_write(const weft_snapshot_note *note, const char *run, weft_writer *writer) {
    weft_manifest_begin(writer, WEFT_MANIFEST_NEWEST, run);
    weft_writer_u64(writer, note->rounds);
    weft_writer_u64(writer, note->bytes);
    weft_writer_bytes(writer, note->hash.bytes, sizeof note->hash.bytes);
    weft_manifest_end(writer);
}

weft_status weft_snapshot_note_parse(weft_context *context, const void *data, size_t size, const char *run,
                                     weft_snapshot_note *note_out) {
    weft_reader reader;
    weft_snapshot_note note = {0};
    weft_status status = weft_manifest_open(context, data, size, WEFT_MANIFEST_NEWEST, run, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    note.rounds = weft_reader_u64(&reader);
    note.bytes = weft_reader_u64(&reader);
    read_hash(&reader, &note.hash);
    status = weft_manifest_close(context, &reader);
    if (status == WEFT_OK) {
        *note_out = note;
    }
    return status;
}
