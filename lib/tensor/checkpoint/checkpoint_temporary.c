/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_temporary.c: temporary names beside a checkpoint. What a killed process left under one is as
 * large as a model, and the next process that comes by removes it; see lib/base/temporary.h.
 */
#include "checkpoint.h"

#include "../../base/context.h"
#include "../../base/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMPORARY_NAME = 64, TEMPORARY_ATTEMPTS = 10000 };

/* Exclusive creation settles all races, so the names need not be secret. */
weft_status weft_temporary_create(weft_context *context, const char *directory, size_t number,
                                  weft_temporary_kind kind, char **path_out, int *descriptor_out) {
    for (size_t attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        char name[TEMPORARY_NAME];
        snprintf(name, sizeof(name), ".weft-%ld-%zu.%s", (long)getpid(), number + attempt,
                 kind == WEFT_TEMPORARY_ASIDE ? "old" : "tmp");
        char *path = weft_path_join(context, directory, name);
        if (path == NULL) {
            return WEFT_NO_MEMORY;
        }
        int made = -1;
        if (kind != WEFT_TEMPORARY_DIRECTORY) {
            made = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        } else if (mkdir(path, 0777) == 0) {
            made = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        int error = made >= 0 ? EEXIST : errno;
        if (made >= 0 && (kind == WEFT_TEMPORARY_ASIDE || weft_temporary_claim(made))) {
            *path_out = path;
            *descriptor_out = made;
            return WEFT_OK;
        }
        if (made >= 0) {
            close(made);
        }
        weft_release(context, path);
        if (error != EEXIST) {
            return weft_fail_errno(context, error, "cannot create a file in %s", directory);
        }
    }
    return weft_fail(context, WEFT_IO_FAILED,
                     "cannot create a file in %s: too many leftovers named .weft-*.tmp; remove them",
                     directory);
}

/* ".weft-<digits>-<digits>.tmp" */
static bool is_temporary_name(const char *name) {
    static const char prefix[] = ".weft-";
    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0) {
        return false;
    }
    const char *cursor = name + sizeof(prefix) - 1;
    size_t process = strspn(cursor, "0123456789");
    if (process == 0 || cursor[process] != '-') {
        return false;
    }
    cursor += process + 1;
    size_t number = strspn(cursor, "0123456789");
    return number > 0 && strcmp(cursor + number, ".tmp") == 0;
}

/* The files of a directory that never got its name; it has no directories in it. */
static void sweep_files(int descriptor) {
    int copy = dup(descriptor);
    DIR *directory = copy < 0 ? NULL : fdopendir(copy);
    if (directory == NULL) {
        if (copy >= 0) {
            close(copy);
        }
        return;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(descriptor, entry->d_name, 0);
        }
    }
    closedir(directory);
}

static void sweep_entry(int directory, const char *name) {
    struct stat info;
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) {
        return;
    }
    bool is_directory = S_ISDIR(info.st_mode);
    int flags = is_directory ? O_RDONLY | O_DIRECTORY : O_RDWR;
    int descriptor = openat(directory, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    if (weft_temporary_is_leftover(directory, name, descriptor)) {
        if (is_directory) {
            sweep_files(descriptor);
        }
        (void)unlinkat(directory, name, is_directory ? AT_REMOVEDIR : 0);
    }
    close(descriptor);
}

void weft_temporary_sweep(const char *path) {
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (is_temporary_name(entry->d_name)) {
            sweep_entry(dirfd(directory), entry->d_name);
        }
    }
    closedir(directory);
}
