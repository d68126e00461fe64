/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_config.c: how many weights a model has by the sizes in its config.json, which anybody may have
 * written.
 */
#include "plan_config.h"

#include <jansson.h>
#include <math.h>

/* A whole number that a model may have; `otherwise` if it is not there; 0 if it is nonsense. */
static double member(const json_t *json, const char *name, double otherwise) {
    const json_t *value = json_object_get(json, name);
    if (value == NULL || json_is_null(value)) {
        return otherwise;
    }
    double number = json_number_value(value);
    return number >= 1 && number <= 1e9 ? floor(number) : 0;
}

/* The weights of a transformer with gated feed-forward layers, which may be experts, some after a few that
 * are not. */
static double count_weights(const json_t *json) {
    double hidden = member(json, "hidden_size", 0), layers = member(json, "num_hidden_layers", 0);
    double heads = member(json, "num_attention_heads", 0), vocabulary = member(json, "vocab_size", 0);
    double pairs = member(json, "num_key_value_heads", heads);
    double width = member(json, "head_dim", heads > 0 ? hidden / heads : 0);
    double inner = member(json, "intermediate_size", 0);
    double experts =
        member(json, "num_experts", member(json, "num_local_experts", member(json, "n_routed_experts", 1)));
    double expert = experts > 1 ? member(json, "moe_intermediate_size", inner) : inner;
    double shared = experts > 1 ? member(json, "n_shared_experts", 0) : 0;
    double dense = experts > 1 ? fmin(member(json, "first_k_dense_replace", 0), layers) : 0;
    double attention = 2 * hidden * width * (heads + pairs);
    double forward = 3 * hidden * expert * (experts + shared) + (experts > 1 ? hidden * experts : 0);
    double embedding =
        hidden * vocabulary * (json_is_true(json_object_get(json, "tie_word_embeddings")) ? 1 : 2);
    bool known = hidden * layers * heads * vocabulary * expert > 0;
    return known ? embedding + layers * (attention + 2 * hidden) + (layers - dense) * forward +
                       dense * 3 * hidden * inner + hidden
                 : 0;
}

bool plan_config_count(const char *text, size_t size, uint64_t *parameters_out) {
    json_t *json = json_loadb(text, size, 0, NULL);
    double weights = count_weights(json);
    json_decref(json);
    if (!(weights >= PLAN_PARAMETERS_LEAST && weights <= PLAN_PARAMETERS_MOST)) {
        return false;
    }
    *parameters_out = (uint64_t)weights;
    return true;
}
