/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_loco.c: bytes as a payload of PULSELoCo, and as a block of one inside a good frame and seal, so that
 * the fuzzer gets past the checksums to the coding. What is refused must leave the rank as it was; what is
 * accepted must end the round.
 *
 * The first byte says which: 0 a payload; else a block, cut to 8 significant bits if the byte is even,
 * whose number of values is told by the next two bytes.
 */
#include "../../lib/loco/payload.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ELEMENTS = 9000 };

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

/* Weights of many exponents, zeros and subnormals among them. */
static void fill(float *weights) {
    uint64_t state = 1;
    for (size_t i = 0; i < ELEMENTS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(state >> 32);
        uint32_t exponent = i % 100 == 0 ? 0 : i % 50 == 0 ? 254 : 108 + (bits >> 25 & 15);
        bits = (bits & 0x807fffffu) | exponent << 23;
        memcpy(&weights[i], &bits, sizeof bits);
    }
}

static weft_loco *make_rank(weft_context *context, float *weights, uint32_t significant) {
    weft_loco_options options = {.size = sizeof options};
    weft_loco_defaults(&options);
    weft_loco_tensor tensor = {"w", weights, ELEMENTS};
    weft_loco *loco = NULL;
    options.run = "f";
    options.ranks = 2;
    options.significant = significant;
    fill(weights);
    require(weft_loco_create(context, &options, &tensor, 1, &loco) == WEFT_OK);
    return loco;
}

/* A payload of rank 1 with the bytes as its only block. */
static void wrap(const weft_loco_info *like, const uint8_t *data, size_t size, uint32_t fired,
                 weft_context *context, weft_writer *payload) {
    weft_payload_seal seal;
    weft_writer frame;
    weft_loco_info info = *like;
    info.rank = 1;
    weft_writer_open(&seal.checksums, context);
    weft_writer_open(&frame, context);
    weft_payload_begin(&info, WEFT_PAYLOAD_BLOCK, payload, &seal);
    size_t start = weft_payload_frame_begin(&frame);
    weft_writer_bytes(&frame, data, size);
    weft_payload_frame_end(&frame, start, fired);
    weft_payload_append(payload, &seal, &frame);
    weft_payload_finish(payload, &seal);
    weft_writer_close(&frame);
    weft_writer_close(&seal.checksums);
}

static void try_payload(weft_context *context, uint8_t kind, const uint8_t *data, size_t size) {
    static float weights[ELEMENTS];
    weft_loco *loco = make_rank(context, weights, kind % 2 == 0 ? 8 : 0);
    weft_loco_payload payloads[2];
    weft_loco_info info = {.size = sizeof info};
    weft_writer wrapped;
    require(weft_loco_encode(loco, &payloads[0]) == WEFT_OK);
    require(weft_loco_inspect(context, &payloads[0], &info) == WEFT_OK);
    weft_writer_open(&wrapped, context);
    if (kind != 0 && size >= 2) {
        uint32_t fired = (uint32_t)data[0] | (uint32_t)data[1] << 8;
        wrap(&info, data + 2, size - 2, fired, context, &wrapped);
    } else {
        weft_writer_bytes(&wrapped, data, size);
    }
    payloads[1] = (weft_loco_payload){wrapped.data, wrapped.size};
    weft_digest before = weft_loco_digest(loco);
    if (wrapped.data != NULL && weft_loco_aggregate(loco, payloads, 2, NULL) != WEFT_OK) {
        weft_digest after = weft_loco_digest(loco);
        require(weft_digest_equal(&before, &after) && weft_loco_rounds(loco) == 0);
    } else {
        require(wrapped.data == NULL || weft_loco_rounds(loco) == 1);
    }
    weft_writer_close(&wrapped);
    weft_loco_destroy(loco);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_context *context = NULL;
    const weft_context_options options = {.size = sizeof options, .threads = 1};
    if (size == 0) {
        return 0;
    }
    require(weft_context_create(&options, &context) == WEFT_OK);
    try_payload(context, data[0], data + 1, size - 1);
    weft_context_destroy(context);
    return 0;
}
