/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h: the sizes of a model. They may come from outside, in a checkpoint or a store: nothing is
 * allocated by them before lm_config_check has passed them.
 */
#ifndef WEFT_LM_MODEL_CONFIG_H
#define WEFT_LM_MODEL_CONFIG_H

#include <weft/base.h>

typedef uint16_t lm_token;

enum {
    LM_VOCABULARY_MAX = 1 << 16,
    LM_WIDTH_MAX = 4096,
    LM_LAYERS_MAX = 64,
    LM_FEED_FORWARD_MAX = 16384,
    LM_CONTEXT_MAX = 4096,
    LM_PARAMETERS_MAX = 64 << 20,
};

typedef struct lm_config {
    uint32_t vocabulary;
    uint32_t width;
    uint32_t layers;
    uint32_t heads;
    uint32_t kv_heads; /* divides heads */
    uint32_t feed_forward;
    uint32_t context; /* the longest sequence */
    bool tied;        /* the output matrix is the embedding */
    double rope_base;
    double norm_epsilon;
} lm_config;

static inline size_t lm_config_head(const lm_config *config) {
    return config->width / config->heads;
}
static inline size_t lm_config_kv(const lm_config *config) {
    return config->kv_heads * lm_config_head(config);
}

/* WEFT_INVALID_ARGUMENT if no model can have these sizes, or none that this room would run. */
WEFT_CHECKED weft_status lm_config_check(weft_context *context, const lm_config *config);
bool lm_config_equal(const lm_config *a, const lm_config *b);
/* Only for a config that was checked. */
size_t lm_config_parameters(const lm_config *config);

/* JSON with the keys of a Hugging Face config.json for Llama. The text is the caller's, to be released with
 * weft_release. */
WEFT_CHECKED weft_status lm_config_format(weft_context *context, const lm_config *config, char **text_out);
/* Parses and checks. */
WEFT_CHECKED weft_status lm_config_parse(weft_context *context, const char *text, size_t size,
                                         lm_config *config_out);

#endif
