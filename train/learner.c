/* SPDX-License-Identifier: Apache-2.0
 *
 * learner.c: see learner.h.
 */
#include "learner.h"

#include "../lib/base/clock.h"
#include "../lib/base/context.h"
#include "files.h"

#include <stdio.h>
#include <string.h>

enum { RECENT = 20, GC_STEPS = 16 };

static const double GC_SECONDS = 60;

/* ---- publishing ---- */

static weft_status publish_once(train_learner *learner, weft_publish_result *result) {
    char step[32];
    const char *const labels[] = {TRAIN_LABEL_STEP, step, TRAIN_LABEL_RUN, learner->run.name, NULL};
    snprintf(step, sizeof step, "%llu", (unsigned long long)learner->step);
    return weft_publisher_publish(learner->publisher, labels, result);
}

weft_status train_learner_publish(train_learner *learner, train_published *published_out) {
    double start = weft_clock_now();
    weft_publish_result result;
    weft_status status = publish_once(learner, &result);
    while (status != WEFT_OK) {
        status = train_patience_bear(&learner->patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = publish_once(learner, &result);
    }
    train_patience_calm(&learner->patience);
    const train_policy policy = {
        .step = learner->step, .version = result.version, .digest = result.diff.result};
    train_collector_note(&learner->collector, &policy);
    learner->published_bytes += result.uploaded_bytes;
    published_out->version = result.version;
    published_out->sent = result.uploaded_bytes;
    published_out->dense = result.diff.dense_bytes;
    published_out->publish = weft_clock_now() - start;
    return WEFT_OK;
}

/* ---- a step ---- */

static weft_status save(train_learner *learner) {
    weft_status status = train_learner_save(learner);
    while (status != WEFT_OK) {
        status = train_patience_bear(&learner->patience, status);
        if (status != WEFT_OK) {
            return status;
        }
        status = train_learner_save(learner);
    }
    return WEFT_OK;
}

static weft_status evaluate(train_learner *learner, double *success_out) {
    uint64_t interval = learner->options->evaluation_interval;
    bool last = learner->step + 1 == learner->run.steps;
    if (!last && (interval == 0 || (learner->step + 1) % interval != 0)) {
        *success_out = -1;
        return WEFT_OK;
    }
    const lm_rollout_options options =
        train_evaluation(&learner->run, learner->options->evaluation_prompts);
    weft_status status = lm_evaluate(learner->trainer->model, &learner->run.task, &options, success_out);
    if (status == WEFT_OK) {
        learner->success = *success_out;
    }
    return status;
}

/* The dense old policy is that of this step as it begins: the sampler's weights, or newer ones in a run
 * that is not synchronous. A correction then makes up for both, compression and staleness. */
static bool wants_old(const train_learner *learner) {
    const weft_correction_options *correction = &learner->options->grpo.correction;
    return learner->run.kv.policy != WEFT_KV_NONE || correction->weigh || correction->veto > 0 ||
           correction->rejection_count > 0;
}

static void tell_rejection(const train_learner *learner, const lm_grpo_result *result) {
    if (result->correction.rejected > 0 && result->correction.rejected == result->correction.sequences) {
        train_warn(learner->options->watch,
                   "step %llu: the correction rejects all %zu trajectories, and the policy stays as it is",
                   (unsigned long long)learner->step, result->correction.sequences);
    }
}

static weft_status learn(train_learner *learner, train_batch *batch, train_learned *learned) {
    weft_status status = WEFT_OK;
    lm_grpo_options grpo = learner->options->grpo;
    double start = weft_clock_now();
    grpo.temperature = (float)learner->run.temperature;
    if (wants_old(learner)) {
        status = train_batch_score(batch, learner->trainer->pass, grpo.temperature);
    }
    if (status == WEFT_OK) {
        status = lm_grpo_step(learner->trainer, &batch->rollouts, &grpo, learner->reference_pass,
                              &learned->result);
    }
    tell_rejection(learner, &learned->result);
    learned->train = weft_clock_now() - start;
    return status == WEFT_OK ? evaluate(learner, &learned->success) : status;
}

static void count_rejections(train_learner *learner, train_learned *learned) {
    for (int i = 0; i < TRAIN_REASONS; i++) {
        learned->rejected[i] = learner->collector.rejected[i] - learner->counted[i];
        learner->counted[i] = learner->collector.rejected[i];
    }
}

static weft_status begin_line(train_learner *learner, const train_batch *batch, train_learned *learned,
                              json_t **line_out) {
    learned->step = learner->step;
    learned->rate = learner->options->grpo.adam.rate;
    learned->model = learner->trainer->model;
    learned->batch = batch;
    learned->run = &learner->run;
    learned->densities = train_density_note(&learner->density);
    count_rejections(learner, learned);
    json_t *line = train_line_begin(learned);
    if (line == NULL) {
        return weft_fail(learner->context, WEFT_NO_MEMORY, "no memory for a line of metrics");
    }
    weft_status status = train_metrics_pend(&learner->metrics, line);
    if (status != WEFT_OK) {
        json_decref(line);
        return status;
    }
    *line_out = line;
    return WEFT_OK;
}

/* Whole versions leave much behind. */
static void collect_garbage(train_learner *learner) {
    const weft_gc_options options = {.grace_seconds = GC_SECONDS};
    if (learner->run.sync == TRAIN_SYNC_FULL && learner->step % GC_STEPS == 0) {
        weft_status ignored = weft_gc_run(learner->context, learner->store, &options, NULL);
        (void)ignored;
        weft_context_clear(learner->context);
    }
}

/* The policy has learned from its batch: from here on the batch is not needed any more. Where several
 * trainers learn together, this is where they would agree on what they have learned. */
static weft_status conclude(train_learner *learner, json_t *line, double start) {
    train_published published = {.version = 0};
    double saving = weft_clock_now();
    learner->step++;
    weft_status status = save(learner);
    published.state = weft_clock_now() - saving;
    if (status == WEFT_OK) {
        status = train_learner_publish(learner, &published);
    }
    if (status != WEFT_OK) {
        return status;
    }
    published.step = weft_clock_now() - start;
    train_line_finish(line, &published);
    status = train_metrics_add(&learner->metrics, line);
    train_metrics_put(&learner->metrics, learner->step == learner->run.steps);
    return status;
}

static weft_status make_step(train_learner *learner) {
    train_batch batch = {.context = NULL};
    train_learned learned = {.success = -1};
    json_t *line = NULL;
    double start = weft_clock_now();
    uint64_t number = learner->step;
    weft_status status = train_collect(&learner->collector, number, &batch);
    learned.wait = weft_clock_now() - start;
    if (status == WEFT_OK) {
        status = learn(learner, &batch, &learned);
    }
    if (status == WEFT_OK) {
        status = begin_line(learner, &batch, &learned, &line);
    }
    if (status == WEFT_OK) {
        status = conclude(learner, line, start);
    }
    if (status == WEFT_OK) {
        train_collector_clear(&learner->collector, number);
        collect_garbage(learner);
    }
    json_decref(line);
    train_batch_close(&batch);
    return status;
}

/* ---- the end ---- */

static bool remove_slot(void *opaque, const char *key, uint64_t size, double age_seconds) {
    train_learner *learner = opaque;
    (void)size;
    (void)age_seconds;
    return weft_store_remove(learner->context, learner->store, key) == WEFT_OK;
}

/* What late workers have left, where the store can tell. */
static void sweep(train_learner *learner) {
    weft_status ignored =
        weft_store_list(learner->context, learner->store, TRAIN_ROLLOUTS_ROOM, remove_slot, learner);
    (void)ignored;
    weft_context_clear(learner->context);
}

static weft_status write_model(train_learner *learner) {
    char path[TRAIN_PATH_SIZE];
    weft_status status = train_path(learner->context, learner->options->output, "model", path);
    if (status == WEFT_OK) {
        status = train_make_directory(learner->context, path);
    }
    return status == WEFT_OK ? lm_model_write(learner->trainer->model, path, learner->options->durable)
                             : status;
}

static double recent_reward(const json_t *lines) {
    size_t size = json_array_size(lines);
    size_t count = size < RECENT ? size : RECENT;
    double sum = 0;
    for (size_t i = size - count; i < size; i++) {
        sum += json_number_value(json_object_get(json_array_get(lines, i), "reward"));
    }
    return count > 0 ? sum / (double)count : -1;
}

static void describe(const train_learner *learner, double start, train_result *result) {
    *result = (train_result){
        .steps = learner->step,
        .resumed = learner->resumed,
        .version = weft_publisher_version(learner->publisher),
        .reward = recent_reward(learner->metrics.lines),
        .success = learner->success,
        .sent = learner->published_bytes,
        .dense = learner->trainer->model->parameters * sizeof(uint16_t),
        .seconds = weft_clock_now() - start,
    };
    memcpy(result->run, learner->run.name, sizeof result->run);
    for (int i = 0; i < TRAIN_REASONS; i++) {
        result->rejected += learner->collector.rejected[i];
    }
}

static weft_status run_steps(train_learner *learner) {
    weft_status status = WEFT_OK;
    while (learner->step < learner->run.steps && status == WEFT_OK) {
        status = weft_progress_ask(learner->context);
        if (status == WEFT_OK) {
            status = make_step(learner);
        }
    }
    return status;
}

/* Closing may fail in ways of its own; what is told is why it came to that. */
static weft_status close_with(train_learner *learner, weft_status status) {
    weft_context *context = learner->context;
    char text[1024];
    snprintf(text, sizeof text, "%s", weft_context_error(context));
    train_learner_close(learner);
    return status == WEFT_OK || text[0] == 0 ? status : weft_fail(context, status, "%s", text);
}

weft_status train_learner_run(weft_context *context, weft_store *store, const train_options *options,
                              train_result *result_out) {
    train_learner learner = {
        .context = context,
        .store = store,
        .options = options,
        .run = options->run,
        .lock = -1,
        .success = -1,
    };
    double start = weft_clock_now();
    learner.run.fused = train_run_fused();
    weft_context_clear(context);
    train_patience_open(&learner.patience, context, options->watch, options->patience);
    weft_status status = train_learner_start(&learner);
    if (status == WEFT_OK) {
        status = run_steps(&learner);
    }
    if (status == WEFT_OK) {
        sweep(&learner);
        status = write_model(&learner);
    }
    if (status == WEFT_OK) {
        describe(&learner, start, result_out);
    }
    return close_with(&learner, status);
}
