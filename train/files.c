/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c: see files.h.
 */
#include "files.h"

#include "../lib/base/context.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

weft_status train_path(weft_context *context, const char *directory, const char *name,
                       char path[TRAIN_PATH_SIZE]) {
    if (snprintf(path, TRAIN_PATH_SIZE, "%s/%s", directory, name) >= TRAIN_PATH_SIZE) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the path '%s' is too long", directory);
    }
    return WEFT_OK;
}

weft_status train_path_copy(weft_context *context, const char *directory, const char *name,
                            char **path_out) {
    char path[TRAIN_PATH_SIZE];
    weft_status status = train_path(context, directory, name, path);
    if (status == WEFT_OK) {
        *path_out = weft_copy_text(context, path, strlen(path));
        status = *path_out != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    }
    return status;
}

weft_status train_make_directory(weft_context *context, const char *path) {
    char copy[TRAIN_PATH_SIZE];
    if (snprintf(copy, sizeof copy, "%s", path) >= TRAIN_PATH_SIZE || copy[0] == 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "'%s' cannot be the path of a directory", path);
    }
    for (char *slash = strchr(copy + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) {
            *slash = 0;
        }
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            return weft_fail_errno(context, errno, "cannot make the directory '%s'", copy);
        }
        if (slash == NULL) {
            return WEFT_OK;
        }
        *slash = '/';
    }
}

static weft_status read_file(weft_context *context, const char *path, FILE *file, size_t limit,
                             char **text_out, size_t *size_out) {
    struct stat facts;
    if (fstat(fileno(file), &facts) != 0) {
        return weft_fail_errno(context, errno, "cannot read '%s'", path);
    }
    if ((uint64_t)facts.st_size > limit) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "'%s' is larger than %zu bytes", path, limit);
    }
    char *text = weft_allocate(context, (size_t)facts.st_size + 1);
    if (text == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t size = fread(text, 1, (size_t)facts.st_size, file);
    if (ferror(file) != 0) {
        weft_release(context, text);
        return weft_fail_errno(context, errno, "cannot read '%s'", path);
    }
    text[size] = 0;
    *text_out = text;
    *size_out = size;
    return WEFT_OK;
}

weft_status train_read_text(weft_context *context, const char *path, size_t limit, char **text_out,
                            size_t *size_out) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return errno == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "there is no '%s'", path)
                               : weft_fail_errno(context, errno, "cannot read '%s'", path);
    }
    weft_status status = read_file(context, path, file, limit, text_out, size_out);
    fclose(file);
    return status;
}

weft_status train_explain_lost(weft_context *context, weft_status status) {
    if (status != WEFT_NOT_FOUND && status != WEFT_LIMIT_EXCEEDED && !weft_status_is_integrity(status)) {
        return status;
    }
    return weft_fail(context, status,
                     "%.511s; the run cannot be gone on with without it: put the file back from a copy (of "
                     "several trainers each has the same), or give --fresh to begin anew",
                     weft_context_error(context));
}
