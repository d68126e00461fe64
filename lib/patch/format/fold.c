/* SPDX-License-Identifier: Apache-2.0
 *
 * fold.c: folding and unfolding data offsets. Text in, text out: nothing is parsed as JSON, and what does
 * not look as expected stays as it is.
 */
#include "fold.h"

#include <stdio.h>
#include <string.h>

/* In place of "[B," and "[B, ": no JSON text holds these bytes. */
enum { MARK_PLAIN = 1, MARK_SPACED = 2 };

static const char key[] = "\"data_offsets\":";

/* A decimal number without leading zeros, below 2^63. False if there is none. */
static bool read_number(const char *text, size_t size, size_t *cursor, uint64_t *value_out) {
    size_t start = *cursor;
    uint64_t value = 0;
    while (*cursor < size && text[*cursor] >= '0' && text[*cursor] <= '9') {
        if (value > (uint64_t)INT64_MAX / 10 - 1) {
            return false;
        }
        value = 10 * value + (uint64_t)(text[*cursor] - '0');
        (*cursor)++;
    }
    size_t digits = *cursor - start;
    *value_out = value;
    return digits > 0 && (digits == 1 || text[start] != '0');
}

static bool read_byte(const char *text, size_t size, size_t *cursor, char byte) {
    bool there = *cursor < size && text[*cursor] == byte;
    *cursor += there;
    return there;
}

static void write_number(weft_writer *writer, uint64_t value) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    weft_writer_bytes(writer, digits, (size_t)length);
}

/* Folds the pair at the cursor if it begins at `next`, and moves both on. */
static void fold_pair(const char *text, size_t size, size_t *cursor, uint64_t *next, weft_writer *writer) {
    size_t at = *cursor;
    uint64_t begin;
    uint64_t end;
    if (!read_byte(text, size, &at, '[') || !read_number(text, size, &at, &begin) ||
        !read_byte(text, size, &at, ',')) {
        return;
    }
    bool spaced = read_byte(text, size, &at, ' ');
    if (!read_number(text, size, &at, &end) || !read_byte(text, size, &at, ']') || begin != *next ||
        end < begin) {
        return;
    }
    weft_writer_u8(writer, spaced ? MARK_SPACED : MARK_PLAIN);
    write_number(writer, end - begin);
    weft_writer_u8(writer, ']');
    *next = end;
    *cursor = at;
}

bool weft_fold_offsets(const char *text, size_t size, weft_writer *writer) {
    uint64_t next = 0;
    if (memchr(text, MARK_PLAIN, size) != NULL || memchr(text, MARK_SPACED, size) != NULL) {
        return false;
    }
    for (size_t i = 0; i < size;) {
        if (size - i < sizeof key - 1 || memcmp(text + i, key, sizeof key - 1) != 0) {
            weft_writer_u8(writer, (uint8_t)text[i++]);
            continue;
        }
        weft_writer_bytes(writer, key, sizeof key - 1);
        i += sizeof key - 1;
        if (read_byte(text, size, &i, ' ')) {
            weft_writer_u8(writer, ' ');
        }
        fold_pair(text, size, &i, &next, writer);
    }
    return true;
}

weft_status weft_unfold_offsets(weft_context *context, const char *text, size_t size, weft_writer *writer) {
    uint64_t limit = weft_context_limits(context)->header_bytes;
    uint64_t next = 0;
    for (size_t i = 0; i < size && !weft_writer_failed(writer);) {
        char byte = text[i++];
        if (byte != MARK_PLAIN && byte != MARK_SPACED) {
            weft_writer_u8(writer, (uint8_t)byte);
            continue;
        }
        uint64_t length;
        if (!read_number(text, size, &i, &length) || !read_byte(text, size, &i, ']') ||
            length > (uint64_t)INT64_MAX - next) {
            return weft_fail(context, WEFT_MALFORMED, "a file's header in the patch has broken offsets");
        }
        weft_writer_u8(writer, '[');
        write_number(writer, next);
        weft_writer_bytes(writer, ", ", byte == MARK_SPACED ? 2 : 1);
        next += length;
        write_number(writer, next);
        weft_writer_u8(writer, ']');
        if (writer->size > limit) {
            return weft_fail(context, WEFT_LIMIT_EXCEEDED,
                             "a file's header in the patch is larger than the limit");
        }
    }
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}
