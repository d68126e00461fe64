/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm.c: `weft bench --lm`: tokens per second of the small policy in training, in generation and in
 * whole policy steps, and the useful operations of each beside the fastest product of matrices that all
 * threads reach at once.
 */
#include "../bench.h"

#include "../../../../lib/base/pool.h"
#include "../../../../lm/learn/grpo.h"
#include "../../../../lm/model/presets.h"

#include <stdlib.h>

enum { LENGTH = 64, PROMPT = 8, GROUP = 8, QUICK_SIZES = 2, PEAK_SIZE = 128, PEAK_ROUNDS = 200 };

/* Of a step of training, by preset. */
static const size_t sequences_of[LM_PRESETS] = {192, 128, 96, 48, 32, 24};

typedef struct lm_row {
    size_t parameters;
    double training_operations; /* of a token */
    double generation_operations;
    double training; /* tokens per second */
    double generation;
    double policy; /* steps that generate and train on what was generated */
} lm_row;

typedef struct lm_bench_results {
    unsigned threads;
    size_t count; /* of rows */
    double peak;  /* GFLOP/s of the product */
    lm_row rows[LM_PRESETS];
} lm_bench_results;

/* ---- the limit ---- */

typedef struct peak_run {
    float *memory; /* of each thread: A, packed B, C */
} peak_run;

enum { PEAK_FLOATS = 3 * PEAK_SIZE * PEAK_SIZE };

static weft_status run_product(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const peak_run *run = argument;
    float *a = run->memory + index * PEAK_FLOATS;
    lm_product product = {
        .rows = PEAK_SIZE,
        .columns = PEAK_SIZE,
        .depth = PEAK_SIZE,
        .a = a,
        .a_row = PEAK_SIZE,
        .a_step = 1,
        .b = a + PEAK_SIZE * PEAK_SIZE,
        .panel = PEAK_SIZE * LM_PANEL,
        .c = a + 2 * PEAK_SIZE * PEAK_SIZE,
        .c_row = PEAK_SIZE,
    };
    for (size_t i = 0; i < PEAK_ROUNDS; i++) {
        lm_product_run(lm_kernels_at(weft_cpu_level()), &product);
    }
    return WEFT_OK;
}

static int measure_peak(weft_command *command, unsigned repeat, lm_bench_results *results) {
    peak_run run = {.memory = calloc((size_t)results->threads * PEAK_FLOATS, sizeof(float))};
    if (run.memory == NULL) {
        return command_error(command, EXIT_FAILED, "no memory");
    }
    weft_status status = WEFT_OK;
    for (unsigned i = 0; i < 10 * repeat && status == WEFT_OK; i++) {
        double start = clock_seconds();
        status = weft_parallel(command->context, results->threads, run_product, &run);
        double seconds = clock_seconds() - start;
        double operations = 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE * PEAK_ROUNDS * results->threads;
        double speed = 1e-9 * operations / seconds;
        results->peak = speed > results->peak ? speed : results->peak;
    }
    free(run.memory);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

/* ---- a size ---- */

typedef struct lm_bench_scene {
    lm_trainer *trainer;
    size_t sequences; /* of a step */
    size_t *starts;
    lm_token *tokens;
    float *logp;
    float *rewards;
    uint64_t *streams;
} lm_bench_scene;

static void all_alike(void *opaque, size_t sequence, size_t length, const float *logp, float *slopes) {
    (void)sequence;
    (void)logp;
    for (size_t i = 0; i < length; i++) {
        slopes[i] = *(const float *)opaque;
    }
}

/* Two for each multiplication and addition of the matrices, and of attention at its mean length; training
 * takes three times that. */
static double operations_per_token(const lm_model *model) {
    double matrices = 0;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        matrices += weight->forward != NULL ? (double)(weight->rows * weight->columns) : 0;
    }
    double attention = 2.0 * model->config.layers * model->config.width * (LENGTH + 1) / 2;
    return 2 * (matrices + attention);
}

static weft_status open_scene(weft_command *command, size_t number, uint64_t seed, lm_bench_scene *scene) {
    const lm_config *config = &lm_presets[number].config;
    weft_status status = lm_trainer_create(command->context, config, &scene->trainer);
    if (status == WEFT_OK) {
        status = lm_model_initialise(scene->trainer->model, seed);
    }
    size_t count = sequences_of[number];
    scene->sequences = count;
    scene->starts = calloc(count + 1, sizeof *scene->starts);
    scene->tokens = calloc(count * LENGTH, sizeof *scene->tokens);
    scene->logp = calloc(count * LENGTH, sizeof *scene->logp);
    scene->rewards = calloc(count, sizeof *scene->rewards);
    scene->streams = calloc(count, sizeof *scene->streams);
    if (scene->starts == NULL || scene->tokens == NULL || scene->logp == NULL || scene->rewards == NULL ||
        scene->streams == NULL) {
        return status == WEFT_OK ? WEFT_NO_MEMORY : status;
    }
    for (size_t i = 0; i < count * LENGTH; i++) {
        scene->tokens[i] = (lm_token)(i * 2654435761u % config->vocabulary);
    }
    for (size_t i = 0; i < count; i++) {
        scene->starts[i + 1] = (i + 1) * LENGTH;
        scene->streams[i] = i;
        scene->rewards[i] = (float)(i % 2);
    }
    return status;
}

static void close_scene(lm_bench_scene *scene) {
    lm_trainer_destroy(scene->trainer);
    free(scene->streams);
    free(scene->rewards);
    free(scene->logp);
    free(scene->tokens);
    free(scene->starts);
}

static weft_status train_once(lm_bench_scene *scene, double *seconds_out) {
    size_t sequences = scene->sequences;
    lm_adam_options options = lm_adam_defaults();
    lm_batch batch = {.sequences = sequences, .starts = scene->starts, .tokens = scene->tokens};
    float share = -1.0f / (float)(sequences * LENGTH);
    double start = clock_seconds();
    weft_status status =
        lm_trainer_step(scene->trainer, &batch, 1, all_alike, &share, &options, scene->logp, NULL);
    *seconds_out = clock_seconds() - start;
    return status;
}

/* The first tokens of each sequence are prompts. */
static weft_status generate(lm_bench_scene *scene, size_t *starts, lm_samples **samples_out) {
    size_t sequences = scene->sequences;
    lm_sampling sampling = {.temperature = 1, .seed = 1, .limit = LENGTH - PROMPT, .stop = -1};
    for (size_t i = 0; i <= sequences; i++) {
        starts[i] = i * PROMPT;
    }
    lm_batch prompts = {.sequences = sequences, .starts = starts, .tokens = scene->tokens};
    return lm_generate(scene->trainer->model, &prompts, scene->streams, &sampling, samples_out);
}

/* One policy step, of which the generation is timed on its own, too. */
static weft_status policy_once(lm_bench_scene *scene, size_t *starts, double *generation_out,
                               double *seconds_out) {
    lm_samples *samples = NULL;
    double start = clock_seconds();
    weft_status status = generate(scene, starts, &samples);
    *generation_out = clock_seconds() - start;
    if (status == WEFT_OK) {
        lm_grpo_options options = lm_grpo_defaults();
        lm_grpo_result result;
        lm_rollouts rollouts = {
            .batch = lm_samples_batch(samples),
            .prompts = samples->prompts,
            .logp = samples->logp,
            .rewards = scene->rewards,
            .group = GROUP,
        };
        status = lm_grpo_step(scene->trainer, &rollouts, &options, NULL, &result);
    }
    *seconds_out = clock_seconds() - start;
    lm_samples_destroy(samples);
    return status;
}

static double faster(double best, size_t tokens, double seconds) {
    double speed = (double)tokens / seconds;
    return speed > best ? speed : best;
}

static weft_status measure_scene(lm_bench_scene *scene, unsigned repeat, lm_row *row) {
    size_t tokens = scene->sequences * LENGTH;
    size_t *starts = calloc(scene->sequences + 1, sizeof *starts);
    weft_status status = starts != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    double training = 0, generation = 0, policy = 0;
    row->parameters = scene->trainer->model->parameters;
    row->generation_operations = operations_per_token(scene->trainer->model);
    row->training_operations = 3 * row->generation_operations;
    for (unsigned i = 0; i <= repeat && status == WEFT_OK && command_interrupted() == EXIT_DONE; i++) {
        status = train_once(scene, &training);
        if (status == WEFT_OK) {
            status = policy_once(scene, starts, &generation, &policy);
        }
        row->training = faster(row->training, tokens, training);
        row->generation = faster(row->generation, tokens, generation);
        row->policy = faster(row->policy, tokens, policy);
    }
    free(starts);
    return status;
}

static int measure_size(weft_command *command, const bench_options *options, size_t number, lm_row *row) {
    lm_bench_scene scene = {0};
    command_note(command, "%s parameters …", lm_presets[number].name);
    weft_status status = open_scene(command, number, options->seed, &scene);
    if (status == WEFT_OK) {
        status = measure_scene(&scene, options->repeat, row);
    }
    close_scene(&scene);
    return status == WEFT_OK ? command_interrupted() : command_fail(command, NULL, status);
}

/* ---- results ---- */

static double gflops(double speed, double operations) {
    return 1e-9 * speed * operations;
}

static void json_speed(json_t *item, const char *kind, double speed, double rate, double peak) {
    char key[TEXT_SIZE];
    snprintf(key, sizeof key, "%s_tokens_per_second", kind);
    json_object_set_new(item, key, json_real(speed));
    snprintf(key, sizeof key, "%s_gflops", kind);
    json_object_set_new(item, key, json_real(rate));
    snprintf(key, sizeof key, "%s_to_peak", kind);
    json_object_set_new(item, key, json_ratio(rate, peak));
}

static int print_json(weft_command *command, const lm_bench_results *results) {
    json_t *json = json_object(), *rows = json_array();
    for (size_t i = 0; i < results->count; i++) {
        const lm_row *row = &results->rows[i];
        double both = row->training_operations + row->generation_operations;
        json_t *item = json_object();
        json_object_set_new(item, "parameters", json_count(row->parameters));
        json_object_set_new(item, "width", json_count(lm_presets[i].config.width));
        json_object_set_new(item, "layers", json_count(lm_presets[i].config.layers));
        json_speed(item, "training", row->training, gflops(row->training, row->training_operations),
                   results->peak);
        json_speed(item, "generation", row->generation, gflops(row->generation, row->generation_operations),
                   results->peak);
        json_speed(item, "policy_step", row->policy, gflops(row->policy, both), results->peak);
        json_array_append_new(rows, item);
    }
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "threads", json_count(results->threads));
    json_object_set_new(json, "peak_gflops", json_real(results->peak));
    json_object_set_new(json, "rows", rows);
    return command_print_json(command, stdout, json);
}

static void print_speed(double speed, double rate, double peak) {
    printf("  %8.0f %7.1f %5.2f", speed, rate, rate / peak);
}

static void print_text(const lm_bench_results *results) {
    printf("%s, %u thread%s; a product of matrices in cache reaches %.1f GFLOP/s, which is 1.00\n\n",
           weft_cpu_name(), results->threads, results->threads == 1 ? "" : "s", results->peak);
    printf("%10s %5s %6s  %8s %7s %5s  %8s %7s %5s  %8s %7s %5s\n", "", "", "", "training", "", "of",
           "generat.", "", "of", "policy", "", "of");
    printf("%10s %5s %6s  %8s %7s %5s  %8s %7s %5s  %8s %7s %5s\n", "parameters", "width", "layers",
           "tokens/s", "GFLOP/s", "peak", "tokens/s", "GFLOP/s", "peak", "tokens/s", "GFLOP/s", "peak");
    for (size_t i = 0; i < results->count; i++) {
        const lm_row *row = &results->rows[i];
        double both = row->training_operations + row->generation_operations;
        char text[TEXT_SIZE];
        printf("%10s %5u %6u", text_count(row->parameters, text), lm_presets[i].config.width,
               lm_presets[i].config.layers);
        print_speed(row->training, gflops(row->training, row->training_operations), results->peak);
        print_speed(row->generation, gflops(row->generation, row->generation_operations), results->peak);
        print_speed(row->policy, gflops(row->policy, both), results->peak);
        putchar('\n');
    }
}

int bench_lm(weft_command *command, const bench_options *options) {
    lm_bench_results results = {.threads = weft_context_threads(command->context),
                                .count = options->quick ? QUICK_SIZES : LM_PRESETS};
    int code = measure_peak(command, options->repeat, &results);
    for (size_t i = 0; i < results.count && code == EXIT_DONE; i++) {
        code = measure_size(command, options, i, &results.rows[i]);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    if (command->json) {
        return print_json(command, &results);
    }
    print_text(&results);
    return EXIT_DONE;
}
