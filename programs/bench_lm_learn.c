/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm_learn.c: `weft bench --lm --learn`: one run of the small policy on chained sums: warm-up on
 * right answers until it succeeds sometimes, then policy steps from rewards alone. What a step would send
 * is counted on the way: the share of BF16 weights that it changes.
 */
#include "bench_lm.h"

#include "../lm/grpo.h"
#include "../lm/warmup.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 32, GROUP = 8, ROLLOUTS = PROMPTS * GROUP, EVALUATION = 1024, REPORT = 20, STEPS = 240 };

static const double usual_rate = 2e-4;
static const double warm_success = 0.45;

static const lm_config policy = {
    .vocabulary = LM_TASK_VOCABULARY,
    .width = 64,
    .layers = 2,
    .heads = 4,
    .kv_heads = 4,
    .feed_forward = 172,
    .context = 64,
    .tied = true,
    .rope_base = 10000,
    .norm_epsilon = 1e-5,
};

static const lm_task task = {.kind = LM_TASK_CHAIN, .steps = 32, .period = 6};

typedef struct learn_run {
    weft_command *command;
    lm_trainer *trainer;
    uint16_t *before;                            /* live words before a step */
    lm_model *samplers[BENCH_STALENESS_MAX + 1]; /* of the last versions, in turn */
    uint64_t seed;
    uint64_t steps;
    uint64_t staleness; /* versions that the sampler is behind */
    lm_warmup_result warm;
    double warm_seconds;
    double start; /* success when the policy steps begin, and after them */
    double end;
    double first_rewards; /* means of the first and of the last steps */
    double last_rewards;
    double step_seconds;
    double changed; /* share of weights, mean over steps */
    double rate;
} learn_run;

static bool watch(void *opaque, uint64_t step, double loss, double success) {
    const learn_run *run = opaque;
    command_note(run->command, "warm-up step %llu: loss %.3f, success %.3f", (unsigned long long)step, loss,
                 success);
    return command_interrupted() == EXIT_DONE;
}

static weft_status warm_up(learn_run *run) {
    lm_warmup_options options = lm_warmup_defaults();
    options.seed = run->seed;
    options.success = warm_success;
    options.watcher = watch;
    options.opaque = run;
    double start = clock_seconds();
    weft_status status = lm_model_initialise(run->trainer->model, run->seed);
    if (status == WEFT_OK) {
        status = lm_warmup(run->trainer, &task, &options, &run->warm);
    }
    run->warm_seconds = clock_seconds() - start;
    lm_adam_reset(run->trainer->adam);
    return status;
}

static weft_status evaluate(learn_run *run, double *success_out) {
    lm_rollout_options options = {
        .seed = run->seed + 2000000, .prompts = EVALUATION, .group = 1, .temperature = 1};
    return lm_evaluate(run->trainer->model, &task, &options, success_out);
}

static void count_changes(learn_run *run) {
    const lm_model *model = run->trainer->model;
    size_t changed = 0;
    for (size_t i = 0; i < model->parameters; i++) {
        changed += run->before[i] != model->live[i];
    }
    run->changed += (double)changed / (double)model->parameters / (double)run->steps;
}

static lm_model *sampler_at(const learn_run *run, uint64_t step) {
    return run->samplers[step % (run->staleness + 1)];
}

static weft_status open_samplers(learn_run *run) {
    const lm_model *model = run->trainer->model;
    weft_status status = WEFT_OK;
    for (uint64_t i = 0; i <= run->staleness && status == WEFT_OK; i++) {
        status = lm_model_create(model->context, &model->config, LM_WORKER, &run->samplers[i]);
        if (status == WEFT_OK) {
            status = lm_model_copy(run->samplers[i], model);
        }
    }
    return status;
}

static void close_samplers(learn_run *run) {
    for (uint64_t i = 0; i <= run->staleness; i++) {
        lm_model_destroy(run->samplers[i]);
    }
}

/* The version that a step makes is sampled from by a later one: the next if nobody is behind. */
static weft_status policy_step(learn_run *run, const lm_grpo_options *options, uint64_t step,
                               lm_grpo_result *result) {
    float rewards[ROLLOUTS];
    lm_samples *samples = NULL;
    const lm_model *model = run->trainer->model;
    lm_rollout_options rollout = {.seed = run->seed + 1000000,
                                  .first = step * PROMPTS,
                                  .prompts = PROMPTS,
                                  .group = GROUP,
                                  .temperature = 1};
    memcpy(run->before, model->live, model->parameters * sizeof *run->before);
    weft_status status = lm_rollout(sampler_at(run, step), &task, &rollout, rewards, &samples);
    if (status == WEFT_OK) {
        lm_rollouts rollouts = {
            .batch = lm_samples_batch(samples),
            .prompts = samples->prompts,
            .logp = samples->logp,
            .rewards = rewards,
            .group = GROUP,
        };
        status = lm_grpo_step(run->trainer, &rollouts, options, NULL, result);
        count_changes(run);
    }
    lm_samples_destroy(samples);
    if (status == WEFT_OK) {
        status = lm_model_copy(sampler_at(run, step), model);
    }
    return status;
}

static weft_status policy_steps(learn_run *run) {
    lm_grpo_options options = lm_grpo_defaults();
    lm_grpo_result result;
    weft_status status = WEFT_OK;
    double reward = 0;
    double start = clock_seconds();
    options.adam.rate = run->rate;
    for (uint64_t step = 0; step < run->steps && status == WEFT_OK; step++) {
        status =
            command_interrupted() == EXIT_DONE ? policy_step(run, &options, step, &result) : WEFT_CANCELLED;
        reward += status == WEFT_OK ? result.reward / REPORT : 0;
        if (status == WEFT_OK && (step + 1) % REPORT == 0) {
            run->first_rewards = step < REPORT ? reward : run->first_rewards;
            run->last_rewards = reward;
            command_note(run->command, "policy step %llu: mean reward of the last %d %.3f",
                         (unsigned long long)(step + 1), REPORT, reward);
            reward = 0;
        }
    }
    run->step_seconds = (clock_seconds() - start) / (double)run->steps;
    return status;
}

static int print_results(const learn_run *run) {
    weft_command *command = run->command;
    if (!command->json) {
        printf("chained sums, %zu parameters, seed %llu\n", run->trainer->model->parameters,
               (unsigned long long)run->seed);
        printf("warm-up       %llu steps, %.1f s\n", (unsigned long long)run->warm.steps,
               run->warm_seconds);
        printf(
            "policy steps  %llu with rate %g and staleness %llu, %.2f s each; a step changes %.2f%% of the "
            "BF16 weights\n",
            (unsigned long long)run->steps, run->rate, (unsigned long long)run->staleness,
            run->step_seconds, 100 * run->changed);
        printf("reward        %.3f in the first %d steps, %.3f in the last\n", run->first_rewards, REPORT,
               run->last_rewards);
        printf("success       %.3f before, %.3f after, on %d fresh prompts\n", run->start, run->end,
               EVALUATION);
        return EXIT_DONE;
    }
    json_t *json = json_object();
    json_object_set_new(json, "parameters", json_count(run->trainer->model->parameters));
    json_object_set_new(json, "seed", json_count(run->seed));
    json_object_set_new(json, "warm_up_steps", json_count(run->warm.steps));
    json_object_set_new(json, "warm_up_seconds", json_real(run->warm_seconds));
    json_object_set_new(json, "policy_steps", json_count(run->steps));
    json_object_set_new(json, "learning_rate", json_real(run->rate));
    json_object_set_new(json, "staleness", json_count(run->staleness));
    json_object_set_new(json, "seconds_per_step", json_real(run->step_seconds));
    json_object_set_new(json, "density", json_real(run->changed));
    json_object_set_new(json, "first_rewards", json_real(run->first_rewards));
    json_object_set_new(json, "last_rewards", json_real(run->last_rewards));
    json_object_set_new(json, "success_before", json_real(run->start));
    json_object_set_new(json, "success_after", json_real(run->end));
    return command_print_json(command, stdout, json);
}

static weft_status learn(learn_run *run) {
    weft_status status = warm_up(run);
    if (status == WEFT_OK) {
        status = evaluate(run, &run->start);
    }
    if (status == WEFT_OK) {
        status = open_samplers(run);
    }
    if (status == WEFT_OK) {
        status = policy_steps(run);
    }
    if (status == WEFT_OK) {
        status = evaluate(run, &run->end);
    }
    return status;
}

int bench_lm_learn(weft_command *command, const lm_bench_options *options) {
    learn_run run = {
        .command = command,
        .seed = options->seed,
        .steps = options->steps > 0 ? options->steps : STEPS,
        .staleness = options->staleness,
        .rate = options->rate > 0 ? options->rate : usual_rate,
    };
    weft_status status = lm_trainer_create(command->context, &policy, &run.trainer);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    int code = EXIT_DONE;
    run.before = calloc(run.trainer->model->parameters, sizeof *run.before);
    if (run.before == NULL) {
        code = command_error(command, EXIT_FAILED, "no memory");
    } else {
        status = learn(&run);
        code = command_interrupted();
    }
    if (code == EXIT_DONE) {
        code = status == WEFT_OK ? print_results(&run) : command_fail(command, NULL, status);
    }
    close_samplers(&run);
    free(run.before);
    lm_trainer_destroy(run.trainer);
    return code;
}
