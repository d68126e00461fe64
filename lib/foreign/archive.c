/* SPDX-License-Identifier: Apache-2.0
 *
 * archive.c: files to memory; and safetensors files of payloads.
 */
#include "archive.h"

#include "../base/bytes.h"
#include "../base/context.h"
#include "../tensor/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading ---- */

/* A pipe that lies in the place of a file would be waited for, and a device has no end. */
static weft_status open_regular(weft_context *context, const char *path, int *descriptor_out,
                                struct stat *info) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        int error = errno;
        return error == ENOENT || error == ENOTDIR
                   ? weft_fail(context, WEFT_NOT_FOUND, "%s: there is no such file", path)
                   : weft_fail_errno(context, error, "%s: cannot open", path);
    }
    if (fstat(descriptor, info) != 0 || !S_ISREG(info->st_mode)) {
        close(descriptor);
        return weft_fail(context, WEFT_MALFORMED, "%s: this is no file", path);
    }
    *descriptor_out = descriptor;
    return WEFT_OK;
}

/* Fewer bytes than are asked for if the file ends before. */
static weft_status read_at(weft_context *context, const char *path, int descriptor, uint64_t offset,
                           uint8_t *buffer, size_t size, size_t *read_out) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(descriptor, buffer + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno != EINTR) {
            return weft_fail_errno(context, errno, "%s: cannot read", path);
        }
        if (got == 0) {
            break;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    *read_out = done;
    return WEFT_OK;
}

weft_status weft_file_read(weft_context *context, const char *path, uint64_t most, uint8_t **memory_out,
                           size_t *size_out) {
    struct stat info;
    int descriptor = -1;
    weft_status status = open_regular(context, path, &descriptor, &info);
    if (status != WEFT_OK) {
        return status;
    }
    uint8_t *memory = NULL;
    if ((uint64_t)info.st_size > most) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s: it has more than %llu bytes", path,
                           (unsigned long long)most);
    } else {
        memory = weft_allocate(context, (size_t)info.st_size + 1);
        status = memory == NULL
                     ? WEFT_NO_MEMORY
                     : read_at(context, path, descriptor, 0, memory, (size_t)info.st_size, size_out);
    }
    close(descriptor);
    if (status != WEFT_OK) {
        weft_release(context, memory);
        return status;
    }
    memory[*size_out] = 0;
    *memory_out = memory;
    return WEFT_OK;
}

weft_status weft_file_peek(weft_context *context, const char *path, uint64_t offset, void *buffer,
                           size_t size, size_t *read_out, uint64_t *file_bytes_out) {
    struct stat info;
    int descriptor = -1;
    weft_status status = open_regular(context, path, &descriptor, &info);
    if (status == WEFT_OK) {
        *file_bytes_out = (uint64_t)info.st_size;
        status = read_at(context, path, descriptor, offset, buffer, size, read_out);
        close(descriptor);
    }
    return status;
}

weft_status weft_text_read(weft_context *context, const char *path, char **text_out, size_t *size_out) {
    uint8_t *memory = NULL;
    weft_status status =
        weft_file_read(context, path, weft_context_limits(context)->header_bytes, &memory, size_out);
    *text_out = (char *)memory;
    return status;
}

/* ---- archives ---- */

static int compare_entries(const void *a, const void *b) {
    return strcmp((*(const weft_safetensors_entry *const *)a)->name,
                  (*(const weft_safetensors_entry *const *)b)->name);
}

/* A model of experts has tens of thousands, and each is looked for. */
static weft_status sort_entries(weft_archive *archive) {
    size_t count = archive->header.count;
    archive->by_name = weft_allocate_array(archive->context, count + 1, sizeof *archive->by_name);
    if (archive->by_name == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        archive->by_name[i] = &archive->header.entries[i];
    }
    qsort(archive->by_name, count, sizeof *archive->by_name, compare_entries);
    return WEFT_OK;
}

/* `file_bytes` of which the header, at least, is in memory. */
static weft_status archive_parse(weft_archive *archive, const char *where, size_t header_bytes,
                                 uint64_t file_bytes) {
    weft_context *context = archive->context;
    weft_status status =
        weft_safetensors_parse(context, where, (const char *)archive->memory + WEFT_SAFETENSORS_PREFIX,
                               header_bytes, &archive->header);
    status = status == WEFT_OK ? weft_safetensors_fit(context, where, header_bytes,
                                                      archive->header.data_bytes, file_bytes)
                               : status;
    return status == WEFT_OK ? sort_entries(archive) : status;
}

/* The length of the header, from the first bytes of a file. */
static weft_status header_length(weft_context *context, const char *where, const uint8_t *prefix,
                                 uint64_t file_bytes, size_t *header_bytes_out) {
    return file_bytes < WEFT_SAFETENSORS_PREFIX
               ? weft_fail(context, WEFT_TRUNCATED, "%s: too short for a safetensors file", where)
               : weft_safetensors_length(context, where, prefix, file_bytes, header_bytes_out);
}

weft_status weft_archive_open(weft_archive *archive, weft_context *context, const char *where,
                              uint8_t *memory, size_t size) {
    size_t header_bytes = 0;
    *archive = (weft_archive){.context = context, .memory = memory};
    weft_status status = header_length(context, where, memory, size, &header_bytes);
    status = status == WEFT_OK ? archive_parse(archive, where, header_bytes, size) : status;
    if (status != WEFT_OK) {
        weft_archive_close(archive);
        return status;
    }
    archive->data = memory + WEFT_SAFETENSORS_PREFIX + header_bytes;
    return WEFT_OK;
}

weft_status weft_archive_peek(weft_archive *archive, weft_context *context, const char *path,
                              const char *name, void *buffer, size_t size) {
    uint8_t prefix[WEFT_SAFETENSORS_PREFIX] = {0};
    size_t header_bytes = 0, got = 0;
    uint64_t file_bytes = 0;
    *archive = (weft_archive){.context = context};
    if (size > 0) {
        memset(buffer, 0, size);
    }
    weft_status status = weft_file_peek(context, path, 0, prefix, sizeof prefix, &got, &file_bytes);
    status = status == WEFT_OK ? header_length(context, path, prefix,
                                               got < sizeof prefix ? got : file_bytes, &header_bytes)
                               : status;
    if (status == WEFT_OK) {
        archive->memory = weft_allocate_zeroed(context, header_bytes + sizeof prefix, 1);
        status = archive->memory == NULL ? WEFT_NO_MEMORY
                                         : weft_file_peek(context, path, 0, archive->memory,
                                                          header_bytes + sizeof prefix, &got, &file_bytes);
    }
    status = status == WEFT_OK ? archive_parse(archive, path, header_bytes, file_bytes) : status;
    const weft_safetensors_entry *entry = status == WEFT_OK ? weft_archive_find(archive, name) : NULL;
    if (entry != NULL && entry->end - entry->begin == size) {
        status = weft_file_peek(context, path, sizeof prefix + header_bytes + entry->begin, buffer, size,
                                &got, &file_bytes);
    }
    if (status != WEFT_OK) {
        weft_archive_close(archive);
    }
    return status;
}

void weft_archive_close(weft_archive *archive) {
    if (archive->context == NULL) {
        return;
    }
    if (archive->header.root != NULL) {
        weft_safetensors_close(&archive->header);
    }
    weft_release(archive->context, archive->by_name);
    weft_release(archive->context, archive->memory);
    *archive = (weft_archive){0};
}

const char *weft_archive_metadata(const weft_archive *archive, const char *key) {
    return json_string_value(json_object_get(archive->header.metadata, key));
}

const weft_safetensors_entry *weft_archive_find(const weft_archive *archive, const char *name) {
    const weft_safetensors_entry wanted = {.name = name}, *key = &wanted;
    const weft_safetensors_entry *const *found =
        bsearch(&key, archive->by_name, archive->header.count, sizeof *archive->by_name, compare_entries);
    return found != NULL ? *found : NULL;
}

/* ---- writing ---- */

/* The header of a file of U8 rows. */
static weft_status build_header(weft_context *context, const weft_foreign_payload *payloads, size_t count,
                                const char *const *metadata, char **json_out, size_t *size_out) {
    weft_tensor *tensors = weft_allocate_zeroed(context, count + 1, sizeof *tensors);
    const weft_tensor **pointers = weft_allocate_array(context, count + 1, sizeof *pointers);
    weft_status status = tensors == NULL || pointers == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        tensors[i] = (weft_tensor){.size = sizeof tensors[i],
                                   .name = payloads[i].name,
                                   .dtype = WEFT_DTYPE_U8,
                                   .storage = WEFT_DTYPE_U8,
                                   .rank = 1,
                                   .shape = {payloads[i].size},
                                   .bytes = payloads[i].size,
                                   .tied_to = -1};
        pointers[i] = &tensors[i];
    }
    if (status == WEFT_OK) {
        status = weft_safetensors_build(context, pointers, count, metadata, json_out, size_out);
    }
    weft_release(context, tensors);
    weft_release(context, pointers);
    return status;
}

weft_status weft_archive_write(weft_context *context, const char *path,
                               const weft_foreign_payload *payloads, size_t count,
                               const char *const *metadata, bool durable, uint64_t *bytes_out) {
    char *json = NULL;
    size_t size = 0;
    weft_status status = build_header(context, payloads, count, metadata, &json, &size);
    if (status != WEFT_OK) {
        return status;
    }
    weft_sink sink;
    status = weft_sink_open_file(context, path, &sink);
    if (status != WEFT_OK) {
        weft_release(context, json);
        return status;
    }
    uint64_t length = size;
    status = sink.write(sink.opaque, &length, sizeof length);
    status = status == WEFT_OK ? sink.write(sink.opaque, json, size) : status;
    *bytes_out += sizeof length + size;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = sink.write(sink.opaque, payloads[i].data, (size_t)payloads[i].size);
        *bytes_out += payloads[i].size;
    }
    status = status == WEFT_OK ? weft_sink_finish(&sink, durable) : status;
    if (status != WEFT_OK) {
        weft_sink_abandon(&sink);
    }
    weft_release(context, json);
    return status;
}

weft_status weft_text_write(weft_context *context, const char *path, const char *text, size_t size,
                            bool durable, uint64_t *bytes_out) {
    weft_sink sink;
    weft_status status = weft_sink_open_file(context, path, &sink);
    if (status != WEFT_OK) {
        return status;
    }
    status = sink.write(sink.opaque, text, size);
    status = status == WEFT_OK ? weft_sink_finish(&sink, durable) : status;
    if (status != WEFT_OK) {
        weft_sink_abandon(&sink);
    }
    *bytes_out += size;
    return status;
}
