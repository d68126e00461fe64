/* SPDX-License-Identifier: Apache-2.0
 *
 * block_encode.c: a block becomes bytes: its sample, and the tokens and plain bits of its values, which
 * stand with those of their gaps. All else is done by the encoder of classes_write.h.
 */
#include "block.h"

void weft_block_encoder_open(weft_block_encoder *encoder, weft_context *context, uint32_t significant) {
    weft_class_encoder_open(&encoder->coder, context, WEFT_ITEM_VALUES);
    encoder->most = weft_rest_most(significant);
}

void weft_block_encoder_close(weft_block_encoder *encoder) {
    weft_class_encoder_close(&encoder->coder);
}

/* Octaves of multiples modulo 8: those of one class are neighbours. */
static unsigned octave_of(unsigned token) {
    unsigned octave = token < 16 ? 31u - (unsigned)__builtin_clz(token | 1) : token / 4;
    return octave % 8;
}

void weft_block_encoder_sample(const weft_block_encoder *encoder, const uint16_t *words, size_t count,
                               const weft_entries *fired, weft_class_sample *sample) {
    uint64_t items[WEFT_TILE];
    uint8_t gap_tokens[WEFT_TILE];
    uint8_t value_tokens[WEFT_TILE];
    weft_class_sample_units(sample, words, count, WEFT_WORD_SHIFT);
    for (size_t i = 0; i < fired->count; i++) {
        items[i] = weft_item_pack(0, weft_word_exponent(fired->words[i]), fired->values[i]);
    }
    encoder->coder.entry_kernels->tokenise_values(items, fired->count, encoder->most, gap_tokens,
                                                  value_tokens);
    for (size_t i = 0; i < fired->count; i++) {
        unsigned exponent = weft_word_exponent(fired->words[i]);
        sample->changed[exponent]++;
        sample->octaves[exponent][octave_of(value_tokens[i])]++;
    }
}

void weft_block_encoder_begin(weft_block_encoder *encoder, const weft_class_sample *sample,
                              uint64_t elements) {
    weft_class_encoder_begin(&encoder->coder, WEFT_WORD_SHIFT, sample, elements);
}

weft_status weft_block_encoder_tile(weft_block_encoder *encoder, const uint16_t *words, size_t count,
                                    uint32_t linear, const weft_entries *fired) {
    return weft_class_encoder_tile(&encoder->coder, words, count, linear, fired);
}

/* The writer is held in a copy of its own, which can stay in registers. */
static void put_rests(weft_bits_writer *writer, const uint64_t *items, size_t count) {
    const uint64_t mask = ((uint64_t)1 << 56) - 1;
    weft_bits_writer bits = *writer;
    size_t i = 0;
    while (i < count) {
        uint64_t rest = items[i] & mask;
        unsigned size = (unsigned)(items[i] >> 56);
        i++;
        /* each put waits for the one before: two at a time, where they fit, which is nearly always */
        if (i < count && size + (items[i] >> 56) <= 56) {
            rest |= (items[i] & mask) << size;
            size += (unsigned)(items[i] >> 56);
            i++;
        }
        weft_bits_put(&bits, rest, size);
    }
    *writer = bits;
}

weft_status weft_block_encoder_finish(weft_block_encoder *encoder, weft_writer *writer) {
    weft_class_encoder *coder = &encoder->coder;
    weft_bits_writer bits;
    weft_status status = weft_class_encoder_tokens(coder);
    if (status != WEFT_OK) {
        return status;
    }
    uint8_t *tokens = coder->tokens;
    for (unsigned c = 0; c < coder->classes.count; c++) {
        coder->entry_kernels->tokenise_values(coder->items[c], coder->counts[c], encoder->most, tokens,
                                              tokens + coder->count);
        tokens += coder->counts[c];
    }
    status = weft_class_encoder_front(coder, WEFT_REST_MAX, 0, writer, &bits);
    if (status != WEFT_OK) {
        return status;
    }
    for (unsigned c = 0; c < coder->classes.count; c++) {
        put_rests(&bits, coder->items[c], coder->counts[c]);
    }
    return weft_class_encoder_back(coder, &bits, writer);
}
