/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_wide_avx512.c: the coder of rans_wide.h with its states in registers: eight to a register in the
 * encoder, whose products have 64 bits, and sixteen in the decoder.
 */
#include "rans_wide.h"

#include "../rans_symbol.h"

#include <immintrin.h>

enum { OCTET = 8 };

static inline __m128i token_at(const weft_rans_token *tokens, uint8_t symbol) {
    return _mm_loadu_si128((const void *)&tokens[symbol]);
}

/* Every second one of eight tokens. */
static inline __m512i four_tokens(const weft_rans_token *tokens, const uint8_t *symbols) {
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(token_at(tokens, symbols[0])),
                                          token_at(tokens, symbols[2]), 1);
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(token_at(tokens, symbols[4])),
                                           token_at(tokens, symbols[6]), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Codes eight symbols. The arithmetic is that of rans_avx512.c. */
static inline __m512i put_octet(__m512i states, const weft_rans_token *tokens, const uint8_t *symbols,
                                uint8_t **cursor) {
    __m512i even = four_tokens(tokens, symbols), odd = four_tokens(tokens, symbols + 1);
    __m512i inverse = _mm512_unpacklo_epi64(even, odd);
    __m512i others = _mm512_unpackhi_epi64(even, odd);
    __m512i limit = _mm512_and_si512(others, _mm512_set1_epi64(UINT32_MAX));
    __m512i start = _mm512_and_si512(_mm512_srli_epi64(others, 32), _mm512_set1_epi64(UINT16_MAX));
    __m512i complement = _mm512_srli_epi64(others, 48);
    __mmask8 full = _mm512_cmpgt_epu64_mask(states, limit);
    unsigned count = (unsigned)__builtin_popcount(full);
    __m128i words = _mm_maskz_compress_epi16(full, _mm512_cvtepi64_epi16(states));
    *cursor -= 2 * count;
    _mm_mask_storeu_epi16(*cursor, (__mmask8)_bzhi_u32(0xff, count), words);
    states = _mm512_mask_srli_epi64(states, full, states, 16);
    __m512i scaled = _mm512_slli_epi64(states, 52 - WEFT_RANS_INVERSE_BITS);
    __m512i quotient = _mm512_madd52hi_epu64(_mm512_setzero_si512(), scaled, inverse);
    return _mm512_madd52lo_epu64(_mm512_add_epi64(states, start), quotient, complement);
}

static inline __m512i load_octet(const uint32_t *states) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)states));
}

static inline void store_octet(uint32_t *states, __m512i octet) {
    _mm256_storeu_si256((void *)states, _mm512_cvtepi64_epi32(octet));
}

static void encode_blocks_avx512(weft_rans_wide_encoder *encoder, const weft_rans_token *tokens,
                                 const uint8_t *symbols, size_t blocks) {
    uint8_t *cursor = encoder->cursor;
    uint32_t *states = encoder->states;
    __m512i s0 = load_octet(states), s1 = load_octet(states + OCTET);
    __m512i s2 = load_octet(states + 2 * OCTET), s3 = load_octet(states + 3 * OCTET);
    for (size_t b = blocks; b-- > 0;) {
        const uint8_t *block = symbols + b * WEFT_RANS_WIDE;
        s3 = put_octet(s3, tokens, block + 3 * OCTET, &cursor);
        s2 = put_octet(s2, tokens, block + 2 * OCTET, &cursor);
        s1 = put_octet(s1, tokens, block + OCTET, &cursor);
        s0 = put_octet(s0, tokens, block, &cursor);
    }
    store_octet(states, s0);
    store_octet(states + OCTET, s1);
    store_octet(states + 2 * OCTET, s2);
    store_octet(states + 3 * OCTET, s3);
    encoder->cursor = cursor;
}

/* Decodes sixteen symbols; 32 bytes from the cursor on can be read. */
static inline __m512i take_sixteen(__m512i states, const uint32_t *slots, uint8_t *symbols,
                                   const uint8_t **cursor) {
    const __m512i total = _mm512_set1_epi32(WEFT_RANS_TOTAL - 1);
    __m512i slot = _mm512_i32gather_epi32(_mm512_and_si512(states, total), slots, 4);
    _mm_storeu_si128((void *)symbols, _mm512_cvtepi32_epi8(slot));
    __m512i frequency =
        _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(slot, 8), total), _mm512_set1_epi32(1));
    states = _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32(states, WEFT_RANS_BITS)),
                              _mm512_srli_epi32(slot, 20));
    __mmask16 low = _mm512_cmplt_epu32_mask(states, _mm512_set1_epi32(WEFT_RANS_LOWER));
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)*cursor));
    *cursor += 2 * __builtin_popcount(low);
    words = _mm512_maskz_expand_epi32(low, words);
    return _mm512_or_si512(_mm512_mask_slli_epi32(states, low, states, 16), words);
}

static size_t decode_blocks_avx512(weft_rans_wide_decoder *decoder, uint8_t *symbols, size_t blocks) {
    const uint8_t *cursor = decoder->cursor;
    __m512i s0 = _mm512_loadu_si512(decoder->states), s1 = _mm512_loadu_si512(decoder->states + 16);
    size_t done = 0;
    for (; done < blocks && decoder->end - cursor >= 2 * WEFT_RANS_WIDE; done++) {
        s0 = take_sixteen(s0, decoder->slots, symbols, &cursor);
        s1 = take_sixteen(s1, decoder->slots, symbols + 16, &cursor);
        symbols += WEFT_RANS_WIDE;
    }
    _mm512_storeu_si512(decoder->states, s0);
    _mm512_storeu_si512(decoder->states + 16, s1);
    decoder->cursor = cursor;
    return done;
}

const weft_rans_wide_kernels weft_rans_wide_kernels_avx512 = {
    .encode = encode_blocks_avx512,
    .decode = decode_blocks_avx512,
};
