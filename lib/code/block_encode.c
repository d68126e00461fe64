/* SPDX-License-Identifier: Apache-2.0
 *
 * block_encode.c: a block becomes bytes. Gate, ranking and sorting by class go tile by tile while all is in
 * the cache; what remains is a few loops over what has fired, none of which branches on data.
 */
#include "block.h"

void weft_block_encoder_open(weft_block_encoder *encoder, weft_context *context, uint32_t significant) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
    encoder->kernels = weft_tile_kernels_for(weft_cpu_level());
    encoder->fired_kernels = weft_fired_kernels_for(weft_cpu_level());
    encoder->most = weft_rest_most(significant);
}

void weft_block_encoder_close(weft_block_encoder *encoder) {
    weft_context *context = encoder->context;
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        weft_release(context, encoder->items[c]);
    }
    weft_release(context, encoder->tokens);
    weft_release(context, encoder->room);
    memset(encoder, 0, sizeof *encoder);
}

/* Makes room for more than `count` entries, so that there is memory to point at even for none. */
static weft_status reserve(weft_context *context, void **array, size_t *capacity, size_t count,
                           size_t size) {
    if (count < *capacity) {
        return WEFT_OK;
    }
    size_t larger = count + count / 2 + 1;
    void *memory = weft_reallocate_array(context, *array, larger, size);
    if (memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    *array = memory;
    *capacity = larger;
    return WEFT_OK;
}

/* Adds up how often each byte occurs. Four counters for each, by turns: one that was just written is slow
 * to read. */
static void count_bytes(const uint8_t *bytes, size_t count, uint32_t totals[256]) {
    uint32_t counts[4][256] = {{0}};
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        counts[0][bytes[i]]++;
        counts[1][bytes[i + 1]]++;
        counts[2][bytes[i + 2]]++;
        counts[3][bytes[i + 3]]++;
    }
    for (; i < count; i++) {
        counts[0][bytes[i]]++;
    }
    for (unsigned b = 0; b < 256; b++) {
        totals[b] += counts[0][b] + counts[1][b] + counts[2][b] + counts[3][b];
    }
}

/* ---- a block ---- */

/* Octaves of multiples modulo 8: those of one class are neighbours. */
static unsigned octave_of(unsigned token) {
    unsigned octave = token < 16 ? 31u - (unsigned)__builtin_clz(token | 1) : token / 4;
    return octave % 8;
}

void weft_block_encoder_sample(const weft_block_encoder *encoder, const uint16_t *words, size_t count,
                               const weft_fired *fired, weft_class_sample *sample) {
    uint8_t exponents[WEFT_TILE];
    uint64_t items[WEFT_TILE];
    uint8_t gap_tokens[WEFT_TILE];
    uint8_t value_tokens[WEFT_TILE];
    for (size_t i = 0; i < count; i++) {
        exponents[i] = (uint8_t)weft_word_exponent(words[i]);
    }
    count_bytes(exponents, count, sample->units);
    for (size_t i = 0; i < fired->count; i++) {
        items[i] = weft_fired_pack(0, weft_word_exponent(fired->words[i]), fired->values[i]);
    }
    encoder->fired_kernels->tokenise(items, fired->count, encoder->most, gap_tokens, value_tokens);
    for (size_t i = 0; i < fired->count; i++) {
        unsigned exponent = weft_word_exponent(fired->words[i]);
        sample->changed[exponent]++;
        sample->octaves[exponent][octave_of(value_tokens[i])]++;
    }
    sample->sampled += count;
}

void weft_block_encoder_begin(weft_block_encoder *encoder, const weft_class_sample *sample,
                              uint64_t elements) {
    encoder->count = 0;
    weft_classes_cut(&encoder->classes, sample, elements);
    memset(encoder->offsets, 0, sizeof encoder->offsets);
    memset(encoder->counts, 0, sizeof encoder->counts);
    memset(encoder->tile.counts, 0, sizeof encoder->tile.counts);
}

static weft_status reserve_items(weft_block_encoder *encoder, size_t more) {
    weft_status status = WEFT_OK;
    for (unsigned c = 0; c < encoder->classes.count && status == WEFT_OK; c++) {
        status = reserve(encoder->context, (void **)&encoder->items[c], &encoder->capacities[c],
                         encoder->counts[c] + more, sizeof(uint64_t));
    }
    return status;
}

/* Puts what has fired into its classes. */
static void sort_tile(weft_block_encoder *encoder, uint32_t linear, const weft_fired *fired) {
    const weft_classes *classes = &encoder->classes;
    weft_sorting sorting = {.classes = classes->count, .class_of_exponent = classes->of_exponent};
    memcpy(sorting.offsets, encoder->offsets, sizeof sorting.offsets);
    for (unsigned c = 0; c < classes->count; c++) {
        sorting.ends[c] = encoder->items[c] + encoder->counts[c];
    }
    encoder->fired_kernels->sort(&encoder->tile, fired, linear, &sorting);
    memcpy(encoder->offsets, sorting.offsets, sizeof sorting.offsets);
    for (unsigned c = 0; c < classes->count; c++) {
        encoder->counts[c] = (size_t)(sorting.ends[c] - encoder->items[c]);
    }
    encoder->count += fired->count;
}

weft_status weft_block_encoder_tile(weft_block_encoder *encoder, const uint16_t *words, size_t count,
                                    uint32_t linear, const weft_fired *fired) {
    const weft_classes *classes = &encoder->classes;
    weft_status status = reserve_items(encoder, fired->count);
    for (unsigned c = 0; c < classes->count; c++) {
        encoder->offsets[c] += encoder->tile.counts[c];
    }
    encoder->kernels->classify(words, count, WEFT_WORD_SHIFT, classes->cuts, classes->count,
                               &encoder->tile);
    if (status == WEFT_OK) {
        sort_tile(encoder, linear, fired);
    }
    return status;
}

typedef struct class_tables {
    weft_rans_table gaps;
    weft_rans_table values;
} class_tables;

static void fit_table(const uint8_t *tokens, size_t count, weft_rans_table *table) {
    uint32_t counts[WEFT_RANS_TOKENS] = {0};
    count_bytes(tokens, count, counts);
    weft_rans_table_fit(table, counts);
}

/* The writer is held in a copy of its own, which can stay in registers. */
static void put_rests(weft_bits_writer *writer, const uint64_t *items, size_t count) {
    const uint64_t mask = ((uint64_t)1 << 56) - 1;
    weft_bits_writer bits = *writer;
    size_t i = 0;
    while (i < count) {
        uint64_t rest = items[i] & mask;
        unsigned size = (unsigned)(items[i] >> 56);
        i++;
        /* each put waits for the one before: two at a time, where they fit, which is nearly always */
        if (i < count && size + (items[i] >> 56) <= 56) {
            rest |= (items[i] & mask) << size;
            size += (unsigned)(items[i] >> 56);
            i++;
        }
        weft_bits_put(&bits, rest, size);
    }
    *writer = bits;
}

static weft_status write_bits(weft_block_encoder *encoder, const class_tables *tables,
                              weft_writer *writer) {
    weft_status status =
        reserve(encoder->context, (void **)&encoder->room, &encoder->room_size,
                encoder->classes.count * 2 * (size_t)WEFT_RANS_TABLE_MAX + 7 * encoder->count + 16, 1);
    if (status != WEFT_OK) {
        return status;
    }
    weft_bits_writer bits = {encoder->room, 0, 0};
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        if (encoder->counts[c] > 0) {
            weft_rans_table_write(&tables[c].gaps, &bits);
            weft_rans_table_write(&tables[c].values, &bits);
        }
    }
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        put_rests(&bits, encoder->items[c], encoder->counts[c]);
    }
    size_t size = (size_t)(weft_bits_finish(&bits) - encoder->room);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, encoder->room, size);
    return WEFT_OK;
}

static weft_status write_stream(weft_block_encoder *encoder, const class_tables *tables,
                                weft_writer *writer) {
    const uint8_t *tokens = encoder->tokens;
    size_t count = encoder->count;
    size_t end = count;
    size_t room = 4 * count + 16;
    weft_status status = reserve(encoder->context, (void **)&encoder->room, &encoder->room_size, room, 1);
    if (status != WEFT_OK) {
        return status;
    }
    weft_rans_encoder rans;
    weft_rans_encoder_open(&rans, encoder->room, room);
    for (unsigned c = encoder->classes.count; c-- > 0;) {
        size_t first = end - encoder->counts[c];
        if (encoder->counts[c] > 0) {
            weft_rans_encode(&rans, &tables[c].values, tokens + count + first, end - first);
            weft_rans_encode(&rans, &tables[c].gaps, tokens + first, end - first);
        }
        end = first;
    }
    const uint8_t *start = weft_rans_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(encoder->room + room - start));
    return WEFT_OK;
}

/* Tokens of a class, and tables that fit them. */
static void tokenise_class(weft_block_encoder *encoder, unsigned c, size_t first, class_tables *tables) {
    size_t count = encoder->counts[c];
    uint8_t *gap_tokens = encoder->tokens + first;
    uint8_t *value_tokens = gap_tokens + encoder->count;
    encoder->fired_kernels->tokenise(encoder->items[c], count, encoder->most, gap_tokens, value_tokens);
    fit_table(gap_tokens, count, &tables->gaps);
    fit_table(value_tokens, count, &tables->values);
}

weft_status weft_block_encoder_finish(weft_block_encoder *encoder, weft_writer *writer) {
    class_tables tables[WEFT_CLASS_MAX];
    weft_status status = reserve(encoder->context, (void **)&encoder->tokens, &encoder->token_capacity,
                                 2 * encoder->count, 1);
    if (status != WEFT_OK) {
        return status;
    }
    weft_writer_u8(writer, (uint8_t)encoder->classes.count);
    for (unsigned c = 1; c < encoder->classes.count; c++) {
        weft_writer_u8(writer, encoder->classes.cuts[c]);
    }
    size_t first = 0;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        weft_writer_varint(writer, encoder->counts[c]);
        if (encoder->counts[c] > 0) {
            tokenise_class(encoder, c, first, &tables[c]);
        }
        first += encoder->counts[c];
    }
    status = write_bits(encoder, tables, writer);
    if (status == WEFT_OK) {
        status = write_stream(encoder, tables, writer);
    }
    if (status == WEFT_OK && weft_writer_failed(writer)) {
        status = WEFT_NO_MEMORY;
    }
    return status;
}
