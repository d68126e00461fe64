/* SPDX-License-Identifier: Apache-2.0
 *
 * code_small_decode.c: reading the `small` coding, and `smallest`. See code_small_encode.c for the idea.
 *
 * First all tokens of the bucket become ranks and steps, class after class; then the base is classified
 * tile by tile, the ranks that fall into a tile are turned into positions, class after class, and proven
 * while the tile is in the cache.
 */
#include "code.h"

#include "../../code/token.h"

weft_exponent weft_exponent_of(weft_dtype dtype) {
    switch (dtype) {
    case WEFT_DTYPE_BF16:
        return (weft_exponent){true, 7, 2};
    case WEFT_DTYPE_F32:
        return (weft_exponent){true, 7, 4};
    case WEFT_DTYPE_F16:
        return (weft_exponent){true, 10, 2};
    case WEFT_DTYPE_F8_E5M2:
    case WEFT_DTYPE_F8_E5M2FNUZ:
        return (weft_exponent){true, 10, 1};
    case WEFT_DTYPE_F8_E4M3:
    case WEFT_DTYPE_F8_E4M3FNUZ:
        return (weft_exponent){true, 11, 1};
    default:
        return (weft_exponent){false, 0, 0};
    }
}

void weft_small_decoder_open(weft_small_decoder *decoder, weft_context *context) {
    weft_class_decoder_open(&decoder->coder, context);
    decoder->entry_kernels = weft_entry_kernels_for(weft_cpu_level());
}

void weft_small_decoder_close(weft_small_decoder *decoder) {
    weft_class_decoder_close(&decoder->coder);
}

enum { GAP_TOKENS = 128 /* gaps are below 2^32, their rests below 30 bits */ };

/* Turns tokens of gaps into ranks. False if the bits end or a rank leaves the bucket. */
static bool expand_gaps(weft_bits_reader *reader, const weft_class_decoder *coder, const uint8_t *tokens,
                        size_t count, uint64_t units, uint32_t *ranks) {
    weft_bits_reader bits = *reader;
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (weft_bits_overrun(&bits)) {
            return false;
        }
        unsigned size = coder->sizes[tokens[i]];
        uint64_t rest = weft_bits_peek(&bits) & (((uint64_t)1 << size) - 1);
        bits.position += size;
        next += coder->bases[tokens[i]] + rest;
        ranks[i] = (uint32_t)next++;
    }
    *reader = bits;
    return next <= units && !weft_bits_overrun(&bits);
}

/* Whether there is a rest is as good as random. Tokens are below 128: those of gaps, and of steps of up to
 * four bytes, which are stored in `stored` bytes. */
static inline __attribute__((always_inline)) bool expand_steps_to(weft_bits_reader *reader,
                                                                  const weft_class_decoder *coder,
                                                                  const uint8_t *tokens, size_t count,
                                                                  void *steps, unsigned stored) {
    weft_bits_reader bits = *reader;
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
        weft_unit_store(steps, i, stored, (magnitude ^ negative) - negative);
    }
    *reader = bits;
    return !weft_bits_overrun(&bits);
}

static bool tokens_below(const uint8_t *tokens, size_t count, unsigned limit) {
    unsigned highest = 0;
    for (size_t i = 0; i < count; i++) {
        highest = tokens[i] > highest ? tokens[i] : highest;
    }
    return highest < limit;
}

static bool expand_long_steps(weft_bits_reader *bits, const uint8_t *tokens, size_t count,
                              uint64_t *steps) {
    for (size_t i = 0; i < count; i++) {
        uint64_t rest = weft_bits_get(bits, weft_token_bits(tokens[i]));
        steps[i] = weft_step_of_code(weft_token_base(tokens[i]) + rest, 64);
    }
    return !weft_bits_overrun(bits);
}

static bool expand_steps(weft_bits_reader *bits, const weft_class_decoder *coder, const uint8_t *tokens,
                         size_t count, unsigned width, size_t first) {
    if (width != 8 && !tokens_below(tokens, count, weft_step_tokens(width))) {
        return false;
    }
    if (width <= 2) {
        return expand_steps_to(bits, coder, tokens, count, (uint16_t *)coder->values + first, 2);
    }
    return width == 4 ? expand_steps_to(bits, coder, tokens, count, (uint32_t *)coder->values + first, 4)
                      : expand_long_steps(bits, tokens, count, coder->values + first);
}

/* Turns the tokens of a class into ranks and steps, from entry `first` on. */
static bool expand(const weft_class_decoder *coder, weft_bits_reader *bits, size_t first, size_t count,
                   uint64_t units, unsigned width) {
    const uint8_t *steps = coder->tokens + count;
    return expand_gaps(bits, coder, coder->tokens, count, units, coder->ranks + first) &&
           expand_steps(bits, coder, steps, count, width, first);
}

/* All ranks and steps of the bucket. */
static bool read_classes(weft_class_decoder *coder, weft_class_header *header, uint64_t units,
                         unsigned width) {
    const weft_token_limits limits = {GAP_TOKENS, width == 2 ? WEFT_SHORT_STEP_TOKENS : WEFT_RANS_TOKENS,
                                      false};
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

static inline __attribute__((always_inline)) void copy_steps(const void *values, size_t first, size_t count,
                                                             unsigned stored, weft_changes *changes,
                                                             unsigned width) {
    for (size_t i = 0; i < count; i++) {
        weft_unit_store(changes->news, changes->count + i, width,
                        weft_unit_load(values, first + i, stored));
    }
}

/* Appends `count` steps of the decoder, from entry `first` on, to news. */
static void take_steps(const weft_class_decoder *coder, size_t first, size_t count, weft_changes *changes) {
    switch (changes->width) {
    case 1:
        copy_steps(coder->values, first, count, 2, changes, 1);
        break;
    case 2:
        copy_steps(coder->values, first, count, 2, changes, 2);
        break;
    case 4:
        copy_steps(coder->values, first, count, 4, changes, 4);
        break;
    default:
        copy_steps(coder->values, first, count, 8, changes, 8);
        break;
    }
}

/* Appends the changes of one class in the tile: positions, and steps in news. */
static void take_class(weft_small_decoder *decoder, const weft_tile_kernels *kernels, unsigned c,
                       uint64_t linear, weft_class_cursors *cursors, weft_changes *changes) {
    const weft_class_decoder *coder = &decoder->coder;
    size_t first = cursors->next[c];
    size_t found = weft_class_cursors_take(cursors, kernels, &decoder->coder, c);
    uint32_t *positions = changes->positions + changes->count;
    for (size_t i = 0; i < found; i++) {
        positions[i] = (uint32_t)linear + coder->indices[i];
    }
    take_steps(coder, first, found, changes);
    changes->count += found;
}

/* Brings the changes of a tile from class order into ascending order. Only copies of weights need it: their
 * tiles may reach over several segments of live memory, and what is kept goes segment by segment. */
static void sort_tile(weft_changes *changes, size_t first, uint64_t linear) {
    uint64_t marks[WEFT_TILE_BLOCKS] = {0};
    uint32_t old_at[WEFT_TILE];
    uint32_t new_at[WEFT_TILE];
    unsigned width = changes->width;
    for (size_t i = first; i < changes->count; i++) {
        size_t index = (size_t)(changes->positions[i] - linear);
        marks[index / 64] |= (uint64_t)1 << (index % 64);
        old_at[index] = (uint32_t)weft_unit_load(changes->olds, i, width);
        new_at[index] = (uint32_t)weft_unit_load(changes->news, i, width);
    }
    size_t count = first;
    for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
        for (uint64_t mask = marks[b]; mask != 0; mask &= mask - 1) {
            size_t index = 64 * b + (size_t)__builtin_ctzll(mask);
            changes->positions[count] = (uint32_t)(linear + index);
            weft_unit_store(changes->olds, count, width, old_at[index]);
            weft_unit_store(changes->news, count, width, new_at[index]);
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
    unsigned width = changes->width;
    size_t first = changes->count, bytes = WEFT_TILE * width;
    size_t asked = bytes < WEFT_TILE_AHEAD ? bytes : WEFT_TILE_AHEAD;
    uintptr_t next = (uintptr_t)base + bytes;
    const void *words = base;
    decoder->coder.tile.ahead[0] = next;
    if (width != 2) {
        decoder->entry_kernels->words(base, units, width, decoder->words);
        words = decoder->words;
    }
    kernels->classify(words, units, header->shift, header->cuts, header->classes, &decoder->coder.tile);
    for (unsigned c = 0; c < header->classes; c++) {
        weft_prefetch_part(next + asked, bytes - asked, c, header->classes);
        take_class(decoder, kernels, c, linear, cursors, changes);
    }
    if (live == NULL && base != decoder->scratch) {
        memcpy(decoder->scratch, base, width * units);
    }
    weft_proof_through(proof, changes, first, changes->count, live != NULL ? live : decoder->scratch,
                       width * units, linear);
}

/* The rows of a tile, side by side. */
static void gather_rows(const weft_run *run, uint64_t first, size_t units, unsigned width,
                        uint8_t *output) {
    for (size_t done = 0; done < units;) {
        size_t left = (size_t)weft_run_joined(run, first + done);
        size_t some = left < units - done ? left : units - done;
        memcpy(output + width * done, run->memory + width * weft_run_offset(run, first + done),
               width * some);
        done += some;
    }
}

static void scatter_rows(const weft_run *run, const weft_changes *changes, size_t first) {
    uint8_t *memory = (uint8_t *)(uintptr_t)run->memory;
    for (size_t i = first; i < changes->count; i++) {
        size_t offset = (size_t)weft_run_offset(run, changes->positions[i] - run->linear);
        weft_unit_store(memory, offset, changes->width, weft_unit_load(changes->news, i, changes->width));
    }
}

static void decode_run(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                       const weft_class_header *header, const weft_run *run, weft_class_cursors *cursors,
                       weft_changes *changes, weft_proof *proof) {
    bool rows = run->memory_gap != 0;
    unsigned width = changes->width;
    for (uint64_t done = 0; done < run->units; done += WEFT_TILE) {
        uint64_t left = run->units - done;
        size_t units = left < WEFT_TILE ? (size_t)left : WEFT_TILE;
        size_t first = changes->count;
        uint8_t *base = rows ? decoder->scratch : (uint8_t *)(uintptr_t)run->memory + width * done;
        if (rows) {
            gather_rows(run, done, units, width, base);
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
    memcpy(changes->positions + changes->count, decoder->coder.ranks + done,
           some * sizeof *changes->positions);
    take_steps(&decoder->coder, done, some, changes);
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

static weft_status check_cursors(const weft_small_decoder *decoder, const weft_class_cursors *cursors,
                                 const weft_class_header *header) {
    return weft_class_cursors_done(cursors, header)
               ? WEFT_OK
               : weft_fail(decoder->coder.context, WEFT_BASE_MISMATCH,
                           "a small bucket names weights that this base does not have: it was made for "
                           "another base");
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
    return check_cursors(decoder, &cursors, header);
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

/* ---- smallest ---- */

/* Appends the changes of the items: positions, and steps in news. */
static weft_status decode_recent(weft_small_decoder *decoder, const weft_recent *recent, unsigned shift,
                                 const uint8_t *payload, size_t size, size_t count,
                                 const weft_window *window, weft_changes *changes) {
    weft_class_header header;
    weft_status status = read_bucket(decoder, (weft_exponent){true, WEFT_WORD_SHIFT, 2}, payload, size,
                                     recent->count, count, 2, &header);
    if (status != WEFT_OK) {
        return status;
    }
    weft_class_cursors cursors;
    weft_class_cursors_open(&cursors, &header);
    const uint16_t *steps = (const uint16_t *)decoder->coder.values;
    const weft_run *run = window->runs;
    uint16_t *news = changes->news;
    for (size_t i = 0; i < recent->count; i++) {
        uint32_t position = weft_recent_position(recent->items[i]);
        while (position - run->linear >= run->units) {
            run++;
        }
        size_t offset = (size_t)weft_run_offset(run, position - run->linear);
        uint8_t context =
            weft_recent_context(recent->items[i], (uint16_t)weft_unit_load(run->memory, offset, 2), shift);
        unsigned c = 0;
        while (c + 1 < header.classes && context >= header.cuts[c + 1]) {
            c++;
        }
        size_t next = cursors.next[c];
        if (next < cursors.end[c] && decoder->coder.ranks[next] == cursors.members[c]) {
            uint16_t down = (uint16_t)(0 - weft_recent_down(recent->items[i]));
            changes->positions[changes->count] = position;
            news[changes->count++] = (uint16_t)((steps[next] ^ down) - down);
            cursors.next[c]++;
        }
        cursors.members[c]++;
    }
    return check_cursors(decoder, &cursors, &header);
}

/* Takes the items of a tile out of its classes, and goes past them. */
static void leave_out_recent(weft_small_decoder *decoder, const weft_class_header *header,
                             const weft_recent *recent, uint64_t linear, size_t units, size_t *next) {
    uint16_t indices[WEFT_TILE];
    size_t count = 0;
    for (; *next < recent->count; ++*next) {
        uint64_t index = weft_recent_position(recent->items[*next]) - linear;
        if (index >= units) {
            break;
        }
        indices[count++] = (uint16_t)index;
    }
    if (count > 0) {
        weft_tile_leave_out(&decoder->coder.tile, header->classes, indices, count);
    }
}

/* The same for all other changes. */
static weft_status decode_others(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                                 weft_exponent exponent, const weft_recent *recent, const uint8_t *payload,
                                 size_t size, uint64_t units, size_t count, const weft_window *window,
                                 weft_changes *changes) {
    weft_class_header header;
    weft_status status = read_bucket(decoder, exponent, payload, size, units, count, 2, &header);
    if (status != WEFT_OK) {
        return status;
    }
    weft_class_cursors cursors;
    weft_class_cursors_open(&cursors, &header);
    size_t next = 0;
    for (size_t i = 0; i < window->run_count; i++) {
        const weft_run *run = &window->runs[i];
        for (uint64_t done = 0; done < run->units; done += WEFT_TILE) {
            uint64_t left = run->units - done;
            size_t some = left < WEFT_TILE ? (size_t)left : WEFT_TILE;
            const uint8_t *base = run->memory + 2 * done;
            if (run->memory_gap != 0) {
                gather_rows(run, done, some, 2, decoder->scratch);
                base = decoder->scratch;
            }
            decoder->coder.tile.ahead[0] = (uintptr_t)base + 2 * WEFT_TILE;
            kernels->classify(base, some, header.shift, header.cuts, header.classes, &decoder->coder.tile);
            leave_out_recent(decoder, &header, recent, run->linear + done, some, &next);
            for (unsigned c = 0; c < header.classes; c++) {
                take_class(decoder, kernels, c, run->linear + done, &cursors, changes);
            }
        }
    }
    return check_cursors(decoder, &cursors, &header);
}

weft_status weft_smallest_decode(weft_small_decoder *decoder, const weft_tile_kernels *kernels,
                                 weft_exponent exponent, const weft_recent *recent, const uint8_t *payload,
                                 size_t size, uint64_t units, size_t count, const weft_window *window,
                                 weft_changes *changes) {
    weft_context *context = decoder->coder.context;
    weft_reader reader = weft_reader_over(payload, size);
    uint32_t check = weft_reader_u32(&reader);
    uint64_t known = weft_reader_varint(&reader);
    uint64_t part = known > 0 ? weft_reader_varint(&reader) : 0;
    if (weft_reader_failed(&reader) || known > count || part > weft_reader_left(&reader) ||
        (known == count && part != weft_reader_left(&reader))) {
        return weft_fail(context, WEFT_MALFORMED,
                         "a bucket of recent and other changes has no valid front");
    }
    if (check != recent->check) {
        return weft_fail(context, WEFT_UNSUPPORTED,
                         "the patch was coded with another list of recent changes than there is here; "
                         "take another way to its version");
    }
    const uint8_t *first = weft_reader_bytes(&reader, (size_t)part);
    weft_status status = WEFT_OK;
    if (known > 0) {
        status = decode_recent(decoder, recent, exponent.shift, first, (size_t)part, (size_t)known, window,
                               changes);
    }
    size_t left = weft_reader_left(&reader);
    if (status == WEFT_OK && known < count) {
        status = decode_others(decoder, kernels, exponent, recent, weft_reader_bytes(&reader, left), left,
                               units, count - (size_t)known, window, changes);
    }
    return status;
}

/* ---- without the base ---- */

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
