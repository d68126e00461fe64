/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_avx512.c: the cast, sixteen values at a time, the last ones under a mask. See weft_bf16_round for
 * what each lane computes.
 */
#include "bf16.h"

#include <immintrin.h>

static __m512i round_lanes(__m512i bits) {
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), nan, _mm512_set1_epi32(0x7fc0));
}

void weft_bf16_cast_avx512(const float *input, uint16_t *output, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512i rounded = round_lanes(_mm512_loadu_si512(input + i));
        _mm256_storeu_si256((__m256i *)(output + i), _mm512_cvtepi32_epi16(rounded));
    }
    if (i < count) {
        __mmask16 rest = (__mmask16)((1u << (count - i)) - 1u);
        __m512i rounded = round_lanes(_mm512_maskz_loadu_epi32(rest, input + i));
        _mm512_mask_cvtepi32_storeu_epi16(output + i, rest, rounded);
    }
}
