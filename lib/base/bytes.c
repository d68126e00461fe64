/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.c: bounded readers and writers. Everything is little-endian, whatever the machine.
 *
 * A reader that failed stands at its end, so that a parser's "while bytes are left" also stops.
 */
#include "bytes.h"
#include "context.h"

#include <string.h>

/* The longest varint: 64 bits, seven per byte. */
enum { VARINT_BYTES = 10 };

/* A writer's first block; small enough for headers, and doubling soon leaves it behind. */
enum { WRITER_FIRST_CAPACITY = 256 };

weft_reader weft_reader_over(const void *data, size_t size) {
    /* Nothing at NULL is valid input; it must not turn an empty read into a NULL result. */
    static const uint8_t nothing[1] = {0};
    const uint8_t *cursor = data != NULL ? data : nothing;
    return (weft_reader){.cursor = cursor, .end = cursor + (data != NULL ? size : 0), .failed = false};
}

static void fail_reader(weft_reader *reader) {
    reader->failed = true;
    reader->cursor = reader->end;
}

const uint8_t *weft_reader_bytes(weft_reader *reader, size_t size) {
    if (reader->failed || size > weft_reader_left(reader)) {
        fail_reader(reader);
        return NULL;
    }
    const uint8_t *bytes = reader->cursor;
    reader->cursor += size;
    return bytes;
}

static uint64_t read_little_endian(weft_reader *reader, size_t size) {
    const uint8_t *bytes = weft_reader_bytes(reader, size);
    if (bytes == NULL) {
        return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

uint8_t weft_reader_u8(weft_reader *reader) {
    return (uint8_t)read_little_endian(reader, 1);
}

uint16_t weft_reader_u16(weft_reader *reader) {
    return (uint16_t)read_little_endian(reader, 2);
}

uint32_t weft_reader_u32(weft_reader *reader) {
    return (uint32_t)read_little_endian(reader, 4);
}

uint64_t weft_reader_u64(weft_reader *reader) {
    return read_little_endian(reader, 8);
}

/* Only the shortest form is accepted: one value, one coding, so that equal content has equal bytes. */
uint64_t weft_reader_varint(weft_reader *reader) {
    uint64_t value = 0;
    for (unsigned i = 0; i < VARINT_BYTES; i++) {
        uint8_t byte = weft_reader_u8(reader);
        if (reader->failed) {
            return 0;
        }
        bool overlong = byte == 0 && i > 0;
        bool overflow = i == VARINT_BYTES - 1 && byte > 1;
        if (overlong || overflow) {
            break;
        }
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            return value;
        }
    }
    fail_reader(reader);
    return 0;
}

void weft_writer_open(weft_writer *writer, weft_context *context) {
    *writer = (weft_writer){.context = context};
}

void weft_writer_close(weft_writer *writer) {
    weft_release(writer->context, writer->data);
    *writer = (weft_writer){.context = writer->context};
}

static bool grow_writer(weft_writer *writer, size_t size) {
    if (size > SIZE_MAX - writer->size) {
        weft_fail(writer->context, WEFT_NO_MEMORY, "out of memory: %zu bytes more than %zu", size,
                  writer->size);
        return false;
    }
    size_t needed = writer->size + size;
    size_t capacity = writer->capacity > SIZE_MAX / 2 ? SIZE_MAX : writer->capacity * 2;
    if (capacity < WRITER_FIRST_CAPACITY) {
        capacity = WRITER_FIRST_CAPACITY;
    }
    if (capacity < needed) {
        capacity = needed;
    }
    uint8_t *data = weft_reallocate_array(writer->context, writer->data, capacity, 1);
    if (data == NULL) {
        return false;
    }
    writer->data = data;
    writer->capacity = capacity;
    return true;
}

uint8_t *weft_writer_reserve(weft_writer *writer, size_t size) {
    if (writer->failed) {
        return NULL;
    }
    bool roomy = writer->data != NULL && size <= writer->capacity - writer->size;
    if (!roomy && !grow_writer(writer, size)) {
        writer->failed = true;
        return NULL;
    }
    return writer->data + writer->size;
}

static void write_little_endian(weft_writer *writer, uint64_t value, size_t size) {
    uint8_t *bytes = weft_writer_reserve(writer, size);
    if (bytes == NULL) {
        return;
    }
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    writer->size += size;
}

void weft_writer_u8(weft_writer *writer, uint8_t value) {
    write_little_endian(writer, value, 1);
}

void weft_writer_u16(weft_writer *writer, uint16_t value) {
    write_little_endian(writer, value, 2);
}

void weft_writer_u32(weft_writer *writer, uint32_t value) {
    write_little_endian(writer, value, 4);
}

void weft_writer_u64(weft_writer *writer, uint64_t value) {
    write_little_endian(writer, value, 8);
}

void weft_writer_varint(weft_writer *writer, uint64_t value) {
    uint8_t bytes[VARINT_BYTES];
    size_t size = 0;
    while (value > 0x7f) {
        bytes[size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[size++] = (uint8_t)value;
    weft_writer_bytes(writer, bytes, size);
}

void weft_writer_bytes(weft_writer *writer, const void *data, size_t size) {
    uint8_t *bytes = weft_writer_reserve(writer, size);
    if (bytes == NULL || size == 0) {
        return;
    }
    memcpy(bytes, data, size);
    writer->size += size;
}
