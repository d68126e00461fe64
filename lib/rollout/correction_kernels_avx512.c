/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_kernels_avx512.c: the pass, compiled for AVX-512.
 */
#include "correction_body.h"

void correction_run_avx512(const correction_rules *rules, const float *sampler, const float *old,
                           const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                           correction_sums *sums) {
    run_sequence(rules, sampler, old, mask, count, weights, kept, sums);
}
