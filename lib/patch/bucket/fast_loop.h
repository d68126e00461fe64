/* SPDX-License-Identifier: Apache-2.0
 *
 * fast_loop.h: the loops of the `fast` coding. They stand in a header because those for two-byte weights
 * are compiled a second time for processors with BMI2, whose shifts need no fixed register.
 *
 * To the decoder, the stream is held in a 64-bit buffer. A gap takes at most 56 bits and a common step at
 * most 34, so one refill serves a change nearly always. Nothing is loaded from past the slack behind the
 * stream: when all of the stream is in the buffer, refills stop, and consuming more than there is shows as
 * a negative count of available bits, which is looked at once per call.
 */
#ifndef WEFT_PATCH_BUCKET_FAST_LOOP_H
#define WEFT_PATCH_BUCKET_FAST_LOOP_H

#include "../../code/bits.h"
#include "changes.h"

enum { WEFT_FAST_ESCAPE = 24 };

static inline uint64_t weft_low_bits(unsigned count) {
    return ((uint64_t)1 << count) - 1;
}

/* ---- encoding ---- */

static inline void weft_fast_put_gap(weft_bits_writer *bits, uint32_t gap, unsigned k) {
    uint32_t quotient = gap >> k;
    if (quotient >= WEFT_FAST_ESCAPE) {
        weft_bits_put(bits, weft_low_bits(WEFT_FAST_ESCAPE), WEFT_FAST_ESCAPE);
        weft_bits_put(bits, gap, 32);
        return;
    }
    uint64_t low = gap & (uint32_t)weft_low_bits(k);
    weft_bits_put(bits, weft_low_bits(quotient) | low << (quotient + 1), quotient + 1 + k);
}

static inline void weft_fast_put_step(weft_bits_writer *bits, uint64_t magnitude, uint64_t sign) {
    unsigned length = 63u - (unsigned)__builtin_clzll(magnitude);
    uint64_t low = magnitude ^ (uint64_t)1 << length;
    if (length <= 16) {
        uint64_t value = weft_low_bits(length) | low << (length + 1) | sign << (2 * length + 1);
        weft_bits_put(bits, value, 2 * length + 2);
        return;
    }
    weft_bits_put_wide(bits, weft_low_bits(length), length + 1);
    weft_bits_put_wide(bits, low, length);
    weft_bits_put(bits, sign, 1);
}

/* Codes the changes from `first` up to `end`. Gap and step go out at once where they fit, which is nearly
 * always: each put waits for the one before. */
static inline __attribute__((always_inline)) void weft_fast_put_loop(weft_bits_writer *writer,
                                                                     const weft_changes *changes,
                                                                     size_t first, size_t end, unsigned k,
                                                                     unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint32_t next = first > 0 ? changes->positions[first - 1] + 1 : 0;
    weft_bits_writer bits = *writer;
    for (size_t i = first; i < end; i++) {
        uint64_t step = weft_unit_load(changes->news, i, width) - weft_unit_load(changes->olds, i, width);
        uint64_t sign = (step >> (8 * width - 1)) & 1;
        uint64_t magnitude = ((step ^ (0 - sign)) + sign) & mask;
        uint32_t gap = changes->positions[i] - next;
        next = changes->positions[i] + 1;
        uint32_t quotient = gap >> k;
        unsigned length = 63u - (unsigned)__builtin_clzll(magnitude);
        if (__builtin_expect(quotient >= WEFT_FAST_ESCAPE || quotient + k + 2 * length + 3 > 56, 0)) {
            weft_fast_put_gap(&bits, gap, k);
            weft_fast_put_step(&bits, magnitude, sign);
            continue;
        }
        uint64_t low = gap & (uint32_t)weft_low_bits(k);
        uint64_t head = weft_low_bits(quotient) | low << (quotient + 1);
        uint64_t tail = weft_low_bits(length) | (magnitude ^ (uint64_t)1 << length) << (length + 1) |
                        sign << (2 * length + 1);
        weft_bits_put(&bits, head | tail << (quotient + 1 + k), quotient + k + 2 * length + 3);
    }
    *writer = bits;
}

/* ---- decoding ---- */

typedef struct weft_fast_decoder {
    weft_context *context;
    const uint8_t *start;
    const uint8_t *cursor;
    const uint8_t *end; /* followed by WEFT_BITS_SLACK readable bytes */
    uint64_t buffer;
    int64_t available; /* bits in the buffer; negative once too many were taken, by however many changes */
    unsigned k;
    uint64_t next; /* the position after the last change */
    uint64_t units;
    uintptr_t weights; /* the address where position 0 would lie: memory that is asked for on the way */
} weft_fast_decoder;

static inline unsigned weft_fast_ones(uint64_t window) {
    return (unsigned)__builtin_ctzll(~window | (uint64_t)1 << 63);
}

/* Tops the buffer up to at least 56 bits, unless all of the stream is in it. The load's address does not
 * depend on the buffer's content, so it waits for nothing. */
static inline void weft_fast_refill(weft_fast_decoder *d) {
    if (__builtin_expect(d->cursor <= d->end, 1)) {
        uint64_t bytes;
        memcpy(&bytes, d->cursor, 8);
        d->buffer |= bytes << d->available;
        d->cursor += (63 - d->available) >> 3;
        d->available |= 56;
    }
}

static inline void weft_fast_consume(weft_fast_decoder *d, unsigned bits) {
    d->buffer >>= bits;
    d->available -= bits;
}

static inline int64_t weft_fast_used(const weft_fast_decoder *d) {
    return 8 * (d->cursor - d->start) - d->available;
}

static inline uint64_t weft_fast_gap(weft_fast_decoder *d) {
    unsigned quotient = weft_fast_ones(d->buffer);
    if (__builtin_expect(quotient >= WEFT_FAST_ESCAPE, 0)) {
        uint64_t gap = (d->buffer >> WEFT_FAST_ESCAPE) & 0xffffffffu;
        weft_fast_consume(d, WEFT_FAST_ESCAPE + 32);
        return gap;
    }
    uint64_t gap = (uint64_t)quotient << d->k | ((d->buffer >> (quotient + 1)) & weft_low_bits(d->k));
    weft_fast_consume(d, quotient + 1 + d->k);
    return gap;
}

/* Steps too long for one window, bit by bit. */
static inline uint64_t weft_fast_long_step(weft_fast_decoder *d, unsigned width) {
    weft_bits_reader bits = weft_bits_over(d->start, (size_t)(d->end - d->start));
    bits.position = (uint64_t)weft_fast_used(d);
    unsigned length = 0;
    while (length < 8 * width && weft_bits_get(&bits, 1) != 0) {
        length++;
    }
    uint64_t magnitude = (uint64_t)1 << (length % 64) | weft_bits_get(&bits, length % 64);
    uint64_t step = weft_bits_get(&bits, 1) ? 0 - magnitude : magnitude;
    if (length >= 8 * width || weft_bits_overrun(&bits)) {
        /* past the end, wherever the stream stood: it has overrun, and nothing is loaded any more */
        d->cursor = d->end + 1;
        d->available = 0;
        return 0;
    }
    d->cursor = d->start + bits.position / 8;
    d->buffer = 0;
    d->available = 0;
    weft_fast_refill(d);
    weft_fast_consume(d, bits.position % 8);
    return step;
}

static inline uint64_t weft_fast_step(weft_fast_decoder *d, unsigned width) {
    unsigned short_length = width == 1 ? 7 : width == 2 ? 15 : 16;
    if (__builtin_expect(d->available < 34, 0)) {
        weft_fast_refill(d);
    }
    unsigned length = weft_fast_ones(d->buffer);
    if (__builtin_expect(length > short_length, 0)) {
        return weft_fast_long_step(d, width);
    }
    uint64_t magnitude = (uint64_t)1 << length | ((d->buffer >> (length + 1)) & weft_low_bits(length));
    uint64_t negative = 0 - ((d->buffer >> (2 * length + 1)) & 1);
    weft_fast_consume(d, 2 * length + 2);
    return (magnitude ^ negative) - negative;
}

/* Decodes `count` changes. False if the stream ends early or a position leaves the bucket. */
static inline __attribute__((always_inline)) bool
weft_fast_loop(weft_fast_decoder *decoder, uint32_t *positions, void *steps, size_t count, unsigned width) {
    weft_fast_decoder d = *decoder;
    uint64_t next = d.next;
    for (size_t i = 0; i < count; i++) {
        weft_fast_refill(&d);
        next += weft_fast_gap(&d);
        if (__builtin_expect(next >= d.units, 0)) {
            return false;
        }
        __builtin_prefetch((const void *)(d.weights + next * width), 1);
        positions[i] = (uint32_t)next++;
        weft_unit_store(steps, i, width, weft_fast_step(&d, width));
    }
    d.next = next;
    *decoder = d;
    return weft_fast_used(&d) <= 8 * (d.end - d.start);
}

#endif
