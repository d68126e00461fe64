/* SPDX-License-Identifier: Apache-2.0
 *
 * study.c: see study.h.
 */
#include "study.h"

#include "../lib/base/clock.h"
#include "../lib/base/context.h"
#include "consensus.h"

#include <math.h>
#include <string.h>

typedef struct study_rank {
    lm_trainer *trainer;
    weft_loco *loco; /* NULL: a way that has no payload */
    float *residual; /* of such a way */
} study_rank;

typedef struct study {
    weft_context *context;
    const train_study_options *options;
    uint32_t members; /* trainers that are here: DDP's are one, which learns from the batches of all */
    uint32_t batches; /* of a step, each for a trainer */
    uint32_t first;   /* rank of the first trainer that is here */
    size_t prompts;   /* of a member's step */
    study_rank *ranks;
    weft_loco_payload *payloads;
    lm_model *sampler; /* the policy that was agreed on */
    lm_model *agreed;  /* the next one, of rounds that overlap; NULL: every trainer holds it */
    float *rewards;
    float *consensus; /* of ways without a payload */
    float *momentum;
    float *mean;
    train_study_round round;
    train_study_result result;
} study;

static const char *const names[TRAIN_STUDY_WAYS] = {"pulseloco", "diloco",  "forgetful",
                                                    "rounded",   "nearest", "ddp"};

const char *train_study_name(train_study_way way) {
    return names[way];
}

bool train_study_find(const char *name, train_study_way *way_out) {
    for (int i = 0; i < TRAIN_STUDY_WAYS; i++) {
        if (strcmp(names[i], name) == 0) {
            *way_out = (train_study_way)i;
            return true;
        }
    }
    return false;
}

static bool has_payload(const train_study_options *options) {
    return options->way == TRAIN_STUDY_PULSELOCO || options->way == TRAIN_STUDY_DILOCO;
}

/* ---- steps ---- */

static weft_status make_step(study *study, uint32_t rank, uint64_t step) {
    const train_study_options *options = study->options;
    lm_samples *samples = NULL;
    lm_grpo_result learned;
    const lm_rollout_options rollout = {
        .seed = options->seed,
        .first = (step * study->batches + study->first + rank) * study->prompts,
        .prompts = study->prompts,
        .group = options->group,
        .temperature = options->grpo.temperature,
    };
    weft_status status = lm_rollout(study->sampler, &options->task, &rollout, study->rewards, &samples);
    if (status == WEFT_OK) {
        const lm_rollouts rollouts = {
            .batch = lm_samples_batch(samples),
            .prompts = samples->prompts,
            .logp = samples->logp,
            .rewards = study->rewards,
            .group = options->group,
        };
        status = lm_grpo_step(study->ranks[rank].trainer, &rollouts, &options->grpo, NULL, &learned);
    }
    if (status == WEFT_OK) {
        study->round.reward += learned.reward / options->local_steps / study->members;
    }
    lm_samples_destroy(samples);
    return status;
}

/* ---- agreeing by payloads ---- */

/* Payloads stay until the next ones are made. */
static weft_status encode_all(study *study) {
    train_study_round *round = &study->round;
    weft_loco_info info = {.size = sizeof info};
    weft_status status = WEFT_OK;
    for (uint32_t r = 0; r < study->members && status == WEFT_OK; r++) {
        weft_loco *loco = study->ranks[r].loco;
        status = weft_loco_encode(loco, &study->payloads[r]);
        if (status == WEFT_OK) {
            status = weft_loco_inspect(study->context, &study->payloads[r], &info);
        }
        round->sent += (double)study->payloads[r].size / study->members;
        round->fired += (double)info.fired / (double)info.elements / study->members;
        round->residual += sqrt(weft_loco_residual_energy(loco)) / study->members;
    }
    return status;
}

static weft_status aggregate_all(study *study) {
    const train_study_options *options = study->options;
    weft_status status = WEFT_OK;
    for (uint32_t r = 0; r < options->trainers && status == WEFT_OK; r++) {
        status = weft_loco_aggregate(study->ranks[r].loco, study->payloads, options->trainers, NULL);
    }
    for (uint32_t r = 1; r < options->trainers && status == WEFT_OK; r++) {
        weft_digest first = weft_loco_digest(study->ranks[0].loco);
        weft_digest other = weft_loco_digest(study->ranks[r].loco);
        if (!weft_digest_equal(&first, &other)) {
            status = weft_fail(study->context, WEFT_DIGEST_MISMATCH, "ranks 0 and %u do not agree", r);
        }
    }
    return status;
}

static weft_status end_agreement(study *study) {
    const weft_loco_exchange *exchange = study->options->exchange;
    double start = weft_clock_now();
    weft_status status =
        exchange != NULL ? weft_loco_round(study->ranks[0].loco, exchange, NULL) : aggregate_all(study);
    study->round.wait += weft_clock_now() - start;
    return status;
}

/* With overlap payloads travel during the next round's steps, and are waited for at their end; the last
 * ones at once. */
static weft_status agree(study *study) {
    const train_study_options *options = study->options;
    uint64_t number = study->round.round;
    bool now = !options->overlap || number + 1 == options->rounds;
    weft_status status = options->overlap && number > 0 ? end_agreement(study) : WEFT_OK;
    if (status == WEFT_OK) {
        status = encode_all(study);
    }
    if (status == WEFT_OK && now) {
        status = end_agreement(study);
    } else if (status == WEFT_OK && options->exchange != NULL) {
        status = weft_loco_round_begin(study->ranks[0].loco, options->exchange);
    }
    return status == WEFT_OK && study->agreed != NULL
               ? train_consensus_copy(study->agreed, study->ranks[0].loco)
               : status;
}

/* ---- agreeing in ways that have no payload ---- */

static float widen(uint16_t word) {
    uint32_t bits = (uint32_t)word << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t narrow(float value) {
    uint16_t word;
    weft_bf16_from_f32(&value, &word, 1);
    return word;
}

/* What a rank sends of one weight, if that is seen. */
static bool choose(train_study_way way, float consensus, float *residual, float local, float *sent) {
    float whole = *residual + (consensus - local);
    uint16_t before = narrow(consensus);
    uint16_t after = narrow(consensus - whole);
    bool fires = before != after;
    *sent = 0;
    if (fires && way == TRAIN_STUDY_ROUNDED) {
        *sent = widen(before) - widen(after);
    } else if (fires) {
        *sent = way == TRAIN_STUDY_NEAREST ? widen(narrow(whole)) : whole;
    }
    *residual = way == TRAIN_STUDY_FORGETFUL ? 0 : whole - *sent;
    return fires;
}

static void gather(study *study, uint32_t rank) {
    const study_rank *own = &study->ranks[rank];
    const lm_model *model = own->trainer->model;
    double squares = 0;
    size_t fired = 0;
    for (size_t i = 0; i < model->parameters; i++) {
        float sent;
        fired +=
            choose(study->options->way, study->consensus[i], &own->residual[i], model->masters[i], &sent);
        study->mean[i] += sent;
        squares += (double)own->residual[i] * own->residual[i];
    }
    study->round.fired += (double)fired / (double)model->parameters / study->options->trainers;
    study->round.residual += sqrt(squares) / study->options->trainers;
}

static void agree_plainly(study *study) {
    const train_study_options *options = study->options;
    size_t count = study->sampler->parameters;
    float rate = (float)options->rate;
    float mu = (float)options->momentum;
    memset(study->mean, 0, count * sizeof *study->mean);
    for (uint32_t r = 0; r < options->trainers; r++) {
        gather(study, r);
    }
    for (size_t i = 0; i < count; i++) {
        float mean = study->mean[i] / (float)options->trainers;
        study->momentum[i] = mu * study->momentum[i] + mean;
        study->consensus[i] -= rate * (mean + mu * study->momentum[i]);
    }
    for (uint32_t r = 0; r < options->trainers; r++) {
        memcpy(study->ranks[r].trainer->model->masters, study->consensus, count * sizeof(float));
    }
}

/* ---- rounds ---- */

static void count_round(study *study) {
    const train_study_options *options = study->options;
    const train_study_round *round = &study->round;
    train_study_result *result = &study->result;
    uint64_t quarter = options->rounds / 4 > 0 ? options->rounds / 4 : 1;
    double counted = (double)(options->rounds - options->settle);
    if (round->counted) {
        result->fired += round->fired / counted;
        result->sent += round->sent / counted;
        result->changed += round->changed / counted;
        result->round += round->seconds / counted;
        result->wait += round->wait / counted;
    }
    result->residual = round->residual;
    result->first_reward += round->round < quarter ? round->reward / (double)quarter : 0;
    result->last_reward += round->round >= options->rounds - quarter ? round->reward / (double)quarter : 0;
}

static weft_status make_round(study *study, uint64_t number) {
    const train_study_options *options = study->options;
    weft_status status = WEFT_OK;
    double start = weft_clock_now();
    study->round = (train_study_round){.round = number, .counted = number >= options->settle};
    for (uint64_t i = 0; i < options->local_steps && status == WEFT_OK; i++) {
        for (uint32_t r = 0; r < study->members && status == WEFT_OK; r++) {
            status = make_step(study, r, number * options->local_steps + i);
        }
    }
    if (status == WEFT_OK && has_payload(options)) {
        status = agree(study);
    } else if (status == WEFT_OK && options->way == TRAIN_STUDY_DDP) {
        study->round.fired = 1;
    } else if (status == WEFT_OK) {
        agree_plainly(study);
    }
    for (uint32_t r = 0; r < study->members && status == WEFT_OK; r++) {
        status = lm_model_refresh(study->ranks[r].trainer->model);
    }
    if (status != WEFT_OK) {
        return status;
    }
    const lm_model *after = study->agreed != NULL ? study->agreed : study->ranks[0].trainer->model;
    size_t changed = 0;
    for (size_t i = 0; i < after->parameters; i++) {
        changed += after->live[i] != study->sampler->live[i];
    }
    study->round.changed = (double)changed / (double)after->parameters;
    study->round.seconds = weft_clock_now() - start;
    count_round(study);
    if (options->watcher != NULL && !options->watcher(options->opaque, &study->round)) {
        return weft_fail(study->context, WEFT_CANCELLED, "the study was stopped");
    }
    return lm_model_copy(study->sampler, after);
}

static weft_status evaluate(study *study, double *success_out) {
    const uint64_t apart = 5000000; /* prompts of steps lie elsewhere */
    const lm_rollout_options options = {
        .seed = study->options->seed + apart,
        .prompts = study->options->evaluation,
        .group = 1,
        .temperature = study->options->grpo.temperature,
    };
    return lm_evaluate(study->sampler, &study->options->task, &options, success_out);
}

static weft_status run_rounds(study *study) {
    const train_study_options *options = study->options;
    weft_status status = evaluate(study, &study->result.before);
    double start = weft_clock_now();
    for (uint64_t i = 0; i < options->rounds && status == WEFT_OK; i++) {
        status = make_round(study, i);
    }
    study->result.seconds = (weft_clock_now() - start) / (double)(options->rounds * options->local_steps);
    return status == WEFT_OK ? evaluate(study, &study->result.after) : status;
}

/* ---- opening and closing ---- */

static weft_status open_loco(study *study, uint32_t number) {
    const train_study_options *chosen = study->options;
    const lm_model *model = study->ranks[number].trainer->model;
    weft_loco_tensor *tensors = weft_allocate_array(study->context, model->weight_count, sizeof *tensors);
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    if (tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    options.run = TRAIN_STUDY_RUN;
    options.rank = study->first + number;
    options.ranks = chosen->trainers;
    options.rate = (float)chosen->rate;
    options.momentum = (float)chosen->momentum;
    options.open = chosen->way == TRAIN_STUDY_DILOCO;
    options.raw = options.open;
    options.significant = options.open ? 0 : chosen->significant;
    options.grid = options.open ? 0 : chosen->grid;
    options.overlap = chosen->overlap;
    for (size_t i = 0; i < model->weight_count; i++) {
        const lm_weight *weight = &model->weights[i];
        tensors[i] = (weft_loco_tensor){weight->name, model->masters + weight->offset,
                                        weight->rows * weight->columns};
    }
    weft_status status = weft_loco_create(study->context, &options, tensors, model->weight_count,
                                          &study->ranks[number].loco);
    weft_release(study->context, tensors);
    return status;
}

static weft_status open_rank(study *study, const lm_trainer *source, uint32_t number) {
    study_rank *rank = &study->ranks[number];
    size_t count = source->model->parameters;
    weft_status status = lm_trainer_create(study->context, &source->model->config, &rank->trainer);
    if (status != WEFT_OK) {
        return status;
    }
    memcpy(rank->trainer->model->masters, source->model->masters, count * sizeof(float));
    status = lm_model_refresh(rank->trainer->model);
    if (status == WEFT_OK && has_payload(study->options)) {
        return open_loco(study, number);
    }
    rank->residual = weft_allocate_zeroed(study->context, count, sizeof *rank->residual);
    return status == WEFT_OK && rank->residual == NULL ? WEFT_NO_MEMORY : status;
}

static weft_status open_plain(study *study, const lm_trainer *source) {
    size_t count = source->model->parameters;
    if (has_payload(study->options) || study->options->way == TRAIN_STUDY_DDP) {
        return WEFT_OK;
    }
    study->consensus = weft_allocate_array(study->context, count, sizeof *study->consensus);
    study->momentum = weft_allocate_zeroed(study->context, count, sizeof *study->momentum);
    study->mean = weft_allocate_array(study->context, count, sizeof *study->mean);
    if (study->consensus == NULL || study->momentum == NULL || study->mean == NULL) {
        return WEFT_NO_MEMORY;
    }
    memcpy(study->consensus, source->model->masters, count * sizeof *study->consensus);
    return WEFT_OK;
}

static weft_status open_study(study *study, const lm_trainer *source) {
    const train_study_options *options = study->options;
    if (options->trainers < 1 || options->local_steps < 1 || options->rounds <= options->settle ||
        options->trainers > WEFT_LOCO_RANKS_MAX) {
        return weft_fail(study->context, WEFT_INVALID_ARGUMENT,
                         "a study needs trainers, steps and more rounds than do not count");
    }
    if (options->way == TRAIN_STUDY_DDP && options->local_steps != 1) {
        return weft_fail(study->context, WEFT_INVALID_ARGUMENT, "a round of DDP is one step");
    }
    if (options->overlap && !has_payload(options)) {
        return weft_fail(study->context, WEFT_INVALID_ARGUMENT,
                         "only rounds of pulseloco and diloco overlap with the next steps, not those of %s",
                         names[options->way]);
    }
    if (options->exchange != NULL && (!has_payload(options) || options->rank >= options->trainers)) {
        return weft_fail(study->context, WEFT_INVALID_ARGUMENT,
                         "trainers meet by pulseloco or diloco, each as a rank below %u",
                         options->trainers);
    }
    study->batches = options->way == TRAIN_STUDY_DDP ? 1 : options->trainers;
    study->members = options->exchange != NULL ? 1 : study->batches;
    study->first = options->exchange != NULL ? options->rank : 0;
    study->prompts = options->prompts * options->trainers / study->batches;
    study->ranks = weft_allocate_zeroed(study->context, study->members, sizeof *study->ranks);
    study->payloads = weft_allocate_zeroed(study->context, options->trainers, sizeof *study->payloads);
    study->rewards =
        weft_allocate_array(study->context, study->prompts * options->group, sizeof *study->rewards);
    if (study->ranks == NULL || study->payloads == NULL || study->rewards == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = open_plain(study, source);
    for (uint32_t r = 0; r < study->members && status == WEFT_OK; r++) {
        status = open_rank(study, source, r);
    }
    if (status == WEFT_OK) {
        status = lm_model_create(study->context, &source->model->config, LM_WORKER, &study->sampler);
    }
    if (status == WEFT_OK && options->overlap) {
        status = lm_model_create(study->context, &source->model->config, LM_WORKER, &study->agreed);
    }
    return status == WEFT_OK ? lm_model_copy(study->sampler, source->model) : status;
}

static void close_study(study *study) {
    for (uint32_t r = 0; study->ranks != NULL && r < study->members; r++) {
        weft_loco_destroy(study->ranks[r].loco);
        weft_release(study->context, study->ranks[r].residual);
        lm_trainer_destroy(study->ranks[r].trainer);
    }
    lm_model_destroy(study->agreed);
    lm_model_destroy(study->sampler);
    weft_release(study->context, study->mean);
    weft_release(study->context, study->momentum);
    weft_release(study->context, study->consensus);
    weft_release(study->context, study->rewards);
    weft_release(study->context, study->payloads);
    weft_release(study->context, study->ranks);
}

weft_status train_study_run(const lm_trainer *source, const train_study_options *options,
                            train_study_result *result_out) {
    study study = {.context = source->model->context, .options = options};
    weft_status status = open_study(&study, source);
    study.result.elements = source->model->parameters;
    if (status == WEFT_OK) {
        status = run_rounds(&study);
    }
    if (status == WEFT_OK && study.ranks[0].loco != NULL) {
        study.result.digest = weft_loco_digest(study.ranks[0].loco);
    }
    close_study(&study);
    if (status == WEFT_OK) {
        *result_out = study.result;
    }
    return status;
}
