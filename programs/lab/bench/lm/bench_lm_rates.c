/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_lm_rates.c: `weft bench --lm --rates LIST`: what share of a policy's BF16 weights a step changes at
 * each learning rate, for receivers that follow every version and for such that follow every k-th, and the
 * bytes that a version costs; and, by exponent of the weights, how near the law |change| / ULP comes.
 * The policy is that of a trainer's state, or one that is warmed up first.
 */
#include "../../../../lm/learn/rates.h"
#include "../../../../lm/model/presets.h"
#include "../bench.h"
#include "../sync/bench_sync.h"

#include "../../../../lm/learn/state.h"
#include "../../../../lm/learn/warmup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 50, SETTLE = 20, QUICK_WARM_UP = 20, PROMPTS = 16, GROUP = 8, EXPONENT_BIAS = 127 };

/* Short responses, so that a policy of millions of parameters is warm within minutes. */
static const lm_task short_chain = {.kind = LM_TASK_CHAIN, .steps = 10, .period = 4};

typedef struct rates_bench {
    weft_command *command;
    const bench_options *options;
    lm_trainer *trainer;
    lm_progress progress;
    lm_warmup_result warm; /* no steps: the policy came from a file */
    double warm_seconds;
    json_t *steps; /* the density of each, rate after rate */
    lm_rates_options chosen;
    lm_rates_row rows[BENCH_RATES_MAX];
} rates_bench;

static bool watch_warmup(void *opaque, uint64_t step, double loss, double success) {
    const rates_bench *bench = opaque;
    command_note(bench->command, "warm-up step %llu: loss %.3f, success %.3f", (unsigned long long)step,
                 loss, success);
    return command_interrupted() == EXIT_DONE;
}

static bool watch_steps(void *opaque, const lm_rates_step *step) {
    enum { REPORT = 10 };
    const rates_bench *bench = opaque;
    json_array_append_new(bench->steps, json_real(step->density));
    if (step->step % REPORT == 0) {
        command_note(bench->command, "rate %g, step %llu: reward %.3f, %.3f%% of the weights changed",
                     step->rate, (unsigned long long)step->step, step->reward, 100 * step->density);
    }
    return command_interrupted() == EXIT_DONE;
}

/* ---- the policy ---- */

static weft_status warm_up(rates_bench *bench) {
    const uint64_t usual = 2000000;
    uint64_t parameters = bench->options->parameters > 0 ? bench->options->parameters : usual;
    if (bench->options->quick) {
        parameters = 0;
    }
    const lm_preset *preset = lm_preset_of(parameters);
    lm_warmup_options options = lm_warmup_defaults();
    weft_status status = lm_trainer_create(bench->command->context, &preset->config, &bench->trainer);
    if (status == WEFT_OK) {
        status = lm_model_initialise(bench->trainer->model, bench->options->seed);
    }
    options.seed = bench->options->seed;
    options.adam.rate = preset->warm_rate;
    options.batch = preset->warm_batch;
    options.success = 0.5;
    options.steps = bench->options->quick ? QUICK_WARM_UP : options.steps;
    options.watcher = watch_warmup;
    options.opaque = bench;
    bench->progress.task = short_chain;
    double start = clock_seconds();
    if (status == WEFT_OK) {
        status = lm_warmup(bench->trainer, &short_chain, &options, &bench->warm);
        lm_adam_reset(bench->trainer->adam);
    }
    bench->warm_seconds = clock_seconds() - start;
    if (status == WEFT_OK && bench->options->save != NULL) {
        status = lm_state_write(bench->trainer, &bench->progress, bench->options->save, false);
    }
    return status;
}

/* ---- results ---- */

static json_t *json_density(const lm_rates_density *density) {
    if (density->windows == 0) {
        return json_null();
    }
    json_t *json = json_object();
    json_object_set_new(json, "mean", json_real(density->mean));
    json_object_set_new(json, "most", json_real(density->most));
    json_object_set_new(json, "windows", json_count(density->windows));
    return json;
}

/* Of every step at one rate, those that do not count first. */
static json_t *json_steps(const rates_bench *bench, size_t number) {
    json_t *list = json_array();
    size_t each = bench->chosen.settle + bench->chosen.steps;
    for (size_t i = number * each; i < (number + 1) * each; i++) {
        json_array_append(list, json_array_get(bench->steps, i));
    }
    return list;
}

/* Exponents that no weight has are left out. */
static json_t *json_law(const lm_rates_row *row) {
    json_t *list = json_array();
    for (int i = 0; i < LM_RATES_EXPONENTS; i++) {
        const lm_rates_law *law = &row->law[i];
        if (law->weights > 0) {
            json_t *json = json_object();
            json_object_set_new(json, "exponent", json_integer(i - EXPONENT_BIAS));
            json_object_set_new(json, "weights", json_count(law->weights));
            json_object_set_new(json, "changes", json_count(law->changes));
            json_object_set_new(json, "expected", json_real(law->expected));
            json_array_append_new(list, json);
        }
    }
    return list;
}

static json_t *json_row(const rates_bench *bench, size_t number) {
    const lm_rates_row *row = &bench->rows[number];
    json_t *json = json_object(), *density = json_object(), *bytes = json_object();
    for (size_t i = 0; i < LM_RATES_DELAYS; i++) {
        char key[TEXT_SIZE];
        snprintf(key, sizeof key, "%u", lm_rates_delays[i]);
        json_object_set_new(density, key, json_density(&row->density[i]));
    }
    json_object_set_new(bytes, "sent", json_real(row->bytes));
    json_object_set_new(bytes, "most", json_count(row->most_bytes));
    json_object_set_new(bytes, "patch", json_real(row->patch_bytes));
    json_object_set_new(bytes, "dense", json_count(row->dense_bytes));
    json_object_set_new(json, "rate", json_real(row->rate));
    json_object_set_new(json, "density", density);
    json_object_set_new(json, "bytes", bytes);
    json_object_set_new(json, "times_fewer", json_ratio((double)row->dense_bytes, row->bytes));
    json_object_set_new(json, "reward", json_real(row->reward));
    json_object_set_new(json, "idle_steps", json_count(row->idle));
    json_object_set_new(json, "seconds_per_step", json_real(row->seconds));
    json_object_set_new(json, "density_by_step", json_steps(bench, number));
    json_object_set_new(json, "law", json_law(row));
    return json;
}

static int print_json(rates_bench *bench) {
    json_t *json = json_object(), *rows = json_array();
    const lm_model *model = bench->trainer->model;
    json_object_set_new(json, "parameters", json_count(model->parameters));
    json_object_set_new(json, "width", json_count(model->config.width));
    json_object_set_new(json, "layers", json_count(model->config.layers));
    json_object_set_new(json, "seed", json_count(bench->options->seed));
    json_object_set_new(json, "warm_up_steps", json_count(bench->warm.steps));
    json_object_set_new(json, "warm_up_seconds", json_real(bench->warm_seconds));
    json_object_set_new(json, "settling_steps", json_count(bench->chosen.settle));
    json_object_set_new(json, "steps", json_count(bench->chosen.steps));
    json_object_set_new(json, "prompts", json_count(bench->chosen.prompts));
    json_object_set_new(json, "group", json_count(bench->chosen.group));
    for (size_t i = 0; i < bench->options->rate_count; i++) {
        json_array_append_new(rows, json_row(bench, i));
    }
    json_object_set_new(json, "rates", rows);
    return command_print_json(bench->command, stdout, json);
}

static void print_row(const lm_rates_row *row) {
    char bytes[TEXT_SIZE];
    printf("%8.1e ", row->rate);
    for (size_t i = 0; i < LM_RATES_DELAYS; i++) {
        if (row->density[i].windows > 0) {
            printf(" %7.3f", 100 * row->density[i].mean);
        } else {
            printf(" %7s", "");
        }
    }
    printf("  %9s %6.0f  %6.3f\n", text_bytes((uint64_t)(row->bytes + 0.5), bytes),
           (double)row->dense_bytes / row->bytes, row->reward);
}

/* Classes with few changes say little, and a class that changes nearly always says nothing. */
static bool law_judges(const lm_rates_law *law) {
    enum { CHANGES = 1000 };
    const double chance = 0.3;
    return law->changes >= CHANGES && (double)law->changes < chance * (double)law->weights;
}

static void print_law(const rates_bench *bench) {
    unsigned judged = 0;
    int exponent = 0;
    double farthest = 0, rate = 0;
    for (size_t i = 0; i < bench->options->rate_count; i++) {
        const lm_rates_row *row = &bench->rows[i];
        for (int j = 0; j < LM_RATES_EXPONENTS; j++) {
            const lm_rates_law *law = &row->law[j];
            if (law_judges(law)) {
                double off = (double)law->changes / law->expected - 1;
                judged += 1;
                if (judged == 1 || fabs(off) > fabs(farthest)) {
                    farthest = off;
                    exponent = j - EXPONENT_BIAS;
                    rate = row->rate;
                }
            }
        }
    }
    printf("\nlaw |change| / ULP: ");
    if (judged == 0) {
        printf("too few changes to judge it\n");
        return;
    }
    printf("%u exponents and rates with 1,000 changes or more and a chance below 0.3; farthest off is "
           "2^%d at %.1e, %+.1f%%\n",
           judged, exponent, rate, 100 * farthest);
}

static void print_text(const rates_bench *bench) {
    char parameters[TEXT_SIZE], dense[TEXT_SIZE];
    printf("%s parameters, %s in BF16; ", text_count(bench->trainer->model->parameters, parameters),
           text_bytes(bench->rows[0].dense_bytes, dense));
    if (bench->warm.steps > 0) {
        printf("warm-up %llu steps, %.1f s, success %.3f\n", (unsigned long long)bench->warm.steps,
               bench->warm_seconds, bench->warm.success);
    } else {
        printf("state of step %llu\n", (unsigned long long)bench->progress.step);
    }
    printf(
        "%llu policy steps at each rate after %llu that are not counted, %zu prompts x %zu responses\n\n",
        (unsigned long long)bench->chosen.steps, (unsigned long long)bench->chosen.settle,
        bench->chosen.prompts, bench->chosen.group);
    printf("%8s  %% of weights that differ after so many steps\n%8s ", "", "rate");
    for (size_t i = 0; i < LM_RATES_DELAYS; i++) {
        printf(" %7u", lm_rates_delays[i]);
    }
    printf("  %9s %6s  %6s\n", "per sync", "fewer", "reward");
    for (size_t i = 0; i < bench->options->rate_count; i++) {
        print_row(&bench->rows[i]);
    }
    print_law(bench);
}

/* ---- the run ---- */

static weft_status measure(rates_bench *bench, const char *directory) {
    const char *state = bench->options->state;
    weft_status status =
        state != NULL ? lm_state_open(bench->command->context, state, &bench->trainer, &bench->progress)
                      : warm_up(bench);
    if (status != WEFT_OK) {
        return status;
    }
    const uint64_t apart = 3000000; /* seeds of warm-ups and of learning runs lie elsewhere */
    bench->chosen = (lm_rates_options){
        .task = bench->progress.task,
        .grpo = lm_grpo_defaults(),
        .seed = bench->options->seed + apart,
        .prompts = PROMPTS,
        .group = GROUP,
        .settle = bench->progress.step >= SETTLE ? 0 : SETTLE,
        .steps = bench->options->steps > 0 ? bench->options->steps : STEPS,
        .directory = directory,
        .watcher = watch_steps,
        .opaque = bench,
    };
    for (size_t i = 0; i < bench->options->rate_count; i++) {
        bench->rows[i].rate = bench->options->rates[i];
    }
    return lm_rates_measure(bench->trainer, &bench->chosen, bench->rows, bench->options->rate_count);
}

int bench_lm_rates(weft_command *command, const bench_options *options) {
    rates_bench bench = {.command = command, .options = options, .steps = json_array()};
    sync_bench stores;
    int code = sync_bench_open(command, options, &stores);
    if (code != EXIT_DONE) {
        json_decref(bench.steps);
        return code;
    }
    weft_status status = measure(&bench, stores.directory);
    code = command_interrupted();
    if (code == EXIT_DONE && status != WEFT_OK) {
        code = command_fail(command, options->state, status);
    } else if (code == EXIT_DONE && command->json) {
        code = print_json(&bench);
    } else if (code == EXIT_DONE) {
        print_text(&bench);
    }
    json_decref(bench.steps);
    lm_trainer_destroy(bench.trainer);
    sync_bench_close(&stores);
    return code;
}
