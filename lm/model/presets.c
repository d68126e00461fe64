/* SPDX-License-Identifier: Apache-2.0
 *
 * presets.c: see presets.h. Widths are multiples of what the product of matrices computes at once.
 */
#include "presets.h"

#include <string.h>

enum { CONTEXT = 64 };

const lm_preset lm_presets[LM_PRESETS] = {
    {"0.1M", {16, 64, 2, 4, 4, 172, CONTEXT, true, 10000, 1e-5}, 1e-3, 128},
    {"0.2M", {16, 64, 5, 8, 2, 172, CONTEXT, true, 10000, 1e-5}, 1e-3, 128},
    {"0.6M", {16, 128, 3, 4, 4, 344, CONTEXT, true, 10000, 1e-5}, 1e-3, 64},
    {"2M", {16, 192, 6, 6, 2, 512, CONTEXT, true, 10000, 1e-5}, 1e-3, 64},
    {"8M", {16, 320, 7, 10, 5, 896, CONTEXT, true, 10000, 1e-5}, 5e-4, 64},
    {"27M", {512, 512, 9, 8, 4, 1376, CONTEXT, false, 10000, 1e-5}, 3e-4, 64},
};

const lm_preset *lm_preset_find(const char *name) {
    for (size_t i = 0; i < LM_PRESETS; i++) {
        if (strcmp(lm_presets[i].name, name) == 0) {
            return &lm_presets[i];
        }
    }
    return NULL;
}

const lm_preset *lm_preset_of(uint64_t parameters) {
    const double slack = 0.9;
    size_t i = 0;
    while (i + 1 < LM_PRESETS &&
           (double)lm_config_parameters(&lm_presets[i].config) < slack * (double)parameters) {
        i++;
    }
    return &lm_presets[i];
}
