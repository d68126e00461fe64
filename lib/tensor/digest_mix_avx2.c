/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx2.c: the mix with AES-NI, one word per register. An AES round takes about four cycles
 * but one or two start in each, so eight words are kept in flight.
 */
#include "digest_mix_avx2.h"

#include <string.h>

enum {
    LANES = 8,
    AHEAD = 4096, /* bytes: the processor's own fetching stops where a page ends */
};

/* The compiler unrolls the loops over LANES and interleaves the rounds; two accumulators keep the
 * additions out of the way. */
static inline void mix_block(const uint8_t *data, const __m128i position[LANES], weft_mix_keys_narrow key,
                             __m128i sums[2]) {
    __m128i state[LANES];
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(weft_mix_load_word(data + i * WEFT_WORD), position[i]);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(state[i], key.first);
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = _mm_aesenc_si128(state[i], key.second);
        sums[i & 1] = _mm_add_epi64(sums[i & 1], state[i]);
    }
}

static weft_sum sum_avx2(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    weft_mix_keys_narrow key = weft_mix_load_keys_narrow();
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    __m128i position = _mm_set1_epi64x((int64_t)word);
    for (; bytes >= LANES * WEFT_WORD; bytes -= LANES * WEFT_WORD) {
        __m128i positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = _mm_add_epi64(position, _mm_set1_epi64x(i));
        }
        weft_cpu_fetch((uintptr_t)cursor + AHEAD);
        weft_cpu_fetch((uintptr_t)cursor + AHEAD + 64);
        mix_block(cursor, positions, key, sums);
        position = _mm_add_epi64(position, _mm_set1_epi64x(LANES));
        cursor += LANES * WEFT_WORD;
    }
    for (; bytes >= WEFT_WORD; bytes -= WEFT_WORD) {
        sums[0] = _mm_add_epi64(sums[0], weft_mix_word(weft_mix_load_word(cursor), position, key));
        position = _mm_add_epi64(position, _mm_set1_epi64x(1));
        cursor += WEFT_WORD;
    }
    if (bytes > 0) {
        uint8_t last[WEFT_WORD] = {0};
        memcpy(last, cursor, bytes);
        sums[1] = _mm_add_epi64(sums[1], weft_mix_word(weft_mix_load_word(last), position, key));
    }
    return weft_mix_finish_narrow(sums);
}

static weft_sum sum_words_avx2(const void *data, const uint64_t *words, size_t count) {
    const uint8_t *cursor = data;
    weft_mix_keys_narrow key = weft_mix_load_keys_narrow();
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
        sums[0] = _mm_add_epi64(sums[0],
                                weft_mix_word(weft_mix_load_word(cursor + i * WEFT_WORD), position, key));
    }
    return weft_mix_finish_narrow(sums);
}

enum { PAIR = 2 * WEFT_WORD };

static inline __m256i load_pair(const uint8_t *data) {
    return _mm256_loadu_si256((const __m256i *)(const void *)data);
}

/* Which of `count` pairs of words, at most 64, are not the same: as bits, so that nothing hangs on where
 * they are. */
static inline uint64_t differing(const uint8_t *before, const uint8_t *after, size_t count) {
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        __m256i both = _mm256_xor_si256(load_pair(before + i * PAIR), load_pair(after + i * PAIR));
        found |= (uint64_t)!_mm256_testz_si256(both, both) << i;
    }
    return found;
}

static weft_sum difference_avx2(const void *before, const void *after, size_t bytes, uint64_t word) {
    const uint8_t *old = before, *new = after;
    weft_mix_keys_narrow key = weft_mix_load_keys_narrow();
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    while (bytes >= PAIR) {
        size_t count = bytes / PAIR < 64 ? bytes / PAIR : 64;
        for (uint64_t left = differing(old, new, count); left != 0; left = _blsr_u64(left)) {
            size_t at = PAIR * (size_t)_tzcnt_u64(left);
            weft_mix_move_pair(old + at, new + at, word + at / WEFT_WORD, key, sums);
        }
        word += 2 * count;
        old += count * PAIR;
        new += count *PAIR;
        bytes -= count * PAIR;
    }
    weft_sum sum = weft_mix_finish_narrow(sums);
    weft_sum_add(&sum, sum_avx2(new, bytes, word));
    weft_sum_subtract(&sum, sum_avx2(old, bytes, word));
    return sum;
}

const weft_digest_kernels weft_digest_kernels_avx2 = {sum_avx2, sum_words_avx2, difference_avx2};
