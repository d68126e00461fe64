/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_avx512.c: the kernels of pack.h for AVX-512 with VBMI2: those over units of two bytes, 64 at a time;
 * a plane of a group is a mask of lanes; and of one byte and of four. Units of eight go through the loops
 * of pack_loop.h, as what those make vectors of does.
 */
#include "pack_loop.h"

#include <immintrin.h>

/* ---- folding ---- */

/* Of single bytes. */
static size_t fold_byte_steps(const uint8_t *old, const uint8_t *new, size_t count, uint8_t *numbers) {
    size_t differing = 0;
    for (size_t i = 0; i < count; i += 64) {
        __mmask64 lanes = _bzhi_u64(UINT64_MAX, count - i < 64 ? (unsigned)(count - i) : 64);
        __m512i step = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(lanes, new + i),
                                       _mm512_maskz_loadu_epi8(lanes, old + i));
        differing += (size_t)__builtin_popcountll(_mm512_test_epi8_mask(step, step));
        __m512i negative = _mm512_movm_epi8(_mm512_movepi8_mask(step));
        _mm512_mask_storeu_epi8(numbers + i, lanes,
                                _mm512_xor_si512(_mm512_add_epi8(step, step), negative));
    }
    return differing;
}

static void unfold_byte_steps(const uint8_t *numbers, const uint8_t *old, size_t count, uint8_t *new) {
    const __m512i one = _mm512_set1_epi8(1), half = _mm512_set1_epi8(0x7f);
    for (size_t i = 0; i < count; i += 64) {
        __mmask64 lanes = _bzhi_u64(UINT64_MAX, count - i < 64 ? (unsigned)(count - i) : 64);
        __m512i folded = _mm512_maskz_loadu_epi8(lanes, numbers + i);
        __m512i negative = _mm512_sub_epi8(_mm512_setzero_si512(), _mm512_and_si512(folded, one));
        __m512i step = _mm512_xor_si512(_mm512_and_si512(_mm512_srli_epi16(folded, 1), half), negative);
        _mm512_mask_storeu_epi8(new + i, lanes,
                                _mm512_add_epi8(step, _mm512_maskz_loadu_epi8(lanes, old + i)));
    }
}

static size_t fold_steps_avx512(const void *old, const void *new, size_t count, unsigned width,
                                void *numbers) {
    if (width == 1) {
        return fold_byte_steps(old, new, count, numbers);
    }
    if (width != 2) {
        return fold_steps(old, new, count, width, numbers);
    }
    const uint8_t *from = old, *to = new;
    uint8_t *output = numbers;
    size_t differing = 0;
    for (size_t i = 0; i < count; i += 32) {
        __mmask32 lanes = _bzhi_u32(UINT32_MAX, count - i < 32 ? (unsigned)(count - i) : 32);
        __m512i step = _mm512_sub_epi16(_mm512_maskz_loadu_epi16(lanes, to + 2 * i),
                                        _mm512_maskz_loadu_epi16(lanes, from + 2 * i));
        differing += (size_t)__builtin_popcount(_mm512_test_epi16_mask(step, step));
        step = _mm512_xor_si512(_mm512_slli_epi16(step, 1), _mm512_srai_epi16(step, 15));
        _mm512_mask_storeu_epi16(output + 2 * i, lanes, step);
    }
    return differing;
}

static void unfold_steps_avx512(const void *numbers, const void *old, size_t count, unsigned width,
                                void *new) {
    if (width == 1) {
        unfold_byte_steps(numbers, old, count, new);
        return;
    }
    if (width != 2) {
        unfold_steps(numbers, old, count, width, new);
        return;
    }
    const uint8_t *input = numbers, *from = old;
    uint8_t *to = new;
    const __m512i one = _mm512_set1_epi16(1);
    for (size_t i = 0; i < count; i += 32) {
        __mmask32 lanes = _bzhi_u32(UINT32_MAX, count - i < 32 ? (unsigned)(count - i) : 32);
        __m512i folded = _mm512_maskz_loadu_epi16(lanes, input + 2 * i);
        __m512i negative = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(folded, one));
        __m512i step = _mm512_xor_si512(_mm512_srli_epi16(folded, 1), negative);
        step = _mm512_add_epi16(step, _mm512_maskz_loadu_epi16(lanes, from + 2 * i));
        _mm512_mask_storeu_epi16(to + 2 * i, lanes, step);
    }
}

static void fold_values_avx512(const void *new, size_t count, unsigned width, void *numbers) {
    if (width != 2) {
        fold_values(new, count, width, numbers);
        return;
    }
    for (size_t i = 0; i < count; i += 32) {
        __mmask32 lanes = _bzhi_u32(UINT32_MAX, count - i < 32 ? (unsigned)(count - i) : 32);
        __m512i value = _mm512_maskz_loadu_epi16(lanes, (const uint8_t *)new + 2 * i);
        _mm512_mask_storeu_epi16((uint8_t *)numbers + 2 * i, lanes, _mm512_shldi_epi16(value, value, 1));
    }
}

static void unfold_values_avx512(const void *numbers, size_t count, unsigned width, void *new) {
    if (width != 2) {
        unfold_values(numbers, count, width, new);
        return;
    }
    for (size_t i = 0; i < count; i += 32) {
        __mmask32 lanes = _bzhi_u32(UINT32_MAX, count - i < 32 ? (unsigned)(count - i) : 32);
        __m512i folded = _mm512_maskz_loadu_epi16(lanes, (const uint8_t *)numbers + 2 * i);
        _mm512_mask_storeu_epi16((uint8_t *)new + 2 * i, lanes, _mm512_shldi_epi16(folded, folded, 15));
    }
}

static uint64_t varying_avx512(const void *numbers, size_t count, unsigned width) {
    const uint8_t *input = numbers;
    if (width != 2 || count < 32) {
        return varying(numbers, count, width);
    }
    uint16_t parts[32];
    __m512i first = _mm512_set1_epi16((short)load_number(numbers, 0, 2)), all = _mm512_setzero_si512();
    for (size_t i = 0; i + 32 <= count; i += 32) {
        all = _mm512_or_si512(all, _mm512_xor_si512(_mm512_loadu_si512(input + 2 * i), first));
    }
    /* the last 32 reach back, to what was looked at already */
    all = _mm512_or_si512(all, _mm512_xor_si512(_mm512_loadu_si512(input + 2 * (count - 32)), first));
    _mm512_storeu_si512(parts, all);
    uint64_t result = 0;
    for (unsigned i = 0; i < 32; i++) {
        result |= parts[i];
    }
    return result;
}

/* ---- codes ---- */

/* 64 codes, a byte each, become 8 * code bytes. */
static inline void put_codes(__m512i codes, unsigned code, uint8_t *symbols) {
    if (code == 8) {
        _mm512_storeu_si512(symbols, codes);
    } else if (code == 4) {
        __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
        _mm256_storeu_si256((void *)symbols, _mm512_cvtepi16_epi8(pairs));
    } else if (code == 2) {
        __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x0401));
        __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
        _mm_storeu_si128((void *)symbols, _mm512_cvtepi32_epi8(fours));
    } else {
        uint64_t bits = _mm512_test_epi8_mask(codes, codes);
        memcpy(symbols, &bits, sizeof bits);
    }
}

static inline __m512i take_codes(const uint8_t *symbols, unsigned code) {
    if (code == 8) {
        return _mm512_loadu_si512(symbols);
    }
    if (code == 4) {
        __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)symbols));
        return _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)),
                                _mm512_set1_epi8(0x0f));
    }
    if (code == 2) {
        __m512i fours = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)symbols));
        fours = _mm512_and_si512(_mm512_or_si512(fours, _mm512_slli_epi32(fours, 12)),
                                 _mm512_set1_epi32(0x000f000f));
        return _mm512_and_si512(_mm512_or_si512(fours, _mm512_slli_epi16(fours, 6)), _mm512_set1_epi8(3));
    }
    uint64_t bits;
    memcpy(&bits, symbols, sizeof bits);
    return _mm512_maskz_set1_epi8(bits, 1);
}

/* ---- groups ---- */

typedef struct lanes {
    __m128i low; /* a shift */
    __m512i first;
    __m512i upper;
    __m512i escape;
    __m512i fixed;
} lanes;

static inline lanes lanes_of(const weft_pack_form *form) {
    return (lanes){
        .low = _mm_cvtsi32_si128((int)form->low),
        .first = _mm512_set1_epi16((short)form->first),
        .upper = _mm512_set1_epi16((short)weft_pack_upper(form, 16)),
        .escape = _mm512_set1_epi16((short)weft_pack_escape(form)),
        .fixed = _mm512_set1_epi16((short)form->fixed),
    };
}

static inline __m512i upper_parts(const lanes *l, __m512i numbers) {
    return _mm512_and_si512(_mm512_sub_epi16(_mm512_srl_epi16(numbers, l->low), l->first), l->upper);
}

static inline __attribute__((always_inline)) void split_words(const weft_pack_form *form,
                                                              const uint16_t *numbers, size_t groups,
                                                              uint8_t *symbols, uint8_t *planes,
                                                              uint64_t *escapes, unsigned code) {
    const lanes l = lanes_of(form);
    for (size_t g = 0; g < groups; g++) {
        __m512i n0 = _mm512_loadu_si512(numbers + 64 * g), n1 = _mm512_loadu_si512(numbers + 64 * g + 32);
        __m512i u0 = upper_parts(&l, n0), u1 = upper_parts(&l, n1);
        uint32_t e0 = _mm512_cmpge_epu16_mask(u0, l.escape), e1 = _mm512_cmpge_epu16_mask(u1, l.escape);
        __m256i c0 = _mm512_cvtepi16_epi8(_mm512_min_epu16(u0, l.escape));
        __m256i c1 = _mm512_cvtepi16_epi8(_mm512_min_epu16(u1, l.escape));
        escapes[g] = e0 | (uint64_t)e1 << 32;
        put_codes(_mm512_inserti64x4(_mm512_castsi256_si512(c0), c1, 1), code, symbols + 8 * code * g);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            __m512i bit = _mm512_set1_epi16((short)(left & (0 - left)));
            uint64_t plane = _mm512_test_epi16_mask(n0, bit);
            plane |= (uint64_t)_mm512_test_epi16_mask(n1, bit) << 32;
            memcpy(planes, &plane, sizeof plane);
            planes += sizeof plane;
        }
    }
}

/* The same of single bytes. Shifts are of two, and what comes in from a neighbour is cut off. */
static void split_bytes(const weft_pack_form *form, const uint8_t *numbers, size_t groups, uint8_t *symbols,
                        uint8_t *planes, uint64_t *escapes) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m512i first = _mm512_set1_epi8((char)form->first);
    const __m512i upper = _mm512_set1_epi8((char)weft_pack_upper(form, 8));
    const __m512i escape = _mm512_set1_epi8((char)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++) {
        __m512i n = _mm512_loadu_si512(numbers + 64 * g);
        __m512i parts = _mm512_and_si512(_mm512_srl_epi16(n, low), upper);
        parts = _mm512_and_si512(_mm512_sub_epi8(parts, first), upper);
        escapes[g] = _mm512_cmpge_epu8_mask(parts, escape);
        put_codes(_mm512_min_epu8(parts, escape), form->code, symbols + 8 * form->code * g);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            uint64_t plane = _mm512_test_epi8_mask(n, _mm512_set1_epi8((char)(left & (0 - left))));
            memcpy(planes, &plane, sizeof plane);
            planes += sizeof plane;
        }
    }
}

/* The same of four bytes, in four registers. */
static void split_longs(const weft_pack_form *form, const uint8_t *numbers, size_t groups, uint8_t *symbols,
                        uint8_t *planes, uint64_t *escapes) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m512i first = _mm512_set1_epi32((int)form->first);
    const __m512i upper = _mm512_set1_epi32((int)weft_pack_upper(form, 32));
    const __m512i escape = _mm512_set1_epi32((int)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++) {
        __m512i n[4], codes = _mm512_setzero_si512();
        uint64_t escaped = 0;
        for (unsigned r = 0; r < 4; r++) {
            n[r] = _mm512_loadu_si512(numbers + 256 * g + 64 * r);
            __m512i parts = _mm512_and_si512(_mm512_sub_epi32(_mm512_srl_epi32(n[r], low), first), upper);
            escaped |= (uint64_t)_mm512_cmpge_epu32_mask(parts, escape) << 16 * r;
            __m128i bytes = _mm512_cvtepi32_epi8(_mm512_min_epu32(parts, escape));
            codes = _mm512_mask_broadcast_i32x4(codes, (__mmask16)(0xf << 4 * r), bytes);
        }
        escapes[g] = escaped;
        put_codes(codes, form->code, symbols + 8 * form->code * g);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            __m512i bit = _mm512_set1_epi32((int)(left & (0 - left)));
            uint64_t plane = 0;
            for (unsigned r = 0; r < 4; r++) {
                plane |= (uint64_t)_mm512_test_epi32_mask(n[r], bit) << 16 * r;
            }
            memcpy(planes, &plane, sizeof plane);
            planes += sizeof plane;
        }
    }
}

static void split_avx512(const weft_pack_form *form, unsigned width, const void *numbers, size_t groups,
                         uint8_t *symbols, uint8_t *planes, uint64_t *escapes) {
    if (width == 1) {
        split_bytes(form, numbers, groups, symbols, planes, escapes);
    } else if (width == 4) {
        split_longs(form, numbers, groups, symbols, planes, escapes);
    } else if (width != 2) {
        split_groups(form, width, numbers, groups, symbols, planes, escapes);
    } else if (form->code == 2) {
        split_words(form, numbers, groups, symbols, planes, escapes, 2);
    } else if (form->code == 4) {
        split_words(form, numbers, groups, symbols, planes, escapes, 4);
    } else {
        split_words(form, numbers, groups, symbols, planes, escapes, form->code);
    }
}

static inline __attribute__((always_inline)) void join_words(const weft_pack_form *form,
                                                             const uint8_t *symbols, const uint8_t *planes,
                                                             size_t groups, uint16_t *numbers,
                                                             uint64_t *escapes, unsigned code) {
    const lanes l = lanes_of(form);
    const __m512i escape = _mm512_set1_epi8((char)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++) {
        __m512i codes = take_codes(symbols + 8 * code * g, code);
        escapes[g] = _mm512_cmpeq_epi8_mask(codes, escape);
        __m512i n0 = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(codes));
        __m512i n1 = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(codes, 1));
        n0 = _mm512_and_si512(_mm512_add_epi16(n0, l.first), l.upper);
        n1 = _mm512_and_si512(_mm512_add_epi16(n1, l.first), l.upper);
        n0 = _mm512_or_si512(_mm512_sll_epi16(n0, l.low), l.fixed);
        n1 = _mm512_or_si512(_mm512_sll_epi16(n1, l.low), l.fixed);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            __m512i bit = _mm512_set1_epi16((short)(left & (0 - left)));
            uint64_t plane;
            memcpy(&plane, planes, sizeof plane);
            planes += sizeof plane;
            n0 = _mm512_or_si512(n0, _mm512_maskz_mov_epi16((__mmask32)plane, bit));
            n1 = _mm512_or_si512(n1, _mm512_maskz_mov_epi16((__mmask32)(plane >> 32), bit));
        }
        _mm512_storeu_si512(numbers + 64 * g, n0);
        _mm512_storeu_si512(numbers + 64 * g + 32, n1);
    }
}

static void join_bytes(const weft_pack_form *form, const uint8_t *symbols, const uint8_t *planes,
                       size_t groups, uint8_t *numbers, uint64_t *escapes) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m512i first = _mm512_set1_epi8((char)form->first);
    const __m512i upper = _mm512_set1_epi8((char)weft_pack_upper(form, 8));
    const __m512i escape = _mm512_set1_epi8((char)weft_pack_escape(form));
    const __m512i fixed = _mm512_set1_epi8((char)form->fixed);
    for (size_t g = 0; g < groups; g++) {
        __m512i codes = take_codes(symbols + 8 * form->code * g, form->code);
        escapes[g] = _mm512_cmpeq_epi8_mask(codes, escape);
        /* no bit of an upper part leaves its byte */
        __m512i n = _mm512_and_si512(_mm512_add_epi8(codes, first), upper);
        n = _mm512_or_si512(_mm512_sll_epi16(n, low), fixed);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            uint64_t plane;
            memcpy(&plane, planes, sizeof plane);
            planes += sizeof plane;
            n = _mm512_or_si512(n, _mm512_maskz_set1_epi8(plane, (char)(left & (0 - left))));
        }
        _mm512_storeu_si512(numbers + 64 * g, n);
    }
}

static void join_longs(const weft_pack_form *form, const uint8_t *symbols, const uint8_t *planes,
                       size_t groups, uint8_t *numbers, uint64_t *escapes) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m512i first = _mm512_set1_epi32((int)form->first);
    const __m512i upper = _mm512_set1_epi32((int)weft_pack_upper(form, 32));
    const __m512i escape = _mm512_set1_epi8((char)weft_pack_escape(form));
    const __m512i fixed = _mm512_set1_epi32((int)form->fixed);
    for (size_t g = 0; g < groups; g++) {
        __m512i codes = take_codes(symbols + 8 * form->code * g, form->code);
        escapes[g] = _mm512_cmpeq_epi8_mask(codes, escape);
        const __m128i bytes[4] = {_mm512_castsi512_si128(codes), _mm512_extracti32x4_epi32(codes, 1),
                                  _mm512_extracti32x4_epi32(codes, 2), _mm512_extracti32x4_epi32(codes, 3)};
        __m512i n[4];
        for (unsigned r = 0; r < 4; r++) {
            n[r] = _mm512_and_si512(_mm512_add_epi32(_mm512_cvtepu8_epi32(bytes[r]), first), upper);
            n[r] = _mm512_or_si512(_mm512_sll_epi32(n[r], low), fixed);
        }
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            __m512i bit = _mm512_set1_epi32((int)(left & (0 - left)));
            uint64_t plane;
            memcpy(&plane, planes, sizeof plane);
            planes += sizeof plane;
            for (unsigned r = 0; r < 4; r++) {
                n[r] = _mm512_mask_or_epi32(n[r], (__mmask16)(plane >> 16 * r), n[r], bit);
            }
        }
        for (unsigned r = 0; r < 4; r++) {
            _mm512_storeu_si512(numbers + 256 * g + 64 * r, n[r]);
        }
    }
}

static void join_avx512(const weft_pack_form *form, unsigned width, const uint8_t *symbols,
                        const uint8_t *planes, size_t groups, void *numbers, uint64_t *escapes) {
    if (width == 1) {
        join_bytes(form, symbols, planes, groups, numbers, escapes);
    } else if (width == 4) {
        join_longs(form, symbols, planes, groups, numbers, escapes);
    } else if (width != 2) {
        join_groups(form, width, symbols, planes, groups, numbers, escapes);
    } else if (form->code == 2) {
        join_words(form, symbols, planes, groups, numbers, escapes, 2);
    } else if (form->code == 4) {
        join_words(form, symbols, planes, groups, numbers, escapes, 4);
    } else {
        join_words(form, symbols, planes, groups, numbers, escapes, form->code);
    }
}

/* ---- classes ---- */

/* The lanes of a register that a mask says, side by side, and back to their places in `into`. */
static inline __attribute__((always_inline)) __m512i compress(uint64_t mask, __m512i lanes,
                                                              unsigned width) {
    return width == 1   ? _mm512_maskz_compress_epi8((__mmask64)mask, lanes)
           : width == 2 ? _mm512_maskz_compress_epi16((__mmask32)mask, lanes)
                        : _mm512_maskz_compress_epi32((__mmask16)mask, lanes);
}

static inline __attribute__((always_inline)) __m512i expand(__m512i into, uint64_t mask, __m512i lanes,
                                                            unsigned width) {
    return width == 1   ? _mm512_mask_expand_epi8(into, (__mmask64)mask, lanes)
           : width == 2 ? _mm512_mask_expand_epi16(into, (__mmask32)mask, lanes)
                        : _mm512_mask_expand_epi32(into, (__mmask16)mask, lanes);
}

/* Those of the 64 bits of a block that are for its register `r`. */
static inline uint64_t register_bits(uint64_t mask, unsigned r, unsigned width) {
    return width == 1 ? mask : (mask >> (r * (64 / width))) & (((uint64_t)1 << (64 / width)) - 1);
}

static inline __attribute__((always_inline)) void sort_lanes(const weft_tile *tile, unsigned classes,
                                                             unsigned width, const uint8_t *numbers,
                                                             uint8_t **ends) {
    for (unsigned c = 0; c < classes; c++) {
        uint8_t *end = ends[c];
        for (size_t b = 0; b < WEFT_TILE_BLOCKS && tile->counts[c] > 0; b++) {
            for (unsigned r = 0; r < width; r++) {
                uint64_t bits = register_bits(tile->masks[c][b], r, width);
                __m512i lanes = _mm512_loadu_si512(numbers + 64 * (width * b + r));
                _mm512_storeu_si512(end, compress(bits, lanes, width));
                end += (unsigned)__builtin_popcountll(bits) * width;
            }
        }
        ends[c] = end;
    }
}

static void sort_avx512(const weft_tile *tile, unsigned classes, unsigned width, const void *numbers,
                        uint8_t **ends) {
    if (width == 1) {
        sort_lanes(tile, classes, 1, numbers, ends);
    } else if (width == 2) {
        sort_lanes(tile, classes, 2, numbers, ends);
    } else {
        sort_lanes(tile, classes, 4, numbers, ends);
    }
}

static inline __attribute__((always_inline)) void merge_lanes(const weft_tile *tile, unsigned classes,
                                                              unsigned width, const uint8_t **nexts,
                                                              uint8_t *numbers) {
    for (size_t b = 0; b < WEFT_TILE_BLOCKS; b++) {
        for (unsigned r = 0; r < width; r++) {
            __m512i lanes = _mm512_setzero_si512();
            for (unsigned c = 0; c < classes; c++) {
                uint64_t bits = register_bits(tile->masks[c][b], r, width);
                lanes = expand(lanes, bits, _mm512_loadu_si512(nexts[c]), width);
                nexts[c] += (unsigned)__builtin_popcountll(bits) * width;
            }
            _mm512_storeu_si512(numbers + 64 * (width * b + r), lanes);
        }
    }
}

static void merge_avx512(const weft_tile *tile, unsigned classes, unsigned width, const uint8_t **nexts,
                         void *numbers) {
    if (width == 1) {
        merge_lanes(tile, classes, 1, nexts, numbers);
    } else if (width == 2) {
        merge_lanes(tile, classes, 2, nexts, numbers);
    } else {
        merge_lanes(tile, classes, 4, nexts, numbers);
    }
}

const weft_pack_kernels weft_pack_kernels_avx512 = {
    .fold_steps = fold_steps_avx512,
    .unfold_steps = unfold_steps_avx512,
    .fold_values = fold_values_avx512,
    .unfold_values = unfold_values_avx512,
    .varying = varying_avx512,
    .split = split_avx512,
    .join = join_avx512,
    .sort = sort_avx512,
    .merge = merge_avx512,
};
