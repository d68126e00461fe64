/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_summary.c: a run in a few numbers, all from its own steps: for the terminal, for --json and for the
 * tiles of the report.
 */
#include "demo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_MAX = 20, WINDOW_SHARE = 10 };

/* ---- over steps ---- */

/* NaN where it is not told. */
static double told(const json_t *step, const char *group, const char *name) {
    return training_number(step, group, name, NAN);
}

typedef struct sample {
    double sum;
    double most;
    size_t count;
} sample;

static sample take_sample(const json_t *steps, size_t begin, size_t end, const char *group,
                          const char *name) {
    sample taken = {.most = -INFINITY};
    for (size_t i = begin; i < end; i++) {
        double value = told(json_array_get(steps, i), group, name);
        if (!isnan(value)) {
            taken.sum += value;
            taken.most = fmax(taken.most, value);
            taken.count++;
        }
    }
    return taken;
}

static sample of_all(const json_t *steps, const char *group, const char *name) {
    return take_sample(steps, 0, json_array_size(steps), group, name);
}

static json_t *json_mean(sample taken) {
    return json_ratio(taken.sum, (double)taken.count);
}

/* The first of the steps that tell it, or the last. */
static json_t *find_told(const json_t *steps, const char *name, bool last) {
    size_t count = json_array_size(steps);
    for (size_t i = 0; i < count; i++) {
        json_t *value = json_object_get(json_array_get(steps, last ? count - 1 - i : i), name);
        if (json_is_number(value)) {
            return json_incref(value);
        }
    }
    return json_null();
}

/* ---- the parts ---- */

static json_t *summarise_reward(const json_t *steps) {
    json_t *json = json_object();
    size_t count = json_array_size(steps);
    size_t window = count / WINDOW_SHARE;
    window = window < 1 ? 1 : window > WINDOW_MAX ? WINDOW_MAX : window;
    json_object_set_new(json, "first", json_mean(take_sample(steps, 0, window, NULL, "reward")));
    json_object_set_new(json, "last", json_mean(take_sample(steps, count - window, count, NULL, "reward")));
    json_object_set_new(json, "window", json_count(window));
    return json;
}

static json_t *summarise_success(const json_t *steps) {
    json_t *json = json_object();
    json_object_set_new(json, "first", find_told(steps, "success", false));
    json_object_set_new(json, "last", find_told(steps, "success", true));
    return json;
}

static json_t *summarise_density(const json_t *steps) {
    static const char *const delays[] = {"1", "8", "32"};
    json_t *json = json_object();
    for (size_t i = 0; i < sizeof delays / sizeof delays[0]; i++) {
        json_object_set_new(json, delays[i], json_mean(of_all(steps, "density", delays[i])));
    }
    return json;
}

static json_t *summarise_bytes(const json_t *steps) {
    json_t *json = json_object();
    sample sent = of_all(steps, "bytes", "sent");
    sample dense = of_all(steps, "bytes", "dense");
    json_object_set_new(json, "sent", json_mean(sent));
    json_object_set_new(json, "dense", json_mean(dense));
    json_object_set_new(json, "reduction", json_ratio(dense.sum, sent.sum));
    json_object_set_new(json, "saved", json_real(dense.sum - sent.sum));
    return json;
}

static int compare_values(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A worker that had nothing new to write in a step tells of a pause of zero, which is none. */
static double *collect_pauses(const json_t *steps, size_t *count_out) {
    size_t count = 0, room = 0;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        room += json_array_size(json_object_get(json_array_get(steps, i), "workers"));
    }
    double *pauses = calloc(room + 1, sizeof *pauses);
    for (size_t i = 0; i < json_array_size(steps) && pauses != NULL; i++) {
        const json_t *workers = json_object_get(json_array_get(steps, i), "workers");
        for (size_t j = 0; j < json_array_size(workers); j++) {
            double pause = training_number(json_array_get(workers, j), NULL, "pause", 0);
            if (pause > 0) {
                pauses[count++] = pause;
            }
        }
    }
    *count_out = count;
    return pauses;
}

static json_t *summarise_pause(const json_t *steps) {
    json_t *json = json_object();
    size_t count = 0;
    double *pauses = collect_pauses(steps, &count);
    if (count > 0) {
        qsort(pauses, count, sizeof *pauses, compare_values);
    }
    double median = count > 0 ? 0.5 * (pauses[(count - 1) / 2] + pauses[count / 2]) : 0;
    json_object_set_new(json, "median", count > 0 ? json_real(median) : json_null());
    json_object_set_new(json, "max", count > 0 ? json_real(pauses[count - 1]) : json_null());
    free(pauses);
    return json;
}

static json_t *summarise_staleness(const json_t *steps) {
    json_t *json = json_object();
    sample most = of_all(steps, "staleness", "max");
    json_object_set_new(json, "mean", json_mean(of_all(steps, "staleness", "mean")));
    json_object_set_new(json, "max", json_count((uint64_t)fmax(most.most, 0)));
    return json;
}

static json_t *summarise_phases(const json_t *steps) {
    static const char *const phases[] = {"wait", "train", "publish", "state"};
    json_t *json = json_object();
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        json_object_set_new(json, phases[i], json_real(of_all(steps, "seconds", phases[i]).sum));
    }
    return json;
}

static size_t count_workers(const json_t *steps) {
    json_t *names = json_object();
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *workers = json_object_get(json_array_get(steps, i), "workers");
        for (size_t j = 0; j < json_array_size(workers); j++) {
            const json_t *name = json_object_get(json_array_get(workers, j), "name");
            json_object_set_new(names, json_string_value(name), json_true());
        }
    }
    size_t count = json_object_size(names);
    json_decref(names);
    return count;
}

json_t *demo_summary_make(const json_t *steps) {
    json_t *json = json_object();
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    json_object_set_new(json, "steps", json_count(json_array_size(steps)));
    json_object_set_new(json, "workers", json_count(count_workers(steps)));
    json_object_set_new(json, "parameters", json_incref(json_object_get(last, "elements")));
    json_object_set_new(json, "rate", json_incref(json_object_get(last, "rate")));
    json_object_set_new(json, "reward", summarise_reward(steps));
    json_object_set_new(json, "success", summarise_success(steps));
    json_object_set_new(json, "density", summarise_density(steps));
    json_object_set_new(json, "bytes", summarise_bytes(steps));
    json_object_set_new(json, "pause", summarise_pause(steps));
    json_object_set_new(json, "staleness", summarise_staleness(steps));
    json_object_set_new(json, "rejected",
                        json_count((uint64_t)of_all(steps, "trajectories", "rejected").sum));
    json_object_set_new(json, "seconds", json_real(of_all(steps, "seconds", "step").sum));
    json_object_set_new(json, "phases", summarise_phases(steps));
    return json;
}

/* ---- for people ---- */

static double member(const json_t *json, const char *group, const char *name) {
    return training_number(json, group, name, 0);
}

static void print_pause(const json_t *summary) {
    char median[TEXT_SIZE], most[TEXT_SIZE];
    if (json_is_number(json_object_get(json_object_get(summary, "pause"), "median"))) {
        printf("pause      %s median, %s longest, while a worker's weights were written\n",
               text_seconds(member(summary, "pause", "median"), median),
               text_seconds(member(summary, "pause", "max"), most));
    }
}

static void print_large(const json_t *large) {
    char sent[TEXT_SIZE], dense[TEXT_SIZE], pause[TEXT_SIZE], parameters[TEXT_SIZE];
    if (json_is_null(large)) {
        return;
    }
    printf("real size  %s parameters, %.2f%% changed by a step at %g: %s instead of %s, %.1f times fewer "
           "bytes\n",
           text_count((uint64_t)member(large, NULL, "parameters"), parameters),
           100 * member(large, NULL, "density"), member(large, NULL, "rate"),
           text_bytes((uint64_t)member(large, "bytes", "sent"), sent),
           text_bytes((uint64_t)member(large, "bytes", "dense"), dense),
           member(large, "bytes", "reduction"));
    printf("           pause %s; the worker holds the trainer's bits, all compared\n",
           text_seconds(member(large, NULL, "pause"), pause));
}

void demo_summary_print(const json_t *summary, const json_t *large) {
    char sent[TEXT_SIZE], dense[TEXT_SIZE], saved[TEXT_SIZE], parameters[TEXT_SIZE];
    printf("saved      %s, %.1f times fewer bytes than whole models: %s per sync instead of %s\n",
           text_bytes((uint64_t)fmax(member(summary, "bytes", "saved"), 0), saved),
           member(summary, "bytes", "reduction"),
           text_bytes((uint64_t)(member(summary, "bytes", "sent") + 0.5), sent),
           text_bytes((uint64_t)member(summary, "bytes", "dense"), dense));
    printf("reward     %.3f -> %.3f (means of the first and the last %.0f of %.0f steps)\n",
           member(summary, "reward", "first"), member(summary, "reward", "last"),
           member(summary, "reward", "window"), member(summary, NULL, "steps"));
    print_large(large);
    printf("policy     %s parameters, learning rate %g\n",
           text_count((uint64_t)member(summary, NULL, "parameters"), parameters),
           member(summary, NULL, "rate"));
    printf("density    %.2f%% of the BF16 weights changed by a step\n",
           100 * member(summary, "density", "1"));
    print_pause(summary);
    printf("staleness  %.2f mean, %.0f most\n", member(summary, "staleness", "mean"),
           member(summary, "staleness", "max"));
    printf("time       %.1f s in steps: %.1f waiting for rollouts, %.1f training, %.1f publishing\n",
           member(summary, NULL, "seconds"), member(summary, "phases", "wait"),
           member(summary, "phases", "train"), member(summary, "phases", "publish"));
}
