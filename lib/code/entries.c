/* SPDX-License-Identifier: Apache-2.0
 *
 * entries.c: the loops of entries_loop.h for any processor, which the vector forms are tested against, and
 * the choice.
 */
#include "entries_loop.h"

static const weft_entry_kernels portable = {
    .sort = sort_all,
    .tokenise_steps = tokenise_all_steps,
    .put_rests = put_all_rests,
    .tokenise_values = tokenise_all_values,
    .words = words_all,
    .values = value_all,
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
