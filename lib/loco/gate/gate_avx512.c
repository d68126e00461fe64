/* SPDX-License-Identifier: Apache-2.0
 *
 * gate_avx512.c: the gate, sixteen weights at a time, the last ones under a mask. What fires is packed in a
 * register and stored whole: storing through a mask is slow on some processors.
 */
#include "gate.h"

#include <immintrin.h>

/* The cast to BF16 with the low half not cut off yet. Not a number is not looked for: it is an error. */
static inline __m512i rounded(__m512i bits) {
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

static inline __m512i magnitude(__m512 value) {
    return _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7fffffff));
}

/* s in whole steps of the grid: see weft_grid_shift. */
static inline __m512 round_to_grid(__m512i consensus, __m512 s, uint32_t grid) {
    __m512i exponent = _mm512_and_si512(consensus, _mm512_set1_epi32(0x7f800000));
    exponent = _mm512_max_epu32(exponent, _mm512_set1_epi32(WEFT_GRID_LEAST));
    exponent = _mm512_add_epi32(exponent, _mm512_set1_epi32((int)weft_grid_shift(grid)));
    exponent = _mm512_min_epu32(exponent, _mm512_set1_epi32(WEFT_GRID_MOST));
    __m512 middle = _mm512_castsi512_ps(_mm512_or_si512(exponent, _mm512_set1_epi32(WEFT_GRID_HALF)));
    __m512 steps = _mm512_sub_ps(_mm512_add_ps(s, middle), middle);
    __m512 most = _mm512_mul_ps(middle, _mm512_set1_ps(0.25f));
    return _mm512_mask_mov_ps(s, _mm512_cmp_ps_mask(_mm512_abs_ps(s), most, _CMP_LT_OQ), steps);
}

static inline __m512i gate_sixteen(const weft_gate_input *input, size_t i, __mmask16 valid,
                                   weft_entries *fired, uint16_t *words, __m512i highest) {
    const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i high_half = _mm512_set1_epi32((int)0xffff0000u);
    __m512 consensus = _mm512_maskz_loadu_ps(valid, input->consensus + i);
    __m512 local = _mm512_maskz_loadu_ps(valid, input->local + i);
    __m512 residual = _mm512_maskz_loadu_ps(valid, input->residual + i);
    __m512 s = _mm512_add_ps(residual, _mm512_sub_ps(consensus, local));
    __m512 next = _mm512_sub_ps(consensus, s);
    __m512i bits = _mm512_castps_si512(consensus);
    __m512i differ = _mm512_xor_si512(rounded(bits), rounded(_mm512_castps_si512(next)));
    __mmask16 fires = input->open ? valid : _mm512_mask_test_epi32_mask(valid, differ, high_half);
    __m512 whole = s;
    if (input->grid != 0) {
        whole = round_to_grid(bits, s, input->grid);
        fires = _mm512_mask_cmp_ps_mask(valid, whole, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    }
    __m512i sent = _mm512_and_si512(_mm512_castps_si512(whole), _mm512_set1_epi32((int)input->mask));
    __m512 kept = _mm512_mask_sub_ps(s, fires, s, _mm512_castsi512_ps(sent));
    __m256i word = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
    __m512i position = _mm512_add_epi32(iota, _mm512_set1_epi32((int)(input->first + (uint32_t)i)));
    _mm512_mask_storeu_ps(input->kept + i, valid, kept);
    _mm256_mask_storeu_epi16(words + i, valid, word);
    _mm512_storeu_si512(fired->positions + fired->count, _mm512_maskz_compress_epi32(fires, position));
    _mm512_storeu_si512(fired->values + fired->count, _mm512_maskz_compress_epi32(fires, sent));
    _mm256_storeu_si256((__m256i *)(void *)(fired->words + fired->count),
                        _mm256_maskz_compress_epi16(fires, word));
    fired->count += (size_t)__builtin_popcount(fires);
    return _mm512_max_epu32(highest, _mm512_max_epu32(magnitude(s), magnitude(next)));
}

uint32_t weft_gate_avx512(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]) {
    const weft_gate_input in = *input;
    weft_entries out = *fired;
    __m512i highest = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= in.count; i += 16) {
        weft_gate_fetch(&in, i);
        highest = gate_sixteen(&in, i, 0xffff, &out, words, highest);
    }
    if (i < in.count) {
        __mmask16 valid = (__mmask16)((1u << (in.count - i)) - 1u);
        highest = gate_sixteen(&in, i, valid, &out, words, highest);
    }
    *fired = out;
    return _mm512_reduce_max_epu32(highest);
}
