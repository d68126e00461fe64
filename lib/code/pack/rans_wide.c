/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_wide.c: the coder of rans_wide.h for any processor, which the vector form is tested against, and the
 * choice.
 */
#include "rans_wide.h"

#include "../rans_symbol.h"

void weft_rans_wide_encode_blocks(weft_rans_wide_encoder *encoder, const weft_rans_token *tokens,
                                  const uint8_t *symbols, size_t blocks) {
    uint32_t states[WEFT_RANS_WIDE];
    uint8_t *cursor = encoder->cursor;
    memcpy(states, encoder->states, sizeof states);
    for (size_t i = blocks * WEFT_RANS_WIDE; i > 0; i -= WEFT_RANS_WIDE) {
        for (unsigned s = WEFT_RANS_WIDE; s-- > 0;) {
            states[s] = weft_rans_put(states[s], &tokens[symbols[i - WEFT_RANS_WIDE + s]], &cursor);
        }
    }
    memcpy(encoder->states, states, sizeof states);
    encoder->cursor = cursor;
}

static size_t decode_blocks(weft_rans_wide_decoder *decoder, uint8_t *symbols, size_t blocks) {
    uint32_t states[WEFT_RANS_WIDE];
    const uint8_t *cursor = decoder->cursor;
    const uint32_t *slots = decoder->slots;
    size_t done = 0;
    memcpy(states, decoder->states, sizeof states);
    for (; done < blocks && decoder->end - cursor >= 2 * WEFT_RANS_WIDE; done++) {
        for (unsigned s = 0; s < WEFT_RANS_WIDE; s++) {
            states[s] = weft_rans_refill(weft_rans_take(slots, states[s], symbols + s), &cursor);
        }
        symbols += WEFT_RANS_WIDE;
    }
    memcpy(decoder->states, states, sizeof states);
    decoder->cursor = cursor;
    return done;
}

const weft_rans_wide_kernels weft_rans_wide_kernels_portable = {
    .encode = weft_rans_wide_encode_blocks,
    .decode = decode_blocks,
};

const weft_rans_wide_kernels *weft_rans_wide_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_rans_wide_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_rans_wide_kernels_avx2;
    }
#endif
#ifdef WEFT_ARM
    if (level == WEFT_CPU_NEON) {
        return &weft_rans_wide_kernels_neon;
    }
#endif
    (void)level;
    return &weft_rans_wide_kernels_portable;
}

void weft_rans_wide_encoder_open(weft_rans_wide_encoder *encoder, uint8_t *room, size_t size) {
    encoder->end = room + size;
    encoder->cursor = encoder->end;
    for (unsigned i = 0; i < WEFT_RANS_WIDE; i++) {
        encoder->states[i] = WEFT_RANS_LOWER;
    }
}

void weft_rans_wide_encode(weft_rans_wide_encoder *encoder, const weft_rans_wide_kernels *kernels,
                           const weft_rans_table *table, const uint8_t *symbols, size_t count) {
    weft_rans_token tokens[WEFT_RANS_TOKENS];
    weft_rans_tokens(table, tokens);
    size_t i = count;
    for (; i % WEFT_RANS_WIDE != 0; i--) {
        uint32_t *state = &encoder->states[(i - 1) % WEFT_RANS_WIDE];
        *state = weft_rans_put(*state, &tokens[symbols[i - 1]], &encoder->cursor);
    }
    kernels->encode(encoder, tokens, symbols, i / WEFT_RANS_WIDE);
}

const uint8_t *weft_rans_wide_encoder_finish(weft_rans_wide_encoder *encoder) {
    encoder->cursor -= sizeof encoder->states;
    memcpy(encoder->cursor, encoder->states, sizeof encoder->states);
    return encoder->cursor;
}

bool weft_rans_wide_decoder_open(weft_rans_wide_decoder *decoder, const uint8_t *data, size_t size) {
    if (size < sizeof decoder->states) {
        return false;
    }
    memcpy(decoder->states, data, sizeof decoder->states);
    decoder->cursor = data + sizeof decoder->states;
    decoder->end = data + size;
    for (unsigned i = 0; i < WEFT_RANS_WIDE; i++) {
        if (decoder->states[i] < WEFT_RANS_LOWER) {
            return false;
        }
    }
    return true;
}

bool weft_rans_wide_decode(weft_rans_wide_decoder *decoder, const weft_rans_wide_kernels *kernels,
                           const weft_rans_table *table, uint8_t *symbols, size_t count) {
    weft_rans_slots(table, decoder->slots);
    size_t i = WEFT_RANS_WIDE * kernels->decode(decoder, symbols, count / WEFT_RANS_WIDE);
    for (; i < count; i++) {
        uint32_t state = weft_rans_take(decoder->slots, decoder->states[i % WEFT_RANS_WIDE], symbols + i);
        if (state < WEFT_RANS_LOWER) {
            if (decoder->end - decoder->cursor < 2) {
                return false;
            }
            state = weft_rans_refill(state, &decoder->cursor);
        }
        decoder->states[i % WEFT_RANS_WIDE] = state;
    }
    return true;
}

bool weft_rans_wide_decoder_done(const weft_rans_wide_decoder *decoder) {
    bool done = decoder->cursor == decoder->end;
    for (unsigned i = 0; i < WEFT_RANS_WIDE; i++) {
        done = done && decoder->states[i] == WEFT_RANS_LOWER;
    }
    return done;
}
