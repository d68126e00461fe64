/* SPDX-License-Identifier: Apache-2.0
 *
 * rates.c: see rates.h. A ring holds the BF16 weights after each of the last 32 steps, for the delays
 * and, as the weights before a step, for the law.
 */
#include "rates.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <weft/sync.h>

const unsigned lm_rates_delays[LM_RATES_DELAYS] = {1, 2, 4, 8, 16, 32};

typedef struct rates_run {
    const lm_rates_options *options;
    lm_grpo_options grpo;
    lm_trainer *trainer; /* the copy */
    weft_store *store;
    weft_view *view;
    weft_publisher *publisher;
    float *rewards;
    uint16_t *ring; /* words after step n are at n % (LM_RATES_DELAY_MAX + 1) */
    /* The masters before the step. Adam moves them in place, once in each update, and the words of the ring
     * do not say by how much. */
    float *masters;
    lm_rates_row *row;
} rates_run;

/* ---- the copy ---- */

static weft_status copy_trainer(lm_trainer *trainer, const lm_trainer *source) {
    size_t size = source->model->parameters * sizeof(float);
    memcpy(trainer->model->masters, source->model->masters, size);
    memcpy(trainer->adam->first, source->adam->first, size);
    memcpy(trainer->adam->second, source->adam->second, size);
    trainer->adam->steps = source->adam->steps;
    return lm_model_refresh(trainer->model);
}

static weft_status open_store(rates_run *run, size_t number) {
    weft_context *context = run->trainer->model->context;
    weft_store_options options = {.size = sizeof options, .volatile_writes = true};
    char path[PATH_MAX];
    int size = snprintf(path, sizeof path, "%s/rate-%zu", run->options->directory, number);
    if (size < 0 || (size_t)size >= sizeof path) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the path of a directory for stores is too long");
    }
    return weft_store_open(context, path, &options, &run->store);
}

/* Later anchors and leaps serve those who come late: a receiver that follows never fetches them. */
static weft_status open_publisher(rates_run *run) {
    weft_context *context = run->trainer->model->context;
    weft_publisher_options options = {
        .size = sizeof options, .profile = WEFT_PROFILE_SMALL, .anchor_ratio = -1, .no_leaps = true};
    weft_status status = weft_view_create(context, lm_model_table(run->trainer->model), &run->view);
    if (status == WEFT_OK) {
        status = weft_publisher_open(context, run->store, run->view, &options, &run->publisher);
    }
    return status;
}

static void close_store(rates_run *run) {
    weft_publisher_close(run->publisher);
    weft_view_destroy(run->view);
    weft_store_close(run->store);
    run->publisher = NULL;
    run->view = NULL;
    run->store = NULL;
}

/* ---- a step ---- */

static weft_status learn(rates_run *run, uint64_t step, lm_grpo_result *result) {
    const lm_rates_options *options = run->options;
    lm_samples *samples = NULL;
    lm_rollout_options rollout = {
        .seed = options->seed,
        .first = options->first + step * options->prompts,
        .prompts = options->prompts,
        .group = options->group,
        .temperature = run->grpo.temperature,
    };
    weft_status status = lm_rollout(run->trainer->model, &options->task, &rollout, run->rewards, &samples);
    if (status == WEFT_OK) {
        lm_rollouts rollouts = {
            .batch = lm_samples_batch(samples),
            .prompts = samples->prompts,
            .logp = samples->logp,
            .rewards = run->rewards,
            .group = options->group,
        };
        status = lm_grpo_step(run->trainer, &rollouts, &run->grpo, NULL, result);
    }
    lm_samples_destroy(samples);
    return status;
}

static uint16_t *ring_place(const rates_run *run, uint64_t step) {
    return run->ring + step % (LM_RATES_DELAY_MAX + 1) * run->trainer->model->parameters;
}

static size_t count_changes(const uint16_t *before, const uint16_t *after, size_t count) {
    size_t changed = 0;
    for (size_t i = 0; i < count; i++) {
        changed += before[i] != after[i];
    }
    return changed;
}

static double differing(const rates_run *run, uint64_t step, unsigned delay) {
    const lm_model *model = run->trainer->model;
    const uint16_t *before = ring_place(run, step - delay);
    return (double)count_changes(before, ring_place(run, step), model->parameters) /
           (double)model->parameters;
}

/* Keeps the words after a step (0: before the first). */
static void keep(rates_run *run, uint64_t step) {
    const lm_model *model = run->trainer->model;
    memcpy(ring_place(run, step), model->live, model->parameters * sizeof *model->live);
}

/* Only steps that count may lie within a delay. */
static void compare(rates_run *run, uint64_t step) {
    uint64_t counted = step - run->options->settle;
    for (size_t i = 0; i < LM_RATES_DELAYS && lm_rates_delays[i] <= counted; i++) {
        double share = differing(run, step, lm_rates_delays[i]);
        lm_rates_density *density = &run->row->density[i];
        density->windows += 1;
        density->mean += (share - density->mean) / (double)density->windows;
        density->most = share > density->most ? share : density->most;
    }
}

/* What the step did to the weights of each exponent, and what the law foretells from how far it moved their
 * masters. */
static void count_law(rates_run *run, uint64_t step) {
    enum { BIAS = 127, FRACTION_BITS = 7, EXPONENT_MASK = LM_RATES_EXPONENTS - 1 };
    const lm_model *model = run->trainer->model;
    const uint16_t *before = ring_place(run, step - 1), *after = ring_place(run, step);
    double scale[LM_RATES_EXPONENTS]; /* 1 / ULP; subnormal weights have that of the smallest normal ones */
    for (int i = 0; i < LM_RATES_EXPONENTS; i++) {
        scale[i] = ldexp(1, BIAS + FRACTION_BITS - (i > 0 ? i : 1));
    }
    for (size_t i = 0; i < model->parameters; i++) {
        unsigned exponent = before[i] >> FRACTION_BITS & EXPONENT_MASK;
        lm_rates_law *law = &run->row->law[exponent];
        double ulps = fabs((double)model->masters[i] - run->masters[i]) * scale[exponent];
        law->weights += 1;
        law->changes += before[i] != after[i];
        law->expected += ulps < 1 ? ulps : 1;
    }
}

static void count_version(lm_rates_row *row, const weft_publish_result *published, double steps) {
    row->bytes += (double)published->uploaded_bytes / steps;
    row->patch_bytes += (double)published->patch_bytes / steps;
    if (published->uploaded_bytes > row->most_bytes) {
        row->most_bytes = published->uploaded_bytes;
    }
}

static weft_status watch(const rates_run *run, const lm_rates_step *step) {
    const lm_rates_options *options = run->options;
    if (options->watcher != NULL && !options->watcher(options->opaque, step)) {
        return weft_fail(run->trainer->model->context, WEFT_CANCELLED, "the measurement was stopped");
    }
    return WEFT_OK;
}

static weft_status run_step(rates_run *run, uint64_t number) {
    lm_rates_step step = {.rate = run->row->rate, .step = number, .counted = number > run->options->settle};
    lm_grpo_result result;
    const lm_model *model = run->trainer->model;
    memcpy(run->masters, model->masters, model->parameters * sizeof *run->masters);
    double start = weft_clock_now();
    weft_status status = learn(run, number - 1, &result);
    if (status == WEFT_OK && step.counted) {
        double steps = (double)run->options->steps;
        weft_publish_result published = {.size = sizeof published};
        status = weft_publisher_publish(run->publisher, NULL, &published);
        if (status == WEFT_OK) {
            step.bytes = published.uploaded_bytes;
            run->row->reward += result.reward / steps;
            run->row->idle += result.updates == 0;
            count_version(run->row, &published, steps);
        }
        run->row->seconds += (weft_clock_now() - start) / (double)run->options->steps;
    }
    if (status != WEFT_OK) {
        return status;
    }
    keep(run, number);
    if (step.counted) {
        compare(run, number);
        count_law(run, number);
    }
    step.reward = result.reward;
    step.density = differing(run, number, 1);
    return watch(run, &step);
}

/* ---- a rate ---- */

/* The first version is the whole model; the steps that count begin after it. */
static weft_status publish_first(rates_run *run, size_t number) {
    weft_publish_result first = {.size = sizeof first};
    weft_status status = open_store(run, number);
    if (status == WEFT_OK) {
        status = open_publisher(run);
    }
    if (status == WEFT_OK) {
        status = weft_publisher_publish(run->publisher, NULL, &first);
    }
    if (status == WEFT_OK) {
        run->row->elements = first.total;
        run->row->dense_bytes = first.dense_bytes;
    }
    return status;
}

static weft_status run_rate(rates_run *run, size_t number) {
    uint64_t settle = run->options->settle, all = settle + run->options->steps;
    weft_status status = settle == 0 ? publish_first(run, number) : WEFT_OK;
    keep(run, 0);
    for (uint64_t step = 1; step <= all && status == WEFT_OK; step++) {
        status = run_step(run, step);
        if (status == WEFT_OK && step == settle) {
            status = publish_first(run, number);
        }
    }
    close_store(run);
    return status;
}

static weft_status check(weft_context *context, const lm_rates_options *options) {
    enum { ROLLOUTS_MAX = 1 << 20 };
    if (options->steps < 1 || options->prompts < 1 || options->group < 2 ||
        options->prompts > ROLLOUTS_MAX / options->group) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%llu steps of %zu prompts with %zu responses cannot be measured; choose at least "
                         "one step, one prompt and two responses",
                         (unsigned long long)options->steps, options->prompts, options->group);
    }
    return WEFT_OK;
}

weft_status lm_rates_measure(const lm_trainer *source, const lm_rates_options *options, lm_rates_row *rows,
                             size_t count) {
    weft_context *context = source->model->context;
    rates_run run = {.options = options, .grpo = options->grpo};
    weft_status status = check(context, options);
    if (status == WEFT_OK) {
        status = lm_trainer_create(context, &source->model->config, &run.trainer);
    }
    if (status != WEFT_OK) {
        return status;
    }
    run.rewards = weft_allocate_array(context, options->prompts * options->group, sizeof *run.rewards);
    run.ring = weft_allocate_array(context, source->model->parameters,
                                   (LM_RATES_DELAY_MAX + 1) * sizeof *run.ring);
    run.masters = weft_allocate_array(context, source->model->parameters, sizeof *run.masters);
    bool allocated = run.rewards != NULL && run.ring != NULL && run.masters != NULL;
    status = allocated ? WEFT_OK : WEFT_NO_MEMORY;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        rows[i] = (lm_rates_row){.rate = rows[i].rate};
        run.row = &rows[i];
        run.grpo.adam.rate = rows[i].rate;
        status = copy_trainer(run.trainer, source);
        if (status == WEFT_OK) {
            status = run_rate(&run, i);
        }
    }
    weft_release(context, run.masters);
    weft_release(context, run.ring);
    weft_release(context, run.rewards);
    lm_trainer_destroy(run.trainer);
    return status;
}
