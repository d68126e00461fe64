/* SPDX-License-Identifier: Apache-2.0
 *
 * payload.h: what a rank sends in a round: a header that says whose it is and what it is coded against, the
 * blocks, each with a checksum, and an end that seals them all. doc/FORMAT.md specifies the bytes.
 */
#ifndef WEFT_LOCO_PAYLOAD_H
#define WEFT_LOCO_PAYLOAD_H

#include "../base/bytes.h"

#include <weft/loco.h>

enum {
    WEFT_PAYLOAD_BLOCK = 1 << 20, /* elements of a block as this library cuts them */
    WEFT_PAYLOAD_VERSION = 1,
    WEFT_PAYLOAD_SEAL = 16, /* bytes at its end, which depend on all before them */
};

typedef struct weft_payload_block {
    const uint8_t *data; /* followed by at least eight readable bytes */
    uint32_t size;
    uint32_t fired;
} weft_payload_block;

/* More than any payload of a model of so many weights has. */
static inline uint64_t weft_loco_payload_most(uint64_t elements) {
    return 16 * elements + 65536;
}

/* A payload whose every byte is covered by a checksum that holds. */
typedef struct weft_payload {
    weft_loco_info info;
    uint32_t block_elements;
    weft_payload_block *blocks;
} weft_payload;

/* The seal collects what the end of a payload vouches for. */
typedef struct weft_payload_seal {
    weft_writer checksums;
    uint64_t fired;
} weft_payload_seal;

void weft_payload_begin(const weft_loco_info *info, uint32_t block_elements, weft_writer *writer,
                        weft_payload_seal *seal);
/* A frame: the block's payload, written by the caller between the two calls. */
size_t weft_payload_frame_begin(weft_writer *frame);
void weft_payload_frame_end(weft_writer *frame, size_t start, uint32_t fired);
/* Adds a whole frame to the payload. */
void weft_payload_append(weft_writer *writer, weft_payload_seal *seal, const weft_writer *frame);
void weft_payload_finish(weft_writer *writer, weft_payload_seal *seal);

weft_status weft_payload_open(weft_context *context, const void *data, size_t size,
                              weft_payload *payload_out);
void weft_payload_close(weft_context *context, weft_payload *payload);

#endif
