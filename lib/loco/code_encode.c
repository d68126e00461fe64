/* SPDX-License-Identifier: Apache-2.0
 *
 * code_encode.c: a block becomes bytes. Gate and ranking go tile by tile while the weights are in the
 * cache; what remains is a few loops over what has fired, none of which branches on data.
 */
#include "code.h"

void weft_block_encoder_open(weft_block_encoder *encoder, weft_context *context, uint32_t significant) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
    weft_small_encoder_open(&encoder->small, context);
    encoder->tokenise = weft_tokenise_for(weft_cpu_level());
    encoder->most = weft_rest_most(significant);
}

void weft_block_encoder_close(weft_block_encoder *encoder) {
    weft_context *context = encoder->context;
    weft_small_encoder_close(&encoder->small);
    weft_release(context, encoder->fired.positions);
    weft_release(context, encoder->fired.values);
    weft_release(context, encoder->fired.words);
    weft_release(context, encoder->gap_tokens);
    weft_release(context, encoder->value_tokens);
    weft_release(context, encoder->items);
    weft_release(context, encoder->room);
    memset(encoder, 0, sizeof *encoder);
}

/* ---- a block ---- */

/* Octaves of multiples modulo 8: those of one class are neighbours. */
static unsigned octave_of(unsigned token) {
    unsigned octave = token < 16 ? 31u - (unsigned)__builtin_clz(token | 1) : token / 4;
    return octave % 8;
}

void weft_block_encoder_sample(const weft_block_encoder *encoder, const uint16_t *words, size_t count,
                               const weft_fired *fired, weft_small_sample *sample) {
    for (size_t i = 0; i < count; i++) {
        sample->units[(words[i] >> 7) & 0xffu]++;
    }
    for (size_t i = 0; i < fired->count; i++) {
        encoder->items[i] = weft_fired_pack(0, weft_ulp_exponent(fired->words[i]), fired->values[i]);
    }
    encoder->tokenise(encoder->items, fired->count, encoder->most, encoder->gap_tokens,
                      encoder->value_tokens);
    for (size_t i = 0; i < fired->count; i++) {
        unsigned exponent = (fired->words[i] >> 7) & 0xffu;
        sample->changed[exponent]++;
        sample->octaves[exponent][octave_of(encoder->value_tokens[i])]++;
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
        status = grow(context, (void **)&encoder->items, capacity, sizeof(uint64_t));
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

/* Sorts what has fired by class, each in position order. */
static void sort_by_class(weft_block_encoder *encoder) {
    const uint8_t *class_of = encoder->small.class_of;
    const uint32_t *gaps = encoder->small.gaps;
    const uint32_t *values = encoder->fired.values;
    const uint16_t *words = encoder->fired.words;
    uint64_t *place[WEFT_CLASS_MAX];
    uint64_t *start = encoder->items;
    for (unsigned c = 0; c < encoder->small.classes; c++) {
        place[c] = start;
        start += encoder->small.counts[c];
    }
    for (size_t i = 0; i < encoder->fired.count; i++) {
        *place[class_of[i]]++ = weft_fired_pack(gaps[i], weft_ulp_exponent(words[i]), values[i]);
    }
}

/* A table that fits the tokens. Four counters a token, by turns: one that was just written is slow to read.
 */
static void fit_table(const uint8_t *tokens, size_t count, weft_rans_table *table) {
    uint32_t counts[4][WEFT_RANS_TOKENS] = {{0}};
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        counts[0][tokens[i]]++;
        counts[1][tokens[i + 1]]++;
        counts[2][tokens[i + 2]]++;
        counts[3][tokens[i + 3]]++;
    }
    for (; i < count; i++) {
        counts[0][tokens[i]]++;
    }
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        counts[0][t] += counts[1][t] + counts[2][t] + counts[3][t];
    }
    weft_rans_table_fit(table, counts[0]);
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

/* The writer is held in a copy of its own, which can stay in registers. */
static void put_rests(weft_bits_writer *writer, const uint64_t *items, size_t count) {
    weft_bits_writer bits = *writer;
    for (size_t i = 0; i < count; i++) {
        weft_bits_put(&bits, items[i] & (((uint64_t)1 << 56) - 1), (unsigned)(items[i] >> 56));
    }
    *writer = bits;
}

static weft_status write_bits(weft_block_encoder *encoder, const class_tables *tables,
                              weft_writer *writer) {
    const weft_small_encoder *small = &encoder->small;
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
    put_rests(&bits, encoder->items, count);
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
    class_tables tables[WEFT_CLASS_MAX];
    sort_by_class(encoder);
    encoder->tokenise(encoder->items, encoder->fired.count, encoder->most, encoder->gap_tokens,
                      encoder->value_tokens);
    weft_writer_u8(writer, (uint8_t)small->classes);
    for (unsigned c = 1; c < small->classes; c++) {
        weft_writer_u8(writer, small->cuts[c]);
    }
    size_t first = 0;
    for (unsigned c = 0; c < small->classes; c++) {
        weft_writer_varint(writer, small->counts[c]);
        if (small->counts[c] > 0) {
            fit_table(encoder->gap_tokens + first, small->counts[c], &tables[c].gaps);
            fit_table(encoder->value_tokens + first, small->counts[c], &tables[c].values);
        }
        first += small->counts[c];
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
