/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.c: the processes of a sharded trainer.
 */
#include "shards.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 6, PATTERN = 32 };

/* How a tensor is held: its rows or its columns divided, or all of it by everybody. */
typedef enum sharding { BY_ROWS, BY_COLUMNS, REPLICATED } sharding;

static const struct {
    const char *name;
    weft_dtype dtype;
    uint64_t rows, columns;
    sharding sharding;
    bool masters;
} tensors[TENSORS] = {
    {"embed", WEFT_DTYPE_BF16, 512, 128, BY_ROWS, false},
    {"layer.0.down", WEFT_DTYPE_BF16, 128, 512, BY_COLUMNS, false},
    {"layer.0.norm", WEFT_DTYPE_F32, 128, 0, REPLICATED, false},
    {"layer.0.up", WEFT_DTYPE_BF16, 512, 128, BY_ROWS, true},
    {"layer.1.down", WEFT_DTYPE_BF16, 64, 256, BY_COLUMNS, false},
    {"scale", WEFT_DTYPE_F16, 33, 3, REPLICATED, false},
};

static const weft_cut cut_patterns[] = {
    {"embed", 0, 0},
    {"*.down", 1, 0},
    {"*.up", 0, 0},
};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "shards: %s\n", what);
        abort();
    }
}

static uint64_t elements(size_t tensor) {
    return tensors[tensor].rows * (tensors[tensor].columns > 0 ? tensors[tensor].columns : 1);
}

/* ---- the whole model ---- */

static void randomize(shard_model *m) {
    dice dice = {4711};
    for (size_t i = 0; i < TENSORS; i++) {
        if (tensors[i].masters) {
            float *masters = m->model.blocks[i];
            for (uint64_t j = 0; j < elements(i); j++) {
                masters[j] = (float)(dice_below(&dice, 2000) + 1) / 1000.0f - 1.0f;
            }
        } else {
            weights_fill(&dice, WEIGHTS_TRAINED, tensors[i].dtype, m->model.blocks[i], (size_t)elements(i));
        }
    }
    m->step = 1;
}

static void step_once(shard_model *m) {
    dice dice = {++m->step * 7919};
    for (size_t i = 0; i < TENSORS; i++) {
        if (tensors[i].masters) {
            float *masters = m->model.blocks[i];
            for (uint64_t j = 0; j < elements(i); j++) {
                masters[j] += ((float)dice_below(&dice, 2001) - 1000.0f) * 1e-5f;
            }
        } else {
            weights_change(&dice, CHANGE_MIXED, weft_dtype_width(tensors[i].dtype), m->model.blocks[i],
                           (size_t)elements(i), 20000);
        }
    }
}

void shard_model_open(shard_model *m, weft_context *context) {
    m->context = context;
    model_open(&m->model, context);
    for (size_t i = 0; i < TENSORS; i++) {
        if (tensors[i].masters) {
            model_add_masters(&m->model, tensors[i].name, tensors[i].rows, tensors[i].columns);
        } else {
            model_add(&m->model, tensors[i].name, tensors[i].dtype, tensors[i].rows, tensors[i].columns);
        }
    }
    model_show(&m->model);
    randomize(m);
}

void shard_model_close(shard_model *m) {
    model_close(&m->model);
}

void shard_model_set(shard_model *m, uint64_t step) {
    if (step < m->step) {
        randomize(m);
    }
    while (m->step < step) {
        step_once(m);
    }
}

/* ---- a process ---- */

typedef enum shard_verb { VERB_PUBLISH, VERB_FAULT, VERB_FAIL_AT, VERB_STOP } shard_verb;

typedef struct shard_command {
    shard_verb verb;
    uint64_t step;
    uint64_t label;
    fault_kind kind;
    unsigned operations;
    char pattern[PATTERN];
    double seconds;
    uint64_t skip;
    bool lose;
    weft_status status;
} shard_command;

typedef struct process {
    weft_context *context;
    weft_store *inner;
    weft_store *store;
    fault_store *faults;
    unsigned index, count;
    shard_model whole;
    model part;
    weft_view *view;
    weft_publisher *publisher;
    weft_cut cuts[4];
    weft_key *key;
    shard_command fault;
} process;

static uint64_t part_rows(const process *p, size_t i) {
    return tensors[i].sharding == BY_ROWS ? tensors[i].rows / p->count : tensors[i].rows;
}

static uint64_t part_columns(const process *p, size_t i) {
    return tensors[i].sharding == BY_COLUMNS ? tensors[i].columns / p->count : tensors[i].columns;
}

/* The part's own memory, and how it lies in the whole. */
static void open_part(process *p) {
    weft_layout *layout;
    require(weft_layout_create(p->context, &layout) == WEFT_OK, "no layout");
    model_open(&p->part, p->context);
    for (size_t i = 0; i < TENSORS; i++) {
        uint64_t rows = part_rows(p, i);
        uint64_t columns = part_columns(p, i);
        if (tensors[i].masters) {
            model_add_masters(&p->part, tensors[i].name, rows, columns);
        } else {
            model_add(&p->part, tensors[i].name, tensors[i].dtype, rows, columns);
        }
        weft_slice slice = {.tensor = tensors[i].name, .dim = -1};
        if (tensors[i].sharding == BY_ROWS) {
            slice = (weft_slice){tensors[i].name, 0, p->index * rows, rows};
        } else if (tensors[i].sharding == BY_COLUMNS) {
            slice = (weft_slice){tensors[i].name, 1, p->index * columns, columns};
        }
        require(weft_layout_concat(layout, tensors[i].name, 0, &slice, 1) == WEFT_OK, "no slice");
    }
    require(weft_view_create_layout(p->context, p->part.table, layout, p->whole.model.table, &p->view) ==
                WEFT_OK,
            weft_context_error(p->context));
    weft_layout_destroy(layout);
}

static void fill_part(process *p) {
    for (size_t i = 0; i < TENSORS; i++) {
        size_t width = tensors[i].masters ? sizeof(float) : weft_dtype_width(tensors[i].dtype);
        size_t rows = (size_t)part_rows(p, i);
        size_t columns = (size_t)(part_columns(p, i) > 0 ? part_columns(p, i) : 1);
        size_t stride = (size_t)(tensors[i].columns > 0 ? tensors[i].columns : 1);
        size_t row = tensors[i].sharding == BY_ROWS ? p->index * rows : 0;
        size_t column = tensors[i].sharding == BY_COLUMNS ? p->index * columns : 0;
        for (size_t r = 0; r < rows; r++) {
            memcpy((uint8_t *)p->part.blocks[i] + r * columns * width,
                   (uint8_t *)p->whole.model.blocks[i] + ((row + r) * stride + column) * width,
                   columns * width);
        }
    }
}

static weft_status open_process(process *p, const char *url, const shard_options *options) {
    const weft_context_options threads = {.size = sizeof threads, .threads = 2};
    /* processes are killed here, machines are not */
    const weft_store_options volatile_store = {.size = sizeof volatile_store, .volatile_writes = true};
    size_t cuts = sizeof cut_patterns / sizeof *cut_patterns;
    require(weft_context_create(&threads, &p->context) == WEFT_OK, "no context");
    require(weft_store_open(p->context, url, &volatile_store, &p->inner) == WEFT_OK, "no store");
    require(fault_store_create(p->context, p->inner, p->index, &p->store, &p->faults) == WEFT_OK,
            "no faults");
    shard_model_open(&p->whole, p->context);
    open_part(p);
    for (size_t i = 0; i < cuts; i++) {
        p->cuts[i] = cut_patterns[i];
        p->cuts[i].parts = p->count;
    }
    if (options->other_cuts) {
        p->cuts[0].parts = 2 * p->count;
    }
    if (options->key != NULL) {
        require(weft_key_read(p->context, options->key, &p->key) == WEFT_OK, "no key");
    }
    const weft_publisher_options chosen = {
        .size = sizeof chosen,
        .profile = options->profile,
        .bucket_bytes = 32 << 10,
        .cuts = p->cuts,
        .cut_count = options->uncut ? 0 : cuts,
        .anchor_ratio = options->anchor_ratio,
        .part_index = p->index,
        .part_count = p->count,
        .part_seconds = options->part_seconds,
        .key = p->key,
        .adopt = p->key != NULL,
        .max_lag = options->max_lag,
        .max_lag_seconds = options->max_lag_seconds,
    };
    return weft_publisher_open(p->context, p->store, p->view, &chosen, &p->publisher);
}

static void receive(int channel, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t count = read(channel, (char *)data + done, size - done);
        if (count <= 0) {
            _exit(3); /* the test has ended */
        }
        done += (size_t)count;
    }
}

static void answer(process *p, int channel, weft_status status, const weft_publish_result *result) {
    shard_answer said = {.status = status};
    struct rusage usage;
    if (status == WEFT_OK && result != NULL) {
        said.result = *result;
    }
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        said.peak_kib = (uint64_t)usage.ru_maxrss;
    }
    snprintf(said.text, sizeof said.text, "%s", status != WEFT_OK ? weft_context_error(p->context) : "");
    if (write(channel, &said, sizeof said) != (ssize_t)sizeof said) {
        _exit(3);
    }
}

static void publish(process *p, int channel, const shard_command *command) {
    char label[24];
    weft_publish_result result = {.size = sizeof result};
    shard_model_set(&p->whole, command->step);
    fill_part(p);
    snprintf(label, sizeof label, "%llu", (unsigned long long)command->label);
    const char *labels[] = {"step", label, NULL};
    weft_status status = weft_publisher_publish(p->publisher, command->label != 0 ? labels : NULL, &result);
    fault_store_set(p->faults, NULL, 0);
    fault_store_fail_at(p->faults, 0, WEFT_OK);
    answer(p, channel, status, &result);
}

static void end_process(void *opaque) {
    (void)opaque;
    kill(getpid(), SIGKILL);
}

static void set_fault(process *p, const shard_command *command) {
    p->fault = *command;
    const fault_rule rule = {
        .kind = command->kind,
        .operations = command->operations,
        .pattern = p->fault.pattern,
        .limit = 1,
        .seconds = command->seconds,
        .skip = command->skip,
        .status = command->status,
        .meanwhile = end_process,
    };
    fault_store_set(p->faults, &rule, 1);
}

static void run_process(process *p, int channel) {
    for (;;) {
        shard_command command;
        receive(channel, &command, sizeof command);
        switch (command.verb) {
        case VERB_PUBLISH:
            publish(p, channel, &command);
            break;
        case VERB_FAULT:
            set_fault(p, &command);
            break;
        case VERB_FAIL_AT:
            if (command.lose) {
                fault_store_lose_at(p->faults, command.skip, WEFT_REMOTE_FAILED);
            } else {
                fault_store_fail_at(p->faults, command.skip, WEFT_REMOTE_FAILED);
            }
            break;
        case VERB_STOP:
            weft_publisher_close(p->publisher);
            weft_view_destroy(p->view);
            model_close(&p->part);
            shard_model_close(&p->whole);
            weft_store_close(p->store);
            weft_store_close(p->inner);
            weft_key_destroy(p->key);
            weft_context_destroy(p->context);
            return;
        }
    }
}

/* ---- from outside ---- */

void shard_start(shard *shard, const char *store, unsigned index, unsigned count,
                 const shard_options *options) {
    int channels[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) == 0, "no channel");
    fflush(NULL);
    shard->pid = fork();
    require(shard->pid >= 0, "no process");
    if (shard->pid == 0) {
        process p = {.index = index, .count = count};
        close(channels[0]);
        weft_status status = open_process(&p, store, options);
        answer(&p, channels[1], status, NULL);
        if (status == WEFT_OK) {
            run_process(&p, channels[1]);
        }
        exit(0); /* where sanitizers look for what was not released */
    }
    close(channels[1]);
    shard->channel = channels[0];
    shard_answer opened = shard_wait(shard);
    require(opened.status == WEFT_OK, opened.text);
}

static void send_command(const shard *shard, const shard_command *command) {
    require(write(shard->channel, command, sizeof *command) == (ssize_t)sizeof *command, "no way to tell");
}

void shard_fault(shard *shard, fault_kind kind, unsigned operations, const char *pattern, double seconds,
                 uint64_t skip) {
    shard_command command = {
        .verb = VERB_FAULT, .kind = kind, .operations = operations, .seconds = seconds, .skip = skip};
    snprintf(command.pattern, sizeof command.pattern, "%s", pattern);
    send_command(shard, &command);
}

void shard_fail_with(shard *shard, weft_status status, unsigned operations, const char *pattern) {
    shard_command command = {
        .verb = VERB_FAULT, .kind = FAULT_FAIL, .operations = operations, .status = status};
    snprintf(command.pattern, sizeof command.pattern, "%s", pattern);
    send_command(shard, &command);
}

void shard_fail_at(shard *shard, bool lose, uint64_t n) {
    const shard_command command = {.verb = VERB_FAIL_AT, .lose = lose, .skip = n};
    send_command(shard, &command);
}

void shard_publish(shard *shard, uint64_t step, uint64_t label) {
    const shard_command command = {.verb = VERB_PUBLISH, .step = step, .label = label};
    send_command(shard, &command);
}

shard_answer shard_wait(shard *shard) {
    shard_answer said;
    for (size_t done = 0; done < sizeof said;) {
        ssize_t count = read(shard->channel, (char *)&said + done, sizeof said - done);
        require(count > 0, "a process has ended");
        done += (size_t)count;
    }
    return said;
}

static int bury(shard *shard) {
    int how;
    require(waitpid(shard->pid, &how, 0) == shard->pid, "no such process");
    close(shard->channel);
    shard->pid = 0;
    return how;
}

void shard_stop(shard *shard) {
    const shard_command command = {.verb = VERB_STOP};
    send_command(shard, &command);
    require(bury(shard) == 0, "a process has ended badly");
}

void shard_await_death(shard *shard) {
    bury(shard);
}

void shard_kill(shard *shard) {
    require(kill(shard->pid, SIGKILL) == 0, "cannot be killed");
    bury(shard);
}
