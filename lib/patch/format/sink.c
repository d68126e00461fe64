/* SPDX-License-Identifier: Apache-2.0
 *
 * sink.c: the library's own places for a patch: a file, a descriptor and memory.
 *
 * A file is written under a temporary name in the same directory and renamed when it is complete, so that
 * whoever looks at the path sees the old file or the whole new one. What has no content to replace (a pipe,
 * a device) is written straight.
 */
#include "../../base/bytes.h"
#include "../../base/context.h"

#include <weft/patch.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* What sink->opaque is. */
typedef struct sink_state {
    weft_context *context;
    pid_t process;   /* that opened it */
    char *name;      /* for messages */
    char *target;    /* the path with links followed; NULL if written straight */
    char *temporary; /* NULL if written straight, and when it has been renamed */
    int descriptor;  /* -1: memory */
    bool failed;     /* a write has */
    weft_writer memory;
} sink_state;

/* ---- writing ---- */

static weft_status sink_write_file(void *opaque, const void *data, size_t size) {
    sink_state *state = opaque;
    const char *cursor = data;
    while (size > 0) {
        ssize_t written = write(state->descriptor, cursor, size);
        if (written >= 0) {
            cursor += written;
            size -= (size_t)written;
            continue;
        }
        int error = errno;
        /* a reader that does not read must not keep a call that is to be cancelled */
        weft_status status = error == EINTR
                                 ? weft_progress_ask(state->context)
                                 : weft_fail_errno(state->context, error, "cannot write %s", state->name);
        if (status != WEFT_OK) {
            state->failed = true;
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status sink_write_memory(void *opaque, const void *data, size_t size) {
    sink_state *state = opaque;
    weft_writer_bytes(&state->memory, data, size);
    return weft_writer_failed(&state->memory) ? WEFT_NO_MEMORY : WEFT_OK;
}

/* NULL if the sink is not one of these, or is closed. */
static sink_state *sink_state_of(const weft_sink *sink) {
    bool own = sink->write == sink_write_file || sink->write == sink_write_memory;
    return own ? sink->opaque : NULL;
}

/* ---- opening and closing ---- */

static void sink_release(sink_state *state) {
    weft_context *context = state->context;
    if (state->descriptor >= 0) {
        close(state->descriptor);
    }
    if (state->temporary != NULL) {
        unlink(state->temporary);
    }
    weft_writer_close(&state->memory);
    weft_release(context, state->temporary);
    weft_release(context, state->target);
    weft_release(context, state->name);
    weft_release(context, state);
}

static weft_status sink_create(weft_context *context, const char *name, sink_state **state_out) {
    weft_context_clear(context);
    sink_state *state = weft_allocate_zeroed(context, 1, sizeof *state);
    if (state == NULL) {
        return WEFT_NO_MEMORY;
    }
    state->context = context;
    state->process = getpid();
    state->descriptor = -1;
    weft_writer_open(&state->memory, context);
    state->name = weft_copy_text(context, name, strlen(name));
    if (state->name == NULL) {
        sink_release(state);
        return WEFT_NO_MEMORY;
    }
    *state_out = state;
    return WEFT_OK;
}

/* The sink of a state that was opened with `status`, or nothing. */
static weft_status sink_settle(sink_state *state, weft_status status, weft_sink *sink_out) {
    if (status != WEFT_OK) {
        sink_release(state);
        return status;
    }
    *sink_out = (weft_sink){.write = sink_write_file, .opaque = state};
    return WEFT_OK;
}

/* Takes a descriptor that was just opened, or was not: then errno says why. */
static weft_status sink_take_descriptor(sink_state *state, int descriptor) {
    if (descriptor < 0) {
        return weft_fail_errno(state->context, errno, "cannot write %s", state->name);
    }
    state->descriptor = descriptor;
    return isatty(descriptor) ? weft_fail(state->context, WEFT_INVALID_ARGUMENT,
                                          "a patch is binary and would garble the terminal; name a file "
                                          "(-o FILE), or redirect stdout")
                              : WEFT_OK;
}

/* Creates DIRECTORY/.NAME.RANDOM.tmp beside the target. */
static weft_status sink_create_temporary(sink_state *state) {
    enum { EXTRA = sizeof "..12345678.tmp", ATTEMPTS = 16 };
    const char *slash = strrchr(state->target, '/');
    int directory = slash != NULL ? (int)(slash - state->target) + 1 : 0;
    size_t size = strlen(state->target) + EXTRA;
    char *name = weft_allocate(state->context, size);
    int error = EEXIST;
    if (name == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (unsigned attempt = 0; attempt < ATTEMPTS && error == EEXIST; attempt++) {
        unsigned number = 0;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
            number = (unsigned)getpid() * ATTEMPTS + attempt;
        }
        snprintf(name, size, "%.*s.%s.%08x.tmp", directory, state->target, state->target + directory,
                 number);
        state->descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (state->descriptor >= 0) {
            state->temporary = name;
            return WEFT_OK;
        }
        error = errno;
    }
    weft_release(state->context, name);
    return weft_fail_errno(state->context, error, "cannot write %s", state->name);
}

/* What a path leads to is replaced, and not the link to it. */
static weft_status sink_find_target(sink_state *state, bool exists) {
    char *followed = exists ? realpath(state->name, NULL) : NULL;
    if (exists && followed == NULL) {
        return weft_fail_errno(state->context, errno, "cannot write %s", state->name);
    }
    const char *target = exists ? followed : state->name;
    state->target = weft_copy_text(state->context, target, strlen(target));
    free(followed);
    return state->target != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

weft_status weft_sink_open_file(weft_context *context, const char *path, weft_sink *sink_out) {
    sink_state *state;
    struct stat info;
    weft_status status = sink_create(context, path, &state);
    if (status != WEFT_OK) {
        return status;
    }
    bool exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) {
        status = weft_fail_errno(context, EISDIR, "cannot write %s", path);
    } else if (exists && !S_ISREG(info.st_mode)) {
        status = sink_take_descriptor(state, open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY));
    } else {
        status = sink_find_target(state, exists);
        if (status == WEFT_OK) {
            status = sink_create_temporary(state);
        }
    }
    return sink_settle(state, status, sink_out);
}

weft_status weft_sink_open_descriptor(weft_context *context, int descriptor, weft_sink *sink_out) {
    char name[48];
    sink_state *state;
    if (descriptor == STDOUT_FILENO) {
        snprintf(name, sizeof name, "to stdout");
    } else {
        snprintf(name, sizeof name, "to descriptor %d", descriptor);
    }
    weft_status status = sink_create(context, name, &state);
    if (status != WEFT_OK) {
        return status;
    }
    status = sink_take_descriptor(state, fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    return sink_settle(state, status, sink_out);
}

weft_status weft_sink_open_memory(weft_context *context, weft_sink *sink_out) {
    sink_state *state;
    weft_status status = sink_create(context, "to memory", &state);
    if (status == WEFT_OK) {
        *sink_out = (weft_sink){.write = sink_write_memory, .opaque = state};
    }
    return status;
}

void weft_sink_memory(const weft_sink *sink, const void **data_out, size_t *size_out) {
    const sink_state *state = sink_state_of(sink);
    *data_out = state != NULL ? state->memory.data : NULL;
    *size_out = state != NULL ? state->memory.size : 0;
}

const char *weft_sink_temporary(const weft_sink *sink) {
    const sink_state *state = sink_state_of(sink);
    return state != NULL ? state->temporary : NULL;
}

/* ---- the end ---- */

static weft_status sink_sync_directory(sink_state *state) {
    char *slash = strrchr(state->target, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    int descriptor = open(slash != NULL ? state->target : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = descriptor < 0 || fsync(descriptor) != 0 ? errno : 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    return error == 0 ? WEFT_OK : weft_fail_errno(state->context, error, "cannot write %s", state->name);
}

static weft_status sink_put_in_place(sink_state *state, bool durable) {
    bool renamed = state->temporary != NULL;
    if (state->failed) {
        return weft_fail(state->context, WEFT_IO_FAILED,
                         "what was written to %s is not complete, because a write failed", state->name);
    }
    int descriptor = state->descriptor;
    bool failed = renamed && durable && fsync(descriptor) != 0;
    if (!failed) {
        state->descriptor = -1;
        failed = close(descriptor) != 0 || (renamed && rename(state->temporary, state->target) != 0);
    }
    if (failed) {
        return weft_fail_errno(state->context, errno, "cannot write %s", state->name);
    }
    weft_release(state->context, state->temporary);
    state->temporary = NULL;
    return renamed && durable ? sink_sync_directory(state) : WEFT_OK;
}

weft_status weft_sink_finish(weft_sink *sink, bool durable) {
    sink_state *state = sink_state_of(sink);
    if (state == NULL) {
        return WEFT_INVALID_ARGUMENT;
    }
    weft_context_clear(state->context);
    weft_status status = weft_process_check(state->context, state->process, "this sink");
    if (status != WEFT_OK || state->descriptor < 0) {
        return status;
    }
    status = sink_put_in_place(state, durable);
    sink_release(state);
    *sink = (weft_sink){0};
    return status;
}

void weft_sink_abandon(weft_sink *sink) {
    sink_state *state = sink_state_of(sink);
    if (state != NULL && weft_process_is(state->process)) {
        sink_release(state);
    }
    *sink = (weft_sink){0};
}
