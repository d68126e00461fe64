/* SPDX-License-Identifier: Apache-2.0
 *
 * entries_avx512.c: the loops of entries_loop.h for AVX-512: only the compiler makes them different.
 */
#include "entries_loop.h"

static void sort_avx512(const weft_tile *tile, const weft_entries *entries, uint32_t linear,
                        weft_sorting *sorting) {
    sort_all(tile, entries, linear, sorting);
}

static void tokenise_steps_avx512(const uint64_t *items, size_t count, uint8_t *gap_tokens,
                                  uint8_t *step_tokens) {
    tokenise_all_steps(items, count, gap_tokens, step_tokens);
}

static void tokenise_values_avx512(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                                   uint8_t *value_tokens) {
    tokenise_all_values(items, count, most, gap_tokens, value_tokens);
}

const weft_entry_kernels weft_entry_kernels_avx512 = {
    .sort = sort_avx512,
    .tokenise_steps = tokenise_steps_avx512,
    .tokenise_values = tokenise_values_avx512,
};
