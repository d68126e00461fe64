/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_loop.h: the kernels of pack.h as loops over units of any width, compiled once for each processor
 * level. The functions take the width as a literal, so that each width has loops of its own.
 */
#ifndef WEFT_CODE_PACK_LOOP_H
#define WEFT_CODE_PACK_LOOP_H

#include "number_loop.h"
#include "pack.h"

/* ---- folding ---- */

/* Steps: the sign goes to the lowest bit, and turns all others around. */
#define WEFT_FOLD_STEPS(WIDTH, TYPE)                                                                       \
    for (size_t i = 0; i < count; i++) {                                                                   \
        TYPE step = (TYPE)(load_number(new, i, WIDTH) - load_number(old, i, WIDTH));                       \
        TYPE negative = (TYPE)(0 - (step >> (8 * WIDTH - 1)));                                             \
        store_number(numbers, i, WIDTH, (TYPE)((TYPE)(step << 1) ^ negative));                             \
        differing += step != 0;                                                                            \
    }

static size_t fold_steps(const void *old, const void *new, size_t count, unsigned width, void *numbers) {
    size_t differing = 0;
    WEFT_PACK_BY_WIDTH(width, WEFT_FOLD_STEPS);
    return differing;
}

#define WEFT_UNFOLD_STEPS(WIDTH, TYPE)                                                                     \
    for (size_t i = 0; i < count; i++) {                                                                   \
        TYPE folded = (TYPE)load_number(numbers, i, WIDTH);                                                \
        TYPE step = (TYPE)((TYPE)(folded >> 1) ^ (TYPE)(0 - (folded & 1)));                                \
        store_number(new, i, WIDTH, (TYPE)(load_number(old, i, WIDTH) + step));                            \
    }

static void unfold_steps(const void *numbers, const void *old, size_t count, unsigned width, void *new) {
    WEFT_PACK_BY_WIDTH(width, WEFT_UNFOLD_STEPS);
}

#define WEFT_FOLD_VALUES(WIDTH, TYPE)                                                                      \
    for (size_t i = 0; i < count; i++) {                                                                   \
        TYPE value = (TYPE)load_number(new, i, WIDTH);                                                     \
        store_number(numbers, i, WIDTH, (TYPE)((TYPE)(value << 1) | (TYPE)(value >> (8 * WIDTH - 1))));    \
    }

static void fold_values(const void *new, size_t count, unsigned width, void *numbers) {
    WEFT_PACK_BY_WIDTH(width, WEFT_FOLD_VALUES);
}

#define WEFT_UNFOLD_VALUES(WIDTH, TYPE)                                                                    \
    for (size_t i = 0; i < count; i++) {                                                                   \
        TYPE folded = (TYPE)load_number(numbers, i, WIDTH);                                                \
        store_number(new, i, WIDTH, (TYPE)((TYPE)(folded >> 1) | (TYPE)(folded << (8 * WIDTH - 1))));      \
    }

static void unfold_values(const void *numbers, size_t count, unsigned width, void *new) {
    WEFT_PACK_BY_WIDTH(width, WEFT_UNFOLD_VALUES);
}

#define WEFT_VARYING(WIDTH, TYPE)                                                                          \
    do {                                                                                                   \
        TYPE first = (TYPE)load_number(numbers, 0, WIDTH), differing = 0;                                  \
        for (size_t i = 1; i < count; i++) {                                                               \
            differing |= (TYPE)load_number(numbers, i, WIDTH) ^ first;                                     \
        }                                                                                                  \
        result = differing;                                                                                \
    } while (0)

static uint64_t varying(const void *numbers, size_t count, unsigned width) {
    uint64_t result = 0;
    WEFT_PACK_BY_WIDTH(width, WEFT_VARYING);
    return result;
}

/* ---- groups ---- */

/* The planes of a group: eight numbers and eight of their bits at a time. Plane p has bytes [8 p, 8 p + 8),
 * byte i of them numbers [8 i, 8 i + 8). */
WEFT_PACK_INLINE void split_planes(const weft_pack_form *form, const void *numbers, unsigned width,
                                   uint8_t *planes) {
    for (unsigned shift = 0; shift < form->low; shift += 8) {
        unsigned bits = (unsigned)(form->varying >> shift) & 0xff;
        for (unsigned i = 0; i < WEFT_PACK_GROUP / 8 && bits != 0; i++) {
            uint64_t eight = 0;
            for (unsigned j = 0; j < 8; j++) {
                eight |= (load_number(numbers, 8 * i + j, width) >> shift & 0xff) << (8 * j);
            }
            eight = transpose_bits(eight);
            uint8_t *plane = planes + i;
            for (unsigned left = bits; left != 0; left &= left - 1) {
                *plane = (uint8_t)(eight >> (8 * __builtin_ctz(left)));
                plane += 8;
            }
        }
        planes += 8 * __builtin_popcount(bits);
    }
}

/* Adds the bits that planes hold to the numbers. */
WEFT_PACK_INLINE void join_planes(const weft_pack_form *form, const uint8_t *planes, unsigned width,
                                  void *numbers) {
    for (unsigned shift = 0; shift < form->low; shift += 8) {
        unsigned bits = (unsigned)(form->varying >> shift) & 0xff;
        for (unsigned i = 0; i < WEFT_PACK_GROUP / 8 && bits != 0; i++) {
            uint64_t eight = 0;
            const uint8_t *plane = planes + i;
            for (unsigned left = bits; left != 0; left &= left - 1) {
                eight |= (uint64_t)*plane << (8 * __builtin_ctz(left));
                plane += 8;
            }
            eight = transpose_bits(eight);
            for (unsigned j = 0; j < 8; j++) {
                uint64_t number = load_number(numbers, 8 * i + j, width);
                store_number(numbers, 8 * i + j, width, number | (eight >> (8 * j) & 0xff) << shift);
            }
        }
        planes += 8 * __builtin_popcount(bits);
    }
}

WEFT_PACK_INLINE void split_group(const weft_pack_form *form, unsigned width, const void *numbers,
                                  uint8_t *symbols, uint8_t *planes, uint64_t *escapes) {
    uint64_t escape = weft_pack_escape(form), upper = weft_pack_upper(form, 8 * width), escaped = 0;
    unsigned code = form->code, per = 8 / code;
    memset(symbols, 0, WEFT_PACK_GROUP / per);
    for (unsigned i = 0; i < WEFT_PACK_GROUP; i++) {
        uint64_t part = ((load_number(numbers, i, width) >> form->low) - form->first) & upper;
        uint64_t beyond = part >= escape;
        part = beyond ? escape : part;
        escaped |= beyond << i;
        symbols[i / per] |= (uint8_t)(part << (i % per * code));
    }
    *escapes = escaped;
    split_planes(form, numbers, width, planes);
}

WEFT_PACK_INLINE void join_group(const weft_pack_form *form, unsigned width, const uint8_t *symbols,
                                 const uint8_t *planes, void *numbers, uint64_t *escapes) {
    uint64_t escape = weft_pack_escape(form), upper = weft_pack_upper(form, 8 * width), escaped = 0;
    unsigned code = form->code, per = 8 / code;
    for (unsigned i = 0; i < WEFT_PACK_GROUP; i++) {
        uint64_t part = symbols[i / per] >> (i % per * code) & escape;
        escaped |= (uint64_t)(part == escape) << i;
        store_number(numbers, i, width, ((part + form->first) & upper) << form->low | form->fixed);
    }
    *escapes = escaped;
    join_planes(form, planes, width, numbers);
}

#define WEFT_SPLIT_GROUPS(WIDTH, TYPE)                                                                     \
    for (size_t g = 0; g < groups; g++) {                                                                  \
        split_group(form, WIDTH, (const uint8_t *)numbers + g * WEFT_PACK_GROUP * sizeof(TYPE),            \
                    symbols + 8 * g * form->code, planes + g * plane_bytes, &escapes[g]);                  \
    }

static void split_groups(const weft_pack_form *form, unsigned width, const void *numbers, size_t groups,
                         uint8_t *symbols, uint8_t *planes, uint64_t *escapes) {
    size_t plane_bytes = weft_pack_planes(form, WEFT_PACK_GROUP);
    WEFT_PACK_BY_WIDTH(width, WEFT_SPLIT_GROUPS);
}

#define WEFT_JOIN_GROUPS(WIDTH, TYPE)                                                                      \
    for (size_t g = 0; g < groups; g++) {                                                                  \
        join_group(form, WIDTH, symbols + 8 * g * form->code, planes + g * plane_bytes,                    \
                   (uint8_t *)numbers + g * WEFT_PACK_GROUP * sizeof(TYPE), &escapes[g]);                  \
    }

static void join_groups(const weft_pack_form *form, unsigned width, const uint8_t *symbols,
                        const uint8_t *planes, size_t groups, void *numbers, uint64_t *escapes) {
    size_t plane_bytes = weft_pack_planes(form, WEFT_PACK_GROUP);
    WEFT_PACK_BY_WIDTH(width, WEFT_JOIN_GROUPS);
}

/* ---- classes ---- */

static inline __attribute__((always_inline)) void sort_units(const weft_tile *tile, unsigned classes,
                                                             unsigned width, const uint8_t *numbers,
                                                             uint8_t **ends) {
    for (unsigned c = 0; c < classes; c++) {
        uint8_t *end = ends[c];
        for (size_t b = 0; b < WEFT_TILE_BLOCKS && tile->counts[c] > 0; b++) {
            for (uint64_t mask = tile->masks[c][b]; mask != 0; mask &= mask - 1) {
                memcpy(end, numbers + (64 * b + (unsigned)__builtin_ctzll(mask)) * width, width);
                end += width;
            }
        }
        ends[c] = end;
    }
}

static inline void sort_numbers(const weft_tile *tile, unsigned classes, unsigned width,
                                const void *numbers, uint8_t **ends) {
    if (width == 1) {
        sort_units(tile, classes, 1, numbers, ends);
    } else if (width == 2) {
        sort_units(tile, classes, 2, numbers, ends);
    } else {
        sort_units(tile, classes, 4, numbers, ends);
    }
}

static inline __attribute__((always_inline)) void merge_units(const weft_tile *tile, unsigned classes,
                                                              unsigned width, const uint8_t **nexts,
                                                              uint8_t *numbers) {
    for (unsigned c = 0; c < classes; c++) {
        const uint8_t *next = nexts[c];
        for (size_t b = 0; b < WEFT_TILE_BLOCKS && tile->counts[c] > 0; b++) {
            for (uint64_t mask = tile->masks[c][b]; mask != 0; mask &= mask - 1) {
                memcpy(numbers + (64 * b + (unsigned)__builtin_ctzll(mask)) * width, next, width);
                next += width;
            }
        }
        nexts[c] = next;
    }
}

static inline void merge_numbers(const weft_tile *tile, unsigned classes, unsigned width,
                                 const uint8_t **nexts, void *numbers) {
    if (width == 1) {
        merge_units(tile, classes, 1, nexts, numbers);
    } else if (width == 2) {
        merge_units(tile, classes, 2, nexts, numbers);
    } else {
        merge_units(tile, classes, 4, nexts, numbers);
    }
}

#endif
