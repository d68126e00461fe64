/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.c: directories for the time that a command runs, and the one of what is kept to save time.
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

int cache_path(weft_command *command, const char *name, char **path_out) {
    const char *root = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool chosen = root != NULL && *root == '/';
    *path_out = NULL;
    if (!chosen && (home == NULL || *home != '/')) {
        return EXIT_DONE;
    }
    if (asprintf(path_out, "%s%s/weft/%s", chosen ? root : home, chosen ? "" : "/.cache", name) < 0) {
        return command_error(command, EXIT_FAILED, "no memory for a path");
    }
    return EXIT_DONE;
}
