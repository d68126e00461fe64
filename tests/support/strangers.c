/* SPDX-License-Identifier: Apache-2.0
 *
 * strangers.c: see strangers.h.
 */
#include "strangers.h"

#include <string.h>

const int stranger_numbers[STRANGER_NUMBERS] = {WEFT_IO_FAILED, -7, WEFT_MORE, 2, 700};

weft_status stranger_meaning(int number) {
    return number == WEFT_IO_FAILED ? WEFT_IO_FAILED : WEFT_CALLBACK_FAILED;
}

void stranger_reset(stranger *stranger, size_t fail_at, int number) {
    stranger->fail_at = fail_at;
    stranger->number = number;
    atomic_store(&stranger->calls, 0);
}

bool stranger_fails(stranger *stranger) {
    size_t call = atomic_fetch_add(&stranger->calls, 1) + 1;
    return stranger->fail_at != 0 &&
           (call == stranger->fail_at || (stranger->fail_on && call > stranger->fail_at));
}

bool stranger_fired(const stranger *stranger) {
    return stranger->fail_at != 0 && atomic_load(&stranger->calls) >= stranger->fail_at;
}

/* ---- tensors ---- */

static weft_status spoil(const stranger *stranger, void *output, size_t size) {
    memset(output, 0xa5, size / 2);
    return (weft_status)stranger->number;
}

static weft_status read_far(void *opaque, uint64_t offset, void *output, size_t size) {
    const far_tensor *far = opaque;
    if (stranger_fails(far->stranger)) {
        return spoil(far->stranger, output, size);
    }
    memcpy(output, far->memory + offset, size);
    return WEFT_OK;
}

static weft_status gather_far(void *opaque, const uint64_t *words, size_t count, void *output) {
    const far_tensor *far = opaque;
    if (stranger_fails(far->stranger)) {
        return spoil(far->stranger, output, 16 * count);
    }
    for (size_t i = 0; i < count; i++) {
        size_t left = far->bytes - 16 * (size_t)words[i];
        memcpy((uint8_t *)output + 16 * i, far->memory + 16 * words[i], left < 16 ? left : 16);
    }
    return WEFT_OK;
}

static weft_status scatter_far(void *opaque, const uint64_t *units, size_t count, const void *values) {
    const far_tensor *far = opaque;
    bool fails = stranger_fails(far->stranger);
    for (size_t i = 0; i < (fails ? count / 2 : count); i++) {
        memcpy(far->memory + far->width * units[i], (const uint8_t *)values + far->width * i, far->width);
    }
    return fails ? (weft_status)far->stranger->number : WEFT_OK;
}

const weft_access far_access = {read_far, gather_far, scatter_far};

void far_tensor_take(far_tensor *far, weft_tensor *tensor, stranger *stranger) {
    *far = (far_tensor){tensor->data, (size_t)tensor->bytes, weft_dtype_width(tensor->dtype), stranger};
    tensor->data = NULL;
    tensor->access = &far_access;
    tensor->opaque = far;
}

/* ---- patches ---- */

static weft_status read_patch(void *opaque, uint64_t offset, void *data, size_t size) {
    const far_patch *patch = opaque;
    if (stranger_fails(patch->stranger)) {
        return spoil(patch->stranger, data, size);
    }
    memcpy(data, patch->file->data + offset, size);
    return WEFT_OK;
}

weft_source far_patch_source(far_patch *patch) {
    return (weft_source){.size = patch->file->size, .read = read_patch, .opaque = patch};
}

static weft_status write_sink(void *opaque, const void *data, size_t size) {
    far_sink *sink = opaque;
    if (stranger_fails(sink->stranger)) {
        return (weft_status)sink->stranger->number;
    }
    weft_sink inner = bytes_sink(&sink->file);
    return inner.write(inner.opaque, data, size);
}

weft_sink far_sink_over(far_sink *sink) {
    return (weft_sink){write_sink, sink};
}

/* ---- progress ---- */

bool stranger_progress(void *opaque, const char *phase, uint64_t done, uint64_t total) {
    stranger *stranger = opaque;
    (void)phase;
    (void)done;
    (void)total;
    size_t call = atomic_fetch_add(&stranger->calls, 1) + 1;
    return stranger->fail_at == 0 || call < stranger->fail_at;
}
