/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c: checks a model's sizes and carries them as JSON.
 */
#include "config.h"

#include "../../lib/base/context.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

typedef struct size_field {
    const char *key; /* as Hugging Face spells it */
    size_t offset;
    uint32_t minimum;
    uint32_t maximum;
} size_field;

static const size_field size_fields[] = {
    {"vocab_size", offsetof(lm_config, vocabulary), 2, LM_VOCABULARY_MAX},
    {"hidden_size", offsetof(lm_config, width), 2, LM_WIDTH_MAX},
    {"num_hidden_layers", offsetof(lm_config, layers), 1, LM_LAYERS_MAX},
    {"num_attention_heads", offsetof(lm_config, heads), 1, LM_WIDTH_MAX / 2},
    {"num_key_value_heads", offsetof(lm_config, kv_heads), 1, LM_WIDTH_MAX / 2},
    {"intermediate_size", offsetof(lm_config, feed_forward), 1, LM_FEED_FORWARD_MAX},
    {"max_position_embeddings", offsetof(lm_config, context), 2, LM_CONTEXT_MAX},
};

enum { SIZE_FIELDS = sizeof size_fields / sizeof size_fields[0] };

static uint32_t get_size(const lm_config *config, const size_field *field) {
    uint32_t value;
    memcpy(&value, (const char *)config + field->offset, sizeof value);
    return value;
}

size_t lm_config_parameters(const lm_config *config) {
    size_t width = config->width;
    size_t attention = 2 * width * width + 2 * width * lm_config_kv(config);
    size_t layer = attention + 3 * width * config->feed_forward + 2 * width;
    size_t embeddings = (config->tied ? 1 : 2) * (size_t)config->vocabulary * width;
    return embeddings + config->layers * layer + width;
}

static weft_status check_heads(weft_context *context, const lm_config *config) {
    if (config->width % config->heads != 0 || lm_config_head(config) % 2 != 0) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "a model of width %u cannot have %u heads: each needs the same, even share of the width",
            config->width, config->heads);
    }
    if (config->kv_heads > config->heads || config->heads % config->kv_heads != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%u heads cannot share %u key-value heads: choose a divisor of %u", config->heads,
                         config->kv_heads, config->heads);
    }
    return WEFT_OK;
}

weft_status lm_config_check(weft_context *context, const lm_config *config) {
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        uint32_t value = get_size(config, &size_fields[i]);
        if (value < size_fields[i].minimum || value > size_fields[i].maximum) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT, "a model's %s is %u; it must be from %u to %u",
                             size_fields[i].key, value, size_fields[i].minimum, size_fields[i].maximum);
        }
    }
    weft_status status = check_heads(context, config);
    if (status != WEFT_OK) {
        return status;
    }
    if (!(config->rope_base >= 1 && config->rope_base <= 1e9) ||
        !(config->norm_epsilon > 0 && config->norm_epsilon <= 1e-2)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a model's rope_theta must be from 1 to 1e9 and its rms_norm_eps above 0 and at "
                         "most 0.01; they are %g and %g",
                         config->rope_base, config->norm_epsilon);
    }
    if (lm_config_parameters(config) > LM_PARAMETERS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a model of %zu parameters is too large; at most %d are supported: make it "
                         "narrower or give it fewer layers",
                         lm_config_parameters(config), LM_PARAMETERS_MAX);
    }
    return WEFT_OK;
}

bool lm_config_equal(const lm_config *a, const lm_config *b) {
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        if (get_size(a, &size_fields[i]) != get_size(b, &size_fields[i])) {
            return false;
        }
    }
    return a->tied == b->tied && a->rope_base == b->rope_base && a->norm_epsilon == b->norm_epsilon;
}

weft_status lm_config_format(weft_context *context, const lm_config *config, char **text_out) {
    json_t *json = json_object();
    json_object_set_new(json, "model_type", json_string("llama"));
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        json_object_set_new(json, size_fields[i].key, json_integer(get_size(config, &size_fields[i])));
    }
    json_object_set_new(json, "tie_word_embeddings", json_boolean(config->tied));
    json_object_set_new(json, "rope_theta", json_real(config->rope_base));
    json_object_set_new(json, "rms_norm_eps", json_real(config->norm_epsilon));
    json_object_set_new(json, "hidden_act", json_string("silu"));
    json_object_set_new(json, "torch_dtype", json_string("bfloat16"));
    char *dumped = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    if (dumped == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for the text of a model's config");
    }
    char *text = weft_copy_text(context, dumped, strlen(dumped));
    free(dumped);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    *text_out = text;
    return WEFT_OK;
}

static weft_status read_fields(weft_context *context, const json_t *json, lm_config *config) {
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        const json_t *value = json_object_get(json, size_fields[i].key);
        json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
        if (number < 0 || number > UINT32_MAX) {
            return weft_fail(context, WEFT_MALFORMED, "a model's config has no usable '%s'",
                             size_fields[i].key);
        }
        uint32_t size = (uint32_t)number;
        memcpy((char *)config + size_fields[i].offset, &size, sizeof size);
    }
    const json_t *tied = json_object_get(json, "tie_word_embeddings");
    const json_t *base = json_object_get(json, "rope_theta");
    const json_t *epsilon = json_object_get(json, "rms_norm_eps");
    if (!json_is_boolean(tied) || !json_is_number(base) || !json_is_number(epsilon)) {
        return weft_fail(context, WEFT_MALFORMED,
                         "a model's config needs tie_word_embeddings, rope_theta and rms_norm_eps");
    }
    config->tied = json_is_true(tied);
    config->rope_base = json_number_value(base);
    config->norm_epsilon = json_number_value(epsilon);
    return lm_config_check(context, config);
}

weft_status lm_config_parse(weft_context *context, const char *text, size_t size, lm_config *config_out) {
    json_error_t error;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(json)) {
        json_decref(json);
        return weft_fail(context, WEFT_MALFORMED, "a model's config is not a JSON object");
    }
    lm_config config = {0};
    weft_status status = read_fields(context, json, &config);
    json_decref(json);
    if (status == WEFT_OK) {
        *config_out = config;
    }
    return status;
}
