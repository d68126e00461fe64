/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_decode.c: a packed bucket's bytes become units. First the numbers of all classes; then, tile
 * by tile, the old units are classified, which tells whose numbers come next. The bytes are hostile:
 * nothing is believed that was not bounded, and memory is taken for the units of the bucket only, which the
 * reader's limits bound.
 */
#include "packed.h"

#include "../token.h"

void weft_packed_decoder_open(weft_packed_decoder *decoder, weft_context *context) {
    memset(decoder, 0, sizeof *decoder);
    decoder->context = context;
    decoder->entries = weft_entry_kernels_for(weft_cpu_level());
}

void weft_packed_decoder_close(weft_packed_decoder *decoder) {
    weft_release(decoder->context, decoder->symbols);
    weft_release(decoder->context, decoder->escapes);
    weft_release(decoder->context, decoder->numbers);
}

/* What a payload says of a class. */
typedef struct packed_class {
    weft_pack_form form;
    size_t units;
    size_t escapes;
    weft_rans_table codes;
    weft_rans_table beyond;
} packed_class;

typedef struct packed_front {
    packed_class classes[WEFT_CLASS_MAX];
    const uint8_t *planes;
    weft_bits_reader bits;
    weft_rans_wide_decoder rans;
} packed_front;

static bool read_cuts(weft_packed_decoder *decoder, weft_reader *reader, weft_exponent exponent) {
    unsigned highest = exponent.present ? 0x7fffu >> exponent.shift : 0;
    decoder->shift = exponent.shift;
    decoder->classes = weft_reader_u8(reader);
    if (decoder->classes < 1 ||
        decoder->classes > (exponent.present && !decoder->values ? WEFT_CLASS_MAX : 1)) {
        return false;
    }
    decoder->cuts[0] = 0;
    for (unsigned c = 1; c < decoder->classes; c++) {
        decoder->cuts[c] = weft_reader_u8(reader);
        if (decoder->cuts[c] <= decoder->cuts[c - 1] || decoder->cuts[c] > highest) {
            return false;
        }
    }
    return true;
}

static bool read_form(packed_class *class, weft_reader *reader, unsigned bits) {
    weft_pack_form *form = &class->form;
    unsigned byte = weft_reader_u8(reader);
    form->low = byte & 63;
    form->code = 1u << (byte >> 6);
    form->first = weft_reader_varint(reader);
    form->varying = weft_reader_varint(reader);
    form->fixed = weft_reader_varint(reader);
    return form->low < bits && form->first <= weft_pack_upper(form, bits) &&
           form->varying >> form->low == 0 && form->fixed >> form->low == 0 &&
           (form->varying & form->fixed) == 0;
}

/* All up to the planes, and where they are. */
static bool read_forms(weft_packed_decoder *decoder, packed_front *front, weft_reader *reader,
                       size_t units) {
    size_t total = 0, plane_bytes = 0;
    for (unsigned c = 0; c < decoder->classes; c++) {
        packed_class *class = &front->classes[c];
        uint64_t members = weft_reader_varint(reader);
        if (members > units - total) {
            return false;
        }
        class->units = (size_t)members;
        total += class->units;
        if (class->units > 0 && !read_form(class, reader, 8 * decoder->width)) {
            return false;
        }
        plane_bytes += class->units > 0 ? weft_pack_planes(&class->form, class->units) : 0;
    }
    front->planes = weft_reader_bytes(reader, plane_bytes);
    return total == units && !weft_reader_failed(reader);
}

/* A table of tokens that an upper part can have. */
static bool read_tables(weft_packed_decoder *decoder, packed_front *front) {
    for (unsigned c = 0; c < decoder->classes; c++) {
        packed_class *class = &front->classes[c];
        if (class->units > 0 &&
            (!weft_rans_table_read(&class->codes, &front->bits) ||
             (class->escapes > 0 && !weft_rans_table_read(&class->beyond, &front->bits)))) {
            return false;
        }
    }
    return true;
}

static bool read_front(weft_packed_decoder *decoder, packed_front *front, const uint8_t *payload,
                       size_t size, weft_exponent exponent, size_t units) {
    weft_reader reader = weft_reader_over(payload, size);
    if (!read_cuts(decoder, &reader, exponent) || !read_forms(decoder, front, &reader, units)) {
        return false;
    }
    for (unsigned c = 0; c < decoder->classes; c++) {
        packed_class *class = &front->classes[c];
        uint64_t escapes = class->units > 0 ? weft_reader_varint(&reader) : 0;
        if (escapes > class->units) {
            return false;
        }
        class->escapes = (size_t)escapes;
    }
    uint64_t bits = weft_reader_varint(&reader);
    if (weft_reader_failed(&reader) || bits > weft_reader_left(&reader)) {
        return false;
    }
    front->bits = weft_bits_over(weft_reader_bytes(&reader, (size_t)bits), (size_t)bits);
    size_t stream = weft_reader_left(&reader);
    return read_tables(decoder, front) &&
           weft_rans_wide_decoder_open(&front->rans, weft_reader_bytes(&reader, stream), stream);
}

static weft_status reserve(weft_context *context, void **memory, size_t *capacity, size_t bytes) {
    if (bytes <= *capacity) {
        return WEFT_OK;
    }
    weft_release(context, *memory);
    *capacity = 0;
    *memory = weft_allocate(context, bytes);
    if (*memory == NULL) {
        return WEFT_NO_MEMORY;
    }
    *capacity = bytes;
    return WEFT_OK;
}

/* Memory for the numbers, and for as many symbols, tokens and groups as they can have. */
static weft_status reserve_units(weft_packed_decoder *decoder, size_t units) {
    size_t slack = WEFT_CLASS_MAX * (size_t)WEFT_KERNEL_SLACK, groups = units / WEFT_PACK_GROUP + 1;
    weft_status status = reserve(decoder->context, (void **)&decoder->numbers, &decoder->number_bytes,
                                 (units + slack) * decoder->width);
    if (status == WEFT_OK) {
        status = reserve(decoder->context, (void **)&decoder->symbols, &decoder->symbol_bytes,
                         2 * units + slack);
    }
    if (status == WEFT_OK) {
        status = reserve(decoder->context, (void **)&decoder->escapes, &decoder->escape_bytes,
                         groups * sizeof *decoder->escapes);
    }
    return status;
}

/* Puts the upper parts that are escapes where they belong. False if there are not as many as was said, or
 * one is too large. */
static inline __attribute__((always_inline)) bool
put_escapes(const packed_class *class, weft_bits_reader *reader, const uint8_t *tokens,
            const uint64_t *escapes, void *numbers, unsigned width) {
    const weft_pack_form *form = &class->form;
    uint64_t escape = weft_pack_escape(form), upper = weft_pack_upper(form, 8 * width);
    uint64_t lowest = ((uint64_t)1 << form->low) - 1;
    if (class->escapes > 0 && escape > upper) {
        return false;
    }
    uint64_t most = upper - escape;
    size_t groups = (class->units + WEFT_PACK_GROUP - 1) / WEFT_PACK_GROUP, taken = 0;
    weft_bits_reader bits = *reader;
    for (size_t g = 0; g < groups; g++) {
        for (uint64_t mask = escapes[g]; mask != 0; mask &= mask - 1) {
            size_t index = g * WEFT_PACK_GROUP + (unsigned)__builtin_ctzll(mask);
            if (taken == class->escapes) {
                return false;
            }
            unsigned token = tokens[taken++];
            uint64_t beyond = weft_token_base(token) + weft_bits_get(&bits, weft_token_bits(token));
            if (beyond > most) {
                return false;
            }
            uint64_t part = (beyond + escape + form->first) & upper;
            uint64_t number = weft_packed_load(numbers, index, width) & lowest;
            weft_packed_store(numbers, index, width, part << form->low | number);
        }
    }
    *reader = bits;
    return taken == class->escapes && !weft_bits_overrun(&bits);
}

static bool put_escapes_of(const packed_class *class, weft_bits_reader *bits, const uint8_t *tokens,
                           const uint64_t *escapes, void *numbers, unsigned width) {
    switch (width) {
    case 1:
        return put_escapes(class, bits, tokens, escapes, numbers, 1);
    case 2:
        return put_escapes(class, bits, tokens, escapes, numbers, 2);
    case 4:
        return put_escapes(class, bits, tokens, escapes, numbers, 4);
    default:
        return put_escapes(class, bits, tokens, escapes, numbers, 8);
    }
}

/* The numbers of all classes. */
static bool read_numbers(weft_packed_decoder *decoder, packed_front *front) {
    uint8_t *numbers = decoder->numbers;
    const uint8_t *planes = front->planes;
    for (unsigned c = 0; c < decoder->classes; c++) {
        const packed_class *class = &front->classes[c];
        decoder->nexts[c] = numbers;
        decoder->left[c] = class->units;
        if (class->units == 0) {
            continue;
        }
        size_t symbols = weft_pack_symbols(&class->form, class->units);
        uint8_t *tokens = decoder->symbols + symbols;
        if (!weft_rans_wide_decode(&front->rans, decoder->kernels->wide, &class->codes, decoder->symbols,
                                   symbols) ||
            (class->escapes > 0 && !weft_rans_wide_decode(&front->rans, decoder->kernels->wide,
                                                          &class->beyond, tokens, class->escapes))) {
            return false;
        }
        weft_pack_join(decoder->kernels->packs, &class->form, decoder->width, decoder->symbols, planes,
                       class->units, numbers, decoder->escapes);
        if (!put_escapes_of(class, &front->bits, tokens, decoder->escapes, numbers, decoder->width)) {
            return false;
        }
        planes += weft_pack_planes(&class->form, class->units);
        numbers += (class->units + WEFT_KERNEL_SLACK) * decoder->width;
    }
    return front->bits.size - front->bits.position < 8 && weft_rans_wide_decoder_done(&front->rans);
}

weft_status weft_packed_decoder_begin(weft_packed_decoder *decoder, const weft_packed_kernels *kernels,
                                      weft_packed_kind kind, bool values, const uint8_t *payload,
                                      size_t size, size_t units) {
    decoder->kernels = kernels;
    decoder->width = kind.width;
    decoder->values = values;
    packed_front *front = weft_allocate(decoder->context, sizeof *front);
    if (front == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_status status = WEFT_OK;
    if (!read_front(decoder, front, payload, size, kind.exponent, units)) {
        status = weft_fail(decoder->context, WEFT_MALFORMED, "a packed bucket has no valid front");
    }
    if (status == WEFT_OK) {
        status = reserve_units(decoder, units);
    }
    if (status == WEFT_OK && !read_numbers(decoder, front)) {
        status = weft_fail(decoder->context, WEFT_MALFORMED, "a packed bucket does not hold its %zu units",
                           units);
    }
    weft_release(decoder->context, front);
    return status;
}

static weft_status fail_base(const weft_packed_decoder *decoder) {
    return weft_fail(decoder->context, WEFT_BASE_MISMATCH,
                     "a packed bucket has other weights than this base: it was made for another base");
}

/* The numbers of the next units, in the decoder's tile or where they lie. NULL if there are none. */
static const void *next_numbers(weft_packed_decoder *decoder, const void *old, size_t units) {
    if (decoder->classes == 1) {
        const uint8_t *numbers = decoder->nexts[0];
        if (units > decoder->left[0]) {
            return NULL;
        }
        decoder->nexts[0] = numbers + units * decoder->width;
        decoder->left[0] -= units;
        return numbers;
    }
    const void *words = old;
    if (decoder->width != 2) {
        decoder->entries->words(old, units, decoder->width, decoder->words);
        words = decoder->words;
    }
    decoder->kernels->tiles->classify(words, units, decoder->shift, decoder->cuts, decoder->classes,
                                      &decoder->tile);
    for (unsigned c = 0; c < decoder->classes; c++) {
        if (decoder->tile.counts[c] > decoder->left[c]) {
            return NULL;
        }
        decoder->left[c] -= decoder->tile.counts[c];
    }
    decoder->kernels->packs->merge(&decoder->tile, decoder->classes, decoder->width, decoder->nexts,
                                   decoder->merged);
    return decoder->merged;
}

weft_status weft_packed_decoder_next(weft_packed_decoder *decoder, const void *old, size_t units,
                                     void *new) {
    const void *numbers = next_numbers(decoder, old, units);
    if (numbers == NULL) {
        return fail_base(decoder);
    }
    if (decoder->values) {
        decoder->kernels->packs->unfold_values(numbers, units, decoder->width, new);
    } else {
        decoder->kernels->packs->unfold_steps(numbers, old, units, decoder->width, new);
    }
    return WEFT_OK;
}
