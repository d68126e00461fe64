/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rollout_correction.c: the exponential against the C library's; every processor level against the
 * portable one, bit for bit; weights of exactly 1 where both policies agree; bounds, vetoes and rules by
 * hand-made examples; input that is odd or hostile. tests/python/test_correction.py compares every option
 * with an implementation in numpy.
 */
#include "../../lib/base/exponential.h"
#include "../../lib/rollout/correction_kernels.h"
#include "../support/models.h"

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

static void expect_error(const char *text) {
    if (strstr(weft_context_error(context), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, weft_context_error(context));
    }
}

static float uniform(dice *dice, float low, float high) {
    return low + (high - low) * (float)dice_below(dice, 1 << 24) / (float)(1 << 24);
}

/* ---- the exponential ---- */

static void test_exponential(void **state) {
    (void)state;
    double worst = 0;
    for (int32_t i = -20 * (1 << 16); i <= 20 * (1 << 16); i++) {
        float x = (float)i / (float)(1 << 16);
        double exact = exp((double)x);
        int exponent;
        frexp(exact, &exponent);
        double error = fabs((double)weft_exponential(x) - exact) / ldexp(1, exponent - 24);
        worst = error > worst ? error : worst;
    }
    if (worst > 2) {
        fail_msg("off by %g units in the last place", worst);
    }
    assert_true(weft_exponential(0.0f) == 1.0f && weft_exponential(-0.0f) == 1.0f);
    assert_true(weft_exponential(INFINITY) > 1e37f && weft_exponential(-INFINITY) < 1e-37f);
}

static void test_exponential_double(void **state) {
    (void)state;
    double worst = 0;
    for (int32_t i = -700 * 1000; i <= 700 * 1000; i++) {
        double x = i / 1000.0, exact = exp(x);
        int exponent;
        frexp(exact, &exponent);
        double error = fabs(weft_exponential_double(x) - exact) / ldexp(1, exponent - 53);
        worst = error > worst ? error : worst;
    }
    if (worst > 2) {
        fail_msg("off by %g units in the last place", worst);
    }
    assert_true(weft_exponential_double(0) == 1 && weft_exponential_double(-0.0) == 1);
}

/* ---- levels ---- */

enum { LONGEST = 700 };

typedef struct pass_output {
    float weights[LONGEST];
    uint8_t kept[LONGEST];
    correction_sums sums;
} pass_output;

/* Sums field by field: there may be padding between them. */
static void assert_same_sums(const correction_sums *a, const correction_sums *b) {
    assert_memory_equal(&a->ratio, &b->ratio, offsetof(correction_sums, bad));
    assert_int_equal(a->bad, b->bad);
}

static void test_levels_agree(void **state) {
    (void)state;
    static float sampler[LONGEST + 1], old[LONGEST + 1];
    static uint8_t mask[LONGEST + 1];
    static pass_output expected, output;
    dice dice = {1};
    for (int round = 0; round < 300; round++) {
        size_t count = round < 40 ? (size_t)round : dice_below(&dice, LONGEST);
        size_t shift = (size_t)round % 2;
        for (size_t i = 0; i < count + shift; i++) {
            sampler[i] = uniform(&dice, -8, 0);
            old[i] = sampler[i] + uniform(&dice, -1, 1) * (dice_below(&dice, 9) == 0 ? 30 : 0.3f);
            mask[i] = dice_below(&dice, 4) != 0;
            sampler[i] = mask[i] == 0 && dice_below(&dice, 2) == 0 ? NAN : sampler[i];
        }
        correction_rules rules = {.clamp_high = 1.5f,
                                  .window_low = round % 3 == 0 ? 0.6f : 0,
                                  .window_high = INFINITY,
                                  .low = 0.5f,
                                  .high = 1.5f,
                                  .veto = -9,
                                  .count = (size_t)round % 5,
                                  .tokens = {{WEFT_ESTIMATOR_K1, 0.5f, 1.2f},
                                             {WEFT_ESTIMATOR_K2, 0, 0.1f},
                                             {WEFT_ESTIMATOR_K3, 0, 0.1f},
                                             {WEFT_ESTIMATOR_BINARY, 0, 0.01f}}};
        for (int level = 0; level <= (int)weft_cpu_best(); level++) {
            pass_output *into = level == 0 ? &expected : &output;
            correction_function_for((weft_cpu)level)(&rules, sampler + shift, old + shift,
                                                     round % 5 == 4 ? NULL : mask + shift, count,
                                                     into->weights, into->kept, &into->sums);
            assert_memory_equal(into->weights, expected.weights, count * sizeof(float));
            assert_memory_equal(into->kept, expected.kept, count);
            assert_same_sums(&into->sums, &expected.sums);
        }
    }
}

/* ---- batches ---- */

enum { SEQUENCES = 4, TOKENS = 12 };

/* Three sequences of 5, 3 and 4 tokens around an empty one, at which both policies agree. */
typedef struct batch_case {
    size_t starts[SEQUENCES + 1];
    uint8_t mask[TOKENS];
    float sampler[TOKENS];
    float old[TOKENS];
    float weights[TOKENS];
    uint8_t kept[TOKENS];
    uint8_t rejected[SEQUENCES];
    weft_correction_batch batch;
    weft_correction_options options;
    weft_correction_diagnostics diagnostics;
} batch_case;

static void deal(batch_case *one, const char *preset) {
    *one = (batch_case){.starts = {0, 5, 5, 8, 12},
                        .options.size = sizeof one->options,
                        .diagnostics.size = sizeof one->diagnostics};
    for (size_t i = 0; i < TOKENS; i++) {
        one->mask[i] = 1;
        one->sampler[i] = -0.1f * (float)(i + 1);
        one->old[i] = one->sampler[i];
    }
    one->batch = (weft_correction_batch){SEQUENCES, one->starts, one->mask};
    assert_int_equal(weft_correction_preset(context, preset, &one->options), WEFT_OK);
}

static weft_status weigh(batch_case *one) {
    return weft_correction_weigh(context, &one->batch, one->sampler, one->old, &one->options, one->weights,
                                 one->kept, one->rejected, &one->diagnostics);
}

static void set_ratio(batch_case *one, size_t token, double ratio) {
    one->old[token] = one->sampler[token] + (float)log(ratio);
}

static void assert_weight(const batch_case *one, size_t token, double weight) {
    if (!(fabs((double)one->weights[token] - weight) < 1e-5 * (1 + weight))) {
        fail_msg("token %zu has weight %g, not %g", token, (double)one->weights[token], weight);
    }
}

static const char *const presets[] = {"none", "paper", "released", "tis", "mis", "icepop"};
enum { PRESETS = sizeof presets / sizeof presets[0] };

static void test_agreement_is_one(void **state) {
    (void)state;
    for (size_t i = 0; i < PRESETS * 3; i++) {
        batch_case one;
        deal(&one, presets[i / 3]);
        one.options.level = (weft_correction_level)(i % 3);
        one.mask[1] = 0;
        assert_int_equal(weigh(&one), WEFT_OK);
        for (size_t t = 0; t < TOKENS; t++) {
            assert_true(one.weights[t] == (t == 1 ? 0.0f : 1.0f) && one.kept[t] == (t != 1));
        }
        weft_correction_diagnostics *found = &one.diagnostics;
        assert_true(found->sequences == 3 && found->tokens == TOKENS - 1);
        assert_true(found->rejected == 0 && found->masked == 0 && found->low == 0 && found->high == 0);
        assert_true(found->ratio_mean == 1 && found->ratio_min == 1 && found->ratio_max == 1);
        assert_true(found->ratio_deviation == 0 && found->effective == 1 && found->weight_mean == 1);
        assert_true(found->kl_k1 == 0 && found->kl_k3 == 0 && found->chi2_token == 0);
        assert_true(found->chi2_sequence == 0 && found->perplexity_ratio == 1);
    }
}

/* One token below the threshold rejects its sequence and no other; one above rejects nothing. */
static void test_veto(void **state) {
    (void)state;
    batch_case one;
    deal(&one, "paper");
    set_ratio(&one, 6, 0.9e-4);
    set_ratio(&one, 9, 1.1e-4);
    set_ratio(&one, 0, 3);
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_true(one.rejected[0] == 0 && one.rejected[1] == 0 && one.rejected[2] == 1 &&
                one.rejected[3] == 0);
    assert_weight(&one, 0, 3);
    assert_weight(&one, 9, 1.1e-4);
    for (size_t i = 0; i < TOKENS; i++) {
        bool inside = i >= 5 && i < 8;
        assert_true(one.kept[i] == !inside && (one.weights[i] == 0) == inside);
    }
    assert_true(one.diagnostics.vetoed == 1 && one.diagnostics.rejected == 1);
    assert_true(one.diagnostics.below_veto == 1 && one.diagnostics.masked == 3);
    one.mask[6] = 0;
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_true(one.rejected[2] == 0 && one.diagnostics.vetoed == 0);
}

static void test_token_modes(void **state) {
    (void)state;
    static const struct {
        weft_correction_mode mode;
        double below, above;
        bool keeps;
    } modes[] = {
        {WEFT_WEIGHT_ANY, 0.25, 4, true}, {WEFT_WEIGHT_TRUNCATE, 0.25, 2, true},
        {WEFT_WEIGHT_CLIP, 0.5, 2, true}, {WEFT_WEIGHT_MASK, 0, 0, false},
        {WEFT_WEIGHT_ZERO, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        batch_case one;
        deal(&one, "paper");
        one.options.mode = modes[i].mode;
        one.options.lower = 0.5;
        one.options.upper = 2;
        set_ratio(&one, 2, 0.25);
        set_ratio(&one, 7, 4);
        set_ratio(&one, 8, 1.5);
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_weight(&one, 2, modes[i].below);
        assert_weight(&one, 7, modes[i].above);
        assert_weight(&one, 8, 1.5);
        assert_true(one.kept[2] == modes[i].keeps && one.kept[7] == modes[i].keeps && one.kept[8] == 1);
        assert_true(one.diagnostics.low == 1 && one.diagnostics.high == 1);
        assert_int_equal(one.diagnostics.masked, modes[i].keeps ? 0 : 2);
    }
}

static void test_sequence_levels(void **state) {
    (void)state;
    batch_case one;
    deal(&one, "tis");
    one.options.level = WEFT_LEVEL_SEQUENCE;
    set_ratio(&one, 0, 1.2);
    set_ratio(&one, 1, 1.5);
    set_ratio(&one, 5, 8);
    set_ratio(&one, 6, 0.5);
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_weight(&one, 4, 1.8);
    assert_weight(&one, 7, 2);
    assert_true(one.diagnostics.high == 1 && one.diagnostics.low == 0);
    one.options.level = WEFT_LEVEL_GEOMETRIC;
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_weight(&one, 4, pow(1.8, 0.2));
    assert_weight(&one, 7, pow(4, 1.0 / 3));
    one.options.mode = WEFT_WEIGHT_MASK;
    one.options.upper = 1.5;
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_true(one.rejected[2] == 1 && one.kept[6] == 0 && one.weights[6] == 0 && one.rejected[0] == 0);
    assert_true(one.diagnostics.rejected == 1 && one.diagnostics.vetoed == 0);
}

static void test_normalisation(void **state) {
    (void)state;
    batch_case one;
    deal(&one, "released");
    set_ratio(&one, 3, 1.4);
    set_ratio(&one, 4, 6);
    set_ratio(&one, 11, 0.1);
    assert_int_equal(weigh(&one), WEFT_OK);
    double mean = (9 + 1.4 + 1.5 + 0.1) / TOKENS;
    assert_weight(&one, 0, 1 / mean);
    assert_weight(&one, 3, 1.4 / mean);
    assert_true(one.weights[4] == 0 && one.kept[4] == 0 && one.kept[11] == 0 && one.kept[10] == 1);
    assert_true(fabs(one.diagnostics.weight_mean - mean) < 1e-6);
    double squares = 9 + 1.4 * 1.4 + 1.5 * 1.5 + 0.01;
    assert_true(fabs(one.diagnostics.effective - mean * mean * TOKENS / squares) < 1e-6);
}

static void test_rejections(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double lower, upper;
        bool first, second; /* rejected: a spread of small steps, one large step */
    } rules[] = {
        {"seq_sum_k1", 0.5, 2, true, true},     {"seq_mean_k1", 0.5, 1.3, false, true},
        {"seq_mean_k1", 0.5, 1.15, true, true}, {"seq_max_k2", 0, 0.2, false, true},
        {"seq_max_k3", 0, 0.2, false, true},    {"seq_sum_k2", 0, 0.05, true, true},
        {"seq_mean_k3", 0, 0.05, false, true},  {"seq_sum_k3", 0, 10, false, false},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        batch_case one;
        deal(&one, "none");
        assert_int_equal(
            weft_correction_reject(context, &one.options, rules[i].name, rules[i].lower, rules[i].upper),
            WEFT_OK);
        for (size_t t = 0; t < 5; t++) {
            set_ratio(&one, t, 1.2);
        }
        set_ratio(&one, 5, 3);
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_true(one.rejected[0] == rules[i].first && one.rejected[2] == rules[i].second);
        assert_true(one.rejected[3] == 0 && one.weights[11] == 1);
    }
    batch_case one;
    deal(&one, "none");
    assert_int_equal(weft_correction_reject(context, &one.options, "token_k3", 0, 0.2), WEFT_OK);
    set_ratio(&one, 5, 3);
    set_ratio(&one, 6, 1.2);
    assert_int_equal(weigh(&one), WEFT_OK);
    assert_true(one.kept[5] == 0 && one.kept[6] == 1 && one.rejected[2] == 0);
}

/* Where a token is likely, a small change of it is a large one of all others; where it is rare, xi may be
 * far from 1 and yet change little. */
static void test_binary_rejection(void **state) {
    (void)state;
    batch_case one;
    deal(&one, "none");
    assert_int_equal(weft_correction_reject(context, &one.options, "binary_kl", 0, 0.01), WEFT_OK);
    one.sampler[0] = (float)log(0.999);
    one.old[0] = (float)log(0.95);
    one.sampler[1] = (float)log(0.001);
    one.old[1] = (float)log(0.004);
    one.sampler[2] = (float)log(0.5);
    one.old[2] = (float)log(0.56);
    one.sampler[3] = (float)log(0.5);
    one.old[3] = (float)log(0.58);
    one.sampler[4] = (float)log(0.3);
    one.old[4] = -INFINITY;
    one.sampler[8] = one.old[8] = 0;
    assert_int_equal(weigh(&one), WEFT_OK);
    const uint8_t kept[TOKENS] = {0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1};
    assert_memory_equal(one.kept, kept, sizeof kept);
    weft_rejection *rule = &one.options.rejections[0];
    rule->scope = WEFT_REJECT_SUM;
    assert_int_equal(weigh(&one), WEFT_INVALID_ARGUMENT);
}

/* ---- odd and hostile input ---- */

static void assert_no_nan(const batch_case *one) {
    for (size_t i = 0; i < TOKENS; i++) {
        assert_true(isfinite(one->weights[i]) && one->weights[i] >= 0);
    }
    const double *numbers = &one->diagnostics.ratio_mean;
    size_t count =
        (sizeof one->diagnostics - offsetof(weft_correction_diagnostics, ratio_mean)) / sizeof *numbers;
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(numbers[i]));
    }
}

static void test_refused_numbers(void **state) {
    (void)state;
    const float faults[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 2 * PRESETS * 3; i++) {
        batch_case one;
        deal(&one, presets[i / 6]);
        float fault = faults[i % 3];
        bool sampler = i / 3 % 2 == 0;
        *(sampler ? &one.sampler[7] : &one.old[7]) = fault;
        bool refused = sampler || fault != -INFINITY;
        assert_int_equal(weigh(&one), refused ? WEFT_INVALID_ARGUMENT : WEFT_OK);
        if (refused) {
            expect_error("token 2 of sequence 2");
        } else {
            assert_no_nan(&one);
            assert_true(one.rejected[2] == (one.options.veto > 0));
        }
        one.mask[7] = 0;
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_no_nan(&one);
        assert_true(one.weights[7] == 0 && one.kept[7] == 0 && one.weights[6] == 1);
    }
}

static void test_extreme_numbers(void **state) {
    (void)state;
    for (size_t i = 0; i < PRESETS * 3; i++) {
        batch_case one;
        deal(&one, presets[i / 3]);
        one.options.level = (weft_correction_level)(i % 3);
        one.sampler[0] = -3e38f;
        one.old[1] = -3e38f;
        one.sampler[5] = -3e38f;
        one.old[5] = 3e38f;
        one.sampler[8] = 1e-40f;
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_no_nan(&one);
    }
}

static void test_nothing_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < PRESETS; i++) {
        batch_case one;
        deal(&one, presets[i]);
        memset(one.mask, 0, sizeof one.mask);
        memset(one.rejected, 7, sizeof one.rejected);
        one.old[0] = NAN;
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_no_nan(&one);
        assert_true(one.diagnostics.tokens == 0 && one.diagnostics.rejected == 0);
        assert_true(one.rejected[0] == 0 && one.rejected[1] == 0 && one.weights[3] == 0);
        one.batch.sequences = 0;
        assert_int_equal(weigh(&one), WEFT_OK);
        assert_true(one.diagnostics.sequences == 0);
    }
}

static void test_refused_options(void **state) {
    (void)state;
    batch_case one;
    deal(&one, "tis");
    assert_int_equal(weft_correction_preset(context, "best", &one.options), WEFT_NOT_FOUND);
    expect_error("icepop");
    assert_int_equal(weft_correction_reject(context, &one.options, "seq_max_k1", 0.5, 2), WEFT_NOT_FOUND);
    assert_int_equal(weft_correction_reject(context, &one.options, "token_k1", 2, 0.5),
                     WEFT_INVALID_ARGUMENT);
    assert_int_equal(weft_correction_reject(context, &one.options, "token_k2", 0.1, 0.5),
                     WEFT_INVALID_ARGUMENT);
    for (size_t i = 0; i < WEFT_REJECTIONS_MAX; i++) {
        assert_int_equal(weft_correction_reject(context, &one.options, "token_k2", 0, 1), WEFT_OK);
    }
    assert_int_equal(weft_correction_reject(context, &one.options, "token_k2", 0, 1), WEFT_LIMIT_EXCEEDED);
    assert_int_equal(weigh(&one), WEFT_OK);
    for (int fault = 0; fault < 7; fault++) {
        deal(&one, "mis");
        switch (fault) {
        case 0:
            one.options.upper = 0;
            break;
        case 1:
            one.options.lower = 2;
            break;
        case 2:
            one.options.lower = NAN;
            break;
        case 3:
            one.options.veto = -1;
            break;
        case 4:
            one.options.rejection_count = WEFT_REJECTIONS_MAX + 1;
            break;
        case 5:
            one.options.mode = (weft_correction_mode)9;
            break;
        default:
            one.starts[1] = 9;
            break;
        }
        assert_int_equal(weigh(&one), WEFT_INVALID_ARGUMENT);
        assert_true(one.weights[0] == 0 && one.diagnostics.tokens == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_exponential_double),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_agreement_is_one),
        cmocka_unit_test(test_veto),
        cmocka_unit_test(test_token_modes),
        cmocka_unit_test(test_sequence_levels),
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_rejections),
        cmocka_unit_test(test_binary_rejection),
        cmocka_unit_test(test_refused_numbers),
        cmocka_unit_test(test_extreme_numbers),
        cmocka_unit_test(test_nothing_counts),
        cmocka_unit_test(test_refused_options),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
