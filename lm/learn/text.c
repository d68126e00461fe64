/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: see text.h.
 */
#include "text.h"

#include "../../lib/base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

static weft_status write_file(weft_context *context, const char *path, const char *text, bool durable) {
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return weft_fail_errno(context, errno, "cannot write '%s'", path);
    }
    bool written = fputs(text, file) >= 0 && fflush(file) == 0 && (!durable || fsync(fileno(file)) == 0);
    int error = errno;
    if (fclose(file) != 0 || !written) {
        return weft_fail_errno(context, written ? errno : error, "cannot write '%s'", path);
    }
    return WEFT_OK;
}

/* A name is only as durable as the directory that has it. */
static weft_status sync_parent(weft_context *context, const char *path) {
    char parent[PATH_SIZE];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash != NULL) {
        slash[slash == parent] = 0;
    }
    int directory = open(slash != NULL ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = directory < 0 || fsync(directory) != 0 ? errno : 0;
    if (directory >= 0) {
        close(directory);
    }
    return error == 0 ? WEFT_OK
                      : weft_fail_errno(context, error, "cannot write the directory of '%s'", path);
}

weft_status lm_text_write(weft_context *context, const char *path, const char *text, bool durable) {
    char temporary[PATH_SIZE];
    if (snprintf(temporary, sizeof temporary, "%s.new", path) >= PATH_SIZE) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT, "the path '%s' is too long", path);
    }
    weft_status status = write_file(context, temporary, text, durable);
    if (status == WEFT_OK && rename(temporary, path) != 0) {
        status = weft_fail_errno(context, errno, "cannot write '%s'", path);
    }
    if (status != WEFT_OK) {
        unlink(temporary);
    }
    return status == WEFT_OK && durable ? sync_parent(context, path) : status;
}
