/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_read.c: the front, the tables and the tokens of classes_read.h, and the memory for them: all that
 * does not depend on what is said of an entry.
 */
#include "classes_read.h"

#include "token.h"

static bool read_cuts(weft_class_header *header, weft_reader *reader, weft_exponent exponent) {
    unsigned highest = exponent.present ? 0x7fffu >> exponent.shift : 0;
    header->shift = exponent.shift;
    unsigned first = weft_reader_u8(reader);
    header->classes = first & ~(unsigned)WEFT_CLASS_LAWS;
    header->laws = first != header->classes;
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

void weft_class_decoder_open(weft_class_decoder *decoder, weft_context *context) {
    memset(decoder, 0, sizeof *decoder);
    decoder->context = context;
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        decoder->bases[t] = (uint32_t)weft_token_base(t);
        decoder->sizes[t] = (uint8_t)weft_token_bits(t);
    }
}

void weft_class_decoder_close(weft_class_decoder *decoder) {
    weft_release(decoder->context, decoder->tokens);
    weft_release(decoder->context, decoder->ranks);
    weft_release(decoder->context, decoder->values);
    memset(decoder, 0, sizeof *decoder);
}

weft_status weft_class_decoder_reserve(weft_class_decoder *decoder, size_t count) {
    weft_context *context = decoder->context;
    if (count <= decoder->capacity) {
        return WEFT_OK;
    }
    size_t capacity = count + count / 2;
    uint8_t *tokens = weft_reallocate_array(context, decoder->tokens, capacity, 2);
    if (tokens == NULL) {
        return WEFT_NO_MEMORY;
    }
    decoder->tokens = tokens;
    uint32_t *ranks = weft_reallocate_array(context, decoder->ranks, capacity, sizeof *ranks);
    if (ranks == NULL) {
        return WEFT_NO_MEMORY;
    }
    decoder->ranks = ranks;
    uint64_t *values = weft_reallocate_array(context, decoder->values, capacity, sizeof *values);
    if (values == NULL) {
        return WEFT_NO_MEMORY;
    }
    decoder->values = values;
    decoder->capacity = capacity;
    return WEFT_OK;
}

/* With `steps`, a table of steps, which may follow a law as one of gaps may. */
static bool read_table(weft_rans_table *table, weft_class_header *header, bool steps, unsigned limit,
                       bool escape) {
    unsigned most = limit < WEFT_RANS_LAW_TOKENS ? limit : WEFT_RANS_LAW_TOKENS;
    if (!(header->laws ? weft_rans_table_read_either(table, (weft_rans_subject){steps, most}, &header->bits)
                       : weft_rans_table_read(table, &header->bits))) {
        return false;
    }
    for (unsigned t = limit; t < table->tokens; t++) {
        if (table->frequencies[t] != 0 && !(escape && t == WEFT_RANS_TOKENS - 1)) {
            return false;
        }
    }
    return true;
}

bool weft_class_tokens_open(weft_class_tokens *tokens, weft_class_header *header,
                            weft_token_limits limits) {
    tokens->header = header;
    for (unsigned c = 0; c < header->classes; c++) {
        if (header->counts[c] > 0 &&
            (!read_table(&tokens->gaps[c], header, false, limits.gaps, false) ||
             !read_table(&tokens->values[c], header, true, limits.values, limits.escape))) {
            return false;
        }
    }
    return weft_rans_decoder_open(&tokens->rans, header->stream, header->stream_size);
}

bool weft_class_tokens_next(weft_class_tokens *tokens, unsigned c, uint8_t *output) {
    size_t count = tokens->header->counts[c];
    return count == 0 || (weft_rans_decode(&tokens->rans, &tokens->gaps[c], output, count) &&
                          weft_rans_decode(&tokens->rans, &tokens->values[c], output + count, count));
}

bool weft_class_tokens_done(const weft_class_tokens *tokens) {
    const weft_bits_reader *bits = &tokens->header->bits;
    return weft_rans_decoder_done(&tokens->rans) && bits->size - bits->position < 8;
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
