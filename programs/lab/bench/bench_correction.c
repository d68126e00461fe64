/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_correction.c: how fast weights are made of log-probabilities. The tokens are made up: most ratios
 * are near 1, one in 200 is off, one in 100,000 far off, every seventh token is masked, sequences are up to
 * 2048 tokens long.
 */
#include "bench.h"

#include <weft/rollout.h>

#include <stdlib.h>
#include <string.h>

enum { ROWS = 10, LONGEST = 2048 };

typedef struct correction_row {
    const char *name;
    const char *preset; /* NULL: no weights are made */
    weft_correction_level level;
    bool objective; /* with the weights, if any were made */
    double seconds; /* the fewest */
    weft_correction_diagnostics found;
} correction_row;

typedef struct correction_scene {
    size_t tokens;
    size_t *starts;
    uint8_t *mask;
    float *sampler;
    float *old;
    float *learner;
    float *weights;
    float *slopes;
    uint8_t *kept;
    float *advantages;
    weft_correction_batch batch;
} correction_scene;

static const correction_row rows[ROWS] = {
    {.name = "memcpy"},
    {.name = "none", .preset = "none"},
    {.name = "paper", .preset = "paper"},
    {.name = "released", .preset = "released"},
    {.name = "tis", .preset = "tis"},
    {.name = "tis, sequence", .preset = "tis", .level = WEFT_LEVEL_SEQUENCE},
    {.name = "mis", .preset = "mis"},
    {.name = "icepop", .preset = "icepop"},
    {.name = "objective", .objective = true},
    {.name = "paper+objective", .preset = "paper", .objective = true},
};

static void close_scene(correction_scene *scene) {
    free(scene->starts);
    free(scene->mask);
    free(scene->sampler);
    free(scene->old);
    free(scene->learner);
    free(scene->weights);
    free(scene->slopes);
    free(scene->kept);
    free(scene->advantages);
}

static uint32_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 40);
}

/* Uniform from -1 to 1. */
static float spread(uint64_t *state) {
    return (float)draw(state) / (float)(1 << 23) - 1;
}

static void fill_scene(correction_scene *scene, uint64_t seed) {
    uint64_t state = seed;
    size_t sequences = 0;
    for (size_t i = 0; i < scene->tokens; i++) {
        float away = draw(&state) % 200 != 0 ? 0.05f : draw(&state) % 500 != 0 ? 3 : 15;
        scene->sampler[i] = 2 * (spread(&state) - 1);
        scene->old[i] = scene->sampler[i] + away * spread(&state);
        scene->learner[i] = scene->old[i] + 0.1f * spread(&state);
        scene->mask[i] = i % 7 != 0;
    }
    for (size_t start = 0; start < scene->tokens; start += 1 + draw(&state) % LONGEST) {
        scene->advantages[sequences] = spread(&state);
        scene->starts[sequences++] = start;
    }
    scene->starts[sequences] = scene->tokens;
    scene->batch = (weft_correction_batch){sequences, scene->starts, scene->mask};
}

static bool open_scene(correction_scene *scene, size_t tokens, uint64_t seed) {
    *scene = (correction_scene){
        .tokens = tokens,
        .starts = calloc(tokens + 1, sizeof *scene->starts),
        .mask = calloc(tokens, sizeof *scene->mask),
        .sampler = calloc(tokens, sizeof *scene->sampler),
        .old = calloc(tokens, sizeof *scene->old),
        .learner = calloc(tokens, sizeof *scene->learner),
        .weights = calloc(tokens, sizeof *scene->weights),
        .slopes = calloc(tokens, sizeof *scene->slopes),
        .kept = calloc(tokens, sizeof *scene->kept),
        .advantages = calloc(tokens, sizeof *scene->advantages),
    };
    bool whole = scene->starts != NULL && scene->mask != NULL && scene->sampler != NULL &&
                 scene->old != NULL && scene->learner != NULL && scene->weights != NULL &&
                 scene->slopes != NULL && scene->kept != NULL && scene->advantages != NULL;
    if (whole) {
        fill_scene(scene, seed);
        memset(scene->weights, 1, tokens * sizeof *scene->weights);
        memset(scene->slopes, 1, tokens * sizeof *scene->slopes);
        memset(scene->kept, 1, tokens);
    } else {
        close_scene(scene);
    }
    return whole;
}

static weft_status run_objective(weft_context *context, correction_scene *scene, bool weighed) {
    weft_objective_options options = {.size = sizeof options};
    weft_objective_defaults(&options);
    weft_correction_batch batch = scene->batch;
    batch.mask = weighed ? scene->kept : scene->mask;
    weft_objective_input input = {.batch = &batch,
                                  .old = scene->old,
                                  .learner = scene->learner,
                                  .weights = weighed ? scene->weights : NULL,
                                  .advantages = scene->advantages};
    weft_objective_result result = {.size = sizeof result};
    return weft_objective_run(context, &input, &options, scene->slopes, &result);
}

static weft_status run_preset(weft_context *context, correction_scene *scene, correction_row *row) {
    weft_correction_options options = {.size = sizeof options};
    weft_status status = weft_correction_preset(context, row->preset, &options);
    if (status == WEFT_OK) {
        options.level = row->level;
        row->found.size = sizeof row->found;
        status = weft_correction_weigh(context, &scene->batch, scene->sampler, scene->old, &options,
                                       scene->weights, scene->kept, NULL, &row->found);
    }
    return status;
}

static weft_status run_row(weft_context *context, correction_scene *scene, correction_row *row) {
    double start = clock_seconds();
    weft_status status = WEFT_OK;
    if (row->preset != NULL) {
        status = run_preset(context, scene, row);
    } else if (!row->objective) {
        /* What goes in is copied, over what comes out. */
        memcpy(scene->weights, scene->sampler, scene->tokens * sizeof *scene->weights);
        memcpy(scene->weights, scene->old, scene->tokens * sizeof *scene->weights);
        memcpy(scene->kept, scene->mask, scene->tokens);
    }
    if (row->objective && status == WEFT_OK) {
        status = run_objective(context, scene, row->preset != NULL);
    }
    double seconds = clock_seconds() - start;
    row->seconds = row->seconds == 0 || seconds < row->seconds ? seconds : row->seconds;
    return status;
}

static int print_json(weft_command *command, const correction_scene *scene,
                      const correction_row measured[ROWS]) {
    json_t *json = json_object(), *list = json_array();
    for (size_t i = 0; i < ROWS; i++) {
        json_t *row = json_object();
        json_object_set_new(row, "name", json_string(measured[i].name));
        json_object_set_new(row, "seconds", json_real(measured[i].seconds));
        json_object_set_new(row, "tokens_per_second",
                            json_real((double)scene->tokens / measured[i].seconds));
        json_object_set_new(row, "to_memcpy", json_real(measured[i].seconds / measured[0].seconds));
        json_object_set_new(row, "masked", json_count(measured[i].found.masked));
        json_object_set_new(row, "rejected", json_count(measured[i].found.rejected));
        json_array_append_new(list, row);
    }
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "tokens", json_count(scene->tokens));
    json_object_set_new(json, "sequences", json_count(scene->batch.sequences));
    json_object_set_new(json, "rows", list);
    return command_print_json(command, stdout, json);
}

static void print_text(const correction_scene *scene, const correction_row measured[ROWS]) {
    char tokens[TEXT_SIZE], sequences[TEXT_SIZE];
    printf("%s tokens in %s sequences; %s, 1 thread; x: times as long as memcpy of what goes in\n\n",
           text_count(scene->tokens, tokens), text_count(scene->batch.sequences, sequences),
           weft_cpu_name());
    printf("%-16s %9s %10s %6s %10s %10s\n", "", "ms", "M tokens/s", "x", "masked", "rejected");
    for (size_t i = 0; i < ROWS; i++) {
        const correction_row *row = &measured[i];
        printf("%-16s %9.2f %10.1f %6.2f", row->name, 1e3 * row->seconds,
               1e-6 * (double)scene->tokens / row->seconds, row->seconds / measured[0].seconds);
        if (row->preset != NULL) {
            printf(" %10zu %10zu", row->found.masked, row->found.rejected);
        }
        putchar('\n');
    }
}

int bench_correction(weft_command *command, const bench_options *options) {
    enum { TOKENS = 10000000, QUICK = 1000000 };
    correction_scene scene;
    correction_row measured[ROWS];
    memcpy(measured, rows, sizeof rows);
    if (!open_scene(&scene, options->quick ? QUICK : TOKENS, options->seed)) {
        return command_error(command, EXIT_FAILED, "no memory for the tokens");
    }
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < (size_t)options->repeat * ROWS && status == WEFT_OK; i++) {
        status = run_row(command->context, &scene, &measured[i % ROWS]);
    }
    int code = EXIT_DONE;
    progress_clear(&command->progress);
    if (status != WEFT_OK) {
        code = command_fail(command, NULL, status);
    } else if (command->json) {
        code = print_json(command, &scene, measured);
    } else {
        print_text(&scene, measured);
    }
    close_scene(&scene);
    return code;
}
