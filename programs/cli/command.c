/* SPDX-License-Identifier: Apache-2.0
 *
 * command.c: the frame around every verb: common options, the context, messages, exit codes, signals.
 */
#include "command.h"
#include "../base/notify.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
        notify_alive();
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
    notify_alive();
    return caught_signal == 0;
}

int command_context(weft_command *command, unsigned threads, weft_context **context_out) {
    weft_context_options options = {
        .size = sizeof options, .threads = threads, .progress = on_progress, .progress_opaque = command};
    weft_status status = weft_context_create(&options, context_out);
    if (status != WEFT_OK) {
        return command_error(command, EXIT_FAILED, "cannot start: %s", weft_status_name(status));
    }
    return EXIT_DONE;
}

/* ---- messages ---- */

static void print_message(weft_command *command, log_level level, const char *path, const char *text) {
    progress_clear(&command->progress);
    log_write(command, level, path, text);
}

static void print_formatted(weft_command *command, log_level level, const char *format, va_list arguments) {
    char text[2048];
    if (log_wants(command, level)) {
        vsnprintf(text, sizeof text, format, arguments);
        print_message(command, level, NULL, text);
    }
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
        print_message(command, LOG_ERROR, NULL, "interrupted");
        return command_interrupted();
    }
    const char *text = weft_context_error(context);
    print_message(command, LOG_ERROR, path, *text != 0 ? text : weft_status_name(status));
    return exit_code(status);
}

int command_fail(weft_command *command, const char *path, weft_status status) {
    return command_fail_in(command, command->context, path, status);
}

int command_error(weft_command *command, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_formatted(command, LOG_ERROR, format, arguments);
    va_end(arguments);
    return code;
}

void command_warn(weft_command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_formatted(command, LOG_WARNING, format, arguments);
    va_end(arguments);
}

void command_note(weft_command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_formatted(command, LOG_INFO, format, arguments);
    va_end(arguments);
}

void command_debug(weft_command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_formatted(command, LOG_DEBUG, format, arguments);
    va_end(arguments);
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

int command_begin(const weft_form *form, int argc, char **argv, void *input) {
    weft_command *command = input;
    const weft_option common[] = {
        {.group = 90, .help = "Common options:"},
        {"json", NULL, 91, "Print the result as JSON, with exact numbers", .flag = &command->json},
        {"quiet", NULL, 91, "Print only errors, and the results of verbs that look", .letter = 'q',
         .flag = &command->quiet},
        {"threads", "N", 91, "Use N threads (default: one per processor)", .letter = 'j',
         .count = &command->threads, .least = 1, .most = 1024},
        {"progress", NULL, 91, "Show progress even if stderr is not a terminal",
         .flag = &command->show_progress},
        {"no-progress", NULL, 91, "Never show progress", .flag = &command->hide_progress},
        {"log-level", "LEVEL", 91,
         "What is said on stderr: error, warning, info (default) or debug; --quiet says error",
         .choice = &command->log_level, .words = "error|warning|info|debug", .least = 1},
        {"log-format", "FORMAT", 91,
         "How: plain, text (with time and level; the default of serve and follow), or json, an object per "
         "line",
         .choice = &command->log_format, .words = "plain|text|json", .least = LOG_PLAIN},
        {0},
    };
    weft_form whole = *form;
    options_add(&whole, common);
    command->name = argv[0];
    argp_err_exit_status = EXIT_USAGE;
    error_t error = options_parse(&whole, argc, argv, input);
    if (command->log_format == 0) {
        command->log_format = form->settings != NULL ? LOG_TEXT : LOG_PLAIN;
    }
    if (error != 0) {
        return command_error(command, EXIT_FAILED, "%s", strerror(error));
    }
    bool shown =
        !command->hide_progress && (command->show_progress || (!command->quiet && isatty(STDERR_FILENO)));
    progress_open(&command->progress, shown);
    return command_context(command, command->threads, &command->context);
}

/* Results that could not be written are a failure, also where that happened long ago. */
int command_end(weft_command *command, int code) {
    if (code == EXIT_DONE && fflush(stdout) != 0) {
        code = command_error(command, EXIT_FAILED, "cannot write the result: %s", strerror(errno));
    } else if (code == EXIT_DONE && ferror(stdout)) {
        code = command_error(command, EXIT_FAILED, "not all of the result could be written");
    }
    progress_clear(&command->progress);
    weft_context_destroy(command->context);
    return code;
}

int command_run(const weft_form *form, int argc, char **argv, void *input, int (*run)(void *input)) {
    int code = command_begin(form, argc, argv, input);
    return code == EXIT_DONE ? command_end(input, run(input)) : code;
}
