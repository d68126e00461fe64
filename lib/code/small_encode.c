/* SPDX-License-Identifier: Apache-2.0
 *
 * small_encode.c: the `small` coding.
 *
 * A BF16 weight crosses a rounding boundary with a chance of about |update| / ULP(weight): the exponent
 * of the old weight says most of what there is to know about where changes are and how large. Units are
 * therefore sorted into up to eight classes by cuts of the base's exponent. A change is named by its
 * rank among the units of its class, as a gap from the change before in that class, and by its step.
 * Gaps and steps of a class are two arrays of tokens, each entropy-coded with a table of its own.
 *
 * The encoder cuts the classes from a sample before it starts, so that comparing, classifying and
 * ranking happen in one pass, tile by tile. The decoder classifies the same base in the same tiles and
 * finds each rank's unit. Neither uses floating point.
 */
#include "small.h"

#include "rans.h"
#include "token.h"

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
}

void weft_small_encoder_close(weft_small_encoder *encoder) {
    weft_release(encoder->context, encoder->ranked.class_of);
    weft_release(encoder->context, encoder->ranked.gaps);
    weft_release(encoder->context, encoder->ranked.orders);
    weft_release(encoder->context, encoder->class_gaps);
    weft_release(encoder->context, encoder->class_steps);
    weft_release(encoder->context, encoder->tokens);
    weft_small_encoder_open(encoder, encoder->context);
}

void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units) {
    encoder->exponent = exponent;
    weft_classes_cut(&encoder->classes, sample, units);
    memset(encoder->offsets, 0, sizeof encoder->offsets);
    memset(encoder->tile.counts, 0, sizeof encoder->tile.counts);
    memset(encoder->counts, 0, sizeof encoder->counts);
}

/* ---- ranking ---- */

/* With room for one more than asked for, so that there is memory to point at even for none. */
static weft_status reserve_encoder(weft_small_encoder *encoder, size_t count) {
    if (count < encoder->capacity) {
        return WEFT_OK;
    }
    size_t capacity = count + count / 2 + 1;
    uint8_t *class_of = weft_reallocate_array(encoder->context, encoder->ranked.class_of, capacity, 1);
    if (class_of == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->ranked.class_of = class_of;
    uint32_t *gaps = weft_reallocate_array(encoder->context, encoder->ranked.gaps, capacity, sizeof *gaps);
    if (gaps == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->ranked.gaps = gaps;
    uint32_t *orders =
        weft_reallocate_array(encoder->context, encoder->ranked.orders, capacity, sizeof *orders);
    if (orders == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->ranked.orders = orders;
    uint32_t *class_gaps =
        weft_reallocate_array(encoder->context, encoder->class_gaps, capacity, sizeof *class_gaps);
    if (class_gaps == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->class_gaps = class_gaps;
    uint64_t *class_steps =
        weft_reallocate_array(encoder->context, encoder->class_steps, capacity, sizeof *class_steps);
    if (class_steps == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->class_steps = class_steps;
    uint8_t *tokens = weft_reallocate_array(encoder->context, encoder->tokens, capacity, 2);
    if (tokens == NULL) {
        return WEFT_NO_MEMORY;
    }
    encoder->tokens = tokens;
    encoder->capacity = capacity;
    return WEFT_OK;
}

/* One class: ranks are positions. */
static void rank_single(weft_small_encoder *encoder, uint32_t linear, const weft_changes *changes,
                        size_t first) {
    const weft_ranked *ranked = &encoder->ranked;
    uint32_t offset = encoder->offsets[0];
    uint32_t order = encoder->counts[0];
    for (size_t i = first; i < changes->count; i++) {
        uint32_t rank = changes->positions[i] - linear;
        ranked->class_of[i] = 0;
        ranked->gaps[i] = rank + offset;
        ranked->orders[i] = order++;
        offset = 0 - rank - 1;
    }
    encoder->offsets[0] = offset;
    encoder->counts[0] = order;
}

static void rank_classes(weft_small_encoder *encoder, const weft_tile_kernels *kernels, uint32_t linear,
                         const weft_changes *changes, size_t first) {
    const weft_ranked *ranked = &encoder->ranked;
    weft_ranked out = {ranked->class_of + first, ranked->gaps + first, ranked->orders + first};
    weft_ranking ranking = {.class_of_exponent = encoder->classes.of_exponent,
                            .shift = encoder->exponent.shift};
    memcpy(ranking.offsets, encoder->offsets, sizeof ranking.offsets);
    memcpy(ranking.counts, encoder->counts, sizeof ranking.counts);
    kernels->rank(&encoder->tile, (const uint16_t *)changes->olds + first, changes->positions + first,
                  changes->count - first, linear, &ranking, &out);
    memcpy(encoder->offsets, ranking.offsets, sizeof ranking.offsets);
    memcpy(encoder->counts, ranking.counts, sizeof ranking.counts);
}

void weft_small_encoder_classify(weft_small_encoder *encoder, const weft_tile_kernels *kernels,
                                 const void *base, size_t units) {
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        encoder->offsets[c] += encoder->tile.counts[c];
    }
    if (encoder->classes.count == 1) {
        encoder->tile.counts[0] = (uint32_t)units;
    } else {
        kernels->classify(base, units, encoder->exponent.shift, encoder->classes.cuts,
                          encoder->classes.count, &encoder->tile);
    }
}

weft_status weft_small_encoder_rank(weft_small_encoder *encoder, const weft_tile_kernels *kernels,
                                    uint64_t linear, const weft_changes *changes, size_t first) {
    weft_status status = reserve_encoder(encoder, changes->count);
    if (status != WEFT_OK) {
        return status;
    }
    if (encoder->classes.count == 1) {
        rank_single(encoder, (uint32_t)linear, changes, first);
    } else {
        rank_classes(encoder, kernels, (uint32_t)linear, changes, first);
    }
    return WEFT_OK;
}

/* ---- writing ---- */

/* Gaps and step codes, class after class, each in position order. */
static inline __attribute__((always_inline)) void
sort_by_class(weft_small_encoder *encoder, const weft_changes *changes, unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    const weft_ranked *ranked = &encoder->ranked;
    size_t starts[WEFT_CLASS_MAX];
    size_t start = 0;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        starts[c] = start;
        start += encoder->counts[c];
    }
    for (size_t i = 0; i < changes->count; i++) {
        size_t to = starts[ranked->class_of[i]] + ranked->orders[i];
        uint64_t step = weft_unit_load(changes->news, i, width) - weft_unit_load(changes->olds, i, width);
        encoder->class_gaps[to] = ranked->gaps[i];
        encoder->class_steps[to] = weft_step_code(step & mask, 8 * width);
    }
}

typedef struct class_tables {
    weft_rans_table gaps;
    weft_rans_table steps;
} class_tables;

/* Tokens of gaps go to tokens[0, count), those of steps to tokens[count, 2 count). */
static void tokenise(weft_small_encoder *encoder, size_t count, class_tables *tables) {
    size_t first = 0;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        size_t end = first + encoder->counts[c];
        /* two counters a token, by turns: one that was just written is slow to read */
        uint32_t gap_counts[2][WEFT_RANS_TOKENS] = {{0}};
        uint32_t step_counts[2][WEFT_RANS_TOKENS] = {{0}};
        const uint32_t *gaps = encoder->class_gaps;
        const uint64_t *steps = encoder->class_steps;
        uint8_t *tokens = encoder->tokens;
        for (size_t i = first; i < end; i++) {
            unsigned gap = weft_token_of(gaps[i]);
            unsigned step = weft_token_of(steps[i]);
            tokens[i] = (uint8_t)gap;
            tokens[count + i] = (uint8_t)step;
            gap_counts[i % 2][gap]++;
            step_counts[i % 2][step]++;
        }
        for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
            gap_counts[0][t] += gap_counts[1][t];
            step_counts[0][t] += step_counts[1][t];
        }
        if (end > first) {
            weft_rans_table_fit(&tables[c].gaps, gap_counts[0]);
            weft_rans_table_fit(&tables[c].steps, step_counts[0]);
        }
        first = end;
    }
}

/* The bits below a token's highest three; none if the token says all. */
static inline void put_rest(weft_bits_writer *bits, uint64_t value, unsigned token) {
    weft_bits_put_wide(bits, value - weft_token_base(token), weft_token_bits(token));
}

/* The same for gaps, whose rests fit one write, without asking whether there is one. */
static void put_gap_rests(weft_bits_writer *writer, const uint32_t *gaps, const uint8_t *tokens,
                          size_t count) {
    uint8_t sizes[WEFT_RANS_TOKENS];
    weft_bits_writer bits = *writer;
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        sizes[t] = (uint8_t)weft_token_bits(t);
    }
    for (size_t i = 0; i < count; i++) {
        unsigned size = sizes[tokens[i]];
        weft_bits_put(&bits, gaps[i] & (((uint64_t)1 << size) - 1), size);
    }
    *writer = bits;
}

static weft_status write_bits(const weft_small_encoder *encoder, size_t count, const class_tables *tables,
                              weft_writer *writer) {
    weft_writer section;
    weft_writer_open(&section, encoder->context);
    size_t room = encoder->classes.count * 2 * (size_t)WEFT_RANS_TABLE_MAX + 12 * count + 16;
    uint8_t *start = weft_writer_reserve(&section, room);
    if (start == NULL) {
        weft_writer_close(&section);
        return WEFT_NO_MEMORY;
    }
    weft_bits_writer bits = {start, 0, 0};
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        if (encoder->counts[c] > 0) {
            weft_rans_table_write(&tables[c].gaps, &bits);
            weft_rans_table_write(&tables[c].steps, &bits);
        }
    }
    size_t first = 0;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        size_t end = first + encoder->counts[c];
        put_gap_rests(&bits, encoder->class_gaps + first, encoder->tokens + first, end - first);
        for (size_t i = first; i < end; i++) {
            if (encoder->tokens[count + i] >= 16) {
                put_rest(&bits, encoder->class_steps[i], encoder->tokens[count + i]);
            }
        }
        first = end;
    }
    size_t size = (size_t)(weft_bits_finish(&bits) - start);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, start, size);
    weft_writer_close(&section);
    return WEFT_OK;
}

static weft_status write_stream(const weft_small_encoder *encoder, size_t count, const class_tables *tables,
                                weft_writer *writer) {
    size_t room = 4 * count + 16;
    uint8_t *buffer = weft_allocate(encoder->context, room);
    if (buffer == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_rans_encoder rans;
    weft_rans_encoder_open(&rans, buffer, room);
    size_t end = count;
    for (unsigned c = encoder->classes.count; c-- > 0;) {
        if (encoder->counts[c] == 0) {
            continue; /* a class without changes has no tables */
        }
        size_t first = end - encoder->counts[c];
        weft_rans_encode(&rans, &tables[c].steps, encoder->tokens + count + first, end - first);
        weft_rans_encode(&rans, &tables[c].gaps, encoder->tokens + first, end - first);
        end = first;
    }
    const uint8_t *start = weft_rans_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(buffer + room - start));
    weft_release(encoder->context, buffer);
    return WEFT_OK;
}

weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer) {
    if (changes->width == 2) {
        sort_by_class(encoder, changes, 2);
    } else {
        sort_by_class(encoder, changes, changes->width);
    }
    weft_writer_u8(writer, (uint8_t)encoder->classes.count);
    for (unsigned c = 1; c < encoder->classes.count; c++) {
        weft_writer_u8(writer, encoder->classes.cuts[c]);
    }
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        weft_writer_varint(writer, encoder->counts[c]);
    }
    class_tables tables[WEFT_CLASS_MAX];
    tokenise(encoder, changes->count, tables);
    weft_status status = write_bits(encoder, changes->count, tables, writer);
    if (status == WEFT_OK) {
        status = write_stream(encoder, changes->count, tables, writer);
    }
    if (status == WEFT_OK && weft_writer_failed(writer)) {
        status = WEFT_NO_MEMORY;
    }
    return status;
}
