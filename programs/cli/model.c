/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c: checkpoints and patches as they stand on the command line, opened and closed.
 */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- checkpoints ---- */

int model_recover(weft_command *command, const char *path, bool *recovered_out) {
    bool recovered = false;
    weft_status status = weft_apply_recover(command->context, path, &recovered);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    if (recovered) {
        command_note(command, "%s: recovered from an in-place apply that was cut short", path);
    }
    *recovered_out = recovered;
    return EXIT_DONE;
}

int model_open(weft_command *command, const char *path, weft_model *model) {
    *model = (weft_model){0};
    bool recovered;
    int code = model_recover(command, path, &recovered);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_checkpoint_open(command->context, path, WEFT_OPEN_READ, &model->checkpoint);
    if (status == WEFT_OK) {
        status = weft_view_create(command->context, weft_checkpoint_table(model->checkpoint), &model->view);
    }
    if (status != WEFT_OK) {
        code = command_fail(command, NULL, status);
        model_close(model);
    }
    return code;
}

void model_close(weft_model *model) {
    if (model->view != NULL) {
        weft_view_destroy(model->view);
    }
    if (model->checkpoint != NULL) {
        weft_checkpoint_close(model->checkpoint);
    }
    *model = (weft_model){0};
}

/* ---- patches ---- */

static int cannot_read(weft_command *command, const char *path, int error) {
    return command_error(command, EXIT_FAILED, "cannot read %s: %s",
                         strcmp(path, "-") == 0 ? "the patch from stdin" : path, strerror(error));
}

static bool write_all(int descriptor, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(descriptor, data, size);
        if (written < 0) {
            return false;
        }
        data += written;
        size -= (size_t)written;
    }
    return true;
}

/* Copies a stream to an unnamed file in $TMPDIR, which takes disk and not memory. */
static int spool(weft_command *command, const char *path, int stream, int *file_out) {
    const char *directory = getenv("TMPDIR");
    directory = directory != NULL && *directory != 0 ? directory : "/tmp";
    int file = open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (file < 0) {
        return command_error(command, EXIT_FAILED,
                             "cannot keep the patch in %s: %s; set TMPDIR or give the patch as a file",
                             directory, strerror(errno));
    }
    static char buffer[1 << 16];
    for (;;) {
        ssize_t got = read(stream, buffer, sizeof buffer);
        if (got == 0) {
            *file_out = file;
            return EXIT_DONE;
        }
        if (got < 0 && errno == EINTR && command_interrupted() != EXIT_DONE) {
            close(file);
            return command_error(command, command_interrupted(), "interrupted");
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 || !write_all(file, buffer, (size_t)got)) {
            int error = errno;
            close(file);
            return cannot_read(command, path, error);
        }
    }
}

static int map_patch(weft_command *command, const char *path, int descriptor, uint64_t size,
                     patch_file *file) {
    file->source.size = size;
    if (size == 0) {
        file->source.memory = "";
        return EXIT_DONE;
    }
    void *mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapping == MAP_FAILED) {
        return cannot_read(command, path, errno);
    }
    file->mapping = mapping;
    file->source.memory = mapping;
    return EXIT_DONE;
}

static int open_source(weft_command *command, const char *path, patch_file *file) {
    int descriptor = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0) {
        return cannot_read(command, path, errno);
    }
    int code = EXIT_DONE;
    if (fstat(descriptor, &status) != 0) {
        code = cannot_read(command, path, errno);
    } else if (S_ISDIR(status.st_mode)) {
        code = cannot_read(command, path, EISDIR);
    } else if (isatty(descriptor)) {
        code = command_error(command, EXIT_USAGE, "a patch is not read from a terminal; redirect stdin");
    } else if (!S_ISREG(status.st_mode)) {
        int copy = -1;
        code = spool(command, path, descriptor, &copy);
        close(descriptor);
        descriptor = copy;
        if (code == EXIT_DONE && fstat(descriptor, &status) != 0) {
            code = cannot_read(command, path, errno);
        }
    }
    if (code == EXIT_DONE) {
        code = map_patch(command, path, descriptor, (uint64_t)status.st_size, file);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return code;
}

int patch_file_open(weft_command *command, const char *path, patch_file *file) {
    *file = (patch_file){0};
    int code = open_source(command, path, file);
    if (code != EXIT_DONE) {
        return code;
    }
    weft_status status = weft_patch_open(command->context, &file->source, &file->patch);
    if (status != WEFT_OK) {
        code = command_fail(command, strcmp(path, "-") == 0 ? "stdin" : path, status);
        patch_file_close(file);
    }
    return code;
}

void patch_file_close(patch_file *file) {
    if (file->patch != NULL) {
        weft_patch_close(file->patch);
    }
    if (file->mapping != NULL) {
        munmap(file->mapping, file->source.size);
    }
    *file = (patch_file){0};
}

int patch_list_open(weft_command *command, char *const *paths, size_t count, patch_list *list) {
    *list = (patch_list){0};
    list->files = calloc(count, sizeof *list->files);
    list->patches = calloc(count, sizeof *list->patches);
    if (list->files == NULL || list->patches == NULL) {
        patch_list_close(list);
        return command_error(command, EXIT_FAILED, "no memory");
    }
    bool stdin_taken = false;
    for (size_t i = 0; i < count; i++) {
        bool is_stdin = strcmp(paths[i], "-") == 0;
        int code = is_stdin && stdin_taken
                       ? command_error(command, EXIT_USAGE, "only one patch can come from stdin")
                       : patch_file_open(command, paths[i], &list->files[i]);
        if (code != EXIT_DONE) {
            patch_list_close(list);
            return code;
        }
        stdin_taken = stdin_taken || is_stdin;
        list->patches[i] = list->files[i].patch;
        list->count = i + 1;
    }
    return EXIT_DONE;
}

void patch_list_close(patch_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        patch_file_close(&list->files[i]);
    }
    free(list->files);
    free(list->patches);
    *list = (patch_list){0};
}
