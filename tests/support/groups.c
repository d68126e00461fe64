/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: a sharded model, and processes that hold its ranks.
 */
#include "groups.h"
#include "described.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HIDDEN = 96, INNER = 128, KEYS = 64, WORDS = 256, PARTS = 9 };

/* A tensor of the checkpoint, how it is cut, and which live tensor it is a part of. */
typedef struct shard {
    const char *name;
    uint64_t rows, columns;
    int dim; /* -1: every rank has all of it */
    size_t live;
} shard;

static const shard shards[PARTS] = {
    {"down", HIDDEN, INNER, 1, 0}, {"embed", WORDS, HIDDEN, 0, 1}, {"gate", INNER, HIDDEN, 0, 2},
    {"up", INNER, HIDDEN, 0, 2},   {"k", KEYS, HIDDEN, 0, 3},      {"norm", HIDDEN, 0, -1, 4},
    {"o", HIDDEN, INNER, 1, 5},    {"q", INNER, HIDDEN, 0, 3},     {"v", KEYS, HIDDEN, 0, 3},
};
static const char *const live_names[SHARDED_LIVE] = {"live.down", "live.embed", "live.gate_up",
                                                     "live.qkv",  "live.norm",  "live.o"};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "groups: %s\n", what);
        abort();
    }
}

static uint64_t units_of(const shard *shard) {
    return shard->rows * (shard->columns > 0 ? shard->columns : 1);
}

/* ---- the trainer ---- */

void sharded_open(model *model, weft_context *context, dice *dice) {
    model_open(model, context);
    for (size_t i = 0; i < PARTS; i++) {
        void *data = model_add(model, shards[i].name, WEFT_DTYPE_BF16, shards[i].rows, shards[i].columns);
        weights_fill(dice, WEIGHTS_TRAINED, WEFT_DTYPE_BF16, data, (size_t)units_of(&shards[i]));
    }
    model_show(model);
}

void sharded_step(model *model, dice *dice, unsigned per_million) {
    for (size_t i = 0; i < PARTS; i++) {
        weights_change(dice, CHANGE_MIXED, 2, model->blocks[i], (size_t)units_of(&shards[i]), per_million);
    }
}

void sharded_cuts(unsigned world, weft_cut cuts[SHARDED_CUTS]) {
    size_t count = 0;
    for (size_t i = 0; i < PARTS; i++) {
        if (shards[i].dim >= 0) {
            cuts[count++] = (weft_cut){shards[i].name, (uint32_t)shards[i].dim, world};
        }
    }
}

/* ---- a rank's weights ---- */

static uint64_t shard_rows(const shard *shard, unsigned world) {
    return shard->dim == 0 ? shard->rows / world : shard->rows;
}

static uint64_t shard_columns(const shard *shard, unsigned world) {
    uint64_t columns = shard->columns > 0 ? shard->columns : 1;
    return shard->dim == 1 ? columns / world : columns;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *cursor = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ cursor[i]) * 0x100000001b3;
    }
    return hash;
}

static uint64_t hash_shard(uint64_t hash, const shard *shard, const uint16_t *data, unsigned world,
                           unsigned rank) {
    uint64_t columns = shard->columns > 0 ? shard->columns : 1;
    uint64_t rows = shard_rows(shard, world);
    uint64_t width = shard_columns(shard, world);
    uint64_t first_row = shard->dim == 0 ? rank * rows : 0;
    uint64_t first_column = shard->dim == 1 ? rank * width : 0;
    for (uint64_t i = 0; i < rows; i++) {
        hash = hash_bytes(hash, data + (first_row + i) * columns + first_column, (size_t)width * 2);
    }
    return hash;
}

/* In the order of the live tensors, and in that of the checkpoint within one. */
uint64_t sharded_hash(const model *model, unsigned world, unsigned rank) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t live = 0; live < SHARDED_LIVE; live++) {
        for (size_t i = 0; i < PARTS; i++) {
            if (shards[i].live == live) {
                hash = hash_shard(hash, &shards[i], model->blocks[i], world, rank);
            }
        }
    }
    return hash;
}

typedef struct rank_model rank_model;

/* What a callback is given. */
typedef struct reach {
    rank_model *model;
    size_t block;
} reach;

struct rank_model {
    weft_context *context;
    unsigned world;
    weft_table *table;
    weft_layout *layout;
    weft_view *view; /* of the whole model */
    uint16_t *blocks[PARTS];
    size_t units[PARTS];
    size_t count;
    uint64_t scatters_left; /* until the process is killed; 0: never */
    reach reaches[PARTS];
};

static weft_status read_block(void *opaque, uint64_t offset, void *output, size_t size) {
    const reach *where = opaque;
    memcpy(output, (const uint8_t *)where->model->blocks[where->block] + offset, size);
    return WEFT_OK;
}

static weft_status scatter_block(void *opaque, const uint64_t *units, size_t count, const void *values) {
    const reach *where = opaque;
    const uint16_t *news = values;
    for (size_t i = 0; i < count; i++) {
        if (where->model->scatters_left > 0 && --where->model->scatters_left == 0) {
            raise(SIGKILL);
        }
        where->model->blocks[where->block][units[i]] = news[i];
    }
    return WEFT_OK;
}

static const weft_access callbacks = {.read = read_block, .scatter = scatter_block};

static void add_live(rank_model *model, const char *name, uint64_t rows, uint64_t columns, bool called) {
    weft_tensor tensor = {.size = sizeof tensor, .name = name, .dtype = WEFT_DTYPE_BF16, .writable = true};
    tensor.rank = columns > 0 ? 2 : 1;
    tensor.shape[0] = rows;
    tensor.shape[1] = columns;
    size_t index = model->count++;
    model->units[index] = (size_t)(rows * (columns > 0 ? columns : 1));
    model->blocks[index] = calloc(model->units[index], 2);
    require(model->blocks[index] != NULL, "no memory");
    if (called) {
        model->reaches[index] = (reach){model, index};
        tensor.access = &callbacks;
        tensor.opaque = &model->reaches[index];
    } else {
        tensor.data = model->blocks[index];
    }
    require(weft_table_add(model->table, &tensor) == WEFT_OK, "no tensor");
}

static void add_sharded(rank_model *model, size_t live, unsigned rank, bool called) {
    weft_slice slices[PARTS];
    size_t count = 0;
    uint64_t rows = 0;
    uint64_t columns = 0;
    for (size_t i = 0; i < PARTS; i++) {
        const shard *shard = &shards[i];
        if (shard->live != live) {
            continue;
        }
        uint64_t length =
            shard->dim == 1 ? shard_columns(shard, model->world) : shard_rows(shard, model->world);
        slices[count++] = (weft_slice){shard->name, shard->dim, rank * length, length};
        rows += shard_rows(shard, model->world);
        columns = shard->columns > 0 ? shard_columns(shard, model->world) : 0;
    }
    add_live(model, live_names[live], rows, columns, called);
    require(weft_layout_concat(model->layout, live_names[live], 0, slices, count) == WEFT_OK, "no layout");
}

static void rank_open(rank_model *model, weft_context *context, const group_role *role) {
    *model = (rank_model){.context = context, .world = role->world};
    bool called = role->fault == GROUP_FAULT_COMMITTING;
    require(weft_table_create(context, &model->table) == WEFT_OK, "no table");
    require(weft_layout_create(context, &model->layout) == WEFT_OK, "no layout");
    if (!role->whole) {
        for (size_t i = 0; i < SHARDED_LIVE; i++) {
            add_sharded(model, i, role->rank, called);
        }
        return;
    }
    /* in the order of the hash, which does not depend on the names */
    for (size_t live = 0; live < SHARDED_LIVE; live++) {
        for (size_t i = 0; i < PARTS; i++) {
            if (shards[i].live == live) {
                add_live(model, shards[i].name, shards[i].rows, shards[i].columns, called);
            }
        }
    }
    require(weft_view_create(context, model->table, &model->view) == WEFT_OK, "no view");
}

static void rank_close(rank_model *model) {
    weft_view_destroy(model->view);
    weft_table_destroy(model->table);
    weft_layout_destroy(model->layout);
    for (size_t i = 0; i < model->count; i++) {
        free(model->blocks[i]);
    }
}

static uint64_t rank_hash(const rank_model *model) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < model->count; i++) {
        hash = hash_bytes(hash, model->blocks[i], model->units[i] * 2);
    }
    return hash;
}

/* ---- the log ---- */

__attribute__((format(printf, 2, 3))) static void note(int log, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    length = length < (int)sizeof line - 1 ? length : (int)sizeof line - 2;
    line[length] = '\n';
    require(write(log, line, (size_t)length + 1) == length + 1, "no log");
}

static int open_log(const group_role *role) {
    int log = open(role->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    require(log >= 0, "no log");
    return log;
}

/* ---- the leader ---- */

int group_lead(const group_role *role) {
    weft_context *context;
    weft_store *store;
    weft_group *group;
    const weft_group_options options = {.size = sizeof options, .members = role->world};
    const weft_context_options threads = {.size = sizeof threads, .threads = 2};
    int log = open_log(role);
    require(weft_context_create(&threads, &context) == WEFT_OK, "no context");
    require(weft_store_open(context, role->store, NULL, &store) == WEFT_OK, "no store");
    weft_status status = weft_group_lead(context, store, role->group, &options, &group);
    if (status != WEFT_OK) {
        note(log, "E %s", weft_context_error(context));
    }
    bool ended = status != WEFT_OK;
    while (!ended) {
        uint64_t version = 0;
        weft_status moved = weft_group_run(group, 0.1, &version);
        weft_group_info info = {.size = sizeof info};
        weft_group_describe(group, &info);
        if (moved == WEFT_OK) {
            note(log, "L %llu %llu", (unsigned long long)version, (unsigned long long)info.fetched_bytes);
        } else if (moved < 0) {
            note(log, "%c %s", moved == WEFT_ABORTED ? 'A' : 'E', weft_context_error(context));
        }
        ended = info.version >= role->until && info.present == 0;
    }
    if (status == WEFT_OK) {
        weft_group_close(group);
    }
    weft_store_close(store);
    weft_context_destroy(context);
    close(log);
    return status == WEFT_OK ? 0 : 1;
}

/* ---- a member ---- */

typedef struct member_run {
    const group_role *role;
    weft_context *context;
    rank_model model;
    weft_member *member;
    int log;
    bool drifted;
    bool doomed; /* it is killed when it is asked whether to go on */
} member_run;

/* A killed process must not have voted by accident: it dies where it waits for votes. */
static bool doom(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    const member_run *run = opaque;
    (void)done;
    (void)total;
    if (run->doomed && strcmp(phase, "vote") == 0) {
        raise(SIGKILL);
    }
    return true;
}

static weft_status enter(member_run *run) {
    const group_role *role = run->role;
    const weft_member_options options = {
        .size = sizeof options, .seconds = role->seconds, .audit_bytes = 4096};
    weft_status status =
        role->whole ? weft_member_open(run->context, role->group, role->rank, run->model.view, &options,
                                       &run->member)
                    : weft_member_open_layout(run->context, role->group, role->rank, run->model.table,
                                              run->model.layout, &options, &run->member);
    if (status == WEFT_OK) {
        weft_member_info info = {.size = sizeof info};
        weft_member_describe(run->member, &info);
        note(run->log, "F %llu %016llx", (unsigned long long)info.version,
             (unsigned long long)rank_hash(&run->model));
    } else {
        note(run->log, "E %s", weft_context_error(run->context));
        run->member = NULL;
    }
    return status;
}

/* Before a commit. */
static void go_wrong(member_run *run) {
    const group_role *role = run->role;
    if (role->fault == GROUP_FAULT_NONE || member_info(run->member).version != role->fault_version) {
        return;
    }
    switch (role->fault) {
    case GROUP_FAULT_UNVOTED:
        raise(SIGKILL);
        break;
    case GROUP_FAULT_SILENT:
        pause();
        break;
    case GROUP_FAULT_SLOW:
        nanosleep(&(struct timespec){0, 300000000}, NULL);
        break;
    case GROUP_FAULT_VOTED:
        run->doomed = true;
        break;
    case GROUP_FAULT_COMMITTING:
        run->model.scatters_left = 20;
        break;
    default:
        break;
    }
}

static void drift(member_run *run) {
    const group_role *role = run->role;
    if (role->fault == GROUP_FAULT_DRIFT && !run->drifted &&
        member_info(run->member).version == role->fault_version) {
        for (size_t i = 0; i < run->model.units[2]; i++) {
            run->model.blocks[2][i] ^= 0x4000;
        }
        run->drifted = true;
    }
}

/* One version, or a failure, which may mean that the weights must be filled again. */
static weft_status turn(member_run *run) {
    weft_status status = weft_member_wait(run->member, 0.2, NULL);
    if (status != WEFT_OK) {
        return status;
    }
    drift(run);
    status = weft_member_prepare(run->member, 0);
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t before = member_info(run->member).committed;
    go_wrong(run);
    status = weft_member_commit(run->member);
    weft_member_info info = {.size = sizeof info};
    weft_member_describe(run->member, &info);
    if (status == WEFT_OK && info.committed > before) {
        note(run->log, "C %llu %016llx", (unsigned long long)info.version,
             (unsigned long long)rank_hash(&run->model));
    }
    return status;
}

static int run_member(member_run *run) {
    double until = run->role->seconds > 0 ? 0 : 1; /* with short waits, a failed open is tried again */
    weft_status status = enter(run);
    while (status != WEFT_OK && until == 0 && status != WEFT_BUSY && status != WEFT_INVALID_ARGUMENT) {
        status = enter(run);
    }
    if (status != WEFT_OK) {
        return 1;
    }
    bool refilled = false;
    while (member_info(run->member).version < run->role->until) {
        status = turn(run);
        if (status < 0) {
            note(run->log, "%c %s", status == WEFT_ABORTED ? 'A' : 'E', weft_context_error(run->context));
        }
        if (status == WEFT_BASE_MISMATCH || status == WEFT_DIGEST_MISMATCH) {
            refilled = true;
            weft_member_close(run->member);
            run->member = NULL;
            if (enter(run) != WEFT_OK) {
                return 1;
            }
        }
    }
    return run->role->fault == GROUP_FAULT_DRIFT && !refilled ? 1 : 0;
}

int group_follow(const group_role *role) {
    member_run run = {.role = role, .log = open_log(role)};
    const weft_context_options options = {
        .size = sizeof options, .threads = 2, .progress = doom, .progress_opaque = &run};
    require(weft_context_create(&options, &run.context) == WEFT_OK, "no context");
    rank_open(&run.model, run.context, role);
    int code = run_member(&run);
    weft_member_close(run.member);
    rank_close(&run.model);
    weft_context_destroy(run.context);
    close(run.log);
    return code;
}

/* ---- processes ---- */

enum { ARGUMENTS = 12 };

pid_t group_spawn(const group_role *role, bool lead) {
    char words[8][32];
    char self[] = "/proc/self/exe", verb[] = "group-role";
    snprintf(words[0], sizeof words[0], "%d", lead);
    snprintf(words[1], sizeof words[1], "%u", role->rank);
    snprintf(words[2], sizeof words[2], "%u", role->world);
    snprintf(words[3], sizeof words[3], "%llu", (unsigned long long)role->until);
    snprintf(words[4], sizeof words[4], "%f", role->seconds);
    snprintf(words[5], sizeof words[5], "%d", role->fault);
    snprintf(words[6], sizeof words[6], "%llu", (unsigned long long)role->fault_version);
    snprintf(words[7], sizeof words[7], "%d", role->whole);
    char *arguments[] = {self,
                         verb,
                         (char *)role->store,
                         (char *)role->group,
                         (char *)role->log,
                         words[0],
                         words[1],
                         words[2],
                         words[3],
                         words[4],
                         words[5],
                         words[6],
                         words[7],
                         NULL};
    pid_t process = 0;
    require(posix_spawn(&process, self, NULL, NULL, arguments, environ) == 0, "no process");
    return process;
}

bool group_spawned(int count, char **arguments, int *code_out) {
    if (count != ARGUMENTS + 1 || strcmp(arguments[1], "group-role") != 0) {
        return false;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    group_role role = {
        .rank = (unsigned)strtoul(arguments[6], NULL, 10),
        .world = (unsigned)strtoul(arguments[7], NULL, 10),
        .until = strtoull(arguments[8], NULL, 10),
        .seconds = strtod(arguments[9], NULL),
        .fault = (group_fault)atoi(arguments[10]),
        .fault_version = strtoull(arguments[11], NULL, 10),
        .whole = atoi(arguments[12]) != 0,
    };
    snprintf(role.store, sizeof role.store, "%s", arguments[2]);
    snprintf(role.group, sizeof role.group, "%s", arguments[3]);
    snprintf(role.log, sizeof role.log, "%s", arguments[4]);
    *code_out = atoi(arguments[5]) != 0 ? group_lead(&role) : group_follow(&role);
    return true;
}

int group_wait(pid_t process) {
    int state = 0;
    for (int i = 0; i < 60000; i++) {
        if (waitpid(process, &state, WNOHANG) == process) {
            return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
        }
        const struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "groups: process %d hangs\n", (int)process);
    kill(process, SIGKILL);
    waitpid(process, &state, 0);
    return -1000;
}
