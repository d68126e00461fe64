/* SPDX-License-Identifier: Apache-2.0
 *
 * block_decode.c: a block's bytes become positions and values. First all ranks and multiples, class by
 * class; then the consensus is classified tile by tile, which tells where each rank lies and how large a
 * ULP is there. The bytes are hostile: nothing is believed that was not bounded.
 */
#include "block.h"

#include "classes_read.h"

static const uint64_t CODE_ESCAPE = (uint64_t)1 << 63;
enum { GAP_TOKENS = 16 + 4 * (24 - 4) /* gaps are below WEFT_BLOCK_MAX */ };

static void fill_value_rests(weft_value_rests *rests, uint32_t significant) {
    unsigned most = weft_rest_most(significant);
    memset(rests, 0, sizeof *rests);
    for (unsigned t = 1; t < WEFT_VALUE_TOKENS; t++) {
        unsigned below = weft_token_bits(t);
        unsigned kept = below < most ? below : most;
        rests->sizes[t] = (uint8_t)(1 + kept);
        rests->shifts[t] = (uint8_t)(below - kept);
    }
    rests->sizes[WEFT_VALUE_ESCAPE] = 32;
}

void weft_block_decoder_open(weft_block_decoder *decoder, weft_context *context, uint32_t significant) {
    memset(decoder, 0, sizeof *decoder);
    decoder->context = context;
    fill_value_rests(&decoder->value_rests, significant);
}

void weft_block_decoder_close(weft_block_decoder *decoder) {
    weft_release(decoder->context, decoder->tokens);
    weft_release(decoder->context, decoder->ranks);
    weft_release(decoder->context, decoder->codes);
    memset(decoder, 0, sizeof *decoder);
}

static weft_status reserve(weft_block_decoder *decoder, size_t count) {
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
    uint64_t *codes = weft_reallocate_array(context, decoder->codes, capacity, sizeof *codes);
    if (codes == NULL) {
        return WEFT_NO_MEMORY;
    }
    decoder->codes = codes;
    decoder->capacity = capacity;
    return WEFT_OK;
}

/* A table of values has no token between those of multiples and the escape. */
static bool value_tables_valid(const weft_class_header *header, const weft_rans_table *values) {
    for (unsigned c = 0; c < header->classes; c++) {
        for (unsigned t = WEFT_VALUE_TOKENS; t < WEFT_VALUE_ESCAPE && header->counts[c] > 0; t++) {
            if (values[c].frequencies[t] != 0) {
                return false;
            }
        }
    }
    return true;
}

/* Per token, for the hot loop. */
typedef struct token_rests {
    uint64_t value_bases[WEFT_RANS_TOKENS];
    uint32_t gap_bases[GAP_TOKENS];
    uint8_t gap_sizes[GAP_TOKENS];
} token_rests;

static void fill_rests(token_rests *rests) {
    for (unsigned t = 0; t < GAP_TOKENS; t++) {
        rests->gap_bases[t] = (uint32_t)weft_token_base(t);
        rests->gap_sizes[t] = (uint8_t)weft_token_bits(t);
    }
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        rests->value_bases[t] = t < WEFT_VALUE_TOKENS ? 2 * weft_token_base(t) : CODE_ESCAPE;
    }
}

/* Turns the tokens of a class into ranks and codes. False if the bits end or a rank leaves the block. */
static bool expand(const weft_block_decoder *decoder, weft_bits_reader *reader, const token_rests *rests,
                   const uint8_t *gap_tokens, const uint8_t *value_tokens, size_t count, size_t elements,
                   uint32_t *ranks, uint64_t *codes) {
    weft_bits_reader bits = *reader;
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned gap = gap_tokens[i], value = value_tokens[i];
        unsigned gap_size = rests->gap_sizes[gap], size = decoder->value_rests.sizes[value];
        if (weft_bits_overrun(&bits)) {
            return false;
        }
        uint64_t window = weft_bits_peek(&bits);
        uint64_t rest = (window >> gap_size) & (((uint64_t)1 << size) - 1);
        uint64_t shifted = (rest & ~(uint64_t)1) << decoder->value_rests.shifts[value];
        uint64_t code = rests->value_bases[value] + (shifted | (rest & 1));
        bits.position += gap_size + size;
        next += rests->gap_bases[gap] + (window & (((uint64_t)1 << gap_size) - 1));
        ranks[i] = (uint32_t)next++;
        codes[i] = code;
    }
    *reader = bits;
    return next <= elements && !weft_bits_overrun(&bits);
}

static bool read_classes(weft_block_decoder *decoder, weft_class_header *header, size_t elements) {
    weft_rans_table gaps[WEFT_CLASS_MAX];
    weft_rans_table values[WEFT_CLASS_MAX];
    weft_rans_decoder rans;
    token_rests rests;
    size_t first = 0;
    fill_rests(&rests);
    if (!weft_class_tables_read(header, GAP_TOKENS, gaps, WEFT_RANS_TOKENS, values) ||
        !value_tables_valid(header, values) ||
        !weft_rans_decoder_open(&rans, header->stream, header->stream_size)) {
        return false;
    }
    for (unsigned c = 0; c < header->classes; c++) {
        size_t count = header->counts[c];
        uint8_t *gap_tokens = decoder->tokens;
        uint8_t *value_tokens = decoder->tokens + count;
        if (count == 0) {
            continue;
        }
        if (!weft_rans_decode(&rans, &gaps[c], gap_tokens, count) ||
            !weft_rans_decode(&rans, &values[c], value_tokens, count) ||
            !expand(decoder, &header->bits, &rests, gap_tokens, value_tokens, count, elements,
                    decoder->ranks + first, decoder->codes + first)) {
            return false;
        }
        first += count;
    }
    return weft_class_header_done(header, &rans);
}

/* Exact: a multiple has at most 24 significant bits. Infinite if it is too large, which is refused. */
static inline float value_of(uint64_t code, uint16_t word) {
    uint32_t bits = (uint32_t)code;
    float value;
    if (__builtin_expect(code >= CODE_ESCAPE, 0)) {
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    double multiple = (double)(int64_t)(code >> 1);
    double ulp = weft_power((int)weft_ulp_exponent(word) - 150);
    value = (float)(multiple * ulp);
    return (code & 1) != 0 ? -value : value;
}

/* Appends the values of one class in the tile. Returns their largest magnitude as bits. */
static uint32_t take_class(weft_block_decoder *decoder, const weft_tile_kernels *kernels, unsigned c,
                           uint32_t linear, weft_class_cursors *cursors, weft_block_values *values) {
    const uint64_t *codes = decoder->codes + cursors->next[c];
    size_t found =
        weft_class_cursors_take(cursors, kernels, &decoder->tile, c, decoder->ranks, decoder->indices);
    uint32_t *positions = values->positions + values->count;
    float *to = values->values + values->count;
    uint32_t highest = 0;
    for (size_t i = 0; i < found; i++) {
        unsigned index = decoder->indices[i];
        uint32_t bits;
        positions[i] = linear + index;
        to[i] = value_of(codes[i], decoder->words[index]);
        memcpy(&bits, &to[i], sizeof bits);
        bits &= 0x7fffffffu;
        highest = bits > highest ? bits : highest;
    }
    values->count += found;
    return highest;
}

static uint32_t take_tile(weft_block_decoder *decoder, const weft_tile_kernels *kernels,
                          const weft_class_header *header, const float *consensus, size_t count,
                          uint32_t linear, weft_class_cursors *cursors, weft_block_values *values) {
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &consensus[i], sizeof bits);
        decoder->words[i] = (uint16_t)(bits >> 16);
    }
    kernels->classify(decoder->words, count, header->shift, header->cuts, header->classes, &decoder->tile);
    for (unsigned c = 0; c < header->classes; c++) {
        uint32_t largest = take_class(decoder, kernels, c, linear, cursors, values);
        highest = largest > highest ? largest : highest;
    }
    return highest;
}

static weft_status place(weft_block_decoder *decoder, const weft_tile_kernels *kernels,
                         const weft_class_header *header, const float *consensus, size_t elements,
                         weft_block_values *values) {
    weft_class_cursors cursors;
    uint32_t highest = 0;
    weft_class_cursors_open(&cursors, header);
    values->count = 0;
    for (size_t done = 0; done < elements; done += WEFT_TILE) {
        size_t count = elements - done < WEFT_TILE ? elements - done : WEFT_TILE;
        uint32_t largest =
            take_tile(decoder, kernels, header, consensus + done, count, (uint32_t)done, &cursors, values);
        highest = largest > highest ? largest : highest;
    }
    if (!weft_class_cursors_done(&cursors, header)) {
        return weft_fail(decoder->context, WEFT_MALFORMED,
                         "a block names weights that the consensus does not have");
    }
    if (highest >= WEFT_NOT_FINITE) {
        return weft_fail(decoder->context, WEFT_MALFORMED, "a block holds a value that is not finite");
    }
    return WEFT_OK;
}

weft_status weft_block_decode(weft_block_decoder *decoder, const weft_tile_kernels *kernels,
                              const float *consensus, size_t elements, const uint8_t *payload, size_t size,
                              size_t count, weft_block_values *values) {
    const weft_exponent exponent = {.present = true, .shift = WEFT_WORD_SHIFT};
    weft_class_header header;
    if (count > elements || !weft_class_header_read(&header, payload, size, exponent, count)) {
        return weft_fail(decoder->context, WEFT_MALFORMED, "a block has no valid header");
    }
    weft_status status = reserve(decoder, count);
    if (status != WEFT_OK) {
        return status;
    }
    if (!read_classes(decoder, &header, elements)) {
        return weft_fail(decoder->context, WEFT_MALFORMED, "a block does not hold its %zu values", count);
    }
    return place(decoder, kernels, &header, consensus, elements, values);
}
