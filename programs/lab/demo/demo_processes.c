/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_processes.c: the processes of `weft demo`, from their start to an end that leaves none behind.
 *
 * They are in process groups of their own, so that Ctrl-C reaches the demo alone, which then ends them in
 * order; and the kernel kills them when the demo dies in a way that it cannot answer.
 */
#include "demo.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double END_SECONDS = 3;

/* ---- starting ---- */

static void run_child(const char *log, const char *const *arguments, pid_t parent) {
    static char program[] = "weft";
    char *list[DEMO_ARGUMENTS_MAX + 2] = {program};
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int talk = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    /* the parent may have died before the line above that ties us to it */
    if (getppid() != parent || talk < 0 || nothing < 0) {
        _exit(EXIT_FAILED);
    }
    dup2(nothing, STDIN_FILENO);
    dup2(talk, STDOUT_FILENO);
    dup2(talk, STDERR_FILENO);
    for (size_t i = 0; i < DEMO_ARGUMENTS_MAX && arguments[i] != NULL; i++) {
        list[i + 1] = (char *)arguments[i];
    }
    execv("/proc/self/exe", list);
    _exit(EXIT_FAILED);
}

int demo_process_start(demo_processes *processes, const char *directory, const char *name,
                       const char *const *arguments) {
    demo_process *process = &processes->list[processes->count];
    snprintf(process->name, sizeof process->name, "%s", name);
    if (asprintf(&process->log, "%s/%zu.log", directory, processes->count) < 0) {
        process->log = NULL;
        return command_error(processes->command, EXIT_FAILED, "no memory");
    }
    processes->count++;
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_child(process->log, arguments, parent);
    }
    if (pid < 0) {
        return command_error(processes->command, EXIT_FAILED, "cannot start %s: %s", name, strerror(errno));
    }
    process->pid = pid;
    return EXIT_DONE;
}

/* ---- looking ---- */

/* True if it has ended, now or before. */
static bool has_ended(demo_process *process, bool wait) {
    int state = 0;
    if (process->pid == 0) {
        return true;
    }
    pid_t ended = waitpid(process->pid, &state, wait ? 0 : WNOHANG);
    if (ended == 0 || (ended < 0 && errno == EINTR)) {
        return false;
    }
    process->code = ended < 0            ? EXIT_FAILED
                    : WIFSIGNALED(state) ? 128 + WTERMSIG(state)
                                         : WEXITSTATUS(state);
    process->pid = 0;
    return true;
}

static int report_end(weft_command *command, const demo_process *process) {
    char talk[1024];
    demo_process_talk(process, talk, sizeof talk);
    if (process->code > 128) {
        return command_error(command, EXIT_FAILED, "%s was ended by signal %d (%s)", process->name,
                             process->code - 128, strsignal(process->code - 128));
    }
    return command_error(command, process->code, "%s failed: %s", process->name,
                         *talk != 0 ? talk : "it did not say why");
}

int demo_processes_check(demo_processes *processes, bool *finished_out) {
    bool finished = false;
    for (size_t i = 0; i < processes->count; i++) {
        demo_process *process = &processes->list[i];
        bool running = process->pid != 0;
        bool ended = has_ended(process, false);
        if (running && ended && process->code != EXIT_DONE) {
            return report_end(processes->command, process);
        }
        finished |= i == 0 && ended;
    }
    *finished_out = finished;
    return EXIT_DONE;
}

const char *demo_process_talk(const demo_process *process, char *text, size_t capacity) {
    FILE *file = process->log != NULL ? fopen(process->log, "re") : NULL;
    *text = 0;
    if (file == NULL) {
        return text;
    }
    if (fseek(file, -(long)(capacity - 1), SEEK_END) != 0) {
        rewind(file);
    }
    size_t length = fread(text, 1, capacity - 1, file);
    fclose(file);
    while (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    text[length] = 0;
    const char *last = strrchr(text, '\n');
    if (last != NULL) {
        memmove(text, last + 1, strlen(last + 1) + 1);
    }
    return text;
}

/* ---- ending ---- */

static bool have_ended(demo_processes *processes) {
    bool ended = true;
    for (size_t i = 0; i < processes->count; i++) {
        ended &= has_ended(&processes->list[i], false);
    }
    return ended;
}

static void tell_all(demo_processes *processes, int signal_number) {
    for (size_t i = 0; i < processes->count; i++) {
        if (processes->list[i].pid != 0) {
            kill(processes->list[i].pid, signal_number);
        }
    }
}

/* Not command_sleep: after a signal there is still this to wait for. */
void demo_processes_end(demo_processes *processes) {
    const struct timespec moment = {.tv_nsec = 10000000};
    double end = clock_seconds() + END_SECONDS;
    tell_all(processes, SIGTERM);
    while (!have_ended(processes) && clock_seconds() < end) {
        nanosleep(&moment, NULL);
    }
    tell_all(processes, SIGKILL);
    for (size_t i = 0; i < processes->count; i++) {
        while (!has_ended(&processes->list[i], true)) {
        }
    }
}

void demo_processes_close(demo_processes *processes) {
    demo_processes_end(processes);
    for (size_t i = 0; i < processes->count; i++) {
        free(processes->list[i].log);
    }
    processes->count = 0;
}
