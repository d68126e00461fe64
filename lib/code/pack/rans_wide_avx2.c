/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_wide_avx2.c: the decoder of rans_wide.h with eight states to a register. Encoding needs products of
 * 64 bits, which AVX2 has no instruction for, and is that of rans_wide.c.
 */
#include "rans_wide.h"

#include "../rans_symbol.h"

#include <immintrin.h>

enum { OCTET = 8, OCTETS = WEFT_RANS_WIDE / OCTET };

/* Decodes eight symbols; 16 bytes from the cursor on can be read. The words that were read go to the states
 * that ran low: the n-th of these takes the n-th word. */
static inline __m256i take_octet(__m256i states, const uint32_t *slots, uint8_t *symbols,
                                 const uint8_t **cursor) {
    const __m256i total = _mm256_set1_epi32(WEFT_RANS_TOTAL - 1);
    __m256i slot = _mm256_i32gather_epi32((const int *)slots, _mm256_and_si256(states, total), 4);
    __m256i tokens = _mm256_and_si256(slot, _mm256_set1_epi32(0xff));
    __m128i words8 = _mm_packus_epi32(_mm256_castsi256_si128(tokens), _mm256_extracti128_si256(tokens, 1));
    _mm_storel_epi64((void *)symbols, _mm_packus_epi16(words8, words8));
    __m256i frequency =
        _mm256_add_epi32(_mm256_and_si256(_mm256_srli_epi32(slot, 8), total), _mm256_set1_epi32(1));
    states = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(states, WEFT_RANS_BITS)),
                              _mm256_srli_epi32(slot, 20));
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(states, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    uint64_t each = _pdep_u64(mask, 0x0101010101010101u) * 0xff;
    __m256i which =
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)_pdep_u64(0x0706050403020100u, each)));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)*cursor));
    words = _mm256_permutevar8x32_epi32(words, which);
    *cursor += 2 * __builtin_popcount(mask);
    return _mm256_blendv_epi8(states, _mm256_or_si256(_mm256_slli_epi32(states, 16), words), low);
}

static size_t decode_blocks_avx2(weft_rans_wide_decoder *decoder, uint8_t *symbols, size_t blocks) {
    const uint8_t *cursor = decoder->cursor;
    __m256i states[OCTETS];
    size_t done = 0;
    memcpy(states, decoder->states, sizeof states);
    for (; done < blocks && decoder->end - cursor >= 2 * WEFT_RANS_WIDE; done++) {
        for (unsigned i = 0; i < OCTETS; i++) {
            states[i] = take_octet(states[i], decoder->slots, symbols + OCTET * i, &cursor);
        }
        symbols += WEFT_RANS_WIDE;
    }
    memcpy(decoder->states, states, sizeof states);
    decoder->cursor = cursor;
    return done;
}

const weft_rans_wide_kernels weft_rans_wide_kernels_avx2 = {
    .encode = weft_rans_wide_encode_blocks,
    .decode = decode_blocks_avx2,
};
