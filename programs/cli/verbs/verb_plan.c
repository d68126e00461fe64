/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_plan.c: `weft plan`: what synchronising a model would cost a fleet, for full sync and for weft.
 */
#include "../plan/plan.h"
#include "../plan/plan_config.h"

#include <stdlib.h>
#include <string.h>

static const char doc[] =
    "Foretell what a run would send, how long versions take, and what that costs: full sync beside weft.\v"
    "The model is one that weft knows, a config.json, a checkpoint, or a number of parameters. How many "
    "weights a step "
    "changes follows from the learning rate and from the weights, with bounds that say where they come "
    "from; --density or "
    "--payload replace that by what was measured. A simulation of the protocol then runs for some "
    "versions, with the store, "
    "a tree of relays in each region, and workers that may go, come back, begin with nothing or lose a "
    "connection.\n"
    "\nA REGION is NAME:WORKERS:RATE[:DELAY], such as eu:64:1Gbit:80ms: the link that it shares, and the "
    "time to the store, "
    "one way. Utilisation is the share of time that is not waited for a version, if workers wait for each: "
    "step / (step + time to commit). Where they go on meanwhile, only the pause is lost. The table is "
    "Markdown.\n"
    "\nSpeeds of encoding, decoding and committing are those of doc/BENCHMARKS.md; doc/PLAN.md says what "
    "is assumed.\n"
    "\nExamples:\n"
    "  weft plan --model Qwen2.5-7B --rate 3e-6\n"
    "  weft plan --params 7.6B --payload 140MiB --region one:1:200Mbit\n"
    "  weft plan --model run-7/step-42.safetensors --rate 1e-6 --json\n"
    "  weft plan --params 1T --region us:5000:100Gbit --relays 4 --versions 10\n"
    "  weft plan --model Qwen3-8B --leave 0.02 --join 0.001 --faults 0.01\n" HELP_EXIT_CODES;

/* Of doc/BENCHMARKS.md, two threads: publish and prepare in bytes of the model per second, commit in
 * changes per second, memcpy in bytes per second. */
static const double PUBLISH_SPEED = 6.7e9, PREPARE_SPEED = 10.4e9, COMMIT_SPEED = 286e6,
                    COPY_SPEED = 21.2e9;
/* Weights that one process holds, at most, where nobody says how many share the model. */
static const double PROCESS_BYTES = 16e9;
static const double DAY = 86400, GOAL = 0.9;

enum { WAYS = 2, VERSIONS_MOST = 10000, WORKERS_MOST = 1000000, COMMITS_MOST = 50000000 };

typedef struct plan_arguments {
    weft_command command;
    const char *model;
    uint64_t parameters;
    double rate;
    double density;   /* 0: by the law */
    uint64_t payload; /* 0: by the density */
    const char *masters;
    uint64_t ranks;                       /* 0: by the size */
    double price_gigabyte, price_million; /* requests */
    plan_fleet fleet;
} plan_arguments;

typedef struct plan_outcome {
    plan_model model;
    plan_density density;
    uint64_t ranks;
    plan_way ways[WAYS]; /* full sync, weft */
    plan_result results[WAYS];
} plan_outcome;

/* ---- options ---- */

static void parse_parameters(struct argp_state *state, const weft_option *option, char *text) {
    uint64_t *parameters = option->into;
    if (!text_parse_count(text, parameters) || (double)*parameters < PLAN_PARAMETERS_LEAST ||
        (double)*parameters > PLAN_PARAMETERS_MOST) {
        argp_error(state, "--params takes a number from 1000 to 1000T, such as 7.6B, not '%s'", text);
    }
}

/* "1Gbit", "200Mbit": bytes per second. */
static bool read_rate(const char *text, double *rate_out) {
    static const char units[] = "kMGT";
    char *end = NULL;
    double value = strtod(text, &end), scale = 1;
    const char *unit = *end != 0 ? strchr(units, *end) : NULL;
    for (const char *c = units; unit != NULL && c <= unit; c++) {
        scale *= 1000;
    }
    end += unit != NULL;
    *rate_out = value * scale / 8;
    return end != text && strcmp(end, "bit") == 0 && value > 0 && *rate_out < 1e18;
}

static void parse_rate(struct argp_state *state, const weft_option *option, char *text) {
    if (!read_rate(text, option->into)) {
        argp_error(state, "--%s takes a rate such as 200Mbit or 10Gbit, not '%s'", option->name, text);
    }
}

static void parse_density(struct argp_state *state, const weft_option *option, char *text) {
    double *density = option->into;
    char *end = NULL;
    *density = strtod(text, &end);
    if (*end == '%') {
        *density /= 100;
        end++;
    }
    if (end == text || *end != 0 || !(*density > 0 && *density <= 1)) {
        argp_error(state, "--density takes a share of the weights such as 1%% or 0.01, not '%s'", text);
    }
}

static void parse_region(struct argp_state *state, const weft_option *option, char *text) {
    plan_fleet *fleet = option->into;
    plan_region *region = &fleet->regions[fleet->count];
    char *rest = text,
         *parts[4] = {strsep(&rest, ":"), strsep(&rest, ":"), strsep(&rest, ":"), strsep(&rest, ":")};
    if (fleet->count == PLAN_REGIONS_MAX) {
        argp_error(state, "there may be %d regions at most", PLAN_REGIONS_MAX);
    }
    *region = (plan_region){.delay = 0.001};
    if (parts[2] == NULL || rest != NULL || !text_parse_count(parts[1], &region->workers) ||
        region->workers < 1 || region->workers > WORKERS_MOST || !read_rate(parts[2], &region->rate) ||
        (parts[3] != NULL && !text_parse_seconds(parts[3], &region->delay))) {
        argp_error(state, "--region takes NAME:WORKERS:RATE[:DELAY], such as eu:64:1Gbit:80ms");
    }
    snprintf(region->name, sizeof region->name, "%s", parts[0]);
    fleet->count++;
}

static void check(struct argp_state *state, void *input) {
    plan_arguments *arguments = input;
    plan_fleet *fleet = &arguments->fleet;
    uint64_t workers = 0;
    if ((arguments->model != NULL) == (arguments->parameters > 0)) {
        argp_error(state, "give a --model or --params, and one of them");
    }
    if (fleet->count == 0) {
        fleet->regions[fleet->count++] =
            (plan_region){.name = "here", .workers = 8, .rate = 1.25e8, .delay = 0.001};
    }
    for (size_t i = 0; i < fleet->count; i++) {
        workers += fleet->regions[i].workers;
    }
    if (workers > WORKERS_MOST || workers * fleet->versions > COMMITS_MOST ||
        fleet->count * fleet->relays * fleet->versions > COMMITS_MOST) {
        argp_error(state,
                   "%llu workers, %llu --relays in each region and %llu versions are too many to simulate; "
                   "choose fewer --versions",
                   (unsigned long long)workers, (unsigned long long)fleet->relays,
                   (unsigned long long)fleet->versions);
    }
    const double shares[] = {fleet->leave, fleet->join, fleet->faults};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        if (!(shares[i] >= 0 && shares[i] < 1)) {
            argp_error(state, "--leave, --join and --faults are shares from 0 to 1");
        }
    }
    if (!(arguments->rate > 0 && arguments->rate < 1)) {
        argp_error(state, "--rate takes a learning rate, such as 1e-6");
    }
}

/* ---- the plan ---- */

static void find_density(const plan_arguments *arguments, plan_outcome *outcome) {
    plan_density *density = &outcome->density;
    plan_density_by_rate(&outcome->model, arguments->rate, strcmp(arguments->masters, "bf16") == 0,
                         density);
    if (arguments->density > 0) {
        *density = (plan_density){arguments->density, arguments->density, arguments->density, "as given"};
    }
}

static void find_ways(const plan_arguments *arguments, plan_outcome *outcome) {
    const plan_model *model = &outcome->model;
    double bytes = 2 * (double)model->parameters, density = outcome->density.value;
    uint64_t ranks = arguments->ranks > 0 ? arguments->ranks : 1 + (uint64_t)(bytes / PROCESS_BYTES);
    double share = bytes / (double)ranks;
    outcome->ranks = ranks;
    outcome->ways[0] = (plan_way){
        .whole = true, .density = 1, .payload = bytes, .pause = share / COPY_SPEED, .model = model};
    outcome->ways[1] = (plan_way){
        .density = density,
        .payload = arguments->payload > 0 ? (double)arguments->payload : plan_patch_bytes(model, density),
        .publish = share / PUBLISH_SPEED,
        .prepare = share / PREPARE_SPEED,
        .pause = density * (double)model->parameters / (double)ranks / COMMIT_SPEED,
        .model = model};
}

/* Weft's own rule: when patches add up to a snapshot. */
static uint64_t usual_cadence(const plan_way *way) {
    double versions = plan_anchor_bytes(way->model) / way->payload;
    return versions < 1 ? 1 : versions > VERSIONS_MOST ? VERSIONS_MOST : (uint64_t)versions;
}

/* ---- what is told ---- */

/* Of one way, and all that follows from it. */
typedef struct plan_figures {
    double delivered; /* share of versions that workers took, and did not pass over for want of time */
    double utilisation, needed; /* share; bits per second of a worker's link */
    double bytes_day, requests_day, cost_day;
} plan_figures;

static plan_figures find_figures(const plan_arguments *arguments, const plan_way *way,
                                 const plan_result *result) {
    double step = arguments->fleet.step, versions = DAY / step;
    double taken = (double)result->commits,
           delivered = taken > 0 ? taken / (taken + (double)result->skipped) : 1;
    plan_figures figures = {
        .delivered = delivered,
        .utilisation = step / (step + result->median),
        .needed = 8 * way->payload * GOAL / ((1 - GOAL) * step),
        .bytes_day = result->all_bytes * versions,
        .requests_day = result->all_requests * versions,
    };
    figures.cost_day = 1e-9 * figures.bytes_day * arguments->price_gigabyte +
                       1e-6 * figures.requests_day * arguments->price_million;
    return figures;
}

static const char *text_size(double bytes, char text[TEXT_SIZE]) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    size_t unit = 0;
    for (; bytes >= 1000 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        bytes /= 1000;
    }
    snprintf(text, TEXT_SIZE, "%.3g %s", bytes, units[unit]);
    return text;
}

static const char *text_rate(double bits, char text[TEXT_SIZE]) {
    snprintf(text, TEXT_SIZE, bits >= 1e9 ? "%.3g Gbit/s" : "%.3g Mbit/s",
             bits / (bits >= 1e9 ? 1e9 : 1e6));
    return text;
}

static void print_row(const char *name, const char *full, const char *ours, double times) {
    printf("| %s | %s | %s |", name, full, ours);
    if (times > 0) {
        printf(" %.3g |\n", times);
    } else {
        puts(" |");
    }
}

static void print_sizes(const char *name, double full, double ours) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    print_row(name, text_size(full, a), text_size(ours, b), full / ours);
}

static void print_times(const char *name, double full, double ours) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    print_row(name, text_seconds(full, a), text_seconds(ours, b), full / ours);
}

static void print_counts(const char *name, double full, double ours) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    print_row(name, text_count((uint64_t)(full + 0.5), a), text_count((uint64_t)(ours + 0.5), b), 0);
}

static void print_shares(const char *name, double full, double ours) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    snprintf(a, sizeof a, "%.1f%%", 100 * full);
    snprintf(b, sizeof b, "%.1f%%", 100 * ours);
    print_row(name, a, b, 0);
}

static void print_head(const plan_arguments *arguments, const plan_outcome *outcome) {
    char parameters[TEXT_SIZE], low[TEXT_SIZE], high[TEXT_SIZE], step[TEXT_SIZE];
    const plan_fleet *fleet = &arguments->fleet;
    const plan_density *density = &outcome->density;
    printf("%s: %s parameters in BF16, %llu process%s on each side; a step takes %s.\n",
           outcome->model.name, text_count(outcome->model.parameters, parameters),
           (unsigned long long)outcome->ranks, outcome->ranks == 1 ? "" : "es",
           text_seconds(fleet->step, step));
    for (size_t i = 0; i < fleet->count; i++) {
        const plan_region *region = &fleet->regions[i];
        char link[TEXT_SIZE], delay[TEXT_SIZE];
        text_print(stdout, region->name);
        printf(": %llu workers behind %s, %s away.\n", (unsigned long long)region->workers,
               text_rate(8 * region->rate, link), text_seconds(region->delay, delay));
    }
    if (arguments->payload > 0) {
        puts("A version has as many bytes as was given.");
    } else if (arguments->density > 0) {
        printf("A step changes %.2g%% of the weights, as given.\n", 100 * density->value);
    } else {
        printf("A step changes %.2g%% of the weights (%.2g%% to %.2g%%), a version is %s to %s.\nBy %s.\n",
               100 * density->value, 100 * density->low, 100 * density->high,
               text_size(plan_patch_bytes(&outcome->model, density->low), low),
               text_size(plan_patch_bytes(&outcome->model, density->high), high), density->basis);
    }
    putchar('\n');
}

static void print_text(const plan_arguments *arguments, const plan_outcome *outcome) {
    const plan_result *full = &outcome->results[0], *ours = &outcome->results[1];
    const plan_figures a = find_figures(arguments, &outcome->ways[0], full);
    const plan_figures b = find_figures(arguments, &outcome->ways[1], ours);
    char x[TEXT_SIZE], y[TEXT_SIZE];
    print_head(arguments, outcome);
    puts("| | full sync | weft | times fewer |\n|---|--:|--:|--:|");
    print_sizes("bytes of a version", outcome->ways[0].payload, outcome->ways[1].payload);
    print_sizes("the store sends, per version that workers get", full->all_bytes, ours->all_bytes);
    print_counts("requests to the store, per such version", full->all_requests, ours->all_requests);
    print_times("end of a step to commit, median", full->median, ours->median);
    print_times("99% of commits within", full->p99, ours->p99);
    print_times("pause", outcome->ways[0].pause, outcome->ways[1].pause);
    print_shares("utilisation, if workers wait for each version", a.utilisation, b.utilisation);
    print_row("link of a worker for 90% of that", text_rate(a.needed, x), text_rate(b.needed, y),
              a.needed / b.needed);
    print_shares("versions that busy workers pass over", 1 - a.delivered, 1 - b.delivered);
    print_sizes("the store sends per day, for all versions", a.bytes_day, b.bytes_day);
    snprintf(x, sizeof x, "%.2f", a.cost_day);
    snprintf(y, sizeof y, "%.2f", b.cost_day);
    print_row("cost per day, USD", x, y, b.cost_day > 0 ? a.cost_day / b.cost_day : 0);
}

static json_t *json_way(const plan_arguments *arguments, const plan_way *way, const plan_result *result) {
    const plan_figures figures = find_figures(arguments, way, result);
    json_t *json = json_object();
    json_object_set_new(json, "payload_bytes", json_real(way->payload));
    json_object_set_new(json, "store_bytes_per_version", json_real(result->store_bytes));
    json_object_set_new(json, "store_requests_per_version", json_real(result->store_requests));
    json_object_set_new(json, "worker_bytes_per_version", json_real(result->worker_bytes));
    json_object_set_new(json, "worker_requests_per_version", json_real(result->worker_requests));
    json_object_set_new(json, "commit_seconds_median", json_real(result->median));
    json_object_set_new(json, "commit_seconds_p99", json_real(result->p99));
    json_object_set_new(json, "commit_seconds_worst", json_real(result->worst));
    json_object_set_new(json, "pause_seconds", json_real(way->pause));
    json_object_set_new(json, "delivered", json_real(figures.delivered));
    json_object_set_new(json, "utilisation", json_real(figures.utilisation));
    json_object_set_new(json, "bits_per_second_for_90_percent", json_real(figures.needed));
    json_object_set_new(json, "commits", json_count(result->commits));
    json_object_set_new(json, "skipped", json_count(result->skipped));
    json_object_set_new(json, "most_behind", json_count(result->most_behind));
    json_object_set_new(json, "anchors_fetched", json_count(result->anchors));
    json_object_set_new(json, "leaps_fetched", json_count(result->leaps));
    json_object_set_new(json, "cuts", json_count(result->cuts));
    json_object_set_new(json, "relays", json_count(result->relays));
    json_object_set_new(json, "bytes_per_day", json_real(figures.bytes_day));
    json_object_set_new(json, "requests_per_day", json_real(figures.requests_day));
    json_object_set_new(json, "cost_per_day", json_real(figures.cost_day));
    return json;
}

static int print_json(plan_arguments *arguments, const plan_outcome *outcome) {
    json_t *json = json_object(), *density = json_object();
    json_object_set_new(density, "value", json_real(outcome->density.value));
    json_object_set_new(density, "low", json_real(outcome->density.low));
    json_object_set_new(density, "high", json_real(outcome->density.high));
    json_object_set_new(density, "basis", json_string(outcome->density.basis));
    json_object_set_new(json, "model", json_string(outcome->model.name));
    json_object_set_new(json, "parameters", json_count(outcome->model.parameters));
    json_object_set_new(json, "processes", json_count(outcome->ranks));
    json_object_set_new(json, "density", density);
    json_object_set_new(json, "versions", json_count(arguments->fleet.versions));
    json_object_set_new(json, "step_seconds", json_real(arguments->fleet.step));
    json_object_set_new(json, "full", json_way(arguments, &outcome->ways[0], &outcome->results[0]));
    json_object_set_new(json, "weft", json_way(arguments, &outcome->ways[1], &outcome->results[1]));
    return command_print_json(&arguments->command, stdout, json);
}

static int run(void *input) {
    plan_arguments *arguments = input;
    weft_command *command = &arguments->command;
    plan_outcome outcome = {.ranks = 0};
    int code = EXIT_DONE;
    if (arguments->model != NULL && strcmp(arguments->model, "?") == 0) {
        return plan_model_list(command);
    }
    if (arguments->model != NULL) {
        code = plan_model_open(command, arguments->model, &outcome.model);
    } else {
        plan_model_count(&outcome.model, arguments->parameters);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    find_density(arguments, &outcome);
    find_ways(arguments, &outcome);
    if (arguments->fleet.anchor_every == 0) {
        arguments->fleet.anchor_every = usual_cadence(&outcome.ways[1]);
    }
    for (size_t i = 0; i < WAYS && code == EXIT_DONE; i++) {
        code = plan_simulate(command, &arguments->fleet, &outcome.ways[i], &outcome.results[i]);
    }
    if (code == EXIT_DONE && command->json) {
        return print_json(arguments, &outcome);
    }
    if (code == EXIT_DONE) {
        print_text(arguments, &outcome);
    }
    return code;
}

int verb_plan(int argc, char **argv) {
    plan_arguments arguments = {
        .rate = 1e-6,
        .masters = "fp32",
        .price_gigabyte = 0.09,
        .price_million = 0.4,
        .fleet = {.uplink = 1.25e9,
                  .local = 1.25e9,
                  .relays = 1,
                  .fan_out = 64,
                  .versions = 40,
                  .step = 50,
                  .away = 16,
                  .seed = 1},
    };
    plan_fleet *fleet = &arguments.fleet;
    const weft_option options[] = {
        {"model", "MODEL", 1,
         "A model that weft knows (weft plan --model '?' lists them), a config.json, or a checkpoint",
         .text = &arguments.model},
        {"params", "N", 1, "Or so many parameters: 7.6B, 1T", .parse = parse_parameters,
         .into = &arguments.parameters},
        {"rate", "R", 1, "Learning rate (default: 1e-6)", .real = &arguments.rate},
        {"masters", "TYPE", 1, "fp32 (default) or bf16: what the optimizer keeps; bf16 loses small steps",
         .text = &arguments.masters, .words = "fp32|bf16"},
        {"density", "SHARE", 1, "So many weights change in a step, such as 1%; instead of --rate",
         .parse = parse_density, .into = &arguments.density},
        {"payload", "SIZE", 1, "So many bytes has a version; instead of what follows from the density",
         .bytes = &arguments.payload},
        {"ranks", "N", 1, "Processes that share the model, on each side (default: one for every 16 GB)",
         .number = &arguments.ranks, .least = 1, .most = 1000000},
        {"step-time", "TIME", 2, "From one version to the next (default: 50s)", .seconds = &fleet->step},
        {"region", "REGION", 2,
         "NAME:WORKERS:RATE[:DELAY]; may be given several times (default: here:8:1Gbit:1ms)",
         .parse = parse_region, .into = fleet},
        {"uplink", "RATE", 2, "What the store can send, to all regions together (default: 10Gbit)",
         .parse = parse_rate, .into = &fleet->uplink},
        {"local", "RATE", 2, "Of a relay to its readers, and of a reader (default: 10Gbit)",
         .parse = parse_rate, .into = &fleet->local},
        {"relays", "N", 2, "Relays of each region that read from the store (default: 1); 0: workers do",
         .number = &fleet->relays, .most = 10000},
        {"fan-out", "N", 2, "Readers of a relay, at most; more make another tier (default: 64)",
         .number = &fleet->fan_out, .least = 2, .most = 100000},
        {"anchor-every", "N", 2, "Versions between snapshots (default: when patches add up to one)",
         .number = &fleet->anchor_every, .least = 1, .most = VERSIONS_MOST},
        {"leave", "SHARE", 3, "Workers that go away at a version (default: 0)", .real = &fleet->leave},
        {"away", "N", 3, "Versions for which they are away (default: 16)", .number = &fleet->away,
         .least = 1, .most = VERSIONS_MOST},
        {"join", "SHARE", 3, "Workers that are replaced by new ones at a version (default: 0)",
         .real = &fleet->join},
        {"faults", "SHARE", 3, "Transfers that are cut once (default: 0)", .real = &fleet->faults},
        {"versions", "N", 3, "Versions to simulate (default: 40)", .number = &fleet->versions, .least = 1,
         .most = VERSIONS_MOST},
        {"seed", "N", 3, "All random numbers follow from it (default: 1)", .number = &fleet->seed,
         .most = INT32_MAX},
        {"price-gb", "P", 4, "Of a gigabyte that the store sends (default: 0.09)",
         .real = &arguments.price_gigabyte},
        {"price-requests", "P", 4, "Of a million requests (default: 0.4)",
         .real = &arguments.price_million},
        {0},
    };
    const weft_form form = {"", doc, {{options, NULL}}, .check = check};
    return command_run(&form, argc, argv, &arguments, run);
}
