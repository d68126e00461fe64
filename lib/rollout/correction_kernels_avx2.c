/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_kernels_avx2.c: the pass, compiled for AVX2.
 */
#include "correction_body.h"

void correction_run_avx2(const correction_rules *rules, const float *sampler, const float *old,
                         const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                         correction_sums *sums) {
    run_sequence(rules, sampler, old, mask, count, weights, kept, sums);
}
