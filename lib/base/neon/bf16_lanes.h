/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_lanes.h: the cast of eight values, for the kernels of ARM that need it.
 */
#ifndef WEFT_BASE_NEON_BF16_LANES_H
#define WEFT_BASE_NEON_BF16_LANES_H

#include <arm_neon.h>

/* The high halves of four values, to nearest even; what a NaN becomes means nothing. */
static inline uint16x4_t weft_bf16_four(uint32x4_t bits) {
    uint32x4_t odd = vsraq_n_u32(bits, vshlq_n_u32(bits, 15), 31);
    return vaddhn_u32(odd, vdupq_n_u32(0x7fff));
}

/* See weft_bf16_round for what each lane computes. */
static inline uint16x8_t weft_bf16_lanes(uint32x4_t low, uint32x4_t high) {
    float32x4_t a = vreinterpretq_f32_u32(low), b = vreinterpretq_f32_u32(high);
    uint16x8_t number =
        vuzp1q_u16(vreinterpretq_u16_u32(vceqq_f32(a, a)), vreinterpretq_u16_u32(vceqq_f32(b, b)));
    uint16x8_t rounded = vcombine_u16(weft_bf16_four(low), weft_bf16_four(high));
    return vbslq_u16(number, rounded, vdupq_n_u16(0x7fc0));
}

#endif
