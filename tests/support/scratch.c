/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.c: see scratch.h.
 */
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void require(bool condition, const char *what, const char *path) {
    if (!condition) {
        fprintf(stderr, "scratch: cannot %s %s: %s\n", what, path, strerror(errno));
        exit(99);
    }
}

static void open_below(scratch *scratch, const char *parent) {
    memset(scratch, 0, sizeof *scratch);
    snprintf(scratch->directory, sizeof scratch->directory, "%s/weft-test-XXXXXX", parent);
    require(mkdtemp(scratch->directory) != NULL, "create", scratch->directory);
}

void scratch_open(scratch *scratch) {
    const char *parent = getenv("TMPDIR");
    open_below(scratch, parent != NULL ? parent : "/tmp");
}

void scratch_open_volatile(scratch *scratch) {
    const char *parent = getenv("WEFT_TEST_MEMORY");
    if (parent == NULL || parent[0] == '\0') {
        scratch_open(scratch);
        return;
    }
    open_below(scratch, parent);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void scratch_close(scratch *scratch) {
    require(nftw(scratch->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0, "remove",
            scratch->directory);
}

const char *scratch_path(scratch *scratch, const char *name) {
    char *path = scratch->paths[scratch->next++ % 8];
    size_t length = strlen(scratch->directory);
    require(length + strlen(name) + 2 <= sizeof scratch->paths[0], "name", name);
    memcpy(path, scratch->directory, length);
    path[length] = '/';
    memcpy(path + length + 1, name, strlen(name) + 1);
    return path;
}

void scratch_write(scratch *scratch, const char *name, const void *data, size_t size) {
    const char *path = scratch_path(scratch, name);
    FILE *file = fopen(path, "wb");
    require(file != NULL, "create", path);
    require(size == 0 || fwrite(data, 1, size, file) == size, "write", path);
    require(fclose(file) == 0, "write", path);
}

void *scratch_read(scratch *scratch, const char *name, size_t *size_out) {
    const char *path = scratch_path(scratch, name);
    FILE *file = fopen(path, "rb");
    require(file != NULL, "open", path);
    struct stat info;
    require(fstat(fileno(file), &info) == 0, "examine", path);
    size_t size = (size_t)info.st_size;
    void *data = malloc(size > 0 ? size : 1);
    require(data != NULL && fread(data, 1, size, file) == size, "read", path);
    fclose(file);
    *size_out = size;
    return data;
}

void scratch_flip(const char *path) {
    FILE *file = fopen(path, "r+b");
    require(file != NULL && fseek(file, -2, SEEK_END) == 0, "open", path);
    int byte = fgetc(file);
    require(byte != EOF && fseek(file, -2, SEEK_END) == 0, "read", path);
    require(fputc(byte ^ 1, file) == (byte ^ 1) && fclose(file) == 0, "write", path);
}

bool scratch_exists(scratch *scratch, const char *name) {
    struct stat info;
    return lstat(scratch_path(scratch, name), &info) == 0;
}

void scratch_make_directory(scratch *scratch, const char *name) {
    const char *path = scratch_path(scratch, name);
    require(mkdir(path, 0777) == 0, "create", path);
}

size_t scratch_count(scratch *scratch, const char *name) {
    const char *path = scratch_path(scratch, name);
    DIR *directory = opendir(path);
    require(directory != NULL, "open", path);
    size_t count = 0;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count++;
        }
    }
    closedir(directory);
    return count;
}
