/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx2.h: the mix of one word in a register, for the files that are compiled for AVX2 with AES:
 * the digest's own, and those that mix what they have at hand anyway.
 */
#ifndef WEFT_TENSOR_DIGEST_MIX_AVX2_H
#define WEFT_TENSOR_DIGEST_MIX_AVX2_H

#include "digest_mix.h"

#include <immintrin.h>

typedef struct weft_mix_keys_narrow {
    __m128i first;
    __m128i second;
} weft_mix_keys_narrow;

static inline __m128i weft_mix_load_word(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

static inline weft_mix_keys_narrow weft_mix_load_keys_narrow(void) {
    return (weft_mix_keys_narrow){weft_mix_load_word(weft_mix_keys[0]),
                                  weft_mix_load_word(weft_mix_keys[1])};
}

static inline __m128i weft_mix_word(__m128i word, __m128i position, weft_mix_keys_narrow key) {
    word = _mm_aesenc_si128(word, position);
    word = _mm_aesenc_si128(word, key.first);
    return _mm_aesenc_si128(word, key.second);
}

/* Adds what two neighbouring words, from word `word` of their tensor on, become, and takes off what they
 * were. */
static inline void weft_mix_move_pair(const uint8_t *old, const uint8_t *new, uint64_t word,
                                      weft_mix_keys_narrow key, __m128i sums[2]) {
    for (unsigned i = 0; i < 2; i++) {
        __m128i position = _mm_set1_epi64x((int64_t)(word + i));
        __m128i after = weft_mix_word(weft_mix_load_word(new + i *WEFT_WORD), position, key);
        __m128i before = weft_mix_word(weft_mix_load_word(old + i * WEFT_WORD), position, key);
        sums[0] = _mm_add_epi64(sums[0], after);
        sums[1] = _mm_sub_epi64(sums[1], before);
    }
}

static inline weft_sum weft_mix_finish_narrow(const __m128i sums[2]) {
    weft_sum sum;
    _mm_storeu_si128((__m128i *)(void *)sum.lanes, _mm_add_epi64(sums[0], sums[1]));
    return sum;
}

#endif
