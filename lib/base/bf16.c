/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16.c: FP32 to BF16, the portable form and the choice between the forms.
 */
#include "bf16.h"
#include "cpu.h"

#include <string.h>

static void cast_portable(const float *input, uint16_t *output, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        output[i] = weft_bf16_round(bits);
    }
}

void weft_bf16_cast(weft_cpu level, const float *input, uint16_t *output, size_t count) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        weft_bf16_cast_avx512(input, output, count);
        return;
    case WEFT_CPU_AVX2:
        weft_bf16_cast_avx2(input, output, count);
        return;
#endif
#ifdef WEFT_ARM
    case WEFT_CPU_NEON:
        weft_bf16_cast_neon(input, output, count);
        return;
#endif
    default:
        cast_portable(input, output, count);
    }
}

void weft_bf16_from_f32(const float *input, uint16_t *output, size_t count) {
    weft_bf16_cast(weft_cpu_level(), input, output, count);
}
