/* SPDX-License-Identifier: Apache-2.0
 *
 * code_fast.c: the `fast` coding. One stream of bits, change after change:
 *
 *   gap    Rice code with one parameter k per bucket: the quotient in unary (ones, then a zero), then
 *          the k low bits. A quotient of ESCAPE or more is ESCAPE ones and the gap in 32 bits.
 *   step   Elias gamma of the magnitude: its bit length less one in unary, then the bits below the
 *          highest; then the sign.
 *
 * A one-ULP step costs two bits and a gap about half a bit more than its entropy. Nothing here looks at
 * the base, and the decoder is free of unpredictable branches.
 */
#include "code.h"

#include "bits.h"

enum { ESCAPE = 24, RICE_MAX = 28 };

static uint64_t unary(unsigned ones) {
    return ((uint64_t)1 << ones) - 1;
}

/* Bits that all gaps cost with parameter k, the unary terminator aside. */
static uint64_t gap_cost(const weft_changes *changes, unsigned k) {
    uint64_t quotients = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < changes->count; i++) {
        quotients += (changes->positions[i] - next) >> k;
        next = changes->positions[i] + 1;
    }
    return quotients + (uint64_t)k * changes->count;
}

/* For gaps spread evenly, k is near log2(0.69 mean gap); clustered changes want less. */
static unsigned choose_parameter(const weft_changes *changes, uint64_t units) {
    uint64_t mean = units * 177 / 256 / changes->count;
    unsigned k = 0;
    while (k < RICE_MAX && mean >> (k + 1) != 0) {
        k++;
    }
    uint64_t best = gap_cost(changes, k);
    while (k > 0) {
        uint64_t cost = gap_cost(changes, k - 1);
        if (cost >= best) {
            break;
        }
        best = cost;
        k--;
    }
    return k;
}

static void put_gap(weft_bits_writer *bits, uint32_t gap, unsigned k) {
    uint32_t quotient = gap >> k;
    if (quotient >= ESCAPE) {
        weft_bits_put(bits, unary(ESCAPE), ESCAPE);
        weft_bits_put(bits, gap, 32);
        return;
    }
    uint64_t low = gap & (uint32_t)unary(k);
    weft_bits_put(bits, unary(quotient) | low << (quotient + 1), quotient + 1 + k);
}

static void put_step(weft_bits_writer *bits, uint64_t magnitude, uint64_t sign) {
    unsigned length = 63u - (unsigned)__builtin_clzll(magnitude);
    uint64_t low = magnitude ^ (uint64_t)1 << length;
    if (length <= 16) {
        uint64_t value = unary(length) | low << (length + 1) | sign << (2 * length + 1);
        weft_bits_put(bits, value, 2 * length + 2);
        return;
    }
    weft_bits_put_wide(bits, unary(length), length + 1);
    weft_bits_put_wide(bits, low, length);
    weft_bits_put(bits, sign, 1);
}

static inline __attribute__((always_inline)) void
put_changes(weft_bits_writer *bits, const weft_changes *changes, unsigned k, unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint32_t next = 0;
    for (size_t i = 0; i < changes->count; i++) {
        uint64_t step = weft_unit_load(changes->news, i, width) - weft_unit_load(changes->olds, i, width);
        uint64_t sign = (step >> (8 * width - 1)) & 1;
        uint64_t magnitude = (sign ? 0 - step : step) & mask;
        put_gap(bits, changes->positions[i] - next, k);
        put_step(bits, magnitude, sign);
        next = changes->positions[i] + 1;
    }
}

/* The most bytes that one change takes: 56 bits of gap, and a step of 2 * 8 * width + 1 bits. */
static size_t worst_bytes(unsigned width) {
    return 8 + 2 * (size_t)width;
}

weft_status weft_fast_encode(const weft_changes *changes, uint64_t units, weft_writer *writer) {
    unsigned k = choose_parameter(changes, units);
    weft_writer_u8(writer, (uint8_t)k);
    uint8_t *room = weft_writer_reserve(writer, changes->count * worst_bytes(changes->width) + 16);
    if (room == NULL) {
        return WEFT_NO_MEMORY;
    }
    weft_bits_writer bits = {room, 0, 0};
    switch (changes->width) {
    case 1:
        put_changes(&bits, changes, k, 1);
        break;
    case 2:
        put_changes(&bits, changes, k, 2);
        break;
    case 4:
        put_changes(&bits, changes, k, 4);
        break;
    default:
        put_changes(&bits, changes, k, 8);
        break;
    }
    writer->size += (size_t)(weft_bits_finish(&bits) - room);
    return WEFT_OK;
}

static inline unsigned ones(uint64_t window) {
    return (unsigned)__builtin_ctzll(~window | (uint64_t)1 << 63);
}

/* A gap of at most 56 bits, read from one window. */
static inline uint32_t get_gap(weft_bits_reader *bits, unsigned k) {
    uint64_t window = weft_bits_peek(bits);
    unsigned quotient = ones(window);
    if (__builtin_expect(quotient >= ESCAPE, 0)) {
        bits->position += ESCAPE + 32;
        return (uint32_t)(window >> ESCAPE);
    }
    bits->position += quotient + 1 + k;
    return (uint32_t)quotient << k | (uint32_t)((window >> (quotient + 1)) & unary(k));
}

static uint64_t get_long_step(weft_bits_reader *bits, unsigned width) {
    unsigned length = 0;
    while (length < 8 * width && weft_bits_get(bits, 1) != 0) {
        length++;
    }
    if (length >= 8 * width) {
        bits->position = bits->size + 1;
        return 0;
    }
    uint64_t magnitude = (uint64_t)1 << length | weft_bits_get(bits, length);
    return weft_bits_get(bits, 1) ? 0 - magnitude : magnitude;
}

static inline uint64_t get_step(weft_bits_reader *bits, unsigned width) {
    unsigned short_length = width == 1 ? 7 : width == 2 ? 15 : 16;
    uint64_t window = weft_bits_peek(bits);
    unsigned length = ones(window);
    if (__builtin_expect(length > short_length, 0)) {
        return get_long_step(bits, width);
    }
    uint64_t magnitude = (uint64_t)1 << length | ((window >> (length + 1)) & unary(length));
    uint64_t negative = 0 - ((window >> (2 * length + 1)) & 1);
    bits->position += 2 * length + 2;
    return (magnitude ^ negative) - negative;
}

/* False if the stream ends early or a position leaves the bucket. */
static inline __attribute__((always_inline)) bool get_changes(weft_bits_reader *bits, weft_changes *changes,
                                                              uint64_t units, size_t count, unsigned k,
                                                              unsigned width) {
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (__builtin_expect(bits->position > bits->size, 0)) {
            return false;
        }
        next += get_gap(bits, k);
        if (__builtin_expect(bits->position > bits->size || next >= units, 0)) {
            return false;
        }
        changes->positions[i] = (uint32_t)next++;
        weft_unit_store(changes->news, i, width, get_step(bits, width));
    }
    return true;
}

weft_status weft_fast_decode(weft_context *context, const uint8_t *payload, size_t size, uint64_t units,
                             size_t count, weft_changes *changes) {
    if (size < 1 || payload[0] > RICE_MAX || count > units) {
        return weft_fail(context, WEFT_MALFORMED, "a fast bucket has no valid parameter");
    }
    weft_bits_reader bits = weft_bits_over(payload + 1, size - 1);
    unsigned k = payload[0];
    bool good;
    switch (changes->width) {
    case 1:
        good = get_changes(&bits, changes, units, count, k, 1);
        break;
    case 2:
        good = get_changes(&bits, changes, units, count, k, 2);
        break;
    case 4:
        good = get_changes(&bits, changes, units, count, k, 4);
        break;
    default:
        good = get_changes(&bits, changes, units, count, k, 8);
        break;
    }
    if (!good || weft_bits_overrun(&bits) || bits.size - bits.position >= 8) {
        return weft_fail(context, WEFT_MALFORMED, "a fast bucket does not hold its %zu changes", count);
    }
    changes->count = count;
    return WEFT_OK;
}
