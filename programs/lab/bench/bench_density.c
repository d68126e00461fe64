/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_density.c: the sweep of `weft bench --density`: the same model after steps of very different size,
 * from one changed weight in ten thousand to all of them, coded by both profiles and by what others do, on
 * one thread and in one run with memcpy.
 */
#include "bench_density.h"

#include <stdlib.h>
#include <string.h>

/* Learning rates of the trace: 0.01% to 100% of its weights change. */
static const double density_rates[DENSITY_POINTS] = {1e-8, 1e-7, 3e-7, 1e-6, 2e-6, 3e-6, 5e-6, 1e-5,
                                                     2e-5, 3e-5, 6e-5, 1e-4, 3e-4, 1e-3, 1e-2};

/* What an optimizer step does to FP32 weights: it moves all of them, by little. */
static const double every_rates[DENSITY_EVERY] = {1e-7, 1e-6, 1e-5};

enum {
    COPIES = 3,       /* of memcpy, */
    COPIES_APART = 7, /* at the first density, and at every so many */
    PARAMETERS = 64000000,
};

/* ---- measuring ---- */

static int measure_point(weft_command *command, bench_model *model, unsigned repeat,
                         density_results *results, density_point *point) {
    weft_survey survey;
    int code = survey_run(command, model->base_table, model->next_table, &survey);
    if (code != EXIT_DONE) {
        return code;
    }
    point->changed = survey.changed;
    survey_close(&survey);
    /* what all ratios rest on should not hang on one moment */
    bool copies = (point - results->points) % COPIES_APART == 0;
    code = copies ? bench_memcpy(command, COPIES, &results->copy) : EXIT_DONE;
    for (unsigned i = 0; i < DENSITY_CODECS && code == EXIT_DONE; i++) {
        code = i < 2 ? bench_profile(command, model, (weft_profile)i, 1, repeat, &point->rows[i])
                     : bench_other(command, model, (bench_baseline)(i - 2), repeat, &point->rows[i]);
    }
    if (code == EXIT_DONE && results->anchor.encode == 0) {
        code = bench_anchor(command, model, 1, repeat, &results->anchor);
    }
    return code;
}

static int measure(weft_command *command, const bench_options *options, density_results *results) {
    uint64_t parameters = options->parameters > 0 ? options->parameters : PARAMETERS;
    int code = EXIT_DONE;
    results->copy.threads = 1;
    results->dtype = bench_dtype_of(options->dtype);
    results->count = DENSITY_POINTS + (options->dtype == WEFT_DTYPE_F32 ? DENSITY_EVERY : 0);
    for (size_t i = 0; i < results->count && code == EXIT_DONE; i++) {
        density_point *point = &results->points[i];
        bench_model model = {0};
        weft_trace trace = {0};
        bool every = i >= DENSITY_POINTS;
        point->rate = every ? every_rates[i - DENSITY_POINTS] : density_rates[i] * results->dtype->rates;
        code = trace_open(command, &trace, parameters, point->rate, options->seed);
        trace.dtype = results->dtype;
        trace.every = every;
        if (code == EXIT_DONE) {
            code = bench_model_generate(command, &model, &trace);
        }
        trace_close(&trace);
        if (code == EXIT_DONE) {
            results->units = model.units;
            code = measure_point(command, &model, options->repeat, results, point);
            bench_model_close(&model);
        }
    }
    return code;
}

/* ---- reading the results ---- */

double density_speed(const bench_row *row, double seconds) {
    return seconds > 0 ? 1e-9 * (double)row->bytes / seconds : 0;
}

static double to_memcpy(const density_results *results, const bench_row *row, double seconds) {
    return density_speed(row, seconds) / density_speed(&results->copy, results->copy.encode);
}

static double per_change(const density_point *point, const bench_row *row) {
    return point->changed > 0 ? (double)row->patch_bytes / (double)point->changed : 0;
}

/* The last point of at most 1%, which the price of a change is counted from. */
static const density_point *first_point(const density_results *results) {
    const density_point *first = &results->points[0];
    for (size_t i = 1; i < DENSITY_POINTS; i++) {
        if (results->points[i].changed <= results->units / 90) {
            first = &results->points[i];
        }
    }
    return first;
}

/* Nanoseconds for each change more than there are at 1%; 0 outside of 1% to 30%. */
static double change_price(const density_results *results, const density_point *point, unsigned codec,
                           bool encode) {
    const density_point *first = first_point(results);
    if (point->changed <= first->changed || point->changed > results->units / 10 * 3) {
        return 0;
    }
    double more = encode ? point->rows[codec].encode - first->rows[codec].encode
                         : point->rows[codec].decode - first->rows[codec].decode;
    return 1e9 * more / (double)(point->changed - first->changed);
}

double density_of(const density_results *results, const density_point *point) {
    return (double)point->changed / (double)results->units;
}

/* ---- JSON ---- */

static json_t *row_json(const density_results *results, const density_point *point, unsigned codec) {
    const bench_row *row = &point->rows[codec];
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(row->name));
    json_object_set_new(json, "patch_bytes", json_count(row->patch_bytes));
    json_object_set_new(json, "bytes_per_change", json_real(per_change(point, row)));
    json_object_set_new(json, "encode_gb_per_second", json_real(density_speed(row, row->encode)));
    json_object_set_new(json, "encode_to_memcpy", json_real(to_memcpy(results, row, row->encode)));
    json_object_set_new(json, "decode_gb_per_second", json_real(density_speed(row, row->decode)));
    json_object_set_new(json, "decode_to_memcpy", json_real(to_memcpy(results, row, row->decode)));
    json_object_set_new(json, "encode_ns_per_change", json_real(change_price(results, point, codec, true)));
    json_object_set_new(json, "decode_ns_per_change",
                        json_real(change_price(results, point, codec, false)));
    return json;
}

static int print_json(weft_command *command, const bench_options *options, const density_results *results) {
    json_t *json = json_object(), *points = json_array(), *anchor = json_object();
    for (size_t i = 0; i < results->count; i++) {
        const density_point *point = &results->points[i];
        json_t *item = json_object(), *rows = json_array();
        for (unsigned c = 0; c < DENSITY_CODECS; c++) {
            json_array_append_new(rows, row_json(results, point, c));
        }
        json_object_set_new(item, "learning_rate", json_real(point->rate));
        json_object_set_new(item, "changed", json_count(point->changed));
        json_object_set_new(item, "density", json_real(density_of(results, point)));
        json_object_set_new(item, "rows", rows);
        json_array_append_new(points, item);
    }
    json_object_set_new(anchor, "patch_bytes", json_count(results->anchor.patch_bytes));
    json_object_set_new(anchor, "encode_gb_per_second",
                        json_real(density_speed(&results->anchor, results->anchor.encode)));
    json_object_set_new(anchor, "encode_to_memcpy",
                        json_real(to_memcpy(results, &results->anchor, results->anchor.encode)));
    json_object_set_new(json, "dtype", json_string(results->dtype->name));
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "repeat", json_count(options->repeat));
    json_object_set_new(json, "total", json_count(results->units));
    json_object_set_new(json, "memcpy_gb_per_second",
                        json_real(density_speed(&results->copy, results->copy.encode)));
    json_object_set_new(json, "anchor", anchor);
    json_object_set_new(json, "points", points);
    return command_print_json(command, stdout, json);
}

/* ---- text ---- */

static void print_price(double price) {
    if (price != 0) {
        printf("  %6.1f", price);
    } else {
        printf("  %6s", "");
    }
}

static void print_point(const density_results *results, const density_point *point) {
    for (unsigned c = 0; c < DENSITY_CODECS; c++) {
        const bench_row *row = &point->rows[c];
        char density[TEXT_SIZE] = "";
        if (c == 0) {
            snprintf(density, sizeof density, "%.3f%%", 100 * density_of(results, point));
        }
        printf("%9s  %-10s  %7.3f  %7.3f  %6.2f %6.3f  %6.2f %6.3f", density, row->name,
               100 * (double)row->patch_bytes / (double)row->bytes, per_change(point, row),
               density_speed(row, row->encode), to_memcpy(results, row, row->encode),
               density_speed(row, row->decode), to_memcpy(results, row, row->decode));
        print_price(change_price(results, point, c, true));
        print_price(change_price(results, point, c, false));
        putchar('\n');
    }
}

static void print_text(const density_results *results) {
    char units[TEXT_SIZE];
    const bench_row *anchor = &results->anchor;
    printf(
        "%s weights, %s; %s, one thread, by the processor's time; memcpy %.2f GB/s; x: against memcpy\n\n",
        text_count(results->units, units), results->dtype->name, weft_cpu_name(),
        density_speed(&results->copy, results->copy.encode));
    printf("%9s  %-10s  %7s  %7s  %6s %6s  %6s %6s  %6s  %6s\n", "", "", "% of", "bytes/", "encode", "",
           "decode", "", "ns per", "change");
    printf("%9s  %-10s  %7s  %7s  %6s %6s  %6s %6s  %6s  %6s\n", "changed", "", "model", "change", "GB/s",
           "x", "GB/s", "x", "encode", "decode");
    for (size_t i = 0; i < results->count; i++) {
        print_point(results, &results->points[i]);
    }
    printf("%9s  %-10s  %7.3f  %7s  %6.2f %6.3f\n", "anchor", "",
           100 * (double)anchor->patch_bytes / (double)anchor->bytes, "",
           density_speed(anchor, anchor->encode), to_memcpy(results, anchor, anchor->encode));
}

int bench_density(weft_command *command, const bench_options *options) {
    density_results *results = calloc(1, sizeof *results);
    if (results == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the results");
    }
    bench_count_processor();
    int code = measure(command, options, results);
    progress_clear(&command->progress);
    if (code == EXIT_DONE && options->plot != NULL) {
        code = density_plot(command, results, options->plot);
    }
    if (code == EXIT_DONE && command->json) {
        code = print_json(command, options, results);
    } else if (code == EXIT_DONE) {
        print_text(results);
    }
    free(results);
    return code;
}
