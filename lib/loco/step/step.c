/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c: the loops of step_loop.h for any processor, which the vector forms are tested against, the
 * choice, and how local weights are set.
 */
#include "step_loop.h"

#ifdef WEFT_X86
#include <immintrin.h>
#endif

uint32_t weft_step_portable(const weft_step *step, size_t count, const float *sums, float *consensus,
                            float *momentum) {
    return step_all(step, count, sums, consensus, momentum);
}

weft_step_kernel weft_step_kernel_for(weft_cpu level) {
#ifdef WEFT_X86
    if (level == WEFT_CPU_AVX512) {
        return weft_step_avx512;
    }
    if (level == WEFT_CPU_AVX2) {
        return weft_step_avx2;
    }
#endif
    (void)level;
    return weft_step_portable;
}

void weft_step_carry(float *local, const float *consensus, const float *start, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float moved = local[i] - start[i];
        local[i] = moved == 0 ? consensus[i] : consensus[i] + moved;
    }
}

#ifdef WEFT_X86
/* Whole lines; what is before and behind them goes the usual way. Floats that lie across lines by less than
 * a float do so all the way, and go the usual way too. */
void weft_step_copy(float *to, const float *from, size_t count) {
    enum { LINE = 64, LINE_FLOATS = LINE / sizeof(float) };
    size_t before = (LINE - (uintptr_t)to % LINE) % LINE;
    size_t head = before / sizeof(float) < count ? before / sizeof(float) : count;
    size_t lines = before % sizeof(float) == 0 ? (count - head) / LINE_FLOATS : 0;
    memcpy(to, from, head * sizeof(float));
    to += head;
    from += head;
    for (size_t i = 0; i < lines * LINE_FLOATS; i += 4) {
        _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    }
    /* before what other threads are told of them */
    _mm_sfence();
    size_t done = lines * LINE_FLOATS;
    memcpy(to + done, from + done, (count - head - done) * sizeof(float));
}
#else
void weft_step_copy(float *to, const float *from, size_t count) {
    memcpy(to, from, count * sizeof(float));
}
#endif
