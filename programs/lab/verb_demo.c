/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_demo.c: `weft demo`: a trainer and its workers as processes over a store that is a directory of the
 * demo's own, shown while they run; then a summary and a report. Nothing else is left, however it ends.
 */
#include "demo/demo.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LEAST_STEPS = 2, LARGE_LEAST = 100000, STEPS = 280, QUICK_STEPS = 40 };
static const uint64_t LARGE = 256000000, QUICK_LARGE = 4000000;

static const char doc[] =
    "Watch a small policy learn by reinforcement while its workers follow it by patches.\v"
    "Starts a trainer and rollout workers, as weft train does, over a store that is a directory. The "
    "policy learns chained sums: after each step the trainer publishes what changed of its BF16 weights, "
    "and the workers take it over, bit for bit, and answer the next prompts. Then one step of a model of "
    "real size, which weft bench's generator makes, is published, followed and compared. Meanwhile a page "
    "shows it in a browser, at an address that is printed. At the end stand a summary and a report, one "
    "HTML file that needs nothing else; the rest is removed. Ctrl-C ends it the same way.\n"
    "\nThe model of real size takes 2 GiB of memory and 0.5 GiB in TMPDIR; --large 64M takes a quarter, "
    "and --large 0 leaves it out.\n"
    "\nThe warmed-up policy that it begins with is kept in ${XDG_CACHE_HOME:-~/.cache}/weft/train, for the "
    "next time.\n"
    "\nExamples:\n"
    "  weft demo\n"
    "  weft demo --seed 3 --output seed-3.html\n"
    "  weft demo --quick --json | jq .summary.bytes\n"
    "  weft demo --sync full --output full.html\n" HELP_EXIT_CODES;

typedef struct demo_arguments {
    weft_command command;
    uint64_t seed;
    uint64_t steps; /* 0: the trainer's default */
    uint64_t workers;
    uint64_t staleness;
    const char *sync;
    uint64_t large; /* parameters of the model of real size; 0: none; UINT64_MAX: the usual */
    bool quick;
    const char *output;
    const char *keep;
    const char *report;
    char typed[256]; /* the command line */
} demo_arguments;

typedef struct demo_run {
    demo_arguments *arguments;
    weft_command *command;
    char *directory;
    bool removes;       /* the directory, at the end */
    sync_bench bench;   /* what the server is started with */
    sync_server server; /* of the page */
    demo_processes processes;
    demo_tail tail;
    demo_show show;
    json_t *steps;
    json_t *settings; /* NULL: not known yet */
    json_t *large;    /* null: there was none */
} demo_run;

/* ---- arguments ---- */

static void parse_large(struct argp_state *state, const weft_option *option, char *text) {
    uint64_t *parameters = option->into;
    bool none = strcmp(text, "0") == 0;
    *parameters = 0;
    if (!none && (!text_parse_count(text, parameters) || *parameters < LARGE_LEAST)) {
        argp_error(state, "--large takes 0 or a number from %d on, such as 256M, not '%s'", LARGE_LEAST,
                   text);
    }
}

/* ---- the processes ---- */

static char *path_in(demo_run *run, const char *name) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", run->directory, name) < 0) {
        command_error(run->command, EXIT_FAILED, "no memory");
        return NULL;
    }
    return path;
}

typedef struct argument_list {
    const char *items[DEMO_ARGUMENTS_MAX];
    size_t count;
    char numbers[4][TEXT_SIZE];
    size_t number_count;
} argument_list;

static void add(argument_list *list, const char *item) {
    list->items[list->count++] = item;
}

static void add_number(argument_list *list, const char *option, uint64_t value) {
    char *text = list->numbers[list->number_count++];
    snprintf(text, TEXT_SIZE, "%llu", (unsigned long long)value);
    add(list, option);
    add(list, text);
}

/* Chains of sums that are short enough to be learned in minutes. */
static void add_task(argument_list *list, const demo_arguments *arguments) {
    static const char *const both[] = {"--chain-steps",    "10",  "--chain-period", "4",
                                       "--warmup-success", "0.5", "--evaluate",     "0",
                                       "--prompts",        "16"};
    /* A policy that is large enough to learn at a rate at which few weights change: training-lab.md */
    static const char *const whole[] = {"--model",       "2M", "--rate",    "9e-6",
                                        "--rate-warmup", "20", "--updates", "1"};
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        add(list, both[i]);
    }
    for (size_t i = 0; i < sizeof whole / sizeof whole[0] && !arguments->quick; i++) {
        add(list, whole[i]);
    }
    add_number(list, "--steps",
               arguments->steps > 0 ? arguments->steps
               : arguments->quick   ? QUICK_STEPS
                                    : STEPS);
}

static int start_trainer(demo_run *run, const char *store) {
    const demo_arguments *arguments = run->arguments;
    argument_list list = {.count = 0};
    add(&list, "train");
    add(&list, store);
    add(&list, "--role");
    add(&list, "trainer");
    add(&list, "--output");
    add(&list, run->directory);
    add_number(&list, "--seed", arguments->seed);
    add_number(&list, "--staleness", arguments->staleness);
    add(&list, "--sync");
    add(&list, arguments->sync);
    add_task(&list, arguments);
    return demo_process_start(&run->processes, run->directory, "the trainer", list.items);
}

static int start_worker(demo_run *run, const char *store, uint64_t place) {
    char name[TEXT_SIZE], called[TEXT_SIZE];
    snprintf(name, sizeof name, "worker-%llu", (unsigned long long)place);
    snprintf(called, sizeof called, "worker %llu", (unsigned long long)place);
    argument_list list = {.count = 0};
    add(&list, "train");
    add(&list, store);
    add(&list, "--role");
    add(&list, "rollout");
    add(&list, "--name");
    add(&list, name);
    return demo_process_start(&run->processes, run->directory, called, list.items);
}

/* ---- while they run ---- */

/* What the run is, once its trainer has told. That it has not is no failure. */
static void read_settings(demo_run *run) {
    char text[TRAIN_RUN_MAX];
    char *store = path_in(run, "store");
    weft_context *context = NULL;
    weft_store *opened = NULL;
    const weft_context_options alone = {.size = sizeof alone, .threads = 1};
    const weft_store_get_request get = {
        .size = sizeof get, .key = TRAIN_RUN_KEY, .length = sizeof text, .buffer = text};
    weft_store_get_result result = {.size = sizeof result};
    if (store != NULL && weft_context_create(&alone, &context) == WEFT_OK &&
        weft_store_open(context, store, NULL, &opened) == WEFT_OK &&
        weft_store_get(context, opened, &get, &result) == WEFT_OK &&
        training_run_parse(context, TRAIN_RUN_KEY, text, result.received, &run->settings) == WEFT_OK) {
        run->show.total = (uint64_t)training_number(run->settings, NULL, "steps", 0);
    }
    weft_store_close(opened);
    weft_context_destroy(context);
    free(store);
}

/* What another program's run is, which keeps none in its store: run.json beside its metrics. */
static void read_told_settings(demo_run *run) {
    char text[TRAIN_RUN_MAX];
    char *path = path_in(run, "run.json");
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    size_t size = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    weft_context *context = NULL;
    const weft_context_options alone = {.size = sizeof alone, .threads = 1};
    if (size > 0 && weft_context_create(&alone, &context) == WEFT_OK &&
        training_run_parse(context, "run.json", text, size, &run->settings) != WEFT_OK) {
        command_note(run->command, "%s is not shown: %s", path, weft_context_error(context));
    }
    weft_context_destroy(context);
    if (file != NULL) {
        fclose(file);
    }
    free(path);
}

static int look(demo_run *run, bool *finished_out) {
    char talk[512];
    bool finished = false;
    /* who has ended is looked at first: then all that it wrote is there to read */
    int code = demo_processes_check(&run->processes, &finished);
    if (code == EXIT_DONE) {
        code = demo_tail_read(&run->tail, run->steps);
    }
    if (run->settings == NULL) {
        read_settings(run);
    }
    demo_show_update(&run->show, run->steps, demo_process_talk(&run->processes.list[0], talk, sizeof talk));
    *finished_out = finished;
    return code;
}

static int watch(demo_run *run) {
    bool finished = false;
    int code = EXIT_DONE;
    while (code == EXIT_DONE && !finished && command_interrupted() == EXIT_DONE) {
        code = look(run, &finished);
        if (!finished) {
            command_sleep(0.05);
        }
    }
    return code != EXIT_DONE ? code : command_interrupted();
}

/* ---- at the end ---- */

/* From here on a second Ctrl-C must not keep the rest from being cleared away, which takes seconds at most.
 */
static void hold_signals(void) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
}

static int measure_large(demo_run *run) {
    char parameters[TEXT_SIZE];
    const demo_arguments *arguments = run->arguments;
    uint64_t large = arguments->large != UINT64_MAX ? arguments->large
                     : arguments->quick             ? QUICK_LARGE
                                                    : LARGE;
    if (large == 0) {
        return EXIT_DONE;
    }
    command_note(run->command, "one step of a model of %s parameters …", text_count(large, parameters));
    return demo_large_measure(run->command, run->directory, large, &run->large);
}

static int print_results(demo_run *run, const json_t *summary) {
    if (!run->command->json) {
        demo_summary_print(summary, run->large);
        return EXIT_DONE;
    }
    json_t *json = json_object();
    json_object_set(json, "run", run->settings);
    json_object_set(json, "summary", (json_t *)summary);
    json_object_set(json, "large", run->large);
    json_object_set_new(json, "report", json_string(run->arguments->output));
    return command_print_json(run->command, stdout, json);
}

/* Of whatever was done, if that is enough to show. */
static int tell(demo_run *run) {
    const char *output = run->arguments->output;
    if (json_array_size(run->steps) < LEAST_STEPS) {
        return EXIT_DONE;
    }
    if (run->settings == NULL) {
        run->settings = json_object();
    }
    json_t *summary = demo_summary_make(run->steps);
    const demo_report report = {.command = run->arguments->typed,
                                .interrupted = command_interrupted() != EXIT_DONE,
                                .run = run->settings,
                                .steps = run->steps,
                                .summary = summary,
                                .large = run->large};
    int code = demo_report_write(run->command, output, &report);
    if (code == EXIT_DONE) {
        code = print_results(run, summary);
    }
    if (code == EXIT_DONE) {
        command_note(run->command, "report: %s", output);
    }
    json_decref(summary);
    return code;
}

/* ---- life ---- */

static int open_directory(demo_run *run) {
    const char *keep = run->arguments->keep;
    if (keep == NULL) {
        run->removes = true;
        return scratch_open(run->command, NULL, "weft-demo", &run->directory);
    }
    if (mkdir(keep, 0777) != 0) {
        return command_error(run->command, EXIT_FAILED, "cannot make %s: %s", keep, strerror(errno));
    }
    run->directory = strdup(keep);
    return run->directory != NULL ? EXIT_DONE : command_error(run->command, EXIT_FAILED, "no memory");
}

/* That the report cannot be written shall not come out after minutes. */
static int probe_output(demo_run *run) {
    weft_output output;
    int code = output_open(run->command, &output, run->arguments->output, false);
    if (code == EXIT_DONE) {
        output_close(&output);
    }
    return code;
}

static int open_run(demo_run *run, demo_arguments *arguments, char **metrics_out) {
    *run = (demo_run){.arguments = arguments, .command = &arguments->command};
    run->processes.command = run->command;
    run->large = json_null();
    run->steps = json_array();
    demo_show_open(&run->show, run->command);
    if (arguments->report != NULL) {
        run->directory = strdup(arguments->report);
    } else {
        int code = probe_output(run);
        code = code == EXIT_DONE ? open_directory(run) : code;
        if (code != EXIT_DONE) {
            return code;
        }
    }
    run->bench = (sync_bench){.command = run->command, .directory = run->directory};
    *metrics_out = path_in(run, "metrics.jsonl");
    return *metrics_out != NULL ? demo_tail_open(run->command, *metrics_out, &run->tail) : EXIT_FAILED;
}

static void close_run(demo_run *run) {
    sync_server_stop(&run->server);
    demo_processes_close(&run->processes);
    demo_tail_close(&run->tail);
    json_decref(run->steps);
    json_decref(run->settings);
    json_decref(run->large);
    if (run->removes) {
        scratch_close(run->directory);
    } else {
        free(run->directory);
    }
}

static int train(demo_run *run) {
    char *store = path_in(run, "store");
    int code = store != NULL ? demo_page_open(&run->bench, store, &run->server) : EXIT_FAILED;
    if (code == EXIT_DONE) {
        code = start_trainer(run, store);
    }
    for (uint64_t i = 1; i <= run->arguments->workers && code == EXIT_DONE; i++) {
        code = start_worker(run, store, i);
    }
    free(store);
    if (code == EXIT_DONE) {
        code = watch(run);
    }
    demo_show_close(&run->show, run->steps);
    if (code == EXIT_DONE) {
        code = measure_large(run);
    }
    if (code != EXIT_DONE) {
        hold_signals();
    }
    demo_processes_end(&run->processes);
    bool worth = code == EXIT_DONE || code == command_interrupted();
    int told = worth ? tell(run) : EXIT_DONE;
    if (command_interrupted() != EXIT_DONE) {
        command_error(run->command, EXIT_DONE, "interrupted after %zu steps", json_array_size(run->steps));
    }
    return code != EXIT_DONE ? code : told;
}

/* Of a run that is over. */
static int retell(demo_run *run) {
    int code = demo_tail_read(&run->tail, run->steps);
    read_settings(run);
    if (run->settings == NULL) {
        read_told_settings(run);
    }
    if (code == EXIT_DONE && json_array_size(run->steps) < LEAST_STEPS) {
        code = command_error(run->command, EXIT_FAILED, "%s tells of %zu steps; a report needs at least %d",
                             run->tail.path, json_array_size(run->steps), LEAST_STEPS);
    }
    return code == EXIT_DONE ? tell(run) : code;
}

static int run_demo(void *input) {
    demo_arguments *arguments = input;
    demo_run run;
    char *metrics = NULL;
    command_handle_hangup();
    int code = open_run(&run, arguments, &metrics);
    if (code == EXIT_DONE) {
        code = arguments->report != NULL ? retell(&run) : train(&run);
    }
    close_run(&run);
    free(metrics);
    return code;
}

static void note_command(demo_arguments *arguments, int argc, char **argv) {
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof arguments->typed; i++) {
        int added = snprintf(arguments->typed + used, sizeof arguments->typed - used, "%s%s",
                             i > 0 ? " " : "", argv[i]);
        used += added > 0 ? (size_t)added : 0;
    }
}

int verb_demo(int argc, char **argv) {
    demo_arguments arguments = {.seed = 1,
                                .workers = 2,
                                .staleness = 1,
                                .sync = "patch",
                                .large = UINT64_MAX,
                                .output = "weft-demo.html"};
    note_command(&arguments, argc, argv);
    const weft_option options[] = {
        {"seed", "N", 1, "All random numbers follow from it (default: 1)", .number = &arguments.seed,
         .most = INT32_MAX},
        {"steps", "N", 1, "Steps of the trainer (default: 280)", .number = &arguments.steps,
         .least = LEAST_STEPS, .most = TRAINING_STEPS_MAX},
        {"workers", "N", 1, "Rollout workers, 1 to 16 (default: 2)", .number = &arguments.workers,
         .least = 1, .most = DEMO_WORKERS_MAX},
        {"staleness", "N", 1,
         "Steps that the weights of an answer may be behind (default: 1); 0: strictly in turn",
         .number = &arguments.staleness, .most = 64},
        {"sync", "HOW", 1, "patch (default): send what changed; full: send all weights, to compare",
         .text = &arguments.sync, .words = "patch|full"},
        {"large", "N", 1, "Parameters of the model of real size (default: 256M; 0: none)",
         .parse = parse_large, .into = &arguments.large},
        {"quick", NULL, 1,
         "A tiny policy, few steps and a small model: some twenty seconds, and little learning",
         .flag = &arguments.quick},
        {"output", "FILE", 2, "The report (default: weft-demo.html)", .text = &arguments.output},
        {"keep", "DIR", 2, "Leave the run in DIR, which must not exist: store, state, metrics, logs",
         .text = &arguments.keep},
        {"report", "DIR", 2,
         "Train nothing: make the report of the metrics.jsonl in DIR, which a trainer has left there, with "
         "the "
         "settings of its store or of run.json",
         .text = &arguments.report},
        {0},
    };
    const weft_form form = {.arguments = "", .doc = doc, .sets = {{options, NULL}}};
    return command_run(&form, argc, argv, &arguments, run_demo);
}
