/* SPDX-License-Identifier: Apache-2.0
 *
 * command.c: the frame around every verb: common options, the context, messages, exit codes, signals.
 */
#include "command.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- common options ---- */

enum { OPTION_JSON = 0x1000, OPTION_PROGRESS, OPTION_NO_PROGRESS };

static const struct argp_option common_options[] = {
    {NULL, 0, NULL, 0, "Common options:", 90},
    {"json", OPTION_JSON, NULL, 0, "Print the result as JSON, with exact numbers", 91},
    {"quiet", 'q', NULL, 0, "Print only errors, and the results of verbs that look", 91},
    {"threads", 'j', "N", 0, "Use N threads (default: one per processor)", 91},
    {"progress", OPTION_PROGRESS, NULL, 0, "Show progress even if stderr is not a terminal", 91},
    {"no-progress", OPTION_NO_PROGRESS, NULL, 0, "Never show progress", 91},
    {0},
};

uint64_t command_parse_number(struct argp_state *state, const char *option, const char *text,
                              uint64_t least, uint64_t most) {
    uint64_t value = 0;
    if (!text_parse_unsigned(text, most, &value) || value < least) {
        argp_error(state, "%s takes a number from %llu to %llu, not '%s'", option,
                   (unsigned long long)least, (unsigned long long)most, text);
    }
    return value;
}

double command_parse_real(struct argp_state *state, const char *option, const char *text, double least,
                          double most) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= least && value <= most)) {
        argp_error(state, "%s takes a number from %g to %g, not '%s'", option, least, most, text);
    }
    return value;
}

error_t command_parse_path(struct argp_state *state, char *argument, const char **paths, unsigned most) {
    if (state->arg_num >= most) {
        argp_error(state, "too many arguments, from '%s' on", argument);
    }
    paths[state->arg_num] = argument;
    return 0;
}

error_t command_parse_only(int key, char *argument, struct argp_state *state, const char *one,
                           const char *none, const char **path_out) {
    switch (key) {
    case ARGP_KEY_ARG:
        if (*path_out != NULL) {
            argp_error(state, "%s", one);
        }
        *path_out = argument;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "%s", none);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

uint64_t command_parse_version(struct argp_state *state, const char *option, const char *text) {
    uint64_t version = 0;
    if (!text_parse_unsigned(text, INT64_MAX, &version) || version == 0) {
        argp_error(state, "%s takes the number of a version, not '%s'", option, text);
    }
    return version;
}

uint64_t command_parse_bytes(struct argp_state *state, const char *option, const char *text) {
    uint64_t bytes = 0;
    if (!text_parse_bytes(text, &bytes) || bytes == 0) {
        argp_error(state, "%s takes a size such as 8MiB, not '%s'", option, text);
    }
    return bytes;
}

weft_profile command_parse_profile(struct argp_state *state, const char *text) {
    bool fast = strcmp(text, "fast") == 0;
    if (!fast && strcmp(text, "small") != 0) {
        argp_error(state, "--profile is fast or small, not '%s'", text);
    }
    return fast ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL;
}

static error_t parse_common(int key, char *argument, struct argp_state *state) {
    weft_command *command = state->input;
    switch (key) {
    case OPTION_JSON:
        command->json = true;
        return 0;
    case 'q':
        command->quiet = true;
        return 0;
    case 'j':
        command->threads = (unsigned)command_parse_number(state, "--threads", argument, 1, 1024);
        return 0;
    case OPTION_PROGRESS:
        command->show_progress = 1;
        return 0;
    case OPTION_NO_PROGRESS:
        command->show_progress = 0;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp command_argp = {.options = common_options, .parser = parse_common};
const struct argp_child command_children[] = {{&command_argp, 0, NULL, 0}, {0}};

/* ---- signals ---- */

/* Set by the handler, read by every thread. Lock-free, so that a handler may store it. */
static atomic_int caught_signal;

static void on_cancel(int signal_number) {
    caught_signal = signal_number;
}

/* A mapped file lost its end while it was read: there is nothing to continue with. */
static void on_bus_error(int signal_number) {
    static const char text[] =
        "weft: a file was truncated by another process, or its disk failed, while it was in use\n";
    (void)signal_number;
    output_emergency();
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(EXIT_FAILED);
}

static void handle(int signal_number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void command_handle_signals(void) {
    /* The second Ctrl-C ends the process at once, should the first have met a loop that does not ask. */
    handle(SIGINT, on_cancel, (int)SA_RESETHAND);
    handle(SIGTERM, on_cancel, (int)SA_RESETHAND);
    handle(SIGBUS, on_bus_error, 0);
    handle(SIGPIPE, SIG_IGN, 0);
    handle(SIGXFSZ, SIG_IGN, 0);
}

void command_handle_hangup(void) {
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        handle(SIGHUP, on_cancel, (int)SA_RESETHAND);
    }
}

/* In slices: a signal may come between asking for it and going to sleep. */
void command_sleep(double seconds) {
    double end = clock_seconds() + seconds;
    for (double left = seconds; left > 0 && command_interrupted() == EXIT_DONE;
         left = end - clock_seconds()) {
        double slice = left < 0.05 ? left : 0.05;
        struct timespec time = {0, (long)(slice * 1e9)};
        nanosleep(&time, NULL);
    }
}

int command_interrupted(void) {
    return caught_signal != 0 ? 128 + caught_signal : EXIT_DONE;
}

/* ---- the context ---- */

static bool on_progress(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    weft_command *command = opaque;
    progress_report(&command->progress, phase, done, total);
    return caught_signal == 0;
}

int command_context(weft_command *command, unsigned threads, weft_context **context_out) {
    weft_context_options options = {
        .threads = threads, .progress = on_progress, .progress_opaque = command};
    weft_status status = weft_context_create(&options, context_out);
    if (status != WEFT_OK) {
        return command_error(command, EXIT_FAILED, "cannot start: %s", weft_status_name(status));
    }
    return EXIT_DONE;
}

static int open_context(weft_command *command) {
    bool shown = command->show_progress == 1 ||
                 (command->show_progress == -1 && !command->quiet && isatty(STDERR_FILENO));
    progress_open(&command->progress, shown);
    return command_context(command, command->threads, &command->context);
}

/* ---- messages ---- */

static void print_message(weft_command *command, const char *path, const char *text) {
    progress_clear(&command->progress);
    fprintf(stderr, "%s: ", command->name);
    if (path != NULL) {
        text_print(stderr, path);
        fputs(": ", stderr);
    }
    text_print(stderr, text);
    putc('\n', stderr);
}

static int exit_code(weft_status status) {
    if (status == WEFT_INVALID_ARGUMENT) {
        return EXIT_USAGE;
    }
    if (weft_status_is_integrity(status)) {
        return EXIT_INTEGRITY;
    }
    if (status <= -500 && status > -600) {
        return EXIT_REMOTE;
    }
    return status < 0 ? EXIT_FAILED : EXIT_DONE;
}

int command_fail_in(weft_command *command, const weft_context *context, const char *path,
                    weft_status status) {
    if (status == WEFT_CANCELLED && caught_signal != 0) {
        print_message(command, NULL, "interrupted");
        return command_interrupted();
    }
    const char *text = weft_context_error(context);
    print_message(command, path, *text != 0 ? text : weft_status_name(status));
    return exit_code(status);
}

int command_fail(weft_command *command, const char *path, weft_status status) {
    return command_fail_in(command, command->context, path, status);
}

int command_error(weft_command *command, int code, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_message(command, NULL, text);
    return code;
}

void command_note(weft_command *command, const char *format, ...) {
    char text[2048];
    if (command->quiet) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_message(command, NULL, text);
}

static int print_json(weft_command *command, FILE *stream, json_t *json, size_t form) {
    progress_clear(&command->progress);
    if (json == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the JSON result");
    }
    int failed = json_dumpf(json, stream, form | JSON_REAL_PRECISION(9));
    json_decref(json);
    putc('\n', stream);
    if (failed != 0 || fflush(stream) != 0) {
        return command_error(command, EXIT_FAILED, "cannot write the result: %s", strerror(errno));
    }
    return EXIT_DONE;
}

int command_print_json(weft_command *command, FILE *stream, json_t *json) {
    return print_json(command, stream, json, JSON_INDENT(2));
}

int command_print_json_line(weft_command *command, FILE *stream, json_t *json) {
    return print_json(command, stream, json, 0);
}

/* ---- from beginning to end ---- */

/* Results that could not be written are a failure, also where that happened long ago. */
static int flush_results(weft_command *command, int code) {
    if (code != EXIT_DONE) {
        return code;
    }
    if (fflush(stdout) != 0) {
        return command_error(command, EXIT_FAILED, "cannot write the result: %s", strerror(errno));
    }
    return ferror(stdout) ? command_error(command, EXIT_FAILED, "not all of the result could be written")
                          : EXIT_DONE;
}

int command_run(const struct argp *argp, int argc, char **argv, void *input, int (*run)(void *input)) {
    weft_command *command = input;
    command->name = argv[0];
    command->show_progress = -1;
    argp_err_exit_status = EXIT_USAGE;
    error_t error = argp_parse(argp, argc, argv, 0, NULL, input);
    if (error != 0) {
        return command_error(command, EXIT_FAILED, "%s", strerror(error));
    }
    int code = open_context(command);
    if (code == EXIT_DONE) {
        code = flush_results(command, run(input));
        progress_clear(&command->progress);
        weft_context_destroy(command->context);
    }
    return code;
}
