/* SPDX-License-Identifier: Apache-2.0
 *
 * presets.h: models by name, from 0.1M to 27M parameters, for all that can be learned in minutes on a few
 * cores.
 */
#ifndef WEFT_LM_MODEL_PRESETS_H
#define WEFT_LM_MODEL_PRESETS_H

#include "config.h"

enum { LM_PRESETS = 6 };

typedef struct lm_preset {
    const char *name; /* "2M" */
    lm_config config; /* contexts of 64 tokens */
    double warm_rate; /* for learning from right answers */
    size_t warm_batch;
} lm_preset;

extern const lm_preset lm_presets[LM_PRESETS];
/* "0.1M, 0.6M, …", for people. */
#define LM_PRESET_NAMES "0.1M, 0.2M, 0.6M, 2M, 8M, 27M"
/* NULL if there is none of that name. */
const lm_preset *lm_preset_find(const char *name);
/* The smallest with so many parameters, about; the largest if none has. */
const lm_preset *lm_preset_of(uint64_t parameters);

#endif
