/* SPDX-License-Identifier: Apache-2.0
 *
 * code_packed_encode.c: the packed codings of dense buckets of floats.
 *
 * Every unit of the bucket has a number, its folded step or its rotated value. Steps are sorted into
 * classes by the old unit's exponent, as those of the `small` coding are: a class of small weights may
 * change nearly everywhere and by much, one of large weights here and there by one. Each class gets the
 * form that fits it (pack.h), its codes become symbols and its escapes tokens, each with a table of its
 * own.
 *
 * Numbers are made tile by tile while the weights are in the cache. All that is chosen, classes and forms,
 * is chosen from counts of samples; nothing is tried. No floating point.
 */
#include "code.h"

#include "../../code/token.h"

enum {
    SAMPLE_RUN = 64,              /* numbers that are looked at in one place */
    PRICE_SMALL = (1 << 16) / 16, /* what a symbol may cost beyond its bits: a sixteenth of a bit, */
    PRICE_FAST = (1 << 16) / 2,   /* or half a bit, where time counts for more */
};

void weft_packed_encoder_open(weft_packed_encoder *encoder, weft_context *context) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
}

void weft_packed_encoder_close(weft_packed_encoder *encoder) {
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        weft_release(encoder->context, encoder->parts[c].numbers);
    }
    weft_release(encoder->context, encoder->symbols);
    weft_release(encoder->context, encoder->escapes);
    weft_release(encoder->context, encoder->tokens);
    weft_release(encoder->context, encoder->rests);
    weft_release(encoder->context, encoder->room);
}

unsigned weft_packed_low(weft_dtype dtype) {
    switch (dtype) {
    case WEFT_DTYPE_F8_E5M2:
    case WEFT_DTYPE_F8_E5M2FNUZ:
        return 3;
    case WEFT_DTYPE_F8_E4M3:
    case WEFT_DTYPE_F8_E4M3FNUZ:
        return 4;
    case WEFT_DTYPE_BF16:
        return 8;
    case WEFT_DTYPE_F16:
        return 11;
    case WEFT_DTYPE_F32:
        return 24;
    case WEFT_DTYPE_F64:
        return 53;
    default:
        return 0;
    }
}

static weft_status reserve(weft_context *context, void **memory, size_t *capacity, size_t count,
                           size_t size) {
    if (count <= *capacity) {
        return WEFT_OK;
    }
    weft_release(context, *memory);
    *capacity = 0;
    *memory = weft_allocate_array(context, count, size);
    if (*memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    *capacity = count;
    return WEFT_OK;
}

void weft_packed_encoder_begin(weft_packed_encoder *encoder, const weft_patch_kernels *kernels,
                               weft_dtype dtype, bool values, const weft_class_sample *sample,
                               uint64_t units) {
    encoder->kernels = kernels;
    encoder->width = weft_dtype_width(dtype);
    encoder->low = weft_packed_low(dtype);
    encoder->shift = weft_exponent_of(dtype).shift;
    encoder->values = values;
    encoder->units = (size_t)units;
    encoder->changed = 0;
    weft_classes_cut(&encoder->classes, sample, units);
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        encoder->parts[c].count = 0;
    }
}

/* Makes room for a tile more. A class may turn out to have all units, or none: it grows as it is filled, by
 * half of what is there. */
static weft_status grow_part(weft_packed_encoder *encoder, weft_packed_part *part) {
    size_t wanted = part->count + WEFT_TILE + WEFT_KERNEL_SLACK;
    if (wanted * encoder->width <= part->capacity) {
        return WEFT_OK;
    }
    size_t all = (encoder->units + WEFT_TILE + WEFT_KERNEL_SLACK) * encoder->width;
    size_t bytes = wanted * encoder->width + wanted * encoder->width / 2;
    bytes = encoder->classes.count == 1 || bytes > all ? all : bytes;
    void *numbers = weft_reallocate_array(encoder->context, part->numbers, bytes, 1);
    if (numbers == NULL) {
        return WEFT_NO_MEMORY;
    }
    part->numbers = numbers;
    part->capacity = bytes;
    return WEFT_OK;
}

weft_status weft_packed_encoder_tile(weft_packed_encoder *encoder, const void *old, const void *new,
                                     size_t units) {
    const weft_pack_kernels *packs = encoder->kernels->packs;
    unsigned classes = encoder->classes.count, width = encoder->width;
    weft_status status = WEFT_OK;
    for (unsigned c = 0; c < classes && status == WEFT_OK; c++) {
        status = grow_part(encoder, &encoder->parts[c]);
    }
    if (status != WEFT_OK) {
        return status;
    }
    weft_packed_part *only = &encoder->parts[0];
    void *numbers = encoder->numbers;
    if (classes == 1) {
        numbers = (uint8_t *)only->numbers + only->count * width;
    }
    if (old != NULL) {
        encoder->changed += packs->fold_steps(old, new, units, width, numbers);
    }
    if (encoder->values) {
        packs->fold_values(new, units, width, numbers);
    }
    if (classes == 1) {
        only->count += units;
        return WEFT_OK;
    }
    uint16_t *ends[WEFT_CLASS_MAX];
    for (unsigned c = 0; c < classes; c++) {
        ends[c] = (uint16_t *)encoder->parts[c].numbers + encoder->parts[c].count;
    }
    encoder->kernels->tiles->classify(old, units, encoder->shift, encoder->classes.cuts, classes,
                                      &encoder->tile);
    packs->sort(&encoder->tile, classes, encoder->numbers, ends);
    for (unsigned c = 0; c < classes; c++) {
        encoder->parts[c].count += encoder->tile.counts[c];
    }
    return WEFT_OK;
}

/* ---- forms ---- */

static weft_pack_wish wish_for(unsigned width, unsigned low, bool values, weft_profile profile) {
    return (weft_pack_wish){
        .bits = 8 * width,
        .values = values,
        .low = low,
        .price = profile == WEFT_PROFILE_SMALL ? PRICE_SMALL : PRICE_FAST,
    };
}

/* Runs of numbers, evenly spread. */
static size_t sample_numbers(const void *numbers, size_t count, unsigned width, uint64_t *sample) {
    size_t runs = WEFT_PACK_SAMPLE / SAMPLE_RUN, taken = 0;
    bool all = count <= WEFT_PACK_SAMPLE;
    for (size_t r = 0; r < (all ? 1 : runs); r++) {
        size_t from = all ? 0 : (count - SAMPLE_RUN) / (runs - 1) * r;
        for (size_t i = 0; i < (all ? count : SAMPLE_RUN); i++) {
            sample[taken++] = weft_unit_load(numbers, from + i, width);
        }
    }
    return taken;
}

static void fit_part(weft_packed_encoder *encoder, weft_packed_part *part, weft_profile profile) {
    uint64_t sample[WEFT_PACK_SAMPLE];
    weft_pack_wish wish = wish_for(encoder->width, encoder->low, encoder->values, profile);
    size_t count = sample_numbers(part->numbers, part->count, encoder->width, sample);
    weft_pack_form_fit(&part->form, sample, count, &wish);
    uint64_t lowest = ((uint64_t)1 << part->form.low) - 1;
    if (lowest != 0) {
        uint64_t varying =
            encoder->kernels->packs->varying(part->numbers, part->count, encoder->width) & lowest;
        part->form.varying = varying;
        part->form.fixed = weft_unit_load(part->numbers, 0, encoder->width) & lowest & ~varying;
    }
}

bool weft_packed_prefers_values(const weft_pack_kernels *kernels, weft_dtype dtype, weft_profile profile,
                                const void *old, const void *new, size_t units) {
    uint64_t numbers[WEFT_PACK_SAMPLE], sample[WEFT_PACK_SAMPLE];
    unsigned width = weft_dtype_width(dtype);
    uint64_t costs[2];
    for (unsigned values = 0; values < 2; values++) {
        weft_pack_wish wish = wish_for(width, weft_packed_low(dtype), values != 0, profile);
        weft_pack_form form;
        if (values != 0) {
            kernels->fold_values(new, units, width, numbers);
        } else {
            kernels->fold_steps(old, new, units, width, numbers);
        }
        size_t count = sample_numbers(numbers, units, width, sample);
        costs[values] = weft_pack_form_fit(&form, sample, count, &wish);
    }
    return costs[1] < costs[0];
}

/* ---- writing ---- */

/* The codes and planes of a part, and its escapes as tokens and plain bits. */
static weft_status split_part(weft_packed_encoder *encoder, weft_packed_part *part, uint8_t *symbols,
                              uint8_t *planes) {
    unsigned width = encoder->width;
    size_t groups = (part->count + WEFT_PACK_GROUP - 1) / WEFT_PACK_GROUP;
    weft_status status = reserve(encoder->context, (void **)&encoder->escapes, &encoder->escape_capacity,
                                 groups, sizeof *encoder->escapes);
    if (status != WEFT_OK) {
        return status;
    }
    weft_pack_split(encoder->kernels->packs, &part->form, width, part->numbers, part->count, symbols,
                    planes, encoder->escapes);
    size_t escapes = 0;
    for (size_t g = 0; g < groups; g++) {
        escapes += (size_t)__builtin_popcountll(encoder->escapes[g]);
    }
    size_t wanted = encoder->token_count + escapes;
    if (wanted > encoder->token_capacity) {
        size_t capacity = wanted + wanted / 2;
        uint8_t *tokens = weft_reallocate_array(encoder->context, encoder->tokens, capacity, 1);
        encoder->tokens = tokens != NULL ? tokens : encoder->tokens;
        uint64_t *rests = tokens == NULL ? NULL
                                         : weft_reallocate_array(encoder->context, encoder->rests, capacity,
                                                                 sizeof *rests);
        encoder->rests = rests != NULL ? rests : encoder->rests;
        if (rests == NULL) {
            return WEFT_NO_MEMORY;
        }
        encoder->token_capacity = capacity;
    }
    uint8_t *tokens = encoder->tokens + encoder->token_count;
    uint64_t *rests = encoder->rests + encoder->token_count;
    uint64_t escape = weft_pack_escape(&part->form), upper = weft_pack_upper(&part->form, 8 * width);
    for (size_t g = 0; g < groups; g++) {
        for (uint64_t mask = encoder->escapes[g]; mask != 0; mask &= mask - 1) {
            size_t index = g * WEFT_PACK_GROUP + (unsigned)__builtin_ctzll(mask);
            uint64_t number = weft_unit_load(part->numbers, index, width);
            uint64_t beyond = (((number >> part->form.low) - part->form.first) & upper) - escape;
            unsigned token = weft_token_of(beyond);
            *tokens++ = (uint8_t)token;
            *rests++ = beyond - weft_token_base(token);
        }
    }
    part->escapes = escapes;
    encoder->token_count = wanted;
    return WEFT_OK;
}

static void write_front(const weft_packed_encoder *encoder, weft_writer *writer) {
    const weft_classes *classes = &encoder->classes;
    weft_writer_u8(writer, (uint8_t)classes->count);
    for (unsigned c = 1; c < classes->count; c++) {
        weft_writer_u8(writer, classes->cuts[c]);
    }
    for (unsigned c = 0; c < classes->count; c++) {
        const weft_packed_part *part = &encoder->parts[c];
        weft_writer_varint(writer, part->count);
        if (part->count > 0) {
            unsigned width = (unsigned)__builtin_ctz(part->form.code);
            weft_writer_u8(writer, (uint8_t)(part->form.low | width << 6));
            weft_writer_varint(writer, part->form.first);
            weft_writer_varint(writer, part->form.varying);
            weft_writer_varint(writer, part->form.fixed);
        }
    }
}

/* Behind the planes: how many escapes there are, and the tables and plain bits. */
static weft_status write_bits(weft_packed_encoder *encoder, weft_writer *writer) {
    unsigned classes = encoder->classes.count;
    size_t most = 2 * (size_t)WEFT_RANS_TABLE_MAX * classes + 8 * encoder->token_count + 16;
    weft_status status = reserve(encoder->context, (void **)&encoder->room, &encoder->room_size, most, 1);
    if (status != WEFT_OK) {
        return status;
    }
    weft_bits_writer bits = {encoder->room, 0, 0};
    const uint8_t *symbols = encoder->symbols, *tokens = encoder->tokens;
    for (unsigned c = 0; c < classes; c++) {
        weft_packed_part *part = &encoder->parts[c];
        if (part->count == 0) {
            continue;
        }
        weft_writer_varint(writer, part->escapes);
        size_t count = weft_pack_symbols(&part->form, part->count);
        weft_rans_table_fit_symbols(&part->codes, symbols, count);
        weft_rans_table_write(&part->codes, &bits);
        if (part->escapes > 0) {
            weft_rans_table_fit_symbols(&part->beyond, tokens, part->escapes);
            weft_rans_table_write(&part->beyond, &bits);
        }
        symbols += count;
        tokens += part->escapes;
    }
    for (size_t i = 0; i < encoder->token_count; i++) {
        weft_bits_put_wide(&bits, encoder->rests[i], weft_token_bits(encoder->tokens[i]));
    }
    size_t size = (size_t)(weft_bits_finish(&bits) - encoder->room);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, encoder->room, size);
    return WEFT_OK;
}

static weft_status write_stream(weft_packed_encoder *encoder, size_t symbol_count, weft_writer *writer) {
    size_t room = 2 * (symbol_count + encoder->token_count) + WEFT_RANS_WIDE_BYTES;
    weft_status status = reserve(encoder->context, (void **)&encoder->room, &encoder->room_size, room, 1);
    if (status != WEFT_OK) {
        return status;
    }
    const weft_rans_wide_kernels *wide = encoder->kernels->wide;
    weft_rans_wide_encoder rans;
    weft_rans_wide_encoder_open(&rans, encoder->room, room);
    const uint8_t *symbols = encoder->symbols + symbol_count,
                  *tokens = encoder->tokens + encoder->token_count;
    for (unsigned c = encoder->classes.count; c-- > 0;) {
        const weft_packed_part *part = &encoder->parts[c];
        if (part->count == 0) {
            continue;
        }
        size_t count = weft_pack_symbols(&part->form, part->count);
        symbols -= count;
        tokens -= part->escapes;
        if (part->escapes > 0) {
            weft_rans_wide_encode(&rans, wide, &part->beyond, tokens, part->escapes);
        }
        weft_rans_wide_encode(&rans, wide, &part->codes, symbols, count);
    }
    const uint8_t *start = weft_rans_wide_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(encoder->room + room - start));
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

weft_status weft_packed_encoder_finish(weft_packed_encoder *encoder, weft_profile profile,
                                       weft_writer *writer) {
    size_t symbol_count = 0, plane_bytes = 0;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        weft_packed_part *part = &encoder->parts[c];
        part->form = (weft_pack_form){.code = 1};
        part->escapes = 0;
        if (part->count > 0) {
            fit_part(encoder, part, profile);
            symbol_count += weft_pack_symbols(&part->form, part->count);
            plane_bytes += weft_pack_planes(&part->form, part->count);
        }
    }
    write_front(encoder, writer);
    uint8_t *planes = weft_writer_reserve(writer, plane_bytes);
    weft_status status = planes != NULL ? reserve(encoder->context, (void **)&encoder->symbols,
                                                  &encoder->symbol_capacity, symbol_count, 1)
                                        : WEFT_NO_MEMORY;
    uint8_t *symbols = encoder->symbols;
    encoder->token_count = 0;
    for (unsigned c = 0; c < encoder->classes.count && status == WEFT_OK; c++) {
        weft_packed_part *part = &encoder->parts[c];
        if (part->count > 0) {
            status = split_part(encoder, part, symbols, planes);
            symbols += weft_pack_symbols(&part->form, part->count);
            planes += weft_pack_planes(&part->form, part->count);
        }
    }
    if (status == WEFT_OK) {
        writer->size += plane_bytes;
        status = write_bits(encoder, writer);
    }
    return status == WEFT_OK ? write_stream(encoder, symbol_count, writer) : status;
}
