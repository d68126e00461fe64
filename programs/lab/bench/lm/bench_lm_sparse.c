/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm_sparse.c: `weft bench --lm --sparse ARM`: one run of learning from responses that were sampled
 * with a compressed cache of keys and values, in one process. The policy is warmed up on right answers;
 * then each step samples under the arm's KV-cache policy, scores the responses with a whole cache, and
 * learns with the arm's correction. What comes out is measured with a whole cache and with compressed ones.
 *
 * An arm is `dense`, or POLICY:BUDGET:CORRECTION. A budget may have options of the cache behind it, such as
 * 32+prompt+common0.8: keep_prompt, and in the same way common, share, sinks, window and interval. A
 * correction is a preset, with options behind it: +veto (at 1e-4, or +veto1e-8) and -veto add the veto or
 * take it away, +exclude leaves rejected responses out of the baseline, +normalise divides weights by their
 * mean, +geometric2 rejects sequences whose geometric mean is not between 1/2 and 2, and +temperature1.5
 * samples and learns at this temperature, while success stays that at 1. Or it is
 *
 *     naive   none: ratios are against the policy with a whole cache, as if that had sampled
 *     bypass  none: ratios are against the sampler
 */
#include "../bench.h"

#include "../../../../lm/model/pass.h"
#include "../../../../train/learner/learner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    EVALUATION = 1024,
    QUICK_EVALUATION = 64,
    REPORT = 10,
    CHAIN = 56,
    LONG_CHAIN = 106,
    INTERVAL = 4,

    ARM_SIZE = 64,
    DEPLOYMENTS = 6
};

static const uint64_t WARM_SEED = 1; /* all runs begin with the same policy */
static const double RATE = 1e-4;
static const double VETO = 1e-4;

/* What trained policies are deployed with, where it evicts anything, besides the arm's own. */
static const struct {
    weft_kv_policy policy;
    size_t budget;
} deployments[DEPLOYMENTS] = {
    {WEFT_KV_RKV, 60},    {WEFT_KV_RKV, 28},    {WEFT_KV_RKV, 16},
    {WEFT_KV_SNAPKV, 60}, {WEFT_KV_SNAPKV, 28}, {WEFT_KV_SNAPKV, 16},
};

/* Sums over steps. */
typedef struct sparse_sums {
    double steps;
    double reward;
    double distance; /* mean of |log xi| */
    double k3;
    double rejected; /* share of sequences */
    double masked;   /* share of tokens */
    double below;    /* share of sequences with a token that the veto would reject */
    double effective;
    double skipped; /* updates */
} sparse_sums;

typedef struct sparse_run {
    weft_command *command;
    const char *arm;
    weft_kv_options kv;
    bool bypass;
    train_options usual;
    lm_trainer *trainer;
    float *rewards;
    float *old;        /* of each token */
    sparse_sums *sums; /* of REPORT steps each */
    size_t sum_count;
    weft_kv_usage usage; /* counts summed, bytes at their most */
    uint64_t tokens;
    double sample_seconds;
    double train_seconds;
    double before[2]; /* success with a whole cache, and under the arm's policy */
    double after[2];
    double deployed[DEPLOYMENTS];
} sparse_run;

/* ---- arms ---- */

static weft_kv_options choose_kv(weft_kv_policy policy, size_t budget) {
    weft_kv_options kv = {.size = sizeof kv};
    weft_kv_defaults(policy, budget, &kv);
    kv.interval = INTERVAL;
    return kv;
}

/* A name with a number behind it. */
static bool parse_behind(const char *text, const char *name, double *value_out) {
    size_t length = strlen(name);
    char *end = NULL;
    if (strncmp(text, name, length) != 0) {
        return false;
    }
    *value_out = strtod(text + length, &end);
    return end != text + length && *end == 0 && *value_out >= 0 && *value_out <= 1 << 20;
}

/* One option behind a budget: a name, and for most a number. */
static bool choose_option(weft_kv_options *kv, const char *text) {
    const struct {
        const char *name;
        size_t *tokens;
        double *part;
    } known[] = {{"sinks", &kv->sinks, NULL},
                 {"window", &kv->window, NULL},
                 {"interval", &kv->interval, NULL},
                 {"share", NULL, &kv->share},
                 {"common", NULL, &kv->common}};
    if (strcmp(text, "prompt") == 0) {
        kv->keep_prompt = true;
        return true;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        double value = 0;
        if (parse_behind(text, known[i].name, &value)) {
            if (known[i].tokens != NULL) {
                *known[i].tokens = (size_t)value;
            } else {
                *known[i].part = value;
            }
            return true;
        }
    }
    return false;
}

/* BUDGET, and options behind it. */
static bool parse_budget(weft_kv_policy policy, char *text, weft_kv_options *kv_out) {
    char *rest = NULL;
    uint64_t budget = 0;
    if (!text_parse_unsigned(strtok_r(text, "+", &rest), 1 << 20, &budget)) {
        return false;
    }
    *kv_out = choose_kv(policy, budget);
    for (const char *option = NULL; (option = strtok_r(NULL, "+", &rest)) != NULL;) {
        if (!choose_option(kv_out, option)) {
            return false;
        }
    }
    return true;
}

/* One option behind a correction. False if there is no such. */
static bool adjust_correction(sparse_run *run, const char *text) {
    weft_context *context = run->command->context;
    weft_correction_options *chosen = &run->usual.grpo.correction;
    double bound = 0;
    if (strcmp(text, "exclude") == 0) {
        chosen->baseline_excludes_rejected = true;
    } else if (strcmp(text, "normalise") == 0) {
        chosen->normalise = true;
    } else if (strcmp(text, "veto") == 0) {
        chosen->veto = VETO;
    } else if (parse_behind(text, "veto", &bound)) {
        chosen->veto = bound;
    } else if (parse_behind(text, "temperature", &bound)) {
        run->usual.run.temperature = bound;
        run->usual.grpo.temperature = (float)bound;
    } else if (parse_behind(text, "geometric", &bound) && bound > 1) {
        return weft_correction_reject(context, chosen, "seq_mean_k1", 1 / bound, bound) == WEFT_OK;
    } else {
        return false;
    }
    return true;
}

static bool choose_correction(sparse_run *run, char *text) {
    weft_context *context = run->command->context;
    weft_correction_options *chosen = &run->usual.grpo.correction;
    char *rest = NULL;
    size_t length = strlen(text);
    bool less = length > strlen("-veto") && strcmp(text + length - strlen("-veto"), "-veto") == 0;
    if (less) {
        text[length - strlen("-veto")] = 0;
    }
    const char *name = strtok_r(text, "+", &rest);
    run->bypass = name != NULL && strcmp(name, "bypass") == 0;
    bool none = name == NULL || run->bypass || strcmp(name, "naive") == 0;
    bool known = weft_correction_preset(context, none ? "none" : name, chosen) == WEFT_OK;
    for (const char *option = NULL; known && (option = strtok_r(NULL, "+", &rest)) != NULL;) {
        known = adjust_correction(run, option);
    }
    chosen->veto = less ? 0 : chosen->veto;
    return known;
}

static int parse_arm(sparse_run *run, const char *arm) {
    weft_command *command = run->command;
    char text[ARM_SIZE];
    char *rest = NULL;
    weft_kv_policy policy = WEFT_KV_NONE;
    snprintf(text, sizeof text, "%s", arm);
    run->arm = arm;
    run->kv = choose_kv(WEFT_KV_NONE, 0);
    if (strcmp(arm, "dense") == 0) {
        return EXIT_DONE;
    }
    const char *name = strtok_r(text, ":", &rest);
    char *tokens = strtok_r(NULL, ":", &rest);
    char *correction = strtok_r(NULL, ":", &rest);
    if (strlen(arm) >= sizeof text || correction == NULL || strtok_r(NULL, ":", &rest) != NULL ||
        !weft_kv_policy_parse(name, &policy) || !parse_budget(policy, tokens, &run->kv)) {
        return command_error(command, EXIT_USAGE,
                             "--sparse takes dense or POLICY:BUDGET:CORRECTION, such as rkv:20:tis or "
                             "snapkv:32+prompt+common0.8:tis, not '%s'",
                             arm);
    }
    if (weft_kv_check(command->context, &run->kv) != WEFT_OK || !choose_correction(run, correction)) {
        const char *why = weft_context_error(command->context);
        return command_error(command, EXIT_USAGE, "--sparse %s: %s", arm,
                             *why != 0 ? why : "there is no such correction");
    }
    return EXIT_DONE;
}

/* ---- a step ---- */

static void count_usage(sparse_run *run, const weft_kv_usage *usage) {
    weft_kv_usage *total = &run->usage;
    total->held += usage->held;
    total->full += usage->full;
    total->evictions += usage->evictions;
    total->peak_bytes = usage->peak_bytes > total->peak_bytes ? usage->peak_bytes : total->peak_bytes;
    total->peak_full_bytes =
        usage->peak_full_bytes > total->peak_full_bytes ? usage->peak_full_bytes : total->peak_full_bytes;
}

static void count_step(sparse_run *run, uint64_t step, const lm_samples *samples,
                       const lm_grpo_result *result) {
    sparse_sums *sums = &run->sums[step / REPORT];
    const weft_correction_diagnostics *found = &result->correction;
    run->sum_count = step / REPORT + 1;
    sums->steps += 1;
    sums->reward += result->reward;
    sums->k3 += found->kl_k3;
    sums->rejected += (double)found->rejected / (double)found->sequences;
    sums->masked += (double)found->masked / (double)found->tokens;
    sums->effective += found->effective;
    sums->skipped += (double)result->skipped;
    /* Sampler against old policy, whatever the correction makes of it. */
    double distance = 0;
    size_t tokens = 0;
    size_t below = 0;
    for (size_t s = 0; s < samples->sequences; s++) {
        bool low = false;
        for (size_t i = samples->starts[s] + samples->prompts[s]; i < samples->starts[s + 1]; i++) {
            double log_xi = (double)run->old[i] - (double)samples->logp[i];
            distance += fabs(log_xi);
            low = low || log_xi < log(VETO);
            tokens++;
        }
        below += low;
    }
    sums->distance += distance / (double)tokens;
    sums->below += (double)below / (double)samples->sequences;
    count_usage(run, &samples->kv);
    run->tokens += samples->starts[samples->sequences];
}

static weft_status learn(sparse_run *run, const lm_samples *samples, lm_grpo_result *result) {
    lm_rollouts rollouts = {
        .batch = lm_samples_batch(samples),
        .prompts = samples->prompts,
        .logp = samples->logp,
        .old = run->bypass ? NULL : run->old,
        .rewards = run->rewards,
        .group = run->usual.run.group,
    };
    weft_status status =
        lm_score(run->trainer->pass, &rollouts.batch, run->usual.grpo.temperature, run->old);
    return status == WEFT_OK ? lm_grpo_step(run->trainer, &rollouts, &run->usual.grpo, NULL, result)
                             : status;
}

static weft_status policy_step(sparse_run *run, uint64_t step) {
    lm_samples *samples = NULL;
    lm_grpo_result result;
    lm_rollout_options rollout = train_slot_rollout(&run->usual.run, step, 0);
    rollout.kv = &run->kv;
    double start = clock_seconds();
    weft_status status =
        lm_rollout(run->trainer->model, &run->usual.run.task, &rollout, run->rewards, &samples);
    double sampled = clock_seconds();
    if (status == WEFT_OK) {
        status = learn(run, samples, &result);
    }
    run->sample_seconds += sampled - start;
    run->train_seconds += clock_seconds() - sampled;
    if (status == WEFT_OK) {
        count_step(run, step, samples, &result);
    }
    lm_samples_destroy(samples);
    return status;
}

static weft_status policy_steps(sparse_run *run) {
    weft_status status = WEFT_OK;
    for (uint64_t step = 0; step < run->usual.run.steps && status == WEFT_OK; step++) {
        status = command_interrupted() == EXIT_DONE ? policy_step(run, step) : WEFT_CANCELLED;
        const sparse_sums *sums = &run->sums[step / REPORT];
        if (status == WEFT_OK && sums->steps == REPORT) {
            command_note(run->command, "%s: step %llu, reward %.3f, |log xi| %.3f, rejected %.3f", run->arm,
                         (unsigned long long)step + 1, sums->reward / REPORT, sums->distance / REPORT,
                         sums->rejected / REPORT);
        }
    }
    return status;
}

/* ---- before and after ---- */

static weft_status evaluate(sparse_run *run, const weft_kv_options *kv, size_t prompts,
                            double *success_out) {
    lm_rollout_options options = train_evaluation(&run->usual.run, prompts);
    options.kv = kv;
    options.temperature = 1;
    return lm_evaluate(run->trainer->model, &run->usual.run.task, &options, success_out);
}

static weft_status evaluate_both(sparse_run *run, double success[2]) {
    weft_status status = evaluate(run, NULL, run->usual.evaluation_prompts, &success[0]);
    return status == WEFT_OK ? evaluate(run, &run->kv, run->usual.evaluation_prompts, &success[1]) : status;
}

/* The last token is not in a cache. */
static bool evicts(const sparse_run *run, size_t deployment) {
    return deployments[deployment].budget + INTERVAL < run->usual.run.config.context - 1;
}

static weft_status deploy(sparse_run *run) {
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < DEPLOYMENTS && status == WEFT_OK; i++) {
        weft_kv_options kv = choose_kv(deployments[i].policy, deployments[i].budget);
        if (evicts(run, i)) {
            status = evaluate(run, &kv, run->usual.evaluation_prompts / 2, &run->deployed[i]);
        }
    }
    return status;
}

static void on_note(void *opaque, const char *text) {
    const sparse_run *run = opaque;
    command_note(run->command, "%s", text);
}

static weft_status run_arm(sparse_run *run) {
    const train_watch watch = {.note = on_note, .warn = on_note, .opaque = run};
    train_options warm = run->usual;
    warm.watch = &watch;
    warm.run.seed = WARM_SEED;
    weft_status status = train_warm_up(run->trainer, &warm);
    if (status == WEFT_OK) {
        status = evaluate_both(run, run->before);
    }
    if (status == WEFT_OK) {
        status = policy_steps(run);
    }
    if (status == WEFT_OK) {
        status = evaluate_both(run, run->after);
    }
    return status == WEFT_OK ? deploy(run) : status;
}

/* ---- what is told ---- */

static json_t *json_sums(const sparse_sums *sums) {
    json_t *json = json_object();
    json_object_set_new(json, "reward", json_real(sums->reward / sums->steps));
    json_object_set_new(json, "distance", json_real(sums->distance / sums->steps));
    json_object_set_new(json, "k3", json_real(sums->k3 / sums->steps));
    json_object_set_new(json, "rejected", json_real(sums->rejected / sums->steps));
    json_object_set_new(json, "masked", json_real(sums->masked / sums->steps));
    json_object_set_new(json, "below_veto", json_real(sums->below / sums->steps));
    json_object_set_new(json, "ess", json_real(sums->effective / sums->steps));
    json_object_set_new(json, "skipped", json_real(sums->skipped));
    return json;
}

static json_t *json_deployed(const sparse_run *run) {
    json_t *json = json_object();
    for (size_t i = 0; i < DEPLOYMENTS; i++) {
        char name[ARM_SIZE];
        snprintf(name, sizeof name, "%s:%zu", weft_kv_policy_name(deployments[i].policy),
                 deployments[i].budget);
        if (evicts(run, i)) {
            json_object_set_new(json, name, json_real(run->deployed[i]));
        }
    }
    return json;
}

static int print_json(const sparse_run *run) {
    const train_run *usual = &run->usual.run;
    json_t *series = json_array();
    for (size_t i = 0; i < run->sum_count; i++) {
        json_array_append_new(series, json_sums(&run->sums[i]));
    }
    json_t *json = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:{s:f, s:f}, s:{s:f, s:f}, s:o, s:o, s:{s:I, s:I, s:I, s:I}, "
        "s:I, s:{s:f, s:f}}",
        "arm", run->arm, "seed", (json_int_t)usual->seed, "parameters",
        (json_int_t)run->trainer->model->parameters, "steps", (json_int_t)usual->steps, "length",
        (json_int_t)(lm_task_prompt_size(&usual->task) + usual->task.steps), "series_steps",
        (json_int_t)REPORT, "rate", run->usual.grpo.adam.rate, "before", "dense", run->before[0], "sparse",
        run->before[1], "after", "dense", run->after[0], "sparse", run->after[1], "deployed",
        json_deployed(run), "series", series, "kv", "held", (json_int_t)run->usage.held, "full",
        (json_int_t)run->usage.full, "peak_bytes", (json_int_t)run->usage.peak_bytes, "dense_bytes",
        (json_int_t)run->usage.peak_full_bytes, "tokens", (json_int_t)run->tokens, "seconds", "sample",
        run->sample_seconds, "train", run->train_seconds);
    return command_print_json(run->command, stdout, json);
}

static int print_results(const sparse_run *run) {
    const weft_kv_usage *usage = &run->usage;
    if (run->command->json) {
        return print_json(run);
    }
    const sparse_sums *last = &run->sums[run->sum_count - 1];
    printf("%s, seed %llu, %llu steps with rate %g\n", run->arm, (unsigned long long)run->usual.run.seed,
           (unsigned long long)run->usual.run.steps, run->usual.grpo.adam.rate);
    printf("success with a whole cache  %.3f before, %.3f after\n", run->before[0], run->after[0]);
    printf("success as sampled          %.3f before, %.3f after\n", run->before[1], run->after[1]);
    printf("at the end                  |log xi| %.4f, rejected %.3f, tokens masked %.3f\n",
           last->distance / last->steps, last->rejected / last->steps, last->masked / last->steps);
    printf("caches                      %.3f of the tokens found, %.3f of the bytes at their most\n",
           (double)usage->held / (double)usage->full,
           (double)usage->peak_bytes / (double)usage->peak_full_bytes);
    return EXIT_DONE;
}

/* The usual run, with chains that are long enough for a cache to be worth compressing, and heads that fill
 * what a cache takes for them. */
static train_options choose_run(const bench_options *options) {
    train_options usual = train_options_defaults();
    train_run *run = &usual.run;
    run->task.steps = options->chain > 0     ? (uint32_t)options->chain
                      : options->long_chains ? LONG_CHAIN
                                             : CHAIN;
    run->config.layers = options->long_chains ? 3 : run->config.layers;
    run->config.heads = 2;
    run->config.kv_heads = options->long_chains ? 1 : 2;
    run->config.context = (uint32_t)(lm_task_prompt_size(&run->task) + run->task.steps);
    run->slots = 1;
    run->seed = options->seed;
    run->steps = options->steps > 0 ? options->steps : options->quick ? 20 : run->steps;
    usual.warmup.success = options->quick ? 0.01 : usual.warmup.success;
    /* The loss of a long chain is nearly all of its repetition, and what it begins with is not learned. */
    usual.warmup.shorter = run->task.steps > LONG_CHAIN ? LONG_CHAIN : 0;
    usual.grpo.adam.rate = options->rate > 0 ? options->rate : RATE;
    usual.evaluation_prompts = options->quick ? QUICK_EVALUATION : EVALUATION;
    usual.cache = options->directory;
    return usual;
}

static bool take_memory(sparse_run *run) {
    const train_run *usual = &run->usual.run;
    size_t sequences = (size_t)usual->prompts * usual->group;
    run->rewards = calloc(sequences, sizeof *run->rewards);
    run->old = calloc(sequences * usual->config.context, sizeof *run->old);
    run->sums = calloc(usual->steps / REPORT + 1, sizeof *run->sums);
    return run->rewards != NULL && run->old != NULL && run->sums != NULL;
}

int bench_lm_sparse(weft_command *command, const bench_options *options) {
    sparse_run run = {.command = command, .usual = choose_run(options)};
    int code = parse_arm(&run, options->arm);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = train_options_check(command->context, &run.usual);
    if (status == WEFT_OK) {
        status = lm_trainer_create(command->context, &run.usual.run.config, &run.trainer);
    }
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    if (take_memory(&run)) {
        status = run_arm(&run);
        code = command_interrupted();
    } else {
        code = command_error(command, EXIT_FAILED, "no memory");
    }
    if (code == EXIT_DONE) {
        code = status == WEFT_OK ? print_results(&run) : command_fail(command, NULL, status);
    }
    free(run.sums);
    free(run.old);
    free(run.rewards);
    lm_trainer_destroy(run.trainer);
    return code;
}
