/* SPDX-License-Identifier: Apache-2.0
 *
 * rollout.h: learning from responses that a cheaper policy sampled (Sparse-RL).
 */
#ifndef WEFT_ROLLOUT_H
#define WEFT_ROLLOUT_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- correction ----
 *
 * Three policies score the same tokens: the sampler, whose cache of keys and values was compressed; the
 * dense old policy, which has the sampler's weights and the whole cache; and the learner. What the learner
 * is worth against the sampler falls in two:
 *
 *     learner / sampler = xi * w,   xi = old / sampler,   w = learner / old
 *
 * weft_correction_weigh makes weights and rejections of xi, weft_correction_advantages makes advantages of
 * rewards, and weft_objective_run makes the loss and its slopes, with the weight outside of the clip of w.
 * Where sampler and old policy agree, every weight is exactly 1 and nothing is rejected: what follows is,
 * bit for bit, what it is without correction. All of it is the same on any processor.
 *
 * Ratios are clamped to exp(-20) ... exp(20). doc/ARCHITECTURE.md has the formulas, and a table of what
 * verl and slime call each option. */

/* Sequences one behind another: sequence s is tokens starts[s] to starts[s + 1], without the end, of every
 * array that holds something of each token. */
typedef struct weft_correction_batch {
    size_t sequences;
    const size_t *starts; /* sequences + 1, ascending */
    const uint8_t *mask;  /* of each token: 0 leaves it out, whatever else is there; NULL: all count */
} weft_correction_batch;

/* Which ratio is meant: that of a token, the product over its sequence, or the geometric mean. */
typedef enum weft_correction_level {
    WEFT_LEVEL_TOKEN = 0,
    WEFT_LEVEL_SEQUENCE = 1,
    WEFT_LEVEL_GEOMETRIC = 2,
} weft_correction_level;

/* What becomes of a weight outside of its bounds. */
typedef enum weft_correction_mode {
    WEFT_WEIGHT_ANY = 0,      /* nothing */
    WEFT_WEIGHT_TRUNCATE = 1, /* the upper bound, if above; TIS */
    WEFT_WEIGHT_CLIP = 2,     /* the nearer bound */
    WEFT_WEIGHT_MASK = 3,     /* its tokens are rejected; MIS */
    WEFT_WEIGHT_ZERO = 4,     /* 0, but its tokens still count in means; IcePop */
} weft_correction_mode;

/* A rule that rejects: a statistic of a token, or of the tokens of a sequence. */
typedef enum weft_rejection_scope {
    WEFT_REJECT_TOKEN = 0, /* rejects single tokens; all others whole sequences */
    WEFT_REJECT_SUM = 1,
    WEFT_REJECT_MEAN = 2,
    WEFT_REJECT_MAX = 3,
} weft_rejection_scope;

typedef enum weft_rejection_estimator {
    WEFT_ESTIMATOR_K1 = 1, /* log xi; bounds are ratios, lower <= exp(statistic) <= upper */
    WEFT_ESTIMATOR_K2 = 2, /* (log xi)^2 / 2; upper bound only */
    WEFT_ESTIMATOR_K3 = 3, /* xi - 1 - log xi; upper bound only */
} weft_rejection_estimator;

typedef struct weft_rejection {
    weft_rejection_scope scope;
    weft_rejection_estimator estimator;
    double lower;
    double upper;
} weft_rejection;

enum { WEFT_REJECTIONS_MAX = 8 };

/* All zero: no correction, only diagnostics. */
typedef struct weft_correction_options {
    bool weigh; /* else all weights are 1 */
    weft_correction_level level;
    weft_correction_mode mode;
    double lower;   /* of weights; 0: none */
    double upper;   /* 0: none */
    bool normalise; /* weights are divided by their mean before rejection: over tokens, or sequences */
    double veto;    /* a sequence with a token whose xi is below this is rejected; 0: none */
    size_t rejection_count;
    weft_rejection rejections[WEFT_REJECTIONS_MAX]; /* a token stays if all of them let it */
    bool baseline_excludes_rejected;                /* for weft_correction_advantages */
} weft_correction_options;

/* Options by name:
 *
 *     none      no weights, no rejection
 *     paper     Sparse-RL: xi of the token, and the veto at 1e-4
 *     released  what its code does: xi truncated at 1.5, normalised, tokens outside of 0.5 ... 1.5
 *               rejected, and the veto
 *     tis       xi of the token, truncated at 2
 *     mis       tokens outside of 0.5 ... 2 rejected, others weighed by xi
 *     icepop    weight 0 outside of 0.5 ... 5, else xi
 */
WEFT_API WEFT_CHECKED weft_status weft_correction_preset(weft_context *context, const char *name,
                                                         weft_correction_options *options_out);
/* Adds a rule by the name that verl has for it: token_k1 to token_k3, seq_sum_k1 to seq_sum_k3, seq_mean_k1
 * to seq_mean_k3, seq_max_k2, seq_max_k3. `lower` is for k1 only, and of xi, as slime has it; verl's k1
 * bounds its inverse. */
WEFT_API WEFT_CHECKED weft_status weft_correction_reject(weft_context *context,
                                                         weft_correction_options *options, const char *name,
                                                         double lower, double upper);

/* Over the tokens that count, before any bound, unless said otherwise. Zero where there are none. */
typedef struct weft_correction_diagnostics {
    size_t sequences; /* that have tokens that count */
    size_t tokens;
    size_t rejected; /* sequences of which no token is kept */
    size_t vetoed;   /* of these, by the veto */
    size_t masked;   /* tokens that are not kept, those of rejected sequences included */
    size_t below_veto;
    size_t low; /* tokens, or sequences by the level, whose ratio is below the bounds of the weights */
    size_t high;
    double ratio_mean; /* of xi */
    double ratio_min;
    double ratio_max;
    double ratio_deviation;
    double weight_mean; /* after bounds, before rejection and normalisation */
    double effective;   /* sample size of those weights, as a share of the tokens: 1 if all are equal */
    double kl_k1;       /* mean of -log xi: of the sampler from the old policy */
    double kl_k3;       /* mean of xi - 1 - log xi */
    double chi2_token;  /* mean of xi^2, less 1 */
    double chi2_sequence;
    double perplexity_sampler; /* means over sequences */
    double perplexity_old;
    double perplexity_ratio; /* of the old policy's to the sampler's */
} weft_correction_diagnostics;

/* For each token a weight, and whether it is kept; for each sequence whether it is rejected: it has tokens
 * that count and none is kept. The weight is 0 where a token is not kept. The old policy may give
 * probability 0 (-infinity): xi is then the smallest. Anything else that is not finite at a token that
 * counts is refused, and the outputs are then of no use. `rejected` and `diagnostics_out` may be NULL. One
 * thread; no memory is taken. */
WEFT_API WEFT_CHECKED weft_status weft_correction_weigh(weft_context *context,
                                                        const weft_correction_batch *batch,
                                                        const float *sampler, const float *old,
                                                        const weft_correction_options *options,
                                                        float *weights, uint8_t *kept, uint8_t *rejected,
                                                        weft_correction_diagnostics *diagnostics_out);

/* (reward - mean) / (deviation + 1e-6) within groups of sequences that lie together; without the division
 * if `normalise` is false. `rejected` is NULL, or marks sequences that are neither in the mean nor in the
 * deviation; they and a group's only survivor get 0, as has a group of one. */
WEFT_API WEFT_CHECKED weft_status weft_correction_advantages(weft_context *context, const float *rewards,
                                                             const uint8_t *rejected, size_t sequences,
                                                             size_t group, bool normalise,
                                                             float *advantages);

typedef enum weft_surrogate {
    WEFT_SURROGATE_CLIP = 0,      /* min(w A, clip(w) A) */
    WEFT_SURROGATE_REINFORCE = 1, /* A log learner */
} weft_surrogate;

/* How the losses of tokens become one; verl's names. */
typedef enum weft_aggregation {
    WEFT_SEQ_MEAN_TOKEN_MEAN = 0,
    WEFT_TOKEN_MEAN = 1,
    WEFT_SEQ_MEAN_TOKEN_SUM = 2,
    WEFT_SEQ_MEAN_TOKEN_SUM_NORM = 3, /* the sum over `horizon`; Dr. GRPO */
} weft_aggregation;

typedef struct weft_objective_options {
    weft_surrogate surrogate;
    double clip_low; /* w is clipped to 1 - clip_low ... 1 + clip_high */
    double clip_high;
    double clip_dual; /* a loss of a negative advantage is at most this times its size; 0: any; else > 1 */
    double kl;        /* weight of the divergence k3 from a reference, which is not weighed by xi */
    weft_aggregation aggregation;
    double horizon;  /* the divisor of WEFT_SEQ_MEAN_TOKEN_SUM_NORM */
    bool skip_empty; /* sequences without a kept token do not count in means over sequences, as in verl;
                        in the released code they do */
} weft_objective_options;

/* Clip 0.2 and 0.28, mean over sequences of means over tokens, all else zero. */
WEFT_API weft_objective_options weft_objective_defaults(void);

/* What one token loses: minus the weighed surrogate, plus the divergence. */
typedef struct weft_token_loss {
    double loss;
    double slope;      /* of the loss, by the learner's log-probability */
    double log_ratio;  /* log w */
    double divergence; /* from the reference; 0 without one */
    bool clipped;
} weft_token_loss;

/* `reference` may be NULL. Nothing is checked. */
WEFT_API weft_token_loss weft_objective_token(const weft_objective_options *options, double advantage,
                                              double weight, double old, double learner,
                                              const float *reference);
/* What losses of each sequence's tokens are divided by, to be added up; 0 for a sequence that has none. */
WEFT_API WEFT_CHECKED weft_status weft_objective_divisors(weft_context *context,
                                                          const weft_correction_batch *batch,
                                                          const weft_objective_options *options,
                                                          double *divisors);

typedef struct weft_objective_result {
    double loss;
    size_t tokens;    /* that counted */
    size_t sequences; /* that have such tokens */
    double clipped;   /* share of tokens whose ratio was clipped */
    double ratio;     /* mean of |log w| */
    double kl;        /* mean divergence from the reference */
    bool moves;       /* some slope is not 0; else leave out the step: momentum would still move weights */
} weft_objective_result;

/* Arrays of the objective. */
typedef struct weft_objective_input {
    const weft_correction_batch *batch; /* its mask is what weft_correction_weigh kept */
    const float *old;                   /* what w is against; the sampler's, to bypass the old policy */
    const float *learner;
    const float *reference;  /* NULL: none */
    const float *weights;    /* NULL: all 1 */
    const float *advantages; /* of each sequence */
} weft_objective_input;

/* The loss, and its slope by the learner's log-probability of each token; 0 where a token does not count.
 * Takes memory for the divisors. */
WEFT_API WEFT_CHECKED weft_status weft_objective_run(weft_context *context,
                                                     const weft_objective_input *input,
                                                     const weft_objective_options *options, float *slopes,
                                                     weft_objective_result *result_out);

#ifdef __cplusplus
}
#endif
#endif
