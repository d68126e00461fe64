/* SPDX-License-Identifier: Apache-2.0
 *
 * archive.c: safetensors files of payloads, and small files of text.
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

weft_status weft_payload_map(weft_context *context, const char *path, weft_source *source_out) {
    struct stat info;
    int descriptor = -1;
    weft_status status = open_regular(context, path, &descriptor, &info);
    if (status == WEFT_OK) {
        status = weft_source_open_descriptor(context, descriptor, source_out);
        close(descriptor);
    }
    return status;
}

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

static weft_status archive_parse(weft_archive *archive, const char *where) {
    weft_context *context = archive->context;
    const uint8_t *memory = archive->source.memory;
    uint64_t size = archive->source.size;
    size_t header_bytes = 0;
    if (size < WEFT_SAFETENSORS_PREFIX) {
        return weft_fail(context, WEFT_TRUNCATED, "%s: too short for a safetensors file", where);
    }
    weft_status status = weft_safetensors_length(context, where, memory, size, &header_bytes);
    if (status == WEFT_OK) {
        status = weft_safetensors_parse(context, where, (const char *)memory + WEFT_SAFETENSORS_PREFIX,
                                        header_bytes, &archive->header);
    }
    if (status == WEFT_OK) {
        status = weft_safetensors_fit(context, where, header_bytes, archive->header.data_bytes, size);
        archive->data = memory + WEFT_SAFETENSORS_PREFIX + header_bytes;
    }
    return status == WEFT_OK ? sort_entries(archive) : status;
}

weft_status weft_archive_open(weft_archive *archive, weft_context *context, const char *path) {
    *archive = (weft_archive){.context = context};
    weft_status status = weft_payload_map(context, path, &archive->source);
    if (status == WEFT_OK) {
        status = archive_parse(archive, path);
    }
    if (status != WEFT_OK) {
        weft_archive_close(archive);
    }
    return status;
}

weft_status weft_archive_open_memory(weft_archive *archive, weft_context *context, const char *where,
                                     void *memory, size_t size) {
    *archive =
        (weft_archive){.context = context, .source = {.memory = memory, .size = size}, .owned = memory};
    weft_status status = archive_parse(archive, where);
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
    if (archive->owned != NULL) {
        weft_release(archive->context, archive->owned);
    } else {
        weft_source_close(&archive->source);
    }
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

weft_status weft_text_read(weft_context *context, const char *path, char **text_out, size_t *size_out) {
    struct stat info;
    int descriptor = -1;
    weft_status opened = open_regular(context, path, &descriptor, &info);
    if (opened != WEFT_OK) {
        return opened;
    }
    uint64_t limit = weft_context_limits(context)->header_bytes;
    weft_status status = WEFT_OK;
    char *text = NULL;
    size_t size = 0;
    if ((uint64_t)info.st_size > limit) {
        status = weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s: it has more than %llu bytes", path,
                           (unsigned long long)limit);
    } else {
        text = weft_allocate(context, (size_t)info.st_size + 1);
        status = text == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    }
    while (status == WEFT_OK && size < (size_t)info.st_size) {
        ssize_t got = read(descriptor, text + size, (size_t)info.st_size - size);
        if (got < 0 && errno != EINTR) {
            status = weft_fail_errno(context, errno, "%s: cannot read", path);
        } else if (got == 0) {
            break; /* it has become shorter */
        } else if (got > 0) {
            size += (size_t)got;
        }
    }
    close(descriptor);
    if (status != WEFT_OK) {
        weft_release(context, text);
        return status;
    }
    text[size] = 0;
    *text_out = text;
    *size_out = size;
    return WEFT_OK;
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
