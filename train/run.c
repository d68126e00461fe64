/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c: see run.h.
 */
#include "run.h"

#include "../lib/base/context.h"
#include "../lib/store/rendezvous.h"
#include "../lib/sync/format/record.h"
#include "../lib/tensor/json.h"
#include "trajectory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT = 1,
    JSON_DEPTH = 3,
    JSON_CONTAINERS = 8,
    SEQUENCES_MAX = 1 << 16, /* of a batch */
    WINDOW_MAX = 1 << 20,    /* slots that a worker keeps in view */
    RUN_BYTES = 16,
};

static const double TEMPERATURE_LEAST = 0.01;
static const double TEMPERATURE_MOST = 100;
static const uint64_t STEPS_MAX = 1000000000;
/* So that prompts of batches, of the warm-up and of evaluations are never the same ones. */
static const uint64_t ROLLOUT_SEED = 1000000;
static const uint64_t EVALUATION_SEED = 2000000;

/* ---- what can be ---- */

static weft_status check_batch(weft_context *context, const train_run *run) {
    if (run->prompts < 1 || run->group < 1 || run->prompts > SEQUENCES_MAX || run->group > SEQUENCES_MAX ||
        (uint64_t)run->prompts * run->group > SEQUENCES_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a batch of %u prompts with %u responses each cannot be trained on; choose 1 to "
                         "%d responses in all",
                         run->prompts, run->group, SEQUENCES_MAX);
    }
    if (run->group < 2) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a group of one response has nothing to be compared with; choose 2 or more");
    }
    if (run->slots < 1 || run->slots > run->prompts || run->prompts % run->slots != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%u prompts cannot be divided into %u slots of the same size; choose a divisor",
                         run->prompts, run->slots);
    }
    return WEFT_OK;
}

static weft_status check_team(weft_context *context, const train_run *run) {
    if (run->trainers < 1 || run->trainers > WEFT_LOCO_RANKS_MAX || run->local_steps < 1 ||
        run->local_steps > TRAIN_LOCAL_STEPS_MAX ||
        train_policy_span(run) * run->trainers * run->slots > WINDOW_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%u trainers with %u slots each cannot take %u steps of their own and be %u "
                         "rounds behind: that is more than %d slots at once; choose less of one of them",
                         run->trainers, run->slots, run->local_steps, run->staleness, WINDOW_MAX);
    }
    if (run->outer == TRAIN_ALONE && (run->trainers > 1 || run->local_steps > 1)) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "several trainers, or steps without publishing, need a way to agree: pulseloco, diloco or ddp");
    }
    if (run->outer == TRAIN_DDP && run->local_steps > 1) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "trainers that average gradients take no steps of their own; leave out --local-steps");
    }
    if (run->steps % run->local_steps != 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "%llu steps are not whole rounds of %u local steps; choose a multiple",
                         (unsigned long long)run->steps, run->local_steps);
    }
    if (!(run->outer_rate > 0 && run->outer_rate <= 1000) ||
        !(run->outer_momentum >= 0 && run->outer_momentum < 1)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the outer optimizer cannot use rate %g and momentum %g; choose a rate above 0, "
                         "and a momentum from 0 to below 1",
                         run->outer_rate, run->outer_momentum);
    }
    if (run->significant == 1 || run->significant > 23) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "values cannot be cut to %u significant bits; choose 2 to 23, or 0 for all",
                         run->significant);
    }
    if (run->grid > 8) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there is no grid %u of values; choose 1 to 8, or 0 for none", run->grid);
    }
    if (run->overlap && run->outer != TRAIN_PULSELOCO && run->outer != TRAIN_DILOCO) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "only rounds of pulseloco and diloco overlap with the next steps, not those of %s",
                         train_outer_name(run->outer));
    }
    if (run->overlap && run->staleness == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "rounds that overlap begin before the policy of the round before is there, and "
                         "take batches of an older one: give --staleness 1 or more");
    }
    return WEFT_OK;
}

static weft_status check_lengths(weft_context *context, const train_run *run) {
    size_t length = lm_task_prompt_size(&run->task) + lm_task_response_size(&run->task);
    if (length > run->config.context) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "the task takes sequences of %zu tokens, and the model has a context of %u",
                         length, run->config.context);
    }
    if (run->config.vocabulary < LM_TASK_VOCABULARY) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "tasks need a vocabulary of %d tokens; the model has %u", LM_TASK_VOCABULARY,
                         run->config.vocabulary);
    }
    if (train_trajectory_bytes_max(run) > TRAIN_OBJECT_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a slot of %zu responses is larger than %d bytes; make more slots",
                         train_slot_sequences(run), TRAIN_OBJECT_MAX);
    }
    return WEFT_OK;
}

weft_status train_run_check(weft_context *context, const train_run *run) {
    weft_status status = lm_config_check(context, &run->config);
    if (status == WEFT_OK) {
        status = lm_task_check(context, &run->task);
    }
    if (status == WEFT_OK) {
        status = check_batch(context, run);
    }
    if (status == WEFT_OK) {
        status = check_team(context, run);
    }
    if (status == WEFT_OK) {
        status = check_lengths(context, run);
    }
    if (status == WEFT_OK) {
        status = weft_kv_check(context, &run->kv);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (!(run->temperature >= TEMPERATURE_LEAST && run->temperature <= TEMPERATURE_MOST)) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a policy cannot be sampled at temperature %g; choose %g to %g", run->temperature,
                         TEMPERATURE_LEAST, TEMPERATURE_MOST);
    }
    if (run->steps > STEPS_MAX || run->seed > INT64_MAX / 2 || run->staleness > TRAIN_STALENESS_MAX) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "a run has at most %llu steps, a staleness of at most %d, and a seed below 2^62",
                         (unsigned long long)STEPS_MAX, TRAIN_STALENESS_MAX);
    }
    return WEFT_OK;
}

bool train_run_alike(const train_run *a, const train_run *b) {
    return lm_config_equal(&a->config, &b->config) && a->task.kind == b->task.kind &&
           a->task.steps == b->task.steps && a->task.period == b->task.period &&
           a->task.digits == b->task.digits && a->seed == b->seed && a->prompts == b->prompts &&
           a->group == b->group && a->slots == b->slots && a->temperature == b->temperature &&
           a->staleness == b->staleness && a->sync == b->sync && train_kv_equal(&a->kv, &b->kv) &&
           a->outer == b->outer && a->trainers == b->trainers && a->local_steps == b->local_steps &&
           a->outer_rate == b->outer_rate && a->outer_momentum == b->outer_momentum &&
           a->significant == b->significant && a->grid == b->grid && a->overlap == b->overlap;
}

bool train_run_fused(void) {
    return strcmp(weft_cpu_name(), "portable") != 0;
}

static const char *sync_name(train_sync sync) {
    return sync == TRAIN_SYNC_FULL ? "full" : "patch";
}

static const char *const outer_names[TRAIN_OUTERS] = {"alone", "pulseloco", "diloco", "ddp"};

const char *train_outer_name(train_outer outer) {
    return outer_names[outer];
}

bool train_outer_find(const char *name, train_outer *outer_out) {
    for (int i = 0; name != NULL && i < TRAIN_OUTERS; i++) {
        if (strcmp(outer_names[i], name) == 0) {
            *outer_out = (train_outer)i;
            return true;
        }
    }
    return false;
}

/* ---- as JSON ---- */

static json_t *format_config(weft_context *context, const lm_config *config) {
    char *text = NULL;
    if (lm_config_format(context, config, &text) != WEFT_OK) {
        return NULL;
    }
    json_t *json = json_loads(text, 0, NULL);
    weft_release(context, text);
    return json;
}

static json_t *format_task(const lm_task *task) {
    bool chain = task->kind == LM_TASK_CHAIN;
    return json_pack("{s:s, s:I, s:I, s:I}", "kind", chain ? "chain" : "addition", "steps",
                     (json_int_t)task->steps, "period", (json_int_t)task->period, "digits",
                     (json_int_t)task->digits);
}

static json_t *format_team(const train_run *run) {
    return json_pack("{s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:b}", "outer", train_outer_name(run->outer),
                     "trainers", (json_int_t)run->trainers, "local_steps", (json_int_t)run->local_steps,
                     "rate", run->outer_rate, "momentum", run->outer_momentum, "significant",
                     (json_int_t)run->significant, "grid", (json_int_t)run->grid, "overlap", run->overlap);
}

weft_status train_run_format(weft_context *context, const train_run *run, char **text_out) {
    uint8_t name[RUN_BYTES];
    weft_status status = train_run_check(context, run);
    if (status == WEFT_OK && !weft_hex_parse(run->name, name, sizeof name)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT, "a run needs a name of %d hexadecimal digits",
                           2 * RUN_BYTES);
    }
    if (status != WEFT_OK) {
        return status;
    }
    json_t *json = json_pack(
        "{s:i, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:s, s:o, s:s}", "weft", FORMAT,
        "kind", "train", "name", run->name, "config", format_config(context, &run->config), "task",
        format_task(&run->task), "seed", (json_int_t)run->seed, "steps", (json_int_t)run->steps, "prompts",
        (json_int_t)run->prompts, "group", (json_int_t)run->group, "slots", (json_int_t)run->slots,
        "temperature", run->temperature, "staleness", (json_int_t)run->staleness, "sync",
        sync_name(run->sync), "team", format_team(run), "arithmetic", run->fused ? "fused" : "plain");
    bool whole = json_object_set_new(json, "kv", train_kv_format(&run->kv)) == 0;
    char *dumped = whole ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    char *text = dumped != NULL ? weft_copy_text(context, dumped, strlen(dumped)) : NULL;
    free(dumped);
    if (text == NULL) {
        return weft_fail(context, WEFT_NO_MEMORY, "no memory for the description of a run");
    }
    *text_out = text;
    return WEFT_OK;
}

static bool parse_u32(const json_t *json, const char *name, uint32_t *value_out) {
    uint64_t value;
    if (!weft_json_count(json, name, &value) || value > UINT32_MAX) {
        return false;
    }
    *value_out = (uint32_t)value;
    return true;
}

static bool parse_choice(const json_t *json, const char *name, const char *first, const char *second,
                         bool *second_out) {
    const char *text = json_string_value(json_object_get(json, name));
    if (text == NULL || (strcmp(text, first) != 0 && strcmp(text, second) != 0)) {
        return false;
    }
    *second_out = strcmp(text, second) == 0;
    return true;
}

static bool parse_task(const json_t *json, lm_task *task) {
    bool addition = false;
    bool good = json_is_object(json) && parse_choice(json, "kind", "chain", "addition", &addition) &&
                parse_u32(json, "steps", &task->steps) && parse_u32(json, "period", &task->period) &&
                parse_u32(json, "digits", &task->digits);
    task->kind = addition ? LM_TASK_ADDITION : LM_TASK_CHAIN;
    return good;
}

static bool parse_team(const json_t *json, train_run *run) {
    const json_t *rate = json_object_get(json, "rate");
    const json_t *momentum = json_object_get(json, "momentum");
    const json_t *overlap = json_object_get(json, "overlap");
    run->outer_rate = json_number_value(rate);
    run->outer_momentum = json_number_value(momentum);
    run->overlap = json_is_true(overlap);
    return json_is_object(json) &&
           train_outer_find(json_string_value(json_object_get(json, "outer")), &run->outer) &&
           parse_u32(json, "trainers", &run->trainers) &&
           parse_u32(json, "local_steps", &run->local_steps) && json_is_number(rate) &&
           json_is_number(momentum) && parse_u32(json, "significant", &run->significant) &&
           (json_object_get(json, "grid") == NULL || parse_u32(json, "grid", &run->grid)) &&
           (overlap == NULL || json_is_boolean(overlap));
}

static bool parse_name(const json_t *json, char name[WEFT_RUN_TEXT]) {
    uint8_t bytes[RUN_BYTES];
    return weft_json_text(json, "name", name, WEFT_RUN_TEXT) && weft_hex_parse(name, bytes, sizeof bytes);
}

static bool parse_fields(const json_t *json, train_run *run) {
    const json_t *temperature = json_object_get(json, "temperature");
    bool full = false;
    bool good = parse_name(json, run->name) && parse_task(json_object_get(json, "task"), &run->task) &&
                train_kv_parse(json_object_get(json, "kv"), &run->kv) &&
                parse_team(json_object_get(json, "team"), run) &&
                weft_json_count(json, "seed", &run->seed) && weft_json_count(json, "steps", &run->steps) &&
                parse_u32(json, "prompts", &run->prompts) && parse_u32(json, "group", &run->group) &&
                parse_u32(json, "slots", &run->slots) && json_is_number(temperature) &&
                parse_u32(json, "staleness", &run->staleness) &&
                parse_choice(json, "sync", "patch", "full", &full) &&
                parse_choice(json, "arithmetic", "plain", "fused", &run->fused);
    run->temperature = json_number_value(temperature);
    run->sync = full ? TRAIN_SYNC_FULL : TRAIN_SYNC_PATCH;
    return good;
}

static weft_status parse_config(weft_context *context, const json_t *json, lm_config *config) {
    char *text = json_dumps(json_object_get(json, "config"), JSON_ENCODE_ANY);
    if (text == NULL) {
        return weft_fail(context, WEFT_MALFORMED, "a run has no config of its model");
    }
    weft_status status = lm_config_parse(context, text, strlen(text), config);
    free(text);
    return status;
}

static weft_status parse_json(weft_context *context, const char *where, const json_t *json,
                              train_run *run) {
    uint64_t format = 0;
    const char *kind = json_string_value(json_object_get(json, "kind"));
    if (!weft_json_count(json, "weft", &format) || kind == NULL || strcmp(kind, "train") != 0) {
        return weft_fail(context, WEFT_MALFORMED, "%s does not describe a run of training", where);
    }
    if (format != FORMAT) {
        return weft_fail(context, WEFT_WRONG_VERSION,
                         "%s has format %llu; this program knows %d: use the same version everywhere",
                         where, (unsigned long long)format, FORMAT);
    }
    if (!parse_fields(json, run)) {
        return weft_fail(context, WEFT_MALFORMED, "%s: something is missing or makes no sense", where);
    }
    weft_status status = parse_config(context, json, &run->config);
    return status == WEFT_OK ? train_run_check(context, run) : status;
}

weft_status train_run_parse(weft_context *context, const char *where, const char *text, size_t size,
                            train_run *run_out) {
    json_t *json;
    weft_status status = weft_json_parse(context, where, text, size, JSON_DEPTH, JSON_CONTAINERS, &json);
    if (status != WEFT_OK) {
        return status;
    }
    train_run run = {.steps = 0};
    status = parse_json(context, where, json, &run);
    json_decref(json);
    if (status == WEFT_OK) {
        *run_out = run;
    }
    return status;
}

/* ---- in the store ---- */

weft_status train_run_put(weft_context *context, weft_store *store, const train_run *run) {
    char *text = NULL;
    weft_status status = train_run_format(context, run, &text);
    if (status == WEFT_OK) {
        status = weft_store_put_bytes(context, store, TRAIN_RUN_KEY, text, strlen(text), WEFT_STORE_ALWAYS,
                                      NULL, NULL);
        weft_release(context, text);
    }
    return status;
}

weft_status train_run_get(weft_context *context, weft_store *store, train_run *run_out) {
    weft_received text;
    weft_status status = weft_message_get(context, store, TRAIN_RUN_KEY, TRAIN_RUN_MAX, context, &text);
    if (status == WEFT_OK) {
        status = train_run_parse(context, TRAIN_RUN_KEY, (const char *)text.data, text.size, run_out);
        weft_received_close(&text);
    }
    return status;
}

/* ---- slots ---- */

void train_slot_key(uint64_t batch, uint32_t slot, char key[TRAIN_KEY_SIZE]) {
    snprintf(key, TRAIN_KEY_SIZE, TRAIN_ROLLOUTS_ROOM "/%llu-%u", (unsigned long long)batch, slot);
}

lm_rollout_options train_slot_rollout(const train_run *run, uint64_t batch, uint32_t slot) {
    uint32_t share = run->prompts / run->slots;
    return (lm_rollout_options){
        .seed = run->seed + ROLLOUT_SEED,
        .first = batch * run->prompts * run->trainers + (uint64_t)slot * share,
        .prompts = share,
        .group = run->group,
        .temperature = (float)run->temperature,
        .kv = &run->kv,
    };
}

bool train_run_compresses(const train_run *run) {
    size_t longest = lm_task_prompt_size(&run->task) + lm_task_response_size(&run->task);
    return run->kv.policy != WEFT_KV_NONE && longest > run->kv.budget + run->kv.interval;
}

lm_rollout_options train_evaluation(const train_run *run, size_t prompts) {
    return (lm_rollout_options){
        .seed = run->seed + EVALUATION_SEED,
        .prompts = prompts,
        .group = 1,
        .temperature = (float)run->temperature,
    };
}
