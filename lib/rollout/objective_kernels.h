/* SPDX-License-Identifier: Apache-2.0
 *
 * objective_kernels.h: the pass over the tokens of one sequence that makes losses and slopes, in one form
 * per instruction set (lib/base/cpu.h). Sums are kept in OBJECTIVE_LANES partial sums, so that every form
 * gives the same bits.
 */
#ifndef WEFT_ROLLOUT_OBJECTIVE_KERNELS_H
#define WEFT_ROLLOUT_OBJECTIVE_KERNELS_H

#include "../base/cpu.h"
#include "correction.h"

#include <math.h>

enum {
    OBJECTIVE_LANES = 16,
    OBJECTIVE_BLOCK = 128, /* tokens that are held at a time */
};

/* What is the same for all tokens of a sequence. */
typedef struct objective_rules {
    weft_surrogate surrogate;
    double advantage;
    double low; /* bounds of w that its loss does not go beyond; infinities where there are none */
    double high;
    double kl;
    double factor; /* of slopes */
} objective_rules;

/* The bounds follow from the sign: min(w A, clip(w) A) is clipped above for A > 0 and below for A < 0,
 * where the dual clip is the upper bound. */
static inline objective_rules objective_rules_of(const weft_objective_options *options, double advantage,
                                                 double factor) {
    objective_rules rules = {options->surrogate, advantage, -INFINITY, INFINITY, options->kl, factor};
    if (advantage > 0) {
        rules.high = 1 + options->clip_high;
    }
    if (advantage < 0) {
        rules.low = 1 - options->clip_low;
        rules.high = options->clip_dual > 0 ? options->clip_dual : INFINITY;
    }
    return rules;
}

/* Of the tokens of a sequence. */
typedef struct objective_tokens {
    const float *old;
    const float *learner;
    const float *reference; /* these may be NULL */
    const float *weights;
    const uint8_t *mask;
} objective_tokens;

/* Over the tokens that count. */
typedef struct objective_sums {
    double loss;
    double ratio; /* |log w| */
    double divergence;
    size_t counted;
    size_t clipped;
    bool moves; /* some slope is not 0 */
    bool bad;   /* a number that is refused; the rest means nothing */
} objective_sums;

typedef void (*objective_function)(const objective_rules *rules, const objective_tokens *tokens,
                                   size_t count, float *slopes, objective_sums *sums);

objective_function objective_function_for(weft_cpu level);
/* One token, which counts, by the portable form; nothing is checked. `reference` may be NULL. */
weft_token_loss objective_token(const objective_rules *rules, double weight, double old, double learner,
                                const float *reference);

void objective_run_avx2(const objective_rules *rules, const objective_tokens *tokens, size_t count,
                        float *slopes, objective_sums *sums);
void objective_run_avx512(const objective_rules *rules, const objective_tokens *tokens, size_t count,
                          float *slopes, objective_sums *sums);

#endif
