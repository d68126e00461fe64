/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c: see options.h.
 */
#include "options.h"

#include "../lib/base/context.h"
#include "../lm/model/presets.h"

#include <string.h>

/* Five seeds of five rise by more than 0.3 with these, in step and one version behind: doc/RESULTS.md. */
train_options train_options_defaults(void) {
    train_options options = {
        .run =
            {
                .config = lm_presets[0].config,
                .task = {.kind = LM_TASK_CHAIN, .steps = 32, .period = 6, .digits = 3},
                .seed = 1,
                .steps = 240,
                .prompts = 32,
                .group = 8,
                .slots = 8,
                .temperature = 1,
                .sync = TRAIN_SYNC_PATCH,
                .trainers = 1,
                .local_steps = 1,
                .outer_rate = 0.7,
                .outer_momentum = 0.9,
                .kv = {.size = sizeof(weft_kv_options)},
            },
        .grpo = lm_grpo_defaults(),
        .warmup = lm_warmup_defaults(),
        .evaluation_interval = 20,
        .evaluation_prompts = 256,
        .deadline = 60,
        .patience = 600,
        .density_bytes = (uint64_t)1 << 30,
    };
    options.grpo.adam.rate = 2e-4;
    options.warmup.success = 0.45;
    return options;
}

static weft_status check_learning(weft_context *context, const train_options *options) {
    const lm_grpo_options *grpo = &options->grpo;
    if (grpo->updates < 1 || grpo->passes < 1 || grpo->passes > 1000 || !(grpo->clip_low >= 0) ||
        !(grpo->clip_high >= 0) || !(grpo->kl >= 0) || !(grpo->clip_low < 1) || !(grpo->clip_high < 1e6) ||
        !(grpo->kl < 1e6)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a step needs at least one update and 1 to 1000 passes, a lower clip from 0 to 1, "
                         "and an upper clip and a divergence weight that are not negative");
    }
    if (!(options->warmup.success >= 0 && options->warmup.success <= 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a warm-up cannot reach a success of %g; choose 0 (none) to 1",
                         options->warmup.success);
    }
    if (options->evaluation_prompts < 1 || options->evaluation_prompts > 1 << 16) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a policy is evaluated on 1 to %d prompts, not on %zu", 1 << 16,
                         options->evaluation_prompts);
    }
    weft_status status = lm_adam_check(context, &grpo->adam);
    return status == WEFT_OK ? lm_adam_check(context, &options->warmup.adam) : status;
}

weft_status train_options_check(weft_context *context, const train_options *options) {
    weft_status status = train_run_check(context, &options->run);
    if (status == WEFT_OK && options->run.steps < 1) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "a run needs at least one step");
    }
    if (status == WEFT_OK && !(options->patience > 0)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "patience needs a length of time above zero");
    }
    if (status == WEFT_OK && options->rank >= options->run.trainers) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "there is no rank %u of %u: ranks count from 0",
                           options->rank, options->run.trainers);
    }
    if (status == WEFT_OK && !(options->deadline > 0)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "a deadline needs a length of time above zero");
    }
    return status == WEFT_OK ? check_learning(context, options) : status;
}
