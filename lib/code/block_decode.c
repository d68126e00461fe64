/* SPDX-License-Identifier: Apache-2.0
 *
 * block_decode.c: a block's bytes become positions and values. First all ranks and multiples, class by
 * class; then the consensus is classified tile by tile, which tells where each rank lies and how large a
 * ULP is there. The bytes are hostile: nothing is believed that was not bounded.
 */
#include "block.h"

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
    rests->bases[WEFT_VALUE_ESCAPE] = WEFT_CODE_ESCAPE;
    rests->sizes[WEFT_VALUE_ESCAPE] = 32;
}

void weft_block_decoder_open(weft_block_decoder *decoder, weft_context *context, uint32_t significant) {
    weft_class_decoder_open(&decoder->coder, context);
    decoder->tile_kernels = weft_tile_kernels_for(weft_cpu_level());
    decoder->entry_kernels = weft_entry_kernels_for(weft_cpu_level());
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

/* The next tile of the consensus, which is asked for a few lines at a time between the works on this one.
 */
typedef struct tile_ahead {
    const float *start;
    unsigned part;
    unsigned parts;
} tile_ahead;

enum { PARTS_BESIDE = 5 /* that are not with a class */ };

static inline void fetch_ahead(tile_ahead *ahead) {
    weft_prefetch_part((uintptr_t)ahead->start, WEFT_TILE * sizeof(float), ahead->part++, ahead->parts);
}

/* Finds what a tile has, class after class, and says how many. */
static size_t find_entries(weft_block_decoder *decoder, unsigned classes, tile_ahead *ahead,
                           weft_class_cursors *cursors) {
    size_t count = 0;
    for (unsigned c = 0; c < classes; c++) {
        fetch_ahead(ahead);
        const uint64_t *codes = decoder->coder.values + cursors->next[c];
        size_t found = weft_class_cursors_take(cursors, decoder->tile_kernels, &decoder->coder, c);
        memcpy(decoder->indices + count, decoder->coder.indices, found * sizeof *decoder->indices);
        memcpy(decoder->codes + count, codes, found * sizeof *codes);
        count += found;
    }
    memset(decoder->codes + count, 0, WEFT_KERNEL_SLACK * sizeof *decoder->codes);
    return count;
}

/* Appends the values of a tile. Returns their largest magnitude as bits. */
static uint32_t take_tile(weft_block_decoder *decoder, const weft_class_header *header,
                          const float *consensus, size_t elements, uint32_t linear,
                          weft_class_cursors *cursors, weft_block_values *values) {
    uint32_t *positions = values->positions + values->count;
    tile_ahead ahead = {.start = consensus + elements, .parts = header->classes + PARTS_BESIDE};
    fetch_ahead(&ahead);
    decoder->entry_kernels->words(consensus, elements, sizeof *consensus, decoder->words);
    fetch_ahead(&ahead);
    decoder->tile_kernels->classify(decoder->words, elements, header->shift, header->cuts, header->classes,
                                    &decoder->coder.tile);
    fetch_ahead(&ahead);
    size_t count = find_entries(decoder, header->classes, &ahead, cursors);
    fetch_ahead(&ahead);
    for (size_t i = 0; i < count; i++) {
        unsigned index = decoder->indices[i];
        positions[i] = linear + index;
        decoder->weights[i] = decoder->words[index];
    }
    fetch_ahead(&ahead);
    uint32_t highest = decoder->entry_kernels->values(decoder->codes, decoder->weights, count,
                                                      values->values + values->count);
    values->count += count;
    return highest;
}

static weft_status place(weft_block_decoder *decoder, const weft_class_header *header,
                         const float *consensus, size_t elements, weft_block_values *values) {
    weft_class_cursors cursors;
    uint32_t highest = 0;
    weft_class_cursors_open(&cursors, header);
    values->count = 0;
    for (size_t done = 0; done < elements; done += WEFT_TILE) {
        size_t count = elements - done < WEFT_TILE ? elements - done : WEFT_TILE;
        uint32_t largest =
            take_tile(decoder, header, consensus + done, count, (uint32_t)done, &cursors, values);
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

weft_status weft_block_decode(weft_block_decoder *decoder, const float *consensus, size_t elements,
                              const uint8_t *payload, size_t size, size_t count,
                              weft_block_values *values) {
    const weft_exponent exponent = {.present = true, .shift = WEFT_WORD_SHIFT, .width = sizeof *consensus};
    weft_class_header header;
    if (count > elements || !weft_class_header_read(&header, payload, size, exponent, count) ||
        header.laws) {
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
    return place(decoder, &header, consensus, elements, values);
}
