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

/* Bits that all gaps cost with parameter k, the unary terminator aside. No gap waits for the one before, so
 * that compilers make vectors of it. */
static uint64_t gap_cost(const weft_changes *changes, unsigned k) {
    const uint32_t *positions = changes->positions;
    uint64_t quotients = positions[0] >> k;
    for (size_t i = 1; i < changes->count; i++) {
        quotients += (positions[i] - positions[i - 1] - 1) >> k;
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
        weft_fast_put_loop(&bits, changes, 0, changes->count, k, 1);
        break;
    case 2:
        weft_patch_kernels_for(weft_cpu_level())->encode_fast(&bits, changes, k);
        break;
    case 4:
        weft_fast_put_loop(&bits, changes, 0, changes->count, k, 4);
        break;
    default:
        weft_fast_put_loop(&bits, changes, 0, changes->count, k, 8);
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
