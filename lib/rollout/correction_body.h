/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_body.h: the pass of correction_kernels.h as plain loops that the compiler turns into vectors.
 * Each correction_kernels*.c includes it once and so compiles it for its instruction set. Blocks are short
 * enough to stay in the nearest cache, so that memory is gone through once.
 */
#ifndef WEFT_ROLLOUT_CORRECTION_BODY_H
#define WEFT_ROLLOUT_CORRECTION_BODY_H

#include "correction.h"
#include "correction_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* One block. What does not count has 0 everywhere. */
typedef struct correction_block {
    int32_t counts[CORRECTION_BLOCK];
    int32_t keeps[CORRECTION_BLOCK];
    float sampler[CORRECTION_BLOCK];
    float raw[CORRECTION_BLOCK]; /* logarithm of the ratio, bounded so that sums of it are finite */
    float log[CORRECTION_BLOCK]; /* clamped so that the ratio is bounded too */
    float ratio[CORRECTION_BLOCK];
    float k3[CORRECTION_BLOCK];
    float weight[CORRECTION_BLOCK];
} correction_block;

typedef struct correction_lanes {
    double ratio[CORRECTION_LANES];
    double ratio_square[CORRECTION_LANES];
    double log[CORRECTION_LANES];
    double log_square[CORRECTION_LANES];
    double k3[CORRECTION_LANES];
    double sampler[CORRECTION_LANES];
    double weight[CORRECTION_LANES];
    double weight_square[CORRECTION_LANES];
} correction_lanes;

static inline float clamp(float value, float low, float high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

/* Fills counts, sampler and raw. False if a number is refused. */
static bool load_tokens(correction_block *block, const float *sampler, const float *old,
                        const uint8_t *mask, size_t count) {
    int32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        block->counts[i] = mask[i] != 0;
    }
    for (size_t i = 0; i < count; i++) {
        float mine = weft_float_only_if(block->counts[i], sampler[i]);
        float theirs = weft_float_only_if(block->counts[i], old[i]);
        bad |= !(fabsf(mine) <= FLT_MAX) | !(theirs <= FLT_MAX);
        block->sampler[i] = mine;
        block->raw[i] = clamp(theirs - mine, -1e6f, 1e6f);
    }
    return bad == 0;
}

/* k3 is taken from the polynomial where the ratio is near 1: the difference would cancel to noise. */
static void compute_ratios(correction_block *block, size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->log[i] = clamp(block->raw[i], -(float)WEFT_LOG_RATIO_MAX, (float)WEFT_LOG_RATIO_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        float x = block->log[i];
        weft_exponential_parts power = weft_exponential_split(x);
        float ratio = ((power.curve + power.rest) + 1.0f) * power.scale;
        int32_t near = power.scale == 1.0f;
        block->k3[i] =
            weft_float_only_if(near, power.curve) + weft_float_only_if(1 - near, ratio - 1.0f - x);
        block->ratio[i] = weft_float_only_if(block->counts[i], ratio);
    }
}

static void compute_weights(correction_block *block, const correction_rules *rules, size_t count) {
    const float clamp_low = rules->clamp_low, clamp_high = rules->clamp_high;
    const float window_low = rules->window_low, window_high = rules->window_high;
    for (size_t i = 0; i < count; i++) {
        float ratio = block->ratio[i];
        float weight = clamp(ratio, clamp_low, clamp_high);
        weight = ratio < window_low ? 0.0f : weight;
        weight = ratio > window_high ? 0.0f : weight;
        block->weight[i] = weft_float_only_if(block->counts[i], weight);
    }
}

static void keep_within(correction_block *block, const float *values, float lower, float upper,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->keeps[i] &= (values[i] >= lower) & (values[i] <= upper);
    }
}

static void keep_half_squares(correction_block *block, float upper, size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->keeps[i] &= 0.5f * block->log[i] * block->log[i] <= upper;
    }
}

static inline double probability(double log) {
    double value = weft_exponential_double(log < -700 ? -700 : log);
    return value < 1e-6 ? 1e-6 : value > 1 - 1e-6 ? 1 - 1e-6 : value;
}

/* This rule alone asks for the policies' own probabilities; it is seldom chosen, and may be slow. */
static void keep_binary(correction_block *block, float upper, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double theirs = probability((double)block->sampler[i] + (double)block->raw[i]);
        double mine = probability((double)block->sampler[i]);
        double yes = log(theirs / mine), no = log((1 - theirs) / (1 - mine));
        double forward = theirs * yes + (1 - theirs) * no;
        double reverse = -(mine * yes + (1 - mine) * no);
        block->keeps[i] &= forward <= (double)upper && reverse <= (double)upper;
    }
}

static void apply_rules(correction_block *block, const correction_rules *rules, size_t count) {
    memcpy(block->keeps, block->counts, count * sizeof *block->keeps);
    for (size_t i = 0; i < rules->count; i++) {
        const correction_token_rule *rule = &rules->tokens[i];
        switch (rule->estimator) {
        case WEFT_ESTIMATOR_K1:
            keep_within(block, block->ratio, rule->lower, rule->upper, count);
            break;
        case WEFT_ESTIMATOR_K2:
            keep_half_squares(block, rule->upper, count);
            break;
        case WEFT_ESTIMATOR_K3:
            keep_within(block, block->k3, -1.0f, rule->upper, count);
            break;
        case WEFT_ESTIMATOR_BINARY:
            keep_binary(block, rule->upper, count);
            break;
        }
    }
}

static void store_results(const correction_block *block, size_t count, float *weights, uint8_t *kept) {
    for (size_t i = 0; i < count; i++) {
        weights[i] = weft_float_only_if(block->keeps[i], block->weight[i]);
    }
    for (size_t i = 0; i < count; i++) {
        kept[i] = (uint8_t)block->keeps[i];
    }
}

/* ---- sums ---- */

static void add_values(double lanes[CORRECTION_LANES], const float *values, size_t count) {
    for (size_t i = 0; i < count; i += CORRECTION_LANES) {
        for (size_t j = 0; j < CORRECTION_LANES; j++) {
            lanes[j] += (double)values[i + j];
        }
    }
}

static void add_squares(double lanes[CORRECTION_LANES], const float *values, size_t count) {
    for (size_t i = 0; i < count; i += CORRECTION_LANES) {
        for (size_t j = 0; j < CORRECTION_LANES; j++) {
            lanes[j] += (double)values[i + j] * (double)values[i + j];
        }
    }
}

static double add_lanes(const double lanes[CORRECTION_LANES]) {
    double sum[CORRECTION_LANES / 2];
    for (int i = 0; i < CORRECTION_LANES / 2; i++) {
        sum[i] = lanes[i] + lanes[i + CORRECTION_LANES / 2];
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void count_tokens(const correction_block *block, const correction_rules *rules, size_t count,
                         correction_sums *sums) {
    const float low = rules->low, high = rules->high, veto = rules->veto;
    int32_t counted = 0, kept = 0, lows = 0, highs = 0, below = 0;
    for (size_t i = 0; i < count; i++) {
        counted += block->counts[i];
        kept += block->keeps[i];
        lows += (block->ratio[i] < low) & block->counts[i];
        highs += block->ratio[i] > high;
        below += block->raw[i] < veto;
    }
    sums->counted += (size_t)counted;
    sums->kept += (size_t)kept;
    sums->low += (size_t)lows;
    sums->high += (size_t)highs;
    sums->below_veto += (size_t)below;
}

static void find_extremes(const correction_block *block, size_t count, correction_sums *sums) {
    float least[CORRECTION_LANES], most[CORRECTION_LANES];
    for (size_t j = 0; j < CORRECTION_LANES; j++) {
        least[j] = sums->least;
        most[j] = sums->most;
    }
    for (size_t i = 0; i < count; i += CORRECTION_LANES) {
        for (size_t j = 0; j < CORRECTION_LANES; j++) {
            float low = block->counts[i + j] != 0 ? block->log[i + j] : INFINITY;
            float high = block->counts[i + j] != 0 ? block->log[i + j] : -INFINITY;
            least[j] = low < least[j] ? low : least[j];
            most[j] = high > most[j] ? high : most[j];
        }
    }
    for (size_t j = 0; j < CORRECTION_LANES; j++) {
        sums->least = least[j] < sums->least ? least[j] : sums->least;
        sums->most = most[j] > sums->most ? most[j] : sums->most;
    }
}

static void add_block(const correction_block *block, size_t count, correction_lanes *lanes) {
    add_values(lanes->ratio, block->ratio, count);
    add_squares(lanes->ratio_square, block->ratio, count);
    add_values(lanes->log, block->raw, count);
    add_squares(lanes->log_square, block->log, count);
    add_values(lanes->k3, block->k3, count);
    add_values(lanes->sampler, block->sampler, count);
    add_values(lanes->weight, block->weight, count);
    add_squares(lanes->weight_square, block->weight, count);
}

static void finish_sums(const correction_lanes *lanes, correction_sums *sums) {
    sums->ratio = add_lanes(lanes->ratio);
    sums->ratio_square = add_lanes(lanes->ratio_square);
    sums->log = add_lanes(lanes->log);
    sums->log_square = add_lanes(lanes->log_square);
    sums->k3 = add_lanes(lanes->k3);
    sums->sampler = add_lanes(lanes->sampler);
    sums->weight = add_lanes(lanes->weight);
    sums->weight_square = add_lanes(lanes->weight_square);
}

/* ---- the pass ---- */

/* `count` is a multiple of CORRECTION_LANES. */
static void run_block(const correction_rules *rules, const float *sampler, const float *old,
                      const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                      correction_sums *sums, correction_lanes *lanes) {
    correction_block block;
    sums->bad = !load_tokens(&block, sampler, old, mask, count) || sums->bad;
    compute_ratios(&block, count);
    compute_weights(&block, rules, count);
    apply_rules(&block, rules, count);
    store_results(&block, count, weights, kept);
    add_block(&block, count, lanes);
    count_tokens(&block, rules, count, sums);
    find_extremes(&block, count, sums);
}

/* What is left behind the last whole lanes, filled up with tokens that do not count. */
static void run_rest(const correction_rules *rules, const float *sampler, const float *old,
                     const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                     correction_sums *sums, correction_lanes *lanes) {
    float padded_sampler[CORRECTION_LANES] = {0}, padded_old[CORRECTION_LANES] = {0};
    float padded_weights[CORRECTION_LANES];
    uint8_t padded_mask[CORRECTION_LANES] = {0}, padded_kept[CORRECTION_LANES];
    memcpy(padded_sampler, sampler, count * sizeof *sampler);
    memcpy(padded_old, old, count * sizeof *old);
    memcpy(padded_mask, mask, count);
    run_block(rules, padded_sampler, padded_old, padded_mask, CORRECTION_LANES, padded_weights, padded_kept,
              sums, lanes);
    memcpy(weights, padded_weights, count * sizeof *weights);
    memcpy(kept, padded_kept, count);
}

static void run_sequence(const correction_rules *rules, const float *sampler, const float *old,
                         const uint8_t *mask, size_t count, float *weights, uint8_t *kept,
                         correction_sums *sums) {
    uint8_t all[CORRECTION_BLOCK];
    memset(all, 1, sizeof all);
    correction_lanes lanes = {0};
    *sums = (correction_sums){.least = INFINITY, .most = -INFINITY};
    size_t whole = count - count % CORRECTION_LANES;
    size_t size = 0;
    for (size_t i = 0; i < whole; i += size) {
        size = whole - i < CORRECTION_BLOCK ? whole - i : CORRECTION_BLOCK;
        run_block(rules, sampler + i, old + i, mask != NULL ? mask + i : all, size, weights + i, kept + i,
                  sums, &lanes);
    }
    if (whole < count) {
        run_rest(rules, sampler + whole, old + whole, mask != NULL ? mask + whole : all, count - whole,
                 weights + whole, kept + whole, sums, &lanes);
    }
    finish_sums(&lanes, sums);
}

#endif
