/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_avx512.c: the encoder of rans.h with its four states in one register. It waits for nothing but the
 * two multiplications that lead from one state to the next.
 */
#include "rans.h"

#include <immintrin.h>

/* Where the words of the states that are full go: to the end of eight bytes, in the order of the states.
 * Row m is for the states whose bits are set in m; 255 leaves a byte zero. */
static const uint8_t places[16][16] = {
    {255, 255, 255, 255, 255, 255, 255, 255},
    {255, 255, 255, 255, 255, 255, 0, 1},
    {255, 255, 255, 255, 255, 255, 2, 3},
    {255, 255, 255, 255, 0, 1, 2, 3},
    {255, 255, 255, 255, 255, 255, 4, 5},
    {255, 255, 255, 255, 0, 1, 4, 5},
    {255, 255, 255, 255, 2, 3, 4, 5},
    {255, 255, 0, 1, 2, 3, 4, 5},
    {255, 255, 255, 255, 255, 255, 6, 7},
    {255, 255, 255, 255, 0, 1, 6, 7},
    {255, 255, 255, 255, 2, 3, 6, 7},
    {255, 255, 0, 1, 2, 3, 6, 7},
    {255, 255, 255, 255, 4, 5, 6, 7},
    {255, 255, 0, 1, 4, 5, 6, 7},
    {255, 255, 2, 3, 4, 5, 6, 7},
    {0, 1, 2, 3, 4, 5, 6, 7},
};

static inline __m256i two_tokens(const weft_rans_token *low, const weft_rans_token *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)low)),
                                   _mm_loadu_si128((const void *)high), 1);
}

/* Writes the low words of the states in `full` below the cursor. Up to eight bytes below it may be written
 * either way; whoever comes after needs them, or the room for the states has them. */
static inline uint8_t *put_words(uint8_t *cursor, __m256i states, __mmask8 full) {
    __m128i words =
        _mm_shuffle_epi8(_mm256_cvtepi64_epi16(states), _mm_loadu_si128((const void *)places[full]));
    _mm_storeu_si64(cursor - 8, words);
    return cursor - 2 * __builtin_popcount(full);
}

void weft_rans_fours_avx512(weft_rans_encoder *encoder, const weft_rans_token *tokens,
                            const uint8_t *symbols, size_t count) {
    __m256i states = _mm256_cvtepu32_epi64(_mm_loadu_si128((const void *)encoder->states));
    uint8_t *cursor = encoder->cursor;
    for (size_t i = count; i > 0; i -= 4) {
        __m256i even = two_tokens(&tokens[symbols[i - 4]], &tokens[symbols[i - 2]]);
        __m256i odd = two_tokens(&tokens[symbols[i - 3]], &tokens[symbols[i - 1]]);
        __m256i inverse = _mm256_unpacklo_epi64(even, odd);
        __m256i others = _mm256_unpackhi_epi64(even, odd);
        __m256i limit = _mm256_and_si256(others, _mm256_set1_epi64x(UINT32_MAX));
        __m256i start = _mm256_and_si256(_mm256_srli_epi64(others, 32), _mm256_set1_epi64x(UINT16_MAX));
        __m256i complement = _mm256_srli_epi64(others, 48);
        __mmask8 full = _mm256_cmpgt_epu64_mask(states, limit);
        cursor = put_words(cursor, states, full);
        states = _mm256_mask_srli_epi64(states, full, states, 16);
        /* the upper 52 of 104 bits: what is shifted by 52 is shifted by WEFT_RANS_INVERSE_BITS */
        __m256i scaled = _mm256_slli_epi64(states, 52 - WEFT_RANS_INVERSE_BITS);
        __m256i quotient = _mm256_madd52hi_epu64(_mm256_setzero_si256(), scaled, inverse);
        states = _mm256_madd52lo_epu64(_mm256_add_epi64(states, start), quotient, complement);
    }
    _mm_storeu_si128((void *)encoder->states, _mm256_cvtepi64_epi32(states));
    encoder->cursor = cursor;
}
