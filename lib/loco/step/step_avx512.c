/* SPDX-License-Identifier: Apache-2.0
 *
 * step_avx512.c: the loops of step_loop.h for AVX-512: only the compiler makes them different.
 */
#include "step_loop.h"

uint32_t weft_step_avx512(const weft_step *step, size_t count, const float *sums, float *consensus,
                          float *momentum) {
    return step_all(step, count, sums, consensus, momentum);
}
