/* SPDX-License-Identifier: Apache-2.0
 *
 * payload.c: header, frames and seal of a payload, written and read.
 */
#include "payload.h"
#include "../base/sized.h"

#include "../base/context.h"
#include "../code/block.h"

#include <string.h>
#include <xxhash.h>

static const char magic[8] = {'W', 'E', 'F', 'T', 'L', 'O', 'C', 'O'};
enum {
    FLAG_OPEN = 1,
    FLAG_RAW = 2,
    FLAG_AVERAGE = 4,
    FLAGS = FLAG_OPEN | FLAG_RAW | FLAG_AVERAGE,
    FRAME_FIELDS = 4 + 4 + 8, /* size, fired, checksum */
    FOOTER = 8 + 16,
};

static void put_float(weft_writer *writer, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    weft_writer_u32(writer, bits);
}

static float get_float(weft_reader *reader) {
    uint32_t bits = weft_reader_u32(reader);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- writing ---- */

void weft_payload_begin(const weft_loco_info *info, uint32_t block_elements, weft_writer *writer,
                        weft_payload_seal *seal) {
    size_t run = strlen(info->run);
    writer->size = 0;
    seal->checksums.size = 0;
    weft_writer_bytes(writer, magic, sizeof magic);
    weft_writer_u16(writer, WEFT_PAYLOAD_VERSION);
    weft_writer_u8(writer, (uint8_t)((info->open ? FLAG_OPEN : 0) | (info->raw ? FLAG_RAW : 0) |
                                     (info->average ? FLAG_AVERAGE : 0)));
    weft_writer_u8(writer, (uint8_t)info->significant);
    weft_writer_u32(writer, info->rank);
    weft_writer_u32(writer, info->ranks);
    weft_writer_u32(writer, block_elements);
    weft_writer_u64(writer, info->round);
    weft_writer_u64(writer, info->elements);
    weft_writer_bytes(writer, info->base.bytes, sizeof info->base.bytes);
    put_float(writer, info->rate);
    put_float(writer, info->momentum);
    weft_writer_u8(writer, (uint8_t)run);
    weft_writer_bytes(writer, info->run, run);
    uint64_t checksum = weft_writer_failed(writer) ? 0 : XXH3_64bits(writer->data, writer->size);
    weft_writer_u64(writer, checksum);
    weft_writer_u64(&seal->checksums, checksum);
    seal->fired = 0;
}

size_t weft_payload_frame_begin(weft_writer *frame) {
    size_t start = frame->size;
    weft_writer_u32(frame, 0);
    weft_writer_u32(frame, 0);
    return start;
}

void weft_payload_frame_end(weft_writer *frame, size_t start, uint32_t fired) {
    if (weft_writer_failed(frame)) {
        return;
    }
    uint32_t size = (uint32_t)(frame->size - start - 8);
    memcpy(frame->data + start, &size, sizeof size);
    memcpy(frame->data + start + 4, &fired, sizeof fired);
    weft_writer_u64(frame, XXH3_64bits(frame->data + start, frame->size - start));
}

void weft_payload_append(weft_writer *writer, weft_payload_seal *seal, const weft_writer *frame) {
    uint32_t fired;
    memcpy(&fired, frame->data + 4, sizeof fired);
    weft_writer_bytes(writer, frame->data, frame->size);
    weft_writer_bytes(&seal->checksums, frame->data + frame->size - 8, 8);
    seal->fired += fired;
}

static void put_digest(weft_writer *writer, const weft_writer *checksums) {
    XXH128_hash_t digest = XXH3_128bits(checksums->data, checksums->size);
    weft_writer_u64(writer, digest.low64);
    weft_writer_u64(writer, digest.high64);
}

void weft_payload_finish(weft_writer *writer, weft_payload_seal *seal) {
    weft_writer_u64(writer, seal->fired);
    weft_writer_u64(&seal->checksums, seal->fired);
    if (!weft_writer_failed(&seal->checksums)) {
        put_digest(writer, &seal->checksums);
    }
}

/* ---- reading ---- */

static weft_status truncated(weft_context *context) {
    return weft_fail(context, WEFT_TRUNCATED, "a payload ends before its end: it was cut on its way");
}

static bool header_valid(const weft_payload *payload, unsigned flags) {
    const weft_loco_info *info = &payload->info;
    return (flags & ~(unsigned)FLAGS) == 0 && info->ranks >= 1 && info->ranks <= WEFT_LOCO_RANKS_MAX &&
           info->rank < info->ranks && payload->block_elements >= 1 &&
           payload->block_elements <= WEFT_BLOCK_MAX && info->elements >= 1 && info->significant <= 23 &&
           info->significant != 1 && (!info->raw || info->open) && (!info->raw || info->significant == 0) &&
           (!info->average || (info->raw && info->rate == 1 && info->momentum == 0));
}

/* Reads the header; the reader stands behind it. */
static weft_status read_header(weft_context *context, weft_reader *reader, weft_payload *payload,
                               uint64_t *checksum_out) {
    const uint8_t *start = reader->cursor;
    const uint8_t *given = weft_reader_bytes(reader, sizeof magic);
    weft_loco_info *info = &payload->info;
    if (given == NULL) {
        return truncated(context);
    }
    if (memcmp(given, magic, sizeof magic) != 0) {
        return weft_fail(context, WEFT_MALFORMED, "these bytes are no payload of PULSELoCo");
    }
    unsigned version = weft_reader_u16(reader);
    if (!weft_reader_failed(reader) && version != WEFT_PAYLOAD_VERSION) {
        return weft_fail(context, WEFT_WRONG_VERSION,
                         "a payload has version %u, and this library reads version %d: give all ranks the "
                         "same version of weft",
                         version, WEFT_PAYLOAD_VERSION);
    }
    unsigned flags = weft_reader_u8(reader);
    info->open = (flags & FLAG_OPEN) != 0;
    info->raw = (flags & FLAG_RAW) != 0;
    info->average = (flags & FLAG_AVERAGE) != 0;
    info->significant = weft_reader_u8(reader);
    info->rank = weft_reader_u32(reader);
    info->ranks = weft_reader_u32(reader);
    payload->block_elements = weft_reader_u32(reader);
    info->round = weft_reader_u64(reader);
    info->elements = weft_reader_u64(reader);
    const uint8_t *base = weft_reader_bytes(reader, sizeof info->base.bytes);
    info->rate = get_float(reader);
    info->momentum = get_float(reader);
    size_t run_size = weft_reader_u8(reader);
    const uint8_t *run = weft_reader_bytes(reader, run_size);
    const uint8_t *end = reader->cursor;
    *checksum_out = weft_reader_u64(reader);
    if (weft_reader_failed(reader)) {
        return truncated(context);
    }
    if (XXH3_64bits(start, (size_t)(end - start)) != *checksum_out) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "the header of a payload is damaged");
    }
    if (!header_valid(payload, flags) || run_size > WEFT_LOCO_RUN_MAX || memchr(run, 0, run_size) != NULL) {
        return weft_fail(context, WEFT_MALFORMED, "the header of a payload is not valid");
    }
    memcpy(info->base.bytes, base, sizeof info->base.bytes);
    memcpy(info->run, run, run_size);
    info->run[run_size] = 0;
    return WEFT_OK;
}

static weft_status read_frame(weft_context *context, weft_reader *reader, const weft_payload *payload,
                              uint64_t index, weft_payload_block *block, weft_writer *checksums) {
    const uint8_t *start = reader->cursor;
    uint64_t first = index * payload->block_elements;
    uint64_t elements = payload->info.elements - first;
    elements = elements < payload->block_elements ? elements : payload->block_elements;
    block->size = weft_reader_u32(reader);
    block->fired = weft_reader_u32(reader);
    block->data = weft_reader_bytes(reader, block->size);
    uint64_t checksum = weft_reader_u64(reader);
    if (weft_reader_failed(reader)) {
        return truncated(context);
    }
    if (XXH3_64bits(start, 8 + (size_t)block->size) != checksum) {
        return weft_fail(context, WEFT_CHECKSUM_MISMATCH, "block %llu of a payload is damaged",
                         (unsigned long long)index);
    }
    if (block->fired > elements || (block->fired == 0) != (block->size == 0) ||
        (payload->info.open && block->fired != elements) ||
        (payload->info.raw && block->size != elements * sizeof(float))) {
        return weft_fail(context, WEFT_MALFORMED, "block %llu of a payload is not valid",
                         (unsigned long long)index);
    }
    weft_writer_u64(checksums, checksum);
    return WEFT_OK;
}

/* Every frame and the end. */
static weft_status read_frames(weft_context *context, weft_reader *reader, weft_payload *payload,
                               weft_writer *checksums) {
    weft_status status = WEFT_OK;
    weft_loco_info *info = &payload->info;
    info->fired = 0;
    for (uint64_t i = 0; i < info->blocks && status == WEFT_OK; i++) {
        status = read_frame(context, reader, payload, i, &payload->blocks[i], checksums);
        info->fired += payload->blocks[i].fired;
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t fired = weft_reader_u64(reader);
    uint64_t low = weft_reader_u64(reader);
    uint64_t high = weft_reader_u64(reader);
    if (weft_reader_failed(reader)) {
        return truncated(context);
    }
    weft_writer_u64(checksums, fired);
    if (weft_writer_failed(checksums)) {
        return WEFT_NO_MEMORY;
    }
    XXH128_hash_t digest = XXH3_128bits(checksums->data, checksums->size);
    if (digest.low64 != low || digest.high64 != high || fired != info->fired) {
        return weft_fail(context, WEFT_DIGEST_MISMATCH,
                         "a payload does not hold the blocks that its end promises");
    }
    if (weft_reader_left(reader) > 0) {
        return weft_fail(context, WEFT_MALFORMED, "%zu bytes follow the end of a payload",
                         weft_reader_left(reader));
    }
    return WEFT_OK;
}

weft_status weft_payload_open(weft_context *context, const void *data, size_t size,
                              weft_payload *payload_out) {
    weft_payload payload = {.blocks = NULL};
    weft_reader reader = weft_reader_over(data, size);
    uint64_t checksum = 0;
    weft_status status = read_header(context, &reader, &payload, &checksum);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t blocks = (payload.info.elements - 1) / payload.block_elements + 1;
    if (blocks > weft_reader_left(&reader) / FRAME_FIELDS || weft_reader_left(&reader) < FOOTER) {
        return truncated(context);
    }
    payload.info.blocks = blocks;
    payload.blocks = weft_allocate_array(context, (size_t)blocks, sizeof *payload.blocks);
    if (payload.blocks == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_writer checksums;
    weft_writer_open(&checksums, context);
    weft_writer_u64(&checksums, checksum);
    status = read_frames(context, &reader, &payload, &checksums);
    weft_writer_close(&checksums);
    if (status != WEFT_OK) {
        weft_payload_close(context, &payload);
        return status;
    }
    *payload_out = payload;
    return WEFT_OK;
}

void weft_payload_close(weft_context *context, weft_payload *payload) {
    weft_release(context, payload->blocks);
    payload->blocks = NULL;
}

weft_status weft_loco_inspect(weft_context *context, const weft_loco_payload *payload,
                              weft_loco_info *info_out) {
    weft_payload opened;
    weft_context_clear(context);
    weft_status status = weft_sized_check(context, info_out, "weft_loco_info");
    if (status == WEFT_OK) {
        status = weft_payload_open(context, payload->data, payload->size, &opened);
    }
    if (status == WEFT_OK) {
        weft_sized_write(&opened.info, info_out, sizeof opened.info);
        weft_payload_close(context, &opened);
    }
    return status;
}
