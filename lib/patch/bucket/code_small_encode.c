/* SPDX-License-Identifier: Apache-2.0
 *
 * code_small_encode.c: the `small` coding, and `smallest`.
 *
 * A BF16 weight crosses a rounding boundary with a chance of about |update| / ULP(weight): the exponent
 * of the old weight says most of what there is to know about where changes are and how large. Units are
 * therefore sorted into up to eight classes by cuts of the base's exponent. A change is named by its
 * rank among the units of its class, as a gap from the change before in that class, and by its step.
 * Gaps and steps of a class are two arrays of tokens, each entropy-coded with a table of its own.
 *
 * The encoder of lib/code/classes_write.h does most of it. The decoder classifies the same base in the same
 * tiles and finds each rank's unit. Neither uses floating point for what it writes.
 *
 * `smallest` parts the changes in two. Weights that changed lately, which both sides have a list of, are
 * coded in the same way, but ranked along that list, in classes by age and exponent, and their steps are
 * told from the direction of the last one. All others are coded as in `small`, but the weights on the list
 * do not count in their ranks.
 */
#include "code.h"

#include "../../code/token.h"

enum {
    REST_MAX = 12, /* bytes of the rests of a gap below 2^32 and of any step */
    STILL = -1,    /* the code of a step that is none */
};

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context) {
    weft_class_encoder_open(&encoder->coder, context, WEFT_ITEM_STEPS);
    weft_recent_encoder *recent = &encoder->recent;
    *recent = (weft_recent_encoder){0};
    weft_class_encoder_open(&recent->coder, context, WEFT_ITEM_STEPS);
    weft_recent_open(&recent->list, context);
}

void weft_small_encoder_close(weft_small_encoder *encoder) {
    weft_context *context = encoder->coder.context;
    weft_recent_encoder *recent = &encoder->recent;
    weft_class_encoder_close(&encoder->coder);
    weft_class_encoder_close(&recent->coder);
    weft_recent_close(&recent->list);
    weft_release(context, recent->contexts);
    weft_release(context, recent->codes);
}

void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units, bool lawful) {
    encoder->exponent = exponent;
    encoder->lawful = lawful;
    weft_class_encoder_begin(&encoder->coder, exponent.shift, sample, units);
    encoder->recent.next = 0;
    encoder->recent.changed = 0;
}

/* ---- parting a tile ---- */

static weft_status reserve_items(weft_recent_encoder *recent) {
    weft_context *context = recent->list.context;
    size_t count = recent->list.count;
    if (count <= recent->capacity) {
        return WEFT_OK;
    }
    uint8_t *contexts = weft_reallocate_array(context, recent->contexts, count, sizeof *contexts);
    if (contexts == NULL) {
        return WEFT_NO_MEMORY;
    }
    recent->contexts = contexts;
    uint32_t *codes = weft_reallocate_array(context, recent->codes, count, sizeof *codes);
    if (codes == NULL) {
        return WEFT_NO_MEMORY;
    }
    recent->codes = codes;
    recent->capacity = count;
    return WEFT_OK;
}

/* Takes the items of a tile, sets encoder->indices to where they are, and puts its other changes into
 * encoder->positions, ->codes and ->words; `codes` has those of all. Returns how many others there are. */
static size_t part_tile(weft_small_encoder *encoder, const void *base, size_t units, uint32_t linear,
                        const weft_changes *changes, size_t first) {
    weft_recent_encoder *recent = &encoder->recent;
    const weft_recent *list = &recent->list;
    unsigned shift = encoder->coder.sorting.shift;
    const uint16_t *olds = changes->olds;
    size_t rest = 0, i = first, taken = 0;
    for (; recent->next < list->count; recent->next++) {
        uint64_t item = list->items[recent->next];
        uint32_t position = weft_recent_position(item);
        if (position - linear >= units) {
            break;
        }
        for (; i < changes->count && changes->positions[i] < position; i++) {
            encoder->positions[rest] = changes->positions[i];
            encoder->words[rest] = olds[i];
            encoder->codes[rest++] = encoder->codes[i - first];
        }
        bool changed = i < changes->count && changes->positions[i] == position;
        uint16_t old = (uint16_t)weft_unit_load(base, position - linear, 2);
        encoder->indices[taken++] = (uint16_t)(position - linear);
        recent->contexts[recent->next] = weft_recent_context(item, old, shift);
        recent->codes[recent->next] =
            changed ? weft_recent_code(encoder->codes[i - first], item) : (uint32_t)STILL;
        recent->changed += changed;
        i += changed;
    }
    for (; i < changes->count; i++) {
        encoder->positions[rest] = changes->positions[i];
        encoder->words[rest] = olds[i];
        encoder->codes[rest++] = encoder->codes[i - first];
    }
    return rest;
}

static inline __attribute__((always_inline)) uint64_t step_code_at(const weft_changes *changes,
                                                                   size_t index, unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint64_t step =
        weft_unit_load(changes->news, index, width) - weft_unit_load(changes->olds, index, width);
    return weft_step_code(step & mask, 8 * width);
}

static inline __attribute__((always_inline)) void
step_codes(weft_small_encoder *encoder, const weft_changes *changes, size_t first, unsigned width) {
    for (size_t i = first; i < changes->count; i++) {
        encoder->codes[i - first] = (uint32_t)step_code_at(changes, i, width);
    }
}

/* With a list of recent changes, which only units of two bytes have. */
static weft_status take_parted(weft_small_encoder *encoder, const void *base, size_t units, uint32_t linear,
                               const weft_changes *changes, size_t first) {
    weft_status status = reserve_items(&encoder->recent);
    if (status != WEFT_OK) {
        return status;
    }
    step_codes(encoder, changes, first, 2);
    size_t before = encoder->recent.next;
    const weft_entries entries = {part_tile(encoder, base, units, linear, changes, first),
                                  encoder->positions, encoder->codes, encoder->words};
    return weft_class_encoder_tile_without(&encoder->coder, base, units, linear, &entries, encoder->indices,
                                           encoder->recent.next - before);
}

weft_status weft_small_encoder_tile(weft_small_encoder *encoder, const void *base, size_t units,
                                    uint32_t linear, const weft_changes *changes, size_t first) {
    bool single = encoder->coder.classes.count == 1, parted = encoder->recent.list.count > 0;
    if (single && !parted) {
        return WEFT_OK; /* gaps are between positions, and are known at the end */
    }
    unsigned width = encoder->exponent.width;
    weft_entries entries = {changes->count - first, changes->positions + first, encoder->codes,
                            (uint16_t *)changes->olds + first};
    if (parted) {
        return take_parted(encoder, base, units, linear, changes, first);
    }
    if (width == 2) {
        step_codes(encoder, changes, first, 2);
        return weft_class_encoder_tile(&encoder->coder, base, units, linear, &entries);
    }
    if (width == 1) {
        step_codes(encoder, changes, first, 1);
    } else {
        step_codes(encoder, changes, first, 4);
    }
    encoder->coder.entry_kernels->words(base, units, width, encoder->words);
    for (size_t i = 0; i < entries.count; i++) {
        encoder->olds[i] = encoder->words[entries.positions[i] - linear];
    }
    entries.words = encoder->olds;
    return weft_class_encoder_tile(&encoder->coder, encoder->words, units, linear, &entries);
}

/* One class: gaps and steps, which may have 64 bits, stand in items of their own. */
static weft_status take_single(weft_class_encoder *coder, const weft_changes *changes) {
    weft_status status = weft_class_encoder_reserve(coder, 0, changes->count);
    if (status == WEFT_OK) {
        status = weft_class_encoder_reserve(coder, 1, changes->count);
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint32_t next = 0;
    for (size_t i = 0; i < changes->count; i++) {
        coder->items[0][i] = changes->positions[i] - next;
        coder->items[1][i] = step_code_at(changes, i, changes->width);
        next = changes->positions[i] + 1;
    }
    coder->counts[0] = changes->count;
    coder->count = changes->count;
    return WEFT_OK;
}

static void tokenise(weft_class_encoder *coder, bool single) {
    uint8_t *tokens = coder->tokens;
    if (single) {
        for (size_t i = 0; i < coder->count; i++) {
            tokens[i] = (uint8_t)weft_token_of(coder->items[0][i]);
            tokens[coder->count + i] = (uint8_t)weft_token_of(coder->items[1][i]);
        }
        return;
    }
    for (unsigned c = 0; c < coder->classes.count; c++) {
        coder->entry_kernels->tokenise_steps(coder->items[c], coder->counts[c], tokens,
                                             tokens + coder->count);
        tokens += coder->counts[c];
    }
}

/* Everything, once the items are sorted into their classes. */
static weft_status write_classes(weft_class_encoder *coder, bool single, unsigned step_tokens,
                                 weft_writer *writer) {
    weft_bits_writer bits;
    weft_status status = weft_class_encoder_tokens(coder);
    if (status != WEFT_OK) {
        return status;
    }
    tokenise(coder, single);
    status = weft_class_encoder_front(coder, REST_MAX, step_tokens, writer, &bits);
    if (status != WEFT_OK) {
        return status;
    }
    const uint8_t *tokens = coder->tokens;
    for (unsigned c = 0; c < coder->classes.count; c++) {
        coder->entry_kernels->put_rests(&bits, coder->items[c], 0, tokens, coder->counts[c]);
        coder->entry_kernels->put_rests(&bits, coder->items[single ? 1 : c], single ? 0 : 32,
                                        tokens + coder->count, coder->counts[c]);
        tokens += coder->counts[c];
    }
    return weft_class_encoder_back(coder, &bits, writer);
}

/* ---- recent changes ---- */

/* All items are at hand: classes are cut by all of them. */
static void cut_recent(weft_recent_encoder *recent) {
    weft_class_sample sample = {.sampled = recent->list.count};
    for (size_t i = 0; i < recent->list.count; i++) {
        unsigned context = recent->contexts[i];
        sample.units[context]++;
        if (recent->codes[i] != (uint32_t)STILL) {
            unsigned octave = 31u - (unsigned)__builtin_clz(recent->codes[i] / 2 + 1);
            sample.changed[context]++;
            sample.octaves[context][octave < 7 ? octave : 7]++;
        }
    }
    weft_classes_cut_known(&recent->coder.classes, &sample);
}

static weft_status sort_recent(weft_recent_encoder *recent) {
    weft_class_encoder *coder = &recent->coder;
    uint32_t since[WEFT_CLASS_MAX] = {0}; /* items of a class since its last change */
    memset(coder->counts, 0, sizeof coder->counts);
    coder->count = recent->changed;
    for (unsigned c = 0; c < coder->classes.count; c++) {
        weft_status status = weft_class_encoder_reserve(coder, c, recent->changed);
        if (status != WEFT_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < recent->list.count; i++) {
        unsigned c = coder->classes.of_exponent[recent->contexts[i]];
        if (recent->codes[i] == (uint32_t)STILL) {
            since[c]++;
        } else {
            coder->items[c][coder->counts[c]++] = weft_item_pack(since[c], 0, recent->codes[i]);
            since[c] = 0;
        }
    }
    return WEFT_OK;
}

/* What is before the other changes. */
static weft_status write_recent(weft_recent_encoder *recent, weft_writer *writer) {
    weft_writer_u32(writer, recent->list.check);
    weft_writer_varint(writer, recent->changed);
    if (recent->changed == 0) {
        return WEFT_OK;
    }
    weft_writer part;
    weft_writer_open(&part, writer->context);
    cut_recent(recent);
    weft_status status = sort_recent(recent);
    if (status == WEFT_OK) {
        status = write_classes(&recent->coder, false, WEFT_SHORT_STEP_TOKENS, &part);
    }
    if (status == WEFT_OK) {
        weft_writer_varint(writer, part.size);
        weft_writer_bytes(writer, part.data, part.size);
    }
    weft_writer_close(&part);
    return status == WEFT_OK && weft_writer_failed(writer) ? WEFT_NO_MEMORY : status;
}

weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer) {
    weft_class_encoder *coder = &encoder->coder;
    bool parted = encoder->recent.list.count > 0, single = coder->classes.count == 1 && !parted;
    weft_status status = WEFT_OK;
    if (parted) {
        status = write_recent(&encoder->recent, writer);
    } else if (single) {
        status = take_single(coder, changes);
    }
    if (status != WEFT_OK || coder->count == 0) {
        return status;
    }
    unsigned step_tokens = !encoder->lawful      ? 0
                           : changes->width == 2 ? WEFT_SHORT_STEP_TOKENS
                                                 : WEFT_RANS_LAW_TOKENS;
    return write_classes(coder, single, step_tokens, writer);
}
