/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_kernels.h: the pass over the tokens of one sequence, in one form per instruction set
 * (lib/base/cpu.h). It turns log-probabilities into ratios, weights and what is kept by rules about single
 * tokens, and adds up all that is needed to judge the sequence and to describe the batch. Sums are kept in
 * CORRECTION_LANES partial sums of double precision, so that every form gives the same bits.
 */
#ifndef WEFT_ROLLOUT_CORRECTION_KERNELS_H
#define WEFT_ROLLOUT_CORRECTION_KERNELS_H

#include "../base/cpu.h"

#include <weft/rollout.h>

enum {
    CORRECTION_LANES = 16,
    CORRECTION_BLOCK = 256, /* tokens whose ratios are held at a time */
};

typedef struct correction_token_rule {
    weft_rejection_estimator estimator;
    float lower; /* K1: bounds of the ratio */
    float upper;
} correction_token_rule;

/* What is done to single tokens. A weight is the ratio, cut to the clamp; it is 0 outside of the window. */
typedef struct correction_rules {
    float clamp_low;
    float clamp_high;
    float window_low;
    float window_high;
    float low; /* ratios beyond these are counted */
    float high;
    float veto; /* logarithms below this are counted */
    size_t count;
    correction_token_rule tokens[WEFT_REJECTIONS_MAX + 1];
} correction_rules;

/* Over the tokens that count. */
typedef struct correction_sums {
    double ratio;
    double ratio_square;
    double log; /* of the ratio, not clamped to that of `ratio` */
    double log_square;
    double k3;
    double sampler;
    double weight; /* before rules about tokens */
    double weight_square;
    float least; /* logarithm of the ratio; infinities without tokens */
    float most;
    size_t counted;
    size_t kept;
    size_t low;
    size_t high;
    size_t below_veto;
    bool bad; /* a number that is refused; the rest means nothing */
} correction_sums;

/* `mask` may be NULL. */
typedef void (*correction_function)(const correction_rules *rules, const float *sampler, const float *old,
                                    const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                                    correction_sums *sums);

correction_function correction_function_for(weft_cpu level);

void correction_run_avx2(const correction_rules *rules, const float *sampler, const float *old,
                         const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                         correction_sums *sums);
void correction_run_avx512(const correction_rules *rules, const float *sampler, const float *old,
                           const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                           correction_sums *sums);

#endif
