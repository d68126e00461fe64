/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_train.c: `weft train STORE --role trainer|rollout`.
 */
#include "train/train_arguments.h"

#include "../../train/learner/learner.h"
#include "../../train/worker.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a role says ---- */

static void on_note(void *opaque, const char *text) {
    train_arguments *arguments = opaque;
    command_note(&arguments->command, "%s", text);
}

static void on_warn(void *opaque, const char *text) {
    train_arguments *arguments = opaque;
    command_error(&arguments->command, EXIT_DONE, "%s", text);
}

/* mpirun gives all ranks one stdout and one stderr: there rank 0 tells of steps and of the result for all.
 */
static bool tells(const train_arguments *arguments) {
    return arguments->team.exchange_kind != TRAIN_OVER_MPI || arguments->chosen.rank == 0;
}

static double member(const json_t *json, const char *name) {
    return json_number_value(json_object_get(json, name));
}

/* Who reads the lines may have had enough of them: the file has them all. */
static void print_line(train_arguments *arguments, const json_t *line) {
    weft_command *command = &arguments->command;
    if (command_print_json_line(command, stdout, json_deep_copy(line)) != EXIT_DONE) {
        arguments->print_lines = false;
        command_note(command, "no more lines are printed; metrics.jsonl has them");
    }
}

/* What trainers have exchanged in a round, and how many of them took part. */
static void describe_round(const train_arguments *arguments, const json_t *round, char *text, size_t size) {
    char sent[TEXT_SIZE];
    text_bytes((uint64_t)member(json_object_get(round, "sent"), "payload"), sent);
    snprintf(text, size, ", %s to the other trainers, %.0f of %u took part", sent,
             member(round, "included"), arguments->chosen.run.trainers);
}

/* Within a round nothing is published, and nobody knows what will have changed. */
static void tell_step(train_arguments *arguments, uint64_t step, const json_t *line) {
    const json_t *density = json_object_get(json_object_get(line, "density"), "1");
    const json_t *round = json_object_get(line, "round");
    char changed[TEXT_SIZE] = "";
    char published[2 * TEXT_SIZE] = "";
    char exchanged[4 * TEXT_SIZE] = "";
    char took[TEXT_SIZE];
    uint64_t sent = (uint64_t)member(json_object_get(line, "bytes"), "sent");
    if (json_is_number(density)) {
        snprintf(changed, sizeof changed, ", %.2f%% changed", 100 * json_number_value(density));
    }
    if (sent > 0) {
        char text[TEXT_SIZE];
        snprintf(published, sizeof published, ", %s published", text_bytes(sent, text));
    }
    if (round != NULL && arguments->chosen.run.trainers > 1) {
        describe_round(arguments, round, exchanged, sizeof exchanged);
    }
    command_note(&arguments->command, "step %llu: reward %.3f%s%s%s, %s", (unsigned long long)step,
                 member(line, "reward"), changed, published, exchanged,
                 text_seconds(member(json_object_get(line, "seconds"), "step"), took));
}

static void on_step(void *opaque, const json_t *line) {
    train_arguments *arguments = opaque;
    uint64_t step = (uint64_t)member(line, "step") + 1;
    const json_t *round = json_object_get(line, "round");
    uint32_t included = round != NULL ? (uint32_t)member(round, "included") : arguments->included;
    bool others = included != arguments->included;
    arguments->included = included;
    if (!tells(arguments)) {
        return;
    }
    if (arguments->print_lines) {
        print_line(arguments, line);
    }
    if (step % 10 == 0 || step == arguments->chosen.run.steps || others) {
        tell_step(arguments, step, line);
    }
}

static json_t *json_share(double value) {
    return value >= 0 ? json_real(value) : json_null();
}

/* ---- the trainer ---- */

static int print_trainer(train_arguments *arguments, const train_result *result) {
    weft_command *command = &arguments->command;
    if (!tells(arguments)) {
        return EXIT_DONE;
    }
    if (!command->json) {
        char success[TEXT_SIZE];
        snprintf(success, sizeof success, result->success >= 0 ? "success %.3f" : "not evaluated",
                 result->success);
        command_note(command, "run %.8s is finished after %llu steps: reward %.3f, %s", result->run,
                     (unsigned long long)result->steps, result->reward, success);
        return EXIT_DONE;
    }
    json_t *json = json_object();
    json_object_set_new(json, "run", json_string(result->run));
    json_object_set_new(json, "steps", json_count(result->steps));
    json_object_set_new(json, "resumed", json_count(result->resumed));
    json_object_set_new(json, "version", json_count(result->version));
    json_object_set_new(json, "reward", json_share(result->reward));
    json_object_set_new(json, "success", json_share(result->success));
    json_object_set_new(json, "sent_bytes", json_count(result->sent));
    json_object_set_new(json, "dense_bytes", json_count(result->dense));
    json_object_set_new(json, "rejected", json_count(result->rejected));
    json_object_set_new(json, "seconds", json_real(result->seconds));
    return command_print_json(command, stdout, json);
}

/* Several trainers may share a terminal: each message says whose it is. */
static void name_rank(train_arguments *arguments) {
    const train_options *chosen = &arguments->chosen;
    if (chosen->run.trainers > 1) {
        snprintf(arguments->title, sizeof arguments->title, "%s: rank %u", arguments->command.name,
                 chosen->rank);
        arguments->command.name = arguments->title;
    }
    arguments->included = chosen->run.trainers;
}

static int run_trainer(train_arguments *arguments, const train_watch *watch) {
    weft_command *command = &arguments->command;
    char *cache = NULL;
    weft_key *key = NULL;
    train_result result;
    int code = arguments->sign_file != NULL ? remote_read_key(command, arguments->sign_file, true, &key)
                                            : EXIT_DONE;
    if (code != EXIT_DONE) {
        return code;
    }
    code = train_sparse_choose(command, &arguments->sparse, &arguments->chosen);
    if (code == EXIT_DONE && arguments->cache == NULL && !arguments->no_cache) {
        /* Without a home there is no cache, which costs time only. */
        code = cache_path(command, "train", &cache);
    }
    if (code != EXIT_DONE) {
        weft_key_destroy(key);
        return code;
    }
    arguments->chosen.cache = arguments->no_cache        ? NULL
                              : arguments->cache != NULL ? arguments->cache
                                                         : cache;
    arguments->chosen.key = key;
    arguments->chosen.watch = watch;
    weft_status status = train_team_join(command->context, &arguments->team);
    if (status == WEFT_OK) {
        name_rank(arguments);
        status = train_learner_run(command->context, arguments->remote.store, &arguments->chosen, &result);
    }
    if (status == WEFT_OK) {
        train_team_leave(&arguments->team);
    }
    weft_key_destroy(key);
    free(cache);
    return status == WEFT_OK ? print_trainer(arguments, &result) : command_fail(command, NULL, status);
}

/* ---- the worker ---- */

static int print_worker(train_arguments *arguments, const train_worker_result *result) {
    weft_command *command = &arguments->command;
    if (!command->json) {
        command_note(command, "%s after %llu slots with %llu trajectories, made by %llu versions",
                     result->finished ? "the run is finished" : "the time is over",
                     (unsigned long long)result->slots, (unsigned long long)result->sequences,
                     (unsigned long long)result->versions);
        return EXIT_DONE;
    }
    json_t *json = json_object();
    json_object_set_new(json, "finished", json_boolean(result->finished));
    json_object_set_new(json, "step", json_count(result->step));
    json_object_set_new(json, "slots", json_count(result->slots));
    json_object_set_new(json, "trajectories", json_count(result->sequences));
    json_object_set_new(json, "lost_slots", json_count(result->lost));
    json_object_set_new(json, "versions", json_count(result->versions));
    json_object_set_new(json, "received_bytes", json_count(result->received));
    json_object_set_new(json, "generate_seconds", json_real(result->generate));
    return command_print_json(command, stdout, json);
}

static int run_worker(train_arguments *arguments, const train_watch *watch) {
    char made[WEFT_FOLLOWER_NAME];
    char process[TEXT_SIZE];
    snprintf(process, sizeof process, "/%ld", (long)getpid());
    const train_worker_options chosen = {
        .name = arguments->name != NULL ? arguments->name : remote_make_name(process, made),
        .trusted = arguments->remote.trusted,
        .patience = arguments->chosen.patience,
        .max_seconds = arguments->max_seconds,
        .watch = watch,
    };
    train_worker_result result;
    weft_status status =
        train_worker_run(arguments->command.context, arguments->remote.store, &chosen, &result);
    return status == WEFT_OK ? print_worker(arguments, &result)
                             : command_fail(&arguments->command, NULL, status);
}

static int run(void *input) {
    train_arguments *arguments = input;
    const train_watch watch = {.note = on_note, .warn = on_warn, .step = on_step, .opaque = arguments};
    /* a slot that a power cut took is made again */
    arguments->remote.volatile_writes = arguments->role == ROLE_ROLLOUT;
    int code = remote_open(&arguments->remote, arguments->store);
    if (code == EXIT_DONE) {
        code = arguments->role == ROLE_TRAINER ? run_trainer(arguments, &watch)
                                               : run_worker(arguments, &watch);
    }
    return code;
}

int verb_train(int argc, char **argv) {
    train_arguments arguments = {.chosen = train_options_defaults(),
                                 .sparse = {.sinks = SINKS_OF_POLICY, .veto = -1}};
    command_handle_hangup();
    return train_arguments_run(&arguments, argc, argv, run);
}
