/* SPDX-License-Identifier: Apache-2.0
 *
 * objective_body.h: the pass of objective_kernels.h as plain loops that the compiler turns into vectors.
 * Each objective_kernels*.c includes it once and so compiles it for its instruction set.
 */
#ifndef WEFT_ROLLOUT_OBJECTIVE_BODY_H
#define WEFT_ROLLOUT_OBJECTIVE_BODY_H

#include "objective_kernels.h"

#include <float.h>
#include <string.h>

/* One block. What does not count has weight 0 and equal log-probabilities. */
typedef struct objective_block {
    int32_t counts[OBJECTIVE_BLOCK];
    double old[OBJECTIVE_BLOCK];
    double learner[OBJECTIVE_BLOCK];
    double reference[OBJECTIVE_BLOCK];
    double weight[OBJECTIVE_BLOCK];
    double distance[OBJECTIVE_BLOCK]; /* between two log-probabilities */
    double within[OBJECTIVE_BLOCK];   /* the same, bounded */
    double ratio[OBJECTIVE_BLOCK];    /* its exponential */
    double used[OBJECTIVE_BLOCK];     /* that, clipped */
    double loss[OBJECTIVE_BLOCK];
    double slope[OBJECTIVE_BLOCK];
    double log_ratio[OBJECTIVE_BLOCK]; /* of w */
    double divergence[OBJECTIVE_BLOCK];
    double clipped[OBJECTIVE_BLOCK]; /* 0 or 1 */
} objective_block;

typedef struct objective_lanes {
    double loss[OBJECTIVE_LANES];
    double ratio[OBJECTIVE_LANES];
    double divergence[OBJECTIVE_LANES];
    double clipped[OBJECTIVE_LANES];
} objective_lanes;

/* ---- what goes in ---- */

/* False if a number is not finite. */
static bool load_floats(const objective_block *block, const float *values, size_t count, double *taken) {
    int32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float value = weft_float_only_if(block->counts[i], values[i]);
        bad |= !(fabsf(value) <= FLT_MAX);
        taken[i] = (double)value;
    }
    return bad == 0;
}

/* The same for weights, which cannot be negative either. Without any they are 1. */
static bool load_weights(objective_block *block, const float *values, size_t count) {
    int32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        float value = weft_float_only_if(block->counts[i], values != NULL ? values[i] : 1.0f);
        bad |= !(value >= 0) | !(value <= FLT_MAX);
        block->weight[i] = (double)value;
    }
    return bad == 0;
}

static bool load_tokens(objective_block *block, const objective_tokens *tokens, size_t start,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->counts[i] = tokens->mask == NULL || tokens->mask[start + i] != 0;
    }
    bool finite = load_floats(block, tokens->old + start, count, block->old);
    finite = load_floats(block, tokens->learner + start, count, block->learner) && finite;
    if (tokens->reference != NULL) {
        finite = load_floats(block, tokens->reference + start, count, block->reference) && finite;
    }
    const float *weights = tokens->weights != NULL ? tokens->weights + start : NULL;
    return load_weights(block, weights, count) && finite;
}

/* ---- losses ----
 *
 * Many short loops: where a later computation depends on a choice in the same loop, the compiler makes a
 * branch of it, and no vectors. */

static void bound_distances(objective_block *block, size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->within[i] = weft_log_ratio_bounded(block->distance[i]);
    }
}

static void raise_distances(objective_block *block, size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->ratio[i] = weft_exponential_double(block->within[i]);
    }
}

static void compare_policies(objective_block *block, size_t count) {
    for (size_t i = 0; i < count; i++) {
        block->distance[i] = block->learner[i] - block->old[i];
    }
    bound_distances(block, count);
    memcpy(block->log_ratio, block->within, count * sizeof *block->log_ratio);
}

/* Minus the clipped surrogate. Where the ratio is bounded, the loss does not move with it. */
static void run_clip(const objective_rules *rules, objective_block *block, size_t count) {
    const double advantage = rules->advantage, low = rules->low, high = rules->high;
    compare_policies(block, count);
    raise_distances(block, count);
    for (size_t i = 0; i < count; i++) {
        double used = block->ratio[i] < low ? low : block->ratio[i];
        block->used[i] = used > high ? high : used;
    }
    for (size_t i = 0; i < count; i++) {
        double weight = block->weight[i];
        double slope = -block->ratio[i] * advantage * weight;
        int64_t same = block->used[i] == block->ratio[i];
        int64_t moves = block->within[i] == block->distance[i];
        block->loss[i] = -block->used[i] * advantage * weight;
        block->slope[i] = weft_double_only_if(same & moves, slope);
        block->clipped[i] = weft_double_only_if(1 - same, 1.0);
    }
}

/* Minus the advantage times the log-probability itself. */
static void run_reinforce(const objective_rules *rules, objective_block *block, size_t count) {
    const double advantage = rules->advantage;
    compare_policies(block, count);
    for (size_t i = 0; i < count; i++) {
        double weight = block->weight[i];
        block->loss[i] = -advantage * block->learner[i] * weight;
        block->slope[i] = -advantage * weight;
        block->clipped[i] = 0;
    }
}

/* Adds k3 of the reference. */
static void run_divergence(const objective_rules *rules, objective_block *block, size_t count) {
    const double kl = rules->kl;
    for (size_t i = 0; i < count; i++) {
        block->distance[i] = block->reference[i] - block->learner[i];
    }
    bound_distances(block, count);
    raise_distances(block, count);
    for (size_t i = 0; i < count; i++) {
        double divergence = block->ratio[i] - 1 - block->within[i];
        int64_t moves = block->within[i] == block->distance[i];
        block->divergence[i] = divergence;
        block->loss[i] += kl * divergence;
        block->slope[i] += weft_double_only_if(moves, kl * (1 - block->ratio[i]));
    }
}

static void run_losses(const objective_rules *rules, objective_block *block, bool reference, size_t count) {
    if (rules->surrogate == WEFT_SURROGATE_CLIP) {
        run_clip(rules, block, count);
    } else {
        run_reinforce(rules, block, count);
    }
    memset(block->divergence, 0, count * sizeof *block->divergence);
    if (reference) {
        run_divergence(rules, block, count);
    }
}

/* ---- what comes out ---- */

static bool store_slopes(const objective_block *block, double factor, size_t count, float *slopes) {
    int32_t moves = 0;
    for (size_t i = 0; i < count; i++) {
        float slope = weft_float_only_if(block->counts[i], (float)(block->slope[i] * factor));
        moves |= slope != 0;
        slopes[i] = slope;
    }
    return moves != 0;
}

static void add_lanes_of(double lanes[OBJECTIVE_LANES], const double *values) {
    for (size_t i = 0; i < OBJECTIVE_BLOCK; i += OBJECTIVE_LANES) {
        for (size_t j = 0; j < OBJECTIVE_LANES; j++) {
            lanes[j] += values[i + j];
        }
    }
}

static void add_distances(double lanes[OBJECTIVE_LANES], const double *values) {
    for (size_t i = 0; i < OBJECTIVE_BLOCK; i += OBJECTIVE_LANES) {
        for (size_t j = 0; j < OBJECTIVE_LANES; j++) {
            lanes[j] += fabs(values[i + j]);
        }
    }
}

static double add_lanes(const double lanes[OBJECTIVE_LANES]) {
    double sum = 0;
    for (size_t j = 0; j < OBJECTIVE_LANES; j++) {
        sum += lanes[j];
    }
    return sum;
}

static size_t count_tokens(const objective_block *block, size_t count) {
    int32_t counted = 0;
    for (size_t i = 0; i < count; i++) {
        counted += block->counts[i];
    }
    return (size_t)counted;
}

/* Sums go over whole blocks: what is behind the last token is 0. */
static void clear_rest(objective_block *block, size_t count) {
    const size_t rest = (OBJECTIVE_BLOCK - count) * sizeof(double);
    memset(block->loss + count, 0, rest);
    memset(block->log_ratio + count, 0, rest);
    memset(block->divergence + count, 0, rest);
    memset(block->clipped + count, 0, rest);
}

static void run_sequence(const objective_rules *rules, const objective_tokens *tokens, size_t count,
                         float *slopes, objective_sums *sums) {
    objective_block block;
    objective_lanes lanes = {0};
    *sums = (objective_sums){0};
    for (size_t start = 0; start < count; start += OBJECTIVE_BLOCK) {
        size_t size = count - start < OBJECTIVE_BLOCK ? count - start : OBJECTIVE_BLOCK;
        sums->bad = !load_tokens(&block, tokens, start, size) || sums->bad;
        run_losses(rules, &block, tokens->reference != NULL, size);
        sums->moves = store_slopes(&block, rules->factor, size, slopes + start) || sums->moves;
        sums->counted += count_tokens(&block, size);
        clear_rest(&block, size);
        add_lanes_of(lanes.loss, block.loss);
        add_distances(lanes.ratio, block.log_ratio);
        add_lanes_of(lanes.divergence, block.divergence);
        add_lanes_of(lanes.clipped, block.clipped);
    }
    sums->loss = add_lanes(lanes.loss);
    sums->ratio = add_lanes(lanes.ratio);
    sums->divergence = add_lanes(lanes.divergence);
    sums->clipped = (size_t)add_lanes(lanes.clipped);
}

#endif
