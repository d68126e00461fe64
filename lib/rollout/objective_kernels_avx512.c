/* SPDX-License-Identifier: Apache-2.0
 *
 * objective_kernels_avx512.c: the pass, compiled for AVX-512.
 */
#include "objective_body.h"

void objective_run_avx512(const objective_rules *rules, const objective_tokens *tokens, size_t count,
                          float *slopes, objective_sums *sums) {
    run_sequence(rules, tokens, count, slopes, sums);
}
