/* SPDX-License-Identifier: Apache-2.0
 *
 * past_file.c: a header, what the past holds, and a checksum over both.
 */
#include "past_file.h"

#include "../base/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = "weftpas1";

typedef struct file_header {
    char magic[sizeof MAGIC];
    char run[40];
    uint64_t version;
} file_header;

/* ---- writing ---- */

typedef struct file_sink {
    FILE *file;
    XXH3_state_t *hash;
} file_sink;

static weft_status write_some(void *opaque, const void *data, size_t size) {
    file_sink *sink = opaque;
    XXH3_64bits_update(sink->hash, data, size);
    return fwrite(data, 1, size, sink->file) == size ? WEFT_OK : WEFT_IO_FAILED;
}

static weft_status write_all(file_sink *sink, const file_header *header, const weft_past *past) {
    const weft_sink over = {write_some, sink};
    weft_status status = write_some(sink, header, sizeof *header);
    if (status == WEFT_OK) {
        status = weft_past_write(past, &over);
    }
    if (status == WEFT_OK) {
        uint64_t checksum = XXH3_64bits_digest(sink->hash);
        status = write_some(sink, &checksum, sizeof checksum);
    }
    return status;
}

static weft_status write_file(weft_context *context, const char *path, const file_header *header,
                              const weft_past *past) {
    file_sink sink = {fopen(path, "we"), XXH3_createState()};
    weft_status status = WEFT_OK;
    if (sink.file == NULL || sink.hash == NULL) {
        status = weft_fail_errno(context, errno, "%s: cannot create", path);
    } else {
        XXH3_64bits_reset(sink.hash);
        errno = 0;
        status = write_all(&sink, header, past);
    }
    bool closed = sink.file == NULL || fclose(sink.file) == 0;
    XXH3_freeState(sink.hash);
    if (sink.file != NULL && (status != WEFT_OK || !closed)) {
        status = weft_fail_errno(context, errno, "writing %s failed", path);
        unlink(path);
    }
    return status;
}

weft_status weft_past_save(weft_context *context, const char *path, const char *run, uint64_t version,
                           const weft_past *past) {
    file_header header = {.version = version};
    memcpy(header.magic, MAGIC, sizeof header.magic);
    snprintf(header.run, sizeof header.run, "%s", run);
    char *temporary = weft_allocate(context, strlen(path) + 8);
    if (temporary == NULL) {
        return WEFT_NO_MEMORY;
    }
    sprintf(temporary, "%s-new", path);
    weft_status status = write_file(context, temporary, &header, past);
    if (status == WEFT_OK && rename(temporary, path) != 0) {
        status = weft_fail_errno(context, errno, "%s: cannot rename", temporary);
    }
    weft_release(context, temporary);
    return status;
}

/* ---- reading ---- */

static weft_status read_bytes(weft_context *context, const char *path, const char *run, const uint8_t *data,
                              size_t size, weft_past *past, uint64_t *version_out) {
    file_header header;
    uint64_t checksum;
    size_t body = size - sizeof checksum;
    memcpy(&header, data, sizeof header);
    memcpy(&checksum, data + body, sizeof checksum);
    header.run[sizeof header.run - 1] = '\0';
    if (memcmp(header.magic, MAGIC, sizeof header.magic) != 0 || strcmp(header.run, run) != 0 ||
        XXH3_64bits(data, body) != checksum) {
        return weft_fail(context, WEFT_MALFORMED, "%s is not a past of this run", path);
    }
    weft_reader reader = weft_reader_over(data + sizeof header, body - sizeof header);
    weft_status status = weft_past_read(context, past, &reader);
    if (status == WEFT_OK) {
        *version_out = header.version;
    }
    return status;
}

weft_status weft_past_load(weft_context *context, const char *path, const char *run, weft_past *past,
                           uint64_t *version_out) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (file < 0) {
        return errno == ENOENT ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such file", path)
                               : weft_fail_errno(context, errno, "%s: cannot open", path);
    }
    void *data = MAP_FAILED;
    size_t least = sizeof(file_header) + sizeof(uint64_t);
    if (fstat(file, &info) == 0 && (uint64_t)info.st_size >= least) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (data == MAP_FAILED) {
        return weft_fail(context, WEFT_MALFORMED, "%s cannot be read", path);
    }
    weft_status status = read_bytes(context, path, run, data, (size_t)info.st_size, past, version_out);
    munmap(data, (size_t)info.st_size);
    return status;
}
