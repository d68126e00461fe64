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

/* ---- decoding ---- */

static inline unsigned ones(uint64_t window) {
    return (unsigned)__builtin_ctzll(~window | (uint64_t)1 << 63);
}

/* Tops the buffer up to at least 56 bits, unless all of the stream is in it. The load's address does not
 * depend on the buffer's content, so it waits for nothing. */
static inline void refill(weft_fast_decoder *d) {
    if (__builtin_expect(d->cursor <= d->end, 1)) {
        uint64_t bytes;
        memcpy(&bytes, d->cursor, 8);
        d->buffer |= bytes << d->available;
        d->cursor += (63 - d->available) >> 3;
        d->available |= 56;
    }
}

/* More than is there may be consumed: `available` is then negative, and the stream has overrun. */
static inline void consume(weft_fast_decoder *d, unsigned bits) {
    d->buffer >>= bits;
    d->available -= (int)bits;
}

static inline int64_t bits_used(const weft_fast_decoder *d) {
    return 8 * (d->cursor - d->start) - d->available;
}

static inline bool overrun(const weft_fast_decoder *d) {
    return bits_used(d) > 8 * (d->end - d->start);
}

static inline uint32_t get_gap(weft_fast_decoder *d) {
    unsigned quotient = ones(d->buffer);
    if (__builtin_expect(quotient >= ESCAPE, 0)) {
        uint32_t gap = (uint32_t)(d->buffer >> ESCAPE);
        consume(d, ESCAPE + 32);
        return gap;
    }
    uint32_t gap = (uint32_t)quotient << d->k | (uint32_t)((d->buffer >> (quotient + 1)) & unary(d->k));
    consume(d, quotient + 1 + d->k);
    return gap;
}

/* Steps too long for one window, bit by bit. */
static uint64_t get_long_step(weft_fast_decoder *d, unsigned width) {
    weft_bits_reader bits = weft_bits_over(d->start, (size_t)(d->end - d->start));
    bits.position = (uint64_t)bits_used(d);
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
    refill(d);
    consume(d, bits.position % 8);
    return step;
}

static inline uint64_t get_step(weft_fast_decoder *d, unsigned width) {
    unsigned short_length = width == 1 ? 7 : width == 2 ? 15 : 16;
    if (__builtin_expect(d->available < 34, 0)) {
        refill(d);
    }
    unsigned length = ones(d->buffer);
    if (__builtin_expect(length > short_length, 0)) {
        return get_long_step(d, width);
    }
    uint64_t magnitude = (uint64_t)1 << length | ((d->buffer >> (length + 1)) & unary(length));
    uint64_t negative = 0 - ((d->buffer >> (2 * length + 1)) & 1);
    consume(d, 2 * length + 2);
    return (magnitude ^ negative) - negative;
}

/* False if the stream ends early or a position leaves the bucket. */
static inline __attribute__((always_inline)) bool
get_changes(weft_fast_decoder *decoder, weft_changes *changes, size_t count, unsigned width) {
    weft_fast_decoder d = *decoder;
    uint32_t *positions = changes->positions;
    void *news = changes->news;
    uint64_t next = d.next;
    size_t end = changes->count + count;
    for (size_t i = changes->count; i < end; i++) {
        refill(&d);
        next += get_gap(&d);
        if (__builtin_expect(next >= d.units || overrun(&d), 0)) {
            return false;
        }
        __builtin_prefetch(d.weights + next * width, 1);
        positions[i] = (uint32_t)next++;
        weft_unit_store(news, i, width, get_step(&d, width));
        if (__builtin_expect(overrun(&d), 0)) {
            return false;
        }
    }
    d.next = next;
    *decoder = d;
    changes->count = end;
    return true;
}

weft_status weft_fast_decoder_begin(weft_fast_decoder *decoder, weft_context *context,
                                    const uint8_t *payload, size_t size, uint64_t units) {
    if (size < 1 || payload[0] > RICE_MAX) {
        return weft_fail(context, WEFT_MALFORMED, "a fast bucket has no valid parameter");
    }
    *decoder = (weft_fast_decoder){
        .context = context,
        .start = payload + 1,
        .cursor = payload + 1,
        .end = payload + size,
        .units = units,
        .k = payload[0],
    };
    return WEFT_OK;
}

static weft_status broken(const weft_fast_decoder *decoder) {
    return weft_fail(decoder->context, WEFT_MALFORMED, "a fast bucket does not hold the changes it claims");
}

weft_status weft_fast_decoder_some(weft_fast_decoder *decoder, weft_changes *changes, size_t count) {
    bool good;
    switch (changes->width) {
    case 1:
        good = get_changes(decoder, changes, count, 1);
        break;
    case 2:
        good = get_changes(decoder, changes, count, 2);
        break;
    case 4:
        good = get_changes(decoder, changes, count, 4);
        break;
    default:
        good = get_changes(decoder, changes, count, 8);
        break;
    }
    return good ? WEFT_OK : broken(decoder);
}

weft_status weft_fast_decoder_finish(const weft_fast_decoder *decoder) {
    int64_t left = 8 * (decoder->end - decoder->start) - bits_used(decoder);
    return left >= 0 && left < 8 ? WEFT_OK : broken(decoder);
}
