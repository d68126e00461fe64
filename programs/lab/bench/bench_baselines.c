/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_baselines.c: what others do, in C and as fast as it reasonably goes, on one thread.
 *
 * COO + zstd-1 is PULSE's public layout: a tensor is (dimension 0, the rest); changes in ascending order
 * as three streams: row gaps (u8, else u16, else i32, whichever the tensor's largest needs), columns
 * (u16, else i32; the gap within a row, absolute in a new row) and the new values as they are. The
 * streams of all tensors, concatenated, are one zstd frame of level 1.
 *
 * XOR + zstd-1 is SkyRL's and slime's: each tensor's new bytes XOR its old ones, one zstd frame of
 * level 1 per tensor. The new weights without the old, one zstd frame of level 3 per tensor, are what a
 * checkpoint costs.
 *
 * None checks or proves anything: there is no digest in their times, and there is in weft's.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(WEFT_ARM)
#include <arm_neon.h>
#endif

enum { ZSTD_LEVEL = 1, WHOLE_LEVEL = 3 };

struct bench_codec {
    const bench_model *model;
    bench_baseline baseline;
    ZSTD_CCtx *encoder;
    ZSTD_DCtx *decoder;
    uint32_t *positions; /* changes of one tensor */
    size_t positions_bytes;
    uint8_t *plain; /* the streams of COO, or the XOR of one tensor */
    size_t plain_bytes;
    uint8_t *coded;
    size_t coded_bytes;
    size_t coded_size;
    size_t *frame_sizes; /* XOR: of each tensor */
};

/* ---- the scan: where do two ranges differ? ---- */

static size_t scan_plain(const uint16_t *base, const uint16_t *next, uint64_t from, uint64_t units,
                         uint32_t *positions, size_t found) {
    for (uint64_t i = from; i < units; i++) {
        positions[found] = (uint32_t)i;
        found += base[i] != next[i];
    }
    return found;
}

#if defined(__x86_64__)
static inline size_t take_bits(uint64_t mask, uint64_t start, uint32_t *positions, size_t found) {
    while (mask != 0) {
        positions[found++] = (uint32_t)(start + (uint64_t)__builtin_ctzll(mask));
        mask &= mask - 1;
    }
    return found;
}

__attribute__((target("avx2"))) static inline uint32_t differ_avx2(const uint16_t *base,
                                                                   const uint16_t *next) {
    __m256i low = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)base),
                                     _mm256_loadu_si256((const __m256i *)next));
    __m256i high = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(base + 16)),
                                      _mm256_loadu_si256((const __m256i *)(next + 16)));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    return ~(uint32_t)_mm256_movemask_epi8(packed);
}

__attribute__((target("avx2"))) static size_t scan_avx2(const uint16_t *base, const uint16_t *next,
                                                        uint64_t units, uint32_t *positions) {
    size_t found = 0;
    uint64_t i = 0;
    for (; i + 64 <= units; i += 64) {
        uint64_t mask = differ_avx2(base + i, next + i);
        mask |= (uint64_t)differ_avx2(base + i + 32, next + i + 32) << 32;
        found = take_bits(mask, i, positions, found);
    }
    return scan_plain(base, next, i, units, positions, found);
}

__attribute__((target("avx512bw,avx512f"))) static size_t
scan_avx512(const uint16_t *base, const uint16_t *next, uint64_t units, uint32_t *positions) {
    size_t found = 0;
    uint64_t i = 0;
    for (; i + 64 <= units; i += 64) {
        uint64_t mask =
            _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(base + i), _mm512_loadu_si512(next + i));
        mask |= (uint64_t)_mm512_cmpneq_epi16_mask(_mm512_loadu_si512(base + i + 32),
                                                   _mm512_loadu_si512(next + i + 32))
                << 32;
        found = take_bits(mask, i, positions, found);
    }
    return scan_plain(base, next, i, units, positions, found);
}
#endif

#if defined(WEFT_ARM)
static size_t scan_neon(const uint16_t *base, const uint16_t *next, uint64_t units, uint32_t *positions) {
    size_t found = 0;
    uint64_t i = 0;
    for (; i + 16 <= units; i += 16) {
        uint16x8_t low = vceqq_u16(vld1q_u16(base + i), vld1q_u16(next + i));
        uint16x8_t high = vceqq_u16(vld1q_u16(base + i + 8), vld1q_u16(next + i + 8));
        /* four bits for each, of which one is kept */
        uint16x8_t equal =
            vreinterpretq_u16_u8(vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
        uint64_t mask = ~vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(equal, 4)), 0) & 0x1111111111111111u;
        for (; mask != 0; mask &= mask - 1) {
            positions[found++] = (uint32_t)(i + (uint64_t)__builtin_ctzll(mask) / 4);
        }
    }
    return scan_plain(base, next, i, units, positions, found);
}
#endif

/* Units of other widths: eight bytes at a time, which are mostly equal. */
static size_t scan_words(const uint8_t *base, const uint8_t *next, uint64_t units, unsigned width,
                         uint32_t *positions) {
    size_t found = 0;
    for (uint64_t i = 0; i < units; i += 8 / width) {
        size_t bytes = units - i < 8 / width ? (size_t)(units - i) * width : 8;
        uint64_t old = 0, new = 0;
        memcpy(&old, base + i * width, bytes);
        memcpy(&new, next + i * width, bytes);
        for (uint64_t mask = old ^ new; mask != 0;) {
            unsigned unit = (unsigned)__builtin_ctzll(mask) / (8 * width);
            positions[found++] = (uint32_t)(i + unit);
            mask &= ~((((uint64_t)1 << (8 * width)) - 1) << (8 * width * unit));
        }
    }
    return found;
}

/* Writes one position too many where it may: `positions` has room for `units` + 1. */
static size_t scan(const void *base, const void *next, uint64_t units, unsigned width,
                   uint32_t *positions) {
    if (width != 2) {
        return scan_words(base, next, units, width, positions);
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) {
        return scan_avx512(base, next, units, positions);
    }
    if (__builtin_cpu_supports("avx2")) {
        return scan_avx2(base, next, units, positions);
    }
#endif
#if defined(WEFT_ARM)
    return scan_neon(base, next, units, positions);
#else
    return scan_plain(base, next, 0, units, positions, 0);
#endif
}

/* ---- COO ---- */

/* A number in 1, 2 or 4 bytes. */
static inline uint32_t load(const uint8_t *data, unsigned width) {
    uint32_t value = 0;
    memcpy(&value, data, width);
    return value;
}

static inline void store(uint8_t *data, unsigned width, uint32_t value) {
    memcpy(data, &value, width);
}

/* Gaps from positions: rows in place of `positions`, columns to `columns`. */
typedef struct coo_gaps {
    uint32_t row_largest;
    uint32_t column_largest;
} coo_gaps;

static coo_gaps split_positions(uint32_t *positions, uint32_t *columns, size_t count, uint64_t width) {
    coo_gaps gaps = {0};
    uint64_t row = 0, row_start = 0, column = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t position = positions[i], row_gap = 0, at = position - row_start;
        if (at >= width) {
            row_gap = at < 2 * width ? 1 : position / width - row;
            row += row_gap;
            row_start = row * width;
            at = position - row_start;
            column = 0;
        }
        positions[i] = (uint32_t)row_gap;
        columns[i] = (uint32_t)(at - column);
        column = at;
        gaps.row_largest = positions[i] > gaps.row_largest ? positions[i] : gaps.row_largest;
        gaps.column_largest = columns[i] > gaps.column_largest ? columns[i] : gaps.column_largest;
    }
    return gaps;
}

/* The width is a constant in each branch, so that each loop is a plain narrowing copy. */
static uint8_t *store_stream(uint8_t *output, const uint32_t *values, size_t count, unsigned width) {
    if (width == 1) {
        for (size_t i = 0; i < count; i++) {
            output[i] = (uint8_t)values[i];
        }
    } else if (width == 2) {
        for (size_t i = 0; i < count; i++) {
            store(output + 2 * i, 2, values[i]);
        }
    } else {
        memcpy(output, values, 4 * count);
    }
    return output + width * count;
}

static inline __attribute__((always_inline)) void gather(const uint8_t *next, const uint32_t *positions,
                                                         size_t count, unsigned width, uint8_t *values) {
    for (size_t i = 0; i < count; i++) {
        memcpy(values + i * width, next + (size_t)positions[i] * width, width);
    }
}

/* One tensor: u32 count, u8 row width, u8 column width, rows, columns, values. */
static uint8_t *encode_coo_tensor(bench_codec *codec, const bench_tensor *tensor, uint8_t *output) {
    const bench_model *model = codec->model;
    const uint8_t *next = bench_model_tensor(model, model->next, tensor);
    uint64_t units = tensor->rows * tensor->columns;
    unsigned width = model->width;
    uint32_t *positions = codec->positions, *columns = codec->positions + units + 1;
    size_t count = scan(bench_model_tensor(model, model->base, tensor), next, units, width, positions);
    /* Values first, while positions are still positions; the other streams go before them. */
    uint8_t *values = (uint8_t *)(columns + units + 1);
    if (width == 2) {
        gather(next, positions, count, 2, values);
    } else {
        gather(next, positions, count, width, values);
    }
    coo_gaps gaps = split_positions(positions, columns, count, tensor->columns);
    unsigned row_width = gaps.row_largest < 256 ? 1 : gaps.row_largest < 65536 ? 2 : 4;
    unsigned column_width = gaps.column_largest < 65536 ? 2 : 4;
    store(output, 4, (uint32_t)count);
    output[4] = (uint8_t)row_width;
    output[5] = (uint8_t)column_width;
    output = store_stream(output + 6, positions, count, row_width);
    output = store_stream(output, columns, count, column_width);
    memcpy(output, values, width * count);
    return output + width * count;
}

static size_t encode_coo(bench_codec *codec) {
    uint8_t *output = codec->plain;
    for (size_t i = 0; i < codec->model->count; i++) {
        output = encode_coo_tensor(codec, &codec->model->tensors[i], output);
    }
    size_t size = ZSTD_compressCCtx(codec->encoder, codec->coded, codec->coded_bytes, codec->plain,
                                    (size_t)(output - codec->plain), ZSTD_LEVEL);
    return ZSTD_isError(size) ? 0 : size;
}

/* Inlined for each pair of widths that matters, so that the inner loop does not ask. */
static inline __attribute__((always_inline)) void
apply_coo_tensor(uint8_t *live, uint64_t width, size_t count, const uint8_t *rows, unsigned row_width,
                 const uint8_t *columns, unsigned column_width, const uint8_t *values, unsigned unit) {
    uint8_t *row = live;
    uint64_t column = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t gap = load(rows + i * row_width, row_width);
        uint64_t step = load(columns + i * column_width, column_width);
        row += gap * width * unit;
        column = gap != 0 ? step : column + step;
        memcpy(row + column * unit, values + unit * i, unit);
    }
}

static bool decode_coo(bench_codec *codec) {
    size_t size = ZSTD_decompressDCtx(codec->decoder, codec->plain, codec->plain_bytes, codec->coded,
                                      codec->coded_size);
    if (ZSTD_isError(size)) {
        return false;
    }
    const uint8_t *input = codec->plain;
    for (size_t t = 0; t < codec->model->count; t++) {
        const bench_tensor *tensor = &codec->model->tensors[t];
        uint8_t *live = bench_model_tensor(codec->model, codec->model->live, tensor);
        unsigned unit = codec->model->width;
        size_t count = load(input, 4);
        unsigned row_width = input[4], column_width = input[5];
        const uint8_t *rows = input + 6, *columns = rows + row_width * count;
        const uint8_t *values = columns + column_width * count;
        if (row_width == 1 && column_width == 2 && unit == 2) {
            apply_coo_tensor(live, tensor->columns, count, rows, 1, columns, 2, values, 2);
        } else {
            apply_coo_tensor(live, tensor->columns, count, rows, row_width, columns, column_width, values,
                             unit);
        }
        input = values + unit * count;
    }
    return true;
}

/* ---- XOR, and whole weights ---- */

static void xor_bytes(const uint8_t *a, const uint8_t *b, uint8_t *output, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++) {
        output[i] = a[i] ^ b[i];
    }
}

static size_t encode_xor(bench_codec *codec) {
    const bench_model *model = codec->model;
    size_t used = 0;
    for (size_t t = 0; t < model->count; t++) {
        const bench_tensor *tensor = &model->tensors[t];
        uint64_t bytes = tensor->rows * tensor->columns * model->width;
        bool whole = codec->baseline == BASELINE_WHOLE;
        const uint8_t *next = bench_model_tensor(model, model->next, tensor);
        const void *plain = whole ? next : codec->plain;
        if (!whole) {
            xor_bytes(bench_model_tensor(model, model->base, tensor), next, codec->plain, bytes);
        }
        size_t size = ZSTD_compressCCtx(codec->encoder, codec->coded + used, codec->coded_bytes - used,
                                        plain, bytes, whole ? WHOLE_LEVEL : ZSTD_LEVEL);
        if (ZSTD_isError(size)) {
            return 0;
        }
        codec->frame_sizes[t] = size;
        used += size;
    }
    return used;
}

static bool decode_xor(bench_codec *codec) {
    const bench_model *model = codec->model;
    size_t used = 0;
    for (size_t t = 0; t < model->count; t++) {
        const bench_tensor *tensor = &model->tensors[t];
        uint64_t bytes = tensor->rows * tensor->columns * model->width;
        uint8_t *live = bench_model_tensor(model, model->live, tensor);
        bool whole = codec->baseline == BASELINE_WHOLE;
        size_t size = ZSTD_decompressDCtx(codec->decoder, whole ? live : codec->plain,
                                          whole ? bytes : codec->plain_bytes, codec->coded + used,
                                          codec->frame_sizes[t]);
        if (ZSTD_isError(size) || size != bytes) {
            return false;
        }
        if (!whole) {
            xor_bytes(live, codec->plain, live, bytes);
        }
        used += codec->frame_sizes[t];
    }
    return true;
}

/* ---- all ---- */

bench_codec *bench_codec_open(const bench_model *model, bench_baseline baseline) {
    bench_codec *codec = calloc(1, sizeof *codec);
    if (codec == NULL) {
        return NULL;
    }
    uint64_t largest = 0, frames = 0;
    for (size_t i = 0; i < model->count; i++) {
        uint64_t units = model->tensors[i].rows * model->tensors[i].columns;
        largest = units > largest ? units : largest;
        frames += ZSTD_compressBound(model->width * units);
    }
    bool coo = baseline == BASELINE_COO;
    codec->model = model;
    codec->baseline = baseline;
    codec->encoder = ZSTD_createCCtx();
    codec->decoder = ZSTD_createDCtx();
    codec->positions_bytes = coo ? (largest + 1) * (2 * sizeof(uint32_t) + model->width) : 1;
    codec->plain_bytes =
        coo ? (8 + model->width) * model->units + 6 * model->count : model->width * largest;
    codec->coded_bytes = coo ? ZSTD_compressBound(codec->plain_bytes) : frames;
    codec->positions = bench_map(codec->positions_bytes);
    codec->plain = bench_map(codec->plain_bytes);
    codec->coded = bench_map(codec->coded_bytes);
    codec->frame_sizes = calloc(model->count + 1, sizeof *codec->frame_sizes);
    if (codec->encoder == NULL || codec->decoder == NULL || codec->positions == NULL ||
        codec->plain == NULL || codec->coded == NULL || codec->frame_sizes == NULL ||
        largest > UINT32_MAX) {
        bench_codec_close(codec);
        return NULL;
    }
    return codec;
}

void bench_codec_close(bench_codec *codec) {
    ZSTD_freeCCtx(codec->encoder);
    ZSTD_freeDCtx(codec->decoder);
    bench_unmap(codec->positions, codec->positions_bytes);
    bench_unmap(codec->plain, codec->plain_bytes);
    bench_unmap(codec->coded, codec->coded_bytes);
    free(codec->frame_sizes);
    free(codec);
}

size_t bench_codec_encode(bench_codec *codec) {
    codec->coded_size = codec->baseline == BASELINE_COO ? encode_coo(codec) : encode_xor(codec);
    return codec->coded_size;
}

bool bench_codec_decode(bench_codec *codec) {
    return codec->baseline == BASELINE_COO ? decode_coo(codec) : decode_xor(codec);
}
