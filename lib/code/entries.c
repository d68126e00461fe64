/* SPDX-License-Identifier: Apache-2.0
 *
 * entries.c: the loops of entries_loop.h for any processor, which the vector forms are tested against, and
 * the choice.
 */
#include "entries_loop.h"

static void sort_portable(const weft_tile *tile, const weft_entries *entries, uint32_t linear,
                          weft_sorting *sorting) {
    sort_all(tile, entries, linear, sorting);
}

static void tokenise_steps_portable(const uint64_t *items, size_t count, uint8_t *gap_tokens,
                                    uint8_t *step_tokens) {
    tokenise_all_steps(items, count, gap_tokens, step_tokens);
}

static void tokenise_values_portable(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                                     uint8_t *value_tokens) {
    tokenise_all_values(items, count, most, gap_tokens, value_tokens);
}

static const weft_entry_kernels portable = {
    .sort = sort_portable,
    .tokenise_steps = tokenise_steps_portable,
    .tokenise_values = tokenise_values_portable,
};

const weft_entry_kernels *weft_entry_kernels_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return &weft_entry_kernels_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return &weft_entry_kernels_avx2;
    }
#endif
    (void)level;
    return &portable;
}
