/* SPDX-License-Identifier: Apache-2.0
 *
 * fired_avx2.c: the loops of fired_loop.h for AVX2.
 */
#include "fired_loop.h"

static void sort_avx2(const weft_tile *tile, const weft_fired *fired, uint32_t linear,
                      weft_sorting *sorting) {
    sort_all(tile, fired, linear, sorting);
}

static void tokenise_avx2(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                          uint8_t *value_tokens) {
    tokenise_all(items, count, most, gap_tokens, value_tokens);
}

const weft_fired_kernels weft_fired_kernels_avx2 = {sort_avx2, tokenise_avx2};
