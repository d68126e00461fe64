/* SPDX-License-Identifier: Apache-2.0
 *
 * rice_avx2.c: the kernels of rice.h for AVX2, which cannot compress a register: 64 bits of numbers are
 * compressed at a time, by the instructions for scattered bits.
 */
#include "lanes_avx2.h"
#include "rice_loop.h"

/* The lowest bit of each number in a word, and all of them. */
WEFT_PACK_INLINE uint64_t word_ones(unsigned width) {
    return width == 1 ? 0x0101010101010101u : width == 2 ? 0x0001000100010001u : 0x0000000100000001u;
}

WEFT_PACK_INLINE uint64_t number_mask(unsigned width) {
    return ((uint64_t)1 << (8 * width)) - 1;
}

/* The lowest bit of each number that is not zero. */
WEFT_PACK_INLINE uint64_t nonzero_bits(uint64_t word, unsigned width) {
    uint64_t ones = word_ones(width), highest = ones << (8 * width - 1);
    return (((word & ~highest) + ~highest) | word) >> (8 * width - 1) & ones;
}

/* Eight numbers at a time. */
WEFT_PACK_INLINE size_t climb_words(const uint8_t *numbers, size_t count, unsigned width, uint8_t *bits,
                                    uint8_t *rest) {
    const unsigned per = 8 / width;
    const uint64_t ones = word_ones(width);
    size_t climbed = 0, i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t words[4], byte = 0; /* all are read before any is written */
        memcpy(words, numbers + i * width, 8 * width);
        for (unsigned j = 0; j < width; j++) {
            uint64_t marks = nonzero_bits(words[j], width), mask = marks * number_mask(width);
            uint64_t kept = _pext_u64(words[j], mask) - _pext_u64(ones, mask);
            memcpy(rest + climbed * width, &kept, sizeof kept);
            climbed += (size_t)__builtin_popcountll(marks);
            byte |= _pext_u64(marks, ones) << (per * j);
        }
        bits[i / 8] = (uint8_t)byte;
    }
    return climb_from(numbers, i, climbed, count, width, bits, rest);
}

static size_t climb_avx2(const void *numbers, size_t count, unsigned width, uint8_t *bits, void *rest) {
    switch (width) {
    case 1:
        return climb_words(numbers, count, 1, bits, rest);
    case 2:
        return climb_words(numbers, count, 2, bits, rest);
    case 4:
        return climb_words(numbers, count, 4, bits, rest);
    default:
        return climb_from(numbers, 0, 0, count, width, bits, rest);
    }
}

WEFT_PACK_INLINE void descend_words(const uint8_t *bits, size_t count, unsigned width, const uint8_t *rest,
                                    uint8_t *numbers) {
    const unsigned per = 8 / width;
    const uint64_t ones = word_ones(width);
    size_t taken = 0, i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t byte = bits[i / 8];
        for (unsigned j = 0; j < width; j++) {
            uint64_t marks = _pdep_u64(byte >> (per * j), ones), word;
            memcpy(&word, rest + taken * width, sizeof word);
            word = _pdep_u64(word, marks * number_mask(width));
            /* a number that is full turns over, and leaves the others alone */
            uint64_t highest = ones << (8 * width - 1);
            word = ((word & ~highest) + marks) ^ (word & highest);
            memcpy(numbers + i * width + 8 * j, &word, sizeof word);
            taken += (size_t)__builtin_popcountll(marks);
        }
    }
    descend_from(bits, i, taken, count, width, rest, numbers);
}

static void descend_avx2(const uint8_t *bits, size_t count, unsigned width, const void *rest,
                         void *numbers) {
    switch (width) {
    case 1:
        descend_words(bits, count, 1, rest, numbers);
        break;
    case 2:
        descend_words(bits, count, 2, rest, numbers);
        break;
    case 4:
        descend_words(bits, count, 4, rest, numbers);
        break;
    default:
        descend_from(bits, 0, 0, count, width, rest, numbers);
        break;
    }
}

/* ---- the lowest bits of two-byte numbers ---- */

static void cut_avx2(void *numbers, size_t count, unsigned width, unsigned low, uint8_t *planes) {
    if (width != 2) {
        cut_numbers(numbers, count, width, low, planes);
        return;
    }
    const __m128i by = _mm_cvtsi32_si128((int)low);
    uint8_t *bits = planes + low / 8 * count;
    for (size_t i = 0; i < count; i += WEFT_RICE_GROUP) {
        uint8_t *group = (uint8_t *)numbers + 2 * i;
        __m256i n[4], bytes[2][2];
        for (unsigned j = 0; j < 4; j++) {
            n[j] = load_lanes(group, j);
            store_lanes(group, j, _mm256_srl_epi16(n[j], by));
        }
        split_bytes(n, bytes[0], bytes[1]);
        if (low >= 8) {
            store_lanes(planes + i, 0, bytes[0][0]);
            store_lanes(planes + i, 1, bytes[0][1]);
        }
        for (unsigned b = 0; b < low % 8; b++) {
            uint64_t plane = plane_of(bytes[low / 8], b);
            memcpy(bits + b * (count / 8) + i / 8, &plane, sizeof plane);
        }
    }
}

static void mend_avx2(void *numbers, size_t count, unsigned width, unsigned low, const uint8_t *planes) {
    if (width != 2) {
        mend_numbers(numbers, count, width, low, planes);
        return;
    }
    const __m128i by = _mm_cvtsi32_si128((int)low);
    const uint8_t *bits = planes + low / 8 * count;
    for (size_t i = 0; i < count; i += WEFT_RICE_GROUP) {
        uint8_t *group = (uint8_t *)numbers + 2 * i;
        __m256i bytes[2][2];
        memset(bytes, 0, sizeof bytes);
        if (low >= 8) {
            bytes[0][0] = load_lanes(planes + i, 0);
            bytes[0][1] = load_lanes(planes + i, 1);
        }
        for (unsigned b = 0; b < low % 8; b++) {
            add_plane(bytes[low / 8], bits + b * (count / 8) + i / 8, b);
        }
        for (unsigned j = 0; j < 4; j++) {
            __m256i n = _mm256_sll_epi16(load_lanes(group, j), by);
            n = _mm256_or_si256(n, widen_bytes(bytes[0], j));
            store_lanes(group, j, _mm256_or_si256(n, _mm256_slli_epi16(widen_bytes(bytes[1], j), 8)));
        }
    }
}

const weft_rice_kernels weft_rice_kernels_avx2 = {
    .cut = cut_avx2,
    .mend = mend_avx2,
    .climb = climb_avx2,
    .descend = descend_avx2,
    .ones = count_ones,
};
