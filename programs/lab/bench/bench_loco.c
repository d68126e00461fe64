/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco.c: `weft bench --loco`: a rank's own work in a round, beside memcpy, and what it sends, beside
 * indices of eight or four bytes with FP32 values.
 *
 * Every repetition is a round: eight steps of a trainer, gate, encode, decode, aggregate. What a round
 * sends is therefore also seen when residual and momentum are at work.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the trace ---- */

/* FP32 weights like those of a trained transformer, and steps of AdamW in FP32.
 *
 *     matrix weight   w = deviation * R[row] * z                      R = exp(0.35 z')
 *     norm weight     w = 1 + 0.05 z
 *     a step          m = 0.9 m + 0.1 g;  w -= lr * A[row] * m        g normal, m begins as if it had run
 *     row-wise spread A = exp(0.5 z' - 0.125), anew for each round
 *
 * which is Adam where the second moment has settled. Every number is a function of seed, tensor, row, round
 * and column, so that rows may be made in any order by any number of threads. */
typedef struct loco_trace {
    weft_trace shape;
    uint64_t elements;
    weft_loco_tensor *tensors; /* over `weights` */
    float *weights;
    unsigned threads;
} loco_trace;

enum { STEPS = 8 };

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t *stream) {
    *stream += 0x9e3779b97f4a7c15u;
    return mix(*stream);
}

static double uniform(uint64_t *stream) {
    return ((double)(draw(stream) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *stream) {
    double radius = sqrt(-2 * log(uniform(stream)));
    return radius * cos(6.283185307179586 * uniform(stream));
}

/* Nearly normal, from four uniform numbers of 16 bits: gradients need no tails. */
static float gradient(uint64_t *stream) {
    uint64_t bits = draw(stream);
    float sum = (float)(bits & 0xffff) + (float)(bits >> 16 & 0xffff) + (float)(bits >> 32 & 0xffff) +
                (float)(bits >> 48);
    return (sum - 131070.0f) * (1.7320508f / 65536.0f);
}

/* ---- rows ---- */

typedef struct row_job {
    loco_trace *trace;
    size_t tensor;
    uint64_t round; /* 0: the weights of the beginning */
} row_job;

static uint64_t stream_of(const row_job *job, size_t row) {
    return mix(mix(mix(job->trace->shape.seed ^ 0x10c0) ^ job->tensor) ^ row) ^ mix(job->round);
}

static void make_row(void *argument, size_t row, unsigned worker) {
    const row_job *job = argument;
    const trace_tensor *tensor = &job->trace->shape.tensors[job->tensor];
    float *weights = job->trace->tensors[job->tensor].data + row * tensor->columns;
    uint64_t stream = stream_of(job, row);
    double scale = tensor->deviation * exp(0.35 * normal(&stream));
    (void)worker;
    for (uint64_t i = 0; i < tensor->columns; i++) {
        double z = normal(&stream);
        weights[i] = (float)(tensor->deviation > 0 ? scale * z : 1 + 0.05 * z);
    }
}

static void train_row(void *argument, size_t row, unsigned worker) {
    const row_job *job = argument;
    const trace_tensor *tensor = &job->trace->shape.tensors[job->tensor];
    float *weights = job->trace->tensors[job->tensor].data + row * tensor->columns;
    uint64_t stream = stream_of(job, row);
    float rate = (float)(job->trace->shape.learning_rate * exp(0.5 * normal(&stream) - 0.125));
    (void)worker;
    for (uint64_t i = 0; i < tensor->columns; i++) {
        float moment = 0.2294157f * gradient(&stream);
        for (int step = 0; step < STEPS; step++) {
            moment = 0.9f * moment + 0.1f * gradient(&stream);
            weights[i] -= rate * moment;
        }
    }
}

static void run_trace_rows(loco_trace *trace, uint64_t round, void (*task)(void *, size_t, unsigned)) {
    for (size_t i = 0; i < trace->shape.count; i++) {
        row_job job = {trace, i, round};
        parallel_run(trace->threads, trace->shape.tensors[i].rows, task, &job);
    }
}

/* ---- the trace ---- */

static int loco_trace_open(weft_command *command, loco_trace *trace, const bench_options *options) {
    *trace = (loco_trace){.threads = weft_context_threads(command->context)};
    int code =
        trace_open(command, &trace->shape, options->parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    trace->elements = trace->shape.parameters;
    trace->weights = bench_map(trace->elements * sizeof *trace->weights);
    trace->tensors = calloc(trace->shape.count, sizeof *trace->tensors);
    if (trace->weights == NULL || trace->tensors == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the weights");
    }
    uint64_t start = 0;
    for (size_t i = 0; i < trace->shape.count; i++) {
        const trace_tensor *tensor = &trace->shape.tensors[i];
        uint64_t count = tensor->rows * tensor->columns;
        trace->tensors[i] = (weft_loco_tensor){tensor->name, trace->weights + start, count};
        start += count;
    }
    return EXIT_DONE;
}

static void loco_trace_close(loco_trace *trace) {
    bench_unmap(trace->weights, trace->elements * sizeof *trace->weights);
    free(trace->tensors);
    trace_close(&trace->shape);
}

/* Sets the weights to those of the beginning. */
static void loco_trace_reset(loco_trace *trace) {
    run_trace_rows(trace, 0, make_row);
}

/* Eight steps of Adam. */
static void loco_trace_train(loco_trace *trace, uint64_t round) {
    run_trace_rows(trace, round + 1, train_row);
}

/* ---- a round ---- */

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
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
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
    weft_context_destroy(scene->context);
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
    weft_loco_stats stats = {.size = sizeof stats};
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
    printf("%s weights, eight steps and then a round, %u rounds; %s; GB/s of FP32, x: against memcpy with "
           "as many threads\n\n",
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

int bench_loco(weft_command *command, const bench_options *options) {
    enum { PARAMETERS = 64000000 };
    bench_options chosen = *options;
    chosen.parameters = chosen.parameters > 0 ? chosen.parameters : PARAMETERS;
    loco_trace trace;
    int code = loco_trace_open(command, &trace, &chosen);
    loco_results results = {.threads = weft_context_threads(command->context), .elements = trace.elements};
    if (code == EXIT_DONE) {
        code = run_rows(command, &trace, chosen.repeat, &results);
    }
    if (code == EXIT_DONE) {
        progress_clear(&command->progress);
        if (command->json) {
            code = print_json(command, &results, chosen.repeat);
        } else {
            print_text(&results, chosen.repeat);
        }
    }
    loco_trace_close(&trace);
    return code;
}
