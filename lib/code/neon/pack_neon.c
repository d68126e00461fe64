/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_neon.c: the kernels of pack.h for ARM: those over units of two bytes, folded eight and split 64 at a
 * time. Other widths, and the sorting into classes, go through the loops of pack_loop.h.
 */
#include "../pack/pack_loop.h"

#include "../lanes.h"

/* ---- folding ---- */

static inline uint16x8_t load_eight(const void *units, size_t index) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)units + 2 * index));
}

static inline void store_eight(void *units, size_t index, uint16x8_t values) {
    vst1q_u8((uint8_t *)units + 2 * index, vreinterpretq_u8_u16(values));
}

/* What is left of the units after whole eights. */
static inline const uint8_t *rest_of(const void *units, size_t done) {
    return (const uint8_t *)units + 2 * done;
}

enum { COUNTED = 8 * UINT16_MAX /* units that eight lanes can count */ };

static size_t fold_steps_neon(const void *old, const void *new, size_t count, unsigned width,
                              void *numbers) {
    size_t i = 0, same = 0;
    while (width == 2 && count - i >= 8) {
        size_t end = count - i < COUNTED ? count - count % 8 : i + COUNTED;
        uint16x8_t equal = vdupq_n_u16(0);
        for (; i < end; i += 8) {
            uint16x8_t step = vsubq_u16(load_eight(new, i), load_eight(old, i));
            uint16x8_t negative = vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(step), 15));
            store_eight(numbers, i, veorq_u16(vshlq_n_u16(step, 1), negative));
            equal = vsubq_u16(equal, vceqzq_u16(step));
        }
        same += vaddlvq_u16(equal);
    }
    size_t rest =
        fold_steps(rest_of(old, i), rest_of(new, i), count - i, width, (uint8_t *)numbers + 2 * i);
    return i - same + rest;
}

static void unfold_steps_neon(const void *numbers, const void *old, size_t count, unsigned width,
                              void *new) {
    size_t i = 0;
    for (; width == 2 && i + 8 <= count; i += 8) {
        uint16x8_t folded = load_eight(numbers, i);
        uint16x8_t odd = vandq_u16(folded, vdupq_n_u16(1));
        uint16x8_t step = veorq_u16(vshrq_n_u16(folded, 1), vsubq_u16(vdupq_n_u16(0), odd));
        store_eight(new, i, vaddq_u16(load_eight(old, i), step));
    }
    unfold_steps(rest_of(numbers, i), rest_of(old, i), count - i, width, (uint8_t *)new + 2 * i);
}

static void fold_values_neon(const void *new, size_t count, unsigned width, void *numbers) {
    size_t i = 0;
    for (; width == 2 && i + 8 <= count; i += 8) {
        uint16x8_t value = load_eight(new, i);
        store_eight(numbers, i, vsraq_n_u16(vshlq_n_u16(value, 1), value, 15));
    }
    fold_values(rest_of(new, i), count - i, width, (uint8_t *)numbers + 2 * i);
}

static void unfold_values_neon(const void *numbers, size_t count, unsigned width, void *new) {
    size_t i = 0;
    for (; width == 2 && i + 8 <= count; i += 8) {
        uint16x8_t folded = load_eight(numbers, i);
        store_eight(new, i, vsraq_n_u16(vshlq_n_u16(folded, 15), folded, 1));
    }
    unfold_values(rest_of(numbers, i), count - i, width, (uint8_t *)new + 2 * i);
}

static uint64_t varying_neon(const void *numbers, size_t count, unsigned width) {
    if (width != 2 || count < 8) {
        return varying(numbers, count, width);
    }
    uint16x8_t first = vdupq_n_u16(weft_weight_at(numbers, 0)), all = vdupq_n_u16(0);
    for (size_t i = 0; i + 8 <= count; i += 8) {
        all = vorrq_u16(all, veorq_u16(load_eight(numbers, i), first));
    }
    /* the last eight reach back, to what was looked at already */
    all = vorrq_u16(all, veorq_u16(load_eight(numbers, count - 8), first));
    uint64x2_t parts = vreinterpretq_u64_u16(all);
    uint64_t result = vgetq_lane_u64(parts, 0) | vgetq_lane_u64(parts, 1);
    result |= result >> 32;
    return (result | result >> 16) & UINT16_MAX;
}

/* Codes of 64 numbers, or bytes of them. */
typedef struct sixty_four {
    uint8x16_t of[4];
} sixty_four;

/* ---- codes ---- */

/* Neighbours become one byte: the first in the lower `bits`, the second above. */
static inline uint8x16_t join_neighbours(uint8x16_t low, uint8x16_t high, int8_t bits) {
    uint8x16_t first = vuzp1q_u8(low, high), second = vuzp2q_u8(low, high);
    return vorrq_u8(first, vshlq_u8(second, vdupq_n_s8(bits)));
}

/* 64 codes, a byte each, become 8 * code bytes. */
static inline void put_codes(sixty_four codes, unsigned code, uint8_t *symbols) {
    unsigned registers = 4;
    for (; code < 8 && registers > 1; code *= 2, registers /= 2) {
        for (unsigned i = 0; i < registers / 2; i++) {
            codes.of[i] = join_neighbours(codes.of[2 * i], codes.of[2 * i + 1], (int8_t)code);
        }
    }
    if (code < 8) {
        vst1_u8(symbols, vget_low_u8(join_neighbours(codes.of[0], codes.of[0], (int8_t)code)));
        return;
    }
    for (unsigned i = 0; i < registers; i++) {
        vst1q_u8(symbols + 16 * i, codes.of[i]);
    }
}

/* The two halves of each of sixteen bytes, in order. */
static inline uint8x16x2_t part_neighbours(uint8x16_t both, int8_t bits) {
    uint8x16_t second = vshlq_u8(both, vdupq_n_s8((int8_t)-bits));
    uint8x16_t first = vandq_u8(both, vdupq_n_u8((uint8_t)((1u << bits) - 1)));
    return (uint8x16x2_t){{vzip1q_u8(first, second), vzip2q_u8(first, second)}};
}

static inline sixty_four take_codes(const uint8_t *symbols, unsigned code) {
    sixty_four codes;
    unsigned registers = code / 2, bits = 4;
    if (code == 1) {
        uint8x16_t half = vcombine_u8(vld1_u8(symbols), vdup_n_u8(0));
        codes.of[0] = part_neighbours(half, 4).val[0];
        registers = 1;
        bits = 2;
    } else {
        for (unsigned i = 0; i < registers; i++) {
            codes.of[i] = vld1q_u8(symbols + 16 * i);
        }
    }
    for (; registers < 4; registers *= 2, bits /= 2) {
        for (unsigned i = registers; i-- > 0;) {
            uint8x16x2_t two = part_neighbours(codes.of[i], (int8_t)bits);
            codes.of[2 * i] = two.val[0];
            codes.of[2 * i + 1] = two.val[1];
        }
    }
    return codes;
}

/* ---- planes ---- */

/* Writes a plane for each of the bits; returns how far. */
static inline uint8_t *put_planes(sixty_four bytes, unsigned bits, uint8_t *planes) {
    for (; bits != 0; bits &= bits - 1, planes += 8) {
        uint8x16_t bit = vdupq_n_u8((uint8_t)(bits & (0 - bits)));
        uint64_t plane = weft_lanes_bits(vtstq_u8(bytes.of[0], bit), vtstq_u8(bytes.of[1], bit),
                                         vtstq_u8(bytes.of[2], bit), vtstq_u8(bytes.of[3], bit));
        memcpy(planes, &plane, sizeof plane);
    }
    return planes;
}

/* And reads them. */
static inline const uint8_t *take_planes(sixty_four *bytes, unsigned bits, const uint8_t *planes) {
    const uint8x16_t lanes = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    for (unsigned i = 0; i < 4; i++) {
        bytes->of[i] = vdupq_n_u8(0);
    }
    for (; bits != 0; bits &= bits - 1, planes += 8) {
        uint8x16_t bit = vdupq_n_u8((uint8_t)(bits & (0 - bits)));
        uint8x8_t plane = vld1_u8(planes);
        for (unsigned i = 0; i < 4; i++) {
            uint8x16_t set = vtstq_u8(vcombine_u8(vdup_lane_u8(plane, 0), vdup_lane_u8(plane, 1)), lanes);
            bytes->of[i] = vorrq_u8(bytes->of[i], vandq_u8(set, bit));
            plane = vext_u8(plane, plane, 2);
        }
    }
    return planes;
}

/* ---- groups ---- */

static inline uint64_t bits_of(const sixty_four *lanes) {
    return weft_lanes_bits(lanes->of[0], lanes->of[1], lanes->of[2], lanes->of[3]);
}

static inline __attribute__((always_inline)) void split_words(const weft_pack_form *form,
                                                              const uint16_t *numbers, size_t groups,
                                                              uint8_t *symbols, uint8_t *planes,
                                                              uint64_t *escapes, unsigned code) {
    const int16x8_t down = vdupq_n_s16((int16_t) - (int)form->low);
    const uint16x8_t first = vdupq_n_u16((uint16_t)form->first);
    const uint16x8_t upper = vdupq_n_u16((uint16_t)weft_pack_upper(form, 16));
    const uint16x8_t escape = vdupq_n_u16((uint16_t)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++, numbers += WEFT_PACK_GROUP) {
        sixty_four codes, beyond, low, high;
        for (unsigned i = 0; i < 4; i++) {
            uint16x8_t n[2], u[2], least[2], far[2];
            for (unsigned j = 0; j < 2; j++) {
                n[j] = vld1q_u16(numbers + 16 * i + 8 * j);
                u[j] = vandq_u16(vsubq_u16(vshlq_u16(n[j], down), first), upper);
                least[j] = vminq_u16(u[j], escape);
                far[j] = vcgeq_u16(u[j], escape);
            }
            codes.of[i] = weft_lanes_narrow(least[0], least[1]);
            beyond.of[i] = weft_lanes_narrow(far[0], far[1]);
            low.of[i] = weft_lanes_narrow(n[0], n[1]);
            high.of[i] = vuzp2q_u8(vreinterpretq_u8_u16(n[0]), vreinterpretq_u8_u16(n[1]));
        }
        escapes[g] = bits_of(&beyond);
        put_codes(codes, code, symbols + 8 * code * g);
        planes = put_planes(low, (unsigned)form->varying & 0xff, planes);
        planes = put_planes(high, (unsigned)form->varying >> 8 & 0xff, planes);
    }
}

static void split_neon(const weft_pack_form *form, unsigned width, const void *numbers, size_t groups,
                       uint8_t *symbols, uint8_t *planes, uint64_t *escapes) {
    if (width != 2) {
        split_groups(form, width, numbers, groups, symbols, planes, escapes);
    } else if (form->code == 1) {
        split_words(form, numbers, groups, symbols, planes, escapes, 1);
    } else if (form->code == 2) {
        split_words(form, numbers, groups, symbols, planes, escapes, 2);
    } else if (form->code == 4) {
        split_words(form, numbers, groups, symbols, planes, escapes, 4);
    } else {
        split_words(form, numbers, groups, symbols, planes, escapes, 8);
    }
}

static inline __attribute__((always_inline)) void join_words(const weft_pack_form *form,
                                                             const uint8_t *symbols, const uint8_t *planes,
                                                             size_t groups, uint16_t *numbers,
                                                             uint64_t *escapes, unsigned code) {
    const int16x8_t up = vdupq_n_s16((int16_t)form->low);
    const uint16x8_t first = vdupq_n_u16((uint16_t)form->first);
    const uint16x8_t upper = vdupq_n_u16((uint16_t)weft_pack_upper(form, 16));
    const uint16x8_t fixed = vdupq_n_u16((uint16_t)form->fixed);
    const uint8x16_t escape = vdupq_n_u8((uint8_t)weft_pack_escape(form));
    for (size_t g = 0; g < groups; g++, numbers += WEFT_PACK_GROUP) {
        sixty_four codes = take_codes(symbols + 8 * code * g, code), beyond, low, high;
        planes = take_planes(&low, (unsigned)form->varying & 0xff, planes);
        planes = take_planes(&high, (unsigned)form->varying >> 8 & 0xff, planes);
        for (unsigned i = 0; i < 4; i++) {
            beyond.of[i] = vceqq_u8(codes.of[i], escape);
            uint16x8_t parts[2] = {vmovl_u8(vget_low_u8(codes.of[i])), vmovl_high_u8(codes.of[i])};
            uint16x8_t bits[2] = {vreinterpretq_u16_u8(vzip1q_u8(low.of[i], high.of[i])),
                                  vreinterpretq_u16_u8(vzip2q_u8(low.of[i], high.of[i]))};
            for (unsigned j = 0; j < 2; j++) {
                uint16x8_t n = vshlq_u16(vandq_u16(vaddq_u16(parts[j], first), upper), up);
                vst1q_u16(numbers + 16 * i + 8 * j, vorrq_u16(vorrq_u16(n, fixed), bits[j]));
            }
        }
        escapes[g] = bits_of(&beyond);
    }
}

static void join_neon(const weft_pack_form *form, unsigned width, const uint8_t *symbols,
                      const uint8_t *planes, size_t groups, void *numbers, uint64_t *escapes) {
    if (width != 2) {
        join_groups(form, width, symbols, planes, groups, numbers, escapes);
    } else if (form->code == 1) {
        join_words(form, symbols, planes, groups, numbers, escapes, 1);
    } else if (form->code == 2) {
        join_words(form, symbols, planes, groups, numbers, escapes, 2);
    } else if (form->code == 4) {
        join_words(form, symbols, planes, groups, numbers, escapes, 4);
    } else {
        join_words(form, symbols, planes, groups, numbers, escapes, 8);
    }
}

const weft_pack_kernels weft_pack_kernels_neon = {
    .fold_steps = fold_steps_neon,
    .unfold_steps = unfold_steps_neon,
    .fold_values = fold_values_neon,
    .unfold_values = unfold_values_neon,
    .varying = varying_neon,
    .split = split_neon,
    .join = join_neon,
    .sort = sort_numbers,
    .merge = merge_numbers,
};
