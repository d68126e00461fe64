/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.c: changes as payloads of other formats. A tensor's payload is compressed in one call, as others do
 * it: with the same zstd, the same bytes come out.
 */
#include "payload.h"

#include "../base/context.h"
#include "../base/pool.h"
#include "../tensor/table.h"

#include <string.h>
#include <zstd.h>

enum { CHUNK = 256 * 1024 };

typedef struct pack_worker {
    weft_base_reader base;
    weft_checksum *checksum;
    ZSTD_CCtx *zstd;
    uint8_t *news;  /* a chunk of the new state */
    uint8_t *plain; /* what is compressed */
    size_t capacity;
} pack_worker;

typedef struct pack_pass {
    weft_context *context;
    const weft_view *view;
    const weft_tensor_changes *changes;
    const weft_pack_options *options;
    weft_packed *packed;
    pack_worker *workers;
} pack_pass;

static weft_status worker_open(pack_worker *worker, const pack_pass *pass) {
    if (worker->zstd != NULL) {
        return WEFT_OK;
    }
    weft_base_reader_open(&worker->base, pass->context, pass->view);
    worker->news = weft_allocate(pass->context, CHUNK);
    if (worker->news == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = weft_checksum_open(pass->context, pass->options->checksum, &worker->checksum);
    if (status != WEFT_OK) {
        return status;
    }
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    if (zstd == NULL) {
        return weft_fail(pass->context, WEFT_NO_MEMORY, "no memory for zstd");
    }
    worker->zstd = zstd;
    int level = pass->options->level != 0 ? pass->options->level : 1;
    if (ZSTD_isError(ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, level))) {
        return weft_fail(pass->context, WEFT_INVALID_ARGUMENT, "zstd has no level %d", level);
    }
    return WEFT_OK;
}

static void worker_close(pack_worker *worker, weft_context *context) {
    weft_base_reader_close(&worker->base);
    weft_checksum_close(worker->checksum);
    ZSTD_freeCCtx(worker->zstd);
    weft_release(context, worker->news);
    weft_release(context, worker->plain);
}

static weft_status worker_reserve(pack_worker *worker, weft_context *context, uint64_t size) {
    if (size > SIZE_MAX / 2) {
        return weft_fail(context, WEFT_LIMIT_EXCEEDED, "a tensor is too large for this format");
    }
    if (worker->capacity >= size && worker->plain != NULL) {
        return WEFT_OK;
    }
    weft_release(context, worker->plain);
    worker->plain = weft_allocate(context, (size_t)size);
    worker->capacity = worker->plain != NULL ? (size_t)size : 0;
    return worker->plain != NULL ? WEFT_OK : WEFT_NO_MEMORY;
}

/* One walk over a tensor: sums the new state, and calls for each change with the old and the new unit. */
typedef void pack_visit(void *opaque, uint64_t unit, const uint8_t *olds, const uint8_t *news,
                        unsigned width);

static weft_status walk(const pack_pass *pass, pack_worker *worker, const weft_tensor_changes *list,
                        size_t tensor, pack_visit *visit, void *opaque, bool *changed) {
    const weft_tensor *described = weft_view_at(pass->view, tensor);
    unsigned width = weft_dtype_width(described->dtype);
    const uint8_t *values = list->values;
    uint64_t next = 0;
    weft_status status = weft_checksum_begin(worker->checksum);
    for (uint64_t offset = 0; offset < described->bytes && status == WEFT_OK; offset += CHUNK) {
        size_t size = described->bytes - offset < CHUNK ? (size_t)(described->bytes - offset) : CHUNK;
        const uint8_t *olds = NULL;
        status = weft_base_read(&worker->base, tensor, offset, size, &olds);
        if (status != WEFT_OK) {
            return status;
        }
        memcpy(worker->news, olds, size);
        for (; next < list->count && list->units[next] * width < offset + size; next++) {
            size_t at = (size_t)(list->units[next] * width - offset);
            memcpy(worker->news + at, values + next * width, width);
            *changed = *changed || memcmp(olds + at, worker->news + at, width) != 0;
            visit(opaque, list->units[next], olds + at, worker->news + at, width);
        }
        status = weft_checksum_add(worker->checksum, worker->news, size);
        status = status == WEFT_OK ? weft_progress_add(pass->context, size) : status;
    }
    return status;
}

static void put_xor(void *opaque, uint64_t unit, const uint8_t *olds, const uint8_t *news, unsigned width) {
    uint8_t *plain = opaque;
    for (unsigned i = 0; i < width; i++) {
        plain[unit * width + i] = olds[i] ^ news[i];
    }
}

typedef struct overwriting {
    uint8_t *positions;
    uint8_t *bytes;
    uint64_t count;
    uint64_t last; /* the highest position */
} overwriting;

static void put_bytes(void *opaque, uint64_t unit, const uint8_t *olds, const uint8_t *news,
                      unsigned width) {
    overwriting *over = opaque;
    for (unsigned i = 0; i < width; i++) {
        if (olds[i] != news[i]) {
            uint32_t position = (uint32_t)(unit * width + i);
            over->last = unit * width + i;
            memcpy(over->positions + 4 * over->count, &position, sizeof position);
            over->bytes[over->count++] = news[i];
        }
    }
}

/* Fills the worker's plain bytes, and tells how many they are; 0 if nothing changes. */
static weft_status make_xor(const pack_pass *pass, pack_worker *worker, const weft_tensor_changes *list,
                            size_t tensor, uint64_t *size_out, bool *changed) {
    uint64_t bytes = weft_view_at(pass->view, tensor)->bytes;
    weft_status status = worker_reserve(worker, pass->context, bytes);
    if (status != WEFT_OK) {
        return status;
    }
    memset(worker->plain, 0, (size_t)bytes);
    *size_out = bytes;
    return walk(pass, worker, list, tensor, put_xor, worker->plain, changed);
}

static weft_status make_overwrite(const pack_pass *pass, pack_worker *worker,
                                  const weft_tensor_changes *list, size_t tensor, uint64_t *size_out,
                                  bool *changed) {
    const weft_tensor *described = weft_view_at(pass->view, tensor);
    uint64_t most = list->count * weft_dtype_width(described->dtype);
    if (most > UINT32_MAX) {
        return weft_fail(pass->context, WEFT_UNSUPPORTED,
                         "tensor \"%.*s\" has more changes than overwriting can count; write xor",
                         WEFT_NAME_SHOWN, described->name);
    }
    weft_status status = worker_reserve(worker, pass->context, 4 + 5 * most);
    if (status != WEFT_OK) {
        return status;
    }
    overwriting over = {.positions = worker->plain + 4, .bytes = worker->plain + 4 + 4 * most};
    status = walk(pass, worker, list, tensor, put_bytes, &over, changed);
    if (status == WEFT_OK && over.last > UINT32_MAX) {
        return weft_fail(pass->context, WEFT_UNSUPPORTED,
                         "tensor \"%.*s\" changes above 4 GiB, where the positions of overwriting, of 32 "
                         "bits, would wrap; write xor",
                         WEFT_NAME_SHOWN, described->name);
    }
    uint32_t count = (uint32_t)over.count;
    memcpy(worker->plain, &count, sizeof count);
    memmove(over.positions + 4 * over.count, over.bytes, (size_t)over.count);
    *size_out = 4 + 5 * over.count;
    return status;
}

static weft_status compress(const pack_pass *pass, pack_worker *worker, uint64_t size,
                            weft_packed *packed) {
    size_t bound = ZSTD_compressBound((size_t)size);
    uint8_t *data = weft_allocate(pass->context, bound);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t written = ZSTD_compress2(worker->zstd, data, bound, worker->plain, (size_t)size);
    if (ZSTD_isError(written)) {
        weft_release(pass->context, data);
        return weft_fail(pass->context, WEFT_NO_MEMORY, "zstd failed: %s", ZSTD_getErrorName(written));
    }
    uint8_t *shrunk = weft_reallocate_array(pass->context, data, written, 1);
    packed->data = shrunk != NULL ? shrunk : data;
    packed->size = written;
    return WEFT_OK;
}

static weft_status pack_tensor(void *argument, size_t index, unsigned number) {
    const pack_pass *pass = argument;
    pack_worker *worker = &pass->workers[number];
    const weft_tensor_changes *list = &pass->changes[index];
    weft_packed *packed = &pass->packed[index];
    size_t tensor = (size_t)weft_view_find(pass->view, list->tensor);
    uint64_t size = 0;
    weft_status status = worker_open(worker, pass);
    if (status == WEFT_OK) {
        status = pass->options->encoding == WEFT_FOREIGN_XOR
                     ? make_xor(pass, worker, list, tensor, &size, &packed->changed)
                     : make_overwrite(pass, worker, list, tensor, &size, &packed->changed);
    }
    if (status == WEFT_OK) {
        status = weft_checksum_end(worker->checksum, pass->options->spelling, packed->checksum);
    }
    bool written = packed->changed || pass->options->complete;
    return status == WEFT_OK && written ? compress(pass, worker, size, packed) : status;
}

/* A list as weft_diff takes it: of a tensor that is there, ascending, within it. */
static weft_status check_list(weft_context *context, const weft_view *base,
                              const weft_tensor_changes *list) {
    int64_t tensor = list->tensor != NULL ? weft_view_find(base, list->tensor) : -1;
    if (tensor < 0) {
        return weft_fail(context, WEFT_INVALID_ARGUMENT,
                         "there are changes of tensor \"%.*s\", which the base does not have",
                         WEFT_NAME_SHOWN, list->tensor != NULL ? list->tensor : "");
    }
    uint64_t units = weft_tensor_units(weft_view_at(base, (size_t)tensor));
    for (uint64_t i = 0; i < list->count; i++) {
        if (list->units[i] >= units || (i > 0 && list->units[i] <= list->units[i - 1])) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "the changes of tensor \"%.*s\" do not ascend within it at place %llu",
                             WEFT_NAME_SHOWN, list->tensor, (unsigned long long)i);
        }
    }
    return WEFT_OK;
}

weft_status weft_pack_changes(weft_context *context, const weft_view *base,
                              const weft_tensor_changes *changes, size_t count,
                              const weft_pack_options *options, weft_packed **packed_out) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        weft_status status = check_list(context, base, &changes[i]);
        if (status != WEFT_OK) {
            return status;
        }
        bytes += weft_view_at(base, (size_t)weft_view_find(base, changes[i].tensor))->bytes;
    }
    unsigned threads = weft_context_threads(context);
    pack_pass pass = {.context = context, .view = base, .changes = changes, .options = options};
    pass.packed = weft_allocate_zeroed(context, count + 1, sizeof *pass.packed);
    pass.workers = weft_allocate_zeroed(context, threads, sizeof *pass.workers);
    weft_status status = pass.packed == NULL || pass.workers == NULL ? WEFT_NO_MEMORY : WEFT_OK;
    if (status == WEFT_OK) {
        weft_progress_begin(context, "write", bytes);
        status = weft_parallel(context, count, pack_tensor, &pass);
    }
    for (unsigned i = 0; pass.workers != NULL && i < threads; i++) {
        worker_close(&pass.workers[i], context);
    }
    weft_release(context, pass.workers);
    if (status != WEFT_OK) {
        weft_packed_close(context, pass.packed, count);
        return status;
    }
    *packed_out = pass.packed;
    return WEFT_OK;
}

void weft_packed_close(weft_context *context, weft_packed *packed, size_t count) {
    for (size_t i = 0; packed != NULL && i < count; i++) {
        weft_release(context, packed[i].data);
    }
    weft_release(context, packed);
}
