/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: runs a fuzz target on stored inputs, without libFuzzer, so that every build and every
 * sanitizer meets the seed corpus and all inputs that ever broke something. Arguments are files, or
 * directories of files. Finding no input at all is a failure: it means that the corpus went missing.
 */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input lies in a block of exactly its size, so that a sanitizer sees any read past its end. */
static bool replay_file(const char *path, size_t size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    uint8_t *data = malloc(size > 0 ? size : 1);
    bool complete = data != NULL && fread(data, 1, size, file) == size;
    fclose(file);
    if (complete) {
        LLVMFuzzerTestOneInput(data, size);
    } else {
        fprintf(stderr, "%s: cannot read all of it\n", path);
    }
    free(data);
    return complete;
}

static bool replay_path(const char *path, size_t *count);

static bool replay_directory(const char *path, size_t *count) {
    struct dirent **entries = NULL;
    int found = scandir(path, &entries, NULL, alphasort);
    if (found < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    bool complete = true;
    for (int i = 0; i < found; i++) {
        if (entries[i]->d_name[0] != '.') {
            char child[4096];
            snprintf(child, sizeof child, "%s/%s", path, entries[i]->d_name);
            complete = replay_path(child, count) && complete;
        }
        free(entries[i]);
    }
    free(entries);
    return complete;
}

static bool replay_path(const char *path, size_t *count) {
    struct stat status;
    if (stat(path, &status) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    if (S_ISDIR(status.st_mode)) {
        return replay_directory(path, count);
    }
    *count += 1;
    return replay_file(path, (size_t)status.st_size);
}

int main(int argument_count, char **arguments) {
    size_t count = 0;
    bool complete = true;
    for (int i = 1; i < argument_count; i++) {
        complete = replay_path(arguments[i], &count) && complete;
    }
    printf("%zu inputs replayed\n", count);
    return complete && count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
