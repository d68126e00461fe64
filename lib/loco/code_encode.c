/* SPDX-License-Identifier: Apache-2.0
 *
 * code_encode.c: a block becomes bytes. Gate and ranking go tile by tile while the weights are in the
 * cache; what remains is a few loops over what has fired, none of which branches on data. The only floating
 * point is a multiplication by a power of two in double precision, which is exact.
 */
#include "code.h"

void weft_value_rests_fill(weft_value_rests *rests, uint32_t significant) {
    unsigned bits = significant == 0 ? 24 : significant;
    unsigned most = bits > 3 ? bits - 3 : 0;
    memset(rests, 0, sizeof *rests);
    for (unsigned t = 1; t < WEFT_VALUE_TOKENS; t++) {
        unsigned below = weft_token_bits(t);
        unsigned kept = below < most ? below : most;
        rests->sizes[t] = (uint8_t)(1 + kept);
        rests->shifts[t] = (uint8_t)(below - kept);
    }
    rests->sizes[WEFT_VALUE_ESCAPE] = 32;
}

void weft_block_encoder_open(weft_block_encoder *encoder, weft_context *context, uint32_t significant) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
    weft_small_encoder_open(&encoder->small, context);
    weft_value_rests_fill(&encoder->value_rests, significant);
    for (unsigned e = 0; e < 256; e++) {
        encoder->scales[e] = weft_power(150 - (int)e);
    }
    encoder->scales[0] = encoder->scales[1];
}

void weft_block_encoder_close(weft_block_encoder *encoder) {
    weft_context *context = encoder->context;
    weft_small_encoder_close(&encoder->small);
    weft_release(context, encoder->fired.positions);
    weft_release(context, encoder->fired.values);
    weft_release(context, encoder->fired.words);
    weft_release(context, encoder->gap_tokens);
    weft_release(context, encoder->value_tokens);
    weft_release(context, encoder->rests);
    weft_release(context, encoder->room);
    memset(encoder, 0, sizeof *encoder);
}

/* ---- values ---- */

/* The multiple of the ULP that a value is, or -1. Written without branches: whether there is one is rarely
 * asked in vain, but the sign of a value is as good as random. */
static inline int64_t multiple_of(const double *scales, uint32_t bits, uint16_t word) {
    uint32_t magnitude = bits & 0x7fffffffu;
    float value;
    memcpy(&value, &magnitude, sizeof value);
    double scaled = (double)value * scales[(word >> 7) & 0xffu];
    double bounded = scaled < 0x1p48 ? scaled : 0.5;
    int64_t multiple = (int64_t)bounded;
    return (double)multiple == bounded ? multiple : -1;
}

/* Token and rest of a value; the size of the rest follows from the token. */
static inline unsigned code_value(const weft_value_rests *rests, const double *scales, uint32_t bits,
                                  uint16_t word, uint64_t *rest_out) {
    int64_t multiple = multiple_of(scales, bits, word);
    if (__builtin_expect(multiple < 0, 0)) {
        *rest_out = bits;
        return WEFT_VALUE_ESCAPE;
    }
    unsigned token = weft_token_of((uint64_t)multiple);
    uint64_t rest = ((uint64_t)multiple >> rests->shifts[token]) << 1 | bits >> 31;
    *rest_out = rest & (((uint64_t)1 << rests->sizes[token]) - 1);
    return token;
}

/* ---- a block ---- */

void weft_block_encoder_sample(const weft_block_encoder *encoder, const uint16_t *words, size_t count,
                               const weft_fired *fired, weft_small_sample *sample) {
    for (size_t i = 0; i < count; i++) {
        sample->units[(words[i] >> 7) & 0xffu]++;
    }
    for (size_t i = 0; i < fired->count; i++) {
        unsigned exponent = (fired->words[i] >> 7) & 0xffu;
        int64_t multiple = multiple_of(encoder->scales, fired->values[i], fired->words[i]);
        sample->changed[exponent]++;
        /* octaves modulo 8: those of one class are neighbours */
        sample->octaves[exponent][(63u - (unsigned)__builtin_clzll((uint64_t)multiple | 1)) % 8]++;
    }
    sample->sampled += count;
}

void weft_block_encoder_begin(weft_block_encoder *encoder, const weft_small_sample *sample,
                              uint64_t elements) {
    encoder->fired.count = 0;
    weft_small_encoder_begin(&encoder->small, weft_exponent_of(WEFT_DTYPE_BF16), sample, elements);
}

static weft_status grow(weft_context *context, void **array, size_t capacity, size_t size) {
    void *memory = weft_reallocate_array(context, *array, capacity, size);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    *array = memory;
    return WEFT_OK;
}

weft_status weft_block_encoder_reserve(weft_block_encoder *encoder) {
    weft_context *context = encoder->context;
    size_t needed = encoder->fired.count + WEFT_TILE + WEFT_KERNEL_SLACK;
    if (needed <= encoder->capacity) {
        return WEFT_OK;
    }
    size_t capacity = needed + needed / 2;
    weft_status status = grow(context, (void **)&encoder->fired.positions, capacity, sizeof(uint32_t));
    if (status == WEFT_OK) {
        status = grow(context, (void **)&encoder->fired.values, capacity, sizeof(uint32_t));
    }
    if (status == WEFT_OK) {
        status = grow(context, (void **)&encoder->fired.words, capacity, sizeof(uint16_t));
    }
    if (status == WEFT_OK) {
        status = grow(context, (void **)&encoder->gap_tokens, capacity, 1);
    }
    if (status == WEFT_OK) {
        status = grow(context, (void **)&encoder->value_tokens, capacity, 1);
    }
    if (status == WEFT_OK) {
        status = grow(context, (void **)&encoder->rests, capacity, sizeof(uint64_t));
    }
    if (status == WEFT_OK) {
        encoder->capacity = capacity;
    }
    return status;
}

weft_status weft_block_encoder_tile(weft_block_encoder *encoder, const weft_patch_kernels *kernels,
                                    const uint16_t *words, size_t count, uint32_t linear, size_t first) {
    const weft_fired *fired = &encoder->fired;
    weft_changes changes = {
        .context = encoder->context,
        .width = sizeof(uint16_t),
        .count = fired->count,
        .positions = fired->positions,
        .olds = fired->words,
    };
    return weft_small_encoder_tile(&encoder->small, kernels, words, count, linear, &changes, first);
}

typedef struct class_tables {
    weft_rans_table gaps;
    weft_rans_table values;
} class_tables;

/* Makes tokens and rests of all that has fired, sorted by class, and counts the tokens. Bytes may alias
 * anything, so what the loop reads is said to be apart from what it writes. */
static void tokenise(const weft_block_encoder *encoder, uint8_t *restrict gap_tokens,
                     uint8_t *restrict value_tokens, uint64_t *restrict rests,
                     uint32_t (*restrict gap_counts)[WEFT_RANS_TOKENS],
                     uint32_t (*restrict value_counts)[WEFT_RANS_TOKENS]) {
    const uint8_t *class_of = encoder->small.class_of;
    const uint32_t *gaps = encoder->small.gaps;
    const uint32_t *values = encoder->fired.values;
    const uint16_t *words = encoder->fired.words;
    const weft_value_rests *value_rests = &encoder->value_rests;
    size_t count = encoder->fired.count;
    size_t place[WEFT_CLASS_MAX];
    size_t start = 0;
    uint8_t gap_sizes[WEFT_RANS_TOKENS];
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        gap_sizes[t] = (uint8_t)weft_token_bits(t);
    }
    for (unsigned c = 0; c < encoder->small.classes; c++) {
        place[c] = start;
        start += encoder->small.counts[c];
    }
    for (size_t i = 0; i < count; i++) {
        unsigned c = class_of[i];
        size_t to = place[c]++;
        uint64_t value_rest;
        unsigned gap = weft_token_of(gaps[i]);
        unsigned value = code_value(value_rests, encoder->scales, values[i], words[i], &value_rest);
        unsigned gap_size = gap_sizes[gap];
        uint64_t size = gap_size + value_rests->sizes[value];
        uint64_t gap_rest = gaps[i] & (((uint64_t)1 << gap_size) - 1);
        gap_tokens[to] = (uint8_t)gap;
        value_tokens[to] = (uint8_t)value;
        rests[to] = gap_rest | value_rest << gap_size | size << 56;
        gap_counts[c][gap]++;
        value_counts[c][value]++;
    }
}

static weft_status reserve_room(weft_block_encoder *encoder, size_t size) {
    if (size <= encoder->room_size) {
        return WEFT_OK;
    }
    weft_status status = grow(encoder->context, (void **)&encoder->room, size + size / 2, 1);
    if (status == WEFT_OK) {
        encoder->room_size = size + size / 2;
    }
    return status;
}

static weft_status write_bits(weft_block_encoder *encoder, const class_tables *tables,
                              weft_writer *writer) {
    const weft_small_encoder *small = &encoder->small;
    const uint64_t *rests = encoder->rests;
    size_t count = encoder->fired.count;
    weft_status status =
        reserve_room(encoder, small->classes * 2 * (size_t)WEFT_RANS_TABLE_MAX + 7 * count + 16);
    if (status != WEFT_OK) {
        return status;
    }
    weft_bits_writer bits = {encoder->room, 0, 0};
    for (unsigned c = 0; c < small->classes; c++) {
        if (small->counts[c] > 0) {
            weft_rans_table_write(&tables[c].gaps, &bits);
            weft_rans_table_write(&tables[c].values, &bits);
        }
    }
    for (size_t i = 0; i < count; i++) {
        weft_bits_put(&bits, rests[i] & (((uint64_t)1 << 56) - 1), (unsigned)(rests[i] >> 56));
    }
    size_t size = (size_t)(weft_bits_finish(&bits) - encoder->room);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, encoder->room, size);
    return WEFT_OK;
}

static weft_status write_stream(weft_block_encoder *encoder, const class_tables *tables,
                                weft_writer *writer) {
    const weft_small_encoder *small = &encoder->small;
    size_t end = encoder->fired.count;
    size_t room = 4 * end + 16;
    weft_status status = reserve_room(encoder, room);
    if (status != WEFT_OK) {
        return status;
    }
    weft_rans_encoder rans;
    weft_rans_encoder_open(&rans, encoder->room, room);
    for (unsigned c = small->classes; c-- > 0;) {
        size_t first = end - small->counts[c];
        if (small->counts[c] > 0) {
            weft_rans_encode(&rans, &tables[c].values, encoder->value_tokens + first, end - first);
            weft_rans_encode(&rans, &tables[c].gaps, encoder->gap_tokens + first, end - first);
        }
        end = first;
    }
    const uint8_t *start = weft_rans_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(encoder->room + room - start));
    return WEFT_OK;
}

weft_status weft_block_encoder_finish(weft_block_encoder *encoder, weft_writer *writer) {
    const weft_small_encoder *small = &encoder->small;
    uint32_t gap_counts[WEFT_CLASS_MAX][WEFT_RANS_TOKENS] = {{0}};
    uint32_t value_counts[WEFT_CLASS_MAX][WEFT_RANS_TOKENS] = {{0}};
    class_tables tables[WEFT_CLASS_MAX];
    tokenise(encoder, encoder->gap_tokens, encoder->value_tokens, encoder->rests, gap_counts, value_counts);
    weft_writer_u8(writer, (uint8_t)small->classes);
    for (unsigned c = 1; c < small->classes; c++) {
        weft_writer_u8(writer, small->cuts[c]);
    }
    for (unsigned c = 0; c < small->classes; c++) {
        weft_writer_varint(writer, small->counts[c]);
        if (small->counts[c] > 0) {
            weft_rans_table_fit(&tables[c].gaps, gap_counts[c]);
            weft_rans_table_fit(&tables[c].values, value_counts[c]);
        }
    }
    weft_status status = write_bits(encoder, tables, writer);
    if (status == WEFT_OK) {
        status = write_stream(encoder, tables, writer);
    }
    if (status == WEFT_OK && weft_writer_failed(writer)) {
        status = WEFT_NO_MEMORY;
    }
    return status;
}
