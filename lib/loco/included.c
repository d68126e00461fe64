/* SPDX-License-Identifier: Apache-2.0
 *
 * included.c: see included.h.
 */
#include "included.h"

#include <string.h>

static void copy_seal(const void *data, size_t size, uint8_t seal[WEFT_PAYLOAD_SEAL]) {
    memcpy(seal, (const uint8_t *)data + size - WEFT_PAYLOAD_SEAL, WEFT_PAYLOAD_SEAL);
}

void weft_loco_included_note(weft_loco *loco, const weft_loco_payload *payloads) {
    for (uint32_t rank = 0; rank < loco->options.ranks; rank++) {
        if (payloads[rank].data != NULL) {
            loco->included[rank].rounds = loco->rounds;
            copy_seal(payloads[rank].data, payloads[rank].size, loco->included[rank].seal);
        }
    }
}

bool weft_loco_included_possible(const weft_loco *loco, const uint8_t *data, uint64_t rounds) {
    static const weft_loco_included never;
    bool last = rounds == 0;
    for (uint32_t rank = 0; rank < loco->options.ranks; rank++) {
        weft_loco_included one;
        memcpy(&one, data + rank * sizeof one, sizeof one);
        if (one.rounds > rounds || (one.rounds == 0 && memcmp(&one, &never, sizeof one) != 0)) {
            return false;
        }
        last |= one.rounds == rounds;
    }
    return last;
}

/* Included in a later round than this, the rank has had another life, which went on from here: what it has
 * said here was included, or went back into that life's residual and on from there. */
bool weft_loco_included_has(const weft_loco *loco, const weft_loco_included *later) {
    uint8_t seal[WEFT_PAYLOAD_SEAL];
    uint64_t rounds = loco->rounds + 1;
    copy_seal(loco->payload.data, loco->payload.size, seal);
    return later->rounds > rounds ||
           (later->rounds == rounds && memcmp(later->seal, seal, sizeof seal) == 0);
}
