/* SPDX-License-Identifier: Apache-2.0
 *
 * learning.c: how a run learns, as learning.json beside the state keeps it: what only the trainer needs to
 * know, and so is not in the description of the run, but decides what comes of it. Together with it lies
 * the digest of the policy that the run began with, which the reference of a divergence must have. A run
 * that silently learned otherwise would be none that can be told of.
 */
#include "learner.h"

#include "../../lib/base/context.h"
#include "../../lib/sync/format/record.h"
#include "../../lib/tensor/json.h"
#include "../../lm/learn/text.h"
#include "../files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char LEARNING_NAME[] = "learning.json";
enum { FORMAT = 1, BYTES_MAX = 1 << 14, TRAITS = 14, DIGITS = 17, VALUE_SIZE = 1024 };

/* One thing about it. Values are compared as they are written: 17 digits tell any two numbers apart. */
typedef struct trait {
    const char *name; /* an option, where there is one */
    char value[VALUE_SIZE];
} trait;

static void set(trait *traits, size_t *count, const char *name, double value) {
    trait *next = &traits[(*count)++];
    next->name = name;
    snprintf(next->value, sizeof next->value, "%.*g", DIGITS, value);
}

/* The rules of a correction together are one trait. */
static void set_correction(trait *traits, size_t *count, const weft_correction_options *correction) {
    trait *next = &traits[(*count)++];
    int used = snprintf(next->value, sizeof next->value, "%d %d %d %.*g %.*g %d %.*g %d", correction->weigh,
                        (int)correction->level, (int)correction->mode, DIGITS, correction->lower, DIGITS,
                        correction->upper, correction->normalise, DIGITS, correction->veto,
                        correction->baseline_excludes_rejected);
    next->name = "correction";
    for (size_t i = 0; i < correction->rejection_count; i++) {
        const weft_rejection *rule = &correction->rejections[i];
        used += snprintf(next->value + used, sizeof next->value - (size_t)used, " / %d %d %.*g %.*g",
                         (int)rule->scope, (int)rule->estimator, DIGITS, rule->lower, DIGITS, rule->upper);
    }
}

static size_t list_traits(const lm_grpo_options *grpo, trait traits[TRAITS]) {
    size_t count = 0;
    set(traits, &count, "rate", grpo->adam.rate);
    set(traits, &count, "beta1", grpo->adam.beta1);
    set(traits, &count, "beta2", grpo->adam.beta2);
    set(traits, &count, "epsilon", grpo->adam.epsilon);
    set(traits, &count, "decay", grpo->adam.decay);
    set(traits, &count, "clip-norm", grpo->adam.clip);
    set(traits, &count, "rate-warm-up", (double)grpo->adam.warm_up);
    set(traits, &count, "updates", (double)grpo->updates);
    set(traits, &count, "passes", (double)grpo->passes);
    set(traits, &count, "clip", grpo->clip_low);
    set(traits, &count, "clip-high", grpo->clip_high);
    set(traits, &count, "normalise", grpo->normalise);
    set(traits, &count, "kl", grpo->kl);
    set_correction(traits, &count, &grpo->correction);
    return count;
}

weft_status train_learner_write_learning(train_learner *learner) {
    weft_context *context = learner->context;
    char path[TRAIN_PATH_SIZE];
    trait traits[TRAITS];
    size_t count = list_traits(&learner->options->grpo, traits);
    weft_status status = train_path(context, learner->output, LEARNING_NAME, path);
    if (status != WEFT_OK) {
        return status;
    }
    json_t *json =
        json_pack("{s:i, s:s, s:s}", "weft", FORMAT, "kind", "learning", "first", learner->first);
    bool whole = json != NULL;
    for (size_t i = 0; i < count; i++) {
        whole = json_object_set_new(json, traits[i].name, json_string(traits[i].value)) == 0 && whole;
    }
    char *text = whole ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (text == NULL) {
        return weft_json_no_memory(context, path);
    }
    status = lm_text_write(context, path, text, learner->options->durable);
    free(text);
    return status;
}

static weft_status compare(weft_context *context, const char *directory, const json_t *json,
                           const train_options *options) {
    trait traits[TRAITS];
    size_t count = list_traits(&options->grpo, traits);
    for (size_t i = 0; i < count && !options->change; i++) {
        const char *found = json_string_value(json_object_get(json, traits[i].name));
        if (found == NULL || strcmp(found, traits[i].value) != 0) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "the run in '%s' learns with %s %s, and this call says %s; give the same to "
                             "go on with it, or --change if it is to learn otherwise from here on",
                             directory, traits[i].name, found != NULL ? found : "unknown", traits[i].value);
        }
    }
    return WEFT_OK;
}

static weft_status parse(weft_context *context, const char *path, const json_t *json,
                         char first[WEFT_DIGEST_TEXT]) {
    uint64_t format = 0;
    const char *kind = json_string_value(json_object_get(json, "kind"));
    if (!weft_json_count(json, "weft", &format) || format != FORMAT || kind == NULL ||
        strcmp(kind, "learning") != 0 || !weft_json_text(json, "first", first, WEFT_DIGEST_TEXT)) {
        return weft_fail(context, WEFT_MALFORMED, "'%s' does not say how a run learns", path);
    }
    return WEFT_OK;
}

weft_status train_learner_resume_learning(train_learner *learner) {
    weft_context *context = learner->context;
    char path[TRAIN_PATH_SIZE];
    char first[WEFT_DIGEST_TEXT];
    char *text = NULL;
    size_t size = 0;
    json_t *json = NULL;
    weft_status status = train_path(context, learner->output, LEARNING_NAME, path);
    if (status == WEFT_OK) {
        status = train_read_text(context, path, BYTES_MAX, &text, &size);
    }
    if (status == WEFT_OK) {
        status = weft_json_parse(context, path, text, size, 1, 1, &json);
        weft_release(context, text);
    }
    if (status == WEFT_OK) {
        status = parse(context, path, json, first);
    }
    status = train_explain_lost(context, status);
    if (status == WEFT_OK) {
        status = compare(context, learner->output, json, learner->options);
    }
    json_decref(json);
    if (status == WEFT_OK) {
        memcpy(learner->first, first, sizeof first);
    }
    return status;
}
