/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c: where a patch of the command goes. Temporary names are kept in a small list, for the handler of
 * a signal that ends the process.
 */
#include "command.h"

#include <string.h>
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

int output_open(weft_command *command, weft_output *output, const char *path, bool durable) {
    *output = (weft_output){.durable = durable};
    weft_status status = strcmp(path, "-") == 0
                             ? weft_sink_open_descriptor(command->context, STDOUT_FILENO, &output->sink)
                             : weft_sink_open_file(command->context, path, &output->sink);
    if (status != WEFT_OK) {
        return command_fail(command, NULL, status);
    }
    if (weft_sink_temporary(&output->sink) != NULL) {
        remember(weft_sink_temporary(&output->sink));
    }
    return EXIT_DONE;
}

int output_finish(weft_command *command, weft_output *output) {
    forget(weft_sink_temporary(&output->sink));
    weft_status status = weft_sink_finish(&output->sink, output->durable);
    return status == WEFT_OK ? EXIT_DONE : command_fail(command, NULL, status);
}

void output_close(weft_output *output) {
    forget(weft_sink_temporary(&output->sink));
    weft_sink_abandon(&output->sink);
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
