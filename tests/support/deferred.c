/* SPDX-License-Identifier: Apache-2.0
 *
 * deferred.c: see deferred.h.
 */
#include "deferred.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 16 };

void deferred_open(deferred *device) {
    memset(device, 0, sizeof *device);
    device->thread = pthread_self();
    device->failure = WEFT_IO_FAILED;
}

void deferred_close(deferred *device) {
    free(device->requests);
}

void deferred_reset(deferred *device) {
    memset(device->calls, 0, sizeof device->calls);
    device->index_bytes = 0;
    device->gathered_bytes = 0;
    device->scattered_bytes = 0;
    device->read_bytes = 0;
}

static weft_status read_tensor(void *opaque, uint64_t offset, void *output, size_t size) {
    const deferred_tensor *tensor = opaque;
    if (offset > tensor->bytes || size > tensor->bytes - offset || tensor->device->open) {
        tensor->device->misused = true;
        return WEFT_INVALID_ARGUMENT;
    }
    atomic_fetch_add(&tensor->device->read_bytes, size);
    memcpy(output, tensor->memory + offset, size);
    return WEFT_OK;
}

const weft_access deferred_access = {.read = read_tensor};

/* True if this call is to fail. */
static bool count_call(deferred *device, deferred_call call, bool open) {
    size_t number = ++device->calls[call];
    size_t fail_at = device->fail_at[call];
    if (device->open != open || !pthread_equal(device->thread, pthread_self())) {
        device->misused = true;
    }
    if (device->inside != NULL) {
        device->inside(device->inside_opaque);
    }
    return fail_at != 0 && (number == fail_at || (device->fail_on && number > fail_at));
}

static uint64_t checksum(uint64_t state, const void *data, size_t bytes) {
    const uint8_t *cursor = data;
    for (size_t i = 0; i < bytes; i++) {
        state = (state ^ cursor[i]) * 0x100000001b3;
    }
    return state;
}

static uint64_t request_checksum(const deferred_request *request) {
    if (request->tensor->device->trusting) {
        return 0;
    }
    uint64_t sum = checksum(1, request->indices, request->count * sizeof *request->indices);
    return request->values == NULL
               ? sum
               : checksum(sum, request->values, request->count * request->tensor->width);
}

static void enqueue(deferred *device, deferred_request request) {
    if (device->count == device->capacity) {
        device->capacity = device->capacity == 0 ? 64 : 2 * device->capacity;
        device->requests = realloc(device->requests, device->capacity * sizeof *device->requests);
        if (device->requests == NULL) {
            abort();
        }
    }
    size_t width = request.values != NULL ? request.tensor->width : WORD;
    for (size_t i = 0; i < request.count && !device->trusting; i++) {
        uint64_t index = request.indices[i];
        if (index * width >= request.tensor->bytes || (i > 0 && index <= request.indices[i - 1])) {
            device->misused = true;
            return;
        }
    }
    request.checksum = request_checksum(&request);
    device->index_bytes += request.count * sizeof *request.indices;
    device->requests[device->count++] = request;
}

static weft_status begin(void *opaque) {
    deferred *device = opaque;
    if (count_call(device, DEFERRED_BEGIN, false)) {
        return device->failure;
    }
    device->open = true;
    device->count = 0;
    return WEFT_OK;
}

static weft_status gather(void *opaque, void *tensor, const uint64_t *words, size_t count, void *output) {
    deferred *device = opaque;
    if (count_call(device, DEFERRED_GATHER, true)) {
        return device->failure;
    }
    enqueue(device,
            (deferred_request){.tensor = tensor, .indices = words, .count = count, .output = output});
    device->gathered_bytes += count * WORD;
    return WEFT_OK;
}

static weft_status scatter(void *opaque, void *tensor, const uint64_t *units, size_t count,
                           const void *values) {
    deferred *device = opaque;
    if (count_call(device, DEFERRED_SCATTER, true)) {
        return device->failure;
    }
    enqueue(device,
            (deferred_request){.tensor = tensor, .indices = units, .count = count, .values = values});
    device->scattered_bytes += count * ((const deferred_tensor *)tensor)->width;
    return WEFT_OK;
}

static void fetch(const deferred_request *request) {
    const deferred_tensor *tensor = request->tensor;
    for (size_t i = 0; i < request->count; i++) {
        size_t start = (size_t)request->indices[i] * WORD;
        if (i + 16 < request->count) {
            __builtin_prefetch(tensor->memory + request->indices[i + 16] * WORD);
        }
        memcpy((uint8_t *)request->output + i * WORD, tensor->memory + start,
               tensor->bytes - start < WORD ? tensor->bytes - start : WORD);
    }
}

static void store(const deferred_request *request) {
    const deferred_tensor *tensor = request->tensor;
    for (size_t i = 0; i < request->count; i++) {
        if (i + 16 < request->count) {
            __builtin_prefetch(tensor->memory + request->indices[i + 16] * tensor->width, 1);
        }
        memcpy(tensor->memory + request->indices[i] * tensor->width,
               (const uint8_t *)request->values + i * tensor->width, tensor->width);
    }
}

/* A failing end has done half of it. */
static weft_status end(void *opaque) {
    deferred *device = opaque;
    bool fails = count_call(device, DEFERRED_END, true);
    size_t count = fails ? (device->count + 1) / 2 : device->count;
    for (size_t i = 0; i < count; i++) {
        const deferred_request *request = &device->requests[i];
        if (request_checksum(request) != request->checksum) {
            device->misused = true;
        }
        if (request->values != NULL) {
            store(request);
        } else {
            fetch(request);
        }
    }
    device->open = false;
    return fails ? device->failure : WEFT_OK;
}

weft_batch_access deferred_batch(deferred *device) {
    return (weft_batch_access){
        .size = sizeof(weft_batch_access),
        .begin = begin,
        .gather = gather,
        .scatter = scatter,
        .end = end,
        .opaque = device,
    };
}
