/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c: how the workers of a run compress their caches of keys and values: that part of the run's
 * description, and what they report of it.
 */
#include "run.h"

#include "../lib/sync/format/record.h"

#include <string.h>

static const uint64_t CACHES_MAX = (uint64_t)1 << 46; /* of a slot; a batch has at most 2^16 */

bool train_caches_sane(const train_caches *caches) {
    return caches->held <= caches->full && caches->full <= CACHES_MAX && caches->peak_bytes <= CACHES_MAX &&
           caches->dense_bytes <= CACHES_MAX;
}

void train_caches_add(train_caches *total, const train_caches *caches) {
    total->held += caches->held;
    total->full += caches->full;
    total->peak_bytes += caches->peak_bytes;
    total->dense_bytes += caches->dense_bytes;
}

bool train_kv_equal(const weft_kv_options *a, const weft_kv_options *b) {
    bool same = a->budget == b->budget && a->interval == b->interval && a->sinks == b->sinks &&
                a->window == b->window && a->pooling == b->pooling && a->pooled == b->pooled &&
                a->lambda == b->lambda && a->similarity == b->similarity && a->share == b->share &&
                a->common == b->common && a->keep_prompt == b->keep_prompt;
    return a->policy == b->policy && (a->policy == WEFT_KV_NONE || same);
}

json_t *train_kv_format(const weft_kv_options *options) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:b}", "policy",
                     weft_kv_policy_name(options->policy), "budget", (json_int_t)options->budget,
                     "interval", (json_int_t)options->interval, "sinks", (json_int_t)options->sinks,
                     "window", (json_int_t)options->window, "pooling", (json_int_t)options->pooling,
                     "pooled", options->pooled == WEFT_KV_POOL_MEAN ? "mean" : "max", "lambda",
                     options->lambda, "similarity", options->similarity, "share", options->share, "common",
                     options->common, "keep_prompt", (int)options->keep_prompt);
}

static bool parse_tokens(const json_t *json, const char *name, size_t *tokens_out) {
    uint64_t value;
    if (!weft_json_count(json, name, &value) || value > WEFT_KV_TOKENS_MAX) {
        return false;
    }
    *tokens_out = (size_t)value;
    return true;
}

static bool parse_number(const json_t *json, const char *name, double *number_out) {
    const json_t *value = json_object_get(json, name);
    *number_out = json_number_value(value);
    return json_is_number(value);
}

/* What descriptions of earlier versions do not have; it is 0 there. */
static bool parse_adapting(const json_t *json, weft_kv_options *options) {
    const json_t *keep_prompt = json_object_get(json, "keep_prompt");
    options->share = 0;
    options->common = 0;
    options->keep_prompt = json_is_true(keep_prompt);
    return (keep_prompt == NULL || json_is_boolean(keep_prompt)) &&
           (json_object_get(json, "share") == NULL || parse_number(json, "share", &options->share)) &&
           (json_object_get(json, "common") == NULL || parse_number(json, "common", &options->common));
}

bool train_kv_parse(const json_t *json, weft_kv_options *options_out) {
    options_out->size = sizeof *options_out;
    const char *policy = json_string_value(json_object_get(json, "policy"));
    const char *pooled = json_string_value(json_object_get(json, "pooled"));
    if (policy == NULL || pooled == NULL || !weft_kv_policy_parse(policy, &options_out->policy) ||
        (strcmp(pooled, "max") != 0 && strcmp(pooled, "mean") != 0)) {
        return false;
    }
    options_out->pooled = strcmp(pooled, "mean") == 0 ? WEFT_KV_POOL_MEAN : WEFT_KV_POOL_MAX;
    return parse_tokens(json, "budget", &options_out->budget) &&
           parse_tokens(json, "interval", &options_out->interval) &&
           parse_tokens(json, "sinks", &options_out->sinks) &&
           parse_tokens(json, "window", &options_out->window) &&
           parse_tokens(json, "pooling", &options_out->pooling) &&
           parse_number(json, "lambda", &options_out->lambda) &&
           parse_number(json, "similarity", &options_out->similarity) && parse_adapting(json, options_out);
}
