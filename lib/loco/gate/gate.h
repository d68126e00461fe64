/* SPDX-License-Identifier: Apache-2.0
 *
 * gate.h: the visibility gate, one tile at a time, in a form for each processor level.
 *
 * It reads consensus, local weights and residual once and writes the residual once: four streams, where a
 * copy has two. All else that it makes fits the first-level cache. Every level makes the same bits: one
 * subtraction, one addition, one subtraction, each rounded, and integers from there on.
 */
#ifndef WEFT_LOCO_GATE_H
#define WEFT_LOCO_GATE_H

#include "../../code/entries.h"

/* Room for what a tile gives. */
typedef struct weft_gate_room {
    uint16_t words[WEFT_TILE];
    uint32_t positions[WEFT_TILE + WEFT_KERNEL_SLACK];
    uint32_t values[WEFT_TILE + WEFT_KERNEL_SLACK];
    uint16_t fired_words[WEFT_TILE + WEFT_KERNEL_SLACK];
} weft_gate_room;

/* Nothing has fired yet. */
static inline weft_entries weft_fired_in(weft_gate_room *room) {
    return (weft_entries){0, room->positions, room->values, room->fired_words};
}

typedef struct weft_gate_input {
    const float *consensus;
    const float *local;
    const float *residual;
    float *kept;    /* the new residual; may be `residual` */
    size_t count;   /* at most WEFT_TILE */
    uint32_t first; /* position of the first */
    uint32_t mask;  /* the bits of a value that are sent */
    bool open;      /* fires everywhere */
    uint32_t grid;  /* what is sent are multiples of 2^(1 - grid) ULPs; 0: what is visible */
} weft_gate_input;

/* Adding 1.5 * 2^23 steps of the grid to s, and taking them away again, leaves whole steps: this is what an
 * exponent of the consensus becomes in that number. The exponents of both are kept in the range of normal
 * numbers, from WEFT_GRID_LEAST to WEFT_GRID_MOST: at its ends the grid is finer or coarser, which is as
 * good. An s of more than a quarter of that number would leave nothing, and is sent as it is. What is sent
 * is between half of s and twice s, so the rest of it is exact. */
static inline uint32_t weft_grid_shift(uint32_t grid) {
    return (17 - grid) << 23;
}
#define WEFT_GRID_LEAST (1u << 23)
#define WEFT_GRID_MOST (254u << 23)
#define WEFT_GRID_HALF (1u << 22)

/* Appends what fires, and sets words[i] to the high half of consensus[i]. Returns the largest magnitude of
 * s and of consensus - s as bits: from WEFT_NOT_FINITE on, one of them is not finite. */
typedef uint32_t (*weft_gate)(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]);

weft_gate weft_gate_for(weft_cpu level);

uint32_t weft_gate_portable(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]);
#ifdef WEFT_X86
uint32_t weft_gate_avx2(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]);
uint32_t weft_gate_avx512(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]);
#endif
#ifdef WEFT_ARM
uint32_t weft_gate_neon(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]);
#endif

/* Asks for what comes half a kilobyte after weight `i`, which is some percent faster than what the
 * processor asks for by itself. The addresses need not be anybody's. */
static inline void weft_gate_fetch(const weft_gate_input *input, size_t i) {
    enum { AHEAD = 512 };
    weft_cpu_fetch((uintptr_t)(input->consensus + i) + AHEAD);
    weft_cpu_fetch((uintptr_t)(input->local + i) + AHEAD);
    weft_cpu_fetch((uintptr_t)(input->residual + i) + AHEAD);
}

/* The bits that remain of a value that is cut to `significant` bits; 0: all. */
static inline uint32_t weft_gate_mask(uint32_t significant) {
    return significant == 0 ? UINT32_MAX : UINT32_MAX << (24 - significant);
}

#endif
