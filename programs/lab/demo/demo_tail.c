/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_tail.c: reads the lines of metrics.jsonl as a trainer appends them. A line counts when it has ended.
 */
#include "demo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int demo_tail_open(weft_command *command, const char *path, demo_tail *tail) {
    *tail = (demo_tail){.command = command, .path = path, .descriptor = -1};
    tail->line = malloc(TRAINING_LINE_MAX);
    return tail->line != NULL ? EXIT_DONE : command_error(command, EXIT_FAILED, "no memory for a line");
}

void demo_tail_close(demo_tail *tail) {
    if (tail->descriptor >= 0) {
        close(tail->descriptor);
    }
    free(tail->line);
    *tail = (demo_tail){.descriptor = -1};
}

static int take_line(demo_tail *tail, const char *text, size_t size, json_t *steps) {
    char where[64];
    json_t *step = NULL;
    tail->number++;
    snprintf(where, sizeof where, "line %llu", (unsigned long long)tail->number);
    weft_status status = training_line_parse(tail->command->context, where, text, size, &step);
    if (status != WEFT_OK) {
        return command_fail(tail->command, tail->path, status);
    }
    if (!training_append(steps, step)) {
        return command_error(tail->command, EXIT_FAILED, "%s: there are too many steps to show",
                             tail->path);
    }
    return EXIT_DONE;
}

/* Takes the lines that have ended; what follows them moves to the front. */
static int take_lines(demo_tail *tail, json_t *steps) {
    size_t taken = 0;
    const char *end;
    int code = EXIT_DONE;
    while (code == EXIT_DONE && (end = memchr(tail->line + taken, '\n', tail->length - taken)) != NULL) {
        size_t size = (size_t)(end - tail->line) - taken;
        code = take_line(tail, tail->line + taken, size, steps);
        taken += size + 1;
    }
    tail->length -= taken;
    memmove(tail->line, tail->line + taken, tail->length);
    if (code == EXIT_DONE && tail->length == TRAINING_LINE_MAX) {
        code = command_error(tail->command, EXIT_INTEGRITY, "%s: a line is longer than %d bytes",
                             tail->path, TRAINING_LINE_MAX);
    }
    return code;
}

int demo_tail_read(demo_tail *tail, json_t *steps) {
    if (tail->descriptor < 0) {
        tail->descriptor = open(tail->path, O_RDONLY | O_CLOEXEC);
    }
    if (tail->descriptor < 0) {
        return errno == ENOENT ? EXIT_DONE
                               : command_error(tail->command, EXIT_FAILED, "cannot read %s: %s", tail->path,
                                               strerror(errno));
    }
    for (;;) {
        ssize_t count = read(tail->descriptor, tail->line + tail->length, TRAINING_LINE_MAX - tail->length);
        if (count < 0 && errno != EINTR) {
            return command_error(tail->command, EXIT_FAILED, "cannot read %s: %s", tail->path,
                                 strerror(errno));
        }
        if (count <= 0) {
            return EXIT_DONE;
        }
        tail->length += (size_t)count;
        int code = take_lines(tail, steps);
        if (code != EXIT_DONE) {
            return code;
        }
    }
}
