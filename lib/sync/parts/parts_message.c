/* SPDX-License-Identifier: Apache-2.0
 *
 * parts_message.c: messages to bytes and back.
 */
#include "parts_message.h"

#include "../../base/context.h"
#include "../../tensor/json.h"

#include <string.h>

enum {
    MESSAGE_VERSION = 1,
    OBJECT_BYTES = 8192,
    LABELS_MAX = 128, /* strings */
    WAIT_MOST = 1000000000,
};

typedef enum message_kind {
    MESSAGE_CALL = 1,
    MESSAGE_HOLDING = 2,
    MESSAGE_ROLL = 3,
    MESSAGE_MANIFEST = 4,
} message_kind;

static const char MAGIC[8] = {'w', 'e', 'f', 't', 'p', 'a', 'r', 't'};

/* ---- the frame of every message ---- */

static void begin_message(weft_writer *writer, message_kind kind) {
    weft_writer_bytes(writer, MAGIC, sizeof MAGIC);
    weft_writer_u8(writer, MESSAGE_VERSION);
    weft_writer_u8(writer, (uint8_t)kind);
}

weft_status weft_message_close(weft_context *context, const weft_message_seal *seal, weft_writer *writer) {
    weft_hash hash;
    uint8_t signature[WEFT_SIGNATURE_BYTES];
    weft_status status = WEFT_OK;
    if (seal->key != NULL && !weft_writer_failed(writer)) {
        status = weft_message_sign(context, seal, "part", writer->data, writer->size, signature);
        weft_writer_bytes(writer, signature, sizeof signature);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer_u8(writer, seal->key != NULL);
    if (weft_writer_failed(writer)) {
        return WEFT_NO_MEMORY;
    }
    status = weft_hash_compute(context, writer->data, writer->size, &hash);
    if (status == WEFT_OK) {
        weft_writer_bytes(writer, hash.bytes, sizeof hash.bytes);
        status = weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
    }
    return status;
}

static weft_status malformed(weft_context *context) {
    return weft_fail(context, WEFT_MALFORMED, "a message between the parts of a version makes no sense");
}

weft_status weft_message_open(weft_context *context, const weft_message_seal *seal, const void *data,
                              size_t size, size_t *size_out) {
    const uint8_t *bytes = data;
    weft_hash hash;
    if (size < WEFT_HASH_BYTES + 1) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "a message between parts was cut short");
    }
    size -= WEFT_HASH_BYTES;
    weft_status status = weft_hash_compute(context, data, size, &hash);
    if (status != WEFT_OK) {
        return status;
    }
    if (memcmp(bytes + size, hash.bytes, sizeof hash.bytes) != 0) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "a message between parts was damaged on its way");
    }
    bool is_signed = bytes[--size] == 1;
    if (is_signed && size < WEFT_SIGNATURE_BYTES) {
        return malformed(context);
    }
    size -= is_signed ? WEFT_SIGNATURE_BYTES : 0;
    *size_out = size;
    return seal->key != NULL
               ? weft_message_check(context, seal, "part", bytes, size, is_signed ? bytes + size : NULL)
               : WEFT_OK;
}

/* Checks the kind; `reader` is left at what follows. */
static weft_status open_fields(weft_context *context, const void *data, size_t size, message_kind kind,
                               weft_reader *reader) {
    *reader = weft_reader_over(data, size);
    const uint8_t *magic = weft_reader_bytes(reader, sizeof MAGIC);
    uint8_t version = weft_reader_u8(reader);
    uint8_t said = weft_reader_u8(reader);
    if (magic == NULL || memcmp(magic, MAGIC, sizeof MAGIC) != 0 || said != kind) {
        return malformed(context);
    }
    return version == MESSAGE_VERSION
               ? WEFT_OK
               : weft_fail(context, WEFT_WRONG_VERSION,
                           "the parts of this version are published by different versions of weft");
}

static weft_status close_message(weft_context *context, const weft_reader *reader) {
    return !weft_reader_failed(reader) && weft_reader_left(reader) == 0 ? WEFT_OK : malformed(context);
}

/* ---- values ---- */

static void write_text(weft_writer *writer, const char *text) {
    size_t length = strlen(text);
    weft_writer_varint(writer, length);
    weft_writer_bytes(writer, text, length);
}

static bool read_text(weft_reader *reader, char *text, size_t size) {
    uint64_t length = weft_reader_varint(reader);
    if (weft_reader_failed(reader) || length >= size) {
        return false;
    }
    const uint8_t *bytes = weft_reader_bytes(reader, (size_t)length);
    if (bytes == NULL || memchr(bytes, 0, (size_t)length) != NULL) {
        return false;
    }
    memcpy(text, bytes, (size_t)length);
    text[length] = '\0';
    return true;
}

static bool read_name(weft_reader *reader, char name[WEFT_PART_NAME]) {
    return read_text(reader, name, WEFT_PART_NAME) && strlen(name) == WEFT_PART_NAME - 1 &&
           strspn(name, "0123456789abcdef") == WEFT_PART_NAME - 1;
}

static bool read_bool(weft_reader *reader) {
    return weft_reader_u8(reader) != 0;
}

/* ---- calls ---- */

void weft_call_write(const weft_call *call, weft_writer *writer) {
    begin_message(writer, MESSAGE_CALL);
    weft_writer_u8(writer, (uint8_t)call->kind);
    weft_writer_varint(writer, call->number);
    weft_writer_varint(writer, call->turn);
    write_text(writer, call->name);
    write_text(writer, call->roll);
    weft_writer_varint(writer, call->version);
    weft_writer_u8(writer, call->sums);
    weft_writer_u8(writer, call->anchor);
    weft_writer_bytes(writer, call->base.bytes, sizeof call->base.bytes);
    weft_writer_u32(writer, (uint32_t)call->status);
    write_text(writer, call->text);
    weft_writer_varint(writer, call->wait);
}

weft_status weft_call_read(weft_context *context, const void *data, size_t size, weft_call *call) {
    weft_reader reader;
    weft_status status = open_fields(context, data, size, MESSAGE_CALL, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    *call = (weft_call){.kind = (weft_call_kind)weft_reader_u8(&reader)};
    call->number = weft_reader_varint(&reader);
    call->turn = weft_reader_varint(&reader);
    bool good = read_name(&reader, call->name) && read_name(&reader, call->roll);
    call->version = weft_reader_varint(&reader);
    call->sums = read_bool(&reader);
    call->anchor = read_bool(&reader);
    const uint8_t *bytes = weft_reader_bytes(&reader, sizeof call->base.bytes);
    if (bytes != NULL) {
        memcpy(call->base.bytes, bytes, sizeof call->base.bytes);
    }
    call->status = (int32_t)weft_reader_u32(&reader);
    good = good && read_text(&reader, call->text, sizeof call->text);
    call->wait = weft_reader_varint(&reader);
    if (!good || call->status > WEFT_OK || call->wait > WAIT_MOST || call->kind < WEFT_CALL_JOIN ||
        call->kind > WEFT_CALL_CLOSED) {
        return malformed(context);
    }
    return close_message(context, &reader);
}

/* ---- holdings ---- */

void weft_part_holding_close(weft_part_holding *holding, weft_context *context) {
    weft_release(context, holding->held);
    *holding = (weft_part_holding){.held = NULL};
}

void weft_part_holding_write(const weft_part_holding *holding, weft_writer *writer) {
    begin_message(writer, MESSAGE_HOLDING);
    write_text(writer, holding->member);
    weft_writer_varint(writer, holding->index);
    weft_writer_varint(writer, holding->count);
    weft_writer_bytes(writer, holding->plan.bytes, sizeof holding->plan.bytes);
    weft_writer_varint(writer, holding->bucket_count);
    for (size_t i = 0; i < holding->bucket_count; i += 8) {
        uint8_t bits = 0;
        for (size_t j = 0; j < 8 && i + j < holding->bucket_count; j++) {
            bits |= (uint8_t)(holding->held[i + j] << j);
        }
        weft_writer_u8(writer, bits);
    }
}

weft_status weft_part_holding_read(weft_context *context, const void *data, size_t size,
                                   size_t bucket_count, weft_part_holding *holding) {
    weft_reader reader;
    weft_status status = open_fields(context, data, size, MESSAGE_HOLDING, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    weft_part_holding read = {.bucket_count = bucket_count};
    bool good = read_name(&reader, read.member);
    read.index = weft_reader_varint(&reader);
    read.count = weft_reader_varint(&reader);
    const uint8_t *plan = weft_reader_bytes(&reader, sizeof read.plan.bytes);
    uint64_t count = weft_reader_varint(&reader);
    if (!good || plan == NULL) {
        return malformed(context);
    }
    memcpy(read.plan.bytes, plan, sizeof read.plan.bytes);
    /* of another plan: whoever compares the hashes says so */
    if (count != bucket_count) {
        *holding = read;
        return WEFT_OK;
    }
    read.held = weft_allocate_zeroed(context, bucket_count, sizeof *read.held);
    if (read.held == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < bucket_count && !weft_reader_failed(&reader); i += 8) {
        uint8_t bits = weft_reader_u8(&reader);
        for (size_t j = 0; j < 8 && i + j < bucket_count; j++) {
            read.held[i + j] = (bits >> j & 1) != 0;
        }
    }
    status = close_message(context, &reader);
    if (status != WEFT_OK) {
        weft_part_holding_close(&read, context);
        return status;
    }
    *holding = read;
    return WEFT_OK;
}

/* ---- rolls ---- */

void weft_part_roll_close(weft_part_roll *roll, weft_context *context) {
    weft_release(context, roll->members);
    weft_release(context, roll->owners);
    *roll = (weft_part_roll){.members = NULL};
}

void weft_part_roll_write(const weft_part_roll *roll, weft_writer *writer) {
    begin_message(writer, MESSAGE_ROLL);
    weft_writer_varint(writer, roll->member_count);
    for (size_t i = 0; i < roll->member_count; i++) {
        write_text(writer, roll->members[i]);
    }
    weft_writer_varint(writer, roll->bucket_count);
    for (size_t i = 0; i < roll->bucket_count; i++) {
        weft_writer_u16(writer, roll->owners[i]);
    }
}

static weft_status read_roll(weft_context *context, weft_reader *reader, weft_part_roll *roll) {
    roll->members = weft_allocate_zeroed(context, roll->member_count, sizeof *roll->members);
    roll->owners = weft_allocate_zeroed(context, roll->bucket_count, sizeof *roll->owners);
    if (roll->members == NULL || roll->owners == NULL) {
        return WEFT_NO_MEMORY;
    }
    bool good = true;
    for (size_t i = 0; i < roll->member_count && good; i++) {
        good = read_name(reader, roll->members[i]);
    }
    good = good && weft_reader_varint(reader) == roll->bucket_count;
    for (size_t i = 0; i < roll->bucket_count && good; i++) {
        roll->owners[i] = weft_reader_u16(reader);
        good = roll->owners[i] < roll->member_count;
    }
    return good ? close_message(context, reader) : malformed(context);
}

weft_status weft_part_roll_read(weft_context *context, const void *data, size_t size, size_t bucket_count,
                                weft_part_roll *roll) {
    weft_reader reader;
    weft_status status = open_fields(context, data, size, MESSAGE_ROLL, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t members = weft_reader_varint(&reader);
    if (members == 0 || members > WEFT_PARTS_MAX) {
        return malformed(context);
    }
    weft_part_roll read = {.member_count = (size_t)members, .bucket_count = bucket_count};
    status = read_roll(context, &reader, &read);
    if (status != WEFT_OK) {
        weft_part_roll_close(&read, context);
        return status;
    }
    *roll = read;
    return WEFT_OK;
}

/* ---- manifests ---- */

void weft_part_manifest_close(weft_part_manifest *manifest, weft_context *context) {
    weft_texts_close(&manifest->labels, context);
    weft_release(context, manifest->frames);
    weft_release(context, manifest->moves);
    weft_release(context, manifest->sums);
    *manifest = (weft_part_manifest){.status = WEFT_OK};
}

static void write_sums(const weft_sum *sums, size_t count, weft_writer *writer) {
    for (size_t i = 0; i < count; i++) {
        weft_writer_u64(writer, sums[i].lanes[0]);
        weft_writer_u64(writer, sums[i].lanes[1]);
    }
}

void weft_part_manifest_write(const weft_part_manifest *manifest, weft_writer *writer) {
    begin_message(writer, MESSAGE_MANIFEST);
    write_text(writer, manifest->member);
    weft_writer_u32(writer, (uint32_t)manifest->status);
    write_text(writer, manifest->text);
    weft_writer_varint(writer, manifest->labels.count);
    for (size_t i = 0; i < manifest->labels.count; i++) {
        write_text(writer, manifest->labels.items[i]);
    }
    weft_writer_varint(writer, manifest->frame_count);
    if (manifest->frame_count > 0) {
        weft_writer text;
        weft_writer_open(&text, writer->context);
        weft_json_write(&text, weft_object_format(&manifest->piece));
        writer->failed = writer->failed || weft_writer_failed(&text);
        weft_writer_varint(writer, text.size);
        weft_writer_bytes(writer, text.data, text.size);
        weft_writer_close(&text);
    }
    for (size_t i = 0; i < manifest->frame_count; i++) {
        const weft_part_frame *frame = &manifest->frames[i];
        weft_writer_varint(writer, frame->bucket);
        weft_writer_varint(writer, frame->length);
        weft_writer_u64(writer, frame->checksum);
        weft_writer_varint(writer, frame->changed);
    }
    weft_writer_u8(writer, manifest->moves != NULL);
    write_sums(manifest->moves, manifest->moves != NULL ? manifest->tensor_count : 0, writer);
    weft_writer_u8(writer, manifest->sums != NULL);
    write_sums(manifest->sums, manifest->sums != NULL ? manifest->tensor_count : 0, writer);
}

static weft_status read_labels(weft_context *context, weft_reader *reader, weft_texts *labels) {
    char text[WEFT_LABEL_BYTES + 1];
    uint64_t count = weft_reader_varint(reader);
    if (count > LABELS_MAX) {
        return malformed(context);
    }
    weft_status status = WEFT_OK;
    for (uint64_t i = 0; i < count && status == WEFT_OK; i++) {
        status = read_text(reader, text, sizeof text) ? weft_texts_add(labels, context, text)
                                                      : malformed(context);
    }
    return status;
}

static weft_status read_object(weft_context *context, weft_reader *reader, weft_object *object) {
    uint64_t size = weft_reader_varint(reader);
    const uint8_t *text = size <= OBJECT_BYTES ? weft_reader_bytes(reader, (size_t)size) : NULL;
    json_t *json;
    if (text == NULL) {
        return malformed(context);
    }
    weft_status status = weft_json_parse(context, "a part", (const char *)text, (size_t)size, 4, 4, &json);
    if (status == WEFT_OK) {
        status = weft_object_parse(context, "a part", json, object);
        json_decref(json);
    }
    return status == WEFT_OK && object->pieced ? malformed(context) : status;
}

static weft_status read_frames(weft_context *context, weft_reader *reader, size_t bucket_count,
                               weft_part_manifest *manifest) {
    uint64_t count = weft_reader_varint(reader);
    if (count > bucket_count) {
        return malformed(context);
    }
    weft_status status = count > 0 ? read_object(context, reader, &manifest->piece) : WEFT_OK;
    if (status != WEFT_OK) {
        return status;
    }
    manifest->frames = weft_allocate_array(context, (size_t)count, sizeof *manifest->frames);
    if (manifest->frames == NULL) {
        return WEFT_NO_MEMORY;
    }
    manifest->frame_count = (size_t)count;
    for (size_t i = 0; i < manifest->frame_count; i++) {
        weft_part_frame *frame = &manifest->frames[i];
        frame->bucket = weft_reader_varint(reader);
        frame->length = weft_reader_varint(reader);
        frame->checksum = weft_reader_u64(reader);
        frame->changed = weft_reader_varint(reader);
    }
    return weft_reader_failed(reader) ? malformed(context) : WEFT_OK;
}

/* Absent is NULL. */
static weft_status read_sums(weft_context *context, weft_reader *reader, size_t count,
                             weft_sum **sums_out) {
    if (!read_bool(reader)) {
        return WEFT_OK;
    }
    weft_sum *sums = weft_allocate_zeroed(context, count, sizeof *sums);
    if (sums == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        sums[i].lanes[0] = weft_reader_u64(reader);
        sums[i].lanes[1] = weft_reader_u64(reader);
    }
    *sums_out = sums;
    return WEFT_OK;
}

static weft_status read_manifest(weft_context *context, weft_reader *reader, size_t bucket_count,
                                 weft_part_manifest *manifest) {
    bool good = read_name(reader, manifest->member);
    manifest->status = (int32_t)weft_reader_u32(reader);
    if (!good || manifest->status > WEFT_OK || !read_text(reader, manifest->text, sizeof manifest->text)) {
        return malformed(context);
    }
    weft_status status = read_labels(context, reader, &manifest->labels);
    if (status == WEFT_OK) {
        status = read_frames(context, reader, bucket_count, manifest);
    }
    if (status == WEFT_OK) {
        status = read_sums(context, reader, manifest->tensor_count, &manifest->moves);
    }
    if (status == WEFT_OK) {
        status = read_sums(context, reader, manifest->tensor_count, &manifest->sums);
    }
    return status == WEFT_OK ? close_message(context, reader) : status;
}

weft_status weft_part_manifest_read(weft_context *context, const void *data, size_t size,
                                    size_t bucket_count, size_t tensor_count,
                                    weft_part_manifest *manifest) {
    weft_reader reader;
    weft_status status = open_fields(context, data, size, MESSAGE_MANIFEST, &reader);
    if (status != WEFT_OK) {
        return status;
    }
    weft_part_manifest read = {.tensor_count = tensor_count};
    status = read_manifest(context, &reader, bucket_count, &read);
    if (status != WEFT_OK) {
        weft_part_manifest_close(&read, context);
        return status;
    }
    *manifest = read;
    return WEFT_OK;
}
