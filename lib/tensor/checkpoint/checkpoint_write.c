/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_write.c: a table written as safetensors. The headers are made first, as a container; the
 * rest is a new checkpoint whose tensors are filled by all threads, in chunks.
 */
#include "../../base/context.h"
#include "../../base/pool.h"
#include "../../base/sized.h"
#include "../../base/status.h"
#include "../strides.h"
#include "../table.h"
#include "index.h"
#include "safetensors.h"

#include <stdio.h>
#include <string.h>

enum {
    CHUNK_BYTES = 4 << 20,
    CAST_BLOCK = 2048,  /* elements; input and output stay in the first-level cache */
    SHARDS_MAX = 99999, /* what the usual file names have room for */
    SHARD_NAME = 64,
};

/* ---- headers ---- */

typedef struct writer_plan {
    weft_context *context;
    const weft_tensor **tensors; /* of the table, ties left out */
    size_t count;
    size_t shard_count;
    size_t *starts;            /* shard i holds the tensors from starts[i] up to starts[i + 1] */
    char (*names)[SHARD_NAME]; /* of the shards */
    weft_container_file *files;
    char *index;
    size_t index_bytes;
} writer_plan;

static void close_plan(writer_plan *plan) {
    for (size_t i = 0; plan->files != NULL && i < plan->shard_count; i++) {
        weft_release(plan->context, (char *)(uintptr_t)plan->files[i].header);
    }
    weft_release(plan->context, plan->files);
    weft_release(plan->context, plan->tensors);
    weft_release(plan->context, plan->starts);
    weft_release(plan->context, plan->names);
    weft_release(plan->context, plan->index);
}

static weft_status collect_tensors(writer_plan *plan, const weft_table *table) {
    plan->tensors =
        weft_allocate_array(plan->context, weft_table_sorted_count(table), sizeof(plan->tensors[0]));
    if (plan->tensors == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < weft_table_count(table); i++) {
        const weft_tensor *tensor = weft_table_at(table, i);
        if (tensor->tied_to >= 0) {
            continue;
        }
        bool readable = tensor->access != NULL ? tensor->access->read != NULL : tensor->data != NULL;
        if (tensor->bytes > 0 && !readable) {
            return weft_fail(plan->context, WEFT_INVALID_ARGUMENT,
                             "tensor \"%.*s\" cannot be written: it has neither data nor a read function",
                             WEFT_NAME_SHOWN, tensor->name);
        }
        plan->tensors[plan->count++] = tensor;
    }
    return WEFT_OK;
}

/* A new shard starts before the limit would be exceeded; a tensor over the limit has one of its own. */
static weft_status cut_shards(writer_plan *plan, uint64_t shard_bytes) {
    plan->starts = weft_allocate_zeroed(plan->context, plan->count + 2, sizeof(plan->starts[0]));
    if (plan->starts == NULL) {
        return WEFT_NO_MEMORY;
    }
    if (shard_bytes == 0) {
        plan->shard_count = 1;
    } else {
        uint64_t used = 0;
        for (size_t i = 0; i < plan->count; i++) {
            uint64_t bytes = plan->tensors[i]->bytes;
            if (i == 0 || (used > 0 && (bytes > shard_bytes || used > shard_bytes - bytes))) {
                plan->starts[plan->shard_count++] = i;
                used = 0;
            }
            used += bytes;
        }
    }
    plan->starts[plan->shard_count] = plan->count;
    if (plan->shard_count > SHARDS_MAX) {
        return weft_fail(plan->context, WEFT_INVALID_ARGUMENT,
                         "%llu bytes per shard make %zu shards; allow more bytes for at most %d",
                         (unsigned long long)shard_bytes, plan->shard_count, SHARDS_MAX);
    }
    return WEFT_OK;
}

static weft_status build_headers(writer_plan *plan, bool sharded, const char *const *metadata) {
    weft_context *context = plan->context;
    plan->names = weft_allocate_array(context, plan->shard_count, sizeof(plan->names[0]));
    plan->files = weft_allocate_zeroed(context, plan->shard_count, sizeof(plan->files[0]));
    if (plan->names == NULL || plan->files == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t i = 0; i < plan->shard_count; i++) {
        plan->names[i][0] = '\0';
        if (sharded) {
            snprintf(plan->names[i], SHARD_NAME, "model-%05zu-of-%05zu.safetensors", i + 1,
                     plan->shard_count);
        }
        char *header = NULL;
        weft_status status = weft_safetensors_build(context, plan->tensors + plan->starts[i],
                                                    plan->starts[i + 1] - plan->starts[i], metadata,
                                                    &header, &plan->files[i].header_bytes);
        if (status != WEFT_OK) {
            return status;
        }
        plan->files[i].name = plan->names[i];
        plan->files[i].header = header;
    }
    return WEFT_OK;
}

static weft_status build_index(writer_plan *plan) {
    const char **files = weft_allocate_array(plan->context, plan->count, sizeof(*files));
    if (files == NULL) {
        return WEFT_NO_MEMORY;
    }
    for (size_t shard = 0; shard < plan->shard_count; shard++) {
        for (size_t i = plan->starts[shard]; i < plan->starts[shard + 1]; i++) {
            files[i] = plan->names[shard];
        }
    }
    weft_status status = weft_index_build(plan->context, plan->tensors, plan->count, files, &plan->index,
                                          &plan->index_bytes);
    weft_release(plan->context, files);
    return status;
}

static weft_status make_plan(writer_plan *plan, const weft_table *table,
                             const weft_write_options *options) {
    bool sharded = options->shard_bytes > 0;
    weft_status status = collect_tensors(plan, table);
    if (status == WEFT_OK) {
        status = cut_shards(plan, options->shard_bytes);
    }
    if (status == WEFT_OK) {
        status = build_headers(plan, sharded, options->metadata);
    }
    if (status == WEFT_OK && sharded) {
        status = build_index(plan);
    }
    return status;
}

/* ---- data ---- */

typedef struct copy_job {
    weft_context *context;
    const weft_tensor **sources;
    void **targets;
    uint64_t *chunks; /* chunk numbers from chunks[i] on belong to tensor i */
    size_t count;
} copy_job;

/* Neither side need be aligned: both are copied through blocks on the stack. */
static void cast_masters(const uint8_t *masters, uint8_t *output, uint64_t count) {
    float input[CAST_BLOCK];
    uint16_t rounded[CAST_BLOCK];
    for (uint64_t done = 0; done < count; done += CAST_BLOCK) {
        size_t block = count - done < CAST_BLOCK ? (size_t)(count - done) : CAST_BLOCK;
        memcpy(input, masters + done * sizeof(float), block * sizeof(float));
        weft_bf16_from_f32(input, rounded, block);
        memcpy(output + done * sizeof(uint16_t), rounded, block * sizeof(uint16_t));
    }
}

static weft_status copy_range(weft_context *context, const weft_tensor *source, uint64_t offset,
                              uint8_t *output, size_t size) {
    if (source->access != NULL) {
        return weft_answer(context, source->access->read(source->opaque, offset, output, size),
                           "the read function of tensor \"%.*s\"", WEFT_NAME_SHOWN, source->name);
    }
    if (source->strides != NULL) {
        unsigned width = weft_dtype_width(source->dtype);
        weft_tensor_read(source, offset / width, size / width, output);
        return WEFT_OK;
    }
    const uint8_t *data = source->data;
    if (source->storage == source->dtype) {
        memcpy(output, data + offset, size);
    } else {
        cast_masters(data + 2 * offset, output, size / sizeof(uint16_t));
    }
    return WEFT_OK;
}

/* The last tensor whose first chunk is not behind `chunk`. Empty tensors have no chunks, and so share
 * their first chunk with the next one, which comes last. */
static size_t tensor_of_chunk(const copy_job *job, uint64_t chunk) {
    size_t low = 0;
    size_t high = job->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (job->chunks[middle] <= chunk) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static weft_status copy_chunk(void *argument, size_t index, unsigned worker) {
    (void)worker;
    const copy_job *job = argument;
    size_t tensor = tensor_of_chunk(job, index);
    uint64_t offset = (index - job->chunks[tensor]) * (uint64_t)CHUNK_BYTES;
    uint64_t left = job->sources[tensor]->bytes - offset;
    size_t size = left < CHUNK_BYTES ? (size_t)left : (size_t)CHUNK_BYTES;
    weft_status status = copy_range(job->context, job->sources[tensor], offset,
                                    (uint8_t *)job->targets[tensor] + offset, size);
    return status == WEFT_OK ? weft_progress_add(job->context, size) : status;
}

static weft_status copy_data(const writer_plan *plan, const weft_checkpoint *checkpoint) {
    weft_context *context = plan->context;
    const weft_table *table = weft_checkpoint_table(checkpoint);
    copy_job job = {.context = context, .sources = plan->tensors, .count = plan->count};
    job.targets = weft_allocate_array(context, plan->count, sizeof(job.targets[0]));
    job.chunks = weft_allocate_array(context, plan->count, sizeof(job.chunks[0]));
    weft_status status = job.targets == NULL || job.chunks == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        uint64_t chunks = 0;
        for (size_t i = 0; i < plan->count; i++) {
            int64_t index = weft_table_find(table, plan->tensors[i]->name);
            job.targets[i] = weft_table_at(table, (size_t)index)->data;
            job.chunks[i] = chunks;
            chunks += (plan->tensors[i]->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
        }
        weft_progress_begin(context, "write", weft_table_bytes(table));
        status = weft_parallel(context, chunks, copy_chunk, &job);
    }
    weft_release(context, job.targets);
    weft_release(context, job.chunks);
    return status;
}

static weft_status write_plan(const writer_plan *plan, const char *path,
                              const weft_write_options *options) {
    const weft_container container = {
        .sharded = options->shard_bytes > 0,
        .file_count = plan->shard_count,
        .files = plan->files,
        .index = plan->index,
        .index_bytes = plan->index_bytes,
    };
    weft_checkpoint *checkpoint = NULL;
    weft_status status = weft_checkpoint_create(plan->context, path, &container, &checkpoint);
    if (status != WEFT_OK) {
        return status;
    }
    status = copy_data(plan, checkpoint);
    if (status != WEFT_OK) {
        weft_checkpoint_close(checkpoint);
        return status;
    }
    return weft_checkpoint_finish(checkpoint, options->durable);
}

weft_status weft_table_write(weft_context *context, const weft_table *table, const char *path,
                             const weft_write_options *given) {
    weft_context_clear(context);
    weft_write_options options;
    weft_status status = weft_sized_read(context, given, &options, sizeof options, "weft_write_options");
    if (status != WEFT_OK) {
        return status;
    }
    writer_plan plan = {.context = context};
    status = make_plan(&plan, table, &options);
    if (status == WEFT_OK) {
        status = write_plan(&plan, path, &options);
    }
    close_plan(&plan);
    return status;
}
