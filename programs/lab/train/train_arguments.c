/* SPDX-License-Identifier: Apache-2.0
 *
 * train_arguments.c: the options of `weft train`. Most are a trainer's: a worker learns all about the run
 * from the store.
 */
#include "train_arguments.h"

#include "../../../lib/base/context.h"
#include "../../../lm/model/presets.h"
#include "../../../train/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Train a small policy by reinforcement learning, one role of it.\v"
    "A trainer and any number of rollout workers know each other by STORE alone and may be on different "
    "machines. The trainer publishes each policy there, as weft publish does; workers follow it, as weft "
    "follow does, and put trajectories into the same store. What a worker needs to know of the run it "
    "reads there too.\n"
    "\nWorkers may come, go and be killed at any time: what they had not delivered, another one makes. A "
    "trainer that was ended goes on where it was when it is called again with the same options. "
    "Trajectories that are damaged, forged or too old are counted, told of and made again.\n"
    "\nWith --kv workers keep only part of their caches of keys and values while they sample, which takes "
    "less memory, and sends responses that the policy itself would not have given quite like that. The "
    "trainer scores them with a whole cache and, with a --correction, weighs or rejects what differs; "
    "metrics.jsonl tells how much. Success is always measured with a whole cache.\n"
    "\nSeveral trainers each learn from batches of their own for a round of steps, then agree on one "
    "policy, which the workers get. Every rank writes its own metrics.jsonl; the rank that publishes also "
    "shows its own in the store. Over MPI rank 0 alone prints what it does. With --fresh, start rank 0 "
    "before the others.\n"
    "\n" HELP_STORE "\nExamples:\n"
    "  weft train /srv/run-9 --role trainer --output run-9 &\n"
    "  weft train /srv/run-9 --role rollout --name a &\n"
    "  weft train /srv/run-9 --role rollout --name b\n"
    "  for r in 0 1 2 3; do\n"
    "    weft train /srv/run-9 --role trainer --output run-9 \\\n"
    "        --trainers 4 --rank $r &\n"
    "  done\n"
    "  mpirun -n 4 weft train /srv/run-9 --role trainer --output run-9 \\\n"
    "      --exchange mpi\n"
    "  weft train https://store.example/run-9 --role rollout --token-file token\n"
    "  weft train /srv/run-9 --role trainer --output run-9 --metrics - | jq .reward\n"
    "  weft train /srv/run-9 --role trainer --output run-9 \\\n"
    "      --kv rkv --kv-budget 20 --correction tis\n" HELP_REMOTE_EXIT_CODES;

static void parse_model(struct argp_state *state, const weft_option *option, char *text) {
    const lm_preset *preset = lm_preset_find(text);
    if (preset == NULL) {
        argp_error(state, "--model is one of " LM_PRESET_NAMES ", not '%s'", text);
    } else {
        *(lm_config *)option->into = preset->config;
    }
}

/* A config.json, or the end of the process. What follows on the command line changes single sizes of it. */
static void parse_config(struct argp_state *state, const weft_option *option, char *path) {
    enum { MOST = 1 << 16 };
    weft_context *context = NULL;
    char *text = NULL;
    size_t size = 0;
    weft_status status = weft_context_create(NULL, &context);
    if (status == WEFT_OK) {
        status = train_read_text(context, path, MOST, &text, &size);
    }
    if (status == WEFT_OK) {
        status = lm_config_parse(context, text, size, option->into);
        weft_release(context, text);
    }
    if (status != WEFT_OK) {
        argp_failure(state, EXIT_USAGE, 0, "%s: %s", path, weft_context_error(context));
    }
    weft_context_destroy(context);
}

static void parse_metrics(struct argp_state *state, const weft_option *option, char *text) {
    if (strcmp(text, "-") != 0) {
        argp_error(state, "--metrics takes '-': the file is metrics.jsonl in the output directory");
    }
    *(bool *)option->into = true;
}

static void parse_outer(struct argp_state *state, const weft_option *option, char *text) {
    train_outer *outer = option->into;
    if (!train_outer_find(text, outer) || *outer == TRAIN_ALONE) {
        argp_error(state, "--outer is pulseloco, diloco or ddp, not '%s'", text);
    }
}

static void parse_policy(struct argp_state *state, const weft_option *option, char *text) {
    if (!weft_kv_policy_parse(text, option->into)) {
        argp_error(state, "--kv is none, streaming, h2o, snapkv or rkv, not '%s'", text);
    }
}

static void check_arguments(struct argp_state *state, void *input) {
    train_arguments *arguments = input;
    if (arguments->role == ROLE_NONE) {
        argp_error(state, "give a --role: trainer or rollout");
    }
    if (arguments->role == ROLE_TRAINER && arguments->chosen.output == NULL) {
        argp_error(state, "a trainer needs an --output directory");
    }
    if (arguments->role == ROLE_TRAINER && (arguments->name != NULL || arguments->max_seconds > 0)) {
        argp_error(state, "--name and --max-seconds are a rollout worker's");
    }
    if (arguments->role == ROLE_ROLLOUT &&
        (arguments->of_trainer != NULL || arguments->of_team != NULL || arguments->of_sparse != NULL)) {
        argp_error(state, "a rollout worker learns all about the run from the store; its options are "
                          "--name, --max-seconds, --patience and --trust");
    }
    if (arguments->print_lines && arguments->command.json) {
        argp_error(state, "--metrics - and --json would both be printed to stdout; choose one");
    }
    train_team_choose(&arguments->team, state);
}

int train_arguments_run(train_arguments *arguments, int argc, char **argv, int (*run)(void *input)) {
    enum { COUNT_MOST = 1 << 20 };
    const weft_option options[] = {
        {"role", "ROLE", 1, "trainer: learns and publishes; rollout: makes trajectories",
         .choice = &arguments->role, .words = "trainer|rollout", .least = ROLE_TRAINER},
        {"patience", "TIME", 1,
         "Give up when nothing new has come, or the store has failed, for so long (default: 10m)",
         .seconds = &arguments->chosen.patience},
        {.group = 2, .help = "Of a rollout worker:"},
        {"name", "NAME", 3,
         "Go by this name (default: made of the host's name and the process); workers that run at the same "
         "time need different ones",
         .parse = remote_parse_name, .into = &arguments->name},
        {"max-seconds", "TIME", 3, "End after so long, even if the run goes on",
         .seconds = &arguments->max_seconds},
        {0},
    };
    const weft_option trainer[] = {
        {.group = 4, .help = "Of a trainer:"},
        {"output", "DIR", 5,
         "Keep state.safetensors, metrics.jsonl and at the end the model in DIR; a state of the same run "
         "there is gone on with",
         .text = &arguments->chosen.output},
        {"fresh", NULL, 5, "Begin a new run, whatever lies in DIR and in the store",
         .flag = &arguments->chosen.fresh},
        {"change", NULL, 5,
         "Go on with a run that learned otherwise until now (rate, updates, passes, clips, kl, correction)",
         .flag = &arguments->chosen.change},
        {"durable", NULL, 5, "Write the state so that it outlasts a power cut",
         .flag = &arguments->chosen.durable},
        {"sign", "FILE", 5,
         "Sign versions with this secret key (weft keygen makes one), so that workers can use --trust; "
         "several "
         "trainers need the same one, and sign what they agree on",
         .text = &arguments->sign_file},
        {"metrics", "-", 5, "Print each line of metrics.jsonl to stdout too; over MPI, those of rank 0",
         .parse = parse_metrics, .into = &arguments->print_lines},
        {.group = 6, .help = "The model:"},
        {"model", "SIZE", 7, "0.1M (default), 0.2M, 0.6M, 2M, 8M or 27M parameters", .parse = parse_model,
         .into = &arguments->chosen.run.config},
        {"config", "FILE", 7, "The sizes in a Hugging Face config.json for Llama", .parse = parse_config,
         .into = &arguments->chosen.run.config},
        {"layers", "N", 7, "Change one size of it; and so the next",
         .count = &arguments->chosen.run.config.layers, .most = COUNT_MOST},
        {"hidden", "N", 7, "Width", .count = &arguments->chosen.run.config.width, .most = COUNT_MOST},
        {"heads", "N", 7, "Attention heads", .count = &arguments->chosen.run.config.heads,
         .most = COUNT_MOST},
        {"kv-heads", "N", 7, "Key-value heads", .count = &arguments->chosen.run.config.kv_heads,
         .most = COUNT_MOST},
        {"feed-forward", "N", 7, "Width of the feed-forward layers",
         .count = &arguments->chosen.run.config.feed_forward, .most = COUNT_MOST},
        {"context", "N", 7, "The longest sequence", .count = &arguments->chosen.run.config.context,
         .most = COUNT_MOST},
        {.group = 8, .help = "The task and its batches:"},
        {"task", "NAME", 9, "chain (default): sums round a circle of digits; or addition",
         .choice = &arguments->chosen.run.task.kind, .words = "chain|addition"},
        {"chain-steps", "N", 9, "Sums of a chain", .count = &arguments->chosen.run.task.steps,
         .most = COUNT_MOST},
        {"chain-period", "N", 9, "Digits of its circle", .count = &arguments->chosen.run.task.period,
         .most = COUNT_MOST},
        {"digits", "N", 9, "Digits of each number that is added",
         .count = &arguments->chosen.run.task.digits, .most = COUNT_MOST},
        {"seed", "N", 9, "All random numbers follow from it (default: 1)",
         .number = &arguments->chosen.run.seed, .most = INT64_MAX / 2},
        {"steps", "N", 9, "Steps of the trainer (default: 240)", .number = &arguments->chosen.run.steps,
         .most = 1000000000},
        {"prompts", "N", 9, "Prompts of a step, for each trainer (default: 32)",
         .count = &arguments->chosen.run.prompts, .most = COUNT_MOST},
        {"group", "N", 9, "Responses to each (default: 8)", .count = &arguments->chosen.run.group,
         .most = COUNT_MOST},
        {"slots", "N", 9, "Pieces of work that they are divided into, for each trainer (default: 8)",
         .count = &arguments->chosen.run.slots, .most = COUNT_MOST},
        {"temperature", "T", 9, "Of sampling (default: 1)", .real = &arguments->chosen.run.temperature},
        {"staleness", "N", 9,
         "Rounds (with one trainer: steps) that the policy of a trajectory may be behind; 0 (default): "
         "strictly synchronous, the same bits whatever workers there are",
         .count = &arguments->chosen.run.staleness, .most = COUNT_MOST},
        {"sync", "HOW", 9, "patch (default): versions travel as what changed; full: whole",
         .choice = &arguments->chosen.run.sync, .words = "patch|full"},
        {.group = 10, .help = "Learning:"},
        {"rate", "R", 11, "Learning rate", .real = &arguments->chosen.grpo.adam.rate},
        {"rate-warmup", "N", 11, "Updates until the full rate (default: 0)",
         .number = &arguments->chosen.grpo.adam.warm_up, .most = COUNT_MOST},
        {"updates", "N", 11, "Updates of a step, each on its share of the groups",
         .number = &arguments->chosen.grpo.updates, .most = COUNT_MOST},
        {"passes", "N", 11, "How often a step goes over its batch",
         .number = &arguments->chosen.grpo.passes, .most = COUNT_MOST},
        {"clip", "C", 11, "Ratios below 1 - C are clipped", .real = &arguments->chosen.grpo.clip_low},
        {"clip-high", "C", 11, "Ratios above 1 + C are clipped", .real = &arguments->chosen.grpo.clip_high},
        {"clip-norm", "N", 11, "Largest norm of the gradient; 0: not clipped",
         .real = &arguments->chosen.grpo.adam.clip},
        {"kl", "W", 11, "Weight of the divergence from the first policy (default: 0)",
         .real = &arguments->chosen.grpo.kl},
        {"evaluate", "N", 11,
         "Measure success on fresh prompts every N steps (default: 20); 0: after the last only",
         .number = &arguments->chosen.evaluation_interval, .most = COUNT_MOST},
        {"evaluate-prompts", "N", 11, "How many (default: 256)",
         .number = &arguments->chosen.evaluation_prompts, .most = COUNT_MOST},
        {"warmup-success", "S", 11,
         "First learn from right answers until this share succeeds (default: 0.45); 0: no warm-up",
         .real = &arguments->chosen.warmup.success},
        {"warmup-rate", "R", 11, "Learning rate of the warm-up",
         .real = &arguments->chosen.warmup.adam.rate},
        {"warmup-steps", "N", 11, "Steps of the warm-up, at most",
         .number = &arguments->chosen.warmup.steps, .most = COUNT_MOST},
        {"warmup-cache", "DIR", 11,
         "Keep warmed-up policies in DIR, for the next run like this (default: "
         "${XDG_CACHE_HOME:-~/.cache}/weft/train)",
         .text = &arguments->cache},
        {"no-warmup-cache", NULL, 11, "Keep none", .flag = &arguments->no_cache},
        {0},
    };
    const weft_option team[] = {
        {.group = 12, .help = "Several trainers:"},
        {"trainers", "K", 13,
         "There are K trainers (default: 1), each a process with the same options; over MPI: as many as it "
         "has started",
         .count = &arguments->chosen.run.trainers, .least = 1, .most = WEFT_LOCO_RANKS_MAX},
        {"rank", "R", 13,
         "Which of them this is, from 0; the others keep their files in DIR/rank-R. Over MPI it is known",
         .count = &arguments->chosen.rank, .most = WEFT_LOCO_RANKS_MAX - 1,
         .given = &arguments->team.of_rank},
        {"exchange", "HOW", 13,
         "store (default): they meet in STORE, and go on without one that is gone; mpi: mpirun has started "
         "them",
         .choice = &arguments->team.exchange_kind, .words = "store|mpi"},
        {"outer", "HOW", 13,
         "pulseloco (default): after each round send what the next forward pass can see; diloco: send all; "
         "ddp: average the gradients of each update",
         .parse = parse_outer, .into = &arguments->chosen.run.outer},
        {"local-steps", "H", 13, "Steps of a round (default: 8; ddp: 1)",
         .count = &arguments->team.local_steps, .least = 1, .most = TRAIN_LOCAL_STEPS_MAX},
        {"outer-rate", "R", 13, "Rate of the outer optimizer (default: 0.7)",
         .real = &arguments->chosen.run.outer_rate, .most = 1000, .given = &arguments->team.of_outer},
        {"outer-momentum", "M", 13, "Its momentum (default: 0.9)",
         .real = &arguments->chosen.run.outer_momentum, .most = 1000, .given = &arguments->team.of_outer},
        {"significant", "BITS", 13,
         "Cut the values that pulseloco sends to so many significant bits, 2 to 23; the rest stays for a "
         "later round (default: 0: nothing is cut; with --grid 3)",
         .count = &arguments->chosen.run.significant, .most = 23, .given = &arguments->team.of_values},
        {"grid", "N", 13,
         "Round the values that pulseloco sends to multiples of 2^(1-N) BF16 steps of the weight, 1 to 8, "
         "and send those that are not 0: fewer bytes, and less that waits; 3 is a good choice (default: 0: "
         "values as they are, where a forward pass sees them)",
         .count = &arguments->chosen.run.grid, .most = 8, .given = &arguments->team.of_values},
        {"overlap", NULL, 13,
         "What pulseloco or diloco send at the end of a round travels during the steps of the next, which "
         "do not wait for it: for slow links. Those steps, and the policy that workers have, know the "
         "others' work a round later; needs --staleness 1 or more",
         .flag = &arguments->chosen.run.overlap, .given = &arguments->team.of_outer},
        {"deadline", "TIME", 13,
         "How long the end of a round waits for trainers that are late, over a store (default: 60s; ddp "
         "waits for all, as long as --patience says)",
         .seconds = &arguments->chosen.deadline, .given = &arguments->team.of_store},
        {"join", NULL, 13,
         "Rank 0 takes part in the run that the store holds, though its state is not in DIR, as other "
         "ranks do",
         .flag = &arguments->chosen.join, .given = &arguments->team.of_store},
        {0},
    };
    const weft_option sparse[] = {
        {.group = 14, .help = "A compressed cache of keys and values:"},
        {"kv", "POLICY", 15,
         "What workers keep of their caches while they sample: none (default: all), streaming, h2o, snapkv "
         "or rkv",
         .parse = parse_policy, .into = &arguments->sparse.policy},
        {"kv-budget", "N", 15, "Tokens that are left when some are evicted",
         .number = &arguments->sparse.budget, .least = 1, .most = WEFT_KV_TOKENS_MAX},
        {"kv-interval", "N", 15, "Tokens from one choice to the next (default: a quarter of the budget)",
         .number = &arguments->sparse.interval, .least = 1, .most = WEFT_KV_TOKENS_MAX},
        {"kv-sinks", "N", 15, "First tokens, which stay (default: the policy's)",
         .number = &arguments->sparse.sinks, .most = WEFT_KV_TOKENS_MAX},
        {"kv-window", "N", 15, "Last tokens, which stay (default: the policy's)",
         .number = &arguments->sparse.window, .least = 1, .most = WEFT_KV_TOKENS_MAX},
        {"kv-prompt", NULL, 15, "The prompt stays too, as far as the budget leaves room beside the window",
         .flag = &arguments->sparse.keep_prompt},
        {"kv-share", "X", 15,
         "The budget is at least this part of the tokens that have come (default: 0, a constant budget)",
         .real = &arguments->sparse.share, .most = 1},
        {"kv-common", "X", 15,
         "Part of the budget for which layers and heads compete, so that one whose attention is spread "
         "keeps "
         "more tokens (default: 0, all the same; Ada-KV: 0.8)",
         .real = &arguments->sparse.common, .most = 1},
        {"correction", "PRESET", 15,
         "What is done about responses that the policy would not have sampled with a whole cache: none "
         "(default), paper, released, tis, mis or icepop",
         .text = &arguments->sparse.correction},
        {"veto", "X", 15,
         "Reject a trajectory if the policy gives one of its tokens less than X times what the sampler "
         "did; 0: never (default: the preset's)",
         .real = &arguments->sparse.veto, .most = 1},
        {"exclude-rejected", NULL, 15,
         "Leave rejected trajectories out of the means that others are compared with",
         .flag = &arguments->sparse.exclude_rejected},
        {0},
    };
    const weft_form form = {"STORE --role ROLE",
                            doc,
                            {{options, NULL},
                             {trainer, &arguments->of_trainer},
                             {team, &arguments->of_team},
                             {sparse, &arguments->of_sparse}},
                            .paths = {&arguments->store, 1, 1, "give a store"},
                            .check = check_arguments};
    arguments->team.chosen = &arguments->chosen;
    return remote_run(&form, &arguments->remote, true, argc, argv, arguments, run);
}

/* ---- what follows from the arguments ---- */

static weft_kv_options choose_kv(const train_sparse *sparse) {
    weft_kv_options kv = {.size = sizeof kv};
    weft_kv_defaults(sparse->policy, sparse->budget, &kv);
    kv.interval = sparse->interval > 0 ? sparse->interval : kv.interval;
    kv.sinks = sparse->sinks != SINKS_OF_POLICY ? sparse->sinks : kv.sinks;
    kv.window = sparse->window > 0 ? sparse->window : kv.window;
    kv.keep_prompt = sparse->keep_prompt;
    kv.share = sparse->share;
    kv.common = sparse->common;
    return kv;
}

int train_sparse_choose(weft_command *command, const train_sparse *sparse, train_options *chosen) {
    weft_correction_options *correction = &chosen->grpo.correction;
    bool limited = sparse->budget > 0 || sparse->interval > 0 || sparse->sinks != SINKS_OF_POLICY ||
                   sparse->window > 0 || sparse->keep_prompt || sparse->share > 0 || sparse->common > 0;
    if (sparse->policy == WEFT_KV_NONE && limited) {
        return command_error(command, EXIT_USAGE, "a budget for caches needs a policy; give one with --kv");
    }
    if (sparse->policy != WEFT_KV_NONE && sparse->budget == 0) {
        return command_error(command, EXIT_USAGE, "--kv %s needs a --kv-budget",
                             weft_kv_policy_name(sparse->policy));
    }
    chosen->run.kv = choose_kv(sparse);
    if (sparse->correction != NULL) {
        weft_status status = weft_correction_preset(command->context, sparse->correction, correction);
        if (status != WEFT_OK) {
            return command_error(command, EXIT_USAGE, "--correction: %s",
                                 weft_context_error(command->context));
        }
    }
    correction->veto = sparse->veto >= 0 ? sparse->veto : correction->veto;
    correction->baseline_excludes_rejected = sparse->exclude_rejected;
    return EXIT_DONE;
}
