/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx512.h: the mix of four words in a register, for the files that are compiled for AVX-512
 * with VAES: the digest's own, and those that mix what they have at hand anyway.
 */
#ifndef WEFT_TENSOR_DIGEST_MIX_AVX512_H
#define WEFT_TENSOR_DIGEST_MIX_AVX512_H

#include "digest_mix.h"

#include <immintrin.h>

enum { WEFT_MIX_VECTOR = 64 };

typedef struct weft_mix_keys_wide {
    __m512i first;
    __m512i second;
} weft_mix_keys_wide;

static inline __m512i weft_mix_load_key(const uint8_t *key) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)key));
}

static inline weft_mix_keys_wide weft_mix_load_keys(void) {
    return (weft_mix_keys_wide){weft_mix_load_key(weft_mix_keys[0]), weft_mix_load_key(weft_mix_keys[1])};
}

static inline __m512i weft_mix_wide(__m512i words, __m512i positions, weft_mix_keys_wide key) {
    words = _mm512_aesenc_epi128(words, positions);
    words = _mm512_aesenc_epi128(words, key.first);
    return _mm512_aesenc_epi128(words, key.second);
}

/* The positions of the four words from `word` on, each twice. */
static inline __m512i weft_mix_positions(uint64_t word) {
    return _mm512_add_epi64(_mm512_set1_epi64((int64_t)word), _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0));
}

static inline weft_sum weft_mix_finish(const __m512i sums[4]) {
    __m512i all = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
    __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i quarter = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    weft_sum sum;
    _mm_storeu_si128((__m128i *)(void *)sum.lanes, quarter);
    return sum;
}

#endif
