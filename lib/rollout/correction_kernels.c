/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_kernels.c: the portable form of the pass, and the choice between the forms.
 */
#include "correction_body.h"

correction_function correction_function_for(weft_cpu level) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        return correction_run_avx512;
    case WEFT_CPU_AVX2:
        return correction_run_avx2;
#endif
    default:
        return run_sequence;
    }
}
