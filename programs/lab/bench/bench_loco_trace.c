/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco_trace.c: FP32 weights like those of a trained transformer, and steps of AdamW in FP32.
 *
 *     matrix weight   w = deviation * R[row] * z                      R = exp(0.35 z')
 *     norm weight     w = 1 + 0.05 z
 *     a step          m = 0.9 m + 0.1 g;  w -= lr * A[row] * m        g normal, m begins as if it had run
 *     row-wise spread A = exp(0.5 z' - 0.125), anew for each round
 *
 * which is Adam where the second moment has settled. Every number is a function of seed, tensor, row, round
 * and column, so that rows may be made in any order by any number of threads.
 */
#include "bench_loco.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void run_rows(loco_trace *trace, uint64_t round, void (*task)(void *, size_t, unsigned)) {
    for (size_t i = 0; i < trace->shape.count; i++) {
        row_job job = {trace, i, round};
        parallel_run(trace->threads, trace->shape.tensors[i].rows, task, &job);
    }
}

/* ---- the trace ---- */

int loco_trace_open(weft_command *command, loco_trace *trace, const loco_bench_options *options) {
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

void loco_trace_close(loco_trace *trace) {
    bench_unmap(trace->weights, trace->elements * sizeof *trace->weights);
    free(trace->tensors);
    trace_close(&trace->shape);
}

void loco_trace_reset(loco_trace *trace) {
    run_rows(trace, 0, make_row);
}

void loco_trace_train(loco_trace *trace, uint64_t round) {
    run_rows(trace, round + 1, train_row);
}
