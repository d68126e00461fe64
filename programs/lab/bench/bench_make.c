/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_make.c: `weft bench --make DIR`: the trace as safetensors files, for demonstrations and tests.
 * All files are open and mapped at once, and filled row by row: no state is ever held in memory.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The safetensors header, the same for all states as a trainer's is, padded so that the tensors start at
 * a multiple of 64. */
static char *make_header(const weft_trace *trace, size_t *size_out) {
    json_t *header = json_object(), *metadata = json_object();
    json_object_set_new(metadata, "format", json_string("pt"));
    json_object_set_new(metadata, "made_by", json_string("weft bench --make"));
    json_object_set_new(header, "__metadata__", metadata);
    uint64_t offset = 0;
    for (size_t t = 0; t < trace->count; t++) {
        const trace_tensor *tensor = &trace->tensors[t];
        json_t *entry = json_object(), *shape = json_array(), *offsets = json_array();
        uint64_t bytes = 2 * tensor->rows * tensor->columns;
        if (tensor->rank == 2) {
            json_array_append_new(shape, json_count(tensor->rows));
        }
        json_array_append_new(shape, json_count(tensor->columns));
        json_array_append_new(offsets, json_count(offset));
        json_array_append_new(offsets, json_count(offset + bytes));
        json_object_set_new(entry, "dtype", json_string("BF16"));
        json_object_set_new(entry, "shape", shape);
        json_object_set_new(entry, "data_offsets", offsets);
        json_object_set_new(header, tensor->name, entry);
        offset += bytes;
    }
    char *compact = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (compact == NULL) {
        return NULL;
    }
    size_t size = strlen(compact), padded = (size + 8 + 63) / 64 * 64 - 8;
    char *result = realloc(compact, padded + 1);
    if (result == NULL) {
        free(compact);
        return NULL;
    }
    memset(result + size, ' ', padded - size);
    *size_out = padded;
    return result;
}

static void file_name(char *path, size_t size, const char *directory, size_t step, unsigned steps) {
    if (steps == 0) {
        snprintf(path, size, "%s/%s.safetensors", directory, step == 0 ? "base" : "new");
    } else {
        snprintf(path, size, "%s/step-%zu.safetensors", directory, step);
    }
}

static int create_file(weft_command *command, const weft_trace *trace, const char *path,
                       weft_checkpoint **file_out) {
    weft_container_file part = {.name = ""};
    char *header = make_header(trace, &part.header_bytes);
    if (header == NULL) {
        return command_error(command, EXIT_FAILED, "no memory for a header");
    }
    part.header = header;
    weft_container container = {.file_count = 1, .files = &part};
    weft_status status = weft_checkpoint_create(command->context, path, &container, file_out);
    free(header);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

/* Where in the mapped file each tensor of the trace lies. */
static void **locate_tensors(const weft_trace *trace, const weft_checkpoint *file) {
    const weft_table *table = weft_checkpoint_table(file);
    void **places = calloc(trace->count, sizeof *places);
    for (size_t t = 0; places != NULL && t < trace->count; t++) {
        int64_t index = weft_table_find(table, trace->tensors[t].name);
        places[t] = index >= 0 ? weft_table_at(table, (size_t)index)->data : NULL;
    }
    return places;
}

/* Files that are being made, and where their tensors lie. */
typedef struct trace_files {
    size_t count;
    weft_checkpoint **files;
    void ***states;
} trace_files;

static int create_all(weft_command *command, const weft_trace *trace, const char *directory, unsigned steps,
                      trace_files *making) {
    char path[4096];
    for (size_t s = 0; s < making->count; s++) {
        file_name(path, sizeof path, directory, s, steps);
        int code = create_file(command, trace, path, &making->files[s]);
        if (code != EXIT_DONE) {
            return code;
        }
        making->states[s] = locate_tensors(trace, making->files[s]);
        if (making->states[s] == NULL) {
            return command_error(command, EXIT_FAILED, "no memory for the trace");
        }
    }
    return EXIT_DONE;
}

static int finish_all(weft_command *command, trace_files *making) {
    for (size_t s = 0; s < making->count; s++) {
        weft_checkpoint *file = making->files[s];
        making->files[s] = NULL; /* finishing closes, whether it succeeds or not */
        weft_status status = weft_checkpoint_finish(file, false);
        if (status != WEFT_OK) {
            return command_fail(command, NULL, status);
        }
    }
    return EXIT_DONE;
}

static void close_all(trace_files *making) {
    for (size_t s = 0; s < making->count; s++) {
        if (making->files != NULL && making->files[s] != NULL) {
            weft_checkpoint_close(making->files[s]);
        }
        if (making->states != NULL) {
            free(making->states[s]);
        }
    }
    free(making->files);
    free(making->states);
}

int trace_write(weft_command *command, const weft_trace *trace, const char *directory, unsigned steps) {
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
        return command_error(command, EXIT_FAILED, "cannot make the directory %s: %s", directory,
                             strerror(errno));
    }
    trace_files making = {.count = steps == 0 ? 2 : (size_t)steps + 1};
    making.files = calloc(making.count, sizeof *making.files);
    making.states = calloc(making.count, sizeof *making.states);
    int code = EXIT_DONE;
    if (making.files == NULL || making.states == NULL) {
        code = command_error(command, EXIT_FAILED, "no memory for the trace");
    }
    if (code == EXIT_DONE) {
        code = create_all(command, trace, directory, steps, &making);
    }
    if (code == EXIT_DONE) {
        code = trace_fill(command, trace, making.states, making.count);
    }
    if (code == EXIT_DONE) {
        code = finish_all(command, &making);
    }
    close_all(&making);
    return code;
}
