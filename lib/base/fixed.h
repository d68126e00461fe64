/* SPDX-License-Identifier: Apache-2.0
 *
 * fixed.h: logarithms in fixed point, for decisions that must be the same on every machine.
 */
#ifndef WEFT_BASE_FIXED_H
#define WEFT_BASE_FIXED_H

#include <stdint.h>

/* log2(x) in 16.16 fixed point, good to a hundredth; log2(0) counts as 0. */
static inline uint64_t weft_fixed_log2(uint64_t x) {
    if (x == 0) {
        return 0;
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(x);
    uint64_t fraction = top >= 16 ? (x >> (top - 16)) & 0xffff : (x << (16 - top)) & 0xffff;
    uint64_t bulge = (fraction * (65536 - fraction)) >> 16;
    return ((uint64_t)top << 16) + fraction + ((bulge * 22481) >> 16);
}

#endif
