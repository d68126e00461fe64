/* SPDX-License-Identifier: Apache-2.0
 *
 * gate_avx2.c: the gate, eight weights at a time. AVX2 cannot pack under a mask: what fires among 64 is
 * taken out by its bits, the first four without asking how many there are, which spares most of the
 * mispredicted branches.
 */
#include "gate.h"

#include <immintrin.h>
#include <string.h>

enum { BLOCK = 64 };

static inline __m256i rounded(__m256i bits) {
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

static inline __m256i magnitude(__m256 value) {
    return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7fffffff));
}

/* Writes entry `count` from where the lowest bit of `mask` is in a block, and returns the other bits.
 * Without a bit, an entry that does not count is written from the place behind the block. */
static inline uint64_t append_one(uint64_t mask, uint32_t first, const uint32_t *sent,
                                  const uint16_t *words, size_t count, const weft_entries *fired) {
    size_t i = (size_t)_tzcnt_u64(mask);
    fired->positions[count] = first + (uint32_t)i;
    fired->values[count] = sent[i];
    fired->words[count] = words[i % BLOCK];
    return _blsr_u64(mask);
}

/* All of them, as when the gate is open. */
static inline void append_all(uint32_t first, const uint32_t *sent, const uint16_t *words,
                              weft_entries *fired) {
    for (uint32_t j = 0; j < BLOCK; j++) {
        fired->positions[fired->count + j] = first + j;
    }
    memcpy(fired->values + fired->count, sent, BLOCK * sizeof *sent);
    memcpy(fired->words + fired->count, words, BLOCK * sizeof *words);
    fired->count += BLOCK;
}

static inline void append(uint64_t mask, uint32_t first, const uint32_t *sent, const uint16_t *words,
                          weft_entries *fired) {
    if (mask == UINT64_MAX) {
        append_all(first, sent, words, fired);
        return;
    }
    size_t end = fired->count + (size_t)__builtin_popcountll(mask);
    size_t i = fired->count;
    for (unsigned j = 0; j < 4; j++) {
        mask = append_one(mask, first, sent, words, i++, fired);
    }
    while (i < end) {
        mask = append_one(mask, first, sent, words, i++, fired);
    }
    fired->count = end;
}

/* s in whole steps of the grid: see weft_grid_shift. */
static inline __m256 round_to_grid(__m256i consensus, __m256 s, uint32_t grid) {
    __m256i exponent = _mm256_and_si256(consensus, _mm256_set1_epi32(0x7f800000));
    exponent = _mm256_max_epu32(exponent, _mm256_set1_epi32(WEFT_GRID_LEAST));
    exponent = _mm256_add_epi32(exponent, _mm256_set1_epi32((int)weft_grid_shift(grid)));
    exponent = _mm256_min_epu32(exponent, _mm256_set1_epi32(WEFT_GRID_MOST));
    __m256 middle = _mm256_castsi256_ps(_mm256_or_si256(exponent, _mm256_set1_epi32(WEFT_GRID_HALF)));
    __m256 steps = _mm256_sub_ps(_mm256_add_ps(s, middle), middle);
    __m256 most = _mm256_mul_ps(middle, _mm256_set1_ps(0.25f));
    return _mm256_blendv_ps(s, steps, _mm256_cmp_ps(_mm256_castsi256_ps(magnitude(s)), most, _CMP_LT_OQ));
}

/* Returns the bits of those that fire. */
static inline unsigned gate_eight(const weft_gate_input *input, size_t i, uint32_t *sent_out,
                                  uint16_t *words, __m256i *highest) {
    __m256 consensus = _mm256_loadu_ps(input->consensus + i);
    __m256 local = _mm256_loadu_ps(input->local + i);
    __m256 residual = _mm256_loadu_ps(input->residual + i);
    __m256 s = _mm256_add_ps(residual, _mm256_sub_ps(consensus, local));
    __m256 next = _mm256_sub_ps(consensus, s);
    __m256i bits = _mm256_castps_si256(consensus);
    __m256i differ = _mm256_xor_si256(rounded(bits), rounded(_mm256_castps_si256(next)));
    __m256i equal = _mm256_cmpeq_epi32(_mm256_srli_epi32(differ, 16), _mm256_setzero_si256());
    __m256i fires = input->open ? _mm256_set1_epi32(-1) : _mm256_xor_si256(equal, _mm256_set1_epi32(-1));
    __m256 whole = s;
    if (input->grid != 0) {
        whole = round_to_grid(bits, s, input->grid);
        fires = _mm256_castps_si256(_mm256_cmp_ps(whole, _mm256_setzero_ps(), _CMP_NEQ_UQ));
    }
    __m256i sent = _mm256_and_si256(_mm256_castps_si256(whole), _mm256_set1_epi32((int)input->mask));
    __m256 rest = _mm256_sub_ps(s, _mm256_castsi256_ps(sent));
    __m256i word = _mm256_srli_epi32(bits, 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
    _mm256_storeu_ps(input->kept + i, _mm256_blendv_ps(s, rest, _mm256_castsi256_ps(fires)));
    _mm256_storeu_si256((__m256i *)(void *)sent_out, sent);
    _mm_storeu_si128((__m128i *)(void *)(words + i), packed);
    *highest = _mm256_max_epu32(*highest, _mm256_max_epu32(magnitude(s), magnitude(next)));
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fires));
}

static inline void gate_block(const weft_gate_input *input, size_t i, weft_entries *fired, uint16_t *words,
                              __m256i *highest) {
    uint32_t sent[BLOCK + 1];
    uint64_t mask = 0;
    sent[BLOCK] = 0;
    for (size_t j = 0; j < BLOCK; j += 16) {
        weft_gate_fetch(input, i + j);
        mask |= (uint64_t)gate_eight(input, i + j, sent + j, words, highest) << j;
        mask |= (uint64_t)gate_eight(input, i + j + 8, sent + j + 8, words, highest) << (j + 8);
    }
    append(mask, input->first + (uint32_t)i, sent, words + i, fired);
}

uint32_t weft_gate_avx2(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]) {
    const weft_gate_input in = *input;
    weft_entries out = *fired;
    __m256i highest = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + BLOCK <= in.count; i += BLOCK) {
        gate_block(&in, i, &out, words, &highest);
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
