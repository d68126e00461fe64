/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c: how a patch reaches its file. It is written under a temporary name in the same directory
 * and renamed when it is complete, so that whoever looks at the path sees the old file or the whole new
 * one. Temporary names are kept in a small list, for the handler of a signal that ends the process.
 */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIVE_MAX = 4 };
static const char *volatile live_files[LIVE_MAX];

static void remember(const char *path) {
    for (int i = 0; i < LIVE_MAX; i++) {
        if (live_files[i] == NULL) {
            live_files[i] = path;
            return;
        }
    }
}

static void forget(const char *path) {
    for (int i = 0; i < LIVE_MAX; i++) {
        if (live_files[i] == path) {
            live_files[i] = NULL;
        }
    }
}

void output_emergency(void) {
    for (int i = 0; i < LIVE_MAX; i++) {
        if (live_files[i] != NULL) {
            unlink(live_files[i]);
        }
    }
}

static weft_status write_output(void *opaque, const void *data, size_t size) {
    weft_output *output = opaque;
    const char *cursor = data;
    while (size > 0) {
        ssize_t written = write(output->descriptor, cursor, size);
        if (written < 0 && errno == EINTR && command_interrupted() == EXIT_DONE) {
            continue;
        }
        if (written < 0) {
            output->error = errno;
            return errno == ENOSPC || errno == EDQUOT ? WEFT_NO_SPACE : WEFT_IO_FAILED;
        }
        cursor += written;
        size -= (size_t)written;
    }
    return WEFT_OK;
}

static int cannot_write(weft_command *command, const char *path, int error) {
    return command_error(command, EXIT_FAILED, "cannot write %s: %s",
                         strcmp(path, "-") == 0 ? "to stdout" : path, strerror(error));
}

/* Pipes, devices and stdout: there is nothing to rename. */
static int open_straight(weft_command *command, weft_output *output) {
    if (strcmp(output->path, "-") == 0) {
        output->descriptor = dup(STDOUT_FILENO);
    } else {
        output->descriptor = open(output->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    }
    if (output->descriptor < 0) {
        return cannot_write(command, output->path, errno);
    }
    if (isatty(output->descriptor)) {
        output_close(output);
        return command_error(command, EXIT_USAGE,
                             "a patch is binary and would garble the terminal; name a file with -o "
                             "FILE, or redirect stdout");
    }
    return EXIT_DONE;
}

/* Creates DIRECTORY/.NAME.RANDOM.tmp beside the target. */
static int create_temporary(weft_command *command, weft_output *output) {
    const char *slash = strrchr(output->target, '/');
    int directory = slash != NULL ? (int)(slash - output->target) + 1 : 0;
    for (int attempt = 0; attempt < 16; attempt++) {
        unsigned number = 0;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
            number = (unsigned)getpid() * 16u + (unsigned)attempt;
        }
        char *name = NULL;
        if (asprintf(&name, "%.*s.%s.%08x.tmp", directory, output->target, output->target + directory,
                     number) < 0) {
            return cannot_write(command, output->path, ENOMEM);
        }
        int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0) {
            output->descriptor = descriptor;
            output->temporary = name;
            remember(name);
            return EXIT_DONE;
        }
        int error = errno;
        free(name);
        if (error != EEXIST) {
            return cannot_write(command, output->path, error);
        }
    }
    return cannot_write(command, output->path, EEXIST);
}

int output_open(weft_command *command, weft_output *output, const char *path, bool durable) {
    *output = (weft_output){.path = path, .descriptor = -1, .durable = durable};
    output->sink = (weft_sink){.write = write_output, .opaque = output};
    struct stat status;
    bool exists = strcmp(path, "-") != 0 && stat(path, &status) == 0;
    if (strcmp(path, "-") == 0 || (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
        return open_straight(command, output);
    }
    if (exists && S_ISDIR(status.st_mode)) {
        return cannot_write(command, path, EISDIR);
    }
    output->target = exists ? realpath(path, NULL) : strdup(path);
    if (output->target == NULL) {
        return cannot_write(command, path, errno);
    }
    return create_temporary(command, output);
}

int output_fail(weft_command *command, const weft_output *output, weft_status status) {
    if (output->error != 0 && command_interrupted() == EXIT_DONE) {
        return cannot_write(command, output->path, output->error);
    }
    return command_fail(command, NULL, status);
}

static int sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char *directory = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    if (directory == NULL) {
        return -1;
    }
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    if (descriptor < 0) {
        return -1;
    }
    int result = fsync(descriptor);
    close(descriptor);
    return result;
}

int output_finish(weft_command *command, weft_output *output) {
    bool renamed = output->temporary != NULL;
    if (renamed && output->durable && fsync(output->descriptor) != 0) {
        return cannot_write(command, output->path, errno);
    }
    int descriptor = output->descriptor;
    output->descriptor = -1;
    if (close(descriptor) != 0) {
        return cannot_write(command, output->path, errno);
    }
    if (!renamed) {
        return EXIT_DONE;
    }
    if (rename(output->temporary, output->target) != 0) {
        return cannot_write(command, output->path, errno);
    }
    forget(output->temporary);
    free(output->temporary);
    output->temporary = NULL;
    if (output->durable && sync_directory(output->target) != 0) {
        return cannot_write(command, output->path, errno);
    }
    return EXIT_DONE;
}

void output_close(weft_output *output) {
    if (output->descriptor >= 0) {
        close(output->descriptor);
        output->descriptor = -1;
    }
    if (output->temporary != NULL) {
        unlink(output->temporary);
        forget(output->temporary);
        free(output->temporary);
        output->temporary = NULL;
    }
    free(output->target);
    output->target = NULL;
}

int output_guard(weft_command *command, const char *output_path, const char *input_path) {
    struct stat written, read;
    if (strcmp(output_path, "-") == 0 || strcmp(input_path, "-") == 0 || stat(output_path, &written) != 0 ||
        stat(input_path, &read) != 0) {
        return EXIT_DONE;
    }
    if (S_ISREG(written.st_mode) && written.st_dev == read.st_dev && written.st_ino == read.st_ino) {
        return command_error(command, EXIT_USAGE, "the output %s is also an input; choose another name",
                             output_path);
    }
    return EXIT_DONE;
}
