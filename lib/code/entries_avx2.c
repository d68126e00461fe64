/* SPDX-License-Identifier: Apache-2.0
 *
 * entries_avx2.c: the loops of entries_loop.h for AVX2: only the compiler makes them different.
 */
#include "entries_loop.h"

const weft_entry_kernels weft_entry_kernels_avx2 = {
    .sort = sort_all,
    .tokenise_steps = tokenise_all_steps,
    .put_rests = put_all_rests,
    .tokenise_values = tokenise_all_values,
    .words = words_all,
    .values = value_all,
};
