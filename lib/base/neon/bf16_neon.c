/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_neon.c: the cast, sixteen values at a time.
 */
#include "../bf16.h"
#include "../cpu.h"
#include "bf16_lanes.h"

#include <string.h>

static inline uint32x4_t load_four(const float *input) {
    return vreinterpretq_u32_f32(vld1q_f32(input));
}

void weft_bf16_cast_neon(const float *input, uint16_t *output, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        vst1q_u16(output + i, weft_bf16_lanes(load_four(input + i), load_four(input + i + 4)));
        vst1q_u16(output + i + 8, weft_bf16_lanes(load_four(input + i + 8), load_four(input + i + 12)));
    }
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        output[i] = weft_bf16_round(bits);
    }
}
