/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_rates.c: what a step of the policy that the demo has trained costs to send at the learning rates
 * that the papers use for models of billions of parameters.
 */
#include "demo.h"

#include "../../../lm/learn/rates.h"
#include "../../../lm/learn/state.h"

/* As in the demo's own batches; what counts here is how many weights a step moves, which needs no more. */
enum { RATES = 2, PROMPTS = 16, GROUP = 8 };

static const double papers_rates[RATES] = {3e-6, 1e-6};
/* Prompts that neither the run nor its evaluations have. */
static const uint64_t SEED = 7000000;

static bool watch(void *opaque, const lm_rates_step *step) {
    (void)opaque;
    (void)step;
    return command_interrupted() == EXIT_DONE;
}

static json_t *json_row(const lm_rates_row *row, uint64_t steps) {
    json_t *json = json_object(), *density = json_object(), *bytes = json_object();
    for (size_t i = 0; i < LM_RATES_DELAYS; i++) {
        char delay[TEXT_SIZE];
        const lm_rates_density *told = &row->density[i];
        snprintf(delay, sizeof delay, "%u", lm_rates_delays[i]);
        json_object_set_new(density, delay, told->windows > 0 ? json_real(told->mean) : json_null());
    }
    json_object_set_new(bytes, "sent", json_real(row->bytes));
    json_object_set_new(bytes, "patch", json_real(row->patch_bytes));
    json_object_set_new(bytes, "dense", json_count(row->dense_bytes));
    json_object_set_new(bytes, "reduction", json_ratio((double)row->dense_bytes, row->bytes));
    json_object_set_new(json, "rate", json_real(row->rate));
    json_object_set_new(json, "steps", json_count(steps));
    json_object_set_new(json, "density", density);
    json_object_set_new(json, "bytes", bytes);
    return json;
}

int demo_rates_measure(weft_command *command, const char *state, const char *directory, uint64_t steps,
                       json_t **rates_out) {
    lm_trainer *trainer = NULL;
    lm_progress progress;
    lm_rates_row rows[RATES];
    weft_status status = lm_state_open(command->context, state, &trainer, &progress);
    if (status == WEFT_OK) {
        const lm_rates_options options = {.task = progress.task,
                                          .grpo = lm_grpo_defaults(),
                                          .seed = SEED,
                                          .prompts = PROMPTS,
                                          .group = GROUP,
                                          .steps = steps,
                                          .directory = directory,
                                          .watcher = watch};
        for (size_t i = 0; i < RATES; i++) {
            rows[i] = (lm_rates_row){.rate = papers_rates[i]};
        }
        status = lm_rates_measure(trainer, &options, rows, RATES);
    }
    lm_trainer_destroy(trainer);
    if (status != WEFT_OK) {
        int code = command_interrupted();
        return code != EXIT_DONE ? code : command_fail(command, NULL, status);
    }
    *rates_out = json_array();
    for (size_t i = 0; i < RATES; i++) {
        json_array_append_new(*rates_out, json_row(&rows[i], steps));
    }
    return EXIT_DONE;
}
