/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.c: directories for the time that a command runs.
 */
#include "command.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>

int scratch_open(weft_command *command, const char *parent, const char *name, char **path_out) {
    char *path = NULL;
    if (parent == NULL) {
        parent = getenv("TMPDIR");
    }
    if (parent == NULL || *parent == 0) {
        parent = "/tmp";
    }
    if (asprintf(&path, "%s/%s.XXXXXX", parent, name) < 0) {
        return command_error(command, EXIT_FAILED, "no memory for the name of a directory");
    }
    if (mkdtemp(path) == NULL) {
        int code = command_error(command, EXIT_FAILED, "cannot make a directory in %s: %s", parent,
                                 strerror(errno));
        free(path);
        return code;
    }
    *path_out = path;
    return EXIT_DONE;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    remove(path);
    return 0;
}

void scratch_remove(const char *path) {
    enum { DESCRIPTORS = 16 };
    nftw(path, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

void scratch_close(char *path) {
    if (path != NULL) {
        scratch_remove(path);
        free(path);
    }
}
