/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_encode.c: the packed codings of dense buckets of floats.
 *
 * Every unit of the bucket has a number, its folded step or its rotated value. Steps are sorted into
 * classes by the old unit's exponent, as those of the `small` coding are: a class of small weights may
 * change nearly everywhere and by much, one of large weights here and there by one. Each class gets the
 * form that fits it (pack.h), its codes become symbols and its escapes tokens, each with a table of its
 * own.
 *
 * All that is chosen, classes and forms, is chosen from a sample before the pass; nothing is tried. The
 * pass goes tile by tile while the weights are in the cache, and keeps of them only symbols, planes and
 * escapes. No floating point.
 */
#include "packed.h"

#include "../token.h"

enum {
    PRICE = (1 << 16) / 2, /* what a symbol may cost beyond its bits, for its time: half a bit */
    CHOICE_SHARE = 4,      /* one number of a sample in so many chooses between steps and values */
    STILL_LEAST = 64,      /* numbers of a sample that can say that a bit never varies */
    ROOM = WEFT_PACK_GROUP + WEFT_TILE + WEFT_KERNEL_SLACK, /* numbers of a part at most */
};

void weft_packed_encoder_open(weft_packed_encoder *encoder, weft_context *context) {
    memset(encoder, 0, sizeof *encoder);
    encoder->context = context;
    encoder->entries = weft_entry_kernels_for(weft_cpu_level());
}

void weft_packed_encoder_close(weft_packed_encoder *encoder) {
    for (unsigned c = 0; c < WEFT_CLASS_MAX; c++) {
        weft_packed_part *part = &encoder->parts[c];
        weft_release(encoder->context, part->numbers);
        weft_release(encoder->context, part->symbols.data);
        weft_release(encoder->context, part->planes.data);
        weft_release(encoder->context, part->tokens.data);
        weft_release(encoder->context, part->rests.data);
    }
    weft_release(encoder->context, encoder->room.data);
}

/* Makes room for `more` bytes. What is full takes half as much again: a class may turn out to have all
 * units. */
static weft_status grow(weft_context *context, weft_packed_bytes *bytes, size_t more) {
    size_t wanted = bytes->size + more;
    if (wanted <= bytes->capacity) {
        return WEFT_OK;
    }
    wanted = bytes->size == 0 ? wanted : wanted + wanted / 2;
    uint8_t *data = weft_reallocate_array(context, bytes->data, wanted, 1);
    if (data == NULL) {
        return WEFT_NO_MEMORY;
    }
    bytes->data = data;
    bytes->capacity = wanted;
    return WEFT_OK;
}

/* ---- forms ---- */

static weft_pack_wish wish_for(weft_packed_kind kind, bool values) {
    return (weft_pack_wish){
        .bits = 8 * kind.width,
        .values = values,
        .low = kind.low,
        .price = PRICE,
    };
}

/* Sets encoder->sample to the numbers of the sample. */
static void fold_sample(weft_packed_encoder *encoder, const weft_pack_kernels *packs, weft_packed_kind kind,
                        bool values, const weft_packed_sample *sample) {
    unsigned width = kind.width;
    if (values) {
        packs->fold_values(sample->news, sample->count, width, encoder->chosen);
    } else {
        packs->fold_steps(sample->olds, sample->news, sample->count, width, encoder->chosen);
    }
    for (size_t i = 0; i < sample->count; i++) {
        encoder->sample[i] = weft_packed_load(encoder->chosen, i, width);
    }
}

bool weft_packed_prefers_values(weft_packed_encoder *encoder, const weft_packed_kernels *kernels,
                                weft_packed_kind kind, const weft_packed_sample *sample,
                                weft_rice_form *rice) {
    uint64_t costs[2];
    for (unsigned values = 0; values < 2; values++) {
        weft_pack_wish wish = wish_for(kind, values != 0);
        weft_pack_form form;
        fold_sample(encoder, kernels->packs, kind, values != 0, sample);
        if (values == 0 && rice != NULL) {
            costs[0] = weft_rice_form_fit(rice, encoder->sample, sample->count, kind.width);
            continue;
        }
        size_t count = 0;
        for (size_t i = 0; i < sample->count; i += CHOICE_SHARE) {
            encoder->sample[count++] = encoder->sample[i];
        }
        costs[values] = weft_pack_form_fit(&form, encoder->sample, count, &wish);
        costs[values] *= rice != NULL ? CHOICE_SHARE : 1;
    }
    return costs[1] < costs[0];
}

static void fit_part(weft_packed_part *part, const uint64_t *sample, size_t count,
                     const weft_pack_wish *wish) {
    part->form = (weft_pack_form){.low = wish->values ? wish->low : 0, .code = 8};
    if (count > 0) {
        weft_pack_form_fit(&part->form, sample, count, wish);
    }
    uint64_t lowest = ((uint64_t)1 << part->form.low) - 1, varying = count < STILL_LEAST ? lowest : 0;
    for (size_t i = 1; i < count; i++) {
        varying |= (sample[i] ^ sample[0]) & lowest;
    }
    part->form.varying = varying;
    part->still = lowest & ~varying;
    part->form.fixed = count > 0 ? sample[0] & part->still : 0;
}

/* Where each class ends. */
typedef struct class_ends {
    size_t of[WEFT_CLASS_MAX];
} class_ends;

/* Sets encoder->chosen to the numbers of the sample, class after class. */
static class_ends sort_sample(weft_packed_encoder *encoder, const weft_packed_sample *sample) {
    const weft_classes *classes = &encoder->classes;
    uint8_t class_of[WEFT_PACK_SAMPLE];
    class_ends ends = {{0}};
    for (size_t i = 0; i < sample->count; i++) {
        uint64_t old = weft_packed_load(sample->olds, i, encoder->width);
        class_of[i] = classes->of_exponent[weft_exponent_in(encoder->exponent, old)];
        ends.of[class_of[i]]++;
    }
    size_t before = 0;
    for (unsigned c = 0; c < classes->count; c++) {
        size_t count = ends.of[c];
        ends.of[c] = before;
        before += count;
    }
    for (size_t i = 0; i < sample->count; i++) {
        encoder->chosen[ends.of[class_of[i]]++] = encoder->sample[i];
    }
    return ends;
}

/* The forms of all classes, from those of the sample's units that are in them. */
static void fit_parts(weft_packed_encoder *encoder, weft_packed_kind kind,
                      const weft_packed_sample *sample) {
    const weft_classes *classes = &encoder->classes;
    weft_pack_wish wish = wish_for(kind, encoder->values);
    fold_sample(encoder, encoder->kernels->packs, kind, encoder->values, sample);
    if (classes->count == 1) {
        encoder->parts[0].expected = encoder->units;
        fit_part(&encoder->parts[0], encoder->sample, sample->count, &wish);
        return;
    }
    class_ends ends = sort_sample(encoder, sample);
    for (unsigned c = 0; c < classes->count; c++) {
        size_t begin = c > 0 ? ends.of[c - 1] : 0, count = ends.of[c] - begin;
        fit_part(&encoder->parts[c], encoder->chosen + begin, count, &wish);
        /* some more than its share, since a sample is one */
        encoder->parts[c].expected = encoder->units / sample->count * (count + count / 8 + STILL_LEAST);
    }
}

/* ---- the pass ---- */

static void empty_part(weft_packed_part *part) {
    part->moved = 0;
    part->waiting = 0;
    part->units = 0;
    part->escapes = 0;
    part->symbols.size = 0;
    part->planes.size = 0;
    part->tokens.size = 0;
    part->rests.size = 0;
}

/* Takes the memory of a part, as much as it is likely to need. */
static weft_status open_part(weft_packed_encoder *encoder, weft_packed_part *part) {
    empty_part(part);
    if (part->numbers == NULL) {
        part->numbers = weft_allocate_array(encoder->context, ROOM, sizeof(uint64_t));
        if (part->numbers == NULL) {
            return WEFT_NO_MEMORY;
        }
    }
    weft_status status =
        grow(encoder->context, &part->symbols, weft_pack_symbols(&part->form, part->expected));
    return status == WEFT_OK
               ? grow(encoder->context, &part->planes, weft_pack_planes(&part->form, part->expected))
               : status;
}

weft_status weft_packed_encoder_begin(weft_packed_encoder *encoder, const weft_packed_kernels *kernels,
                                      weft_packed_kind kind, bool values,
                                      const weft_class_sample *exponents, const weft_packed_sample *sample,
                                      uint64_t units) {
    encoder->kernels = kernels;
    encoder->width = kind.width;
    encoder->exponent = kind.exponent;
    encoder->values = values;
    encoder->units = (size_t)units;
    encoder->changed = 0;
    weft_classes_cut(&encoder->classes, exponents, units, false);
    fit_parts(encoder, kind, sample);
    weft_status status = WEFT_OK;
    for (unsigned c = 0; c < encoder->classes.count && status == WEFT_OK; c++) {
        status = open_part(encoder, &encoder->parts[c]);
    }
    return status;
}

/* Appends the escapes of whole groups as tokens and plain bits. */
static weft_status take_escapes(weft_packed_encoder *encoder, weft_packed_part *part,
                                const uint64_t *escapes, size_t groups) {
    unsigned width = encoder->width;
    size_t count = 0;
    for (size_t g = 0; g < groups; g++) {
        count += (size_t)__builtin_popcountll(escapes[g]);
    }
    weft_status status = grow(encoder->context, &part->tokens, count);
    if (status == WEFT_OK) {
        status = grow(encoder->context, &part->rests, count * sizeof(uint64_t));
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint8_t *tokens = part->tokens.data + part->tokens.size;
    uint8_t *rests = part->rests.data + part->rests.size;
    uint64_t escape = weft_pack_escape(&part->form), upper = weft_pack_upper(&part->form, 8 * width);
    for (size_t g = 0; g < groups; g++) {
        for (uint64_t mask = escapes[g]; mask != 0; mask &= mask - 1) {
            size_t index = g * WEFT_PACK_GROUP + (unsigned)__builtin_ctzll(mask);
            uint64_t number = weft_packed_load(part->numbers, index, width);
            uint64_t beyond = (((number >> part->form.low) - part->form.first) & upper) - escape;
            unsigned token = weft_token_of(beyond);
            uint64_t rest = beyond - weft_token_base(token);
            *tokens++ = (uint8_t)token;
            memcpy(rests, &rest, sizeof rest);
            rests += sizeof rest;
        }
    }
    part->tokens.size += count;
    part->rests.size += count * sizeof(uint64_t);
    part->escapes += count;
    return WEFT_OK;
}

/* Codes the first `count` of the numbers that wait: whole groups, or the last ones. */
static weft_status code_numbers(weft_packed_encoder *encoder, weft_packed_part *part, size_t count) {
    const weft_pack_kernels *packs = encoder->kernels->packs;
    const weft_pack_form *form = &part->form;
    uint64_t escapes[ROOM / WEFT_PACK_GROUP + 1];
    size_t symbols = weft_pack_symbols(form, count), planes = weft_pack_planes(form, count);
    weft_status status = grow(encoder->context, &part->symbols, symbols);
    if (status == WEFT_OK) {
        status = grow(encoder->context, &part->planes, planes);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (part->still != 0) {
        uint64_t first = weft_packed_load(part->numbers, 0, encoder->width);
        part->moved |=
            (packs->varying(part->numbers, count, encoder->width) | (first ^ form->fixed)) & part->still;
    }
    weft_pack_split(packs, form, encoder->width, part->numbers, count,
                    part->symbols.data + part->symbols.size, part->planes.data + part->planes.size,
                    escapes);
    status = take_escapes(encoder, part, escapes, (count + WEFT_PACK_GROUP - 1) / WEFT_PACK_GROUP);
    part->symbols.size += symbols;
    part->planes.size += planes;
    part->units += count;
    part->waiting -= count;
    memmove(part->numbers, part->numbers + count * encoder->width, part->waiting * encoder->width);
    return status;
}

weft_status weft_packed_encoder_tile(weft_packed_encoder *encoder, const void *old, const void *new,
                                     size_t units) {
    const weft_pack_kernels *packs = encoder->kernels->packs;
    unsigned classes = encoder->classes.count, width = encoder->width;
    weft_packed_part *parts = encoder->parts;
    void *numbers = classes == 1 ? (void *)(parts[0].numbers + parts[0].waiting * width) : encoder->numbers;
    if (old != NULL) {
        encoder->changed += packs->fold_steps(old, new, units, width, numbers);
    }
    if (encoder->values) {
        packs->fold_values(new, units, width, numbers);
    }
    if (classes == 1) {
        parts[0].waiting += units;
    } else {
        uint8_t *ends[WEFT_CLASS_MAX];
        const void *words = old;
        for (unsigned c = 0; c < classes; c++) {
            ends[c] = parts[c].numbers + parts[c].waiting * width;
        }
        if (width != 2) {
            encoder->entries->words(old, units, width, encoder->words);
            words = encoder->words;
        }
        encoder->kernels->tiles->classify(words, units, encoder->exponent.shift, encoder->classes.cuts,
                                          classes, &encoder->tile);
        packs->sort(&encoder->tile, classes, width, encoder->numbers, ends);
        for (unsigned c = 0; c < classes; c++) {
            parts[c].waiting += encoder->tile.counts[c];
        }
    }
    weft_status status = WEFT_OK;
    for (unsigned c = 0; c < classes && status == WEFT_OK; c++) {
        size_t whole = parts[c].waiting / WEFT_PACK_GROUP * WEFT_PACK_GROUP;
        if (whole > 0) {
            status = code_numbers(encoder, &parts[c], whole);
        }
    }
    return status;
}

/* All lowest bits get planes, for another pass. */
static weft_status open_again(weft_packed_encoder *encoder) {
    weft_status status = WEFT_OK;
    encoder->changed = 0;
    for (unsigned c = 0; c < encoder->classes.count && status == WEFT_OK; c++) {
        weft_packed_part *part = &encoder->parts[c];
        part->form.varying = ((uint64_t)1 << part->form.low) - 1;
        part->form.fixed = 0;
        part->still = 0;
        status = open_part(encoder, part);
    }
    return status;
}

weft_status weft_packed_encoder_end(weft_packed_encoder *encoder, bool *again_out) {
    weft_status status = WEFT_OK;
    uint64_t moved = 0;
    for (unsigned c = 0; c < encoder->classes.count && status == WEFT_OK; c++) {
        weft_packed_part *part = &encoder->parts[c];
        if (part->waiting > 0) {
            status = code_numbers(encoder, part, part->waiting);
        }
        moved |= part->moved;
    }
    *again_out = moved != 0;
    return status == WEFT_OK && moved != 0 ? open_again(encoder) : status;
}

/* ---- writing ---- */

static void write_front(const weft_packed_encoder *encoder, weft_writer *writer) {
    const weft_classes *classes = &encoder->classes;
    weft_writer_u8(writer, (uint8_t)classes->count);
    for (unsigned c = 1; c < classes->count; c++) {
        weft_writer_u8(writer, classes->cuts[c]);
    }
    for (unsigned c = 0; c < classes->count; c++) {
        const weft_packed_part *part = &encoder->parts[c];
        weft_writer_varint(writer, part->units);
        if (part->units > 0) {
            unsigned logarithm = (unsigned)__builtin_ctz(part->form.code);
            weft_writer_u8(writer, (uint8_t)(part->form.low | logarithm << 6));
            weft_writer_varint(writer, part->form.first);
            weft_writer_varint(writer, part->form.varying);
            weft_writer_varint(writer, part->form.fixed);
        }
    }
    for (unsigned c = 0; c < classes->count; c++) {
        weft_writer_bytes(writer, encoder->parts[c].planes.data, encoder->parts[c].planes.size);
    }
}

/* Behind the planes: how many escapes there are, and the tables and plain bits. */
static weft_status write_bits(weft_packed_encoder *encoder, weft_writer *writer) {
    unsigned classes = encoder->classes.count;
    size_t escapes = 0;
    for (unsigned c = 0; c < classes; c++) {
        escapes += encoder->parts[c].escapes;
    }
    encoder->room.size = 0;
    weft_status status = grow(encoder->context, &encoder->room,
                              2 * (size_t)WEFT_RANS_TABLE_MAX * classes + sizeof(uint64_t) * escapes + 16);
    if (status != WEFT_OK) {
        return status;
    }
    weft_bits_writer bits = {encoder->room.data, 0, 0};
    for (unsigned c = 0; c < classes; c++) {
        weft_packed_part *part = &encoder->parts[c];
        if (part->units > 0) {
            weft_writer_varint(writer, part->escapes);
            weft_rans_table_fit_symbols(&part->codes, part->symbols.data, part->symbols.size);
            weft_rans_table_write(&part->codes, &bits);
        }
        if (part->escapes > 0) {
            weft_rans_table_fit_symbols(&part->beyond, part->tokens.data, part->escapes);
            weft_rans_table_write(&part->beyond, &bits);
        }
    }
    for (unsigned c = 0; c < classes; c++) {
        const weft_packed_part *part = &encoder->parts[c];
        for (size_t i = 0; i < part->escapes; i++) {
            weft_bits_put_wide(&bits, weft_packed_load(part->rests.data, i, 8),
                               weft_token_bits(part->tokens.data[i]));
        }
    }
    size_t size = (size_t)(weft_bits_finish(&bits) - encoder->room.data);
    weft_writer_varint(writer, size);
    weft_writer_bytes(writer, encoder->room.data, size);
    return WEFT_OK;
}

static weft_status write_stream(weft_packed_encoder *encoder, weft_writer *writer) {
    const weft_rans_wide_kernels *wide = encoder->kernels->wide;
    weft_rans_wide_encoder rans;
    size_t room = WEFT_RANS_WIDE_BYTES;
    for (unsigned c = 0; c < encoder->classes.count; c++) {
        room += 2 * (encoder->parts[c].symbols.size + encoder->parts[c].escapes);
    }
    encoder->room.size = 0;
    weft_status status = grow(encoder->context, &encoder->room, room);
    if (status != WEFT_OK) {
        return status;
    }
    weft_rans_wide_encoder_open(&rans, encoder->room.data, room);
    for (unsigned c = encoder->classes.count; c-- > 0;) {
        const weft_packed_part *part = &encoder->parts[c];
        if (part->escapes > 0) {
            weft_rans_wide_encode(&rans, wide, &part->beyond, part->tokens.data, part->escapes);
        }
        if (part->units > 0) {
            weft_rans_wide_encode(&rans, wide, &part->codes, part->symbols.data, part->symbols.size);
        }
    }
    const uint8_t *start = weft_rans_wide_encoder_finish(&rans);
    weft_writer_bytes(writer, start, (size_t)(encoder->room.data + room - start));
    return weft_writer_failed(writer) ? WEFT_NO_MEMORY : WEFT_OK;
}

weft_status weft_packed_encoder_finish(weft_packed_encoder *encoder, weft_writer *writer) {
    write_front(encoder, writer);
    weft_status status = write_bits(encoder, writer);
    return status == WEFT_OK ? write_stream(encoder, writer) : status;
}
