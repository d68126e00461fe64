/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco.c: `weft bench --loco`: a rank's own work in a round, beside memcpy, and what it sends, beside
 * indices of eight or four bytes with FP32 values.
 *
 * Every repetition is a round: eight steps of a trainer, gate, encode, decode, aggregate. What a round
 * sends is therefore also seen when residual and momentum are at work.
 */
#include "bench_loco.h"

#include <stdlib.h>
#include <string.h>

typedef struct loco_mode {
    const char *name;
    uint32_t significant;
    bool open;
    bool raw;
} loco_mode;

static const loco_mode modes[] = {
    {"lossless", 0, false, false},
    {"8 bits", 8, false, false},
    {"open", 0, true, false},
    {"raw", 0, true, true},
};
enum { MODES = sizeof modes / sizeof *modes, LOCO_ROWS = 2 * MODES };

typedef struct loco_row {
    const loco_mode *mode;
    unsigned threads;
    /* of the first round and of the last */
    uint64_t fired[2];
    uint64_t bytes[2];
    double gate; /* seconds, of the fastest round; 0: not measured */
    double encode;
    double decode;
    double move;
} loco_row;

typedef struct loco_results {
    bench_row copies[2]; /* with one thread, and with all */
    loco_row rows[LOCO_ROWS];
    size_t count;
    unsigned threads;
    uint64_t elements;
} loco_results;

/* A rank, and room for the gate alone. */
typedef struct loco_scene {
    loco_trace *trace;
    weft_context *context;
    weft_loco *loco;
    float *residual;
    uint32_t *positions;
    float *values;
} loco_scene;

static void keep_smallest(double *best, double seconds) {
    if (*best == 0 || seconds < *best) {
        *best = seconds;
    }
}

static size_t scene_bytes(const loco_scene *scene) {
    return scene->trace->elements * sizeof(float);
}

static int open_scene(weft_command *command, loco_trace *trace, const loco_mode *mode, unsigned threads,
                      loco_scene *scene) {
    *scene = (loco_scene){.trace = trace};
    int code = command_context(command, threads, &scene->context);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_loco_options options = weft_loco_defaults();
    options.run = "bench";
    options.significant = mode->significant;
    options.open = mode->open;
    options.raw = mode->raw;
    loco_trace_reset(trace);
    weft_status status =
        weft_loco_create(scene->context, &options, trace->tensors, trace->shape.count, &scene->loco);
    if (status != WEFT_OK) {
        return command_fail_in(command, scene->context, NULL, status);
    }
    scene->residual = bench_map(scene_bytes(scene));
    scene->positions = bench_map(scene_bytes(scene));
    scene->values = bench_map(scene_bytes(scene));
    if (scene->residual == NULL || scene->positions == NULL || scene->values == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the gate");
    }
    return EXIT_DONE;
}

static void close_scene(loco_scene *scene) {
    bench_unmap(scene->residual, scene_bytes(scene));
    bench_unmap(scene->positions, scene_bytes(scene));
    bench_unmap(scene->values, scene_bytes(scene));
    weft_loco_destroy(scene->loco);
    if (scene->context != NULL) {
        weft_context_destroy(scene->context);
    }
}

/* The gate alone, over the same weights and with a residual of its own that goes along. */
static weft_status run_gate(loco_scene *scene, const loco_mode *mode, uint64_t *fired_out,
                            double *seconds_out) {
    weft_status status = WEFT_OK;
    double begun = clock_seconds();
    uint64_t total = 0;
    float *residual = scene->residual;
    for (size_t i = 0; i < scene->trace->shape.count && status == WEFT_OK; i++) {
        const weft_loco_tensor *tensor = &scene->trace->tensors[i];
        uint64_t fired = 0;
        status = weft_loco_gate(scene->context, weft_loco_consensus(scene->loco, tensor->name),
                                tensor->data, residual, tensor->count, mode->significant, mode->open,
                                scene->positions, scene->values, &fired);
        residual += tensor->count;
        total += fired;
    }
    *fired_out = total;
    *seconds_out = clock_seconds() - begun;
    return status;
}

static weft_status run_round(loco_scene *scene, loco_row *row, uint64_t round) {
    weft_loco_payload payload;
    weft_loco_stats stats;
    uint64_t fired = 0;
    double seconds = 0;
    loco_trace_train(scene->trace, round);
    weft_status status = WEFT_OK;
    if (row->threads == 1) {
        status = run_gate(scene, row->mode, &fired, &seconds);
        keep_smallest(&row->gate, seconds);
    }
    double begun = clock_seconds();
    if (status == WEFT_OK) {
        status = weft_loco_encode(scene->loco, &payload);
        keep_smallest(&row->encode, clock_seconds() - begun);
    }
    if (status == WEFT_OK) {
        status = weft_loco_aggregate(scene->loco, &payload, 1, &stats);
    }
    if (status == WEFT_OK) {
        keep_smallest(&row->decode, stats.decoding);
        keep_smallest(&row->move, stats.moving);
        row->fired[round > 0] = stats.fired;
        row->bytes[round > 0] = stats.sent;
    }
    return status;
}

static int run_row(weft_command *command, loco_trace *trace, unsigned rounds, loco_row *row) {
    loco_scene scene;
    int code = open_scene(command, trace, row->mode, row->threads, &scene);
    for (uint64_t round = 0; round < rounds && code == EXIT_DONE; round++) {
        weft_status status = run_round(&scene, row, round);
        code = status != WEFT_OK ? command_fail_in(command, scene.context, NULL, status)
                                 : command_interrupted();
    }
    close_scene(&scene);
    return code;
}

/* memcpy runs before everything else and after it: what all ratios rest on should not hang on one moment.
 */
static int copy_rows(weft_command *command, loco_results *results) {
    unsigned widths[2] = {1, results->threads};
    int code = EXIT_DONE;
    for (size_t i = 0; i < (results->threads > 1 ? 2u : 1u) && code == EXIT_DONE; i++) {
        results->copies[i].threads = widths[i];
        code = bench_memcpy(command, 3, &results->copies[i]);
    }
    return code;
}

static int run_rows(weft_command *command, loco_trace *trace, unsigned rounds, loco_results *results) {
    unsigned widths[2] = {1, results->threads};
    size_t kinds = results->threads > 1 ? 2 : 1;
    int code = copy_rows(command, results);
    for (size_t m = 0; m < MODES && code == EXIT_DONE; m++) {
        for (size_t i = 0; i < kinds && code == EXIT_DONE; i++) {
            loco_row *row = &results->rows[results->count];
            *row = (loco_row){.mode = &modes[m], .threads = widths[i]};
            command_note(command, "%s, %u threads …", modes[m].name, widths[i]);
            code = run_row(command, trace, rounds, row);
            results->count++;
        }
    }
    return code == EXIT_DONE ? copy_rows(command, results) : code;
}

/* ---- results ---- */

static double speed(const loco_results *results, double seconds) {
    return 1e-9 * (double)results->elements * sizeof(float) / seconds;
}

static double ratio(const loco_results *results, const loco_row *row, double seconds) {
    const bench_row *copy = &results->copies[row->threads > 1];
    return speed(results, seconds) * copy->encode / (1e-9 * (double)copy->bytes);
}

static double bytes_per_fired(const loco_row *row, int which) {
    return row->fired[which] > 0 ? (double)row->bytes[which] / (double)row->fired[which] : 0;
}

static void set_speed(json_t *json, const char *key, const loco_results *results, const loco_row *row,
                      double seconds) {
    char name[TEXT_SIZE];
    snprintf(name, sizeof name, "%s_gb_per_second", key);
    json_object_set_new(json, name, seconds > 0 ? json_real(speed(results, seconds)) : json_null());
    snprintf(name, sizeof name, "%s_to_memcpy", key);
    json_object_set_new(json, name, seconds > 0 ? json_real(ratio(results, row, seconds)) : json_null());
}

static json_t *row_json(const loco_results *results, const loco_row *row, unsigned rounds) {
    json_t *json = json_object();
    int last = rounds > 1;
    json_object_set_new(json, "name", json_string(row->mode->name));
    json_object_set_new(json, "threads", json_count(row->threads));
    json_object_set_new(json, "fired", json_count(row->fired[last]));
    json_object_set_new(json, "density", json_ratio((double)row->fired[last], (double)results->elements));
    json_object_set_new(json, "payload_bytes", json_count(row->bytes[last]));
    json_object_set_new(json, "bytes_per_fired_first", json_real(bytes_per_fired(row, 0)));
    json_object_set_new(json, "bytes_per_fired", json_real(bytes_per_fired(row, last)));
    set_speed(json, "gate", results, row, row->gate);
    set_speed(json, "gate_and_encode", results, row, row->encode);
    set_speed(json, "decode", results, row, row->decode);
    set_speed(json, "aggregate", results, row, row->move);
    return json;
}

static int print_json(weft_command *command, const loco_results *results, unsigned rounds) {
    json_t *json = json_object(), *rows = json_array();
    for (size_t i = 0; i < results->count; i++) {
        json_array_append_new(rows, row_json(results, &results->rows[i], rounds));
    }
    json_object_set_new(json, "cpu", json_string(weft_cpu_name()));
    json_object_set_new(json, "threads", json_count(results->threads));
    json_object_set_new(json, "elements", json_count(results->elements));
    json_object_set_new(json, "rounds", json_count(rounds));
    json_object_set_new(json, "int64_fp32_bytes_per_fired", json_real(12));
    json_object_set_new(json, "int32_fp32_bytes_per_fired", json_real(8));
    json_object_set_new(json, "rows", rows);
    return command_print_json(command, stdout, json);
}

static void print_speed(const loco_results *results, const loco_row *row, double seconds) {
    if (seconds > 0) {
        printf("  %6.2f %5.2f", speed(results, seconds), ratio(results, row, seconds));
    } else {
        printf("  %6s %5s", "", "");
    }
}

static void print_text(const loco_results *results, unsigned rounds) {
    char count[TEXT_SIZE];
    int last = rounds > 1;
    printf(
        "%s weights, eight steps and then a round, %u rounds; %s; GB/s of FP32, x: against memcpy with as "
        "many threads\n\n",
        text_count(results->elements, count), rounds, weft_cpu_name());
    printf("%-9s %3s  %6s  %7s %7s  %6s %5s  %6s %5s  %6s %5s  %6s %5s\n", "", "", "", "bytes /", "fired",
           "", "", "gate +", "", "", "", "aggre-", "");
    printf("%-9s %3s  %6s  %7s %7s  %6s %5s  %6s %5s  %6s %5s  %6s %5s\n", "", "thr", "fired", "first",
           "last", "gate", "x", "encode", "x", "decode", "x", "gate", "x");
    for (size_t i = 0; i < results->count; i++) {
        const loco_row *row = &results->rows[i];
        printf("%-9s %3u  %5.2f%%  %7.3f %7.3f", row->mode->name, row->threads,
               100.0 * (double)row->fired[last] / (double)results->elements, bytes_per_fired(row, 0),
               bytes_per_fired(row, last));
        print_speed(results, row, row->gate);
        print_speed(results, row, row->encode);
        print_speed(results, row, row->decode);
        print_speed(results, row, row->move);
        putchar('\n');
    }
    double bytes = bytes_per_fired(&results->rows[0], last);
    if (bytes > 0) {
        printf("\nint64 + FP32  12 bytes, %.2f times lossless;  int32 + FP32  8 bytes, %.2f times\n",
               12 / bytes, 8 / bytes);
    }
    for (unsigned i = 0; i < (results->threads > 1 ? 2u : 1u); i++) {
        printf("memcpy        %.2f GB/s, %u thread%s\n",
               1e-9 * (double)results->copies[i].bytes / results->copies[i].encode,
               results->copies[i].threads, results->copies[i].threads == 1 ? "" : "s");
    }
}

int bench_loco(weft_command *command, const loco_bench_options *options) {
    enum { PARAMETERS = 64000000 };
    loco_bench_options chosen = *options;
    chosen.parameters = chosen.parameters > 0 ? chosen.parameters : PARAMETERS;
    loco_trace trace;
    int code = loco_trace_open(command, &trace, &chosen);
    loco_results results = {.threads = weft_context_threads(command->context), .elements = trace.elements};
    if (code == EXIT_DONE) {
        code = run_rows(command, &trace, chosen.rounds, &results);
    }
    if (code == EXIT_DONE) {
        progress_clear(&command->progress);
        if (command->json) {
            code = print_json(command, &results, chosen.rounds);
        } else {
            print_text(&results, chosen.rounds);
        }
    }
    loco_trace_close(&trace);
    return code;
}
