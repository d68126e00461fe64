/* SPDX-License-Identifier: Apache-2.0
 *
 * bits.h: streams of bits, lowest bit of the first byte first.
 *
 * The reader loads eight bytes at a time, wherever it stands. Its memory must therefore be readable for
 * WEFT_BITS_SLACK bytes past the end; every bucket frame provides them, since its checksum follows the
 * payload. Reading past the end is allowed and gives whatever lies there: a decoder asks
 * weft_bits_overrun before it believes what it read, and bounds how far it goes between two questions.
 */
#ifndef WEFT_CODE_BITS_H
#define WEFT_CODE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { WEFT_BITS_SLACK = 8 };

/* The caller provides room: at least 8 bytes more than the stream will take. */
typedef struct weft_bits_writer {
    uint8_t *cursor;
    uint64_t pending;
    unsigned count; /* bits in `pending`, below 8 between calls */
} weft_bits_writer;

/* `count` is at most 56, and `value` has no bits above it. */
static inline void weft_bits_put(weft_bits_writer *writer, uint64_t value, unsigned count) {
    writer->pending |= value << writer->count;
    writer->count += count;
    memcpy(writer->cursor, &writer->pending, 8);
    unsigned bytes = writer->count / 8;
    writer->cursor += bytes;
    writer->pending >>= 8 * bytes;
    writer->count &= 7;
}

/* Any count up to 64. */
static inline void weft_bits_put_wide(weft_bits_writer *writer, uint64_t value, unsigned count) {
    if (count > 32) {
        weft_bits_put(writer, value & 0xffffffffu, 32);
        value >>= 32;
        count -= 32;
    }
    weft_bits_put(writer, value, count);
}

/* Writes the last partial byte and returns the end. */
static inline uint8_t *weft_bits_finish(weft_bits_writer *writer) {
    if (writer->count > 0) {
        *writer->cursor++ = (uint8_t)writer->pending;
    }
    return writer->cursor;
}

typedef struct weft_bits_reader {
    const uint8_t *data;
    uint64_t position; /* in bits */
    uint64_t size;     /* in bits */
} weft_bits_reader;

static inline weft_bits_reader weft_bits_over(const uint8_t *data, size_t bytes) {
    return (weft_bits_reader){data, 0, 8 * (uint64_t)bytes};
}

static inline bool weft_bits_overrun(const weft_bits_reader *reader) {
    return reader->position > reader->size;
}

/* At least 57 bits from the reader's position on. The position must not have overrun. */
static inline uint64_t weft_bits_peek(const weft_bits_reader *reader) {
    uint64_t window;
    memcpy(&window, reader->data + reader->position / 8, 8);
    return window >> (reader->position % 8);
}

/* Up to 64 bits; zero without moving past the end if that would overrun, which is then remembered. */
static inline uint64_t weft_bits_get(weft_bits_reader *reader, unsigned count) {
    if (reader->position > reader->size || count > reader->size - reader->position) {
        reader->position = reader->size + 1;
        return 0;
    }
    uint64_t value = weft_bits_peek(reader);
    if (count > 56) {
        uint64_t high;
        reader->position += 32;
        high = weft_bits_peek(reader);
        reader->position -= 32;
        value = (value & 0xffffffffu) | high << 32;
    }
    reader->position += count;
    return count == 64 ? value : value & (((uint64_t)1 << count) - 1);
}

#endif
