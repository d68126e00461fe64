/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_table.c: the main table of `weft bench`: diff, apply and digest beside memcpy and beside what
 * others do, with one thread and with all, over one model.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* ---- measuring ---- */

enum { ROW_MAX = 16 };

typedef struct bench_results {
    bench_row rows[ROW_MAX];
    size_t count;
    unsigned threads; /* "all" */
    uint64_t units;
    uint64_t changed;
    survey_bound bound;
} bench_results;

/* memcpy runs seven times with each number of threads, some before everything else and some after it:
 * what all ratios rest on should not hang on one moment. */
enum { COPIES_BEFORE = 4, COPIES_AFTER = 3 };

/* Runs the rows in the order of the table. With one processor there is no second row of each kind. */
static int run_rows(weft_command *command, bench_model *model, unsigned repeat, bench_results *results) {
    unsigned widths[2] = {1, results->threads};
    size_t kinds = results->threads > 1 ? 2 : 1, *count = &results->count;
    int code = EXIT_DONE;
    bench_row *rows = results->rows;
    for (size_t i = 0; i < kinds && code == EXIT_DONE; i++) {
        rows[i].threads = widths[i];
        code = bench_memcpy(command, COPIES_BEFORE, &rows[(*count)++]);
    }
    for (int profile = WEFT_PROFILE_FAST; profile <= WEFT_PROFILE_SMALL; profile++) {
        for (size_t i = 0; i < kinds && code == EXIT_DONE; i++) {
            code =
                bench_profile(command, model, (weft_profile)profile, widths[i], repeat, &rows[(*count)++]);
        }
    }
    for (int baseline = BASELINE_COO; baseline <= BASELINE_XOR && code == EXIT_DONE; baseline++) {
        code = bench_other(command, model, (bench_baseline)baseline, repeat, &rows[(*count)++]);
    }
    for (size_t i = 0; i < kinds && code == EXIT_DONE; i++) {
        code = bench_digest(command, model, widths[i], repeat, &rows[(*count)++]);
    }
    for (size_t i = 0; i < kinds && code == EXIT_DONE; i++) {
        code = bench_memcpy(command, COPIES_AFTER, &rows[i]);
    }
    return code;
}

/* ---- reading the results ---- */

static const bench_row *find_row(const bench_results *results, const char *name, unsigned threads) {
    for (size_t i = 0; i < results->count; i++) {
        if (strcmp(results->rows[i].name, name) == 0 && results->rows[i].threads == threads) {
            return &results->rows[i];
        }
    }
    return &results->rows[0];
}

/* Gigabytes per second; 0 if there is no such time. */
static double speed(const bench_row *row, double seconds) {
    return seconds > 0 ? 1e-9 * (double)row->bytes / seconds : 0;
}

/* Against memcpy with as many threads. */
static double ratio(const bench_results *results, const bench_row *row, double seconds) {
    const bench_row *copy = find_row(results, "memcpy", row->threads);
    return speed(row, seconds) / speed(copy, copy->encode);
}

static double bytes_per_change(const bench_results *results, const bench_row *row) {
    return results->changed > 0 ? (double)row->patch_bytes / (double)results->changed : 0;
}

static double commit_speed(const bench_results *results, const bench_row *row) {
    return row->commit > 0 ? 1e-6 * (double)results->changed / row->commit : 0;
}

/* How much faster all threads are than one, by the times of the same kind. */
static double gain(double one, double all) {
    return all > 0 ? one / all : 0;
}

/* ---- JSON ---- */

static void set_speed(json_t *json, const char *key, const bench_results *results, const bench_row *row,
                      double seconds) {
    char name[TEXT_SIZE];
    snprintf(name, sizeof name, "%s_gb_per_second", key);
    json_object_set_new(json, name, seconds > 0 ? json_real(speed(row, seconds)) : json_null());
    snprintf(name, sizeof name, "%s_to_memcpy", key);
    json_object_set_new(json, name, seconds > 0 ? json_real(ratio(results, row, seconds)) : json_null());
}

static json_t *row_json(const bench_results *results, const bench_row *row) {
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(row->name));
    json_object_set_new(json, "threads", json_count(row->threads));
    json_object_set_new(json, "patch_bytes",
                        row->patch_bytes > 0 ? json_count(row->patch_bytes) : json_null());
    json_object_set_new(json, "bytes_per_change",
                        row->patch_bytes > 0 ? json_real(bytes_per_change(results, row)) : json_null());
    set_speed(json, "encode", results, row, row->encode);
    set_speed(json, "decode", results, row, row->decode);
    set_speed(json, "prepare", results, row, row->prepare);
    json_object_set_new(json, "commit_million_changes_per_second",
                        row->commit > 0 ? json_real(commit_speed(results, row)) : json_null());
    set_speed(json, "digest", results, row, row->digest);
    return json;
}

static int print_json(weft_command *command, unsigned repeat, const bench_results *results) {
    json_t *json = json_object(), *rows = json_array();
    for (size_t i = 0; i < results->count; i++) {
        json_array_append_new(rows, row_json(results, &results->rows[i]));
    }
    double bound = (results->bound.position + results->bound.step) / 8;
    double small = bytes_per_change(results, find_row(results, "small", 1));
    double coo = bytes_per_change(results, find_row(results, "COO+zstd-1", 1));
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "threads", json_count(results->threads));
    json_object_set_new(json, "repeat", json_count(repeat));
    json_object_set_new(json, "total", json_count(results->units));
    json_object_set_new(json, "changed", json_count(results->changed));
    json_object_set_new(json, "density", json_ratio((double)results->changed, (double)results->units));
    json_object_set_new(json, "rows", rows);
    json_object_set_new(json, "bound_bytes_per_change", json_real(bound));
    json_object_set_new(json, "small_to_bound", json_ratio(small, bound));
    json_object_set_new(json, "coo_to_small", json_ratio(coo, small));
    return command_print_json(command, stdout, json);
}

/* ---- text ---- */

static void print_speed(const bench_results *results, const bench_row *row, double seconds) {
    if (seconds > 0) {
        printf("  %6.2f %5.2f", speed(row, seconds), ratio(results, row, seconds));
    } else {
        printf("  %6s %5s", "", "");
    }
}

static void print_row(const bench_results *results, const bench_row *row) {
    printf("%-11s %3u", row->name, row->threads);
    if (row->patch_bytes > 0) {
        printf("  %6.3f", bytes_per_change(results, row));
    } else {
        printf("  %6s", "");
    }
    print_speed(results, row, row->encode);
    print_speed(results, row, row->decode);
    print_speed(results, row, row->prepare);
    if (row->commit > 0) {
        printf("  %8.0f", commit_speed(results, row));
    } else {
        printf("  %8s", "");
    }
    print_speed(results, row, row->digest);
    putchar('\n');
}

static void print_gain(const bench_results *results, const char *name, bool encode) {
    const bench_row *one = find_row(results, name, 1), *all = find_row(results, name, results->threads);
    double own = encode ? gain(one->encode, all->encode) : gain(one->decode, all->decode);
    double copy =
        gain(find_row(results, "memcpy", 1)->encode, find_row(results, "memcpy", results->threads)->encode);
    printf("  %s %s %.2f (%.2f of memcpy's)", name, encode ? "encode" : "decode", own, own / copy);
}

static void print_text(const bench_results *results) {
    char units[TEXT_SIZE], changed[TEXT_SIZE];
    printf("%s weights, %s changed (%.3f%%); %s, %u thread%s; GB/s, x: against memcpy with as many "
           "threads\n\n",
           text_count(results->units, units), text_count(results->changed, changed),
           100.0 * (double)results->changed / (double)results->units, weft_cpu_name(), results->threads,
           results->threads == 1 ? "" : "s");
    printf("%-11s %3s  %6s  %6s %5s  %6s %5s  %6s %5s  %8s  %6s %5s\n", "", "", "bytes/", "", "", "decode",
           "", "", "", "commit", "", "");
    printf("%-11s %3s  %6s  %6s %5s  %6s %5s  %6s %5s  %8s  %6s %5s\n", "", "thr", "change", "encode", "x",
           "+apply", "x", "prep.", "x", "M chg/s", "digest", "x");
    for (size_t i = 0; i < results->count; i++) {
        print_row(results, &results->rows[i]);
    }
    double bound = results->bound.position + results->bound.step;
    double small = bytes_per_change(results, find_row(results, "small", 1));
    printf("\nbound        %.3f bytes per change: position %.3f + step %.3f bits, given the exponent\n",
           bound / 8, results->bound.position, results->bound.step);
    if (results->changed > 0) {
        printf("small        %.3f x the bound, %.2f times smaller than COO+zstd-1\n", 8 * small / bound,
               bytes_per_change(results, find_row(results, "COO+zstd-1", 1)) / small);
    }
    if (results->threads > 1) {
        printf("%-3u threads ", results->threads);
        printf(" memcpy %.2f", gain(find_row(results, "memcpy", 1)->encode,
                                    find_row(results, "memcpy", results->threads)->encode));
        print_gain(results, "fast", true);
        print_gain(results, "fast", false);
        printf("\n            ");
        print_gain(results, "small", true);
        print_gain(results, "small", false);
        putchar('\n');
    }
}

/* ---- the whole ---- */

int bench_table(weft_command *command, bench_model *model, unsigned repeat) {
    bench_results results = {.threads = weft_context_threads(command->context), .units = model->units};
    weft_survey survey;
    int code = survey_run(command, model->base_table, model->next_table, &survey);
    if (code != EXIT_DONE) {
        return code;
    }
    results.changed = survey.changed;
    results.bound = survey_entropy(&survey);
    survey_close(&survey);
    code = run_rows(command, model, repeat, &results);
    if (code != EXIT_DONE) {
        return code;
    }
    progress_clear(&command->progress);
    if (command->json) {
        return print_json(command, repeat, &results);
    }
    print_text(&results);
    return EXIT_DONE;
}
