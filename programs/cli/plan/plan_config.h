/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_config.h: a model's size by its config.json.
 */
#ifndef WEFT_PROGRAMS_CLI_PLAN_PLAN_CONFIG_H
#define WEFT_PROGRAMS_CLI_PLAN_PLAN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many parameters a model that is planned for may have. */
#define PLAN_PARAMETERS_LEAST 1e3
#define PLAN_PARAMETERS_MOST 1e15

/* False if the text is no JSON, or has no sizes of a transformer. */
bool plan_config_count(const char *text, size_t size, uint64_t *parameters_out);

#endif
