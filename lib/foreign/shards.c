/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.c: payloads as files.
 */
#include "shards.h"

#include "../base/context.h"
#include "../tensor/checkpoint/checkpoint.h"
#include "../tensor/json.h"

#include <stdlib.h>
#include <string.h>

static weft_status shards_open(weft_shards *shards, const weft_foreign_writing *writing, uint64_t limit) {
    weft_context *context = writing->context;
    size_t count = writing->count;
    *shards = (weft_shards){.context = context};
    shards->payloads = weft_allocate_array(context, count + 1, sizeof *shards->payloads);
    shards->packed = weft_allocate_array(context, count + 1, sizeof *shards->packed);
    shards->files = weft_allocate_array(context, count + 1, sizeof *shards->files);
    shards->names = weft_allocate_zeroed(context, count + 1, sizeof *shards->names);
    shards->starts = weft_allocate_zeroed(context, count + 2, sizeof *shards->starts);
    if (shards->payloads == NULL || shards->packed == NULL || shards->files == NULL ||
        shards->names == NULL || shards->starts == NULL) {
        return WEFT_NO_MEMORY;
    }
    uint64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const weft_packed *packed = &writing->packed[i];
        if (packed->data == NULL) {
            continue;
        }
        bool full = limit > 0 && used > 0 && (used >= limit || packed->size > limit - used);
        if (shards->count == 0 || full) {
            shards->starts[shards->file_count++] = shards->count;
            used = 0;
        }
        used += packed->size;
        shards->payloads[shards->count] =
            (weft_foreign_payload){writing->changes[i].tensor, packed->data, packed->size};
        shards->packed[shards->count] = packed;
        shards->files[shards->count++] = shards->file_count - 1;
    }
    shards->starts[shards->file_count] = shards->count;
    return WEFT_OK;
}

static void shards_close(weft_shards *shards) {
    weft_release(shards->context, shards->payloads);
    weft_release(shards->context, shards->packed);
    weft_release(shards->context, shards->files);
    weft_release(shards->context, shards->names);
    weft_release(shards->context, shards->starts);
}

weft_status weft_shards_publish(const weft_foreign_writing *writing, const char *name, uint64_t shard_bytes,
                                weft_shards_function *write, weft_foreign_written *written) {
    weft_shards shards;
    weft_new_directory directory;
    weft_status status = weft_new_directory_open(&directory, writing->context, writing->root, name);
    if (status != WEFT_OK) {
        return status;
    }
    status = shards_open(&shards, writing, shard_bytes);
    status = status == WEFT_OK ? write(writing, &shards, directory.temporary, &written->bytes) : status;
    status = status == WEFT_OK ? weft_new_directory_finish(&directory, writing->options->durable) : status;
    written->tensors = shards.count;
    shards_close(&shards);
    weft_new_directory_close(&directory);
    return status;
}

weft_status weft_shards_write(const weft_shards *shards, size_t file, const char *directory, bool sums,
                              bool durable, uint64_t *bytes_out) {
    weft_context *context = shards->context;
    size_t first = shards->starts[file], count = shards->starts[file + 1] - first;
    const char **metadata = weft_allocate_array(context, 2 * count + 1, sizeof *metadata);
    char *path = weft_path_join(context, directory, shards->names[file]);
    weft_status status = metadata == NULL || path == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        metadata[2 * i] = shards->payloads[first + i].name;
        metadata[2 * i + 1] = shards->packed[first + i]->checksum;
    }
    if (status == WEFT_OK) {
        metadata[2 * count] = NULL;
        status = weft_archive_write(context, path, shards->payloads + first, count, sums ? metadata : NULL,
                                    durable, bytes_out);
    }
    weft_release(context, metadata);
    weft_release(context, path);
    return status;
}

weft_status weft_json_file(weft_context *context, const char *directory, const char *name, json_t *value,
                           bool durable, uint64_t *bytes_out) {
    char *text = value != NULL ? weft_json_python(value, 0) : NULL;
    json_decref(value);
    char *path = weft_path_join(context, directory, name);
    weft_status status = text == NULL || path == NULL
                             ? weft_json_no_memory(context, name)
                             : weft_text_write(context, path, text, strlen(text), durable, bytes_out);
    weft_release(context, path);
    free(text);
    return status;
}
