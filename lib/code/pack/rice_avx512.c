/* SPDX-License-Identifier: Apache-2.0
 *
 * rice_avx512.c: the kernels of rice.h for AVX-512 with VBMI2, a register of numbers at a time: a rung is a
 * test and a compression.
 */
#include "rice_loop.h"

#include <immintrin.h>

enum { REGISTER = 64 };

WEFT_PACK_INLINE uint64_t nonzero_lanes(__m512i v, unsigned width) {
    return width == 1   ? _mm512_test_epi8_mask(v, v)
           : width == 2 ? _mm512_test_epi16_mask(v, v)
           : width == 4 ? _mm512_test_epi32_mask(v, v)
                        : _mm512_test_epi64_mask(v, v);
}

WEFT_PACK_INLINE __m512i compress_lanes(uint64_t lanes, __m512i v, unsigned width) {
    return width == 1   ? _mm512_maskz_compress_epi8(lanes, v)
           : width == 2 ? _mm512_maskz_compress_epi16((__mmask32)lanes, v)
           : width == 4 ? _mm512_maskz_compress_epi32((__mmask16)lanes, v)
                        : _mm512_maskz_compress_epi64((__mmask8)lanes, v);
}

WEFT_PACK_INLINE __m512i expand_lanes(uint64_t lanes, __m512i v, unsigned width) {
    return width == 1   ? _mm512_maskz_expand_epi8(lanes, v)
           : width == 2 ? _mm512_maskz_expand_epi16((__mmask32)lanes, v)
           : width == 4 ? _mm512_maskz_expand_epi32((__mmask16)lanes, v)
                        : _mm512_maskz_expand_epi64((__mmask8)lanes, v);
}

WEFT_PACK_INLINE __m512i add_lanes(__m512i v, int64_t amount, unsigned width) {
    return width == 1   ? _mm512_add_epi8(v, _mm512_set1_epi8((char)amount))
           : width == 2 ? _mm512_add_epi16(v, _mm512_set1_epi16((short)amount))
           : width == 4 ? _mm512_add_epi32(v, _mm512_set1_epi32((int)amount))
                        : _mm512_add_epi64(v, _mm512_set1_epi64(amount));
}

WEFT_PACK_INLINE size_t climb_lanes(const uint8_t *numbers, size_t count, unsigned width, uint8_t *bits,
                                    uint8_t *rest) {
    const size_t lanes = REGISTER / width;
    size_t climbed = 0;
    for (size_t i = 0; i < count; i += lanes) {
        size_t some = count - i < lanes ? count - i : lanes;
        uint64_t bytes = _bzhi_u64(UINT64_MAX, (unsigned)(some * width));
        __m512i v = _mm512_maskz_loadu_epi8(bytes, numbers + i * width);
        uint64_t up = nonzero_lanes(v, width);
        memcpy(bits + i / 8, &up, lanes / 8);
        _mm512_storeu_si512(rest + climbed * width, compress_lanes(up, add_lanes(v, -1, width), width));
        climbed += (size_t)__builtin_popcountll(up);
    }
    return climbed;
}

static size_t climb_avx512(const void *numbers, size_t count, unsigned width, uint8_t *bits, void *rest) {
    switch (width) {
    case 1:
        return climb_lanes(numbers, count, 1, bits, rest);
    case 2:
        return climb_lanes(numbers, count, 2, bits, rest);
    case 4:
        return climb_lanes(numbers, count, 4, bits, rest);
    default:
        return climb_lanes(numbers, count, 8, bits, rest);
    }
}

WEFT_PACK_INLINE void descend_lanes(const uint8_t *bits, size_t count, unsigned width, const uint8_t *rest,
                                    uint8_t *numbers) {
    const size_t lanes = REGISTER / width;
    size_t taken = 0;
    for (size_t i = 0; i < count; i += lanes) {
        size_t some = count - i < lanes ? count - i : lanes;
        uint64_t up = 0;
        memcpy(&up, bits + i / 8, lanes / 8);
        up = _bzhi_u64(up, (unsigned)some);
        __m512i v = _mm512_loadu_si512(rest + taken * width);
        _mm512_storeu_si512(numbers + i * width, expand_lanes(up, add_lanes(v, 1, width), width));
        taken += (size_t)__builtin_popcountll(up);
    }
}

static void descend_avx512(const uint8_t *bits, size_t count, unsigned width, const void *rest,
                           void *numbers) {
    switch (width) {
    case 1:
        descend_lanes(bits, count, 1, rest, numbers);
        break;
    case 2:
        descend_lanes(bits, count, 2, rest, numbers);
        break;
    case 4:
        descend_lanes(bits, count, 4, rest, numbers);
        break;
    default:
        descend_lanes(bits, count, 8, rest, numbers);
        break;
    }
}

/* ---- the lowest bits of all but eight-byte numbers ---- */

/* One byte of each of 64 numbers. */
WEFT_PACK_INLINE __m512i bytes_of(const __m512i *v, unsigned shift, unsigned width) {
    __m128i by = _mm_cvtsi32_si128((int)shift);
    if (width == 1) {
        return v[0];
    }
    if (width == 2) {
        __m256i low = _mm512_cvtepi16_epi8(_mm512_srl_epi16(v[0], by));
        __m256i high = _mm512_cvtepi16_epi8(_mm512_srl_epi16(v[1], by));
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    __m512i bytes = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(_mm512_srl_epi32(v[0], by)));
    bytes = _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(_mm512_srl_epi32(v[1], by)), 1);
    bytes = _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(_mm512_srl_epi32(v[2], by)), 2);
    return _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(_mm512_srl_epi32(v[3], by)), 3);
}

/* The part of 64 bytes that belongs to register `index` of numbers, widened. */
WEFT_PACK_INLINE __m512i widen_bytes(__m512i bytes, unsigned index, unsigned width) {
    if (width == 1) {
        return bytes;
    }
    if (width == 2) {
        return _mm512_cvtepu8_epi16(index == 0 ? _mm512_castsi512_si256(bytes)
                                               : _mm512_extracti64x4_epi64(bytes, 1));
    }
    return _mm512_cvtepu8_epi32(index == 0   ? _mm512_castsi512_si128(bytes)
                                : index == 1 ? _mm512_extracti32x4_epi32(bytes, 1)
                                : index == 2 ? _mm512_extracti32x4_epi32(bytes, 2)
                                             : _mm512_extracti32x4_epi32(bytes, 3));
}

WEFT_PACK_INLINE __m512i shift_right(__m512i v, unsigned by, unsigned width) {
    __m128i count = _mm_cvtsi32_si128((int)by);
    if (width == 1) {
        return _mm512_and_si512(_mm512_srl_epi16(v, count), _mm512_set1_epi8((char)(0xff >> by)));
    }
    return width == 2 ? _mm512_srl_epi16(v, count) : _mm512_srl_epi32(v, count);
}

WEFT_PACK_INLINE __m512i shift_left(__m512i v, unsigned by, unsigned width) {
    __m128i count = _mm_cvtsi32_si128((int)by);
    if (width == 1) {
        return _mm512_and_si512(_mm512_sll_epi16(v, count), _mm512_set1_epi8((char)(0xff << by)));
    }
    return width == 2 ? _mm512_sll_epi16(v, count) : _mm512_sll_epi32(v, count);
}

WEFT_PACK_INLINE void cut_groups(uint8_t *numbers, size_t count, unsigned low, uint8_t *planes,
                                 unsigned width) {
    unsigned bytes = low / 8, bits = low % 8;
    for (size_t i = 0; i < count; i += WEFT_RICE_GROUP) {
        __m512i v[4];
        for (unsigned j = 0; j < width; j++) {
            v[j] = _mm512_loadu_si512(numbers + i * width + REGISTER * j);
        }
        for (unsigned b = 0; b < bytes; b++) {
            _mm512_storeu_si512(planes + b * count + i, bytes_of(v, 8 * b, width));
        }
        __m512i last = bytes_of(v, 8 * bytes, width);
        for (unsigned b = 0; b < bits; b++) {
            uint64_t plane = _mm512_test_epi8_mask(last, _mm512_set1_epi8((char)(1 << b)));
            memcpy(planes + bytes * count + b * (count / 8) + i / 8, &plane, sizeof plane);
        }
        for (unsigned j = 0; j < width; j++) {
            _mm512_storeu_si512(numbers + i * width + REGISTER * j, shift_right(v[j], low, width));
        }
    }
}

static void cut_avx512(void *numbers, size_t count, unsigned width, unsigned low, uint8_t *planes) {
    if (width == 1) {
        cut_groups(numbers, count, low, planes, 1);
    } else if (width == 2) {
        cut_groups(numbers, count, low, planes, 2);
    } else if (width == 4) {
        cut_groups(numbers, count, low, planes, 4);
    } else {
        cut_numbers(numbers, count, width, low, planes);
    }
}

WEFT_PACK_INLINE void mend_groups(uint8_t *numbers, size_t count, unsigned low, const uint8_t *planes,
                                  unsigned width) {
    unsigned bytes = low / 8, bits = low % 8;
    for (size_t i = 0; i < count; i += WEFT_RICE_GROUP) {
        __m512i v[4], last = _mm512_setzero_si512();
        for (unsigned b = 0; b < bits; b++) {
            uint64_t plane;
            memcpy(&plane, planes + bytes * count + b * (count / 8) + i / 8, sizeof plane);
            last = _mm512_or_si512(last, _mm512_maskz_set1_epi8(plane, (char)(1 << b)));
        }
        for (unsigned j = 0; j < width; j++) {
            v[j] = shift_left(_mm512_loadu_si512(numbers + i * width + REGISTER * j), low, width);
            v[j] = _mm512_or_si512(v[j], shift_left(widen_bytes(last, j, width), 8 * bytes, width));
        }
        for (unsigned b = 0; b < bytes; b++) {
            __m512i plane = _mm512_loadu_si512(planes + b * count + i);
            for (unsigned j = 0; j < width; j++) {
                v[j] = _mm512_or_si512(v[j], shift_left(widen_bytes(plane, j, width), 8 * b, width));
            }
        }
        for (unsigned j = 0; j < width; j++) {
            _mm512_storeu_si512(numbers + i * width + REGISTER * j, v[j]);
        }
    }
}

static void mend_avx512(void *numbers, size_t count, unsigned width, unsigned low, const uint8_t *planes) {
    if (width == 1) {
        mend_groups(numbers, count, low, planes, 1);
    } else if (width == 2) {
        mend_groups(numbers, count, low, planes, 2);
    } else if (width == 4) {
        mend_groups(numbers, count, low, planes, 4);
    } else {
        mend_numbers(numbers, count, width, low, planes);
    }
}

const weft_rice_kernels weft_rice_kernels_avx512 = {
    .cut = cut_avx512,
    .mend = mend_avx512,
    .climb = climb_avx512,
    .descend = descend_avx512,
    .ones = count_ones,
};
