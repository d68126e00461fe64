/* SPDX-License-Identifier: Apache-2.0
 *
 * block_decode.c: a block's bytes become positions and values. First all ranks and multiples, class by
 * class; then the consensus is classified tile by tile, which tells where each rank lies and how large a
 * ULP is there. The bytes are hostile: nothing is believed that was not bounded.
 */
#include "block.h"

static const uint64_t CODE_ESCAPE = (uint64_t)1 << 63;
enum { GAP_TOKENS = 16 + 4 * (24 - 4) /* gaps are below WEFT_BLOCK_MAX */ };

static void fill_rests(weft_value_rests *rests, uint32_t significant) {
    unsigned most = weft_rest_most(significant);
    memset(rests, 0, sizeof *rests);
    for (unsigned t = 1; t < WEFT_VALUE_TOKENS; t++) {
        unsigned below = weft_token_bits(t);
        unsigned kept = below < most ? below : most;
        rests->bases[t] = 2 * weft_token_base(t);
        rests->sizes[t] = (uint8_t)(1 + kept);
        rests->shifts[t] = (uint8_t)(below - kept);
    }
    rests->bases[WEFT_VALUE_ESCAPE] = CODE_ESCAPE;
    rests->sizes[WEFT_VALUE_ESCAPE] = 32;
}

void weft_block_decoder_open(weft_block_decoder *decoder, weft_context *context, uint32_t significant) {
    weft_class_decoder_open(&decoder->coder, context);
    fill_rests(&decoder->rests, significant);
}

void weft_block_decoder_close(weft_block_decoder *decoder) {
    weft_class_decoder_close(&decoder->coder);
}

/* Turns the tokens of a class into ranks and codes, from entry `first` on. False if the bits end or a rank
 * leaves the block. */
static bool expand(weft_block_decoder *decoder, weft_bits_reader *reader, size_t first, size_t count,
                   size_t elements) {
    const weft_class_decoder *coder = &decoder->coder;
    const weft_value_rests *rests = &decoder->rests;
    const uint8_t *tokens = coder->tokens;
    uint32_t *ranks = coder->ranks + first;
    uint64_t *codes = coder->values + first;
    weft_bits_reader bits = *reader;
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned gap = tokens[i], value = tokens[count + i];
        unsigned gap_size = coder->sizes[gap], size = rests->sizes[value];
        if (weft_bits_overrun(&bits)) {
            return false;
        }
        uint64_t window = weft_bits_peek(&bits);
        uint64_t rest = (window >> gap_size) & (((uint64_t)1 << size) - 1);
        uint64_t shifted = (rest & ~(uint64_t)1) << rests->shifts[value];
        uint64_t code = rests->bases[value] + (shifted | (rest & 1));
        bits.position += gap_size + size;
        next += coder->bases[gap] + (window & (((uint64_t)1 << gap_size) - 1));
        ranks[i] = (uint32_t)next++;
        codes[i] = code;
    }
    *reader = bits;
    return next <= elements && !weft_bits_overrun(&bits);
}

static bool read_classes(weft_block_decoder *decoder, weft_class_header *header, size_t elements) {
    const weft_token_limits limits = {GAP_TOKENS, WEFT_VALUE_TOKENS, true};
    weft_class_tokens tokens;
    size_t first = 0;
    if (!weft_class_tokens_open(&tokens, header, limits)) {
        return false;
    }
    for (unsigned c = 0; c < header->classes; c++) {
        if (!weft_class_tokens_next(&tokens, c, decoder->coder.tokens) ||
            !expand(decoder, &header->bits, first, header->counts[c], elements)) {
            return false;
        }
        first += header->counts[c];
    }
    return weft_class_tokens_done(&tokens);
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
    const uint64_t *codes = decoder->coder.values + cursors->next[c];
    size_t found = weft_class_cursors_take(cursors, kernels, &decoder->coder, c);
    uint32_t *positions = values->positions + values->count;
    float *to = values->values + values->count;
    uint32_t highest = 0;
    for (size_t i = 0; i < found; i++) {
        unsigned index = decoder->coder.indices[i];
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
    kernels->classify(decoder->words, count, header->shift, header->cuts, header->classes,
                      &decoder->coder.tile);
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
        return weft_fail(decoder->coder.context, WEFT_MALFORMED,
                         "a block names weights that the consensus does not have");
    }
    if (highest >= WEFT_NOT_FINITE) {
        return weft_fail(decoder->coder.context, WEFT_MALFORMED,
                         "a block holds a value that is not finite");
    }
    return WEFT_OK;
}

weft_status weft_block_decode(weft_block_decoder *decoder, const weft_tile_kernels *kernels,
                              const float *consensus, size_t elements, const uint8_t *payload, size_t size,
                              size_t count, weft_block_values *values) {
    const weft_exponent exponent = {.present = true, .shift = WEFT_WORD_SHIFT};
    weft_class_header header;
    if (count > elements || !weft_class_header_read(&header, payload, size, exponent, count)) {
        return weft_fail(decoder->coder.context, WEFT_MALFORMED, "a block has no valid header");
    }
    weft_status status = weft_class_decoder_reserve(&decoder->coder, count);
    if (status != WEFT_OK) {
        return status;
    }
    if (!read_classes(decoder, &header, elements)) {
        return weft_fail(decoder->coder.context, WEFT_MALFORMED, "a block does not hold its %zu values",
                         count);
    }
    return place(decoder, kernels, &header, consensus, elements, values);
}
