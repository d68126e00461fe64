/* SPDX-License-Identifier: Apache-2.0
 *
 * rans_wide_neon.c: the decoder of rans_wide.h for ARM, four states to a register. There is no gather:
 * slots are loaded one by one, and all else is done for four. The encoder's products have 64 bits, for
 * which ARM has no vectors: it is the portable one. So are both coders of rans.h, whose four states would
 * wait for each step of one register.
 */
#include "../pack/rans_wide.h"

#include "../rans_symbol.h"

#include <arm_neon.h>

/* Where the words from the cursor on go: to the low halves of the states that ran low, in their order. Row
 * m is for the states whose bits are set in m; 255 leaves a byte zero. */
static const uint8_t places[16][16] = {
    {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
    {0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
    {255, 255, 255, 255, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
    {0, 1, 255, 255, 2, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
    {255, 255, 255, 255, 255, 255, 255, 255, 0, 1, 255, 255, 255, 255, 255, 255},
    {0, 1, 255, 255, 255, 255, 255, 255, 2, 3, 255, 255, 255, 255, 255, 255},
    {255, 255, 255, 255, 0, 1, 255, 255, 2, 3, 255, 255, 255, 255, 255, 255},
    {0, 1, 255, 255, 2, 3, 255, 255, 4, 5, 255, 255, 255, 255, 255, 255},
    {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 1, 255, 255},
    {0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2, 3, 255, 255},
    {255, 255, 255, 255, 0, 1, 255, 255, 255, 255, 255, 255, 2, 3, 255, 255},
    {0, 1, 255, 255, 2, 3, 255, 255, 255, 255, 255, 255, 4, 5, 255, 255},
    {255, 255, 255, 255, 255, 255, 255, 255, 0, 1, 255, 255, 2, 3, 255, 255},
    {0, 1, 255, 255, 255, 255, 255, 255, 2, 3, 255, 255, 4, 5, 255, 255},
    {255, 255, 255, 255, 0, 1, 255, 255, 2, 3, 255, 255, 4, 5, 255, 255},
    {0, 1, 255, 255, 2, 3, 255, 255, 4, 5, 255, 255, 6, 7, 255, 255},
};

static inline uint32x4_t gather(const uint32_t *slots, uint32x4_t states) {
    uint64x2_t indices = vreinterpretq_u64_u32(vandq_u32(states, vdupq_n_u32(WEFT_RANS_TOTAL - 1)));
    uint64_t low = vgetq_lane_u64(indices, 0), high = vgetq_lane_u64(indices, 1);
    uint32x4_t result = vdupq_n_u32(slots[(uint32_t)low]);
    result = vsetq_lane_u32(slots[low >> 32], result, 1);
    result = vsetq_lane_u32(slots[(uint32_t)high], result, 2);
    return vsetq_lane_u32(slots[high >> 32], result, 3);
}

/* Decodes a symbol of each of four states, and leaves it in the lowest byte of its slot; eight bytes from
 * the cursor on can be read. */
static inline uint32x4_t take_four(uint32x4_t states, const uint32_t *slots, uint32x4_t *slot_out,
                                   const uint8_t **cursor) {
    const uint32x4_t bits = {1, 2, 4, 8};
    uint32x4_t slot = gather(slots, states);
    uint32x4_t quotient = vshrq_n_u32(states, WEFT_RANS_BITS);
    uint32x4_t frequency = vshrq_n_u32(vshlq_n_u32(slot, 12), 20); /* less one */
    states = vmlaq_u32(vsraq_n_u32(quotient, slot, 20), frequency, quotient);
    uint32x4_t low = vcltq_u32(states, vdupq_n_u32(WEFT_RANS_LOWER));
    uint32_t which = vaddvq_u32(vandq_u32(low, bits));
    uint8x16_t next = vcombine_u8(vld1_u8(*cursor), vdup_n_u8(0));
    uint32x4_t words = vreinterpretq_u32_u8(vqtbl1q_u8(next, vld1q_u8(places[which])));
    *cursor += 2 * __builtin_popcount(which);
    *slot_out = slot;
    return vbslq_u32(low, vorrq_u32(vshlq_n_u32(states, 16), words), states);
}

static size_t decode_blocks_neon(weft_rans_wide_decoder *decoder, uint8_t *symbols, size_t blocks) {
    enum { REGISTERS = WEFT_RANS_WIDE / 4 };
    const uint8_t *cursor = decoder->cursor;
    uint32x4_t states[REGISTERS];
    size_t done = 0;
    for (unsigned i = 0; i < REGISTERS; i++) {
        states[i] = vld1q_u32(decoder->states + 4 * i);
    }
    for (; done < blocks && decoder->end - cursor >= 2 * WEFT_RANS_WIDE; done++) {
        for (unsigned i = 0; i < REGISTERS; i += 4) {
            uint32x4_t slot[4];
            for (unsigned j = 0; j < 4; j++) {
                states[i + j] = take_four(states[i + j], decoder->slots, &slot[j], &cursor);
            }
            uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(slot[0]), vreinterpretq_u16_u32(slot[1]));
            uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(slot[2]), vreinterpretq_u16_u32(slot[3]));
            vst1q_u8(symbols, vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
            symbols += 16;
        }
    }
    for (unsigned i = 0; i < REGISTERS; i++) {
        vst1q_u32(decoder->states + 4 * i, states[i]);
    }
    decoder->cursor = cursor;
    return done;
}

static void encode_blocks_neon(weft_rans_wide_encoder *encoder, const weft_rans_token *tokens,
                               const uint8_t *symbols, size_t blocks) {
    weft_rans_wide_kernels_portable.encode(encoder, tokens, symbols, blocks);
}

const weft_rans_wide_kernels weft_rans_wide_kernels_neon = {
    .encode = encode_blocks_neon,
    .decode = decode_blocks_neon,
};
