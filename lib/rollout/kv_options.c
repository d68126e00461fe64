/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_options.c: names, defaults and limits of the options of a cache.
 */
#include "../base/context.h"
#include "../base/sized.h"
#include "kv_policy.h"

#include <string.h>

enum {
    WINDOW_MAX = 1 << 16, /* whose queries are remembered */
    POOLING_MAX = 1 << 10,
};

const char *weft_kv_policy_name(weft_kv_policy policy) {
    return (size_t)policy < WEFT_KV_POLICIES ? weft_kv_policies[policy].name : NULL;
}

bool weft_kv_policy_parse(const char *name, weft_kv_policy *policy_out) {
    for (size_t i = 0; i < WEFT_KV_POLICIES; i++) {
        if (strcmp(name, weft_kv_policies[i].name) == 0) {
            *policy_out = (weft_kv_policy)i;
            return true;
        }
    }
    return false;
}

void weft_kv_defaults(weft_kv_policy policy, size_t budget, weft_kv_options *options_out) {
    weft_kv_options options = {
        .size = sizeof options,
        .policy = policy,
        .budget = budget,
        .interval = budget >= 4 ? budget / 4 : 1,
        .pooling = 1,
        .lambda = 0.1,
        .similarity = 0.5,
    };
    switch (policy) {
    case WEFT_KV_STREAMING:
        options.sinks = budget > 8 ? 4 : budget / 2;
        break;
    case WEFT_KV_H2O:
        options.window = (budget + 1) / 2;
        break;
    case WEFT_KV_SNAPKV:
    case WEFT_KV_RKV:
        options.window = budget >= 16 ? 8 : (budget + 1) / 2;
        options.pooling = 7;
        break;
    default:
        break;
    }
    weft_sized_write(&options, options_out, sizeof options);
}

static weft_status check_scores(weft_context *context, const weft_kv_options *options) {
    if (options->pooling < 1 || options->pooling > POOLING_MAX || options->pooling % 2 == 0 ||
        (options->pooled != WEFT_KV_POOL_MAX && options->pooled != WEFT_KV_POOL_MEAN)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a KV cache cannot pool %zu tokens in way %d; choose an odd number from 1 to %d",
                         options->pooling, (int)options->pooled, POOLING_MAX - 1);
    }
    if (options->policy == WEFT_KV_RKV && !(options->lambda >= 0 && options->lambda <= 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "lambda %g of a KV cache is not between 0 (redundancy alone) and 1 (importance "
                         "alone)",
                         options->lambda);
    }
    if (options->policy == WEFT_KV_RKV && !(options->similarity >= -1 && options->similarity <= 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "similarity %g of a KV cache is no cosine; choose one from -1 to 1",
                         options->similarity);
    }
    return WEFT_OK;
}

static weft_status check_window(weft_context *context, const weft_kv_options *options) {
    const char *name = weft_kv_policy_name(options->policy);
    size_t most = weft_kv_policies[options->policy].queries ? WINDOW_MAX : WEFT_KV_TOKENS_MAX;
    if (options->window < 1 || options->window > most) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "KV policy %s cannot have a window of %zu tokens; choose 1 to %zu", name,
                         options->window, most);
    }
    if (options->sinks > options->budget || options->window > options->budget - options->sinks) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "KV policy %s: %zu sinks and a window of %zu tokens do not fit a budget of %zu; "
                         "raise the budget or lower the others",
                         name, options->sinks, options->window, options->budget);
    }
    return WEFT_OK;
}

static weft_status check_budget(weft_context *context, const weft_kv_options *options) {
    const char *name = weft_kv_policy_name(options->policy);
    if (options->budget < 1 || options->budget > WEFT_KV_TOKENS_MAX || options->interval < 1 ||
        options->interval > WEFT_KV_TOKENS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "KV policy %s cannot have a budget of %zu tokens and an interval of %zu; choose 1 "
                         "to %d each",
                         name, options->budget, options->interval, WEFT_KV_TOKENS_MAX);
    }
    if (!(options->share >= 0 && options->share <= 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a KV cache cannot keep a share of %g of its tokens; choose 0 (a constant budget) "
                         "to 1",
                         options->share);
    }
    if (!(options->common >= 0 && options->common <= 1) ||
        (options->common > 0 && weft_kv_policies[options->policy].score == NULL)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "KV caches under policy %s cannot have a part of %g of their budgets in common; "
                         "choose 0 to 1, and a policy that scores tokens",
                         name, options->common);
    }
    return WEFT_OK;
}

weft_status weft_kv_check(weft_context *context, const weft_kv_options *given) {
    weft_context_clear(context);
    weft_kv_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_kv_options");
    if (status != WEFT_OK) {
        return status;
    }
    if ((size_t)options.policy >= WEFT_KV_POLICIES) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "there is no KV policy %d", (int)options.policy);
    }
    if (options.policy == WEFT_KV_NONE) {
        return WEFT_OK;
    }
    status = check_budget(context, &options);
    if (status != WEFT_OK) {
        return status;
    }
    if (options.policy == WEFT_KV_STREAMING) {
        if (options.sinks >= options.budget) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "KV policy %s: %zu sinks leave no room for recent tokens in a budget of %zu",
                             weft_kv_policy_name(options.policy), options.sinks, options.budget);
        }
        return WEFT_OK;
    }
    status = check_window(context, &options);
    return status == WEFT_OK && weft_kv_policies[options.policy].queries ? check_scores(context, &options)
                                                                         : status;
}

size_t weft_kv_sinks(const weft_kv_options *given, size_t prompt) {
    weft_kv_options options;
    if (weft_sized_read(NULL, given, &options, sizeof options, "weft_kv_options") != WEFT_OK) {
        return 0;
    }
    size_t recent = options.policy == WEFT_KV_STREAMING ? 1 : options.window;
    size_t most = options.budget > recent ? options.budget - recent : 0;
    size_t sinks = prompt < most ? prompt : most;
    return options.keep_prompt && sinks > options.sinks ? sinks : options.sinks;
}
