/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_avx512.c: the mix with VAES, four words per register and eight registers in flight, which
 * is faster than memory delivers. The kernel does not fetch ahead by hand: that was measured to halve its
 * speed, at any distance, because it works against the processor's own fetching.
 */
#include "digest_mix_avx512.h"

enum {
    LANES = 8,
    VECTOR = WEFT_MIX_VECTOR,
    VECTOR_WORDS = VECTOR / WEFT_WORD,
};

/* The compiler unrolls the loops over LANES and interleaves the rounds. */
static inline void mix_block(const uint8_t *data, const __m512i positions[LANES], weft_mix_keys_wide key,
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

/* Up to three words and a short one. Bytes behind the end are loaded as zero, which pads the short
 * word; words that do not exist at all must not count. */
static inline __m512i mix_tail(const uint8_t *data, size_t bytes, __m512i positions,
                               weft_mix_keys_wide key) {
    __m512i words = _mm512_maskz_loadu_epi8(((uint64_t)1 << bytes) - 1, data);
    unsigned lanes = (unsigned)((bytes + WEFT_WORD - 1) / WEFT_WORD) * 2;
    return _mm512_maskz_mov_epi64((__mmask8)((1u << lanes) - 1), weft_mix_wide(words, positions, key));
}

static weft_sum sum_avx512(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    weft_mix_keys_wide key = weft_mix_load_keys();
    __m512i zero = _mm512_setzero_si512();
    __m512i sums[4] = {zero, zero, zero, zero};
    __m512i position = weft_mix_positions(word);
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
        sums[0] = _mm512_add_epi64(sums[0], weft_mix_wide(_mm512_loadu_si512(cursor), position, key));
        position = _mm512_add_epi64(position, _mm512_set1_epi64(VECTOR_WORDS));
        cursor += VECTOR;
    }
    if (bytes > 0) {
        sums[1] = _mm512_add_epi64(sums[1], mix_tail(cursor, bytes, position, key));
    }
    return weft_mix_finish(sums);
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
    weft_mix_keys_wide key = weft_mix_load_keys();
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
        __m512i mixed = weft_mix_wide(_mm512_loadu_si512(cursor), spread(load_indexes(words)), key);
        sums[0] = _mm512_add_epi64(sums[0], mixed);
        words += VECTOR_WORDS;
        cursor += VECTOR;
    }
    if (count > 0) {
        __m256i indexes = _mm256_maskz_loadu_epi64((__mmask8)((1u << count) - 1), words);
        sums[1] = _mm512_add_epi64(sums[1], mix_tail(cursor, count * WEFT_WORD, spread(indexes), key));
    }
    return weft_mix_finish(sums);
}

/* Which of `count` vectors, at most 64, are not the same: as bits, so that nothing hangs on where they are.
 */
static inline uint64_t differing(const uint8_t *before, const uint8_t *after, size_t count) {
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        __mmask8 lanes = _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(before + i * VECTOR),
                                                  _mm512_loadu_si512(after + i * VECTOR));
        found |= (uint64_t)(lanes != 0) << i;
    }
    return found;
}

static weft_sum difference_avx512(const void *before, const void *after, size_t bytes, uint64_t word) {
    const uint8_t *old = before, *new = after;
    weft_mix_keys_wide key = weft_mix_load_keys();
    __m512i zero = _mm512_setzero_si512();
    __m512i sums[4] = {zero, zero, zero, zero};
    __m512i position = weft_mix_positions(word);
    while (bytes >= VECTOR) {
        size_t count = bytes / VECTOR < 64 ? bytes / VECTOR : 64;
        for (uint64_t left = differing(old, new, count); left != 0; left = _blsr_u64(left)) {
            size_t i = (size_t)_tzcnt_u64(left);
            __m512i here = _mm512_add_epi64(position, _mm512_set1_epi64((int64_t)(i * VECTOR_WORDS)));
            sums[0] =
                _mm512_add_epi64(sums[0], weft_mix_wide(_mm512_loadu_si512(new + i *VECTOR), here, key));
            sums[1] =
                _mm512_sub_epi64(sums[1], weft_mix_wide(_mm512_loadu_si512(old + i * VECTOR), here, key));
        }
        position = _mm512_add_epi64(position, _mm512_set1_epi64((int64_t)(count * VECTOR_WORDS)));
        old += count * VECTOR;
        new += count *VECTOR;
        bytes -= count * VECTOR;
    }
    if (bytes > 0) {
        sums[2] = mix_tail(new, bytes, position, key);
        sums[3] = _mm512_sub_epi64(zero, mix_tail(old, bytes, position, key));
    }
    return weft_mix_finish(sums);
}

const weft_digest_kernels weft_digest_kernels_avx512 = {sum_avx512, sum_words_avx512, difference_avx512};
