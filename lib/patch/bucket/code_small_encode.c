/* SPDX-License-Identifier: Apache-2.0
 *
 * code_small_encode.c: the `small` coding.
 *
 * A BF16 weight crosses a rounding boundary with a chance of about |update| / ULP(weight): the exponent
 * of the old weight says most of what there is to know about where changes are and how large. Units are
 * therefore sorted into up to eight classes by cuts of the base's exponent. A change is named by its
 * rank among the units of its class, as a gap from the change before in that class, and by its step.
 * Gaps and steps of a class are two arrays of tokens, each entropy-coded with a table of its own.
 *
 * The encoder of lib/code/classes_write.h does most of it. The decoder classifies the same base in the same
 * tiles and finds each rank's unit. Neither uses floating point for what it writes.
 */
#include "code.h"

#include "../../code/token.h"

enum { REST_MAX = 12 /* bytes of the rests of a gap below 2^32 and of any step */ };

void weft_small_encoder_open(weft_small_encoder *encoder, weft_context *context) {
    weft_class_encoder_open(&encoder->coder, context, WEFT_ITEM_STEPS);
}

void weft_small_encoder_close(weft_small_encoder *encoder) {
    weft_class_encoder_close(&encoder->coder);
}

void weft_small_encoder_begin(weft_small_encoder *encoder, weft_exponent exponent,
                              const weft_class_sample *sample, uint64_t units) {
    weft_class_encoder_begin(&encoder->coder, exponent.shift, sample, units);
}

static inline uint64_t step_code_at(const weft_changes *changes, size_t index, unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint64_t step =
        weft_unit_load(changes->news, index, width) - weft_unit_load(changes->olds, index, width);
    return weft_step_code(step & mask, 8 * width);
}

weft_status weft_small_encoder_tile(weft_small_encoder *encoder, const void *base, size_t units,
                                    uint32_t linear, const weft_changes *changes, size_t first) {
    if (encoder->coder.classes.count == 1) {
        return WEFT_OK; /* gaps are between positions, and are known at the end */
    }
    weft_entries entries = {changes->count - first, changes->positions + first, encoder->codes,
                            (uint16_t *)changes->olds + first};
    for (size_t i = 0; i < entries.count; i++) {
        encoder->codes[i] = (uint32_t)step_code_at(changes, first + i, 2);
    }
    return weft_class_encoder_tile(&encoder->coder, base, units, linear, &entries);
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

static void tokenise(weft_class_encoder *coder) {
    uint8_t *tokens = coder->tokens;
    if (coder->classes.count == 1) {
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

/* The bits below the highest three of numbers, which begin at bit `shift` of items. */
static void put_rests(weft_bits_writer *writer, const uint64_t *items, unsigned shift,
                      const uint8_t *tokens, size_t count) {
    uint8_t sizes[WEFT_RANS_TOKENS];
    weft_bits_writer bits = *writer;
    for (unsigned t = 0; t < WEFT_RANS_TOKENS; t++) {
        sizes[t] = (uint8_t)weft_token_bits(t);
    }
    for (size_t i = 0; i < count;) {
        unsigned size = sizes[tokens[i]];
        uint64_t rest = (items[i] >> shift) & (((uint64_t)1 << size) - 1);
        i++;
        /* each put waits for the one before: two at a time, where they fit, which is nearly always */
        if (i < count && size + sizes[tokens[i]] <= 56) {
            unsigned more = sizes[tokens[i]];
            rest |= ((items[i] >> shift) & (((uint64_t)1 << more) - 1)) << size;
            size += more;
            i++;
        }
        weft_bits_put_wide(&bits, rest, size);
    }
    *writer = bits;
}

weft_status weft_small_encoder_finish(weft_small_encoder *encoder, const weft_changes *changes,
                                      weft_writer *writer) {
    weft_class_encoder *coder = &encoder->coder;
    bool single = coder->classes.count == 1;
    weft_bits_writer bits;
    weft_status status = single ? take_single(coder, changes) : WEFT_OK;
    if (status == WEFT_OK) {
        status = weft_class_encoder_tokens(coder);
    }
    if (status != WEFT_OK) {
        return status;
    }
    tokenise(coder);
    status = weft_class_encoder_front(coder, REST_MAX, writer, &bits);
    if (status != WEFT_OK) {
        return status;
    }
    const uint8_t *tokens = coder->tokens;
    for (unsigned c = 0; c < coder->classes.count; c++) {
        put_rests(&bits, coder->items[c], 0, tokens, coder->counts[c]);
        put_rests(&bits, coder->items[single ? 1 : c], single ? 0 : 32, tokens + coder->count,
                  coder->counts[c]);
        tokens += coder->counts[c];
    }
    return weft_class_encoder_back(coder, &bits, writer);
}
