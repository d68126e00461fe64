/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens_avx512.c: the loops of tokens_loop.h for AVX-512.
 */
#include "tokens_loop.h"

void weft_tokenise_avx512(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                          uint8_t *value_tokens) {
    tokenise_all(items, count, most, gap_tokens, value_tokens);
}
