/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_kernels_avx2.c: the loops once more, for AVX2.
 */
#include "kv_kernels.h"
#include "kv_loops.h"

const weft_kv_kernels weft_kv_kernels_avx2 = {KV_LOOPS};
