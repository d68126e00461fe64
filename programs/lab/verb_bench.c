/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_bench.c: `weft bench`: this machine against its limits, and against what others do, in one run
 * and one table.
 */
#include "bench/sync/bench_fleet.h"

#include "../../lm/learn/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Measure diff, apply and digest beside memcpy, beside COO+zstd-1 (PULSE's layout) and beside "
    "XOR+zstd-1 (whole tensors), all in one run.\v"
    "The trace is made anew from its seed, and is the same with any number of threads. It has the tensors "
    "of a transformer of the given size: embeddings, and per layer q, k, v, o, gate, up, down and two "
    "norms.\n\n"
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
    "Speeds are counted over the model's BF16 bytes, and over 512 MiB for memcpy; x is the ratio to memcpy "
    "with as many threads. Encode is a diff as a publisher makes it: sums of the base known, those of the "
    "new state produced, the patch written to memory. Decode+apply goes from the patch's bytes to the "
    "changed weights of a private copy in one go, everything proven on the way. Live weights are brought "
    "forward in two: prepare decodes and proves and leaves them alone, commit is the pause. The baselines "
    "run on one thread and prove nothing. Each result is compared bit for bit with the new state.\n"
    "\nWith --density, the trace (64M parameters unless --params says another number) after a step at each "
    "of 15 learning rates, from 1e-8 to 1e-2: both profiles beside COO+zstd-1, XOR+zstd-1 and the new "
    "weights alone by zstd-3, on one thread. Times are the processor's, not the clock's. Between 1% and "
    "30% it says what a change more than those at 1% takes; the last line is a version from nothing. With "
    "--dtype, of weights of another type: F16, FP8 (tensors are multiplied to fill its range) or FP32, of "
    "which those change that BF16 sees change, and then, in three lines more, all. Rates are such that as "
    "many weights change as in BF16.\n"
    "\nWith --sync, a trainer's weights, a store and a worker's weights, in live memory:\n\n"
    "  publish    a step of the model to a directory, each profile; memcpy in turn with it\n"
    "  pause      commit in a worker of 256M parameters, prepared before\n"
    "  scaling    commit of 640,000 changes, 64M parameters against all of them\n"
    "  latency    8M parameters, publish to the end of commit over HTTP, version by version\n"
    "  bucketing  2,000 tensors over HTTP: one object, against one object for each tensor\n"
    "  catch-up   workers that have missed 256 versions: what they fetch\n"
    "  group      four replicas on one host, as a group and each on its own\n"
    "  parts      256M parameters: four processes that publish a part each, against one alone\n"
    "  serial     256M parameters: what of publish, prepare and commit more threads cannot share\n\n"
    "Caches are cold before publish, prepare and commit; the server is a process of its own on the "
    "loopback device; each worker is compared bit for bit with its trainer. --params N makes every model "
    "that would be larger as small as N. 1B parameters take 7 GB of memory and 2 GB of disk.\n"
    "\nWith --fleet, followers with live memory that wait on relays of one server, all on the loopback "
    "device:\n\n"
    "  fleet  every version to every follower: times, what the server sent, memory of the servers\n"
    "  relay  publish to commit of one follower, at the server and through a relay, in turn\n"
    "  ask    all at the same moment ask a fresh relay for the same object\n\n"
    "The next version is made when all have committed the one before, or after 60 seconds. Each commit's "
    "digest is compared with the trainer's, and in the end all weights in memory. All followers report, "
    "and "
    "in the end the server says how many of them it takes for alive.\n"
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
    "  fewer         times fewer than the model's BF16 bytes\n"
    "  law           changes beside the sum of |change of the FP32 weight| / ULP,\n"
    "                1 at most, of weights with the same exponent\n\n"
    "After a warm-up, 20 steps at the rate come first and do not count, because Adam's first updates are "
    "as large as the rate for every weight; a state that has learned by rewards brings its own moments.\n"
    "\nWith --kv, rollouts by each policy in turn, in half of the memory that all would need with whole "
    "caches of keys and values; sequences wait for room:\n\n"
    "  at once  sequences that fit\n"
    "  times    rollouts per second, beside those without a policy\n"
    "  KV held  tokens that queries found, of those with whole caches\n"
    "  KV peak  the most that caches took, all that a policy remembers included\n"
    "\nWith --correction, arrays of log-probabilities of 10M tokens (--quick: 1M), on one thread: weights "
    "by each preset, and the objective, beside memcpy of what goes in; the fastest of --repeat counts.\n"
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
    "the last. Speeds are counted over the FP32 bytes of the model.\n"
    "\nExamples:\n"
    "  weft bench\n"
    "  weft bench --params 1B --lr 3e-6 --repeat 3 --json\n"
    "  weft bench --density --params 64M\n"
    "  weft bench --density --dtype f8_e4m3 --plot f8.svg\n"
    "  weft bench --base step-41.safetensors --new step-42.safetensors\n"
    "  weft bench --make /tmp/trace --params 8M --steps 3\n"
    "  weft bench --sync --quick --only publish,pause\n"
    "  weft bench --fleet --followers 16 --relays 1 --versions 50\n"
    "  weft bench --fleet --followers 1000 --processes 64 --relays 4 \\\n"
    "      --versions 100 --params 200K\n"
    "  weft bench --lm --learn --seed 2\n"
    "  weft bench --lm --rates 1e-6,1e-5,1e-4 --steps 50\n"
    "  weft bench --loco --params 8M --repeat 3\n"
    "  weft bench --lm --rates 1e-6 --steps 1 --save 2M.state\n"
    "  weft bench --loco --study pulseloco --state 2M.state --rate 1e-6\n"
    "  weft bench --loco --study diloco --state 2M.state --rate 3e-5 --overlap\n"
    "  weft bench --lm --kv --repeat 3\n"
    "  weft bench --lm --sparse rkv:22:naive --steps 100 --seed 2\n" HELP_EXIT_CODES;

typedef struct bench_arguments {
    weft_command command;
    bool sync;
    bool fleet;
    bool lm;
    bool correction;
    bool loco;
    bool density;
    bool learn;
    bool kv;
    const char *study; /* --study, if it was given */
    const char *only_with_density;
    const char *only_with_study; /* an option that was given and means nothing without */
    const char *only_with_meet;
    bench_options options;
} bench_arguments;

static void parse_parameters(struct argp_state *state, const weft_option *option, char *text) {
    uint64_t *parameters = option->into;
    if (!text_parse_count(text, parameters) || *parameters < 1000) {
        argp_error(state, "--params takes a number from 1000 on, such as 256M, not '%s'", text);
    }
}

static void parse_dtype(struct argp_state *state, const weft_option *option, char *text) {
    if (!bench_dtype_parse(text, option->into)) {
        argp_error(state, "--dtype is bf16, f16, f32, f8_e4m3 or f8_e5m2, not '%s'", text);
    }
}

static void parse_parts(struct argp_state *state, const weft_option *option, char *text) {
    if (!bench_sync_parse_parts(text, option->into)) {
        argp_error(state,
                   "--only takes some of "
                   "publish,pause,scaling,latency,bucketing,catch-up,group,parts,serial, not '%s'",
                   text);
    }
}

static void parse_study(struct argp_state *state, const weft_option *option, char *text) {
    if (!train_study_find(text, option->into)) {
        argp_error(state, "--study is pulseloco, diloco, ddp, forgetful, rounded or nearest, not '%s'",
                   text);
    }
}

static void parse_rates(struct argp_state *state, const weft_option *option, char *text) {
    bench_options *options = option->into;
    char *next = text, *end = NULL;
    options->rate_count = 0;
    do {
        double rate = strtod(next, &end);
        if (end == next || (*end != ',' && *end != 0) || !(rate > 0 && rate <= 1) ||
            options->rate_count == BENCH_RATES_MAX) {
            argp_error(state, "--rates takes 1 to %d learning rates, such as 1e-6,3e-6, not '%s'",
                       BENCH_RATES_MAX, text);
        }
        options->rates[options->rate_count++] = rate;
        next = end + 1;
    } while (*end != 0);
}

static void check_lm(const bench_arguments *arguments, struct argp_state *state) {
    const bench_options *options = &arguments->options;
    bool rates = options->rate_count > 0;
    bool sparse = options->arm != NULL;
    if ((arguments->learn || rates || arguments->kv || sparse) && !arguments->lm) {
        argp_error(state, "--learn, --rates, --kv and --sparse go with --lm");
    }
    if (arguments->learn + rates + arguments->kv + sparse > 1) {
        argp_error(state, "--learn, --rates, --kv and --sparse exclude each other");
    }
    bool shaped = options->chain > 0 || options->long_chains;
    if ((options->rate > 0 && !arguments->learn && !sparse && arguments->study == NULL) ||
        (options->staleness > 0 && !arguments->learn) || (shaped && !sparse)) {
        argp_error(state, "--rate goes with --learn, --sparse and --study, --staleness with --learn, "
                          "--chain and --long with --sparse");
    }
    if (arguments->study != NULL && (!arguments->loco || options->state == NULL)) {
        argp_error(state, "--study goes with --loco and needs a --state, which --rates and --save make");
    }
    bool policy = rates || arguments->study != NULL;
    if (options->state != NULL && (!policy || options->parameters > 0 || options->save != NULL)) {
        argp_error(state,
                   "--state goes with --rates or --study, says what the model is, and needs no --save");
    }
    if (options->save != NULL && !rates) {
        argp_error(state, "--save goes with --rates");
    }
    if (arguments->lm && (arguments->sync || arguments->fleet || options->base != NULL ||
                          options->make != NULL || (options->parameters > 0 && !rates))) {
        argp_error(state, "--lm makes its own models; it goes with --learn, --rates, --kv, --sparse, "
                          "--quick, --seed, --steps and --repeat only");
    }
}

static void check_arguments(struct argp_state *state, void *input) {
    const bench_arguments *arguments = input;
    const bench_options *options = &arguments->options;
    check_lm(arguments, state);
    if (arguments->only_with_study != NULL && arguments->study == NULL) {
        argp_error(state, "--%s goes with --study WAY", arguments->only_with_study);
    }
    if ((arguments->only_with_meet != NULL) != (options->meet != NULL)) {
        argp_error(state, "--meet STORE and --rank R go together");
    }
    if ((options->base == NULL) != (options->next == NULL)) {
        argp_error(state, "--base and --new go together");
    }
    if (options->base != NULL && options->make != NULL) {
        argp_error(state, "--make writes the trace; it does not go with --base and --new");
    }
    bool lessons =
        arguments->learn || options->rate_count > 0 || options->arm != NULL || arguments->study != NULL;
    if (options->steps > 0 && options->make == NULL && !lessons) {
        argp_error(state, "--steps goes with --make DIR, --learn, --rates, --sparse or --study");
    }
    if (arguments->loco && (arguments->lm || arguments->correction || arguments->sync || arguments->fleet ||
                            options->base != NULL || options->make != NULL)) {
        argp_error(state,
                   "--loco makes its own weights; it goes with --params, --lr, --seed and --repeat only");
    }
    if (!arguments->sync && (options->parts != SYNC_ALL || options->tensors > 0)) {
        argp_error(state, "--only and --tensors go with --sync");
    }
    if (!arguments->fleet && (options->followers > 0 || options->relays > 0 || options->processes > 0)) {
        argp_error(state, "--followers, --relays and --processes go with --fleet");
    }
    bool served = arguments->sync || arguments->fleet;
    if (!served && options->versions > 0) {
        argp_error(state, "--versions goes with --sync or --fleet");
    }
    if (!served && options->rate_count == 0 && options->arm == NULL && options->directory != NULL) {
        argp_error(state, "--directory goes with --sync, --fleet, --rates or --sparse");
    }
    if (!served && !arguments->lm && !arguments->correction && options->quick) {
        argp_error(state, "--quick goes with --sync, --fleet, --lm or --correction");
    }
    if (arguments->correction && (served || arguments->lm || options->base != NULL ||
                                  options->make != NULL || options->parameters > 0)) {
        argp_error(state, "--correction goes with --quick, --seed and --repeat only");
    }
    if (served && (options->base != NULL || options->make != NULL)) {
        argp_error(state,
                   "--sync and --fleet make their own models; neither goes with --base, --new or --make");
    }
    if (arguments->density && (arguments->loco || arguments->lm || arguments->correction || served ||
                               options->base != NULL || options->make != NULL)) {
        argp_error(state, "--density makes its own weights; it goes with --params, --seed, --repeat, "
                          "--dtype and --plot only");
    }
    if ((options->plot != NULL || arguments->only_with_density != NULL) && !arguments->density) {
        argp_error(state, "--dtype and --plot go with --density");
    }
    if (arguments->sync && arguments->fleet) {
        argp_error(state, "--sync and --fleet exclude each other");
    }
}

/* ---- the run ---- */

static int make_files(weft_command *command, const bench_options *options, const weft_trace *trace) {
    unsigned steps = (unsigned)options->steps;
    int code = trace_write(command, trace, options->make, steps);
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
               options->make);
    }
    return EXIT_DONE;
}

/* Diff, apply and digest: the table, or the trace that it is made of. */
static int run_table(weft_command *command, const bench_options *options) {
    enum { PARAMETERS = 256000000 };
    bench_model model = {0};
    weft_trace trace = {0};
    int code;
    if (options->base != NULL) {
        code = bench_model_load(command, &model, options->base, options->next);
    } else {
        code = trace_open(command, &trace, options->parameters > 0 ? options->parameters : PARAMETERS,
                          options->learning_rate, options->seed);
        if (code == EXIT_DONE && options->make != NULL) {
            code = make_files(command, options, &trace);
            trace_close(&trace);
            return code;
        }
        if (code == EXIT_DONE) {
            code = bench_model_generate(command, &model, &trace);
        }
        trace_close(&trace);
    }
    if (code == EXIT_DONE) {
        code = bench_table(command, &model, options->repeat);
        bench_model_close(&model);
    }
    return code;
}

static int run(void *input) {
    bench_arguments *arguments = input;
    const bench_options *options = &arguments->options;
    int (*bench)(weft_command * command, const bench_options *options) = run_table;
    if (arguments->density) {
        bench = bench_density;
    } else if (arguments->correction) {
        bench = bench_correction;
    } else if (arguments->lm) {
        bench = options->arm != NULL      ? bench_lm_sparse
                : options->rate_count > 0 ? bench_lm_rates
                : arguments->kv           ? bench_lm_kv
                : arguments->learn        ? bench_lm_learn
                                          : bench_lm;
    } else if (arguments->sync || arguments->fleet) {
        bench = arguments->fleet ? bench_fleet : bench_sync;
    } else if (arguments->loco) {
        bench = arguments->study != NULL ? bench_loco_study : bench_loco;
    }
    return bench(&arguments->command, options);
}

int verb_bench(int argc, char **argv) {
    bench_arguments arguments = {.options = {.learning_rate = 1e-6,
                                             .seed = 1,
                                             .repeat = 5,
                                             .dtype = WEFT_DTYPE_BF16,
                                             .parts = SYNC_ALL,
                                             .trainers = 4,
                                             .local_steps = 8}};
    const weft_option options[] = {
        {"params", "N", 1,
         "Parameters of the trace's model; suffixes K, M, B (default 256M; of --sync 1B, of --fleet 8M, of "
         "--loco 64M; of --rates 2M, or 0.1M, 0.2M, 0.6M, 8M, 27M)",
         .parse = parse_parameters, .into = &arguments.options.parameters},
        {"lr", "RATE", 1, "Learning rate of the trace (default 1e-6)",
         .real = &arguments.options.learning_rate, .most = 1, .what = "a learning rate such as 1e-6"},
        {"seed", "N", 1, "Seed of the trace (default 1)", .number = &arguments.options.seed,
         .most = UINT64_MAX},
        {"repeat", "N", 1, "Runs of each measurement, of which the fastest counts (default 5)",
         .count = &arguments.options.repeat, .least = 1, .most = 1000},
        {"base", "CKPT", 2, "Measure with a real pair of checkpoints: the old one",
         .text = &arguments.options.base},
        {"new", "CKPT", 2, "… and the new one; their BF16 tensors are used",
         .text = &arguments.options.next},
        {"make", "DIR", 3,
         "Measure nothing: write the trace to DIR, as base.safetensors and new.safetensors",
         .text = &arguments.options.make},
        {"steps", "N", 3, "With --make: write N steps, as step-0.safetensors to step-N.safetensors",
         .number = &arguments.options.steps, .least = 1, .most = 100000},
        {"density", NULL, 1,
         "Measure steps of many sizes instead, from 0.01% to all of the weights changed; see below",
         .flag = &arguments.density},
        {"dtype", "TYPE", 1, "With --density: weights of bf16 (the default), f16, f32, f8_e4m3 or f8_e5m2",
         .parse = parse_dtype, .into = &arguments.options.dtype, .given = &arguments.only_with_density},
        {"plot", "FILE", 1, "With --density: draw it too, as SVG", .text = &arguments.options.plot},
        {"sync", NULL, 4, "Measure publishing and following instead, with two threads; see below",
         .flag = &arguments.sync},
        {"fleet", NULL, 4, "Measure many followers behind relays instead; see below",
         .flag = &arguments.fleet},
        {"quick", NULL, 4,
         "With --sync: 256M parameters and 100 versions; with --fleet: 8 followers, 1M and 12; with --lm: "
         "the two smallest models; with --rates: the smallest, hardly warm",
         .flag = &arguments.options.quick},
        {"only", "PARTS", 4,
         "With --sync: only some of publish,pause,scaling,latency,bucketing,catch-up,group,parts,serial",
         .parse = parse_parts, .into = &arguments.options.parts},
        {"versions", "N", 4,
         "With --sync: versions of the latency (default 500); with --fleet: versions (default 200)",
         .number = &arguments.options.versions, .least = 1, .most = SYNC_VERSIONS_MAX},
        {"tensors", "N", 4, "With --sync: tensors of the bucketing (default 2000)",
         .number = &arguments.options.tensors, .least = 1, .most = SYNC_TENSORS_MAX},
        {"directory", "DIR", 4,
         "With --sync, --fleet or --rates: where stores are made, and removed again (default: $TMPDIR or "
         "/tmp)",
         .text = &arguments.options.directory},
        {"followers", "N", 4, "With --fleet: followers (default 64)",
         .number = &arguments.options.followers, .least = 1, .most = FLEET_FOLLOWERS_MAX},
        {"relays", "N", 4, "With --fleet: relays that they are behind (default 2)",
         .number = &arguments.options.relays, .least = 1, .most = FLEET_RELAYS_MAX},
        {"processes", "N", 4,
         "With --fleet: of the followers, so many are processes, `weft follow` (default 0)",
         .number = &arguments.options.processes, .most = FLEET_PROCESSES_MAX},
        {"correction", NULL, 6,
         "Measure the correction of sampled responses instead: 10M tokens; see below",
         .flag = &arguments.correction},
        {"loco", NULL, 5, "Measure a round of PULSELoCo instead; see below", .flag = &arguments.loco},
        {"lm", NULL, 6, "Measure training and generation of the small policy instead; see below",
         .flag = &arguments.lm},
        {"learn", NULL, 6, "With --lm: one run of learning; --steps N policy steps (default 240)",
         .flag = &arguments.learn},
        {"rate", "RATE", 6,
         "With --learn, --sparse or --study: the learning rate of policy steps (default 2e-4; of --study "
         "1e-6)",
         .real = &arguments.options.rate, .most = 1, .what = "a learning rate such as 1e-6"},
        {"staleness", "N", 6,
         "With --learn: responses are sampled from the policy of N versions before (default 0)",
         .number = &arguments.options.staleness, .most = BENCH_STALENESS_MAX},
        {"rates", "LIST", 6,
         "With --lm: sparsity and bytes of --steps N policy steps (default 50) at each learning rate, such "
         "as 1e-6,3e-6",
         .parse = parse_rates, .into = &arguments.options},
        {"kv", NULL, 6,
         "With --lm: rollouts per second by KV-cache policy, within a fixed memory for keys and values",
         .flag = &arguments.kv},
        {"sparse", "ARM", 6,
         "With --lm: one run of learning from responses that a compressed cache has sampled; ARM is dense, "
         "or POLICY:BUDGET:CORRECTION such as rkv:22:tis, with options behind the budget (+prompt, "
         "+shareX, "
         "+commonX, +sinksN, +windowN, +intervalN) and the correction (+veto, -veto, +exclude, +normalise, "
         "+geometricX, +temperatureX); --directory keeps warmed-up policies",
         .text = &arguments.options.arm},
        {"chain", "N", 6,
         "With --sparse: sums of a chain (default 56); those of more than 106 are learned after some of "
         "106",
         .number = &arguments.options.chain, .least = 1, .most = LM_TASK_SIZE_MAX},
        {"long", NULL, 6,
         "With --sparse: another policy, with three layers whose heads share keys and values, and chains "
         "of 106",
         .flag = &arguments.options.long_chains},
        {"state", "FILE", 6,
         "With --rates: the policy is that of a trainer's state (default: one is warmed up); with --study: "
         "the policy that they begin with",
         .text = &arguments.options.state},
        {"save", "FILE", 6, "With --rates: leave the state of the policy that is warmed up",
         .text = &arguments.options.save},
        {0},
    };
    const weft_option study[] = {
        {"study", "WAY", 5,
         "With --loco: trainers in one process learn from the policy in --state FILE, and agree by "
         "pulseloco, diloco, ddp, forgetful (no error feedback), rounded (differences of BF16 weights) or "
         "nearest (values rounded to BF16); --rate, --steps, --seed",
         .parse = parse_study, .into = &arguments.options.way, .given = &arguments.study},
        {"trainers", "K", 5, "With --study: so many (default 4)", .count = &arguments.options.trainers,
         .least = 1, .most = 64, .given = &arguments.only_with_study},
        {"local-steps", "H", 5, "With --study: steps of a round (default 8; 1 for ddp)",
         .count = &arguments.options.local_steps, .least = 1, .most = TRAIN_LOCAL_STEPS_MAX,
         .given = &arguments.only_with_study},
        {"significant", "BITS", 5, "With --study: of the values that pulseloco sends (default 0: all)",
         .count = &arguments.options.significant, .most = 23, .given = &arguments.only_with_study},
        {"grid", "N", 5,
         "With --study: pulseloco sends multiples of 2^(1-N) BF16 steps, 1 to 8 (default 0: what is seen)",
         .count = &arguments.options.grid, .most = 8, .given = &arguments.only_with_study},
        {"overlap", NULL, 5,
         "With --study: payloads of pulseloco and diloco travel during the steps of the next round, which "
         "so begins without them",
         .flag = &arguments.options.overlap, .given = &arguments.only_with_study},
        {"meet", "STORE", 5,
         "With --study: this process is one of the trainers, and meets the others in STORE, which no study "
         "has used before, with the token of $WEFT_TOKEN; tells what rounds and waiting take",
         .text = &arguments.options.meet, .given = &arguments.only_with_study},
        {"rank", "R", 5, "With --meet: which of them, from 0", .count = &arguments.options.rank, .most = 63,
         .given = &arguments.only_with_meet},
        {0},
    };
    const weft_form form = {"", doc, {{options, NULL}, {study, NULL}}, .check = check_arguments};
    return command_run(&form, argc, argv, &arguments, run);
}
