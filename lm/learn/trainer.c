/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.c: see trainer.h.
 */
#include "trainer.h"

#include "../../lib/base/context.h"

#include <string.h>

static weft_status build(lm_trainer *trainer, weft_context *context, const lm_config *config) {
    weft_status status = lm_model_create(context, config, LM_TRAINER, &trainer->model);
    if (status == WEFT_OK) {
        status = lm_adam_create(trainer->model, &trainer->adam);
    }
    if (status == WEFT_OK) {
        status = lm_pass_create(trainer->model, true, &trainer->pass);
    }
    if (status != WEFT_OK) {
        return status;
    }
    trainer->gradient = weft_allocate_array(context, trainer->model->parameters, sizeof(float));
    return trainer->gradient != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

static void release_parts(lm_trainer *trainer, weft_context *context) {
    weft_release(context, trainer->gradient);
    lm_pass_destroy(trainer->pass);
    lm_adam_destroy(trainer->adam);
    lm_model_destroy(trainer->model);
    weft_release(context, trainer);
}

weft_status lm_trainer_create(weft_context *context, const lm_config *config, lm_trainer **trainer_out) {
    lm_trainer *trainer = weft_allocate_zeroed(context, 1, sizeof *trainer);
    if (trainer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = build(trainer, context, config);
    if (status != WEFT_OK) {
        release_parts(trainer, context);
        return status;
    }
    *trainer_out = trainer;
    return WEFT_OK;
}

void lm_trainer_destroy(lm_trainer *trainer) {
    if (trainer != NULL) {
        release_parts(trainer, trainer->model->context);
    }
}

static bool is_zero(const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (values[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Along the gradient that all who share it have. Momentum alone would still move the weights: where nobody
 * has anything to say, all of them leave the step out. */
static weft_status step_along(lm_trainer *trainer, const lm_adam_options *options, bool *stepped_out,
                              double *norm_out) {
    bool left_out = false;
    weft_status status = WEFT_OK;
    if (trainer->reduce != NULL) {
        status = trainer->reduce(trainer->reduce_opaque);
        left_out = status == WEFT_OK && is_zero(trainer->gradient, trainer->model->parameters);
    }
    if (status == WEFT_OK && !left_out) {
        status = lm_adam_run(trainer->adam, options, trainer->gradient, norm_out);
    }
    *stepped_out = !left_out;
    return status;
}

weft_status lm_trainer_step(lm_trainer *trainer, const lm_batch *batch, float temperature,
                            lm_slope_function slope, void *opaque, const lm_adam_options *options,
                            float *logp, double *norm_out) {
    bool stepped;
    memset(trainer->gradient, 0, trainer->model->parameters * sizeof *trainer->gradient);
    weft_status status =
        lm_gradient(trainer->pass, batch, temperature, slope, opaque, trainer->gradient, logp);
    return status == WEFT_OK ? step_along(trainer, options, &stepped, norm_out) : status;
}

weft_status lm_trainer_follow(lm_trainer *trainer, const lm_adam_options *options, bool *stepped_out,
                              double *norm_out) {
    *stepped_out = false;
    if (trainer->reduce == NULL) {
        return WEFT_OK;
    }
    memset(trainer->gradient, 0, trainer->model->parameters * sizeof *trainer->gradient);
    return step_along(trainer, options, stepped_out, norm_out);
}

/* ---- rollouts ---- */

typedef struct prompt_list {
    size_t *starts;
    lm_token *tokens;
    uint64_t *streams;
} prompt_list;

static void release_prompts(weft_context *context, prompt_list *list) {
    weft_release(context, list->streams);
    weft_release(context, list->tokens);
    weft_release(context, list->starts);
}

static weft_status make_prompts(weft_context *context, const lm_task *task,
                                const lm_rollout_options *options, prompt_list *list) {
    size_t size = lm_task_prompt_size(task);
    size_t count = options->prompts * options->group;
    list->starts = weft_allocate_array(context, count + 1, sizeof *list->starts);
    list->tokens = weft_allocate_array(context, count * size, sizeof *list->tokens);
    list->streams = weft_allocate_array(context, count, sizeof *list->streams);
    if (list->starts == NULL || list->tokens == NULL || list->streams == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t number = options->first + i / options->group;
        list->starts[i] = i * size;
        list->streams[i] = number * options->group + i % options->group;
        lm_task_prompt(task, options->seed, number, list->tokens + i * size);
    }
    list->starts[count] = count * size;
    return WEFT_OK;
}

static void reward_samples(const lm_task *task, const lm_samples *samples, float *rewards) {
    for (size_t s = 0; s < samples->sequences; s++) {
        const lm_token *tokens = samples->tokens + samples->starts[s];
        size_t prompt = samples->prompts[s];
        rewards[s] = lm_task_reward(task, tokens, prompt, tokens + prompt,
                                    samples->starts[s + 1] - samples->starts[s] - prompt);
    }
}

static weft_status check_rollout(const lm_model *model, const lm_task *task,
                                 const lm_rollout_options *options) {
    enum { MOST = 1 << 20 };
    if (options->prompts < 1 || options->group < 1 || options->prompts > MOST || options->group > MOST ||
        options->prompts * options->group > MOST) {
        return weft_fail(
            model->context, WEFT_INVALID_ARGUMENT,
            "%zu prompts with %zu responses each cannot be rolled out at once; choose 1 to %d in all",
            options->prompts, options->group, MOST);
    }
    if (model->config.vocabulary < LM_TASK_VOCABULARY) {
        return weft_fail(model->context, WEFT_INVALID_ARGUMENT,
                         "tasks need a vocabulary of %d tokens; the model has %u", LM_TASK_VOCABULARY,
                         model->config.vocabulary);
    }
    return lm_task_check(model->context, task);
}

weft_status lm_rollout(lm_model *model, const lm_task *task, const lm_rollout_options *options,
                       float *rewards, lm_samples **samples_out) {
    weft_status status = check_rollout(model, task, options);
    if (status != WEFT_OK) {
        return status;
    }
    prompt_list list = {0};
    lm_samples *samples = NULL;
    status = make_prompts(model->context, task, options, &list);
    if (status == WEFT_OK) {
        lm_batch prompts = {
            .sequences = options->prompts * options->group, .starts = list.starts, .tokens = list.tokens};
        lm_sampling sampling = {
            .temperature = options->temperature,
            .seed = ~options->seed,
            .limit = lm_task_response_size(task),
            .stop = lm_task_stop(task),
            .kv = options->kv,
            .kv_bytes = options->kv_bytes,
        };
        status = lm_generate(model, &prompts, list.streams, &sampling, &samples);
    }
    release_prompts(model->context, &list);
    if (status == WEFT_OK) {
        reward_samples(task, samples, rewards);
        *samples_out = samples;
    }
    return status;
}

weft_status lm_evaluate(lm_model *model, const lm_task *task, const lm_rollout_options *options,
                        double *success_out) {
    weft_status status = check_rollout(model, task, options);
    if (status != WEFT_OK) {
        return status;
    }
    size_t count = options->prompts * options->group;
    lm_samples *samples = NULL;
    float *rewards = weft_allocate_array(model->context, count, sizeof *rewards);
    if (rewards == NULL) {
        return WEFT_NO_MEMORY;
    }
    status = lm_rollout(model, task, options, rewards, &samples);
    double sum = 0;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        sum += (double)rewards[i];
    }
    lm_samples_destroy(samples);
    weft_release(model->context, rewards);
    if (status == WEFT_OK) {
        *success_out = sum / (double)count;
    }
    return status;
}
