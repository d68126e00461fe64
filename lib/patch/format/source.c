/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c: the library's own way to read a patch: a mapped file. What cannot be mapped (a pipe) is first
 * copied to an unnamed file, which takes disk and not memory.
 */
#include "../../base/context.h"

#include <weft/patch.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What source->opaque is. */
typedef struct source_state {
    weft_context *context;
    void *mapping; /* NULL if the file is empty */
    size_t size;
} source_state;

static weft_status source_refuse(weft_context *context, int error, const char *name) {
    return error == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "cannot read %s: %s", name, strerror(error))
                           : weft_fail_errno(context, error, "cannot read %s", name);
}

/* `memory` holds all; nobody asks. */
static weft_status source_read(void *opaque, uint64_t offset, void *data, size_t size) {
    const source_state *state = opaque;
    if (offset > state->size || size > state->size - offset) {
        return WEFT_TRUNCATED;
    }
    memcpy(data, (const uint8_t *)state->mapping + offset, size);
    return WEFT_OK;
}

static bool source_write_all(int descriptor, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(descriptor, data, size);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        data += written < 0 ? 0 : written;
        size -= written < 0 ? 0 : (size_t)written;
    }
    return true;
}

static weft_status source_copy_stream(weft_context *context, const char *name, int stream, int file) {
    enum { PIECE = 1 << 16 };
    char *buffer = weft_allocate(context, PIECE);
    weft_status status = buffer != NULL ? WEFT_OK : WEFT_NO_MEMORY;
    while (status == WEFT_OK) {
        ssize_t got = read(stream, buffer, PIECE);
        if (got == 0) {
            break;
        }
        if (got < 0 && errno == EINTR) {
            status = weft_progress_ask(context);
        } else if (got < 0 || !source_write_all(file, buffer, (size_t)got)) {
            status = source_refuse(context, errno, name);
        }
    }
    weft_release(context, buffer);
    return status;
}

/* Puts a file in the place of a stream. */
static weft_status source_spool(weft_context *context, const char *name, int *descriptor) {
    const char *directory = getenv("TMPDIR");
    directory = directory != NULL && *directory != 0 ? directory : "/tmp";
    int file = open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (file < 0) {
        return weft_fail(context, WEFT_IO_FAILED,
                         "cannot keep the patch in %s: %s; set TMPDIR or give the patch as a file",
                         directory, strerror(errno));
    }
    weft_status status = source_copy_stream(context, name, *descriptor, file);
    close(*descriptor);
    *descriptor = file;
    return status;
}

static weft_status source_map(weft_context *context, const char *name, int descriptor,
                              weft_source *source_out) {
    struct stat info;
    if (fstat(descriptor, &info) != 0) {
        return source_refuse(context, errno, name);
    }
    source_state *state = weft_allocate_zeroed(context, 1, sizeof *state);
    if (state == NULL) {
        return WEFT_NO_MEMORY;
    }
    *state = (source_state){.context = context, .size = (size_t)info.st_size};
    if (state->size > 0) {
        state->mapping = mmap(NULL, state->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    if (state->mapping == MAP_FAILED) {
        int error = errno;
        weft_release(context, state);
        return source_refuse(context, error, name);
    }
    *source_out = (weft_source){
        .memory = state->mapping != NULL ? state->mapping : "",
        .size = state->size,
        .read = source_read,
        .opaque = state,
    };
    return WEFT_OK;
}

/* Closes the descriptor. */
static weft_status source_open(weft_context *context, const char *name, int descriptor,
                               weft_source *source_out) {
    struct stat info;
    weft_status status = WEFT_OK;
    if (descriptor < 0 || fstat(descriptor, &info) != 0) {
        status = source_refuse(context, errno, name);
    } else if (S_ISDIR(info.st_mode)) {
        status = source_refuse(context, EISDIR, name);
    } else if (isatty(descriptor)) {
        status = weft_fail(context, WEFT_INVALID_ARGUMENT,
                           "a patch is not read from a terminal; redirect stdin");
    } else if (!S_ISREG(info.st_mode)) {
        status = source_spool(context, name, &descriptor);
    }
    if (status == WEFT_OK) {
        status = source_map(context, name, descriptor, source_out);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

weft_status weft_source_open_file(weft_context *context, const char *path, weft_source *source_out) {
    weft_context_clear(context);
    return source_open(context, path, open(path, O_RDONLY | O_CLOEXEC), source_out);
}

weft_status weft_source_open_descriptor(weft_context *context, int descriptor, weft_source *source_out) {
    char name[48];
    weft_context_clear(context);
    if (descriptor == STDIN_FILENO) {
        snprintf(name, sizeof name, "the patch from stdin");
    } else {
        snprintf(name, sizeof name, "the patch from descriptor %d", descriptor);
    }
    return source_open(context, name, fcntl(descriptor, F_DUPFD_CLOEXEC, 0), source_out);
}

void weft_source_close(weft_source *source) {
    if (source->read == source_read) {
        source_state *state = source->opaque;
        if (state->mapping != NULL) {
            munmap(state->mapping, state->size);
        }
        weft_release(state->context, state);
    }
    *source = (weft_source){0};
}
