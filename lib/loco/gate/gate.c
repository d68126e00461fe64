/* SPDX-License-Identifier: Apache-2.0
 *
 * gate.c: the gate in plain C, which the vector forms are tested against, the choice between them, and the
 * gate over whole buffers.
 */
#include "gate.h"

#include "../../base/context.h"

#include <string.h>
#include <weft/loco.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* s in whole steps of the grid: see weft_grid_shift. */
static float round_to_grid(float consensus, float s, uint32_t grid) {
    uint32_t exponent = larger(bits_of(consensus) & 0x7f800000u, WEFT_GRID_LEAST) + weft_grid_shift(grid);
    exponent = exponent < WEFT_GRID_MOST ? exponent : WEFT_GRID_MOST;
    float middle = float_of(exponent | WEFT_GRID_HALF);
    float steps = (s + middle) - middle;
    return __builtin_fabsf(s) < middle * 0.25f ? steps : s;
}

uint32_t weft_gate_portable(const weft_gate_input *input, weft_entries *fired, uint16_t words[WEFT_TILE]) {
    uint32_t highest = 0;
    size_t count = fired->count;
    for (size_t i = 0; i < input->count; i++) {
        float consensus = input->consensus[i];
        float s = input->residual[i] + (consensus - input->local[i]);
        float next = consensus - s;
        bool fires = input->open || weft_bf16_round(bits_of(consensus)) != weft_bf16_round(bits_of(next));
        float whole = s;
        if (input->grid != 0) {
            whole = round_to_grid(consensus, s, input->grid);
            fires = whole != 0;
        }
        uint32_t sent = bits_of(whole) & input->mask;
        highest = larger(highest, bits_of(s) & 0x7fffffffu);
        highest = larger(highest, bits_of(next) & 0x7fffffffu);
        words[i] = (uint16_t)(bits_of(consensus) >> 16);
        fired->positions[count] = input->first + (uint32_t)i;
        fired->values[count] = sent;
        fired->words[count] = words[i];
        count += fires;
        input->kept[i] = fires ? s - float_of(sent) : s;
    }
    fired->count = count;
    return highest;
}

weft_gate weft_gate_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return weft_gate_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return weft_gate_avx2;
    }
#endif
#ifdef WEFT_ARM
    if (level == WEFT_CPU_NEON) {
        return weft_gate_neon;
    }
#endif
    (void)level;
    return weft_gate_portable;
}

/* ---- whole buffers ---- */

/* A tile's results go to a room of their own first, since the caller's arrays have no space past their end.
 */
weft_status weft_loco_gate(weft_context *context, const float *consensus, const float *local,
                           float *residual, uint64_t count, uint32_t significant, bool open,
                           uint32_t *positions, float *values, uint64_t *fired_out) {
    weft_gate gate = weft_gate_for(weft_cpu_level());
    weft_gate_room room;
    uint64_t total = 0;
    weft_context_clear(context);
    if (count > UINT32_MAX || significant == 1 || significant > 23) {
        return weft_fail(
            context, WEFT_INVALID_ARGUMENT,
            "the gate takes fewer than 2^32 values and 0 or 2 to 23 significant bits, not %llu "
            "and %u",
            (unsigned long long)count, significant);
    }
    for (uint64_t done = 0; done < count; done += WEFT_TILE) {
        weft_entries fired = weft_fired_in(&room);
        weft_gate_input input = {
            .consensus = consensus + done,
            .local = local + done,
            .residual = residual + done,
            .kept = residual + done,
            .count = count - done < WEFT_TILE ? (size_t)(count - done) : WEFT_TILE,
            .first = (uint32_t)done,
            .mask = weft_gate_mask(significant),
            .open = open,
        };
        if (gate(&input, &fired, room.words) >= WEFT_NOT_FINITE) {
            return weft_fail(context, WEFT_INVALID_ARGUMENT,
                             "a weight, or its change, is not finite among values %llu to %llu: training "
                             "is broken",
                             (unsigned long long)done, (unsigned long long)(done + input.count - 1));
        }
        memcpy(positions + total, room.positions, fired.count * sizeof *positions);
        memcpy(values + total, room.values, fired.count * sizeof *values);
        total += fired.count;
    }
    *fired_out = total;
    return WEFT_OK;
}
