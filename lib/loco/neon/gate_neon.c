/* SPDX-License-Identifier: Apache-2.0
 *
 * gate_neon.c: the gate, four weights at a time. What fires among 64 is taken out by its bits.
 */
#include "../gate/gate.h"

#include "../../code/lanes.h"

enum { BLOCK = 64 };

/* The cast to BF16 with the low half not cut off yet. Not a number is not looked for: it is an error. */
static inline uint32x4_t rounded(uint32x4_t bits) {
    return vaddq_u32(vsraq_n_u32(bits, vshlq_n_u32(bits, 15), 31), vdupq_n_u32(0x7fff));
}

static inline uint32x4_t magnitude(float32x4_t value) {
    return vreinterpretq_u32_f32(vabsq_f32(value));
}

/* s in whole steps of the grid: see weft_grid_shift. */
static inline float32x4_t round_to_grid(uint32x4_t consensus, float32x4_t s, uint32_t grid) {
    uint32x4_t exponent = vandq_u32(consensus, vdupq_n_u32(0x7f800000));
    exponent =
        vaddq_u32(vmaxq_u32(exponent, vdupq_n_u32(WEFT_GRID_LEAST)), vdupq_n_u32(weft_grid_shift(grid)));
    exponent = vminq_u32(exponent, vdupq_n_u32(WEFT_GRID_MOST));
    float32x4_t middle = vreinterpretq_f32_u32(vorrq_u32(exponent, vdupq_n_u32(WEFT_GRID_HALF)));
    float32x4_t steps = vsubq_f32(vaddq_f32(s, middle), middle);
    return vbslq_f32(vcaltq_f32(s, vmulq_f32(middle, vdupq_n_f32(0.25f))), steps, s);
}

/* Returns all ones where it fires. */
static inline uint32x4_t gate_four(const weft_gate_input *input, size_t i, uint32_t *sent_out,
                                   uint16_t *words, uint32x4_t *highest) {
    float32x4_t consensus = vld1q_f32(input->consensus + i);
    float32x4_t s =
        vaddq_f32(vld1q_f32(input->residual + i), vsubq_f32(consensus, vld1q_f32(input->local + i)));
    float32x4_t next = vsubq_f32(consensus, s);
    uint32x4_t bits = vreinterpretq_u32_f32(consensus);
    uint32x4_t differ = veorq_u32(rounded(bits), rounded(vreinterpretq_u32_f32(next)));
    uint32x4_t fires = input->open ? vdupq_n_u32(UINT32_MAX) : vtstq_u32(differ, vdupq_n_u32(0xffff0000u));
    float32x4_t whole = s;
    if (input->grid != 0) {
        whole = round_to_grid(bits, s, input->grid);
        fires = vmvnq_u32(vceqzq_f32(whole));
    }
    uint32x4_t sent = vandq_u32(vreinterpretq_u32_f32(whole), vdupq_n_u32(input->mask));
    float32x4_t rest = vsubq_f32(s, vreinterpretq_f32_u32(sent));
    vst1q_f32(input->kept + i, vbslq_f32(fires, rest, s));
    vst1q_u32(sent_out, sent);
    vst1_u16(words + i, vshrn_n_u32(bits, 16));
    *highest = vmaxq_u32(*highest, vmaxq_u32(magnitude(s), magnitude(next)));
    return fires;
}

/* One bit for each of 64 that fire. */
static inline uint64_t gate_block(const weft_gate_input *input, size_t i, uint32_t *sent, uint16_t *words,
                                  uint32x4_t *highest) {
    uint8x16_t fires[4];
    for (size_t j = 0; j < 4; j++) {
        uint16x8_t eight[2];
        weft_gate_fetch(input, i + 16 * j);
        for (size_t k = 0; k < 2; k++) {
            size_t at = 16 * j + 8 * k;
            uint32x4_t low = gate_four(input, i + at, sent + at, words, highest);
            uint32x4_t high = gate_four(input, i + at + 4, sent + at + 4, words, highest);
            eight[k] = vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
        }
        fires[j] = weft_lanes_narrow(eight[0], eight[1]);
    }
    return weft_lanes_bits(fires[0], fires[1], fires[2], fires[3]);
}

static inline void append(uint64_t mask, uint32_t first, const uint32_t *sent, const uint16_t *words,
                          weft_entries *fired) {
    for (; mask != 0; mask &= mask - 1) {
        size_t i = (size_t)__builtin_ctzll(mask);
        fired->positions[fired->count] = first + (uint32_t)i;
        fired->values[fired->count] = sent[i];
        fired->words[fired->count] = words[i];
        fired->count++;
    }
}

uint32_t weft_gate_neon(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]) {
    const weft_gate_input in = *input;
    weft_entries out = *fired;
    uint32x4_t highest = vdupq_n_u32(0);
    size_t i = 0;
    for (; i + BLOCK <= in.count; i += BLOCK) {
        uint32_t sent[BLOCK];
        uint64_t mask = gate_block(&in, i, sent, words, &highest);
        append(mask, in.first + (uint32_t)i, sent, words + i, &out);
    }
    weft_gate_input left = in;
    left.consensus += i;
    left.local += i;
    left.residual += i;
    left.kept += i;
    left.count -= i;
    left.first += (uint32_t)i;
    uint32_t result = weft_gate_portable(&left, &out, words + i);
    *fired = out;
    return vmaxvq_u32(highest) > result ? vmaxvq_u32(highest) : result;
}
