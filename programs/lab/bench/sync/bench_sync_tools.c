/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_tools.c: what the parts of `weft bench --sync` share: samples, a directory that goes away, a
 * server in a process of its own, and changes that can be made and taken back.
 */
#include "bench_sync.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- samples ---- */

static int compare_values(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that so many of a hundred do not exceed. */
static double quantile(const double *sorted, size_t count, double share) {
    size_t rank = (size_t)ceil(share * (double)count);
    return sorted[rank > 0 ? rank - 1 : 0];
}

sync_times sync_times_of(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare_values);
    return (sync_times){.best = values[0],
                        .median = 0.5 * (values[(count - 1) / 2] + values[count / 2]),
                        .p99 = quantile(values, count, 0.99),
                        .worst = values[count - 1]};
}

/* ---- contexts and messages ---- */

/* No bar is drawn while times are taken; several contexts work at once. */
static bool keep_going(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    (void)opaque;
    (void)phase;
    (void)done;
    (void)total;
    return command_interrupted() == EXIT_DONE;
}

int sync_context(sync_bench *bench, unsigned threads, weft_context **context_out) {
    weft_context_options options = {.size = sizeof options, .threads = threads, .progress = keep_going};
    weft_status status = weft_context_create(&options, context_out);
    if (status != WEFT_OK) {
        return command_error(bench->command, EXIT_FAILED, "cannot start: %s", weft_status_name(status));
    }
    return EXIT_DONE;
}

int sync_go_on(sync_bench *bench) {
    int code = command_interrupted();
    return code == EXIT_DONE ? EXIT_DONE : command_error(bench->command, code, "interrupted");
}

int sync_fail(sync_bench *bench, const weft_context *context, weft_status status) {
    int code = sync_go_on(bench);
    return code == EXIT_DONE ? command_fail_in(bench->command, context, NULL, status) : code;
}

int sync_no_memory(sync_bench *bench) {
    return command_error(bench->command, EXIT_FAILED, "no memory for the bench");
}

/* ---- directories ---- */

int sync_bench_open(weft_command *command, const bench_options *options, sync_bench *bench) {
    enum { THREADS = 2 };
    *bench = (sync_bench){.command = command,
                          .options = options,
                          .threads = command->threads > 0 ? command->threads : THREADS};
    return scratch_open(command, options->directory, "weft-bench", &bench->directory);
}

void sync_bench_close(sync_bench *bench) {
    scratch_close(bench->directory);
    bench->directory = NULL;
}

char *sync_store_path(sync_bench *bench, const char *name) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", bench->directory, name) < 0) {
        sync_no_memory(bench);
        return NULL;
    }
    return path;
}

void sync_store_remove(char *path) {
    if (path != NULL) {
        scratch_remove(path);
        free(path);
    }
}

/* ---- the server ---- */

/* Between fork and exec. The server does not outlive its parent, whatever ends that, and Ctrl-C is for the
 * parent alone, which then ends the server in its turn. */
static void become_server(char *const *arguments) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    execv("/proc/self/exe", arguments);
    _exit(127);
}

/* The URL, once the server has written it; the file appears whole. */
static bool read_url(const char *path, sync_server *server) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    bool read = fgets(server->url, sizeof server->url, file) != NULL;
    fclose(file);
    server->url[strcspn(server->url, "\n")] = 0;
    return read && server->url[0] != 0;
}

static int await_url(sync_bench *bench, const char *path, sync_server *server) {
    const struct timespec moment = {.tv_nsec = 5000000};
    double deadline = clock_seconds() + 60;
    while (!read_url(path, server)) {
        int code = sync_go_on(bench);
        if (code != EXIT_DONE) {
            return code;
        }
        if (waitpid(server->pid, NULL, WNOHANG) != 0) {
            server->pid = 0;
            return command_error(bench->command, EXIT_FAILED, "the server ended at once");
        }
        if (clock_seconds() > deadline) {
            return command_error(bench->command, EXIT_FAILED, "the server did not start within a minute");
        }
        nanosleep(&moment, NULL);
    }
    return EXIT_DONE;
}

static int start_server(sync_bench *bench, const char *store, const char *option, const char *value,
                        sync_server *server) {
    *server = (sync_server){0};
    char *url_file = sync_store_path(bench, "url");
    if (url_file == NULL) {
        return EXIT_FAILED;
    }
    unlink(url_file);
    const char *const arguments[] = {"weft",   "serve",   store,  "--listen", "127.0.0.1:0", "--url-file",
                                     url_file, "--quiet", option, value,      NULL};
    int code = EXIT_DONE;
    server->pid = fork();
    if (server->pid == 0) {
        become_server((char *const *)arguments);
    }
    if (server->pid < 0) {
        server->pid = 0;
        code = command_error(bench->command, EXIT_FAILED, "cannot start a server: %s", strerror(errno));
    }
    if (code == EXIT_DONE) {
        code = await_url(bench, url_file, server);
    }
    if (code != EXIT_DONE) {
        sync_server_stop(server);
    }
    free(url_file);
    return code;
}

int sync_server_start(sync_bench *bench, const char *path, bool durable, sync_server *server) {
    return start_server(bench, path, durable ? NULL : "--volatile", NULL, server);
}

int sync_relay_start(sync_bench *bench, const char *upstream, const char *path, sync_server *server) {
    return start_server(bench, upstream, "--cache", path, server);
}

void sync_server_stop(sync_server *server) {
    if (server->pid > 0) {
        kill(server->pid, SIGTERM);
        while (waitpid(server->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    server->pid = 0;
}

/* ---- changes ---- */

static int allocate_flips(sync_bench *bench, uint64_t count, sync_flips *flips) {
    *flips = (sync_flips){.positions = calloc(count + 1, sizeof *flips->positions),
                          .bits = calloc(count + 1, sizeof *flips->bits)};
    if (flips->positions == NULL || flips->bits == NULL) {
        sync_flips_close(flips);
        return sync_no_memory(bench);
    }
    return EXIT_DONE;
}

int sync_flips_between(sync_bench *bench, const bench_model *model, const uint16_t *from,
                       const uint16_t *to, sync_flips *flips) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < model->extent; i++) {
        count += from[i] != to[i];
    }
    int code = allocate_flips(bench, count, flips);
    if (code != EXIT_DONE) {
        return code;
    }
    for (uint64_t i = 0; i < model->extent; i++) {
        if (from[i] != to[i]) {
            flips->positions[flips->count] = i;
            flips->bits[flips->count++] = from[i] ^ to[i];
        }
    }
    return EXIT_DONE;
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

int sync_flips_scatter(sync_bench *bench, const bench_model *model, uint64_t count, sync_flips *flips) {
    count = count > model->units ? model->units : count;
    int code = allocate_flips(bench, count, flips);
    if (code != EXIT_DONE || count == 0) {
        return code;
    }
    uint64_t random = bench->options->seed, stride = model->units / count, before = 0;
    size_t tensor = 0;
    for (uint64_t i = 0; i < count; i++) {
        /* the unit, counted without the gaps between tensors, and then with them */
        uint64_t unit = i * stride + next_random(&random) % stride;
        while (unit - before >= model->tensors[tensor].rows * model->tensors[tensor].columns) {
            before += model->tensors[tensor].rows * model->tensors[tensor].columns;
            tensor++;
        }
        flips->positions[i] = model->tensors[tensor].start + unit - before;
        flips->bits[i] = 1;
    }
    flips->count = count;
    return EXIT_DONE;
}

static int fill_steps(sync_bench *bench, const bench_model *model, const weft_trace *trace, void **memory,
                      void **places, sync_flips *flips, size_t count) {
    void ***states = calloc(count + 1, sizeof *states);
    if (states == NULL) {
        return sync_no_memory(bench);
    }
    for (size_t s = 0; s <= count; s++) {
        states[s] = places + s * trace->count;
        for (size_t t = 0; t < trace->count; t++) {
            states[s][t] = bench_model_tensor(model, memory[s], &model->tensors[t]);
        }
    }
    int code = trace_fill(bench->command, trace, states, count + 1);
    for (size_t s = 0; s < count && code == EXIT_DONE; s++) {
        code = sync_flips_between(bench, model, memory[s], memory[s + 1], &flips[s]);
    }
    free(states);
    return code;
}

/* The first state is the model's own base; the others live only until their differences are known. */
int sync_flips_trace(sync_bench *bench, const bench_model *model, const weft_trace *trace,
                     sync_flips *flips, size_t count) {
    size_t bytes = bench_model_bytes(model);
    void **memory = calloc(count + 1, sizeof *memory);
    void **places = calloc((count + 1) * trace->count, sizeof *places);
    bool complete = memory != NULL && places != NULL;
    for (size_t s = 0; complete && s <= count; s++) {
        memory[s] = s == 0 ? model->base : bench_map(bytes);
        complete = memory[s] != NULL;
    }
    int code =
        complete ? fill_steps(bench, model, trace, memory, places, flips, count) : sync_no_memory(bench);
    for (size_t s = 1; memory != NULL && s <= count; s++) {
        bench_unmap(memory[s], bytes);
    }
    free(memory);
    free(places);
    return code;
}

void sync_flips_apply(const sync_flips *flips, uint16_t *state) {
    for (uint64_t i = 0; i < flips->count; i++) {
        state[flips->positions[i]] ^= flips->bits[i];
    }
}

void sync_flips_close(sync_flips *flips) {
    free(flips->positions);
    free(flips->bits);
    *flips = (sync_flips){0};
}

/* ---- a training run of any length ---- */

/* The weights walk to and fro along a short one, so that each version is a step of it, forwards or
 * backwards, and no more than a few steps have to be kept. */
int sync_walk_open(sync_bench *bench, uint64_t parameters, sync_walk *walk) {
    const bench_options *options = bench->options;
    weft_trace trace;
    *walk = (sync_walk){0};
    int code = trace_open(bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    code = bench_model_generate(bench->command, &walk->model, &trace);
    if (code == EXIT_DONE) {
        code = sync_flips_trace(bench, &walk->model, &trace, walk->flips, SYNC_WALK_STEPS);
    }
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    return code;
}

void sync_walk_close(sync_walk *walk) {
    for (size_t s = 0; s < SYNC_WALK_STEPS; s++) {
        sync_flips_close(&walk->flips[s]);
    }
    bench_model_close(&walk->model);
}

uint64_t sync_walk_step(sync_walk *walk) {
    uint64_t place = walk->steps++ % (2 * (uint64_t)SYNC_WALK_STEPS);
    const sync_flips *flips =
        &walk->flips[place < SYNC_WALK_STEPS ? place : 2 * SYNC_WALK_STEPS - 1 - place];
    sync_flips_apply(flips, walk->model.base);
    return flips->count;
}
