/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the config.json of `weft plan`. What is counted is a number of parameters that can be planned for.
 */
#include "../../programs/cli/plan/plan_config.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t parameters = 0;
    bool counted = plan_config_count((const char *)data, size, &parameters);
    if (counted &&
        ((double)parameters < PLAN_PARAMETERS_LEAST || (double)parameters > PLAN_PARAMETERS_MOST)) {
        abort();
    }
    return 0;
}
