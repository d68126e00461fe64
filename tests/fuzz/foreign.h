/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign.h: bytes as the files of a foreign version, read against a small base. What is accepted must be
 * changes of that base; what is refused must say why, and leave nothing behind.
 *
 * The files lie in a directory of the process, and are written anew for each input: readers take them as
 * they come from others, by name.
 */
#ifndef WEFT_FUZZ_FOREIGN_H
#define WEFT_FUZZ_FOREIGN_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <weft/foreign.h>
#include <zstd.h>

enum { FOREIGN_WEIGHTS = 96 * 2, FOREIGN_FLOATS = 7 * 4, FOREIGN_BYTES = 5, FOREIGN_PATH = 256 };

static inline void require(bool condition) {
    if (!condition) {
        abort();
    }
}

/* The base: "b" of five U8, "f" of seven F32 and "w" of 8 x 12 BF16, whose n-th byte is 7 n + 1. */
typedef struct foreign_base {
    uint8_t weights[FOREIGN_WEIGHTS], floats[FOREIGN_FLOATS], bytes[FOREIGN_BYTES];
    weft_table *table;
    weft_view *view;
} foreign_base;

static inline void foreign_add(weft_table *table, const char *name, weft_dtype dtype, uint32_t rank,
                               uint64_t rows, uint64_t columns, uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        data[i] = (uint8_t)(7 * i + 1);
    }
    const weft_tensor tensor = {.size = sizeof tensor,
                                .name = name,
                                .dtype = dtype,
                                .rank = rank,
                                .shape = {rows, columns},
                                .data = data};
    require(weft_table_add(table, &tensor) == WEFT_OK);
}

/* PULSEPT1 has all tensors, and these are all of BF16. */
static inline void foreign_base_open(foreign_base *base, weft_context *context, bool only_weights) {
    require(weft_table_create(context, &base->table) == WEFT_OK);
    if (!only_weights) {
        foreign_add(base->table, "b", WEFT_DTYPE_U8, 1, 5, 0, base->bytes, FOREIGN_BYTES);
        foreign_add(base->table, "f", WEFT_DTYPE_F32, 1, 7, 0, base->floats, FOREIGN_FLOATS);
    }
    foreign_add(base->table, "w", WEFT_DTYPE_BF16, 2, 8, 12, base->weights, FOREIGN_WEIGHTS);
    require(weft_view_create(context, base->table, &base->view) == WEFT_OK);
}

static inline void foreign_base_close(foreign_base *base) {
    weft_view_destroy(base->view);
    weft_table_destroy(base->table);
}

static char foreign_path[FOREIGN_PATH];

static int foreign_remove(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static void foreign_end(void) {
    enum { DESCRIPTORS = 8 };
    (void)nftw(foreign_path, foreign_remove, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

/* The directory of this process, which goes with it. */
static inline const char *foreign_directory(void) {
    char *path = foreign_path;
    if (path[0] == 0) {
        const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(path, FOREIGN_PATH, "%s/weft-fuzz-XXXXXX", parent);
        require(mkdtemp(path) != NULL && atexit(foreign_end) == 0);
    }
    return path;
}

/* Writes a file, or a directory's file: `name` has at most one slash. */
static inline void foreign_file(const char *name, const uint8_t *data, size_t size) {
    char path[2 * FOREIGN_PATH];
    snprintf(path, sizeof path, "%s/%s", foreign_directory(), name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    (void)mkdir(path, 0700);
    *slash = '/';
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

/* A file that the input begins with, behind its length in two bytes; what is left comes back. */
static inline void foreign_first_file(const char *name, const uint8_t **data, size_t *size) {
    size_t length = *size < 2 ? 0 : (size_t)(*data)[0] | (size_t)(*data)[1] << 8;
    size_t skipped = *size < 2 ? *size : 2;
    *data += skipped;
    *size -= skipped;
    length = length < *size ? length : *size;
    foreign_file(name, *data, length);
    *data += length;
    *size -= length;
}

/* A file that holds the bytes as one frame of zstd, behind `head_size` bytes of a head. */
static inline void foreign_behind(const char *name, const uint8_t *head, size_t head_size,
                                  const uint8_t *data, size_t size) {
    size_t bound = ZSTD_compressBound(size);
    uint8_t *file = malloc(head_size + bound + 1);
    require(file != NULL);
    if (head_size > 0) {
        memcpy(file, head, head_size);
    }
    size_t written = ZSTD_compress(file + head_size, bound, data, size, 1);
    require(!ZSTD_isError(written));
    foreign_file(name, file, head_size + written);
    free(file);
}

static inline void foreign_compressed_file(const char *name, const uint8_t *data, size_t size) {
    foreign_behind(name, NULL, 0, data, size);
}

/* A magic of eight bytes, a header behind its length in two bytes of the input, and the rest as a frame. */
static inline void foreign_framed_file(const char *name, const char *magic, const uint8_t *data,
                                       size_t size) {
    uint8_t head[12 + UINT16_MAX];
    uint32_t length = size < 2 ? 0 : (uint32_t)data[0] | (uint32_t)data[1] << 8;
    size_t skipped = size < 2 ? size : 2;
    data += skipped;
    size -= skipped;
    length = length < size ? length : (uint32_t)size;
    memcpy(head, magic, 8);
    memcpy(head + 8, &length, sizeof length);
    memcpy(head + 12, data, length);
    foreign_behind(name, head, 12 + (size_t)length, data + length, size - length);
}

static inline void foreign_check(const foreign_base *base, const weft_foreign_step *step) {
    size_t count;
    const weft_tensor_changes *changes = weft_foreign_step_changes(step, &count);
    require(changes != NULL);
    for (size_t i = 0; i < count; i++) {
        int64_t tensor = weft_view_find(base->view, changes[i].tensor);
        require(tensor >= 0 && changes[i].count > 0);
        uint64_t units = weft_tensor_units(weft_view_at(base->view, (size_t)tensor));
        for (uint64_t j = 0; j < changes[i].count; j++) {
            require(changes[i].units[j] < units &&
                    (j == 0 || changes[i].units[j] > changes[i].units[j - 1]));
        }
        for (size_t j = 0; j < i; j++) {
            require(strcmp(changes[i].tensor, changes[j].tensor) != 0);
        }
    }
}

/* Reads every version of the directory, or of `file` in it. */
static inline void foreign_try(const char *scheme, const char *file) {
    const weft_limits limits = {
        .size = sizeof limits, .header_bytes = 1 << 16, .tensors = 64, .stage_bytes = 1 << 20};
    const weft_context_options options = {.size = sizeof options, .threads = 1, .limits = &limits};
    const weft_foreign_options assumed = {.size = sizeof assumed, .assume_base = true};
    char place[2 * FOREIGN_PATH];
    weft_context *context = NULL;
    weft_foreign *foreign = NULL;
    foreign_base base;
    require(weft_context_create(&options, &context) == WEFT_OK);
    foreign_base_open(&base, context, strcmp(scheme, "pulse") == 0);
    snprintf(place, sizeof place, "%s:%s%s%s", scheme, foreign_directory(), file != NULL ? "/" : "",
             file != NULL ? file : "");
    weft_status status = weft_foreign_open(context, place, &assumed, &foreign);
    require(status == WEFT_OK || weft_context_error(context)[0] != 0);
    for (size_t i = 0; status == WEFT_OK && i < weft_foreign_count(foreign); i++) {
        weft_foreign_step *step = NULL;
        if (weft_foreign_read(foreign, weft_foreign_at(foreign, i)->version, base.view, &step) == WEFT_OK) {
            foreign_check(&base, step);
            weft_foreign_step_destroy(step);
        } else {
            require(weft_context_error(context)[0] != 0);
        }
    }
    weft_foreign_close(foreign);
    foreign_base_close(&base);
    weft_context_destroy(context);
}

#endif
