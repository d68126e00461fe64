/* SPDX-License-Identifier: Apache-2.0
 *
 * objective_kernels.c: the portable form of the pass, the choice between the forms, and one token alone.
 */
#include "objective_body.h"

objective_function objective_function_for(weft_cpu level) {
    switch (level) {
#ifdef WEFT_X86
    case WEFT_CPU_AVX512:
        return objective_run_avx512;
    case WEFT_CPU_AVX2:
        return objective_run_avx2;
#endif
    default:
        return run_sequence;
    }
}

weft_token_loss objective_token(const objective_rules *rules, double weight, double old, double learner,
                                const float *reference) {
    objective_block block;
    block.weight[0] = weight;
    block.old[0] = old;
    block.learner[0] = learner;
    block.reference[0] = reference != NULL ? (double)*reference : 0;
    run_losses(rules, &block, reference != NULL, 1);
    return (weft_token_loss){
        .loss = block.loss[0],
        .slope = block.slope[0],
        .log_ratio = block.log_ratio[0],
        .divergence = block.divergence[0],
        .clipped = block.clipped[0] != 0,
    };
}
