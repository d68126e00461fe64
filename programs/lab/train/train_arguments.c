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

enum {
    OPTION_ROLE = 0x100,
    OPTION_OUTPUT,
    OPTION_FRESH,
    OPTION_CHANGE,
    OPTION_DURABLE,
    OPTION_SIGN,
    OPTION_PATIENCE,
    OPTION_METRICS,
    OPTION_MODEL,
    OPTION_CONFIG,
    OPTION_LAYERS,
    OPTION_WIDTH,
    OPTION_HEADS,
    OPTION_KV_HEADS,
    OPTION_FEED_FORWARD,
    OPTION_CONTEXT,
    OPTION_TASK,
    OPTION_CHAIN_STEPS,
    OPTION_CHAIN_PERIOD,
    OPTION_DIGITS,
    OPTION_SEED,
    OPTION_STEPS,
    OPTION_PROMPTS,
    OPTION_GROUP,
    OPTION_SLOTS,
    OPTION_TEMPERATURE,
    OPTION_STALENESS,
    OPTION_SYNC,
    OPTION_RATE,
    OPTION_UPDATES,
    OPTION_PASSES,
    OPTION_CLIP,
    OPTION_CLIP_HIGH,
    OPTION_CLIP_NORM,
    OPTION_KL,
    OPTION_EVALUATE,
    OPTION_EVALUATE_PROMPTS,
    OPTION_WARMUP_SUCCESS,
    OPTION_WARMUP_RATE,
    OPTION_WARMUP_STEPS,
    OPTION_WARMUP_CACHE,
    OPTION_NO_WARMUP_CACHE,
    OPTION_NAME,
    OPTION_MAX_SECONDS,
};

static const struct argp_option options[] = {
    {"role", OPTION_ROLE, "ROLE", 0, "trainer: learns and publishes; rollout: makes trajectories", 1},
    {"patience", OPTION_PATIENCE, "TIME", 0,
     "Give up when nothing new has come, or the store has failed, for so long (default: 10m)", 1},

    {NULL, 0, NULL, 0, "Of a rollout worker:", 2},
    {"name", OPTION_NAME, "NAME", 0,
     "Go by this name (default: made of the host's name and the process); workers that run at the same "
     "time need different ones",
     3},
    {"max-seconds", OPTION_MAX_SECONDS, "TIME", 0, "End after so long, even if the run goes on", 3},

    {NULL, 0, NULL, 0, "Of a trainer:", 4},
    {"output", OPTION_OUTPUT, "DIR", 0,
     "Keep state.safetensors, metrics.jsonl and at the end the model in DIR; a state of the same run there "
     "is gone on with",
     5},
    {"fresh", OPTION_FRESH, NULL, 0, "Begin a new run, whatever lies in DIR and in the store", 5},
    {"change", OPTION_CHANGE, NULL, 0,
     "Go on with a run that learned otherwise until now (rate, updates, passes, clips, kl, correction)", 5},
    {"durable", OPTION_DURABLE, NULL, 0, "Write the state so that it outlasts a power cut", 5},
    {"sign", OPTION_SIGN, "FILE", 0,
     "Sign versions with this secret key (weft keygen makes one), so that workers can use --trust", 5},
    {"metrics", OPTION_METRICS, "-", 0,
     "Print each line of metrics.jsonl to stdout too; over MPI, those of rank 0", 5},

    {NULL, 0, NULL, 0, "The model:", 6},
    {"model", OPTION_MODEL, "SIZE", 0, "0.1M (default), 0.2M, 0.6M, 2M, 8M or 27M parameters", 7},
    {"config", OPTION_CONFIG, "FILE", 0, "The sizes in a Hugging Face config.json for Llama", 7},
    {"layers", OPTION_LAYERS, "N", 0, "Change one size of it; and so the next", 7},
    {"hidden", OPTION_WIDTH, "N", 0, "Width", 7},
    {"heads", OPTION_HEADS, "N", 0, "Attention heads", 7},
    {"kv-heads", OPTION_KV_HEADS, "N", 0, "Key-value heads", 7},
    {"feed-forward", OPTION_FEED_FORWARD, "N", 0, "Width of the feed-forward layers", 7},
    {"context", OPTION_CONTEXT, "N", 0, "The longest sequence", 7},

    {NULL, 0, NULL, 0, "The task and its batches:", 8},
    {"task", OPTION_TASK, "NAME", 0, "chain (default): sums round a circle of digits; or addition", 9},
    {"chain-steps", OPTION_CHAIN_STEPS, "N", 0, "Sums of a chain", 9},
    {"chain-period", OPTION_CHAIN_PERIOD, "N", 0, "Digits of its circle", 9},
    {"digits", OPTION_DIGITS, "N", 0, "Digits of each number that is added", 9},
    {"seed", OPTION_SEED, "N", 0, "All random numbers follow from it (default: 1)", 9},
    {"steps", OPTION_STEPS, "N", 0, "Steps of the trainer (default: 240)", 9},
    {"prompts", OPTION_PROMPTS, "N", 0, "Prompts of a step, for each trainer (default: 32)", 9},
    {"group", OPTION_GROUP, "N", 0, "Responses to each (default: 8)", 9},
    {"slots", OPTION_SLOTS, "N", 0,
     "Pieces of work that they are divided into, for each trainer (default: 8)", 9},
    {"temperature", OPTION_TEMPERATURE, "T", 0, "Of sampling (default: 1)", 9},
    {"staleness", OPTION_STALENESS, "N", 0,
     "Rounds (with one trainer: steps) that the policy of a trajectory may be behind; 0 (default): "
     "strictly synchronous, the same "
     "bits "
     "whatever workers there are",
     9},
    {"sync", OPTION_SYNC, "HOW", 0, "patch (default): versions travel as what changed; full: whole", 9},

    {NULL, 0, NULL, 0, "Learning:", 10},
    {"rate", OPTION_RATE, "R", 0, "Learning rate", 11},
    {"updates", OPTION_UPDATES, "N", 0, "Updates of a step, each on its share of the groups", 11},
    {"passes", OPTION_PASSES, "N", 0, "How often a step goes over its batch", 11},
    {"clip", OPTION_CLIP, "C", 0, "Ratios below 1 - C are clipped", 11},
    {"clip-high", OPTION_CLIP_HIGH, "C", 0, "Ratios above 1 + C are clipped", 11},
    {"clip-norm", OPTION_CLIP_NORM, "N", 0, "Largest norm of the gradient; 0: not clipped", 11},
    {"kl", OPTION_KL, "W", 0, "Weight of the divergence from the first policy (default: 0)", 11},
    {"evaluate", OPTION_EVALUATE, "N", 0,
     "Measure success on fresh prompts every N steps (default: 20); 0: after the last only", 11},
    {"evaluate-prompts", OPTION_EVALUATE_PROMPTS, "N", 0, "How many (default: 256)", 11},
    {"warmup-success", OPTION_WARMUP_SUCCESS, "S", 0,
     "First learn from right answers until this share succeeds (default: 0.45); 0: no warm-up", 11},
    {"warmup-rate", OPTION_WARMUP_RATE, "R", 0, "Learning rate of the warm-up", 11},
    {"warmup-steps", OPTION_WARMUP_STEPS, "N", 0, "Steps of the warm-up, at most", 11},
    {"warmup-cache", OPTION_WARMUP_CACHE, "DIR", 0,
     "Keep warmed-up policies in DIR, for the next run like this (default: "
     "${XDG_CACHE_HOME:-~/.cache}/weft/train)",
     11},
    {"no-warmup-cache", OPTION_NO_WARMUP_CACHE, NULL, 0, "Keep none", 11},
    {0},
};

static const char doc[] =
    "Train a small policy by reinforcement learning, one role of it.\v"
    "A trainer and any number of rollout workers know each other by STORE alone and may be on different "
    "machines. The trainer publishes each policy there, as weft publish does; workers follow it, as weft "
    "follow does, and put trajectories into the same store. What a worker needs to know of the run it "
    "reads "
    "there too.\n"
    "\nWorkers may come, go and be killed at any time: what they had not delivered, another one makes. A "
    "trainer that was ended goes on where it was when it is called again with the same options. "
    "Trajectories "
    "that are damaged, forged or too old are counted, told of and made again.\n"
    "\nWith --kv workers keep only part of their caches of keys and values while they sample, which takes "
    "less "
    "memory, and sends responses that the policy itself would not have given quite like that. The trainer "
    "scores them with a whole cache and, with a --correction, weighs or rejects what differs; "
    "metrics.jsonl "
    "tells how much. Success is always measured with a whole cache.\n"
    "\nSeveral trainers each learn from batches of their own for a round of steps, then agree on one "
    "policy, "
    "which the workers get. Every rank writes its own metrics.jsonl; the rank that publishes also shows "
    "its "
    "own in the store. Over MPI rank 0 alone prints what it does. With --fresh, start rank 0 before the "
    "others.\n"
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

enum { COUNT_MOST = 1 << 20 };

static uint32_t small(struct argp_state *state, const char *option, const char *text) {
    return (uint32_t)command_parse_number(state, option, text, 0, COUNT_MOST);
}

static double real(struct argp_state *state, const char *option, const char *text) {
    return command_parse_real(state, option, text, 0, 1e9);
}

/* A config.json, or the end of the process. What follows on the command line changes single sizes of it. */
static void read_config(struct argp_state *state, const char *path, lm_config *config) {
    enum { MOST = 1 << 16 };
    weft_context *context = NULL;
    char *text = NULL;
    size_t size = 0;
    weft_status status = weft_context_create(NULL, &context);
    if (status == WEFT_OK) {
        status = train_read_text(context, path, MOST, &text, &size);
    }
    if (status == WEFT_OK) {
        status = lm_config_parse(context, text, size, config);
        weft_release(context, text);
    }
    if (status != WEFT_OK) {
        argp_failure(state, EXIT_USAGE, 0, "%s: %s", path, weft_context_error(context));
    }
    weft_context_destroy(context);
}

static error_t parse_model(int key, char *text, struct argp_state *state) {
    train_arguments *arguments = state->input;
    lm_config *config = &arguments->chosen.run.config;
    const lm_preset *preset;
    switch (key) {
    case OPTION_MODEL:
        preset = lm_preset_find(text);
        if (preset == NULL) {
            argp_error(state, "--model is one of " LM_PRESET_NAMES ", not '%s'", text);
            return EINVAL;
        }
        *config = preset->config;
        return 0;
    case OPTION_CONFIG:
        read_config(state, text, config);
        return 0;
    case OPTION_LAYERS:
        config->layers = small(state, "--layers", text);
        return 0;
    case OPTION_WIDTH:
        config->width = small(state, "--hidden", text);
        return 0;
    case OPTION_HEADS:
        config->heads = small(state, "--heads", text);
        return 0;
    case OPTION_KV_HEADS:
        config->kv_heads = small(state, "--kv-heads", text);
        return 0;
    case OPTION_FEED_FORWARD:
        config->feed_forward = small(state, "--feed-forward", text);
        return 0;
    case OPTION_CONTEXT:
        config->context = small(state, "--context", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_task(int key, char *text, struct argp_state *state) {
    train_arguments *arguments = state->input;
    train_run *run = &arguments->chosen.run;
    switch (key) {
    case OPTION_TASK:
        if (strcmp(text, "chain") != 0 && strcmp(text, "addition") != 0) {
            argp_error(state, "--task is chain or addition, not '%s'", text);
        }
        run->task.kind = strcmp(text, "chain") == 0 ? LM_TASK_CHAIN : LM_TASK_ADDITION;
        return 0;
    case OPTION_CHAIN_STEPS:
        run->task.steps = small(state, "--chain-steps", text);
        return 0;
    case OPTION_CHAIN_PERIOD:
        run->task.period = small(state, "--chain-period", text);
        return 0;
    case OPTION_DIGITS:
        run->task.digits = small(state, "--digits", text);
        return 0;
    case OPTION_SEED:
        run->seed = command_parse_number(state, "--seed", text, 0, INT64_MAX / 2);
        return 0;
    case OPTION_STEPS:
        run->steps = command_parse_number(state, "--steps", text, 0, 1000000000);
        return 0;
    case OPTION_PROMPTS:
        run->prompts = small(state, "--prompts", text);
        return 0;
    case OPTION_GROUP:
        run->group = small(state, "--group", text);
        return 0;
    case OPTION_SLOTS:
        run->slots = small(state, "--slots", text);
        return 0;
    case OPTION_TEMPERATURE:
        run->temperature = real(state, "--temperature", text);
        return 0;
    case OPTION_STALENESS:
        run->staleness = small(state, "--staleness", text);
        return 0;
    case OPTION_SYNC:
        if (strcmp(text, "patch") != 0 && strcmp(text, "full") != 0) {
            argp_error(state, "--sync is patch or full, not '%s'", text);
        }
        run->sync = strcmp(text, "full") == 0 ? TRAIN_SYNC_FULL : TRAIN_SYNC_PATCH;
        return 0;
    default:
        return parse_model(key, text, state);
    }
}

static error_t parse_learning(int key, char *text, struct argp_state *state) {
    train_arguments *arguments = state->input;
    train_options *chosen = &arguments->chosen;
    switch (key) {
    case OPTION_RATE:
        chosen->grpo.adam.rate = real(state, "--rate", text);
        return 0;
    case OPTION_UPDATES:
        chosen->grpo.updates = small(state, "--updates", text);
        return 0;
    case OPTION_PASSES:
        chosen->grpo.passes = small(state, "--passes", text);
        return 0;
    case OPTION_CLIP:
        chosen->grpo.clip_low = real(state, "--clip", text);
        return 0;
    case OPTION_CLIP_HIGH:
        chosen->grpo.clip_high = real(state, "--clip-high", text);
        return 0;
    case OPTION_CLIP_NORM:
        chosen->grpo.adam.clip = real(state, "--clip-norm", text);
        return 0;
    case OPTION_KL:
        chosen->grpo.kl = real(state, "--kl", text);
        return 0;
    case OPTION_EVALUATE:
        chosen->evaluation_interval = small(state, "--evaluate", text);
        return 0;
    case OPTION_EVALUATE_PROMPTS:
        chosen->evaluation_prompts = small(state, "--evaluate-prompts", text);
        return 0;
    case OPTION_WARMUP_SUCCESS:
        chosen->warmup.success = real(state, "--warmup-success", text);
        return 0;
    case OPTION_WARMUP_RATE:
        chosen->warmup.adam.rate = real(state, "--warmup-rate", text);
        return 0;
    case OPTION_WARMUP_STEPS:
        chosen->warmup.steps = small(state, "--warmup-steps", text);
        return 0;
    case OPTION_WARMUP_CACHE:
        arguments->cache = text;
        return 0;
    case OPTION_NO_WARMUP_CACHE:
        arguments->no_cache = true;
        return 0;
    default:
        return parse_task(key, text, state);
    }
}

static error_t parse_trainer(int key, char *text, struct argp_state *state) {
    train_arguments *arguments = state->input;
    switch (key) {
    case OPTION_OUTPUT:
        arguments->chosen.output = text;
        return 0;
    case OPTION_FRESH:
        arguments->chosen.fresh = true;
        return 0;
    case OPTION_CHANGE:
        arguments->chosen.change = true;
        return 0;
    case OPTION_DURABLE:
        arguments->chosen.durable = true;
        return 0;
    case OPTION_SIGN:
        arguments->sign_file = text;
        return 0;
    case OPTION_METRICS:
        if (strcmp(text, "-") != 0) {
            argp_error(state, "--metrics takes '-': the file is metrics.jsonl in the output directory");
        }
        arguments->print_lines = true;
        return 0;
    default:
        return parse_learning(key, text, state);
    }
}

static void check_role(const train_arguments *arguments, struct argp_state *state) {
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
        (arguments->of_trainer || arguments->sparse.given || arguments->team.given)) {
        argp_error(state, "a rollout worker learns all about the run from the store; its options are "
                          "--name, --max-seconds, --patience and --trust");
    }
    if (arguments->print_lines && arguments->command.json) {
        argp_error(state, "--metrics - and --json would both be printed to stdout; choose one");
    }
}

static error_t parse(int key, char *text, struct argp_state *state) {
    train_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        remote_parse_begin(&arguments->remote, &arguments->command, state);
        arguments->team.chosen = &arguments->chosen;
        state->child_inputs[1] = &arguments->team;
        state->child_inputs[2] = &arguments->sparse;
        return 0;
    case OPTION_ROLE:
        if (strcmp(text, "trainer") != 0 && strcmp(text, "rollout") != 0) {
            argp_error(state, "--role is trainer or rollout, not '%s'", text);
        }
        arguments->role = strcmp(text, "trainer") == 0 ? ROLE_TRAINER : ROLE_ROLLOUT;
        return 0;
    case OPTION_PATIENCE:
        arguments->chosen.patience = remote_parse_seconds(state, "--patience", text);
        return 0;
    case OPTION_NAME:
        arguments->name = remote_parse_name(state, text);
        return 0;
    case OPTION_MAX_SECONDS:
        arguments->max_seconds = remote_parse_seconds(state, "--max-seconds", text);
        return 0;
    case ARGP_KEY_END:
        check_role(arguments, state);
        train_team_choose(&arguments->team, state);
        return 0;
    default:
        break;
    }
    error_t error = parse_trainer(key, text, state);
    if (error == 0) {
        arguments->of_trainer = true;
        return 0;
    }
    return remote_parse_store(key, text, state, &arguments->store);
}

static const struct argp_child children[] = {
    {&reader_argp, 0, NULL, 0},
    {&train_team_argp, 0, "Several trainers:", 12},
    {&train_sparse_argp, 0, "A compressed cache of keys and values:", 14},
    {0}};

const struct argp train_argp = {options, parse, "STORE --role ROLE", doc, children, NULL, NULL};
