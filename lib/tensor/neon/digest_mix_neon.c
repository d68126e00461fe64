/* SPDX-License-Identifier: Apache-2.0
 *
 * digest_mix_neon.c: the mix with the AES instructions of ARM, one word per register and eight in flight.
 * AESE takes its key before SubBytes, where x86 takes it after MixColumns: the key of a round is that of
 * the next instruction, and the last is added by itself.
 */
#include "../digest_mix.h"

#include <arm_neon.h>
#include <string.h>

enum { LANES = 8 };

typedef struct keys {
    uint8x16_t first;
    uint8x16_t second;
} keys;

static inline keys load_keys(void) {
    return (keys){vld1q_u8(weft_mix_keys[0]), vld1q_u8(weft_mix_keys[1])};
}

static inline uint8x16_t round_with(uint8x16_t word, uint8x16_t key) {
    return vaesmcq_u8(vaeseq_u8(word, key));
}

static inline uint64x2_t mix(uint8x16_t word, uint64x2_t position, keys key) {
    word = round_with(word, vdupq_n_u8(0));
    word = round_with(word, vreinterpretq_u8_u64(position));
    word = round_with(word, key.first);
    return vreinterpretq_u64_u8(veorq_u8(word, key.second));
}

/* The compiler unrolls the loops over LANES and interleaves the rounds. */
static inline void mix_block(const uint8_t *data, const uint64x2_t position[LANES], keys key,
                             uint64x2_t sums[2]) {
    uint8x16_t state[LANES];
    for (int i = 0; i < LANES; i++) {
        state[i] = round_with(vld1q_u8(data + i * WEFT_WORD), vdupq_n_u8(0));
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = round_with(state[i], vreinterpretq_u8_u64(position[i]));
    }
    for (int i = 0; i < LANES; i++) {
        state[i] = veorq_u8(round_with(state[i], key.first), key.second);
        sums[i & 1] = vaddq_u64(sums[i & 1], vreinterpretq_u64_u8(state[i]));
    }
}

static weft_sum finish(const uint64x2_t sums[2]) {
    weft_sum sum;
    vst1q_u64(sum.lanes, vaddq_u64(sums[0], sums[1]));
    return sum;
}

static weft_sum sum_neon(const void *data, size_t bytes, uint64_t word) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    uint64x2_t sums[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
    uint64x2_t positions[LANES];
    for (int i = 0; i < LANES; i++) {
        positions[i] = vdupq_n_u64(word + (uint64_t)i);
    }
    for (; bytes >= LANES * WEFT_WORD; bytes -= LANES * WEFT_WORD) {
        mix_block(cursor, positions, key, sums);
        for (int i = 0; i < LANES; i++) {
            positions[i] = vaddq_u64(positions[i], vdupq_n_u64(LANES));
        }
        cursor += LANES * WEFT_WORD;
    }
    uint64x2_t position = positions[0];
    for (; bytes >= WEFT_WORD; bytes -= WEFT_WORD) {
        sums[0] = vaddq_u64(sums[0], mix(vld1q_u8(cursor), position, key));
        position = vaddq_u64(position, vdupq_n_u64(1));
        cursor += WEFT_WORD;
    }
    if (bytes > 0) {
        uint8_t last[WEFT_WORD] = {0};
        memcpy(last, cursor, bytes);
        sums[1] = vaddq_u64(sums[1], mix(vld1q_u8(last), position, key));
    }
    return finish(sums);
}

static weft_sum sum_words_neon(const void *data, const uint64_t *words, size_t count) {
    const uint8_t *cursor = data;
    keys key = load_keys();
    uint64x2_t sums[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
    for (; count >= LANES; count -= LANES) {
        uint64x2_t positions[LANES];
        for (int i = 0; i < LANES; i++) {
            positions[i] = vld1q_dup_u64(words + i);
        }
        mix_block(cursor, positions, key, sums);
        words += LANES;
        cursor += LANES * WEFT_WORD;
    }
    for (size_t i = 0; i < count; i++) {
        uint64x2_t position = vld1q_dup_u64(words + i);
        sums[0] = vaddq_u64(sums[0], mix(vld1q_u8(cursor + i * WEFT_WORD), position, key));
    }
    return finish(sums);
}

static inline bool differ(uint8x16_t old, uint8x16_t new) {
    return vmaxvq_u32(vreinterpretq_u32_u8(veorq_u8(old, new))) != 0;
}

static weft_sum difference_neon(const void *before, const void *after, size_t bytes, uint64_t word) {
    const uint8_t *old = before, *new = after;
    keys key = load_keys();
    uint64x2_t sums[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
    for (; bytes >= WEFT_WORD; bytes -= WEFT_WORD) {
        uint8x16_t was = vld1q_u8(old), is = vld1q_u8(new);
        if (differ(was, is)) {
            uint64x2_t position = vdupq_n_u64(word);
            sums[0] = vaddq_u64(sums[0], mix(is, position, key));
            sums[1] = vsubq_u64(sums[1], mix(was, position, key));
        }
        old += WEFT_WORD;
        new += WEFT_WORD;
        word++;
    }
    weft_sum sum = finish(sums);
    weft_sum_add(&sum, sum_neon(new, bytes, word));
    weft_sum_subtract(&sum, sum_neon(old, bytes, word));
    return sum;
}

const weft_digest_kernels weft_digest_kernels_neon = {sum_neon, sum_words_neon, difference_neon};
