/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_loco_study.c: `weft bench --loco --study WAY`.
 */
#include "../bench.h"

#include "../../../../lm/learn/state.h"

#include <stdlib.h>

enum {
    STEPS = 96,
    SETTLE = 2, /* rounds */
    PROMPTS = 8,
    GROUP = 8,
    WARM_UP = 20, /* steps */
    EVALUATION = 4096,
    EVALUATION_MEETING = 64, /* each trainer does it for itself */
};

static const double RATE = 1e-6;

typedef struct study_bench {
    weft_command *command;
    train_study_options chosen;
    weft_store *store; /* where trainers meet; NULL: all are in this process */
    weft_loco_exchange exchange;
    json_t *rounds;
} study_bench;

static bool watch(void *opaque, const train_study_round *round) {
    study_bench *bench = opaque;
    json_array_append_new(
        bench->rounds, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "reward", round->reward, "fired",
                                 round->fired, "sent", round->sent, "changed", round->changed, "residual",
                                 round->residual, "seconds", round->seconds, "wait", round->wait));
    command_note(bench->command, "round %llu: reward %.3f, %.2f%% of the weights sent, %.2f%% changed",
                 (unsigned long long)round->round, round->reward, 100 * round->fired, 100 * round->changed);
    return command_interrupted() == EXIT_DONE;
}

/* What a rank sends and receives beside what others would. A step has one update: so DDP's gradients are as
 * many as steps. */
static json_t *json_bytes(const study_bench *bench, const train_study_result *result) {
    double dense = (double)result->elements * sizeof(float);
    double ddp = dense * bench->chosen.local_steps;
    double others = bench->chosen.trainers - 1;
    double ring = 2 * dense * others / bench->chosen.trainers;
    json_t *json = json_object();
    json_object_set_new(json, "sent", json_real(result->sent));
    json_object_set_new(json, "received", json_real(result->sent * others));
    json_object_set_new(json, "dense", json_real(dense));
    json_object_set_new(json, "ddp", json_real(ddp));
    json_object_set_new(json, "ring", json_real(ring));
    if (result->sent > 0) {
        json_object_set_new(json, "fewer_than_diloco", json_real(dense / result->sent));
        json_object_set_new(json, "fewer_than_ddp", json_real(ddp / result->sent));
    }
    return json;
}

static int print_json(const study_bench *bench, const train_study_result *result) {
    char digest[WEFT_DIGEST_TEXT];
    json_t *json = json_object();
    weft_digest_format(&result->digest, digest);
    json_object_set_new(json, "way", json_string(train_study_name(bench->chosen.way)));
    json_object_set_new(json, "parameters", json_count(result->elements));
    json_object_set_new(json, "seed", json_count(bench->chosen.seed));
    json_object_set_new(json, "rate", json_real(bench->chosen.grpo.adam.rate));
    json_object_set_new(json, "trainers", json_count(bench->chosen.trainers));
    json_object_set_new(json, "local_steps", json_count(bench->chosen.local_steps));
    json_object_set_new(json, "significant", json_count(bench->chosen.significant));
    json_object_set_new(json, "grid", json_count(bench->chosen.grid));
    json_object_set_new(json, "overlap", json_boolean(bench->chosen.overlap));
    json_object_set_new(json, "fired", json_real(result->fired));
    json_object_set_new(json, "changed", json_real(result->changed));
    json_object_set_new(json, "residual", json_real(result->residual));
    json_object_set_new(json, "bytes", json_bytes(bench, result));
    json_object_set_new(json, "first_rewards", json_real(result->first_reward));
    json_object_set_new(json, "last_rewards", json_real(result->last_reward));
    json_object_set_new(json, "success_before", json_real(result->before));
    json_object_set_new(json, "success_after", json_real(result->after));
    json_object_set_new(json, "seconds_per_step", json_real(result->seconds));
    json_object_set_new(json, "seconds_per_round", json_real(result->round));
    json_object_set_new(json, "wait_per_round", json_real(result->wait));
    json_object_set_new(json, "digest", json_string(digest));
    json_object_set(json, "rounds", bench->rounds);
    return command_print_json(bench->command, stdout, json);
}

static void print_text(const study_bench *bench, const train_study_result *result) {
    char sent[TEXT_SIZE];
    double dense = (double)result->elements * sizeof(float);
    printf("%s, %u trainers, rounds of %u steps%s, rate %g\n", train_study_name(bench->chosen.way),
           bench->chosen.trainers, bench->chosen.local_steps, bench->chosen.overlap ? " that overlap" : "",
           bench->chosen.grpo.adam.rate);
    if (result->sent > 0) {
        printf("sent     %s by a rank in a round: %.1f times less than DiLoCo, %.0f than DDP\n",
               text_bytes((uint64_t)result->sent, sent), dense / result->sent,
               dense * bench->chosen.local_steps / result->sent);
    }
    printf("weights  %.2f%% fired, %.2f%% changed in the policy\n", 100 * result->fired,
           100 * result->changed);
    printf("reward   %.3f in the first quarter of rounds, %.3f in the last\n", result->first_reward,
           result->last_reward);
    printf("success  %.3f before, %.3f after, on %zu fresh prompts\n", result->before, result->after,
           bench->chosen.evaluation);
    if (bench->chosen.exchange != NULL) {
        printf("rounds   %.2f s each, of which %.2f s were waited for the others' payloads\n",
               result->round, result->wait);
    }
}

static void choose(study_bench *bench, const bench_options *options, const lm_progress *progress) {
    weft_loco_options usual = {.size = sizeof usual};
    weft_loco_defaults(&usual);
    uint64_t steps = options->steps > 0 ? options->steps : STEPS;
    uint32_t local_steps = options->way == TRAIN_STUDY_DDP ? 1 : options->local_steps;
    uint64_t rounds = (steps + local_steps - 1) / local_steps;
    bench->chosen = (train_study_options){
        .way = options->way,
        .trainers = options->trainers,
        .local_steps = local_steps,
        .rounds = rounds,
        .settle = rounds > SETTLE ? SETTLE : 0,
        .rate = (double)usual.rate,
        .momentum = (double)usual.momentum,
        .significant = options->significant,
        .grid = options->grid,
        .overlap = options->overlap,
        .task = progress->task,
        .grpo = lm_grpo_defaults(),
        .seed = options->seed,
        .prompts = PROMPTS,
        .group = GROUP,
        .evaluation = options->meet != NULL ? EVALUATION_MEETING : EVALUATION,
        .watcher = watch,
        .opaque = bench,
    };
    bench->chosen.grpo.updates = 1;
    bench->chosen.grpo.adam.warm_up = WARM_UP;
    bench->chosen.grpo.adam.rate = options->rate > 0 ? options->rate : RATE;
}

/* One trainer, which meets the others in a store. Nobody is left out: what is measured is all of them. */
static weft_status open_exchange(study_bench *bench, const bench_options *options) {
    const double deadline = 3600;
    weft_context *context = bench->command->context;
    weft_loco_store_options meeting = {.size = sizeof meeting};
    const weft_store_options remote = {.size = sizeof remote, .token = getenv("WEFT_TOKEN")};
    weft_status status = weft_store_open(context, options->meet, &remote, &bench->store);
    if (status != WEFT_OK) {
        return status;
    }
    weft_loco_store_defaults(&meeting);
    meeting.run = TRAIN_STUDY_RUN;
    meeting.rank = options->rank;
    meeting.ranks = options->trainers;
    meeting.deadline_seconds = deadline;
    bench->exchange.size = sizeof bench->exchange;
    status = weft_loco_store_open(context, bench->store, &meeting, &bench->exchange);
    if (status == WEFT_OK) {
        bench->chosen.exchange = &bench->exchange;
        bench->chosen.rank = options->rank;
    }
    return status;
}

int bench_loco_study(weft_command *command, const bench_options *options) {
    study_bench bench = {.command = command, .rounds = json_array()};
    lm_trainer *trainer = NULL;
    lm_progress progress;
    train_study_result result;
    weft_status status = lm_state_open(command->context, options->state, &trainer, &progress);
    if (status == WEFT_OK) {
        choose(&bench, options, &progress);
        status = options->meet != NULL ? open_exchange(&bench, options) : WEFT_OK;
    }
    if (status == WEFT_OK) {
        status = train_study_run(trainer, &bench.chosen, &result);
    }
    int code = command_interrupted();
    if (code == EXIT_DONE && status != WEFT_OK) {
        code = command_fail(command, NULL, status);
    } else if (code == EXIT_DONE && command->json) {
        code = print_json(&bench, &result);
    } else if (code == EXIT_DONE) {
        print_text(&bench, &result);
    }
    if (bench.chosen.exchange != NULL) {
        bench.exchange.close(bench.exchange.opaque);
    }
    weft_store_close(bench.store);
    json_decref(bench.rounds);
    lm_trainer_destroy(trainer);
    return code;
}
