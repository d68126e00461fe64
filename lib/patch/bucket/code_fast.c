/* SPDX-License-Identifier: Apache-2.0
 *
 * code_fast.c: the `fast` coding. One stream of bits, change after change:
 *
 *   gap    Rice code with one parameter k per bucket: the quotient in unary (ones, then a zero), then
 *          the k low bits. A quotient of 24 or more (WEFT_FAST_ESCAPE) is 24 ones and the gap in 32 bits.
 *
 *   step   Elias gamma of the magnitude: its bit length less one in unary, then the bits below the
 *          highest; then the sign.
 *
 * A one-ULP step costs two bits and a gap about half a bit more than its entropy. Nothing here looks at
 * the base, and the decoder is free of unpredictable branches.
 */
#include "code.h"

#include "fast_loop.h"

enum { RICE_MAX = 28 };

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
    if (quotient >= WEFT_FAST_ESCAPE) {
        weft_bits_put(bits, weft_low_bits(WEFT_FAST_ESCAPE), WEFT_FAST_ESCAPE);
        weft_bits_put(bits, gap, 32);
        return;
    }
    uint64_t low = gap & (uint32_t)weft_low_bits(k);
    weft_bits_put(bits, weft_low_bits(quotient) | low << (quotient + 1), quotient + 1 + k);
}

static void put_step(weft_bits_writer *bits, uint64_t magnitude, uint64_t sign) {
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

static inline __attribute__((always_inline)) void
put_changes(weft_bits_writer *bits, const weft_changes *changes, unsigned k, unsigned width) {
    uint64_t mask = width == 8 ? ~(uint64_t)0 : ((uint64_t)1 << (8 * width)) - 1;
    uint32_t next = 0;
    for (size_t i = 0; i < changes->count; i++) {
        uint64_t step = weft_unit_load(changes->news, i, width) - weft_unit_load(changes->olds, i, width);
        uint64_t sign = (step >> (8 * width - 1)) & 1;
        uint64_t magnitude = ((step ^ (0 - sign)) + sign) & mask;
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

weft_status weft_fast_decoder_broken(const weft_fast_decoder *decoder) {
    return weft_fail(decoder->context, WEFT_MALFORMED, "a fast bucket does not hold the changes it claims");
}

weft_status weft_fast_decoder_some(weft_fast_decoder *decoder, weft_changes *changes, size_t count) {
    const weft_patch_kernels *kernels = weft_patch_kernels_for(weft_cpu_level());
    uint32_t *positions = changes->positions + changes->count;
    uint8_t *steps = (uint8_t *)changes->news + changes->count * changes->width;
    bool good;
    switch (changes->width) {
    case 1:
        good = weft_fast_loop(decoder, positions, steps, count, 1);
        break;
    case 2:
        good = kernels->decode_fast(decoder, positions, steps, count);
        break;
    case 4:
        good = weft_fast_loop(decoder, positions, steps, count, 4);
        break;
    default:
        good = weft_fast_loop(decoder, positions, steps, count, 8);
        break;
    }
    changes->count += good ? count : 0;
    return good ? WEFT_OK : weft_fast_decoder_broken(decoder);
}

weft_status weft_fast_decoder_finish(const weft_fast_decoder *decoder) {
    int64_t left = 8 * (decoder->end - decoder->start) - weft_fast_used(decoder);
    return left >= 0 && left < 8 ? WEFT_OK : weft_fast_decoder_broken(decoder);
}
