/* SPDX-License-Identifier: Apache-2.0
 *
 * classes_write.c: the encoder of classes_write.h: entries into their classes, and the bytes that do not
 * depend on what is said of them.
 */
#include "classes_write.h"

void weft_class_encoder_open(weft_class_encoder *encoder, weft_context *context, uint32_t exponents) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
    encoder->tile_kernels = weft_tile_kernels_for(weft_cpu_level());
    encoder->entry_kernels = weft_entry_kernels_for(weft_cpu_level());
    encoder->sorting.exponents = exponents;
}

void weft_class_encoder_close(weft_class_encoder *encoder) {
    weft_context *context = encoder->context;
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        weft_release(context, encoder->items[c]);
    }
    weft_release(context, encoder->tokens);
    weft_release(context, encoder->costs);
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

/* ---- sorting ---- */

void weft_class_encoder_begin(weft_class_encoder *encoder, unsigned shift, const weft_class_sample *sample,
                              uint64_t units) {
    encoder->count = 0;
    weft_classes_cut(&encoder->classes, sample, units, encoder->sorting.exponents == WEFT_ITEM_STEPS);
    encoder->sorting = (weft_sorting){.classes = encoder->classes.count,
                                      .class_of_exponent = encoder->classes.of_exponent,
                                      .shift = shift,
                                      .exponents = encoder->sorting.exponents};
    memset(encoder->counts, 0, sizeof encoder->counts);
    memset(encoder->tile.counts, 0, sizeof encoder->tile.counts);
}

weft_status weft_class_encoder_reserve(weft_class_encoder *encoder, unsigned c, size_t more) {
    return reserve(encoder->context, (void **)&encoder->items[c], &encoder->capacities[c],
                   encoder->counts[c] + more, sizeof(uint64_t));
}

weft_status weft_class_encoder_tile(weft_class_encoder *encoder, const void *weights, size_t count,
                                    uint32_t linear, const weft_entries *entries) {
    return weft_class_encoder_tile_without(encoder, weights, count, linear, entries, NULL, 0);
}

weft_status weft_class_encoder_tile_without(weft_class_encoder *encoder, const void *weights, size_t count,
                                            uint32_t linear, const weft_entries *entries,
                                            const uint16_t *indices, size_t left) {
    const weft_classes *classes = &encoder->classes;
    weft_sorting *sorting = &encoder->sorting;
    for (unsigned c = 0; c < classes->count; c++) {
        weft_status status = weft_class_encoder_reserve(encoder, c, entries->count);
        if (status != WEFT_OK) {
            return status;
        }
        sorting->offsets[c] += encoder->tile.counts[c];
        sorting->ends[c] = encoder->items[c] + encoder->counts[c];
    }
    encoder->tile_kernels->classify(weights, count, sorting->shift, classes->cuts, classes->count,
                                    &encoder->tile);
    if (left > 0) {
        weft_tile_leave_out(&encoder->tile, classes->count, indices, left);
    }
    encoder->entry_kernels->sort(&encoder->tile, entries, linear, sorting);
    for (unsigned c = 0; c < classes->count; c++) {
        encoder->counts[c] = (size_t)(sorting->ends[c] - encoder->items[c]);
    }
    encoder->count += entries->count;
    return WEFT_OK;
}

/* ---- writing ---- */

weft_status weft_class_encoder_tokens(weft_class_encoder *encoder) {
    return reserve(encoder->context, (void **)&encoder->tokens, &encoder->token_capacity,
                   2 * encoder->count, 1);
}

static weft_status learn_costs(weft_class_encoder *encoder) {
    if (encoder->costs == NULL) {
        encoder->costs = weft_allocate(encoder->context, sizeof *encoder->costs);
        if (encoder->costs == NULL) {
            return WEFT_NO_MEMORY;
        }
        weft_rans_costs_open(encoder->costs);
    }
    return WEFT_OK;
}

static void write_tables(weft_class_encoder *encoder, unsigned step_tokens, weft_bits_writer *bits) {
    const weft_rans_subject gaps = {false, WEFT_RANS_LAW_TOKENS}, steps = {true, step_tokens};
    const uint8_t *tokens = encoder->tokens;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        size_t count = encoder->counts[c];
        weft_rans_table *of_gaps = &encoder->gaps[c], *of_values = &encoder->values[c];
        if (count > 0 && step_tokens == 0) {
            weft_rans_table_fit_symbols(of_gaps, tokens, count);
            weft_rans_table_fit_symbols(of_values, tokens + encoder->count, count);
            weft_rans_table_write(of_gaps, bits);
            weft_rans_table_write(of_values, bits);
        } else if (count > 0) {
            weft_rans_table_fit_either(of_gaps, encoder->costs, gaps, tokens, count);
            weft_rans_table_fit_either(of_values, encoder->costs, steps, tokens + encoder->count, count);
            weft_rans_table_write_either(of_gaps, bits);
            weft_rans_table_write_either(of_values, bits);
        }
        tokens += count;
    }
}

weft_status weft_class_encoder_front(weft_class_encoder *encoder, size_t rest, unsigned step_tokens,
                                     weft_writer *writer, weft_bits_writer *bits) {
    const weft_classes *classes = &encoder->classes;
    size_t tables = 2 * (size_t)WEFT_RANS_TABLE_MAX * classes->count;
    weft_status status = reserve(encoder->context, (void **)&encoder->room, &encoder->room_size,
                                 tables + rest * encoder->count + 16, 1);
    if (status != WEFT_OK) {
        return status;
    }
    if (step_tokens > 0) {
        status = learn_costs(encoder);
        if (status != WEFT_OK) {
            return status;
        }
    }
    weft_writer_u8(writer, (uint8_t)(classes->count | (step_tokens > 0 ? WEFT_CLASS_LAWS : 0)));
    for (unsigned c = 1; c < classes->count; c++) {
        weft_writer_u8(writer, classes->cuts[c]);
    }
    for (unsigned c = 0; c < classes->count; c++) {
        weft_writer_varint(writer, encoder->counts[c]);
    }
    *bits = (weft_bits_writer){encoder->room, 0, 0};
    write_tables(encoder, step_tokens, bits);
    return WEFT_OK;
}

static weft_status write_stream(weft_class_encoder *encoder, weft_writer *writer) {
    size_t room = 4 * encoder->count + 16;
    weft_status status = reserve(encoder->context, (void **)&encoder->room, &encoder->room_size, room, 1);
    if (status != WEFT_OK) {
        return status;
    }
    weft_rans_encoder rans;
    weft_rans_encoder_open(&rans, encoder->room, room);
    const uint8_t *tokens = encoder->tokens + encoder->count;
    for (unsigned c = encoder->classes.count; c-- > 0;) {
        tokens -= encoder->counts[c];
        if (encoder->counts[c] > 0) {
            weft_rans_encode(&rans, &encoder->values[c], tokens + encoder->count, encoder->counts[c]);
            weft_rans_encode(&rans, &encoder->gaps[c], tokens, encoder->counts[c]);
        }
    }
    const uint8_t *start = weft_rans_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(encoder->room + room - start));
    return WEFT_OK;
}

weft_status weft_class_encoder_back(weft_class_encoder *encoder, weft_bits_writer *bits,
                                    weft_writer *writer) {
    size_t size = (size_t)(weft_bits_finish(bits) - encoder->room);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, encoder->room, size);
    weft_status status = write_stream(encoder, writer);
    return status == WEFT_OK && weft_writer_failed(writer) ? WEFT_NO_MEMORY : status;
}
