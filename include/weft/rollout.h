/* SPDX-License-Identifier: Apache-2.0
 *
 * rollout.h: sampling with a compressed cache of keys and values, and learning from responses that such a
 * cheaper policy sampled (Sparse-RL).
 */
#ifndef WEFT_ROLLOUT_H
#define WEFT_ROLLOUT_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/* ---- KV-cache policies ----
 *
 * A cache holds the keys and values of one layer and one key head of one sequence. It takes one token after
 * another; when it holds budget + interval of them, a policy chooses which to keep, the others are moved
 * over in place, and the memory behind is given back. So a cache never holds more than budget + interval
 * tokens, and at least `budget` once it had as many. Tokens keep their order and their original positions,
 * and keys stay as they were given: rotated by the original position.
 *
 * Every policy keeps the first `sinks` and the last `window` tokens. Of those between it keeps the ones
 * with the highest score; of equal ones the one with the lower position. n tokens are held, the candidates
 * are the first n - window:
 *
 *     none       all tokens, for ever
 *     streaming  no scores: the first `sinks` and the last budget - sinks (StreamingLLM, original positions)
 *     h2o        attention that the token has received from all queries since it came, summed
 *     snapkv     attention from the last `window` queries: for each the highest product among the heads of
 *                the group, then softmax over the candidates; the mean over queries; pooled with neighbours
 *     rkv        lambda * the score of snapkv - (1 - lambda) * redundancy. Redundancy is the softmax over
 *                all tokens j of the mean over all i of cosine(key i, key j), where for each i two entries
 *                count as 0: its own, and that of the last j whose cosine is above `similarity` (j = 0 if
 *                there is none), so that the newest of near-duplicates looks the least redundant
 *
 * Scores are computed in the same order on every processor, so that a choice is the same everywhere. */
/* clang-format on */

typedef enum weft_kv_policy {
    WEFT_KV_NONE = 0,
    WEFT_KV_STREAMING = 1,
    WEFT_KV_H2O = 2,
    WEFT_KV_SNAPKV = 3,
    WEFT_KV_RKV = 4,
} weft_kv_policy;

enum {
    WEFT_KV_POLICIES = 5,
    WEFT_KV_TOKENS_MAX = 1 << 24, /* of a budget, an interval, a sequence */
};

typedef enum weft_kv_pooling {
    WEFT_KV_POOL_MAX = 0,
    WEFT_KV_POOL_MEAN = 1, /* what lies outside of the candidates counts as 0, as in the first SnapKV */
} weft_kv_pooling;

typedef struct weft_kv_options {
    weft_kv_policy policy;
    size_t budget;          /* tokens that are left */
    size_t interval;        /* tokens from one choice to the next */
    size_t sinks;           /* the first tokens, which stay */
    size_t window;          /* the last tokens, which stay; streaming has no use for it */
    size_t pooling;         /* tokens that are pooled, an odd number; 1: none (snapkv, rkv) */
    weft_kv_pooling pooled; /* how */
    double lambda;          /* importance against redundancy, 0 to 1 (rkv) */
    double similarity;      /* the cosine of near-duplicates (rkv) */
} weft_kv_options;

/* "none", "streaming", "h2o", "snapkv", "rkv"; NULL for a number that is no policy. */
WEFT_API const char *weft_kv_policy_name(weft_kv_policy policy);
/* False if no policy has this name. */
WEFT_API bool weft_kv_policy_parse(const char *name, weft_kv_policy *policy_out);

/* For a budget, what the policy's authors use: interval a quarter of the budget; streaming 4 sinks; h2o the
 * last half; snapkv and rkv a window of 8 (at most half of the budget) and the highest of 7 neighbours; rkv
 * lambda 0.1 and similarity 0.5. */
WEFT_API weft_kv_options weft_kv_defaults(weft_kv_policy policy, size_t budget);
/* WEFT_INVALID_ARGUMENT, with the reason, if no cache can have these options. */
WEFT_API WEFT_CHECKED weft_status weft_kv_check(weft_context *context, const weft_kv_options *options);

/* The floats of a token, and the queries that read it. */
typedef struct weft_kv_shape {
    size_t head;  /* of a key, and of a value */
    size_t group; /* query heads that share the key head */
} weft_kv_shape;

/* What caches hold and would hold. Several caches may count in one, if one thread at a time uses them. */
typedef struct weft_kv_usage {
    uint64_t held;      /* tokens that queries found, summed over queries */
    uint64_t full;      /* the same if nothing were ever evicted */
    uint64_t evictions; /* choices that were made */
    size_t bytes;       /* memory taken now: keys, values, positions and what the policy remembers */
    size_t peak_bytes;
    size_t full_bytes; /* keys and values alone, of all tokens that came to the caches that are alive */
    size_t peak_full_bytes;
} weft_kv_usage;

/* Adds up; the sum of peaks is at least the peak of the sum. */
WEFT_API void weft_kv_usage_add(weft_kv_usage *total, const weft_kv_usage *usage);

/* The most bytes that a cache takes while `tokens` tokens come to it, with options that weft_kv_check
 * accepts. */
WEFT_API size_t weft_kv_bytes(const weft_kv_options *options, const weft_kv_shape *shape, size_t tokens);

typedef struct weft_kv_cache weft_kv_cache;

/* For a sequence of `tokens` tokens at most. Takes no memory for them yet. `usage` must outlive the cache.
 */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_create(weft_context *context,
                                                       const weft_kv_options *options,
                                                       const weft_kv_shape *shape, size_t tokens,
                                                       weft_kv_usage *usage, weft_kv_cache **cache_out);
WEFT_API void weft_kv_cache_destroy(weft_kv_cache *cache);

/* A token is appended, its queries attend to all that the cache then holds, and what they saw is told; then
 * the next token. Positions ascend. */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_append(weft_kv_cache *cache, uint32_t position,
                                                       const float *key, const float *value);
/* `queries`: of each query head of the group, as the keys are: rotated, not scaled. `probabilities`: of
 * each query head, `stride` floats apart, one for each row of the cache. Evicts if the cache is full. */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_observe(weft_kv_cache *cache, const float *queries,
                                                        const float *probabilities, size_t stride);

/* clang-format off */
/* Rows lie in panels of P = WEFT_KV_PANEL, as products of matrices with vectors want them:
 *
 *     key of row i, element c:    keys[(i / P * head + c) * P + i % P]
 *     value of row i, element c:  values[(c / P * capacity + i) * P + c % P]
 *
 * What is behind the last row of a key panel is finite. */
/* clang-format on */
enum { WEFT_KV_PANEL = 32 };

typedef struct weft_kv_view {
    size_t rows;
    size_t capacity;
    const float *keys;
    const float *values;
    const uint32_t *positions; /* of each row, ascending */
} weft_kv_view;

/* Valid until the next call with this cache. */
WEFT_API weft_kv_view weft_kv_cache_view(const weft_kv_cache *cache);

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
 * Ratios are clamped to exp(-20) ... exp(20); slopes beyond are 0.
 * doc/architecture/rollout.md has the formulas, and a table of what verl and slime call each option. */

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
    WEFT_ESTIMATOR_BINARY =
        4, /* of tokens: the larger divergence, to either side, of two policies that know
              this token and any other, within 1e-6 of both ends; KPop; upper bound only */
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
 * to seq_mean_k3, seq_max_k2, seq_max_k3, binary_kl. `lower` is for k1 only, and of xi, as slime has it;
 * verl's k1 bounds its inverse. */
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
    WEFT_SEQ_MEAN_TOKEN_SUM_NORM = 3, /* that over `horizon`, the most tokens of a response; Dr. GRPO */
} weft_aggregation;

typedef struct weft_objective_options {
    weft_surrogate surrogate;
    double clip_low; /* w is clipped to 1 - clip_low ... 1 + clip_high */
    double clip_high;
    double clip_dual; /* a loss of a negative advantage is at most this times its size; 0: any; else > 1 */
    double kl;        /* weight of the divergence k3 from a reference, which is not weighed by xi */
    weft_aggregation aggregation;
    double horizon;  /* of WEFT_SEQ_MEAN_TOKEN_SUM_NORM */
    bool skip_empty; /* sequences without a kept token do not count in means over sequences, as in verl;
                        in the released code they do */
    double sequence_delta; /* a sequence of negative advantage whose mean of log old / learner is above this
                              has no part in the surrogate (off-policy sequence masking); 0: any; not for
                              weft_objective_token */
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
    double clipped;   /* share of tokens whose ratio was clipped; none where the advantage is 0 */
    double ratio;     /* mean of |log w| */
    double kl;        /* mean divergence from the reference */
    size_t far;       /* sequences that sequence_delta leaves out */
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
