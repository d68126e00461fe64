/* SPDX-License-Identifier: Apache-2.0
 *
 * code_dense.c: buckets in which so much changed that naming positions would cost more than it saves.
 *
 * Units are split into byte planes, so that the bytes that resemble each other stand together, and the
 * planes go through zstd. Steps are zigzagged, which leaves the upper planes zero; values are rotated
 * left by one bit, which puts the exponent of BF16 and FP32 into a byte of its own.
 */
#include "code.h"

#include <zstd.h>

static uint64_t unit_mask(unsigned width) {
    return width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
}

static inline uint64_t rotate_left(uint64_t value, unsigned width) {
    return width == 1 ? value : ((value << 1) | (value >> (8 * width - 1))) & unit_mask(width);
}

static inline uint64_t rotate_right(uint64_t value, unsigned width) {
    return width == 1 ? value : ((value >> 1) | (value << (8 * width - 1))) & unit_mask(width);
}

/* The sign goes to the lowest bit. */
static inline uint64_t fold_step(uint64_t step, unsigned width) {
    uint64_t negative = 0 - ((step >> (8 * width - 1)) & 1);
    return ((step << 1) ^ negative) & unit_mask(width);
}

static inline uint64_t unfold_step(uint64_t folded) {
    return (folded >> 1) ^ (0 - (folded & 1));
}

static void split_planes(const void *base, const void *values, size_t units, unsigned width,
                         uint8_t *planes) {
    for (size_t i = 0; i < units; i++) {
        uint64_t value = weft_unit_load(values, i, width);
        uint64_t folded = base == NULL ? rotate_left(value, width)
                                       : fold_step(value - weft_unit_load(base, i, width), width);
        for (unsigned b = 0; b < width; b++) {
            planes[b * units + i] = (uint8_t)(folded >> (8 * b));
        }
    }
}

static void join_planes(const uint8_t *planes, const void *base, size_t units, unsigned width,
                        void *output) {
    for (size_t i = 0; i < units; i++) {
        uint64_t folded = 0;
        for (unsigned b = 0; b < width; b++) {
            folded |= (uint64_t)planes[b * units + i] << (8 * b);
        }
        uint64_t value = base == NULL ? rotate_right(folded, width)
                                      : weft_unit_load(base, i, width) + unfold_step(folded);
        weft_unit_store(output, i, width, value);
    }
}

static weft_status compress_planes(weft_context *context, const uint8_t *planes, size_t bytes, int level,
                                   weft_writer *writer) {
    size_t bound = ZSTD_compressBound(bytes);
    uint8_t *room = weft_writer_reserve(writer, bound);
    if (room == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t size = ZSTD_compress(room, bound, planes, bytes, level);
    if (ZSTD_isError(size)) {
        return weft_fail(context, WEFT_NO_MEMORY, "compressing %zu bytes failed: %s", bytes,
                         ZSTD_getErrorName(size));
    }
    writer->size += size;
    return WEFT_OK;
}

/* A higher level finds more repetition and codes the rest no better, sometimes worse: the smallest of both
 * is kept. */
static weft_status compress_smallest(weft_context *context, const uint8_t *planes, size_t bytes,
                                     weft_writer *writer) {
    weft_writer other;
    weft_writer_open(&other, context);
    size_t start = writer->size;
    weft_status status = compress_planes(context, planes, bytes, 1, writer);
    if (status == WEFT_OK) {
        status = compress_planes(context, planes, bytes, 3, &other);
    }
    if (status == WEFT_OK && other.size < writer->size - start) {
        writer->size = start;
        weft_writer_bytes(writer, other.data, other.size);
    }
    weft_writer_close(&other);
    return status;
}

weft_status weft_dense_encode(weft_context *context, const void *base, const void *values, size_t units,
                              unsigned width, weft_profile profile, weft_writer *writer) {
    uint8_t *planes = weft_allocate_array(context, units, width);
    if (planes == NULL) {
        return WEFT_NO_MEMORY;
    }
    split_planes(base, values, units, width, planes);
    weft_status status = profile != WEFT_PROFILE_FAST
                             ? compress_smallest(context, planes, units * width, writer)
                             : compress_planes(context, planes, units * width, 1, writer);
    weft_release(context, planes);
    return status;
}

weft_status weft_dense_decode(weft_context *context, const uint8_t *payload, size_t size, const void *base,
                              size_t units, unsigned width, void *output) {
    size_t bytes = units * width;
    uint8_t *planes = weft_allocate(context, bytes);
    if (planes == NULL) {
        return WEFT_NO_MEMORY;
    }
    size_t got = ZSTD_decompress(planes, bytes, payload, size);
    if (ZSTD_isError(got) || got != bytes) {
        weft_release(context, planes);
        return weft_fail(context, WEFT_MALFORMED, "a dense bucket does not hold its %zu bytes", bytes);
    }
    join_planes(planes, base, units, width, output);
    weft_release(context, planes);
    return WEFT_OK;
}
