/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: what a version consists of: the files that are read, and the parts that are found in them.
 */
#include "payload.h"

#include "../base/context.h"

#include <string.h>
#include <zstd.h>

enum { CHUNK = 256 * 1024 };

void weft_foreign_plan_close(weft_foreign_plan *plan) {
    for (size_t i = 0; i < plan->archive_count; i++) {
        weft_archive_close(&plan->archives[i]);
    }
    for (size_t i = 0; i < plan->buffer_count; i++) {
        weft_release(plan->context, plan->buffers[i]);
    }
    json_decref(plan->json);
    weft_release(plan->context, plan->buffers);
    weft_release(plan->context, plan->archives);
    weft_release(plan->context, plan->parts);
}

weft_status weft_foreign_plan_file(weft_foreign_plan *plan, const char *path, uint8_t **memory_out,
                                   size_t *size_out) {
    weft_status status = weft_file_read(plan->context, path, plan->most - plan->held, memory_out, size_out);
    plan->held += status == WEFT_OK ? *size_out : 0;
    return status;
}

/* A safetensors file, or a frame of zstd that holds one: its magic would be a header of 4 GB. */
static weft_status open_any(weft_foreign_plan *plan, weft_archive *archive, const char *path) {
    uint32_t magic = 0;
    uint8_t *memory = NULL;
    size_t size = 0;
    weft_status status = weft_foreign_plan_file(plan, path, &memory, &size);
    if (status != WEFT_OK) {
        return status;
    }
    if (size >= sizeof magic) {
        memcpy(&magic, memory, sizeof magic);
    }
    if (magic == ZSTD_MAGICNUMBER) {
        uint8_t *frame = memory;
        status = weft_foreign_plan_inflate(plan, path, frame, size, &memory, &size);
        weft_release(plan->context, frame);
    }
    return status == WEFT_OK ? weft_archive_open(archive, plan->context, path, memory, size) : status;
}

weft_status weft_foreign_plan_archive(weft_foreign_plan *plan, const char *path,
                                      weft_archive **archive_out) {
    if (plan->archive_count == plan->archive_capacity) {
        size_t capacity = 2 * plan->archive_capacity + 4;
        weft_archive *archives =
            weft_reallocate_array(plan->context, plan->archives, capacity, sizeof *archives);
        if (archives == NULL) {
            return WEFT_NO_MEMORY;
        }
        plan->archives = archives;
        plan->archive_capacity = capacity;
    }
    weft_archive *archive = &plan->archives[plan->archive_count];
    weft_status status = open_any(plan, archive, path);
    if (status == WEFT_OK) {
        plan->archive_count++;
        *archive_out = archive;
    }
    return status;
}

weft_status weft_foreign_plan_keep(weft_foreign_plan *plan, void *memory) {
    void **buffers =
        weft_reallocate_array(plan->context, plan->buffers, plan->buffer_count + 1, sizeof *buffers);
    if (buffers == NULL) {
        weft_release(plan->context, memory);
        return WEFT_NO_MEMORY;
    }
    plan->buffers = buffers;
    buffers[plan->buffer_count++] = memory;
    return WEFT_OK;
}

/* What a frame says of its size is not believed: memory grows with what comes out. */
weft_status weft_foreign_plan_inflate(weft_foreign_plan *plan, const char *where, const uint8_t *data,
                                      size_t size, uint8_t **memory_out, size_t *size_out) {
    weft_context *context = plan->context;
    uint64_t most = plan->most - plan->held;
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    ZSTD_inBuffer input = {data, size, 0};
    uint8_t *memory = NULL;
    size_t used = 0, capacity = 0, left = 1;
    weft_status status = zstd == NULL ? weft_fail(context, WEFT_NO_MEMORY, "no memory for zstd") : WEFT_OK;
    while (status == WEFT_OK && left != 0) {
        if (used == capacity) {
            /* one byte more than is allowed shows that there is more */
            capacity = 2 * capacity + CHUNK < most ? 2 * capacity + CHUNK : (size_t)most + 1;
            uint8_t *more = weft_reallocate_array(context, memory, capacity, 1);
            if (more == NULL) {
                status = WEFT_NO_MEMORY;
                break;
            }
            memory = more;
        }
        ZSTD_outBuffer output = {memory, capacity, used};
        size_t taken = input.pos;
        left = ZSTD_decompressStream(zstd, &output, &input);
        bool stuck = !ZSTD_isError(left) && left != 0 && output.pos == used && input.pos == taken;
        if (ZSTD_isError(left) || stuck) {
            status = weft_fail(context, stuck ? WEFT_TRUNCATED : WEFT_MALFORMED, "%s: %s", where,
                               stuck ? "its frame of zstd is cut short" : "this is no frame of zstd");
        } else if (output.pos > most) {
            status = weft_fail(context, WEFT_LIMIT_EXCEEDED, "%s: it holds more than %llu bytes", where,
                               (unsigned long long)most);
        }
        used = output.pos;
    }
    ZSTD_freeDCtx(zstd);
    if (status == WEFT_OK && input.pos != size) {
        status = weft_fail(context, WEFT_MALFORMED, "%s: bytes follow its frame of zstd", where);
    }
    if (status != WEFT_OK) {
        weft_release(context, memory);
        return status;
    }
    plan->held += used;
    *memory_out = memory;
    *size_out = used;
    return WEFT_OK;
}

weft_status weft_foreign_plan_part(weft_foreign_plan *plan, const weft_foreign_part *part) {
    if (plan->part_count == plan->part_capacity) {
        size_t capacity = 2 * plan->part_capacity + 16;
        weft_foreign_part *parts =
            weft_reallocate_array(plan->context, plan->parts, capacity, sizeof *parts);
        if (parts == NULL) {
            return WEFT_NO_MEMORY;
        }
        plan->parts = parts;
        plan->part_capacity = capacity;
    }
    plan->parts[plan->part_count++] = *part;
    return WEFT_OK;
}
