/* SPDX-License-Identifier: Apache-2.0
 *
 * rice_loop.h: the kernels of rice.h as loops over numbers of any width. The functions take the width as a
 * literal, so that each width has loops of its own.
 */
#ifndef WEFT_CODE_PACK_RICE_LOOP_H
#define WEFT_CODE_PACK_RICE_LOOP_H

#include "number_loop.h"
#include "rice.h"

/* The bits of a byte of eight numbers, as planes of `stride` bytes. */
WEFT_PACK_INLINE void cut_bits(uint64_t eight, unsigned bits, uint8_t *planes, size_t stride) {
    eight = transpose_bits(eight);
    for (unsigned b = 0; b < bits; b++) {
        planes[b * stride] = (uint8_t)(eight >> (8 * b));
    }
}

WEFT_PACK_INLINE uint64_t mend_bits(unsigned bits, const uint8_t *planes, size_t stride) {
    uint64_t eight = 0;
    for (unsigned b = 0; b < bits; b++) {
        eight |= (uint64_t)planes[b * stride] << (8 * b);
    }
    return transpose_bits(eight);
}

#define WEFT_RICE_CUT(WIDTH, TYPE)                                                                         \
    for (size_t i = 0; i < count; i += 8) {                                                                \
        uint64_t eight = 0;                                                                                \
        for (unsigned j = 0; j < 8; j++) {                                                                 \
            uint64_t number = load_number(numbers, i + j, WIDTH);                                          \
            for (unsigned b = 0; b < bytes; b++) {                                                         \
                planes[b * count + i + j] = (uint8_t)(number >> (8 * b));                                  \
            }                                                                                              \
            eight |= (number >> (8 * bytes) & 0xff) << (8 * j);                                            \
            store_number(numbers, i + j, WIDTH, (TYPE)(number >> low));                                    \
        }                                                                                                  \
        cut_bits(eight, low % 8, planes + bytes * count + i / 8, count / 8);                               \
    }

static inline void cut_numbers(void *numbers, size_t count, unsigned width, unsigned low, uint8_t *planes) {
    unsigned bytes = low / 8;
    WEFT_PACK_BY_WIDTH(width, WEFT_RICE_CUT);
}

#define WEFT_RICE_MEND(WIDTH, TYPE)                                                                        \
    for (size_t i = 0; i < count; i += 8) {                                                                \
        uint64_t eight = mend_bits(low % 8, planes + bytes * count + i / 8, count / 8);                    \
        for (unsigned j = 0; j < 8; j++) {                                                                 \
            uint64_t number = load_number(numbers, i + j, WIDTH) << low;                                   \
            number |= (eight >> (8 * j) & 0xff) << (8 * bytes);                                            \
            for (unsigned b = 0; b < bytes; b++) {                                                         \
                number |= (uint64_t)planes[b * count + i + j] << (8 * b);                                  \
            }                                                                                              \
            store_number(numbers, i + j, WIDTH, (TYPE)number);                                             \
        }                                                                                                  \
    }

static inline void mend_numbers(void *numbers, size_t count, unsigned width, unsigned low,
                                const uint8_t *planes) {
    unsigned bytes = low / 8;
    WEFT_PACK_BY_WIDTH(width, WEFT_RICE_MEND);
}

/* Numbers from `first` on, which is a multiple of eight. */
#define WEFT_RICE_CLIMB(WIDTH, TYPE)                                                                       \
    for (size_t i = first; i < count; i += 8) {                                                            \
        unsigned some = count - i < 8 ? (unsigned)(count - i) : 8, byte = 0;                               \
        for (unsigned j = 0; j < some; j++) {                                                              \
            TYPE number = (TYPE)load_number(numbers, i + j, WIDTH);                                        \
            store_number(rest, climbed, WIDTH, (TYPE)(number - 1));                                        \
            byte |= (unsigned)(number != 0) << j;                                                          \
            climbed += number != 0;                                                                        \
        }                                                                                                  \
        bits[i / 8] = (uint8_t)byte;                                                                       \
    }

static inline size_t climb_from(const void *numbers, size_t first, size_t climbed, size_t count,
                                unsigned width, uint8_t *bits, void *rest) {
    WEFT_PACK_BY_WIDTH(width, WEFT_RICE_CLIMB);
    return climbed;
}

#define WEFT_RICE_DESCEND(WIDTH, TYPE)                                                                     \
    for (size_t i = first; i < count; i++) {                                                               \
        unsigned bit = bits[i / 8] >> (i % 8) & 1;                                                         \
        TYPE number = (TYPE)(load_number(rest, taken, WIDTH) + 1);                                         \
        store_number(numbers, i, WIDTH, bit != 0 ? number : 0);                                            \
        taken += bit;                                                                                      \
    }

static inline void descend_from(const uint8_t *bits, size_t first, size_t taken, size_t count,
                                unsigned width, const void *rest, void *numbers) {
    WEFT_PACK_BY_WIDTH(width, WEFT_RICE_DESCEND);
}

static inline size_t count_ones(const uint8_t *bits, size_t bytes) {
    size_t ones = 0, i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, bits + i, sizeof word);
        ones += (size_t)__builtin_popcountll(word);
    }
    for (; i < bytes; i++) {
        ones += (size_t)__builtin_popcount(bits[i]);
    }
    return ones;
}

#endif
