/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_avx2.c: the kernels of pack.h for AVX2: those over units of two bytes, 64 at a time. Other widths,
 * and classes, go through the loops of pack_loop.h.
 */
#include "lanes_avx2.h"
#include "pack_loop.h"

enum { LANES = 16 };

/* ---- folding ---- */

static size_t fold_steps_avx2(const void *old, const void *new, size_t count, unsigned width,
                              void *numbers) {
    size_t whole = width == 2 ? count / LANES * LANES : 0, same = 0;
    for (size_t i = 0; i < whole; i += LANES) {
        __m256i step = _mm256_sub_epi16(load_lanes((const uint8_t *)new + 2 * i, 0),
                                        load_lanes((const uint8_t *)old + 2 * i, 0));
        __m256i none = _mm256_cmpeq_epi16(step, _mm256_setzero_si256());
        same += (size_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(none)) / 2;
        step = _mm256_xor_si256(_mm256_slli_epi16(step, 1), _mm256_srai_epi16(step, 15));
        store_lanes((uint8_t *)numbers + 2 * i, 0, step);
    }
    return whole - same +
           fold_steps((const uint8_t *)old + whole * width, (const uint8_t *)new + whole *width,
                      count - whole, width, (uint8_t *)numbers + whole * width);
}

static void unfold_steps_avx2(const void *numbers, const void *old, size_t count, unsigned width,
                              void *new) {
    size_t whole = width == 2 ? count / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES) {
        __m256i folded = load_lanes((const uint8_t *)numbers + 2 * i, 0);
        __m256i negative =
            _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_and_si256(folded, _mm256_set1_epi16(1)));
        __m256i step = _mm256_xor_si256(_mm256_srli_epi16(folded, 1), negative);
        store_lanes((uint8_t *)new + 2 * i, 0,
                    _mm256_add_epi16(step, load_lanes((const uint8_t *)old + 2 * i, 0)));
    }
    unfold_steps((const uint8_t *)numbers + whole * width, (const uint8_t *)old + whole * width,
                 count - whole, width, (uint8_t *)new + whole *width);
}

static void fold_values_avx2(const void *new, size_t count, unsigned width, void *numbers) {
    size_t whole = width == 2 ? count / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES) {
        __m256i value = load_lanes((const uint8_t *)new + 2 * i, 0);
        store_lanes((uint8_t *)numbers + 2 * i, 0,
                    _mm256_or_si256(_mm256_slli_epi16(value, 1), _mm256_srli_epi16(value, 15)));
    }
    fold_values((const uint8_t *)new + whole *width, count - whole, width,
                (uint8_t *)numbers + whole * width);
}

static void unfold_values_avx2(const void *numbers, size_t count, unsigned width, void *new) {
    size_t whole = width == 2 ? count / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES) {
        __m256i folded = load_lanes((const uint8_t *)numbers + 2 * i, 0);
        store_lanes((uint8_t *)new + 2 * i, 0,
                    _mm256_or_si256(_mm256_srli_epi16(folded, 1), _mm256_slli_epi16(folded, 15)));
    }
    unfold_values((const uint8_t *)numbers + whole * width, count - whole, width,
                  (uint8_t *)new + whole *width);
}

/* ---- codes ---- */

/* 64 codes, a byte each, become 8 * code bytes. */
static inline void put_codes(const __m256i codes[2], unsigned code, uint8_t *symbols) {
    if (code == 8) {
        store_lanes(symbols, 0, codes[0]);
        store_lanes(symbols, 1, codes[1]);
    } else if (code == 4) {
        const __m256i weights = _mm256_set1_epi16(0x1001);
        store_lanes(
            symbols, 0,
            pack_bytes(_mm256_maddubs_epi16(codes[0], weights), _mm256_maddubs_epi16(codes[1], weights)));
    } else if (code == 2) {
        __m256i fours[2];
        for (unsigned i = 0; i < 2; i++) {
            __m256i pairs = _mm256_maddubs_epi16(codes[i], _mm256_set1_epi16(0x0401));
            fours[i] = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
        }
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(fours[0], fours[1]), 0xd8);
        _mm_storeu_si128((void *)symbols, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                           _mm256_extracti128_si256(words, 1)));
    } else {
        uint64_t bits = plane_of(codes, 0);
        memcpy(symbols, &bits, sizeof bits);
    }
}

static inline void take_codes(const uint8_t *symbols, unsigned code, __m256i codes[2]) {
    for (unsigned i = 0; i < 2; i++) {
        if (code == 8) {
            codes[i] = load_lanes(symbols, i);
        } else if (code == 4) {
            __m256i pairs =
                _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)symbols + i));
            codes[i] = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)),
                                        _mm256_set1_epi8(0x0f));
        } else if (code == 2) {
            __m256i fours = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(symbols + 8 * i)));
            fours = _mm256_and_si256(_mm256_or_si256(fours, _mm256_slli_epi32(fours, 12)),
                                     _mm256_set1_epi32(0x000f000f));
            codes[i] =
                _mm256_and_si256(_mm256_or_si256(fours, _mm256_slli_epi16(fours, 6)), _mm256_set1_epi8(3));
        } else {
            codes[i] = _mm256_setzero_si256();
        }
    }
    if (code == 1) {
        add_plane(codes, symbols, 0);
    }
}

/* ---- groups ---- */

static inline __attribute__((always_inline)) void split_words(const weft_pack_form *form,
                                                              const uint8_t *numbers, size_t groups,
                                                              uint8_t *symbols, uint8_t *planes,
                                                              uint64_t *escapes, unsigned code) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m256i first = _mm256_set1_epi16((short)form->first);
    const __m256i upper = _mm256_set1_epi16((short)weft_pack_upper(form, 16));
    const __m256i escape = _mm256_set1_epi16((short)weft_pack_escape(form));
    const __m256i marked = _mm256_set1_epi8((char)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++) {
        __m256i n[4], parts[4], codes[2], bytes[2][2];
        for (unsigned i = 0; i < 4; i++) {
            n[i] = load_lanes(numbers + 128 * g, i);
            parts[i] = _mm256_and_si256(_mm256_sub_epi16(_mm256_srl_epi16(n[i], low), first), upper);
            parts[i] = _mm256_min_epu16(parts[i], escape);
        }
        codes[0] = pack_bytes(parts[0], parts[1]);
        codes[1] = pack_bytes(parts[2], parts[3]);
        escapes[g] = join_masks(_mm256_cmpeq_epi8(codes[0], marked), _mm256_cmpeq_epi8(codes[1], marked));
        put_codes(codes, code, symbols + 8 * code * g);
        split_bytes(n, bytes[0], bytes[1]);
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            unsigned bit = (unsigned)__builtin_ctzll(left);
            uint64_t plane = plane_of(bytes[bit / 8], bit % 8);
            memcpy(planes, &plane, sizeof plane);
            planes += sizeof plane;
        }
    }
}

static void split_avx2(const weft_pack_form *form, unsigned width, const void *numbers, size_t groups,
                       uint8_t *symbols, uint8_t *planes, uint64_t *escapes) {
    if (width != 2) {
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
                                                             size_t groups, uint8_t *numbers,
                                                             uint64_t *escapes, unsigned code) {
    const __m128i low = _mm_cvtsi32_si128((int)form->low);
    const __m256i first = _mm256_set1_epi16((short)form->first);
    const __m256i upper = _mm256_set1_epi16((short)weft_pack_upper(form, 16));
    const __m256i fixed = _mm256_set1_epi16((short)form->fixed);
    const __m256i marked = _mm256_set1_epi8((char)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++) {
        __m256i codes[2], bytes[2][2];
        memset(bytes, 0, sizeof bytes);
        take_codes(symbols + 8 * code * g, code, codes);
        escapes[g] = join_masks(_mm256_cmpeq_epi8(codes[0], marked), _mm256_cmpeq_epi8(codes[1], marked));
        for (uint64_t left = form->varying; left != 0; left &= left - 1) {
            unsigned bit = (unsigned)__builtin_ctzll(left);
            add_plane(bytes[bit / 8], planes, bit % 8);
            planes += 8;
        }
        for (unsigned i = 0; i < 4; i++) {
            __m256i n = _mm256_and_si256(_mm256_add_epi16(widen_bytes(codes, i), first), upper);
            n = _mm256_or_si256(_mm256_sll_epi16(n, low), fixed);
            n = _mm256_or_si256(n, widen_bytes(bytes[0], i));
            n = _mm256_or_si256(n, _mm256_slli_epi16(widen_bytes(bytes[1], i), 8));
            store_lanes(numbers + 128 * g, i, n);
        }
    }
}

static void join_avx2(const weft_pack_form *form, unsigned width, const uint8_t *symbols,
                      const uint8_t *planes, size_t groups, void *numbers, uint64_t *escapes) {
    if (width != 2) {
        join_groups(form, width, symbols, planes, groups, numbers, escapes);
    } else if (form->code == 2) {
        join_words(form, symbols, planes, groups, numbers, escapes, 2);
    } else if (form->code == 4) {
        join_words(form, symbols, planes, groups, numbers, escapes, 4);
    } else {
        join_words(form, symbols, planes, groups, numbers, escapes, form->code);
    }
}

const weft_pack_kernels weft_pack_kernels_avx2 = {
    .fold_steps = fold_steps_avx2,
    .unfold_steps = unfold_steps_avx2,
    .fold_values = fold_values_avx2,
    .unfold_values = unfold_values_avx2,
    .varying = varying,
    .split = split_avx2,
    .join = join_avx2,
    .sort = sort_numbers,
    .merge = merge_numbers,
};
