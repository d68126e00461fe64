/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_fleet_process.c: a follower that is a process of its own: `weft follow`, which tells by a line of
 * JSON what it has put in place.
 */
#include "bench_fleet.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Between fork and exec, in a program with threads. The process does not outlive its parent. */
static void become_follower(int output, char *const *arguments) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    dup2(output, STDOUT_FILENO);
    execv("/proc/self/exe", arguments);
    _exit(127);
}

int fleet_process_start(sync_bench *bench, const char *url, const char *out, const char *name,
                        fleet_process *process) {
    const char *const arguments[] = {
        "weft", "follow", url, out, "--json", "--threads", "1", "--name", name, "--no-progress", NULL};
    int ends[2];
    *process = (fleet_process){0};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return command_error(bench->command, EXIT_FAILED, "cannot make a pipe: %s", strerror(errno));
    }
    process->pid = fork();
    if (process->pid == 0) {
        become_follower(ends[1], (char *const *)arguments);
    }
    close(ends[1]);
    process->lines = process->pid > 0 ? fdopen(ends[0], "r") : NULL;
    if (process->lines == NULL) {
        int error = errno;
        close(ends[0]);
        process->pid = process->pid > 0 ? process->pid : 0;
        fleet_process_stop(process);
        return command_error(bench->command, EXIT_FAILED, "cannot start a follower: %s", strerror(error));
    }
    return EXIT_DONE;
}

static bool parse_digest(const char *text, weft_digest *digest_out) {
    size_t count = sizeof digest_out->bytes;
    bool good = text != NULL && strlen(text) == 2 * count;
    for (size_t i = 0; i < count && good; i++) {
        good = sscanf(text + 2 * i, "%2hhx", &digest_out->bytes[i]) == 1;
    }
    return good;
}

bool fleet_process_next(fleet_process *process, uint64_t *version_out, weft_digest *digest_out) {
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    while (!found && getline(&line, &capacity, process->lines) > 0) {
        json_t *json = json_loads(line, 0, NULL);
        *version_out = (uint64_t)json_integer_value(json_object_get(json, "version"));
        found = *version_out > 0 &&
                parse_digest(json_string_value(json_object_get(json, "digest")), digest_out);
        json_decref(json);
    }
    free(line);
    return found;
}

void fleet_process_interrupt(const fleet_process *process) {
    if (process->pid > 0) {
        kill(process->pid, SIGKILL);
    }
}

void fleet_process_stop(fleet_process *process) {
    fleet_process_interrupt(process);
    while (process->pid > 0 && waitpid(process->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (process->lines != NULL) {
        fclose(process->lines);
    }
    *process = (fleet_process){0};
}
