/* SPDX-License-Identifier: Apache-2.0
 *
 * gate_avx2.c: the gate, eight weights at a time. AVX2 cannot pack under a mask, so what fires is taken out
 * one by one.
 */
#include "gate.h"

#include <immintrin.h>

static inline __m256i rounded(__m256i bits) {
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

static inline __m256i magnitude(__m256 value) {
    return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7fffffff));
}

static inline void append(unsigned mask, uint32_t first, __m256i sent, const uint16_t *words,
                          weft_fired *fired) {
    uint32_t values[8];
    _mm256_storeu_si256((__m256i *)(void *)values, sent);
    for (; mask != 0; mask &= mask - 1) {
        unsigned i = (unsigned)__builtin_ctz(mask);
        fired->positions[fired->count] = first + i;
        fired->values[fired->count] = values[i];
        fired->words[fired->count] = words[i];
        fired->count++;
    }
}

static inline __m256i gate_eight(const weft_gate_input *input, size_t i, weft_fired *fired, uint16_t *words,
                                 __m256i highest) {
    __m256 consensus = _mm256_loadu_ps(input->consensus + i);
    __m256 local = _mm256_loadu_ps(input->local + i);
    __m256 residual = _mm256_loadu_ps(input->residual + i);
    __m256 s = _mm256_add_ps(residual, _mm256_sub_ps(consensus, local));
    __m256 next = _mm256_sub_ps(consensus, s);
    __m256i bits = _mm256_castps_si256(consensus);
    __m256i differ = _mm256_xor_si256(rounded(bits), rounded(_mm256_castps_si256(next)));
    __m256i equal = _mm256_cmpeq_epi32(_mm256_srli_epi32(differ, 16), _mm256_setzero_si256());
    __m256i fires = input->open ? _mm256_set1_epi32(-1) : _mm256_xor_si256(equal, _mm256_set1_epi32(-1));
    __m256i sent = _mm256_and_si256(_mm256_castps_si256(s), _mm256_set1_epi32((int)input->mask));
    __m256 rest = _mm256_sub_ps(s, _mm256_castsi256_ps(sent));
    __m256i word = _mm256_srli_epi32(bits, 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
    _mm256_storeu_ps(input->kept + i, _mm256_blendv_ps(s, rest, _mm256_castsi256_ps(fires)));
    _mm_storeu_si128((__m128i *)(void *)(words + i), packed);
    append((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fires)), input->first + (uint32_t)i, sent,
           words + i, fired);
    return _mm256_max_epu32(highest, _mm256_max_epu32(magnitude(s), magnitude(next)));
}

uint32_t weft_gate_avx2(const weft_gate_input *input, weft_fired *fired, uint16_t words[WEFT_TILE]) {
    const weft_gate_input in = *input;
    weft_fired out = *fired;
    __m256i highest = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= in.count; i += 8) {
        highest = gate_eight(&in, i, &out, words, highest);
    }
    uint32_t lanes[8];
    _mm256_storeu_si256((__m256i *)(void *)lanes, highest);
    weft_gate_input left = in;
    left.consensus += i;
    left.local += i;
    left.residual += i;
    left.kept += i;
    left.count -= i;
    left.first += (uint32_t)i;
    uint32_t result = weft_gate_portable(&left, &out, words + i);
    for (unsigned lane = 0; lane < 8; lane++) {
        result = lanes[lane] > result ? lanes[lane] : result;
    }
    *fired = out;
    return result;
}
