/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx2.c: the mix with AES-NI, one word per register. An AES round takes about four cycles
 * but one or two start in each, so eight words are kept in flight.
 */
#include "digest_mix.h"

#include <immintrin.h>
#include <string.h>

enum { LANES = 8 };

typedef struct keys {
    __m128i first;
    __m128i second;
} keys;

static inline keys load_keys(void) {
    return (keys){
        _mm_loadu_si128((const __m128i *)(const void *)weft_mix_keys[0]),
        _mm_loadu_si128((const __m128i *)(const void *)weft_mix_keys[1]),
    };
}

static inline __m128i load_word(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

static inline __m128i mix(__m128i word, __m128i position, keys key) {
    word = _mm_aesenc_si128(word, position);
    word = _mm_aesenc_si128(word, key.first);
    return _mm_aesenc_si128(word, key.second);
}

/* The compiler unrolls the loops over LANES and interleaves the rounds; two accumulators keep the
 * additions out of the way. */
static inline void mix_block(const uint8_t *data, const __m128i position[LANES], keys key,
                             __m128i sums[2]) {
    __m128i state[LANES];
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(load_word(data + i * WEFT_WORD), position[i]);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(state[i], key.first);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(state[i], key.second);
        sums[i & 1] = _mm_add_epi64(sums[i & 1], state[i]);
    }
}

static weft_sum finish(const __m128i sums[2]) {
    weft_sum sum;
    _mm_storeu_si128((__m128i *)(void *)sum.lanes, _mm_add_epi64(sums[0], sums[1]));
    return sum;
}

static weft_sum sum_avx2(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    __m128i position = _mm_set1_epi64x((int64_t)word);
    for (; bytes >= LANES * WEFT_WORD; bytes -= LANES * WEFT_WORD) {
        __m128i positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = _mm_add_epi64(position, _mm_set1_epi64x(i));
        }
        mix_block(cursor, positions, key, sums);
        position = _mm_add_epi64(position, _mm_set1_epi64x(LANES));
        cursor += LANES * WEFT_WORD;
    }
    for (; bytes >= WEFT_WORD; bytes -= WEFT_WORD) {
        sums[0] = _mm_add_epi64(sums[0], mix(load_word(cursor), position, key));
        position = _mm_add_epi64(position, _mm_set1_epi64x(1));
        cursor += WEFT_WORD;
    }
    if (bytes > 0) {
        uint8_t last[WEFT_WORD] = {0};
        memcpy(last, cursor, bytes);
        sums[1] = _mm_add_epi64(sums[1], mix(load_word(last), position, key));
    }
    return finish(sums);
}

static weft_sum sum_words_avx2(const void *data, const uint64_t *words, size_t count) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    for (; count >= LANES; count -= LANES) {
        __m128i positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = _mm_set1_epi64x((int64_t)words[i]);
        }
        mix_block(cursor, positions, key, sums);
        words += LANES;
        cursor += LANES * WEFT_WORD;
    }
    for (size_t i = 0; i < count; i++) {
        __m128i position = _mm_set1_epi64x((int64_t)words[i]);
        sums[0] = _mm_add_epi64(sums[0], mix(load_word(cursor + i * WEFT_WORD), position, key));
    }
    return finish(sums);
}

const weft_digest_kernels weft_digest_kernels_avx2 = {sum_avx2, sum_words_avx2};
