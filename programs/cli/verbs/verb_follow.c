/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_follow.c: `weft follow STORE OUT`, and `weft follow STORE --group NAME` for a process that leads a
 * group.
 *
 * Follows for ever. What may heal (a network that is down, a store that is empty or damaged, a full disk)
 * is told once and tried again; what cannot (a wrong key, another run, a foreign file) ends it.
 */
#include "../../base/notify.h"
#include "../convert/convert.h"
#include "../metrics.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PHASES = WEFT_SYNC_COMMIT + 1 };

static const char doc[] =
    "Keep OUT at the newest version of the run in STORE, until interrupted. Prints a line for each version "
    "that was put in place; with --json, an object per line.\v" HELP_STORE
    "OUT is a safetensors file or a directory; it need not exist. It is whole at any instant, at one "
    "version or another, and locked against other writers. A file that somebody has mapped changes under "
    "their eyes: let them read it in CMD.\n"
    "\nA follower outlives outages: a store that is not there, not reached, empty or damaged is reported "
    "once on stderr and tried again, at growing intervals of up to ten seconds. It ends only for what "
    "waiting cannot heal, such as a refused token, a wrong signature, another run, or an OUT that is not "
    "ours. One that fell behind takes the cheapest route to the newest version, and may skip others.\n"
    "\nCMD finds WEFT_VERSION, WEFT_DIGEST, WEFT_OUT, WEFT_STORE and WEFT_LABEL_<KEY> in its environment "
    "(the key in capitals, everything but letters and digits as '_'). It is also run at the start, if OUT "
    "is already at the newest version. While it runs, OUT does not change. The store's credentials are not "
    "passed to it: WEFT_TOKEN, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, "
    "AWS_SECURITY_TOKEN and AWS_CONTAINER_AUTHORIZATION_TOKEN; a CMD that needs them takes them from "
    "elsewhere, such as a file.\n"
    "\nA follower puts a report into the store, a small object, followers/NAME, which weft fleet and the "
    "status of weft serve show. A store that refuses it is not asked again.\n"
    "\nThe leader of a group fetches and decodes each version once, into a copy of the model in shared "
    "memory. The ranks, processes that call weft_member_open, load their weights from there, and commit a "
    "version when all of them have prepared it, or none does. An aborted version is reported on stderr, "
    "with the rank and the reason, and offered again. Ranks and leader may be restarted at any time. What "
    "they share stays until somebody removes the directory, so that the next leader has nothing to "
    "fetch.\n"
    "\nSTORE may be the deltas of another system, as slime:/updates; see weft convert. OUT is then brought "
    "forward "
    "from a checkpoint that is there, CMD finds no labels, and there are no reports.\n" HELP_SETTINGS(
        "follow", "FOLLOW") HELP_TRUST
    "\nExamples:\n"
    "  weft follow /srv/run-7 worker.safetensors\n"
    "  weft follow https://store.example/run-7 model/ --trust run-7.key.pub \\\n"
    "      --exec 'curl -fsS -X POST http://127.0.0.1:8000/reload'\n"
    "  weft follow /srv/run-7 worker.safetensors --json | jq .lag_seconds\n"
    "  weft follow /srv/run-7 worker.safetensors --until 100\n"
    "  weft follow https://store.example/run-7 --group engine-0 --members 8\n"
    "  weft follow --config /etc/weft/follow/run-7.toml\n"
    "\nExit codes: 0 version N was reached, 1 failed, 2 wrong usage, 3 damaged or not what was promised, 4 "
    "the store refused, 130 or 143 interrupted.\n";

typedef struct follow_arguments {
    weft_command command;
    weft_remote remote;
    const char *paths[2]; /* STORE and OUT */
    const char *exec;
    bool exec_fatal;
    uint64_t until;
    uint64_t max_failures;
    double poll_seconds;
    bool replace;
    bool durable;
    bool assume_base;
    const char *name; /* NULL: one is made up */
    bool no_report;
    double report_seconds;
    char *group; /* the directory; NULL: OUT is kept up to date */
    uint64_t members;
    weft_metrics metrics;
} follow_arguments;

typedef struct follower {
    follow_arguments *arguments;
    weft_command *command;
    weft_subscriber *subscriber; /* NULL while OUT could not be opened */
    weft_group *group;           /* NULL while the lead could not be taken */
    foreign_follower foreign;    /* of the deltas of another system, instead; its place is NULL if not */
    uint64_t announced;          /* the version that CMD was last run for */
    bool found;                  /* what OUT held at the start was looked at */
    double seconds[PHASES];      /* since the last line */
    uint64_t fetched;            /* at the last line */
    uint64_t requests;
    uint64_t anchors;
    weft_patience patience;
    bool silence; /* told */
    /* for the metrics, since the start */
    double total_seconds[PHASES];
    double lag;        /* of the last version, when it was put in place */
    double success_at; /* when the store was last found to be in order; 0: not yet */
    uint64_t failures;
    uint64_t exec_failures;
} follower;

/* ---- arguments ---- */

static void parse_group(struct argp_state *state, const weft_option *option, char *name) {
    const char *prefix = strchr(name, '/') != NULL ? "" : "/dev/shm/weft-";
    if (*name == 0 || asprintf((char **)option->into, "%s%s", prefix, name) < 0) {
        argp_error(state, "--group takes a name or a path");
    }
}

static void check_arguments(struct argp_state *state, void *input) {
    const follow_arguments *arguments = input;
    bool leads = arguments->group != NULL;
    if (!leads && state->arg_num != 2) {
        argp_error(state, "give the store, and the checkpoint to keep up to date");
    }
    if (leads && state->arg_num != 1) {
        argp_error(state, "give the store alone; what --group leads needs no OUT");
    }
    if (leads != (arguments->members > 0)) {
        argp_error(state, "--group and --members belong together");
    }
    if (leads && (arguments->exec != NULL || arguments->replace || arguments->durable)) {
        argp_error(state, "--exec, --replace and --durable are about OUT, which a group has not");
    }
}

/* ---- the environment of CMD ---- */

/* It is put together on the side: other threads read ours at any time, and nothing may be changed in there
 * once they run. */
typedef struct environment {
    char **items; /* "NAME=VALUE", ended by NULL */
    size_t count;
    bool failed; /* no memory; it sticks */
} environment;

static const char *const secrets[] = {
    "WEFT_TOKEN",        "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "NOTIFY_SOCKET",     "WATCHDOG_USEC",      "WATCHDOG_PID",
};
static const char LABELS[] = "WEFT_LABEL_";

static bool has_name(const char *item, const char *name, size_t length) {
    return strncmp(item, name, length) == 0 && item[length] == '=';
}

static bool is_inherited(const char *item) {
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        if (has_name(item, secrets[i], strlen(secrets[i]))) {
            return false;
        }
    }
    return strncmp(item, LABELS, sizeof LABELS - 1) != 0;
}

/* Takes the item. */
static void environment_add(environment *environment, char *item) {
    char **items = realloc(environment->items, (environment->count + 2) * sizeof *items);
    if (items != NULL) {
        environment->items = items;
    }
    if (items == NULL || item == NULL) {
        environment->failed = true;
        free(item);
        return;
    }
    items[environment->count++] = item;
    items[environment->count] = NULL;
}

/* What we were given, without what is ours to know: tokens and keys of the store. Labels that somebody else
 * has set are left out too. */
static void environment_inherit(environment *environment) {
    for (char **item = environ; item != NULL && *item != NULL; item++) {
        if (is_inherited(*item)) {
            environment_add(environment, strdup(*item));
        }
    }
}

/* The last value of a name counts. */
static void environment_set(environment *environment, const char *name, const char *value) {
    size_t length = strlen(name);
    char *item = NULL;
    if (asprintf(&item, "%s=%s", name, value) < 0) {
        item = NULL;
    }
    for (size_t i = 0; i < environment->count && item != NULL; i++) {
        if (has_name(environment->items[i], name, length)) {
            free(environment->items[i]);
            environment->items[i] = item;
            return;
        }
    }
    environment_add(environment, item);
}

static void environment_close(environment *environment) {
    for (size_t i = 0; i < environment->count; i++) {
        free(environment->items[i]);
    }
    free(environment->items);
}

/* ---- CMD ---- */

/* "WEFT_LABEL_STEP" of "step". The caller frees it. */
static char *label_variable(const char *key) {
    char *name = NULL;
    if (asprintf(&name, "WEFT_LABEL_%s", key) < 0) {
        return NULL;
    }
    for (char *c = name + strlen("WEFT_LABEL_"); *c != 0; c++) {
        if (*c >= 'a' && *c <= 'z') {
            *c = (char)(*c - 'a' + 'A');
        } else if (!((*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9'))) {
            *c = '_';
        }
    }
    return name;
}

static void set_labels(environment *environment, const char *const *labels) {
    for (size_t i = 0; labels[i] != NULL; i += 2) {
        char *name = label_variable(labels[i]);
        if (name != NULL) {
            environment_set(environment, name, labels[i + 1]);
        } else {
            environment->failed = true;
        }
        free(name);
    }
}

static void make_environment(const follower *f, const weft_subscriber_info *info,
                             environment *environment) {
    char version[TEXT_SIZE], digest[WEFT_DIGEST_TEXT];
    snprintf(version, sizeof version, "%llu", (unsigned long long)info->version);
    weft_digest_format(&info->digest, digest);
    environment_inherit(environment);
    environment_set(environment, "WEFT_VERSION", version);
    environment_set(environment, "WEFT_DIGEST", digest);
    environment_set(environment, "WEFT_OUT", f->arguments->paths[1]);
    if (f->foreign.place != NULL) {
        environment_set(environment, "WEFT_STORE", f->foreign.place);
        return;
    }
    environment_set(environment, "WEFT_STORE", weft_store_url(f->arguments->remote.store));
    set_labels(environment, weft_subscriber_labels(f->subscriber));
}

/* CMD's stdout is not ours, whose lines others read. */
static int spawn_shell(const char *text, const environment *environment, pid_t *pid_out) {
    static char shell[] = "sh", option[] = "-c";
    char *arguments[] = {shell, option, (char *)text, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawnattr_init(&attributes);
    if (error != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return error;
    }
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (error == 0) {
        error = posix_spawn(pid_out, "/bin/sh", &actions, &attributes, arguments, environment->items);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Ctrl-C reaches CMD from the terminal; a signal that was sent to us alone is passed on. It may come at any
 * time, also between looking for it and going to sleep: nothing sleeps for longer than a moment. */
static int wait_for(pid_t child) {
    enum { MOMENT = 100 };
    struct pollfd end = {.fd = pidfd_open(child, 0), .events = POLLIN};
    bool passed = false;
    int state = 0;
    for (;;) {
        pid_t ended = waitpid(child, &state, WNOHANG);
        if (ended == child || (ended < 0 && errno != EINTR)) {
            break;
        }
        int interrupted = command_interrupted();
        if (interrupted != EXIT_DONE && !passed) {
            kill(child, interrupted - 128);
            passed = true;
        }
        notify_alive();
        (void)poll(&end, 1, MOMENT);
    }
    if (end.fd >= 0) {
        close(end.fd);
    }
    return state;
}

static int report_exec(follower *f, uint64_t version, int state) {
    char how[TEXT_SIZE];
    if (WIFSIGNALED(state)) {
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(state));
    } else {
        snprintf(how, sizeof how, "gave exit code %d", WEXITSTATUS(state));
    }
    bool fatal = f->arguments->exec_fatal;
    f->exec_failures++;
    command_error(f->command, EXIT_FAILED, "the command of --exec %s for version %llu%s", how,
                  (unsigned long long)version, fatal ? "" : "; following on");
    return fatal ? EXIT_FAILED : EXIT_DONE;
}

static int run_exec(follower *f, const weft_subscriber_info *info) {
    pid_t child;
    environment environment = {0};
    progress_clear(&f->command->progress);
    fflush(stdout);
    make_environment(f, info, &environment);
    int error = environment.failed ? ENOMEM : spawn_shell(f->arguments->exec, &environment, &child);
    int state = error == 0 ? wait_for(child) : 0;
    environment_close(&environment);
    if (error != 0) {
        command_error(f->command, EXIT_FAILED, "cannot run the command of --exec: %s", strerror(error));
        return f->arguments->exec_fatal ? EXIT_FAILED : EXIT_DONE;
    }
    if (command_interrupted() != EXIT_DONE) {
        return command_interrupted();
    }
    return state != 0 ? report_exec(f, info->version, state) : EXIT_DONE;
}

/* ---- a line per version ---- */

static void on_phase(void *opaque, weft_sync_phase phase, uint64_t version, double seconds,
                     uint64_t bytes) {
    follower *f = opaque;
    f->seconds[phase] += seconds;
    f->total_seconds[phase] += seconds;
    command_debug(f->command, "version %llu: %s took %.6f s, %llu bytes", (unsigned long long)version,
                  weft_sync_phase_name(phase), seconds, (unsigned long long)bytes);
}

/* By two clocks, on two machines: it may be a little below zero. */
static double lag_seconds(const weft_subscriber_info *info) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - 1e-3 * (double)info->milliseconds;
}

static int print_json(follower *f, const weft_subscriber_info *info) {
    json_t *json = json_object();
    json_object_set_new(json, "version", json_count(info->version));
    json_object_set_new(json, "digest", json_digest(&info->digest));
    json_object_set_new(json, "newest", json_count(info->newest));
    json_object_set_new(json, "epoch", json_count(info->epoch));
    json_object_set_new(json, "labels", remote_labels(weft_subscriber_labels(f->subscriber)));
    json_object_set_new(json, "anchor", json_boolean(info->anchors > f->anchors));
    json_object_set_new(json, "published_milliseconds", json_count(info->milliseconds));
    json_object_set_new(json, "lag_seconds", json_real(lag_seconds(info)));
    json_object_set_new(json, "fetched_bytes", json_count(info->fetched_bytes - f->fetched));
    json_object_set_new(json, "requests", json_count(info->requests - f->requests));
    json_object_set_new(json, "healed", json_count(info->healed));
    for (int i = 0; i < PHASES; i++) {
        char name[TEXT_SIZE];
        snprintf(name, sizeof name, "%s_seconds", weft_sync_phase_name((weft_sync_phase)i));
        json_object_set_new(json, name, json_real(f->seconds[i]));
    }
    return command_print_json_line(f->command, stdout, json);
}

static int print_text(const follower *f, const weft_subscriber_info *info) {
    char text[TEXT_SIZE];
    const char *step = weft_subscriber_label(f->subscriber, "step");
    printf("version %llu", (unsigned long long)info->version);
    if (step != NULL) {
        printf("  step ");
        text_print(stdout, step);
    }
    printf("  %s%s", text_bytes(info->fetched_bytes - f->fetched, text),
           info->anchors > f->anchors ? " (anchor)" : "");
    printf("  lag %s", text_seconds(lag_seconds(info), text));
    for (int i = 0; i < PHASES; i++) {
        printf("  %s %s", weft_sync_phase_name((weft_sync_phase)i), text_seconds(f->seconds[i], text));
    }
    putchar('\n');
    return fflush(stdout) == 0
               ? EXIT_DONE
               : command_error(f->command, EXIT_FAILED, "cannot write the result: %s", strerror(errno));
}

static int print_version(follower *f, const weft_subscriber_info *info) {
    int code = EXIT_DONE;
    progress_clear(&f->command->progress);
    if (f->command->json) {
        code = print_json(f, info);
    } else if (!f->command->quiet) {
        code = print_text(f, info);
    }
    memset(f->seconds, 0, sizeof f->seconds);
    f->fetched = info->fetched_bytes;
    f->requests = info->requests;
    f->anchors = info->anchors;
    return code;
}

/* ---- metrics ---- */

typedef struct follow_figures {
    uint64_t version, newest, epoch, milliseconds;
    uint64_t fetched_bytes, requests, patches, anchors, healed;
    double pause_seconds;
} follow_figures;

static follow_figures find_figures(const follower *f) {
    if (f->group != NULL) {
        weft_group_info info = {.size = sizeof info};
        weft_group_describe(f->group, &info);
        return (follow_figures){.version = info.version,
                                .newest = info.newest,
                                .milliseconds = info.milliseconds,
                                .fetched_bytes = info.fetched_bytes,
                                .requests = info.requests,
                                .patches = info.committed};
    }
    weft_subscriber_info info = {.size = sizeof info};
    if (f->subscriber != NULL) {
        weft_subscriber_describe(f->subscriber, &info);
    } else if (f->foreign.place != NULL) {
        info.version = info.newest = f->foreign.info.version;
    }
    return (follow_figures){.version = info.version,
                            .newest = info.newest,
                            .epoch = info.epoch,
                            .milliseconds = info.milliseconds,
                            .fetched_bytes = info.fetched_bytes,
                            .requests = info.requests,
                            .patches = info.patches,
                            .anchors = info.anchors,
                            .healed = info.healed,
                            .pause_seconds = info.pause_seconds};
}

static void print_group_figures(FILE *out, const follower *f) {
    weft_group_info info = {.size = sizeof info};
    weft_group_describe(f->group, &info);
    metrics_print(out, "weft_follow_group_members", "gauge", "Ranks that the group has.",
                  (double)f->arguments->members);
    metrics_print(out, "weft_follow_group_present", "gauge", "Ranks that are there.", info.present);
    metrics_print(out, "weft_follow_group_aborted_total", "counter", "Versions that a rank refused.",
                  (double)info.aborted);
}

static void print_figures(FILE *out, const follower *f) {
    const follow_figures figures = find_figures(f);
    uint64_t lag = figures.newest > figures.version ? figures.newest - figures.version : 0;
    metrics_print(out, "weft_follow_version", "gauge", "The version that is in place; 0 before the first.",
                  (double)figures.version);
    metrics_print(out, "weft_follow_newest_version", "gauge", "The newest version that the store showed.",
                  (double)figures.newest);
    metrics_print(out, "weft_follow_lag", "gauge", "Versions that this one is behind the newest.",
                  (double)lag);
    metrics_print(out, "weft_follow_lag_seconds", "gauge",
                  "From the publishing of the version in place to its arrival, by two clocks.", f->lag);
    metrics_print(out, "weft_follow_published_timestamp_seconds", "gauge",
                  "When the version in place was published, by the publisher's clock.",
                  1e-3 * (double)figures.milliseconds);
    metrics_print(out, "weft_follow_epoch", "gauge", "The publisher's epoch.", (double)figures.epoch);
    metrics_print(out, "weft_follow_fetched_bytes_total", "counter", "Bytes that were fetched.",
                  (double)figures.fetched_bytes);
    metrics_print(out, "weft_follow_requests_total", "counter", "Requests to the store.",
                  (double)figures.requests);
    metrics_print(out, "weft_follow_patches_total", "counter", "Patches that were applied.",
                  (double)figures.patches);
    metrics_print(out, "weft_follow_anchors_total", "counter", "Whole models that were fetched.",
                  (double)figures.anchors);
    metrics_print(out, "weft_follow_healed_total", "counter",
                  "Objects that were damaged or missing and avoided.", (double)figures.healed);
    metrics_print(out, "weft_follow_pause_seconds", "gauge", "How long the last commit took.",
                  figures.pause_seconds);
    metrics_print(out, "weft_follow_failures_total", "counter", "Attempts that failed.",
                  (double)f->failures);
    metrics_print(out, "weft_follow_failures_in_a_row", "gauge",
                  "Attempts that failed since the last success.", (double)f->patience.failures);
    metrics_print(out, "weft_follow_exec_failures_total", "counter", "Commands of --exec that failed.",
                  (double)f->exec_failures);
    metrics_print(out, "weft_follow_last_success_timestamp_seconds", "gauge",
                  "When the store was last reached and in order; 0 if never.", f->success_at);
    fputs("# HELP weft_follow_phase_seconds_total Time spent in each phase.\n"
          "# TYPE weft_follow_phase_seconds_total counter\n",
          out);
    for (int i = 0; i < PHASES; i++) {
        fprintf(out, "weft_follow_phase_seconds_total{phase=\"%s\"} %.9f\n",
                weft_sync_phase_name((weft_sync_phase)i), f->total_seconds[i]);
    }
    if (f->group != NULL) {
        print_group_figures(out, f);
    }
}

static void show_figures(follower *f) {
    FILE *out = metrics_begin(&f->arguments->metrics);
    if (out != NULL) {
        print_figures(out, f);
        metrics_end(&f->arguments->metrics);
    }
}

/* After each step, and while there is nothing to do every ten seconds. */
static void tell(follower *f, weft_status status) {
    if (command_interrupted() != EXIT_DONE) {
        return;
    }
    if (status >= 0) {
        f->success_at = metrics_wall_seconds();
    } else {
        f->failures++;
    }
    show_figures(f);
    if (status < 0) {
        notify_status("trying again: %s", weft_context_error(f->command->context));
    } else if (f->announced > 0) {
        notify_status("at version %llu", (unsigned long long)f->announced);
    } else {
        notify_status("waiting for a version");
    }
}

/* ---- following ---- */

/* `made` holds the name if it has to be made up. */
static weft_subscriber_options choose_options(follower *f, const char *path,
                                              char made[WEFT_FOLLOWER_NAME]) {
    const follow_arguments *arguments = f->arguments;
    const char *name = arguments->name != NULL ? arguments->name : remote_make_name(path, made);
    return (weft_subscriber_options){
        .size = sizeof(weft_subscriber_options),
        .trusted = arguments->remote.trusted,
        .poll_seconds = arguments->poll_seconds,
        .replace = arguments->replace,
        .durable = arguments->durable,
        .phase = on_phase,
        .phase_opaque = f,
        .report_name = arguments->no_report ? NULL : name,
        .report_seconds = arguments->report_seconds,
    };
}

static weft_status open_subscriber(follower *f) {
    const char *path = f->arguments->paths[1];
    char made[WEFT_FOLLOWER_NAME];
    const weft_subscriber_options chosen = choose_options(f, path, made);
    return weft_subscriber_open_file(f->command->context, f->arguments->remote.store, path, &chosen,
                                     &f->subscriber);
}

static int announce(follower *f, const weft_subscriber_info *info) {
    f->announced = info->version;
    return f->arguments->exec != NULL ? run_exec(f, info) : EXIT_DONE;
}

/* After a commit, or when there was nothing to do. */
static int arrive(follower *f, bool moved) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(f->subscriber, &info);
    int code = EXIT_DONE;
    if (moved) {
        f->lag = lag_seconds(&info);
        code = print_version(f, &info);
    } else if (!f->found) {
        command_note(f->command, "%s is at version %llu already", f->arguments->paths[1],
                     (unsigned long long)info.version);
    }
    f->found = true;
    return code == EXIT_DONE && info.version != f->announced ? announce(f, &info) : code;
}

/* One step towards the newest version. */
static weft_status advance(follower *f, int *code_out) {
    weft_subscriber_info before = {.size = sizeof before};
    weft_subscriber_describe(f->subscriber, &before);
    weft_status status = weft_subscriber_prepare(f->subscriber, 0);
    if (status < 0) {
        return status;
    }
    weft_status committed = weft_subscriber_commit(f->subscriber);
    if (committed != WEFT_OK) {
        return committed;
    }
    weft_subscriber_info after = {.size = sizeof after};
    weft_subscriber_describe(f->subscriber, &after);
    bool moved = after.patches + after.anchors != before.patches + before.anchors;
    patience_restore(&f->patience, f->command);
    *code_out = arrive(f, moved);
    return status;
}

static bool reached(const follower *f) {
    return f->arguments->until > 0 && f->announced >= f->arguments->until;
}

/* A store that has less to show than before is waited for, but not in silence. */
static void note_silence(follower *f) {
    weft_subscriber_info info = {.size = sizeof info};
    weft_subscriber_describe(f->subscriber, &info);
    if (info.newest == 0 && info.epoch > 0 && !f->silence) {
        command_note(f->command, "%s has no head as new as one that was seen there before; waiting for one",
                     weft_store_url(f->arguments->remote.store));
        f->silence = true;
    }
}

/* Waits for a version and goes there. WEFT_MORE: nothing came. */
static weft_status follow_once(follower *f, int *code_out) {
    const double patience = 10;
    weft_status status = f->subscriber == NULL ? open_subscriber(f) : WEFT_OK;
    if (status == WEFT_OK) {
        status = weft_subscriber_wait(f->subscriber, patience, NULL);
    }
    if (status == WEFT_MORE) {
        patience_restore(&f->patience, f->command);
        note_silence(f);
        return WEFT_MORE;
    }
    while (status >= 0 && *code_out == EXIT_DONE && !reached(f)) {
        status = advance(f, code_out);
        if (status == WEFT_OK) {
            break;
        }
    }
    return status;
}

/* ---- the deltas of another system ---- */

static weft_status follow_foreign(follower *f, int *code_out) {
    const double pause = f->arguments->poll_seconds > 0 ? f->arguments->poll_seconds : 0.5;
    weft_status status = foreign_follow(&f->foreign);
    if (status < 0) {
        return status;
    }
    const weft_subscriber_info info = {
        .size = sizeof info, .version = f->foreign.info.version, .digest = f->foreign.info.digest};
    patience_restore(&f->patience, f->command);
    *code_out = status == WEFT_OK ? foreign_follow_print(&f->foreign) : EXIT_DONE;
    if (*code_out == EXIT_DONE && (status == WEFT_OK || f->announced == 0) &&
        info.version != f->announced) {
        *code_out = announce(f, &info);
    }
    if (status == WEFT_MORE && !reached(f)) {
        (void)foreign_stranded(&f->foreign, true);
        command_sleep(pause);
    }
    return status;
}

/* ---- leading a group ---- */

static weft_status take_lead(follower *f) {
    const follow_arguments *arguments = f->arguments;
    char made[WEFT_FOLLOWER_NAME];
    const weft_subscriber_options follow = choose_options(f, arguments->group, made);
    const weft_group_options chosen = {
        .size = sizeof chosen, .members = (unsigned)arguments->members, .follow = &follow};
    return weft_group_lead(f->command->context, arguments->remote.store, arguments->group, &chosen,
                           &f->group);
}

static double lag_of(uint64_t milliseconds) {
    const weft_subscriber_info info = {.size = sizeof info, .milliseconds = milliseconds};
    return lag_seconds(&info);
}

static int print_group_json(const follower *f, const weft_group_info *info) {
    json_t *json = json_object();
    json_object_set_new(json, "version", json_count(info->version));
    json_object_set_new(json, "digest", json_digest(&info->digest));
    json_object_set_new(json, "newest", json_count(info->newest));
    json_object_set_new(json, "members", json_count(f->arguments->members));
    json_object_set_new(json, "present", json_count(info->present));
    json_object_set_new(json, "committed", json_count(info->committed));
    json_object_set_new(json, "aborted", json_count(info->aborted));
    json_object_set_new(json, "published_milliseconds", json_count(info->milliseconds));
    json_object_set_new(json, "lag_seconds", json_real(lag_of(info->milliseconds)));
    json_object_set_new(json, "fetched_bytes", json_count(info->fetched_bytes - f->fetched));
    json_object_set_new(json, "requests", json_count(info->requests - f->requests));
    return command_print_json_line(f->command, stdout, json);
}

static int print_group(follower *f) {
    weft_group_info info = {.size = sizeof info};
    weft_group_describe(f->group, &info);
    char text[TEXT_SIZE];
    int code = EXIT_DONE;
    progress_clear(&f->command->progress);
    if (f->command->json) {
        code = print_group_json(f, &info);
    } else if (!f->command->quiet) {
        printf("version %llu  %u of %llu ranks  %s", (unsigned long long)info.version, info.present,
               (unsigned long long)f->arguments->members,
               text_bytes(info.fetched_bytes - f->fetched, text));
        printf("  lag %s\n", text_seconds(lag_of(info.milliseconds), text));
        fflush(stdout);
    }
    f->fetched = info.fetched_bytes;
    f->requests = info.requests;
    f->announced = info.version;
    f->lag = lag_of(info.milliseconds);
    return code;
}

/* Ranks that did not agree are told of and are offered the version again, without a pause: they may be
 * waiting for it. */
static weft_status lead_once(follower *f, int *code_out) {
    const double patience = 1;
    weft_status status = f->group == NULL ? take_lead(f) : WEFT_OK;
    if (status == WEFT_OK) {
        status = weft_group_run(f->group, patience, NULL);
    }
    if (status == WEFT_ABORTED) {
        progress_clear(&f->command->progress);
        command_error(f->command, EXIT_DONE, "%s", weft_context_error(f->command->context));
        return WEFT_MORE;
    }
    if (status >= 0) {
        patience_restore(&f->patience, f->command);
    }
    if (status == WEFT_OK) {
        *code_out = print_group(f);
    }
    return status;
}

static int follow(follower *f) {
    int code = EXIT_DONE;
    while (code == EXIT_DONE && !reached(f)) {
        weft_status status = f->foreign.place != NULL      ? follow_foreign(f, &code)
                             : f->arguments->group != NULL ? lead_once(f, &code)
                                                           : follow_once(f, &code);
        tell(f, status);
        if (status < 0) {
            code = patience_meet(&f->patience, f->command, status);
        }
        if (code == EXIT_DONE && command_interrupted() != EXIT_DONE) {
            code = command_fail(f->command, NULL, WEFT_CANCELLED);
        }
    }
    return code;
}

static int run(void *input) {
    follow_arguments *arguments = input;
    follower f = {
        .arguments = arguments,
        .command = &arguments->command,
        .patience = {.most = arguments->max_failures},
    };
    bool foreign = arguments->group == NULL && foreign_named(arguments->paths[0]);
    if (foreign) {
        f.foreign = (foreign_follower){.command = f.command,
                                       .place = arguments->paths[0],
                                       .out = arguments->paths[1],
                                       .assume_base = arguments->assume_base,
                                       .durable = arguments->durable};
    }
    int code = foreign ? remote_options(&arguments->remote, &f.foreign.reached)
                       : remote_open(&arguments->remote, arguments->paths[0]);
    if (code == EXIT_DONE) {
        code = metrics_open(&arguments->metrics, f.command);
    }
    if (code == EXIT_DONE) {
        show_figures(&f);
        notify_ready();
        code = follow(&f);
        notify_stopping();
        weft_subscriber_close(f.subscriber);
        weft_group_close(f.group);
        foreign_follow_close(&f.foreign);
    }
    metrics_close(&arguments->metrics);
    free(arguments->group);
    return code;
}

int verb_follow(int argc, char **argv) {
    /* a follower writes nothing into a store but its reports */
    follow_arguments arguments = {.remote = {.volatile_writes = true}};
    const weft_option options[] = {
        {"exec", "CMD", 1,
         "Run CMD with /bin/sh for each version that was put in place, and wait for it; see below",
         .text = &arguments.exec},
        {"exec-fatal", NULL, 1, "Stop when CMD fails", .flag = &arguments.exec_fatal},
        {"until", "N", 1, "Stop when OUT is at version N or a later one", .number = &arguments.until,
         .least = 1, .what = "the number of a version"},
        {"poll", "SECONDS", 1,
         "Poll at this interval where the store has no long poll (default: a tenth of the time that "
         "versions "
         "take, from 0.5 to 10; of a directory 0.02)",
         .seconds = &arguments.poll_seconds},
        {"max-failures", "N", 1, "Give up after N failures in a row (default: 0, never)",
         .number = &arguments.max_failures},
        {"replace", NULL, 1, "OUT may be a model that is no version of the run: replace it",
         .flag = &arguments.replace},
        {"durable", NULL, 1, "OUT is whole, old or new, even after a power loss",
         .flag = &arguments.durable},
        {"assume-base", NULL, 1, FOREIGN_ASSUME_BASE, .flag = &arguments.assume_base},
        {"name", "NAME", 2,
         "Report under this name (default: made of the host's and of OUT); see weft fleet",
         .parse = remote_parse_name, .into = &arguments.name},
        {"report-every", "TIME", 2, "Report at this interval, from 1s to 20m (default: 5s; in S3 60s)",
         .seconds = &arguments.report_seconds},
        {"no-report", NULL, 2, "Do not report", .flag = &arguments.no_report},
        {"group", "NAME", 3,
         "Lead a group instead of keeping an OUT: ranks on this host that commit together. NAME stands for "
         "/dev/shm/weft-NAME, unless it has a '/'",
         .parse = parse_group, .into = &arguments.group},
        {"members", "N", 3, "The group's ranks are 0 to N-1", .number = &arguments.members, .least = 1,
         .most = WEFT_GROUP_MEMBERS_MAX},
        METRICS_OPTIONS(arguments.metrics, 2),
        {0},
    };
    const weft_form form = {"STORE OUT\nSTORE --group NAME --members N",
                            doc,
                            {{options, NULL}},
                            .paths = {arguments.paths, 0, 2, NULL},
                            .path_names = "store|out",
                            .check = check_arguments,
                            .settings = "follow"};
    return remote_run(&form, &arguments.remote, true, argc, argv, &arguments, run);
}
