/* SPDX-License-Identifier: Apache-2.0
 *
 * code_small_decode.c: reading the `small` coding. See code_small_encode.c for the idea.
 *
 * First all tokens of the bucket become ranks and steps, class after class; then the base is classified
 * tile by tile, the ranks that fall into a tile are turned into positions, class after class, and proven
 * while the tile is in the cache.
 */
#include "code.h"

#include "../../code/token.h"

weft_exponent weft_exponent_of(weft_dtype dtype) {
    if (dtype == WEFT_DTYPE_BF16) {
        return (weft_exponent){true, 7};
    }
    if (dtype == WEFT_DTYPE_F16) {
        return (weft_exponent){true, 10};
    }
    return (weft_exponent){false, 0};
}

void weft_small_decoder_open(weft_small_decoder *decoder, weft_context *context) {
    weft_class_decoder_open(&decoder->coder, context);
}

void weft_small_decoder_close(weft_small_decoder *decoder) {
    weft_class_decoder_close(&decoder->coder);
}

enum { GAP_TOKENS = 128 /* gaps are below 2^32, their rests below 30 bits */ };

/* Turns tokens of gaps into ranks. False if the bits end or a rank leaves the bucket. */
static bool expand_gaps(weft_bits_reader *bits, const weft_class_decoder *coder, const uint8_t *tokens,
                        size_t count, uint64_t units, uint32_t *ranks) {
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (weft_bits_overrun(bits)) {
            return false;
        }
        unsigned size = coder->sizes[tokens[i]];
        uint64_t rest = weft_bits_peek(bits) & (((uint64_t)1 << size) - 1);
        bits->position += size;
        next += coder->bases[tokens[i]] + rest;
        ranks[i] = (uint32_t)next++;
    }
    return next <= units && !weft_bits_overrun(bits);
}

/* Two-byte steps: their rests are short, and whether there is one is as good as random. */
static bool expand_short_steps(weft_bits_reader *reader, const weft_class_decoder *coder,
                               const uint8_t *tokens, size_t count, uint16_t *steps) {
    weft_bits_reader bits = *reader;
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++) {
        if (weft_bits_overrun(&bits)) {
            return false;
        }
        unsigned size = coder->sizes[tokens[i]];
        uint32_t rest = (uint32_t)weft_bits_peek(&bits) & (uint32_t)(((uint64_t)1 << size) - 1);
        uint32_t code = coder->bases[tokens[i]] + rest;
        uint32_t magnitude = code / 2 + 1;
        uint32_t negative = 0 - (code & 1);
        bits.position += size;
        highest = code > highest ? code : highest;
        steps[i] = (uint16_t)((magnitude ^ negative) - negative);
    }
    *reader = bits;
    return highest <= UINT16_MAX && !weft_bits_overrun(&bits);
}

static bool expand_long_steps(weft_bits_reader *bits, const uint8_t *tokens, size_t count, unsigned width,
                              uint64_t *steps) {
    uint64_t highest = width == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * width)) - 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t rest = weft_bits_get(bits, weft_token_bits(tokens[i]));
        uint64_t code = weft_token_base(tokens[i]) + rest;
        if (code > highest) {
            return false;
        }
        steps[i] = weft_step_of_code(code, 8 * width);
    }
    return !weft_bits_overrun(bits);
}

enum { SHORT_STEP_TOKENS = 64 /* codes below 2^16 */ };

/* Turns the tokens of a class into ranks and steps, from entry `first` on. */
static bool expand(const weft_class_decoder *coder, weft_bits_reader *bits, size_t first, size_t count,
                   uint64_t units, unsigned width) {
    const uint8_t *steps = coder->tokens + count;
    return expand_gaps(bits, coder, coder->tokens, count, units, coder->ranks + first) &&
           (width == 2 ? expand_short_steps(bits, coder, steps, count, (uint16_t *)coder->values + first)
                       : expand_long_steps(bits, steps, count, width, coder->values + first));
}

/* All ranks and steps of the bucket. */
static bool read_classes(weft_class_decoder *coder, weft_class_header *header, uint64_t units,
                         unsigned width) {
    const weft_token_limits limits = {GAP_TOKENS, width == 2 ? SHORT_STEP_TOKENS : WEFT_RANS_TOKENS, false};
    weft_class_tokens tokens;
    size_t first = 0;
    if (!weft_class_tokens_open(&tokens, header, limits)) {
        return false;
    }
    for (unsigned c = 0; c < header->classes; c++) {
        if (!weft_class_tokens_next(&tokens, c, coder->tokens) ||
            !expand(coder, &header->bits, first, header->counts[c], units, width)) {
            return false;
        }
        first += header->counts[c];
    }
    return weft_class_tokens_done(&tokens);
}

/* Appends the changes of one class in the tile: positions, and steps in news. */
static void take_class(weft_small_decoder *decoder, const weft_tile_kernels *kernels, unsigned c,
                       uint64_t linear, weft_class_cursors *cursors, weft_changes *changes) {
    const weft_class_decoder *coder = &decoder->coder;
    const uint16_t *steps = (const uint16_t *)coder->values + cursors->next[c];
    size_t found = weft_class_cursors_take(cursors, kernels, &decoder->coder, c);
    uint32_t *positions = changes->positions + changes->count;
    uint16_t *news = (uint16_t *)changes->news + changes->count;
    for (size_t i = 0; i < found; i++) {
        positions[i] = (uint32_t)linear + coder->indices[i];
        news[i] = steps[i];
    }
    changes->count += found;
}

/* Brings the changes of a tile from class order into ascending order. Only copies of weights need it: their
 * tiles may reach over several segments of live memory, and what is kept goes segment by segment. */
static void sort_tile(weft_changes *changes, size_t first, uint64_t linear) {
    uint64_t marks[WEFT_TILE_BLOCKS] = {0};
    uint16_t old_at[WEFT_TILE];
    uint16_t new_at[WEFT_TILE];
    uint16_t *olds = changes->olds;
    uint16_t *news = changes->news;
    for (size_t i = first; i < changes->count; i++) {
        size_t index = (size_t)(changes->positions[i] - linear);
        marks[index / 64] |= (uint64_t)1 << (index % 64);
        old_at[index] = olds[i];
        new_at[index] = news[i];
    }
    size_t count = first;
    for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
        for (uint64_t mask = marks[b]; mask != 0; mask &= mask - 1) {
            size_t index = 64 * b + (size_t)__builtin_ctzll(mask);
            changes->positions[count] = (uint32_t)(linear + index);
            olds[count] = old_at[index];
            news[count] = new_at[index];
            count++;
        }
    }
}

/* The changes of one tile, whose weights are at `base`. `live` is where they are written on the way, which
 * is `base` itself or NULL. */
static void decode_tile(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                        const weft_class_header *header, const uint8_t *base, uint8_t *live, size_t units,
                        uint64_t linear, weft_class_cursors *cursors, weft_changes *changes,
                        weft_proof *proof) {
    size_t first = changes->count;
    kernels->classify(base, units, header->shift, header->cuts, header->classes, &decoder->coder.tile);
    for (unsigned c = 0; c < header->classes; c++) {
        weft_prefetch_part((uintptr_t)base + 2 * WEFT_TILE, 2 * WEFT_TILE, c, header->classes);
        take_class(decoder, kernels, c, linear, cursors, changes);
    }
    if (live == NULL && base != decoder->scratch) {
        memcpy(decoder->scratch, base, 2 * units);
    }
    weft_proof_through(proof, changes, first, changes->count, live != NULL ? live : decoder->scratch,
                       2 * units, linear);
}

/* The rows of a tile, side by side. */
static void gather_rows(const weft_run *run, uint64_t first, size_t units, uint8_t *output) {
    for (size_t done = 0; done < units;) {
        size_t left = (size_t)weft_run_joined(run, first + done);
        size_t some = left < units - done ? left : units - done;
        memcpy(output + 2 * done, run->memory + 2 * weft_run_offset(run, first + done), 2 * some);
        done += some;
    }
}

static void scatter_rows(const weft_run *run, const weft_changes *changes, size_t first) {
    uint8_t *memory = (uint8_t *)(uintptr_t)run->memory;
    for (size_t i = first; i < changes->count; i++) {
        size_t offset = (size_t)weft_run_offset(run, changes->positions[i] - run->linear);
        weft_unit_store(memory, offset, 2, weft_unit_load(changes->news, i, 2));
    }
}

static void decode_run(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                       const weft_class_header *header, const weft_run *run, weft_class_cursors *cursors,
                       weft_changes *changes, weft_proof *proof) {
    bool rows = run->memory_gap != 0;
    for (uint64_t done = 0; done < run->units; done += WEFT_TILE) {
        uint64_t left = run->units - done;
        size_t units = left < WEFT_TILE ? (size_t)left : WEFT_TILE;
        size_t first = changes->count;
        uint8_t *base = rows ? decoder->scratch : (uint8_t *)(uintptr_t)run->memory + 2 * done;
        if (rows) {
            gather_rows(run, done, units, base);
        }
        decode_tile(decoder, kernels, header, base, proof->write && !rows ? base : NULL, units,
                    run->linear + done, cursors, changes, proof);
        if (proof->write) {
            if (rows) {
                scatter_rows(run, changes, first);
            }
            changes->count = first;
        } else if (!proof->window->direct) {
            sort_tile(changes, first, run->linear + done);
        }
    }
}

/* Appends the changes from entry `done` on, of a bucket of one class: ranks are positions. */
static void take_single(const weft_small_decoder *decoder, size_t done, size_t some,
                        weft_changes *changes) {
    unsigned width = changes->width;
    for (size_t i = 0; i < some; i++) {
        uint64_t step = weft_unit_load(decoder->coder.values, done + i, width == 2 ? 2 : 8);
        changes->positions[changes->count + i] = decoder->coder.ranks[done + i];
        weft_unit_store(changes->news, changes->count + i, width, step);
    }
    changes->count += some;
}

/* With one class the base is only read where it changes; words behind callbacks are fetched all at once. */
static weft_status decode_single(weft_small_decoder *decoder, size_t count, weft_changes *changes,
                                 weft_proof *proof) {
    size_t most = weft_proof_by_callback(proof) ? count : WEFT_TILE;
    weft_status status = WEFT_OK;
    for (size_t done = 0; done < count && status == WEFT_OK;) {
        size_t first = proof->write ? 0 : done;
        size_t some = count - done < most ? count - done : most;
        changes->count = first;
        take_single(decoder, done, some, changes);
        status = weft_proof_add(proof, changes, first, first + some);
        done += some;
    }
    return status;
}

static weft_status decode_classes(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                                  const weft_class_header *header, weft_changes *changes,
                                  weft_proof *proof) {
    weft_class_cursors cursors;
    weft_class_cursors_open(&cursors, header);
    const weft_window *window = proof->window;
    for (size_t i = 0; i < window->run_count; i++) {
        decode_run(decoder, kernels, header, &window->runs[i], &cursors, changes, proof);
    }
    return weft_class_cursors_done(&cursors, header)
               ? WEFT_OK
               : weft_fail(decoder->coder.context, WEFT_BASE_MISMATCH,
                           "a small bucket names weights that this base does not have: it was made for "
                           "another base");
}

/* The header, and the ranks and steps of all changes in the decoder. */
static weft_status read_bucket(weft_small_decoder *decoder, weft_exponent exponent, const uint8_t *payload,
                               size_t size, uint64_t units, size_t count, unsigned width,
                               weft_class_header *header) {
    if (count > units || !weft_class_header_read(header, payload, size, exponent, count)) {
        return weft_fail(decoder->coder.context, WEFT_MALFORMED, "a small bucket has no valid header");
    }
    weft_status status = weft_class_decoder_reserve(&decoder->coder, count);
    if (status != WEFT_OK) {
        return status;
    }
    if (!read_classes(&decoder->coder, header, units, width)) {
        return weft_fail(decoder->coder.context, WEFT_MALFORMED,
                         "a small bucket does not hold its %zu changes", count);
    }
    return WEFT_OK;
}

weft_status weft_small_decode(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                              weft_exponent exponent, const uint8_t *payload, size_t size, uint64_t units,
                              size_t count, weft_changes *changes, weft_proof *proof) {
    weft_class_header header;
    weft_status status =
        read_bucket(decoder, exponent, payload, size, units, count, changes->width, &header);
    if (status != WEFT_OK) {
        return status;
    }
    return header.classes == 1 ? decode_single(decoder, count, changes, proof)
                               : decode_classes(decoder, kernels, &header, changes, proof);
}

bool weft_small_single(weft_exponent exponent, const uint8_t *payload, size_t size, size_t count) {
    weft_class_header header;
    return weft_class_header_read(&header, payload, size, exponent, count) && header.classes == 1;
}

weft_status weft_small_decode_steps(weft_small_decoder *decoder, weft_exponent exponent,
                                    const uint8_t *payload, size_t size, uint64_t units, size_t count,
                                    weft_changes *changes) {
    weft_class_header header;
    weft_status status =
        read_bucket(decoder, exponent, payload, size, units, count, changes->width, &header);
    if (status == WEFT_OK) {
        take_single(decoder, 0, count, changes);
    }
    return status;
}
