/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c: checkpoints and patches as they stand on the command line, opened and closed.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>
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
    weft_view_destroy(model->view);
    weft_checkpoint_close(model->checkpoint);
    *model = (weft_model){0};
}

/* ---- patches ---- */

int patch_file_open(weft_command *command, const char *path, patch_file *file) {
    *file = (patch_file){0};
    bool is_stdin = strcmp(path, "-") == 0;
    weft_status status = is_stdin
                             ? weft_source_open_descriptor(command->context, STDIN_FILENO, &file->source)
                             : weft_source_open_file(command->context, path, &file->source);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    status = weft_patch_open(command->context, &file->source, &file->patch);
    if (status == WEFT_OK) {
        return EXIT_DONE;
    }
    int code = command_fail(command, is_stdin ? "stdin" : path, status);
    patch_file_close(file);
    return code;
}

void patch_file_close(patch_file *file) {
    if (file->patch != NULL) {
        weft_patch_close(file->patch);
    }
    weft_source_close(&file->source);
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
