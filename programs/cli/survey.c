/* SPDX-License-Identifier: Apache-2.0
 *
 * survey.c: one pass over two states that counts what differs. Each worker counts into tables of its
 * own, which are added up at the end: the sums do not depend on the threads.
 */
#include "survey.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A piece of a kept tensor. */
typedef struct survey_job {
    size_t tensor;
    uint64_t start; /* bytes */
    uint64_t bytes;
} survey_job;

enum { JOB_BYTES = 8 << 20 };

typedef struct survey_scan {
    weft_command *command;
    weft_survey *survey;
    survey_job *jobs;
    size_t job_count;
    survey_counts *counts;         /* one per worker */
    atomic_uint_fast64_t *changed; /* one per tensor */
    atomic_uint_fast64_t done;
    uint64_t bytes;
    atomic_bool no_memory;
} survey_scan;

/* ---- pairing the tensors ---- */

static bool same_form(const weft_tensor *a, const weft_tensor *b) {
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0;
}

static bool pair_tensors(weft_survey *survey, const weft_table *base, const weft_table *next) {
    size_t base_count = weft_table_sorted_count(base), next_count = weft_table_sorted_count(next);
    survey->tensors = calloc(base_count + next_count + 1, sizeof *survey->tensors);
    if (survey->tensors == NULL) {
        return false;
    }
    size_t i = 0, j = 0;
    while (i < base_count || j < next_count) {
        const weft_tensor *a = i < base_count ? weft_table_at(base, weft_table_sorted(base, i)) : NULL;
        const weft_tensor *b = j < next_count ? weft_table_at(next, weft_table_sorted(next, j)) : NULL;
        int order = a == NULL ? 1 : b == NULL ? -1 : strcmp(a->name, b->name);
        survey_tensor *tensor = &survey->tensors[survey->tensor_count++];
        tensor->base = order <= 0 ? a : NULL;
        tensor->next = order >= 0 ? b : NULL;
        i += order <= 0;
        j += order >= 0;
        tensor->kept = order == 0 && same_form(a, b);
        tensor->units = weft_tensor_units(tensor->next != NULL ? tensor->next : tensor->base);
        survey->total += tensor->next != NULL ? tensor->units : 0;
        survey->added += order > 0;
        survey->removed += order < 0;
        survey->replaced += order == 0 && !tensor->kept;
    }
    return true;
}

static bool list_jobs(survey_scan *scan) {
    const weft_survey *survey = scan->survey;
    size_t count = 0;
    for (size_t i = 0; i < survey->tensor_count; i++) {
        const survey_tensor *tensor = &survey->tensors[i];
        count += tensor->kept ? (size_t)(tensor->next->bytes / JOB_BYTES) + 1 : 0;
    }
    scan->jobs = calloc(count + 1, sizeof *scan->jobs);
    if (scan->jobs == NULL) {
        return false;
    }
    for (size_t i = 0; i < survey->tensor_count; i++) {
        const survey_tensor *tensor = &survey->tensors[i];
        for (uint64_t start = 0; tensor->kept && start < tensor->next->bytes; start += JOB_BYTES) {
            uint64_t left = tensor->next->bytes - start;
            uint64_t bytes = left < JOB_BYTES ? left : JOB_BYTES;
            scan->jobs[scan->job_count++] = (survey_job){.tensor = i, .start = start, .bytes = bytes};
            scan->bytes += bytes;
        }
    }
    return true;
}

/* ---- counting ---- */

static uint64_t count_units(const uint8_t *base, const uint8_t *next, uint64_t bytes, unsigned width) {
    uint64_t changed = 0;
    for (uint64_t i = 0; i < bytes; i += 64) {
        uint64_t size = bytes - i < 64 ? bytes - i : 64;
        if (memcmp(base + i, next + i, size) != 0) {
            for (uint64_t unit = 0; unit < size; unit += width) {
                changed += memcmp(base + i + unit, next + i + unit, width) != 0;
            }
        }
    }
    return changed;
}

static unsigned ulp_class(uint16_t before, uint16_t after) {
    if (((before ^ after) & 0x8000) != 0) {
        return ULP_SIGN;
    }
    int step = (int)(after & 0x7fff) - (int)(before & 0x7fff);
    if (step <= -4) {
        return ULP_MINUS_MORE;
    }
    if (step >= 4) {
        return ULP_PLUS_MORE;
    }
    return step < 0 ? (unsigned)(ULP_MINUS_1 + 1 + step) : (unsigned)(ULP_PLUS_1 - 1 + step);
}

/* Position of a value on the number line: BF16 bits as a signed magnitude. */
static int line_position(uint16_t bits) {
    int magnitude = bits & 0x7fff;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static bool count_change(survey_counts *counts, uint16_t before, uint16_t after) {
    unsigned exponent = (before >> 7) & 0xff;
    if (counts->steps[exponent] == NULL) {
        counts->steps[exponent] = calloc(SURVEY_STEPS, sizeof(uint64_t));
        if (counts->steps[exponent] == NULL) {
            return false;
        }
    }
    counts->steps[exponent][(uint16_t)(after - before)]++;
    counts->changed[exponent]++;
    counts->ulp[ulp_class(before, after)]++;
    int move = line_position(after) - line_position(before);
    counts->up += move > 0;
    counts->down += move < 0;
    return true;
}

/* Tensors of a file stand at any address: units are read byte-wise, which compiles to a plain load. */
static inline uint16_t load_u16(const uint8_t *data, uint64_t index) {
    uint16_t value;
    memcpy(&value, data + 2 * index, sizeof value);
    return value;
}

/* Four histograms side by side: neighbours often fall into the same bin, and would wait for each
 * other's store. */
static void count_exponents(survey_counts *counts, const uint8_t *base, uint64_t units) {
    uint32_t bins[4][SURVEY_EXPONENTS];
    memset(bins, 0, sizeof bins);
    uint64_t i = 0;
    for (; i + 4 <= units; i += 4) {
        bins[0][(load_u16(base, i) >> 7) & 0xff]++;
        bins[1][(load_u16(base, i + 1) >> 7) & 0xff]++;
        bins[2][(load_u16(base, i + 2) >> 7) & 0xff]++;
        bins[3][(load_u16(base, i + 3) >> 7) & 0xff]++;
    }
    for (; i < units; i++) {
        bins[0][(load_u16(base, i) >> 7) & 0xff]++;
    }
    for (unsigned e = 0; e < SURVEY_EXPONENTS; e++) {
        counts->weights[e] += (uint64_t)bins[0][e] + bins[1][e] + bins[2][e] + bins[3][e];
    }
}

static bool count_bf16(survey_counts *counts, const uint8_t *base, const uint8_t *next, uint64_t units,
                       uint64_t *changed_out) {
    enum { BLOCK = 16 };
    uint64_t changed = 0;
    count_exponents(counts, base, units);
    for (uint64_t i = 0; i < units; i += BLOCK) {
        uint64_t size = units - i < BLOCK ? units - i : BLOCK;
        if (memcmp(base + 2 * i, next + 2 * i, 2 * size) == 0) {
            continue;
        }
        for (uint64_t k = i; k < i + size; k++) {
            uint16_t before = load_u16(base, k), after = load_u16(next, k);
            changed += before != after;
            if (before != after && !count_change(counts, before, after)) {
                return false;
            }
        }
    }
    *changed_out = changed;
    return true;
}

static void run_job(void *argument, size_t index, unsigned worker) {
    survey_scan *scan = argument;
    if (command_interrupted() != EXIT_DONE || atomic_load(&scan->no_memory)) {
        return;
    }
    const survey_job *job = &scan->jobs[index];
    const survey_tensor *tensor = &scan->survey->tensors[job->tensor];
    const uint8_t *base = (const uint8_t *)tensor->base->data + job->start;
    const uint8_t *next = (const uint8_t *)tensor->next->data + job->start;
    uint64_t changed = 0;
    if (tensor->next->dtype == WEFT_DTYPE_BF16) {
        if (!count_bf16(&scan->counts[worker], base, next, job->bytes / 2, &changed)) {
            atomic_store(&scan->no_memory, true);
        }
    } else {
        changed = count_units(base, next, job->bytes, weft_dtype_width(tensor->next->dtype));
    }
    atomic_fetch_add(&scan->changed[job->tensor], changed);
    uint64_t done = atomic_fetch_add(&scan->done, job->bytes) + job->bytes;
    if (worker == 0) {
        progress_report(&scan->command->progress, "compare", done, scan->bytes);
    }
}

/* ---- adding up ---- */

static void add_steps(survey_counts *sum, survey_counts *part, unsigned exponent) {
    if (sum->steps[exponent] == NULL) {
        sum->steps[exponent] = part->steps[exponent];
        part->steps[exponent] = NULL;
        return;
    }
    for (unsigned s = 0; part->steps[exponent] != NULL && s < SURVEY_STEPS; s++) {
        sum->steps[exponent][s] += part->steps[exponent][s];
    }
}

static void add_counts(survey_counts *sum, survey_counts *part) {
    for (unsigned e = 0; e < SURVEY_EXPONENTS; e++) {
        sum->weights[e] += part->weights[e];
        sum->changed[e] += part->changed[e];
        add_steps(sum, part, e);
        free(part->steps[e]);
        part->steps[e] = NULL;
    }
    for (unsigned c = 0; c < ULP_CLASSES; c++) {
        sum->ulp[c] += part->ulp[c];
    }
    sum->up += part->up;
    sum->down += part->down;
}

static void collect(survey_scan *scan, unsigned threads) {
    weft_survey *survey = scan->survey;
    for (unsigned i = 0; i < threads; i++) {
        add_counts(&survey->bf16, &scan->counts[i]);
    }
    for (size_t i = 0; i < survey->tensor_count; i++) {
        survey_tensor *tensor = &survey->tensors[i];
        tensor->changed = atomic_load(&scan->changed[i]);
        survey->changed += tensor->changed;
        if (tensor->kept && tensor->next->dtype == WEFT_DTYPE_BF16) {
            survey->bf16_total += tensor->units;
            survey->bf16_changed += tensor->changed;
        }
    }
}

int survey_run(weft_command *command, const weft_table *base, const weft_table *next, weft_survey *survey) {
    memset(survey, 0, sizeof *survey);
    unsigned threads = weft_context_threads(command->context);
    survey_scan scan = {.command = command, .survey = survey};
    scan.counts = calloc(threads, sizeof *scan.counts);
    bool ready = scan.counts != NULL && pair_tensors(survey, base, next) && list_jobs(&scan);
    scan.changed = ready ? calloc(survey->tensor_count + 1, sizeof *scan.changed) : NULL;
    if (scan.changed != NULL) {
        parallel_run(threads, scan.job_count, run_job, &scan);
        collect(&scan, threads);
    }
    int code = command_interrupted();
    if (scan.changed == NULL || atomic_load(&scan.no_memory)) {
        code = command_error(command, EXIT_FAILED, "no memory to count changes");
    } else if (code != EXIT_DONE) {
        command_error(command, code, "interrupted");
    }
    free(scan.changed);
    free(scan.jobs);
    free(scan.counts);
    if (code != EXIT_DONE) {
        survey_close(survey);
    }
    return code;
}

void survey_close(weft_survey *survey) {
    for (unsigned e = 0; e < SURVEY_EXPONENTS; e++) {
        free(survey->bf16.steps[e]);
    }
    free(survey->tensors);
    memset(survey, 0, sizeof *survey);
}

/* ---- the bound ---- */

/* Bits to say which `chosen` of `count` places, by the entropy of independent draws. */
static double choice_bits(uint64_t chosen, uint64_t count) {
    if (chosen == 0 || chosen == count) {
        return 0;
    }
    double n = (double)count, c = (double)chosen;
    return c * log2(n / c) + (n - c) * log2(n / (n - c));
}

/* Bits to say the symbols of a histogram that holds `total` of them. */
static double histogram_bits(const uint64_t *histogram, uint64_t total) {
    double bits = 0;
    for (unsigned s = 0; s < SURVEY_STEPS; s++) {
        if (histogram[s] > 0) {
            bits += (double)histogram[s] * log2((double)total / (double)histogram[s]);
        }
    }
    return bits;
}

survey_bound survey_entropy(const weft_survey *survey) {
    survey_bound bound = {0};
    const survey_counts *counts = &survey->bf16;
    uint64_t changed = survey->bf16_changed;
    uint64_t *pooled = calloc(SURVEY_STEPS, sizeof *pooled);
    if (changed == 0 || pooled == NULL) {
        free(pooled);
        return bound;
    }
    for (unsigned e = 0; e < SURVEY_EXPONENTS; e++) {
        bound.position += choice_bits(counts->changed[e], counts->weights[e]);
        if (counts->steps[e] != NULL) {
            bound.step += histogram_bits(counts->steps[e], counts->changed[e]);
            for (unsigned s = 0; s < SURVEY_STEPS; s++) {
                pooled[s] += counts->steps[e][s];
            }
        }
    }
    bound.position_iid = choice_bits(changed, survey->bf16_total) / (double)changed;
    bound.step_iid = histogram_bits(pooled, changed) / (double)changed;
    bound.position /= (double)changed;
    bound.step /= (double)changed;
    free(pooled);
    return bound;
}
