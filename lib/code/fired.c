/* SPDX-License-Identifier: Apache-2.0
 *
 * fired.c: the loops of fired_loop.h for any processor, and the choice.
 */
#include "fired_loop.h"

static void sort_portable(const weft_tile *tile, const weft_fired *fired, uint32_t linear,
                          weft_sorting *sorting) {
    sort_all(tile, fired, linear, sorting);
}

static void tokenise_portable(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                              uint8_t *value_tokens) {
    tokenise_all(items, count, most, gap_tokens, value_tokens);
}

static const weft_fired_kernels portable = {sort_portable, tokenise_portable};

const weft_fired_kernels *weft_fired_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_fired_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_fired_kernels_avx2;
    }
#endif
    (void)level;
    return &portable;
}
