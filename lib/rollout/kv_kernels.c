/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_kernels.c: the choice of kernels, and their portable form.
 */
#include "kv_kernels.h"
#include "kv_loops.h"

const weft_kv_kernels weft_kv_kernels_portable = {KV_LOOPS};

const weft_kv_kernels *weft_kv_kernels_at(weft_cpu level) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        return &weft_kv_kernels_avx512;
    case WEFT_CPU_AVX2:
        return &weft_kv_kernels_avx2;
#endif
    default:
        return &weft_kv_kernels_portable;
    }
}
