/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_read.c: see classes_read.h.
 */
#include "classes_read.h"

static bool read_cuts(weft_class_header *header, weft_reader *reader, weft_exponent exponent) {
    unsigned highest = exponent.present ? 0x7fffu >> exponent.shift : 0;
    header->shift = exponent.shift;
    header->classes = weft_reader_u8(reader);
    if (header->classes < 1 || header->classes > (exponent.present ? WEFT_CLASS_MAX : 1)) {
        return false;
    }
    header->cuts[0] = 0;
    for (unsigned c = 1; c < header->classes; c++) {
        header->cuts[c] = weft_reader_u8(reader);
        if (header->cuts[c] <= header->cuts[c - 1] || header->cuts[c] > highest) {
            return false;
        }
    }
    return true;
}

static bool read_counts(weft_class_header *header, weft_reader *reader, size_t count) {
    uint64_t total = 0;
    for (unsigned c = 0; c < header->classes; c++) {
        uint64_t entries = weft_reader_varint(reader);
        if (entries > count) {
            return false;
        }
        header->counts[c] = (uint32_t)entries;
        total += entries;
    }
    return total == count;
}

bool weft_class_header_read(weft_class_header *header, const uint8_t *payload, size_t size,
                            weft_exponent exponent, size_t count) {
    weft_reader reader = weft_reader_over(payload, size);
    if (!read_cuts(header, &reader, exponent) || !read_counts(header, &reader, count)) {
        return false;
    }
    uint64_t bits = weft_reader_varint(&reader);
    if (weft_reader_failed(&reader) || bits > weft_reader_left(&reader)) {
        return false;
    }
    header->bits = weft_bits_over(weft_reader_bytes(&reader, (size_t)bits), (size_t)bits);
    header->stream_size = weft_reader_left(&reader);
    header->stream = weft_reader_bytes(&reader, header->stream_size);
    return true;
}

bool weft_class_tables_read(weft_class_header *header, unsigned gap_tokens, weft_rans_table *gaps,
                            unsigned value_tokens, weft_rans_table *values) {
    for (unsigned c = 0; c < header->classes; c++) {
        if (header->counts[c] == 0) {
            continue;
        }
        if (!weft_rans_table_read(&gaps[c], &header->bits) || gaps[c].tokens > gap_tokens ||
            !weft_rans_table_read(&values[c], &header->bits) || values[c].tokens > value_tokens) {
            return false;
        }
    }
    return true;
}

bool weft_class_header_done(const weft_class_header *header, const weft_rans_decoder *rans) {
    return weft_rans_decoder_done(rans) && header->bits.size - header->bits.position < 8;
}

void weft_class_cursors_open(weft_class_cursors *cursors, const weft_class_header *header) {
    size_t first = 0;
    for (unsigned c = 0; c < header->classes; c++) {
        cursors->next[c] = first;
        first += header->counts[c];
        cursors->end[c] = first;
        cursors->members[c] = 0;
    }
}

bool weft_class_cursors_done(const weft_class_cursors *cursors, const weft_class_header *header) {
    for (unsigned c = 0; c < header->classes; c++) {
        if (cursors->next[c] != cursors->end[c]) {
            return false;
        }
    }
    return true;
}
