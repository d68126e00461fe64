/* SPDX-License-Identifier: Apache-2.0
 *
 * learner.c: see learner.h.
 */
#include "learner.h"

#include "../../lib/base/clock.h"
#include "../../lib/base/context.h"
#include "../files.h"

#include <string.h>

enum { RECENT = 20, GC_STEPS = 16 };

static const double GC_SECONDS = 60;

/* ---- a step ---- */

static weft_status save(void *opaque) {
    return train_learner_save(opaque);
}

/* Whether a policy of `step` is evaluated, where the one before it was of `before`. */
static bool is_evaluated(const train_learner *learner, uint64_t before, uint64_t step) {
    uint64_t interval = learner->options->evaluation_interval;
    return step == learner->run.steps || (interval > 0 && step / interval > before / interval);
}

static weft_status evaluate(train_learner *learner, uint64_t before, uint64_t step, double *success_out) {
    if (!is_evaluated(learner, before, step)) {
        *success_out = -1;
        return WEFT_OK;
    }
    const lm_rollout_options options =
        train_evaluation(&learner->run, learner->options->evaluation_prompts);
    weft_status status =
        lm_evaluate(train_team_policy(&learner->team), &learner->run.task, &options, success_out);
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

/* Mean of xi - 1 - log xi. In the study of doc/RESULTS.md runs with truncated weights kept 98% of what a
 * whole cache reaches at 0.25, 94% at 0.54, and less than 90% from 0.9 on. */
static const double SAFE_MISMATCH = 0.3;

/* Says so once when a compressed cache samples something else than the policy, and once when it no longer
 * does. */
static void tell_mismatch(train_learner *learner, const lm_grpo_result *result) {
    double k3 = result->correction.kl_k3;
    bool far = k3 > (learner->mismatched ? SAFE_MISMATCH / 2 : SAFE_MISMATCH);
    if (learner->run.kv.policy == WEFT_KV_NONE || far == learner->mismatched) {
        return;
    }
    learner->mismatched = far;
    if (far) {
        train_warn(
            learner->options->watch,
            "step %llu: with its compressed cache the sampler is far from the policy (k3 %.2f, safe "
            "up to %g), and learning is likely to fall behind; raise --kv-budget, or try --kv-prompt "
            "or --kv-common 0.8%s",
            (unsigned long long)learner->step, k3, SAFE_MISMATCH,
            learner->options->grpo.correction.weigh ? "" : ", and --correction tis");
    } else {
        train_note(learner->options->watch, "step %llu: the sampler is near the policy again (k3 %.2f)",
                   (unsigned long long)learner->step, k3);
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
    if (status == WEFT_OK) {
        tell_rejection(learner, &learned->result);
        tell_mismatch(learner, &learned->result);
    }
    learned->train = weft_clock_now() - start;
    if (status == WEFT_OK && learner->team.loco == NULL) {
        status = evaluate(learner, learner->step, learner->step + 1, &learned->success);
    }
    return status;
}

/* What lies beside the state is waited for as the state is: a disk that is full may be emptied. */
typedef struct line_writing {
    train_metrics *metrics;
    json_t *line;
} line_writing;

static weft_status pend_line(void *opaque) {
    const line_writing *writing = opaque;
    return train_metrics_pend(writing->metrics, writing->line);
}

static weft_status add_line(void *opaque) {
    const line_writing *writing = opaque;
    return train_metrics_add(writing->metrics, writing->line);
}

/* Of a rank that dies before the line is added, the next life adds what is kept here. */
static weft_status keep_line(train_learner *learner, json_t *line) {
    line_writing writing = {&learner->metrics, line};
    return train_patience_try(&learner->patience, pend_line, &writing);
}

static weft_status begin_line(train_learner *learner, const train_batch *batch, train_learned *learned,
                              json_t **line_out) {
    learned->step = learner->step;
    learned->rate = learner->options->grpo.adam.rate;
    learned->model = learner->trainer->model;
    learned->batch = batch;
    learned->run = &learner->run;
    learned->densities =
        learner->team.loco == NULL ? train_density_note(&learner->density) : train_densities_unknown();
    for (int i = 0; i < TRAIN_REASONS; i++) {
        learned->rejected[i] = learner->collector.rejected[i] - learner->counted[i];
        learner->counted[i] = learner->collector.rejected[i];
    }
    json_t *line = train_line_begin(learned);
    if (line == NULL) {
        return weft_fail(learner->context, WEFT_NO_MEMORY, "no memory for a line of metrics");
    }
    train_patience_calm(&learner->patience); /* it has learned: that took time, and was no trouble */
    weft_status status = keep_line(learner, line);
    if (status != WEFT_OK) {
        json_decref(line);
        return status;
    }
    *line_out = line;
    return WEFT_OK;
}

static weft_status save_timed(train_learner *learner, train_published *published) {
    double start = weft_clock_now();
    weft_status status = train_patience_try(&learner->patience, save, learner);
    published->state += weft_clock_now() - start;
    return status;
}

/* The trainers agree on what they have learned; the line tells so by this name. WEFT_MORE: the others did
 * so long ago. */
static weft_status end_round(train_learner *learner, json_t *line, const char *name,
                             train_published *published) {
    train_round round;
    weft_status status = train_team_agree(&learner->team, &round);
    if (status == WEFT_OK) {
        train_line_round(line, name, &learner->run, &round);
        status = keep_line(learner, line);
    }
    if (status == WEFT_OK) {
        status = save_timed(learner, published);
    }
    if (status == WEFT_OK) {
        status = train_learner_offer(learner, published);
    }
    if (status == WEFT_OK) {
        train_densities densities = train_density_note(&learner->density);
        train_line_densities(line, learner->trainer->model, &densities);
        double success = -1;
        if (train_learner_leads(learner)) {
            uint64_t step = train_learner_policy_step(learner);
            status = evaluate(learner, step - learner->run.local_steps, step, &success);
        }
        if (status == WEFT_OK && success >= 0) {
            json_object_set_new(line, "success", json_real(success));
        }
    }
    return status;
}

/* The steps of a round are made, during which the one before has travelled: that one ends, and this one is
 * begun; the last ends at once. WEFT_MORE as above. */
static weft_status pass_round(train_learner *learner, json_t *line, train_published *published) {
    uint64_t made = learner->step / learner->run.local_steps;
    bool last = learner->step == learner->run.steps;
    bool begun = weft_loco_rounds(learner->team.loco) + 1 < made;
    weft_status status = begun ? end_round(learner, line, last ? "round_before" : "round", published)
                               : save_timed(learner, published);
    if (status == WEFT_OK) {
        status = last ? end_round(learner, line, "round", published) : train_team_begin(&learner->team);
    }
    return status;
}

/* The policy has learned from its batch: from here on the batch is not needed any more, unless rounds
 * overlap. WEFT_MORE as above. */
static weft_status conclude(train_learner *learner, json_t *line, double start) {
    train_published published = {.version = 0};
    bool overlap = learner->run.overlap;
    learner->step++;
    weft_status status = overlap ? WEFT_OK : save_timed(learner, &published);
    /* Within a round there is nothing to publish: the line tells of the policy that made the batch. */
    published.version = learner->collector.policies[0].version;
    published.dense = learner->trainer->model->parameters * sizeof(uint16_t);
    if (status == WEFT_OK && learner->team.loco == NULL) {
        status = train_learner_offer(learner, &published);
    } else if (status == WEFT_OK && learner->step % learner->run.local_steps == 0) {
        status =
            overlap ? pass_round(learner, line, &published) : end_round(learner, line, "round", &published);
    }
    if (status != WEFT_OK) {
        return status;
    }
    published.step = weft_clock_now() - start;
    train_line_finish(line, &published);
    line_writing writing = {&learner->metrics, line};
    status = train_patience_try(&learner->patience, add_line, &writing);
    if (train_learner_leads(learner)) {
        train_metrics_put(&learner->metrics, learner->step == learner->run.steps);
    }
    return status;
}

/* Over MPI ranks may have to go back by a step of DDP, for which they need its batch. Where rounds overlap,
 * workers have the policy of the round before, and would make its batches again. */
static uint64_t kept_steps(const train_learner *learner) {
    return learner->run.outer == TRAIN_DDP || learner->run.overlap ? learner->run.local_steps : 0;
}

/* The batches of the round that has just ended, or of the one before. */
static void clear_away(train_learner *learner) {
    uint64_t span = learner->run.local_steps;
    uint64_t behind = kept_steps(learner);
    if (learner->step % span != 0 || learner->step < span + behind) {
        return;
    }
    for (uint64_t i = 1; i <= span; i++) {
        train_collector_clear(&learner->collector, learner->step - behind - i);
    }
    /* Whole versions leave much behind. */
    const weft_gc_options options = {.size = sizeof options, .grace_seconds = GC_SECONDS};
    if (learner->run.sync == TRAIN_SYNC_FULL && learner->step % GC_STEPS == 0) {
        weft_status ignored = weft_gc_run(learner->context, learner->store, &options, NULL);
        (void)ignored;
        weft_context_clear(learner->context);
    }
}

/* This rank has caught up with the others, who have ended the round from step `from` on without it: what it
 * has learned in it stays in its residual, unless they have included it. */
static weft_status arrive(train_learner *learner, uint64_t from) {
    train_published published = {.version = 0};
    uint64_t kept = kept_steps(learner);
    train_learner_follow_rounds(learner);
    train_note(learner->options->watch, "the others went on without this rank by %llu rounds, to step %llu",
               (unsigned long long)((learner->step - from) / learner->run.local_steps),
               (unsigned long long)learner->step);
    weft_status status = save_timed(learner, &published);
    if (status == WEFT_OK) {
        status = train_learner_take_up(learner);
    }
    if (status == WEFT_OK) {
        status = train_learner_offer(learner, &published);
    }
    for (uint64_t batch = from > kept ? from - kept : 0; batch + kept < learner->step && status == WEFT_OK;
         batch++) {
        train_collector_clear(&learner->collector, batch);
    }
    (void)train_density_note(&learner->density);
    return status;
}

static weft_status rejoin(train_learner *learner, uint64_t from) {
    uint64_t rounds = 0;
    weft_status status = train_team_catch_up(&learner->team, &rounds);
    return status == WEFT_OK ? arrive(learner, from) : status;
}

static weft_status make_step(train_learner *learner) {
    train_batch batch = {.context = NULL};
    train_learned learned = {.success = -1};
    json_t *line = NULL;
    double start = weft_clock_now();
    uint64_t from = learner->step - learner->step % learner->run.local_steps;
    weft_status status = train_collect(&learner->collector, learner->step, &batch);
    if (status == WEFT_MORE) {
        return rejoin(learner, from);
    }
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
        clear_away(learner);
    } else if (status == WEFT_MORE) {
        status = arrive(learner, from);
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

static weft_status write_model(train_learner *learner) {
    char path[TRAIN_PATH_SIZE];
    weft_status status = train_path(learner->context, learner->output, "model", path);
    if (status == WEFT_OK) {
        status = train_make_directory(learner->context, path);
    }
    return status == WEFT_OK
               ? lm_model_write(train_team_policy(&learner->team), path, learner->options->durable)
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
        .version = learner->collector.policies[0].version,
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

/* Closing may fail in ways of its own; what is told is why it came to that. */
static weft_status close_with(train_learner *learner, weft_status status) {
    weft_context *context = learner->context;
    weft_failure failure = weft_failure_keep(context, status);
    train_learner_close(learner);
    return weft_failure_tell(context, &failure);
}

void train_learner_open(train_learner *learner, weft_context *context, weft_store *store,
                        const train_options *options) {
    *learner = (train_learner){
        .context = context,
        .store = store,
        .options = options,
        .run = options->run,
        .lock = -1,
        .success = -1,
    };
    learner->run.fused = train_run_fused();
    train_patience_open(&learner->patience, context, options->watch, options->patience);
}

weft_status train_learner_run(weft_context *context, weft_store *store, const train_options *options,
                              train_result *result_out) {
    train_learner learner;
    double start = weft_clock_now();
    weft_context_clear(context);
    train_learner_open(&learner, context, store, options);
    weft_status status = train_learner_start(&learner);
    while (status == WEFT_OK && learner.step < learner.run.steps) {
        status = weft_progress_ask(learner.context);
        if (status == WEFT_OK) {
            status = make_step(&learner);
        }
    }
    if (status == WEFT_OK) {
        status = train_learner_await_published(&learner);
    }
    if (status == WEFT_OK) {
        if (train_learner_leads(&learner) || learner.publisher != NULL) {
            /* What late workers have left, where the store can tell. */
            weft_status ignored =
                weft_store_list(learner.context, learner.store, TRAIN_ROLLOUTS_ROOM, remove_slot, &learner);
            (void)ignored;
            weft_context_clear(learner.context);
        }
        status = write_model(&learner);
    }
    if (status == WEFT_OK) {
        describe(&learner, start, result_out);
    }
    return close_with(&learner, status);
}
