/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_avx2.c: the cast, sixteen values at a time. See weft_bf16_round for what each lane computes.
 */
#include "bf16.h"
#include "cpu.h"

#include <immintrin.h>
#include <string.h>

static __m256i round_lanes(__m256i bits) {
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), nan);
}

void weft_bf16_cast_avx2(const float *input, uint16_t *output, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i low = round_lanes(_mm256_loadu_si256((const __m256i *)(input + i)));
        __m256i high = round_lanes(_mm256_loadu_si256((const __m256i *)(input + i + 8)));
        /* Packing works within 128-bit halves; the permutation puts the quarters back in order. */
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(output + i), packed);
    }
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        output[i] = weft_bf16_round(bits);
    }
}
