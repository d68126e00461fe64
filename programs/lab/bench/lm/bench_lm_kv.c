/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm_kv.c: `weft bench --lm --kv`: rollouts per second within a fixed memory for keys and values,
 * half of what all of them would need whole, by KV-cache policy. Without a policy fewer sequences fit at
 * once, and each token attends to more. Every rollout fills the context whatever is sampled, so that every
 * policy does the same number of tokens.
 */
#include "../bench.h"

#include "../../../../lm/learn/generate.h"
#include "../../../../lm/model/pass.h"

#include <stdlib.h>

enum { SIZES = 2, SCENES = 3 * SIZES };

/* What is rolled out, with which model: a first token, and then as many as the context has room for. */
typedef struct kv_scene {
    lm_config config;
    size_t rollouts;
    size_t budget;
    size_t interval;
} kv_scene;

/* Of each model: the usual proportions of long answers, a budget of an eighth of the length; shorter ones
 * with the same budget in proportion; and a case that gains little, with so many sequences that half of
 * them already use the weights well, and a larger part of the cache kept. */
static const kv_scene scenes[SCENES] = {
    {{16, 128, 3, 4, 4, 344, 1024, true, 10000, 1e-5}, 24, 128, 32},
    {{16, 128, 3, 4, 4, 344, 512, true, 10000, 1e-5}, 24, 64, 32},
    {{16, 128, 3, 4, 4, 344, 512, true, 10000, 1e-5}, 48, 96, 32},
    {{16, 192, 5, 6, 6, 512, 1024, true, 10000, 1e-5}, 24, 128, 32},
    {{16, 192, 5, 6, 6, 512, 512, true, 10000, 1e-5}, 24, 64, 32},
    {{16, 192, 5, 6, 6, 512, 512, true, 10000, 1e-5}, 48, 96, 32},
};

static const kv_scene quick_scene = {{16, 64, 2, 4, 4, 172, 128, true, 10000, 1e-5}, 16, 24, 12};

typedef struct kv_row {
    weft_kv_options kv;
    size_t together; /* sequences that fit at once */
    double seconds;  /* of the fastest */
    weft_kv_usage usage;
} kv_row;

typedef struct kv_results {
    const kv_scene *scene;
    size_t parameters;
    size_t rollouts;
    size_t tokens;   /* of all rollouts, prompts included */
    size_t kv_bytes; /* that are allowed */
    kv_row rows[WEFT_KV_POLICIES];
} kv_results;

/* ---- measuring ---- */

/* First tokens, and the numbers of random streams, of all rollouts. */
typedef struct kv_prompts {
    lm_token *tokens;
    size_t *starts;
    uint64_t *streams;
} kv_prompts;

static void release_prompts(kv_prompts *prompts) {
    free(prompts->streams);
    free(prompts->starts);
    free(prompts->tokens);
}

static bool make_prompts(const kv_scene *scene, kv_prompts *prompts) {
    prompts->tokens = calloc(scene->rollouts, sizeof *prompts->tokens);
    prompts->starts = calloc(scene->rollouts + 1, sizeof *prompts->starts);
    prompts->streams = calloc(scene->rollouts, sizeof *prompts->streams);
    if (prompts->tokens == NULL || prompts->starts == NULL || prompts->streams == NULL) {
        return false;
    }
    for (size_t i = 0; i < scene->rollouts; i++) {
        prompts->tokens[i] = (lm_token)(i % scene->config.vocabulary);
        prompts->starts[i + 1] = i + 1;
        prompts->streams[i] = i;
    }
    return true;
}

static weft_status roll_out(lm_model *model, const kv_results *results, const kv_prompts *prompts,
                            uint64_t seed, kv_row *row) {
    lm_batch batch = {.sequences = results->rollouts, .starts = prompts->starts, .tokens = prompts->tokens};
    lm_sampling sampling = {
        .temperature = 1,
        .seed = seed,
        .limit = results->scene->config.context - 1,
        .stop = -1,
        .kv = &row->kv,
        .kv_bytes = results->kv_bytes,
    };
    lm_samples *samples = NULL;
    double start = clock_seconds();
    weft_status status = lm_generate(model, &batch, prompts->streams, &sampling, &samples);
    double seconds = clock_seconds() - start;
    if (status == WEFT_OK) {
        row->seconds = row->seconds == 0 || seconds < row->seconds ? seconds : row->seconds;
        row->usage = samples->kv;
    }
    lm_samples_destroy(samples);
    return status;
}

static void prepare(const kv_scene *scene, kv_results *results) {
    size_t length = scene->config.context;
    *results = (kv_results){.scene = scene, .parameters = lm_config_parameters(&scene->config)};
    results->rollouts = scene->rollouts;
    results->tokens = results->rollouts * length;
    results->kv_bytes = results->rollouts * lm_sampling_bytes(&scene->config, NULL, length) / 2;
    for (size_t i = 0; i < WEFT_KV_POLICIES; i++) {
        kv_row *row = &results->rows[i];
        row->kv.size = sizeof row->kv;
        weft_kv_defaults((weft_kv_policy)i, scene->budget, &row->kv);
        row->kv.interval = scene->interval;
        size_t fitting = results->kv_bytes / lm_sampling_bytes(&scene->config, &row->kv, length);
        row->together = fitting < results->rollouts ? fitting : results->rollouts;
    }
}

/* Policies take turns, so that what else the machine does meets all of them. */
static int measure(weft_command *command, const bench_options *options, lm_model *model,
                   kv_results *results) {
    kv_prompts prompts = {0};
    if (!make_prompts(results->scene, &prompts)) {
        release_prompts(&prompts);
        return command_error(command, EXIT_FAILED, "no memory");
    }
    weft_status status = lm_model_initialise(model, options->seed);
    for (unsigned turn = 0; turn < options->repeat; turn++) {
        for (size_t i = 0; i < WEFT_KV_POLICIES && status == WEFT_OK; i++) {
            status = command_interrupted() == EXIT_DONE
                         ? roll_out(model, results, &prompts, options->seed, &results->rows[i])
                         : WEFT_CANCELLED;
        }
    }
    release_prompts(&prompts);
    int interrupted = command_interrupted();
    return status == WEFT_OK || interrupted != EXIT_DONE ? interrupted
                                                         : command_fail(command, NULL, status);
}

static int measure_scene(weft_command *command, const bench_options *options, const kv_scene *scene,
                         kv_results *results) {
    lm_model *model = NULL;
    weft_status status = lm_model_create(command->context, &scene->config, LM_TRAINER, &model);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    prepare(scene, results);
    command_note(command, "%zu parameters, %zu rollouts of %u tokens …", results->parameters,
                 results->rollouts, scene->config.context);
    int code = measure(command, options, model, results);
    lm_model_destroy(model);
    return code;
}

/* ---- results ---- */

static json_t *row_json(const kv_results *results, const kv_row *row) {
    json_t *item = json_object();
    json_object_set_new(item, "policy", json_string(weft_kv_policy_name(row->kv.policy)));
    json_object_set_new(item, "sequences_at_once", json_count(row->together));
    json_object_set_new(item, "rollouts_per_second", json_real((double)results->rollouts / row->seconds));
    json_object_set_new(item, "tokens_per_second", json_real((double)results->tokens / row->seconds));
    json_object_set_new(item, "to_none", json_ratio(results->rows[WEFT_KV_NONE].seconds, row->seconds));
    json_object_set_new(item, "tokens_held", json_count(row->usage.held));
    json_object_set_new(item, "tokens_full", json_count(row->usage.full));
    json_object_set_new(item, "peak_bytes", json_count(row->usage.peak_bytes));
    json_object_set_new(item, "evictions", json_count(row->usage.evictions));
    return item;
}

static int print_json(weft_command *command, const kv_results *results, size_t count) {
    json_t *json = json_object(), *models = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *model = json_object(), *rows = json_array();
        for (size_t p = 0; p < WEFT_KV_POLICIES; p++) {
            json_array_append_new(rows, row_json(&results[i], &results[i].rows[p]));
        }
        const weft_kv_options *kv = &results[i].rows[WEFT_KV_STREAMING].kv;
        json_object_set_new(model, "parameters", json_count(results[i].parameters));
        json_object_set_new(model, "rollouts", json_count(results[i].rollouts));
        json_object_set_new(model, "tokens_each", json_count(results[i].tokens / results[i].rollouts));
        json_object_set_new(model, "kv_bytes", json_count(results[i].kv_bytes));
        json_object_set_new(model, "budget", json_count(kv->budget));
        json_object_set_new(model, "interval", json_count(kv->interval));
        json_object_set_new(model, "rows", rows);
        json_array_append_new(models, model);
    }
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "threads", json_count(weft_context_threads(command->context)));
    json_object_set_new(json, "models", models);
    return command_print_json(command, stdout, json);
}

static void print_text(const kv_results *results) {
    char text[TEXT_SIZE], limit[TEXT_SIZE];
    const weft_kv_options *kv = &results->rows[WEFT_KV_STREAMING].kv;
    printf("%s parameters, %zu rollouts of %zu tokens; %s for keys and values, half of what all would "
           "need; budget %zu, interval %zu\n\n",
           text_count(results->parameters, text), results->rollouts, results->tokens / results->rollouts,
           text_bytes(results->kv_bytes, limit), kv->budget, kv->interval);
    printf("%-10s %8s %10s %9s %6s %8s %10s\n", "policy", "at once", "rollouts/s", "tokens/s", "times",
           "KV held", "KV peak");
    for (size_t i = 0; i < WEFT_KV_POLICIES; i++) {
        const kv_row *row = &results->rows[i];
        printf("%-10s %8zu %10.1f %9.0f %6.2f %7.1f%% %10s\n", weft_kv_policy_name(row->kv.policy),
               row->together, (double)results->rollouts / row->seconds,
               (double)results->tokens / row->seconds, results->rows[WEFT_KV_NONE].seconds / row->seconds,
               100 * (double)row->usage.held / (double)row->usage.full,
               text_bytes(row->usage.peak_bytes, text));
    }
}

int bench_lm_kv(weft_command *command, const bench_options *options) {
    kv_results results[SCENES];
    size_t count = options->quick ? 1 : SCENES;
    int code = EXIT_DONE;
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        code = measure_scene(command, options, options->quick ? &quick_scene : &scenes[i], &results[i]);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    if (command->json) {
        return print_json(command, results, count);
    }
    for (size_t i = 0; i < count; i++) {
        printf("%s", i > 0 ? "\n" : "");
        print_text(&results[i]);
    }
    return EXIT_DONE;
}
