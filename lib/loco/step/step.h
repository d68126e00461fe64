/* SPDX-License-Identifier: Apache-2.0
 *
 * step.h: the step of the outer optimizer, in a form for each processor level, and what follows it: the new
 * weights go out to the tensors that are trained.
 *
 * Nothing here may be reordered or fused: ranks with other processors must come to the same bits.
 */
#ifndef WEFT_LOCO_STEP_H
#define WEFT_LOCO_STEP_H

#include "../../base/cpu.h"

#include <stddef.h>
#include <stdint.h>

typedef struct weft_step {
    float included; /* ranks */
    float rate;
    float mu;
} weft_step;

/* Moves `count` weights and their momentum (NULL: none) by the sums of what the ranks have sent. Returns
 * the largest magnitude of a new weight as bits. */
typedef uint32_t (*weft_step_kernel)(const weft_step *step, size_t count, const float *sums,
                                     float *consensus, float *momentum);

weft_step_kernel weft_step_kernel_for(weft_cpu level);

uint32_t weft_step_portable(const weft_step *step, size_t count, const float *sums, float *consensus,
                            float *momentum);
#ifdef WEFT_X86
uint32_t weft_step_avx2(const weft_step *step, size_t count, const float *sums, float *consensus,
                        float *momentum);
uint32_t weft_step_avx512(const weft_step *step, size_t count, const float *sums, float *consensus,
                          float *momentum);
#endif

/* Copies numbers that nobody reads again soon, past the caches where the processor can: what is
 * overwritten is not read first. */
void weft_step_copy(float *to, const float *from, size_t count);
/* Sets weights to the consensus and how far they have come from `start`. One that has not moved has the
 * consensus's bits, a zero's sign included. */
void weft_step_carry(float *local, const float *consensus, const float *start, size_t count);

#endif
