/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens.c: the loops of tokens_loop.h for any processor, and the choice.
 */
#include "tokens_loop.h"

void weft_tokenise_portable(uint64_t *items, size_t count, unsigned most, uint8_t *gap_tokens,
                            uint8_t *value_tokens) {
    tokenise_all(items, count, most, gap_tokens, value_tokens);
}

weft_tokenise weft_tokenise_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return weft_tokenise_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return weft_tokenise_avx2;
    }
#endif
    (void)level;
    return weft_tokenise_portable;
}
