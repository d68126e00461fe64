/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_trace.c: checkpoints of a training run that never was.
 *
 * The formula, which --help repeats:
 *
 *     matrix weight      w = deviation * R[row] * C[column] * z       z normal, cut at 4.2 deviations
 *     row, column scale  R = exp(0.35 z'), C = exp(0.25 z')           one z' per row, per column
 *     norm weight        w = 1 + 0.05 z
 *     base               b = bf16(w)
 *     FP32 master        m = uniform over the FP32 values that round to b
 *     a step             m += ± lr * 0.2 * A[row] * (0.5 + u)         sign random, u uniform in [0, 1)
 *     row-wise spread    A = exp(0.5 z' - 0.125)                      one z' per row and step; mean 1
 *     new                bf16(m)
 *
 * Deviations are 0.015 to 0.033 by the kind of tensor. The mean step of 0.2 lr is what Adam takes on the
 * bursty gradients of RL, and gives about 1% changed weights at lr 1e-6.
 *
 * Every random number is a function of seed, tensor, row, step and column (splitmix64 over a counter),
 * so that rows can be made in any order by any number of threads, and masters live for one row only.
 */
#include "bench.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const double row_spread = 0.35;
static const double column_spread = 0.25;
static const double norm_spread = 0.05;
static const double step_size = 0.2;
static const double step_spread = 0.5;

/* ---- random numbers ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t draw(uint64_t stream, uint64_t counter) {
    return mix(stream + (counter + 1) * 0x9e3779b97f4a7c15u);
}

/* Streams are told apart by what they are for. */
enum { STREAM_WEIGHTS, STREAM_ROW, STREAM_COLUMN, STREAM_STEP, STREAM_STEP_ROW };

static uint64_t stream_of(uint64_t seed, unsigned purpose, uint64_t tensor, uint64_t row, uint64_t step) {
    return mix(mix(mix(mix(seed ^ purpose) ^ tensor) ^ row) ^ step);
}

/* The positive half of the normal distribution by its quantiles: equal probability per cell, linear
 * within. */
enum { CELL_BITS = 11, CELLS = 1 << CELL_BITS };
typedef struct normal_cell {
    float start;
    float width;
} normal_cell;
static normal_cell normal_cells[CELLS];

/* x with P(|z| < x) = p, by bisection. */
static double half_quantile(double p) {
    double low = 0, high = 8;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (erf(middle * 0.70710678118654752) < p) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void prepare_normal(void) {
    if (normal_cells[0].width != 0) {
        return;
    }
    double start = 0;
    for (int i = 0; i < CELLS; i++) {
        double p = i + 1 < CELLS ? (i + 1.0) / CELLS : 1 - 1 / (16.0 * CELLS);
        double end = half_quantile(p);
        normal_cells[i] = (normal_cell){.start = (float)start, .width = (float)(end - start)};
        start = end;
    }
}

/* A normal number from 32 random bits: sign, cell, place in the cell. */
static inline float normal(uint32_t bits) {
    const normal_cell *cell = &normal_cells[(bits >> (31 - CELL_BITS)) & (CELLS - 1)];
    float place = (float)(bits & ((1u << (31 - CELL_BITS)) - 1)) * (1.0f / (1u << (31 - CELL_BITS)));
    float value = cell->start + cell->width * place;
    return (bits >> 31) != 0 ? -value : value;
}

static float lognormal(uint64_t random, double spread, double mean) {
    return (float)exp(mean + spread * (double)normal((uint32_t)random));
}

/* ---- the shape of the model ---- */

static int add_tensor(weft_trace *trace, const char *prefix, int layer, const char *name, uint64_t rows,
                      uint64_t columns, float deviation) {
    trace_tensor *tensors = realloc(trace->tensors, (trace->count + 1) * sizeof *tensors);
    if (tensors == NULL) {
        return -1;
    }
    trace->tensors = tensors;
    trace_tensor *tensor = &tensors[trace->count++];
    *tensor = (trace_tensor){
        .rank = deviation > 0 ? 2 : 1, .rows = rows, .columns = columns, .deviation = deviation};
    if (layer >= 0) {
        snprintf(tensor->name, sizeof tensor->name, "%s.%d.%s", prefix, layer, name);
    } else {
        snprintf(tensor->name, sizeof tensor->name, "%s.%s", prefix, name);
    }
    trace->parameters += rows * columns;
    return 0;
}

static int add_layer(weft_trace *trace, int layer, uint64_t width, uint64_t inner) {
    const char *prefix = "model.layers";
    uint64_t shared = width / 4; /* key and value heads are shared by four query heads */
    int failed = 0;
    failed |= add_tensor(trace, prefix, layer, "self_attn.q_proj.weight", width, width, 0.026f);
    failed |= add_tensor(trace, prefix, layer, "self_attn.k_proj.weight", shared, width, 0.033f);
    failed |= add_tensor(trace, prefix, layer, "self_attn.v_proj.weight", shared, width, 0.020f);
    failed |= add_tensor(trace, prefix, layer, "self_attn.o_proj.weight", width, width, 0.022f);
    failed |= add_tensor(trace, prefix, layer, "mlp.gate_proj.weight", inner, width, 0.027f);
    failed |= add_tensor(trace, prefix, layer, "mlp.up_proj.weight", inner, width, 0.024f);
    failed |= add_tensor(trace, prefix, layer, "mlp.down_proj.weight", width, inner, 0.023f);
    failed |= add_tensor(trace, prefix, layer, "input_layernorm.weight", 1, width, 0);
    failed |= add_tensor(trace, prefix, layer, "post_attention_layernorm.weight", 1, width, 0);
    return failed;
}

/* Width grows with the cube root of the parameters, as depth grows along; the vocabulary takes what the
 * layers leave. */
int trace_open(weft_command *command, weft_trace *trace, uint64_t parameters, double learning_rate,
               uint64_t seed) {
    *trace = (weft_trace){
        .learning_rate = learning_rate, .seed = seed, .dtype = bench_dtype_of(WEFT_DTYPE_BF16)};
    prepare_normal();
    uint64_t width = 64 * (uint64_t)(16 * cbrt((double)parameters / 256e6) + 0.5);
    width = width < 64 ? 64 : width;
    uint64_t inner = width * 11 / 4;
    uint64_t layer = 2 * width * width + 2 * width * (width / 4) + 3 * width * inner + 2 * width;
    uint64_t words = 32 * width * width;
    uint64_t layers = parameters > words + layer ? (parameters - words) / layer : 1;
    uint64_t used = layers * layer + width;
    uint64_t vocabulary = parameters > used + width ? (parameters - used) / width : 1;

    int failed = add_tensor(trace, "model", -1, "embed_tokens.weight", vocabulary, width, 0.015f);
    for (uint64_t i = 0; i < layers && !failed; i++) {
        failed |= add_layer(trace, (int)i, width, inner);
    }
    failed |= add_tensor(trace, "model", -1, "norm.weight", 1, width, 0);
    if (failed) {
        trace_close(trace);
        return command_error(command, EXIT_FAILED, "no memory for the trace");
    }
    return EXIT_DONE;
}

int trace_open_many(weft_command *command, weft_trace *trace, uint64_t count, double learning_rate,
                    uint64_t seed) {
    enum { COLUMNS = 256, LEAST_ROWS = 16, SIZES = 5 };
    *trace = (weft_trace){
        .learning_rate = learning_rate, .seed = seed, .dtype = bench_dtype_of(WEFT_DTYPE_BF16)};
    prepare_normal();
    for (uint64_t i = 0; i < count; i++) {
        if (add_tensor(trace, "model.experts", (int)i, "weight", (uint64_t)LEAST_ROWS << i % SIZES, COLUMNS,
                       0.024f) != 0) {
            trace_close(trace);
            return command_error(command, EXIT_FAILED, "no memory for the trace");
        }
    }
    return EXIT_DONE;
}

void trace_close(weft_trace *trace) {
    free(trace->tensors);
    *trace = (weft_trace){0};
}

/* ---- filling ---- */

/* Some rows of a tensor. */
typedef struct trace_job {
    size_t tensor;
    uint64_t first;
    uint64_t rows;
} trace_job;

enum { JOB_UNITS = 1 << 18 };

typedef struct trace_filling {
    weft_command *command;
    const weft_trace *trace;
    void **const *states;
    size_t state_count;
    trace_job *jobs;
    size_t job_count;
    atomic_uint_fast64_t done;
    atomic_bool no_memory;
} trace_filling;

static bool list_jobs(trace_filling *filling) {
    const weft_trace *trace = filling->trace;
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (size_t t = 0; t < trace->count; t++) {
            uint64_t rows = trace->tensors[t].rows, step = JOB_UNITS / trace->tensors[t].columns + 1;
            for (uint64_t first = 0; first < rows; first += step) {
                if (pass == 1) {
                    uint64_t left = rows - first;
                    filling->jobs[count] =
                        (trace_job){.tensor = t, .first = first, .rows = left < step ? left : step};
                }
                count++;
            }
        }
        if (pass == 0 && (filling->jobs = calloc(count + 1, sizeof *filling->jobs)) == NULL) {
            return false;
        }
    }
    filling->job_count = count;
    return true;
}

/* The base's weights of a row, still in FP32. */
static void make_weights(const trace_tensor *tensor, uint64_t stream, float row_scale,
                         const float *column_scales, float *weights) {
    for (uint64_t c = 0; c < tensor->columns; c++) {
        float z = normal((uint32_t)draw(stream, c));
        weights[c] = tensor->deviation > 0 ? row_scale * column_scales[c] * z : 1 + (float)norm_spread * z;
    }
}

/* Masters: any FP32 value that rounds to the BF16 one, each as likely as the other. */
static void make_masters(const uint16_t *base, uint64_t stream, uint64_t columns, float *masters) {
    for (uint64_t c = 0; c < columns; c++) {
        int32_t offset = (int32_t)(draw(stream, c) >> 48) - 0x8000;
        offset = offset == -0x8000 ? 0 : offset;
        offset = (base[c] & 0x7fff) == 0 && offset < 0 ? -offset : offset;
        uint32_t bits = ((uint32_t)base[c] << 16) + (uint32_t)offset;
        memcpy(&masters[c], &bits, sizeof bits);
    }
}

/* One step of a row: sixteen random bits per weight, a sign and a size. */
static void take_step(uint64_t stream, float size, uint64_t columns, float *masters) {
    uint64_t random = 0;
    for (uint64_t c = 0; c < columns; c++) {
        random = c % 4 == 0 ? draw(stream, c / 4) : random >> 16;
        float step = size * (0.5f + (float)((random >> 1) & 0x7fff) * (1.0f / 0x8000));
        masters[c] += (random & 1) != 0 ? -step : step;
    }
}

static void fill_row(const trace_filling *filling, const trace_job *job, uint64_t row,
                     const float *column_scales, float *masters) {
    const weft_trace *trace = filling->trace;
    const trace_tensor *tensor = &trace->tensors[job->tensor];
    uint64_t columns = tensor->columns, at = row * columns, t = job->tensor;
    uint16_t *base = (uint16_t *)filling->states[0][t] + at;
    uint64_t weights = stream_of(trace->seed, STREAM_WEIGHTS, t, row, 0);
    uint64_t scale = stream_of(trace->seed, STREAM_ROW, t, row, 0);
    make_weights(tensor, weights, tensor->deviation * lognormal(scale, row_spread, 0), column_scales,
                 masters);
    weft_bf16_from_f32(masters, base, columns);
    make_masters(base, weights, columns, masters);
    for (size_t s = 1; s < filling->state_count; s++) {
        uint64_t spread = stream_of(trace->seed, STREAM_STEP_ROW, t, row, s);
        double size = trace->learning_rate * step_size *
                      (double)lognormal(spread, step_spread, -0.5 * step_spread * step_spread);
        take_step(stream_of(trace->seed, STREAM_STEP, t, row, s), (float)size, columns, masters);
        weft_bf16_from_f32(masters, (uint16_t *)filling->states[s][t] + at, columns);
    }
}

/* What a type other than BF16 has of a weight before a step and after it. */
static inline void fill_unit(const weft_trace *trace, float old, float new, float scale,
                             uint32_t values[2]) {
    if (trace->dtype->dtype != WEFT_DTYPE_F32) {
        values[0] = bench_dtype_round(trace->dtype, old * scale);
        values[1] = bench_dtype_round(trace->dtype, new *scale);
        return;
    }
    uint16_t seen[2];
    weft_bf16_from_f32(&old, &seen[0], 1);
    weft_bf16_from_f32(&new, &seen[1], 1);
    memcpy(&values[0], &old, sizeof old);
    memcpy(&values[1], trace->every || seen[0] != seen[1] ? &new : &old, sizeof new);
}

/* A row of another type, before a step and after it: the FP32 weights are the masters. */
static void fill_row_as(const trace_filling *filling, const trace_job *job, uint64_t row,
                        const float *column_scales, float *masters) {
    const weft_trace *trace = filling->trace;
    const bench_dtype *dtype = trace->dtype;
    const trace_tensor *tensor = &trace->tensors[job->tensor];
    unsigned width = weft_dtype_width(dtype->dtype);
    uint64_t columns = tensor->columns, t = job->tensor;
    uint8_t *old = (uint8_t *)filling->states[0][t] + row * columns * width;
    uint8_t *new = (uint8_t *)filling->states[1][t] + row *columns *width;
    uint64_t scales = stream_of(trace->seed, STREAM_ROW, t, row, 0);
    uint64_t spread = stream_of(trace->seed, STREAM_STEP_ROW, t, row, 1);
    float scale = bench_dtype_scale(dtype, tensor->deviation);
    double size = trace->learning_rate * step_size *
                  (double)lognormal(spread, step_spread, -0.5 * step_spread * step_spread);
    make_weights(tensor, stream_of(trace->seed, STREAM_WEIGHTS, t, row, 0),
                 tensor->deviation * lognormal(scales, row_spread, 0), column_scales, masters);
    memcpy(masters + columns, masters, columns * sizeof *masters);
    take_step(stream_of(trace->seed, STREAM_STEP, t, row, 1), (float)size, columns, masters + columns);
    for (uint64_t c = 0; c < columns; c++) {
        uint32_t values[2];
        fill_unit(trace, masters[c], masters[columns + c], scale, values);
        memcpy(old + c * width, &values[0], width);
        memcpy(new + c *width, &values[1], width);
    }
}

static void run_job(void *argument, size_t index, unsigned worker) {
    trace_filling *filling = argument;
    const trace_job *job = &filling->jobs[index];
    uint64_t columns = filling->trace->tensors[job->tensor].columns;
    if (command_interrupted() != EXIT_DONE) {
        return;
    }
    float *memory = calloc(3 * columns, sizeof *memory);
    if (memory == NULL) {
        atomic_store(&filling->no_memory, true);
        return;
    }
    uint64_t stream = stream_of(filling->trace->seed, STREAM_COLUMN, job->tensor, 0, 0);
    for (uint64_t c = 0; c < columns; c++) {
        memory[c] = lognormal(draw(stream, c), column_spread, 0);
    }
    for (uint64_t row = job->first; row < job->first + job->rows; row++) {
        if (filling->trace->dtype->dtype != WEFT_DTYPE_BF16) {
            fill_row_as(filling, job, row, memory, memory + columns);
        } else {
            fill_row(filling, job, row, memory, memory + columns);
        }
    }
    free(memory);
    uint64_t bytes = 2 * filling->state_count * job->rows * columns;
    uint64_t done = atomic_fetch_add(&filling->done, bytes) + bytes;
    if (worker == 0) {
        progress_report(&filling->command->progress, "generate", done,
                        2 * filling->state_count * filling->trace->parameters);
    }
}

int trace_fill(weft_command *command, const weft_trace *trace, void **const *states, size_t count) {
    trace_filling filling = {.command = command, .trace = trace, .states = states, .state_count = count};
    if (!list_jobs(&filling)) {
        return command_error(command, EXIT_FAILED, "no memory for the trace");
    }
    parallel_run(weft_context_threads(command->context), filling.job_count, run_job, &filling);
    free(filling.jobs);
    if (atomic_load(&filling.no_memory)) {
        return command_error(command, EXIT_FAILED, "no memory for the trace");
    }
    if (command_interrupted() != EXIT_DONE) {
        return command_error(command, command_interrupted(), "interrupted");
    }
    return EXIT_DONE;
}
