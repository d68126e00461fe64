/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_avx2.c: the loops of pack_loop.h for AVX2: only the compiler makes them different.
 */
#include "pack_loop.h"

const weft_pack_kernels weft_pack_kernels_avx2 = {
    .fold_steps = fold_steps,
    .unfold_steps = unfold_steps,
    .fold_values = fold_values,
    .unfold_values = unfold_values,
    .varying = varying,
    .split = split_groups,
    .join = join_groups,
    .sort = sort_numbers,
    .merge = merge_numbers,
};
