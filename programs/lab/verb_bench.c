/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_bench.c: `weft bench`: this machine against its limits, and against what others do, in one run
 * and one table.
 */
#include "bench/bench_correction.h"
#include "bench/bench_loco.h"
#include "bench/lm/bench_lm.h"
#include "bench/lm/bench_loco_study.h"
#include "bench/sync/bench_fleet.h"

#include "../../lm/learn/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_PARAMS = 0x100,
    OPTION_LR,
    OPTION_SEED,
    OPTION_REPEAT,
    OPTION_BASE,
    OPTION_NEW,
    OPTION_MAKE,
    OPTION_STEPS,
    OPTION_SYNC,
    OPTION_QUICK,
    OPTION_ONLY,
    OPTION_VERSIONS,
    OPTION_TENSORS,
    OPTION_DIRECTORY,
    OPTION_FLEET,
    OPTION_LM,
    OPTION_CORRECTION,
    OPTION_LOCO,
    OPTION_LEARN,
    OPTION_RATE,
    OPTION_STALENESS,
    OPTION_RATES,
    OPTION_KV,
    OPTION_SPARSE,
    OPTION_CHAIN,
    OPTION_LONG,
    OPTION_STATE,
    OPTION_SAVE,
    OPTION_FOLLOWERS,
    OPTION_RELAYS,
};

static const struct argp_option options[] = {
    {"params", OPTION_PARAMS, "N", 0,
     "Parameters of the trace's model; suffixes K, M, B (default 256M; of --sync 1B, of --fleet 8M, of "
     "--loco 64M; of --rates 2M, or 0.1M, 0.2M, 0.6M, 8M, 27M)",
     1},
    {"lr", OPTION_LR, "RATE", 0, "Learning rate of the trace (default 1e-6)", 1},
    {"seed", OPTION_SEED, "N", 0, "Seed of the trace (default 1)", 1},
    {"repeat", OPTION_REPEAT, "N", 0, "Runs of each measurement, of which the fastest counts (default 5)",
     1},
    {"base", OPTION_BASE, "CKPT", 0, "Measure with a real pair of checkpoints: the old one", 2},
    {"new", OPTION_NEW, "CKPT", 0, "… and the new one; their BF16 tensors are used", 2},
    {"make", OPTION_MAKE, "DIR", 0,
     "Measure nothing: write the trace to DIR, as base.safetensors and new.safetensors", 3},
    {"steps", OPTION_STEPS, "N", 0,
     "With --make: write N steps, as step-0.safetensors to step-N.safetensors", 3},
    {"sync", OPTION_SYNC, NULL, 0, "Measure publishing and following instead, with two threads; see below",
     4},
    {"fleet", OPTION_FLEET, NULL, 0, "Measure many followers behind relays instead; see below", 4},
    {"quick", OPTION_QUICK, NULL, 0,
     "With --sync: 256M parameters and 100 versions; with --fleet: 8 followers, 1M and 12; with --lm: the "
     "two smallest models; with --rates: the smallest, hardly warm",
     4},
    {"only", OPTION_ONLY, "PARTS", 0,
     "With --sync: only some of publish,pause,scaling,latency,bucketing,catch-up,group,parts", 4},
    {"versions", OPTION_VERSIONS, "N", 0,
     "With --sync: versions of the latency (default 500); with --fleet: versions (default 200)", 4},
    {"tensors", OPTION_TENSORS, "N", 0, "With --sync: tensors of the bucketing (default 2000)", 4},
    {"directory", OPTION_DIRECTORY, "DIR", 0,
     "With --sync, --fleet or --rates: where stores are made, and removed again (default: $TMPDIR or /tmp)",
     4},
    {"followers", OPTION_FOLLOWERS, "N", 0, "With --fleet: followers (default 64)", 4},
    {"relays", OPTION_RELAYS, "N", 0, "With --fleet: relays that they are behind (default 2)", 4},
    {"correction", OPTION_CORRECTION, NULL, 0,
     "Measure the correction of sampled responses instead: 10M tokens; see below", 6},
    {"loco", OPTION_LOCO, NULL, 0, "Measure a round of PULSELoCo instead; see below", 5},
    {"lm", OPTION_LM, NULL, 0, "Measure training and generation of the small policy instead; see below", 6},
    {"learn", OPTION_LEARN, NULL, 0, "With --lm: one run of learning; --steps N policy steps (default 240)",
     6},
    {"rate", OPTION_RATE, "RATE", 0,
     "With --learn, --sparse or --study: the learning rate of policy steps (default 2e-4; of --study 1e-6)",
     6},
    {"staleness", OPTION_STALENESS, "N", 0,
     "With --learn: responses are sampled from the policy of N versions before (default 0)", 6},
    {"rates", OPTION_RATES, "LIST", 0,
     "With --lm: sparsity and bytes of --steps N policy steps (default 50) at each learning rate, such as "
     "1e-6,3e-6",
     6},
    {"kv", OPTION_KV, NULL, 0,
     "With --lm: rollouts per second by KV-cache policy, within a fixed memory for keys and values", 6},
    {"sparse", OPTION_SPARSE, "ARM", 0,
     "With --lm: one run of learning from responses that a compressed cache has sampled; ARM is dense, or "
     "POLICY:BUDGET:CORRECTION such as rkv:22:tis; --directory keeps warmed-up policies",
     6},
    {"chain", OPTION_CHAIN, "N", 0, "With --sparse: sums of a chain (default 56)", 6},
    {"long", OPTION_LONG, NULL, 0,
     "With --sparse: another policy, with three layers whose heads share keys and values, and chains of "
     "106",
     6},
    {"state", OPTION_STATE, "FILE", 0,
     "With --rates: the policy is that of a trainer's state (default: one is warmed up); with --study: "
     "the policy that they begin with",
     6},
    {"save", OPTION_SAVE, "FILE", 0, "With --rates: leave the state of the policy that is warmed up", 6},
    {0},
};

static const char doc[] =
    "Measure diff, apply and digest beside memcpy, beside COO+zstd-1 (PULSE's layout) and beside "
    "XOR+zstd-1 (whole tensors), all in one run.\v"
    "The trace is made anew from its seed, and is the same with any number of threads. It has the "
    "tensors of a transformer of the given size: embeddings, and per layer q, k, v, o, gate, up, down "
    "and two norms.\n\n"
    "  matrix weight    w = deviation * R[row] * C[column] * z\n"
    "                   deviation 0.015 to 0.033 by kind; z normal\n"
    "  scales           R = exp(0.35 z'), C = exp(0.25 z')\n"
    "  norm weight      w = 1 + 0.05 z\n"
    "  base             b = bf16(w)\n"
    "  FP32 master      m uniform over the FP32 values that round to b\n"
    "  step             m += +-lr * 0.2 * A[row] * (0.5 + u)\n"
    "                   sign random, u uniform in [0, 1)\n"
    "  row-wise spread  A = exp(0.5 z' - 0.125), anew for each step\n"
    "  new              bf16(m)\n\n"
    "Speeds are counted over the model's BF16 bytes, and over 512 MiB for memcpy; x is the ratio to "
    "memcpy with as many threads. Encode is a diff as a publisher makes it: sums of the base known, "
    "those of the new state produced, the patch written to memory. Decode+apply goes from the patch's "
    "bytes to the changed weights of a private copy in one go, everything proven on the way. Live weights "
    "are brought forward in two: prepare decodes and proves and leaves them alone, commit is the pause. "
    "The "
    "baselines run on one thread and prove nothing. Each result is compared bit for bit with the new "
    "state.\n"
    "\nWith --sync, a trainer's weights, a store and a worker's weights, in live memory:\n\n"
    "  publish    a step of the model to a directory, each profile; memcpy in turn with it\n"
    "  pause      commit in a worker of 256M parameters, prepared before\n"
    "  scaling    commit of 640,000 changes, 64M parameters against all of them\n"
    "  latency    8M parameters, publish to the end of commit over HTTP, version by version\n"
    "  bucketing  2,000 tensors over HTTP: one object, against one object for each tensor\n"
    "  catch-up   workers that have missed 256 versions: what they fetch\n"
    "  group      four replicas on one host, as a group and each on its own\n"
    "  parts      256M parameters: four processes that publish a part each, against one alone\n\n"
    "Caches are cold before publish, prepare and commit; the server is a process of its own on the "
    "loopback device; each worker is compared bit for bit with its trainer. --params N makes every model "
    "that would be larger as small as N. 1B parameters take 7 GB of memory and 2 GB of disk.\n"
    "\nWith --fleet, followers with live memory that wait on relays of one server, all on the loopback "
    "device:\n\n"
    "  fleet  every version to every follower: times, what the server sent, memory of the servers\n"
    "  relay  publish to commit of one follower, at the server and through a relay, in turn\n"
    "  ask    all at the same moment ask a fresh relay for the same object\n\n"
    "The next version is made when all have committed the one before, or after 30 seconds. Each commit's "
    "digest is compared with the trainer's, and in the end all weights.\n"
    "\nWith --lm, the small transformer of the testbed, in several sizes:\n\n"
    "  training    tokens per second of whole steps; sequences of 64 tokens\n"
    "  generation  tokens per second: sampling with a cache\n"
    "  policy      tokens per second of whole policy steps: generation, whose\n"
    "              scores are those of the policy, and two updates from rewards\n"
    "  GFLOP/s     useful operations: 6 in training, 2 in generation for each\n"
    "              parameter of a matrix, and those of attention\n"
    "  peak        the fastest product of 128x128 matrices of all threads at once\n\n"
    "The fastest of --repeat counts. With --learn one run instead: 0.1M parameters learn chained sums, "
    "first from right answers until they succeed in about half of the cases, then from rewards alone. With "
    "--rates, from one state of a policy, policy steps at each rate, every one published through a "
    "directory:\n\n"
    "  % of weights  BF16 weights that differ from those 1, 2, 4, … steps before\n"
    "  per sync      bytes of a version: patch, index page and head; mean\n"
    "  fewer         times fewer than the model's BF16 bytes\n\n"
    "After a warm-up, 20 steps at the rate come first and do not count, because Adam's first updates are "
    "as "
    "large as the rate for every weight; a state that has learned by rewards brings its own moments.\n"
    "\nWith --kv, rollouts by each policy in turn, in half of the memory that all would "
    "need "
    "with whole caches of keys and values; sequences wait for room:\n\n"
    "  at once  sequences that fit\n"
    "  times    rollouts per second, beside those without a policy\n"
    "  KV held  tokens that queries found, of those with whole caches\n"
    "  KV peak  the most that caches took, all that a policy remembers included\n"
    "\nWith --correction, arrays of log-probabilities of 10M tokens (--quick: 1M), on one thread: "
    "weights by "
    "each preset, and the objective, beside memcpy of what goes in; the fastest of --repeat counts.\n"
    "\nWith --loco, what a round costs one rank: 64M FP32 weights, eight steps of Adam before each of "
    "--repeat rounds:\n\n"
    "  gate           reads consensus, weights and residual, writes the residual\n"
    "  gate + encode  from weights to payload, the gate included\n"
    "  decode         a payload is checked and decoded\n"
    "  aggregate      the outer optimizer moves the consensus, the weights and the\n"
    "                 digest\n"
    "  lossless, 8 bits   values as they are, and cut to 8 significant bits\n"
    "  open, raw          DiLoCo: all values, coded, and as they lie in memory\n\n"
    "Bytes per fired weight are those of the whole payload, positions included, in the first round and in "
    "the "
    "last. Speeds are counted over the FP32 bytes of the model.\n"
    "\nExamples:\n"
    "  weft bench\n"
    "  weft bench --params 1B --lr 3e-6 --repeat 3 --json\n"
    "  weft bench --base step-41.safetensors --new step-42.safetensors\n"
    "  weft bench --make /tmp/trace --params 8M --steps 3\n"
    "  weft bench --sync --quick --only publish,pause\n"
    "  weft bench --fleet --followers 16 --relays 1 --versions 50\n"
    "  weft bench --lm --learn --seed 2\n"
    "  weft bench --lm --rates 1e-6,1e-5,1e-4 --steps 50\n"
    "  weft bench --loco --params 8M --repeat 3\n"
    "  weft bench --lm --rates 1e-6 --steps 1 --save 2M.state\n"
    "  weft bench --loco --study pulseloco --state 2M.state --rate 1e-6\n"
    "  weft bench --lm --kv --repeat 3\n"
    "  weft bench --lm --sparse rkv:22:naive --steps 100 --seed 2\n" HELP_EXIT_CODES;

typedef struct bench_arguments {
    weft_command command;
    uint64_t parameters;
    double learning_rate;
    uint64_t seed;
    uint64_t repeat;
    const char *base;
    const char *next;
    const char *make;
    uint64_t steps;
    bool sync;
    bool fleet;
    bool lm;
    bool correction;
    bool loco;
    bool learn;
    double rate; /* of learning; 0: the usual */
    uint64_t staleness;
    const char *rates;
    bool kv;
    const char *arm;
    uint64_t chain;
    bool long_chains;
    const char *state;
    const char *save;
    loco_study_options study;
    sync_options sync_options; /* what is not told by the options above */
} bench_arguments;

static void check_lm(const bench_arguments *arguments, struct argp_state *state) {
    bool rates = arguments->rates != NULL;
    bool sparse = arguments->arm != NULL;
    if ((arguments->learn || rates || arguments->kv || sparse) && !arguments->lm) {
        argp_error(state, "--learn, --rates, --kv and --sparse go with --lm");
    }
    if (arguments->learn + rates + arguments->kv + sparse > 1) {
        argp_error(state, "--learn, --rates, --kv and --sparse exclude each other");
    }
    bool shaped = arguments->chain > 0 || arguments->long_chains;
    if ((arguments->rate > 0 && !arguments->learn && !sparse && !arguments->study.given) ||
        (arguments->staleness > 0 && !arguments->learn) || (shaped && !sparse)) {
        argp_error(state,
                   "--rate goes with --learn, --sparse and --study, --staleness with --learn, --chain "
                   "and --long with --sparse");
    }
    if (arguments->study.given && (!arguments->loco || arguments->state == NULL)) {
        argp_error(state, "--study goes with --loco and needs a --state, which --rates and --save make");
    }
    bool policy = rates || arguments->study.given;
    if (arguments->state != NULL && (!policy || arguments->parameters > 0 || arguments->save != NULL)) {
        argp_error(state,
                   "--state goes with --rates or --study, says what the model is, and needs no --save");
    }
    if (arguments->save != NULL && !rates) {
        argp_error(state, "--save goes with --rates");
    }
    if (arguments->lm && (arguments->sync || arguments->fleet || arguments->base != NULL ||
                          arguments->make != NULL || (arguments->parameters > 0 && !rates))) {
        argp_error(state, "--lm makes its own models; it goes with --learn, --rates, --kv, --sparse, "
                          "--quick, --seed, --steps "
                          "and --repeat only");
    }
}

static void parse_end(const bench_arguments *arguments, struct argp_state *state) {
    check_lm(arguments, state);
    if ((arguments->base == NULL) != (arguments->next == NULL)) {
        argp_error(state, "--base and --new go together");
    }
    if (arguments->base != NULL && arguments->make != NULL) {
        argp_error(state, "--make writes the trace; it does not go with --base and --new");
    }
    bool lessons =
        arguments->learn || arguments->rates != NULL || arguments->arm != NULL || arguments->study.given;
    if (arguments->steps > 0 && arguments->make == NULL && !lessons) {
        argp_error(state, "--steps goes with --make DIR, --learn, --rates, --sparse or --study");
    }
    if (arguments->loco && (arguments->lm || arguments->correction || arguments->sync || arguments->fleet ||
                            arguments->base != NULL || arguments->make != NULL)) {
        argp_error(state, "--loco makes its own weights; it goes with --params, --lr, --seed and --repeat "
                          "only");
    }
    const sync_options *sync = &arguments->sync_options;
    if (!arguments->sync && (sync->parts != SYNC_ALL || sync->tensors > 0)) {
        argp_error(state, "--only and --tensors go with --sync");
    }
    if (!arguments->fleet && (sync->followers > 0 || sync->relays > 0)) {
        argp_error(state, "--followers and --relays go with --fleet");
    }
    bool served = arguments->sync || arguments->fleet;
    if (!served && sync->versions > 0) {
        argp_error(state, "--versions goes with --sync or --fleet");
    }
    if (!served && arguments->rates == NULL && arguments->arm == NULL && sync->directory != NULL) {
        argp_error(state, "--directory goes with --sync, --fleet, --rates or --sparse");
    }
    if (!served && !arguments->lm && !arguments->correction && sync->quick) {
        argp_error(state, "--quick goes with --sync, --fleet, --lm or --correction");
    }
    if (arguments->correction && (served || arguments->lm || arguments->base != NULL ||
                                  arguments->make != NULL || arguments->parameters > 0)) {
        argp_error(state, "--correction goes with --quick, --seed and --repeat only");
    }
    if (served && (arguments->base != NULL || arguments->make != NULL)) {
        argp_error(state, "--sync and --fleet make their own models; neither goes with --base, --new or "
                          "--make");
    }
    if (arguments->sync && arguments->fleet) {
        argp_error(state, "--sync and --fleet exclude each other");
    }
}

static double parse_rate(const char *option, const char *text, struct argp_state *state) {
    char *end = NULL;
    double rate = strtod(text, &end);
    if (end == text || *end != 0 || !(rate >= 0 && rate <= 1)) {
        argp_error(state, "--%s takes a learning rate such as 1e-6, not '%s'", option, text);
    }
    return rate;
}

static error_t parse_lm(int key, const char *argument, struct argp_state *state) {
    bench_arguments *arguments = state->input;
    switch (key) {
    case OPTION_CORRECTION:
        arguments->correction = true;
        return 0;
    case OPTION_LM:
        arguments->lm = true;
        return 0;
    case OPTION_LEARN:
        arguments->learn = true;
        return 0;
    case OPTION_RATE:
        arguments->rate = parse_rate("rate", argument, state);
        return 0;
    case OPTION_STALENESS:
        arguments->staleness = command_parse_number(state, "--staleness", argument, 0, BENCH_STALENESS_MAX);
        return 0;
    case OPTION_RATES:
        arguments->rates = argument;
        return 0;
    case OPTION_KV:
        arguments->kv = true;
        return 0;
    case OPTION_SPARSE:
        arguments->arm = argument;
        return 0;
    case OPTION_CHAIN:
        arguments->chain = command_parse_number(state, "--chain", argument, 1, LM_TASK_SIZE_MAX);
        return 0;
    case OPTION_LONG:
        arguments->long_chains = true;
        return 0;
    case OPTION_STATE:
        arguments->state = argument;
        return 0;
    case OPTION_SAVE:
        arguments->save = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_served(int key, const char *argument, struct argp_state *state) {
    bench_arguments *arguments = state->input;
    sync_options *sync = &arguments->sync_options;
    switch (key) {
    case OPTION_SYNC:
        arguments->sync = true;
        return 0;
    case OPTION_QUICK:
        sync->quick = true;
        return 0;
    case OPTION_ONLY:
        if (!bench_sync_parse_parts(argument, &sync->parts)) {
            argp_error(state,
                       "--only takes some of publish,pause,scaling,latency,bucketing,catch-up,group,parts, "
                       "not '%s'",
                       argument);
        }
        return 0;
    case OPTION_VERSIONS:
        sync->versions = command_parse_number(state, "--versions", argument, 1, SYNC_VERSIONS_MAX);
        return 0;
    case OPTION_TENSORS:
        sync->tensors = command_parse_number(state, "--tensors", argument, 1, SYNC_TENSORS_MAX);
        return 0;
    case OPTION_DIRECTORY:
        sync->directory = argument;
        return 0;
    case OPTION_FLEET:
        arguments->fleet = true;
        return 0;
    case OPTION_FOLLOWERS:
        sync->followers = command_parse_number(state, "--followers", argument, 1, FLEET_FOLLOWERS_MAX);
        return 0;
    case OPTION_RELAYS:
        sync->relays = command_parse_number(state, "--relays", argument, 1, FLEET_RELAYS_MAX);
        return 0;
    default:
        return parse_lm(key, argument, state);
    }
}

static error_t parse(int key, char *argument, struct argp_state *state) {
    bench_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &arguments->command;
        state->child_inputs[1] = &arguments->study;
        return 0;
    case OPTION_PARAMS:
        if (!text_parse_count(argument, &arguments->parameters) || arguments->parameters < 1000) {
            argp_error(state, "--params takes a number from 1000 on, such as 256M, not '%s'", argument);
        }
        return 0;
    case OPTION_LR:
        arguments->learning_rate = parse_rate("lr", argument, state);
        return 0;
    case OPTION_SEED:
        arguments->seed = command_parse_number(state, "--seed", argument, 0, UINT64_MAX);
        return 0;
    case OPTION_REPEAT:
        arguments->repeat = command_parse_number(state, "--repeat", argument, 1, 1000);
        return 0;
    case OPTION_BASE:
        arguments->base = argument;
        return 0;
    case OPTION_NEW:
        arguments->next = argument;
        return 0;
    case OPTION_MAKE:
        arguments->make = argument;
        return 0;
    case OPTION_STEPS:
        arguments->steps = command_parse_number(state, "--steps", argument, 1, 100000);
        return 0;
    case OPTION_LOCO:
        arguments->loco = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there are no arguments, only options: '%s'", argument);
        return 0;
    case ARGP_KEY_END:
        parse_end(arguments, state);
        return 0;
    default:
        return parse_served(key, argument, state);
    }
}

static const struct argp_child children[] = {
    {&command_argp, 0, NULL, 0}, {&bench_loco_study_argp, 0, NULL, 5}, {0}};
static const struct argp argp = {options, parse, "", doc, children, NULL, NULL};

/* ---- the run ---- */

static int make_files(bench_arguments *arguments, const weft_trace *trace) {
    weft_command *command = &arguments->command;
    unsigned steps = (unsigned)arguments->steps;
    int code = trace_write(command, trace, arguments->make, steps);
    if (code != EXIT_DONE) {
        return code;
    }
    progress_clear(&command->progress);
    if (command->json) {
        json_t *json = json_object();
        json_object_set_new(json, "total", json_count(trace->parameters));
        json_object_set_new(json, "tensors", json_count(trace->count));
        json_object_set_new(json, "files", json_count(steps == 0 ? 2 : (uint64_t)steps + 1));
        return command_print_json(command, stdout, json);
    }
    if (!command->quiet) {
        char count[TEXT_SIZE];
        printf("made      %u checkpoints of %s parameters, %zu tensors, in %s\n",
               steps == 0 ? 2 : steps + 1, text_count(trace->parameters, count), trace->count,
               arguments->make);
    }
    return EXIT_DONE;
}

static int run_served(bench_arguments *arguments) {
    sync_options *sync = &arguments->sync_options;
    sync->parameters = arguments->parameters;
    sync->learning_rate = arguments->learning_rate;
    sync->seed = arguments->seed;
    sync->repeat = (unsigned)arguments->repeat;
    return arguments->fleet ? bench_fleet(&arguments->command, sync)
                            : bench_sync(&arguments->command, sync);
}

static int parse_rates(weft_command *command, const char *text, lm_bench_options *chosen) {
    const char *next = text;
    do {
        char *end = NULL;
        double rate = strtod(next, &end);
        bool last = *end == 0;
        if (end == next || (*end != ',' && !last) || !(rate > 0 && rate <= 1) ||
            chosen->rate_count == BENCH_RATES_MAX) {
            return command_error(command, EXIT_USAGE,
                                 "--rates takes 1 to %d learning rates, such as 1e-6,3e-6, not '%s'",
                                 BENCH_RATES_MAX, text);
        }
        chosen->rates[chosen->rate_count++] = rate;
        next = last ? NULL : end + 1;
    } while (next != NULL);
    return EXIT_DONE;
}

static int run_lm(bench_arguments *arguments) {
    lm_bench_options chosen = {
        .quick = arguments->sync_options.quick,
        .seed = arguments->seed,
        .repeat = (unsigned)arguments->repeat,
        .steps = arguments->steps,
        .parameters = arguments->parameters,
        .rate = arguments->rate,
        .staleness = arguments->staleness,
        .state = arguments->state,
        .save = arguments->save,
        .directory = arguments->sync_options.directory,
        .arm = arguments->arm,
        .chain = arguments->chain,
        .long_chains = arguments->long_chains,
    };
    if (arguments->arm != NULL) {
        return bench_lm_sparse(&arguments->command, &chosen);
    }
    if (arguments->rates != NULL) {
        int code = parse_rates(&arguments->command, arguments->rates, &chosen);
        return code == EXIT_DONE ? bench_lm_rates(&arguments->command, &chosen) : code;
    }
    if (arguments->kv) {
        return bench_lm_kv(&arguments->command, &chosen);
    }
    return arguments->learn ? bench_lm_learn(&arguments->command, &chosen)
                            : bench_lm(&arguments->command, &chosen);
}

static int run(void *input) {
    enum { PARAMETERS = 256000000 };
    bench_arguments *arguments = input;
    weft_command *command = &arguments->command;
    if (arguments->correction) {
        correction_bench_options chosen = {arguments->sync_options.quick, arguments->seed,
                                           (unsigned)arguments->repeat};
        return bench_correction(command, &chosen);
    }
    if (arguments->lm) {
        return run_lm(arguments);
    }
    if (arguments->sync || arguments->fleet) {
        return run_served(arguments);
    }
    if (arguments->study.given) {
        arguments->study.state = arguments->state;
        arguments->study.rate = arguments->rate;
        arguments->study.steps = arguments->steps;
        arguments->study.seed = arguments->seed;
        return bench_loco_study(command, &arguments->study);
    }
    if (arguments->loco) {
        loco_bench_options chosen = {.parameters = arguments->parameters,
                                     .learning_rate = arguments->learning_rate,
                                     .seed = arguments->seed,
                                     .rounds = (unsigned)arguments->repeat};
        return bench_loco(command, &chosen);
    }
    arguments->parameters = arguments->parameters > 0 ? arguments->parameters : PARAMETERS;
    bench_model model = {0};
    weft_trace trace = {0};
    int code;
    if (arguments->base != NULL) {
        code = bench_model_load(command, &model, arguments->base, arguments->next);
    } else {
        code =
            trace_open(command, &trace, arguments->parameters, arguments->learning_rate, arguments->seed);
        if (code == EXIT_DONE && arguments->make != NULL) {
            code = make_files(arguments, &trace);
            trace_close(&trace);
            return code;
        }
        if (code == EXIT_DONE) {
            code = bench_model_generate(command, &model, &trace);
        }
        trace_close(&trace);
    }
    if (code == EXIT_DONE) {
        code = bench_table(command, &model, (unsigned)arguments->repeat);
        bench_model_close(&model);
    }
    return code;
}

int verb_bench(int argc, char **argv) {
    bench_arguments arguments = {
        .learning_rate = 1e-6, .seed = 1, .repeat = 5, .sync_options = {.parts = SYNC_ALL}};
    return command_run(&argp, argc, argv, &arguments, run);
}
