/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx512.c: the mix with VAES, four words per register and eight registers in flight, which
 * is faster than memory delivers. The kernel does not fetch ahead by hand: one thousand bytes or more
 * ahead was measured to halve the speed, because it works against the processor's own fetching.
 */
#include "digest_mix.h"

#include <immintrin.h>

enum {
    LANES = 8,
    VECTOR = 64,
    VECTOR_WORDS = VECTOR / WEFT_WORD,
};

typedef struct keys {
    __m512i first;
    __m512i second;
} keys;

static inline __m512i load_key(const uint8_t *key) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)key));
}

static inline keys load_keys(void) {
    return (keys){load_key(weft_mix_keys[0]), load_key(weft_mix_keys[1])};
}

static inline __m512i mix(__m512i words, __m512i positions, keys key) {
    words = _mm512_aesenc_epi128(words, positions);
    words = _mm512_aesenc_epi128(words, key.first);
    return _mm512_aesenc_epi128(words, key.second);
}

/* The compiler unrolls the loops over LANES and interleaves the rounds. */
static inline void mix_block(const uint8_t *data, const __m512i positions[LANES], keys key,
                             __m512i sums[4]) {
    __m512i state[LANES];
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm512_aesenc_epi128(_mm512_loadu_si512(data + i * VECTOR), positions[i]);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm512_aesenc_epi128(state[i], key.first);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm512_aesenc_epi128(state[i], key.second);
        sums[i & 3] = _mm512_add_epi64(sums[i & 3], state[i]);
    }
}

static weft_sum finish(const __m512i sums[4]) {
    __m512i all = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
    __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i quarter = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    weft_sum sum;
    _mm_storeu_si128((__m128i *)(void *)sum.lanes, quarter);
    return sum;
}

/* Up to three words and a short one. Bytes behind the end are loaded as zero, which pads the short
 * word; words that do not exist at all must not count. */
static inline __m512i mix_tail(const uint8_t *data, size_t bytes, __m512i positions, keys key) {
    __m512i words = _mm512_maskz_loadu_epi8(((uint64_t)1 << bytes) - 1, data);
    unsigned lanes = (unsigned)((bytes + WEFT_WORD - 1) / WEFT_WORD) * 2;
    return _mm512_maskz_mov_epi64((__mmask8)((1u << lanes) - 1), mix(words, positions, key));
}

static weft_sum sum_avx512(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    __m512i zero = _mm512_setzero_si512();
    __m512i sums[4] = {zero, zero, zero, zero};
    __m512i steps = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    __m512i position = _mm512_add_epi64(_mm512_set1_epi64((int64_t)word), steps);
    for (; bytes >= LANES * VECTOR; bytes -= LANES * VECTOR) {
        __m512i positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = _mm512_add_epi64(position, _mm512_set1_epi64(i * VECTOR_WORDS));
        }
        mix_block(cursor, positions, key, sums);
        position = _mm512_add_epi64(position, _mm512_set1_epi64(LANES * VECTOR_WORDS));
        cursor += LANES * VECTOR;
    }
    for (; bytes >= VECTOR; bytes -= VECTOR) {
        sums[0] = _mm512_add_epi64(sums[0], mix(_mm512_loadu_si512(cursor), position, key));
        position = _mm512_add_epi64(position, _mm512_set1_epi64(VECTOR_WORDS));
        cursor += VECTOR;
    }
    if (bytes > 0) {
        sums[1] = _mm512_add_epi64(sums[1], mix_tail(cursor, bytes, position, key));
    }
    return finish(sums);
}

/* Each of up to four indexes, twice. */
static inline __m512i spread(__m256i indexes) {
    const __m512i twice = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(indexes));
}

static inline __m256i load_indexes(const uint64_t *words) {
    return _mm256_loadu_si256((const __m256i *)(const void *)words);
}

static weft_sum sum_words_avx512(const void *data, const uint64_t *words, size_t count) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    __m512i zero = _mm512_setzero_si512();
    __m512i sums[4] = {zero, zero, zero, zero};
    for (; count >= LANES * VECTOR_WORDS; count -= LANES * VECTOR_WORDS) {
        __m512i positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = spread(load_indexes(words + i * VECTOR_WORDS));
        }
        mix_block(cursor, positions, key, sums);
        words += LANES * VECTOR_WORDS;
        cursor += LANES * VECTOR;
    }
    for (; count >= VECTOR_WORDS; count -= VECTOR_WORDS) {
        __m512i mixed = mix(_mm512_loadu_si512(cursor), spread(load_indexes(words)), key);
        sums[0] = _mm512_add_epi64(sums[0], mixed);
        words += VECTOR_WORDS;
        cursor += VECTOR;
    }
    if (count > 0) {
        __m256i indexes = _mm256_maskz_loadu_epi64((__mmask8)((1u << count) - 1), words);
        sums[1] = _mm512_add_epi64(sums[1], mix_tail(cursor, count * WEFT_WORD, spread(indexes), key));
    }
    return finish(sums);
}

const weft_digest_kernels weft_digest_kernels_avx512 = {sum_avx512, sum_words_avx512};
