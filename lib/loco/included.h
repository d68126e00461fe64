/* SPDX-License-Identifier: Apache-2.0
 *
 * included.h: for each rank, which of its payloads was the last to be included in a round. All ranks hold
 * the same, because it follows from the rounds alone, and a snapshot has it too: so a rank that passes over
 * the round it last spoke in, when nothing is left of that, learns whether what it said there has counted.
 *
 * The payload is told by its seal, which stands for all of its bytes: an earlier life of the rank may have
 * put another one than this life holds.
 */
#ifndef WEFT_LOCO_INCLUDED_H
#define WEFT_LOCO_INCLUDED_H

#include "loco.h"

/* As it lies in states and snapshots. */
struct weft_loco_included {
    uint64_t rounds; /* that were done with the round in which it was included; 0: never */
    uint8_t seal[WEFT_PAYLOAD_SEAL];
};

_Static_assert(sizeof(weft_loco_included) == sizeof(uint64_t) + WEFT_PAYLOAD_SEAL,
               "what lies in states has no padding");

static inline size_t weft_loco_included_bytes(const weft_loco *loco) {
    return loco->options.ranks * sizeof(weft_loco_included);
}

/* The last round has just ended with these payloads, one for each rank, some without data. */
void weft_loco_included_note(weft_loco *loco, const weft_loco_payload *payloads);
/* Whether `data`, one for each rank, can be what is so after so many rounds: nobody was included in a round
 * that has not been, and somebody in the last. */
bool weft_loco_included_possible(const weft_loco *loco, const uint8_t *data, uint64_t rounds);
/* Whether the payload of this rank in its present round has counted, by what is so some rounds later. */
bool weft_loco_included_has(const weft_loco *loco, const weft_loco_included *later);

#endif
