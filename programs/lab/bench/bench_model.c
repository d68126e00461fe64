/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_model.c: the two states that are compared, and the live copy that patches are applied to, as a
 * trainer and a worker hold them: in plain memory, one block per state.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_UNITS = 64 }; /* tensors start at cache lines, whatever a unit is */

void *bench_map(size_t bytes) {
    void *memory = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void bench_unmap(void *memory, size_t bytes) {
    if (memory != NULL) {
        munmap(memory, bytes > 0 ? bytes : 1);
    }
}

void bench_chill(void) {
    enum { CHILL_BYTES = 128 << 20 };
    static uint8_t *memory;
    if (memory == NULL) {
        memory = bench_map(CHILL_BYTES);
        if (memory != NULL) {
            madvise(memory, CHILL_BYTES, MADV_DONTFORK); /* it is no child's, whose memory is measured */
        }
    }
    for (size_t i = 0; memory != NULL && i < CHILL_BYTES; i += 64) {
        ((volatile uint8_t *)memory)[i]++;
    }
}

void bench_model_restore(bench_model *model) {
    memcpy(model->live, model->base, bench_model_bytes(model));
    bench_chill();
}

size_t bench_model_bytes(const bench_model *model) {
    return model->extent * model->width;
}

void *bench_model_tensor(const bench_model *model, const void *state, const bench_tensor *tensor) {
    return (uint8_t *)(uintptr_t)state + tensor->start * model->width;
}

static int add_tensor(weft_command *command, bench_model *model, const char *name, uint32_t rank,
                      const uint64_t *shape) {
    bench_tensor *tensors = realloc(model->tensors, (model->count + 1) * sizeof *tensors);
    char *copy = strdup(name);
    model->tensors = tensors != NULL ? tensors : model->tensors;
    if (tensors == NULL || copy == NULL) {
        free(copy);
        return command_error(command, EXIT_FAILED, "no memory for the model");
    }
    bench_tensor *tensor = &tensors[model->count++];
    *tensor = (bench_tensor){.name = copy, .rank = rank, .rows = 1, .columns = 1, .start = model->extent};
    for (uint32_t i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        if (i == 0 && rank > 1) {
            tensor->rows = shape[i];
        } else {
            tensor->columns *= shape[i];
        }
    }
    uint64_t units = tensor->rows * tensor->columns;
    model->units += units;
    model->extent += (units + LINE_UNITS - 1) / LINE_UNITS * LINE_UNITS;
    return EXIT_DONE;
}

int bench_model_table(weft_command *command, const bench_model *model, void *state,
                      weft_table **table_out) {
    weft_status status = weft_table_create(command->context, table_out);
    for (size_t i = 0; i < model->count && status == WEFT_OK; i++) {
        const bench_tensor *tensor = &model->tensors[i];
        weft_tensor entry = {.size = sizeof entry,
                             .name = tensor->name,
                             .dtype = model->dtype,
                             .rank = tensor->rank,
                             .data = bench_model_tensor(model, state, tensor),
                             .writable = true,
                             .tied_to = -1};
        memcpy(entry.shape, tensor->shape, sizeof entry.shape);
        status = weft_table_add(*table_out, &entry);
    }
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

/* Memory for the tensors that were added, and tables over it. */
static int allocate_states(weft_command *command, bench_model *model) {
    size_t bytes = bench_model_bytes(model);
    model->base = bench_map(bytes);
    model->next = bench_map(bytes);
    model->live = bench_map(bytes);
    if (model->base == NULL || model->next == NULL || model->live == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for three states of the model");
    }
    int code = bench_model_table(command, model, model->base, &model->base_table);
    if (code == EXIT_DONE) {
        code = bench_model_table(command, model, model->next, &model->next_table);
    }
    return code == EXIT_DONE ? bench_model_table(command, model, model->live, &model->live_table) : code;
}

void bench_model_close(bench_model *model) {
    size_t bytes = bench_model_bytes(model);
    weft_table *tables[] = {model->base_table, model->next_table, model->live_table};
    for (int i = 0; i < 3; i++) {
        weft_table_destroy(tables[i]);
    }
    bench_unmap(model->base, bytes);
    bench_unmap(model->next, bytes);
    bench_unmap(model->live, bytes);
    for (size_t i = 0; i < model->count; i++) {
        free(model->tensors[i].name);
    }
    free(model->tensors);
    *model = (bench_model){0};
}

/* ---- from the trace ---- */

static int fill_states(weft_command *command, bench_model *model, const weft_trace *trace) {
    void **places = calloc(2 * trace->count, sizeof *places);
    if (places == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for the trace");
    }
    for (size_t i = 0; i < trace->count; i++) {
        places[i] = bench_model_tensor(model, model->base, &model->tensors[i]);
        places[trace->count + i] = bench_model_tensor(model, model->next, &model->tensors[i]);
    }
    void **const states[2] = {places, places + trace->count};
    int code = trace_fill(command, trace, states, 2);
    free(places);
    return code;
}

int bench_model_generate(weft_command *command, bench_model *model, const weft_trace *trace) {
    *model = (bench_model){.dtype = trace->dtype->dtype, .width = weft_dtype_width(trace->dtype->dtype)};
    int code = EXIT_DONE;
    for (size_t i = 0; i < trace->count && code == EXIT_DONE; i++) {
        const trace_tensor *tensor = &trace->tensors[i];
        uint64_t shape[2] = {tensor->rows, tensor->columns};
        code =
            add_tensor(command, model, tensor->name, tensor->rank, tensor->rank == 2 ? shape : shape + 1);
    }
    if (code == EXIT_DONE) {
        code = allocate_states(command, model);
    }
    if (code == EXIT_DONE) {
        code = fill_states(command, model, trace);
    }
    if (code != EXIT_DONE) {
        bench_model_close(model);
    }
    return code;
}

/* ---- from checkpoints ---- */

static const weft_tensor *find_tensor(const weft_table *table, const char *name) {
    int64_t index = weft_table_find(table, name);
    return index >= 0 ? weft_table_at(table, (size_t)index) : NULL;
}

static bool usable(const weft_tensor *base, const weft_tensor *next) {
    return base->dtype == WEFT_DTYPE_BF16 && next != NULL && next->dtype == WEFT_DTYPE_BF16 &&
           base->rank == next->rank && base->bytes > 0 &&
           memcmp(base->shape, next->shape, base->rank * sizeof base->shape[0]) == 0;
}

static int choose_tensors(weft_command *command, bench_model *model, const weft_table *base,
                          const weft_table *next) {
    size_t left_out = 0;
    for (size_t i = 0; i < weft_table_sorted_count(base); i++) {
        const weft_tensor *tensor = weft_table_at(base, weft_table_sorted(base, i));
        if (!usable(tensor, find_tensor(next, tensor->name))) {
            left_out++;
            continue;
        }
        int code = add_tensor(command, model, tensor->name, tensor->rank, tensor->shape);
        if (code != EXIT_DONE) {
            return code;
        }
    }
    if (model->count == 0) {
        return command_error(command, EXIT_FAILED, "the checkpoints share no BF16 tensor to measure with");
    }
    if (left_out > 0) {
        command_note(command, "%zu tensors are left out: not BF16, or not alike in both", left_out);
    }
    return EXIT_DONE;
}

int bench_model_load(weft_command *command, bench_model *model, const char *base, const char *next) {
    *model = (bench_model){.dtype = WEFT_DTYPE_BF16, .width = sizeof(uint16_t)};
    weft_model models[2] = {{0}};
    int code = model_open(command, base, &models[0]);
    if (code == EXIT_DONE) {
        code = model_open(command, next, &models[1]);
    }
    if (code == EXIT_DONE) {
        code = choose_tensors(command, model, weft_checkpoint_table(models[0].checkpoint),
                              weft_checkpoint_table(models[1].checkpoint));
    }
    if (code == EXIT_DONE) {
        code = allocate_states(command, model);
    }
    for (size_t i = 0; i < model->count && code == EXIT_DONE; i++) {
        const bench_tensor *tensor = &model->tensors[i];
        size_t bytes = tensor->rows * tensor->columns * model->width;
        memcpy(bench_model_tensor(model, model->base, tensor),
               find_tensor(weft_checkpoint_table(models[0].checkpoint), tensor->name)->data, bytes);
        memcpy(bench_model_tensor(model, model->next, tensor),
               find_tensor(weft_checkpoint_table(models[1].checkpoint), tensor->name)->data, bytes);
    }
    model_close(&models[1]);
    model_close(&models[0]);
    if (code != EXIT_DONE) {
        bench_model_close(model);
    }
    return code;
}
