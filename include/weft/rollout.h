/* SPDX-License-Identifier: Apache-2.0
 *
 * rollout.h: sampling with a compressed KV cache, and learning from responses sampled that way (Sparse-RL).
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
 * A cache holds the keys and values of one layer and one key head of one sequence. Tokens are appended one
 * by one. When it holds budget + interval of them, a policy chooses which to keep; the kept ones are compacted
 * in place and the memory behind them is released. So a cache never holds more than budget + interval tokens,
 * and never fewer than `budget` once it has reached that, unless caches choose together. Tokens keep their order and their original
 * positions, and keys stay as they were given: rotated by the original position.
 *
 * Every policy keeps the first `sinks` and the last `window` tokens. Of those between, it keeps the ones with
 * the highest scores; ties go to the lower position. With n tokens held, the candidates are the first
 * n - window:
 *
 *     none       keeps all tokens
 *     streaming  no scores: the first `sinks` and the last budget - sinks (StreamingLLM, original positions)
 *     h2o        the sum of the attention that the token has received from all queries since it came
 *     snapkv     attention from the last `window` queries: for each the highest product among the heads of
 *                the group, then softmax over the candidates; the mean over queries; pooled with neighbours
 *     rkv        lambda * the score of snapkv - (1 - lambda) * redundancy. Redundancy is the softmax over
 *                all tokens j of the mean over all i of cosine(key i, key j), where for each i two entries
 *                count as 0: its own, and that of the last j whose cosine is above `similarity` (j = 0 if
 *                there is none). So the newest of several near-duplicates looks the least redundant
 *
 * Scores are computed in the same order on every processor, so the choice is the same everywhere. */
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
    WEFT_KV_TOKENS_MAX = 1 << 24, /* limit of a budget, an interval or a sequence */
};

typedef enum weft_kv_pooling {
    WEFT_KV_POOL_MAX = 0,
    WEFT_KV_POOL_MEAN = 1, /* tokens that are not candidates count as 0, as in the first SnapKV */
} weft_kv_pooling;

typedef struct weft_kv_options {
    size_t size; /* sizeof(weft_kv_options) */
    weft_kv_policy policy;
    size_t budget;          /* tokens left after a choice */
    size_t interval;        /* tokens from one choice to the next */
    size_t sinks;           /* first tokens, always kept */
    size_t window;          /* last tokens, always kept; unused by streaming */
    size_t pooling;         /* width of the pooling, odd; 1: no pooling (snapkv, rkv) */
    weft_kv_pooling pooled; /* how they are pooled */
    double lambda;          /* importance against redundancy, 0 to 1 (rkv) */
    double similarity;      /* the cosine of near-duplicates (rkv) */
    double share;           /* the budget is at least this part of the tokens that have come; 0: constant */
    double common;    /* part of the budget that the caches of a sequence share, see weft_kv_caches_choose;
                         0: each has its own */
    bool keep_prompt; /* for whoever creates caches: sinks are what weft_kv_sinks says */
} weft_kv_options;

/* "none", "streaming", "h2o", "snapkv", "rkv"; NULL for an unknown policy. */
WEFT_API const char *weft_kv_policy_name(weft_kv_policy policy);
/* False if no policy has this name. */
WEFT_API bool weft_kv_policy_parse(const char *name, weft_kv_policy *policy_out);

/* The settings of the policy's authors for a budget: interval a quarter of the budget; streaming 4 sinks;
 * h2o the last half; snapkv and rkv a window of 8 (at most half of the budget) and the highest of 7
 * neighbours; rkv lambda 0.1 and similarity 0.5. */
WEFT_API void weft_kv_defaults(weft_kv_policy policy, size_t budget, weft_kv_options *options_out);
/* WEFT_INVALID_ARGUMENT, with the reason, if the options are not valid. */
WEFT_API WEFT_CHECKED weft_status weft_kv_check(weft_context *context, const weft_kv_options *options);

/* Sinks of the caches of a sequence: the tokens of its prompt if `keep_prompt`, as far as the budget leaves
 * room for them beside the window, but no fewer than the options have. */
WEFT_API size_t weft_kv_sinks(const weft_kv_options *options, size_t prompt);

/* Sizes of a head. */
typedef struct weft_kv_shape {
    size_t head;  /* floats of a key, and of a value */
    size_t group; /* query heads that share the key head */
} weft_kv_shape;

/* What caches hold, and would hold without eviction. Several caches may share one, if one thread at a time
 * uses them. */
typedef struct weft_kv_usage {
    uint64_t held;      /* tokens that queries attended to, summed over queries */
    uint64_t full;      /* the same if nothing were ever evicted */
    uint64_t evictions; /* times that a policy chose */
    size_t bytes;       /* memory taken now: keys, values, positions and what the policy remembers */
    size_t peak_bytes;
    size_t full_bytes; /* keys and values alone, of all tokens appended to the caches now alive */
    size_t peak_full_bytes;
} weft_kv_usage;

/* Adds `usage` to `total`. Peaks are added too, so the sum may exceed the true peak. */
WEFT_API void weft_kv_usage_add(weft_kv_usage *total, const weft_kv_usage *usage);

/* The most bytes that a cache takes while `tokens` tokens are appended, or that each of those takes which
 * choose together, in the mean over them. The options must be valid. */
WEFT_API size_t weft_kv_bytes(const weft_kv_options *options, const weft_kv_shape *shape, size_t tokens);

typedef struct weft_kv_cache weft_kv_cache;

/* For a sequence of at most `tokens` tokens, whose memory is allocated as they come. `usage` must outlive
 * the cache. */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_create(weft_context *context,
                                                       const weft_kv_options *options,
                                                       const weft_kv_shape *shape, size_t tokens,
                                                       weft_kv_usage *usage, weft_kv_cache **cache_out);
WEFT_API void weft_kv_cache_destroy(weft_kv_cache *cache);

/* For each token: append it, let its queries attend to all rows of the cache, then call
 * weft_kv_cache_observe. Positions ascend. */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_append(weft_kv_cache *cache, uint32_t position,
                                                       const float *key, const float *value);
/* `queries`: one per query head of the group, rotated like the keys and not scaled. `probabilities`: for
 * each query head one float per row of the cache; heads are `stride` floats apart. Evicts if the cache is
 * full. */
WEFT_API WEFT_CHECKED weft_status weft_kv_cache_observe(weft_kv_cache *cache, const float *queries,
                                                        const float *probabilities, size_t stride);

/* For options whose `common` is not 0; does nothing for others. Called with all caches of a sequence,
 * layers and key heads, after weft_kv_cache_observe of each of them for a token. When a choice is due, each
 * cache keeps sinks, window and the best (1 - common) of the rest of its budget; for what is left all
 * compete by their scores, so that a head whose attention is spread keeps more tokens than one that looks
 * at few (Ada-KV; its own setting is 0.8). Together they have no more rows and panels than with equal
 * budgets. */
WEFT_API WEFT_CHECKED weft_status weft_kv_caches_choose(weft_kv_cache *const *caches, size_t count);

/* clang-format off */
/* Keys lie in panels of P = WEFT_KV_PANEL rows, values row by row, filled up with zeros to W floats, the next
 * multiple of P: the layout for matrix-vector products, in which memory follows tokens.
 *
 *     key of row i, element c:    keys[(i / P * head + c) * P + i % P]
 *     value of row i, element c:  values[i * W + c]
 *
 * Floats behind the last row of a key panel are finite. */
/* clang-format on */
enum { WEFT_KV_PANEL = 8 };

typedef struct weft_kv_view {
    size_t rows;
    size_t capacity; /* rows that memory is taken for */
    const float *keys;
    const float *values;
    const uint32_t *positions; /* of each row, ascending */
} weft_kv_view;

/* Valid until the next call with this cache. */
WEFT_API weft_kv_view weft_kv_cache_view(const weft_kv_cache *cache);

/* ---- correction ----
 *
 * Three policies score the same tokens: the sampler, whose KV cache was compressed; the dense old policy,
 * which has the sampler's weights and the whole cache; and the learner. The importance ratio has two
 * factors:
 *
 *     learner / sampler = xi * w,   xi = old / sampler,   w = learner / old
 *
 * weft_correction_weigh turns xi into weights and rejections, weft_correction_advantages turns rewards into
 * advantages, and weft_objective_run computes the loss and its gradient; the weight is applied outside of
 * the clip of w. Where sampler and old policy agree, every weight is exactly 1 and nothing is rejected: the
 * result is, bit for bit, that without correction. All results are the same on any processor.
 *
 * Ratios are clamped to exp(-20) ... exp(20); beyond that slopes are 0.
 * doc/architecture/rollout.md has the formulas, and a table of what verl and slime call each option. */

/* Concatenated sequences: in every per-token array, sequence s is the half-open range from starts[s] to
 * starts[s + 1]. */
typedef struct weft_correction_batch {
    size_t sequences;
    const size_t *starts; /* sequences + 1, ascending */
    const uint8_t *mask;  /* per token: 0 leaves it out, whatever its other values; NULL: all count */
} weft_correction_batch;

/* The ratio of a token, the product over its sequence, or the geometric mean. */
typedef enum weft_correction_level {
    WEFT_LEVEL_TOKEN = 0,
    WEFT_LEVEL_SEQUENCE = 1,
    WEFT_LEVEL_GEOMETRIC = 2,
} weft_correction_level;

/* What is done with a weight outside of its bounds. */
typedef enum weft_correction_mode {
    WEFT_WEIGHT_ANY = 0,      /* nothing */
    WEFT_WEIGHT_TRUNCATE = 1, /* the upper bound, if above; TIS */
    WEFT_WEIGHT_CLIP = 2,     /* the nearer bound */
    WEFT_WEIGHT_MASK = 3,     /* its tokens are rejected; MIS */
    WEFT_WEIGHT_ZERO = 4,     /* 0, but its tokens still count in means; IcePop */
} weft_correction_mode;

/* A rule that rejects: a statistic of a token, or of the tokens of a sequence. */
typedef enum weft_rejection_scope {
    WEFT_REJECT_TOKEN = 0, /* rejects single tokens; the others reject whole sequences */
    WEFT_REJECT_SUM = 1,
    WEFT_REJECT_MEAN = 2,
    WEFT_REJECT_MAX = 3,
} weft_rejection_scope;

typedef enum weft_rejection_estimator {
    WEFT_ESTIMATOR_K1 = 1, /* log xi; bounds are ratios, lower <= exp(statistic) <= upper */
    WEFT_ESTIMATOR_K2 = 2, /* (log xi)^2 / 2; upper bound only */
    WEFT_ESTIMATOR_K3 = 3, /* xi - 1 - log xi; upper bound only */
    WEFT_ESTIMATOR_BINARY =
        4, /* of tokens: the larger of the two KL divergences between the policies, reduced to
              this token against all others, probabilities kept 1e-6 from 0 and 1; KPop; upper bound only */
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
    size_t size; /* sizeof(weft_correction_options) */
    bool weigh;  /* else all weights are 1 */
    weft_correction_level level;
    weft_correction_mode mode;
    double lower;   /* of weights; 0: none */
    double upper;   /* 0: none */
    bool normalise; /* weights are divided by their mean before rejection: over tokens, or sequences */
    double veto;    /* a sequence with a token whose xi is below this is rejected; 0: none */
    size_t rejection_count;
    weft_rejection rejections[WEFT_REJECTIONS_MAX]; /* a token is kept if all of them accept it */
    bool baseline_excludes_rejected;                /* for weft_correction_advantages */
} weft_correction_options;

/* Named options:
 *
 *     none      no weights, no rejection
 *     paper     Sparse-RL: xi of the token, and the veto at 1e-4
 *     released  the code of its authors: xi truncated at 1.5, normalised, tokens outside of 0.5 ... 1.5
 *               rejected, and the veto
 *     tis       xi of the token, truncated at 2
 *     mis       tokens outside of 0.5 ... 2 rejected, others weighed by xi
 *     icepop    weight 0 outside of 0.5 ... 5, else xi
 */
WEFT_API WEFT_CHECKED weft_status weft_correction_preset(weft_context *context, const char *name,
                                                         weft_correction_options *options_out);
/* Adds a rule by its name in verl: token_k1 to token_k3, seq_sum_k1 to seq_sum_k3, seq_mean_k1
 * to seq_mean_k3, seq_max_k2, seq_max_k3, binary_kl. `lower` is for k1 only. Bounds of k1 are of xi, as in
 * slime; verl's k1 bounds its inverse. */
WEFT_API WEFT_CHECKED weft_status weft_correction_reject(weft_context *context,
                                                         weft_correction_options *options, const char *name,
                                                         double lower, double upper);

/* Over the tokens that count, before any bound, unless stated otherwise. Zero if none count. */
typedef struct weft_correction_diagnostics {
    size_t size;      /* sizeof(weft_correction_diagnostics) */
    size_t sequences; /* with tokens that count */
    size_t tokens;
    size_t rejected; /* sequences with no token kept */
    size_t vetoed;   /* of these, by the veto */
    size_t masked;   /* tokens not kept, those of rejected sequences included */
    size_t below_veto;
    size_t low; /* tokens, or sequences by the level, whose ratio is below the bounds of the weights */
    size_t high;
    double ratio_mean; /* of xi */
    double ratio_min;
    double ratio_max;
    double ratio_deviation;
    double weight_mean; /* after bounds, before rejection and normalisation */
    double
        effective; /* sample size of those weights, as a share of the tokens: 1 if all weights are equal */
    double kl_k1;  /* mean of -log xi: KL divergence of the sampler from the old policy */
    double kl_k3;  /* mean of xi - 1 - log xi */
    double chi2_token; /* mean of xi^2, less 1 */
    double chi2_sequence;
    double perplexity_sampler; /* means over sequences */
    double perplexity_old;
    double perplexity_ratio; /* of the old policy's to the sampler's */
} weft_correction_diagnostics;

/* Computes for each token a weight and whether it is kept, and for each sequence whether it is rejected: it
 * has tokens that count, and none is kept. The weight is 0 where a token is not kept. The old policy may
 * give probability 0 (-infinity): xi is then the smallest ratio. Any other value that is not finite at a
 * token that counts is an error, and leaves the outputs undefined. `rejected` and `diagnostics_out` may be
 * NULL. Uses one thread and allocates nothing. */
WEFT_API WEFT_CHECKED weft_status weft_correction_weigh(weft_context *context,
                                                        const weft_correction_batch *batch,
                                                        const float *sampler, const float *old,
                                                        const weft_correction_options *options,
                                                        float *weights, uint8_t *kept, uint8_t *rejected,
                                                        weft_correction_diagnostics *diagnostics_out);

/* (reward - mean) / (deviation + 1e-6) within groups of adjacent sequences; without the division if
 * `normalise` is false. `rejected` is NULL, or marks sequences that are left out of mean and deviation;
 * their advantage is 0, and so is that of a group's only survivor and of a group of one. */
WEFT_API WEFT_CHECKED weft_status weft_correction_advantages(weft_context *context, const float *rewards,
                                                             const uint8_t *rejected, size_t sequences,
                                                             size_t group, bool normalise,
                                                             float *advantages);

typedef enum weft_surrogate {
    WEFT_SURROGATE_CLIP = 0,      /* min(w A, clip(w) A) */
    WEFT_SURROGATE_REINFORCE = 1, /* A log learner */
} weft_surrogate;

/* How token losses are aggregated; verl's names. */
typedef enum weft_aggregation {
    WEFT_SEQ_MEAN_TOKEN_MEAN = 0,
    WEFT_TOKEN_MEAN = 1,
    WEFT_SEQ_MEAN_TOKEN_SUM = 2,
    WEFT_SEQ_MEAN_TOKEN_SUM_NORM =
        3, /* the same, divided by `horizon`, the most tokens of a response; Dr. GRPO */
} weft_aggregation;

typedef struct weft_objective_options {
    size_t size; /* sizeof(weft_objective_options) */
    weft_surrogate surrogate;
    double clip_low; /* w is clipped to 1 - clip_low ... 1 + clip_high */
    double clip_high;
    double clip_dual; /* upper bound of the loss of a negative advantage, as a multiple of its size; 0:
                         none; else > 1 */
    double kl;        /* coefficient of the k3 divergence from a reference, which is not weighed by xi */
    weft_aggregation aggregation;
    double horizon;  /* of WEFT_SEQ_MEAN_TOKEN_SUM_NORM */
    bool skip_empty; /* sequences without a kept token do not count in means over sequences, as in verl;
                        in the released code they do */
    double sequence_delta; /* a sequence of negative advantage whose mean of log(old / learner) is above
                              this is left out of the surrogate (off-policy sequence masking); 0: none; not
                              for weft_objective_token */
} weft_objective_options;

/* Clip 0.2 and 0.28, the mean over sequences of means over tokens, all else zero. */
WEFT_API void weft_objective_defaults(weft_objective_options *options_out);

/* The loss of one token: minus the weighed surrogate, plus the divergence. */
typedef struct weft_token_loss {
    double loss;
    double slope;      /* derivative by the learner's log-probability */
    double log_ratio;  /* log w */
    double divergence; /* from the reference; 0 without one */
    bool clipped;
} weft_token_loss;

/* `reference` may be NULL. Nothing is checked. */
WEFT_API weft_token_loss weft_objective_token(const weft_objective_options *options, double advantage,
                                              double weight, double old, double learner,
                                              const float *reference);
/* The divisor of each sequence's token losses before they are summed; 0 for a sequence without tokens. */
WEFT_API WEFT_CHECKED weft_status weft_objective_divisors(weft_context *context,
                                                          const weft_correction_batch *batch,
                                                          const weft_objective_options *options,
                                                          double *divisors);

typedef struct weft_objective_result {
    size_t size; /* sizeof(weft_objective_result) */
    double loss;
    size_t tokens;    /* that counted */
    size_t sequences; /* with such tokens */
    double clipped;   /* share of tokens whose ratio was clipped; never where the advantage is 0 */
    double ratio;     /* mean of |log w| */
    double kl;        /* mean divergence from the reference */
    size_t far;       /* sequences that sequence_delta leaves out */
    bool moves; /* some slope is not 0; if none is, skip the step: momentum alone would move weights */
} weft_objective_result;

/* Arrays of the objective. */
typedef struct weft_objective_input {
    const weft_correction_batch *batch; /* its mask is what weft_correction_weigh kept */
    const float *old; /* the denominator of w; pass the sampler's to bypass the old policy */
    const float *learner;
    const float *reference;  /* NULL: none */
    const float *weights;    /* NULL: all 1 */
    const float *advantages; /* of each sequence */
} weft_objective_input;

/* The loss, and its derivative by the learner's log-probability of each token; 0 where a token does not
 * count. Allocates memory for the divisors. */
WEFT_API WEFT_CHECKED weft_status weft_objective_run(weft_context *context,
                                                     const weft_objective_input *input,
                                                     const weft_objective_options *options, float *slopes,
                                                     weft_objective_result *result_out);

#ifdef __cplusplus
}
#endif
#endif
