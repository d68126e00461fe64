/* SPDX-License-Identifier: Apache-2.0
 *
 * s3_process.c: credentials that a program prints (credential_process of a profile).
 *
 * The command goes to the shell, as its owner wrote it. Its errors go where ours go; what it prints is read
 * within bounds, and it is ended if it takes too long or the caller has enough.
 */
#include "s3_source.h"

#include "../../base/clock.h"
#include "../../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { SLICE_MILLISECONDS = 100 };

static const double PROCESS_SECONDS = 60;
/* between two looks whether it has ended */
static const double LOOK_SECONDS = 0.005;

/* In a group of its own, so that what it starts can be ended with it, and with no signal blocked, nor the
 * one ignored that ends whoever writes into a pipe in vain. */
static int start(const char *command, int output, pid_t *pid_out) {
    char shell[] = "sh";
    char option[] = "-c";
    char *const arguments[] = {shell, option, (char *)command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        error = error != 0 ? error : posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        error = error != 0 ? error : posix_spawnattr_setsigmask(&attributes, &none);
        error = error != 0 ? error : posix_spawnattr_setsigdefault(&attributes, &defaults);
        error = error != 0 ? error : posix_spawnattr_setpgroup(&attributes, 0);
        error = error != 0
                    ? error
                    : posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                                POSIX_SPAWN_SETSIGDEF);
        error =
            error != 0 ? error : posix_spawn(pid_out, "/bin/sh", &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static weft_status fail_late(weft_context *context, const char *name) {
    return weft_fail(context, WEFT_REMOTE_FAILED, "the %s takes more than %g seconds", name,
                     PROCESS_SECONDS);
}

/* All that comes until the other end is closed. */
static weft_status read_all(weft_context *context, const char *name, int input, double deadline, char *text,
                            size_t *size_out) {
    size_t size = 0;
    for (;;) {
        struct pollfd wait = {.fd = input, .events = POLLIN};
        int ready = poll(&wait, 1, SLICE_MILLISECONDS);
        ssize_t count = ready > 0 ? read(input, text + size, WEFT_S3_SESSION_JSON_MAX + 1 - size) : -1;
        if (ready > 0 && count == 0) {
            *size_out = size;
            return WEFT_OK;
        }
        size += count > 0 ? (size_t)count : 0;
        if (size > WEFT_S3_SESSION_JSON_MAX) {
            return weft_fail(context, WEFT_REMOTE_FAILED, "the %s prints more than %d bytes", name,
                             WEFT_S3_SESSION_JSON_MAX);
        }
        if (ready > 0 && count < 0 && errno != EINTR && errno != EAGAIN) {
            return weft_fail_errno(context, errno, "cannot read what the %s prints", name);
        }
        weft_status status = weft_progress_ask(context);
        if (status != WEFT_OK) {
            return status;
        }
        if (weft_clock_now() > deadline) {
            return fail_late(context, name);
        }
    }
}

/* Of one that has printed all, which need not be the end of it. A program that looks after all children
 * itself may have taken the exit code. */
static weft_status await_end(weft_context *context, const char *name, pid_t pid, double deadline,
                             int *code_out) {
    weft_status status = WEFT_OK;
    pid_t got = 0;
    while (status == WEFT_OK && (got = waitpid(pid, code_out, WNOHANG)) == 0) {
        status = weft_clock_now() > deadline ? fail_late(context, name)
                                             : weft_clock_sleep(context, LOOK_SECONDS);
    }
    *code_out = got == pid ? *code_out : 0;
    return status;
}

static void end(pid_t pid) {
    kill(-pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

static weft_status run(weft_context *context, const weft_s3_source *source, char *text, size_t *size_out) {
    int ends[2];
    pid_t pid = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return weft_fail_errno(context, errno, "cannot make a pipe for the %s", source->name);
    }
    int error = start(source->command, ends[1], &pid);
    close(ends[1]);
    if (error != 0) {
        close(ends[0]);
        return weft_fail_errno(context, error, "cannot start the %s", source->name);
    }
    double deadline = weft_clock_now() + PROCESS_SECONDS;
    int code = 0;
    weft_status status = read_all(context, source->name, ends[0], deadline, text, size_out);
    close(ends[0]);
    if (status == WEFT_OK) {
        status = await_end(context, source->name, pid, deadline, &code);
    }
    if (status != WEFT_OK) {
        end(pid);
        return status;
    }
    if (code != 0) {
        return weft_fail(context, WEFT_REMOTE_FAILED, "the %s fails with %s %d", source->name,
                         WIFEXITED(code) ? "exit code" : "signal",
                         WIFEXITED(code) ? WEXITSTATUS(code) : WTERMSIG(code));
    }
    return WEFT_OK;
}

weft_status weft_s3_ask_process(weft_context *context, const weft_s3_source *source,
                                weft_s3_session *session) {
    char *text = weft_allocate(context, WEFT_S3_SESSION_JSON_MAX + 1);
    size_t size = 0;
    weft_status status = text != NULL ? run(context, source, text, &size) : WEFT_NO_MEMORY;
    if (status == WEFT_OK) {
        status = weft_s3_session_read_json(context, source->name, text, size, session);
    }
    if (text != NULL) {
        explicit_bzero(text, WEFT_S3_SESSION_JSON_MAX + 1);
    }
    weft_release(context, text);
    return status;
}
