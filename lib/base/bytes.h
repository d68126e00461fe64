/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.h: bounded readers and writers. Every parser of the library reads through a weft_reader, so
 * that no length is believed before it is checked against what is left.
 *
 * Failure sticks: after a read past the end, or a malformed varint, every further read gives zero and
 * weft_reader_failed stays true. Parsers may therefore check once per record, before using its values.
 */
#ifndef WEFT_BASE_BYTES_H
#define WEFT_BASE_BYTES_H

#include <weft/base.h>

/* Files are little-endian, and so are weights in memory: they are loaded as they lie. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weft needs a little-endian machine");

typedef struct weft_reader {
    const uint8_t *cursor;
    const uint8_t *end;
    bool failed;
} weft_reader;

weft_reader weft_reader_over(const void *data, size_t size);
static inline size_t weft_reader_left(const weft_reader *reader) {
    return (size_t)(reader->end - reader->cursor);
}
static inline bool weft_reader_failed(const weft_reader *reader) {
    return reader->failed;
}
uint8_t weft_reader_u8(weft_reader *reader);
uint16_t weft_reader_u16(weft_reader *reader);
uint32_t weft_reader_u32(weft_reader *reader);
uint64_t weft_reader_u64(weft_reader *reader);
/* LEB128, at most 64 bits, shortest form only. */
uint64_t weft_reader_varint(weft_reader *reader);
/* A pointer into the data, or NULL (and failed) if fewer than `size` bytes are left. */
const uint8_t *weft_reader_bytes(weft_reader *reader, size_t size);

/* A growing buffer. Failure to grow sticks too. */
typedef struct weft_writer {
    weft_context *context;
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool failed;
} weft_writer;

void weft_writer_open(weft_writer *writer, weft_context *context);
void weft_writer_close(weft_writer *writer); /* releases the buffer */
static inline bool weft_writer_failed(const weft_writer *writer) {
    return writer->failed;
}
/* Room for `size` more bytes, returned; the caller fills it and adds to `size` what it used. NULL on
 * failure. */
uint8_t *weft_writer_reserve(weft_writer *writer, size_t size);
void weft_writer_u8(weft_writer *writer, uint8_t value);
void weft_writer_u16(weft_writer *writer, uint16_t value);
void weft_writer_u32(weft_writer *writer, uint32_t value);
void weft_writer_u64(weft_writer *writer, uint64_t value);
void weft_writer_varint(weft_writer *writer, uint64_t value);
void weft_writer_bytes(weft_writer *writer, const void *data, size_t size);

#endif
