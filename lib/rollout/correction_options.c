/* SPDX-License-Identifier: Apache-2.0
 *
 * correction_options.c: options of the correction by name, and whether they make sense.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "correction.h"

#include <math.h>
#include <string.h>

static const double veto = 1e-4;

static const struct {
    const char *name;
    weft_correction_options options;
} presets[] = {
    {"none", {.size = sizeof(weft_correction_options), .weigh = false}},
    {"paper", {.size = sizeof(weft_correction_options), .weigh = true, .veto = veto}},
    {"released",
     {.size = sizeof(weft_correction_options),
      .weigh = true,
      .mode = WEFT_WEIGHT_TRUNCATE,
      .lower = 0.5,
      .upper = 1.5,
      .normalise = true,
      .veto = veto,
      .rejection_count = 1,
      .rejections = {{WEFT_REJECT_TOKEN, WEFT_ESTIMATOR_K1, 0.5, 1.5}}}},
    {"tis",
     {.size = sizeof(weft_correction_options), .weigh = true, .mode = WEFT_WEIGHT_TRUNCATE, .upper = 2}},
    {"mis",
     {.size = sizeof(weft_correction_options),
      .weigh = true,
      .mode = WEFT_WEIGHT_MASK,
      .lower = 0.5,
      .upper = 2}},
    {"icepop",
     {.size = sizeof(weft_correction_options),
      .weigh = true,
      .mode = WEFT_WEIGHT_ZERO,
      .lower = 0.5,
      .upper = 5}},
};

weft_status weft_correction_preset(weft_context *context, const char *name,
                                   weft_correction_options *options_out) {
    weft_context_clear(context);
    weft_status status = weft_sized_check(context, options_out, "weft_correction_options");
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            weft_sized_write(&presets[i].options, options_out, sizeof presets[i].options);
            return WEFT_OK;
        }
    }
    return weft_fail(context, WEFT_NOT_FOUND,
                     "there is no correction '%s'; choose none, paper, released, tis, mis or icepop", name);
}

/* ---- rules ---- */

static const struct {
    const char *name;
    weft_rejection_scope scope;
    weft_rejection_estimator estimator;
} rules[] = {
    {"token_k1", WEFT_REJECT_TOKEN, WEFT_ESTIMATOR_K1},
    {"token_k2", WEFT_REJECT_TOKEN, WEFT_ESTIMATOR_K2},
    {"token_k3", WEFT_REJECT_TOKEN, WEFT_ESTIMATOR_K3},
    {"seq_sum_k1", WEFT_REJECT_SUM, WEFT_ESTIMATOR_K1},
    {"seq_sum_k2", WEFT_REJECT_SUM, WEFT_ESTIMATOR_K2},
    {"seq_sum_k3", WEFT_REJECT_SUM, WEFT_ESTIMATOR_K3},
    {"seq_mean_k1", WEFT_REJECT_MEAN, WEFT_ESTIMATOR_K1},
    {"seq_mean_k2", WEFT_REJECT_MEAN, WEFT_ESTIMATOR_K2},
    {"seq_mean_k3", WEFT_REJECT_MEAN, WEFT_ESTIMATOR_K3},
    {"seq_max_k2", WEFT_REJECT_MAX, WEFT_ESTIMATOR_K2},
    {"seq_max_k3", WEFT_REJECT_MAX, WEFT_ESTIMATOR_K3},
    {"binary_kl", WEFT_REJECT_TOKEN, WEFT_ESTIMATOR_BINARY},
};

/* Those that have a name, and no others. */
static bool is_known(const weft_rejection *rejection) {
    bool known = false;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        known = known || (rules[i].scope == rejection->scope && rules[i].estimator == rejection->estimator);
    }
    return known;
}

static weft_status check_rejection(weft_context *context, const weft_rejection *rejection) {
    if (!is_known(rejection)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there is no rejection by estimator %d of scope %d", (int)rejection->estimator,
                         (int)rejection->scope);
    }
    bool ratio = rejection->estimator == WEFT_ESTIMATOR_K1;
    if (!(rejection->upper > 0) ||
        (ratio && !(rejection->lower >= 0 && rejection->lower < rejection->upper)) ||
        (!ratio && rejection->lower != 0)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a rejection cannot have the bounds %g and %g: k1 takes two ratios in ascending "
                         "order, all others an upper bound above 0",
                         rejection->lower, rejection->upper);
    }
    return WEFT_OK;
}

weft_status weft_correction_reject(weft_context *context, weft_correction_options *given, const char *name,
                                   double lower, double upper) {
    weft_context_clear(context);
    weft_correction_options options;
    weft_status status =
        weft_sized_read(context, given, &options, sizeof options, "weft_correction_options");
    if (status != WEFT_OK) {
        return status;
    }
    if (options.rejection_count >= WEFT_REJECTIONS_MAX) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "a correction has at most %d rejections",
                         WEFT_REJECTIONS_MAX);
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(rules[i].name, name) == 0) {
            weft_rejection rejection = {rules[i].scope, rules[i].estimator, lower, upper};
            status = check_rejection(context, &rejection);
            if (status == WEFT_OK) {
                options.rejections[options.rejection_count++] = rejection;
                weft_sized_write(&options, given, sizeof options);
            }
            return status;
        }
    }
    return weft_fail(context, WEFT_NOT_FOUND,
                     "there is no rejection '%s'; choose token_k1 to token_k3, seq_sum_k1 to seq_sum_k3, "
                     "seq_mean_k1 to seq_mean_k3, seq_max_k2, seq_max_k3 or binary_kl",
                     name);
}

/* ---- checks ---- */

static weft_status check_weights(weft_context *context, const weft_correction_options *options) {
    if (options->level < WEFT_LEVEL_TOKEN || options->level > WEFT_LEVEL_GEOMETRIC ||
        options->mode < WEFT_WEIGHT_ANY || options->mode > WEFT_WEIGHT_ZERO) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "there is no correction of level %d and mode %d",
                         (int)options->level, (int)options->mode);
    }
    bool upper = options->upper > 0;
    if (!(options->lower >= 0) || !(options->upper >= 0) || (upper && !(options->lower < options->upper)) ||
        (!upper && options->weigh && options->mode != WEFT_WEIGHT_ANY)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "weights cannot have the bounds %g and %g; a mode needs an upper bound above the "
                         "lower one",
                         options->lower, options->upper);
    }
    return WEFT_OK;
}

weft_status weft_correction_check(weft_context *context, const weft_correction_options *options) {
    weft_status status = check_weights(context, options);
    if (status == WEFT_OK && !(options->veto >= 0 && options->veto <= 1)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "a veto at %g makes no sense: choose a ratio between 0 and 1, such as 1e-4",
                           options->veto);
    }
    if (status == WEFT_OK && options->rejection_count > WEFT_REJECTIONS_MAX) {
        status =
            weft_fail(context, WEFT_INVALID_ARGUMENT, "a correction has at most %d rejections, not %zu",
                      WEFT_REJECTIONS_MAX, options->rejection_count);
    }
    for (size_t i = 0; status == WEFT_OK && i < options->rejection_count; i++) {
        status = check_rejection(context, &options->rejections[i]);
    }
    return status;
}

weft_status weft_correction_batch_check(weft_context *context, const weft_correction_batch *batch) {
    for (size_t s = 0; s < batch->sequences; s++) {
        if (batch->starts[s] > batch->starts[s + 1]) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "sequence %zu begins at token %zu and ends at %zu; starts must ascend", s,
                             batch->starts[s], batch->starts[s + 1]);
        }
    }
    return WEFT_OK;
}
