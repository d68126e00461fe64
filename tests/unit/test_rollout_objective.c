/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rollout_objective.c: advantages by hand; the loss of a policy by its definition, its slopes against
 * finite differences for every surrogate and aggregation; every processor level against the portable one,
 * bit for bit, and against tokens one by one; weights of 1 change no bit; nothing kept moves nothing; input
 * that is odd or hostile.
 */
#include "../../lib/rollout/objective_kernels.h"
#include "../support/faults.h"
#include "../support/models.h"

#include <weft/rollout.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static weft_context *context;

static int open_context(void **state) {
    (void)state;
    return weft_context_create(NULL, &context) == WEFT_OK ? 0 : -1;
}

static int close_context(void **state) {
    (void)state;
    weft_context_destroy(context);
    return 0;
}

/* ---- advantages ---- */

static void test_advantages(void **state) {
    (void)state;
    const float rewards[] = {1, 0, 0, 1, 1, 1, 1, 1};
    float output[8];
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 8, 4, true, output), WEFT_OK);
    assert_true(fabsf(output[0] - 0.5f / 0.57735f) < 1e-4f && output[1] == -output[0]);
    assert_true(output[4] == 0 && output[7] == 0);
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 8, 4, false, output), WEFT_OK);
    assert_true(output[0] == 0.5f && output[1] == -0.5f);
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 8, 1, true, output), WEFT_OK);
    assert_true(output[0] == 0 && output[5] == 0);
}

static void test_advantages_of_survivors(void **state) {
    (void)state;
    /* two survivors, one, none, all */
    const float rewards[] = {1, 0, 9, 7, 1, 2, 5, 5, 3, 1, 2, 1};
    const uint8_t rejected[] = {0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1};
    const uint8_t none[12] = {0};
    float output[12], plain[12];
    assert_int_equal(weft_correction_advantages(context, rewards, rejected, 12, 4, false, output), WEFT_OK);
    assert_true(output[0] == 0.5f && output[1] == -0.5f);
    for (size_t i = 2; i < 12; i++) {
        assert_true(output[i] == 0);
    }
    assert_int_equal(weft_correction_advantages(context, rewards, rejected, 12, 4, true, output), WEFT_OK);
    assert_true(fabsf(output[0] - (float)(0.5 / (sqrt(0.5) + 1e-6))) < 1e-6f && output[7] == 0);
    assert_int_equal(weft_correction_advantages(context, rewards, none, 12, 4, true, output), WEFT_OK);
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 12, 4, true, plain), WEFT_OK);
    assert_memory_equal(output, plain, sizeof plain);
}

static void test_refused_advantages(void **state) {
    (void)state;
    float rewards[4] = {1, 2, 3, 4}, output[4];
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 4, 3, true, output),
                     WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 4, 0, true, output),
                     WEFT_INVALID_ARGUMENT);
    rewards[2] = NAN;
    assert_int_equal(weft_correction_advantages(context, rewards, NULL, 4, 2, true, output),
                     WEFT_INVALID_ARGUMENT);
}

/* ---- the objective ---- */

enum { SEQUENCES = 4, TOKENS = 14 };

typedef struct objective_case {
    size_t starts[SEQUENCES + 1];
    uint8_t kept[TOKENS];
    float old[TOKENS];
    float learner[TOKENS];
    float reference[TOKENS];
    float weights[TOKENS];
    float advantages[SEQUENCES];
    float slopes[TOKENS];
    weft_correction_batch batch;
    weft_objective_input input;
    weft_objective_options options;
    weft_objective_result result;
} objective_case;

/* Sequences of 5, 0, 4 and 5 tokens, a few of which are not kept. */
static void deal(objective_case *one, uint64_t seed) {
    *one = (objective_case){.starts = {0, 5, 5, 9, 14}, .advantages = {1.25f, 3, -0.75f, 0.5f}};
    dice dice = {seed};
    for (size_t i = 0; i < TOKENS; i++) {
        one->kept[i] = i != 3 && i != 7;
        one->old[i] = -0.2f - 0.001f * (float)dice_below(&dice, 2000);
        one->learner[i] = one->old[i] + 0.001f * ((float)dice_below(&dice, 1000) - 500);
        one->reference[i] = one->old[i] + 0.001f * ((float)dice_below(&dice, 1000) - 500);
        one->weights[i] = 0.001f * (float)(500 + dice_below(&dice, 1500));
    }
    one->batch = (weft_correction_batch){SEQUENCES, one->starts, one->kept};
    one->input = (weft_objective_input){
        .batch = &one->batch,
        .old = one->old,
        .learner = one->learner,
        .reference = one->reference,
        .weights = one->weights,
        .advantages = one->advantages,
    };
    one->options.size = sizeof one->options;
    one->result.size = sizeof one->result;
    weft_objective_defaults(&one->options);
    one->options.kl = 0.3;
    one->options.horizon = 16;
}

static weft_status run(objective_case *one) {
    return weft_objective_run(context, &one->input, &one->options, one->slopes, &one->result);
}

static void test_slopes(void **state) {
    (void)state;
    for (unsigned number = 0; number < 64; number++) {
        objective_case one;
        deal(&one, number);
        one.options.aggregation = (weft_aggregation)(number % 4);
        one.options.surrogate = (weft_surrogate)(number / 4 % 2);
        one.options.skip_empty = number / 8 % 2;
        one.options.clip_dual = number / 16 % 2 == 0 ? 0 : 1.3;
        assert_int_equal(run(&one), WEFT_OK);
        assert_true(one.result.moves && one.result.tokens == TOKENS - 2 && one.result.sequences == 3);
        for (size_t i = 0; i < TOKENS; i++) {
            objective_case above = one, below = one;
            above.input.learner = above.learner;
            below.input.learner = below.learner;
            above.learner[i] += 1e-3f;
            below.learner[i] -= 1e-3f;
            assert_int_equal(run(&above), WEFT_OK);
            assert_int_equal(run(&below), WEFT_OK);
            double step = (double)above.learner[i] - (double)below.learner[i];
            double slope = (above.result.loss - below.result.loss) / step;
            /* at a kink, where clipping begins, there are two slopes */
            bool kink = above.result.clipped != below.result.clipped;
            if (!kink && fabs(slope - (double)one.slopes[i]) > 1e-4) {
                fail_msg("case %u, token %zu: slope %g, by differences %g", number, i,
                         (double)one.slopes[i], slope);
            }
        }
        assert_true(one.slopes[3] == 0 && one.slopes[7] == 0);
    }
}

/* ---- levels ---- */

enum { LONGEST = 400 };

typedef struct pass_case {
    float old[LONGEST], learner[LONGEST], reference[LONGEST], weights[LONGEST];
    uint8_t mask[LONGEST];
    objective_rules rules;
    objective_tokens tokens;
} pass_case;

static float around(dice *dice, float middle, float away) {
    return middle + away * ((float)dice_below(dice, 2001) / 1000 - 1);
}

/* Tokens that do not count hold what would be refused. */
static void deal_pass(pass_case *one, unsigned round, size_t count, dice *dice) {
    const double advantages[] = {1.5, -0.5, 0};
    weft_objective_options options = {.size = sizeof options};
    weft_objective_defaults(&options);
    options.surrogate = round % 7 == 6 ? WEFT_SURROGATE_REINFORCE : WEFT_SURROGATE_CLIP;
    options.clip_dual = round % 2 == 0 ? 0 : 1.3;
    options.kl = 0.2;
    one->rules = objective_rules_of(&options, advantages[round % 3], 0.01);
    for (size_t i = 0; i < count; i++) {
        one->mask[i] = dice_below(dice, 5) != 0;
        one->old[i] = around(dice, -1, 1);
        one->learner[i] = around(dice, one->old[i], dice_below(dice, 20) == 0 ? 40 : 0.5f);
        one->reference[i] = around(dice, one->old[i], dice_below(dice, 20) == 0 ? 40 : 0.5f);
        one->weights[i] = one->mask[i] != 0 ? around(dice, 1, 1) : -1;
        one->learner[i] = one->mask[i] != 0 ? one->learner[i] : NAN;
    }
    one->tokens = (objective_tokens){
        .old = one->old,
        .learner = one->learner,
        .reference = round % 4 == 0 ? NULL : one->reference,
        .weights = one->weights,
        .mask = one->mask,
    };
}

/* The portable form against the token alone. */
static void assert_by_tokens(const pass_case *one, size_t count, const float *slopes,
                             const objective_sums *sums) {
    double loss = 0, ratio = 0, divergence = 0;
    size_t counted = 0, clipped = 0;
    for (size_t i = 0; i < count; i++) {
        weft_token_loss token = {0};
        if (one->mask[i] != 0) {
            token = objective_token(&one->rules, (double)one->weights[i], (double)one->old[i],
                                    (double)one->learner[i],
                                    one->tokens.reference != NULL ? &one->reference[i] : NULL);
            counted++;
        }
        assert_true(slopes[i] == (float)(token.slope * one->rules.factor) &&
                    !(signbit(slopes[i]) && slopes[i] == 0 && one->mask[i] == 0));
        loss += token.loss;
        ratio += fabs(token.log_ratio);
        divergence += token.divergence;
        clipped += token.clipped;
    }
    assert_true(sums->counted == counted && sums->clipped == clipped && !sums->bad);
    assert_true(fabs(sums->loss - loss) <= 1e-12 * (1 + fabs(loss) + divergence));
    assert_true(fabs(sums->ratio - ratio) <= 1e-12 * (1 + ratio));
    assert_true(fabs(sums->divergence - divergence) <= 1e-12 * (1 + divergence));
}

static void test_levels_agree(void **state) {
    (void)state;
    static pass_case one;
    static float expected[LONGEST], slopes[LONGEST];
    dice dice = {4};
    size_t clipped = 0;
    for (unsigned round = 0; round < 300; round++) {
        size_t count = round < 40 ? round : dice_below(&dice, LONGEST);
        objective_sums first, sums;
        deal_pass(&one, round, count, &dice);
        objective_function_for(WEFT_CPU_PORTABLE)(&one.rules, &one.tokens, count, expected, &first);
        assert_by_tokens(&one, count, expected, &first);
        clipped += first.clipped;
        for (int level = 1; level <= (int)weft_cpu_best(); level++) {
            objective_function_for((weft_cpu)level)(&one.rules, &one.tokens, count, slopes, &sums);
            assert_memory_equal(slopes, expected, count * sizeof *slopes);
            assert_true(memcmp(&sums.loss, &first.loss, sizeof sums.loss) == 0 &&
                        sums.ratio == first.ratio && sums.divergence == first.divergence);
            assert_true(sums.counted == first.counted && sums.clipped == first.clipped &&
                        sums.moves == first.moves && sums.bad == first.bad);
        }
    }
    assert_true(clipped > 1000);
}

/* Far from the old policy and worse than the others: no part in the surrogate, but in the means. */
static void test_far_sequences(void **state) {
    (void)state;
    objective_case one, plain;
    deal(&one, 6);
    one.input.reference = NULL;
    for (size_t i = 5; i < 9; i++) {
        one.learner[i] = one.old[i] - 0.1f;
    }
    one.learner[7] = one.old[7] - 9; /* does not count */
    one.learner[0] = one.old[0];
    plain = one;
    plain.input.batch = &plain.batch;
    plain.input.learner = plain.learner;
    plain.input.advantages = plain.advantages;
    plain.advantages[2] = 0;
    assert_int_equal(run(&plain), WEFT_OK);
    one.options.sequence_delta = 0.09;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(one.result.far == 1 && one.result.loss == plain.result.loss);
    assert_memory_equal(one.slopes, plain.slopes, sizeof one.slopes);
    assert_true(one.slopes[5] == 0 && one.slopes[0] != 0);
    one.options.sequence_delta = 0.11;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(one.result.far == 0 && one.slopes[5] != 0);
    one.options.sequence_delta = 0.09;
    one.advantages[2] = 0.75f;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(one.result.far == 0 && one.slopes[5] != 0);
    one.options.sequence_delta = -1;
    assert_int_equal(run(&one), WEFT_INVALID_ARGUMENT);
}

/* Where a ratio or a divergence is clamped, the loss stands still, and the slope is 0. */
static void test_slopes_of_clamped(void **state) {
    (void)state;
    const struct {
        double advantage, old, learner;
        float reference;
        double kl;
        bool clamped;
    } cases[] = {
        {-1, -30, -5, -5, 0, true},       {-1, -24, -5, -5, 0, false},
        {1, -5, -30, -30, 0, true},       {0, -30, -30, -5, 1e-4, true},
        {0, -12, -12, 0, 1e-4, false},    {0, -12, -12, -9.5f, 1e-4, false},
        {0, -0.1, -0.1, -30, 1e-4, true}, {0, -0.1, -0.1, -8, 1e-4, false},
    };
    const double step = 1e-4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_objective_options options = {.size = sizeof options};
        weft_objective_defaults(&options);
        options.kl = cases[i].kl;
        const double learner = cases[i].learner;
        weft_token_loss found[3];
        for (int j = 0; j < 3; j++) {
            found[j] = weft_objective_token(&options, cases[i].advantage, 1, cases[i].old,
                                            learner + (j - 1) * step, &cases[i].reference);
        }
        double slope = (found[2].loss - found[0].loss) / (2 * step);
        assert_true((found[1].slope == 0) == cases[i].clamped);
        assert_true(fabs(slope - found[1].slope) <= 1e-4 * fabs(slope));
    }
}

/* Nothing is clipped of what counts for nothing. */
static void test_clipped_without_advantage(void **state) {
    (void)state;
    objective_case one;
    deal(&one, 3);
    for (size_t i = 0; i < TOKENS; i++) {
        one.learner[i] = one.old[i] + (i % 2 == 0 ? 2 : -2);
    }
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(one.result.clipped > 0);
    memset(one.advantages, 0, sizeof one.advantages);
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(one.result.clipped == 0);
}

/* Two sequences, whose tokens are one, two and three times as likely as before. */
static void test_by_definition(void **state) {
    (void)state;
    objective_case one;
    deal(&one, 1);
    one.options.kl = 0;
    one.options.clip_high = 0.2;
    one.input.reference = NULL;
    memset(one.kept, 0, sizeof one.kept);
    one.kept[0] = one.kept[1] = one.kept[9] = 1;
    one.learner[0] = one.old[0];
    one.learner[1] = one.old[1] + (float)log(2);
    one.learner[9] = one.old[9] + (float)log(3);
    one.advantages[0] = 2;
    one.advantages[3] = -1;
    one.weights[0] = 0.5f;
    one.weights[1] = 3;
    one.weights[9] = 0.25f;
    assert_int_equal(run(&one), WEFT_OK);
    double first = -(0.5 * 2 + 3 * 1.2 * 2) / 2, second = 0.25 * 3;
    assert_true(fabs(one.result.loss - (first + second) / SEQUENCES) < 1e-6);
    assert_true(fabs((double)one.slopes[0] + 0.5 * 2 / 2 / SEQUENCES) < 1e-6 && one.slopes[1] == 0);
    assert_true(fabs((double)one.slopes[9] - second / SEQUENCES) < 1e-6);
    assert_true(fabs(one.result.clipped - 1.0 / 3) < 1e-9);
    assert_true(fabs(one.result.ratio - (log(2) + log(3)) / 3) < 1e-6);
    one.options.skip_empty = true;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(fabs(one.result.loss - (first + second) / 2) < 1e-6);
    one.options.aggregation = WEFT_TOKEN_MEAN;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(fabs(one.result.loss - (2 * first + second) / 3) < 1e-6);
    one.options.aggregation = WEFT_SEQ_MEAN_TOKEN_SUM_NORM;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(fabs(one.result.loss - (2 * first + second) / 16 / 2) < 1e-6);
    one.options.clip_dual = 2;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(fabs(one.result.loss - (2 * first + 0.25 * 2) / 16 / 2) < 1e-6 && one.slopes[9] == 0);
    one.options.skip_empty = false;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(fabs(one.result.loss - (2 * first + 0.25 * 2) / 16 / SEQUENCES) < 1e-6);
}

static void test_weights_of_one(void **state) {
    (void)state;
    objective_case weighed, plain;
    deal(&weighed, 5);
    deal(&plain, 5);
    for (size_t i = 0; i < TOKENS; i++) {
        weighed.weights[i] = 1;
    }
    plain.input.weights = NULL;
    assert_int_equal(run(&weighed), WEFT_OK);
    assert_int_equal(run(&plain), WEFT_OK);
    assert_memory_equal(weighed.slopes, plain.slopes, sizeof plain.slopes);
    assert_true(weighed.result.loss == plain.result.loss);
}

static void test_nothing_kept(void **state) {
    (void)state;
    objective_case one;
    deal(&one, 2);
    memset(one.kept, 0, sizeof one.kept);
    one.learner[2] = NAN;
    one.slopes[2] = 5;
    for (int i = 0; i < 8; i++) {
        one.options.aggregation = (weft_aggregation)(i % 4);
        one.options.skip_empty = i / 4;
        assert_int_equal(run(&one), WEFT_OK);
        assert_true(!one.result.moves && one.result.loss == 0 && one.result.tokens == 0);
        assert_true(one.slopes[2] == 0 && one.result.clipped == 0 && one.result.kl == 0);
    }
    one.batch.sequences = 0;
    assert_int_equal(run(&one), WEFT_OK);
    assert_true(!one.result.moves);
}

static void test_refused_input(void **state) {
    (void)state;
    const float faults[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 12; i++) {
        objective_case one;
        deal(&one, 3);
        float *arrays[] = {one.old, one.learner, one.reference, one.weights};
        arrays[i / 3][6] = faults[i % 3];
        assert_int_equal(run(&one), WEFT_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_context_error(context), "token 1 of sequence 2"));
        one.kept[6] = 0;
        assert_int_equal(run(&one), WEFT_OK);
    }
    for (int fault = 0; fault < 7; fault++) {
        objective_case one;
        deal(&one, 3);
        switch (fault) {
        case 0:
            one.advantages[2] = NAN;
            break;
        case 1:
            one.weights[0] = -1;
            break;
        case 2:
            one.options.clip_low = NAN;
            break;
        case 3:
            one.options.clip_dual = 0.5;
            break;
        case 4:
            one.options.aggregation = WEFT_SEQ_MEAN_TOKEN_SUM_NORM;
            one.options.horizon = 0;
            break;
        case 5:
            one.options.surrogate = (weft_surrogate)2;
            break;
        default:
            one.starts[2] = 4;
            break;
        }
        assert_int_equal(run(&one), WEFT_INVALID_ARGUMENT);
        assert_int_equal(one.result.tokens, 0);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    faults faults = {0};
    weft_context_options options = {.size = sizeof options, .allocator = faults_allocator(&faults)};
    weft_context *poor = NULL;
    objective_case one;
    deal(&one, 4);
    assert_int_equal(weft_context_create(&options, &poor), WEFT_OK);
    faults_reset(&faults, 1);
    assert_int_equal(weft_objective_run(poor, &one.input, &one.options, one.slopes, &one.result),
                     WEFT_NO_MEMORY);
    assert_int_equal(one.result.tokens, 0);
    weft_context_destroy(poor);
    assert_int_equal(faults_live_blocks(&faults), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advantages),
        cmocka_unit_test(test_advantages_of_survivors),
        cmocka_unit_test(test_refused_advantages),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_by_definition),
        cmocka_unit_test(test_weights_of_one),
        cmocka_unit_test(test_nothing_kept),
        cmocka_unit_test(test_refused_input),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_slopes_of_clamped),
        cmocka_unit_test(test_clipped_without_advantage),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_far_sequences),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
