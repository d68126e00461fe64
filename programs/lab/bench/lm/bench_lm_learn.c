/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm_learn.c: `weft bench --lm --learn`: one run of the small policy on chained sums: warm-up on
 * right answers until it succeeds sometimes, then policy steps from rewards alone. What a step would send
 * is counted on the way: the share of BF16 weights that it changes.
 */
#include "../bench.h"

#include "../../../../train/options.h"

#include <stdlib.h>
#include <string.h>

enum { EVALUATION = 1024, REPORT = 20 };

typedef struct learn_run {
    weft_command *command;
    train_options usual; /* with the rate and the steps that were asked for */
    lm_trainer *trainer;
    float *rewards;
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
} learn_run;

static bool watch(void *opaque, uint64_t step, double loss, double success) {
    const learn_run *run = opaque;
    command_note(run->command, "warm-up step %llu: loss %.3f, success %.3f", (unsigned long long)step, loss,
                 success);
    return command_interrupted() == EXIT_DONE;
}

static weft_status warm_up(learn_run *run) {
    lm_warmup_options options = run->usual.warmup;
    options.seed = run->seed;
    options.watcher = watch;
    options.opaque = run;
    double start = clock_seconds();
    weft_status status = lm_model_initialise(run->trainer->model, run->seed);
    if (status == WEFT_OK) {
        status = lm_warmup(run->trainer, &run->usual.run.task, &options, &run->warm);
    }
    run->warm_seconds = clock_seconds() - start;
    lm_adam_reset(run->trainer->adam);
    return status;
}

static weft_status evaluate(learn_run *run, double *success_out) {
    lm_rollout_options options = {
        .seed = run->seed + 2000000, .prompts = EVALUATION, .group = 1, .temperature = 1};
    return lm_evaluate(run->trainer->model, &run->usual.run.task, &options, success_out);
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
    const train_run *usual = &run->usual.run;
    lm_samples *samples = NULL;
    const lm_model *model = run->trainer->model;
    lm_rollout_options rollout = {.seed = run->seed + 1000000,
                                  .first = step * usual->prompts,
                                  .prompts = usual->prompts,
                                  .group = usual->group,
                                  .temperature = 1};
    memcpy(run->before, model->live, model->parameters * sizeof *run->before);
    weft_status status =
        lm_rollout(sampler_at(run, step), &run->usual.run.task, &rollout, run->rewards, &samples);
    if (status == WEFT_OK) {
        lm_rollouts rollouts = {
            .batch = lm_samples_batch(samples),
            .prompts = samples->prompts,
            .logp = samples->logp,
            .rewards = run->rewards,
            .group = usual->group,
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
    const lm_grpo_options *options = &run->usual.grpo;
    lm_grpo_result result;
    weft_status status = WEFT_OK;
    double reward = 0;
    double start = clock_seconds();
    for (uint64_t step = 0; step < run->steps && status == WEFT_OK; step++) {
        status =
            command_interrupted() == EXIT_DONE ? policy_step(run, options, step, &result) : WEFT_CANCELLED;
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
        printf("policy steps  %llu with rate %g and staleness %llu, %.2f s each; a step changes %.2f%% of "
               "the BF16 weights\n",
               (unsigned long long)run->steps, run->usual.grpo.adam.rate,
               (unsigned long long)run->staleness, run->step_seconds, 100 * run->changed);
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
    json_object_set_new(json, "learning_rate", json_real(run->usual.grpo.adam.rate));
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

int bench_lm_learn(weft_command *command, const bench_options *options) {
    learn_run run = {
        .command = command,
        .usual = train_options_defaults(),
        .seed = options->seed,
        .staleness = options->staleness,
    };
    run.steps = options->steps > 0 ? options->steps : run.usual.run.steps;
    if (options->rate > 0) {
        run.usual.grpo.adam.rate = options->rate;
    }
    weft_status status = lm_trainer_create(command->context, &run.usual.run.config, &run.trainer);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    int code = EXIT_DONE;
    run.before = calloc(run.trainer->model->parameters, sizeof *run.before);
    run.rewards = calloc((size_t)run.usual.run.prompts * run.usual.run.group, sizeof *run.rewards);
    if (run.before == NULL || run.rewards == NULL) {
        code = command_error(command, EXIT_FAILED, "no memory");
    } else {
        status = learn(&run);
        code = command_interrupted();
    }
    if (code == EXIT_DONE) {
        code = status == WEFT_OK ? print_results(&run) : command_fail(command, NULL, status);
    }
    close_samplers(&run);
    free(run.rewards);
    free(run.before);
    lm_trainer_destroy(run.trainer);
    return code;
}
