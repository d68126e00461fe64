/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_sync_parts.c: four processes that each hold a part of a model and publish it together, against one
 * process that does it alone; every one with a single thread. Memory is told per process, so that each must
 * be a process of its own from the start: they are forked without the model, and read their shares from a
 * file; what is told is what they take themselves.
 */
#include "bench_sync.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PARTS = SYNC_TEAM, BLOCK = 65536 };

/* ---- the model, on disk ---- */

/* What processes know of it: where its tensors lie in a file, and the changes of a step. */
typedef struct parted_model {
    bench_tensor *tensors;
    size_t count;
    uint64_t units;
    uint64_t changed;
    char *weights;   /* path: BF16, units of the model's memory */
    char *positions; /* path: u64 */
    char *bits;      /* path: u16 */
} parted_model;

static void close_parted(parted_model *model) {
    for (size_t i = 0; model->tensors != NULL && i < model->count; i++) {
        free(model->tensors[i].name);
    }
    free(model->tensors);
    free(model->weights);
    free(model->positions);
    free(model->bits);
    *model = (parted_model){0};
}

static int write_file(sync_bench *bench, const char *name, const void *data, size_t size, char **path_out) {
    char *path = sync_store_path(bench, name);
    if (path == NULL) {
        return EXIT_FAILED;
    }
    *path_out = path;
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    size_t done = 0;
    while (file >= 0 && done < size) {
        ssize_t count = write(file, (const char *)data + done, size - done);
        if (count < 0 && errno != EINTR) {
            break;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    int error = errno;
    if (file >= 0) {
        close(file);
    }
    return done == size
               ? EXIT_DONE
               : command_error(bench->command, EXIT_FAILED, "cannot write %s: %s", path, strerror(error));
}

static int copy_shapes(sync_bench *bench, const bench_model *from, parted_model *model) {
    model->tensors = calloc(from->count, sizeof *model->tensors);
    if (model->tensors == NULL) {
        return sync_no_memory(bench);
    }
    for (; model->count < from->count; model->count++) {
        bench_tensor *tensor = &model->tensors[model->count];
        *tensor = from->tensors[model->count];
        tensor->name = strdup(tensor->name);
        if (tensor->name == NULL) {
            return sync_no_memory(bench);
        }
    }
    model->units = from->units;
    return EXIT_DONE;
}

static int write_model(sync_bench *bench, const bench_model *from, parted_model *model) {
    sync_flips flips = {0};
    int code = copy_shapes(bench, from, model);
    if (code == EXIT_DONE) {
        code = sync_flips_between(bench, from, from->base, from->next, &flips);
    }
    if (code == EXIT_DONE) {
        model->changed = flips.count;
        code = write_file(bench, "weights", from->base, bench_model_bytes(from), &model->weights);
    }
    if (code == EXIT_DONE) {
        code = write_file(bench, "positions", flips.positions,
                          (size_t)flips.count * sizeof *flips.positions, &model->positions);
    }
    if (code == EXIT_DONE) {
        code =
            write_file(bench, "bits", flips.bits, (size_t)flips.count * sizeof *flips.bits, &model->bits);
    }
    sync_flips_close(&flips);
    return code;
}

static int open_parted(sync_bench *bench, parted_model *model) {
    enum { PARAMETERS = 256000000 };
    const bench_options *options = bench->options;
    uint64_t parameters = options->parameters < PARAMETERS ? options->parameters : PARAMETERS;
    weft_trace trace;
    bench_model generated;
    *model = (parted_model){0};
    int code = trace_open(bench->command, &trace, parameters, options->learning_rate, options->seed);
    if (code != EXIT_DONE) {
        return code;
    }
    /* a vocabulary is filled up so that it can be divided; here some words go */
    uint64_t odd = trace.tensors[0].rows > PARTS ? trace.tensors[0].rows % PARTS : 0;
    trace.tensors[0].rows -= odd;
    trace.parameters -= odd * trace.tensors[0].columns;
    code = bench_model_generate(bench->command, &generated, &trace);
    trace_close(&trace);
    progress_clear(&bench->command->progress);
    if (code == EXIT_DONE) {
        code = write_model(bench, &generated, model);
    }
    bench_model_close(&generated);
    return code;
}

/* ---- shares ---- */

/* Which rows and columns of a tensor a process holds. */
typedef struct share {
    uint64_t first_row, rows;
    uint64_t first_column, columns;
    uint64_t start; /* in the process's memory */
    int dim;        /* that is divided; -1: all of it is held */
} share;

/* Projections back into the residual stream are divided by columns, as tensor parallelism does; all other
 * matrices by rows, and vectors are held by everybody. */
static int divided_dim(const bench_tensor *tensor, unsigned parts) {
    enum { WORD = 8 /* weights that a cut must not tear apart */ };
    bool back = strstr(tensor->name, "o_proj") != NULL || strstr(tensor->name, "down_proj") != NULL;
    if (parts == 1 || tensor->rank != 2) {
        return -1;
    }
    bool by_rows = tensor->rows % parts == 0 && tensor->rows / parts * tensor->columns % WORD == 0;
    bool by_columns = tensor->columns % (WORD * parts) == 0;
    return by_columns && (back || !by_rows) ? 1 : by_rows ? 0 : -1;
}

static share share_of(const bench_tensor *tensor, unsigned part, unsigned parts) {
    share held = {.rows = tensor->rows, .columns = tensor->columns};
    held.dim = divided_dim(tensor, parts);
    if (held.dim == 0) {
        held.rows /= parts;
        held.first_row = part * held.rows;
    } else if (held.dim == 1) {
        held.columns /= parts;
        held.first_column = part * held.columns;
    }
    return held;
}

/* ---- a process ---- */

typedef struct part_process {
    sync_bench *bench;
    const parted_model *model;
    unsigned part, parts;
    share *shares;
    uint64_t units;
    uint16_t *weights;
    sync_flips flips; /* of what it holds */
    weft_cut *cuts;
    size_t cut_count;
    weft_context *context;
    weft_store *store;
    weft_table *live, *whole;
    weft_view *view;
    weft_publisher *publisher;
    uint64_t step;
    uint64_t inherited_bytes; /* of memory, from the process that it was forked from */
} part_process;

static bool read_at(int file, void *data, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        ssize_t count = pread(file, (char *)data + done, size - done, (off_t)(offset + done));
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return false;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return true;
}

static bool read_share(const part_process *p, int file, size_t tensor) {
    const bench_tensor *whole = &p->model->tensors[tensor];
    const share *held = &p->shares[tensor];
    uint16_t *output = p->weights + held->start;
    bool rows_whole = held->columns == whole->columns;
    uint64_t runs = rows_whole ? 1 : held->rows;
    uint64_t length = rows_whole ? held->rows * held->columns : held->columns;
    bool read = true;
    for (uint64_t i = 0; i < runs && read; i++) {
        uint64_t unit = whole->start + (held->first_row + i) * whole->columns + held->first_column;
        read = read_at(file, output + i * length, (size_t)length * sizeof *output, unit * sizeof *output);
    }
    return read;
}

static bool read_weights(part_process *p) {
    int file = open(p->model->weights, O_RDONLY | O_CLOEXEC);
    bool read = file >= 0;
    for (size_t i = 0; i < p->model->count && read; i++) {
        read = read_share(p, file, i);
    }
    if (file >= 0) {
        close(file);
    }
    return read;
}

/* Where a unit of the whole model is in this process, or UINT64_MAX. `tensor` goes on from unit to unit. */
static uint64_t find_unit(const part_process *p, uint64_t unit, size_t *tensor) {
    const parted_model *model = p->model;
    while (*tensor + 1 < model->count && unit >= model->tensors[*tensor + 1].start) {
        (*tensor)++;
    }
    const bench_tensor *whole = &model->tensors[*tensor];
    const share *held = &p->shares[*tensor];
    uint64_t row = (unit - whole->start) / whole->columns - held->first_row;
    uint64_t column = (unit - whole->start) % whole->columns - held->first_column;
    return row < held->rows && column < held->columns ? held->start + row * held->columns + column
                                                      : UINT64_MAX;
}

static bool keep_flip(part_process *p, uint64_t position, uint16_t bits) {
    sync_flips *flips = &p->flips;
    if (flips->count % BLOCK == 0) {
        size_t room = (size_t)flips->count + BLOCK;
        uint64_t *positions = realloc(flips->positions, room * sizeof *positions);
        flips->positions = positions != NULL ? positions : flips->positions;
        uint16_t *kept = realloc(flips->bits, room * sizeof *kept);
        flips->bits = kept != NULL ? kept : flips->bits;
        if (positions == NULL || kept == NULL) {
            return false;
        }
    }
    flips->positions[flips->count] = position;
    flips->bits[flips->count++] = bits;
    return true;
}

static bool read_flips(part_process *p) {
    uint64_t *positions = malloc(BLOCK * sizeof *positions);
    uint16_t *bits = malloc(BLOCK * sizeof *bits);
    int position_file = open(p->model->positions, O_RDONLY | O_CLOEXEC);
    int bit_file = open(p->model->bits, O_RDONLY | O_CLOEXEC);
    bool good = positions != NULL && bits != NULL && position_file >= 0 && bit_file >= 0;
    size_t tensor = 0;
    for (uint64_t done = 0; done < p->model->changed && good; done += BLOCK) {
        uint64_t left = p->model->changed - done;
        size_t count = left < BLOCK ? (size_t)left : BLOCK;
        good = read_at(position_file, positions, count * sizeof *positions, done * sizeof *positions) &&
               read_at(bit_file, bits, count * sizeof *bits, done * sizeof *bits);
        for (size_t i = 0; i < count && good; i++) {
            uint64_t unit = find_unit(p, positions[i], &tensor);
            good = unit == UINT64_MAX || keep_flip(p, unit, bits[i]);
        }
    }
    if (position_file >= 0) {
        close(position_file);
    }
    if (bit_file >= 0) {
        close(bit_file);
    }
    free(positions);
    free(bits);
    return good;
}

static int open_memory(part_process *p) {
    p->shares = calloc(p->model->count, sizeof *p->shares);
    p->cuts = calloc(p->model->count, sizeof *p->cuts);
    if (p->shares == NULL || p->cuts == NULL) {
        return sync_no_memory(p->bench);
    }
    for (size_t i = 0; i < p->model->count; i++) {
        const bench_tensor *tensor = &p->model->tensors[i];
        p->shares[i] = share_of(tensor, p->part, p->parts);
        p->shares[i].start = p->units;
        p->units += (p->shares[i].rows * p->shares[i].columns + 31) / 32 * 32;
        if (p->shares[i].dim >= 0) {
            p->cuts[p->cut_count++] = (weft_cut){tensor->name, (uint32_t)p->shares[i].dim, p->parts};
        }
    }
    p->weights = bench_map((size_t)p->units * sizeof *p->weights);
    if (p->weights == NULL) {
        return sync_no_memory(p->bench);
    }
    return read_weights(p) && read_flips(p)
               ? EXIT_DONE
               : command_error(p->bench->command, EXIT_FAILED, "cannot read the model's files");
}

/* A part of a tensor as it lies in this process, and the whole tensor that it is of. */
static weft_status add_tensor(part_process *p, size_t index, weft_layout *layout) {
    const bench_tensor *tensor = &p->model->tensors[index];
    const share *held = &p->shares[index];
    weft_tensor whole = {
        .size = sizeof whole, .name = tensor->name, .dtype = WEFT_DTYPE_BF16, .rank = tensor->rank};
    memcpy(whole.shape, tensor->shape, sizeof whole.shape);
    weft_tensor live = whole;
    weft_slice slice = {.tensor = tensor->name, .dim = held->dim};
    if (held->dim >= 0) {
        live.shape[held->dim] = held->dim == 0 ? held->rows : held->columns;
        slice.start = held->dim == 0 ? held->first_row : held->first_column;
        slice.length = live.shape[held->dim];
    }
    live.data = p->weights + held->start;
    weft_status status = weft_table_add(p->whole, &whole);
    if (status == WEFT_OK) {
        status = weft_table_add(p->live, &live);
    }
    return status == WEFT_OK ? weft_layout_concat(layout, tensor->name, 0, &slice, 1) : status;
}

static weft_status open_view(part_process *p) {
    weft_layout *layout = NULL;
    weft_status status = weft_table_create(p->context, &p->whole);
    if (status == WEFT_OK) {
        status = weft_table_create(p->context, &p->live);
    }
    if (status == WEFT_OK) {
        status = weft_layout_create(p->context, &layout);
    }
    for (size_t i = 0; i < p->model->count && status == WEFT_OK; i++) {
        status = add_tensor(p, i, layout);
    }
    if (status == WEFT_OK) {
        status = weft_view_create_layout(p->context, p->live, layout, p->whole, &p->view);
    }
    weft_layout_destroy(layout);
    return status;
}

static weft_status publish_step(part_process *p, weft_publish_result *result) {
    char step[24];
    snprintf(step, sizeof step, "%llu", (unsigned long long)++p->step);
    const char *labels[] = {"step", step, NULL};
    return weft_publisher_publish(p->publisher, labels, result);
}

static int open_process(part_process *p, const char *store, weft_profile profile) {
    int code = open_memory(p);
    if (code == EXIT_DONE) {
        code = sync_context(p->bench, 1, &p->context);
    }
    if (code != EXIT_DONE) {
        return code;
    }
    const weft_publisher_options options = {
        .size = sizeof options,
        .profile = profile,
        .cuts = p->cuts,
        .cut_count = p->cut_count,
        .anchor_ratio = -1,
        .no_leaps = true, /* parts make none */
        .spool_directory = p->bench->directory,
        .part_index = p->part,
        .part_count = p->parts,
        .part_seconds = 600,
    };
    weft_status status = weft_store_open(p->context, store, NULL, &p->store);
    if (status == WEFT_OK) {
        status = open_view(p);
    }
    if (status == WEFT_OK) {
        status = weft_publisher_open(p->context, p->store, p->view, &options, &p->publisher);
    }
    if (status == WEFT_OK) {
        status = publish_step(p, NULL);
    }
    return status == WEFT_OK ? EXIT_DONE : sync_fail(p->bench, p->context, status);
}

/* What it answers. */
typedef struct part_report {
    uint64_t peak_bytes; /* of memory that it has taken itself */
    uint64_t held_bytes;
    double processor_seconds; /* that it has used, in all */
    weft_publish_result result;
} part_report;

static uint64_t peak_bytes(const struct rusage *usage) {
    return (uint64_t)usage->ru_maxrss * 1024;
}

static bool report(part_process *p, int answers, const weft_publish_result *result) {
    struct rusage usage;
    part_report said = {.held_bytes = p->units * sizeof *p->weights, .result = *result};
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        said.peak_bytes = peak_bytes(&usage) - p->inherited_bytes;
        said.processor_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                                 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    return write(answers, &said, sizeof said) == (ssize_t)sizeof said;
}

/* Each byte on `orders` is a step of training ('s') or a publish ('p'); its end is the end. */
static int run_process(part_process *p, int orders, int answers) {
    weft_publish_result result = {.size = sizeof result};
    char order;
    bool told = report(p, answers, &result);
    while (told && read(orders, &order, 1) == 1) {
        if (order == 's') {
            sync_flips_apply(&p->flips, p->weights);
        } else {
            weft_status status = publish_step(p, &result);
            if (status != WEFT_OK) {
                return sync_fail(p->bench, p->context, status);
            }
        }
        told = report(p, answers, &result);
    }
    weft_publisher_close(p->publisher);
    return EXIT_DONE;
}

/* ---- a team of them ---- */

typedef struct team {
    sync_bench *bench;
    unsigned count;
    pid_t pids[PARTS];
    int orders[PARTS];
    int answers[PARTS];
    part_report reports[PARTS];
    char *store;
} team;

static void become_process(team *t, const parted_model *model, unsigned part, weft_profile profile,
                           int orders, int answers) {
    part_process p = {.bench = t->bench, .model = model, .part = part, .parts = t->count};
    struct rusage usage;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* the peak of a process begins with what it has when it is forked */
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        p.inherited_bytes = peak_bytes(&usage);
    }
    /* the ends of the others */
    for (unsigned i = 0; i < part; i++) {
        close(t->orders[i]);
        close(t->answers[i]);
    }
    int code = open_process(&p, t->store, profile);
    if (code == EXIT_DONE) {
        code = run_process(&p, orders, answers);
    }
    _exit(code);
}

static int start_process(team *t, const parted_model *model, unsigned part, weft_profile profile) {
    int orders[2], answers[2];
    if (pipe2(orders, O_CLOEXEC) != 0) {
        return command_error(t->bench->command, EXIT_FAILED, "no pipe: %s", strerror(errno));
    }
    if (pipe2(answers, O_CLOEXEC) != 0) {
        close(orders[0]);
        close(orders[1]);
        return command_error(t->bench->command, EXIT_FAILED, "no pipe: %s", strerror(errno));
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(orders[1]);
        close(answers[0]);
        become_process(t, model, part, profile, orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    t->pids[part] = pid;
    t->orders[part] = orders[1];
    t->answers[part] = answers[0];
    return pid > 0 ? EXIT_DONE
                   : command_error(t->bench->command, EXIT_FAILED, "cannot start a process: %s",
                                   strerror(errno));
}

/* A process that has ended has told why. */
static int hear(team *t, unsigned part) {
    for (size_t done = 0; done < sizeof t->reports[part];) {
        ssize_t count =
            read(t->answers[part], (char *)&t->reports[part] + done, sizeof t->reports[part] - done);
        if (count == 0 || (count < 0 && errno != EINTR)) {
            int code = sync_go_on(t->bench);
            return code == EXIT_DONE
                       ? command_error(t->bench->command, EXIT_FAILED, "a process of the bench has ended")
                       : code;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return EXIT_DONE;
}

static int hear_all(team *t) {
    int code = EXIT_DONE;
    for (unsigned i = 0; i < t->count && code == EXIT_DONE; i++) {
        code = hear(t, i);
    }
    return code;
}

static int order_all(team *t, char order) {
    for (unsigned i = 0; i < t->count; i++) {
        if (write(t->orders[i], &order, 1) != 1) {
            return command_error(t->bench->command, EXIT_FAILED, "a process of the bench has ended");
        }
    }
    return hear_all(t);
}

static void close_team(team *t) {
    for (unsigned i = 0; i < t->count; i++) {
        if (t->pids[i] > 0) {
            close(t->orders[i]);
            close(t->answers[i]);
            while (waitpid(t->pids[i], NULL, 0) < 0 && errno == EINTR) {
            }
        }
    }
    sync_store_remove(t->store);
}

/* All have published the first version when this returns. */
static int open_team(sync_bench *bench, const parted_model *model, unsigned count, weft_profile profile,
                     team *t) {
    *t = (team){.bench = bench, .count = count};
    t->store = sync_store_path(bench, count == 1 ? "alone" : "together");
    int code = t->store != NULL ? EXIT_DONE : EXIT_FAILED;
    for (unsigned i = 0; i < count && code == EXIT_DONE; i++) {
        code = start_process(t, model, i, profile);
    }
    return code == EXIT_DONE ? hear_all(t) : code;
}

static double processor_seconds(const team *t) {
    double seconds = 0;
    for (unsigned i = 0; i < t->count; i++) {
        seconds += t->reports[i].processor_seconds;
    }
    return seconds;
}

/* The smallest of all runs is kept in `processor`: unlike the time it does not grow when others are busy.
 */
static int time_publish(team *t, double *seconds, double *processor) {
    int code = order_all(t, 's');
    if (code != EXIT_DONE) {
        return code;
    }
    bench_chill();
    double used = processor_seconds(t);
    double start = clock_seconds();
    code = order_all(t, 'p');
    *seconds = clock_seconds() - start;
    used = processor_seconds(t) - used;
    *processor = *processor == 0 || used < *processor ? used : *processor;
    return code;
}

/* ---- the comparison ---- */

static int compare_runs(sync_bench *bench, team *alone, team *together, sync_parts_row *row,
                        double *samples) {
    unsigned repeat = bench->options->repeat;
    int code = EXIT_DONE;
    for (unsigned i = 0; i < repeat && code == EXIT_DONE; i++) {
        code = time_publish(alone, &samples[i], &row->alone_processor);
        if (code == EXIT_DONE) {
            code = time_publish(together, &samples[repeat + i], &row->together_processor);
        }
        const weft_digest *one = &alone->reports[0].result.digest;
        const weft_digest *other = &together->reports[0].result.digest;
        if (code == EXIT_DONE && !weft_digest_equal(one, other)) {
            code = command_error(bench->command, EXIT_FAILED,
                                 "the parts have published something else than the process alone");
        }
    }
    if (code == EXIT_DONE) {
        row->alone = sync_times_of(samples, repeat);
        row->together = sync_times_of(samples + repeat, repeat);
        row->patch_bytes = together->reports[0].result.patch_bytes;
        row->alone_peak = alone->reports[0].peak_bytes;
        row->alone_held = alone->reports[0].held_bytes;
        for (unsigned i = 0; i < PARTS; i++) {
            row->peaks[i] = together->reports[i].peak_bytes;
            row->held[i] = together->reports[i].held_bytes;
        }
    }
    return code;
}

static int compare(sync_bench *bench, const parted_model *model, sync_parts_row *row) {
    team alone = {0}, together = {0};
    double *samples = calloc(2 * (size_t)bench->options->repeat, sizeof *samples);
    int code = samples != NULL ? EXIT_DONE : sync_no_memory(bench);
    if (code == EXIT_DONE) {
        code = open_team(bench, model, 1, row->profile, &alone);
    }
    if (code == EXIT_DONE) {
        code = open_team(bench, model, PARTS, row->profile, &together);
    }
    if (code == EXIT_DONE) {
        code = compare_runs(bench, &alone, &together, row, samples);
    }
    close_team(&together);
    close_team(&alone);
    free(samples);
    return code;
}

int bench_sync_parts(sync_bench *bench, sync_results *all) {
    sync_parts_results *results = &all->parts;
    parted_model model;
    int code = open_parted(bench, &model);
    results->total = model.units;
    results->changed = model.changed;
    for (int i = 0; i < 2 && code == EXIT_DONE; i++) {
        results->rows[i].profile = i == 0 ? WEFT_PROFILE_FAST : WEFT_PROFILE_SMALL;
        code = compare(bench, &model, &results->rows[i]);
    }
    close_parted(&model);
    return code;
}
